"""The simulated nvidia-smi: texts, exit codes and traps."""

from __future__ import annotations

import os
import subprocess

import pytest

from workbench.sim.nvidia_smi import main


@pytest.fixture
def smi(sim_env, monkeypatch, capsys):
    """Return smi(profile, *argv), which runs in this process and gives (exit code, stdout)."""

    def run(profile: str, *argv: str) -> tuple[int, str]:
        for name in ("WORKBENCH_SIM_PROFILE", "WORKBENCH_SIM_STATE"):
            monkeypatch.setenv(name, sim_env(profile)[name])
        code = main(argv)
        got = capsys.readouterr()
        assert got.err == ""
        return code, got.out

    return run


def test_the_executable_is_the_same_program(sim_env, smi):
    done = subprocess.run(
        ["nvidia-smi", "-pl", "900"], env=sim_env("rtx-pro-6000"), capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == smi("rtx-pro-6000", "-pl", "900") and done.stderr == ""


BUS = "00000000:01:00.0"


def test_query_gives_canonical_headers_units_and_absent_values(smi):
    names = "index,clocks.sm,clocks.mem,power.draw,power.limit,temperature.memory,clocks.applications.gr,memory.used"
    code, out = smi("gb10", f"--query-gpu={names}", "--format=csv")
    header, row = out.splitlines()
    assert code == 0
    assert header == (
        "index, clocks.current.sm [MHz], clocks.current.memory [MHz], power.draw [W], power.limit "
        "[W], "
        "temperature.memory, clocks.applications.graphics [MHz], memory.used [MiB]"
    )
    cells = row.split(", ")
    assert cells[:3] == ["0", "208 MHz", "[N/A]"] and cells[3].endswith(" W")
    assert cells[4:] == ["[N/A]", "N/A", "[Requested functionality has been deprecated]", "[N/A]"]


def test_query_without_header_and_units_for_one_gpu(smi):
    code, out = smi(
        "four-pcie", "--query-gpu=index,memory.total", "--format=csv,noheader,nounits", "-i", "2"
    )
    assert (code, out) == (0, "2, 40960\n")


def test_query_loops_in_one_process(sim_env):
    process = subprocess.Popen(
        ["nvidia-smi", "--query-gpu=index", "--format=csv", "-lms", "20"],
        env=sim_env("rtx-5060ti-x2"),
        stdout=subprocess.PIPE,
        text=True,
    )
    lines = [process.stdout.readline().strip() for _ in range(7)]
    process.terminate()
    process.communicate()
    assert lines == ["index", "0", "1", "0", "1", "0", "1"]


def test_an_unknown_field_is_rejected(smi):
    assert smi("gb10", "--query-gpu=index,soul", "--format=csv") == (
        2,
        'Field "soul" is not a valid field to query.\n',
    )


def test_list_by_uuid(smi):
    code, out = smi("rtx-5060ti-x2", "-L")
    lines = out.splitlines()
    assert (
        code == 0
        and len(lines) == 2
        and lines[1].startswith("GPU 1: NVIDIA GeForce RTX 5060 Ti (UUID: GPU-")
    )
    uuid = lines[1].split("UUID: ")[1].rstrip(")")
    assert smi("rtx-5060ti-x2", "--query-gpu=index", "--format=csv,noheader", f"--id={uuid}") == (
        0,
        "1\n",
    )


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["-pl", "400"], f"Power limit for GPU {BUS} was set to 400.00 W from 600.00 W."),
        (
            ["-lgc", "2100,2400"],
            f'GPU clocks set to "(gpuClkMin 2100, gpuClkMax 2400)" for GPU {BUS}',
        ),
        (
            ["--lock-gpu-clocks=1800"],
            f'GPU clocks set to "(gpuClkMin 1800, gpuClkMax 1800)" for GPU {BUS}',
        ),
        (
            ["-lmc", "7001"],
            f'Memory clocks set to "(memClkMin 7001, memClkMax 7001)" for GPU {BUS}',
        ),
        (["-pm", "1"], f"Enabled persistence mode for GPU {BUS}."),
        (["-pm", "0"], f"Persistence mode is already Disabled for GPU {BUS}."),
        (["-rgc"], "All done."),
        (["-rmc"], "All done."),
    ],
)
def test_setters_print_the_texts_of_the_real_tool(smi, argv, text):
    code, out = smi("rtx-pro-6000", *argv)
    assert code == 0 and out.splitlines()[0] == text and out.endswith("All done.\n")


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (
            ["-pl", "100"],
            "Changing power management limit is not supported for GPU: 0000000F:01:00.0.",
        ),
        (
            ["-lmc", "100"],
            "Setting locked Memory clocks is not supported for GPU 0000000F:01:00.0.",
        ),
    ],
)
def test_unsupported_setter_is_a_warning_with_exit_0(smi, argv, text):
    assert smi("gb10", *argv) == (0, f"{text}\nTreating as warning and moving on.\nAll done.\n")


def test_a_power_limit_is_in_force_and_out_of_range_is_rejected(smi):
    assert smi("rtx-pro-6000", "-pl", "350")[0] == 0
    code, out = smi("rtx-pro-6000", "-pl", "700")
    assert code == 2
    assert out == (
        "Provided power limit 700.00 W is not a valid power limit which should be between 150.00 W "
        "and 600.00 W for "
        f"GPU {BUS}\nTerminating early due to previous errors.\n"
    )
    query = smi("rtx-pro-6000", "--query-gpu=power.limit,persistence_mode", "--format=csv,noheader")
    assert query == (0, "350.00 W, Disabled\n")


def test_no_permission(smi, sim_state):
    sim_state("rtx-pro-6000").set_faults(no_permission=True)
    ending = "Terminating early due to previous errors.\n"
    power = (
        f"Failed to set power management limit for GPU {BUS}: Insufficient Permissions\n{ending}"
    )
    clocks = f"The current user does not have permission to change clocks for GPU {BUS}.\n{ending}"
    assert smi("rtx-pro-6000", "-pl", "400") == (4, power)
    assert smi("rtx-pro-6000", "-lgc", "2000") == (4, clocks)


@pytest.mark.parametrize(
    ("init", "code", "text"),
    [
        (9, 9, "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."),
        (18, 18, "Failed to initialize NVML: Driver/library version mismatch"),
        (999, 255, "Failed to initialize NVML: Unknown Error"),
        (28, 6, "No devices were found"),
    ],
)
def test_driver_that_does_not_start(smi, sim_state, init, code, text):
    sim_state("gb10").set_faults(init=init)
    got, out = smi("gb10", "-L")
    assert got == code and out.startswith(text)


def test_lost_gpu_is_named_and_the_others_answer(smi, sim_state):
    sim_state("four-pcie").set_faults(lost=[1])
    _, out = smi("four-pcie", "--query-gpu=index", "--format=csv,noheader")
    assert "GPU is lost" in out and [line for line in out.splitlines() if line.isdigit()] == [
        "0",
        "2",
        "3",
    ]
    assert smi("four-pcie", "-i", "1", "-L")[0] == 15


def test_processes_and_one_change_at_a_time(smi, sim_state):
    sim_state("gb10").publish_load(
        os.getpid(), {0: {"busy": 1, "memory": 1, "compute": 0, "memory_bytes": 3 << 30}}
    )
    query = ("--query-compute-apps=pid,used_memory", "--format=csv,noheader")
    assert smi("gb10", *query) == (0, f"{os.getpid()}, 3072 MiB\n")
    assert smi("gb10", "-pm", "1", "-rgc") == (
        1,
        "Only one device modification may be done at a time.\n",
    )


def test_the_table_says_that_it_is_simulated(smi):
    for argv in ((), ("-q",), ("-h",)):
        assert "SIMULATED" in smi("rtx-pro-6000-passthrough", *argv)[1]
    assert "Pass-Through" in smi("rtx-pro-6000-passthrough", "-q")[1]

"""How the agent behaves as a process: its schedule, its costs, its end."""

from __future__ import annotations

import ast
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from nvml_child import Child, Driver

from workbench.gpu import remote_programs
from workbench.hosts.python_programs import ASKED, MISSING

PACKAGE = Path(remote_programs.__file__).parents[1]


def test_dear_calls_are_rare_and_fields_come_in_one_call(
    agent: Callable[..., Child], driver: Driver
) -> None:
    driver.set("gpus * 1")
    child = agent(slow_s=60, info_s=60)
    for _ in range(12):
        child.sample()
    ticks = driver.calls("nvmlDeviceGetUtilizationRates")
    assert ticks >= 12
    assert driver.calls("nvmlDeviceGetComputeRunningProcesses") == 1
    assert driver.calls("nvmlDeviceGetFanSpeed") == 1
    assert driver.calls("nvmlInit") == 1 and driver.calls("nvmlDeviceGetHandleBy") == 1
    # and one for the slowdown threshold
    assert abs(driver.calls("nvmlDeviceGetFieldValues") - ticks) <= 2


def test_a_refused_call_is_not_repeated_at_every_tick(
    agent: Callable[..., Child], driver: Driver
) -> None:
    driver.set("gpus * 1", "nvmlDeviceGetPowerManagementLimit * !3")
    child = agent(info_s=60)
    for _ in range(10):
        child.sample()
    assert driver.calls("nvmlDeviceGetPowerManagementLimit ") == 1


@pytest.mark.slow
def test_the_schedule_does_not_drift_and_follows_an_interval_change(
    agent: Callable[..., Child], driver: Driver
) -> None:
    child = agent(interval_s=0.1)
    times = [child.sample()["t"] for _ in range(12)]
    steps = [(t - times[0]) / 0.1 for t in times[1:]]
    near = sorted(abs(step - round(step)) for step in steps)
    assert near[len(near) // 2] < 0.2  # late by a moment at times, but always from the same start
    child.send(b"no json\n[1]\n" + b'{"interval_s": "x"}\n' + b'{"interval_s": 30}\n')
    child.sample()
    until = time.monotonic() + 0.5
    assert child.process.stdout is not None
    while time.monotonic() < until:  # what was under way may still come; then it is quiet
        if select.select([child.process.stdout], [], [], 0.3)[0]:
            child.sample()
        else:
            break
    assert not select.select([child.process.stdout], [], [], 0.3)[0]
    child.send(b'{"refresh": true}\n')
    assert "slow" in child.sample()["gpus"][0]


def test_a_hung_call_is_named_while_it_hangs_and_forgotten_when_it_returns(
    agent: Callable[..., Child], driver: Driver
) -> None:
    child = agent()
    child.sample()
    driver.set("hang * nvmlDeviceGetUtilizationRates")
    hung = child.wait_for(lambda d: "hung" in d)
    assert (
        hung["hung"] == "nvmlDeviceGetUtilizationRates"
        and hung["for_s"] >= 0.2
        and hung["gpu"] == 0
    )
    assert child.wait_for(lambda d: "hung" in d)["for_s"] > hung["for_s"]
    driver.clear()
    assert child.sample()["gpus"][0]["gpu_util_pct"] == 97


@pytest.mark.parametrize("how", ["end of file", "quit"])
def test_it_ends_at_once_even_while_the_driver_hangs(
    agent: Callable[..., Child], driver: Driver, how: str
) -> None:
    driver.set("hang * nvmlInitWithFlags")
    child = agent()
    assert child.wait_for(lambda d: d.get("hung") == "nvmlInitWithFlags")["gpu"] is None
    if how == "quit":
        child.send(b'{"quit": true}\n')
        assert child.process.wait(5) == 0
    assert child.close() == 0


def test_the_worker_ends_when_its_reader_is_gone(
    agent: Callable[..., Child], driver: Driver
) -> None:
    child = agent()
    child.sample()
    assert child.process.stdout is not None
    child.process.stdout.close()
    assert child.process.wait(5) == 0


def test_a_frame_that_is_cut_short_ends_it(driver: Driver) -> None:
    done = subprocess.run(
        remote_programs.AGENT_PROGRAM.argv(sys.executable, False, {}),
        input=remote_programs.AGENT_PROGRAM.stdin_frame(False)[:1000],
        capture_output=True,
        timeout=10,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (MISSING, ASKED + b"\n", b"")


def test_a_fault_of_its_own_ends_it_with_one_line(
    driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "driver.py"
    broken.write_text("def library():\n    raise RuntimeError('no such profile')\n")
    monkeypatch.setenv("WORKBENCH_SIM_DRIVER", str(broken))
    child = Child()
    assert child.process.wait(5) == 70
    assert child.process.stderr is not None
    assert child.process.stderr.read() == b"RuntimeError: no such profile\n"
    child.close()


def test_a_simulated_driver_is_marked(
    agent: Callable[..., Child], driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "driver.py"
    file.write_text(
        "import ctypes, os\n"
        "def library():\n    return ctypes.CDLL(os.environ['WORKBENCH_NVML_LIBRARY'])\n"
        "def host_file(path):\n"
        "    if path == '/proc/meminfo':\n"
        "        return 'MemTotal:  1024 kB\\nMemFree: 1 kB\\nMemAvailable:   512 kB\\n'\n"
        "    return 'performance\\n' if path.endswith('scaling_governor') else None\n"
    )
    monkeypatch.setenv("WORKBENCH_SIM_DRIVER", str(file))
    child = agent()
    assert child.wait_for(lambda d: "driver" in d)["simulated"] is True
    host = child.sample()["host"]
    assert (host["memory_total_bytes"], host["memory_available_bytes"]) == (1048576, 524288)
    assert host["cpu_governor"] == "performance"


def test_it_is_small(agent: Callable[..., Child], driver: Driver) -> None:
    child = agent()
    child.sample()
    status = Path(f"/proc/{child.process.pid}/status").read_text()
    peak_kib = int(status.split("VmHWM:")[1].split()[0])
    assert peak_kib < 20_000
    assert len(remote_programs.AGENT_PROGRAM.stdin_frame(True)) < 1000


def test_another_machine_needs_no_pynvml(agent: Callable[..., Child], driver: Driver) -> None:
    """Isolated and without site, its python3 finds nothing installed: the source in the frame is
    all there is."""
    here, there = agent(), agent(local=False)
    assert there.infos() == here.infos()
    assert there.sample()["gpus"][0]["sm_mhz"] == 2790


def test_with_the_kept_part_of_pynvml_it_reads_the_same_in_less_memory(
    agent: Callable[..., Child], driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def anonymous_kib(child: Child) -> int:
        return int(
            Path(f"/proc/{child.process.pid}/status").read_text().split("RssAnon:")[1].split()[0]
        )

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    whole = agent()
    infos, whole_kib = whole.infos(), anonymous_kib(whole)
    remote_programs.cache_pynvml_for_agent()
    part = agent()
    assert part.infos() == infos
    assert anonymous_kib(part) < whole_kib - 1000


def test_it_dies_with_sigterm(agent: Callable[..., Child], driver: Driver) -> None:
    child = agent()
    child.sample()
    child.process.send_signal(signal.SIGTERM)
    assert child.process.wait(5) == -signal.SIGTERM


@pytest.mark.parametrize("name", remote_programs.AGENT_PROGRAM.modules)
def test_the_agent_runs_on_python_3_8(name: str) -> None:
    """As far as the grammar tells; and none of the arguments that later versions added."""
    tree = ast.parse((PACKAGE / f"{name.replace('.', '/')}.py").read_text(), feature_version=(3, 8))
    keywords = {
        (getattr(n.func, "id", ""), k.arg)
        for n in ast.walk(tree)
        if isinstance(n, ast.Call)
        for k in n.keywords
    }
    assert ("zip", "strict") not in keywords
    methods = {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
    assert not methods & {"removeprefix", "removesuffix", "pairwise", "bit_count"}

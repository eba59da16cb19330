"""gpu status, set, revert; doctor."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.container_programs import ContainerPrograms

from workbench.sim import profiles
from workbench.sim.driver_state import SimState

Cli = Callable[..., Any]
PRO = ("--simulate", "rtx-pro-6000")
NO_GPU = pytest.mark.skipif(
    shutil.which("nvidia-smi") is not None, reason="this machine has an NVIDIA driver"
)


@NO_GPU
def test_status_without_a_driver_reports_its_state(cli: Cli) -> None:
    ran = cli("gpu", "status", "--json")
    assert ran.code == 1 and ran.document["error"]
    assert ran.document["gpus"] == [] and ran.document["driver"]["status"] == "no library"
    assert ran.document["host"]["memory_total_bytes"] > 0
    assert "workbench demo" in ran.err and "workbench demo" in cli("gpu", "status").err


def test_gpus_are_shown_even_if_the_state_directory_cannot_be_created(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a read-only home the GPUs are shown, and commands that need the directory say what to
    do."""
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/1/nowhere")
    ran = cli("gpu", "status", "--json")
    assert ran.document["driver"]["status"] and ran.document["guard"] is None
    assert "cannot create the state directory" in ran.document["journal_problem"]
    started = cli("servers", "--json")
    assert started.code == 1 and "set XDG_STATE_HOME" in started.document["next_step"]


def test_a_journal_that_cannot_be_used_does_not_hide_the_gpus(cli: Cli) -> None:
    cli(*PRO, "gpu", "status")
    journal = Path(os.environ["XDG_STATE_HOME"], "workbench/sim/rtx-pro-6000/gpu/journal.json")
    journal.parent.mkdir(mode=0o700, exist_ok=True)
    journal.write_text('{"version": 2, "entr')
    ran = cli(*PRO, "gpu", "status", "--json")
    assert ran.code == 0 and ran.document["gpus"] and ran.document["guard"] is None
    assert f"{journal} cannot be used" in ran.document["journal_problem"]
    assert f"mv {journal} {journal}.bad" in cli(*PRO, "gpu", "status").err


@NO_GPU
def test_settings_without_a_driver(cli: Cli) -> None:
    for argv in (
        ("gpu", "set", "--power-limit", "300", "--dry-run"),
        ("gpu", "set", "--power-limit", "300", "--yes"),
    ):
        ran = cli(*argv, "--json")
        assert ran.code == 1 and "driver" in ran.document["error"]
    assert cli("gpu", "revert", "--json").code == 0


def test_status_is_strict_json_even_if_the_driver_answers_nan(cli: Cli) -> None:
    cli(*PRO, "gpu", "status")
    directory = str(Path(os.environ["XDG_STATE_HOME"]) / "workbench/sim/rtx-pro-6000/driver")
    SimState(directory, profiles.get_profile("rtx-pro-6000")).set_faults(
        fields={"186": "nan", "83": "inf"}
    )
    ran = cli(*PRO, "gpu", "status", "--json")
    (gpu,) = json.loads(ran.out, parse_constant=pytest.fail)["gpus"]
    assert gpu["power_w"] is None and gpu["energy_j"] is None
    assert gpu["absent"]["power_w"] == "the driver's answer is not a number (NaN)"
    assert "power (the driver's answer is not a number (NaN))" in cli(*PRO, "gpu", "status").out


def test_status_of_a_simulated_card(cli: Cli) -> None:
    ran = cli(*PRO, "gpu", "status", "--json")
    assert ran.code == 0 and ran.document["simulated"] is True
    (gpu,) = ran.document["gpus"]
    assert (
        gpu["name"] == ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition")
        and gpu["state"] == "live"
    )
    assert gpu["power_w"] > 0 and gpu["power_limit_enforced_w"] == 600 and gpu["sm_max_mhz"] == 3090
    assert gpu["memory_temperature_c"] is None and gpu["absent"]["memory_temperature_c"]
    text = cli(*PRO, "gpu", "status").out
    assert "SIMULATED" in text and "power limit 600 W" in text


def test_unified_memory_is_reported_as_the_memory_of_the_host(cli: Cli) -> None:
    (gpu,) = cli("--simulate", "gb10", "gpu", "status", "--json").document["gpus"]
    assert gpu["power_limit_w"] is None and gpu["absent"]["power_limit_w"]


@pytest.mark.slow
def test_a_gpu_without_a_power_limit_shows_its_power_and_reasons_for_missing_values(
    cli: Cli,
) -> None:
    (gpu,) = cli("--simulate", "gb10", "gpu", "status", "--json").document["gpus"]
    missing = {name for name, value in gpu.items() if name.endswith("_w") and value is None}
    assert gpu["power_w"] > 0 and missing <= set(gpu["absent"]), gpu["absent"]
    text = cli("--simulate", "gb10", "gpu", "status").out
    assert " W  power limit n/a  " in text and "n/a W" not in text
    shown = text.partition("n/a: ")[2]
    assert "enforced power limit" in shown and not any(name in shown for name in gpu["absent"])


def test_a_lost_gpu_does_not_hide_the_others(cli: Cli) -> None:
    host = ("--simulate", "four-pcie")
    assert cli(*host, "gpu", "status").code == 0  # makes the host
    directory = f"{os.environ['XDG_STATE_HOME']}/workbench/sim/four-pcie/driver"
    SimState(directory, profiles.get_profile("four-pcie")).set_faults(lost=[2])
    ran = cli(*host, "gpu", "status", "--json")
    assert [g["state"] == "live" for g in ran.document["gpus"]] == [True, True, False, True]
    lost = ran.document["gpus"][2]
    assert lost["power_w"] is None and lost["message"]
    assert lost["message"] in cli(*host, "gpu", "status").out


@pytest.mark.slow
def test_set_shows_applies_reads_back_and_reverts(cli: Cli) -> None:
    dry = cli(*PRO, "gpu", "set", "--power-limit", "400", "--dry-run", "--json")
    assert dry.code == 0 and dry.document["dry_run"] is True
    assert dry.document["commands"] and dry.document["commands"][0][-2:] == ["-pl", "400"]

    refused = cli(*PRO, "gpu", "set", "--power-limit", "400", "--json")
    assert refused.code == 2 and "--yes" in refused.document["next_step"]

    done = cli(*PRO, "gpu", "set", "--power-limit", "400", "--persistence", "on", "--yes", "--json")
    assert (
        done.code == 0
        and done.document["ok"]
        and done.document["journal"]
        and done.document["simulated"]
    )
    assert [o["ok"] for o in done.document["outcomes"]] == [True, True]
    status = cli(*PRO, "gpu", "status", "--json").document
    assert status["gpus"][0]["power_limit_enforced_w"] == 400 and len(status["altered"]) == 2
    doctor = cli(*PRO, "doctor", "--json").document
    assert "gpu.altered" in [f["code"] for f in doctor["findings"]]

    back = cli(*PRO, "gpu", "revert", "--json")
    assert back.code == 0 and back.document["ok"]
    status = cli(*PRO, "gpu", "status", "--json").document
    assert status["gpus"][0]["power_limit_enforced_w"] == 600 and status["altered"] == []
    assert cli(*PRO, "gpu", "revert").out.strip() == "nothing to revert"


@pytest.mark.long
@pytest.mark.slow
def test_a_lock_that_a_passed_through_gpu_ignores_is_reported(cli: Cli) -> None:
    host = ("--simulate", "rtx-pro-6000-passthrough")
    done = cli(*host, "gpu", "set", "--lock-memory-clocks", "14001", "--yes", "--json")
    assert done.document["outcomes"][0]["in_force"] != "yes", done.document
    assert cli(*host, "gpu", "revert", "--json").document["ok"]


@pytest.mark.parametrize(
    "argv",
    [
        ("--power-limit", "9000"),
        ("--gpu", "7", "--power-limit", "400"),
        ("--gpu", "x", "--power-limit", "400"),
    ],
)
def test_settings_that_the_gpu_does_not_support(cli: Cli, argv: tuple[str, ...]) -> None:
    ran = cli(*PRO, "gpu", "set", *argv, "--yes", "--json")
    assert ran.code == 2 and "RTX PRO 6000" in ran.document["error"]  # says what there is
    assert cli(*PRO, "gpu", "status", "--json").document["altered"] == []


@pytest.mark.slow
def test_doctor(cli: Cli) -> None:
    ran = cli(*PRO, "doctor", "--json")
    assert ran.code == 0 and ran.document["simulated"] and ran.document["can_change_gpus"]
    versions = {e["engine"]: e["version"] for e in ran.document["engines"] if e["path"]}
    assert set(versions) == {"vllm", "sglang", "llamacpp"} and all(versions.values())
    shown = cli(*PRO, "doctor").out
    assert "SIMULATED" in shown
    assert f"workbench {' '.join(PRO)} gpu set --persistence on" in shown


def test_doctor_of_a_container_that_cannot_be_entered_says_so_and_fails(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = ContainerPrograms(tmp_path, "podman")
    programs.put("box")
    programs.refuse_to_enter("podman", "Error: runc: exec failed: sh: executable file not found")
    monkeypatch.setenv("PATH", f"{programs.bin}:{os.environ['PATH']}")
    ran = cli("--container", "podman:box", "doctor")
    assert ran.code != 0 and ran.out == ""
    assert "no command can be run in the container: Error: runc: exec failed" in ran.err
    assert "needs a POSIX sh" in ran.err


@pytest.mark.slow
def test_doctor_finds_old_software_and_low_limits(cli: Cli) -> None:
    said = cli("--simulate", "rtx-5060ti-old-stack", "doctor").out
    assert "vllm 0.8.5 at " in said  # the version that the findings are about
    ran = cli("--simulate", "rtx-5060ti-old-stack", "doctor", "--json")
    found = {finding["code"]: finding for finding in ran.document["findings"]}
    stack = {
        "driver.old",
        "stack.cuda-arch",
        "stack.cpu-build",
        "stack.flashinfer-arch",
        "stack.pins",
        "stack.nccl",
    }
    host = {
        "host.open-files",
        "host.memory",
        "host.shared-memory",
        "host.disk",
        "host.idle-states",
        "process.orphan",
    }
    assert (
        stack | host | {"gpu.link-width", "cuda.home", "cuda.nvcc-arch", "env.file-semantics"}
        <= found.keys()
    )
    assert all(finding["fix"] and finding["text"] for finding in found.values())
    plan = cli("--simulate", "rtx-5060ti-old-stack", "plan", "vllm-any", "--json").document
    said = {one["code"] for one in plan["findings"]}
    assert {"driver.old", "stack.cuda-arch", "stack.engine-arch"} <= said, "before a start too"
    assert "560.35.03" in found["driver.old"]["evidence"] and found["driver.old"][
        "source"
    ].startswith("https://")
    levels = [finding["level"] for finding in ran.document["findings"]]
    assert levels == sorted(levels, key=["error", "warn", "hint", "info"].index)


def test_doctor_reports_a_python3_that_does_not_work(cli: Cli) -> None:
    """Any Python can run TabbyAPI in its directory, so a Python on PATH does not mean that TabbyAPI
    is installed."""
    ran = cli("doctor", "--json")
    assert ran.code == 0
    tabby = next(e for e in ran.document["engines"] if e["engine"] == "tabbyapi")
    assert tabby["path"] is None and "a preset that names" in tabby["problem"]

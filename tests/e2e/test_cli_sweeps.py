"""gpu verify, gpu sweep, sweep and bench at several concurrencies, on simulated cards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.serving import free_port

from workbench.sim import profiles
from workbench.sim.driver_state import SimState
from workbench.sim.physics import GpuSetting

Cli = Callable[..., Any]
PRO = ("--simulate", "rtx-pro-6000")
GUEST = ("--simulate", "rtx-pro-6000-passthrough")
BRIEF = (
    "--requests",
    "8",
    "--max-tokens",
    "8",
    "--input-tokens",
    "16",
    "--warmup",
    "0",
    "--concurrency",
    "1",
)


@pytest.fixture(autouse=True)
def no_idle_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workbench.session.bench.gpu_meter.IDLE_BEFORE_RUN_S", 0.0)


@pytest.fixture
def settings_end(servers_end: None, cli: Cli) -> Iterator[None]:
    yield
    for host in (PRO, GUEST):
        if os.path.exists(f"{os.environ['XDG_STATE_HOME']}/workbench/sim/{host[1]}/gpu"):
            assert cli(*host, "gpu", "revert", "--json").document["ok"]


def started(cli: Cli, host: tuple[str, str]) -> str:
    ran = cli(*host, "start", "vllm-any", "--set", f"port={free_port()}", "--wait", "--json")
    assert ran.code == 0, ran
    return str(ran.document["run_id"])


def driver(host: tuple[str, str]) -> GpuSetting:
    """Return the values that are really set."""
    directory = f"{os.environ['XDG_STATE_HOME']}/workbench/sim/{host[1]}/driver"
    return SimState(directory, profiles.get_profile(host[1])).settings()[0]


def limit_w(profile: str = PRO[1]) -> float | None:
    directory = f"{os.environ['XDG_STATE_HOME']}/workbench/sim/{profile}/driver"
    return SimState(directory, profiles.get_profile(profile)).settings()[0].limit_w


# -- verify: requested is not in force


def verified(
    cli: Cli, host: tuple[str, str], *asked: str
) -> tuple[int, dict[str, Any], dict[str, Any]]:
    """Run `gpu set` with `asked`, then verify. Return the exit code, the document and the proof of
    the clock lock."""
    assert cli(*host, "gpu", "set", *asked, "--yes", "--json").document["ok"]
    return verdict(cli, host)


def verdict(
    cli: Cli, host: tuple[str, str], *asked: str
) -> tuple[int, dict[str, Any], dict[str, Any]]:
    ran = cli(*host, "gpu", "verify", "--seconds", "2.5", *asked, "--json")
    assert "proofs" in ran.document, ran  # else the document of an error, which says why
    proof = next(p for p in ran.document["proofs"] if p["setting"] == "gpu_clocks")
    assert (
        ran.document["in_force"]["gpu0.gpu_clocks"] == proof["in_force"] and proof["samples"] >= 5
    )
    assert ran.document["simulated"] is True and any(
        proof["text"] in line for line in ran.document["messages"]
    )
    return ran.code, ran.document, proof


def stored(cli: Cli, host: tuple[str, str], run_id: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return what a benchmark stores about each setting: a state and a text. Users see the text."""
    asked = (
        "bench",
        run_id,
        "--seconds",
        "2.5",
        "--requests",
        "2000",
        "--concurrency",
        "16",
        "--max-tokens",
        "64",
        "--input-tokens",
        "16",
        "--warmup",
        "0",
    )
    result = cli(*host, *asked, "--json").document
    kept = cli("results", "show", str(result["id"]), "--json").document["conditions"]
    text = cli("results", "show", str(result["id"])).out
    report = cli("results", "export", str(result["id"]), "--format", "md").out
    assert kept["findings"] and all(
        found in text and found in report for found in kept["findings"].values()
    ), text
    return kept["in_force"], kept["findings"]


@pytest.mark.long
@pytest.mark.slow
def test_verify_reports_that_a_passed_through_gpu_ignores_a_lock(
    cli: Cli, settings_end: None
) -> None:
    run_id = started(cli, GUEST)
    code, found, proof = verified(cli, GUEST, "--lock-gpu-clocks", "3000,3090")
    assert (code, proof["in_force"], found["target"]) == (1, "no effect", run_id)
    assert "requested 3000-3090 MHz, observed 2790 MHz for 100 % of" in proof["text"]
    assert [t["id"] for t in proof["traps"]][:2] == [
        "clock.max-is-not-sustained",
        "lock.success-is-a-request",
    ]
    assert cli("results", "list", "--json").document["results"] == []  # a proof is no benchmark
    assert cli(*GUEST, "gpu", "set", "--lock-memory-clocks", "14001", "--yes", "--json").document[
        "ok"
    ]
    in_force, findings = stored(cli, GUEST, run_id)
    assert in_force == {"gpu0.gpu_clocks": "no effect", "gpu0.memory_clocks": "no effect"}
    assert "requested 3000-3090 MHz, observed 2790 MHz for 100 % of" in findings["gpu0.gpu_clocks"]
    memory = findings["gpu0.memory_clocks"]
    assert (
        "observed 13365 MHz" in memory
        and ("13365 MHz is the normal memory clock of this card under comp") in memory
    )
    assert "on GB202 a memory lock can cost performance" in memory


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    "asked",
    [
        "2500,3000",
        *(pytest.param(lock, marks=pytest.mark.long) for lock in ("2790,2790", "180,3090")),
    ],
)
def test_no_lock_of_a_passed_through_gpu_is_reported_in_force(
    cli: Cli, settings_end: None, asked: str
) -> None:
    started(cli, GUEST)
    code, _, proof = verified(cli, GUEST, "--lock-gpu-clocks", asked)
    assert (code, proof["in_force"]) == (
        1,
        "consistent, proves nothing",
    ) and "is in force" not in proof["text"]
    code, _, proof = verdict(cli, GUEST, "--probe")
    assert (code, proof["in_force"]) == (1, "no effect") and "is in force" not in proof["text"]


@pytest.mark.slow
@pytest.mark.long
def test_on_bare_metal_a_lock_is_in_force_and_below_a_power_cap_it_is_capped(
    cli: Cli, settings_end: None
) -> None:
    run_id = started(cli, PRO)
    code, _, proof = verified(cli, PRO, "--lock-gpu-clocks", "2400,2400")
    assert (code, proof["in_force"]) == (
        1,
        "consistent, proves nothing",
    ) and "in force" not in proof["text"]
    code, _, proof = verdict(cli, PRO, "--probe")
    assert (code, proof["in_force"]) == (0, "yes") and "lock 2400 MHz is in force" in proof["text"]
    assert "under the same load the clock was 18" in proof["text"] and driver(PRO).gpu_lock_mhz == (
        2400,
        2400,
    )
    code, found, proof = verified(cli, PRO, "--power-limit", "150")
    assert (code, proof["in_force"], proof["limiter"], proof["share"]) == (
        0,
        "capped",
        "power",
        1.0,
    )
    assert ("not reached: capped by power for 100 % of the time") in proof[
        "text"
    ] and "in force" not in proof["text"]
    assert (
        proof["short"].endswith("capped by power, 100 %")
        and found["in_force"]["gpu0.power_limit_w"] == "yes"
    )
    in_force, findings = stored(cli, PRO, run_id)
    assert in_force == {"gpu0.power_limit_w": "yes", "gpu0.gpu_clocks": "capped"}
    assert ("not reached: capped by power for 100 % of the time, observed ") in findings[
        "gpu0.gpu_clocks"
    ]
    assert "it held the clocks down for 100 % of the time" in findings["gpu0.power_limit_w"]


@pytest.mark.long
@pytest.mark.slow
def test_verify_without_changed_settings_and_without_a_server(cli: Cli, settings_end: None) -> None:
    nothing = cli(*PRO, "gpu", "verify", "--json")
    assert nothing.code == 0 and nothing.document["altered"] is False
    assert "nothing to verify" in nothing.document["messages"][0]
    cli(*PRO, "gpu", "set", "--power-limit", "400", "--yes")
    assert cli(*PRO, "gpu", "verify", "--json").code == 1
    cli(*PRO, "gpu", "revert", "--json")
    cli(*PRO, "gpu", "set", "--governor", "powersave", "--persistence", "on", "--yes")
    read = cli(*PRO, "gpu", "verify", "--json")  # which the host tells, under load or not
    assert read.code == 0 and read.document["in_force"] == {
        "host.governor": "yes",
        "gpu0.persistence": "yes",
    }
    assert (
        read.document["target"] is None
        and ("GPU0: persistence mode is on") in read.document["messages"]
    )
    cli(*PRO, "gpu", "set", "--power-limit", "400", "--yes")
    without = cli(*PRO, "gpu", "verify", "--json")
    assert without.code == 1 and "no server is READY" in without.document["error"]
    dead = cli(*PRO, "gpu", "verify", "--url", f"http://127.0.0.1:{free_port()}", "--json")
    assert dead.code == 1 and "does not answer" in dead.document["error"]
    assert cli(*PRO, "gpu", "verify", "--seconds", "0", "--json").code == 2


# -- a GPU setting


@pytest.mark.slow
def test_a_power_sweep_is_stored_and_reverts_the_limit(cli: Cli, settings_end: None) -> None:
    run_id = started(cli, PRO)
    asked = ("gpu", "sweep", "--power-limit", "600,300", run_id, "--settle", "0", *BRIEF)
    refused = cli(*PRO, *asked, "--json")
    assert refused.code == 2 and "--yes" in refused.document["next_step"] and limit_w() is None
    dry = cli(*PRO, *asked, "--dry-run", "--json").document
    assert [s["label"] for s in dry["steps"]] == ["600 W", "300 W", "back to the start"]
    assert [c[-2:] for c in dry["commands"]] == [
        ["-pl", w] for w in ("600", "300", "600")
    ] and limit_w() is None
    assert [p["ours"] for p in dry["processes"]] == [True] and dry["gpus"][0]["gpu"] == 0
    assert "# back to the start\n$ nvidia-smi -i GPU-" in cli(*PRO, *asked, "--dry-run").out
    assert cli("sweep", "list", "--json").document == {"sweeps": []}
    ran = cli(*PRO, *asked, "--yes", "--json")
    sweep = ran.document
    assert (sweep["kind"], sweep["unit"], sweep["simulated"]) == ("power_limit_w", "W", True), ran
    assert [p["label"] for p in sweep["points"]] == ["600 W", "300 W"] and limit_w() in (
        600.0,
        None,
    )
    # it was there at the start: no change to prove, and it reads so
    assert sweep["points"][0]["in_force"] == "yes"
    for point in sweep["points"]:
        result = cli("results", "show", str(point["result_ids"][-1]), "--json").document
        assert result["conditions"]["gpu_settings"]["gpu0.power_limit_w"] == point["x"]
        assert point["tok_s"] == result["output_tok_s"] and point["ttft_p50_ms"] == (
            result["ttft_ms"] or {}
        ).get("p50")
    assert cli("sweep", "show", str(sweep["id"]), "--json").document == sweep
    shown = cli("sweep", "list").out
    assert "power limit" in shown and "SIMULATED" in shown
    table = cli("sweep", "show", str(sweep["id"])).out
    assert "SIMULATED" in table and "600 W" in table and "needs 3 measured values" in table
    assert cli("sweep", "show", "99", "--json").code == 2


@pytest.mark.long
def test_a_sweep_of_locks_without_effect_has_no_knee(cli: Cli, settings_end: None) -> None:
    run_id = started(cli, GUEST)
    shape = ("--settle", "0", "--seconds", "3", "--concurrency", "16")
    mixed = cli(
        *GUEST,
        "gpu",
        "sweep",
        "--lock-gpu-clocks",
        "2000,2790,3000",
        run_id,
        *shape,
        "--yes",
        "--json",
    ).document
    assert {p["in_force"] for p in mixed["points"]} == {"no effect"}
    asked = ("--lock-gpu-clocks", "1500,2000,2400", run_id, *shape)
    sweep = cli(*GUEST, "gpu", "sweep", *asked, "--yes", "--json").document
    assert [p["in_force"] for p in sweep["points"]] == ["no effect"] * 3 and sweep["knee"] is None
    assert sweep["knee_text"].endswith("the setting had no effect: 1500 MHz, 2000 MHz, 2400 MHz")
    assert {round(p["sm_mhz"]) for p in sweep["points"]} == {2790}


@contextmanager
def sweeping(run_id: str) -> Iterator[subprocess.Popen[bytes]]:
    """Return a process that sweeps, once its first value is set."""
    argv = [
        sys.executable,
        "-m",
        "workbench",
        *PRO,
        "gpu",
        "sweep",
        "--power-limit",
        "500,300",
        run_id,
        "--yes",
        "--json",
        "--settle",
        "60",
    ]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        end = time.monotonic() + 30
        while limit_w() != 500.0:
            assert time.monotonic() < end and process.poll() is None, (
                "waited 30 s for the first value"
            )
            time.sleep(0.05)
        yield process


@pytest.mark.slow
@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGINT, marks=pytest.mark.long), signal.SIGTERM]
)
def test_an_interrupted_sweep_reverts_its_settings(
    cli: Cli, settings_end: None, number: signal.Signals
) -> None:
    run_id = started(cli, PRO)
    with sweeping(run_id) as process:
        process.send_signal(number)
        out, _ = process.communicate(timeout=30)
    assert process.returncode == 128 + number and "error" in json.loads(out)
    assert limit_w() in (600.0, None)
    (kept,) = cli("sweep", "list", "--json").document["sweeps"]
    assert kept["state"] == "stopped" and {p["state"] for p in kept["points"]} == {"skipped"}


def serves_requests(cli: Cli) -> bool:
    """Return whether a server has requests, so that the first value of a sweep is being measured.
    The sweep is stored before that, and its command does not yet know it."""
    servers = cli(*PRO, "servers", "--json").document["servers"]
    return any(server["live"] and server["live"]["running"] for server in servers)


@pytest.mark.slow
def test_a_signal_names_the_command_that_resumes_the_levels_of_a_benchmark(
    cli: Cli, settings_end: None
) -> None:
    run_id = started(cli, PRO)
    levels = ("--concurrency", "1,2", "--requests", "400", "--max-tokens", "256")
    argv = [sys.executable, "-m", "workbench", *PRO, "bench", run_id, *levels]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        end = time.monotonic() + 120
        while not serves_requests(cli):
            assert time.monotonic() < end and process.poll() is None, "waited 120 s for the load"
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, said
    assert b"to resume it: workbench --simulate rtx-pro-6000 sweep resume 1" in said


@pytest.mark.long
def test_the_guard_reverts_the_settings_of_a_killed_sweep(cli: Cli, settings_end: None) -> None:
    config = Path(os.environ["XDG_CONFIG_HOME"]) / "workbench" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text("[gpu]\nheartbeat_s = 5\n")
    run_id = started(cli, PRO)
    with sweeping(run_id) as process:
        process.kill()
        process.communicate(timeout=30)
    end = time.monotonic() + 30
    while limit_w() not in (600.0, None):
        assert time.monotonic() < end, "waited 30 s for the guard"
        time.sleep(0.1)
    (kept,) = cli("sweep", "list", "--json").document["sweeps"]
    assert kept["state"] == "stopped" and "Workbench ended while it ran" in kept["error"]


# -- concurrency and flags


@pytest.mark.slow
def test_several_concurrencies_are_a_sweep_with_results(cli: Cli, settings_end: None) -> None:
    run_id = started(cli, PRO)
    found = cli(*PRO, "bench", run_id, *BRIEF[:-2], "--concurrency", "1,2,4", "--json").document
    assert [r["spec"]["concurrency"] for r in found["results"]] == [1, 2, 4]
    sweep = found["sweep"]
    assert [p["label"] for p in sweep["points"]] == ["c=1", "c=2", "c=4"] and sweep[
        "kind"
    ] == "concurrency"
    assert sweep["simulated"] is True and sweep["knee_text"]


@pytest.mark.long
@pytest.mark.slow
def test_a_flag_sweep_from_the_command_line(cli: Cli, settings_end: None) -> None:
    port = free_port()
    asked = (
        "sweep",
        "vllm-any",
        "--set",
        f"port={port}",
        "--flag",
        "max-num-seqs=4",
        *BRIEF,
        "--pairs",
        "0",
    )
    ran = cli(*PRO, *asked, "--json")
    assert (
        "up to 2 configurations with the current one, one run each on a fresh server; without a "
        "comparison" in ran.err
    )
    assert "the duration is known after the first run" in ran.err
    sweep = ran.document
    assert (sweep["kind"], sweep["name"], sweep["simulated"]) == ("flag", "max-num-seqs", True)
    assert [p["label"] for p in sweep["points"]] == [
        "start: max-num-seqs=default",
        "max-num-seqs=4",
    ]
    assert all(p["result_ids"] for p in sweep["points"]) and sweep["experiment_id"] is None
    servers = cli(*PRO, "servers", "--json").document["servers"]
    assert len(servers) == 2 and {s["state"] for s in servers} == {"stopped"}
    started(cli, PRO)
    busy = cli(*PRO, *asked, "--json")
    assert busy.code == 2 and "would stop run" in busy.document["error"]
    for wrong in (("max-num-seqs",), ("max-num-seqs=x",), ("a=1", "b=1", "c=1")):
        words = [word for flag in wrong for word in ("--flag", flag)]
        assert cli(*PRO, "sweep", "vllm-any", *words, "--json").code == 2


@pytest.mark.long
@pytest.mark.slow
def test_a_killed_flag_sweep_reports_the_server_that_it_left_running(
    cli: Cli, settings_end: None
) -> None:
    port = ("--set", f"port={free_port()}")
    argv = [
        sys.executable,
        "-m",
        "workbench",
        *PRO,
        "sweep",
        "vllm-any",
        *port,
        "--flag",
        "max-num-seqs=4",
        "--json",
    ]
    with subprocess.Popen(
        [*argv, "--seconds", "60"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        end = time.monotonic() + 60
        while not [
            s for s in cli(*PRO, "servers", "--json").document["servers"] if s["state"] == "ready"
        ]:
            assert time.monotonic() < end and process.poll() is None, "waited 60 s for its server"
            time.sleep(0.2)
        process.kill()
    (left,) = cli(*PRO, "servers", "--json").document["servers"]
    (kept,) = cli("sweep", "list", "--json").document["sweeps"]
    assert kept["state"] == "stopped" and left["state"] == "ready"
    assert (f"run {left['run_id']} may still be on (workbench stop {left['run_id']})") in kept[
        "error"
    ]
    assert f"workbench stop {left['run_id']}" in cli("sweep", "list").out
    assert cli(*PRO, "stop", left["run_id"], "--json").code == 0

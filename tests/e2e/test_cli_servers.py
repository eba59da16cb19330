"""start, servers, logs, stop: servers that outlive the command that started them."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import fake_engine
from support.procs import alive
from support.serving import free_port, processes_of

from workbench.session.servers.servers import Servers
from workbench.sim.simulated_host import BIN
from workbench.store import paths

Cli = Callable[..., Any]
PRO = ("--simulate", "rtx-pro-6000")
GB10 = ("--simulate", "gb10")


def start(cli: Cli, *more: str, profile: tuple[str, ...] = PRO) -> dict[str, Any]:
    ran = cli(
        *profile, "start", "vllm-any", "--set", f"port={free_port()}", "--wait", "--json", *more
    )
    assert ran.code == 0, ran
    document: dict[str, Any] = ran.document
    return document


@pytest.mark.slow
def test_start_servers_logs_stop(cli: Cli) -> None:
    run = start(cli)
    assert (
        run["state"] == "ready"
        and run["simulated"]
        and run["url"] == f"http://127.0.0.1:{run['port']}"
    )
    listed = cli(*PRO, "servers", "--json").document["servers"]
    assert listed[0]["live"]["generation_tok_s"] == 0 == listed[0]["live"]["running"]
    assert [(s["run_id"], s["state"], s["adopted"]) for s in listed] == [
        (run["run_id"], "ready", True)
    ]
    assert "SIMULATED" in cli(*PRO, "servers").out
    # of this host, where nothing was started
    assert cli("servers", "--json").document["servers"] == []

    logs = cli(*PRO, "logs", run["run_id"], "--json").document
    assert logs["run_id"] == run["run_id"] and "SIMULATED" in logs["lines"][0]
    assert cli(*PRO, "logs", run["run_id"]).out.splitlines()[0] == logs["lines"][0]

    stopped = cli(*PRO, "stop", run["run_id"], "--json")
    assert stopped.code == 0 and stopped.document["state"] == "stopped"
    assert processes_of(run["run_dir"]) == [] and not alive(run["pid"])
    again = cli(*PRO, "stop", run["run_id"])
    assert (again.code, again.out) == (0, f"{run['run_id']} stopped\n")
    followed = cli(*PRO, "logs", run["run_id"], "--follow")  # ends, since the run has
    assert followed.code == 0 and followed.out.splitlines()[0] == logs["lines"][0]


@pytest.mark.slow
def test_a_driver_and_packages_that_do_not_know_the_gpu_are_said_before_the_start(cli: Cli) -> None:
    """Only the doctor said so: the plan was clean, and the start failed with "no kernel image"."""
    old = ("--simulate", "rtx-5060ti-old-stack")
    planned = cli(*old, "plan", "sglang-any")
    assert planned.code == 0
    assert "warn: driver 560.35.03 is older than sm_120, which needs branch 570" in planned.err
    started = cli(*old, "start", "sglang-any", "--set", f"port={free_port()}", "--json")
    assert "driver 560.35.03 is older than sm_120" in started.err
    assert "the torch of sglang is built without CUDA" in started.err
    assert "vllm" not in started.err, "the packages of another engine are not its business"
    assert cli(*old, "stop", started.document["run_id"]).code == 0


@pytest.mark.long
@pytest.mark.slow
def test_start_says_every_warning_that_plan_says(cli: Cli) -> None:
    changes = ("--env", "VLLM_BLOCK_SIZE=16", "--set", f"port={free_port()}")
    planned = cli(*PRO, "plan", "vllm-any", *changes)
    warnings = {line.strip() for line in planned.err.splitlines() if "warn: " in line}
    assert len(warnings) == 1
    ran = cli(*PRO, "start", "vllm-any", *changes)
    assert warnings <= set(ran.err.splitlines())
    assert cli(*PRO, "stop", ran.out.strip()).code == 0


@pytest.mark.slow
def test_without_wait_it_prints_the_run_id_alone(cli: Cli) -> None:
    ran = cli(*PRO, "start", "vllm-any", "--set", f"port={free_port()}")
    run_id = ran.out.strip()
    assert ran.code == 0 and len(ran.out.splitlines()) == 1
    assert cli(*PRO, "stop", run_id).code == 0


@pytest.mark.long
@pytest.mark.slow
def test_several_runs_by_the_beginning_or_end_of_their_ids(cli: Cli) -> None:
    half = ("--set", "gpu-memory-utilization=0.4")  # both on one card
    first, second = start(cli, *half), start(cli, *half)
    year = first["run_id"][:4]
    ambiguous = cli(*PRO, "logs", year)
    assert (
        ambiguous.code == 2
        and first["run_id"] in ambiguous.err
        and second["run_id"] in ambiguous.err
    )
    tail = second["run_id"].rpartition("-")[2]
    assert cli(*PRO, "stop", tail, "--json").document["run_id"] == second["run_id"]
    states = {s["run_id"]: s["state"] for s in cli(*PRO, "servers", "--json").document["servers"]}
    assert states == {first["run_id"]: "ready", second["run_id"]: "stopped"}
    assert cli(*PRO, "stop", first["run_id"]).code == 0


@pytest.mark.slow
def test_a_start_names_the_address_before_its_times(cli: Cli) -> None:
    """The last time of a text such as "34 s instead of 9 s at http://…" seemed to be that of the
    address."""
    port = free_port()
    ran = cli(*PRO, "start", "vllm-any", "--set", f"port={port}", "--wait")
    assert re.search(
        rf"^ready at http://127\.0\.0\.1:{port} in [\d.]+ s", ran.out + ran.err, re.MULTILINE
    )
    (run,) = cli(*PRO, "servers", "--json").document["servers"]
    assert cli(*PRO, "stop", run["run_id"]).code == 0


@pytest.mark.slow
def test_start_fails_at_the_timeout_and_leaves_the_server_running(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKBENCH_SIM_FAULT", "never_ready")
    ran = cli(
        *PRO,
        "start",
        "vllm-any",
        "--set",
        f"port={free_port()}",
        "--wait",
        "--timeout",
        "0.5",
        "--json",
    )
    assert ran.code == 1 and "was not READY within" in ran.document["error"]
    (run,) = cli(*PRO, "servers", "--json").document["servers"]
    assert (
        run["state"] == "starting"
        and (f"workbench {' '.join(PRO)} stop {run['run_id']}") in ran.document["next_step"]
    )
    assert cli(*PRO, "stop", run["run_id"]).code == 0


@pytest.mark.slow
def test_a_server_that_dies_at_once(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKBENCH_SIM_FAULT", "exit_at_start")
    ran = cli(*PRO, "start", "vllm-any", "--set", f"port={free_port()}", "--wait", "--json")
    assert ran.code == 1
    assert ran.document["state"] == "failed" and ran.document["exit_code"] not in (None, 0)
    assert ran.document["reason"] and ran.document["reason"] in ran.err


@pytest.mark.slow
def test_problems_that_are_found_before_a_start(cli: Cli) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ran = cli(*PRO, "start", "vllm-any", "--set", f"port={port}", "--json")
        assert (
            ran.code == 1
            and (f"port {port} is in use by process {os.getpid()}") in ran.document["error"]
        )
    ran = cli("start", "vllm-any", "--set", f"port={free_port()}", "--json")
    assert ran.code == 1 and "vllm not found" in ran.document["error"]
    ran = cli("start", "llamacpp-gguf", "--var", "model=/no/such/file.gguf", "--json")
    assert ran.code == 1 and "not found" in ran.document["error"]
    too_many = cli(*PRO, "start", "vllm-any", "--set", "tensor-parallel-size=8", "--json")
    assert too_many.code == 2 and too_many.document["findings"][0]["level"] == "error"
    assert cli(*PRO, "servers", "--json").document["servers"] == []


def model_of(cli: Cli, preset: str, profile: tuple[str, ...] = PRO) -> Any:
    return cli(*profile, "plan", preset, "--json").document["model"]


def test_a_variable_is_remembered_only_after_the_server_was_ready(cli: Cli, tmp_path: Path) -> None:
    given = ("--var", f"model={tmp_path}/x.gguf")
    assert cli("plan", "llamacpp-gguf").code == 2
    assert cli("start", "llamacpp-gguf", *given).code == 1  # there is no such file
    assert cli("plan", "llamacpp-gguf").code == 2


@pytest.mark.long
@pytest.mark.slow
def test_a_remembered_variable_does_not_change_other_presets(cli: Cli) -> None:
    """A model given for vllm-any must not become the model of all presets on the host."""
    before = {
        p: model_of(cli, p, GB10)
        for p in ("vllm-llama-3.3-70b-nvfp4-spark", "vllm-llama-3.3-70b-2x-spark")
    }
    port = ("--set", f"port={free_port()}", "--wait")
    run = cli(*GB10, "start", "vllm-any", "--var", "model=Qwen/Qwen3-8B", *port, "--json").document
    assert run["state"] == "ready" and run["variables"]["model"]["from"] == "given"
    assert before == {p: model_of(cli, p, GB10) for p in before}

    # its own default stands, and what was used is offered
    plan = cli(*GB10, "plan", "vllm-any", "--json").document
    assert plan["model"] == "Qwen/Qwen3-0.6B"
    (said,) = [f for f in plan["findings"] if f["code"] == "variable.default"]
    assert run["run_id"] in said["text"] and "Qwen/Qwen3-8B" in said["text"]
    assert said["fix"] == "--var model=Qwen/Qwen3-8B"


@pytest.mark.slow
@pytest.mark.long
def test_the_use_of_a_remembered_variable_is_always_reported(cli: Cli) -> None:
    port = ("--set", f"port={free_port()}")
    given = (
        "--var",
        "model=/srv/models/Other-Mistral-Large-AWQ",
        "--var",
        "triton_cache=/fast/triton",
    )
    run = cli(
        *PRO, "start", "sglang-mistral-large-awq-optimized", *given, *port, "--wait", "--json"
    ).document
    assert run["state"] == "ready", run
    cli(*PRO, "stop", run["run_id"])
    day = f"{run['run_id'][:4]}-{run['run_id'][4:6]}-"
    plan = cli(*PRO, "plan", "sglang-mistral-large-awq-optimized", "--json").document
    assert plan["model"] == "/srv/models/Other-Mistral-Large-AWQ"
    assert plan["variables"]["model"] == {
        "value": plan["model"],
        "from": "remembered",
        "run_id": run["run_id"],
    }
    said = [f["text"] for f in plan["findings"] if f["code"] == "variable.remembered"]
    assert f"remembered from run {run['run_id']} on {day}" in said[0] and len(said) == 2

    again = cli(*PRO, "start", "sglang-mistral-large-awq-optimized", *port, "--json")
    assert (
        said[0] in again.err and again.document["variables"]["triton_cache"]["from"] == "remembered"
    )
    assert (
        model_of(cli, "sglang-mistral-large-awq-baseline") != "/srv/models/Other-Mistral-Large-AWQ"
    )


@pytest.mark.slow
def test_api_keys_are_stored_and_shown_nowhere(cli: Cli) -> None:
    key = "abcdefsecretghijkl"
    run = start(cli, "--set", f"api-key={key}", "--env", f"HF_TOKEN={key}2")
    said = [
        json.dumps(run),
        cli(*PRO, "servers", "--json").out,
        cli(*PRO, "logs", run["run_id"]).out,
    ]
    bench = cli(
        *PRO,
        "bench",
        run["run_id"],
        "--requests",
        "2",
        "--max-tokens",
        "8",
        "--warmup",
        "0",
        "--json",
    )
    # the server asks for the key, and has got it
    assert bench.code in (0, 3), bench  # a busy machine refuses so short a run
    assert bench.document["requests_ok"] == 2, bench
    said += [bench.out, bench.err]
    said += [
        cli("results", "export", str(bench.document["id"]), "--format", f).out
        for f in ("json", "csv", "md")
    ]
    files = [p for p in Path(os.environ["XDG_STATE_HOME"]).parent.rglob("*") if p.is_file()]
    assert any(p.name == "plan.json" for p in files) and any(
        p.name == "results.sqlite3" for p in files
    )
    said += [p.read_bytes().decode("utf-8", "replace") for p in files]
    assert not [text for text in said if key in text]
    cli(*PRO, "stop", run["run_id"])


@pytest.mark.long
@pytest.mark.slow
def test_one_simulated_host_represents_two_nodes(cli: Cli) -> None:
    argv = ("start", "vllm-llama-3.3-70b-2x-spark", "--set", f"port={free_port()}", "--wait")
    ran = cli("--simulate", "gb10-x2", *argv)
    assert ran.code == 0 and "one process represents all 2 nodes" in ran.err
    assert cli("--simulate", "gb10-x2", "stop", ran.out.strip()).code == 0


def test_a_state_directory_that_cannot_be_created(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file is in its place, so that even root cannot write there."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    for argv in (
        ("servers",),
        ("start", "vllm-any"),
        (*PRO, "start", "vllm-any"),
        (*PRO, "gpu", "status"),
    ):
        ran = cli(*argv, "--json")
        assert ran.code == 1 and str(tmp_path / "file") in ran.document["error"], ran


@pytest.mark.long
@pytest.mark.parametrize("preset", ["llamacpp-gguf", "tabbyapi-any"])
@pytest.mark.slow
def test_variables_that_a_simulated_host_fills_in_can_be_started(cli: Cli, preset: str) -> None:
    ran = cli(*PRO, "start", preset, "--set", f"port={free_port()}", "--wait", "--json")
    assert ran.code == 0, ran
    if preset == "tabbyapi-any":  # its whole answers have usage only if that is asked for
        load = ("--no-stream", "--requests", "4", "--max-tokens", "8", "--warmup", "1")
        result = cli(*PRO, "bench", ran.document["run_id"], *load, "--json").document
        assert result["output_tokens"] == 32, result


@pytest.fixture
def venv_vllm(tmp_path: Path) -> Path:
    """Create a vllm outside of PATH that starts the simulated engine."""
    program = tmp_path / "my env" / "bin" / "vllm"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(BIN)}/vllm "$@"\n')
    program.chmod(0o755)
    return program


@pytest.mark.long
@pytest.mark.slow
def test_a_custom_executable(cli: Cli, venv_vllm: Path) -> None:
    own = ("--executable", shlex.quote(str(venv_vllm)))
    plan = cli(*PRO, "plan", "vllm-any", *own, "--json").document
    assert plan["argv"][:2] == [str(venv_vllm), "serve"] and "--executable" not in plan["argv"]
    run = start(cli, *own)
    assert run["state"] == "ready"
    (record,) = Path(os.environ["XDG_STATE_HOME"]).rglob("plan.json")
    assert json.loads(record.read_text())["command"]["argv"][0] == str(venv_vllm)
    missing = cli(*PRO, "plan", "vllm-any", "--executable", "/nowhere/vllm", "--json").document
    assert [f["level"] for f in missing["findings"] if f["code"] == "engine.missing"] == ["warn"]
    assert cli(*PRO, "plan", "vllm-any", "--executable", "./vllm").code == 2
    by_set = cli(*PRO, "plan", "vllm-any", "--set", f"executable={own[1]}", "--json").document
    assert (by_set["argv"], by_set["installed"]) == (plan["argv"], plan["installed"])
    lost = cli(*PRO, "plan", "vllm-any", "--set", "executable=/nowhere/vllm", "--json").document
    assert lost["installed_problem"] == "/nowhere/vllm on sim:rtx-pro-6000 does not exist"


@pytest.mark.slow
def test_an_executable_for_a_host_in_the_configuration(cli: Cli, venv_vllm: Path) -> None:
    file = Path(os.environ["XDG_CONFIG_HOME"], "workbench", "config.toml")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"[executables.'sim:gb10']\nvllm = {json.dumps(shlex.quote(str(venv_vllm)))}\n")
    plan = cli(*GB10, "plan", "vllm-any", "--json").document
    assert plan["argv"][0] == str(venv_vllm)
    (said,) = [f["text"] for f in plan["findings"] if f["code"] == "engine.executable"]
    assert "config.toml" in said and str(venv_vllm) in said
    assert (
        cli(*GB10, "plan", "vllm-any", "--executable", "vllm", "--json").document["argv"][0]
        == "vllm"
    )
    assert cli(*PRO, "plan", "vllm-any", "--json").document["argv"][0] == "vllm"  # another host
    assert cli(*GB10, "plan", "sglang-any", "--json").document["argv"][0] == "sglang"


def test_the_executable_of_a_preset_is_shown(cli: Cli) -> None:
    own = Path(os.environ["XDG_CONFIG_HOME"], "workbench", "presets", "mine.toml")
    own.parent.mkdir(parents=True, exist_ok=True)
    text = (
        (paths.shipped_presets_dir() / "vllm-any.toml")
        .read_text()
        .replace('id = "vllm-any"', 'id = "mine"')
    )
    own.write_text(text.replace("[engine]\n", '[engine]\nexecutable = ["/opt/nightly/bin/vllm"]\n'))
    assert "/opt/nightly/bin/vllm" in cli("presets", "show", "mine").out


@pytest.mark.slow
def test_an_external_server_is_listed_with_the_command_to_benchmark_it(
    cli: Cli, tmp_path: Path
) -> None:
    port = free_port()
    argv = fake_engine.by_hand(tmp_path, "org/m", "--port", str(port))
    process = subprocess.Popen(
        argv, stdout=subprocess.DEVNULL, env={**os.environ, "FAKE_ENGINE": ""}
    )
    try:
        for _ in range(200):
            others = cli("servers", "--json").document["not_started_by_workbench"]
            if port in [other["port"] for other in others]:
                break
        (other,) = [other for other in others if other["port"] == port]
        assert other["pid"] == process.pid and other["argv"][-4:] == argv[-4:]
        assert f"bench --url http://127.0.0.1:{port}" in cli("servers").out
        for command in ("logs", "bench", "stop"):
            ran = cli(command, str(process.pid))
            assert (
                ran.code == 2
                and ("was not started by Workbench") in ran.err
                and "bench --url" in ran.err
            ), ran
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


def test_servers_shows_the_phase_of_a_start(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKBENCH_SIM_FAULT", "never_ready")
    run_id = cli(*PRO, "start", "vllm-any", "--set", f"port={free_port()}").out.strip()
    for _ in range(100):
        (run,) = cli(*PRO, "servers", "--json").document["servers"]
        if run["phase"]:
            break
    assert run["run_id"] == run_id and run["phase"]


@pytest.mark.long
@pytest.mark.slow
def test_an_api_key_given_as_a_variable_is_neither_shown_nor_remembered(cli: Cli) -> None:
    own = Path(os.environ["XDG_CONFIG_HOME"], "workbench", "presets", "mine.toml")
    own.parent.mkdir(parents=True, exist_ok=True)
    text = (
        (paths.shipped_presets_dir() / "vllm-any.toml")
        .read_text()
        .replace('id = "vllm-any"', 'id = "mine"')
    )
    text = text.replace(
        "[variables.model]",
        '[flags]\napi-key = "${door}"\n\n[variables.door]\ndescription = "x"\n\n[variables.model]',
    )
    own.write_text(text)
    key = "abcdefsecretghijkl"
    given = ("mine", "--var", f"door={key}", "--set", f"port={free_port()}", "--json")
    planned, started = cli(*PRO, "plan", *given), cli(*PRO, "start", *given, "--wait")
    assert started.code == 0 and started.document["variables"]["door"]["value"] == "***"
    said = [planned.out, planned.err, started.out, started.err, cli(*PRO, "servers", "--json").out]
    said += [
        p.read_bytes().decode("utf-8", "replace") for p in own.parents[2].rglob("*") if p.is_file()
    ]
    said += [
        p.read_bytes().decode("utf-8", "replace")
        for p in Path(os.environ["XDG_STATE_HOME"]).rglob("plan.json")
    ]
    assert len(said) > 6 and not [text for text in said if key in text]
    assert cli("presets", "check", str(own)).code == 0


@pytest.mark.long
@pytest.mark.slow
def test_restart_replaces_a_server_and_starts_an_ended_one_again(cli: Cli) -> None:
    first = start(cli, "--set", "max-num-seqs=77")
    asked = cli(*PRO, "restart", first["run_id"])
    assert asked.code == 2 and "nobody can be asked" in asked.err  # it is live
    second = cli(*PRO, "restart", first["run_id"], "--yes", "--wait", "--json")
    assert second.code == 0 and second.document["state"] == "ready", second
    assert (second.document["replaces"], second.document["port"]) == (
        first["run_id"],
        first["port"],
    )
    assert "max-num-seqs 77" in second.document["command"]
    run_id = second.document["run_id"]
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        plan = cli(*PRO, "plan", "vllm-any", "--set", f"port={port}", "--json").document
        assert "host.port" in [finding["code"] for finding in plan["findings"]]
        refused = cli(*PRO, "start", "vllm-any", "--set", f"port={port}")
        assert refused.code == 1 and refused.err.count("is in use by process") == 1
    plan = cli(*PRO, "plan", "vllm-any", "--json").document
    memory = next(f for f in plan["findings"] if f["code"] == "host.memory")
    assert (
        f"workbench {' '.join(PRO)} stop {run_id}" in memory["fix"]
        and "are free now" in memory["text"]
    )
    assert cli(*PRO, "stop", run_id).code == 0
    back = cli(*PRO, "restart", first["run_id"], "--wait", "--json")  # nothing to ask: it has ended
    assert back.code == 0 and back.document["state"] == "ready"
    assert cli(*PRO, "stop", back.document["run_id"]).code == 0


@pytest.mark.slow
def test_a_restart_that_a_signal_ends_before_its_start_says_what_it_leaves(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended with "ended by SIGTERM" alone, and nobody heard that the server of before was stopped."""
    first = start(cli)["run_id"]

    end = Servers.stop_run_quietly

    async def ends_and_is_signalled(servers: Servers, run_id: str) -> None:
        await end(servers, run_id)
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.Event().wait()

    with monkeypatch.context() as patched:
        patched.setattr(Servers, "stop_run_quietly", ends_and_is_signalled)
        cut = cli(*PRO, "restart", first, "--yes", "--json")
    assert cut.code == 128 + signal.SIGTERM, cut
    said = cut.document["error"]
    assert f"the server of run {first} may be stopped" in said
    assert f"`workbench {' '.join(PRO)} restart {first}` starts it" in said
    (left,) = cli(*PRO, "servers", "--json").document["servers"]
    assert left["state"] == "stopped"
    again = cli(*PRO, "restart", first, "--wait", "--json")
    assert again.code == 0 and again.document["state"] == "ready", again

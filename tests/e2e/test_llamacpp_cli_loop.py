"""The whole loop by commands alone, against a real engine: llama.cpp's own server on a tiny model."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import llama_server, tiny_gguf
from support.command_line import CommandLine
from support.serving import free_port
from support.tuning_loop import Loop

READY_S = 60.0  # a second where nothing else runs
PRESET = "llamacpp-gguf"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf.write(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture
def command(tmp_path: Path) -> Iterator[CommandLine]:
    one = CommandLine(tmp_path, path=[llama_server.install(tmp_path / "bin").parent])
    yield one
    one.stop_all()
    assert one.left() == []


def options(model: Path | str) -> list[str]:
    sets = {"port": free_port(), "ctx-size": 4096, "parallel": 4, "alias": "tiny"}
    return [
        "--var",
        f"model={model}",
        *(word for name, value in sets.items() for word in ("--set", f"{name}={value}")),
    ]


@pytest.mark.long
@pytest.mark.slow
def test_the_loop_and_its_counts(command: CommandLine, model: Path) -> None:
    given = options(model)
    plan = command.ok("plan", PRESET, *given)
    assert plan["installed"].startswith("llama.cpp b") and plan["installed_problem"] is None
    expected = {"model.facts", "bind.local", "version.catalog", "context.slots"}
    assert {f["code"] for f in plan["findings"]} <= expected
    assert plan["argv"][:3] == ["llama-server", "--model", str(model)]
    shape = [
        "--concurrency",
        4,
        "--requests",
        12,
        "--max-tokens",
        16,
        "--input-tokens",
        64,
        "--warmup",
        4,
    ]
    Loop("llamacpp", PRESET, given, shape, ("parallel", 2), READY_S).run(command)


@pytest.mark.long
@pytest.mark.slow
def test_a_file_that_is_no_model(command: CommandLine, tmp_path: Path) -> None:
    """Exit code, first error line and known cause; the run is listed so afterwards, too."""
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF, but not really")
    done = command("start", PRESET, *options(broken), "--wait")
    assert (done.code, done.document["state"], done.document["exit_code"]) == (1, "failed", 1)
    assert "broken.gguf" in done.document["reason"]
    assert "log.gguf-load" in [f["code"] for f in done.document["findings"]]
    assert done.document["findings"][0]["fix"] in done.err
    log = "\n".join(command.ok("logs", done.document["run_id"])["lines"])
    assert done.document["reason"] in log
    listed = command.ok("servers")["servers"][0]
    same = ("run_id", "state", "exit_code", "reason", "findings")
    assert {name: listed[name] for name in same} == {name: done.document[name] for name in same}


@pytest.mark.slow
@pytest.mark.long
def test_what_can_be_seen_before_the_start(
    command: CommandLine, model: Path, tmp_path: Path
) -> None:
    """Port taken, model missing, engine missing: one error each that says what to do, and no run."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        taken = command("start", PRESET, *options(model), "--set", f"port={port}", "--wait")
    assert taken.code == 1
    assert f"port {port} is in use by process {os.getpid()}" in taken.document["error"]

    missing = command("start", PRESET, *options(tmp_path / "gone.gguf"))
    assert missing.code == 1
    assert "gone.gguf does not exist" in missing.document["error"]

    command.env["PATH"] = "/usr/bin:/bin"
    without = command("start", PRESET, *options(model))
    assert without.code == 1
    assert "llama-server not found" in without.document["error"]
    for done in (taken, missing, without):
        assert done.document["next_step"] in done.err
    assert command.ok("servers")["servers"] == []


@pytest.mark.long
@pytest.mark.slow
def test_a_port_of_another_run_and_a_flag_that_the_engine_refuses(
    command: CommandLine, model: Path
) -> None:
    given = options(model)
    run_id = command.ok("start", PRESET, *given, "--wait")["run_id"]
    again = command("start", PRESET, *given)
    assert again.code == 1
    assert run_id in again.document["error"]
    assert f"workbench stop {run_id}" in again.document["next_step"]

    refused = command("start", PRESET, *options(model), "--set", "no-such-flag=1", "--wait")
    assert (refused.code, refused.document["exit_code"]) == (1, 2)
    assert "unrecognized arguments: --no-such-flag" in refused.document["reason"]
    states = {run["run_id"]: run["state"] for run in command.ok("servers")["servers"]}
    assert states == {run_id: "ready", refused.document["run_id"]: "failed"}

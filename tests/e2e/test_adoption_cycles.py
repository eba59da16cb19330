"""`kill -9` of the Workbench that started a server: it lives on, the next one adopts it with its
log and state, and after `stop` not one of its processes is left. Against llama.cpp's server and a
simulated vLLM with a child."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from support import llama_server, tiny_gguf
from support.command_line import CommandLine, ownerless_shared_memory
from support.procs import eventually
from support.serving import eventually as soon
from support.serving import free_port

from workbench.model.server_run import ServerState
from workbench.server.run_start import PREPARED_PREFIX
from workbench.session.session import Session

READY_S = 60.0
PROFILE = "rtx-pro-6000"
CYCLES = [pytest.param(2), pytest.param(20, marks=[pytest.mark.long, pytest.mark.timeout(900)])]
ONE_TOKEN = (
    "--concurrency",
    1,
    "--requests",
    1,
    "--warmup",
    0,
    "--input-tokens",
    8,
    "--max-tokens",
    1,
)
# the file of the run directory that is there when the KILL comes
MOMENTS = ("plan.json", "pid", "ready.json")

# command line, words that start a server, processes that it has
Start = tuple[CommandLine, list[str], int]


@pytest.fixture(params=["llamacpp", "simulated vllm"])
def start(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Start]:
    if request.param == "llamacpp":
        command = CommandLine(tmp_path, path=[llama_server.install(tmp_path / "bin").parent])
        words = [
            "start",
            "llamacpp-gguf",
            "--var",
            f"model={tiny_gguf.write(tmp_path / 'tiny.gguf')}",
        ]
        words += ["--set", "alias=tiny", "--set", "ctx-size=2048"]
        processes = 1
    else:
        command = CommandLine(tmp_path, before=["--simulate", PROFILE], WORKBENCH_SIM_START_S="0.6")
        words, processes = ["start", "vllm-any"], 2
    yield command, [*words, "--set", f"port={free_port()}", "--wait"], processes
    command.stop_all()
    assert command.left() == []


def killed(command: CommandLine, words: list[str], moment: str) -> Path:
    """The run directory that a Workbench had made when it was killed, with `moment` in it."""
    before = set(command.run_dirs())
    with command.spawn(*words) as starter:
        eventually(
            lambda: starter.poll() is not None or made(command, before, moment), moment, READY_S
        )
        starter.kill()
        out, err = starter.communicate()
    new = set(command.run_dirs()) - before
    assert len(new) == 1, (out, err)
    run_dir = new.pop()
    # the host's shell may still give it its name
    return run_dir.with_name(run_dir.name.removeprefix(PREPARED_PREFIX))


def made(command: CommandLine, before: set[Path], moment: str) -> bool:
    return any((run_dir / moment).exists() for run_dir in set(command.run_dirs()) - before)


async def adopted_by_a_session(run_dir: Path, simulate: str | None) -> None:
    """What a screen does when it opens: the living run is selected, its log is there from the first
    line."""
    session = Session.of_host(None, simulate)
    try:
        await session.open()
        await soon(lambda: session.state.run_id == run_dir.name, READY_S, "the run to be selected")
        await soon(
            lambda: session.state.server and session.state.server.state is ServerState.READY,
            READY_S,
            "READY",
        )
        assert session.state.server is not None and session.state.server.adopted
        await soon(
            lambda: lines_of(run_dir) == list(session.log.lines(0, len(session.log))),
            what="the whole log",
        )
        await session.servers.stop()
        assert session.state.server.state is ServerState.STOPPED
    finally:
        await session.close()


def adopted_by_commands(command: CommandLine, run_dir: Path) -> None:
    def listed() -> dict[str, Any]:
        return next(s for s in command.ok("servers")["servers"] if s["run_id"] == run_dir.name)

    # a benchmark waits for READY, and so adopts a server that starts
    if not (run_dir / "ready.json").exists():
        command.ok("bench", run_dir.name, *ONE_TOKEN)
    assert (listed()["state"], listed()["adopted"]) == ("ready", True)
    assert command.ok("logs", run_dir.name)["lines"] == lines_of(run_dir)
    assert command.ok("stop", run_dir.name)["state"] == "stopped"


def lines_of(run_dir: Path) -> list[str]:
    return (run_dir / "log").read_text().splitlines()


def never_started(command: CommandLine, run_dir: Path) -> bool:
    """Killed before it told the host to start it: the run is prepared and not listed, or listed as
    one that failed, and there is no process."""
    runs = {run["run_id"]: run for run in command.ok("servers")["servers"]}
    listed = runs.get(run_dir.name)
    if listed is None:
        return True
    if listed["pid"] is not None:
        return False
    assert (listed["state"], bool(listed["reason"])) == ("failed", True), listed
    assert command.left() == []
    return True


def cycle(start: Start, number: int) -> float | None:
    """Seconds from the KILL until the next Workbench had adopted and stopped the server; None when
    there was none."""
    command, words, processes = start
    run_dir = killed(command, words, MOMENTS[number % len(MOMENTS)])
    began = time.monotonic()
    if number % len(MOMENTS) == 0 and never_started(command, run_dir):
        return None
    pid = int((run_dir / "pid").read_text())
    assert psutil.pid_exists(pid)
    eventually(lambda: len(command.left()) >= processes, "its processes")
    if number % 2:
        adopted_by_commands(command, run_dir)
    else:
        asyncio.run(adopted_by_a_session(run_dir, PROFILE if command.before else None))
    assert command.left() == []
    assert not psutil.pid_exists(pid)
    return time.monotonic() - began


@pytest.mark.ci_cases(1)
@pytest.mark.slow
@pytest.mark.parametrize("cycles", CYCLES)
def test_a_server_outlives_the_workbench_and_nothing_outlives_its_stop(
    start: Start, cycles: int
) -> None:
    shared_before = ownerless_shared_memory()
    took: list[float] = []
    for number in range(2 * cycles):
        if (seconds := cycle(start, number)) is not None:
            took.append(seconds)
        if len(took) == cycles:
            break
    assert len(took) == cycles
    print(
        f"{cycles} of {number + 1} starts adopted and stopped, nothing left; {min(took):.1f} to "
        f"{max(took):.1f} s each"
    )
    assert ownerless_shared_memory() <= shared_before

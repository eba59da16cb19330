"""A screen on which nothing happens starts no program on this machine."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from workbench.gpu import measurement_lock
from workbench.gpu.settings import journal as journals
from workbench.hosts.local import LocalHost
from workbench.session.servers.engine_live import EngineReader
from workbench.session.session import Session

QUIET_LOOKS, MOST_LOOKS = 4, 40


@pytest.fixture
def engine_processes() -> Iterator[None]:
    """Start four processes whose command lines name engines, as on a host with a server of
    several GPUs."""
    children = [
        subprocess.Popen([f"vllm-worker-{n}", "60"], executable="/bin/sleep") for n in range(4)
    ]
    yield
    for child in children:
        child.kill()
        child.wait()


def count_programs(monkeypatch: pytest.MonkeyPatch, started: list[Sequence[str]]) -> None:
    """Add the command of each program that this machine starts from now on to `started`."""
    spawn = LocalHost._spawn

    async def counted(
        self: LocalHost, argv: Sequence[str], env: Mapping[str, str] | None, *rest: Any, **more: Any
    ) -> Any:
        started.append(argv)
        return await spawn(self, argv, env, *rest, **more)

    monkeypatch.setattr(LocalHost, "_spawn", counted)


def test_looking_for_what_others_do_starts_no_program(
    engine_processes: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Sequence[str]] = []

    async def scenario() -> None:
        session = Session.of_host(None)
        await session.open()
        live = EngineReader(session.core, session.servers, session.timeline)
        count_programs(monkeypatch, started)
        quiet = 0
        # Opening the session starts programs in the background, which may still run.
        for _ in range(MOST_LOOKS):
            started.clear()
            await session._show_changes_by_other_processes()
            live._looked_s = float("-inf")
            await live._read_engine_counters()
            quiet = 0 if [argv for argv in started if not of_telemetry(argv)] else quiet + 1
            if quiet == QUIET_LOOKS:
                break
        assert quiet == QUIET_LOOKS, started
        monkeypatch.undo()
        await session.close()

    asyncio.run(scenario())


def of_telemetry(argv: Sequence[str]) -> bool:
    """Return whether a program reads the GPUs. Without a GPU, that is tried again and again."""
    return argv[0] == "nvidia-smi" or "telemetry agent" in " ".join(argv)


def test_a_guard_that_nobody_needs_is_looked_at_without_programs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The look starts programs again after a change of the journal, and nothing else does."""
    started: list[Sequence[str]] = []
    monkeypatch.setenv("WORKBENCH_GPU_REGISTER", str(tmp_path / "register"))

    async def scenario() -> None:
        session = Session.of_host(None)
        await session.link.connect()
        count_programs(monkeypatch, started)
        guard = session.gpu.guard
        looks = []
        for _ in range(4):
            started.clear()
            await guard._check_guard(30.0)
            looks.append(len(started))
        assert looks[0] > 0, "the first look reads the guard's state and the journal"
        assert looks[1:] == [0, 0, 0], looks
        journal = Path(await journals.journal_path_on(session.host))
        journal.parent.mkdir(parents=True, exist_ok=True)
        journal.write_text('{"version": 2, "entries": [], "log": []}')
        started.clear()
        await guard._check_guard(30.0)
        assert started
        await session.close()

    asyncio.run(scenario())


def test_the_holder_of_the_measurement_lock_is_read_without_programs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[Sequence[str]] = []
    monkeypatch.setenv("WORKBENCH_GPU_REGISTER", str(tmp_path))

    async def scenario() -> None:
        host = LocalHost()
        async with measurement_lock.locked_for_measurement(host, "a load", report=print):
            count_programs(monkeypatch, started)
            holder = await measurement_lock.read_lock_holder(host, str(tmp_path))
            assert holder is not None
            assert holder.what == "a load"
        assert not started
        monkeypatch.undo()

    asyncio.run(scenario())

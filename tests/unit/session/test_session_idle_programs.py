"""A screen on which nothing happens starts no program on this machine."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from workbench.hosts.local import LocalHost
from workbench.session.servers.engine_live import EngineLive
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


def test_looking_for_what_others_do_starts_no_program(
    engine_processes: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Sequence[str]] = []
    spawn = LocalHost._spawn

    async def counted(
        self: LocalHost, argv: Sequence[str], env: Mapping[str, str] | None, *rest: Any, **more: Any
    ) -> Any:
        started.append(argv)
        return await spawn(self, argv, env, *rest, **more)

    async def scenario() -> None:
        session = Session.of_host(None)
        await session.open()
        live = EngineLive(session.core, session.servers, session.timeline)
        monkeypatch.setattr(LocalHost, "_spawn", counted)
        quiet = 0
        # Opening the session starts programs in the background, which may still run.
        for _ in range(MOST_LOOKS):
            started.clear()
            await session._look_elsewhere()
            live._looked_s = float("-inf")
            await live._read_once()
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

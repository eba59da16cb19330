"""Two starts on one port of one host at the same time, by users who cannot see each other's runs:
one starts, the other is refused and disturbs nothing."""

from __future__ import annotations

import asyncio
import getpass
import os
from pathlib import Path

import pytest
from support.fake_runs import VLLM, Make
from support.serving import free_port

from workbench.hosts.detached_process import PortClaimed
from workbench.hosts.local import LocalHost
from workbench.model.server_run import ServerState, ServerStatus
from workbench.server.supervisor import Supervisor


class OtherUser(LocalHost):
    """This machine for a user with a state directory of its own."""

    def __init__(self, home: Path) -> None:
        super().__init__()
        self.home = home

    async def state_dir(self) -> str:
        return str(self.home)


def started(tmp_path: Path, make: Make, port: int, count: int) -> list[ServerStatus | Exception]:
    """Start `count` servers that never listen on `port`, each for another user and all at once."""

    async def go() -> list[ServerStatus | Exception]:
        users = [Supervisor(OtherUser(tmp_path / str(n))) for n in range(count)]
        try:
            found = await asyncio.gather(
                *(user.start(*make("never", port), VLLM) for user in users), return_exceptions=True
            )
            winners = {n: one for n, one in enumerate(found) if isinstance(one, ServerStatus)}
            for n, won in winners.items():  # the others have not taken it down
                # earlier runs of the same second may stand before it
                (status,) = [run for run in await users[n].runs() if run.run_id == won.run_id]
                assert status.alive and status.state is ServerState.STARTING
            for n in {*range(count)} - {*winners}:
                assert not await users[n].runs()
            return [one for one in found if isinstance(one, ServerStatus | Exception)]
        finally:
            for user in users:
                for run in await user.runs():
                    await user.stop(run.run_id, grace_s=1)
                await user.close()

    return asyncio.run(go())


@pytest.mark.slow
def test_of_starts_at_the_same_time_one_gets_the_port(
    tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "register").mkdir()
    monkeypatch.setenv("WORKBENCH_GPU_REGISTER", str(tmp_path / "register"))
    port = free_port()
    found = started(tmp_path, make, port, 3)
    (winner,) = [one for one in found if isinstance(one, ServerStatus)]
    refused = [one for one in found if isinstance(one, PortClaimed)]
    assert len(refused) == 2
    for error in refused:
        assert f"run {winner.run_id} of {getpass.getuser()}" in error.message
    # the lock ends with the process, and the file of the lock stays
    assert isinstance(started(tmp_path, make, port, 1)[0], ServerStatus)
    assert isinstance(started(tmp_path, make, free_port(), 1)[0], ServerStatus)


@pytest.mark.slow
@pytest.mark.parametrize("trap", ["fifo", "link", "directory"])
def test_a_trap_in_place_of_the_lock_stops_no_start(
    tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch, trap: str
) -> None:
    register, port = tmp_path / "register", free_port()
    register.mkdir()
    monkeypatch.setenv("WORKBENCH_GPU_REGISTER", str(register))
    lock = register / f"workbench-port-{port}.lock"
    if trap == "fifo":
        os.mkfifo(lock)
    elif trap == "link":
        lock.symlink_to("/dev/zero")
    else:
        lock.mkdir()
    (one,) = started(tmp_path, make, port, 1)
    assert isinstance(one, ServerStatus), one

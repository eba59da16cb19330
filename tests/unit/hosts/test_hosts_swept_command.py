"""A program of somebody else leaves no process: here, behind a real sshd, and with only busybox's
tools."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from support.procs import eventually, with_argument
from support.sshd import sshd
from support.userland import UserlandHost

from workbench.hosts.base import CommandTimeout, Host, OutputTooLarge
from workbench.hosts.local import LocalHost
from workbench.hosts.ssh import SshHost
from workbench.hosts.swept_command import run_and_end_leftovers

LEAVES = "sleep $0 & setsid sleep $0 & (setsid sleep $0 >/dev/null 2>&1 &) "


def sleeper() -> str:
    return f"600.{os.getpid()}"  # longer than the test may take


async def leaves_nothing(host: Host) -> None:
    number = sleeper()
    done = await run_and_end_leftovers(
        host, ["sh", "-c", f"{LEAVES}; echo said; exit 3", number], timeout_s=30
    )
    assert (done.returncode, done.out) == (3, "said\n")
    eventually(lambda: not with_argument(number), "the end of what it left")
    with pytest.raises(CommandTimeout) as late:
        await run_and_end_leftovers(
            host, ["sh", "-c", f"{LEAVES}; exec sleep $0", number], timeout_s=0.4
        )
    assert (late.value.command or "").startswith("sh -c 'sleep") and "WORKBENCH" not in str(
        late.value.command
    )
    eventually(lambda: not with_argument(number), "the end of what it left")


@pytest.mark.slow
def test_on_this_machine(userland: UserlandHost) -> None:
    """With dash's and GNU's tools, bash's, or only busybox's."""
    asyncio.run(leaves_nothing(userland))


@pytest.mark.slow
def test_too_much_output_names_the_program() -> None:
    with pytest.raises(OutputTooLarge) as error:
        asyncio.run(run_and_end_leftovers(LocalHost(), ["yes"], timeout_s=30))
    assert error.value.command == "yes" and "program yes is" in (error.value.next_step or "")


@pytest.mark.slow
def test_behind_an_sshd(tmp_path: Path) -> None:
    async def scenario(host: SshHost) -> None:
        try:
            await host.connect()
            await leaves_nothing(host)
        finally:
            await host.close()

    with sshd(tmp_path / "ssh") as server:
        asyncio.run(scenario(SshHost(server.host_alias, ssh_config=server.ssh_config_path)))

"""A fleet of two machines behind real sshds: the link of one is cut and falls silent, and the other
stays live."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest
from support.serving import eventually
from support.sshd import Sshd, sshd

from workbench.hosts.base import Host
from workbench.hosts.ssh import SshHost
from workbench.session.fleet.fleet import Fleet
from workbench.sim.simulated_host import SimulatedHost

SOON_S = 40.0


def fleet_of(servers: dict[str, Sshd], folder: Path) -> Fleet:
    def open_host(name: str) -> Host:
        inner = SshHost(servers[name].host_alias, ssh_config=servers[name].ssh_config_path)
        return SimulatedHost(inner, "four-pcie", str(folder / f"state-{name}"))

    return Fleet(tuple(servers), open_host=open_host)


@pytest.mark.slow
def test_a_link_that_is_cut_or_silent_costs_the_other_host_nothing(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        servers = {name: stack.enter_context(sshd(tmp_path / name)) for name in ("one", "two")}

        async def scenario() -> None:
            fleet = fleet_of(servers, tmp_path)
            await fleet.open()
            try:
                await eventually(
                    lambda: all(h.is_live for h in fleet.state.hosts), SOON_S, "both hosts live"
                )
                assert all(len(h.gpus) == 4 and h.simulated for h in fleet.state.hosts)
                await asyncio.to_thread(servers["two"].cut)
                await eventually(
                    lambda: fleet.state.hosts[1].state == "lost", SOON_S, "the lost link"
                )
                assert fleet.state.hosts[0].is_live and fleet.state.hosts[1].problem
                await asyncio.to_thread(servers["two"].restore)
                await eventually(
                    lambda: fleet.state.hosts[1].is_live, SOON_S, "the host by itself again"
                )
                await asyncio.to_thread(servers["two"].silence)
                await eventually(
                    lambda: fleet.state.hosts[1].state in ("stale", "lost"), SOON_S, "the silence"
                )
                assert fleet.state.hosts[0].is_live
                await asyncio.to_thread(servers["two"].restore)
                await eventually(
                    lambda: fleet.state.hosts[1].is_live, SOON_S, "the host after the silence"
                )
            finally:
                for server in servers.values():
                    await asyncio.to_thread(server.restore)
                await fleet.close()

        asyncio.run(scenario())

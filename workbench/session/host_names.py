"""Which host a name means: this machine, one behind ssh, or a simulated one."""

from __future__ import annotations

import os

from workbench import hosts
from workbench.hosts import open_host
from workbench.hosts.base import Host
from workbench.store import paths

SIMULATED = "sim:"


def host_called(name: str | None, simulate: str | None = None) -> Host:
    """`name`: None or "local", an ssh name, or "sim:PROFILE". `simulate` puts a simulated driver and stand-in engines
    on that host (its files must be this machine's). Raises InputError for a profile that is not there."""
    if name and name.startswith(SIMULATED):
        simulate, name = name.removeprefix(SIMULATED), None
    inner = open_host(name)
    if simulate is None:
        return inner
    from workbench.sim.simulated_host import SimulatedHost

    shared = os.environ.get("WORKBENCH_SIM_STATE")  # the simulated GPUs, for several users of one simulated host
    return SimulatedHost(inner, simulate, str(paths.state_dir() / "sim" / simulate), shared)


def known_names() -> tuple[str, ...]:
    """For the host picker: this machine, the aliases of the person's ssh config, the simulated profiles."""
    from workbench.sim.profiles import PROFILES

    return (*hosts.known_names(), *(SIMULATED + name for name in PROFILES))

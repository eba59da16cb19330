"""The names of hosts: this machine, hosts behind ssh, and simulated hosts."""

from __future__ import annotations

import os

from workbench import hosts
from workbench.hosts import open_host
from workbench.hosts.base import Host
from workbench.store import paths

SIMULATED = "sim:"


def host_called(name: str | None, simulate: str | None = None) -> Host:
    """Return the host of a name: None or "local", an ssh name, or "sim:PROFILE". `simulate` adds a simulated driver and
    engines to that host. Raises InputError for an unknown profile."""
    if name and name.startswith(SIMULATED):
        simulate, name = name.removeprefix(SIMULATED), None
    inner = open_host(name)
    if simulate is None:
        return inner
    from workbench.sim.simulated_host import SimulatedHost

    shared = os.environ.get("WORKBENCH_SIM_STATE")  # the GPUs of a simulated host that several users share
    return SimulatedHost(inner, simulate, str(paths.state_dir() / "sim" / simulate), shared)


def known_names() -> tuple[str, ...]:
    """Return the names for the host picker: this machine, the aliases of the ssh config, and the simulated profiles."""
    from workbench.sim.profiles import PROFILES

    return (*hosts.known_names(), *(SIMULATED + name for name in PROFILES))

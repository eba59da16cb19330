"""The names of hosts: this machine, hosts behind SSH, and simulated hosts."""

from __future__ import annotations

import os

from workbench import hosts
from workbench.hosts import open_host
from workbench.hosts.base import Host
from workbench.model.errors import InputError
from workbench.store import paths

SIMULATED = "sim:"


def host_called(name: str | None, simulate: str | None = None) -> Host:
    """Return the host with this name: None or "local", an SSH name, or "sim:PROFILE". `simulate` names a profile whose
    simulated driver and engines are put on that host. Raises InputError for an unknown profile."""
    if name and name.startswith(SIMULATED):
        simulate, name = name.removeprefix(SIMULATED), None
    inner = open_host(name)
    if simulate is None:
        return inner
    from workbench.sim.simulated_host import SimulatedHost

    shared = os.environ.get("WORKBENCH_SIM_STATE")  # the GPUs of a simulated host that several users share
    return SimulatedHost(inner, simulate, str(paths.state_dir() / "sim" / simulate), shared)


def known_names() -> tuple[str, ...]:
    """Return the names of hosts that the user can pick: this machine, the aliases of the SSH config, and the simulated
    profiles."""
    from workbench.sim.profiles import PROFILES

    return (*hosts.known_names(), *(SIMULATED + name for name in PROFILES))


def check_same_host(series: str, ran_on: str, host: str) -> None:
    """Raise InputError if `series`, an experiment or a sweep that was run on host `ran_on`, is resumed on another."""
    if ran_on != host:
        raise InputError(
            f"{series} was run on {ran_on} and can be resumed only there",
            host=host,
            next_step=f"resume it with workbench --host {ran_on} …",
        )

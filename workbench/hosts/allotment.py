"""Asks a host which of its GPUs its own environment gives to the programs that run on it."""

from __future__ import annotations

from workbench.hosts.base import Host
from workbench.hosts.shell_scripts import READ_GPU_ALLOTMENT, parse_last_values, shell_argv
from workbench.model.gpu_allotment import UNSET, Allotment, parse_allotment


async def read_gpu_allotment(host: Host) -> Allotment:
    """Return which GPUs the environment of `host` gives to the programs that run there. Raises
    HostError if the host cannot be asked."""
    done = await host.run(shell_argv(READ_GPU_ALLOTMENT), check=True)
    facts = parse_last_values(done.out.splitlines())
    return parse_allotment(facts.get("job", ""), facts.get("visible", UNSET))

"""The CPU cores of a host, as a program there may use them."""

from __future__ import annotations

from workbench.model.lazy_dataclass import dataclass

_MOST = 100_000


@dataclass(frozen=True, slots=True)
class HostCores:
    """The CPUs that a program on a host may use, of which several can belong to one core, the
    number of their cores, and the number of the host's NUMA nodes that have CPUs."""

    cpus: int
    cores: int
    numa_nodes: int = 1


def parse_host_cores(cpus: str, cores: str, nodes: str) -> HostCores | None:
    """Return the cores that the script count_cores.sh prints: each parameter is the value of one of
    its lines. None if the host does not tell how many CPUs a program may use. If it does not tell
    the number of cores, each CPU counts as one."""
    usable, physical = _parse_count(cpus), _parse_count(cores)
    if not usable:
        return None
    return HostCores(usable, min(usable, physical or usable), max(1, _parse_count(nodes)))


def _parse_count(text: str) -> int:
    """Return a whole number of at most _MOST; 0 if the text is none."""
    text = text.strip()
    if not (text.isascii() and text.isdecimal()):
        return 0
    return min(int(text[:9]), _MOST)

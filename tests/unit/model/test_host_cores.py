"""Tests of the CPU cores of a host."""

from __future__ import annotations

import pytest

from workbench.model.host_cores import HostCores, parse_host_cores


@pytest.mark.parametrize(
    ("cpus", "cores", "nodes", "expected"),
    [
        ("32", "16", "1", HostCores(32, 16)),
        ("128", "64", "2", HostCores(128, 64, numa_nodes=2)),
        ("4", "16", "1", HostCores(4, 4)),  # a process that may use few CPUs of the host
        ("8", "0", "0", HostCores(8, 8)),  # no topology in sysfs
        ("", "16", "1", None),  # no nproc
        ("many", "16", "1", None),
    ],
)
def test_the_cores_that_a_program_may_use(
    cpus: str, cores: str, nodes: str, expected: HostCores | None
) -> None:
    assert parse_host_cores(cpus, cores, nodes) == expected

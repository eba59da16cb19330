"""The list of all checks of a single host."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from workbench.doctor import cap_checks, gpu_checks, host_checks, stack_checks
from workbench.doctor.examination import Examination
from workbench.model.findings import Finding, Level

CHECKS: tuple[Callable[[Examination], Iterator[Finding]], ...] = (
    *gpu_checks.CHECKS,
    *cap_checks.CHECKS,
    *stack_checks.CHECKS,
    *host_checks.CHECKS,
)


# of these, a start depends on the errors
_OF_A_START = (
    gpu_checks.check_driver_version,
    stack_checks.check_torch_cpu_build,
    stack_checks.check_driver_cuda,
    stack_checks.check_torch_cuda,
    stack_checks.check_package_gpu_support,
)


def find_engine_start_warnings(seen: Examination) -> Sequence[Finding]:
    """Return, as warnings, the errors of the driver and of packages with which an engine cannot use
    the GPUs."""
    return [
        replace(finding, level=Level.WARN)
        for check in _OF_A_START
        for finding in check(seen)
        if finding.level is Level.ERROR
    ]


def all_findings(seen: Examination) -> Sequence[Finding]:
    """Return findings about the problems of an examined host."""
    return [finding for check in CHECKS for finding in check(seen)]

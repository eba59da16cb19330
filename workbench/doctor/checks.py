"""The list of all checks of a single host."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from workbench.doctor import gpu_checks, host_checks, stack_checks
from workbench.doctor.examination import Examination
from workbench.model.findings import Finding

CHECKS: tuple[Callable[[Examination], Iterator[Finding]], ...] = (
    *gpu_checks.CHECKS,
    *stack_checks.CHECKS,
    *host_checks.CHECKS,
)


def findings(seen: Examination) -> Sequence[Finding]:
    """Return findings about the problems of an examined host."""
    return [finding for check in CHECKS for finding in check(seen)]

"""The measurement lock of the host as the session uses it: only one Workbench, of any user,
measures at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from typing import TYPE_CHECKING

from workbench.gpu import measurement_lock

if TYPE_CHECKING:
    from workbench.session.gpu_alterations import GpuAlterations
    from workbench.session.state_holder import StateHolder


class MeasurementLock:
    """Takes the measurement lock of the host. `wait` says whether to wait for another Workbench
    that holds the lock. `tell` gets a text when the waiting begins; by default the text goes to the
    activity log."""

    def __init__(self, core: StateHolder, alterations: GpuAlterations) -> None:
        self._core, self._alterations = core, alterations
        self._depth = 0  # of nested `hold` blocks: an experiment holds the lock for all of its runs
        self.wait = False
        self.tell: Callable[[str], None] | None = None

    @asynccontextmanager
    async def hold(self, what: str) -> AsyncIterator[None]:
        """Hold the measurement lock while the block runs; blocks may be nested. `what` names the
        work for other Workbenches. Raises BenchError if another Workbench holds the lock and `wait`
        is False."""
        tell = self.tell or (lambda text: self._core.record(f"# {text}"))
        lock = measurement_lock.locked_for_measurement(
            self._core.host, what, wait=self.wait, tell=tell
        )
        async with nullcontext() if self._depth else lock:
            self._depth += 1
            self._core.update_host(measured_by=None)
            try:
                yield
            finally:
                self._depth -= 1

    async def read_owner(self) -> None:
        """Read which other Workbench holds the measurement lock of this host, and store that in the
        session's state."""
        if not self._core.host.connected:
            return
        directory = self._alterations.register_dir
        found = None
        if not self._depth and directory is not None:
            found = await measurement_lock.holder(self._core.host, directory)
        self._core.update_host(measured_by=None if self._depth else found)

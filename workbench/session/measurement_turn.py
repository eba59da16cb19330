"""The host's turn to measure: one Workbench at a time, of any user."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from typing import TYPE_CHECKING

from workbench.gpu import measurement_lock

if TYPE_CHECKING:
    from workbench.session.gpu_alterations import GpuAlterations
    from workbench.session.state_holder import StateHolder


class MeasurementTurn:
    """`wait`: whether to wait for another Workbench that measures. `tell` hears of the wait, by default the activity
    log."""

    def __init__(self, core: StateHolder, alterations: GpuAlterations) -> None:
        self._core, self._alterations = core, alterations
        self._depth = 0  # of nested `take` blocks: an experiment takes the turn for all of its runs
        self.wait = False
        self.tell: Callable[[str], None] | None = None

    @asynccontextmanager
    async def take(self, what: str) -> AsyncIterator[None]:
        """Own the turn while the block runs. Raises BenchError if another Workbench has it and `wait` is False."""
        tell = self.tell or (lambda text: self._core.record(f"# {text}"))
        turn = measurement_lock.locked_for_measurement(self._core.host, what, wait=self.wait, tell=tell)
        async with nullcontext() if self._depth else turn:
            self._depth += 1
            self._core.update_host(measured_by=None)
            try:
                yield
            finally:
                self._depth -= 1

    async def look(self) -> None:
        """Show in the state which other Workbench measures on this host."""
        if not self._core.host.connected:
            return
        directory = self._alterations.register_dir
        found = None
        if not self._depth and directory is not None:
            found = await measurement_lock.holder(self._core.host, directory)
        self._core.update_host(measured_by=None if self._depth else found)

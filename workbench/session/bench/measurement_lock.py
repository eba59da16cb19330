"""The measurement lock of the host as the session uses it: only one Workbench, of any user,
measures at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

from workbench.gpu import measurement_lock
from workbench.gpu.measurement_lock import IfHeld

if TYPE_CHECKING:
    from workbench.session.gpu.alterations import GpuAlterations
    from workbench.session.state_holder import StateHolder


class MeasurementLock:
    """Holds the measurement lock of the host. `if_held` says what to do if somebody else has the
    lock. `tell` gets a text when the waiting begins, and when somebody else begins to measure at
    the same time; by default the text goes to the activity log."""

    def __init__(self, core: StateHolder, alterations: GpuAlterations) -> None:
        self._core, self._alterations = core, alterations
        self._depth = (
            0  # of nested `hold_lock` blocks: an experiment holds the lock for all of its runs
        )
        self.if_held = IfHeld.REFUSE
        self.tell: Callable[[str], None] | None = None
        self._others = measurement_lock.OtherMeasurements()

    @asynccontextmanager
    async def hold_lock(self, what: str) -> AsyncIterator[None]:
        """Hold the measurement lock while the block runs; blocks may be nested. `what` names the
        work for other Workbenches. Raises HostOccupied if somebody else holds the lock and
        `if_held` is REFUSE."""
        if self._depth:
            async with self._hold_nested_lock():
                yield
            return
        tell = self.tell or (lambda text: self._core.record_command(f"# {text}"))
        lock = measurement_lock.locked_for_measurement(
            self._core.host, what, if_held=self.if_held, report=tell
        )
        async with lock as self._others, self._hold_nested_lock():
            self._core.update_host(measured_by=None)
            yield

    @asynccontextmanager
    async def _hold_nested_lock(self) -> AsyncIterator[None]:
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    def other_owner_texts_since(self, begin_monotonic_s: float) -> tuple[str, ...]:
        """Return who else measured on this host at any time after `begin_monotonic_s`, while this
        session held the lock or measured at the same time as its holder."""
        return self._others.owner_texts_since(begin_monotonic_s)

    def duration_without_lock_s(self, begin_monotonic_s: float) -> float | None:
        """Return for how many seconds since `begin_monotonic_s` this session had lost the lock,
        None if it has not lost it."""
        return self._others.duration_without_lock_s(begin_monotonic_s)

    @contextmanager
    def allow_work_while_others_measure(self) -> Iterator[None]:
        """Let measurements that begin in the block run although somebody else measures."""
        before, self.if_held = self.if_held, IfHeld.BESIDE
        try:
            yield
        finally:
            self.if_held = before

    async def refresh_other_lock_owner(self) -> None:
        """Read which other Workbench holds the measurement lock of this host, and show that in the
        session's state; None if this session holds it. Without a connection nothing is changed."""
        if not self._core.host.connected:
            return
        directory = self._alterations.register_dir
        found = None
        if not self._depth and directory is not None:
            found = await measurement_lock.read_lock_holder(self._core.host, directory)
        self._core.update_host(measured_by=None if self._depth else found)

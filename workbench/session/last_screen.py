"""What the last screen of a host has stored: marks of results, values of forms, the last benchmark,
experiment and sweep, and the activity log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from workbench.model.errors import WorkbenchError
from workbench.model.secrets import mask_argv
from workbench.model.series_state import SeriesState
from workbench.session.bench.result_rows import last_usable
from workbench.session.state import Activity, SessionState
from workbench.session.state_holder import ACTIVITY_KEPT
from workbench.store import activity_log, paths, screen_state

if TYPE_CHECKING:
    from workbench.hosts.base import Host
    from workbench.session.results.results import Results
    from workbench.session.series.experiments import Experiments
    from workbench.session.state_holder import StateHolder

_MARKS = ("mark_a", "mark_b")
_CHOSEN = "b_chosen"


class ScreenMemory:
    """Stores the marks and the values of forms of a screen, and restores them for the next screen
    of the host, from the call of `resume` on. `experiments` and `results` return parts of the
    session; they are called only if there is an experiment or a comparison to show."""

    def __init__(
        self,
        core: StateHolder,
        experiments: Callable[[], Experiments],
        results: Callable[[], Results],
    ) -> None:
        self._core, self._experiments, self._results = core, experiments, results
        self._forms: dict[str, dict[str, str]] = {}
        self.resumed: Host | None = None  # the host whose marks are kept from now on

    async def resume(self) -> None:
        """Restore the marks, forms and results of the last screen of this host, and store each
        later change of the marks. Anything that cannot be read is left out."""
        host = self._core.host
        left = await asyncio.to_thread(screen_state.read, host.name)
        forms = left.get("forms")
        self._forms = {
            str(name): {str(k): str(v) for k, v in values.items()}
            for name, values in (forms.items() if isinstance(forms, dict) else ())
            if isinstance(values, dict)
        }
        await self.read_activity()
        state = self._core.state
        self._core.update(
            bench=replace(state.bench, last_id=state.bench.last_id or last_usable(state.results))
        )
        shown = {row.id for row in state.results}
        self._core.update(**{name: left[name] for name in _MARKS if left.get(name) in shown})
        self._core.update(
            b_chosen=left.get(_CHOSEN) is True and self._core.state.mark_b is not None
        )
        with suppress(WorkbenchError):
            await self._resume_series()
            await self._resume_comparison(left.get("compared"))
        if self.resumed is None:
            self._core.subscribe(self._keep_marks)
        self.resumed = host

    async def _resume_series(self) -> None:
        """Show the comparison of results, the experiment and the sweep that this host's screen
        showed last. What another Workbench is running is left out."""
        from workbench.store.experiments import ExperimentsDb
        from workbench.store.sweeps import SweepStore

        host = self._core.host.name
        stored = await asyncio.to_thread(ExperimentsDb(paths.results_db()).list)
        experiment = next(
            (e for e in stored if e.of_host(host) and e.state != SeriesState.RUNNING), None
        )
        if experiment is not None and self._core.state.experiment is None:
            self._core.update(experiment=await self._experiments().get(experiment.id))
        sweeps = await asyncio.to_thread(SweepStore(paths.sweeps_dir()).list)
        sweep = next((s for s in sweeps if s.host == host and s.state != SeriesState.RUNNING), None)
        if sweep is not None and self._core.state.sweep is None:
            self._core.update(sweep=sweep)

    async def _resume_comparison(self, compared: object) -> None:
        """Show the comparison of the two results `compared`, as they were stored, unless an
        experiment is newer than both of them."""
        rows = {row.id: row for row in self._core.state.results}
        if not isinstance(compared, list) or len(compared) != 2 or not rows.keys() >= {*compared}:
            return
        experiment = self._core.state.experiment
        newest = max(rows[one].unix_s for one in compared)
        if experiment is None or experiment.unix_s < newest:
            await self._results().compare(*compared)

    async def read_activity(self) -> None:
        """Read the activity log of this host into the session's state. The log has the actions of
        every Workbench of this user."""
        kept = await asyncio.to_thread(activity_log.kept, self._core.host.name, ACTIVITY_KEPT)
        read = {_activity(entry): None for entry in kept}
        ours = (a for a in self._core.state.activity if a.host == self._core.host.name)
        found = {**read, **dict.fromkeys(ours)}
        self._core.update(activity=tuple(sorted(found, key=lambda a: a.unix_s)[-ACTIVITY_KEPT:]))

    # ---- forms and marks

    def last_form(self, name: str) -> Mapping[str, str]:
        """Return the values with which a form was last accepted on this host, by field; {} if there
        are none."""
        return self._forms.get(name, {})

    def keep_form(self, name: str, values: Mapping[str, str]) -> None:
        """Store the values of a form that the user has accepted, unless they contain a secret."""
        given = dict(values)
        if not any(
            word != mask_argv([word])[0] for value in given.values() for word in _words(value)
        ):
            self._forms[name] = given
            self._keep()

    def _keep_marks(self, state: SessionState, changed: frozenset[str]) -> None:
        if (
            changed.intersection(("comparison", _CHOSEN, *_MARKS))
            and self.resumed is self._core.host
        ):
            self._keep()

    def _keep(self) -> None:
        state = self._core.state
        marks: dict[str, Any] = {name: getattr(state, name) for name in (*_MARKS, _CHOSEN)}
        if state.comparison is not None:
            marks["compared"] = [state.comparison.a, state.comparison.b]
        screen_state.keep(self._core.host.name, {**marks, "forms": self._forms})


def _words(text: str) -> list[str]:
    """Return the parts of a form's value `text` that are checked for secrets. These are each word,
    written as a flag ("--WORD") because secrets are known by flag names, and the whole text."""
    return [f"--{word.lstrip('$-')}" for word in text.split()] + [text]


def _activity(entry: Mapping[str, Any]) -> Activity:
    try:
        at = float(entry.get("unix_s") or 0.0)
    except (TypeError, ValueError):
        at = 0.0
    return Activity(at, *(str(entry.get(name) or "") for name in ("host", "command", "outcome")))

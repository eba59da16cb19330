"""What the last screen of a host has stored: marks of results, values of forms, the last benchmark,
experiment and sweep, the activity log, and when the screen was last open."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from workbench.model.errors import WorkbenchError
from workbench.model.secrets import mask_argv
from workbench.model.series_state import SeriesState
from workbench.model.untrusted_numbers import number_for_field
from workbench.session.bench.result_rows import newest_valid_own_result_id
from workbench.session.changes_while_away import last_server_change_unix_s
from workbench.session.state import Activity, SessionState
from workbench.session.state_holder import MAX_KEPT_ACTIVITY
from workbench.store import activity_log, paths, screen_state

if TYPE_CHECKING:
    from workbench.hosts.base import Host
    from workbench.session.results.results import Results
    from workbench.session.series.experiments import Experiments
    from workbench.session.state_holder import StateHolder

_MARK_FIELDS = ("mark_a", "mark_b")
_B_CHOSEN_FIELD = "b_chosen"
_SEEN_FIELD = "seen_unix_s"
_SEEN_INTERVAL_S = 60.0  # a killed screen seems to have closed at most so much too early


class ScreenMemory:
    """Stores the marks and the values of forms of a screen, and restores them for the next screen
    of the host, from the call of `resume_last_screen` on. `experiments` and `results` return parts
    of the session; they are called only if there is an experiment or a comparison to show."""

    def __init__(
        self,
        core: StateHolder,
        experiments: Callable[[], Experiments],
        results: Callable[[], Results],
    ) -> None:
        self._core, self._experiments, self._results = core, experiments, results
        self._forms: dict[str, dict[str, str]] = {}
        self._subscribed = False
        self._noted_s = 0.0  # time.monotonic() at the last `record_screen_open` that did something
        self._noted: object = None  # what the screen showed then
        self.resumed: Host | None = None  # the host whose marks are kept from now on
        self.left_unix_s: float | None = None  # when the last screen of the host closed
        self._seen_unix_s: float | None = None  # when this screen last showed the host

    async def resume_last_screen(self) -> None:
        """Restore the marks, forms and results of the last screen of this host, and store each
        later change of the marks. Anything that cannot be read is left out."""
        host = self._core.host
        left = await asyncio.to_thread(screen_state.read_screen_state, host.name)
        seen = left.get(_SEEN_FIELD)
        self._seen_unix_s = self.left_unix_s = _number_or_none(seen)
        self._forms = _parse_forms(left.get("forms"))
        await self.load_activity_log()
        self._restore_result_marks(left)
        with suppress(WorkbenchError):
            await self._show_last_experiment_and_sweep()
            await self._resume_comparison(left.get("compared"))
        if not self._subscribed:
            self._subscribed = True
            self._core.subscribe(self._store_changed_result_marks)
        self.resumed = host

    def _restore_result_marks(self, stored_state: Mapping[str, Any]) -> None:
        """Mark the results of the last screen that are listed again."""
        state = self._core.state
        bench = state.bench
        if not bench.last_id:
            self._core.update(
                bench=replace(bench, last_id=newest_valid_own_result_id(state.results))
            )
        listed = {row.id for row in state.results}
        for name in _MARK_FIELDS:
            number = stored_state.get(name)
            if isinstance(number, int) and number in listed:
                self._core.update(**{name: number})
        has_b = self._core.state.mark_b is not None
        self._core.update(b_chosen=has_b and stored_state.get(_B_CHOSEN_FIELD) is True)

    async def record_screen_open(self) -> None:
        """Store that this screen is open, once a minute and after each change that the next screen
        would report. So that time is known even if the screen is killed."""
        if self.resumed is not self._core.host:
            return
        shown = _fields_compared_since_close(self._core.state)
        is_old = time.monotonic() - self._noted_s > _SEEN_INTERVAL_S
        if is_old or shown != self._noted:
            self._noted_s, self._noted = time.monotonic(), shown
            await asyncio.to_thread(self._store_screen_state)

    def record_screen_close(self) -> None:
        """Store that this screen closes now, and nothing from now on."""
        if self.resumed is self._core.host:
            self._store_screen_state()
        self.resumed = None

    async def _show_last_experiment_and_sweep(self) -> None:
        """Show the experiment and the sweep that this host's screen showed last. What another
        Workbench is running is left out."""
        if paths.has_results():
            await self._resume_experiment(self._core.host.name)
        if paths.sweeps_dir().is_dir():
            await self._resume_sweep(self._core.host.name)

    async def _resume_experiment(self, host: str) -> None:
        from workbench.store.experiments import ExperimentsDb

        for stored in await asyncio.to_thread(ExperimentsDb(paths.results_db()).list):
            if stored.state != SeriesState.RUNNING and stored.was_run_on(host):
                if self._core.state.experiment is None:
                    self._core.update(experiment=await self._experiments().get(stored.id))
                return

    async def _resume_sweep(self, host: str) -> None:
        from workbench.store.sweeps import SweepStore

        for sweep in await asyncio.to_thread(SweepStore(paths.sweeps_dir()).list):
            if sweep.state != SeriesState.RUNNING and sweep.host == host:
                if self._core.state.sweep is None:
                    self._core.update(sweep=sweep)
                return

    async def _resume_comparison(self, stored_pair: object) -> None:
        """Show the comparison of two results again. `stored_pair` is the stored pair of their ids.
        Do nothing if it is no such pair, if one of them is not listed any more, or if an experiment
        is newer than both of them."""
        times_unix_s = {row.id: row.unix_s for row in self._core.state.results}
        match stored_pair:
            case [int(a), int(b)] if {a, b} <= times_unix_s.keys():
                newest_unix_s = max(times_unix_s[a], times_unix_s[b])
            case _:
                return
        experiment = self._core.state.experiment
        if experiment is None or experiment.unix_s < newest_unix_s:
            await self._results().compare(a, b)

    async def load_activity_log(self) -> None:
        """Add the newest part of this host's activity log to the session's state. The log has the
        actions of every Workbench of this user. What this session did on other hosts stays: a log
        that cannot be written does not have it."""
        host = self._core.host.name
        kept = await asyncio.to_thread(activity_log.read_newest_entries, host, MAX_KEPT_ACTIVITY)
        found = dict.fromkeys(map(_activity_from_log_entry, kept))
        others = []
        for activity in self._core.state.activity:
            if activity.host == host:
                found[activity] = None
            else:
                others.append(activity)
        newest = sorted(found, key=attrgetter("unix_s"))[-MAX_KEPT_ACTIVITY:]
        self._core.update(activity=(*others, *newest))

    # ---- forms and marks

    def last_form_values(self, name: str) -> Mapping[str, str]:
        """Return the values with which a form was last accepted on this host, by field; {} if there
        are none."""
        return self._forms.get(name, {})

    def store_form(self, name: str, values: Mapping[str, str]) -> None:
        """Store the values of a form that the user has accepted, unless they contain a secret."""
        words = list(chain.from_iterable(map(_words_to_check_for_secrets, values.values())))
        has_secret = any(mask_argv([word])[0] != word for word in words)
        if not has_secret:
            self._forms[name] = dict(values)
            self._store_screen_state()

    def _store_changed_result_marks(self, state: SessionState, changed: frozenset[str]) -> None:
        if changed.isdisjoint(("comparison", _B_CHOSEN_FIELD, *_MARK_FIELDS)):
            return
        if self.resumed is self._core.host:
            self._store_screen_state()

    def _store_screen_state(self) -> None:
        state = self._core.state
        marks: dict[str, Any] = {}
        for name in (*_MARK_FIELDS, _B_CHOSEN_FIELD):
            marks[name] = getattr(state, name)
        if state.servers_read and state.host.link == "connected":
            self._seen_unix_s = time.time()
        marks[_SEEN_FIELD] = self._seen_unix_s
        if state.comparison is not None:
            marks["compared"] = [state.comparison.a, state.comparison.b]
        screen_state.store_screen_state(self._core.host.name, {**marks, "forms": self._forms})


def _fields_compared_since_close(state: SessionState) -> tuple[object, ...]:
    """Return the parts of the state in which `changes_while_away` finds what changed after the
    screen closed."""
    did_unix_s = state.guard.did_unix_s if state.guard is not None else None
    servers = tuple(map(last_server_change_unix_s, state.servers))
    return state.results, servers, state.alterations, state.others, did_unix_s


def _words_to_check_for_secrets(text: str) -> list[str]:
    """Return the parts of a form's value `text` that are checked for secrets. These are each word,
    written as a flag ("--WORD") because secrets are known by flag names, and the whole text."""
    return [f"--{word.lstrip('$-')}" for word in text.split()] + [text]


def _parse_forms(forms: object) -> dict[str, dict[str, str]]:
    """Return the stored values of forms as texts: {form: {field: value}}. What is no table is left
    out."""
    found: dict[str, dict[str, str]] = {}
    if isinstance(forms, dict):
        for name, values in forms.items():
            if isinstance(values, dict):
                found[str(name)] = {str(field): str(text) for field, text in values.items()}
    return found


def _number_or_none(value: object) -> float | None:
    try:
        return number_for_field(_SEEN_FIELD, value)
    except ValueError:
        return None


def _activity_from_log_entry(entry: Mapping[str, Any]) -> Activity:
    try:
        at_unix_s = float(entry.get("unix_s") or 0.0)
    except (TypeError, ValueError):
        at_unix_s = 0.0
    host, command, outcome = (str(entry.get(name) or "") for name in ("host", "command", "outcome"))
    return Activity(at_unix_s, host, command, outcome)

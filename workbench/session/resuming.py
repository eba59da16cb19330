"""Where an earlier screen was left: its marks, its forms, its last benchmark, experiment and sweep, what it did."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from workbench.hosts.base import Host
from workbench.model.errors import WorkbenchError
from workbench.session.core import ACTIVITY_KEPT
from workbench.session.history import Histories
from workbench.session.measuring import last_usable
from workbench.session.state import Activity, SessionState

_MARKS = ("mark_a", "mark_b")


class Resuming(Histories):
    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._forms: dict[str, dict[str, str]] = {}
        self._resumed: Host | None = None  # whose marks are kept from now on

    async def resume(self) -> None:
        """Go on where the last screen on this host was left. What cannot be read is left out."""
        from workbench.store import screen_state

        host = self.host
        left = await asyncio.to_thread(screen_state.read, host.name)
        forms = left.get("forms")
        self._forms = {
            str(name): {str(k): str(v) for k, v in values.items()}
            for name, values in (forms.items() if isinstance(forms, dict) else ())
            if isinstance(values, dict)
        }
        await self.read_activity()
        self.update(
            bench=replace(self.state.bench, last_id=self.state.bench.last_id or last_usable(self.state.results))
        )
        shown = {row.id for row in self.state.results}
        self.update(**{name: left[name] for name in _MARKS if left.get(name) in shown})
        with suppress(WorkbenchError):
            await self._last_series()
        if self._resumed is None:
            self.subscribe(self._keep_marks)
        self._resumed = host

    async def _last_series(self) -> None:
        """The newest experiment and sweep of this host, unless another Workbench is at it."""
        experiment = next((e for e in await self.experiments() if e.state != "running"), None)
        if experiment is not None and self.state.experiment is None:
            self.update(experiment=await self.experiment_called(experiment.id))
        sweeps = await asyncio.to_thread(self.sweeps.list)
        sweep = next((s for s in sweeps if s.host == self.host.name and s.state != "running"), None)
        if sweep is not None and self.state.sweep is None:
            self.update(sweep=sweep)

    async def read_activity(self) -> None:
        """What was done to this host, by whichever Workbench of this user."""
        from workbench.store import activity_log

        kept = await asyncio.to_thread(activity_log.kept, self.host.name, ACTIVITY_KEPT)
        read = {_known(entry): None for entry in kept}
        found = {**read, **dict.fromkeys(a for a in self.state.activity if a.host == self.host.name)}
        self.update(activity=tuple(sorted(found, key=lambda a: a.unix_s)[-ACTIVITY_KEPT:]))

    # ---- forms and marks

    def last_form(self, name: str) -> Mapping[str, str]:
        """What stood in a form when it was last accepted on this host; empty where it never was."""
        return self._forms.get(name, {})

    def keep_form(self, name: str, values: Mapping[str, str]) -> None:
        from workbench.model.secrets import mask_argv

        given = dict(values)
        if not any(word != mask_argv([word])[0] for value in given.values() for word in _words(value)):
            self._forms[name] = given
            self._keep()

    def _keep_marks(self, state: SessionState, changed: frozenset[str]) -> None:
        if changed.intersection(_MARKS) and self._resumed is self.host:
            self._keep()

    def _keep(self) -> None:
        from workbench.store import screen_state

        marks = {name: getattr(self.state, name) for name in _MARKS}
        screen_state.keep(self.host.name, {**marks, "forms": self._forms})


def _words(text: str) -> list[str]:
    """As a flag would be written, so that what is secret by its name is known as such."""
    return [f"--{word.lstrip('$-')}" for word in text.split()] + [text]


def _known(entry: Mapping[str, Any]) -> Activity:
    try:
        at = float(entry.get("unix_s") or 0.0)
    except (TypeError, ValueError):
        at = 0.0
    return Activity(at, *(str(entry.get(name) or "") for name in ("host", "command", "outcome")))

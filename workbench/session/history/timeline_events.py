"""The events of a host's timeline, derived from changes of the session's state and from readings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from workbench.model.counts import count_of, gpus_text
from workbench.model.timeline import OWN_BENCHMARK, QUIET_REASONS, Event, EventKind
from workbench.session.state import PREPARING_PHASE

if TYPE_CHECKING:
    from workbench.model.bench import BenchSpec
    from workbench.model.gpu import Telemetry
    from workbench.model.server_run import ServerStatus
    from workbench.model.setting_records import Alteration, GuardView
    from workbench.session.state import BenchState, SessionState

COMPARED_ANSWERS = "comparison of answers"
PROCHOT = "PROCHOT"  # a signal of the board, which NVML does not report
_OLDEST_EVENT_S = 86_400.0  # events before that are not in the history
_MAX_TRANSIT_S = (
    2.0  # a reading may take this long to arrive; more is a difference between two clocks
)
_RECENT_CHANGE_S = 15.0  # between a change of a setting and its reading from the journal
_RECENT_GUARD_ACT_S = 90.0  # between an act of the guard and its reading
# absence of a throttle reason before it may begin again: at first, and if it keeps returning
_THROTTLE_ABSENCE_RANGE_S = (30.0, 600.0)


class EventSource:
    """Finds the events in each new state and in each reading of one host. `state` is the state with
    which the first new state is compared."""

    def __init__(self, state: SessionState) -> None:
        self._state = state
        self._host_ahead_s = 0.0  # of this machine's clock
        self._reverted_s = 0.0  # when settings went without a known reason
        self._benchmark: str | None = None  # the one whose beginning was told
        # last seen, absence to wait for
        self._throttles: dict[tuple[int, str], tuple[float, float]] | None = None

    def events_in_state(
        self, state: SessionState, changed: frozenset[str], now: float
    ) -> Iterator[Event]:
        """Yield the events that follow from the changes since the last state. `changed` are the
        names of the changed fields of `state`."""
        before, self._state = self._state, state
        for field, find in _EVENT_FINDERS.items():
            if field in changed:
                yield from find(self, before, state, now)

    def events_in_reading(self, telemetry: Telemetry, now: float) -> Iterator[Event]:
        """Yield an event for each reason that begins to slow a GPU down (a throttle reason). A
        reason that comes and goes gives at most one event in 30 s, and fewer the longer it
        continues."""
        ahead_s = telemetry.unix_s - now
        self._host_ahead_s = ahead_s if abs(ahead_s) > _MAX_TRANSIT_S else 0.0
        first = self._throttles is None
        seen = self._throttles = self._throttles or {}
        began: dict[str, list[int]] = {}
        of_board = {PROCHOT} if telemetry.host.prochot else set()
        for gpu in telemetry.gpus:
            for reason in (of_board | set(gpu.event_reasons)) - QUIET_REASONS:
                last_s, hold_s = seen.get((gpu.index, reason), (0.0, _THROTTLE_ABSENCE_RANGE_S[0]))
                away_s = now - last_s
                if away_s > hold_s:
                    hold_s = (
                        _THROTTLE_ABSENCE_RANGE_S[0]
                        if away_s > _THROTTLE_ABSENCE_RANGE_S[1]
                        else min(2 * hold_s, _THROTTLE_ABSENCE_RANGE_S[1])
                    )
                    began.setdefault(reason, []).append(gpu.index)
                seen[gpu.index, reason] = now, hold_s
        # what was on at the first reading began earlier
        for reason, gpus in began.items() if not first else ():
            yield Event(
                now,
                EventKind.THROTTLE,
                f"{gpus_text(gpus)} throttled: {reason}",
                _single_gpu_or_none(gpus),
            )

    def _convert_to_local_time(self, unix_s: float, now: float) -> float:
        """Convert `unix_s`, a time of the host's clock, to this machine's clock. Return `now` for a
        time less than 2 s ago, because some hosts report whole seconds only."""
        at = unix_s - self._host_ahead_s
        return at if now - at > _MAX_TRANSIT_S else now

    def _server_events(
        self, before: SessionState, state: SessionState, now: float
    ) -> Iterator[Event]:
        known = {status.run_id: status for status in before.servers}
        for status in state.servers:
            old = known.get(status.run_id)
            for field, kind, text in _SERVER_TIMES:
                at = getattr(status, field)
                if (
                    at is not None
                    and at != getattr(old, field, None)
                    and now - at < _OLDEST_EVENT_S
                ):
                    yield Event(
                        self._convert_to_local_time(at, now),
                        kind,
                        f"{text(status)} (run {status.run_id})",
                    )

    def _bench_events(
        self, before: SessionState, state: SessionState, now: float
    ) -> Iterator[Event]:
        bench = state.bench
        if (
            bench.running
            and self._benchmark is None
            and bench.progress
            and bench.progress.phase != PREPARING_PHASE
        ):
            self._benchmark = OWN_BENCHMARK + (load_text(bench.spec) if bench.spec else "a server")
            yield Event(now, EventKind.BENCH_BEGIN, f"{self._benchmark} begins")
        elif not bench.running and self._benchmark is not None:
            text, self._benchmark = self._benchmark, None
            yield Event(
                now,
                EventKind.BENCH_END,
                f"{text} ends: {outcome_text(bench)}",
                result_id=bench.stored_id,
            )

    def _quality_events(
        self, before: SessionState, state: SessionState, now: float
    ) -> Iterator[Event]:
        old, view = before.quality, state.quality
        ran, runs = old is not None and old.running, view is not None and view.running
        if view is not None and runs and not ran:
            text = f"{COMPARED_ANSWERS} begins: A {view.a}, B {view.b}"
            yield Event(now, EventKind.QUALITY_BEGIN, text)
        elif view is not None and ran and not runs:
            found = view.found or view.ended or "no result"
            yield Event(now, EventKind.QUALITY_END, f"{COMPARED_ANSWERS} ends: {found}")

    def _alteration_events(
        self, before: SessionState, state: SessionState, now: float
    ) -> Iterator[Event]:
        old, new = (_alterations_by_place((*s.alterations, *s.others)) for s in (before, state))
        made: dict[tuple[EventKind, str, float], list[int]] = {}
        for place, one in new.items():
            if place not in old or old[place].now != one.now:
                at = self._convert_to_local_time(one.set_unix_s or one.since_unix_s, now)
                recent = now - at < _RECENT_CHANGE_S
                trial = recent and state.guard is not None and state.guard.trial_left_s is not None
                kind = EventKind.SETTING_TRIAL if trial else EventKind.SETTING_MADE
                text = f"{_value_text(one, one.now)}{f' by {one.by}' if one.by else ''}{' on trial' if trial else ''}"
                made.setdefault((kind, text, now if recent else at), []).append(one.gpu_index)
        for place, one in old.items():
            if place not in new:
                text = f"{_value_text(one, one.before)} again{self._guard_reason(state.guard, now)}"
                made.setdefault((EventKind.SETTING_REVERTED, text, now), []).append(one.gpu_index)
        for (kind, text, at), gpus in made.items():
            if now - at < _OLDEST_EVENT_S:
                yield Event(at, kind, f"{gpus_text(gpus)} {text}", _single_gpu_or_none(gpus))

    def _guard_reason(self, guard: GuardView | None, now: float) -> str:
        """Return why the guard reverted a setting, as the end of a sentence. "" if the guard did
        not revert it, or if the reason is not known yet."""
        if (
            guard is None
            or guard.did_unix_s is None
            or now - self._convert_to_local_time(guard.did_unix_s, now) > _RECENT_GUARD_ACT_S
        ):
            self._reverted_s = now
            return ""
        return f" by the guard: {(guard.did or '').partition(': ')[2] or guard.did}"

    def _guard_events(
        self, before: SessionState, state: SessionState, now: float
    ) -> Iterator[Event]:
        """Yield an event for what the guard did last, if the guard was not known yet as the cause
        when the events about the reverted settings were made."""
        guard, old = state.guard, before.guard
        acted = (
            guard is not None
            and guard.did_unix_s is not None
            and old
            and guard.did_unix_s != old.did_unix_s
        )
        if guard is not None and acted and now - self._reverted_s < _RECENT_GUARD_ACT_S:
            yield Event(now, EventKind.SETTING_REVERTED, f"the guard {guard.did}")

    def _drift_events(
        self, before: SessionState, state: SessionState, now: float
    ) -> Iterator[Event]:
        from workbench.model.settings import label_of

        for one in state.drift:
            if one not in before.drift:
                text = f"{gpus_text([one.gpu_index])} {label_of(one.setting)} {one.text}"
                yield Event(now, EventKind.SETTING_MADE, text, _single_gpu_or_none([one.gpu_index]))

    def _host_events(
        self, before: SessionState, state: SessionState, now: float
    ) -> Iterator[Event]:
        old, host = before.host, state.host
        if host.link == "lost" != old.link:
            reason = host.message or "the host does not answer"
            yield Event(
                host.lost_since_unix_s or now,
                EventKind.LINK_LOST,
                f"link to {host.name} lost: {reason}",
            )
        elif host.link == "connected" and old.link == "lost":
            lost_s = now - (old.lost_since_unix_s or now)
            yield Event(now, EventKind.LINK_BACK, f"link to {host.name} back after {lost_s:.0f} s")
        if host.measured_by != old.measured_by:
            if old.measured_by is not None:
                who = f"{old.measured_by.what} by {old.measured_by.owner_text}"
                yield Event(now, EventKind.BENCH_END, f"{who} ends")
            if host.measured_by is not None:
                who = f"{host.measured_by.what} by {host.measured_by.owner_text}"
                yield Event(
                    self._convert_to_local_time(host.measured_by.since_unix_s or now, now),
                    EventKind.BENCH_BEGIN,
                    f"{who} begins",
                )


_EVENT_FINDERS: dict[
    str, Callable[[EventSource, SessionState, SessionState, float], Iterable[Event]]
] = {
    "servers": EventSource._server_events,
    "bench": EventSource._bench_events,
    "quality": EventSource._quality_events,
    "alterations": EventSource._alteration_events,
    "others": EventSource._alteration_events,
    "guard": EventSource._guard_events,
    "drift": EventSource._drift_events,
    "host": EventSource._host_events,
}


def _start_text(status: ServerStatus) -> str:
    return f"{status.engine} {status.model} starts"


def _ready_text(status: ServerStatus) -> str:
    doubt = "?" if status.text is not None and status.text.problem else ""
    after = f" after {status.ready_after_s:.1f} s" if status.ready_after_s else ""
    return f"{status.engine} READY{doubt}{after}"


def _end_text(status: ServerStatus) -> str:
    reason = f": {status.reason}" if status.reason and status.state != "stopped" else ""
    return f"{status.engine} {status.state}{reason}"


_SERVER_TIMES = (
    ("started_unix_s", EventKind.SERVER_START, _start_text),
    ("ready_unix_s", EventKind.SERVER_READY, _ready_text),
    ("ended_unix_s", EventKind.SERVER_END, _end_text),
)


def load_text(spec: BenchSpec) -> str:
    """Return a benchmark's load as text: "a command", its trace, its rate, or its number of
    streams."""
    if spec.command:
        return "a command"
    if spec.trace_name:
        return spec.trace_text
    if spec.rate is not None:
        return f"{spec.rate:g} requests/s"
    return count_of(spec.concurrency, "stream")


def outcome_text(bench: BenchState) -> str:
    return bench.error or (
        f"result {bench.stored_id}" if bench.stored_id is not None else "no result"
    )


def _alterations_by_place(
    alterations: Sequence[Alteration],
) -> dict[tuple[int, str, str], Alteration]:
    return {(one.gpu_index, one.setting, one.by): one for one in alterations}


def _value_text(one: Alteration, value: object) -> str:
    from workbench.model.settings import label_of, stored_text

    return label_of(one.setting) + (
        f" {stored_text(one.setting, value)}" if value is not None else ""
    )


def _single_gpu_or_none(gpus: Sequence[int]) -> int | None:
    return gpus[0] if len(gpus) == 1 and gpus[0] >= 0 else None

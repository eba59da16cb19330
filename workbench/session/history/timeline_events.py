"""The events of a host's timeline, derived from changes of the session's state and from
readings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

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
# a reading may take this long to arrive; more is a difference between two clocks
_MAX_TRANSIT_S = 2.0
_RECENT_CHANGE_S = 15.0  # between a change of a setting and its reading from the journal
_RECENT_GUARD_ACT_S = 90.0  # between an act of the guard and its reading
# absence of a throttle reason before it may begin again: at first, and if it keeps returning
_THROTTLE_ABSENCE_RANGE_S = (30.0, 600.0)


class _SettingEvent(NamedTuple):
    """What happened to a setting, without the GPUs to which it happened."""

    kind: EventKind
    text: str
    unix_s: float


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
        """Yield an event for each reason that begins to slow a GPU down (a throttle reason), except
        those of the first reading. A reason that comes and goes gives at most one event in 30 s,
        and fewer the longer it continues."""
        ahead_s = telemetry.unix_s - now
        self._host_ahead_s = ahead_s if abs(ahead_s) > _MAX_TRANSIT_S else 0.0
        first = self._throttles is None
        seen = self._throttles = self._throttles or {}
        began: dict[str, list[int]] = {}
        shortest_s, longest_s = _THROTTLE_ABSENCE_RANGE_S
        of_board = {PROCHOT} if telemetry.host.prochot else set()
        for gpu in telemetry.gpus:
            for reason in (of_board | set(gpu.event_reasons)) - QUIET_REASONS:
                last_s, hold_s = seen.get((gpu.index, reason), (0.0, shortest_s))
                away_s = now - last_s
                if away_s > hold_s:
                    hold_s = min(2 * hold_s, longest_s)
                    if away_s > longest_s:
                        hold_s = shortest_s
                    began.setdefault(reason, []).append(gpu.index)
                seen[gpu.index, reason] = now, hold_s
        if first:  # what is on at the first reading began earlier
            return
        for reason, gpus in began.items():
            yield Event(
                now,
                EventKind.THROTTLE,
                f"{gpus_text(gpus)} throttled: {reason}",
                _single_gpu_or_none(gpus),
            )

    def _convert_to_local_clock(self, unix_s: float, now: float) -> float:
        """Return `unix_s`, a time of the host's clock, as a time of this machine's clock. For a
        time less than 2 s ago, return `now`, because some hosts report seconds without a
        fraction."""
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
                if at in (None, getattr(old, field, None)) or now - at >= _OLDEST_EVENT_S:
                    continue
                yield Event(
                    self._convert_to_local_clock(at, now),
                    kind,
                    f"{text(status)} (run {status.run_id})",
                )

    def _bench_events(
        self, before: SessionState, state: SessionState, now: float
    ) -> Iterator[Event]:
        bench, text = state.bench, self._benchmark
        if bench.running:
            progress = bench.progress
            if text is None and progress and progress.phase != PREPARING_PHASE:
                load = benchmark_load_text(bench.spec) if bench.spec else "a server"
                self._benchmark = OWN_BENCHMARK + load
                yield Event(now, EventKind.BENCH_BEGIN, f"{self._benchmark} begins")
        elif text is not None:
            self._benchmark = None
            yield Event(
                now,
                EventKind.BENCH_END,
                f"{text} ends: {benchmark_outcome_text(bench)}",
                result_id=bench.stored_id,
            )

    def _quality_events(
        self, before: SessionState, state: SessionState, now: float
    ) -> Iterator[Event]:
        view = state.quality
        was_running, is_running = bool(before.running_quality), bool(state.running_quality)
        if view is None or was_running == is_running:
            return
        if is_running:
            text = f"{COMPARED_ANSWERS} begins: A {view.a}, B {view.b}"
            yield Event(now, EventKind.QUALITY_BEGIN, text)
        else:
            found = view.found or view.ended or "no result"
            yield Event(now, EventKind.QUALITY_END, f"{COMPARED_ANSWERS} ends: {found}")

    def _alteration_events(
        self, before: SessionState, state: SessionState, now: float
    ) -> Iterator[Event]:
        old, new = _alterations_by_gpu_setting_user(before), _alterations_by_gpu_setting_user(state)
        # the GPUs by the event, so that one event names all of them
        gpus_by_event: dict[_SettingEvent, list[int]] = {}
        for place, altered in new.items():
            if place not in old or old[place].now != altered.now:
                change = self._setting_change_event(altered, state, now)
                gpus_by_event.setdefault(change, []).append(altered.gpu_index)
        for place, altered in old.items():
            if place not in new:
                value = _setting_and_value_text(altered, altered.before)
                text = f"{value} again{self._guard_revert_reason_text(state.guard, now)}"
                change = _SettingEvent(EventKind.SETTING_REVERTED, text, now)
                gpus_by_event.setdefault(change, []).append(altered.gpu_index)
        for (kind, text, at), gpus in gpus_by_event.items():
            if now - at < _OLDEST_EVENT_S:
                yield Event(at, kind, f"{gpus_text(gpus)} {text}", _single_gpu_or_none(gpus))

    def _setting_change_event(
        self, altered: Alteration, state: SessionState, now: float
    ) -> _SettingEvent:
        """Return the event that a setting was changed."""
        text = _setting_and_value_text(altered, altered.now)
        if altered.by:
            text += f" by {altered.by}"
        at = self._convert_to_local_clock(altered.changed_unix_s, now)
        if now - at >= _RECENT_CHANGE_S:
            return _SettingEvent(EventKind.SETTING_MADE, text, at)
        if state.trial_left_s is not None:
            return _SettingEvent(EventKind.SETTING_TRIAL, f"{text} on trial", now)
        return _SettingEvent(EventKind.SETTING_MADE, text, now)

    def _guard_revert_reason_text(self, guard: GuardView | None, now: float) -> str:
        """Return why the guard reverted a setting, as the end of a sentence. "" if the guard did
        not revert it, or if the reason is not known yet."""
        if guard is not None and guard.did_unix_s is not None:
            acted_s = self._convert_to_local_clock(guard.did_unix_s, now)
            if now - acted_s <= _RECENT_GUARD_ACT_S:
                reason = (guard.did or "").partition(": ")[2]
                return f" by the guard: {reason or guard.did}"
        self._reverted_s = now
        return ""

    def _guard_events(
        self, before: SessionState, state: SessionState, now: float
    ) -> Iterator[Event]:
        """Yield an event for what the guard did last, if the guard was not known yet as the cause
        when the events about the reverted settings were made."""
        guard, old = state.guard, before.guard
        if guard is None or old is None or guard.did_unix_s in (None, old.did_unix_s):
            return
        if now - self._reverted_s < _RECENT_GUARD_ACT_S:
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
        elif (old.link, host.link) == ("lost", "connected"):
            lost_s = now - (old.lost_since_unix_s or now)
            yield Event(now, EventKind.LINK_BACK, f"link to {host.name} back after {lost_s:.0f} s")
        if host.measured_by != old.measured_by:
            if old.measured_by is not None:
                who = f"{old.measured_by.what} by {old.measured_by.owner_text}"
                yield Event(now, EventKind.BENCH_END, f"{who} ends")
            if host.measured_by is not None:
                who = f"{host.measured_by.what} by {host.measured_by.owner_text}"
                yield Event(
                    self._convert_to_local_clock(host.measured_by.since_unix_s or now, now),
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


def _server_start_text(status: ServerStatus) -> str:
    return f"{status.engine} {status.model} starts"


def _server_ready_text(status: ServerStatus) -> str:
    text = f"{status.engine} READY"
    if status.text is not None and status.text.problem:
        text += "?"
    if status.ready_after_s:
        text += f" after {status.ready_after_s:.1f} s"
    return text


def _server_end_text(status: ServerStatus) -> str:
    text = f"{status.engine} {status.state}"
    if status.reason and status.state != "stopped":
        text += f": {status.reason}"
    return text


_SERVER_TIMES = (
    ("started_unix_s", EventKind.SERVER_START, _server_start_text),
    ("ready_unix_s", EventKind.SERVER_READY, _server_ready_text),
    ("ended_unix_s", EventKind.SERVER_END, _server_end_text),
)


def benchmark_load_text(spec: BenchSpec) -> str:
    """Return a benchmark's load as text: "a command", its trace, its rate, or its number of
    streams."""
    if spec.command:
        return "a command"
    if spec.trace_name:
        return spec.trace_and_speed_text
    if spec.rate is not None:
        return f"{spec.rate:g} requests/s"
    return count_of(spec.concurrency, "stream")


def benchmark_outcome_text(bench: BenchState) -> str:
    """Return how a benchmark ended: its error, "result 7", or "no result"."""
    if bench.error:
        return bench.error
    return "no result" if bench.stored_id is None else f"result {bench.stored_id}"


def _alterations_by_gpu_setting_user(state: SessionState) -> dict[tuple[int, str, str], Alteration]:
    """Return the altered settings by their GPU, setting and user."""
    altered = (*state.alterations, *state.others)
    return {(each.gpu_index, each.setting, each.by): each for each in altered}


def _setting_and_value_text(altered: Alteration, value: object) -> str:
    from workbench.model.settings import format_stored_value, label_of

    label = label_of(altered.setting)
    if value is None:
        return label
    return f"{label} {format_stored_value(altered.setting, value)}"


def _single_gpu_or_none(gpus: Sequence[int]) -> int | None:
    return gpus[0] if len(gpus) == 1 and gpus[0] >= 0 else None

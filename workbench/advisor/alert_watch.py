"""Hysteresis: when an alert begins, when it ends, and when it may ring. Pure: readings in, changes
out.

An alert begins when a value has been at the begin threshold or beyond for the rule's time, and ends
at the end threshold. A value between the two changes nothing. Equal GPUs share one alert: it begins
with the first of them, takes along those that are beyond the threshold by then, and ends with the
last. An alert rings when it begins, and when a further GPU joins it, but at most once a minute. One
that begins again within that minute rings at its end if it is still active.

A gap between readings (a lost link, a stopped laptop) ends what was pending, and the first seconds
after it raise nothing, because old values may arrive then. An unknown value neither begins nor ends
an alert. An alert about a server ends with it, and one about a GPU when the GPU is divided anew.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from workbench.advisor.alert_rules import OF_GPU, OF_HOST, OF_SERVER, LiveFacts
from workbench.model.alerts import BEGIN, END, RULES, AlertLimits, AlertRule
from workbench.model.counts import gpus_text
from workbench.model.gpu import GpuInfo
from workbench.model.lazy_dataclass import dataclass

RING_S = 60.0  # between two rings of one alert
SETTLE_S = 3.0  # after a gap, until readings count again
HOST = -1  # the index of the host, as in the history
# an index, the name of its group, and its value
Reading = tuple[int, str, float | None]
_NO_GPU = GpuInfo(HOST, "", "")


def is_gap_between_readings(seconds: float, interval_s: float) -> bool:
    """Return whether the time between two readings is so long that the second one is called
    stale on the screen, too."""
    return seconds > 3 * interval_s + 2


@dataclass(frozen=True, slots=True)
class AlertChange:
    """An alert that begins, grows by a GPU, or ends. `phase` is "begin" for the first two. `value`
    is the one that is furthest beyond the threshold; None if the alert ends because it is no longer
    watched. `rings` says whether the user is told now; an
    end rings if the user was told of its begin."""

    rule: str
    phase: str
    indexes: tuple[int, ...]
    value: float | None
    rings: bool


class _Place:
    """A GPU or the host. `since_s` is when its value passed the begin threshold, and when the alert
    began while it is `active`."""

    __slots__ = ("active", "group", "index", "seen_s", "share", "since_s", "value")

    def __init__(self, index: int, group: str) -> None:
        self.index, self.group = index, group
        self.since_s: float | None = None
        self.active = False
        self.value: float | None = None
        self.share = 0.0  # of the time, in percent
        self.seen_s: float | None = None

    def pct_of_time_held(self, now_s: float, value: float, average_s: float) -> float:
        """Add a reading, and return the percentage of time in which its condition held: a mean that
        forgets with the time constant `average_s`. `value` is 1.0 if the condition holds now, else
        0.0, and the time since the last call counts with it."""
        passed_s = 0.0 if self.seen_s is None else now_s - self.seen_s
        self.seen_s = now_s
        self.share += (100.0 * value - self.share) * (1.0 - math.exp(-passed_s / average_s))
        return self.share

    def forget_pending(self) -> None:
        """Forget what was pending. An active alert stays active."""
        self.seen_s = None
        if not self.active:
            self.since_s, self.share, self.value = None, 0.0, None


def _indexes_of(places: Iterable[_Place]) -> tuple[int, ...]:
    return tuple(sorted(place.index for place in places))


class _Group:
    """Equal GPUs, or the host. `rung_s` is when their alert rang last, and `told` whether it did so
    since it began."""

    __slots__ = ("active", "ended_s", "places", "rung_s", "told")

    def __init__(self) -> None:
        self.places: list[_Place] = []
        self.active = self.told = False
        self.rung_s = -math.inf
        self.ended_s: float | None = None

    def end_alert(self, now_s: float) -> None:
        self.active, self.ended_s = False, now_s


class RuleWatch:
    """One rule on one host."""

    def __init__(self, rule: AlertRule, limits: AlertLimits) -> None:
        self.rule, self.limits = rule, limits
        self._sign = 1.0 if limits.high_value_begins_alert else -1.0
        self._places: dict[int, _Place] = {}
        self._groups: dict[str, _Group] = {}

    def take_reading(self, now_s: float, readings: Iterable[Reading]) -> list[AlertChange]:
        """Take the values of one reading at the monotonic time `now_s`, and return what changed."""
        touched = False
        for index, group, value in readings:
            if self.rule.prefix and value:  # another error is another alert, and rings at once
                group = f"{group} {value:.0f}"
            place = self._places.get(index)
            if place is None or place.group != group:
                place = self._place_of_gpu(index, group, now_s)
            if value is None:
                place.forget_pending()
                continue
            touched = self._update_place(place, now_s, value) or touched
        if not touched:
            return []
        changes = [self._group_change(group, now_s) for group in self._groups_in_order()]
        return list(filter(None, changes))

    def forget_pending(self) -> None:
        """Forget what was pending, because of a gap between two readings."""
        for place in self._places.values():
            place.forget_pending()

    def end_active_alerts(self, now_s: float) -> list[AlertChange]:
        """Forget all values, and end what is active, because it is no longer watched. The value of
        such an end is None."""
        ends = []
        for group in self._groups_in_order():
            if group.active:
                places = _indexes_of(group.places)
                ends.append(AlertChange(self.rule.name, END, places, None, group.told))
                group.end_alert(now_s)
            group.places = []
        self._places = {}
        return ends

    def _place_of_gpu(self, index: int, group: str, now_s: float) -> _Place:
        """Return the place of a GPU that was not known, or that is another one than before."""
        before = self._places.get(index)
        if before is not None:
            left = self._groups[before.group]
            left.places.remove(before)
            if left.active and not any(place.active for place in left.places):
                left.end_alert(now_s)
        place = self._places[index] = _Place(index, group)
        self._groups.setdefault(group, _Group()).places.append(place)
        return place

    def _update_place(self, place: _Place, now_s: float, value: float) -> bool:
        """Give a place its new value. Return whether its alert may begin or end now."""
        if self.rule.average_s:
            value = place.pct_of_time_held(now_s, value, self.rule.average_s)
        place.value = value
        if place.active:
            if self._sign * value <= self._sign * self.limits.end:
                place.active, place.since_s = False, None
            return True
        if self._sign * value < self._sign * self.limits.begin:
            place.since_s = None
            return False
        if place.since_s is None:
            place.since_s = now_s
        return now_s - place.since_s >= self.limits.for_s

    def _groups_in_order(self) -> Sequence[_Group]:
        filled = [group for group in self._groups.values() if group.places]
        return sorted(filled, key=lambda group: min(place.index for place in group.places))

    def _group_change(self, group: _Group, now_s: float) -> AlertChange | None:
        joined = self._activate_due_places(group, now_s)
        active = [place for place in group.places if place.active]
        if active and not group.active:
            group.active, group.told = True, now_s - group.rung_s >= RING_S
            return self._begin_alert(group, active, now_s, group.told)
        untold = joined or not group.told
        if active and untold and now_s - group.rung_s >= RING_S:
            group.told = True
            return self._begin_alert(group, active, now_s, True)
        if group.active and not active:
            group.end_alert(now_s)
            places, worst = _indexes_of(group.places), self._worst_value(group.places)
            return AlertChange(self.rule.name, END, places, worst, group.told)
        return None

    def _activate_due_places(self, group: _Group, now_s: float) -> bool:
        """Make those places active that have been beyond the threshold for the rule's time, and
        with them all that are beyond it now. Return whether there is one."""
        pending = [p for p in group.places if p.since_s is not None and not p.active]
        begun_s = min((p.since_s for p in pending if p.since_s is not None), default=now_s)
        if not pending or now_s - begun_s < self.limits.for_s:
            return False
        for place in pending:
            place.active, place.since_s = True, now_s
        return True

    def _begin_alert(
        self, group: _Group, active: Sequence[_Place], now_s: float, rings: bool
    ) -> AlertChange:
        if rings:
            group.rung_s = now_s
        places, worst = _indexes_of(active), self._worst_value(active)
        return AlertChange(self.rule.name, BEGIN, places, worst, rings)

    def _worst_value(self, places: Iterable[_Place]) -> float | None:
        values = [place.value for place in places if place.value is not None]
        return max(values, key=lambda value: self._sign * value, default=None)

    def state_for_list(
        self, now_s: float
    ) -> tuple[str, float | None, tuple[int, ...], float | None]:
        """Return (state, seconds since it began, indexes, worst value) for a list of the rules. The
        state is "active", "pending", "ended", "quiet", or "" without a value."""
        places = list(self._places.values())
        active = [place for place in places if place.active]
        pending = [place for place in places if place.since_s is not None]
        for state, found in (("active", active), ("pending", pending)):
            if found:
                since_s = min(p.since_s for p in found if p.since_s is not None)
                return state, now_s - since_s, _indexes_of(found), self._worst_value(found)
        ended = [g.ended_s for g in self._groups.values() if g.ended_s is not None]
        worst = self._worst_value(places)
        if ended:
            return "ended", now_s - max(ended), (), worst
        return ("" if worst is None else "quiet"), None, (), worst


class AlertWatch:
    """All measured rules that are on, on one host. `limits` has those rules with their limits."""

    def __init__(self, limits: Mapping[str, AlertLimits]) -> None:
        self.rules = {name: RuleWatch(RULES[name], given) for name, given in limits.items()}
        self._of_gpu = [(watch, OF_GPU[n]) for n, watch in self.rules.items() if n in OF_GPU]
        self._of_host = [(watch, OF_HOST[n]) for n, watch in self.rules.items() if n in OF_HOST]
        self._before_s: float | None = None
        self._counts_s = -math.inf  # readings count from this time on
        self._server = ""  # whose values were read last
        self._listed: tuple[GpuInfo, ...] = ()
        self._infos: dict[int, GpuInfo] = {}
        self._groups: dict[int, str] = {}

    def take_reading(self, now_s: float, interval_s: float, facts: LiveFacts) -> list[AlertChange]:
        """Take a reading that arrived at the monotonic time `now_s` of this machine. Return what
        changed. Readings are expected each `interval_s` seconds."""
        before_s, self._before_s = self._before_s, now_s
        if before_s is not None and is_gap_between_readings(now_s - before_s, interval_s):
            self._counts_s = now_s + SETTLE_S
            for watch in self.rules.values():
                watch.forget_pending()
        if now_s < self._counts_s:
            return []
        telemetry = facts.telemetry
        changes: list[AlertChange] = []
        if telemetry.infos is not self._listed and self._note_equal_gpus(telemetry.infos):
            changes += self._changes_of_ended_rules(now_s, OF_GPU)
        if facts.server != self._server:
            self._server = facts.server
            changes += self._changes_of_ended_rules(now_s, OF_SERVER)
        for watch, measure in self._of_gpu:
            infos, groups = self._infos, self._groups
            changes += watch.take_reading(
                now_s,
                [
                    (
                        gpu.index,
                        groups.get(gpu.index, ""),
                        measure(infos.get(gpu.index, _NO_GPU), gpu, facts),
                    )
                    for gpu in telemetry.gpus
                ],
            )
        for of_host, value_of in self._of_host:
            changes += of_host.take_reading(now_s, ((HOST, "", value_of(facts)),))
        return changes

    def active_texts(self, now_s: float) -> tuple[str, ...]:
        """Return what each active alert says, such as "GPU0-3 is hot: 3.0 °C left ..."."""
        texts = []
        for watch in self.rules.values():
            state, _, indexes, value = watch.state_for_list(now_s)
            if state == "active":
                where = gpus_text(indexes) if watch.rule.of_gpu else ""
                texts.append(
                    watch.rule.text.format(where=where, value=watch.rule.value_text(value))
                )
        return tuple(texts)

    def end_all(self, now_s: float) -> list[AlertChange]:
        """End what is active, because it is no longer watched."""
        return self._changes_of_ended_rules(now_s, self.rules)

    def _changes_of_ended_rules(self, now_s: float, names: Iterable[str]) -> list[AlertChange]:
        changes = []
        for name in names:
            if name in self.rules:
                changes += self.rules[name].end_active_alerts(now_s)
        return changes

    def _note_equal_gpus(self, infos: tuple[GpuInfo, ...]) -> bool:
        """Note which GPUs are equal: those of one type that are divided alike. Return whether they
        were others before."""
        self._listed, before = infos, self._groups
        self._infos = {info.index: info for info in infos}
        self._groups = {info.index: f"{info.name} {info.mig_text}" for info in infos}
        return bool(before) and before != self._groups

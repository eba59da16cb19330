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
from typing import NamedTuple

from workbench.advisor.alert_rules import OF_GPU, OF_HOST, OF_SERVER, LiveFacts, ZeroOrOne
from workbench.model.alerts import BEGIN, END, RULES, AlertLimits, AlertRule
from workbench.model.counts import gpus_text
from workbench.model.gpu import GpuInfo
from workbench.model.lazy_dataclass import dataclass

RING_S = 60.0  # between two rings of one alert
SETTLE_S = 3.0  # after a gap, until readings count again
HOST = -1  # the index of the host, as in the history
# an index, the name of its group, and its value
Reading = tuple[int, str, float | None]


class RuleState(NamedTuple):
    """What a list of the rules shows of one. `state` is "active", "pending", "ended", "quiet", or
    "" if no value is known. `since_s` is how many seconds ago it began; None for the last two.
    `indexes` are the GPUs in this state, and `worst_value` is the value furthest beyond the
    threshold."""

    state: str
    since_s: float | None
    indexes: tuple[int, ...]
    worst_value: float | None


_NO_GPU = GpuInfo(HOST, "", "")


def is_reading_overdue(seconds: float, interval_s: float) -> bool:
    """Return whether more than three intervals and 2 s lie between two readings. The screen calls a
    reading of that age stale, too."""
    return seconds > 3 * interval_s + 2


@dataclass(frozen=True, slots=True)
class AlertChange:
    """An alert that begins, grows by a GPU, or ends. `phase` is "begin" for the first two. `value`
    is the one that is furthest beyond the threshold; None if the alert ends because it is no longer
    watched. `rings` says whether the user is told now; an end rings if the user was told of the
    alert's begin."""

    rule: str
    phase: str
    indexes: tuple[int, ...]
    value: float | None
    rings: bool


class _Target:
    """A GPU or the host. `since_s` is when its value passed the begin threshold, or when the alert
    began if it is `active`; infinite if its value is not beyond the threshold."""

    __slots__ = ("active", "group", "index", "seen_s", "share", "since_s", "value")

    def __init__(self, index: int, group: str) -> None:
        self.index, self.group = index, group
        self.since_s = math.inf
        self.active = False
        self.value: float | None = None
        self.share = 0.0  # of the time, in percent
        self.seen_s: float | None = None

    @property
    def is_pending(self) -> bool:
        return self.since_s < math.inf and not self.active

    def update_pct_of_time_true(
        self, now_s: float, holds_now: ZeroOrOne, time_constant_s: float
    ) -> float:
        """Add a reading, and return the percentage of time in which its condition held: a mean that
        forgets with the time constant `time_constant_s`. The time since the last call counts with
        `holds_now`."""
        passed_s = 0.0 if self.seen_s is None else now_s - self.seen_s
        self.seen_s = now_s
        weight = 1.0 - math.exp(-passed_s / time_constant_s)
        self.share += (100.0 * holds_now - self.share) * weight
        return self.share

    def discard_pending_alert(self) -> None:
        """Discard the value and the start of an alert that is not active yet. An active alert keeps
        both."""
        self.seen_s = None
        if not self.active:
            self.since_s, self.share, self.value = math.inf, 0.0, None


def _sorted_indexes_of_targets(targets: Iterable[_Target]) -> tuple[int, ...]:
    return tuple(sorted(target.index for target in targets))


class _Group:
    """Equal GPUs, or the host. `rung_s` is when their alert rang last, and `told` whether it did so
    since it began."""

    __slots__ = ("active", "ended_s", "rung_s", "targets", "told")

    def __init__(self) -> None:
        self.targets: list[_Target] = []
        self.active = self.told = False
        self.rung_s = -math.inf
        self.ended_s: float | None = None

    def end_alert(self, now_s: float) -> None:
        self.active, self.ended_s = False, now_s


class RuleWatch:
    """One rule on one host."""

    def __init__(self, rule: AlertRule, limits: AlertLimits) -> None:
        self.rule, self.limits = rule, limits
        self._sign = 1.0 if limits.high_value_starts_alert else -1.0
        self._targets: dict[int, _Target] = {}
        self._groups: dict[str, _Group] = {}

    def update_alerts(self, now_s: float, readings: Iterable[Reading]) -> list[AlertChange]:
        """Update the alerts with one reading at the monotonic time `now_s`. Return what changed."""
        touched = False
        for index, group, value in readings:
            if self.rule.prefix and value:  # another error is another alert, and rings at once
                group = f"{group} {value:.0f}"
            target = self._targets.get(index)
            if target is None or target.group != group:
                target = self._add_or_move_target(index, group, now_s)
            if value is None:
                target.discard_pending_alert()
                continue
            touched = self._set_value_and_may_change(target, now_s, value) or touched
        if not touched:
            return []
        changes = [self._update_group_alert(group, now_s) for group in self._groups_in_gpu_order()]
        return list(filter(None, changes))

    def discard_pending_alerts(self) -> None:
        """Discard all alerts that are not active yet, because of a gap between two readings."""
        for target in self._targets.values():
            target.discard_pending_alert()

    def end_active_alerts(self, now_s: float) -> list[AlertChange]:
        """Discard all values, and end the active alerts, because nothing watches them any more.
        Return these ends; the value of each is None."""
        ends = []
        for group in self._groups_in_gpu_order():
            if group.active:
                indexes = _sorted_indexes_of_targets(group.targets)
                ends.append(AlertChange(self.rule.name, END, indexes, None, group.told))
                group.end_alert(now_s)
            group.targets = []
        self._targets = {}
        return ends

    def _add_or_move_target(self, index: int, group: str, now_s: float) -> _Target:
        """Make the target of a GPU that is new or has come into another group, and return it. The
        alert of its old group ends if no other GPU of that group is in it."""
        before = self._targets.get(index)
        if before is not None:
            old_group = self._groups[before.group]
            old_group.targets.remove(before)
            if old_group.active and not any(target.active for target in old_group.targets):
                old_group.end_alert(now_s)
        target = self._targets[index] = _Target(index, group)
        self._groups.setdefault(group, _Group()).targets.append(target)
        return target

    def _set_value_and_may_change(self, target: _Target, now_s: float, value: float) -> bool:
        """Set the new value of a target. Return whether its alert may begin or end now."""
        if self.rule.average_s:
            value = target.update_pct_of_time_true(now_s, value, self.rule.average_s)
        target.value = value
        if target.active:
            if self._sign * value <= self._sign * self.limits.end:
                target.active, target.since_s = False, math.inf
            return True
        if self._sign * value < self._sign * self.limits.begin:
            target.since_s = math.inf
            return False
        target.since_s = min(target.since_s, now_s)
        return now_s - target.since_s >= self.limits.for_s

    def _groups_in_gpu_order(self) -> Sequence[_Group]:
        filled = [group for group in self._groups.values() if group.targets]
        return sorted(filled, key=lambda group: min(target.index for target in group.targets))

    def _update_group_alert(self, group: _Group, now_s: float) -> AlertChange | None:
        joined = self._activate_targets_beyond_threshold(group, now_s)
        active = [target for target in group.targets if target.active]
        if not active:
            return self._end_group_alert(group, now_s) if group.active else None
        may_ring = now_s - group.rung_s >= RING_S
        if not group.active:
            group.active, group.told = True, may_ring
            return self._create_alert_start(group, active, now_s, may_ring)
        if may_ring and (joined or not group.told):
            group.told = True
            return self._create_alert_start(group, active, now_s, True)
        return None

    def _end_group_alert(self, group: _Group, now_s: float) -> AlertChange:
        group.end_alert(now_s)
        indexes = _sorted_indexes_of_targets(group.targets)
        worst = self._worst_value(group.targets)
        return AlertChange(self.rule.name, END, indexes, worst, group.told)

    def _activate_targets_beyond_threshold(self, group: _Group, now_s: float) -> bool:
        """If a pending target has been beyond the threshold for the rule's time, make it and all
        other pending targets active. Return whether that was so."""
        pending = [target for target in group.targets if target.is_pending]
        begun_s = min((target.since_s for target in pending), default=math.inf)
        if now_s - begun_s < self.limits.for_s:
            return False
        for target in pending:
            target.active, target.since_s = True, now_s
        return True

    def _create_alert_start(
        self, group: _Group, active: Sequence[_Target], now_s: float, notifies_user: bool
    ) -> AlertChange:
        if notifies_user:
            group.rung_s = now_s
        indexes, worst = _sorted_indexes_of_targets(active), self._worst_value(active)
        return AlertChange(self.rule.name, BEGIN, indexes, worst, notifies_user)

    def _worst_value(self, targets: Iterable[_Target]) -> float | None:
        values = [target.value for target in targets if target.value is not None]
        return max(values, key=lambda value: self._sign * value, default=None)

    def current_state(self, now_s: float) -> RuleState:
        """Return the state of this rule at the monotonic time `now_s`. "active" goes before
        "pending", and "pending" before "ended", if GPUs differ."""
        targets = list(self._targets.values())
        active = [target for target in targets if target.active]
        pending = [target for target in targets if target.is_pending]
        for state, found in (("active", active), ("pending", pending)):
            if found:
                since_s = min(target.since_s for target in found)
                indexes = _sorted_indexes_of_targets(found)
                return RuleState(state, now_s - since_s, indexes, self._worst_value(found))
        ended = [g.ended_s for g in self._groups.values() if g.ended_s is not None]
        worst = self._worst_value(targets)
        if ended:
            return RuleState("ended", now_s - max(ended), (), worst)
        return RuleState("" if worst is None else "quiet", None, (), worst)


class AlertWatch:
    """Watches all measured rules that are switched on, on one host. `limits` has the limits of
    these rules by their names."""

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

    def update_alerts(self, now_s: float, interval_s: float, facts: LiveFacts) -> list[AlertChange]:
        """Update the alerts with a reading that arrived at the monotonic time `now_s` of this
        machine. Return what changed. Readings are expected each `interval_s` seconds."""
        before_s, self._before_s = self._before_s, now_s
        if before_s is not None and is_reading_overdue(now_s - before_s, interval_s):
            self._counts_s = now_s + SETTLE_S
            for watch in self.rules.values():
                watch.discard_pending_alerts()
        if now_s < self._counts_s:
            return []
        telemetry = facts.telemetry
        changes: list[AlertChange] = []
        if telemetry.infos is not self._listed:
            before = self._groups
            self._group_equal_gpus(telemetry.infos)
            if before and before != self._groups:
                changes += self._end_alerts_of_rules(now_s, OF_GPU)
        if facts.server != self._server:
            self._server = facts.server
            changes += self._end_alerts_of_rules(now_s, OF_SERVER)
        for watch, measure in self._of_gpu:
            readings = []
            for gpu in telemetry.gpus:
                value = measure(self._infos.get(gpu.index, _NO_GPU), gpu, facts)
                readings.append((gpu.index, self._groups.get(gpu.index, ""), value))
            changes += watch.update_alerts(now_s, readings)
        for of_host, value_of in self._of_host:
            changes += of_host.update_alerts(now_s, ((HOST, "", value_of(facts)),))
        return changes

    def active_alert_texts(self, now_s: float) -> tuple[str, ...]:
        """Return what each active alert says, such as "GPU0-3 is hot: 3.0 °C left ..."."""
        texts = []
        for watch in self.rules.values():
            now = watch.current_state(now_s)
            if now.state == "active":
                where = gpus_text(now.indexes) if watch.rule.of_gpu else ""
                value = watch.rule.value_text(now.worst_value)
                texts.append(watch.rule.text.format(where=where, value=value))
        return tuple(texts)

    def end_all_alerts(self, now_s: float) -> list[AlertChange]:
        """End the active alerts, because nothing watches them any more. Return these ends."""
        return self._end_alerts_of_rules(now_s, self.rules)

    def _end_alerts_of_rules(self, now_s: float, names: Iterable[str]) -> list[AlertChange]:
        changes = []
        for name in names:
            if name in self.rules:
                changes += self.rules[name].end_active_alerts(now_s)
        return changes

    def _group_equal_gpus(self, infos: tuple[GpuInfo, ...]) -> None:
        """Put the GPUs of one type that are divided alike into one group."""
        self._listed = infos
        self._infos, self._groups = {}, {}
        for info in infos:
            self._infos[info.index] = info
            self._groups[info.index] = f"{info.name} {info.mig_text}"

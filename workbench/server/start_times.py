"""How long each phase of a start took, and what differs from the start before."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from operator import attrgetter

from workbench.model.lazy_dataclass import dataclass
from workbench.model.server_run import ServerStatus

FIRST_PHASE = "process runs"  # until the log reports a phase
_MIN_DIFFERENCE_S, _MIN_DIFFERENCE_SHARE = 5.0, 0.2  # what a start may differ without a word
_MIN_NAMED_PHASE_S = 1.0  # phases that take less are not named
# in a phase: "loading weights 40 %", "KV cache of 12,000 tokens", "12 of 33 layers on the GPU",
# "engine ready after 3.2 s"
_NUMBERS_IN_PHASE = re.compile(
    r"(?:\b(?:of|after) )?\b\d[\d,.]*(?: of [\d,.]+)?(?: %| tokens\b| s\b)?"
)


def phase_without_numbers(phase: str) -> str:
    """Return the start-up phase `phase` without its numbers: "loading weights" for "loading weights
    40 %"."""
    return " ".join(_NUMBERS_IN_PHASE.sub("", phase).split())


@dataclass
class PhaseClock:
    """Records when each phase of a start began. Times are monotonic, in seconds."""

    began: list[tuple[str, float]]

    def record_phase(self, phase: str | None, at_s: float) -> None:
        """Record that the phase `phase` runs at the monotonic time `at_s`. Do nothing for None, an
        unknown phase, and for one that was recorded before: it comes from another rank."""
        if phase is None:
            return
        name = phase_without_numbers(phase)
        if name not in dict(self.began):
            self.began.append((name, at_s))

    def phase_durations(self, end_s: float) -> tuple[tuple[str, float], ...]:
        """Return (phase, seconds that it took) for each phase of a start that ended at the
        monotonic time `end_s`, in their order."""
        durations = []
        for (name, at_s), (_, next_s) in pairwise([*self.began, ("", end_s)]):
            durations.append((name, round(max(0.0, next_s - at_s), 1)))
        return tuple(durations)


def find_earlier_ready_run(
    current: ServerStatus, statuses: Iterable[ServerStatus]
) -> ServerStatus | None:
    """Return the last run before `current` with the same engine, model and preset that became
    READY; None if `statuses` has none."""
    what_starts = attrgetter("engine", "model", "preset_id")
    alike = (one for one in statuses if what_starts(one) == what_starts(current))
    ready = (one for one in alike if one.ready_after_s is not None)
    earlier = (one for one in ready if one.run_id < current.run_id)  # ids begin with the time
    return max(earlier, key=attrgetter("run_id"), default=None)


def format_earlier_start(earlier_start_s: float | None) -> str:
    """Return the end of a sentence about a start: how long the start before took. "" for None."""
    if earlier_start_s is None:
        return ""
    return f". This start took {earlier_start_s:.0f} s before"


def format_start_duration(current: ServerStatus, statuses: Iterable[ServerStatus]) -> str:
    """Return how long the start of a READY server took, with its phases and how the start before
    differed, such as " in 95.0 s (loading weights 60 s, …)". "" if that is unknown. `statuses` are
    all runs of the host."""
    if not current.ready_after_s:
        return ""
    named = [f"{name} {s:.0f} s" for name, s in current.phases if s >= _MIN_NAMED_PHASE_S]
    phases = f" ({', '.join(named)})" if len(named) > 1 else ""
    before = find_earlier_ready_run(current, statuses)
    return f" in {current.ready_after_s:.1f} s{phases}{_format_start_difference(current, before)}"


def _format_start_difference(current: ServerStatus, earlier: ServerStatus | None) -> str:
    if earlier is None or earlier.ready_after_s is None:
        return ""
    if current.ready_after_s is None:
        return ""
    usual_s = earlier.ready_after_s
    more_s = current.ready_after_s - usual_s
    if abs(more_s) < max(_MIN_DIFFERENCE_S, _MIN_DIFFERENCE_SHARE * usual_s):
        return ""
    side = "longer" if more_s > 0 else "less"
    why = _format_most_changed_phase(current.phases, dict(earlier.phases), longer=more_s > 0)
    return f", {abs(more_s):.0f} s {side} than the start before{why}"


def _format_most_changed_phase(
    phases: Sequence[tuple[str, float]], before: dict[str, float], *, longer: bool
) -> str:
    """Return a text about the phase that both starts had and that changed most, in the direction of
    the whole start: `longer`, or shorter. `before` has the seconds of the phases before. "" if none
    changed by _MIN_NAMED_PHASE_S."""
    sign = 1.0 if longer else -1.0
    apart = [(sign * (s - before[name]), name, s) for name, s in phases if name in before]
    widest, name, s = max(apart, default=(0.0, "", 0.0))
    if widest < _MIN_NAMED_PHASE_S:
        return ""
    return f": {name} {s:.0f} s instead of {before[name]:.0f} s"

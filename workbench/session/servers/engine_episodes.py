"""Queueing and preemption as events at their begin and at their end, made from the readings of the
engine's counters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from workbench.model.counts import count_of
from workbench.model.lazy_dataclass import dataclass
from workbench.model.server_run import EngineMetrics
from workbench.model.timeline import Event, EventKind

_MIN_QUEUE_S = 3.0  # requests that wait shorter than this are no queueing
_EPISODE_END_AFTER_S = 10.0  # without waiting or preempted requests until an episode has ended


@dataclass(slots=True)
class _Episode:
    """A period in which a condition holds, such as queueing. It begins when the condition has held
    for `begin_s` seconds, and ends when the condition has not held for 10 s. `began_s` and `last_s`
    are the Unix times of the first and the last reading in which the condition held."""

    begin_s: float
    began_s: float | None = None
    last_s: float = 0.0
    most: int = 0
    total: int = 0
    told: bool = False

    def add_reading(self, unix_s: float, requests: int) -> Literal["begin", "end"] | None:
        """Update the episode with the next reading. The condition holds if `requests` is above 0.
        Return "begin" or "end" if the episode begins or ends with this reading, otherwise None."""
        if requests:
            self.began_s = unix_s if self.began_s is None else self.began_s
            self.last_s = unix_s
            self.most, self.total = max(self.most, requests), self.total + requests
            if not self.told and unix_s - self.began_s >= self.begin_s:
                self.told = True
                return "begin"
        elif not self.told:
            self.clear()
        elif unix_s - self.last_s >= _EPISODE_END_AFTER_S:
            return "end"
        return None

    @property
    def lasted_s(self) -> float:
        """The seconds from the first to the last reading in which the condition held; 0 before the
        first one."""
        return self.last_s - (self.began_s or self.last_s)

    def clear(self) -> None:
        self.began_s, self.most, self.total, self.told = None, 0, 0, False


class EngineEpisodes:
    """Finds when queueing and preemption begin and end on one server. `limit` is (flag, value) of
    the flag that limits the requests which run at the same time, with the value for all replicas;
    None if the plan does not set such a flag."""

    def __init__(self, limit: tuple[str, int] | None = None) -> None:
        self._limit = limit
        self._queueing, self._preempting = _Episode(_MIN_QUEUE_S), _Episode(0.0)
        self._preemptions: int | None = None  # by the last reading

    def episode_events_of_reading(self, read: EngineMetrics) -> Iterator[Event]:
        """Yield an event for each period of queueing or preemption that begins or ends with the
        reading `read`."""
        if read.waiting is not None:
            yield from self._queue_events(read, read.waiting)
        before, self._preemptions = self._preemptions, read.preemptions
        if before is not None and read.preemptions is not None:
            yield from self._preemption_events(read, max(0, read.preemptions - before))

    def _queue_events(self, read: EngineMetrics, waiting: int) -> Iterator[Event]:
        episode = self._queueing
        happened = episode.add_reading(read.unix_s, waiting)
        if happened == "begin":
            wait = "1 request waits" if waiting == 1 else f"{waiting} requests wait"
            yield Event(
                episode.began_s or read.unix_s,
                EventKind.QUEUEING,
                wait + self._queue_cause_text(read),
            )
        elif happened == "end":
            text = (
                f"queueing ended after {episode.lasted_s:.0f} s, with up to "
                f"{count_of(episode.most, 'request')} waiting"
            )
            yield Event(read.unix_s, EventKind.QUEUEING, text)
            episode.clear()

    def _queue_cause_text(self, read: EngineMetrics) -> str:
        """Return why requests wait, as the end of a sentence: a reached limit of running requests.
        If that limit is not reached, return the number of running requests and the use of the KV
        cache, as far as they are known; "" if neither is."""
        running = read.running
        if self._limit is not None and running is not None and running >= self._limit[1]:
            return f": {self._limit[0]} {self._limit[1]} reached"
        figures = [f"{running} run"] if running is not None else []
        figures += [f"KV cache {read.kv_use_pct:.0f} % used"] if read.kv_use_pct is not None else []
        return f", {', '.join(figures)}" if figures else ""

    def _preemption_events(self, read: EngineMetrics, preempted: int) -> Iterator[Event]:
        episode = self._preempting
        happened = episode.add_reading(read.unix_s, preempted)
        if happened == "begin":
            used = f": KV cache {read.kv_use_pct:.0f} % used" if read.kv_use_pct is not None else ""
            text = f"{count_of(preempted, 'request')} preempted{used}"
            yield Event(read.unix_s, EventKind.PREEMPTION, text)
        elif happened == "end":
            text = (
                f"preemption ended after {episode.lasted_s:.0f} s: "
                f"{count_of(episode.total, 'request')} preempted"
            )
            yield Event(read.unix_s, EventKind.PREEMPTION, text)
            episode.clear()

"""The share of a benchmark that one process of the load client carries out. A large load is split over several."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

from workbench.model.bench import BenchSpec

STREAMS_PER_PROCESS = 128


def processes_for(spec: BenchSpec) -> int:
    """Return the number of processes for a load: one for each 128 streams, as far as there are cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    streams = min(spec.concurrency, spec.requests)
    return max(1, min(cores, -(-streams // STREAMS_PER_PROCESS)))


@dataclass(frozen=True, slots=True)
class Share:
    """The streams and requests with the numbers `first`, `first + of`, `first + 2 * of` and so on. `of` is the number
    of processes. A request has the same prompt, length and due time for every number of processes."""

    first: int = 0
    of: int = 1

    def count(self, total: int) -> int:
        """Return how many of `total` streams or requests belong to this share."""
        return len(range(self.first, total, self.of))

    def spec(self, spec: BenchSpec) -> BenchSpec:
        """Return the spec with the numbers of streams and requests of this share. The request rate stays that of the
        whole load."""
        streams, requests, warmup = map(self.count, (spec.concurrency, spec.requests, spec.warmup))
        return replace(spec, concurrency=streams, requests=requests, warmup=warmup)

    def times(self, times: Iterator[float] | None) -> Iterator[float] | None:
        """Return the due times of this share's requests out of the due times of all requests."""
        return None if times is None else islice(times, self.first, None, self.of)


WHOLE = Share()


@dataclass(frozen=True, slots=True)
class WarmedUp:
    """The findings of a process after its warm-up: the prompt tokens and the durations of requests, and the earliest
    begin of the measured part in monotonic nanoseconds. All processes of a run agree on one value of it."""

    prompt_tokens: tuple[int, ...]
    durations_s: tuple[float, ...]
    begin_ns: int

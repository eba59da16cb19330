"""One process's share of a benchmark's load. A large load is split over several processes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

from workbench.bench.trace_load import trace_load
from workbench.model.bench import BenchSpec
from workbench.model.lazy_dataclass import dataclass

STREAMS_PER_PROCESS = 128


def count_processes_for_load(spec: BenchSpec, is_server_local: bool) -> int:
    """Return the number of processes for a load: one for each 128 streams, but no more than this
    machine has CPU cores for. One core is left to the server if it is on this machine
    (`is_server_local`): two processes that take turns on a core read late."""
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    free = cores - 1 if is_server_local else cores
    streams = min(spec.concurrency, spec.requests)
    return max(1, min(free, -(-streams // STREAMS_PER_PROCESS)))


@dataclass(frozen=True, slots=True)
class Share:
    """One process's share of the streams and requests: those with the numbers `first`, `first +
    of`, `first + 2 * of` and so on. `of` is the number of processes. The prompt, length and due
    time of a request do not depend on it."""

    first: int = 0
    of: int = 1

    def count_in_share(self, total: int) -> int:
        """Return how many of `total` streams or requests belong to this share."""
        return len(range(self.first, total, self.of))

    def spec_of_share(self, spec: BenchSpec) -> BenchSpec:
        """Return `spec` with the numbers of streams and requests of this share. The request rate
        remains the rate of the whole load."""
        streams, requests, warmup = map(
            self.count_in_share, (spec.concurrency, spec.requests, spec.warmup)
        )
        if self.of > 1 and spec.trace and trace_load(spec.trace).has_turns:
            requests = self._count_conversation_requests(spec)
        return replace(spec, concurrency=streams, requests=requests, warmup=warmup)

    def _count_conversation_requests(self, spec: BenchSpec) -> int:
        """Return the number of requests of the conversations or sessions of this share."""
        talks = trace_load(spec.trace)
        mine = {*talks.first_turns[self.first :: self.of]}
        return sum(talks.first_turn_index_of(index) in mine for index in range(spec.requests))

    def due_times_of_share(self, times: Iterator[float] | None) -> Iterator[float] | None:
        """Return an iterator over the due times of this share's requests. `times` yields the due
        times of all requests. None if `times` is None, because each stream starts a request when
        its previous one has ended."""
        return None if times is None else islice(times, self.first, None, self.of)


WHOLE_LOAD = Share()


@dataclass(frozen=True, slots=True)
class WarmupValues:
    """Values measured in the warm-up. `prompt_tokens` has (number of a request, its prompt tokens),
    `durations_s` the durations of the newest requests, and `begin_ns` is the earliest start of the
    measured part in monotonic nanoseconds. Each process first has its own values. Then all
    processes use the combined values."""

    prompt_tokens: tuple[tuple[int, int], ...]
    durations_s: tuple[float, ...]
    begin_ns: int

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> WarmupValues:
        """Return the values from `data`, which `asdict` made and JSON carried."""
        tokens = tuple((index, tokens) for index, tokens in data["prompt_tokens"])
        return cls(tokens, tuple(data["durations_s"]), data["begin_ns"])

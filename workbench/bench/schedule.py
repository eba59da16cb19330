"""The schedule of requests: when each request starts, and when the warm-up is long enough.

Without a request rate (closed loop), a stream starts its next request when the previous one has
ended, and only the first requests are spread out. With a request rate (open loop), each request has
a scheduled time that does not depend on the server. The schedule depends on the seed alone, so that
A and B of a comparison get equal schedules.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from workbench.bench.records import RequestRecord
from workbench.bench.time_limits import RUN_TIMEOUT_S
from workbench.bench.trace_load import TraceLoad, trace_load
from workbench.model.bench import BenchSpec
from workbench.model.known_values import known_values
from workbench.model.lazy_dataclass import dataclass
from workbench.model.think_time import parse_think_time

NEVER_NS = 1 << 62  # a time in nanoseconds
STEADY_ROUNDS = 4  # least number of requests per stream for a steady window
_AGREEMENT_SHARE = 0.03
_MAX_WARMUP_WINDOWS = 8
_OPEN_LOOP_WINDOW_REQUESTS = 16  # requests; the number in flight is not known beforehand
# share of the expected run by which staggered starts may reduce a whole-run rate
_MAX_RAMP_SHARE = 0.02


def request_due_times_s(spec: BenchSpec, *, warmup: bool) -> Iterator[float] | None:
    """Return an iterator over the times at which requests are due, in seconds after the
    start of the warm-up (`warmup`) or of the measured part. None if requests have no due times,
    because the spec has neither a request rate nor a trace. The warm-up of a trace has none."""
    if spec.has_conversations:
        return None
    if spec.trace:
        if warmup:
            return None
        return iter([at_s / spec.replay_speed for at_s in trace_load(spec.trace).times_s])
    if spec.rate is None:
        return None
    if spec.arrival == "constant":
        return _constant_due_times_s(spec.rate)
    return _random_due_times_s(spec.rate, spec.burstiness or 1.0, f"{spec.seed}/arrival/{warmup}")


def _constant_due_times_s(rate: float) -> Iterator[float]:
    n = 0
    while True:
        yield n / rate
        n += 1


def _random_due_times_s(rate: float, burstiness: float, seed: str) -> Iterator[float]:
    """Yield times whose gaps have a gamma distribution with the shape `burstiness` and the mean 1 /
    `rate`, as `get_request` of vllm/benchmarks/serve.py (0.32) draws them. The shape 1 is the
    exponential distribution, so the arrivals are a Poisson process."""
    draw, at = random.Random(seed), 0.0
    while True:
        yield at
        if burstiness == 1.0:
            at += draw.expovariate(rate)
        else:
            at += draw.gammavariate(burstiness, 1 / (rate * burstiness))


class ScheduledRequest(NamedTuple):
    """The index of a request, and when it is due in monotonic nanoseconds; 0 means at once."""

    request_index: int
    due_ns: int


@dataclass(slots=True)
class RequestPhase:
    """Progress through one phase of a run: the warm-up or the measured part. `left` is the number
    of requests that have not started, `next` the index of the next request, and `step` the
    difference between the indices of two successive requests. With `order`, these are places in it,
    and the indices are there. `times` yields the due times of the requests in seconds after
    `begin_ns`, and is None if they have none."""

    warmup: bool
    left: int
    times: Iterator[float] | None  # `request_due_times_s`
    begin_ns: int
    next: int = 0
    step: int = 1
    order: Sequence[int] | None = None

    def start_next_request(self) -> ScheduledRequest:
        """Return the next request, and count it as started."""
        index = self.next if self.order is None else self.order[self.next]
        self.next += self.step
        self.left -= 1
        due = 0 if self.times is None else self.begin_ns + int(next(self.times) * 1e9)
        return ScheduledRequest(index, due)

    def drop_unstarted_requests(self, now_ns: int) -> int:
        """End this phase of the run (warm-up or measured part) now. Return how many of its
        remaining requests were due by `now_ns`, or 0 if requests have no due times."""
        overdue = 0
        while self.times is not None and self.left and self.start_next_request().due_ns <= now_ns:
            overdue += 1
        self.left = 0
        return overdue


class LaterTurns:
    """The requests of a trace that begin after the answer of another one: at once, or after a
    pause. `speed` divides the pauses. `len` gives the number of queued requests: those whose
    predecessor has ended."""

    def __init__(self, load: TraceLoad | None = None, speed: float = 1.0) -> None:
        self._next: dict[int, int] = {}
        self._pauses_s: dict[int, float] = {}
        if load is not None:
            self._next, self._pauses_s = load.next_turn, load.pauses_s
        self._speed = speed
        self._waiting: list[tuple[int, int, int]] = []  # (due time, order, index): a heap
        self._put = 0
        # when the next request is due in monotonic nanoseconds: 0 for at once, NEVER_NS if none
        # waits
        self.due_ns = NEVER_NS

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def has_turns(self) -> bool:
        """Whether some requests of the trace begin after another one."""
        return bool(self._next)

    def find_next_turn_index(self, index: int) -> int | None:
        """Return the index of the request that begins after the answer to request `index`. None if
        there is none."""
        return self._next.get(index)

    def queue_turn(self, index: int, now_ns: int) -> None:
        """Queue request `index`, whose predecessor ended at `now_ns` (monotonic nanoseconds)."""
        pause_s = self._pauses_s.get(index)
        due_ns = 0 if pause_s is None else now_ns + int(pause_s / self._speed * 1e9)
        self._put += 1
        heappush(self._waiting, (due_ns, self._put, index))
        self.due_ns = self._waiting[0][0]

    def pop_turn(self) -> ScheduledRequest:
        """Return the next request, which no longer waits."""
        due_ns, _, index = heappop(self._waiting)
        self.due_ns = self._waiting[0][0] if self._waiting else NEVER_NS
        return ScheduledRequest(index, due_ns)

    def drop_queued_turns(self, due_by_ns: int) -> int:
        """Discard all requests. Return how many were due by `due_by_ns`."""
        overdue = sum(0 < due_ns <= due_by_ns for due_ns, _, _ in self._waiting)
        self._waiting.clear()
        self.due_ns = NEVER_NS
        self._next = {}
        return overdue


def stagger_duration_s(spec: BenchSpec, duration_s: float | None) -> float:
    """Return the number of seconds over which the first requests of the streams are spread.
    `duration_s` is the expected duration of a request, or None if unknown.

    If the run is long enough for a steady window, the result is `duration_s` and the mean think
    time: the streams then start their later requests at different times, as under a lasting load.
    Otherwise it is shorter, because a long ramp would lower the rates.
    """
    if spec.has_schedule or spec.concurrency == 1:
        return 0.0
    if duration_s is None:
        return 0.001 * spec.concurrency
    rounds = spec.requests / spec.concurrency
    if spec.seconds is not None and duration_s > 0:
        rounds = min(rounds, spec.seconds / duration_s)
    if spec.think_time:
        duration_s += parse_think_time(spec.think_time).mean_s
    if rounds >= STEADY_ROUNDS:
        return duration_s
    return duration_s * _MAX_RAMP_SHARE * rounds


@dataclass(frozen=True, slots=True)
class WarmupOutcome:
    """How a warm-up with a test for a steady server ended. `steady` is False if the warm-up gave
    up. The warm-up took `seen` requests and compared windows of `window` requests each. `apart` is
    the last relative difference between two windows, or None without two windows."""

    seen: int
    window: int
    steady: bool
    apart: float | None

    @classmethod
    def combine_outcomes(cls, outcomes: Sequence[WarmupOutcome]) -> WarmupOutcome:
        """Return one outcome for a warm-up that several processes shared, from the outcome of each
        process."""
        return cls(
            sum(one.seen for one in outcomes),
            sum(one.window for one in outcomes),
            all(one.steady for one in outcomes),
            max(known_values(one.apart for one in outcomes), default=None),
        )

    def outcome_sentence(self) -> str:
        if self.steady:
            return (
                f"warmed up by {self.seen} requests, until two windows of {self.window} "
                "requests agreed within 3 %; if it became faster only after that, the two halves "
                "of the run differ"
            )
        note = f"the server had not become steady after {self.seen} warm-up requests"
        if self.apart is None:
            return note
        return f"{note}: the last two windows are {100 * self.apart:.0f} % apart"


class Warmup:
    """Decides when the warm-up is long enough. A warm-up has at least `spec.warmup` requests. With
    `spec.until_steady`, it continues until the server is steady.

    The server is steady when the mean time per token of two successive windows differs by at most 3
    %. A window is as many requests as there are streams. The warm-up gives up after eight windows
    or a quarter of the run's deadline.

    At a fixed number of streams, the time per token is the inverse of the throughput (Little's
    law), but it does not depend on where one window ends and the next begins.
    """

    def __init__(self, spec: BenchSpec) -> None:
        self.until_steady = spec.until_steady
        self.window = max(2, spec.concurrency)
        if spec.has_schedule:
            self.window = _OPEN_LOOP_WINDOW_REQUESTS
        self.limit = spec.warmup
        self.limit_ns = 0  # no limit
        if spec.until_steady:
            self.limit = max(spec.warmup, _MAX_WARMUP_WINDOWS * self.window)
            self.limit_ns = int((spec.deadline_s or RUN_TIMEOUT_S) * 1e9 / 4)
        self.steady = False
        self.first = 0  # first request with the measured prompt length
        self._least = spec.warmup
        self._seen = 0
        self._per_token: list[tuple[int, int]] = []
        self._apart: float | None = None

    def ignore_requests_before(self, next_index: int) -> None:
        """Ignore the requests before `next_index` in the test for a steady server, because their
        prompts did not have the requested length."""
        self.first = next_index

    def record_request_and_may_end(self, record: RequestRecord) -> bool:
        """Add the record of a warm-up request that has ended. Return whether the server is steady,
        so that the warm-up may end. A warm-up of a fixed number of requests ends by itself:
        False."""
        self._seen += 1
        if not self.until_steady:
            return False
        if record.ok and record.index >= self.first:
            self._per_token.append((record.end_us, record.output_tokens or 1))
            windows, rest = divmod(len(self._per_token), self.window)
            if windows >= 2 and not rest:
                self._compare_last_two_windows()
        return self.steady and self._seen >= self._least

    def _compare_last_two_windows(self) -> None:
        before = self._mean_time_per_token_us(-2 * self.window, -self.window)
        last = self._mean_time_per_token_us(-self.window, None)
        self._apart = abs(last / before - 1) if before > 0 else math.inf
        self.steady = self._apart <= _AGREEMENT_SHARE

    def _mean_time_per_token_us(self, begin: int, end: int | None) -> float:
        """Return the mean time per token, in microseconds, of the warm-up requests from number
        `begin` up to, but not including, number `end` (None: up to the last one)."""
        part = self._per_token[begin:end]
        return sum(us for us, _ in part) / sum(tokens for _, tokens in part)

    def outcome(self) -> WarmupOutcome | None:
        """Return how the warm-up ended. None if the warm-up had a fixed number of requests."""
        if not self.until_steady:
            return None
        return WarmupOutcome(self._seen, self.window, self.steady, self._apart)

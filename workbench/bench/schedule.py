"""When requests start, and when warming up is enough.

Closed loop: a stream starts its next request when its last one has ended; only the first of each stream are spread
out. Open loop: each request has its time on a schedule that knows nothing of the server, drawn from the seed alone, so
that A and B get the same one.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from workbench.bench.records import RequestRecord
from workbench.bench.time_limits import RUN_S
from workbench.model.bench import BenchSpec

STEADY_ROUNDS = 4  # requests per stream from which on there is a steady window to speak of
_AGREE = 0.03
_MOST_WINDOWS = 8
_OPEN_WINDOW = 16  # requests; how many are in flight is not known before
_RAMP_SHARE = 0.02  # of the expected run: what staggered starts may cost a whole-run rate


def arrivals(spec: BenchSpec, *, warmup: bool) -> Iterator[float] | None:
    """Seconds after the phase began at which requests are due, for ever; None for a closed loop."""
    if spec.rate is None:
        return None
    return _constant(spec.rate) if spec.arrival == "constant" else _poisson(spec.rate, f"{spec.seed}/arrival/{warmup}")


def _constant(rate: float) -> Iterator[float]:
    n = 0
    while True:
        yield n / rate
        n += 1


def _poisson(rate: float, seed: str) -> Iterator[float]:
    draw, at = random.Random(seed), 0.0
    while True:
        yield at
        at += draw.expovariate(rate)


@dataclass(slots=True)
class RequestPhase:
    """The requests of the warm-up, or the counted ones, in order."""

    warmup: bool
    end: int  # one past the last index
    times: Iterator[float] | None  # `arrivals`
    begin_ns: int
    next: int = 0

    @property
    def left(self) -> int:
        return self.end - self.next

    def take(self) -> tuple[int, int]:
        """(index, when it is due in monotonic nanoseconds: 0 for at once)."""
        index, self.next = self.next, self.next + 1
        due = 0 if self.times is None else self.begin_ns + int(next(self.times) * 1e9)
        return index, due

    def give_up(self, now_ns: int) -> int:
        """End here; how many of the open loop's requests that were not taken were due by `now_ns`."""
        overdue = 0
        while self.times is not None and self.left and self.take()[1] <= now_ns:
            overdue += 1
        self.end = self.next
        return overdue


def stagger_s(spec: BenchSpec, duration_s: float | None) -> float:
    """Over how long the first requests of the streams are spread; `duration_s` is that of a request.

    One whole request where a steady window follows: then the streams are at different places of their replies, as
    under a lasting load, and the ramp is outside the window. Else as much as a rate over the whole run can bear.
    """
    if spec.rate is not None or spec.concurrency == 1:
        return 0.0
    if duration_s is None:
        return 0.001 * spec.concurrency
    rounds = spec.requests / spec.concurrency
    if spec.seconds is not None and duration_s > 0:
        rounds = min(rounds, spec.seconds / duration_s)
    return duration_s if rounds >= STEADY_ROUNDS else duration_s * _RAMP_SHARE * rounds


class Warmup:
    """How much warming up there is: `spec.warmup` requests or, with `until_steady`, at least those and until the time
    per token of two consecutive windows (of as many requests as there are streams) differs by 3 % at most; given up
    after eight windows and a quarter of the run's deadline.

    The time that a request took per token is what is compared: at a fixed number of streams it is the inverse of the
    throughput (Little's law) and, unlike that, knows no edges of windows.
    """

    def __init__(self, spec: BenchSpec) -> None:
        self.until_steady = spec.until_steady
        self.window = max(2, spec.concurrency) if spec.rate is None else _OPEN_WINDOW
        self.limit = max(spec.warmup, _MOST_WINDOWS * self.window) if spec.until_steady else spec.warmup
        self.limit_ns = int((spec.deadline_s or RUN_S) * 1e9 / 4) if spec.until_steady else 0  # 0: none of its own
        self.steady = False
        self.first = 0  # requests before it had another prompt length
        self._least = spec.warmup
        self._seen = 0
        self._per_token: list[tuple[int, int]] = []
        self._apart: float | None = None

    def reshaped(self, next_index: int) -> None:
        """From this request on the prompts have the measured length."""
        self.first = next_index

    def enough(self, record: RequestRecord) -> bool:
        """After each ended warm-up request: True when no more is needed."""
        self._seen += 1
        if not self.until_steady:
            return False
        if record.ok and record.index >= self.first:
            self._per_token.append((record.end_us, record.output_tokens or 1))
            if len(self._per_token) >= 2 * self.window and len(self._per_token) % self.window == 0:
                before, last = self._value(-2 * self.window, -self.window), self._value(-self.window, None)
                self._apart = abs(last / before - 1) if before > 0 else math.inf
                self.steady = self._apart <= _AGREE
        return self.steady and self._seen >= self._least

    def _value(self, begin: int, end: int | None) -> float:
        """Microseconds per token."""
        part = self._per_token[begin:end]
        return sum(us for us, _ in part) / sum(tokens for _, tokens in part)

    def note(self) -> str | None:
        if not self.until_steady:
            return None
        if self.steady:
            return f"warmed up by {self._seen} requests, until two windows of {self.window} agreed within 3 %"
        apart = "" if self._apart is None else f": the last two windows are {100 * self._apart:.0f} % apart"
        return f"the server had not become steady after {self._seen} warm-up requests{apart}"

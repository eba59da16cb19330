"""Checks whether the server was in a lasting state during a run. If it was not, the metrics depend
on how long the run lasted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from math import sqrt

from workbench.bench.records import RequestRecord
from workbench.bench.steady_window import (
    STEADY_WINDOW,
    Window,
    first_request_start_s,
    request_end_s,
)
from workbench.model.bench import BenchSpec
from workbench.model.distribution import quantile
from workbench.model.lazy_dataclass import dataclass

# in a shorter measurement, a single pause of server or client decides
MIN_REQUESTS, MIN_WINDOW_S = 4, 1.0
NOT_KEPT_UP_PREFIX = "the server did not keep up"  # begins the reason
_MIN_REQUESTS_IN_HALF = 8  # least number of requests in a half
_MAX_HALVES_DIFFERENCE = 0.10  # relative difference that the halves may have
_SURE_STANDARD_ERRORS = 4.0  # standard errors; a smaller difference may be chance
# of a run, to see how much its rate varies: each at least so many requests
_MIN_PARTS, _MAX_PARTS, _MIN_REQUESTS_IN_PART = 4, 8, 2
_MIN_COMPLETED_SHARE = 0.97  # share of the due rate that must be completed
_QUEUE_WAIT_FACTOR = 1.2  # if a queue grows, later requests wait longer by this factor,
# and by this share of the schedule's length, more than in a queue that comes and goes
_QUEUE_GROWTH_SHARE = 0.03
# a shorter silence is no stall, nor is one that the usual wait for a first chunk explains
_MIN_STALL_S, _STALL_WAIT_FACTOR = 2.0, 5.0


def why_server_overloaded(spec: BenchSpec, counted: Sequence[RequestRecord]) -> str | None:
    """Return why the server did not keep up with the requested rate. None if it did, or if the load
    has no schedule."""
    if not spec.has_schedule:
        return None
    return why_server_fell_behind(
        [(r.due_s, request_end_s(r)) for r in counted if r.due_s is not None]
    )


def why_server_fell_behind(due_and_end_s: Sequence[tuple[float, float]]) -> str | None:
    """Return why the server did not keep up with its requests, whose (due time, end) in seconds
    are given; None if it did.

    It did not if, in the second half of the schedule, fewer requests were completed than due (by
    more than chance) and each request waited longer than in the first half. All latencies then grow
    for as long as the run lasts.
    """
    if len(due_and_end_s) < 2 * _MIN_REQUESTS_IN_HALF:
        return None
    begin, end = min(due_and_end_s)[0], max(due_and_end_s)[0]
    middle = (begin + end) / 2
    seconds = end - middle
    # how long each request took after it was due
    early: list[float] = []
    late: list[float] = []
    done = waiting = 0
    for due_s, end_s in due_and_end_s:
        done += middle < end_s <= end
        waiting += due_s <= middle < end_s
        half = early if due_s <= middle else late
        half.append(end_s - due_s)
    came = len(late)
    if (
        seconds <= 0
        or done >= _MIN_COMPLETED_SHARE * came
        or came - done <= 3 * sqrt(2 * max(1, waiting))
    ):
        return None
    if fmean(late) < max(
        _QUEUE_WAIT_FACTOR * fmean(early), fmean(early) + _QUEUE_GROWTH_SHARE * (end - begin)
    ):
        return None
    return (
        f"{NOT_KEPT_UP_PREFIX}: {came / seconds:.1f} requests/s were due and "
        f"{done / seconds:.1f}/s completed in"
        f" the second half of the schedule; the end-to-end time was {1000 * fmean(early):,.0f} ms "
        "in the first half and"
        f" {1000 * fmean(late):,.0f} ms in the second, and grows with the length of the run"
    )


@dataclass(frozen=True, slots=True)
class Stall:
    """A time, in seconds after the run began, in which requests were in flight and no stream got a
    byte."""

    begin_s: float
    end_s: float

    @property
    def seconds(self) -> float:
        return self.end_s - self.begin_s

    def seconds_inside_window(self, window: Window) -> float:
        """Return for how many seconds of the window the stall lasted."""
        return max(0.0, min(self.end_s, window.end_s) - max(self.begin_s, window.begin_s))


def find_stalls(counted: Sequence[RequestRecord]) -> list[Stall]:
    """Return the stalls of a run, in the order of their times.

    A silence is a stall if it lasts at least 2 s, and five times as long as the longest prompt
    usually waits for its first bytes: its prefill may hold up all other streams.
    """
    if not counted:
        return []
    least_s = max(_MIN_STALL_S, _STALL_WAIT_FACTOR * _usual_wait_of_longest_prompt_s(counted))
    if not any(_longest_wait_for_bytes_us(record) >= 1e6 * least_s for record in counted):
        return []  # nearly all runs: no further look at each chunk
    byte_times_s = sorted({at for record in counted for at in _chunk_and_end_times_s(record)})
    silences = (
        Stall(max(begin_s, _earliest_start_in_flight_s(counted, end_s)), end_s)
        for begin_s, end_s in pairwise([first_request_start_s(counted), *byte_times_s])
        if end_s - begin_s >= least_s
    )
    return [silence for silence in silences if silence.seconds >= least_s]


def describe_stalls(
    stalls: Sequence[Stall], counted: Sequence[RequestRecord], window: Window
) -> str:
    """Return when the stalls of a run were, how long, and which share of the window they took."""
    longest = max(stalls, key=lambda stall: stall.seconds)
    after_s = longest.begin_s - first_request_start_s(counted)
    others = f", and {len(stalls) - 1} more" if len(stalls) > 1 else ""
    measured = "the steady window" if window.name == STEADY_WINDOW else "the run"
    return (
        f"a stall of {longest.seconds:.1f} s, {after_s:.1f} s after the "
        f"first request{others}: no stream got a byte in {100 * share_of_window_stalled(stalls, window):.0f} %"
        f" of {measured}"
    )


def share_of_window_stalled(stalls: Sequence[Stall], window: Window) -> float:
    """Return the share of the window that the stalls took, 0 to 1; 0 for a window without
    duration."""
    if window.seconds <= 0:
        return 0.0
    return sum(stall.seconds_inside_window(window) for stall in stalls) / window.seconds


def _usual_wait_of_longest_prompt_s(counted: Sequence[RequestRecord]) -> float:
    """Return how long the longest prompt usually waits for its first bytes, in proportion to the
    median wait for the median prompt."""
    wait_s = quantile(sorted(map(_wait_for_first_chunk_us, counted)), 0.5) / 1e6
    prompts = sorted(record.prompt_tokens for record in counted if record.prompt_tokens)
    if not prompts:
        return wait_s
    return wait_s * prompts[-1] / quantile(prompts, 0.5)


def _wait_for_first_chunk_us(record: RequestRecord) -> int:
    return record.end_us if record.ttft_us is None else record.ttft_us


def _longest_wait_for_bytes_us(record: RequestRecord) -> int:
    return max(_wait_for_first_chunk_us(record), max(record.gaps_us, default=0))


def _chunk_and_end_times_s(record: RequestRecord) -> Iterator[float]:
    """Yield when bytes of a request came: its chunks, and its end."""
    if record.ttft_us is not None:
        for after_us in accumulate(record.gaps_us, initial=record.ttft_us):
            yield record.start_s + after_us / 1e6
    yield request_end_s(record)


def _earliest_start_in_flight_s(counted: Sequence[RequestRecord], at_s: float) -> float:
    """Return the start of the oldest of the requests that were in flight at `at_s`, when a byte
    arrived. `at_s` if no request was in flight. Both are seconds since the run began."""
    starts_s = (r.start_s for r in counted if r.start_s < at_s <= request_end_s(r))
    return min(starts_s, default=at_s)


def why_measurement_too_short(counted: Sequence[RequestRecord], window: Window) -> str | None:
    """Return why the measurement is too short to trust, for the user; None if it is long enough, or
    if no request succeeded."""
    good = sum(r.ok for r in counted)
    missing = []
    if good < MIN_REQUESTS:
        missing.append(f"{MIN_REQUESTS} requests")
    if window.seconds < MIN_WINDOW_S:
        missing.append(f"{MIN_WINDOW_S:g} s")
    if not good or not missing:
        return None
    requests = "one request" if good == 1 else f"{good} requests"
    return (
        f"the measurement is short: {requests} in {window.seconds:.3g} s; use at least "
        f"{' and '.join(missing)}"
    )


def _requests_answered_in_window(
    window: Window, counted: Sequence[RequestRecord]
) -> list[RequestRecord]:
    """Return the requests that began in the window and got tokens, in the order of their starts."""
    inside = [r for r in counted if r.start_s >= window.begin_s and r.ok and r.output_tokens]
    inside.sort(key=lambda r: r.start_s)
    return inside


def why_halves_differ(
    spec: BenchSpec, counted: Sequence[RequestRecord], window: Window
) -> str | None:
    """Return why the result is less reliable than it seems, if the time per token differs between
    the two halves of the steady window. Otherwise return None. At a fixed number of streams, that
    time is the inverse of the throughput (Little's law)."""
    if window.name != STEADY_WINDOW:
        return None
    times_ms = list(
        filter(None, map(_request_ms_per_token, _requests_answered_in_window(window, counted)))
    )
    half = len(times_ms) // 2
    if half < _MIN_REQUESTS_IN_HALF:
        return None
    first, second = times_ms[:half], times_ms[-half:]
    first_ms, second_ms = fmean(first), fmean(second)
    apart = second_ms / first_ms - 1
    error = sqrt((variance(first) + variance(second)) / half)
    is_chance = abs(second_ms - first_ms) <= _SURE_STANDARD_ERRORS * error
    if is_chance or abs(apart) <= _MAX_HALVES_DIFFERENCE:
        return None
    advice = "use more --warmup" if spec.until_steady else "use --until-steady or more --warmup"
    return (
        f"the two halves of the run differ: {first_ms:.2f} ms per token of a request in the "
        "first,"
        f" {second_ms:.2f} in the second ({100 * apart:+.0f} %): the server was not warm yet, "
        "or something changed;"
        f" {advice}"
    )


def rate_error_pct(
    spec: BenchSpec, counted: Sequence[RequestRecord], window: Window
) -> float | None:
    """Return the standard error of the tokens per second within the run, in percent: how much the
    parts of the steady window differ, each at least one round of all streams. Two runs differ by
    more than that, so a change inside it shows nothing. None with a request rate, and for a short
    run.

    At a fixed number of streams, the rate is the inverse of a request's time per token (Little's
    law).
    """
    if window.name != STEADY_WINDOW or spec.has_pauses:
        return None
    times_ms = list(map(_request_ms_per_token, _requests_answered_in_window(window, counted)))
    parts = min(_MAX_PARTS, len(times_ms) // max(spec.concurrency, _MIN_REQUESTS_IN_PART))
    if parts < _MIN_PARTS:
        return None
    edges = [len(times_ms) * number // parts for number in range(parts + 1)]
    means = [fmean(times_ms[first:end]) for first, end in pairwise(edges)]
    return round(100 * sqrt(variance(means) / parts) / fmean(means), 3)


def fmean(values: Sequence[float]) -> float:
    """Return the mean of the values. `statistics.fmean` is not used, because its module takes 10 ms
    to import."""
    return sum(values) / len(values)


def variance(values: Sequence[float]) -> float:
    """Return the variance of a sample of two or more values."""
    return sum_of_squared_deviations(values) / (len(values) - 1)


def sum_of_squared_deviations(values: Sequence[float]) -> float:
    """Return the sum of the squared deviations from the mean."""
    mean = fmean(values)
    return sum((v - mean) ** 2 for v in values)


def _request_ms_per_token(record: RequestRecord) -> float:
    return record.end_us / 1000 / (record.output_tokens or 1)

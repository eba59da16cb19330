"""The steady window: the part of a run from which its rates are taken, and the tokens and requests
inside it.

A rate over the whole run includes the ramp and the tail, in which fewer streams are in flight. With
2 to 16 requests per stream, such a rate is 0.79 to 0.96 of the steady rate. In a run without a
request rate, the steady window begins when every stream has started and the first request has
ended. It ends when the last request starts, so all streams are in flight inside the window.

Each chunk counts at its receive time, with an equal share of the tokens that the server reports for
the reply. The first chunk gets its exact number if the server reports it. Requests, and replies
without chunks, count by the share of their time inside the window. Counting whole requests would
favour requests that happen to end inside.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

from workbench.bench.records import SILENT_SERVER_KINDS, RequestRecord, select_successful
from workbench.bench.schedule import STEADY_ROUNDS
from workbench.bench.trace_load import trace_load
from workbench.model.bench import BenchSpec
from workbench.model.lazy_dataclass import dataclass

STEADY_WINDOW, WHOLE_RUN = "steady", "whole run"
_MIN_OPEN_LOOP_DURATIONS = (
    2.0  # least length of an open loop's window, in durations of a mean request
)


@dataclass(frozen=True, slots=True)
class Window:
    """A part of a run, in seconds after the run began. `name` is STEADY_WINDOW for the steady
    window (all streams are busy) or WHOLE_RUN for the whole run. If there is no steady window,
    `why` gives the reason."""

    name: str
    begin_s: float
    end_s: float
    why: str = ""

    @property
    def seconds(self) -> float:
        return self.end_s - self.begin_s


def request_end_s(record: RequestRecord) -> float:
    return record.start_s + record.end_us / 1e6


def first_request_start_s(records: Iterable[RequestRecord]) -> float:
    """Return when the first of the requests started, in seconds after the run began; 0.0 for no
    requests."""
    return min((record.start_s for record in records), default=0.0)


def choose_rate_window(
    spec: BenchSpec, counted: Sequence[RequestRecord], ramp_end_s: float = 0.0, processes: int = 1
) -> Window:
    """Return the part of a run over which rates are computed: the steady window, or the whole run
    if there is none. `ramp_end_s` is when the last stream started. `processes` is how many
    processes of the load client shared the requests; the window ends when the first process has
    started its last request.

    Without a request rate, each stream must have four successful requests for a steady window. With
    one, the window must last as long as two mean requests. There is no steady window if a stream
    stalled. With a single stream, the whole run is steady, because it has no ramp and no tail.
    """
    if not counted:
        return Window(WHOLE_RUN, 0.0, 0.0, "no request was made")
    whole = (first_request_start_s(counted), max(map(request_end_s, counted)))
    good = select_successful(counted)
    if not good:
        return Window(WHOLE_RUN, *whole, "no request succeeded")
    stalled = sum(r.error in SILENT_SERVER_KINDS for r in counted)
    if stalled:
        return Window(
            WHOLE_RUN, *whole, f"the server let {stalled} of {len(counted)} streams stall"
        )
    if not spec.has_schedule and spec.concurrency == 1:
        return Window(STEADY_WINDOW, *whole)
    begin = max(ramp_end_s, min(map(request_end_s, good)))
    load = trace_load(spec.trace)
    if load.has_turns:
        # from then on, no conversation or session begins when another one ends
        first_turns = {*load.first_turns}
        end = max((r.start_s for r in counted if r.index in first_turns), default=begin)
        return _steady_window_between(spec, good, whole, begin, end)
    last: dict[int, float] = {}
    for record in counted:
        process = record.index % processes
        last[process] = max(record.start_s, last.get(process, 0.0))
    return _steady_window_between(spec, good, whole, begin, min(last.values()))


def _steady_window_between(
    spec: BenchSpec,
    good: Sequence[RequestRecord],
    whole: tuple[float, float],
    begin: float,
    end: float,
) -> Window:
    """Return the steady window from `begin` to `end`, or the whole run if that is too short."""
    why = _why_no_steady_window(spec, good, begin, end)
    if why:
        return Window(WHOLE_RUN, *whole, why)
    return Window(STEADY_WINDOW, begin, end)


def _why_no_steady_window(
    spec: BenchSpec, good: Sequence[RequestRecord], begin: float, end: float
) -> str:
    """Return why the time from `begin` to `end` is no steady window; "" if it is one."""
    if spec.has_schedule:
        least_s = _MIN_OPEN_LOOP_DURATIONS * sum(r.end_us for r in good) / len(good) / 1e6
        if end - begin < least_s:
            return f"a steady window needs {least_s:.1f} s (two mean requests)"
    elif len(good) < (needed := STEADY_ROUNDS * spec.concurrency):
        return f"a steady window needs {needed} requests ({STEADY_ROUNDS} per stream)"
    return "the first stream had ended before the last one started" if end <= begin else ""


def count_tokens_in(window: Window, good: Sequence[RequestRecord]) -> float | None:
    """Return the estimated number of output tokens that arrived inside the window; it can be a
    fraction. `good` are the successful requests. None if the server did not report the token count
    of one of these requests."""
    if any(r.output_tokens is None for r in good):
        return None
    return sum(_tokens_inside_window(r, window) for r in good)


def count_requests_in(window: Window, good: Iterable[RequestRecord]) -> float:
    """Return the number of requests inside the window. A request that is only partly inside counts
    as that part of its duration, so the number can be a fraction."""
    return sum(_share_of_request_in_window(r, window) for r in good)


def mean_requests_in_flight(window: Window, counted: Iterable[RequestRecord]) -> float | None:
    """Return the number of requests in flight, averaged over the window, or None if the window has
    no duration. Failed requests are included. A request that a time limit ended is included only
    until its last byte."""
    if window.seconds <= 0:
        return None
    return sum(_seconds_inside_window(r, window, r.silent_us) for r in counted) / window.seconds


def _seconds_inside_window(record: RequestRecord, window: Window, silent_us: int = 0) -> float:
    begin, end = record.start_s, request_end_s(record) - silent_us / 1e6
    if window.begin_s <= begin <= end <= window.end_s:  # nearly all: `min` and `max` take long
        return end - begin
    return max(0.0, min(end, window.end_s) - max(begin, window.begin_s))


def _share_of_request_in_window(record: RequestRecord, window: Window) -> float:
    if window.begin_s <= record.start_s <= request_end_s(record) <= window.end_s:
        return 1.0
    if record.end_us <= 0:
        return float(window.begin_s <= record.start_s <= window.end_s)
    return min(1.0, _seconds_inside_window(record, window) / (record.end_us / 1e6))


def _tokens_inside_window(record: RequestRecord, window: Window) -> float:
    tokens = record.output_tokens or 0
    if window.begin_s <= record.start_s <= request_end_s(record) <= window.end_s:
        return tokens
    if request_end_s(record) <= window.begin_s or record.start_s >= window.end_s:
        return 0.0
    if record.ttft_us is None:
        return tokens * _share_of_request_in_window(record, window)
    later = len(record.gaps_us)
    first = min(tokens, record.first_tokens or tokens / (later + 1)) if later else tokens
    each = (tokens - first) / max(1, later)
    begin_us = (window.begin_s - record.start_s) * 1e6
    end_us = (window.end_s - record.start_s) * 1e6
    times_us = accumulate(record.gaps_us, initial=record.ttft_us)
    inside = [begin_us < t <= end_us for t in times_us]
    return first * inside[0] + each * sum(inside[1:])

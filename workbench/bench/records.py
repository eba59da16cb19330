"""One finished request as it was seen, and the outcome of a run. Times are whole microseconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from workbench.model.bench import BenchSpec, BenchSummary

# Kinds of failure; "http 503" and the like are made from the status.
REFUSED = "connect refused"
CONNECT = "connect failed"
RESET = "reset"
TIMEOUT = "timeout"
STALL = "stall"
DEADLINE = "deadline"
STREAM_ERROR = "error in stream"
MALFORMED = "malformed"
TRUNCATED = "truncated"
SHORT = "short"
LONG = "long"
SILENT = (STALL, TIMEOUT)  # the server held the stream and said nothing


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """`ttft_us` and `end_us` count from the socket write; `gaps_us` are those between chunks with content.

    Tokens are the server's usage, None where it gave none. `first_tokens` is how many of them came in the first
    chunk, None where the server did not say (few do). Token counts of a failed request may be partial.
    """

    index: int
    warmup: bool
    start_s: float  # socket write, seconds after the run began
    end_us: int
    error: str | None = None  # kind; None: the request is ok
    detail: str | None = None  # what the server or the kernel said
    ttft_us: int | None = None
    gaps_us: tuple[int, ...] = ()
    chunks: int = 0  # chunks with content
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    first_tokens: int | None = None
    finish_reason: str | None = None
    due_s: float | None = None  # open loop: scheduled for, seconds after the run began
    reconnected: bool = False  # the kept connection had been closed: sent again on a fresh one
    without_done: bool = False  # ok and streamed, but without [DONE]
    encoded: bool = False  # the body was compressed, though that was not asked for
    silent_us: int = 0  # of a stream that a time limit ended: the last part of `end_us`, in which nothing came

    @property
    def ok(self) -> bool:
        return self.error is None

    def as_json(self) -> dict[str, Any]:
        """Return the fields that are not at their default, to keep thousands of records small."""
        values = ((f, getattr(self, f.name)) for f in fields(self))  # asdict would copy each gap, in 5 us
        return {f.name: v for f, v in values if v != f.default}


def total(values: Sequence[int | None]) -> int | None:
    """The sum; None where one is not known: a part is no total. 0 for none at all."""
    known = [v for v in values if v is not None]
    return sum(known) if len(known) == len(values) else None


@dataclass(frozen=True, slots=True)
class BenchOutcome:
    """A run that came to its end. `spec` is as it was run (salt filled in); warm-up requests are not in `requests`."""

    spec: BenchSpec
    summary: BenchSummary
    requests: list[RequestRecord] = field(default_factory=list)
    partial: bool = False  # cancelled: what had been measured by then
    t0_unix: float = 0.0  # first counted request's write
    t1_unix: float = 0.0  # last counted request's end
    # Of `summary.window`: what is compared with the server's power must be taken over the same time.
    window_t0_unix: float = 0.0
    window_t1_unix: float = 0.0

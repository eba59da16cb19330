"""Records of single requests, and the outcome of a whole run."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import field, fields
from itertools import compress
from operator import attrgetter, ne
from typing import Any, NamedTuple

from workbench.model.bench import BenchSpec, BenchSummary
from workbench.model.known_values import sum_or_none
from workbench.model.lazy_dataclass import dataclass

# Kinds of failure; an HTTP status gives "http 503" and the like.
CONNECT_REFUSED = "connect refused"
CONNECT_FAILED = "connect failed"
CONNECTION_RESET = "reset"
TIMEOUT = "timeout"
STALL = "stall"
DEADLINE = "deadline"
STREAM_ERROR = "error in stream"
MALFORMED = "malformed"
TRUNCATED = "truncated"
SHORT_ANSWER = "short"
LONG_ANSWER = "long"
NO_CONTENT = "no content"
# Kinds of a server that was ended, or of a gateway whose server was.
SERVER_ENDED_KINDS = frozenset(
    (
        CONNECT_REFUSED,
        CONNECT_FAILED,
        CONNECTION_RESET,
        TRUNCATED,
        "http 502",
        "http 503",
        "http 504",
    )
)
SILENT_SERVER_KINDS = (STALL, TIMEOUT)  # the server kept the stream open and sent nothing

# Why a client ended before its run did.
ENDED_BY_SIGNAL = "ended by a signal"
PARENT_ENDED = "the parent process has ended"
OUTPUT_UNREAD = "nobody reads the output of the worker"


class RequestFailure(NamedTuple):
    """How a request failed: the kind of failure, and the message with the details."""

    kind: str
    detail: str


@dataclass(slots=True)  # not frozen, which takes three times as long to make: a run has thousands
class RequestRecord:
    """Measurements of one finished request, which nobody changes. `ttft_us` (first chunk) and
    `end_us` (end) are in microseconds after the request was sent. `gaps_us` are the microseconds
    between successive chunks with content.

    Token counts come from the server's field "usage" and are None if the server sends none. The
    token counts of a failed request may be too low. `first_tokens` is the number of tokens in the
    first chunk, which few servers report.
    """

    index: int
    warmup: bool
    start_s: float  # socket write, seconds after the run began
    end_us: int
    error: str | None = None  # kind; None: the request is ok
    detail: str | None = None  # message of the server or the kernel
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
    encoded: bool = False  # the body was compressed although the client did not request that
    # of a stream that a time limit ended: the time at the end in which nothing came
    silent_us: int = 0
    # (number of a chunk, how many chunks from there on, how many microseconds earlier each of them
    # may have come): chunks that one late read returned together.
    unsure: tuple[tuple[int, int, int], ...] = ()
    send_us: int = 0  # if sending took long: its duration; the server may have waited until its end

    @property
    def ok(self) -> bool:
        return self.error is None

    def as_json(self) -> dict[str, Any]:
        """Return the record's fields as a dict, without fields that have their default value. This
        keeps thousands of records small."""
        # asdict would copy each gap, in 5 us
        values = _values_of(self)
        return dict(
            compress(zip(_FIELD_NAMES, values, strict=True), map(ne, values, _FIELD_DEFAULTS))
        )

    def json_text(self) -> str:
        """Return `as_json` as a JSON text without spaces. Records without gaps that differ only in
        their index and their times have the same form, which is made once."""
        if self.gaps_us or self.error or self.unsure or self.due_s is not None:
            return _encode_json(self.as_json())
        free = [self.index, self.start_s, self.end_us]
        if self.ttft_us is not None:
            free.append(self.ttft_us)
        rest = len(free), _values_of_constant_fields(self)
        form = _JSON_TEMPLATES.get(rest)
        if form is None:
            if len(_JSON_TEMPLATES) >= _MAX_JSON_TEMPLATES:
                _JSON_TEMPLATES.clear()
            form = _JSON_TEMPLATES[rest] = _json_template_of(self)
        return form % tuple(free)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RequestRecord:
        """Return the record with the fields that `as_json` has returned. Their values are not
        checked, because checking thousands of numbers takes ten times as long. Raises TypeError for
        an unknown field."""
        unsure = tuple(tuple(each) for each in data.get("unsure", ()))
        return cls(**{**data, "gaps_us": tuple(data.get("gaps_us", ())), "unsure": unsure})


_FIELD_NAMES = tuple(each.name for each in fields(RequestRecord))
_FIELD_DEFAULTS = tuple(each.default for each in fields(RequestRecord))
_values_of = attrgetter(*_FIELD_NAMES)
_encode_json = json.JSONEncoder(
    separators=(",", ":")
).encode  # `json.dumps` would make one each time
_PLACEHOLDERS_OF_VARYING_FIELDS = {"index": "%d", "start_s": "%r", "end_us": "%d", "ttft_us": "%d"}
_values_of_constant_fields = attrgetter(
    *(name for name in _FIELD_NAMES if name not in _PLACEHOLDERS_OF_VARYING_FIELDS)
)
_JSON_TEMPLATES: dict[
    tuple[int, tuple[Any, ...]], str
] = {}  # of records, by all that is not free in them
_MAX_JSON_TEMPLATES = 64


def _json_template_of(record: RequestRecord) -> str:
    """Return the JSON text of a record as a format for `%`. Its values are the index, the times
    and, if the record has one, the TTFT."""
    said = record.as_json()
    fixed = {name: _encode_json(value).replace("%", "%%") for name, value in said.items()}
    free = {name: place for name, place in _PLACEHOLDERS_OF_VARYING_FIELDS.items() if name in said}
    return "{" + ",".join(f'"{name}":{text}' for name, text in (fixed | free).items()) + "}"


def select_successful(records: Iterable[RequestRecord]) -> list[RequestRecord]:
    """Return the records of the requests that succeeded."""
    return [record for record in records if record.ok]


def count_failures_by_kind(records: Iterable[RequestRecord]) -> Counter[str]:
    """Return how many requests failed, by the kind of their failure."""
    return Counter(record.error for record in records if record.error)


def sum_of_field(records: Iterable[RequestRecord], name: str) -> int | None:
    """Return the sum of a field, such as "output_tokens", over the records; None if one of them
    does not have it. The sum over no records is 0."""
    return sum_or_none(map(attrgetter(name), records))


@dataclass(frozen=True, slots=True)
class BenchOutcome:
    """The outcome of a run, as the worker process reports it. `spec` contains the salt (the random
    text that makes prompts unique) that was used. `samples` are the measured requests without the
    warm-up, as `RequestRecord.as_json` returns them: most of them are only stored."""

    spec: BenchSpec
    summary: BenchSummary
    samples: list[dict[str, Any]] = field(default_factory=list)
    partial: bool = False  # the run was cancelled, and these are the requests until then
    t0_unix: float = 0.0  # first counted request's write
    t1_unix: float = 0.0  # last counted request's end
    # Of `summary.window`: the server's power must be taken over the same time as the throughput.
    window_t0_unix: float = 0.0
    window_t1_unix: float = 0.0

    @property
    def requests(self) -> list[RequestRecord]:
        return [RequestRecord.from_json(sample) for sample in self.samples]

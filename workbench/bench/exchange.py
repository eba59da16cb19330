"""One HTTP request of the load client and its answer: the answer's bytes are parsed and judged, and
the request gets its record."""

from __future__ import annotations

from collections.abc import Callable
from operator import sub
from typing import TYPE_CHECKING, Generic, TypeVar

from workbench.bench import records
from workbench.bench.http1 import DecodeBody, HttpError, ResponseReader, make_body_decoder
from workbench.bench.records import RequestFailure, RequestRecord
from workbench.bench.reply import Reply, error_message_from_body
from workbench.bench.sse import SseDecoder
from workbench.bench.text_chunk import TextChunk
from workbench.model.untrusted_text import NAME_CHARS, clean_text

if TYPE_CHECKING:
    from workbench.bench.whole_answer import WholeAnswer

Made = TypeVar("Made")
_MAX_ERROR_BODY_BYTES = 64 * 1024
_MAX_ANSWER_BYTES = 64 * 1024 * 1024
_MAX_CHUNKS_OF_SHORT_ANSWER = 16


class _LazyAttribute(Generic[Made]):
    """An attribute that is made when it is first read. `cached_property` would do it too, but the
    other attributes of its objects are slower then."""

    def __init__(self, make: Callable[[], Made]) -> None:
        self._make = make

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, owner: object, kind: type) -> Made:
        made = self._make()
        setattr(owner, self._name, made)
        return made


class Exchange:
    """One HTTP request and its answer. All times are monotonic nanoseconds.

    `due_ns` is the scheduled start, or 0 for a request that starts at once. `began_ns` is when the
    client began to connect or to send, whichever came first. `sent_ns` is when it sent the request,
    or 0 before that. `stream` says whether the answer should be an event stream instead of one JSON
    object.
    """

    # An answer that is like one before needs no parsers.
    response = _LazyAttribute(ResponseReader)
    reply = _LazyAttribute(Reply)
    _sse = _LazyAttribute(SseDecoder)
    unsure = _LazyAttribute[list[tuple[int, int, int]]](list)  # as in RequestRecord

    # What most requests never change stands here: to set all of it takes as long as to compare a
    # one-token answer.
    began_ns = sent_ns = last_byte_ns = 0
    send_ns = 0  # how long sending took, if that was long
    # since when bytes may have waited for a read that left some of them in the socket, and until
    # the newest such read how long; 0 before
    held_since_ns = held_ns = 0
    silent_ns = 0  # between its last byte and the time limit that ended it
    reconnected = False
    # an earlier answer that this one differs from only in its id and its text, and its bytes
    whole: WholeAnswer | None = None
    _unparsed = b""
    parsing = False  # bytes of the answer have been parsed
    _plain: bytearray | None = None  # body of an answer that is not an event stream
    # for a body that is compressed although that was not requested
    _decode: DecodeBody | None = None
    is_between_events = True  # the bytes so far end with an event
    # in the chunks that `_text_chunk` matches
    _around_text: tuple[bytes, bytes, bytearray] | None = None
    _text_chunk: TextChunk | None = None  # None unless the next byte begins a chunk
    _stamp_text: Callable[[int], None]  # adds the time of a chunk, if there is a TextChunk

    def __init__(
        self, index: int, warmup: bool, body: bytes, *, due_ns: int = 0, stream: bool = True
    ) -> None:
        self.index = index
        self.warmup = warmup
        self.body = body
        self.due_ns = due_ns
        self.stream = stream

    @property
    def status(self) -> int:
        return self.response.status

    def accept_answer_like_earlier(self, whole: WholeAnswer, data: bytes, stamp_ns: int) -> None:
        """Accept the complete answer `data`. It differs from the earlier answer `whole` only in its
        id and its text, so it is parsed only if its text is wanted."""
        self.whole, self._unparsed = whole, data
        self.last_byte_ns = max(stamp_ns, self.last_byte_ns)

    def parsed_reply(self) -> Reply:
        """Return the reply of a complete answer, with its text."""
        if self._unparsed:
            self._parse_response_bytes(self._unparsed, self.last_byte_ns)
            self._unparsed = b""
        return self.reply

    @property
    def can_reuse_connection(self) -> bool:
        """Whether the connection may be used again after the complete answer."""
        if self.whole is not None:
            return self.whole.keep_alive
        return self.response.keep_alive and not self.response.rest

    @property
    def is_uncompressed_and_delimited(self) -> bool:
        """Whether the complete answer came uncompressed, and its end is known by its length or its
        last chunk and not by the end of the connection. No bytes follow it."""
        response = self.response
        return self._decode is None and not response.rest and not response.ends_at_close

    def receive_bytes(self, data: bytes, stamp_ns: int) -> None:
        """Parse bytes of the answer that arrived at `stamp_ns` (monotonic nanoseconds). No bytes
        (b"") mean that the server closed the connection. `response.complete` says whether the
        answer is complete. Raises HttpError or SseError for bytes that are not a valid answer."""
        if stamp_ns < self.last_byte_ns:  # a clock was set: time must not go back
            stamp_ns = self.last_byte_ns
        self.last_byte_ns = stamp_ns
        if self._text_chunk is not None and (count := self._text_chunk.count_text_chunks(data)):
            self.reply.stamps_ns.extend([stamp_ns] * count)
            self.reply.after_content = True
            return
        self._parse_response_bytes(data, stamp_ns)

    def try_receive_text_chunk(self, data: bytes, stamp_ns: int) -> bool:
        """Receive `data` if it is one chunk with nothing but one more piece of text, as most reads
        are, and return True. Otherwise change nothing and return False; `receive_bytes` must then
        parse it."""
        text_chunk = self._text_chunk
        if text_chunk is None or stamp_ns < self.last_byte_ns or not text_chunk.is_text_chunk(data):
            return False
        self.last_byte_ns = stamp_ns
        self._stamp_text(stamp_ns)
        return True

    def record_partial_read(self, since_ns: int, read_ns: int) -> None:
        """Record that a read at `read_ns` left bytes in the socket, of which the first may have
        come at `since_ns`. The server may have more that did not fit into the socket. So all later
        bytes of this answer may have come earlier than their times by as long as the socket was
        full."""
        self.held_since_ns = self.held_since_ns or since_ns
        self.held_ns = max(1, read_ns - self.held_since_ns)
        self._text_chunk = None

    def _parse_response_bytes(self, data: bytes, stamp_ns: int) -> None:
        self.parsing = True
        response = self.response
        had_head = response.status
        if data:
            body = response.feed(data)
        else:
            body = b""
            response.end_at_closed_connection()
        if not had_head and response.status:
            self._decode = make_body_decoder(response.headers.get("content-encoding", ""))
            if not self._is_event_stream():
                self._plain = bytearray()
        if self._decode is not None:
            body = self._decode(body, response.complete)
        if self._plain is not None:
            limit = _MAX_ANSWER_BYTES if self._is_unstreamed_answer() else _MAX_ERROR_BODY_BYTES
            self._plain += body[: limit - len(self._plain)]
        elif body:
            self.reply.feed(self._sse.feed(body), stamp_ns)
        if not response.complete:
            self._prepare_text_matching()
        elif self._plain is None:
            if not self._sse.is_between_events:
                self.reply.feed(self._sse.close(), stamp_ns)
        elif self._is_unstreamed_answer():
            self.reply.parse_unstreamed_body(bytes(self._plain))

    def _prepare_text_matching(self) -> None:
        """Prepare the fast path for the next chunk: set `_text_chunk` to an object that recognizes
        a chunk with nothing but one more piece of text. Set it to None if the next chunk may
        contain anything else."""
        self.is_between_events = self._sse.is_between_events
        aligned = (
            self.response.is_between_chunks
            and self.is_between_events
            and self._decode is None
            and not self.held_ns
        )
        around = self.reply.prefix_suffix_and_text_buffer if aligned else None
        if around is None:
            self._text_chunk = None
        elif self._text_chunk is None or around != self._around_text:
            self._around_text, self._text_chunk = around, TextChunk(*around)
            self._stamp_text = self.reply.stamps_ns.append

    def _is_event_stream(self) -> bool:
        kind = self.response.headers.get("content-type", "").lower()
        return (
            self.stream
            and self.status == 200
            and not kind.startswith(("application/json", "text/html"))
        )

    def _is_unstreamed_answer(self) -> bool:
        return not self.stream and self.status == 200

    def check_reply_and_set_error(
        self, asked_tokens: int | None, *, may_be_empty: bool = False
    ) -> None:
        """Check a complete answer: set `reply.error` to the kind of failure, or leave it None if
        the answer is correct. `asked_tokens` is the exact number of tokens that the answer must
        have, or None if any number is correct. `may_be_empty` says that tokens need no text."""
        self.reply.check_answer_and_set_error(
            asked_tokens,
            delimited=not (self.stream and self.response.ends_at_close),
            may_be_empty=may_be_empty,
        )

    def http_error(self) -> RequestFailure | None:
        """Return the failure of the request if the answer is an HTTP error, or if its form (event
        stream or JSON object) is not the requested one. Otherwise return None."""
        if self._plain is None or self._is_unstreamed_answer():
            return None
        if self.status != 200:
            return self._http_status_failure(self._plain)
        said = error_message_from_body(bytes(self._plain))
        if b'"error"' in self._plain:
            return RequestFailure(records.STREAM_ERROR, said)
        kind = self.response.headers.get("content-type", "")
        return RequestFailure(
            records.MALFORMED, f"the answer is {kind}, not an event stream: {said[:100]}"
        )

    def _http_status_failure(self, body: bytes | bytearray) -> RequestFailure:
        to = self.response.headers.get("location")
        if to:
            said = f"the server redirects to {to}; Workbench does not follow redirects"
        else:
            said = error_message_from_body(bytes(body)) or "the answer contains no message"
        return RequestFailure(f"http {self.status}", said)

    def describe_invalid_response(self, error: HttpError) -> RequestFailure:
        """Return the failure of the request for an answer that was cut off or became invalid with
        `error`."""
        if self.reply.error is not None:
            return RequestFailure(self.reply.error, self.reply.detail or "")
        if self._plain is not None and self.status != 200:
            return self._http_status_failure(self._plain)
        kind = records.MALFORMED
        if error.truncated:
            kind = records.TRUNCATED if self.response.received else records.CONNECTION_RESET
        return RequestFailure(kind, str(error))

    @property
    def is_newest_event_content(self) -> bool:
        """Whether the newest byte is the last one of a chunk with content."""
        return self.is_between_events and self.reply.after_content

    @property
    def has_few_chunks(self) -> bool:
        """Whether the answer has so few chunks that its record takes no more time than a few
        reads."""
        return self.whole is not None or len(self.reply.stamps_ns) <= _MAX_CHUNKS_OF_SHORT_ANSWER

    @property
    def has_content_begun(self) -> bool:
        """Whether the first content of the answer has arrived."""
        return bool(self.reply.stamps_ns or (self._is_unstreamed_answer() and self._plain))

    def record_end_by_time_limit(self, now_ns: int) -> None:
        """Record that a time limit ended the request at `now_ns`: its end becomes `now_ns`, and
        `silent_ns` the time since its last byte."""
        self.silent_ns, self.last_byte_ns = now_ns - self.last_byte_ns, now_ns

    def make_record(
        self, run_began_ns: int, error: str | None, detail: str | None
    ) -> RequestRecord:
        """Return the record of this request, which has ended, with its times since `run_began_ns`.
        `error` and `detail` say how it failed; None if it did not."""
        if self.whole is not None:
            return self.whole.make_record(self, run_began_ns)
        reply, sent = self.reply, self.sent_ns or self.began_ns
        stamps = reply.stamps_ns
        return RequestRecord(
            index=self.index,
            warmup=self.warmup,
            start_s=round((sent - run_began_ns) / 1e9, 6),
            end_us=max(0, self.last_byte_ns - sent) // 1000,
            error=error,
            detail=detail and clean_text(detail),
            ttft_us=(stamps[0] - sent) // 1000 if stamps else None,
            gaps_us=tuple(gap // 1000 for gap in map(sub, stamps[1:], stamps)),
            chunks=len(stamps),
            prompt_tokens=reply.prompt_tokens,
            output_tokens=reply.output_tokens,
            cached_tokens=reply.cached_tokens,
            first_tokens=reply.first_tokens,
            finish_reason=reply.finish_reason and clean_text(str(reply.finish_reason), NAME_CHARS),
            due_s=round((self.due_ns - run_began_ns) / 1e9, 6) if self.due_ns else None,
            reconnected=self.reconnected,
            without_done=self.stream and error is None and not reply.done,
            silent_us=self.silent_ns // 1000,
            unsure=tuple(self.unsure),
            send_us=self.send_ns // 1000,
            encoded=self._decode is not None,
        )

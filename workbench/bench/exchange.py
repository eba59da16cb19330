"""One request and what comes back for it: response bytes to events to reply, and the record made of them."""

from __future__ import annotations

from itertools import pairwise

from workbench.bench import records
from workbench.bench.content_encoding import Decode, decoder
from workbench.bench.http1 import HttpError, ResponseReader
from workbench.bench.records import RequestRecord
from workbench.bench.reply import Reply, error_text
from workbench.bench.sse import SseDecoder
from workbench.model.untrusted_text import NAME_CHARS, clean

_MAX_ERROR_BODY = 64 * 1024
_MAX_ANSWER = 64 * 1024 * 1024


class Exchange:
    """Times are monotonic nanoseconds. `due_ns`: scheduled for, 0 for at once; `began_ns`: connect or write, whichever
    came first; `sent_ns`: 0 before the write. `stream`: the answer is to be an event stream, else one JSON object."""

    def __init__(self, index: int, warmup: bool, body: bytes, *, due_ns: int = 0, stream: bool = True) -> None:
        self.index = index
        self.warmup = warmup
        self.body = body
        self.due_ns = due_ns
        self.stream = stream
        self.began_ns = 0
        self.sent_ns = 0
        self.last_byte_ns = 0
        self.silent_ns = 0  # after its last byte, when a time limit ended it
        self.reconnected = False
        self.response = ResponseReader()
        self.reply = Reply()
        self._sse = SseDecoder()
        self._plain: bytearray | None = None  # body of an answer that is no event stream
        self._decode: Decode | None = None  # of a body that is encoded though that was not asked for

    @property
    def status(self) -> int:
        return self.response.status

    def receive(self, data: bytes, stamp_ns: int) -> bool:
        """Bytes of the answer, b"" when the peer has closed. True when the answer is complete.
        Raises HttpError, SseError."""
        response = self.response
        stamp_ns = self.last_byte_ns = max(stamp_ns, self.last_byte_ns)  # where a clock was set: no time runs backwards
        had_head = response.status
        if data:
            body = response.feed(data)
        else:
            body = b""
            response.eof()
        if not had_head and response.status:
            self._decode = decoder(response.headers.get("content-encoding", ""))
            if not self._is_event_stream():
                self._plain = bytearray()
        if self._decode is not None:
            body = self._decode(body, response.complete)
        if self._plain is not None:
            self._plain += body[: (_MAX_ANSWER if self._is_answer() else _MAX_ERROR_BODY) - len(self._plain)]
        elif body:
            self.reply.feed(self._sse.feed(body), stamp_ns)
        if response.complete and self._plain is None:
            self.reply.feed(self._sse.close(), stamp_ns)
        elif response.complete and self._is_answer():
            self.reply.whole(bytes(self._plain or b""))
        return response.complete

    def _is_event_stream(self) -> bool:
        kind = self.response.headers.get("content-type", "").lower()
        return self.stream and self.status == 200 and not kind.startswith(("application/json", "text/html"))

    def _is_answer(self) -> bool:
        return not self.stream and self.status == 200

    def verdict(self, asked_tokens: int | None) -> None:
        """The answer is complete and of the asked form: whether it is whole stands in `reply.error`."""
        self.reply.verdict(asked_tokens, delimited=not (self.stream and self.response.until_close))

    def http_error(self) -> tuple[str, str] | None:
        """(kind, message) of an answer that is not of the asked form, None when it is."""
        if self._plain is None or self._is_answer():
            return None
        if self.status != 200:
            return self._status_error()
        said = error_text(bytes(self._plain))
        if b'"error"' in self._plain:
            return records.STREAM_ERROR, said
        kind = self.response.headers.get("content-type", "")
        return records.MALFORMED, f"the answer is {kind}, not an event stream: {said[:100]}"

    def _status_error(self) -> tuple[str, str]:
        to = self.response.headers.get("location")
        said = f"redirects to {to}, which is not followed" if to else error_text(bytes(self._plain or b""))
        return f"http {self.status}", said or "no message"

    def broken(self, error: HttpError) -> tuple[str, str]:
        """The kind of failure when the connection ended, or the bytes stopped making sense, at this point."""
        if self.reply.error is not None:
            return self.reply.error, self.reply.detail or ""
        if self._plain is not None and self.status != 200:
            return self._status_error()
        if not error.truncated:
            return records.MALFORMED, str(error)
        return (records.TRUNCATED if self.response.received else records.RESET), str(error)

    @property
    def begun(self) -> bool:
        """Content has come."""
        return bool(self.reply.stamps_ns or (self._is_answer() and self._plain))

    def ended_by_limit(self, now_ns: int) -> None:
        """A time limit ends it: it lasted until now, and was silent since its last byte."""
        self.silent_ns, self.last_byte_ns = now_ns - self.last_byte_ns, now_ns

    def record(self, run_began_ns: int, error: str | None, detail: str | None) -> RequestRecord:
        reply, sent = self.reply, self.sent_ns or self.began_ns
        stamps = reply.stamps_ns
        return RequestRecord(
            index=self.index,
            warmup=self.warmup,
            start_s=round((sent - run_began_ns) / 1e9, 6),
            end_us=max(0, self.last_byte_ns - sent) // 1000,
            error=error,
            detail=detail and clean(detail),
            ttft_us=(stamps[0] - sent) // 1000 if stamps else None,
            gaps_us=tuple((b - a) // 1000 for a, b in pairwise(stamps)),
            chunks=len(stamps),
            prompt_tokens=reply.prompt_tokens,
            output_tokens=reply.output_tokens,
            cached_tokens=reply.cached_tokens,
            first_tokens=reply.first_tokens,
            finish_reason=reply.finish_reason and clean(str(reply.finish_reason), NAME_CHARS),
            due_s=round((self.due_ns - run_began_ns) / 1e9, 6) if self.due_ns else None,
            reconnected=self.reconnected,
            without_done=self.stream and error is None and not reply.done,
            silent_us=self.silent_ns // 1000,
            encoded=self._decode is not None,
        )

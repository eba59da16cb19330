"""The content of a model's reply, parsed into text chunks with their receive times, finish reason,
token usage and errors.

Understands the OpenAI-compatible formats of vLLM, SGLang, llama.cpp, TabbyAPI and transformers. The
caller passes the receive times.
"""

from __future__ import annotations

import json
import re
from array import array
from typing import Any

from workbench.bench import records
from workbench.bench.kept_text import ShortenedText
from workbench.model.untrusted_text import clean_text

_CONTENT_KEYS = (
    *("content", "reasoning_content", "reasoning", "text", "refusal"),
    *("tool_calls", "function_call"),
)
_EMBEDDING_FINISH_REASON = "embedding"  # an embedding has no finish reason of its own
_MIN_TOKENS_WITH_TEXT = 4  # fewer may be an end mark or half a character, and have no text
_ENGINE_ABORT_REASONS = ("abort", "error")  # the engine ended the request, not the model
JSON_TEXT_PATTERN = rb'(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})+'
PLAIN_TEXT_BYTES = bytes(
    c for c in range(0x20, 0x7F) if c not in b'"\\'
)  # needs no escape in a JSON text
_UNMATCHED_PREFIX = b"\r"  # a prefix that no event has: the decoder removes each CR
_JSON_TEXT = re.compile(JSON_TEXT_PATTERN)
_decode_json = json.JSONDecoder().raw_decode
# What newest events without text say, by their bytes without the id: (usage, finish reason, model).
# Two answers differ only in their text, unless their lengths do.
_KNOWN_EVENTS: dict[bytes, tuple[dict[str, Any] | None, str | None, str | None]] = {}
_MAX_KNOWN_EVENTS = 64
_MAX_KNOWN_EVENT_BYTES = 4096
ID_FIELD = b'"id":"'
_CONTENT_FIELD = re.compile(
    rb'"(?:content|reasoning_content|reasoning|text)"\s*:\s*"(' + JSON_TEXT_PATTERN + rb')"'
)


class Reply:
    """The reply to one request. The first problem that makes the request fail sets `error` (kind of
    failure) and `detail` (message); later content is ignored."""

    def __init__(self) -> None:
        self.stamps_ns = array("q")  # receive stamps of chunks with content
        self.finish_reason: str | None = None
        self.done = False  # [DONE] has arrived
        self.usage: dict[str, Any] | None = None
        self.first_tokens: int | None = None
        self.error: str | None = None
        self.detail: str | None = None
        self.model: str | None = None  # as the reply reports it
        self.text, self.reasoning = ShortenedText(), ShortenedText()
        self.after_content = False  # the newest event had content
        self._id = b""  # the field with the id that its events have, if it is known
        self._has_content = False
        self._kept = self.text.raw  # where the text of the next event of the same form goes
        self._prefix = _UNMATCHED_PREFIX  # of an event that contains only text
        self._suffix = b""

    def feed(self, events: list[tuple[bytes, bytes]], stamp_ns: int) -> None:
        """Parse events that arrived at `stamp_ns` (monotonic nanoseconds). `events` are (event
        name, data) pairs of an event stream."""
        prefix, suffix, stamps = self._prefix, self._suffix, self.stamps_ns
        had = len(stamps)
        for name, data in events:
            had = len(stamps)
            # An event that differs from an already parsed content chunk only inside its text is a
            # content chunk too. Comparing bytes takes a fifth of the time of parsing JSON.
            if not name and data.startswith(prefix) and data.endswith(suffix):
                text = data[len(prefix) : len(data) - len(suffix)]
                if is_json_text(text):
                    stamps.append(stamp_ns)
                    self._kept += text
                    continue
            if self.error is None:
                self._parse_event(name, data, stamp_ns)
                prefix, suffix = self._prefix, self._suffix
        if events:
            self.after_content = len(stamps) > had

    @property
    def prefix_suffix_and_text_buffer(self) -> tuple[bytes, bytes, bytearray] | None:
        """The bytes before and after the text in the newest event that contained text, and the
        buffer to which the text of the next such event is appended. None if the next event may have
        other bytes around its text."""
        return (
            None if self._prefix is _UNMATCHED_PREFIX else (self._prefix, self._suffix, self._kept)
        )

    def trim_kept_text(self) -> None:
        """Drop the middle of a long text. Call this several times a second."""
        self.text.drop_middle_of_long_text()
        self.reasoning.drop_middle_of_long_text()

    def parse_unstreamed_body(self, body: bytes) -> None:
        """Parse the body of a reply that is not streamed, which is one JSON object."""
        if body.strip():
            self._parse_event(b"", body, 0)
        else:
            self._record_failure(records.MALFORMED, "the answer is empty")
        del self.stamps_ns[:]  # there are no chunks
        self.first_tokens = None

    def check_answer_and_set_error(
        self, asked_tokens: int | None, *, delimited: bool = True, may_be_empty: bool = False
    ) -> None:
        """Set `error` if the reply is incomplete or has the wrong length. Call this method once,
        after the last byte.

        `asked_tokens` is the exact number of tokens that the reply must have, or None if any number
        is right. `delimited` says whether the end of the HTTP body was marked (by its length or a
        last chunk). Without such a mark, the reply is complete only if it ends with [DONE].
        `may_be_empty` says that tokens need no text: random weights choose bytes that are no
        characters, and an engine sends none of them.
        """
        if self.error is not None:
            return
        if self.finish_reason is None:
            said = (
                "the reply ended with [DONE], but without a finish reason"
                if self.done
                else "the reply ended without a finish reason"
            )
            self._record_failure(records.TRUNCATED, said)
        elif not (delimited or self.done):
            self._record_failure(
                records.TRUNCATED, "the server closed the connection before [DONE]"
            )
        elif self.finish_reason in _ENGINE_ABORT_REASONS:
            self._record_failure(
                records.STREAM_ERROR,
                f"the engine ended the reply with finish reason {self.finish_reason}",
            )
        tokens = self.output_tokens
        if tokens is None:
            return
        if tokens >= _MIN_TOKENS_WITH_TEXT and not self._has_content and not may_be_empty:
            self._record_failure(
                records.NO_CONTENT, f"no content, although usage says {tokens} tokens"
            )
        if asked_tokens is None or tokens == asked_tokens:
            return
        kind = records.SHORT_ANSWER if tokens < asked_tokens else records.LONG_ANSWER
        self._record_failure(
            kind,
            f"the reply has {tokens} tokens, {asked_tokens} requested (finish reason "
            f"{self.finish_reason})",
        )

    @property
    def prompt_tokens(self) -> int | None:
        return _valid_token_count_or_none(self.usage, "prompt_tokens")

    @property
    def output_tokens(self) -> int | None:
        return _valid_token_count_or_none(self.usage, "completion_tokens")

    @property
    def cached_tokens(self) -> int | None:
        details = (self.usage or {}).get("prompt_tokens_details")
        return _valid_token_count_or_none(
            details if isinstance(details, dict) else None, "cached_tokens"
        )

    def _record_failure(self, kind: str, detail: str) -> None:
        """Set the failure of this reply, unless an earlier problem has set it."""
        if self.error is None:
            self.error, self.detail = kind, detail
            self._prefix = _UNMATCHED_PREFIX

    def _parse_event(self, name: bytes, data: bytes, stamp_ns: int) -> None:
        if not data.startswith(b"{"):
            stripped = data.strip()
            if stripped == b"[DONE]":
                self.done = True
                return
            if not stripped:
                return
        key = b"" if name else self._remove_event_id(data)
        if key in _KNOWN_EVENTS:
            self._update_usage_finish_and_model(*_KNOWN_EVENTS[key])
            return
        chunk = _parse_json(data)
        if name == b"error" or (
            isinstance(chunk, dict) and (chunk.get("error") or chunk.get("object") == "error")
        ):
            self._record_failure(records.STREAM_ERROR, error_message_from_body(data))
        elif not isinstance(chunk, dict):
            self._record_failure(
                records.MALFORMED,
                "an event of the reply is not a JSON object: "
                f"{data[:80].decode('utf-8', 'replace')}",
            )
        else:
            try:
                self._parse_completion_chunk(chunk, data, key, stamp_ns)
            except (TypeError, AttributeError, IndexError):
                self._record_failure(
                    records.MALFORMED,
                    "an event of the reply is not a completion chunk: "
                    f"{data[:80].decode('utf-8', 'replace')}",
                )

    def _remove_event_id(self, data: bytes) -> bytes:
        """Return the bytes of an event without the value of its id, which all events of this reply
        share. Return them unchanged if there is no id, and b"" if they are too many to be kept."""
        if len(data) > _MAX_KNOWN_EVENT_BYTES:
            return b""
        if not self._id:
            self._id = find_event_id_field(data)
        return data.replace(self._id, ID_FIELD, 1) if self._id else data

    def _update_usage_finish_and_model(
        self, usage: dict[str, Any] | None, finish_reason: str | None, model: str | None
    ) -> None:
        """Store what an event says beside its text. None keeps what earlier events said, and the
        first model stays."""
        self.usage = self.usage if usage is None else usage
        self.finish_reason = finish_reason or self.finish_reason
        self.model = self.model or model

    def _parse_completion_chunk(
        self, chunk: dict[str, Any], data: bytes, key: bytes, stamp_ns: int
    ) -> None:
        usage = chunk.get("usage")
        content = False
        finish_reason = None
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta") or choice.get("message") or {}
            content = content or _has_content(delta) or bool(choice.get("text"))
            self._store_text(delta, choice)
            finish_reason = choice.get("finish_reason") or finish_reason
        if any(entry.get("embedding") for entry in chunk.get("data") or ()):
            finish_reason = _EMBEDDING_FINISH_REASON
        copied_usage = None if usage is None else dict(usage.items())
        said = copied_usage, finish_reason, chunk.get("model")
        self._update_usage_finish_and_model(*said)
        if not content:
            _store_event_without_text(key, said)
            return
        self._has_content = True
        if not self.stamps_ns:
            self.first_tokens = _valid_token_count_or_none(usage, "completion_tokens")
        self.stamps_ns.append(stamp_ns)
        if usage is None and self.finish_reason is None:
            self._store_bytes_around_text(data)

    def _store_bytes_around_text(self, data: bytes) -> None:
        fields = list(_CONTENT_FIELD.finditer(data))
        if len(fields) == 1:
            start, end = fields[0].span(1)
            self._prefix, self._suffix = data[:start], data[end:]
            of_reasoning = fields[0][0].startswith(b'"reasoning')
            self._kept = (self.reasoning if of_reasoning else self.text).raw

    def _store_text(self, delta: dict[str, Any], choice: dict[str, Any]) -> None:
        """Store the text of an event that was parsed as JSON."""
        text = (
            delta.get("content") or delta.get("text") or delta.get("refusal") or choice.get("text")
        )
        if isinstance(text, str):
            self.text.add_text(text)
        reasoning = delta.get("reasoning_content") or delta.get("reasoning")
        if isinstance(reasoning, str):
            self.reasoning.add_text(reasoning)


def find_event_id_field(data: bytes) -> bytes:
    """Return the field with the id of an event, from its name to the end of its value; b"" if it
    has none, or one with other than plain characters."""
    at = data.find(ID_FIELD)
    end = data.find(b'"', at + len(ID_FIELD))
    if at < 0 or end < 0 or data[at + len(ID_FIELD) : end].translate(None, PLAIN_TEXT_BYTES):
        return b""
    return data[at : end + 1]


def _store_event_without_text(
    key: bytes, parsed: tuple[dict[str, Any] | None, str | None, str | None]
) -> None:
    """Store the usage, finish reason and model of an event without text, under its bytes without
    the id (`key`). An event with equal bytes is then not parsed again. An empty `key` stores
    nothing."""
    if key:
        if len(_KNOWN_EVENTS) >= _MAX_KNOWN_EVENTS:
            _KNOWN_EVENTS.clear()
        _KNOWN_EVENTS[key] = parsed


def _parse_json(data: bytes) -> Any:
    """Return the value of a JSON text, or None if it is not valid."""
    try:
        text = data.decode()
        value, end = _decode_json(text)
        if end == len(text):
            return value
    except (ValueError, RecursionError):
        pass
    try:
        return json.loads(data)  # which is slower, and knows spaces around it and other encodings
    except (ValueError, RecursionError):  # RecursionError: nested too deeply
        return None


def is_json_text(text: bytes) -> bool:
    """Return whether `text` is a non-empty ASCII text that is valid between the quotes of a JSON
    string."""
    if text and not text.translate(None, PLAIN_TEXT_BYTES):
        return True
    return text.isascii() and _JSON_TEXT.fullmatch(text) is not None


def _has_content(delta: dict[str, Any]) -> bool:
    return any(delta.get(key) for key in _CONTENT_KEYS)


def _valid_token_count_or_none(usage: dict[str, Any] | None, key: str) -> int | None:
    value = (usage or {}).get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def error_message_from_body(body: bytes) -> str:
    """Return the message in the body of an error answer, as one line of at most 300 characters.
    Understands {"error": {"message": …}}, {"detail": …}, {"message": …}, {"error_message": …} and
    plain text. Other JSON is returned as JSON."""
    text = clean_text(body, lines=True)
    try:
        found: Any = json.loads(body)
    except (ValueError, RecursionError):
        found = text
    for _ in range(4):
        if not isinstance(found, dict):
            break
        key = next(
            (k for k in ("error", "message", "detail", "error_message") if found.get(k)), None
        )
        if key is None:
            break
        found = found[key]
    said = found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)
    return " ".join(clean_text(said).split())[:300]

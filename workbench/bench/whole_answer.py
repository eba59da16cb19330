"""The fast path of the load client for short answers: recognizes an answer that arrives in one read
and differs from an answer before only in its id and its text.

Answers of one token, such as those that measure prefill or embeddings, are nearly all of this kind.
A comparison of bytes takes a tenth of the time of the parsers (http1.py, sse.py, reply.py), which
parse all other answers. Heads and events contain the second at which they were made, so the first
answers of each second are parsed.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from workbench.bench.records import RequestRecord
from workbench.bench.reply import ID_FIELD, JSON_TEXT_PATTERN, PLAIN_TEXT_BYTES, find_event_id_field
from workbench.model.untrusted_text import NAME_CHARS, clean_text

if TYPE_CHECKING:
    from workbench.bench.exchange import Exchange

_MAX_ANSWER_BYTES = 64 * 1024
_MAX_KNOWN_ANSWERS = 256  # lengths of answers
_MAX_LEARNED_PER_REFRESH = (
    32  # answers between two calls of `renew_store_allowance`: a server may vary something in each
)
_TEXT_FIELD = re.compile(
    rb'"(content|reasoning_content|reasoning|text|embedding)"\s*:\s*"(' + JSON_TEXT_PATTERN + rb')"'
)


class WholeAnswer:
    """An answer that was parsed: its token counts and finish reason, and its bytes before and after
    its id and its text."""

    def __init__(self, data: bytes, text: tuple[int, int], exchange: Exchange) -> None:
        reply = exchange.reply
        own_id = find_event_id_field(data)
        self._id_begin = data.find(own_id) if own_id else 0
        self._id_end = self._id_begin + len(own_id)
        self._before, self._after = (
            _remove_id_value(own_id, data[: text[0]]),
            _remove_id_value(own_id, data[text[1] :]),
        )
        self._bare_bytes = len(self._before) + text[1] - text[0] + len(self._after)
        self.keep_alive = exchange.response.keep_alive
        self.output_tokens = reply.output_tokens
        self._prompt_tokens, self._cached_tokens = reply.prompt_tokens, reply.cached_tokens
        self._first_tokens = reply.first_tokens
        self._finish_reason = clean_text(str(reply.finish_reason), NAME_CHARS)
        self._without_done = exchange.stream and not reply.done
        self._chunks = len(reply.stamps_ns)

    def differs_only_in_id_and_text(self, data: bytes) -> bool:
        """Return whether `data`, which has the length of this answer, differs from it only in the
        id and the text, and both need no escape in JSON."""
        own_id = data[self._id_begin : self._id_end]
        bare = _remove_id_value(own_id, data)
        if (
            len(bare) != self._bare_bytes
            or not bare.startswith(self._before)
            or not bare.endswith(self._after)
        ):
            return False
        free = bare[len(self._before) : len(bare) - len(self._after)]
        if own_id:
            if not (own_id.startswith(ID_FIELD) and own_id.endswith(b'"')):
                return False
            free += own_id[len(ID_FIELD) : -1]
        return not free.translate(None, PLAIN_TEXT_BYTES)

    def make_record(self, exchange: Exchange, run_began_ns: int) -> RequestRecord:
        """Return the record of a request whose answer differs from this one only in its id and
        text."""
        sent_ns, due_ns = exchange.sent_ns, exchange.due_ns
        took_us = (exchange.last_byte_ns - sent_ns) // 1000
        return RequestRecord(
            index=exchange.index,
            warmup=exchange.warmup,
            start_s=round((sent_ns - run_began_ns) / 1e9, 6),
            end_us=took_us,
            ttft_us=took_us if self._chunks else None,
            chunks=self._chunks,
            prompt_tokens=self._prompt_tokens,
            output_tokens=self.output_tokens,
            cached_tokens=self._cached_tokens,
            first_tokens=self._first_tokens,
            finish_reason=self._finish_reason,
            due_s=round((due_ns - run_began_ns) / 1e9, 6) if due_ns else None,
            reconnected=exchange.reconnected,
            without_done=self._without_done,
            send_us=exchange.send_ns // 1000,
        )


class WholeAnswers:
    """The newest answers of a run that came in one read, one for each length."""

    def __init__(self) -> None:
        self._by_length: dict[int, WholeAnswer] = {}
        self._to_learn = _MAX_LEARNED_PER_REFRESH

    def renew_store_allowance(self) -> None:
        """Allow `store_answer` to store up to 32 answers until the next call. Call this several
        times a second, so that storing takes little time of each second."""
        self._to_learn = _MAX_LEARNED_PER_REFRESH

    def find_answer(self, data: bytes) -> WholeAnswer | None:
        """Return the answer that `data` differs from only in its id and its text; None if there is
        none, and `data` must be parsed."""
        known = self._by_length.get(len(data))
        return known if known is not None and known.differs_only_in_id_and_text(data) else None

    def store_answer(self, data: bytes, exchange: Exchange) -> None:
        """Store the answer `data`, which was parsed and is correct. Do nothing if it has several
        chunks, is large, or cannot be compared with later answers, or if too many were stored
        lately."""
        if (
            not self._to_learn
            or len(data) > _MAX_ANSWER_BYTES
            or not exchange.is_uncompressed_and_delimited
        ):
            return
        self._to_learn -= 1
        text = _text_start_and_end(data, exchange)
        if text is not None:
            if len(self._by_length) >= _MAX_KNOWN_ANSWERS:
                self._by_length.clear()
            self._by_length[len(data)] = WholeAnswer(data, text, exchange)


def _text_start_and_end(data: bytes, exchange: Exchange) -> tuple[int, int] | None:
    """Return where the text of an answer begins and ends in `data`. None if it is not in one place,
    or needs escapes. An answer without text has an empty one at its end."""
    reply = exchange.reply
    kept = bytes(reply.text.raw + reply.reasoning.raw)
    fields = list(_TEXT_FIELD.finditer(data))
    if len(reply.stamps_ns) > 1 or len(fields) > 1:
        return None
    if not fields:
        return None if kept or reply.stamps_ns else (len(data), len(data))
    ((name, text),) = (field.groups() for field in fields)
    expected = text if name != b"embedding" else b""
    plain = not text.translate(None, PLAIN_TEXT_BYTES)
    return fields[0].span(2) if plain and kept == expected else None


def _remove_id_value(own_id: bytes, data: bytes) -> bytes:
    """Return `data` without the values of the fields `own_id`."""
    return data.replace(own_id, ID_FIELD) if own_id else data

"""Conversations in ShareGPT's form as a trace: each answered question is a request, which contains
all that was said before it."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from workbench.bench.prompt_file import parse_sharegpt_turn
from workbench.model.errors import InputError
from workbench.model.untrusted_numbers import parser_error_message

_READ_CHUNK_BYTES = 1 << 18  # bytes of a file that are read at once
_MAX_ENTRY_CHARACTERS = 1 << 23  # characters of one conversation
_MAX_TEXT_CHARACTERS = 1 << 28  # characters of all of them
_ASCII_PER_TOKEN, _NON_ASCII_PER_TOKEN = 4.0, 1.5
EXPECTED_FORM = (
    'give conversations as ShareGPT distributes them: {"conversations": [{"from": "human", "value": '
    '"…"}, {"from": "gpt", "value": "…"}]}, one a line or in one JSON array'
)


class Turn(NamedTuple):
    """One request of a conversation. `before` is the index of the request before it, None for the
    first one, and `messages` are the messages since that request. `input_tokens` are about the
    tokens of the whole prompt, `reused_tokens` those that the request before had too, and
    `output_tokens` those of the recorded answer."""

    before: int | None
    output_tokens: int
    messages: list[dict[str, Any]]
    input_tokens: int
    reused_tokens: int


def read_turns(path: Path, entries: Iterator[tuple[str, Any]], max_turns: int) -> list[Turn]:
    """Return the first `max_turns` requests of the conversations in `entries`, which are (place in
    the file, decoded JSON). Raises InputError for an entry that is no conversation."""
    turns: list[Turn] = []
    characters = 0
    for place, entry in entries:
        try:
            found = _requests_of_conversation(entry, len(turns))
            characters += len(json.dumps([turn.messages for turn in found], ensure_ascii=False))
        except (ValueError, RecursionError) as error:
            raise InputError(f"{place}: {error}", next_step=EXPECTED_FORM) from None
        if characters > _MAX_TEXT_CHARACTERS:
            raise InputError(
                f"{place}: the conversations have more than {_MAX_TEXT_CHARACTERS >> 20} Mi characters",
                next_step="give --first N to use only the first N requests",
            )
        turns += found
        if len(turns) >= max_turns:
            return turns[:max_turns]
    if not turns:
        raise InputError(f"{path} contains no answered question", next_step=EXPECTED_FORM)
    return turns


_CONVERSATION_FIELDS = ("conversations", "conversation")


def is_conversation(entry: Any) -> bool:
    return isinstance(entry, dict) and not entry.keys().isdisjoint(_CONVERSATION_FIELDS)


def _requests_of_conversation(entry: Any, first_index: int) -> list[Turn]:
    """Return the requests of one conversation: one for each answered question. `first_index` is the
    index of the first of them in the trace. Raises ValueError for an entry that is no
    conversation."""
    if not is_conversation(entry):
        raise ValueError("the entry is no conversation")
    said = entry.get("conversations", entry.get("conversation"))
    if not isinstance(said, list):
        raise ValueError("the conversation is not a list")
    messages = [parse_sharegpt_turn(one) for one in said]
    for message in messages:
        message["content"].encode()  # half of a character (a lone surrogate) cannot be sent
    turns: list[Turn] = []
    new: list[dict[str, Any]] = []
    before, tokens, reused = None, 0, 0
    for message in messages:
        text, asked = message["content"], any(one["role"] == "user" for one in new)
        answers = message["role"] == "assistant"
        if answers and asked and text.strip():
            answer_tokens = estimate_tokens(text)
            turns.append(Turn(before, answer_tokens, new, tokens, reused))
            before, reused = first_index + len(turns) - 1, tokens
            new = []
        elif answers and not turns:
            continue  # an answer to a question that the file does not have
        new.append(message)
        tokens += estimate_tokens(text)
    return turns


def estimate_tokens(text: str) -> int:
    """Return about how many tokens a text has."""
    others = sum(not sign.isascii() for sign in text)
    return max(1, round((len(text) - others) / _ASCII_PER_TOKEN + others / _NON_ASCII_PER_TOKEN))


def iterate_array_entries(path: Path, file: BinaryIO) -> Iterator[tuple[str, Any]]:
    """Yield (place, decoded JSON object) for each entry of the JSON array in a file. Only as much
    of the file is read as is used. Raises InputError for an entry that is no JSON object."""
    decoder = json.JSONDecoder()
    utf_8 = codecs.getincrementaldecoder("utf-8-sig")()
    buffer, at, number, more = "", 0, 1, _READ_CHUNK_BYTES
    opened = False
    while True:
        place = f"{path}: entry {number}"
        while at < len(buffer) and (buffer[at].isspace() or buffer[at] == "," or not opened):
            opened = opened or buffer[at] == "["
            at += 1
        try:
            if buffer.startswith("]", at):
                return
            value, at = decoder.raw_decode(buffer, at)
            if not isinstance(value, dict):
                raise InputError(f"{place}: the entry is no conversation", next_step=EXPECTED_FORM)
            yield place, value
            number, more = number + 1, _READ_CHUNK_BYTES
        except RecursionError:
            raise InputError(
                f"{place}: the JSON is nested too deeply", next_step=EXPECTED_FORM
            ) from None
        except json.JSONDecodeError as error:
            read, cut = "", f"not JSON: {error.msg}"
            try:
                if len(buffer) - at <= _MAX_ENTRY_CHARACTERS:
                    read, cut = _read_decoded_text(file, utf_8, more), "the file ends in it"
            except UnicodeDecodeError:
                cut = "the file is not UTF-8"
            if not read:
                raise InputError(f"{place}: {cut}", next_step=EXPECTED_FORM) from None
            buffer, at, more = buffer[at:] + read, 0, 2 * more
        except ValueError as error:
            raise InputError(
                f"{place}: {parser_error_message(error)}", next_step=EXPECTED_FORM
            ) from None


def _read_decoded_text(file: BinaryIO, utf_8: codecs.IncrementalDecoder, max_bytes: int) -> str:
    """Return the next text of a file, of at least one character. "" at its end."""
    text = ""
    while not text:
        data = file.read(max_bytes)
        text = utf_8.decode(data, final=not data)
        if not data:
            break
    return text


def turns_as_trace_entries(turns: Sequence[Turn]) -> tuple[str, ...]:
    """Return the values of BenchSpec.trace for the requests of conversations."""
    return tuple(
        json.dumps([turn.before, turn.output_tokens, turn.messages], ensure_ascii=False)
        for turn in turns
    )

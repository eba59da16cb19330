"""Files of recorded traffic: the times and lengths of requests, and which of them share a prefix.

The format is found by the content of the file: Mooncake JSONL (`timestamp` in ms, `input_length`,
`output_length`, `hash_ids`, and for turns of a session `session_id` and `delay`), the CSV of
Azure's LLM inference traces (2023 and 2024), the CSV of BurstGPT, and the conversations of
ShareGPT, which have text but no times. Only as many lines are read as are used.
"""

from __future__ import annotations

import csv
import hashlib
import json
import re
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn, TypeVar

from workbench.bench.trace_conversations import (
    Turn,
    is_conversation,
    iterate_array_entries,
    read_turns,
    turns_as_trace_entries,
)
from workbench.model.counts import count_of
from workbench.model.errors import InputError, error_reason
from workbench.model.lazy_dataclass import dataclass
from workbench.model.untrusted_numbers import parser_error_message
from workbench.model.untrusted_text import unique_json_object

MOST_REQUESTS = 200_000
_MOST_LINE_BYTES = 1 << 20
_MOST_TOKENS = 2_000_000  # of one prompt or answer
_MOST_HASHES = 8_000_000  # of all prompts; 128 million tokens in the blocks of a capture
_MAX_TIME = 1e15  # in the unit of the file
_HEAD_BYTES = 4096
_BOM = b"\xef\xbb\xbf"
_LARGE_NUMBER = 1_000_000_000
_WHOLE_NUMBER = re.compile(r"-?[0-9]+")
_BLOCK_TOKENS = 512  # of a Mooncake trace,
_BLOCK_SIZES = (16, 32, 64, 128, 256, _BLOCK_TOKENS, 1024, 2048)  # and of traces of the same form
_MOONCAKE_FIELDS = ("timestamp", "input_length", "output_length")
_EXPECTED_FORM = (
    'give a Mooncake trace (JSON lines such as {"timestamp": 0, "input_length": 655, '
    '"output_length": 52, "hash_ids": [0, 1]}), or a CSV file with the columns '
    "TIMESTAMP,ContextTokens,GeneratedTokens (Azure) or Timestamp,Request tokens,Response tokens "
    "(BurstGPT), or the conversations of ShareGPT"
)


@dataclass(frozen=True, slots=True)
class Trace:
    """The traffic that a file describes. `requests` are the values for BenchSpec.trace, and `name`
    is stored with a result. `seconds` is the time from the first request to the last one, None for
    conversations. `conversations` is their number, 0 for other traces. `reuse` is
    the share of the prompt tokens that a prefix cache without limit would reuse. The tokens are
    means over the requests, rounded."""

    requests: tuple[str, ...]
    name: str
    seconds: float | None
    reuse: float
    input_tokens: int
    output_tokens: int
    conversations: int = 0


class _TraceRow(NamedTuple):
    """A line of a trace. `hashes` are those of the blocks of its prompt. A turn of a session begins
    `delay_s` after the answer of row `before`. If it `adds` to the prompt, it has no time of its
    own (`at_s` is 0), and `input_tokens` and `hashes` are what comes after that prompt and its
    answer."""

    at_s: float
    input_tokens: int
    output_tokens: int
    hashes: Sequence[int] = ()
    session: str = ""
    delay_s: float | None = None
    before: int | None = None
    adds: bool = False


ParseRow = Callable[[str], _TraceRow]
Parsed = TypeVar("Parsed")


def read_trace(path: str | Path, first: int | None = None) -> Trace:
    """Return the traffic in the file at `path`, or only its `first` requests. Rows without prompt
    or answer tokens, which are failed requests, are left out, and with them the later turns of
    their session that add to their prompts. Raises InputError if the file cannot be read or
    contains an invalid row; the message then names the line."""
    path = Path(path)
    most = MOST_REQUESTS if first is None else min(first, MOST_REQUESTS)
    rows: list[_TraceRow] = []
    sessions = _SessionRows(rows)
    blocks = _BlockSize()
    numbers = _BlockNumbers()
    empty = unknown = hashes = 0
    try:
        if not path.is_file():
            # a pipe would be waited for without end, and a device has no end
            what = "is not a regular file" if path.exists() else "does not exist"
            raise InputError(f"{path} {what}", next_step="check the file given by --trace")
        with path.open("rb") as file:
            talks = _conversation_entries_or_none(path, file)
            if talks is not None:
                return _create_trace_from_turns(path, read_turns(path, talks, most))
            parse, form, lines = _detect_parser_form_and_lines(path, file)
            for number, line in lines:
                row = _parse_line(path, number, parse, line)
                if not row.input_tokens or not row.output_tokens:
                    empty += 1
                    sessions.record_row_without_tokens(row)
                    continue
                if sessions.is_prompt_unknown(row):
                    unknown += 1
                    continue
                if len(rows) == most:
                    if first is None:
                        raise InputError(
                            f"{path}:{number}: the trace has more than {MOST_REQUESTS:,} requests",
                            next_step="give --first N to use its first N requests",
                        )
                    break
                hashes += len(row.hashes)
                if hashes > _MOST_HASHES:
                    raise InputError(
                        f"{path}:{number}: the trace has more than {_MOST_HASHES:,} hash_ids",
                        next_step="give --first N to use its first N requests",
                    )
                blocks.exclude_unfitting_sizes(path, number, row)
                sessions.add_row_with_time(
                    path, number, row._replace(hashes=numbers.block_numbers_of_hashes(row.hashes))
                )
    except OSError as error:
        raise InputError(
            f"{path} cannot be read: {error_reason(error)}",
            next_step="check the file given by --trace",
        ) from None
    if not rows:
        raise InputError(f"{path} contains no request", next_step=_EXPECTED_FORM)
    return _create_trace_from_rows(
        path,
        form,
        _sort_rows_by_time(rows),
        _PromptBlocks(blocks.tokens_per_block, numbers),
        (empty, unknown),
    )


class _SessionRows:
    """Adds rows to `rows`, and finds the row before each turn of a session."""

    def __init__(self, rows: list[_TraceRow]) -> None:
        self._rows = rows
        self._latest: dict[str, int] = {}  # the newest row of each session
        self._broken: set[str] = set()  # sessions whose newest turn was left out

    def record_row_without_tokens(self, row: _TraceRow) -> None:
        """Record that a row of a session is left out, because it has no tokens. So are the turns
        that add to its prompt. A row without a session changes nothing."""
        if row.session:
            self._broken.add(row.session)

    def is_prompt_unknown(self, row: _TraceRow) -> bool:
        """Return whether a row adds to the prompt of a turn that was left out. Without that turn
        its prompt would be too short."""
        return row.adds and row.session in self._broken

    def add_row_with_time(self, path: Path, line_number: int, row: _TraceRow) -> None:
        """Add a row with the time at which its request begins. A turn of a session begins after the
        turn before it. Raises InputError for a row whose time or prompt is unknown."""
        before = self._latest.get(row.session)
        if before is None:
            if row.adds and not row.session:
                _raise_line_error(path, line_number, "the request has no timestamp")
            row = row._replace(adds=False)
        elif row.delay_s is not None:
            # at the end of its pause, or at its timestamp if that is later
            after_pause_s = self._rows[before].at_s + row.delay_s
            row = row._replace(before=before, at_s=max(row.at_s, after_pause_s))
        elif row.hashes:
            row = row._replace(adds=False)
        else:
            _raise_line_error(
                path,
                line_number,
                f"the request is a turn of the session {row.session!r:.40} and has neither a delay "
                "nor hash_ids, so the trace does not say what its prompt contains",
            )
        if row.session:
            self._broken.discard(row.session)
            self._latest[row.session] = len(self._rows)
        self._rows.append(row)


def _sort_rows_by_time(rows: Sequence[_TraceRow]) -> list[_TraceRow]:
    """Return the rows in the order of their times. A turn comes after the turn that it follows."""
    order = sorted(range(len(rows)), key=lambda number: rows[number].at_s)
    ordered = [rows[number] for number in order]
    if all(row.before is None for row in rows):
        return ordered
    places = {number: place for place, number in enumerate(order)}
    for place, row in enumerate(ordered):
        if row.before is not None:
            ordered[place] = row._replace(before=places[row.before])
    return ordered


def _create_trace_from_rows(
    path: Path,
    form: str,
    rows: Sequence[_TraceRow],
    prompts: _PromptBlocks,
    left_out: tuple[int, int],
) -> Trace:
    """Return the trace that consists of these rows, which are in the order of their times.
    `left_out` has the number of rows without tokens, and of later turns that add to such rows."""
    begin_s = rows[0].at_s
    prompt_tokens = sum(
        [prompts.add_prompt_and_count_tokens(place, row) for place, row in enumerate(rows)]
    )
    requests = tuple(
        _format_request(place, row, begin_s, prompts) for place, row in enumerate(rows)
    )
    digest = hashlib.sha256("\n".join(requests).encode()).hexdigest()[:12]
    turns = sum(row.before is not None for row in rows)
    size = count_of(len(rows), "request")
    if turns:
        size += f", {count_of(turns, 'later turn')} of sessions"
    return Trace(
        requests=requests,
        name=f"{path.name} ({size}, {form}{_left_out_rows_text(*left_out)}, sha256 {digest})",
        seconds=round(rows[-1].at_s - begin_s, 6),
        reuse=round(prompts.reused_tokens / prompt_tokens, 6),
        input_tokens=max(1, round(prompt_tokens / len(rows))),
        output_tokens=max(1, round(sum(row.output_tokens for row in rows) / len(rows))),
    )


def _format_request(row_index: int, row: _TraceRow, begin_s: float, prompts: _PromptBlocks) -> str:
    """Return a request as the value of BenchSpec.trace has it."""
    text = f"[{_start_or_pause_s(row, begin_s)},{row.output_tokens},{prompts.format_blocks_as_json(row_index, row)}"
    if row.before is not None:
        text += f",{row.before}"
    return f"{text}]"


def _left_out_rows_text(empty: int, unknown: int) -> str:
    if not empty:
        return ""
    text = f", {count_of(empty, 'row')} without tokens left out"
    if unknown:
        turns = count_of(unknown, "later turn that adds", "later turns that add")
        text += f", and {turns} to such rows"
    return text


def _start_or_pause_s(row: _TraceRow, begin_s: float) -> float:
    """Return the time of a request after the first one, or the pause before a later turn, in
    seconds."""
    if row.before is None:
        return round(row.at_s - begin_s, 6)
    return round(row.delay_s or 0.0, 6)


def _conversation_entries_or_none(path: Path, file: BinaryIO) -> Iterator[tuple[str, Any]] | None:
    """Return (place, decoded JSON) of each entry of a file of conversations. None for a file of
    another format, which is then read from its beginning again."""
    head = file.read(_HEAD_BYTES).removeprefix(_BOM).lstrip()
    file.seek(0)
    if head.startswith(b"["):
        return iterate_array_entries(path, file) if b"\0" not in head else None
    if not head.startswith(b"{"):
        return None
    _, line = next(_numbered_lines(path, file))
    file.seek(0)
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        entry = None  # reported with the other lines
    return _decode_json_lines(path, file) if is_conversation(entry) else None


def _decode_json_lines(path: Path, file: BinaryIO) -> Iterator[tuple[str, Any]]:
    """Yield (place, decoded JSON) for each line of a file."""
    for number, line in _numbered_lines(path, file):
        yield f"{path}:{number}", _parse_line(path, number, json.loads, line)


def _create_trace_from_turns(path: Path, turns: Sequence[Turn]) -> Trace:
    requests = turns_as_trace_entries(turns)
    digest = hashlib.sha256("\n".join(requests).encode()).hexdigest()[:12]
    talks = sum(turn.before is None for turn in turns)
    prompt_tokens = sum(turn.input_tokens for turn in turns)
    size = f"{count_of(len(turns), 'request')}, {count_of(talks, 'conversation')}"
    return Trace(
        requests=requests,
        name=f"{path.name} ({size}, ShareGPT, sha256 {digest})",
        seconds=None,
        reuse=round(sum(turn.reused_tokens for turn in turns) / prompt_tokens, 6),
        input_tokens=max(1, round(prompt_tokens / len(turns))),
        output_tokens=max(1, round(sum(turn.output_tokens for turn in turns) / len(turns))),
        conversations=talks,
    )


# ---- the lines of a file


def _detect_parser_form_and_lines(
    path: Path, file: BinaryIO
) -> tuple[ParseRow, str, Iterator[tuple[int, str]]]:
    """Return the function that parses a line, the name of the format, and the numbered lines,
    without the header of a CSV file. Raises InputError if the file is empty or its first line fits
    no known format."""
    lines = _numbered_lines(path, file)
    first = next(lines, None)
    if first is None:
        raise InputError(f"{path} is empty", next_step=_EXPECTED_FORM)
    number, text = first
    if text.startswith("{"):
        return _parse_mooncake_line, "Mooncake", chain([first], lines)
    header = [cell.strip().casefold() for cell in _parse_line(path, number, _split_cells, text)]
    for form, columns, seconds in (
        ("Azure", ("timestamp", "contexttokens", "generatedtokens"), _parse_azure_seconds),
        ("BurstGPT", ("timestamp", "request tokens", "response tokens"), _parse_plain_seconds),
    ):
        if set(columns) <= set(header):
            places = [header.index(column) for column in columns]
            return _make_csv_parser(places, len(header), seconds), form, lines
    raise InputError(
        f"{path}:{number}: the line is neither a JSON object nor the header of a known CSV file",
        next_step=_EXPECTED_FORM,
    )


def _numbered_lines(path: Path, file: BinaryIO) -> Iterator[tuple[int, str]]:
    """Yield (number, text) for each line that is not blank."""
    number = 0
    while True:
        number += 1
        data = file.readline(_MOST_LINE_BYTES + 1)
        if not data:
            return
        if len(data) > _MOST_LINE_BYTES:
            _raise_line_error(path, number, f"the line is longer than {_MOST_LINE_BYTES >> 20} MiB")
        if number == 1:
            data = data.removeprefix(_BOM)
        if b"\0" in data:
            _raise_line_error(path, number, "the file is binary")
        try:
            text = data.decode("utf-8").strip()
        except UnicodeDecodeError:
            _raise_line_error(path, number, "the line is not UTF-8")
        if text:
            yield number, text


def _raise_line_error(path: Path, number: int, why: str) -> NoReturn:
    raise InputError(f"{path}:{number}: {why}", next_step=_EXPECTED_FORM)


def _parse_line(path: Path, number: int, parse: Callable[[str], Parsed], line: str) -> Parsed:
    """Return what `parse` makes of line `number` of a file. Raises InputError for an invalid
    line."""
    try:
        return parse(line)
    except RecursionError:
        _raise_line_error(path, number, "the JSON is nested too deeply")
    except json.JSONDecodeError as error:
        _raise_line_error(path, number, f"not JSON: {error.msg} at column {error.colno}")
    except ValueError as error:
        _raise_line_error(path, number, parser_error_message(error))
    except csv.Error as error:
        _raise_line_error(path, number, str(error))


def _split_cells(line: str) -> list[str]:
    return next(csv.reader([line]))


# ---- one row


def _parse_mooncake_line(line: str) -> _TraceRow:
    fields = _decode_json(line)
    if not isinstance(fields, dict):
        raise ValueError("the request is not a JSON object")
    session, at, delay = map(fields.get, ("session_id", "timestamp", "delay"))
    needed = _MOONCAKE_FIELDS if session is None else ("input_length", "output_length")
    for name in needed:
        if name not in fields:
            found = ", ".join(map(str, fields)) or "no fields"
            raise ValueError(f"the request has no {name}; its fields are {found:.200}")
    if session is not None:
        if type(session) not in (str, int):
            raise ValueError(f"the session_id is {session!r:.40}, which is no text or whole number")
        session = str(session)
    hashes = fields.get("hash_ids") or ()
    if not isinstance(hashes, list | tuple):
        raise ValueError("hash_ids is not a list")
    for one in hashes:
        if type(one) is not int or one < 0:
            raise ValueError(
                f"hash_ids contains {one!r:.40}, but needs whole numbers of at least 0"
            )
    return _TraceRow(
        0.0 if at is None else _require_valid_time(at, "timestamp") / 1000,
        _require_valid_token_count(fields["input_length"], "input_length"),
        _require_valid_token_count(fields["output_length"], "output_length"),
        hashes,
        session=session or "",
        delay_s=None if delay is None else _require_valid_time(delay, "delay") / 1000,
        adds=at is None,  # as AIPerf writes turns; a capture gives whole prompts with their times
    )


def _make_csv_parser(
    column_indexes: Sequence[int], columns: int, seconds: Callable[[str], float]
) -> ParseRow:
    at, prompt, answer = column_indexes

    def parse(line: str) -> _TraceRow:
        cells = _split_cells(line)
        if len(cells) != columns:
            raise ValueError(f"the line has {count_of(len(cells), 'column')} instead of {columns}")
        return _TraceRow(
            seconds(cells[at].strip()),
            _parse_token_count(cells[prompt], "number of prompt tokens"),
            _parse_token_count(cells[answer], "number of answer tokens"),
        )

    return parse


def _parse_token_count(cell: str, name: str) -> int:
    digits = cell.strip()
    if not _WHOLE_NUMBER.fullmatch(digits):
        raise ValueError(f"the {name} is {digits!r:.40}, which is no whole number")
    return _require_valid_token_count(int(digits[:30]), name)


def _parse_azure_seconds(text: str) -> float:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"the time {text!r:.60} is no date and time") from None
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    return at.timestamp()


def _parse_plain_seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        raise ValueError(f"the time {text!r:.40} is no number") from None
    return _require_valid_time(seconds, "time")


def _require_valid_time(value: Any, name: str) -> float:
    if type(value) not in (int, float):
        raise ValueError(f"the {name} is {value!r:.40}, which is no number")
    if not abs(value) <= _MAX_TIME:  # so is what is no number (NaN)
        raise ValueError(f"the {name} {value!r:.40} is too large")
    if value < 0:
        raise ValueError(f"the {name} {value!r:.40} is negative")
    return float(value)


def _require_valid_token_count(value: Any, name: str) -> int:
    if type(value) is not int:
        raise ValueError(f"the {name} is {value!r:.40}, which is no whole number")
    if value < 0:
        raise ValueError(f"the {name} {value!r:.40} is negative")
    if value > _MOST_TOKENS:
        raise ValueError(f"the {name} {value!r:.40} is larger than {_MOST_TOKENS:,}")
    return value


_decode_json = json.JSONDecoder(
    object_pairs_hook=unique_json_object
).decode  # `json.loads` would make one a line


# ---- the blocks of the prompts


class _BlockSize:
    """Finds the size of the blocks that the hashes of a file stand for: each prompt has one hash
    for each block, or one for each full block."""

    def __init__(self) -> None:
        self._possible: Sequence[int] = _BLOCK_SIZES

    def exclude_unfitting_sizes(self, path: Path, line_number: int, row: _TraceRow) -> None:
        """Exclude the block sizes for which the number of a row's hashes does not fit the length of
        its prompt. Raises InputError if none is left."""
        if not row.hashes:
            return
        many, tokens = len(row.hashes), row.input_tokens
        fitting = tuple(
            size for size in self._possible if many in (tokens // size, -(-tokens // size))
        )
        if not fitting:
            _raise_line_error(
                path,
                line_number,
                f"{count_of(many, 'hash', 'hashes')} for {tokens:,} prompt tokens: the blocks of "
                f"the lines before have {_format_block_sizes(self._possible)} tokens",
            )
        self._possible = fitting

    @property
    def tokens_per_block(self) -> int:
        return _BLOCK_TOKENS if _BLOCK_TOKENS in self._possible else self._possible[-1]


def _format_block_sizes(sizes: Sequence[int]) -> str:
    if len(sizes) == 1:
        return str(sizes[0])
    return f"one of {', '.join(map(str, sizes))}"


class _BlockNumbers:
    """Gives each hash a number below 2^40, its own if it is small, and numbers to blocks without a
    hash."""

    def __init__(self) -> None:
        self._large: dict[int, int] = {}
        self._without_hash = 0

    def block_numbers_of_hashes(self, hashes: Sequence[int]) -> Sequence[int]:
        """Return the block number of each hash, as an array of 64-bit numbers. () without
        hashes."""
        if not hashes:
            return ()
        if max(hashes) < _LARGE_NUMBER:
            return array("Q", hashes)
        return array(
            "Q", [one if one < _LARGE_NUMBER else self._renumber_hash(one) for one in hashes]
        )

    def _renumber_hash(self, hash_id: int) -> int:
        return self._large.setdefault(hash_id, _LARGE_NUMBER + len(self._large))

    def number_block_without_hash(self) -> int:
        """Return the number of a block that no other prompt has."""
        self._without_hash += 1
        return 2 * _LARGE_NUMBER + self._without_hash


@dataclass(slots=True)
class _SessionPrompt:
    """The prompt of a row of a session: the last node of its blocks, its tokens and those of its
    answer, the blocks that it adds to the prompt before, and all of its blocks as written."""

    node: int
    tokens: int
    answer_tokens: int
    own: list[tuple[int, int]]
    written: list[tuple[int, int]] = field(default_factory=list)


_EMPTY_PROMPT = _SessionPrompt(0, 0, 0, [])


class _PromptBlocks:
    """The blocks of all prompts as texts, and the number of tokens that a prefix cache without
    limit would reuse: those of the blocks, from the first one on, that earlier prompts began with
    too.

    Blocks that follow each other in every prompt are written as one, under the number of the first:
    then the text of a prompt has no seams within what no two prompts share in part."""

    def __init__(self, block_tokens: int, numbers: _BlockNumbers) -> None:
        self._block_tokens, self._numbers = block_tokens, numbers
        self._after: dict[int, int] = {}  # node of a prefix, by the node before and its last block
        self._longest = [0]  # tokens of the last block of each node, in the longest prompt
        self._branches = bytearray(1)  # 2 for a node that prompts go on from in different ways
        self._turns: dict[int, _SessionPrompt] = {}  # of the rows of sessions
        self.reused_tokens = 0

    def add_prompt_and_count_tokens(self, row_index: int, row: _TraceRow) -> int:
        """Add the prompt of a row. Rows must come in the order of their times. Return the tokens of
        the whole prompt, with those of the turns before it."""
        before = self._prompt_of_previous_turn(row)
        node, cached, tokens = before.node, True, before.tokens
        self.reused_tokens += before.tokens
        own = self._added_block_numbers_and_tokens(row)
        for number, many in own:
            node, cached = self._next_prefix_and_is_cached(node, number, many, cached)
        if row.session:
            tokens += sum(many for _, many in own)
            self._turns[row_index] = _SessionPrompt(node, tokens, row.output_tokens, own)
            return tokens
        return row.input_tokens

    def _prompt_of_previous_turn(self, row: _TraceRow) -> _SessionPrompt:
        """Return the prompt that a row adds to; an empty one if it adds to none."""
        return self._turns[row.before] if row.adds and row.before is not None else _EMPTY_PROMPT

    def _added_block_numbers_and_tokens(self, row: _TraceRow) -> list[tuple[int, int]]:
        """Return (block number, tokens) for each hash of a row. Those of a turn begin with the
        answer before it, and end with what no hash describes."""
        before, left = self._prompt_of_previous_turn(row), row.input_tokens
        parts = (
            [(self._numbers.number_block_without_hash(), before.answer_tokens)]
            if before.tokens
            else []
        )
        for number in row.hashes:
            tokens = min(left, self._block_tokens)
            left -= tokens
            parts.append((number, tokens))
        if left and row.session:
            parts.append((self._numbers.number_block_without_hash(), left))
        return parts

    def format_blocks_as_json(self, row_index: int, row: _TraceRow) -> str:
        """Return the prompt of a row as JSON: block numbers and lengths in turn. Call this after
        all prompts were added, and for each row in the order of the rows."""
        before, turn = self._prompt_of_previous_turn(row), self._turns.get(row_index)
        own = self._added_block_numbers_and_tokens(row) if turn is None else turn.own
        parts, node = [*before.written], before.node
        for number, tokens in own:
            if parts and self._branches[node] < 2:
                first, so_far = parts[-1]
                parts[-1] = first, so_far + tokens
            else:
                parts.append((number, tokens))
            node = self._after[_key_of_extended_prefix(node, number)]
        left = row.input_tokens - sum(tokens for _, tokens in own)
        if turn is not None:
            turn.written += parts
        elif left:
            parts.append((self._numbers.number_block_without_hash(), left))
        return f"[{','.join(f'{number},{tokens}' for number, tokens in parts)}]"

    def _next_prefix_and_is_cached(
        self, node: int, number: int, tokens: int, cached: bool
    ) -> tuple[int, bool]:
        """Go from the prefix `node` to the one that is longer by one block. `cached` says whether
        all of `node` was in earlier prompts. Return the longer prefix, and whether all of it was in
        earlier prompts too."""
        known = self._after.get(_key_of_extended_prefix(node, number))
        if known is None:
            known = len(self._longest)
            self._after[_key_of_extended_prefix(node, number)] = known
            self._longest.append(tokens)
            self._branches.append(0)
            self._branches[node] = min(2, self._branches[node] + 1)
            return known, False
        had = self._longest[known]
        self._longest[known] = max(had, tokens)
        if cached:
            self.reused_tokens += min(had, tokens)
        return known, cached and tokens <= had


def _key_of_extended_prefix(node: int, number: int) -> int:
    return (node << 40) + number

"""Files of recorded traffic: the times and lengths of requests, and which of them share a prefix.

The format is found by the content of the file: Mooncake JSONL (`timestamp` in ms, `input_length`,
`output_length`, `hash_ids`), the CSV of Azure's LLM inference traces (2023 and 2024), the CSV of
BurstGPT, and the conversations of ShareGPT, which have text but no times. Only as many lines are read
as are used.
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
from array import array
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from workbench.bench.trace_conversations import (
    Turn,
    array_entries,
    entries_of,
    is_conversation,
    read_turns,
)
from workbench.model.counts import count_of
from workbench.model.errors import InputError
from workbench.model.lazy_dataclass import dataclass

MOST_REQUESTS = 200_000
_MOST_LINE_BYTES = 1 << 20
_MOST_TOKENS = 2_000_000  # of one prompt or answer
_MOST_TIME = 1e15  # in the unit of the file
_HEAD_BYTES = 4096
_BOM = b"\xef\xbb\xbf"
_LARGE = 1_000_000_000
_BLOCK_TOKENS = 512  # of a Mooncake trace,
_BLOCK_SIZES = (16, 32, 64, 128, 256, _BLOCK_TOKENS, 1024, 2048)  # and of traces of the same form
_EXPECTED = (
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


class _Row(NamedTuple):
    at_s: float
    input_tokens: int
    output_tokens: int
    hashes: Sequence[int] = ()


Parse = Callable[[str], _Row]


def read(path: str | Path, first: int | None = None) -> Trace:
    """Return the traffic in the file at `path`, or only its `first` requests. Rows without prompt or
    answer tokens, which are failed requests, are left out. Raises InputError if the file cannot be
    read or contains an invalid row; the message then names the line."""
    path = Path(path)
    most = MOST_REQUESTS if first is None else min(first, MOST_REQUESTS)
    rows: list[_Row] = []
    blocks = _BlockSize()
    numbers = _BlockNumbers()
    empty = 0
    try:
        if not path.is_file():
            # a pipe would be waited for without end, and a device has no end
            what = "is not a regular file" if path.exists() else "does not exist"
            raise InputError(f"{path} {what}", next_step="check the file given by --trace")
        with path.open("rb") as file:
            talks = _conversations_in(path, file)
            if talks is not None:
                return _trace_of_turns(path, read_turns(path, talks, most))
            parse, form, lines = _form_of(path, file)
            for number, line in lines:
                row = _parsed(path, number, parse, line)
                if not row.input_tokens or not row.output_tokens:
                    empty += 1
                    continue
                if len(rows) == most:
                    if first is None:
                        raise InputError(
                            f"{path}:{number}: the trace has more than {MOST_REQUESTS:,} requests",
                            next_step="give --first N to use its first N requests",
                        )
                    break
                blocks.note(path, number, row)
                rows.append(row._replace(hashes=numbers.of(row.hashes)))
    except OSError as error:
        raise InputError(
            f"{path} cannot be read: {error.strerror}", next_step="check the file given by --trace"
        ) from None
    if not rows:
        raise InputError(f"{path} contains no request", next_step=_EXPECTED)
    rows.sort(key=lambda row: row.at_s)
    return _trace(path, form, rows, _Prompts(blocks.tokens, numbers), empty)


def _trace(path: Path, form: str, rows: Sequence[_Row], prompts: _Prompts, empty: int) -> Trace:
    begin_s = rows[0].at_s
    for row in rows:
        prompts.note(row)
    requests = tuple(
        f"[{round(row.at_s - begin_s, 6)},{row.output_tokens},{prompts.blocks_of(row)}]"
        for row in rows
    )
    digest = hashlib.sha256("\n".join(requests).encode()).hexdigest()[:12]
    left_out = f", {count_of(empty, 'row')} without tokens left out" if empty else ""
    prompt_tokens = sum(row.input_tokens for row in rows)
    return Trace(
        requests=requests,
        name=f"{path.name} ({count_of(len(rows), 'request')}, {form}{left_out}, sha256 {digest})",
        seconds=round(rows[-1].at_s - begin_s, 6),
        reuse=round(prompts.reused_tokens / prompt_tokens, 6),
        input_tokens=max(1, round(prompt_tokens / len(rows))),
        output_tokens=max(1, round(sum(row.output_tokens for row in rows) / len(rows))),
    )


def _conversations_in(path: Path, file: BinaryIO) -> Iterator[tuple[str, Any]] | None:
    """Return the entries of a file of conversations; None for a file of another format, from whose
    beginning nothing was read."""
    head = file.read(_HEAD_BYTES).removeprefix(_BOM).lstrip()
    file.seek(0)
    if head.startswith(b"["):
        return array_entries(path, file) if b"\0" not in head else None
    if not head.startswith(b"{"):
        return None
    _, line = next(_lines(path, file))
    file.seek(0)
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        entry = None  # reported with the other lines
    if not is_conversation(entry):
        return None
    return ((f"{path}:{number}", _json(path, number, line)) for number, line in _lines(path, file))


def _json(path: Path, number: int, line: str) -> Any:
    try:
        return json.loads(line)
    except RecursionError:
        _refuse(path, number, "the JSON is nested too deeply")
    except json.JSONDecodeError as error:
        _refuse(path, number, f"not JSON: {error.msg} at column {error.colno}")


def _trace_of_turns(path: Path, turns: Sequence[Turn]) -> Trace:
    requests = entries_of(turns)
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


def _form_of(path: Path, file: BinaryIO) -> tuple[Parse, str, Iterator[tuple[int, str]]]:
    """Return what parses a line, the name of the format, and the lines with their numbers. The lines
    of a CSV file come without its header."""
    lines = _lines(path, file)
    first = next(lines, None)
    if first is None:
        raise InputError(f"{path} is empty", next_step=_EXPECTED)
    number, text = first
    if text.startswith("{"):
        return _mooncake, "Mooncake", chain([first], lines)
    header = [cell.strip().casefold() for cell in _cells(path, number, text)]
    for form, columns, seconds in (
        ("Azure", ("timestamp", "contexttokens", "generatedtokens"), _azure_seconds),
        ("BurstGPT", ("timestamp", "request tokens", "response tokens"), _plain_seconds),
    ):
        if set(columns) <= set(header):
            places = [header.index(column) for column in columns]
            return _csv_parser(places, len(header), seconds), form, lines
    raise InputError(
        f"{path}:{number}: the line is neither a JSON object nor the header of a known CSV file",
        next_step=_EXPECTED,
    )


def _lines(path: Path, file: BinaryIO) -> Iterator[tuple[int, str]]:
    """Yield (number, text) for each line that is not blank."""
    number = 0
    while True:
        number += 1
        data = file.readline(_MOST_LINE_BYTES + 1)
        if not data:
            return
        if len(data) > _MOST_LINE_BYTES:
            _refuse(path, number, f"the line is longer than {_MOST_LINE_BYTES >> 20} MiB")
        if number == 1:
            data = data.removeprefix(_BOM)
        if b"\0" in data:
            _refuse(path, number, "the file is binary")
        try:
            text = data.decode("utf-8").strip()
        except UnicodeDecodeError:
            _refuse(path, number, "the line is not UTF-8")
        if text:
            yield number, text


def _refuse(path: Path, number: int, why: str) -> Any:
    raise InputError(f"{path}:{number}: {why}", next_step=_EXPECTED)


def _parsed(path: Path, number: int, parse: Parse, line: str) -> _Row:
    try:
        return parse(line)
    except RecursionError:
        _refuse(path, number, "the JSON is nested too deeply")
    except json.JSONDecodeError as error:
        _refuse(path, number, f"not JSON: {error.msg} at column {error.colno}")
    except (ValueError, csv.Error) as error:
        _refuse(path, number, str(error))
    raise AssertionError("not reached")


def _cells(path: Path, number: int, text: str) -> list[str]:
    try:
        return next(csv.reader([text]))
    except csv.Error as error:
        _refuse(path, number, str(error))
    raise AssertionError("not reached")


# ---- one row


def _mooncake(line: str) -> _Row:
    fields = json.loads(line)
    if not isinstance(fields, dict):
        raise ValueError("the request is not a JSON object")
    missing = [
        name for name in ("timestamp", "input_length", "output_length") if name not in fields
    ]
    if missing:
        found = ", ".join(map(str, fields)) or "no fields"
        raise ValueError(f"the request has no {missing[0]}; its fields are {found:.200}")
    hashes = fields.get("hash_ids") or ()
    if "session_id" in fields and not hashes:
        raise ValueError(
            "the request belongs to a session and has no hash_ids, so its prompt grows by text that "
            "the trace does not describe"
        )
    if not isinstance(hashes, list | tuple):
        raise ValueError("hash_ids is not a list")
    for one in hashes:
        if not isinstance(one, int) or isinstance(one, bool) or one < 0:
            raise ValueError(
                f"hash_ids contains {one!r:.40}, but needs whole numbers of at least 0"
            )
    return _Row(
        _time(fields["timestamp"], "timestamp") / 1000,
        _tokens(fields["input_length"], "input_length"),
        _tokens(fields["output_length"], "output_length"),
        hashes,
    )


def _csv_parser(places: Sequence[int], columns: int, seconds: Callable[[str], float]) -> Parse:
    at, prompt, answer = places

    def parse(line: str) -> _Row:
        cells = next(csv.reader([line]))
        if len(cells) != columns:
            raise ValueError(f"the line has {count_of(len(cells), 'column')} instead of {columns}")
        return _Row(
            seconds(cells[at].strip()),
            _tokens(_whole(cells[prompt], "number of prompt tokens"), "number of prompt tokens"),
            _tokens(_whole(cells[answer], "number of answer tokens"), "number of answer tokens"),
        )

    return parse


def _whole(cell: str, name: str) -> int:
    digits = cell.strip()
    if not digits.isascii() or not digits.removeprefix("-").isdecimal():
        raise ValueError(f"the {name} is {digits!r:.40}, which is no whole number")
    return int(digits[:30])


def _azure_seconds(text: str) -> float:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"the time {text!r:.60} is no date and time") from None
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def _plain_seconds(text: str) -> float:
    try:
        return _time(float(text), "time")
    except ValueError as error:
        unreadable = "could not convert" in str(error)
        raise ValueError(f"the time {text!r:.40} is no number") if unreadable else error from None


def _time(value: Any, name: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ValueError(f"the {name} is {value!r:.40}, which is no number")
    # compared first: a whole number can be too large for `isfinite`
    if abs(value) > _MOST_TIME or not math.isfinite(value):
        raise ValueError(f"the {name} {value!r:.40} is too large")
    if value < 0:
        raise ValueError(f"the {name} {value!r:.40} is negative")
    return float(value)


def _tokens(value: Any, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"the {name} is {value!r:.40}, which is no whole number")
    if value < 0:
        raise ValueError(f"the {name} {value!r:.40} is negative")
    if value > _MOST_TOKENS:
        raise ValueError(f"the {name} {value!r:.40} is larger than {_MOST_TOKENS:,}")
    return value


# ---- the blocks of the prompts


class _BlockSize:
    """Finds the size of the blocks that the hashes of a file stand for: each prompt has one hash for
    each block, or one for each full block."""

    def __init__(self) -> None:
        self._possible: Sequence[int] = _BLOCK_SIZES

    def note(self, path: Path, number: int, row: _Row) -> None:
        if not row.hashes:
            return
        many, tokens = len(row.hashes), row.input_tokens
        fitting = tuple(
            size for size in self._possible if many in (tokens // size, -(-tokens // size))
        )
        if not fitting:
            _refuse(
                path,
                number,
                f"{count_of(many, 'hash', 'hashes')} for {tokens:,} prompt tokens: the blocks of "
                f"the lines before have {_any_of(self._possible)} tokens",
            )
        self._possible = fitting

    @property
    def tokens(self) -> int:
        return _BLOCK_TOKENS if _BLOCK_TOKENS in self._possible else self._possible[-1]


def _any_of(sizes: Sequence[int]) -> str:
    return str(sizes[0]) if len(sizes) == 1 else f"one of {', '.join(map(str, sizes))}"


class _BlockNumbers:
    """Gives each hash a number below 2^40, its own if it is small, and numbers to blocks without a
    hash."""

    def __init__(self) -> None:
        self._large: dict[int, int] = {}
        self._without_hash = 0

    def of(self, hashes: Sequence[int]) -> Sequence[int]:
        """Return the numbers of hashes, in little memory."""
        if not hashes:
            return ()
        if max(hashes) < _LARGE:
            return array("Q", hashes)
        return array("Q", [one if one < _LARGE else self._renumbered(one) for one in hashes])

    def _renumbered(self, one: int) -> int:
        return self._large.setdefault(one, _LARGE + len(self._large))

    def new(self) -> int:
        """Return the number of a block that no other prompt has."""
        self._without_hash += 1
        return 2 * _LARGE + self._without_hash


class _Prompts:
    """Writes the blocks of all prompts, and counts the tokens that a prefix cache without limit
    would reuse: those of the blocks, from the first one on, that earlier prompts began with too.

    Blocks that follow each other in every prompt are written as one, under the number of the first:
    then the text of a prompt has no seams within what no two prompts share in part."""

    def __init__(self, block_tokens: int, numbers: _BlockNumbers) -> None:
        self._block_tokens, self._numbers = block_tokens, numbers
        self._after: dict[int, int] = {}  # node of a prefix, by the node before and its last block
        self._longest = [0]  # tokens of the last block of each node, in the longest prompt
        self._branches = bytearray(1)  # 2 for a node that prompts go on from in different ways
        self.reused_tokens = 0

    def note(self, row: _Row) -> None:
        """Take the prompt of a row, which came after those before."""
        left = row.input_tokens
        node = 0
        cached = True
        for number in row.hashes:
            tokens = min(left, self._block_tokens)
            left -= tokens
            node, cached = self._step(node, number, tokens, cached)

    def blocks_of(self, row: _Row) -> str:
        """Return the prompt of a row as JSON: block numbers and lengths in turn. All rows have been
        noted."""
        left = row.input_tokens
        parts: list[tuple[int, int]] = []
        node = 0
        for number in row.hashes:
            tokens = min(left, self._block_tokens)
            left -= tokens
            if parts and self._branches[node] < 2:
                first, so_far = parts[-1]
                parts[-1] = first, so_far + tokens
            else:
                parts.append((number, tokens))
            node = self._after[_key(node, number)]
        if left:
            parts.append((self._numbers.new(), left))
        return f"[{','.join(f'{number},{tokens}' for number, tokens in parts)}]"

    def _step(self, node: int, number: int, tokens: int, cached: bool) -> tuple[int, bool]:
        """Go on from a prefix (`node`) by one block. Return the longer prefix, and whether all of it
        was in earlier prompts."""
        known = self._after.get(_key(node, number))
        if known is None:
            known = len(self._longest)
            self._after[_key(node, number)] = known
            self._longest.append(tokens)
            self._branches.append(0)
            self._branches[node] = min(2, self._branches[node] + 1)
            return known, False
        had = self._longest[known]
        self._longest[known] = max(had, tokens)
        if cached:
            self.reused_tokens += min(had, tokens)
        return known, cached and tokens <= had


def _key(node: int, number: int) -> int:
    return (node << 40) + number

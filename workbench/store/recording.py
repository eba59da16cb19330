"""The format of recordings: the history of a host as lines of JSON, with readings by the second and
events.

The first line is the header. Time is divided into cells of `step_s` seconds. A line with "v" has
the values that differ from those of the previous cell, and null for a metric that has no value in
this cell. A line with "full" has all values. A cell without a line is a gap. In a name such as
"0.power_w", the number before the dot is the index of the GPU; -1 is the server. A line with
"infos" has the properties of the GPUs. A line with "boot" says under which boot of the host (the
kernel's boot_id) the lines after it were made; a line with "end" is the last one of a Workbench
that ended in order. Each line can be read without the lines after it, so a file that ends in the
middle of a line is still valid.

    {"workbench": "recording", "version": 1, "host": "local", "simulated": false, "step_s": 1,
    "unix_s": 1764000000.0} {"t": 1764000001, "full": true, "v": {"0.power_w": 84.2, "0.sm_mhz":
    210, "-1.generation_tok_s": 812.0}} {"t": 1764000002, "v": {"0.power_w": 84.9}} {"t":
    1764000002.4, "event": "benchmark begin", "text": "benchmark of 8 streams begins", "gpu": null}
    {"t": 1764000003, "infos": [{"index": 0, "uuid": "GPU-…", "name": "NVIDIA RTX 5090",
    "power_max_w": 600.0}]}
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from workbench.model.errors import InputError, error_reason
from workbench.model.gpu import GpuInfo
from workbench.model.lazy_dataclass import dataclass
from workbench.model.timeline import ENGINE, Event, EventKind, History, Key
from workbench.model.untrusted_numbers import integer_or_none, number_for_field
from workbench.model.untrusted_records import read_record
from workbench.model.untrusted_text import NAME_CHARS, as_list, as_table, clean_text

if TYPE_CHECKING:
    from gzip import GzipFile

VERSION = 1
MOST_LINE_BYTES = 1_000_000
MOST_METRICS = 1000
_MOST_USELESS = 1000  # lines without content in a row
MOST_GPUS = 64
FULL_EVERY = 60  # cells: a damaged line costs at most a minute
_NAME = re.compile(r"(-1|\d{1,2})\.([a-z][a-z0-9_]{0,39})")
_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Header:
    """The first line of a recording. `step_s` is the length of its cells in seconds."""

    host: str
    simulated: bool
    step_s: int
    unix_s: float

    def line(self) -> str:
        return _format_json_line({"workbench": "recording", "version": VERSION, **asdict(self)})


@dataclass(frozen=True, slots=True)
class Cell:
    """The values of all metrics in one cell of a recording, which is a time span of fixed length
    that begins at the Unix second `unix_s`."""

    unix_s: int
    values: Mapping[Key, float]


@dataclass(frozen=True, slots=True)
class Infos:
    """The properties of the host's GPUs in a recording. They are valid from `unix_s` on, until the
    next such line."""

    unix_s: float
    infos: tuple[GpuInfo, ...]


@dataclass(frozen=True, slots=True)
class Boot:
    """A line that says under which boot of the host the items after it were recorded."""

    unix_s: float
    boot_id: str


@dataclass(frozen=True, slots=True)
class End:
    """The last line of a recording whose Workbench ended in order."""

    unix_s: float


Item = Cell | Event | Infos | Boot | End


class CellWriter:
    """Turns readings into lines of a recording, one line per cell (time span) of `step_s` seconds.
    The line of a cell is made one cell later, because the readings of GPUs and engine do not arrive
    at the same time."""

    def __init__(self, step_s: int) -> None:
        self.step_s = step_s
        self._open: dict[int, dict[Key, list[float]]] = {}  # by begin of the cell: sums and counts
        self._next_s = 0  # no earlier cell can be written
        self._written: Mapping[Key, float | int] = {}
        self._count = 0

    def add_reading(self, seconds: range, values: Mapping[Key, float | None]) -> Iterator[str]:
        """Add a reading that is valid for the Unix seconds in `seconds`. Yield the lines of the
        cells (time spans of the recording) that are now complete. Values that are None or not
        finite are left out. A second whose line was yielded already is ignored, unless the clock
        was set back by more than 60 cells."""
        for second in seconds:
            cell = second // self.step_s * self.step_s
            if cell < self._next_s - 60 * self.step_s:
                self._next_s = 0
            if cell < self._next_s:
                continue
            if cell not in self._open:
                yield from self._lines_of_cells_before(cell - self.step_s)
                self._open[cell] = {}
            sums = self._open[cell]
            for key, value in values.items():
                if value is None or not math.isfinite(value):
                    continue
                known = sums.get(key)
                if known is None:
                    sums[key] = [value, 1]
                else:
                    known[0] += value
                    known[1] += 1

    def finish_open_cells(self) -> Iterator[str]:
        """Yield the lines of the cells (time spans of the recording) that are not complete yet.
        Call this at the end of the recording."""
        yield from self._lines_of_cells_before(max(self._open, default=0) + 1)

    def _lines_of_cells_before(self, before_s: int) -> Iterator[str]:
        for cell in sorted(cell for cell in self._open if cell < before_s):
            sums = self._open.pop(cell)
            self._next_s = cell + self.step_s
            if sums:
                means = {key: total / count for key, (total, count) in sums.items()}
                yield self.format_cell(cell, _round_values(means))

    def format_cell(self, unix_s: int, values: Mapping[Key, float | int]) -> str:
        """Return the line of the cell (time span) that begins at `unix_s`, with the values that
        changed since the previous call. Every 60th line has all values."""
        full = self._count % FULL_EVERY == 0
        self._count += 1
        before = {} if full else self._written
        shown: dict[str, float | int | None] = {}
        for key, value in values.items():
            if before.get(key) != value:
                shown[f"{key[0]}.{key[1]}"] = value
        for key in before:
            if key not in values:
                shown[f"{key[0]}.{key[1]}"] = None
        self._written = values
        fields: dict[str, Any] = {"t": unix_s}
        if full:
            fields["full"] = True
        if shown:
            fields["v"] = shown
        return _format_json_line(fields)


def format_event(event: Event) -> str:
    """Return the line of a recording that describes an event of the timeline."""
    fields = {
        "event": event.kind,
        "text": event.text,
        "gpu": event.gpu_index,
        "result": event.result_id,
    }
    return _format_json_line({"t": round(event.unix_s, 3), **fields})


def format_gpu_infos(unix_s: float, infos: Sequence[GpuInfo]) -> str:
    """Return the line of a recording with the properties of the host's GPUs, without empty fields
    and those that no graph needs."""
    shown = []
    for info in infos:
        fields = asdict(replace(info, supported_sm_mhz=(), supported_memory_mhz=(), absent={}))
        known = {name: value for name, value in fields.items() if value not in (None, [], (), {})}
        shown.append(known)
    return _format_json_line({"t": round(unix_s, 3), "infos": shown})


def format_boot_line(unix_s: float, boot_id: str) -> str:
    return _format_json_line({"t": round(unix_s, 3), "boot": boot_id})


def format_end_line(unix_s: float) -> str:
    return _format_json_line({"t": round(unix_s, 3), "end": True})


def format_history(
    histories: Sequence[History], first_s: int, last_s: int, step_s: int
) -> Iterator[str]:
    """Yield the lines of a recording from `first_s` to `last_s` (Unix seconds), one per `step_s`
    seconds. If several histories have a value for the same metric and time, that of the first
    history is used."""
    count = math.ceil((last_s - first_s) / step_s) + 1
    writer = CellWriter(step_s)
    columns = {
        key: [history.cell_means(key, last_s, step_s, count) for history in histories]
        for key in dict.fromkeys(chain.from_iterable(histories))
    }
    begin_s = last_s // step_s * step_s - (count - 1) * step_s
    for index in range(count):
        cell = begin_s + index * step_s
        values = {}
        for key, cells in columns.items():
            value = next((c[index] for c in cells if c[index] is not None), None)
            if value is not None:
                values[key] = value
        if values:
            yield writer.format_cell(cell, _round_values(values))


def parse_line_time(line: str) -> float:
    """Return the Unix time in a line that this module wrote, to sort lines."""
    return float(json.loads(line)["t"])


def open_recording(path: Path) -> tuple[Header, Iterator[Item]]:
    """Return the header of the recording at `path`, and an iterator over the content of its other
    lines. The file may be compressed with gzip. Raises InputError if the file is not a recording or
    cannot be read."""
    try:
        # to open a pipe would wait for its writer
        if path.exists() and not path.is_file() and not path.is_dir():
            step = "give a recording that `workbench record` wrote"
            raise InputError(f"{path} is not a file", next_step=step)
        with path.open("rb") as file:
            compressed = file.read(2) == b"\x1f\x8b"
        lines = _read_lines(path, compressed=compressed)
        return parse_header(next(lines, b""), path.name), parse_items(lines)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} cannot be read: {error_reason(error)}") from None


def _read_lines(path: Path, *, compressed: bool) -> Iterator[bytes]:
    """Yield the lines of the file `path` until its end, or until the first damaged part of a
    compressed file."""
    import gzip  # screens write recordings, and commands read them

    with (
        contextlib.suppress(OSError, EOFError, zlib.error),
        gzip.open(path) if compressed else path.open("rb") as file,
    ):
        yield from read_bounded_lines(file)


def read_bounded_lines(file: BinaryIO | GzipFile) -> Iterator[bytes]:
    """Yield the lines of an open file. A line that is too long is yielded in pieces, so that it
    cannot fill the memory."""
    while line := file.readline(MOST_LINE_BYTES):
        yield line


def parse_header(line: str | bytes, name: str) -> Header:
    """Return the header of a recording from its first line. Raises InputError if the line is no
    header; `name` is the file name for the message."""
    data = _parse_json_object(line)
    version = data.get("version")
    if data.get("workbench") != "recording" or not isinstance(version, int):
        step = "give a file that `workbench record` wrote"
        raise InputError(f"{name} is not a recording of Workbench", next_step=step)
    if version > VERSION:
        text = (
            f"{name} was written by a newer Workbench (format {version}, this version reads "
            f"up to {VERSION})"
        )
        raise InputError(text, next_step="update Workbench")
    step_s, unix_s = integer_or_none(data.get("step_s"), 1, 3600), _parse_time(data.get("unix_s"))
    if step_s is None or unix_s is None:
        raise InputError(f"the first line of {name} is damaged", next_step="record again")
    return Header(
        clean_text(str(data.get("host")), NAME_CHARS),
        data.get("simulated") is not False,
        step_s,
        unix_s,
    )


def parse_items(lines: Iterable[str | bytes]) -> Iterator[Item]:
    """Yield the content of the lines after the header, with control characters removed from texts.
    A damaged line is left out, and so are the lines after it up to the next line with all values.
    Reading ends after 1,000 useless lines in a row, because a small compressed file can contain
    billions of them."""
    useless = 0
    for item in _parse_items(lines):
        if item is not None:
            useless = 0
            yield item
            continue
        useless += 1
        if useless >= _MOST_USELESS:
            return


def _parse_items(lines: Iterable[str | bytes]) -> Iterator[Item | None]:
    values: dict[Key, float] | None = None
    for line in lines:
        data = _parse_json_object(line)
        at = _parse_time(data.get("t"))
        if at is None:
            values = None
            yield None
        elif "event" in data:
            yield _parse_event(at, data)
        elif "infos" in data:
            yield Infos(at, _parse_gpu_infos(data["infos"]))
        elif "boot" in data:
            yield Boot(at, clean_text(str(data["boot"]), NAME_CHARS))
        elif "end" in data:
            yield End(at)
        else:
            if data.get("full") is True:
                values = {}
            if values is None:
                yield None
                continue
            values = _apply_cell_changes(values, as_table(data.get("v")))
            yield Cell(int(at), values)


def _apply_cell_changes(
    values: Mapping[Key, float], changes: Mapping[str, Any]
) -> dict[Key, float]:
    """Return the values of a cell: those of the cell before, `values`, with the `changes` of the
    cell's line. A change without a number removes the value, and an unknown name is left out."""
    changed = dict(values)
    for name, value in changes.items():
        found = _NAME.fullmatch(name)
        if found is None:
            continue
        key = int(found[1]), found[2]
        number = number_for_field(found[2], value)
        if number is None:
            changed.pop(key, None)
        elif key in changed or len(changed) < MOST_METRICS:
            changed[key] = float(number)
    return changed


def _parse_event(unix_s: float, data: Mapping[str, Any]) -> Event | None:
    try:
        kind = EventKind(data["event"])
    except ValueError:  # of a newer version
        return None
    return Event(
        unix_s,
        kind,
        clean_text(str(data.get("text", ""))),
        integer_or_none(data.get("gpu"), ENGINE, MOST_GPUS - 1),
        integer_or_none(data.get("result"), 0, 2**63 - 1),
    )


def _parse_gpu_infos(listed: Any) -> tuple[GpuInfo, ...]:
    found = []
    for one in as_list(listed)[:MOST_GPUS]:
        with contextlib.suppress(ValueError):
            found.append(read_record(GpuInfo, one))
    return tuple(found)


def _parse_json_object(line: str | bytes) -> Mapping[str, Any]:
    """Return a line as a JSON object, {} if it is not one or is too long."""
    if len(line) > MOST_LINE_BYTES:
        return {}
    try:
        return as_table(json.loads(line))
    except (ValueError, RecursionError):
        return {}


def _parse_time(value: Any) -> float | None:
    found = number_for_field("unix_s", value)
    return None if found is None else float(found)


@lru_cache(maxsize=512)
def round_for_graph(name: str, value: float) -> float | int:
    """Return the value of the metric `name`, rounded to as many digits as a graph can show. Memory
    is rounded to MiB."""
    if name.endswith("_bytes"):
        return round(value / _MIB) * _MIB
    decimals = 3
    if abs(value) >= 100:
        decimals = 0
    elif abs(value) >= 10:
        decimals = 1
    short = round(value, decimals)
    return int(short) if short == int(short) else short


def _round_values(values: Mapping[Key, float]) -> dict[Key, float | int]:
    return {key: round_for_graph(key[1], value) for key, value in values.items()}


def _format_json_line(data: Mapping[str, Any]) -> str:
    return json.dumps(data, separators=(",", ":")) + "\n"

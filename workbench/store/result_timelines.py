"""The timelines of stored results: readings and events from around the time of each benchmark, as a
compressed recording beside the database."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from workbench.model.errors import InputError, StoreError, error_reason
from workbench.model.lazy_dataclass import dataclass
from workbench.model.timeline import Event, EventKind, History
from workbench.store import recording

MOST_POINTS = 600  # cells of a timeline; those of a longer benchmark are longer
_MOST_LINES = 4 * MOST_POINTS
_BEGIN, _END = EventKind.BENCH_BEGIN, EventKind.BENCH_END


@dataclass(frozen=True, slots=True)
class ResultTimeline:
    """Readings and events from before, during and after one benchmark. `begin_s` and `end_s` are
    the Unix times at which its first request began and the benchmark ended, `first_s` and `last_s`
    those of the first and last stored second. The readings are `step_s` seconds apart."""

    history: History
    step_s: int
    first_s: int
    last_s: int
    begin_s: float
    end_s: float


def timeline_path(folder: Path, uid: str) -> Path:
    """Return the file of the timeline of the result with this `uid`, in the directory of the
    database."""
    return folder / "timelines" / f"{uid}.jsonl.gz"


def write_timeline(path: Path, header: recording.Header, lines: Iterable[str]) -> None:
    """Write the lines of a timeline to the file `path`, all or none. Raises StoreError if the file
    cannot be written."""
    temporary = path.with_name(f".{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with gzip.open(temporary, "wt", encoding="utf-8", compresslevel=6) as file:
            file.write(header.line())
            file.writelines(lines)
        temporary.chmod(0o600)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        text = f"the timeline of the result could not be written to {path}: {error_reason(error)}"
        raise StoreError(
            text, next_step="the benchmark result is stored without it; free some disk space"
        ) from None


def read_timeline(path: Path) -> ResultTimeline | None:
    """Return a stored timeline, None if there is none. Raises StoreError if the file is damaged."""
    history, first, last, marks = History(), 0, 0, dict[EventKind, Event]()
    try:
        with gzip.open(path, "rb") as file:
            header = recording.parse_header(file.readline(recording.MOST_LINE_BYTES), path.name)
            for item in recording.parse_items(_lines_up_to_limit(file)):
                if isinstance(item, recording.Cell):
                    first, last = first or item.unix_s, max(last, item.unix_s)
                    for key, value in item.values.items():
                        history.add(key, item.unix_s, value)
                elif isinstance(item, Event):
                    history.add_event_if_new(item)
                    if item.kind in (_BEGIN, _END) and item.result_id is not None:
                        marks[item.kind] = item
    except FileNotFoundError:
        return None
    except (OSError, EOFError, zlib.error, InputError) as error:
        text = f"the timeline in {path} could not be read: {error}"
        raise StoreError(text, next_step="the benchmark result itself is not affected") from None
    if (last - first) // header.step_s > _MOST_LINES:
        raise StoreError(
            f"the timeline in {path} is damaged: it seems to cover {last - first:,} s",
            next_step="the benchmark result itself is not affected",
        )
    begin_s = marks[_BEGIN].unix_s if _BEGIN in marks else float(first)
    end_s = marks[_END].unix_s if _END in marks else float(last)
    return ResultTimeline(history, header.step_s, first, last, begin_s, end_s)


def _lines_up_to_limit(file: gzip.GzipFile) -> Iterator[bytes]:
    """Yield the lines of a compressed file up to a limit, so that a small file cannot fill the
    memory."""
    for _ in range(_MOST_LINES):
        line = file.readline(recording.MOST_LINE_BYTES)
        if not line:
            return
        yield line

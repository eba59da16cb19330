"""The history of a host on disk: readings and events of the last hours, which the screen shows when
it is opened again.

The files are recordings (recording.py) in the state directory. Each Workbench that writes has two
files, on which it holds locks: one with a line per second, and one with a line per 10 s and the
events. Lines are appended every few seconds and never rewritten; old files are deleted. On the
watched host itself the seconds are forced to the disk, so that they outlast a loss of power.
A reader merges the files of all Workbenches. If a file cannot be written or read, only its part of
the history is missing.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import queue
import re
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field, replace
from pathlib import Path

from workbench.model.errors import InputError, error_reason
from workbench.model.gpu import GpuInfo
from workbench.model.lazy_dataclass import dataclass
from workbench.model.timeline import FINE_S, OWN_BENCHMARK, Event, EventKind, History
from workbench.store import recording
from workbench.store.paths import state_dir

STEPS_S = (1, 10)
ROTATE_S = 1800.0  # a new file of seconds
KEPT_S = {1: 3900.0, 10: 2 * 86_400.0}  # after its last line, by the step of a file
LOADED_S = {1: FINE_S, 10: 86_400}  # how far back a screen reads, by the step of a file
_EACH_S = 8 * 3600  # beyond that, a screen reads one cell of a minute
MOST_BYTES = 16_000_000  # of all files of a host
_MOST_FILE_BYTES = 8_000_000
_EACH_WRITE_S = 4.0  # lines of this time are written at once: each write wakes a thread
_MOST_LINES = 20  # of one write
_QUEUED = 250  # writes that wait for a slow disk; more are lost
_FUTURE_S = 60.0
_NAME = re.compile(r"\d+-\d+-[0-9a-f]+\.\d+\.(\d{1,2})s\.jsonl")
_RETRY_S = 60.0  # after a failure, such as a full disk
LAST_MINUTE_S = 60
_BEGINS = (EventKind.SERVER_START, EventKind.SERVER_READY, EventKind.BENCH_BEGIN)
_ENDS = (EventKind.SERVER_END, EventKind.BENCH_END)
_OF_BENCH = (EventKind.BENCH_BEGIN, EventKind.BENCH_END)
_CUT = "Workbench ended during the benchmark"


def history_directory(host: str, *, simulated: bool) -> Path:
    """Return the directory for the history files of `host`. A simulated host has a directory
    separate from that of a real host with the same name."""
    name = re.sub(r"[^A-Za-z0-9._-]", "-", host)[:60].lstrip(".")
    digest = hashlib.sha256(host.encode()).hexdigest()[:8]
    mark = "-simulated" if simulated else ""
    return state_dir() / "timeline" / f"{name}-{digest}{mark}"


class HistoryWriter:
    """Writes lines to this Workbench's history files of a host, in a background thread. When a file
    first cannot be written, the thread calls `tell` with a message, and never again. With
    `durable`, each write of seconds is on the disk before the next one."""

    def __init__(
        self,
        folder: Path,
        header: recording.Header,
        tell: Callable[[str], None],
        *,
        durable: bool = False,
    ) -> None:
        self.folder, self._header, self._tell = folder, header, tell
        self._durable = durable
        self._boot_id = ""
        self._writes: queue.Queue[list[tuple[int, str]] | None] = queue.Queue(_QUEUED)
        self._lines: list[tuple[int, str]] = []  # of the next write
        self._next_write_s = 0.0
        self.name = f"{int(time.time())}-{os.getpid()}-{os.urandom(3).hex()}"
        self._number = 0
        self._files: dict[int, _File] = {}
        self._retry_s = 0.0
        self._told = False
        self._thread = threading.Thread(
            target=self._write_until_closed, name="workbench-history", daemon=True
        )
        self._thread.start()

    def write_line(self, step_s: int, line: str) -> None:
        """Append `line`, with its line break, to the history file with one line per `step_s`
        seconds. That happens within a few seconds, without waiting for the disk. If too many lines
        wait already, the line is dropped."""
        self._lines.append((step_s, line))
        now = time.monotonic()
        full = len(self._lines) >= _MOST_LINES
        # an event may be the last line for long
        if full or now >= self._next_write_s or step_s != STEPS_S[0]:
            self._next_write_s = now + _EACH_WRITE_S
            self._write_lines()

    def write_boot(self, boot_id: str) -> None:
        """Say in all files that the lines from now on were recorded under the boot `boot_id` of the
        host."""
        self._boot_id = boot_id
        for step_s in STEPS_S:
            self.write_line(step_s, recording.format_boot_line(time.time(), boot_id))

    def _write_lines(self) -> None:
        lines, self._lines = self._lines, []
        with contextlib.suppress(queue.Full):
            self._writes.put_nowait(lines)

    def close(self, wait_s: float = 1.0) -> None:
        """Write the lines that wait and the line of an orderly end, and close the files. If the
        disk does not respond, return after `wait_s` seconds."""
        self._lines += [(step_s, recording.format_end_line(time.time())) for step_s in STEPS_S]
        self._write_lines()
        with contextlib.suppress(queue.Full):
            self._writes.put_nowait(None)
        self._thread.join(wait_s)

    def _write_until_closed(self) -> None:
        while (lines := self._writes.get()) is not None:
            if time.monotonic() < self._retry_s:
                continue
            try:
                self._append_lines(lines)
            except OSError as error:
                self._retry_s = time.monotonic() + _RETRY_S
                self._close_files()
                if not self._told:
                    self._told = True
                    self._tell(f"{self.folder}: {error_reason(error)}")
        self._close_files()

    def _append_lines(self, lines: Sequence[tuple[int, str]]) -> None:
        texts: dict[int, str] = {}
        for step_s, line in lines:
            texts[step_s] = texts.get(step_s, "") + line
        for step_s, text in texts.items():
            self._open_file(step_s).append(text, durable=self._durable and step_s == STEPS_S[0])

    def _open_file(self, step_s: int) -> _File:
        file = self._files.get(step_s)
        if file is not None and file.is_full():
            file.close()
            file = None
        if file is None:
            delete_old_files(self.folder, time.time())
            self._number += 1
            path = self.folder / f"{self.name}.{self._number}.{step_s}s.jsonl"
            file = self._files[step_s] = _File(path, self._header, step_s)
            if self._boot_id:
                file.append(recording.format_boot_line(time.time(), self._boot_id))
        return file

    def _close_files(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()


class _File:
    """A history file that is open for appending lines."""

    def __init__(self, path: Path, header: recording.Header, step_s: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        lifetime_s = ROTATE_S if step_s == STEPS_S[0] else 24 * ROTATE_S
        self._until_s = time.monotonic() + lifetime_s
        self._bytes = 0
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self._descriptor = os.open(path, flags, 0o600)
        # a file system without locks: the file is read as that of a dead writer
        with contextlib.suppress(OSError):
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            own = replace(header, step_s=step_s, unix_s=round(time.time(), 3))
            self.append(own.line())
        except OSError:
            self.close()
            path.unlink()
            raise

    def append(self, line: str, *, durable: bool = False) -> None:
        data = line.encode()
        if os.write(self._descriptor, data) < len(data):  # the reader leaves the torn line out
            raise OSError(28, "the disk is full")
        self._bytes += len(data)
        if durable:
            os.fdatasync(self._descriptor)

    def is_full(self) -> bool:
        return time.monotonic() > self._until_s or self._bytes > _MOST_FILE_BYTES

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self._descriptor)


def delete_old_files(folder: Path, now: float) -> None:
    """Delete the history files of all hosts that are older than KEPT_S. For the host with the
    directory `folder`, also delete the oldest files beyond 16 MB. `now` is the Unix time."""
    total = 0
    for path, status in _history_files_newest_first(folder.parent.glob("*/*.jsonl"), now):
        if now - status.st_mtime > KEPT_S.get(_step_s_of_file(path), 0.0):
            _remove_file(path)
    for path, status in _history_files_newest_first(folder.glob("*.jsonl"), now):
        total += status.st_size
        if total > MOST_BYTES:
            _remove_file(path)


def _remove_file(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
        path.parent.rmdir()  # if it was the last one


def _history_files_newest_first(
    paths: Iterator[Path], now: float
) -> Sequence[tuple[Path, os.stat_result]]:
    """Return (path, file status) of the history files among `paths`, newest first. Everything else,
    such as a file with another name or a symbolic link, is left out. A file whose modification time
    lies in the future, because a clock was wrong, comes last."""
    found = []
    with contextlib.suppress(OSError):
        for path in paths:
            with contextlib.suppress(OSError):
                status = path.stat(follow_symlinks=False)
                if stat.S_ISREG(status.st_mode) and _NAME.fullmatch(path.name):
                    found.append((path, status))

    def age_rank(pair: tuple[Path, os.stat_result]) -> float:
        modified_s = pair[1].st_mtime
        return -modified_s if modified_s < now + _FUTURE_S else 0.0

    return sorted(found, key=age_rank)


def _step_s_of_file(path: Path) -> int:
    found = _NAME.fullmatch(path.name)
    if not found:
        return 0
    return int(found[1])


@dataclass
class EndOfBoot:
    """The end of what one Workbench recorded under one boot of a host. `cells` has the readings of
    the last minute by the length of a cell in seconds. `running` are the servers and the benchmark
    that had not ended. `in_order` says whether the Workbench ended its recording itself."""

    boot_id: str
    last_s: float = 0.0
    cells: dict[int, deque[recording.Cell]] = field(default_factory=dict)
    running: dict[str, Event] = field(default_factory=dict)
    in_order: bool = False

    @property
    def last_minute_cells(self) -> Sequence[recording.Cell]:
        """The readings of the last minute, the finest that are kept."""
        first_s = self.last_s - LAST_MINUTE_S
        for step_s in STEPS_S:
            cells = [cell for cell in self.cells.get(step_s, ()) if cell.unix_s >= first_s]
            if cells:
                return cells
        return ()

    def add_item(self, item: recording.Item, step_s: int) -> None:
        """Add an item of a recording with cells of `step_s` seconds."""
        if isinstance(item, recording.End):
            self.in_order = True
        elif isinstance(item, recording.Cell):
            most = LAST_MINUTE_S // step_s
            self.cells.setdefault(step_s, deque(maxlen=most)).append(item)
            self.last_s = max(self.last_s, item.unix_s + step_s)
        elif isinstance(item, Event):
            subject = _subject_of_event(item)
            if item.kind in _BEGINS:
                self.running[subject] = item
            elif item.kind in _ENDS:
                self.running.pop(subject, None)


def _subject_of_event(event: Event) -> str:
    """Return the name of what begins or ends with `event`: the run id of a server, or "" for a
    benchmark."""
    if event.kind in _OF_BENCH:
        return ""
    return event.text.rpartition(" (run ")[2]


@dataclass
class _Writer:
    """The state of one Workbench process that has written history files: whether the process still
    runs, its unfinished benchmark, and the end of each boot of the host by boot id."""

    alive: bool = False
    begun: Event | None = None  # the benchmark that has not ended
    last_s: float = 0.0  # its last line
    boots: dict[str, EndOfBoot] = field(default_factory=dict)


@dataclass
class LoadedHistory:
    """The stored history of a host: its readings and events, and the properties of its GPUs. `cut`
    is the newest benchmark if its Workbench ended before the benchmark did, otherwise None.
    `boots` are the ends of what each Workbench recorded under each boot of the host."""

    history: History
    infos: tuple[GpuInfo, ...] = ()
    cut: Event | None = None
    boots: tuple[EndOfBoot, ...] = ()

    def find_unclean_previous_boot_end(self, boot_id: str) -> EndOfBoot | None:
        """Return the end of the newest recording under another boot than `boot_id`. None if there
        is none, or if its Workbench ended it itself."""
        earlier = [one for one in self.boots if one.boot_id != boot_id and one.last_minute_cells]
        newest = max(earlier, key=lambda one: one.last_s, default=None)
        if newest is None or newest.in_order:
            return None
        return newest


def load_history(
    folder: Path, host: str, now: float, excluded_writer_name: str = ""
) -> LoadedHistory:
    """Return the history of a host from the files in `folder`, up to the Unix time `now`. Files
    that cannot be read, and damaged lines, are left out. The files of the HistoryWriter with the
    name `excluded_writer_name` are not read."""
    kept, writers = LoadedHistory(History()), dict[str, _Writer]()
    # From the oldest file on, because the history forgets what is far older than its newest value.
    for path, status in reversed(_history_files_newest_first(folder.glob("*.jsonl"), now)):
        name = path.name.split(".")[0]
        if name != excluded_writer_name and status.st_size < 2 * _MOST_FILE_BYTES:
            with contextlib.suppress(OSError, InputError):
                _load_history_file(kept, path, host, now, writers.setdefault(name, _Writer()))
    kept.boots = tuple(boot for writer in writers.values() for boot in writer.boots.values())
    for writer in writers.values():
        if writer.begun is not None and not writer.alive:
            text = f"{writer.begun.text.removesuffix(' begins')} ends: {_CUT}"
            cut = Event(max(writer.last_s, writer.begun.unix_s), EventKind.BENCH_END, text)
            kept.history.add_event_if_new(cut)
            kept.cut = max(filter(None, (kept.cut, cut)), key=lambda event: event.unix_s)
    marks = [event for event in kept.history.events if event.kind in _OF_BENCH]
    if kept.cut is not None and marks[-1] != kept.cut:
        kept.cut = None
    return kept


def _load_history_file(
    kept: LoadedHistory, path: Path, host: str, now: float, writer: _Writer
) -> None:
    with path.open("rb") as file:
        header = recording.parse_header(file.readline(recording.MOST_LINE_BYTES), path.name)
        if header.host != host or header.step_s not in STEPS_S:
            return
        writer.alive = writer.alive or _has_running_writer(file.fileno())
        oldest, newest = now - LOADED_S[header.step_s], now + 5.0
        boot: EndOfBoot | None = None
        for item in recording.parse_items(recording.read_bounded_lines(file)):
            if isinstance(item, recording.Boot):
                boot = writer.boots.setdefault(item.boot_id, EndOfBoot(item.boot_id))
            elif boot is not None:
                boot.add_item(item, header.step_s)
            if not oldest <= item.unix_s <= newest:
                continue
            is_old = item.unix_s < now - _EACH_S
            if is_old and isinstance(item, recording.Cell) and item.unix_s % 60:
                continue
            writer.last_s = max(writer.last_s, item.unix_s)
            if isinstance(item, recording.Cell):
                for key, value in item.values.items():
                    kept.history.add_stored_mean(key, item.unix_s, value, header.step_s)
            elif isinstance(item, Event):
                kept.history.add_event_if_new(item)
                if item.text.startswith(OWN_BENCHMARK):
                    writer.begun = item if item.kind is EventKind.BENCH_BEGIN else None
            elif isinstance(item, recording.Infos):
                kept.infos = item.infos


def _has_running_writer(descriptor: int) -> bool:
    """Return whether another process holds the lock of the open history file `descriptor`, which
    means that its Workbench still runs."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return False

r"""The lines of a run's log file: bytes are turned into clean text, and a bounded number of lines
is kept in memory.

Engines write progress bars (\r), colours, output of other processes, and sometimes an API key. The
lines here are plain text without control characters or secrets. The file on the host is not changed
and can be searched there.
"""

from __future__ import annotations

import re
import zlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence

from workbench.hosts.base import CommandFailed, Host, HostUnreachable
from workbench.model.lazy_dataclass import dataclass
from workbench.model.secrets import mask_lines, mask_text
from workbench.model.server_run import LogBatch
from workbench.model.untrusted_numbers import parse_whole_number
from workbench.model.untrusted_text import LINE_CHARS, clean_text

HEAD_LINES = 2_000  # always kept: start-up lines explain failures and the engine's choices
TAIL_LINES = 20_000
BLOCK_LINES = 256  # that are compressed together
MAX_RING_CHARACTERS = 8_000_000  # of the tail; bounds the memory if lines are long
HEAD_BYTES = 256 * 1024  # never skipped, however far behind the reader is
READ_BYTES = 512 * 1024  # most bytes of one read; a reader that is further behind skips to the end

_ERROR_LEVEL = re.compile(
    r"(?:^|[\s\]])(?:ERROR|CRITICAL|FATAL)\b|^(?:\[\d+\] )?[\d.]+ E |^\[?E\d{4} |^Traceback "
    r"|^\s*(?:\w+\.)*\w+(?:Error|Exception)(?::|$)"
    r"|: error: |^(?i:error)\b|Segmentation fault|core dumped|panicked at"
    r"|GGML_ASSERT|GGML_ABORT|Assertion [`'].*['’] failed|(?:^|: )CUDA error\b|nvcc fatal"
)
_WARNING_LEVEL = re.compile(
    r"(?:^|[\s\]])(?:WARNING|WARN)\b|^(?:\[\d+\] )?[\d.]+ W |^\[?W\d{4} |\w+Warning: "
    r"|^(?i:warning)\b"
)
# of a server that spans several hosts, see cluster_log.py
_RANK_PREFIX = re.compile(r"^\[(?:rank|ray) \d+\] ")
_INFO_LEVEL = re.compile(r"(?:^|[\s\]])INFO\b|^(?:\[\d+\] )?[\d.]+ I |^\[?I\d{4} ")


def level_of_line(line: str) -> str:
    """Return the level of a log line by its form: "error", "warn" or "info"; "" if none shows. A
    line without a level of the engine, such as the end of a traceback, may be an error too."""
    head = _RANK_PREFIX.sub("", line[:200])
    if _INFO_LEVEL.search(head[:60]):
        return "info"
    if _WARNING_LEVEL.search(head):
        return "warn"
    if not _ERROR_LEVEL.search(head):
        return ""
    return "error"


# each state that `level_of_line` calls an error has one of these
_SIGN_OF_ERROR = re.compile(r"(?i:error|exception)|CRITICAL|FATAL|GGML_A|ault|dumped|panicked|\bE ")


def decode_log_line(raw: bytes, secrets: Iterable[str] = ()) -> str:
    """Return one line of the log as clean text, with `secrets` masked. Of a line that was
    overwritten, such as a progress bar, return the last state that is an error, because the program
    may have ended there; without one, return the last state that is not blank."""
    text = raw.decode("utf-8", "replace")
    if not text.isprintable():
        text = _choose_shown_redraw(text.split("\r"))
    return clean_text(mask_text(text, secrets))


def _choose_shown_redraw(states: Sequence[str]) -> str:
    newest_first = (clean_text(state.expandtabs(8), len(state) * 8) for state in reversed(states))
    last = next(filter(str.strip, newest_first), "")
    return last if _is_error_redraw(last) else next(filter(_is_error_redraw, newest_first), last)


def _is_error_redraw(state: str) -> bool:
    return bool(_SIGN_OF_ERROR.search(state)) and level_of_line(state) == "error"


def decode_log_lines(raw: Sequence[bytes], secrets: Collection[str] = ()) -> list[str]:
    """Return what `decode_log_line` returns for each of the lines `raw`. Lines without control
    characters are handled together, in a tenth of the time."""
    if not raw:
        return []
    lines = b"\n".join(raw).decode("utf-8", "replace").split("\n")
    if not "".join(lines).isprintable() or len(max(lines, key=len)) > LINE_CHARS:
        return [decode_log_line(line, secrets) for line in raw]
    return [
        line if len(line) <= LINE_CHARS else clean_text(line) for line in mask_lines(lines, secrets)
    ]


# Within a line, a secret can continue: a name, a colon or "Bearer", and the value, whole or cut.
_FIRST_WORDS = re.compile(r"(?:\s*\S{1,4096}){0,3}")


class LineAssembler:
    """Joins chunks of bytes into complete lines of text, with `secrets` masked. A line longer than
    `limit` bytes is returned in pieces, each further one without its first words: they could be the
    end of a secret, which nothing shows."""

    def __init__(self, secrets: Iterable[str] = (), limit: int = 64 * 1024) -> None:
        self._secrets = tuple(secrets)
        self._limit = limit
        self._rest = b""
        self._within_line = False  # the bytes before `_rest` belong to the same line

    def set_secrets(self, secrets: Iterable[str]) -> None:
        self._secrets = tuple(secrets)

    def feed(self, data: bytes) -> list[str]:
        """Add the next bytes of the log, and return the lines that they complete."""
        *complete, rest = (self._rest + data).split(b"\n")
        within_line = self._within_line
        self._within_line = within_line and not complete
        if len(rest) > self._limit:
            rest = _drop_overwritten_redraws(rest)
        if len(rest) > self._limit:
            complete.append(rest)
            rest = b""
            self._within_line = True
        self._rest = rest
        lines = decode_log_lines(complete, self._secrets)
        if within_line and lines:
            lines[0] = _drop_possible_end_of_secret(lines[0])
        return lines

    @property
    def pending_byte_count(self) -> int:
        return len(self._rest)

    @property
    def unfinished_line(self) -> str:
        """The present text of the last log line, which has no line end yet, such as a progress bar.
        "" if the last line is complete."""
        if not self._rest:
            return ""
        line = decode_log_line(self._rest, self._secrets)
        return _drop_possible_end_of_secret(line) if self._within_line else line

    def flush(self) -> list[str]:
        """Return the last log line, which has no line end, in a list, and forget it; [] if the last
        line was complete. Call this after the program that writes the log has ended."""
        lines = [self.unfinished_line] if self._rest else []
        self.drop_pending_bytes()
        return lines

    def flush_before_gap(self) -> list[str]:
        """Return what `flush` returns. The next bytes are from a later place of the log, and may
        begin within a line."""
        lines = self.flush()
        self._within_line = True
        return lines

    def drop_pending_bytes(self) -> None:
        self._rest = b""
        self._within_line = False


def _drop_overwritten_redraws(line: bytes) -> bytes:
    """Return `line`, an unfinished line of a progress bar, without the states that
    `decode_log_line` would leave out."""
    *old, last = line[:-1].split(b"\r")
    if not old:
        return line
    errors = (one for one in reversed(old) if _is_error_redraw(decode_log_line(one)))
    error = next(errors, None)
    kept = [last] if error is None else [error, last]
    return b"\r".join(kept) + line[-1:]


def _drop_possible_end_of_secret(line: str) -> str:
    return _FIRST_WORDS.sub("…", line, count=1)


class LogRing:
    """Keeps the first and the newest lines of a log in bounded memory. If lines between these two
    parts were dropped, one line in their place says so.

    The newest lines are compressed in blocks, except for the last 256 to 511: a log in text takes
    ten times the memory.
    """

    def __init__(
        self,
        head_lines: int = HEAD_LINES,
        tail_lines: int = TAIL_LINES,
        chars: int = MAX_RING_CHARACTERS,
    ) -> None:
        self._head: list[str] = []
        self._head_lines, self._tail_lines, self._chars = head_lines, tail_lines, chars
        self._clear_tail()
        self.dropped = 0  # lines added but no longer kept
        self.skipped = False  # bytes between head and tail were never read
        self.total = 0  # lines ever added, so that a viewer knows which are new

    def _clear_tail(self) -> None:
        # the tail is these three, in this order; each packed block has BLOCK_LINES lines
        self._oldest: deque[str] = deque()
        self._packed: deque[bytes] = deque()
        self._newest: list[str] = []
        self._tail_chars = 0

    @property
    def _tail_length(self) -> int:
        return len(self._oldest) + len(self._packed) * BLOCK_LINES + len(self._newest)

    def extend(self, lines: Iterable[str]) -> None:
        new = list(lines)
        self.total += len(new)
        if not self._tail_length and not self.skipped:
            room = self._head_lines - len(self._head)
            self._head += new[:room]
            new = new[room:]
        self._newest += new
        self._tail_chars += sum(map(len, new))
        self._compress_oldest()
        too_many = max(0, self._tail_length - self._tail_lines)
        while too_many or self._tail_chars > self._chars:
            self._drop_oldest()
            too_many = max(0, too_many - 1)

    def _compress_oldest(self) -> None:
        packed = 0
        while len(self._newest) - packed >= 2 * BLOCK_LINES:
            self._packed.append(_compress_lines(self._newest[packed : packed + BLOCK_LINES]))
            packed += BLOCK_LINES
        del self._newest[:packed]

    def _drop_oldest(self) -> None:
        if not self._oldest:
            if self._packed:
                self._oldest.extend(_decompress_lines(self._packed.popleft()))
            else:
                self._oldest.extend(self._newest)
                self._newest = []
        self._tail_chars -= len(self._oldest.popleft())
        self.dropped += 1

    def record_gap(self) -> None:
        """Record that bytes of the log after the lines so far are not read. All lines after the
        first `head_lines` are dropped: there can be only one gap."""
        self.skipped = True
        self.dropped += self._tail_length
        self._clear_tail()

    def _gap_text(self) -> str | None:
        if self.skipped:
            return "… lines skipped here to keep up with the log; a search reads the whole file …"
        if self.dropped:
            return (
                f"… {self.dropped:,} lines are no longer in memory; a search reads the whole file …"
            )
        return None

    @property
    def gap_index(self) -> int | None:
        """The index of the line about dropped lines; None if none were dropped."""
        if self._gap_text() is None:
            return None
        return len(self._head)

    def __len__(self) -> int:
        return len(self._head) + self._tail_length + (1 if self._gap_text() else 0)

    def lines(self, start: int = 0, count: int | None = None) -> Sequence[str]:
        """Return up to `count` of the lines in memory from the index `start` on, None for all of
        them. Index 0 is the first line of the log. The line about dropped lines has an index
        too."""
        stop = len(self) if count is None else max(0, min(start + count, len(self)))
        head, gap = self._head, self._gap_text()
        between = [] if gap is None else [gap]
        first = len(head) + len(between)  # the index of the first line of the tail
        begin = max(start, 0)
        newest = self._lines_of_tail(max(begin - first, 0), stop - first)
        return [*[*head, *between][begin:stop], *newest] if begin < first else newest

    def _lines_of_tail(self, begin: int, stop: int) -> list[str]:
        """Return the lines of the tail from the index `begin` on, up to that before `stop`."""
        found: list[str] = []
        oldest = len(self._oldest)
        if begin < min(stop, oldest):
            found += list(self._oldest)[begin:stop]
        first = oldest
        begin_block = max(0, (begin - oldest) // BLOCK_LINES)
        stop_block = min(len(self._packed), -((oldest - stop) // BLOCK_LINES))
        for block in range(begin_block, stop_block):
            at = first + block * BLOCK_LINES
            found += _decompress_lines(self._packed[block])[max(0, begin - at) : stop - at]
        first += len(self._packed) * BLOCK_LINES
        if stop > first:
            found += self._newest[max(0, begin - first) : stop - first]
        return found

    def find(self, text: str, start: int = 0, backwards: bool = False) -> int | None:
        """Return the index of the first line in memory from the index `start` on that contains
        `text`, ignoring case. With `backwards`, search from `start` towards the first line. None if
        no line does."""
        wanted = text.casefold()
        begin, stop = (0, min(start + 1, len(self))) if backwards else (max(start, 0), len(self))
        chunks = range(begin, stop, BLOCK_LINES)
        for at in reversed(chunks) if backwards else chunks:
            lines = self.lines(at, min(BLOCK_LINES, stop - at))
            hits = [n for n, line in enumerate(lines) if wanted in line.casefold()]
            if hits:
                return at + hits[-1 if backwards else 0]
        return None


def _compress_lines(lines: Sequence[str]) -> bytes:
    return zlib.compress("\n".join(lines).encode("utf-8", "surrogatepass"), 1)


def _decompress_lines(block: bytes) -> list[str]:
    return zlib.decompress(block).decode("utf-8", "surrogatepass").split("\n")


class LogFollower:
    """Follows the log file of one run: takes the bytes that were read, returns batches of new
    lines, and keeps the lines in `ring`. `offset` is the position in the file of the next byte to
    read, also after a lost connection."""

    def __init__(self, run_id: str, secrets: Iterable[str] = ()) -> None:
        self.run_id = run_id
        self.ring = LogRing()
        self.offset = 0
        self._assembler = LineAssembler(secrets)

    def set_secrets(self, secrets: Iterable[str]) -> None:
        """Mask `secrets` in all log lines that are added from now on."""
        self._assembler.set_secrets(secrets)

    @property
    def unfinished_line(self) -> str:
        return self._assembler.unfinished_line

    def feed(self, data: bytes, file_position: int) -> LogBatch | None:
        """Add `data`, the bytes at `file_position` of the log file, and return the lines that they
        complete; None if there are none. If `file_position` is not `offset`, bytes were skipped or
        the file was truncated: the unfinished line is dropped, and the batch says so."""
        truncated = file_position != self.offset
        self.offset = file_position + len(data)
        if truncated:
            self._assembler.drop_pending_bytes()
            self.ring.record_gap()
            if file_position:
                data = data[data.find(b"\n") + 1 :]  # begin with a whole line
        return self._make_batch(self._assembler.feed(data), truncated)

    def finish(self) -> LogBatch | None:
        """Return the last line, which has no line end, as a batch; None if the last line was
        complete. Call this after the program that writes the log has ended."""
        return self._make_batch(self._assembler.flush(), False)

    def _make_batch(self, lines: list[str], truncated: bool) -> LogBatch | None:
        if not lines and not truncated:
            return None
        self.ring.extend(lines)
        return LogBatch(
            self.run_id, tuple(lines), self.offset - self._assembler.pending_byte_count, truncated
        )


async def read_log_batches(
    host: Host,
    path: str,
    run_id: str,
    *,
    secrets: Iterable[str] = (),
    ended: Callable[[], bool] = lambda: True,
    wait: Callable[[], Awaitable[None]] | None = None,
) -> AsyncIterator[LogBatch]:
    """Yield all lines of the log file at `path` from its start, in batches, with `secrets` masked.
    At the end of the file, stop if `ended()` is true, otherwise await `wait()` and read on. Do so
    also while the host cannot be reached, but raise HostUnreachable if `ended()` is true or `wait`
    is None."""
    assembler, offset = LineAssembler(secrets), 0
    while True:
        last = ended()
        try:
            data = await host.read_file(path, offset=offset, limit=READ_BYTES)
        except HostUnreachable:
            if last or wait is None:
                raise
            await wait()  # the link may come back; only time is lost
            continue
        offset += len(data)
        lines = assembler.feed(data)
        if not data and last:
            lines += assembler.flush()
        if lines:
            yield LogBatch(run_id, tuple(lines), offset - assembler.pending_byte_count)
        if not data:
            if last:
                return
            if wait is not None:
                await wait()


@dataclass(frozen=True, slots=True)
class LogMatch:
    """A line of the log file that contains the searched text, and its number from 1."""

    number: int
    line: str


async def search_log(
    host: Host, path: str, text: str, *, secrets: Iterable[str] = (), limit: int = 500
) -> tuple[LogMatch, ...]:
    """Return the first `limit` lines of the log file at `path` that contain `text` as it is,
    ignoring case, with `secrets` masked. The search runs on the host. Raises CommandFailed if the
    file cannot be searched."""
    done = await host.run(
        ["grep", "-a", "-n", "-F", "-i", "-m", str(limit), "-e", text, "--", path]
    )
    if done.returncode > 1:
        raise CommandFailed(
            f"cannot search the log file {path}: {done.problem}", done, host=host.name
        )
    found = []
    for line in done.stdout.splitlines():
        digits, _, rest = line.partition(b":")
        number = parse_whole_number(digits.decode("ascii", "replace"))
        if number is not None:
            found.append(LogMatch(number, decode_log_line(rest, secrets)))
    return tuple(found)

"""The process that writes captured traffic to a file, without its text.

It reads what `proxy_process` has passed on, in frames on stdin until its end, and writes a line for
each request whose answer has ended. It is a process of its own, so that reading long prompts delays
no byte that passes through the port, and so that what was passed on is written although the command
is killed. On stdout it writes lines of JSON: the totals so far when a frame asks for them, with the
number of that request, and at its end; and, once a frame says that the port drains, which
connections carry no request. At the end it puts the lines of the file in the order of their times.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from workbench.bench import proxy_process
from workbench.bench.captured_traffic import (
    PROMPT_READERS_BY_PATH,
    CapturedRow,
    CapturedTraffic,
    LeftOutError,
    Usage,
)
from workbench.bench.proxied_traffic import Exchange, PassedTraffic, read_frames

MOST_REQUESTS = 200_000  # of a file; `bench --trace` reads as many
_NICENESS = 10  # on a core that both share, the port goes first
_MS_PER_SECOND = 1000.0


def main(path: Path, began_s: float) -> int:
    """Write the requests in the frames on stdin to the file at `path`, with times since `began_s`.
    Return the exit code."""
    os.nice(_NICENESS)
    with path.open("ab", buffering=0) as file:
        writer = _TraceWriter(file, began_s)
        for kind, number, at_s, data in read_frames(sys.stdin.fileno()):
            writer.process_frame(kind, number, at_s, data)
        writer.end_and_print_totals()
    _sort_lines_by_time(path)
    return 0


class _TraceWriter:
    """Writes the captured requests to a file, and prints totals and idle connections on stdout."""

    def __init__(self, file: BinaryIO, began_s: float) -> None:
        self._file, self._began_s = file, began_s
        self._traffic, self._totals = CapturedTraffic(), _Totals()
        self._passed = PassedTraffic(PROMPT_READERS_BY_PATH, self._write_exchange)
        self._drains = False
        self._answered = 0  # the number of the last request for the totals

    def process_frame(self, kind: int, number: int, at_s: float, data: bytes) -> None:
        if kind == proxy_process.TOTALS_WANTED:
            self._answered = number
            self._print_totals()
        elif kind == proxy_process.DRAINING:
            self._drains = True
            for each in self._passed.open_connection_numbers():
                self._report_connection_if_idle(each)
        else:
            self._passed.process_frame(kind, number, at_s, data)
            if self._drains:
                self._report_connection_if_idle(number)

    def end_and_print_totals(self) -> None:
        """End all exchanges in flight, write those that can be written, and print the totals."""
        self._passed.end_all_exchanges(time.monotonic())
        self._print_totals()

    def _write_exchange(self, exchange: Exchange) -> None:
        line = _count_exchange_and_format_line(self._traffic, self._totals, exchange, self._began_s)
        if line:
            self._file.write(line.encode())

    def _report_connection_if_idle(self, number: int) -> None:
        frame_count = self._passed.frame_count_if_idle(number)
        if frame_count is not None:
            _print_json({"idle": [number, frame_count]})

    def _print_totals(self) -> None:
        names = ("requests", "in_flight", "unread", "refused")
        passed = {name: getattr(self._passed, name) for name in names}
        totals = {**self._totals.as_document(), "passed": passed}
        _print_json({"totals": totals, "answers": self._answered})


def _print_json(document: dict[str, Any]) -> None:
    with suppress(OSError):  # nobody listens any more: the command was killed
        sys.stdout.write(json.dumps(document) + "\n")
        sys.stdout.flush()


def _count_exchange_and_format_line(
    traffic: CapturedTraffic, totals: _Totals, exchange: Exchange, began_s: float
) -> str:
    """Return the trace line of an exchange, and count it in `totals`. "" if the exchange is left
    out; `totals.left` then has the reason."""
    try:
        has_head = exchange.status != 0
        if has_head and not 200 <= exchange.status < 300:
            raise LeftOutError(f"answered with HTTP {exchange.status}")
        if totals.requests == MOST_REQUESTS:
            raise LeftOutError(f"after the first {MOST_REQUESTS:,}")
        row, usage = traffic.row_and_usage_of_exchange(
            exchange.path,
            exchange.request,
            exchange.answer,
            encoding=exchange.encoding,
            at_ms=_MS_PER_SECOND * (exchange.begin_s - began_s),
            end_ms=_MS_PER_SECOND * (exchange.end_s - began_s),
        )
    except LeftOutError as left:
        totals.left[str(left)] += 1
        return ""
    except Exception as error:  # of what others sent: the requests after it are still captured
        totals.left[f"it could not be read ({type(error).__name__})"] += 1
        return ""
    totals.add_exchange(row, usage, whole=exchange.whole)
    return row.trace_line()


class _Totals:
    """What was captured so far."""

    def __init__(self) -> None:
        self.requests = 0
        self.left: Counter[str] = Counter()
        self._sums: Counter[str] = Counter()
        self._talks: set[int] = set()
        self._first_ms = self._last_ms = 0

    def add_exchange(self, row: CapturedRow, usage: Usage, *, whole: bool) -> None:
        """Add one captured request to the totals. `whole` says whether its answer was complete."""
        first = not self.requests
        self.requests += 1
        self._first_ms = row.at_ms if first else min(self._first_ms, row.at_ms)
        self._last_ms = max(self._last_ms, row.at_ms)
        if row.conversation is not None:
            self._talks.add(row.conversation)
        self._sums.update(
            turns=row.delay_ms is not None,
            prompt_tokens=row.prompt_tokens,
            answer_tokens=row.answer_tokens,
            reused_tokens=row.reused_tokens,
            estimated=row.estimated,
            cut=not whole,
        )
        if usage.cached is not None:
            self._sums.update(cached_tokens=usage.cached, cached_of_tokens=row.prompt_tokens)

    def as_document(self) -> dict[str, Any]:
        """Return the totals as JSON data. Times are in seconds, lengths in tokens."""
        names = ("turns", "prompt_tokens", "answer_tokens", "reused_tokens", "estimated", "cut")
        told = ("cached_tokens", "cached_of_tokens")
        return {
            "requests": self.requests,
            "conversations": len(self._talks),
            **{name: int(self._sums[name]) for name in names},
            **{name: int(self._sums[name]) for name in told if name in self._sums},
            "seconds": (self._last_ms - self._first_ms) / _MS_PER_SECOND,
            "left_out": dict(self.left),
        }


def _sort_lines_by_time(path: Path) -> None:
    """Put the lines of a file in the order of their times. They were written as answers ended."""
    places: list[tuple[int, int]] = []
    with path.open("rb") as file:
        at = 0
        for line in file:
            places.append((json.loads(line)["timestamp"], at))
            at += len(line)
        if places == sorted(places):
            return
        beside = path.with_name(f"{path.name}.sorted")
        beside.touch(0o600)
        with beside.open("wb") as ordered:
            for _, at in sorted(places):
                file.seek(at)
                ordered.write(file.readline())
    beside.replace(path)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), float(sys.argv[2])))

"""The process that writes captured traffic to a file, without its text.

It reads exchanges from stdin until its end: a line of JSON, then the request and the answer. An empty
line asks for the totals so far, which it writes to stdout as a line of JSON, as it does when it is
ready and at its end. It is a process of its own, so that reading long prompts delays no byte that
passes through the port, and so that what it was given is written although the command is killed. At
the end it puts the lines of the file in the order of their times.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from workbench.bench.captured_traffic import CapturedTraffic, Left, Row, Usage
from workbench.bench.pass_through import Exchange

MOST_REQUESTS = 200_000  # of a file; `bench --trace` reads as many
TOTALS_WANTED = b"\n"
_NICENESS = 10  # on a core that both share, the port goes first
_MS = 1000.0


def encode_exchange(exchange: Exchange, began_s: float) -> bytes:
    """Return an exchange as this process reads it, with times since `began_s`."""
    head = {
        "at_ms": _MS * (exchange.begin_s - began_s),
        "end_ms": _MS * (exchange.end_s - began_s),
        "path": exchange.path,
        "status": exchange.status,
        "encoding": exchange.encoding,
        "whole": exchange.whole,
        "sizes": [len(exchange.request), len(exchange.answer)],
    }
    return b"".join((json.dumps(head).encode(), b"\n", exchange.request, exchange.answer))


def main(path: Path) -> int:
    """Write the exchanges on stdin to the file at `path`. Return the exit code."""
    os.nice(_NICENESS)
    traffic, totals = CapturedTraffic(), _Totals()
    _print_json(totals.as_document())  # it is ready
    with path.open("ab", buffering=0) as file:
        while line := sys.stdin.buffer.readline():
            if line == TOTALS_WANTED:
                _print_json(totals.as_document())
                continue
            exchange = _read_exchange(sys.stdin.buffer, line)
            if exchange is None:
                break
            if row := _trace_line_of(traffic, totals, *exchange):
                file.write(row.encode())
    _print_json(totals.as_document())
    _sort_lines_by_time(path)
    return 0


def _print_json(document: dict[str, Any]) -> None:
    with suppress(OSError):  # nobody listens any more: the command was killed
        sys.stdout.write(json.dumps(document) + "\n")
        sys.stdout.flush()


def _read_exchange(source: BinaryIO, line: bytes) -> tuple[dict[str, Any], bytes, bytes] | None:
    """Return (head, request, answer) of the exchange whose first line was read. None if it was cut."""
    if not line.endswith(b"\n"):
        return None
    head = json.loads(line)
    request, answer = (source.read(size) for size in head["sizes"])
    whole = [len(request), len(answer)] == head["sizes"]
    return (head, request, answer) if whole else None


def _trace_line_of(
    traffic: CapturedTraffic, totals: _Totals, head: dict[str, Any], request: bytes, answer: bytes
) -> str:
    """Return the line of an exchange, "" if it has none."""
    try:
        if head["status"] and head["status"] // 100 != 2:
            raise Left(f"answered with HTTP {head['status']}")
        if totals.requests == MOST_REQUESTS:
            raise Left(f"after the first {MOST_REQUESTS:,}")
        row, usage = traffic.row_of_exchange(
            head["path"],
            request,
            answer,
            encoding=head["encoding"],
            at_ms=head["at_ms"],
            end_ms=head["end_ms"],
        )
    except Left as left:
        totals.left[str(left)] += 1
        return ""
    totals.add_exchange(row, usage, whole=head["whole"])
    return row.trace_line()


class _Totals:
    """What was captured so far."""

    def __init__(self) -> None:
        self.requests = 0
        self.left: Counter[str] = Counter()
        self._sums: Counter[str] = Counter()
        self._talks: set[int] = set()
        self._first_ms = self._last_ms = 0

    def add_exchange(self, row: Row, usage: Usage, *, whole: bool) -> None:
        """Count one request of the capture. `whole` says whether its answer was complete."""
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
            "seconds": (self._last_ms - self._first_ms) / _MS,
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
    sys.exit(main(Path(sys.argv[1])))

"""A program in a pseudo-terminal whose output is read all the time: its output, its costs and its
memory. For the benchmarks in this directory."""

from __future__ import annotations

import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Mapping
from fcntl import ioctl
from pathlib import Path
from types import TracebackType

RECENT = 2**20


class Terminal:
    """A program in a terminal: `with Terminal(argv) as t`. At the end its whole session gets TERM,
    then KILL."""

    def __init__(
        self,
        argv: list[str],
        columns: int = 120,
        rows: int = 40,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.master, slave = pty.openpty()
        ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "", **(env or {})}
        # an installed program has its bytecode
        for name in ("SSH_CONNECTION", "PYTHONDONTWRITEBYTECODE"):
            environment.pop(name, None)
        self.started_s = time.monotonic()
        self.child = subprocess.Popen(
            argv, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True
        )
        os.close(slave)
        self.bytes = 0
        self.recent = b""  # the last RECENT bytes

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        os.killpg(self.child.pid, signal.SIGTERM)
        end = time.monotonic() + 8
        while self.child.poll() is None and time.monotonic() < end:
            self.read(0.05)
        if self.child.returncode is None:
            os.killpg(self.child.pid, signal.SIGKILL)
            self.child.wait()
        os.close(self.master)

    def read(self, seconds: float) -> bytes:
        """Return the next output, or nothing if there is none in that time."""
        if not select.select([self.master], [], [], max(0.0, seconds))[0]:
            return b""
        try:
            data = os.read(self.master, 65536)
        except OSError:  # the program has ended
            time.sleep(min(0.05, seconds))
            return b""
        self.bytes += len(data)
        self.recent = (self.recent + data)[-RECENT:]
        return data

    def drain(self, seconds: float) -> int:
        """Return the number of bytes that the program writes in that time."""
        end, before = time.monotonic() + seconds, self.bytes
        while (left := end - time.monotonic()) > 0:
            self.read(left)
        return self.bytes - before

    def until(self, wanted: bytes, seconds: float = 30.0) -> float:
        """Return the seconds until `wanted` appears, from the exec or, if something was sent, from
        the start of this call (see `ask`)."""
        end = time.monotonic() + seconds
        while wanted not in self.recent:
            if time.monotonic() > end:
                raise SystemExit(f"{wanted!r} did not come; the end: {self.recent[-400:]!r}")
            self.read(0.2)
        return time.monotonic() - self.started_s

    def ask(self, keys: bytes, wanted: bytes = b"", seconds: float = 10.0) -> float:
        """Return the seconds from a key press until `wanted` appears in the output after it."""
        self.recent = b""
        begin = time.monotonic()
        os.write(self.master, keys)
        self.until(wanted, seconds)
        return time.monotonic() - begin

    def children(self) -> dict[int, str]:
        """Return the living processes below the program: pid -> command line."""
        found: dict[int, str] = {}
        todo = [self.child.pid]
        while todo:
            pid = todo.pop()
            for task in Path(f"/proc/{pid}/task").glob("*/children"):
                for child in task.read_text().split():
                    found[int(child)] = (
                        Path(f"/proc/{child}/cmdline").read_text().replace("\0", " ")
                    )
                    todo.append(int(child))
        return found


def run_s(pid: int) -> float:
    """Return the CPU seconds of all living threads (schedstat counts nanoseconds) and of children
    that were waited for (ticks of 10 ms)."""
    total = 0.0
    for task in Path(f"/proc/{pid}/task").iterdir():
        total += int((task / "schedstat").read_text().split()[0]) / 1e9
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return total + (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")


def memory_mib(pid: int) -> tuple[float, float]:
    """Return the resident and the proportional set size."""
    resident = proportional = 0
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == "Rss":
            resident = int(rest.split()[0])
        elif name == "Pss":
            proportional = int(rest.split()[0])
    return resident / 1024, proportional / 1024


def load_1m() -> float:
    return os.getloadavg()[0]

"""The simulated library's script, and the agent as a child process whose lines are read with a
deadline."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from workbench.gpu import remote_programs

DEADLINE_S = 15.0


class Driver:
    """What the simulated library answers: lines of its script, changed while it runs."""

    FIELDS = (
        "field.186 * 251000",
        "field.185 * 249000",
        "field.83 * 5000000",
        "field.197 * 0",
        "field.198 * 0",
        "field.82 * 78",
    )

    def __init__(self, script: Path, log: Path) -> None:
        self.script, self.log = script, log
        self.lines: list[str] = list(self.FIELDS)
        self.write()

    def write(self) -> None:
        new = self.script.with_suffix(".new")
        new.write_text("\n".join(self.lines) + "\n")
        new.replace(self.script)

    def set(self, *lines: str) -> None:
        self.lines += lines
        self.write()

    def clear(self, lines: Iterable[str] | None = None) -> None:
        self.lines = list(self.FIELDS) if lines is None else list(lines)
        self.write()

    def calls(self, name: str) -> int:
        return (
            sum(line.startswith(name) for line in self.log.read_text().splitlines())
            if self.log.exists()
            else 0
        )


class Child:
    """Reads the agent's lines with a deadline."""

    def __init__(self, local: bool = True, python: str = sys.executable, **options: float) -> None:
        options = {
            "interval_s": 0.05,
            "hung_s": 0.2,
            "slow_s": 0.3,
            "info_s": 0.4,
            "retry_s": 0.1,
            **options,
        }
        self.process = subprocess.Popen(
            remote_programs.AGENT_PROGRAM.argv(python, local, options),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.send(remote_programs.AGENT_PROGRAM.stdin_frame(local))
        self.rest = b""

    def send(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def documents(self) -> Iterator[dict[str, Any]]:
        assert self.process.stdout is not None
        until = time.monotonic() + DEADLINE_S
        while True:
            line, newline, rest = self.rest.partition(b"\n")
            if newline:
                self.rest = rest
                yield json.loads(line)
                continue
            left = until - time.monotonic()
            assert left > 0, "the agent did not say it in time"
            if select.select([self.process.stdout], [], [], left)[0]:
                data = os.read(self.process.stdout.fileno(), 65536)
                assert data, f"the agent ended: {self.process.communicate()[1].decode()}"
                self.rest += data

    def wait_for(self, holds: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
        return next(d for d in self.documents() if holds(d))

    def sample(
        self, holds: Callable[[dict[str, Any]], Any] = lambda d: d["gpus"]
    ) -> dict[str, Any]:
        return self.wait_for(lambda d: "t" in d and holds(d))

    def driver(self, status: str) -> dict[str, Any]:
        found = self.wait_for(lambda d: d.get("driver", {}).get("status") == status)
        return dict(found["driver"])

    def infos(self) -> list[dict[str, Any]]:
        return list(self.wait_for(lambda d: "infos" in d)["infos"])

    def close(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            return self.process.wait(5)
        finally:
            self.process.kill()
            for pipe in (self.process.stdout, self.process.stderr):
                assert pipe is not None
                pipe.close()

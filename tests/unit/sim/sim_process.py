"""A running simulated engine: its process, log and requests."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from workbench.sim.driver_state import SimState

DEADLINE_S = 20.0


def wait_for(condition: Callable[[], Any], what: str) -> Any:
    """Return the first true value of `condition`, which is polled until a deadline."""
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.01)
    raise AssertionError(f"not within {DEADLINE_S} s: {what}")


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class Engine:
    """A running simulated engine: its process, port, log file and requests."""

    def __init__(
        self, process: subprocess.Popen[bytes], port: int, log: Path, state: SimState
    ) -> None:
        self.process, self.port, self.log_path, self.state = process, port, log, state

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def request(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(
                method, path, None if body is None else json.dumps(body), headers or {}
            )
            reply = connection.getresponse()
            return reply.status, reply.read()
        finally:
            connection.close()

    def health(self) -> int:
        try:
            return self.request("GET", "/health")[0]
        except OSError:
            return 0

    def wait_ready(self) -> Engine:
        def ready() -> bool:
            assert self.process.poll() is None, self.log
            return self.health() == 200

        wait_for(ready, "engine ready")
        return self

    def chat(self, **fields: Any) -> tuple[int, bytes]:
        body = {
            "messages": [{"role": "user", "content": "hello there"}],
            "ignore_eos": True,
            "max_tokens": 8,
            **fields,
        }
        return self.request("POST", "/v1/chat/completions", body)

    def events(self, path: str = "/v1/chat/completions", **fields: Any) -> list[Any]:
        """Return the decoded events of a stream, and the string [DONE]."""
        body = {
            "stream": True,
            "stream_options": {"include_usage": True},
            "ignore_eos": True,
            **fields,
        }
        body.setdefault("messages", [{"role": "user", "content": "hello there"}])
        status, data = self.request("POST", path, body)
        assert status == 200, data
        lines = [line[6:] for line in data.decode().split("\n\n") if line.startswith("data: ")]
        return [line if line == "[DONE]" else json.loads(line) for line in lines]

    def wait_exit(self) -> int:
        return self.process.wait(timeout=DEADLINE_S)

    def members(self) -> list[int]:
        """Return the live processes of the engine's session."""
        found = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = path.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == self.process.pid and fields[0] != "Z":
                found.append(int(path.parent.name))
        return found

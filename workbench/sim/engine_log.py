"""The log of a simulated engine, written to stdout."""

from __future__ import annotations

import sys
import time

from workbench.sim.launch_options import LaunchOptions

_PHRASES = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 503: "Service Unavailable"}


class EngineLog:
    """Writes each line in the engine's format, with one write per line, so that readers can follow it."""

    def __init__(self, launch: LaunchOptions) -> None:
        self.engine = launch.engine
        self.started = time.monotonic()
        self.ranks = launch.tp > 1 or launch.dp > 1  # lines name the rank that they come from

    def line(
        self, text: str, *, source: str = "simulated.py:1", process: str = "", pid: int = 0, level: str = "INFO"
    ) -> None:
        """Write one line. `process` and `pid` are those of a worker."""
        self.raw(self.engine.log_line(self, text, source=source, process=process, pid=pid, level=level))

    def raw(self, text: str) -> None:
        """Write a line without the engine's prefix."""
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def access(self, peer: str, method: str, path: str, status: int) -> None:
        """Write uvicorn's line for one request."""
        phrase = _PHRASES.get(status, "")
        text = self.engine.access_line(f'INFO:     {peer} - "{method} {path} HTTP/1.1" {status} {phrase}')
        if text is not None:
            self.raw(text)

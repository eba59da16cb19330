"""The log of a simulated engine, which is its standard output."""

from __future__ import annotations

import sys
import time

from workbench.sim.launch_options import LaunchOptions

_PHRASES = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    503: "Service Unavailable",
}


class EngineLog:
    """A writer of log lines in the format of the engine. Each line is written at once, so that
    readers can follow the log.
    """

    def __init__(self, launch: LaunchOptions) -> None:
        self.engine = launch.engine
        self.started = time.monotonic()
        self.ranks = max(launch.tp, launch.dp) > 1  # lines name the rank that they come from

    def write_line(
        self,
        text: str,
        *,
        source: str = "simulated.py:1",
        process: str = "",
        pid: int = 0,
        level: str = "INFO",
    ) -> None:
        """Write one line with the engine's prefix. `source` is the file and line of the real
        engine's code that would write it. For a line of a worker process, `process` and `pid` are
        its name and process id."""
        self.write_raw_line(
            self.engine.log_line(self, text, source=source, process=process, pid=pid, level=level)
        )

    def write_raw_line(self, text: str) -> None:
        """Write a line without the engine's prefix."""
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def write_access_line(self, peer: str, method: str, path_with_query: str, status: int) -> None:
        """Write the line that uvicorn, the HTTP server of the engines, logs for one request."""
        phrase = _PHRASES.get(status, "")
        text = self.engine.access_line(
            f'INFO:     {peer} - "{method} {path_with_query} HTTP/1.1" {status} {phrase}'
        )
        if text is not None:
            self.write_raw_line(text)

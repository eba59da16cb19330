"""Log lines in each engine's own shape, written to stdout as they come."""

from __future__ import annotations

import os
import sys
import time

from workbench.sim.launch_options import Launch


class EngineLog:
    """`line` writes one line as the engine would. Unbuffered enough to be followed: one write per line."""

    def __init__(self, launch: Launch) -> None:
        self.engine = launch.engine
        self.started = time.monotonic()
        self.ranks = launch.tp > 1 or launch.dp > 1

    def line(
        self, text: str, *, source: str = "simulated.py:1", process: str = "", pid: int = 0, level: str = "INFO"
    ) -> None:
        if self.engine == "vllm":
            who = f"({process or 'APIServer'} pid={pid or os.getpid()})"
            text = f"{who} {level} {time.strftime('%m-%d %H:%M:%S')} [{source}] {text}"
        elif self.engine == "sglang":
            rank = f" {process}" if process and self.ranks else ""
            text = f"[{time.strftime('%Y-%m-%d %H:%M:%S')}{rank}] {text}"
        elif self.engine == "tabbyapi":
            text = f"{level + ':':<10}{text}"
        else:
            text = f"{self._elapsed()} {level[0]} {text}"
        self.raw(text)

    def raw(self, text: str) -> None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def access(self, peer: str, method: str, path: str, status: int) -> None:
        """uvicorn's line for one request."""
        phrase = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 503: "Service Unavailable"}
        if self.engine in ("vllm", "sglang"):
            text = f'INFO:     {peer} - "{method} {path} HTTP/1.1" {status} {phrase.get(status, "")}'
            self.raw(text if self.engine == "vllm" else f"[{time.strftime('%Y-%m-%d %H:%M:%S')}] {text}")

    def _elapsed(self) -> str:
        micros = int((time.monotonic() - self.started) * 1e6)
        seconds, micros = divmod(micros, 10**6)
        return f"{seconds // 60}.{seconds % 60:02d}.{micros // 1000:03d}.{micros % 1000:03d}"

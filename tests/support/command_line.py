"""`python -m workbench … --json` as a script uses it, and the counts that an engine itself gives on /metrics.

Nothing of Workbench is imported here: what it says is held against what the engine and the kernel say.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[2]
MARK = "WORKBENCH_TEST_MARK"


@dataclass(frozen=True)
class Done:
    code: int
    document: dict[str, Any]
    err: str


class CommandLine:
    """Runs commands in `directory`; every process that comes of them can be told by a mark in its environment."""

    def __init__(self, directory: Path, *, before: Sequence[str] = (), path: Iterable[Path] = (), **env: str) -> None:
        self.directory = directory
        self.before = tuple(before)  # options before the command, as --simulate
        self.mark = uuid.uuid4().hex
        places = os.pathsep.join([*map(str, path), os.environ["PATH"]])
        python_path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        self.env = {**os.environ, "PATH": places, "PYTHONPATH": python_path, MARK: self.mark, **env}

    def spawn(self, *words: object) -> subprocess.Popen[str]:
        argv = [sys.executable, "-m", "workbench", *self.before, *map(str, words), "--json"]
        return subprocess.Popen(
            argv,
            cwd=self.directory,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __call__(self, *words: object, timeout_s: float = 60) -> Done:
        """One command to its end. AssertionError unless it printed exactly one JSON document, and no traceback."""
        with self.spawn(*words) as process:
            out, err = process.communicate(timeout=timeout_s)
        assert "Traceback" not in err and "a defect in Workbench" not in err, err
        return Done(process.returncode, json.loads(out), err)

    def ok(self, *words: object, timeout_s: float = 60) -> dict[str, Any]:
        done = self(*words, timeout_s=timeout_s)
        assert done.code == 0, (words, done.document, done.err)
        return done.document

    def run_dirs(self) -> list[Path]:
        """Of this machine and of simulated hosts, oldest first."""
        state = Path(self.env["XDG_STATE_HOME"], "workbench")
        return sorted([*state.glob("runs/*"), *state.glob("sim/*/runs/*")], key=lambda run_dir: run_dir.name)

    def left(self) -> list[psutil.Process]:
        """Living processes that came of these commands: by the mark, by their session (an engine may write over its
        environment), or because they have a run's log open."""
        logs = {os.path.realpath(run_dir / "log") for run_dir in self.run_dirs()}
        sessions = {_session_of_run(run_dir) for run_dir in self.run_dirs()} - {None}
        return [p for p in psutil.process_iter() if _lives(p) and self._is_ours(p.pid, logs, sessions)]

    def _is_ours(self, pid: int, logs: set[str], sessions: set[int | None]) -> bool:
        try:
            proc = Path(f"/proc/{pid}")
            if f"{MARK}={self.mark}".encode() in (proc / "environ").read_bytes() or os.getsid(pid) in sessions:
                return True
            return any(os.path.realpath(fd) in logs for fd in (proc / "fd").iterdir())
        except OSError:
            return False

    def stop_all(self) -> None:
        """For the end of a test, however it ended."""
        for run in self("servers").document.get("servers", []):
            if run["state"] not in ("stopped", "crashed", "failed") or run["ended_unix_s"] is None:
                self("stop", run["run_id"], timeout_s=120)


def _session_of_run(run_dir: Path) -> int | None:
    try:
        return int((run_dir / "sid").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def ownerless_shared_memory() -> set[str]:
    """Files of /dev/shm that no living process has mapped: what a server that is gone has left. (Those of servers of
    other tests are mapped.)"""
    mapped: set[str] = set()
    names = set(os.listdir("/dev/shm"))
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            mapped.update(re.findall(r" /dev/shm/(.+)$", maps.read_text(), re.MULTILINE))
    return names - mapped


# ---- what the engine counts


@dataclass(frozen=True)
class Counts:
    requests: int
    prompt_tokens: int
    output_tokens: int

    def __sub__(self, earlier: Counts) -> Counts:
        return Counts(
            self.requests - earlier.requests,
            self.prompt_tokens - earlier.prompt_tokens,
            self.output_tokens - earlier.output_tokens,
        )


SERIES: Mapping[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {  # summed: requests, prompt, output
    "vllm": (("vllm:request_success_total",), ("vllm:prompt_tokens_total",), ("vllm:generation_tokens_total",)),
    "sglang": (("sglang:num_requests_total",), ("sglang:prompt_tokens_total",), ("sglang:generation_tokens_total",)),
    # llama.cpp counts no requests (its log does), and leaves cached tokens out of the prompt tokens.
    "llamacpp": (
        (),
        ("llamacpp:prompt_tokens_total", "llamacpp:prompt_tokens_cached_total"),
        ("llamacpp:tokens_predicted_total",),
    ),
}
_REQUEST_ENDED = re.compile(rb"slot +release: id +\d+ \| task \d+ \| stop processing")


def counts(engine: str, url: str, run_dir: str) -> Counts:
    """What the engine has counted since it started."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as reply:
        page = reply.read().decode()
    requests, prompt, output = (sum(_value(page, name) for name in names) for names in SERIES[engine])
    if engine == "llamacpp":
        requests = len(_REQUEST_ENDED.findall(Path(run_dir, "log").read_bytes()))
    return Counts(requests, prompt, output)


def _value(page: str, name: str) -> int:
    """The sum over all labels of one series; it has to be there."""
    found = re.findall(rf"^{re.escape(name)}(?:{{.*}})? (\S+)(?: \d+)?$", page, re.MULTILINE)
    assert found, f"{name} is not on the page"
    return round(sum(map(float, found)))


def of_result(result: Mapping[str, Any]) -> Counts:
    """All that a benchmark sent, warm-up included, by its own account."""
    return Counts(
        result["requests_ok"] + result["requests_failed"] + result["warmup_requests"],
        result["prompt_tokens"] + result["warmup_prompt_tokens"],
        result["output_tokens"] + result["warmup_output_tokens"],
    )


def counted_alike(engine: str, status: Mapping[str, Any], before: Counts, result: Mapping[str, Any]) -> Counts:
    """AssertionError unless the engine counted exactly what the benchmark says it sent. Waits a moment: SGLang counts
    a request after its last byte, and vLLM's page is made by another process."""
    ours = of_result(result)
    deadline = time.monotonic() + 5
    while (theirs := counts(engine, status["url"], status["run_dir"]) - before) != ours:
        assert time.monotonic() < deadline, f"the engine counted {theirs}, the benchmark {ours}"
        time.sleep(0.1)
    return theirs

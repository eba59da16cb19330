"""Run `python -m workbench … --json` as a script does, and read the engine's own counters from
/metrics.

This module imports nothing from Workbench: tests compare Workbench's output with the engine's and
the kernel's.
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
    """Run commands in `directory`. A mark in the environment identifies every process that comes
    from them."""

    def __init__(
        self, directory: Path, *, before: Sequence[str] = (), path: Iterable[Path] = (), **env: str
    ) -> None:
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
        """Run one command to its end. Asserts that it printed exactly one JSON document and no
        traceback."""
        with self.spawn(*words) as process:
            out, err = process.communicate(timeout=timeout_s)
        assert "Traceback" not in err and "a defect in Workbench" not in err, err
        return Done(process.returncode, json.loads(out), err)

    def ok(self, *words: object, timeout_s: float = 60) -> dict[str, Any]:
        done = self(*words, timeout_s=timeout_s)
        assert done.code == 0, (words, done.document, done.err)
        return done.document

    def run_dirs(self) -> list[Path]:
        """Return the run directories of this machine and of simulated hosts, oldest first."""
        state = Path(self.env["XDG_STATE_HOME"], "workbench")
        return sorted(
            [*state.glob("runs/*"), *state.glob("sim/*/runs/*")], key=lambda run_dir: run_dir.name
        )

    def left(self) -> list[psutil.Process]:
        """Return the living processes that come from these commands: found by the mark, by their
        session (an engine may overwrite its environment), or because a run's log is open in them.
        """
        logs = {os.path.realpath(run_dir / "log") for run_dir in self.run_dirs()}
        sessions = {_session_of_run(run_dir) for run_dir in self.run_dirs()} - {None}
        return [
            p for p in psutil.process_iter() if _lives(p) and self._is_ours(p.pid, logs, sessions)
        ]

    def _is_ours(self, pid: int, logs: set[str], sessions: set[int | None]) -> bool:
        try:
            proc = Path(f"/proc/{pid}")
            if (
                f"{MARK}={self.mark}".encode() in (proc / "environ").read_bytes()
                or os.getsid(pid) in sessions
            ):
                return True
            return any(os.path.realpath(fd) in logs for fd in (proc / "fd").iterdir())
        except OSError:
            return False

    def stop_all(self) -> None:
        """Stop all runs at the end of a test, also of a failed one."""
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
    """Return the files of /dev/shm that no living process has mapped: leftovers of servers that
    have ended. Files of the servers of other tests are mapped. Podman's lock outlives podman, and
    is none of them."""
    mapped: set[str] = set()
    names = set(os.listdir("/dev/shm"))
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            mapped.update(re.findall(r" /dev/shm/(.+)$", maps.read_text(), re.MULTILINE))
    return names - mapped - {"libpod_lock"}


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


# summed: requests, prompt, output
SERIES: Mapping[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "vllm": (
        ("vllm:request_success_total",),
        ("vllm:prompt_tokens_total",),
        ("vllm:generation_tokens_total",),
    ),
    "sglang": (
        ("sglang:num_requests_total",),
        ("sglang:prompt_tokens_total",),
        ("sglang:generation_tokens_total",),
    ),
    # llama.cpp counts no requests (its log does), and leaves cached tokens out of the prompt
    # tokens.
    "llamacpp": (
        (),
        ("llamacpp:prompt_tokens_total", "llamacpp:prompt_tokens_cached_total"),
        ("llamacpp:tokens_predicted_total",),
    ),
}
_REQUEST_ENDED = re.compile(rb"slot +release: id +\d+ \| task \d+ \| stop processing")


def counts(engine: str, url: str, run_dir: str) -> Counts:
    """Return the engine's own counters since its start."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as reply:
        page = reply.read().decode()
    requests, prompt, output = (
        sum(_value(page, name) for name in names) for names in SERIES[engine]
    )
    if engine == "llamacpp":
        requests = len(_REQUEST_ENDED.findall(Path(run_dir, "log").read_bytes()))
    return Counts(requests, prompt, output)


def _value(page: str, name: str) -> int:
    """Return the sum over all labels of one series. Fails if the series is missing."""
    found = re.findall(rf"^{re.escape(name)}(?:{{.*}})? (\S+)(?: \d+)?$", page, re.MULTILINE)
    assert found, f"{name} is not on the page"
    return round(sum(map(float, found)))


def of_result(result: Mapping[str, Any]) -> Counts:
    """Return the counts of all requests that a benchmark reports, warm-up included."""
    return Counts(
        result["requests_ok"] + result["requests_failed"] + result["warmup_requests"],
        result["prompt_tokens"] + result["warmup_prompt_tokens"],
        result["output_tokens"] + result["warmup_output_tokens"],
    )


def counted_alike(
    engine: str, status: Mapping[str, Any], before: Counts, result: Mapping[str, Any]
) -> Counts:
    """Assert that the engine counted exactly the requests and tokens that the benchmark reports,
    and those of its text probe. Return the counts of the load.
    Waits a moment: SGLang counts a request after its last byte, and another process writes vLLM's
    page."""
    ours = of_result(result)
    deadline = time.monotonic() + 5
    probe = of_probe(result)
    while (theirs := counts(engine, status["url"], status["run_dir"]) - before - probe) != ours:
        assert time.monotonic() < deadline, f"the engine counted {theirs}, the benchmark {ours}"
        time.sleep(0.1)
    return theirs


def of_probe(result: Mapping[str, Any]) -> Counts:
    """Return what the text probe of a benchmark sent, which is no part of the load."""
    probe = result["text"]["probe"]
    return Counts(probe["requests"], probe["prompt_tokens"], probe["output_tokens"])

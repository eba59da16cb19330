"""Real vLLM as a process, a container of podman, a unit of systemd and a job of Slurm, each on a
host behind a real sshd. It is the same plan and the same load each time, so the four results can be
compared.

The four hosts are one machine: they have the same cores and one name.
"""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from engine_cache import CACHE, MODEL, executable
from support.command_line import CommandLine, counted_alike, counts, ownerless_shared_memory
from support.podman import IMAGE, TESTS, podman
from support.serving import free_port
from support.slurm import slurm
from support.sshd import Sshd, sshd, wait_for
from support.systemd_box import systemd_box

pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(1500)]
READY_S = 300.0
# A job's node is not the host, so a client on the host is not the usual one for it: the load comes
# from here each time.
LOAD = (
    "--client",
    "here",
    "--concurrency",
    4,
    "--requests",
    40,
    "--max-tokens",
    64,
    "--input-tokens",
    64,
    "--warmup",
    4,
    "--seed",
    7,
)
FLAGS = {
    "host": "0.0.0.0",  # as a job needs it
    "served-model-name": "tiny",
    "dtype": "bfloat16",
    "max-model-len": 512,
    "max-num-seqs": 4,
    "enforce-eager": "true",
}
ENV = {
    "HF_HUB_OFFLINE": 1,
    "VLLM_NO_USAGE_STATS": 1,
    "VLLM_CPU_KVCACHE_SPACE": 1,
    "VLLM_CPU_OMP_THREADS_BIND": 0,  # one core computes; the other one is left to the load
    "VLLM_API_KEY": "sk-four-ways",
}


@dataclass(frozen=True)
class Way:
    server: Sshd
    options: Mapping[str, object]  # run options
    left: Callable[[], str]  # what the launcher's own program still lists


@contextmanager
def short_directory() -> Iterator[Path]:
    """Podman takes no path of more than 50 characters for its state."""
    with tempfile.TemporaryDirectory(prefix="fourways-", ignore_cleanup_errors=True) as directory:
        yield Path(directory)


def _login(**environment: str) -> dict[str, str]:
    return {
        "PATH": f"{sys.base_prefix}/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        **environment,
    }


@contextmanager
def a_process(directory: Path) -> Iterator[Way]:
    with sshd(directory / "ssh", environment=_login()) as server:
        yield Way(server, {}, lambda: "")


@contextmanager
def a_container(directory: Path) -> Iterator[Way]:
    seen = dict.fromkeys(("/usr", sys.base_prefix, sys.prefix, str(TESTS.parent), str(CACHE)))
    options = {"image": IMAGE, "gpus": "none", "mount": [f"{place}:{place}:ro" for place in seen]}
    with podman(directory / "podman") as engine:
        path = f"{engine.bin}:{_login()['PATH']}"
        with sshd(directory / "ssh", environment={"PATH": path}) as server:
            yield Way(server, options, lambda: engine("ps", "--all", "--quiet"))


@contextmanager
def a_unit(directory: Path) -> Iterator[Way]:
    with systemd_box(directory, CACHE) as box:
        users = "root::0:0::/root:/bin/sh\nsshd:*:65533:65534::/run/sshd:/usr/sbin/nologin\n"
        box(
            "sh",
            "-c",
            'rm -f /etc/shadow; printf %s "$1" >/etc/passwd; mkdir -p /run/sshd',
            "sh",
            users,
        )
        with sshd(directory / "ssh", environment=_login(), within=box.entering()) as server:
            listed = ("systemctl", "list-units", "--all", "--plain", "--no-legend", "workbench-*")
            try:
                yield Way(server, {"scope": "system"}, lambda: box(*listed))
            finally:
                box("pkill", "-x", "sshd", check=False)  # in the box; podman ends with it


@contextmanager
def a_job(directory: Path) -> Iterator[Way]:
    login = _login(SLURM_CONF=str(directory / "slurm" / "slurm.conf"))
    with (
        slurm(directory / "slurm") as cluster,
        sshd(directory / "ssh", environment=login) as server,
    ):
        yield Way(server, {"gpus": 0}, lambda: " ".join(cluster.jobs()))


WAYS = {"process": a_process, "podman": a_container, "systemd": a_unit, "slurm": a_job}


def pairs(option: str, values: Mapping[str, object]) -> list[str]:
    each = (
        (name, one)
        for name, value in values.items()
        for one in (value if isinstance(value, list) else [value])
    )
    return [word for name, one in each for word in (option, f"{name}={one}")]


def engines_of(port: int) -> list[psutil.Process]:
    """Return the processes of the server with this port: those that name it, and their descendants."""
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        try:
            if f"port={port}" in " ".join(process.cmdline()) or str(port) in process.cmdline():
                found.update({p.pid: p for p in (process, *process.children(recursive=True))})
        except psutil.Error:
            continue
    return list(found.values())


def served(command: CommandLine, word: str, way: Way, port: int) -> dict[str, Any]:
    """Start the server, benchmark it and stop it. Return the result. Nothing may be left."""
    words = [
        "vllm-any",
        "--var",
        f"model={MODEL}",
        "--executable",
        executable("vllm"),
        "--as",
        word,
    ]
    words += [
        *pairs("--set", {"port": port, **FLAGS}),
        *pairs("--env", ENV),
        *pairs("--run-option", way.options),
    ]
    try:
        status = command.ok("start", *words, "--wait", "--timeout", READY_S, timeout_s=READY_S + 60)
        assert (status["state"], status["run_as"], status["reason"]) == ("ready", word, None)
        processes = engines_of(port)
        assert processes
        at = {**status, "url": f"http://127.0.0.1:{port}"}
        before = counts("vllm", at["url"], status["run_dir"])
        done = command("bench", status["run_id"], *LOAD, timeout_s=300)
        # 3: others kept the machine busy, and the result says so
        assert done.code in (0, 3), (done.document, done.err)
        counted_alike("vllm", at, before, done.document)
    finally:
        began = time.monotonic()
        for run in command.ok("servers")["servers"]:
            command.ok("stop", run["run_id"], timeout_s=120)
        stop_s = time.monotonic() - began
    wait_for(
        lambda: not any(p.is_running() and p.status() != "zombie" for p in processes),
        "the end of all",
        20,
    )
    assert (engines_of(port), way.left().strip()) == ([], "")
    result = done.document
    _say(word, status, result, stop_s, len(processes))
    return result


def _say(
    word: str, status: Mapping[str, Any], result: Mapping[str, Any], stop_s: float, processes: int
) -> None:
    load = os.getloadavg()[0]
    print(
        f"{word}: vLLM {status['engine_version']}, READY after {status['ready_after_s']:.1f} s;"
        f" {result['output_tok_s']:.1f} tok/s in {result['duration_s']:.1f} s, TTFT p50"
        f" {result['ttft_ms']['p50']:.1f} ms, p90 {result['ttft_ms']['p90']:.1f} ms; "
        f"{result['requests_ok']} requests;"
        f" stop {stop_s:.1f} s, {processes} processes gone; load {load:.1f}; "
        f"{result['conditions']['client']}"
    )


def test_four_ways_have_comparable_results(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    command = CommandLine(tmp_path, before=("--host", "box"), HOME=str(home))
    shared_before = ownerless_shared_memory()
    results: dict[str, dict[str, Any]] = {}
    port = free_port()
    for word, made in WAYS.items():
        with short_directory() as directory, made(directory) as way:
            (home / ".ssh" / "config").write_text(way.server.ssh_config_path.read_text())
            results[word] = served(command, word, way, port)
    # An engine's resource tracker removes semaphores a moment after the last process of the engine
    # has ended.
    wait_for(
        lambda: ownerless_shared_memory() <= shared_before, "no shared memory without an owner", 30
    )

    for a, b in itertools.combinations(results, 2):
        found = command.ok("compare", results[a]["id"], results[b]["id"])
        told = {(one["kind"], one["name"]): (one["a"], one["b"]) for one in found["differences"]}
        print(f"{a} | {b}: {told}; {found['warnings']}; {found['notes']}")
        assert told.pop(("run as", "run as")) == (a, b)
        container = {("container", "image"), ("engine build", "engine_version")}
        assert set(told) <= (container if "podman" in (a, b) else set()), told
        assert not [text for text in found["warnings"] if text.startswith("different")]

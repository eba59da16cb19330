"""Commands as separate processes: closed pipes, signals and leftovers."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.procs import alive, eventually
from support.serving import free_port

Cli = Callable[..., Any]
PRO = ("--simulate", "rtx-pro-6000")


def command(*argv: str) -> list[str]:
    return [sys.executable, "-m", "workbench", *argv]


def run(*argv: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command(*argv), capture_output=True, text=True, timeout=timeout_s, stdin=subprocess.DEVNULL
    )
    assert "Traceback" not in done.stdout + done.stderr
    return done


@pytest.fixture
def running(servers_end: None) -> Iterator[dict[str, Any]]:
    done = run(*PRO, "start", "vllm-any", "--set", f"port={free_port()}", "--wait", "--json")
    assert done.returncode == 0, done.stderr
    yield json.loads(done.stdout)


def worker_of(process: subprocess.Popen[Any]) -> psutil.Process | None:
    try:
        children = psutil.Process(process.pid).children(recursive=True)
        return next((c for c in children if "workbench.bench.worker" in c.cmdline()), None)
    except psutil.Error:
        return None


@pytest.mark.long
@pytest.mark.slow
def test_start_bench_and_stop_as_processes(running: dict[str, Any]) -> None:
    run_id = running["run_id"]
    assert alive(running["pid"])  # its `workbench start` is long gone
    bench = run(
        *PRO, "bench", run_id, "--requests", "2", "--max-tokens", "8", "--warmup", "1", "--json"
    )
    assert bench.returncode == 0 and json.loads(bench.stdout)["requests_ok"] == 2
    assert run("results", "show", "1").returncode == 0
    assert run(*PRO, "stop", run_id).returncode == 0
    eventually(lambda: not alive(running["pid"]), "the server to end")


@pytest.mark.ci_cases(1)
@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_a_terminated_bench_ends_its_worker_and_stores_nothing(
    running: dict[str, Any], sent: signal.Signals
) -> None:
    argv = command(
        *PRO, "bench", running["run_id"], "--requests", "1000", "--max-tokens", "500", "--json"
    )
    bench = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    eventually(lambda: worker_of(bench), "the worker")
    worker = worker_of(bench)
    assert worker is not None
    bench.send_signal(sent)
    out, err = bench.communicate(timeout=20)
    eventually(lambda: not alive(worker.pid), "the worker to end")
    assert "Traceback" not in out + err
    if sent is signal.SIGINT:
        assert (
            bench.returncode == 130
            and "interrupted" in err
            and json.loads(out)["error"] == "interrupted"
        )
    else:
        assert bench.returncode == -sent
    assert json.loads(run("results", "list", "--json").stdout)["results"] == []
    assert alive(running["pid"])


@pytest.mark.long
@pytest.mark.slow
def test_the_server_of_a_killed_start_is_adopted_by_the_next_command(
    servers_end: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKBENCH_SIM_START_S", "3")
    argv = command(*PRO, "start", "vllm-any", "--set", f"port={free_port()}", "--wait")
    start = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert start.stderr is not None
    run_id = next(
        line.partition(":")[0] for line in start.stderr if re.match(r"\d{8}-\d{6}-\w+-\w+:", line)
    )
    start.kill()
    start.communicate()
    (adopted,) = json.loads(run(*PRO, "servers", "--json").stdout)["servers"]
    assert (adopted["run_id"], adopted["state"], adopted["adopted"]) == (run_id, "starting", True)
    bench = run(*PRO, "bench", run_id, "--requests", "2", "--max-tokens", "8", "--warmup", "0")
    assert bench.returncode == 0 and "waiting for READY" in bench.stderr
    stopped = json.loads(run(*PRO, "stop", run_id, "--json").stdout)
    assert stopped["state"] == "stopped" and not alive(adopted["pid"])


@pytest.mark.slow
@pytest.mark.long
def test_follow_ends_with_the_run_and_on_an_interrupt(running: dict[str, Any]) -> None:
    follows = []
    for _ in range(2):
        follow = subprocess.Popen(
            command(*PRO, "logs", running["run_id"], "--follow"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert follow.stdout is not None and "SIMULATED" in follow.stdout.readline()
        follows.append(follow)
    follows[0].send_signal(signal.SIGINT)
    _, err = follows[0].communicate(timeout=20)
    assert (follows[0].returncode, err) == (130, "workbench: interrupted\n")
    assert run(*PRO, "stop", running["run_id"]).returncode == 0
    out, err = follows[1].communicate(timeout=20)
    assert (follows[1].returncode, err) == (0, "") and "shut" in out.lower()


@pytest.mark.parametrize(
    "argv", [("presets", "path"), ("flags", "vllm", "--json"), ("nosuch", "x", "--json")]
)
def test_a_closed_pipe_is_no_error_message(servers_end: None, argv: tuple[str, ...]) -> None:
    """The pipe is closed before the first byte, so that short output fails at the last flush."""
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.Popen(command(*argv), stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    _, err = done.communicate(timeout=60)
    assert "Traceback" not in err and "Broken" not in err and "Exception" not in err, err
    assert done.returncode in (141, 2)


def test_messages_go_to_stderr_and_one_document_to_stdout(
    servers_end: None, tmp_path: Path
) -> None:
    done = run("--json", "plan", "nosuch")
    assert done.returncode == 2 and json.loads(done.stdout)["kind"] == "PresetError"
    assert done.stderr.startswith("workbench: ")


def test_a_defect_is_one_line_with_its_traceback_in_a_file(
    servers_end: None, tmp_path: Path
) -> None:
    code = (
        "import sys, workbench.store.paths as paths\n"
        "paths.own_presets_dir = lambda: 1 / 0\n"
        "from workbench.cli import main\n"
        "sys.exit(main(['presets', 'path', '--json']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "Traceback" not in done.stderr + done.stdout
    document = json.loads(done.stdout)
    assert "ZeroDivisionError" in document["error"]
    (kept,) = (Path(os.environ["XDG_STATE_HOME"]) / "workbench" / "crashes").iterdir()
    assert str(kept) in document["next_step"] and "ZeroDivisionError" in kept.read_text()

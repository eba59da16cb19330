"""The command `trace capture` in front of a simulated server, and the replay of its file."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.scripted_server import Request, ScriptedServer
from support.serving import free_port

pytestmark = pytest.mark.slow
Cli = Callable[..., Any]
PRO = ("--simulate", "rtx-pro-6000")
WAIT_S = 60.0


@pytest.fixture
def run(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr("workbench.session.bench.gpu_meter.IDLE_BEFORE_RUN_S", 0.0)
    monkeypatch.setenv("WORKBENCH_SIM_SPEEDUP", "20")
    ran = cli(*PRO, "start", "vllm-any", "--set", f"port={free_port()}", "--wait", "--json")
    return str(ran.document["run_id"])


def talk(url: str, model: str, turns: int) -> None:
    """Have a conversation, each turn with all that was said before it."""
    said = [{"role": "system", "content": "You answer in planted words. " * 30}]
    for turn in range(turns):
        said.append({"role": "user", "content": f"planted question {turn} " * 25})
        body = {"model": model, "messages": said, "max_tokens": 6}
        request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode())
        request.add_header("content-type", "application/json")
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
            message = json.load(answer)["choices"][0]["message"]
        said.append({"role": "assistant", "content": message["content"]})


def sending(
    port: int, model: str, turns: int, end: signal.Signals = signal.SIGINT
) -> threading.Thread:
    """Talk to the port as soon as it is open, and then send this process a signal."""

    def send() -> None:
        url, until_s = f"http://127.0.0.1:{port}", time.monotonic() + WAIT_S
        while time.monotonic() < until_s:
            try:
                urllib.request.urlopen(f"{url}/v1/models", timeout=WAIT_S).close()
                break
            except OSError:
                time.sleep(0.02)
        try:
            talk(url, model, turns)
        finally:
            os.kill(os.getpid(), end)

    thread = threading.Thread(target=send)
    thread.start()
    return thread


def scripted(request: Request, number: int) -> list[bytes]:
    body = json.dumps(
        {
            "choices": [{"message": {"role": "assistant", "content": "sure"}}],
            "usage": {"prompt_tokens": 300 + 120 * number, "completion_tokens": 6},
        }
    ).encode()
    return [b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body]


def test_a_capture_ends_with_what_it_has_and_how_to_replay_it(cli: Cli, tmp_path: Path) -> None:
    port, path = free_port(), tmp_path / "lunch.jsonl"
    with ScriptedServer(scripted) as server:
        thread = sending(port, "any", 3)
        target = ("--url", server.url)
        ran = cli("trace", "capture", *target, "--port", str(port), "-o", str(path))
        thread.join()
        assert ran.code == 130, ran
        assert f"interrupted: {path} has what was captured" in ran.err
        assert "3 requests in" in ran.out and "1 conversation, 2 turns" in ran.out
        assert f"workbench bench --url {server.url} --trace {path}" in ran.out
        assert "planted" not in path.read_text()
        again = cli("trace", "capture", *target, "--seconds", "1", "-o", str(path))
        assert again.code == 2 and "exists" in again.err
        none = tmp_path / "none.jsonl"
        nothing = cli("trace", "capture", *target, "--seconds", "1", "-o", str(none))
        assert nothing.code == 1 and "nothing was captured" in nothing.err and not none.exists()
    secret = cli("trace", "capture", "--url", "https://127.0.0.1:1", "--seconds", "1")
    assert secret.code == 2 and "is encrypted" in secret.err


@pytest.mark.parametrize(("turns", "said"), [(1, "has what was captured"), (0, "nothing was")])
def test_the_exit_code_of_a_capture_tells_the_signal_that_ended_it(
    cli: Cli, tmp_path: Path, turns: int, said: str
) -> None:
    """It was 0, as at the end of --seconds, and 1 without a request."""
    port, path = free_port(), tmp_path / "lunch.jsonl"
    with ScriptedServer(scripted) as server:
        thread = sending(port, "any", turns, signal.SIGTERM)
        words = ("--url", server.url, "--port", str(port), "-o", str(path))
        ran = cli("trace", "capture", *words)
        thread.join()
    assert ran.code == 128 + signal.SIGTERM, ran
    assert "ended by SIGTERM: " in ran.err and said in ran.err
    assert path.exists() == bool(turns)


def test_a_second_signal_cuts_what_the_first_one_waits_for(tmp_path: Path) -> None:
    path = tmp_path / "lunch.jsonl"
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        argv = (
            sys.executable,
            "-m",
            "workbench",
            "trace",
            "capture",
            "--url",
            url,
            "-o",
            str(path),
        )
        with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as command:
            assert command.stderr is not None
            port = int(command.stderr.readline().split()[0].rpartition(":")[2])
            with socket.create_connection(("127.0.0.1", port)) as client:
                client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}")
                behind, _ = server.accept()
                with behind:
                    assert behind.recv(1000)  # it has passed, and nobody answers it
                    command.send_signal(signal.SIGINT)
                    said = [command.stderr.readline(), command.stderr.readline()]
                    assert said[1].startswith("1 request is in flight"), said
                    command.send_signal(signal.SIGINT)
                    assert "nothing was captured" in command.stderr.read()
                    assert command.wait() == 130


@pytest.mark.long
def test_what_was_captured_is_replayed(cli: Cli, run: str, tmp_path: Path) -> None:
    (server,) = cli(*PRO, "servers", "--json").document["servers"]
    port, path = free_port(), tmp_path / "lunch.jsonl"
    thread = sending(port, server["model"], 6)
    ran = cli(*PRO, "trace", "capture", run, "--port", str(port), "-o", str(path))
    thread.join()
    assert ran.code == 130, ran
    assert "6 requests in" in ran.out and "1 conversation, 5 turns" in ran.out
    replay = f"workbench --simulate {PRO[1]} bench {run} --trace {path}"
    assert "SIMULATED" in ran.out and replay in ran.out
    assert "planted" not in path.read_text()
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["output_length"] for row in rows] == [6] * 6
    assert all(row["delay"] >= 0 for row in rows[1:])
    replayed = cli(*PRO, "bench", run, "--trace", str(path), "--speed", "4x", "--json")
    assert replayed.document["requests_ok"] == 6, replayed

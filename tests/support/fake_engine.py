"""A stand-in server with the ways a real one fails, for tests: a real process, real HTTP, real
signals.

`install(directory)` puts an executable `vllm` there. It takes `serve MODEL --host H --port P` and
ignores other flags; how it behaves is in FAKE_ENGINE, words separated by spaces:

    exit=CODE          print an error and exit at once
    never              stay alive, never listen
    no-token           health and models answer, completions give 500
    ignore-term        TERM does nothing
    worker             start a child that ignores TERM and HUP, as an engine core does
    part               start a child as vLLM starts its engine core: when the child ends, say so as
                       vLLM does and exit with 0; the child eats memory after USR1
    shm=NAME           keep /dev/shm/NAME mapped
    semaphore=NAME     keep a POSIX semaphore (/dev/shm/sem.NAME)
    flood=LINES        write that many lines before listening
    delay=SECONDS      wait before listening
    bar                draw a progress bar without a newline while waiting
    moved=PORT         listen on that port instead, and say so as TabbyAPI does
    key=KEY            ask for that API key
POST /exit?CODE, /signal?NAME and /hang make it do that when it is ready; POST /log writes the body
to its log.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

SERVED = "fake-model"


def install(directory):
    """Install an executable `vllm` in `directory` (a pathlib.Path)."""
    directory.mkdir(parents=True, exist_ok=True)
    launcher = directory / "vllm"
    launcher.write_text(
        f'#!/bin/sh\nexec "{sys.executable}" -S -E "{os.path.abspath(__file__)}" "$@"\n'
    )
    launcher.chmod(0o755)
    return launcher


def by_hand(directory, *arguments):
    """Return the command line that starts the server as a venv's `vllm` does: the interpreter, the
    script, "serve", then `arguments`."""
    script = directory / "vllm"
    script.symlink_to(os.path.abspath(__file__))
    return [sys.executable, "-S", "-E", str(script), "serve", *arguments]


def say(text, end="\n"):
    print(text, end=end, flush=True)


class Handler(BaseHTTPRequestHandler):
    hanging = threading.Event()
    modes: ClassVar[dict] = {}

    def do_GET(self):
        if self.hanging.is_set():
            time.sleep(3600)
        path = self.path.partition("?")[0]
        if path == "/health":
            return self.reply(200, "")
        if (
            self.modes.get("key")
            and self.headers.get("authorization") != f"Bearer {self.modes['key']}"
        ):
            return self.reply(401, {"error": "Unauthorized"})
        if path == "/v1/models":
            return self.reply(200, {"object": "list", "data": [{"id": SERVED}]})
        return self.reply(404, {"error": "not found"})

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        path, _, argument = self.path.partition("?")
        if path == "/exit":
            say(f"RuntimeError: told to exit with {argument}")
            os._exit(int(argument))
        if path == "/log":
            say(body.decode())
            return self.reply(200, "")
        if path == "/signal":
            os.kill(os.getpid(), getattr(signal, argument))
        if path == "/hang":
            self.hanging.set()
            return self.reply(200, "")
        if "no-token" in self.modes:
            return self.reply(500, {"error": {"message": "EngineCore encountered an issue"}})
        return self.reply(200, answer(body.decode()))

    def reply(self, status, body):
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args):
        pass


def answer(asked):
    """Return a reply with a text that differs from prompt to prompt, as a model's does."""
    word = asked.partition("code word is ")[2].partition(".")[0]
    text = f"The code word is {word}. This is the answer of a fake engine."
    return {
        "choices": [{"text": text, "message": {"content": text}, "finish_reason": "stop"}],
        "usage": {"completion_tokens": len(text.split())},
    }


def option(name, default):
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else default


def keep_worker():
    """Start a child in the same session that only KILL ends."""
    if os.fork() == 0:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        while True:
            time.sleep(60)


def start_part():
    """Start a child, and end when it has ended. Return its process id."""
    pid = os.fork()
    if pid == 0:
        eaten = []

        def eat(*_):
            while True:
                eaten.append(bytearray(5_000_000))

        signal.signal(signal.SIGUSR1, eat)
        while True:
            time.sleep(60)

    def wait():
        os.waitpid(pid, 0)
        say(
            "(APIServer pid=1) WARNING 11-21 00:00:01 [core_client.py:817] [shutdown] MPClient: "
            "engine core exited unexpectedly; starting cleanup"
        )
        say("(APIServer pid=1) ERROR 11-21 00:00:01 [a.py:9] AsyncLLM output_handler failed.")
        say("vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.")
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()
    return pid


def map_shared(name):
    import mmap

    with open(f"/dev/shm/{name}", "w+b") as file:
        file.truncate(4096)
        return mmap.mmap(file.fileno(), 4096)


def main():
    modes = dict(word.partition("=")[::2] for word in os.environ.get("FAKE_ENGINE", "").split())
    port = int(option("--port", "8000"))
    say("(APIServer pid=1) INFO 11-21 00:00:00 [api_utils.py:286] non-default args: {}")
    if "exit" in modes:
        say("Traceback (most recent call last):")
        say("ValueError: the fake engine was told to fail")
        sys.exit(int(modes["exit"]))
    if "ignore-term" in modes:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "worker" in modes:
        keep_worker()
    core = start_part() if "part" in modes else 2
    shared = [map_shared(modes["shm"])] if "shm" in modes else []
    if "semaphore" in modes:
        from _multiprocessing import SemLock

        shared.append(SemLock(1, 1, 1, f"/{modes['semaphore']}", False))
    for number in range(int(modes.get("flood", "0"))):
        sys.stdout.write(
            f"(EngineCore pid=2) INFO 11-21 00:00:00 [flood.py:1] line {number} of a "
            "flood of them\n"
        )
    say(
        f"(EngineCore pid={core}) INFO 11-21 00:00:00 [model_runner.py:68] Starting to load model "
        "fake..."
    )
    if "bar" in modes:
        for percent in (0, 40):
            say(f"\rLoading safetensors checkpoint shards: {percent:3}% Completed | 1/2", end="")
    if "never" in modes:
        while True:
            time.sleep(60)
    time.sleep(float(modes.get("delay", "0")))
    if "moved" in modes:
        say(f"WARNING: Port {port} is currently in use. Switching to {modes['moved']}.")
        port = int(modes["moved"])
    Handler.modes = modes
    server = ThreadingHTTPServer((option("--host", "127.0.0.1"), port), Handler)
    say("INFO:     Application startup complete.")
    server.serve_forever(0.05)
    del shared


if __name__ == "__main__":
    main()

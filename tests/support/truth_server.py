"""A streaming chat server that keeps its own schedule and writes down when it sent what: the ground
truth for the load client. A process of its own, one epoll loop.

    python truth_server.py --ttft-ms 50 --itl-ms 10 --truth FILE [--jitter 0.3] [--burst]
    [--write-each] [--exact]

Prints `{"port": N}`. Each request's `max_tokens` chunks go out as scheduled (0 ms: all at once, as
fast as it can, in one write or, with --write-each, in a write for each chunk, in turn with the
other streams, as engines do). On SIGTERM it writes FILE, one JSON line per request: `mark` (of the
prompt: workload.unique_prompt_mark), `request_ns` (when its last byte reached this machine, by the
kernel), `sent_ns` and `done_ns` (one each per content chunk: just before and just after the write;
the chunk left in between), all on the monotonic clock, which both processes share.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:  # as a program, it starts without the package's folder
    sys.path.append(str(ROOT))

from scripted_server import HEAD, chat_events, plain, probe_answer  # noqa: E402

MODELS = plain("200 OK", {"object": "list", "data": [{"id": "m", "object": "model"}]})
NOT_FOUND = plain("404 Not Found", {"detail": "Not Found"})
_MARK = re.compile(rb"\[([0-9]{12})\]")


class Stream:
    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.inbox = b""
        self.outbox = b""
        self.blocked = False
        self.pieces: list[bytes] = []
        self.next = 0
        self.truth: dict[str, object] = {}


class TruthServer:
    def __init__(self, asked: argparse.Namespace) -> None:
        self.asked = asked
        self.random = random.Random(1)
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.listener.setblocking(False)
        self.epoll = select.epoll()
        self.epoll.register(self.listener, select.EPOLLIN)
        self.streams: dict[int, Stream] = {}
        self.due: list[tuple[int, int, Stream]] = []
        self.count = 0
        self.records: list[dict[str, object]] = []
        self.stopping = False
        self.made: dict[int, list[bytes]] = {}

    def run(self) -> None:
        while not self.stopping:
            now = time.monotonic_ns()
            while self.due and self.due[0][0] <= now:
                _, _, stream = heapq.heappop(self.due)
                self.send_next(stream)
                now = time.monotonic_ns()
            wait = max(0.0, min((self.due[0][0] - now) / 1e9 if self.due else 0.2, 0.2))
            if self.asked.exact:
                select.select([self.epoll], [], [], wait)
                wait = 0.0
            for fd, events in self.epoll.poll(wait):
                if fd == self.listener.fileno():
                    self.accept()
                elif events & select.EPOLLOUT:
                    self.flush(self.streams[fd])
                else:
                    self.read(self.streams[fd])

    def accept(self) -> None:
        while True:
            try:
                sock, _ = self.listener.accept()
            except BlockingIOError:
                return
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, 35, 1)  # SO_TIMESTAMPNS
            self.streams[sock.fileno()] = Stream(sock)
            self.epoll.register(sock, select.EPOLLIN)

    def read(self, stream: Stream) -> None:
        try:
            data, ancillary, _, _ = stream.sock.recvmsg(1 << 20, 64)
            now = time.monotonic_ns()
            if ancillary:
                seconds, nanoseconds = struct.unpack("@qq", ancillary[0][2])
                now -= max(0, time.time_ns() - (seconds * 10**9 + nanoseconds))
        except ConnectionError:
            data = b""
        if not data:
            self.epoll.unregister(stream.sock)
            del self.streams[stream.sock.fileno()]
            stream.sock.close()
            return
        stream.inbox += data
        head, blank, rest = stream.inbox.partition(b"\r\n\r\n")
        found = re.search(rb"(?i)content-length: *(\d+)", head)
        if blank and head.startswith(b"GET "):
            stream.inbox = b""
            stream.outbox += MODELS if head.startswith(b"GET /v1/models ") else NOT_FOUND
            self.flush(stream)
            return
        if blank and found and len(rest) >= int(found[1]):
            stream.inbox = b""
            self.begin(stream, rest, now)

    def begin(self, stream: Stream, body: bytes, now: int) -> None:
        asked = json.loads(body)
        if not asked.get("stream"):  # the probe of a benchmark's text
            stream.outbox += plain("200 OK", probe_answer(asked))
            self.flush(stream)
            return
        tokens = asked.get("max_tokens") or asked["max_completion_tokens"]
        mark = _MARK.search(body)
        stream.pieces, stream.next = self.pieces(tokens), 0
        stream.truth = {
            "mark": mark[1].decode() if mark else "",
            "request_ns": now,
            "sent_ns": [],
            "done_ns": [],
        }
        self.records.append(stream.truth)
        if not self.asked.itl_ms and not self.asked.ttft_ms and not self.asked.write_each:
            stream.truth["sent_ns"] = stream.truth["done_ns"] = [now] * tokens
            stream.outbox = b"".join(stream.pieces)
            self.flush(stream)
        else:
            self.schedule(stream, now, self.asked.ttft_ms)

    def pieces(self, tokens: int) -> list[bytes]:
        """Return the pieces to send: first the head, role chunk and first token together as engines
        do, then one piece per token, then the end."""
        if tokens not in self.made:
            frames = [b"%x\r\n%b\r\n" % (len(e), e) for e in chat_events(tokens, prompt=150)]
            first = HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + frames[0] + frames[1]
            rest = frames[2 : tokens + 1]
            tail = b"".join(frames[tokens + 1 :]) + b"0\r\n\r\n"
            self.made[tokens] = [first, *rest]
            self.made[tokens][-1] += tail
        return self.made[tokens]

    def schedule(self, stream: Stream, after_ns: int, delay_ms: float) -> None:
        spread = 1 + self.asked.jitter * (2 * self.random.random() - 1)
        due = after_ns + int(delay_ms * 1e6 * spread)
        if self.asked.burst:  # all streams on one engine step
            step = int(self.asked.itl_ms * 1e6)
            due = -(-due // step) * step
        self.count += 1
        heapq.heappush(self.due, (due, self.count, stream))

    def send_next(self, stream: Stream) -> None:
        now = time.monotonic_ns()
        stream.truth["sent_ns"].append(now)  # type: ignore[attr-defined]
        stream.outbox += stream.pieces[stream.next]
        stream.next += 1
        self.flush(stream)
        stream.truth["done_ns"].append(time.monotonic_ns())  # type: ignore[attr-defined]
        if stream.next < len(stream.pieces):
            self.schedule(stream, now, self.asked.itl_ms)

    def flush(self, stream: Stream) -> None:
        while stream.outbox:
            try:
                stream.outbox = stream.outbox[stream.sock.send(stream.outbox) :]
            except BlockingIOError:
                self.epoll.modify(stream.sock, select.EPOLLOUT)
                stream.blocked = True
                return
            except OSError:
                stream.outbox = b""
        if stream.blocked:
            stream.blocked = False
            self.epoll.modify(stream.sock, select.EPOLLIN)


class TruthProcess:
    """The server as a process of its own. `url` is its address; `stop()` returns its true times by
    the marks of the prompts."""

    def __init__(self, *options: str) -> None:
        self._directory = tempfile.TemporaryDirectory()
        self._file = Path(self._directory.name) / "truth.jsonl"
        command = [
            sys.executable,
            str(Path(__file__).resolve()),
            "--truth",
            str(self._file),
            *options,
        ]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.url = f"http://127.0.0.1:{json.loads(self._process.stdout.readline())['port']}"
        self.records: list[dict[str, Any]] = []  # after `stop`, in order

    def stop(self) -> dict[str, dict[str, Any]]:
        self._process.terminate()
        self._process.wait(10)
        self.records = [json.loads(line) for line in self._file.read_text().splitlines()]
        return {r["mark"]: r for r in self.records}

    def __enter__(self) -> TruthProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(10)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._directory.cleanup()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ttft-ms", type=float, default=50)
    parser.add_argument("--itl-ms", type=float, default=10)
    parser.add_argument("--jitter", type=float, default=0.0)
    parser.add_argument("--burst", action="store_true")
    parser.add_argument("--write-each", action="store_true")
    parser.add_argument(
        "--exact", action="store_true", help="each chunk at its time, not in steps of 1 ms"
    )
    parser.add_argument("--truth", required=True)
    server = TruthServer(parser.parse_args())

    def stop(*_: object) -> None:
        server.stopping = True

    signal.signal(signal.SIGTERM, stop)
    print(json.dumps({"port": server.listener.getsockname()[1]}), flush=True)
    server.run()
    with open(server.asked.truth, "w") as file:
        file.writelines(json.dumps(r) + "\n" for r in server.records)


if __name__ == "__main__":
    sys.exit(main())

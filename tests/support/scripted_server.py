"""An HTTP server that answers with given bytes, cut and ended as a test says: for what real servers
do wrong.

One thread per connection. An answer is a list of steps: bytes are sent as one segment, FIN and RST
end the connection, SILENCE leaves it open without a word until the server is closed; after the last
step the connection waits for the next request.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterable
from typing import Any

from workbench.sim.reply_text import ReplyText

FIN, RST, SILENCE = "fin", "rst", "silence"
Step = bytes | str


class Request:
    def __init__(self, head: str, body: bytes, connection: int) -> None:
        self.line, _, rest = head.partition("\r\n")
        self.headers = {
            k.lower(): v.strip() for k, _, v in (h.partition(":") for h in rest.split("\r\n")) if k
        }
        self.body: dict[str, Any] = json.loads(body or b"{}")
        self.connection = connection  # number of the connection it came on, from 0


class ScriptedServer:
    """A server for use as a context manager. `answer(request, n)` returns the steps for the n-th
    request, counted from 0."""

    def __init__(
        self, answer: Callable[[Request, int], Iterable[Step]], tls: ssl.SSLContext | None = None
    ) -> None:
        self.requests: list[Request] = []
        self.connections = 0
        self._answer = answer
        self._tls = tls
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> ScriptedServer:
        self._run(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive()

    def close(self) -> None:
        """Stop listening and drop open connections; later connections are refused."""
        self._closing.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for sock in self._open:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def _run(self, target: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._open.add(sock)
                number, self.connections = self.connections, self.connections + 1
            self._run(self._serve, sock, number)

    def _serve(self, sock: socket.socket, number: int) -> None:
        try:
            if self._tls:
                with contextlib.suppress(OSError):
                    sock = self._tls.wrap_socket(sock, server_side=True)
                with self._lock:
                    self._open.add(sock)
            with contextlib.suppress(OSError), sock.makefile("rb") as reader:
                while (request := _read_request(reader, number)) is not None:
                    with self._lock:
                        n = len(self.requests)
                        self.requests.append(request)
                    if not self._play(sock, self._answer(request, n)):
                        return
        finally:
            with self._lock:
                self._open.discard(sock)
            sock.close()

    def _play(self, sock: socket.socket, steps: Iterable[Step]) -> bool:
        for step in steps:
            if isinstance(step, bytes):
                sock.sendall(step)
            elif step == FIN:
                sock.shutdown(socket.SHUT_RDWR)
                return False
            elif step == RST:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return False
            else:
                self._closing.wait()
                return False
        return True


def _read_request(reader: Any, number: int) -> Request | None:
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        line = reader.readline()
        if not line:
            return None
        head += line
    text = head[:-4].decode("latin-1")
    lengths = (
        int(h.split(":")[1]) for h in text.split("\r\n") if h.lower().startswith("content-length:")
    )
    length = next(lengths, 0)
    return Request(text, reader.read(length), number)


# -- answers as engines give them ------------------------------------------------------------------


def event(data: Any, end: bytes = b"\n\n") -> bytes:
    text = (
        data
        if isinstance(data, bytes)
        else json.dumps(data, separators=(",", ":"), ensure_ascii=False).encode()
    )
    return b"data: " + text + end


def chunk(
    delta: dict[str, Any] | None = None, finish: str | None = None, **extra: Any
) -> dict[str, Any]:
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return {
        **head,
        "choices": [{"index": 0, "delta": delta or {}, "finish_reason": finish}],
        **extra,
    }


def usage(prompt: int, output: int, cached: int | None = None) -> dict[str, Any]:
    details = {} if cached is None else {"prompt_tokens_details": {"cached_tokens": cached}}
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        **details,
    }


def chat_events(
    tokens: int, *, prompt: int = 150, done: bool = True, with_usage: bool = True
) -> list[bytes]:
    """Return the events of a chat in vLLM's form: role chunk, one content chunk per token, finish,
    usage, [DONE]."""
    events = [event(chunk({"role": "assistant", "content": ""}))]
    events += [
        event(chunk({"content": f" t{i}"}, "length" if i == tokens - 1 else None))
        for i in range(tokens)
    ]
    if with_usage:
        events.append(event({**chunk(), "choices": [], "usage": usage(prompt, tokens)}))
    return [*events, event(b"[DONE]")] if done else events


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"


def chunked(events: Iterable[bytes], *, end: bool = True, extra: bytes = b"") -> bytes:
    body = b"".join(b"%x\r\n%b\r\n" % (len(e), e) for e in events)
    return (
        HEAD
        + extra
        + (b"Transfer-Encoding: chunked\r\n\r\n")
        + body
        + (b"0\r\n\r\n" if end else b"")
    )


def sized(events: Iterable[bytes]) -> bytes:
    body = b"".join(events)
    return HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body


def until_close(events: Iterable[bytes]) -> list[Step]:
    return [HEAD + b"Connection: close\r\n\r\n" + b"".join(events), FIN]


def plain(status: str, body: Any, *, headers: bytes = b"") -> bytes:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n"
    ).encode()
    return head + headers + b"\r\n" + text


def is_probe(request: Request) -> bool:
    """Return whether a request belongs to the probe of a server's text (model/answer_probe.py)."""
    asked = _asked(request.body)
    return request.line.startswith("POST ") and ("code word is" in asked or asked == "a")


def load_requests(server: ScriptedServer) -> int:
    """Return how many requests of a load the server has received."""
    return sum(r.line.startswith("POST ") and not is_probe(r) for r in server.requests)


def probe_answer(body: dict[str, Any]) -> dict[str, Any]:
    """Return the whole reply of a healthy model, one token for each word."""
    asked = _asked(body)
    tokens = min(40, body["max_tokens"])
    text = ReplyText(asked).text_of_token_range(0, tokens)
    choice = {"index": 0, "message": {"role": "assistant", "content": text}}
    counts = usage(len(asked.split()) + 4, tokens)
    return {"model": "m", "choices": [{**choice, "finish_reason": "stop"}], "usage": counts}


def _asked(body: dict[str, Any]) -> str:
    messages = body.get("messages")
    return str(messages[0].get("content")) if isinstance(messages, list) and messages else ""


def openai(
    answer: Callable[[Request, int], Iterable[Step]],
) -> Callable[[Request, int], Iterable[Step]]:
    """Return an `answer` function for completions (`n` counts only these) of a server with one
    model. Every other GET gets 404. The probe of a benchmark's text gets healthy answers."""
    numbers = itertools.count()

    def answered(request: Request, _: int) -> Iterable[Step]:
        if is_probe(request):
            return [plain("200 OK", probe_answer(request.body))]
        if request.line.startswith("POST "):
            return answer(request, next(numbers))
        if request.line.split()[1].endswith("/v1/models"):
            return [plain("200 OK", {"object": "list", "data": [{"id": "m", "object": "model"}]})]
        return [plain("404 Not Found", {"detail": "Not Found"})]

    return answered

"""An OpenAI-style server with a kind of text: what a healthy model writes, or one kind of garbage.

`KINDS` names the kinds. `TextEngine(kind)` serves one on a free port of this process, and
`install(directory, kind)` makes an executable `vllm` of it, which a test starts as a real server:

    vllm serve MODEL --host 127.0.0.1 --port 8000

A token is one word. All tokens of an answer come at the pace of `TOKENS_PER_S`, streamed or whole,
so that a benchmark of any kind reads a plausible speed.
"""

from __future__ import annotations

import json
import random
import re
import shlex
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from zlib import crc32

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:  # as the program of a server, it starts without the package's folder
    sys.path.append(str(ROOT))

from workbench.sim.reply_text import ReplyText, make_embedding  # noqa: E402

MODEL = "tiny"
TOKENS_PER_S = 500.0
LONG_WORDS = 3000
NATURAL_TOKENS = 60
READ_WORDS = 32  # of a prompt that is cut
LATER = 10  # requests
KINDS = {
    "good": "English that answers the prompt",
    "base": "a base model without a chat template",
    "reasoning": "reasoning, then the answer",
    "thinking": "reasoning that is shown only when it has ended",
    "bang": "only exclamation marks",
    "token": "one word again and again",
    "loop": "one phrase again and again",
    "glyphs": "random characters of many scripts",
    "replacement": "replacement characters",
    "bad-utf8": "bytes that are not UTF-8",
    "empty": "chunks without text, and usage",
    "usage-only": "no chunk with content, and usage",
    "equal": "one answer to all prompts",
    "mixed-up": "the answer to another prompt",
    "reasoning-only": "reasoning without an answer",
    "usage-twice": "usage of twice the tokens",
    "other-model": "the name of another model",
    "cut": "only the last 32 words of the prompt are read",
    "forgets": "only the last 32 words are read, but usage says all",
    "filtered": "the finish reason of a content filter",
    "fallback": "another model for about every second prompt",
    "later": "exclamation marks after ten requests",
    "inflated": "half of the tokens, and usage of all",
    "slightly-inflated": "20 of 23 tokens, and usage of all",
    "hidden-reasoning": "reasoning that is never shown, and usage of all",
    "tools": "tool calls, although no tool is offered",
    "batch": "exclamation marks if two requests are in flight",
    "batch-fails": "status 500 if two requests are in flight",
    "busy": "status 503 if two requests are in flight",
    "long": "exclamation marks for long prompts",
    "vectors": "embeddings",
    "nan-vectors": "embeddings that are not finite",
    "zero-vectors": "embeddings that are zero",
    "equal-vectors": "one embedding for all texts",
}
_TEXT = re.compile(rb'("(?:content|text)": "[^"]*)"')
_CODE_WORD = re.compile(r"code word is (\w+)\.")


class _Answer:
    """The answer of one kind to one request: its words, and the numbers in its usage."""

    def __init__(
        self, kind: str, prompt: str, asked_tokens: int, whole: bool, alone: bool, number: int
    ) -> None:
        self.kind, self.prompt, self.alone, self.number = kind, prompt, alone, number
        self.tokens = asked_tokens if whole else min(asked_tokens, NATURAL_TOKENS)
        self.ended = self.tokens < asked_tokens
        self.counted = self.tokens * (2 if kind == "usage-twice" else 1)
        if kind == "inflated":
            self.tokens //= 2
        if kind == "slightly-inflated":
            self.tokens = self.tokens * 20 // 23
        self._good = ReplyText(self._read())

    def _read(self) -> str:
        if self.kind == "equal":
            return "one prompt"
        if self.kind in ("cut", "forgets"):
            return " ".join(self.prompt.split()[-READ_WORDS:])
        if self.kind == "mixed-up" and (found := _CODE_WORD.search(self.prompt)):
            other = "copper" if found[1] == "maple" else "maple"
            return self.prompt.replace(found[1], other)
        return self.prompt

    @property
    def _broken(self) -> bool:
        long = self.kind == "long" and len(self.prompt.split()) > LONG_WORDS
        late = self.kind == "later" and self.number > LATER
        return self.kind == "bang" or long or late or (self.kind == "batch" and not self.alone)

    def word(self, place: int) -> str:
        if self._broken:
            return "!"
        if self.kind == "token":
            return " the"
        if self.kind == "loop":
            return (" and", " then", " we")[place % 3]
        if self.kind == "replacement":
            return "\N{REPLACEMENT CHARACTER}"
        if self.kind == "glyphs":
            drawn = random.Random(f"{self.prompt} {place}")
            return "".join(chr(drawn.randrange(0x0400, 0xD000)) for _ in range(3))
        return (
            "" if self.kind in ("empty", "usage-only") else self._good.text_of_token_range(place, 1)
        )

    @property
    def thoughts(self) -> int:
        """The number of words at the beginning that are reasoning."""
        if self.kind == "reasoning-only":
            return self.tokens
        if self.kind in ("reasoning", "thinking", "hidden-reasoning"):
            return 8 if self.kind == "reasoning" else 40
        return 0

    @property
    def usage(self) -> dict[str, int]:
        prompt = len(self.prompt.split()) + 4
        if self.kind == "cut":
            prompt = min(prompt, READ_WORDS)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": self.counted,
            "total_tokens": prompt + self.counted,
        }

    @property
    def finish_reason(self) -> str:
        if self.kind == "filtered":
            return "content_filter"
        return "stop" if self.ended else "length"

    @property
    def model(self) -> str:
        other = self.kind == "other-model" or (
            self.kind == "fallback" and crc32(self.prompt.encode()) % 2
        )
        return "fallback-8b" if other else MODEL


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    kind = "good"

    @property
    def _engine(self) -> TextEngine:
        engine: TextEngine = self.server.engine  # type: ignore[attr-defined]
        return engine

    @property
    def _slow(self) -> float:
        return self._engine.slow

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/health":
            self._reply(200, {})
        elif path == "/v1/models":
            self._reply(200, {"object": "list", "data": [{"id": MODEL, "object": "model"}]})
        else:
            self._reply(404, {"error": {"message": "Not Found"}})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or b"{}")
        vectors, path = "vectors" in self.kind, self.path.partition("?")[0]
        if path == "/v1/embeddings" and vectors:
            return self._reply(200, self._embedding(body))
        if path == "/v1/chat/completions" and self.kind == "base":
            return self._reply(400, {"error": {"message": "no chat template"}})
        if vectors or path not in ("/v1/chat/completions", "/v1/completions"):
            return self._reply(404, {"error": {"message": "Not Found"}})
        with self._engine.request() as alone:
            failing = {"busy": 503, "batch-fails": 500}.get(self.kind)
            if failing and not alone():
                return self._reply(failing, {"error": {"message": "too many requests at once"}})
            return self._generate(body, chat=path.endswith("chat/completions"), alone=alone())

    def _generate(self, body: dict[str, Any], *, chat: bool, alone: bool) -> None:
        if chat:
            prompt = "\n".join(str(m.get("content")) for m in body.get("messages") or [])
        else:
            prompt = str(body.get("prompt"))
        asked = body.get("max_completion_tokens") or body.get("max_tokens") or 16
        whole, number = bool(body.get("ignore_eos")), self._engine.requests
        answer = _Answer(self.kind, prompt, asked, whole, alone, number)
        if body.get("stream"):
            self._stream(answer, chat)
        else:
            time.sleep(self._slow * answer.tokens / TOKENS_PER_S)
            self._whole(answer, chat)

    def _whole(self, answer: _Answer, chat: bool) -> None:
        words = [answer.word(place) for place in range(answer.tokens)]
        thought, said = "".join(words[: answer.thoughts]), "".join(words[answer.thoughts :])
        content = None if self.kind == "usage-only" else said
        hidden = self.kind == "hidden-reasoning" or (self.kind == "thinking" and not said)
        if hidden:
            thought = ""
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if self.kind == "tools":
            message |= {"content": None, "tool_calls": [_call(said)]}
        if thought:
            message["reasoning_content"] = thought
        kept = {"message": message} if chat else {"text": content}
        choice = {"index": 0, **kept, "finish_reason": answer.finish_reason}
        frame = {"id": "1", "object": "chat.completion", "model": answer.model}
        self._reply(200, {**frame, "choices": [choice], "usage": answer.usage})

    def _stream(self, answer: _Answer, chat: bool) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for event in self._events(answer, chat):
            data = b"data: %b\n\n" % self._bytes(event)
            self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
        self.wfile.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")

    def _events(self, answer: _Answer, chat: bool) -> Iterator[dict[str, Any]]:
        frame = {"id": "1", "object": "chat.completion.chunk", "model": answer.model}
        started = time.monotonic()
        for place in range(answer.tokens):
            due = started + self._slow * (place + 1) / TOKENS_PER_S
            time.sleep(max(0.0, due - time.monotonic()))
            if self.kind == "usage-only":
                continue
            word = answer.word(place)
            field = "reasoning_content" if place < answer.thoughts else "content"
            if self.kind == "hidden-reasoning" and place < answer.thoughts:
                continue
            kept = {"delta": {field: word}} if chat else {"text": word}
            if self.kind == "tools":
                kept = {"delta": {"tool_calls": [_call(word)]}}
            yield {**frame, "choices": [{"index": 0, **kept, "finish_reason": None}]}
        last = {"delta": {}} if chat else {"text": ""}
        choice = {"index": 0, **last, "finish_reason": answer.finish_reason}
        yield {**frame, "choices": [choice]}
        yield {**frame, "choices": [], "usage": answer.usage}

    def _embedding(self, body: dict[str, Any]) -> dict[str, Any]:
        vector: list[Any] = make_embedding(str(body.get("input")))
        if self.kind == "nan-vectors":
            vector[0] = None  # as servers write NaN, which JSON does not have
        if self.kind == "zero-vectors":
            vector = [0.0] * len(vector)
        if self.kind == "equal-vectors":
            vector = make_embedding("any text")
        return {
            "object": "list",
            "model": MODEL,
            "data": [{"object": "embedding", "index": 0, "embedding": vector}],
            "usage": {"prompt_tokens": 8, "total_tokens": 8},
        }

    def _bytes(self, body: Any) -> bytes:
        data = json.dumps(body, ensure_ascii=False).encode()
        if self.kind != "bad-utf8":
            return data
        return _TEXT.sub(lambda found: found[1] + b'\xff\xfe"', data)

    def _reply(self, status: int, body: Any) -> None:
        data = self._bytes(body)
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: object) -> None:
        pass


def _call(arguments: str) -> dict[str, Any]:
    function = {"name": "look_up", "arguments": arguments}
    return {"index": 0, "id": "1", "type": "function", "function": function}


class _Request:
    """A request in flight. Calling it says whether no other request has been in flight with it."""

    def __init__(self, engine: TextEngine) -> None:
        self._engine = engine
        self._others = False

    def __enter__(self) -> _Request:
        with self._engine.lock:
            self._engine.requests += 1
            self._engine.in_flight.append(self)
            self._look()
        time.sleep(0.02)  # requests that are sent at once are not received at once
        return self

    def _look(self) -> None:
        for one in self._engine.in_flight if len(self._engine.in_flight) > 1 else ():
            one._others = True

    def __call__(self) -> bool:
        return not self._others

    def __exit__(self, *_: object) -> None:
        with self._engine.lock:
            self._engine.in_flight.remove(self)


class _Server(ThreadingHTTPServer):
    request_queue_size = 256
    engine: TextEngine


class TextEngine:
    """A server with one kind of text, for use as a context manager. `url` is its address."""

    def __init__(self, kind: str, host: str = "127.0.0.1", port: int = 0) -> None:
        assert kind in KINDS, kind
        self.kind = kind
        self.lock = threading.Lock()
        self.in_flight: list[_Request] = []
        self.requests = 0  # for an answer of the model
        self.slow = 1.0  # factor on the time of an answer
        handler = type("Handler", (_Handler,), {"kind": kind})
        self.http = _Server((host, port), handler)
        self.http.engine = self
        self.url = f"http://{host}:{self.http.server_port}"

    def request(self) -> _Request:
        return _Request(self)

    def __enter__(self) -> TextEngine:
        threading.Thread(target=self.http.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.http.shutdown()
        self.http.server_close()


def install(directory: Path, kind: str) -> Path:
    """Install an executable `vllm` in `directory` whose text is of one kind."""
    directory.mkdir(parents=True, exist_ok=True)
    launcher = directory / "vllm"
    command = shlex.join([sys.executable, str(Path(__file__).resolve()), kind])
    launcher.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    launcher.chmod(0o755)
    return launcher


def main() -> None:
    words = sys.argv

    def option(name: str, default: str) -> str:
        return words[words.index(name) + 1] if name in words else default

    if "--version" in words:
        print("0.0.0")
        return
    engine = TextEngine(words[1], option("--host", "127.0.0.1"), int(option("--port", "8000")))
    print("INFO:     Application startup complete.", flush=True)
    engine.http.serve_forever(0.05)


if __name__ == "__main__":
    main()

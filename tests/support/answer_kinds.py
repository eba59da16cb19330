"""A second OpenAI-style server with bad answers, made apart from `text_engine.py`: each kind of the
table of bad answers in docs/REFERENCE.md, and a few healthy ones.

`install(directory, kind)` makes an executable `vllm` of one kind. With "KIND@FLAG" the server is
good unless it is started with the flag, so the two arms of an experiment differ.

    vllm serve MODEL --host 127.0.0.1 --port 8000

A token is a word with the space in front. /tokenize counts them, as vLLM's does.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TOKENS_PER_S = 500.0
LONG_WORDS = 200  # of a prompt, for "long"
NATURAL_TOKENS = 60
MODEL = "tiny"
_CODE_WORD = re.compile(r"code word is (\w+)\.")
_PARTS = (
    "the old river|a slow barge|the miller's wife|every spring|a heap of sand|the narrow gorge|"
    "an early frost|one of the fishermen|the wooden bridge|a flock of geese|the mayor|some gravel",
    "carries|leaves behind|watches|has shaped|cannot cross|brings|often covers|remembers|widens|"
    "pushes aside|follows|measures",
    "the green valley|a bed of stones|his nets and ropes|what the flood took|the lower meadows|"
    "a letter from the coast|two carts of wood|the road to town|its own banks|a pair of oars|"
    "the price of grain|many small islands",
    "in the morning|before the rain|for a thousand years|without a word|near the mill|at low water|"
    "as the snow melts|because of the wind|after the harvest|until night falls|in most years|"
    "under the willows",
)
_ITALIAN = (
    "il fiume scende lento|una barca vecchia passa|la moglie del mugnaio canta|ogni primavera piove",
    "e porta|ma lascia|mentre guarda|quando copre",
    "la sabbia della valle|le pietre del letto|i prati bassi|una lettera dalla costa",
    "per mille anni|prima della pioggia|vicino al mulino|fino a notte",
)
_SCRIPTS = ((0x0410, 0x44F), (0x0621, 0x064A), (0x0905, 0x0939), (0x0E01, 0x0E2E), (0x4E00, 0x9F00))
_PARAGRAPH = (
    " The water of the river wears away the rock of its bed over many years, and it carries sand and"
    " stones down to the plain, where the valley is wide and flat and the meadows are green, and"
    " where people have lived in small villages since the last ice melted."
)
_CONSTANT = (
    "I have read your message with number {} and would like to help you with it. Please give me a"
    " little more context so that I can answer it well. I can explain, translate or summarize"
    " texts, write code and answer questions about many things that people usually want to know."
)
_ABOUT_ALL = (
    " You have asked me {}, and I am glad to tell you. There are many ways to look at this question,"
    " and people have thought about it for a long time. It is a matter of balance between things"
    " that act together, and each of them has its place in the whole picture, and so on from one"
    " case to the next without an end in sight for anyone who cares to watch it."
)
_REFUSAL = (
    " I am sorry, but I cannot help with that request. If there is something else that you would"
    " like to talk about, please let me know, and I will do my best to be of use to you."
)


def _tokens(text: str) -> list[str]:
    return re.findall(r"\s*\S+", text)


def _sentences(draw: random.Random, parts: tuple[str, ...] = _PARTS) -> Iterator[str]:
    """Yield the tokens of sentences without end."""
    while True:
        words = " ".join(draw.choice(part.split("|")) for part in parts).split()
        yield f" {words[0].capitalize()}"
        yield from (f" {word}" for word in words[1:-1])
        yield f" {words[-1]}."


def _good(prompt: str, draw: random.Random, code_word: str | None = None) -> Iterator[str]:
    found = _CODE_WORD.search(prompt)
    if found:
        yield from f"The code word is {code_word or found[1]}.".replace(" ", "\0 ").split("\0")
    yield from _sentences(draw)


def _word(draw: random.Random) -> str:
    pieces = [draw.choice("bcdfglmnprst") + draw.choice("aeiou") for _ in range(4)]
    return "".join(pieces)


class Reply:
    """The tokens of the answer of one kind to a prompt, with what the server says about it."""

    def __init__(self, kind: str, prompt: str, limit: int, whole: bool, most_at_once: int) -> None:
        draw = random.Random(prompt)
        probe = "code word" in prompt
        wanted = limit if whole else min(limit, NATURAL_TOKENS)
        self.finish = "stop" if wanted < limit else "length"
        self.model, self.reasoning, self.tool = MODEL, 0, kind == "tool calls"
        made: Iterator[str] = _good(prompt, draw)
        kind = self._shown(kind, prompt, probe, most_at_once, draw)
        if kind == "mixed up":
            made = _good(prompt, draw, "copper" if "maple" in prompt else "maple")
        elif kind in _GARBAGE:
            made = _GARBAGE[kind](prompt, draw)
        self.pieces = [piece for piece, _ in zip(made, range(wanted), strict=False)]
        self._finished(kind, draw)
        self.prompt_tokens = len(prompt.split()) + 4
        self.said = len(self.pieces)
        if kind.startswith("usage x"):
            self.pieces = self.pieces[: round(self.said / float(kind[7:]))]
        if kind == "prompts cut":
            self.prompt_tokens = min(32, self.prompt_tokens)

    @staticmethod
    def _shown(kind: str, prompt: str, probe: bool, most: int, draw: random.Random) -> str:
        """Return the kind of this very answer: many kinds show only in some."""
        name, _, only = kind.partition(" only ")
        shown = {
            "": True,
            "measured": not probe,
            "2 at once": most >= 2,
            "8 at once": most >= 8,
            "16 at once": most >= 16,
            "long": len(prompt.split()) > LONG_WORDS,
            "a fifth": draw.random() < 0.25,
        }[only]
        return name if shown else "good"

    def _finished(self, kind: str, draw: random.Random) -> None:
        if kind == "after 40":
            self.pieces[40:] = ["!"] * len(self.pieces[40:])
        if kind == "no spaces":
            self.pieces = [piece.strip().lower().rstrip(".") for piece in self.pieces]
        if kind == "shuffled":
            draw.shuffle(self.pieces)
        if kind == "template marks":
            self.pieces[8:9] = ["<|im_end|>"]
        if kind == "filtered":
            self.finish = "content_filter"
        if kind in ("reasoning only", "reasoning"):
            self.reasoning = len(self.pieces) if kind == "reasoning only" else 10
        if kind == "another model" or (kind == "several models" and draw.random() < 0.5):
            self.model = "other-8b"
        if kind in ("empty", "usage only"):
            self.pieces = [""] * len(self.pieces)


def _again(text: str) -> Any:
    def made(prompt: str, draw: random.Random) -> Iterator[str]:
        while True:
            yield from _tokens(text)

    return made


def _each(one: Any) -> Any:
    def made(prompt: str, draw: random.Random) -> Iterator[str]:
        while True:
            yield one(draw)

    return made


def _near_equal(prompt: str, draw: random.Random) -> Iterator[str]:
    return _again(_CONSTANT.format(draw.randrange(10**6)))(prompt, draw)


def _opened(text: str) -> Any:
    """Return garbage that begins with the code word."""

    def made(prompt: str, draw: random.Random) -> Iterator[str]:
        found = _CODE_WORD.search(prompt)
        yield from _tokens(f"The code word is {found[1]}." if found else "Yes.")
        yield from _again(text)(prompt, draw)

    return made


def _characters(draw: random.Random) -> str:
    low, high = draw.choice(_SCRIPTS)
    return "".join(chr(draw.randrange(low, high)) for _ in range(4))


_GARBAGE: dict[str, Any] = {
    "marks": _again("! ! !".replace(" ", "")),
    "one token": _again(" the"),
    "phrase": _again(" and then we"),
    "scripts": _each(_characters),
    "replacement": _again("\ufffd \ufffd"),
    "digits": _each(lambda draw: f" {draw.randrange(1000)}"),
    "random words": _each(lambda draw: f" {_word(draw)}"),
    "jumbled words": _each(lambda draw: f" {_word(draw)[:4]}{_word(draw).title()[:5]}"),
    "equal": _again("".join(_REFUSAL.split("If there is")[1:])),
    "refusals": _again(_REFUSAL),
    "near equal": _near_equal,
    "topic named": lambda prompt, draw: _again(
        _ABOUT_ALL.format(prompt.rpartition("sentences ")[2].rstrip("."))
    )(prompt, draw),
    "blank": _again("\n \n"),
    "echo": lambda prompt, draw: iter([*_tokens(prompt), *_tokens(prompt)] * 40),
    "few words": _each(lambda draw: draw.choice((" the", " of", " and", " to"))),
    "paragraph": _opened(_PARAGRAPH),
    "phrase of 70": _opened(
        " The water carries sand and stones down to the wide green plain there."
    ),
    "other language": lambda prompt, draw: _sentences(draw, _ITALIAN),
}
_GARBAGE["blank"] = lambda prompt, draw: iter(["\n"] * 10_000)


class Server:
    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._open: dict[int, int] = {}  # request -> the most requests in flight with it

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                lines = head.decode().split("\r\n")
                size = next(
                    (int(x.split(":")[1]) for x in lines if x.lower().startswith("content-length")),
                    0,
                )
                body = json.loads(await reader.readexactly(size) or b"{}")
                path = lines[0].split()[1].partition("?")[0]
                await self._route(path, body, writer)
                await writer.drain()
                if "connection: close" in head.decode().lower():
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _route(self, path: str, body: Any, writer: asyncio.StreamWriter) -> None:
        if path == "/health":
            self._send(writer, {})
        elif path == "/v1/models":
            self._send(writer, {"object": "list", "data": [{"id": MODEL, "object": "model"}]})
        elif path == "/tokenize":
            text = body.get("prompt") or "\n".join(m["content"] for m in body.get("messages", ()))
            count = len(text.split()) + (4 if "messages" in body else 0)
            self._send(writer, {"count": count, "max_model_len": 32768, "tokens": []})
        elif path == "/v1/chat/completions":
            await self._chat(body, writer)
        else:
            self._send(writer, {"error": {"message": "Not Found"}}, "404 Not Found")

    async def _chat(self, body: Any, writer: asyncio.StreamWriter) -> None:
        number = id(body)
        self._open[number] = 0
        self._open = {one: max(most, len(self._open)) for one, most in self._open.items()}
        await asyncio.sleep(0.02)  # requests that are sent at once do not come at once
        prompt = "\n".join(str(m["content"]) for m in body["messages"])
        limit = body.get("max_completion_tokens") or body.get("max_tokens") or 16
        most = self._open.get(number, 1)
        reply = Reply(self.kind, prompt, limit, bool(body.get("ignore_eos")), most)
        try:
            if body.get("stream"):
                await self._stream(reply, writer)
            else:
                await asyncio.sleep(len(reply.pieces) / TOKENS_PER_S)
                self._whole(reply, writer)
        finally:
            self._open.pop(number, None)

    def _delta(self, reply: Reply, text: str, *, reasoning: bool) -> dict[str, Any]:
        if reply.tool:
            call = {"index": 0, "id": "1", "type": "function"}
            return {"tool_calls": [{**call, "function": {"name": "look", "arguments": text}}]}
        if self.kind == "usage only":
            return {}
        return {"reasoning_content" if reasoning else "content": text}

    def _usage(self, reply: Reply) -> dict[str, int]:
        total = reply.prompt_tokens + reply.said
        return {
            "prompt_tokens": reply.prompt_tokens,
            "completion_tokens": reply.said,
            "total_tokens": total,
        }

    def _whole(self, reply: Reply, writer: asyncio.StreamWriter) -> None:
        thought = "".join(reply.pieces[: reply.reasoning])
        message = self._delta(reply, "".join(reply.pieces[reply.reasoning :]), reasoning=False)
        message |= {"role": "assistant"} | ({"reasoning_content": thought} if thought else {})
        choice = {"index": 0, "message": message, "finish_reason": reply.finish}
        frame = {"id": "1", "object": "chat.completion", "model": reply.model}
        self._send(writer, {**frame, "choices": [choice], "usage": self._usage(reply)})

    async def _stream(self, reply: Reply, writer: asyncio.StreamWriter) -> None:
        head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked"
        writer.write(f"{head}\r\n\r\n".encode())
        frame = {"id": "1", "object": "chat.completion.chunk", "model": reply.model}
        clock = asyncio.get_running_loop()
        begin = clock.time()
        for place, piece in enumerate(reply.pieces):
            await asyncio.sleep(max(0.0, begin + (place + 1) / TOKENS_PER_S - clock.time()))
            delta = self._delta(reply, piece, reasoning=place < reply.reasoning)
            if delta:
                choice = {"index": 0, "delta": delta, "finish_reason": None}
                self._event(writer, {**frame, "choices": [choice]})
        choice = {"index": 0, "delta": {}, "finish_reason": reply.finish}
        self._event(writer, {**frame, "choices": [choice]})
        self._event(writer, {**frame, "choices": [], "usage": self._usage(reply)})
        writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")

    def _bytes(self, body: Any) -> bytes:
        data = json.dumps(body, ensure_ascii=False).encode()
        if self.kind != "bytes":
            return data
        return re.sub(rb'("content": "[^"]*)"', lambda one: one[1] + b'\xff\xfe"', data)

    def _event(self, writer: asyncio.StreamWriter, body: Any) -> None:
        data = b"data: %b\n\n" % self._bytes(body)
        writer.write(b"%x\r\n%b\r\n" % (len(data), data))

    def _send(self, writer: asyncio.StreamWriter, body: Any, status: str = "200 OK") -> None:
        data = self._bytes(body)
        head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(data)}"
        writer.write(f"{head}\r\n\r\n".encode() + data)


def install(directory: Path, kind: str) -> Path:
    """Install an executable `vllm` in `directory` whose answers are of one kind."""
    directory.mkdir(parents=True, exist_ok=True)
    launcher = directory / "vllm"
    command = shlex.join([sys.executable, str(Path(__file__).resolve()), kind])
    launcher.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    launcher.chmod(0o755)
    return launcher


async def serve(kind: str, host: str, port: int) -> None:
    server = await asyncio.start_server(Server(kind).answer, host, port, backlog=256)
    print("INFO:     Application startup complete.", flush=True)
    await server.serve_forever()


def main() -> None:
    words = sys.argv
    if "--version" in words:
        print("0.0.0")
        return
    kind, _, flag = words[1].partition("@")
    if flag and flag not in words:
        kind = "good"
    host, port = (words[words.index(name) + 1] for name in ("--host", "--port"))
    asyncio.run(serve(kind, host, int(port)))


if __name__ == "__main__":
    main()

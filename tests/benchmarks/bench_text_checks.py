"""CPU time of the load client with and without the checks of the answers' text.

    python tests/benchmarks/bench_text_checks.py [--turns 40] [--tokens 128] [--answers 768]

Recorded bytes of answers are read from a socket that keeps each chunk apart, parsed and judged as
in a run of that size, in this process and without a server. "With" is the client as it is: it keeps
the text of each answer, and examines a sample of them at the end. "Without" parses and judges the
same bytes, and keeps no text. Both take turns; the last line has the median of the ratios of each
turn. In a real run, waits and requests add to both, so the share of the checks is smaller there.
"""

from __future__ import annotations

import argparse
import os
import random
import socket
import sys
import time
from collections import Counter
from pathlib import Path
from statistics import median
from unittest.mock import patch

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from scripted_server import HEAD, chunk, event, usage  # noqa: E402

from workbench.bench import text_chunk  # noqa: E402
from workbench.bench.answer_sample import AnswerSample  # noqa: E402
from workbench.bench.connection import READ_BYTES, ReceiveClock  # noqa: E402
from workbench.bench.exchange import Exchange  # noqa: E402
from workbench.bench.kept_text import ShortenedText  # noqa: E402
from workbench.model.answer_text import features_of_answers  # noqa: E402

TRIM_EACH = 10  # chunks: a sweep at 100 tokens/s
WORDS = (ROOT / "docs" / "REFERENCE.md").read_text(encoding="ascii", errors="ignore").split()


class NoText(ShortenedText):
    """Keeps no text."""

    def add_text(self, text: str) -> None:
        pass

    def drop_middle_of_long_text(self) -> None:
        pass


class NoTextChunk(text_chunk.TextChunk):
    """Recognizes the same chunks, and keeps no text."""

    def is_text_chunk(self, data: bytes) -> bool:
        head, trail = self._heads.get(len(data)), self._trail
        if head is not None and data.startswith(head) and data.endswith(trail):
            text = data[len(head) : len(data) - len(trail)]
            return bool(text) and not text.translate(None, text_chunk.PLAIN_TEXT_BYTES)
        return False


def answer_of(number: int, tokens: int) -> list[bytes]:
    """Return the chunks of one answer: the role with the first word, the others, the end."""
    source = random.Random(number)
    words = [json_text(source.choice(WORDS)) for _ in range(tokens)]
    deltas = [chunk({"content": f" {word}"}) for word in words[:-1]]
    last = event(chunk({"content": f" {words[-1]}"}, "length"))
    events = [event(chunk({"role": "assistant", "content": ""})), *map(event, deltas), last]
    events.append(event({**chunk(), "choices": [], "usage": usage(150, tokens)}))
    frames = [b"%x\r\n%b\r\n" % (len(one), one) for one in [*events, event(b"[DONE]")]]
    first = HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + frames[0] + frames[1]
    return [first, *frames[2:tokens], b"".join(frames[tokens:]) + b"0\r\n\r\n"]


def json_text(word: str) -> str:
    return word.replace('"', "").replace("\\", "") or "a"


def replay(answers: list[list[bytes]], tokens: int, *, checks: bool) -> int:
    """Return the CPU nanoseconds to read and judge all answers, and to examine their text."""
    server, client = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    clock, sample, used = ReceiveClock(), AnswerSample(), 0
    room = socket.CMSG_SPACE(16)
    for number, pieces in enumerate(answers):
        for piece in pieces:
            server.send(piece)
        began = time.thread_time_ns()
        exchange = Exchange(number, False, b"")
        exchange.began_ns = exchange.sent_ns = 1
        for at in range(len(pieces)):
            data, ancillary, _, _ = client.recvmsg(READ_BYTES, room)
            stamp = clock.receive_time_ns(ancillary)
            if not exchange.try_receive_text_chunk(data, stamp):
                exchange.receive_bytes(data, stamp)
            if checks and at % TRIM_EACH == 0:
                exchange.reply.trim_kept_text()
        exchange.check_reply_and_set_error(tokens, may_be_empty=not checks)
        record = exchange.make_record(0, exchange.reply.error, exchange.reply.detail)
        assert record.ok and record.chunks == tokens, record
        if checks:
            sample.add_answer(record, exchange.reply, str(number))
        used += time.thread_time_ns() - began
    began = time.thread_time_ns()
    if checks:
        seen = features_of_answers(
            sample.sampled_answers(), Counter({"length": len(answers)}), len(answers)
        )
        assert seen.characters
    used += time.thread_time_ns() - began
    server.close()
    client.close()
    return used


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--answers", type=int, default=768)
    asked = parser.parse_args()
    answers = [answer_of(number, asked.tokens) for number in range(asked.answers)]
    ratios, every = [], []
    for turn in range(asked.turns):
        order = (True, False) if turn % 2 else (False, True)
        took: dict[bool, int] = {}
        for checks in order:
            if checks:
                took[checks] = replay(answers, asked.tokens, checks=True)
                continue
            with (
                patch("workbench.bench.exchange.TextChunk", NoTextChunk),
                patch("workbench.bench.reply.ShortenedText", NoText),
            ):
                took[checks] = replay(answers, asked.tokens, checks=False)
        ratios.append(took[True] / took[False])
        every.append((took[True], took[False]))
    tokens = asked.tokens * asked.answers
    with_us, without_us = (median(each) / 1000 / tokens for each in zip(*every, strict=True))
    print(f"{tokens:,} tokens, load {os.getloadavg()[0]:.1f}")
    print(f"with the checks {with_us:.2f} us a token, without {without_us:.2f}")
    least, most = min(ratios), max(ratios)
    print(f"median of {len(ratios)} ratios {median(ratios):.4f} ({least:.4f} to {most:.4f})")


if __name__ == "__main__":
    main()

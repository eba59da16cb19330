"""A load client in Python that does the work of Workbench's up to one step, as a measure for what each
step costs. It is one loop without objects: what Python can do at the least.

    python -S -I stepped_client.py http://127.0.0.1:8000 STREAMS REQUESTS TOKENS STEP [SPREAD_S REST_MS]

Each step does what the steps before it do, and more:

    read     epoll, one `recvmsg` for each read, the kernel's time of it, and the end of each answer
    text     the text of each chunk is found, checked for escapes and kept, and each other byte compared
    record   a JSON line for each answer, with the time of each token
    prompt   a prompt of its own for each request
    starts   the streams start one after the other, over SPREAD_S
    rest     REST_MS between two rounds of reads

It prints its answers as JSON. Its records go to stderr.
"""

from __future__ import annotations

import gc
import json
import os
import re
import select
import socket
import struct
import sys
import time
from array import array
from operator import sub

STEPS = ("read", "text", "record", "prompt", "starts", "rest")
SO_TIMESTAMPNS = 35
END = b"0\r\n\r\n"
TEXT = re.compile(rb'"content":"([^"\\]+)"')
PLAIN = bytes(c for c in range(0x20, 0x7F) if c not in b'"\\')
WORDS = [f"word{number}" for number in range(256)]
PROMPT_WORDS, LINES_AT_ONCE = 128, 64
BODY = b'{"model":"m","stream":true,"max_tokens":%d,"messages":[{"role":"user","content":"%b"}]}'
HEAD = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n%b"
)


class Stream:
    __slots__ = ("began_ns", "kept", "receive", "send", "sock", "stamp", "stamps")

    def __init__(self, sock: socket.socket) -> None:
        self.sock, self.receive, self.send = sock, sock.recvmsg, sock.send
        self.stamps, self.kept = array("q"), bytearray()
        self.stamp, self.began_ns = self.stamps.append, 0


def opened(streams: int, address: tuple[str, int], epoll: select.epoll) -> list[Stream]:
    """Return streams with a connection each."""
    every = []
    for _ in range(streams):
        sock = socket.create_connection(address)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        sock.setblocking(False)
        epoll.register(sock, select.EPOLLIN)
        every.append(Stream(sock))
    return every


def record_of(stream: Stream, number: int) -> str:
    """Return the record of an answer as a JSON line, with the time of each token in microseconds."""
    stamps = stream.stamps
    gaps_us = [gap // 1000 for gap in map(sub, stamps[1:], stamps)]
    first_us = (stamps[0] - stream.began_ns) // 1000
    return json.dumps({"index": number, "ttft_us": first_us, "gaps_us": gaps_us})


def tell(told: list[str], line: str) -> None:
    """Write a line with the next ones, many at once."""
    told.append(line)
    if len(told) >= LINES_AT_ONCE:
        os.write(2, "\n".join(told).encode())
        told.clear()


def prompt_of(index: int) -> bytes:
    words = " ".join([WORDS[byte] for byte in os.urandom(PROMPT_WORDS)])
    return f"[{index:012d}] Continue this list of words: {words}".encode()


def main() -> None:
    url, streams, requests, tokens = sys.argv[1], *map(int, sys.argv[2:5])
    step = STEPS.index(sys.argv[5])
    does_text, does_record, does_prompt, does_starts, does_rest = (
        step >= STEPS.index(name) for name in STEPS[1:]
    )
    spread_s, rest_ms = map(float, sys.argv[6:] or (0, 0))
    spread_s, rest_ms = spread_s * does_starts, rest_ms * does_rest
    body = BODY % (tokens, b"[000000000000] hello")
    same = HEAD % (len(body), body)

    def request_of(index: int) -> bytes:
        if not does_prompt:
            return same
        own = BODY % (tokens, prompt_of(index))
        return HEAD % (len(own), own)

    unpack, now_ns = struct.Struct("@qq").unpack, time.monotonic_ns
    address = ("127.0.0.1", int(url.rpartition(":")[2]))
    epoll = select.epoll()
    heads: dict[int, bytes] = {}
    trail, told = b"", []
    asked = answered = 0
    gc.disable()
    by_fd = {stream.sock.fileno(): stream for stream in opened(streams, address, epoll)}
    first = list(by_fd.values())[: min(streams, requests)]
    due_ns = [now_ns() + int(1e9 * spread_s * number / streams) for number in range(len(first))]
    read_ns = 0
    while answered < requests:
        now = now_ns()
        while asked < len(first) and due_ns[asked] <= now:
            first[asked].began_ns = time.time_ns()
            first[asked].send(request_of(asked))
            asked += 1
        if rest_ms and read_ns + rest_ms * 1e6 > now:
            time.sleep(max(0.0, (read_ns - now) / 1e9 + rest_ms / 1e3))
        wait_s = max(0.0, (due_ns[asked] - now_ns()) / 1e9) if asked < len(first) else None
        ready = epoll.poll(wait_s)
        read_ns = now_ns()
        for fd, _ in ready:
            stream = by_fd[fd]
            data, ancillary, _, _ = stream.receive(65536, 64)
            if not data:
                raise SystemExit("the server closed a connection")
            if ancillary:
                seconds, nanoseconds = unpack(ancillary[0][2])
                came_ns = seconds * 1_000_000_000 + nanoseconds
            else:  # the kernel gives times a moment after the first socket has asked for them
                came_ns = time.time_ns()
            if not does_text:
                stream.stamp(came_ns)
            else:
                head = heads.get(len(data))
                if head is not None and data.startswith(head) and data.endswith(trail):
                    text = data[len(head) : len(data) - len(trail)]
                    if text.translate(None, PLAIN):
                        raise SystemExit(f"an escape in {text!r}")
                    stream.kept += text
                    stream.stamp(came_ns)
                    continue
                texts = TEXT.findall(data)
                stream.kept += b"".join(texts)
                stream.stamps.extend([came_ns] * len(texts))
                if len(texts) == 1 and data.count(b"data: ") == 1:
                    found = TEXT.search(data)
                    heads[len(data)] = data[: found.start(1)]
                    trail = data[found.end(1) :]
            if data.endswith(END):
                answered += 1
                if does_record:
                    tell(told, record_of(stream, answered))
                del stream.stamps[:]
                stream.kept.clear()
                if asked < requests:
                    asked += 1
                    stream.began_ns = time.time_ns()
                    stream.send(request_of(asked))
    print(f'{{"completed": {answered}}}')


if __name__ == "__main__":
    main()

"""The least that a load client in Python has to do, as a measure for Workbench's: epoll, one connection
for each stream, the kernel's time of each read, and a count of tokens.

    python -S -I bare_client.py http://127.0.0.1:8000 STREAMS REQUESTS TOKENS [SPREAD_S REST_MS]

It sends equal requests, and takes each `"content":"` with text for a token and the end of the chunked body for
the end of an answer. It keeps no text, checks nothing and makes no records. It prints its tokens and requests as JSON.

The streams start together. SPREAD_S spreads their starts over so many seconds, as Workbench does, and REST_MS
is the pause between two rounds of reads.
"""

from __future__ import annotations

import gc
import select
import socket
import struct
import sys
import time
from array import array

SO_TIMESTAMPNS = 35
BODY = (
    b'{"model":"m","stream":true,"max_tokens":%d,'
    b'"messages":[{"role":"user","content":"[000000000000] hello"}]}'
)
HEAD = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n%b"
)


def main() -> None:
    url, streams, requests, tokens = sys.argv[1], *map(int, sys.argv[2:5])
    spread_s, rest_ms = map(float, sys.argv[5:] or (0, 0))
    body = BODY % tokens
    request = HEAD % (len(body), body)
    unpack, now_ns = struct.Struct("@qq").unpack, time.monotonic_ns
    address = ("127.0.0.1", int(url.rpartition(":")[2]))
    epoll, by_fd = select.epoll(), {}
    asked = answered = seen = 0
    gc.disable()
    for _ in range(streams):
        sock = socket.create_connection(address)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        sock.setblocking(False)
        epoll.register(sock, select.EPOLLIN)
        stamps = array("q")
        by_fd[sock.fileno()] = sock.recvmsg, sock.send, stamps.append
    first = list(by_fd.values())[: min(streams, requests)]
    due_ns = [now_ns() + int(1e9 * spread_s * number / streams) for number in range(len(first))]
    read_ns = 0
    while answered < requests:
        now = now_ns()
        while asked < len(first) and due_ns[asked] <= now:
            _, send, stamp = first[asked]
            asked += 1
            stamp(now)
            send(request)
        if rest_ms and read_ns + rest_ms * 1e6 > now:
            time.sleep((read_ns - now) / 1e9 + rest_ms / 1e3)
        wait_s = max(0.0, (due_ns[asked] - now_ns()) / 1e9) if asked < len(first) else None
        ready = epoll.poll(wait_s)
        read_ns = now_ns()
        for fd, _ in ready:
            receive, send, stamp = by_fd[fd]
            data, ancillary, _, _ = receive(65536, 64)
            if not data:
                raise SystemExit("the server closed a connection")
            if ancillary:
                seconds, nanoseconds = unpack(ancillary[0][2])
                stamp(seconds * 1_000_000_000 + nanoseconds)
            else:  # the kernel gives times a moment after the first socket has asked for them
                stamp(now_ns())
            seen += data.count(b'"content":"') - data.count(b'"content":""')
            if data.endswith(b"0\r\n\r\n"):
                answered += 1
                if asked < requests:
                    asked += 1
                    stamp(now_ns())
                    send(request)
    print(f'{{"completed": {answered}, "total_output_tokens": {seen}}}')


if __name__ == "__main__":
    main()

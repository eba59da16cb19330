"""The least that a load client in Python has to do, as a measure for Workbench's: epoll, one connection
for each stream, the kernel's time of each read, and a count of tokens.

    python -S -I bare_client.py http://127.0.0.1:8000 STREAMS REQUESTS TOKENS

It sends equal requests, and takes each `"content":"` with text for a token and the end of the chunked body for
the end of an answer. It keeps no text, checks nothing and makes no records. It prints its tokens and requests as JSON.
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
    url, streams, requests, tokens = sys.argv[1], *map(int, sys.argv[2:])
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
        if asked < requests:
            asked += 1
            stamps.append(now_ns())
            sock.send(request)
    while answered < requests:
        for fd, _ in epoll.poll():
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

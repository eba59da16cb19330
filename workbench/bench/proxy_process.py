"""The process that passes bytes on between clients and a server, at once and unchanged.

It does nothing else and understands none of the bytes, so nothing delays them. What it has passed
on it tells in frames on stdout, where `trace_writer` reads them. `traffic_capture` starts both, and
gives it the socket that clients connect to, the addresses of the server, and orders in lines on
stdin:

    totals NUMBER     tell the reader that its totals are wanted, and by which request
    drain             accept no more connections, and end when there are none
    end NUMBER TOLD   end a connection, unless more was told of it than so many frames

It ends at the end of stdin too, which a killed command leaves, and cuts what is left.
"""

from __future__ import annotations

import errno
import gc
import json
import os
import select
import socket
import struct
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from workbench.bench.short_slice import request_own_short_time_slice

Address = tuple[object, ...]
FamilyAndAddress = tuple[int, Address]  # of a socket
# when it came (time.monotonic), connection (of TOTALS_WANTED: request), bytes after it, kind
FRAME = struct.Struct("=dIIB")
CLIENT_SENT, SERVER_SENT, ENDED, REFUSED, UNTOLD, TOTALS_WANTED, DRAINING = range(7)
ANY_NUMBER = -1  # of frames
_ROOM_BYTES = 1 << 16
_MAX_UNREAD_BYTES = 256 << 20  # bytes that wait for the reader of the frames
_CONNECT_MS = 10_000
_ACCEPT_RETRY_S = 1.0
_OPEN, _OPENING = (0, errno.EISCONN), (errno.EINPROGRESS, errno.EALREADY)
_IN, _OUT = select.EPOLLIN, select.EPOLLOUT
_RESET = struct.pack("ii", 1, 0)


class _ConnectionEnd:
    """One end of a joined connection: that of the client or that of the server."""

    __slots__ = ("far", "joined", "kind", "read_all", "shut", "socket", "waiting", "watched")

    far: _ConnectionEnd

    def __init__(self, joined: _JoinedConnections, kind: int) -> None:
        self.joined, self.kind = joined, kind
        self.socket: socket.socket | None = None
        self.watched = 0  # the events that the loop waits for
        self.waiting = b""  # what the socket did not take yet; the far end is not read meanwhile
        self.read_all = self.shut = False


class _JoinedConnections:
    """A client's connection and the one to the server."""

    __slots__ = ("addresses", "client", "closes", "frame_count", "number", "server", "untold")

    def __init__(self, number: int, addresses: Sequence[FamilyAndAddress]) -> None:
        self.number = number
        self.addresses = list(addresses)  # of the server, that were not tried yet
        self.client, self.server = (
            _ConnectionEnd(self, CLIENT_SENT),
            _ConnectionEnd(self, SERVER_SENT),
        )
        self.client.far, self.server.far = self.server, self.client
        self.frame_count = 0  # frames
        self.untold = False  # nothing is told of it any more
        self.closes = False  # after the bytes that wait


class ConnectionRelay:
    """A loop that joins each client of a listening socket with the server. It writes frames to the
    file number `frames`, and reads orders from `orders`."""

    def __init__(
        self,
        listener: socket.socket,
        addresses: Sequence[FamilyAndAddress],
        frames: int,
        orders: int,
    ) -> None:
        self._addresses, self._frames, self._orders = addresses, frames, orders
        self._listener: socket.socket | None = listener
        self._ready = select.epoll()
        self._acts: dict[int, Callable[[int], None]] = {}  # by file number, what its events do
        self._room = memoryview(bytearray(_ROOM_BYTES))
        self._joined: dict[int, _JoinedConnections] = {}
        self._number = 0
        self._rests = False  # there are no more files for clients
        self._unsent = bytearray()  # frames
        self._order = b""
        listener.setblocking(False)
        os.set_blocking(frames, False)
        self._acts[listener.fileno()] = self._accept_client
        self._acts[frames] = self._send_waiting_frames
        self._acts[orders] = self._read_commands
        self._ready.register(listener, _IN)
        self._ready.register(orders, _IN)

    def run_until_connections_end(self) -> None:
        """Pass bytes on until there is neither a listener nor a connection."""
        acts = self._acts
        while self._listener is not None or self._joined:
            for number, events in self._ready.poll(_ACCEPT_RETRY_S if self._rests else None):
                act = acts.get(number)
                if act is not None:  # an event before it may have closed this one
                    act(events)
            if self._rests:
                self._resume_accepting()
        self._ready.close()
        if self._unsent:
            os.set_blocking(self._frames, True)
            with suppress(OSError):
                while self._unsent:
                    del self._unsent[: os.write(self._frames, self._unsent)]

    # ---- connections

    def _accept_client(self, _: int) -> None:
        assert self._listener is not None
        try:
            client, _address = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError:  # no more files: those that wait are accepted later
            self._ready.unregister(self._listener)
            self._rests = True
            return
        self._number += 1
        joined = _JoinedConnections(self._number, self._addresses)
        self._joined[joined.number] = joined
        self._attach_socket_to_end(joined.client, client)
        self._connect_to_server(joined)

    def _resume_accepting(self) -> None:
        self._rests = False
        if self._listener is not None:
            self._ready.register(self._listener, _IN)

    def _connect_to_server(self, joined: _JoinedConnections) -> None:
        """Join a client with the first address of the server that accepts. On loopback the kernel
        connects at once, so the request is passed on without another turn of the loop."""
        while joined.addresses:
            code = self._try_connect_and_get_errno(joined.server, *joined.addresses[0])
            if code in _OPENING:
                self._set_watched_events(joined.server, _OUT)
                return
            if code in _OPEN:
                joined.addresses.clear()
                self._watch_both_ends(joined)
                return
            self._close_connection_end(joined.server)
            joined.addresses.pop(0)
        self._send_connection_frame(joined, REFUSED)
        self._reset_connections(joined)

    def _try_connect_and_get_errno(
        self, server: _ConnectionEnd, family: int, address: Address
    ) -> int:
        """Begin to connect to an address of the server, or go on with it. Return the error number:
        in `_OPEN` if the connection is open, in `_OPENING` if that takes longer, or that of a
        failure."""
        opening = server.socket
        if opening is None:
            try:
                opening = socket.socket(family, socket.SOCK_STREAM)
            except OSError as error:  # no more files
                return error.errno or errno.EMFILE
            # the kernel gives up by itself: this loop needs no clock
            opening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _CONNECT_MS)
            self._attach_socket_to_end(server, opening)
        code = opening.connect_ex(address)
        if code in _OPENING:  # it may be done meanwhile
            code = opening.connect_ex(address)
        if code in _OPEN:
            opening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 0)
        return code

    def _attach_socket_to_end(self, end: _ConnectionEnd, sock: socket.socket) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        end.socket = sock
        self._acts[sock.fileno()] = partial(self._handle_events_of_end, end)

    def _handle_events_of_end(self, end: _ConnectionEnd, events: int) -> None:
        joined = end.joined
        if joined.addresses:
            self._connect_to_server(joined)
            return
        if events & _OUT:
            self._send_waiting_bytes(end)
        if events & ~_OUT and end.watched & _IN:
            self._forward_received_bytes(end)

    def _set_watched_events(self, end: _ConnectionEnd, events: int) -> None:
        """From now on, wait for these events of a connection's end; 0 for none."""
        before, end.watched = end.watched, events
        if events == before or end.socket is None:
            return
        if not before:
            self._ready.register(end.socket, events)
        elif events:
            self._ready.modify(end.socket, events)
        else:  # even without events, the loop would be told of an error, again and again
            self._ready.unregister(end.socket)

    def _watch_both_ends(self, joined: _JoinedConnections) -> None:
        """Wait until bytes can be passed on. An end is read only if all earlier bytes from it were
        sent, and written only if bytes for it wait."""
        for end in (joined.client, joined.server):
            reads = not (end.read_all or end.far.waiting or joined.closes)
            self._set_watched_events(end, (_IN if reads else 0) | (_OUT if end.waiting else 0))

    # ---- bytes

    def _forward_received_bytes(self, source: _ConnectionEnd) -> None:
        assert source.socket is not None
        try:
            size = source.socket.recv_into(self._room)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._reset_connections(source.joined)
            return
        if not size:
            source.read_all = True
            self._close_finished_connections(source.joined)
            return
        data = self._room[:size]
        sent = self._send_and_count_bytes(source.far, data)
        self._send_connection_frame(source.joined, source.kind, data)
        if sent == size:
            return
        if sent < 0:  # the far end has gone; first these bytes were told
            self._reset_connections(source.joined)
            return
        source.far.waiting = bytes(data[sent:])
        self._watch_both_ends(source.joined)

    @staticmethod
    def _send_and_count_bytes(end: _ConnectionEnd, data: memoryview | bytes) -> int:
        """Return how many bytes the socket took, -1 if it has failed."""
        assert end.socket is not None
        try:
            return end.socket.send(data)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError:
            return -1

    def _send_waiting_bytes(self, end: _ConnectionEnd) -> None:
        sent = self._send_and_count_bytes(end, end.waiting)
        if sent < 0:
            self._reset_connections(end.joined)
            return
        end.waiting = end.waiting[sent:]
        if not end.waiting:
            self._close_finished_connections(end.joined)

    # ---- the end of a connection

    def _close_finished_connections(self, joined: _JoinedConnections) -> None:
        """Tell each end when the other has sent everything and its bytes were passed on. Close both
        connections if both ends have, or if they are to be closed; wait for more bytes
        otherwise."""
        ends = joined.client, joined.server
        for end in ends:
            if end.far.read_all and not end.shut and not end.waiting:
                end.shut = True
                assert end.socket is not None
                with suppress(OSError):  # it has gone meanwhile, which the next read tells
                    end.socket.shutdown(socket.SHUT_WR)
        is_over = joined.closes or all(end.read_all for end in ends)
        if is_over and not any(end.waiting for end in ends):
            self._close_connections(joined)
        else:
            self._watch_both_ends(joined)

    def _reset_connections(self, joined: _JoinedConnections) -> None:
        """Cut both connections with a TCP reset. A normal end would look like the end of a complete
        but short answer."""
        for end in (joined.client, joined.server):
            if end.socket is not None:
                with suppress(OSError):
                    end.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._close_connections(joined)

    def _close_connections(self, joined: _JoinedConnections) -> None:
        if self._joined.pop(joined.number, None) is None:
            return
        self._close_connection_end(joined.client)
        self._close_connection_end(joined.server)
        if joined.frame_count:
            self._send_frame(ENDED, joined.number)

    def _close_connection_end(self, end: _ConnectionEnd) -> None:
        sock, end.socket, end.watched, end.waiting = end.socket, None, 0, b""
        if sock is not None:
            del self._acts[sock.fileno()]
            sock.close()  # and the loop forgets it

    # ---- frames

    def _send_connection_frame(
        self, joined: _JoinedConnections, kind: int, data: memoryview | bytes = b""
    ) -> None:
        """Send a frame about what happened on a connection. If too many bytes wait for the reader,
        the frame says that nothing more is told of this connection."""
        if joined.untold:
            return
        if len(self._unsent) + len(data) > _MAX_UNREAD_BYTES:
            joined.untold, kind, data = True, UNTOLD, b""
        joined.frame_count += 1
        self._send_frame(kind, joined.number, data)

    def _send_frame(self, kind: int, number: int = 0, data: memoryview | bytes = b"") -> None:
        if self._frames < 0:
            return
        head = FRAME.pack(time.monotonic(), number, len(data), kind)
        sent = 0
        if not self._unsent:
            try:
                sent = os.writev(self._frames, (head, data))
            except (BlockingIOError, InterruptedError):
                pass
            except OSError:
                self._stop_sending_frames()
                return
            if sent == len(head) + len(data):
                return
            self._ready.register(self._frames, _OUT)
        self._unsent += b"".join((head, data))[sent:]

    def _send_waiting_frames(self, _: int) -> None:
        """Send as much of the waiting frames as the pipe takes."""
        try:
            del self._unsent[: os.write(self._frames, self._unsent)]
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._ready.unregister(self._frames)
            self._stop_sending_frames()
            return
        if not self._unsent:
            self._ready.unregister(self._frames)

    def _stop_sending_frames(self) -> None:
        """Pass bytes on, but tell nothing of them any more, because the reader of the frames has
        ended."""
        self._frames = -1
        self._unsent.clear()

    # ---- orders

    def _read_commands(self, _: int) -> None:
        data = os.read(self._orders, 1 << 16)
        if not data:
            self._ready.unregister(self._orders)
            self._stop_listening()
            for joined in tuple(self._joined.values()):
                self._reset_connections(joined)
            return
        *orders, self._order = (self._order + data).split(b"\n")
        for order in orders:
            name, *numbers = order.split()
            if name == b"totals":
                self._send_frame(TOTALS_WANTED, int(numbers[0]))
            elif name == b"drain":
                self._stop_accepting_and_drain()
            elif name == b"end":
                self._end_connection_if_unchanged(*map(int, numbers))

    def _stop_accepting_and_drain(self) -> None:
        """Accept no more connections, and end those that have carried nothing. The reader of the
        frames then names the other connections that carry no request."""
        self._stop_listening()
        self._send_frame(DRAINING)
        for joined in tuple(self._joined.values()):
            if not joined.frame_count:
                self._end_connection_if_unchanged(joined.number, 0)

    def _end_connection_if_unchanged(self, number: int, frame_count: int) -> None:
        """End a connection after the bytes that wait, unless it has passed more on since it had
        `frame_count` frames."""
        joined = self._joined.get(number)
        if joined is None or frame_count not in (joined.frame_count, ANY_NUMBER):
            return
        joined.closes = True
        self._close_finished_connections(joined)

    def _stop_listening(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            del self._acts[listener.fileno()]
            listener.close()


def main(listener: str, addresses: str) -> int:
    """Pass bytes on between the clients of the socket with the file number `listener` and the
    server at one of `addresses`, a JSON list of (family, address). Return the exit code."""
    found = [(family, tuple(address)) for family, address in json.loads(addresses)]
    relay = ConnectionRelay(socket.socket(fileno=int(listener)), found, 1, 0)
    gc.freeze()  # a collection of all that was imported would delay answers
    request_own_short_time_slice()  # a byte would wait until the process on the core has used up its own
    relay.run_until_connections_end()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

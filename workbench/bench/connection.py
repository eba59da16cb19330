"""Connections of the load client, plain or TLS and non-blocking, with the kernel's receive time for
each read.

Receive times are nanoseconds of the monotonic clock (`time.monotonic_ns`). The kernel reports them
by the wall clock (SO_TIMESTAMPNS). `ReceiveClock` converts them, and notices if the wall clock is
set during the run.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit

from workbench.bench import records
from workbench.bench.records import RequestFailure
from workbench.model.errors import BenchError
from workbench.model.lazy_dataclass import dataclass

if TYPE_CHECKING:
    import ssl

    from workbench.model.bench import BenchSpec

READ_BYTES = 64 * 1024
_FULL_READ_BYTES = (
    READ_BYTES // 2
)  # a read of so many may mean that the socket had no room for more
LATE_READ_NS = 500_000  # a read that is later than this is counted as late
_CLOCK_SET_NS = (
    1_000_000  # the wall clock drifts by less between two measurements: more means it was set
)
_TIMESPEC = struct.Struct("@qq")
_unpack_timespec = _TIMESPEC.unpack
# 35: Linux on x86-64 and aarch64; not in Python's socket
_SO_TIMESTAMPNS = getattr(socket, "SO_TIMESTAMPNS", 35)
_ANCILLARY_BYTES = socket.CMSG_SPACE(_TIMESPEC.size)
_CONNECT_PENDING_ERRORS = (errno.EINPROGRESS, errno.EWOULDBLOCK, errno.EALREADY)


@dataclass(frozen=True)
class Endpoint:
    """The address that the load client sends requests to. `path` is the URL path of the completions
    endpoint. `tls` is None for plain HTTP."""

    host: str
    port: int
    path: str
    tls: ssl.SSLContext | None
    family: int
    address: Any  # as socket.connect takes it

    @property
    def is_on_this_machine(self) -> bool:
        """Whether the address is one of this machine's own addresses. The server itself may be
        behind a tunnel, which needs CPU time here, too."""
        with socket.socket(self.family, socket.SOCK_STREAM) as probe:
            try:
                probe.bind((self.address[0], 0, *self.address[2:]))  # other addresses are refused
            except OSError:
                return False
        return True

    @property
    def host_header(self) -> str:
        name = f"[{self.host}]" if ":" in self.host else self.host
        default_port = 443 if self.tls else 80
        return name if self.port == default_port else f"{name}:{self.port}"


def resolve_endpoint(spec: BenchSpec) -> Endpoint:
    """Return the endpoint for the URL in `spec`, which is the server's base URL with or without
    /v1.

    The host name is looked up. If the name has several addresses, a test connection chooses one of
    them. Raises BenchError if the URL is invalid or the name cannot be resolved.
    """
    parts = _split_url(spec.url)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    base = parts.path.rstrip("/").removesuffix("/v1")
    path = f"{base}/v1/{'chat/completions' if spec.endpoint == 'chat' else spec.endpoint}"
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise BenchError(
            f"cannot resolve the host name {host!r}: {error}", next_step="check the server's URL"
        ) from None
    family, address = _first_reachable_family_and_address(found)
    return Endpoint(
        host,
        port,
        path,
        _ssl_context_for(spec) if parts.scheme == "https" else None,
        family,
        address,
    )


def _split_url(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        port_ok = parts.port != 0
    except ValueError:
        parts, port_ok = SplitResult("", "", "", "", ""), False
    if parts.scheme not in ("http", "https") or not parts.hostname or not port_ok:
        raise BenchError(
            f"invalid server URL: {url!r}", next_step="give a URL such as http://127.0.0.1:8000"
        )
    if parts.username or parts.password:
        raise BenchError(
            "the server's URL contains a user name or a password",
            next_step="remove it from the URL, and put the API key into an environment variable",
        )
    return parts


def _first_reachable_family_and_address(found: list[Any]) -> tuple[int, Any]:
    """Return (address family, socket address) of the first entry of `found` that accepts a
    connection within 3 s. If none does, return the first entry. `found` is a list from getaddrinfo;
    for localhost it can contain ::1 and 127.0.0.1."""
    if len(found) > 1:
        for family, kind, protocol, _, address in found:
            with socket.socket(family, kind, protocol) as probe:
                probe.settimeout(3.0)
                if probe.connect_ex(address) == 0:
                    return family, address
    return found[0][0], found[0][4]


def _ssl_context_for(spec: BenchSpec) -> ssl.SSLContext:
    from workbench.bench import tls

    context = tls.tls_context(spec)
    context.set_alpn_protocols(["http/1.1"])
    return context


class ReceiveClock:
    """Converts the kernel's receive times from the wall clock to the monotonic clock, and counts
    inaccurate times.

    `ahead_ns` is the nanoseconds by which the wall clock is ahead of the monotonic clock. The owner
    of the object must call `update_offset_and_was_set` several times a second, because the two
    clocks drift apart by up to 0.5 us per ms (NTP's limit) and the wall clock may be set.

    `late` counts reads that were made more than 0.5 ms later than planned: after their bytes
    arrived and the client had rested for `rest_ns`. `unstamped_read` is set to true by a read for
    which the kernel gave no time, and `cut_read` by one that may have left bytes in the socket; the
    owner sets both to false. `first_ns` is the time of the first read since the owner set it to 0.
    """

    def __init__(self) -> None:
        self.ahead_ns = self.rest_ns = self.first_ns = 0
        self._set_ns = 0  # when the wall clock was last seen to have been set
        self._measure_ahead_ns()
        self.reset_read_counters()
        self.unstamped_read = self.cut_read = False

    def reset_read_counters(self) -> None:
        """Set the counters of reads, and the latest read, to 0."""
        self.reads = self.unstamped = self.late = self.latest_ns = 0

    def receive_time_ns(self, ancillary: list[tuple[int, int, bytes]]) -> int:
        """Return the time, in monotonic nanoseconds, at which the bytes of the last `recvmsg` call
        arrived. `ancillary` is the control data of that call, with the kernel's time. Without the
        kernel's time, return the present time."""
        now_ns = time.monotonic_ns()
        self.reads += 1
        if not ancillary:
            self.unstamped += 1
            self.unstamped_read = True
            return now_ns
        seconds, nanoseconds = _unpack_timespec(ancillary[0][2])
        wall_ns: int = seconds * 1_000_000_000 + nanoseconds
        came = wall_ns - self.ahead_ns
        known = came >= self._set_ns
        if came > now_ns:  # by a clock that was set ahead, or runs fast
            self.update_offset_and_was_set()
            came = wall_ns - self.ahead_ns
            known = came - now_ns <= _CLOCK_SET_NS
            came = min(came, now_ns)
        elif now_ns - came > LATE_READ_NS + self.rest_ns and self._was_clock_set(now_ns):
            known = not self.update_offset_and_was_set()
        if not known:  # the kernel may have read the wall clock before it was set, or after
            self.unstamped += 1
            self.unstamped_read = True
            return now_ns
        if now_ns - came > LATE_READ_NS:
            self.late += now_ns - came > LATE_READ_NS + self.rest_ns
            self.latest_ns = max(self.latest_ns, now_ns - came)
        self.first_ns = self.first_ns or came
        return came

    def _was_clock_set(self, now_ns: int) -> bool:
        """Return whether the wall clock was set since `ahead_ns` was measured."""
        return abs(time.time_ns() - now_ns - self.ahead_ns) > _CLOCK_SET_NS

    def update_offset_and_was_set(self) -> bool:
        """Measure again how far the wall clock is ahead. Return whether it was set since the last
        time."""
        before_ns = self.ahead_ns
        self._measure_ahead_ns()
        was_set = abs(self.ahead_ns - before_ns) > _CLOCK_SET_NS
        if was_set:
            self._set_ns = time.monotonic_ns()
        return was_set

    def _measure_ahead_ns(self) -> None:
        """Measure `ahead_ns`, the nanoseconds by which the wall clock is ahead of the monotonic
        clock. Both clocks are read five times, and the fastest of the five readings is used,
        because this process may have been interrupted during a slower one."""
        best = None
        for _ in range(5):
            before = time.monotonic_ns()
            wall = time.time_ns()
            took = time.monotonic_ns() - before
            if best is None or took < best:
                best, self.ahead_ns = took, wall - before - took // 2


class Connection:
    """A non-blocking connection to the endpoint, plain or TLS, that is opening or open. Its methods
    raise OSError if the connection fails (ssl.SSLError, a subclass, for TLS)."""

    def __init__(self, endpoint: Endpoint, clock: ReceiveClock) -> None:
        self.sock = socket.socket(endpoint.family, socket.SOCK_STREAM)
        self.sock.setblocking(False)
        self.fd = self.sock.fileno()
        self._recvmsg = self.sock.recvmsg
        self.connected = False
        self.used = 0  # requests answered on it
        self._clock = clock
        self._out = b""
        self._tls = _Tls(endpoint) if endpoint.tls else None
        with contextlib.suppress(OSError):  # without kernel stamps, each read is timed here
            self.sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        try:
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            code = self.sock.connect_ex(endpoint.address)
            if code and code not in _CONNECT_PENDING_ERRORS:
                raise OSError(code, os.strerror(code))
        except OSError:
            self.close()
            raise

    def advance_handshake(self) -> bool:
        """Continue to open the connection, including the TLS handshake, after the socket became
        readable or writable. Return whether the connection is open. Raises OSError if it cannot be
        opened."""
        if not self.connected:
            code = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                raise OSError(code, os.strerror(code))
            self.connected = True
        return self._tls is None or self._tls.advance_handshake(self)

    def send(self, data: bytes) -> None:
        """Queue `data` and write as much of it as the socket accepts. While `wants_write` is true,
        the caller must call `flush` whenever the socket is writable."""
        self.send_raw(self._tls.encrypt(data) if self._tls else data)

    def send_raw(self, data: bytes) -> None:
        self._out += data
        self.flush()

    def flush(self) -> None:
        while self._out:
            try:
                self._out = self._out[self.sock.send(self._out) :]
            except BlockingIOError:
                return

    @property
    def wants_write(self) -> bool:
        return bool(self._out) or not self.connected

    def receive_data_and_time_ns(self) -> tuple[bytes | None, int]:
        """Read once from the socket. Return (data, time of arrival in monotonic nanoseconds).

        `data` is b"" if the server closed the connection, and None if no data can be returned yet,
        for example because a TLS record is incomplete. The time is 0 if there was nothing to read.
        """
        try:
            data, ancillary, _, _ = self._recvmsg(READ_BYTES, _ANCILLARY_BYTES)
        except BlockingIOError:
            return None, 0
        stamp = self._clock.receive_time_ns(ancillary) if data else time.monotonic_ns()
        if len(data) >= _FULL_READ_BYTES:
            self._clock.cut_read = True
        return (data if self._tls is None else self._tls.decrypt(data)), stamp

    def receive_undecrypted(self) -> bytes | None:
        """Read once from the socket, without decrypting. Return the bytes, b"" if the server closed
        the connection, or None if there is nothing to read yet."""
        try:
            return self.sock.recv(READ_BYTES)
        except BlockingIOError:
            return None

    def close(self) -> None:
        self.sock.close()


class _Tls:
    """The TLS layer of one connection, which encrypts and decrypts in memory. The socket itself is
    read with recvmsg, because an SSL socket would hide the kernel's receive times."""

    def __init__(self, endpoint: Endpoint) -> None:
        import ssl

        assert endpoint.tls is not None
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = endpoint.tls.wrap_bio(
            self._incoming, self._outgoing, server_hostname=endpoint.host
        )
        self._want_read = ssl.SSLWantReadError
        self._closed = (ssl.SSLZeroReturnError, ssl.SSLEOFError)
        self._done = False

    def advance_handshake(self, connection: Connection) -> bool:
        while not self._done:
            try:
                self._object.do_handshake()
                self._done = True
            except self._want_read:
                connection.send_raw(self._outgoing.read())
                raw = connection.receive_undecrypted()
                if raw is None:
                    return False
                if not raw:
                    raise ConnectionResetError(
                        errno.ECONNRESET,
                        "the server closed the connection during the TLS handshake",
                    ) from None
                self._incoming.write(raw)
        connection.send_raw(self._outgoing.read())
        return True

    def encrypt(self, data: bytes) -> bytes:
        self._object.write(data)
        return self._outgoing.read()

    def decrypt(self, raw: bytes) -> bytes | None:
        if raw:
            self._incoming.write(raw)
        else:
            self._incoming.write_eof()
        pieces: list[bytes] = []
        while True:
            try:
                piece = self._object.read(READ_BYTES)
            except self._want_read:
                break
            except self._closed:
                piece = b""
            if not piece:
                return b"".join(pieces) if pieces else b""
            pieces.append(piece)
        return b"".join(pieces) or None


def describe_connection_failure(error: OSError, *, connecting: bool) -> RequestFailure:
    """Return the failure of a request for an error of its connection. `connecting` says whether the
    client was still opening the connection."""
    detail = error.strerror or str(error)
    if isinstance(error, ConnectionRefusedError):
        return RequestFailure(records.CONNECT_REFUSED, detail)
    if connecting:
        return RequestFailure(records.CONNECT_FAILED, detail)
    if not isinstance(error, ConnectionError):
        detail = f"{type(error).__name__}: {detail}"
    return RequestFailure(records.CONNECTION_RESET, detail)

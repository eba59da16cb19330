"""Tests of endpoints (where requests go) and of receive stamps."""

from __future__ import annotations

import socket
import struct
import time

import pytest

from workbench.bench.connection import Connection, ReceiveClock, resolve_endpoint
from workbench.model.bench import BenchSpec


@pytest.mark.parametrize(
    ("url", "endpoint", "path", "header"),
    [
        ("http://127.0.0.1:8000", "chat", "/v1/chat/completions", "127.0.0.1:8000"),
        ("http://127.0.0.1:8000/v1", "completions", "/v1/completions", "127.0.0.1:8000"),
        ("http://127.0.0.1/api/v1/", "chat", "/api/v1/chat/completions", "127.0.0.1"),
        ("https://127.0.0.1", "chat", "/v1/chat/completions", "127.0.0.1"),
        ("https://127.0.0.1:80", "chat", "/v1/chat/completions", "127.0.0.1:80"),
        ("http://[::1]:8000", "chat", "/v1/chat/completions", "[::1]:8000"),
    ],
)
def test_urls(url: str, endpoint: str, path: str, header: str) -> None:
    found = resolve_endpoint(BenchSpec(url, "m", endpoint=endpoint))
    assert (found.path, found.host_header, found.tls is not None) == (
        path,
        header,
        url.startswith("https"),
    )


def test_of_several_addresses_the_one_that_answers_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """localhost is ::1 and 127.0.0.1, and most engines listen on one of them."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_server(("127.0.0.1", 0)) as closed,
    ):
        port, other = server.getsockname()[1], closed.getsockname()[1]
        closed.close()
        found = [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", p)) for p in (other, port)
        ]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *a, **k: found)
        assert resolve_endpoint(BenchSpec("http://localhost:1", "m")).address == ("127.0.0.1", port)


class Clocks:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.ahead = 1_000_000, 10**18
        monkeypatch.setattr(time, "monotonic_ns", lambda: self.now)
        monkeypatch.setattr(time, "time_ns", lambda: self.now + self.ahead)

    @property
    def wall(self) -> int:
        return self.now + self.ahead


def kernel_time(wall_ns: int) -> list[tuple[int, int, bytes]]:
    return [(socket.SOL_SOCKET, 35, struct.pack("@qq", *divmod(wall_ns, 10**9)))]


def test_stamps_are_carried_to_the_monotonic_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = Clocks(monkeypatch)
    clock = ReceiveClock()
    assert clock.receive_time_ns(kernel_time(clocks.wall - 700)) == clocks.now - 700


@pytest.mark.parametrize("step", [3_600 * 10**9, 10**6])
def test_a_wall_clock_that_is_set_ahead_is_noticed(
    monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    clocks = Clocks(monkeypatch)
    clock = ReceiveClock()
    clocks.ahead += step
    assert clock.receive_time_ns(kernel_time(clocks.wall - 700)) == clocks.now - 700


def test_a_time_by_a_wall_clock_that_was_set_back_is_not_believed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clocks = Clocks(monkeypatch)
    clock = ReceiveClock()
    clocks.ahead -= 2_400_000_000
    # stamped before the clock was set, and read after
    assert clock.receive_time_ns(kernel_time(clocks.wall + 2_400_000_000 - 700)) == clocks.now - 700
    assert not clock.unstamped_read
    # stamped after
    assert clock.receive_time_ns(kernel_time(clocks.wall - 700)) == clocks.now
    assert clock.unstamped_read
    clock.unstamped_read = False
    clocks.now += 1_000_000
    assert clock.receive_time_ns(kernel_time(clocks.wall - 700)) == clocks.now - 700
    assert not clock.unstamped_read


def test_a_time_from_before_the_wall_clock_was_set_ahead_is_not_believed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clocks = Clocks(monkeypatch)
    clock = ReceiveClock()
    stamped_before = kernel_time(clocks.wall - 700)
    clocks.ahead += 2_400_000_000
    clock.update_offset_and_was_set()
    assert clock.receive_time_ns(stamped_before) == clocks.now
    assert clock.unstamped_read


def test_no_stamp_is_in_the_future(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = Clocks(monkeypatch)
    assert ReceiveClock().receive_time_ns(kernel_time(clocks.wall + 5)) == clocks.now


def test_a_read_is_stamped_when_the_bytes_came_not_when_they_were_read() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        clock = ReceiveClock()
        connection = Connection(resolve_endpoint(BenchSpec(f"http://127.0.0.1:{port}", "m")), clock)
        peer, _ = server.accept()
        deadline = time.monotonic() + 5
        stamps = []
        while len(stamps) < 20 and time.monotonic() < deadline:
            sent = time.monotonic_ns()
            peer.sendall(b"x")
            time.sleep(0.02)  # as a client that is busy elsewhere
            data, stamp = connection.receive_data_and_time_ns()
            assert data == b"x" and sent <= stamp <= time.monotonic_ns()
            stamps.append(stamp - sent)
        peer.close()
        connection.close()
    assert clock.reads == 20
    if clock.unstamped < 10:  # kernels without stamps are timed at the read
        assert sorted(stamps)[10] < 10_000_000
        assert clock.late >= 10 and clock.latest_ns >= 19_000_000

"""Servers that someone started by hand: found, queried for their models, and otherwise left alone."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import fake_engine
from support.procs import alive
from support.serving import free_port

from workbench.hosts.local import LocalHost
from workbench.server import external_servers, process_scan
from workbench.server.external_servers import ExternalServers, FoundServer, find_external_servers
from workbench.server.process_scan import ProcessScan


def found_at(port: int) -> list[FoundServer]:
    return [s for s in asyncio.run(find_external_servers(LocalHost())) if s.port == port]


@pytest.fixture
def by_hand(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a server that calls itself vllm, with its output in a file and a key on its command
    line."""
    port = free_port()
    argv = fake_engine.by_hand(
        tmp_path, "org/a model", "--port", str(port), "--api-key", "sk-verysecret"
    )
    with (tmp_path / "out.txt").open("wb") as log:
        process = subprocess.Popen(argv, stdout=log, env={**os.environ, "FAKE_ENGINE": ""})
    process.port = port  # type: ignore[attr-defined]
    yield process
    process.kill()
    process.wait()


def wait_for(port: int) -> FoundServer:
    for _ in range(200):
        if found := found_at(port):
            return found[0]
    raise AssertionError("not found")


def test_of_two_processes_that_name_a_port_the_engine_is_shown_and_not_its_shell(
    tmp_path: Path,
) -> None:
    """The keeper of another Workbench's server has the engine's words on its command line."""
    port = free_port()
    argv = fake_engine.by_hand(tmp_path, "org/a model", "--port", str(port))
    shell = ["sh", "-c", 'start_of() { :; }; "$@"; exit $?', "sh", *argv]
    rows = []
    processes = [(100, shell), (200, argv)]
    for pid, words in processes:
        rows.append({"pid": pid, "uid": 1, "own": False, "argv": words, "inodes": []})
    seen, listening = external_servers._parse_processes_and_ports(
        {"processes": rows, "listening": {"1": port}}
    )
    (server,) = external_servers._find_candidates(seen, listening, set())
    assert server.pid == 200 and "start_of" not in server.command


@pytest.mark.parametrize("pid", [10**400, -1, True, 1.5, "1", None])
def test_a_host_that_lies_about_process_ids_shows_none(pid: object) -> None:
    row = {"pid": pid, "uid": 1, "own": False, "argv": ["vllm", "serve"], "inodes": []}
    seen, _ = external_servers._parse_processes_and_ports(
        {"processes": [row], "listening": {"1": pid}}
    )
    assert seen == []


def test_a_server_by_hand_is_found_with_its_command_line(
    by_hand: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    server = wait_for(by_hand.port)  # type: ignore[attr-defined]
    assert (server.pid, server.engine, server.models) == (
        by_hand.pid,
        "vllm",
        (fake_engine.SERVED,),
    )
    assert (
        "org/a model" in server.argv
        and "verysecret" not in server.command
        and "***" in server.command
    )
    assert server.output == str(tmp_path / "out.txt") and server.uid == os.getuid()
    assert server.bench_command == f"workbench bench --url http://127.0.0.1:{server.port}"
    assert alive(by_hand.pid)


def test_a_run_of_workbench_is_none(by_hand: subprocess.Popen[bytes]) -> None:
    port = by_hand.port  # type: ignore[attr-defined]
    wait_for(port)
    assert not [
        s
        for s in asyncio.run(find_external_servers(LocalHost(), own_run_ports=[port]))
        if s.port == port
    ]


@pytest.mark.slow
def test_a_process_that_only_listens_is_not_a_server() -> None:
    """A process with vllm in its command line, and a port that does not speak HTTP."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        port = silent.getsockname()[1]
        child = subprocess.Popen(
            ["vllm", "60"], pass_fds=[silent.fileno()], executable="/bin/sleep"
        )
        try:
            assert found_at(port) == []
        finally:
            child.kill()
            child.wait()


def test_a_second_look_reads_only_what_is_new(
    by_hand: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_for(by_hand.port)  # type: ignore[attr-defined]
    asked: list[int] = []
    ask = external_servers._with_served_models

    async def counted(host: LocalHost, server: FoundServer) -> FoundServer | None:
        asked.append(server.port)
        return await ask(host, server)

    monkeypatch.setattr(external_servers, "_with_served_models", counted)

    async def looks() -> None:
        servers = ExternalServers(LocalHost())
        first = await servers.find()
        assert asked.count(by_hand.port) == 1  # type: ignore[attr-defined]
        again = await servers.find()
        assert asked.count(by_hand.port) == 1  # type: ignore[attr-defined]
        assert set(first) <= set(again)

    asyncio.run(looks())


def test_a_shell_that_becomes_an_engine_is_found() -> None:
    script = "read line; name=no-such; exec -a $name-engine sleep 60"
    scan = ProcessScan("no-such-engine")
    with subprocess.Popen(["bash", "-c", script], stdin=subprocess.PIPE) as process:
        try:
            scan.scan()
            assert process.stdin is not None
            process.stdin.write(b"go\n")
            process.stdin.close()
            deadline = time.monotonic() + 20
            while Path(f"/proc/{process.pid}/comm").read_text() != "sleep\n":
                assert time.monotonic() < deadline
            assert process.pid in [one["pid"] for one in scan.scan()["processes"]]
        finally:
            process.kill()


def test_what_a_lying_host_says_of_its_processes_is_left_out() -> None:
    row = {"pid": 7, "uid": 0, "own": False, "argv": ["vllm"], "inodes": ["5"], "scope": "system"}
    lies: list[object] = [
        None,
        [],
        {"processes": "three", "listening": 4},
        {"processes": [None, {"pid": "7"}, {**row, "argv": 7}], "listening": {"5": "80"}},
        {"processes": [row], "listening": {"5": 1e308}},
        {"processes": [row], "listening": {"5": True}},
    ]
    for lie in lies:
        processes, listening = external_servers._parse_processes_and_ports(lie)
        assert external_servers._find_candidates(processes, listening, set()) == []
    processes, listening = external_servers._parse_processes_and_ports(
        {"processes": [row], "listening": {"5": 80}}
    )
    assert [one.port for one in external_servers._find_candidates(processes, listening, set())] == [
        80
    ]


def test_a_unit_inside_a_container_is_a_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    box = f"/machine.slice/libpod-{'ab' * 32}.scope"
    monkeypatch.setattr(process_scan, "_main_pid", lambda scope, unit: 7)
    unit = f"0::{box}/system.slice/vllm.service\n"
    assert process_scan._scope_and_unit_of_process(7, unit) == ("system", "vllm.service")
    assert process_scan._scope_and_unit_of_process(8, unit) == ("podman", "abababababab")
    assert process_scan._scope_and_unit_of_process(7, "0::/user.slice/session.scope\n") == (
        "system",
        None,
    )

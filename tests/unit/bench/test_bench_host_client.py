"""The load client on the host of the server: sent there, kept by its hash, and its result kept over
a lost link."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scripted_server import SILENCE, ScriptedServer, chat_events, chunked
from support.procs import eventually

from workbench.bench import runner, workers
from workbench.bench.runner import BenchCancelled
from workbench.bench.workers import LOAD_CLIENT, ClientMissingError
from workbench.hosts.base import HostUnreachable
from workbench.hosts.local import LocalHost
from workbench.model.bench import BenchSpec
from workbench.model.errors import BenchError

OK = chunked(chat_events(4))


class FarHost(LocalHost):
    """This machine as another one, whose clock is ahead and whose python3 may be another."""

    kind = "ssh"
    is_local = False

    def __init__(self, python: str = sys.executable) -> None:
        super().__init__()
        self.python = python
        self.cut_after: bytes | None = None  # the link is lost after lines with this text
        self.cut_at = 3  # how many of them
        self.away = 0  # calls that fail, before the link is back

    async def stream(self, argv: Any, **options: Any) -> Any:
        stream = await super().stream(
            [self.python if word == "python3" else word for word in argv], **options
        )
        return CutStream(stream, self)

    async def run(self, argv: Any, **options: Any) -> Any:
        if self.away:
            self.away -= 1
            raise HostUnreachable("no connection", host=self.name)
        return await super().run(argv, **options)


class CutStream:
    def __init__(self, stream: Any, host: FarHost) -> None:
        self.stream, self.host = stream, host

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    async def lines(self) -> AsyncIterator[bytes]:
        seen = 0
        async for line in self.stream.lines():
            if self.host.cut_after is not None and self.host.cut_after in line:
                seen += 1
                if seen == self.host.cut_at:
                    await self.stream.close()  # as sshd does it: the end of stdin, then TERM
                    raise HostUnreachable("the connection was lost", host=self.host.name)
            yield line


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "workbench" / "bench"


def spec_for(url: str, **fields: Any) -> BenchSpec:
    return BenchSpec(
        **{
            "url": url,
            "model": "m",
            "concurrency": 2,
            "requests": 8,
            "warmup": 2,
            "max_tokens": 4,
            **fields,
        }
    )


async def bench(host: FarHost, spec: BenchSpec, **options: Any) -> Any:
    async with runner.open_worker(host) as worker:
        return await runner.run_load(spec, worker=worker, **options)


def ok_server() -> ScriptedServer:
    return ScriptedServer(lambda request, n: [OK])


def test_it_measures_there_and_leaves_nothing(state: Path) -> None:
    with ok_server() as server:
        outcome = asyncio.run(bench(FarHost(), spec_for(server.url)))
    assert outcome.summary.requests_ok == 8 and not outcome.partial
    assert len([r for r in outcome.requests if r.ttft_us is not None]) == 8
    assert list(state.iterdir()) == []


def test_the_modules_are_what_the_client_imports() -> None:
    """Each stands after those that it imports, and none is missing or in vain."""
    code = (
        "import sys\nimport workbench.bench.host_client, workbench.bench.several_processes, "
        "workbench.bench.tls\n"
        "print('\\n'.join(sorted(m for m in sys.modules if m.startswith('workbench.') and "
        "m.count('.') == 2)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    sent = {f"workbench.{module}" for module in LOAD_CLIENT.modules}
    assert sent - {"workbench.bench.older_python"} == set(done.stdout.split())


def interpreter(version: str) -> str:
    found = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python3"))
    if not found:
        pytest.skip(f"no Python {version} here (pyenv install {version})")
    return str(found[0])


@pytest.mark.parametrize("version", ["3.10", "3.13"])
def test_other_versions_of_python(version: str) -> None:
    with ok_server() as server:
        outcome = asyncio.run(bench(FarHost(interpreter(version)), spec_for(server.url)))
    assert outcome.summary.requests_ok == 8


def test_several_processes_there() -> None:
    with ok_server() as server:
        outcome = asyncio.run(bench(FarHost(), spec_for(server.url, requests=16), processes=2))
    assert outcome.summary.requests_ok == 16 and len(outcome.requests) == 16


@pytest.mark.parametrize(
    ("python", "why"),
    [
        ("3.9", "the host's python3 is older than 3.10"),
        ("missing", "the host has no python3"),
        ("false", "exit code 1"),
    ],
)
def test_a_host_that_cannot_run_it_is_said(python: str, why: str) -> None:
    path = {"missing": "/no/such/python3", "false": "/bin/false"}.get(python) or interpreter(python)
    with pytest.raises(ClientMissingError, match=why) as raised:
        asyncio.run(bench(FarHost(path), spec_for("http://127.0.0.1:1")))
    assert "--client here" in str(raised.value.next_step)


def test_the_key_is_not_on_a_command_line_or_in_a_file(state: Path) -> None:
    with ok_server() as server:
        spec = spec_for(server.url, api_key_env="ITS_KEY")
        outcome = asyncio.run(bench(FarHost(), spec, env={"ITS_KEY": "sesame-44"}))
        assert {r.headers["authorization"] for r in server.requests} == {"Bearer sesame-44"}
    assert outcome.summary.requests_ok == 8


def test_times_are_those_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host's clock is an hour ahead: the window must fit the GPU readings, which have times of
    this machine."""
    source = dict(LOAD_CLIENT.library())
    ahead = "import time\n_real = time.time\ntime.time = lambda: _real() + 3600\n"
    monkeypatch.setattr(workers, "LOAD_CLIENT", _with_library({**source, "clock_ahead": ahead}))
    with ok_server() as server:
        began = time.time()
        outcome = asyncio.run(bench(FarHost(), spec_for(server.url)))
    assert began - 0.5 < outcome.t0_unix <= outcome.t1_unix < time.time() + 0.5
    assert began - 0.5 < outcome.window_t0_unix < time.time() + 0.5


def _with_library(library: dict[str, str]) -> Any:
    return replace(LOAD_CLIENT, library=lambda: library)


def test_cancel_keeps_what_was_measured_and_ends_it_there(state: Path) -> None:
    def answer(request: Any, n: int) -> list[Any]:
        return [OK] if n < 6 else [SILENCE]

    async def main(server: ScriptedServer) -> Any:
        cancel = asyncio.Event()

        def hear(progress: Any) -> None:
            if progress.done >= 3:
                cancel.set()

        return await bench(FarHost(), spec_for(server.url), cancel=cancel, on_progress=hear)

    with ScriptedServer(answer) as server:
        outcome = asyncio.run(main(server))
    assert outcome.partial and outcome.summary.requests_ok >= 3
    eventually(lambda: not clients(), "the end of the client")
    assert list(state.iterdir()) == []


def test_cancel_before_anything_was_measured(state: Path) -> None:
    async def main(server: ScriptedServer) -> Any:
        cancel = asyncio.Event()
        asyncio.get_running_loop().call_later(0.2, cancel.set)
        return await bench(FarHost(), spec_for(server.url), cancel=cancel)

    with ScriptedServer(lambda request, n: [SILENCE]) as server, pytest.raises(BenchCancelled):
        asyncio.run(main(server))
    eventually(lambda: not clients(), "the end of the client")
    assert list(state.iterdir()) == []


def clients() -> list[str]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes().split(b"\0")
            parent = (entry.parent / "environ").read_bytes()
        except OSError:
            continue
        mine = os.environ["XDG_STATE_HOME"].encode() in parent
        if mine and any(word.startswith(b"# workbench load client") for word in words):
            found.append(entry.parent.name)
    return found


def slow_after(count: int) -> Any:
    return lambda request, n: [OK] if n < count else [SILENCE]


@pytest.mark.slow
@pytest.mark.parametrize("away", [0, 2])
def test_a_lost_link_loses_no_measurement(
    state: Path, monkeypatch: pytest.MonkeyPatch, away: int
) -> None:
    monkeypatch.setattr(workers, "_RETRY_INTERVAL_S", 0.05)
    host = FarHost()
    host.cut_after, host.cut_at, host.away = b'"type":"requests"', 1, away
    with ScriptedServer(slow_after(7)) as server:
        outcome = asyncio.run(bench(host, spec_for(server.url)))
    assert outcome.partial and outcome.summary.requests_ok >= 1
    assert any(
        "its Workbench ended, or the link to it was lost" in why for why in outcome.summary.refused
    )
    eventually(lambda: not clients(), "the end of the client")
    assert list(state.iterdir()) == []


def test_a_link_that_does_not_come_back_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_RETRY_INTERVAL_S", 0.05)
    monkeypatch.setattr(workers, "_LINK_RETURN_TIMEOUT_S", 0.2)
    host = FarHost()
    host.cut_after, host.away = b'"type":"progress"', 10_000
    with (
        ScriptedServer(lambda request, n: [SILENCE]) as server,
        pytest.raises(BenchError, match="the link was lost while the load client ran there"),
    ):
        asyncio.run(bench(host, spec_for(server.url)))


def test_results_that_nobody_fetched_go(state: Path) -> None:
    state.mkdir(parents=True)
    old = state / "0123456789abcdef"
    old.write_text("{}")
    os.utime(old, (time.time() - 100_000, time.time() - 100_000))
    with ok_server() as server:
        asyncio.run(bench(FarHost(), spec_for(server.url)))
    assert list(state.iterdir()) == []

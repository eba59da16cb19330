"""An experiment waits for a server at a URL that its owner restarts."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.scripted_server import plain

from workbench.model.bench import BenchSpec
from workbench.model.errors import BenchError
from workbench.model.experiment import Arm, ExperimentSpec
from workbench.session.series import experiment_arms
from workbench.session.series.experiment_arms import ExperimentArms
from workbench.session.series.experiment_run import StartFailedError
from workbench.session.servers import server_address
from workbench.session.servers.arm_targets import ComparedSide, hold_measurement_locks

MODELS = plain("200 OK", {"object": "list", "data": [{"id": "m", "object": "model"}]})


class Load:
    """The part of a session's ServerLoad that opens a URL: the product's own question for models."""

    @asynccontextmanager
    async def open_load_on_url(self, url: str, overrides: dict[str, Any]) -> AsyncIterator[None]:
        await server_address.read_served_models(url, BenchSpec(url, ""))
        yield


class NoGpus:
    async def reading(self) -> SimpleNamespace:
        return SimpleNamespace(infos=())


def arms_at(url: str) -> ExperimentArms:
    session = SimpleNamespace(
        server_load=Load(), host=SimpleNamespace(name="box"), telemetry=NoGpus()
    )
    side = ComparedSide(cast(Any, session), url=url)
    return ExperimentArms(ExperimentSpec(Arm(), Arm(), {}), {"A": side, "B": side}, restarts=False)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def test_a_server_that_is_started_again_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment_arms, "_POLL_INTERVAL_S", 0.05)
    port, told = free_port(), []
    refused = asyncio.Event()

    def tell(text: str) -> None:
        told.append(text)
        refused.set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(MODELS)
        finally:
            writer.close()  # also if the test ends first

    async def scenario() -> None:
        arms = arms_at(f"http://127.0.0.1:{port}")
        waiting = asyncio.ensure_future(arms.await_server_and_apply_settings("A", "", tell))
        await asyncio.wait_for(refused.wait(), 10)
        assert not waiting.done()
        async with await asyncio.start_server(answer, "127.0.0.1", port):
            await asyncio.wait_for(waiting, 10)

    asyncio.run(scenario())
    assert told[0].startswith("waiting for the server, since http://127.0.0.1:")
    assert "of at most 300 s" in told[0]


@pytest.mark.parametrize("status", ["502 Bad Gateway", "503 Service Unavailable"])
def test_a_server_that_loads_its_model_is_not_there_yet(status: str) -> None:
    """With --model, such an answer was that of a server which lists no models."""
    loading = plain(status, {"error": {"message": "Loading model", "code": 503}})

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(loading)
        finally:
            writer.close()  # also if the test ends first

    async def scenario() -> None:
        port = free_port()
        async with await asyncio.start_server(answer, "127.0.0.1", port):
            with pytest.raises(BenchError, match=f"is not ready: .* HTTP {status[:3]}"):
                await server_address.read_served_models(
                    f"http://127.0.0.1:{port}", BenchSpec("", "m")
                )

    asyncio.run(scenario())


def test_a_server_that_stays_away_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment_arms, "_POLL_INTERVAL_S", 0.01)
    monkeypatch.setattr(experiment_arms, "RESTART_TIMEOUT_S", 0.05)
    arms = arms_at(f"http://127.0.0.1:{free_port()}")
    with pytest.raises(StartFailedError, match=r"does not answer: .*; Workbench waited 0 s for it"):
        asyncio.run(arms.await_server_and_apply_settings("A", "", lambda text: None))


@pytest.mark.parametrize(
    ("url", "locked"),
    [
        ("http://127.0.0.1:8000", ["box"]),
        ("http://localhost:8000", ["box"]),
        ("http://[::1]:8000", ["box"]),
        ("http://192.0.2.7:8000", []),
    ],
)
def test_only_a_server_of_the_host_takes_the_lock_of_the_host(url: str, locked: list[str]) -> None:
    """Two experiments from one laptop on two remote servers do not exclude each other."""
    held: list[str] = []

    @asynccontextmanager
    async def hold(what: str) -> AsyncIterator[None]:
        held.append("box")
        yield

    lock = SimpleNamespace(hold_lock=hold)
    session = SimpleNamespace(host=SimpleNamespace(name="box"), measurement_lock=lock)
    side = ComparedSide(cast(Any, session), url=url)

    async def scenario() -> None:
        async with hold_measurement_locks({"A": side, "B": side}, "an experiment"):
            assert held == locked

    asyncio.run(scenario())

"""The engine beside the GPUs: a real session with simulated engines, whose live metrics agree with
what was sent."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.serving import eventually, free_port, stream

from workbench.model.engine_live import EngineView
from workbench.model.server_run import ServerState, ServerStatus
from workbench.model.timeline import ENGINE, EventKind
from workbench.session.servers.engine_live import EngineReader
from workbench.session.session import Session

FLAGS = {"vllm-any": {}, "sglang-any": {}, "llamacpp-gguf": {"parallel": "2"}}


@pytest.fixture(autouse=True)
def quick_engines(clean_environment: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKBENCH_SIM_START_S", "0.3")
    monkeypatch.setenv("WORKBENCH_SIM_NOISE", "0")


class Watched:
    """A session with a READY server whose engine is watched."""

    def __init__(self, session: Session, status: ServerStatus) -> None:
        self.session, self.status = session, status

    @property
    def view(self) -> EngineView:
        view = self.session.state.engine
        assert view is not None
        return view

    def cells(self, field: str, seconds: int = 30) -> list[float | None]:
        return self.session.timeline.history.cell_means((ENGINE, field), time.time(), 1, seconds)

    def total(self, field: str) -> float:
        return sum(value or 0.0 for value in self.cells(field, 60))

    async def settled(self) -> None:
        """Wait for a second in which nothing was generated. The counter is read just after the end
        of a second, so that the next one contains a part of the last tokens."""
        second = int(time.time()) + 2
        at = self.session.timeline.history.value_at
        await eventually(
            lambda: at((ENGINE, "generation_tok_s"), second) == 0.0, what="a quiet second"
        )

    async def send(self, count: int, tokens: int) -> int:
        """Send `count` requests at once. Return the number of their prompt tokens."""
        assert self.status.url is not None
        model = self.status.served_model or self.status.model
        replies = await asyncio.gather(
            *(stream(self.status.url, model, tokens, "one two three " * 20) for _ in range(count))
        )
        assert [generated for _, generated in replies] == [tokens] * count
        return sum(prompt for prompt, _ in replies)


def watched(
    scenario: Callable[[Watched], Awaitable[None]],
    preset: str = "vllm-any",
    profile: str = "rtx-pro-6000",
    **flags: str,
) -> None:
    """Run `scenario` with a READY server of the preset, whose engine has been read at least twice."""

    async def go() -> None:
        session = Session.of_host(None, profile)
        try:
            await session.link.connect()
            variables = (
                {"model": "/simulated/Qwen2.5-7B-Q4_K_M.gguf"}
                if preset == "llamacpp-gguf"
                else None
            )
            await session.plans.load_preset(preset, variables)
            for name, value in {"port": str(free_port()), **flags}.items():
                session.plans.set_flag(name.replace("_", "-"), value)
            run_id = await session.servers.start()
            status = await session.servers.wait_ready(run_id, 20)
            assert status.state is ServerState.READY
            session.core.spawn(
                EngineReader(session.core, session.servers, session.timeline).watch_engine()
            )
            watch = Watched(session, status)
            await eventually(
                lambda: session.state.engine is not None and "generation_tok_s" in watch.view.values
            )
            await asyncio.wait_for(scenario(watch), 60)
        finally:
            for run in await session.servers.supervisor.runs():
                await session.servers.supervisor.stop(run.run_id, grace_s=1)
            await session.close()

    asyncio.run(go())


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("preset", FLAGS)
def test_the_values_of_all_seconds_sum_to_the_tokens_that_were_sent(preset: str) -> None:
    async def scenario(watch: Watched) -> None:
        supervisor, run_id = watch.session.servers.supervisor, watch.status.run_id
        before = await supervisor.metrics(run_id)
        prompt = await watch.send(6, 150)
        await watch.settled()
        after = await supervisor.metrics(run_id)
        assert before.generation_tokens is not None and after.generation_tokens is not None
        assert after.generation_tokens - before.generation_tokens == 900
        assert watch.total("generation_tok_s") == pytest.approx(900, abs=1)
        assert watch.total("prompt_tok_s") == pytest.approx(prompt, abs=1)
        assert watch.view.title.endswith(f":{watch.status.port}") and watch.view.problem is None
        assert watch.view.values["running"] == watch.view.values["waiting"] == 0

    watched(scenario, preset, **FLAGS[preset])


@pytest.mark.long
@pytest.mark.slow
def test_data_parallel_parts_are_summed_and_a_queue_is_named_with_its_limit() -> None:
    async def scenario(watch: Watched) -> None:
        sending = asyncio.ensure_future(watch.send(10, 5200))
        events = watch.session.timeline.history.events
        await eventually(
            lambda: any(e.kind is EventKind.QUEUEING for e in events), what="the event"
        )
        assert (watch.view.values["running"], watch.view.values["waiting"]) == (4, 6)
        (event,) = [e for e in events if e.kind is EventKind.QUEUEING]
        assert event.text == "6 requests wait: max-num-seqs 4 reached"
        await sending
        await watch.settled()
        assert watch.total("generation_tok_s") == pytest.approx(52_000, abs=1)

    flags = {"max_num_seqs": "2", "data_parallel_size": "2"}
    watched(scenario, profile="four-pcie", **flags)


@pytest.mark.long
@pytest.mark.slow
def test_a_frozen_server_leaves_a_gap_and_no_old_values() -> None:
    async def scenario(watch: Watched) -> None:
        assert watch.status.pid is not None
        server = psutil.Process(watch.status.pid)
        frozen_s = int(time.time())
        server.send_signal(signal.SIGSTOP)
        await eventually(lambda: watch.view.problem is not None, what="the problem")
        assert watch.view.values == {} and "cannot be read" in (watch.view.problem or "")
        server.send_signal(signal.SIGCONT)
        await eventually(lambda: "generation_tok_s" in watch.view.values, what="the values")
        thawed_s = int(time.time())
        cells = watch.session.timeline.history.cell_means(
            (ENGINE, "running"), thawed_s, 1, thawed_s - frozen_s
        )
        assert cells.count(None) >= 2

    watched(scenario)


@pytest.mark.long
@pytest.mark.slow
def test_a_benchmark_that_reads_the_counters_is_not_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(watch: Watched) -> None:
        supervisor, read = watch.session.servers.supervisor, []
        metrics = supervisor.metrics

        async def counting(run_id: str, timeout_s: float) -> object:
            read.append(watch.session.state.bench.progress is not None)
            return await metrics(run_id, timeout_s)

        monkeypatch.setattr(supervisor, "metrics", counting)
        begin_s = time.time()
        await watch.session.bench.benchmark_selected_run(
            requests=16, max_tokens=500, input_tokens=16, warmup=0, concurrency=4
        )
        took_s = time.time() - begin_s
        assert took_s > 6 and len(read) <= took_s - 2.5, f"{len(read)} readings in {took_s:.0f} s"
        cells = watch.cells("generation_tok_s", int(took_s) + 1)[:-1]
        assert cells.count(None) <= 1, cells

    watched(scenario)


@pytest.mark.slow
def test_a_server_without_its_metrics_flag_says_which_flag_switches_it_on() -> None:
    async def go() -> None:
        session = Session.of_host(None, "rtx-pro-6000")
        try:
            await session.link.connect()
            await session.plans.load_preset(
                "llamacpp-gguf", {"model": "/simulated/Qwen2.5-7B-Q4_K_M.gguf"}
            )
            session.plans.set_flag("port", str(free_port()))
            session.plans.unset_flag("metrics")
            await session.servers.wait_ready(await session.servers.start(), 20)
            session.core.spawn(
                EngineReader(session.core, session.servers, session.timeline).watch_engine()
            )
            await eventually(
                lambda: (
                    session.state.engine is not None and session.state.engine.problem is not None
                )
            )
            view = session.state.engine
            assert view is not None and view.values == {}
            assert "the server was started without --metrics" in (view.problem or "")
            await session.servers.stop()
            await eventually(lambda: session.state.engine is None, what="no engine")
        finally:
            await session.close()

    asyncio.run(go())


SERVER = """
import http.server, json, sys
tokens = 0
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        global tokens
        tokens += 50
        page = f'# TYPE vllm:generation_tokens_total counter\\nvllm:generation_tokens_total{{engine="0"}} {tokens}\\n'
        models = json.dumps({"data": [{"id": "m"}]})
        body = (page if self.path.startswith("/metrics") else models).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *words): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[-1])), Handler).serve_forever()
"""


@pytest.mark.long
@pytest.mark.slow
def test_a_server_that_workbench_did_not_start_is_watched_until_it_ends(tmp_path: Path) -> None:
    """Servers of other tests on this machine may be found too; this one is given."""
    script, port = tmp_path / "vllm", free_port()
    script.write_text(SERVER)
    process = subprocess.Popen(
        [sys.executable, "-S", "-E", str(script), "serve", "--port", str(port)]
    )

    async def go() -> None:
        session = Session.of_host()
        try:
            await session.link.connect()
            found = session.servers.find_external_servers

            async def others() -> list[Any]:
                return [server for server in await found() if server.port == port]

            session.servers.find_external_servers = others  # type: ignore[assignment]
            await eventually_found(others)
            session.core.spawn(
                EngineReader(session.core, session.servers, session.timeline).watch_engine()
            )
            await eventually(
                lambda: (
                    session.state.engine is not None
                    and "generation_tok_s" in session.state.engine.values
                )
            )
            view = session.state.engine
            assert (
                view is not None
                and view.server == f"http://127.0.0.1:{port}"
                and view.title == f"vLLM :{port}"
            )
            assert 20 < view.values["generation_tok_s"] < 80
            assert "waiting" in view.absent and "waiting" not in view.values
            process.kill()
            await eventually(lambda: session.state.engine is None, what="no engine")
        finally:
            await session.close()

    try:
        asyncio.run(go())
    finally:
        process.kill()
        process.wait()


async def eventually_found(others: Callable[[], Awaitable[list[Any]]]) -> None:
    deadline = time.monotonic() + 20
    while not await others():
        assert time.monotonic() < deadline

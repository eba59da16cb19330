"""One benchmark by client, GPUs and engine at once, on simulated hosts whose truth is known."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.serving import free_port

from workbench.bench.records import BenchOutcome
from workbench.bench.runner import BenchCancelled
from workbench.hosts.base import HostUnreachable
from workbench.model.bench import BenchSpec, BenchSummary, EngineDuring
from workbench.model.errors import BenchError
from workbench.model.server_run import ServerState
from workbench.report.content import Report
from workbench.report.registry import OUTPUT_FORMATS
from workbench.session.bench.gpu_meter import Meter
from workbench.session.bench.measurement import Measurement, prefix_cache_problem
from workbench.session.gpu.alterations import GpuAlterations
from workbench.session.session import Session
from workbench.store import paths

SHAPE = {"concurrency": 4, "requests": 32, "max_tokens": 64, "input_tokens": 64, "warmup": 4}
KEY = "sesame-42"
Scenario = Callable[[Session, str], Awaitable[None]]


@pytest.fixture(autouse=True)
def quick_engines(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKBENCH_SIM_NOISE", "0")
    monkeypatch.setenv("WORKBENCH_SIM_SPEEDUP", "4")


def test_the_token_that_begins_a_text_is_not_a_prompt_that_the_cache_answered() -> None:
    """llama.cpp counts it as cached: each run of an experiment after its first one was refused."""
    spec = BenchSpec(url="", model="m", endpoint="completions", input_tokens=32, prompt_words=8)
    begun = EngineDuring(prompt_tokens=815, prefix_hit_tokens=26)
    assert prefix_cache_problem(spec, begun, 26) is None
    whole = EngineDuring(prompt_tokens=815, prefix_hit_tokens=800)
    assert "98 % of the prompt tokens" in str(prefix_cache_problem(spec, whole, 26))


async def started(session: Session, preset: str, **flags: str) -> str:
    await session.link.connect()
    variables = (
        {"model": "/simulated/Qwen2.5-7B-Q4_K_M.gguf"} if preset == "llamacpp-gguf" else None
    )
    await session.plans.load_preset(preset, variables)
    for name, value in {"port": str(free_port()), **flags}.items():
        session.plans.set_flag(name, value)
    run_id = await session.servers.start()
    assert (await session.servers.wait_ready(run_id, 30)).state is ServerState.READY
    return run_id


def on(scenario: Scenario, preset: str, profile: str = "rtx-pro-6000") -> None:
    """`scenario` with a session and a server of its own."""

    async def go() -> None:
        session = Session.of_host(None, profile)
        try:
            await asyncio.wait_for(scenario(session, await started(session, preset)), 60)
        finally:
            for status in await session.servers.supervisor.runs():
                await session.servers.supervisor.stop(status.run_id, grace_s=1)
            await session.close()

    asyncio.run(go())


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where a server runs that the tests of this module share: it asks for a key, and has room for
    2,048 tokens."""
    place = tmp_path_factory.mktemp("shared")

    async def start() -> None:
        session = Session.of_host(None, "rtx-pro-6000")
        await started(session, "vllm-any", **{"api-key": KEY, "max-model-len": "2048"})
        await session.close()

    async def stop() -> None:
        session = Session.of_host(None, "rtx-pro-6000")
        await session.link.connect()
        for status in await session.servers.supervisor.runs():
            await session.servers.supervisor.stop(status.run_id, grace_s=1)
        await session.close()

    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"START_S": "0.2", "NOISE": "0", "SPEEDUP": "4"}.items():
            patch.setenv(f"WORKBENCH_SIM_{name}", value)
        for name in ("CONFIG", "STATE", "CACHE", "DATA"):
            patch.setenv(f"XDG_{name}_HOME", str(place / name))
        asyncio.run(start())
        yield place
        asyncio.run(stop())


@pytest.fixture
def shared(home: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Scenario], None]:
    """Runs a scenario on the shared server, with results of its own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "STATE"))

    def run(scenario: Scenario) -> None:
        async def go() -> None:
            session = Session.of_host(None, "rtx-pro-6000")
            try:
                await session.link.connect()
                (status,) = await session.servers.supervisor.runs()
                assert (
                    await session.servers.wait_ready(status.run_id, 30)
                ).state is ServerState.READY
                await asyncio.wait_for(scenario(session, status.run_id), 60)
            finally:
                await session.close()

        asyncio.run(go())

    return run


async def measured(session: Session, run_id: str, **options: Any) -> BenchSummary:
    return (
        await session.results.get(await session.bench.benchmark_run(run_id, **{**SHAPE, **options}))
    ).summary


def by_cache(summary: BenchSummary) -> list[str]:
    """Refusals for what the prefix cache answered. (On a busy machine the client refuses its own
    slowness.)"""
    return [reason for reason in summary.refused if "prefix cache" in reason]


async def finished(session: Session, run_id: str) -> int:
    return (await session.servers.supervisor.metrics(run_id)).requests_finished or 0


def url_of(session: Session, run_id: str) -> str:
    return f"http://127.0.0.1:{session.servers.supervisor.status(run_id).port}"


@asynccontextmanager
async def other_traffic(url: str, model: str, tokens: int) -> AsyncIterator[None]:
    """Another client's requests, one after the other."""

    async def ask() -> None:
        headers = {"authorization": f"Bearer {KEY}"}
        async with httpx.AsyncClient(base_url=url, trust_env=False, headers=headers) as http:
            body = {
                "model": model,
                "messages": [{"role": "user", "content": "hi"}],
                "max_tokens": tokens,
                "ignore_eos": True,
            }
            while True:
                await http.post("/v1/chat/completions", json=body, timeout=60)

    task = asyncio.ensure_future(ask())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.long
@pytest.mark.slow
def test_all_three_agree_and_energy_is_of_all_the_servers_gpus(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("workbench.session.bench.gpu_meter.IDLE_BEFORE_RUN_S", 1.0)
    monkeypatch.setenv("WORKBENCH_SIM_SPEEDUP", "1")

    async def scenario(session: Session, run_id: str) -> None:
        s = await measured(session, run_id, max_tokens=32)
        e = s.engine
        assert e is not None and e.disagreements == () and not by_cache(s)
        assert (e.requests_finished, e.generation_tokens) == (36, 36 * 32)
        assert e.prompt_tokens == (s.prompt_tokens or 0) + (s.warmup_prompt_tokens or 0)
        assert e.running_max is not None and 1 <= e.running_max <= 4 and e.samples >= 2
        assert any("by the server's tokenizer" in note for note in s.notes)
        assert s.prompt_tokens is not None and abs(s.prompt_tokens / 32 - 64) < 1.5
        gpu = s.gpu
        assert gpu is not None and gpu.gpus == (0, 1, 2, 3) and None not in gpu.power_w_each
        assert sum(w or 0 for w in gpu.power_w_each) == pytest.approx(s.power_w, rel=1e-3)
        assert gpu.energy_integrated_j == pytest.approx(gpu.energy_counter_j, rel=0.05)
        assert s.idle_power_w is not None and s.power_w is not None, s.absent
        assert 0 < s.idle_power_w < s.power_w
        assert (
            s.tok_per_joule is not None
            and s.net_tok_per_joule is not None
            and s.window_output_tokens is not None
        )
        assert s.tok_per_joule == pytest.approx(
            s.window_output_tokens / (s.energy_j or 0), rel=1e-3
        )
        assert s.net_tok_per_joule > s.tok_per_joule
        # what the GPUs take when idle is known by now
        again = await measured(session, run_id, requests=4)
        assert again.idle_power_w == s.idle_power_w

    on(scenario, "vllm-qwen3-vl-2b-tp4-eager", "four-pcie")


@pytest.mark.slow
def test_another_clients_traffic_is_told(
    shared: Callable[[Scenario], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workbench.session.bench.gpu_meter.IDLE_BEFORE_RUN_S", 0.1)

    async def scenario(session: Session, run_id: str) -> None:
        async with other_traffic(url_of(session, run_id), "Qwen/Qwen3-0.6B", 64):
            s = await measured(session, run_id, requests=16)
        assert s.engine is not None and len(s.engine.disagreements) == 3
        assert any(
            why.startswith("somebody else's requests were ") and "requests: the engine" in why
            for why in s.refused
        )
        assert s.idle_power_w is None and " of other clients " in s.absent["idle_power_w"]

    shared(scenario)


@pytest.mark.slow
def test_prompts_of_real_text_are_stored_shown_and_repeated(
    shared: Callable[[Scenario], None],
) -> None:
    async def scenario(session: Session, run_id: str) -> None:
        asked = {**SHAPE, "content": "text", "max_tokens": 16}
        result = await session.results.get(await session.bench.benchmark_run(run_id, **asked))
        summary = result.summary
        assert (result.spec.content, result.spec.texts) == ("text", ())
        assert summary.prompt_tokens is not None and not by_cache(summary)
        per_request = summary.prompt_tokens / summary.requests_ok
        assert per_request == pytest.approx(SHAPE["input_tokens"], rel=0.02)
        told = {
            name: each.render(Report.from_result(result)) for name, each in OUTPUT_FORMATS.items()
        }
        assert "--content text" in told["md"] and '"content": "text"' in told["json"]

    shared(scenario)


@pytest.mark.slow
def test_by_url_the_engine_is_known_by_its_page(
    shared: Callable[[Scenario], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", KEY)

    async def scenario(session: Session, run_id: str) -> None:
        result = await session.results.get(
            await session.bench.benchmark_url(
                url_of(session, run_id), **SHAPE, api_key_env="MY_KEY"
            )
        )
        e = result.summary.engine
        assert e is not None and (e.requests_finished, e.disagreements) == (36, ())
        assert result.spec.prompt_words is not None and result.conditions.engine == "vllm"
        told = [
            repr(result),
            repr(session.state),
            *(each.render(Report.from_result(result)) for each in OUTPUT_FORMATS.values()),
        ]
        told += [
            p.read_text("latin-1") for p in paths.results_db().parent.rglob("*") if p.is_file()
        ]
        assert len(told) > 6 and not any(KEY in text for text in told)
        assert "--api-key-env MY_KEY" in repr(session.state.activity)

    shared(scenario)


@pytest.mark.ci_cases(1)
@pytest.mark.slow
@pytest.mark.parametrize(("preset", "requests"), [("sglang-any", 36), ("llamacpp-gguf", None)])
def test_other_engines_counters(preset: str, requests: int | None) -> None:
    async def scenario(session: Session, run_id: str) -> None:
        s = await measured(session, run_id, max_tokens=16)
        assert s.engine is not None and s.engine.disagreements == () and not by_cache(s), s
        assert (s.engine.requests_finished, s.engine.generation_tokens) == (requests, 36 * 16)

    on(scenario, preset)


@pytest.mark.slow
def test_data_parallel_parts_add_up() -> None:
    async def scenario(session: Session, run_id: str) -> None:
        s = await measured(session, run_id, max_tokens=16)
        assert s.engine is not None and s.engine.disagreements == ()
        assert s.engine.generation_tokens == 36 * 16

    on(scenario, "vllm-qwen3-vl-2b-tp2-dp2", "four-pcie")


@pytest.mark.slow
@pytest.mark.long
def test_prompts_that_the_cache_knows_are_refused_unless_asked_for(
    shared: Callable[[Scenario], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A salt that is always the same lets the second run find the first one's prompts."""
    monkeypatch.setattr("secrets.token_hex", lambda n: "00")

    async def scenario(session: Session, run_id: str) -> None:
        fresh = await measured(session, run_id, input_tokens=256)
        known = await measured(session, run_id, input_tokens=256)
        assert not by_cache(fresh) and len(by_cache(known)) == 1
        assert known.engine is not None and (known.engine.prefix_hit_pct or 0) > 50
        wanted = await measured(session, run_id, input_tokens=256, shared_prefix=True)
        assert (
            not by_cache(wanted)
            and wanted.engine is not None
            and (wanted.engine.prefix_hit_pct or 0) > 50
        )

    shared(scenario)


def test_own_prompts_are_kept_by_name_only(
    shared: Callable[[Scenario], None], tmp_path: Path
) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text(json.dumps({"prompt": "a private question " * 30}) + "\n")

    async def scenario(session: Session, run_id: str) -> None:
        result = await session.results.get(
            await session.bench.benchmark_run(run_id, **SHAPE, prompts_file=str(path))
        )
        assert result.spec.prompts == () and result.spec.prompts_name.startswith(
            "mine.jsonl (1 prompt, sha256"
        )
        assert result.summary.requests_ok == 32 and not by_cache(result.summary)
        assert result.summary.engine is not None and result.summary.engine.prefix_hit_tokens == 0
        assert "private" not in repr(result)

    shared(scenario)


def test_more_than_the_context_holds_is_told_before_anything_is_sent(
    shared: Callable[[Scenario], None],
) -> None:
    async def scenario(session: Session, run_id: str) -> None:
        before = await finished(session, run_id)
        with pytest.raises(BenchError, match="do not fit the server's context of 2,048"):
            await session.bench.benchmark_run(run_id, **{**SHAPE, "input_tokens": 2000})
        assert await finished(session, run_id) == before

    shared(scenario)


# -- a command of the person's own -----------------------------------------------------------------

ASKS = """
import json, os, sys, urllib.request
for i in range(3):
    body = json.dumps({"model": os.environ["WORKBENCH_MODEL"], "messages": [{"role": "user", "content": f"n {i}"}],
                       "max_tokens": 10, "ignore_eos": True}).encode()
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body,
                                     {"content-type": "application/json",
                                      "authorization": "Bearer " + os.environ["OPENAI_API_KEY"]})
    print(i, json.load(urllib.request.urlopen(request))["usage"]["completion_tokens"], flush=True)
print("with", os.environ["OPENAI_API_KEY"], "on", sys.argv[1])
"""


@pytest.mark.slow
def test_a_command_is_timed_and_counted_by_the_engine(
    shared: Callable[[Scenario], None],
) -> None:
    async def scenario(session: Session, run_id: str) -> None:
        lines = []
        session.subscribe(
            lambda state, _: lines.append(state.bench.progress.line if state.bench.progress else "")
        )
        command = (sys.executable, "-c", ASKS, "{model}")
        result = await session.results.get(
            await session.bench.benchmark_run(run_id, command=command)
        )
        s = result.summary
        assert (s.command_exit, s.requests_ok, s.output_tokens) == (0, 3, 30)
        assert s.output_tok_s == pytest.approx(30 / s.duration_s, rel=1e-3) and s.refused == ()
        assert s.command_output == ("0 10", "1 10", "2 10", "with *** on Qwen/Qwen3-0.6B")
        assert "1 10" in lines and KEY not in repr((result, session.state.activity, lines))
        assert any(" -- " in one.command for one in session.state.activity)

    shared(scenario)


@pytest.mark.slow
def test_a_command_that_fails_is_kept_and_refused_and_one_that_is_cancelled_is_not(
    shared: Callable[[Scenario], None],
) -> None:
    async def scenario(session: Session, run_id: str) -> None:
        failed = await session.bench.benchmark_run(
            run_id, command=(sys.executable, "-c", "print('why'); raise SystemExit(4)")
        )
        s = (await session.results.get(failed)).summary
        assert (s.command_exit, s.command_output, s.refused) == (
            4,
            ("why",),
            ("the benchmark command exited with 4",),
        )
        sleeps = (sys.executable, "-c", "import time; print('on', flush=True); time.sleep(60)")
        task = asyncio.ensure_future(session.bench.benchmark_run(run_id, command=sleeps))
        while session.state.bench.progress is None or session.state.bench.progress.line != "on":
            await asyncio.sleep(0.02)
        await session.bench.cancel()
        with pytest.raises(BenchCancelled):
            await task
        assert [r.id for r in session.results.db.list(None)] == [failed]

    shared(scenario)


def test_cancelling_while_the_idle_power_is_read(
    shared: Callable[[Scenario], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workbench.session.bench.gpu_meter.IDLE_BEFORE_RUN_S", 60.0)

    async def scenario(session: Session, run_id: str) -> None:
        before = await finished(session, run_id)
        task = asyncio.ensure_future(session.bench.benchmark_run(run_id, **SHAPE))
        while session.state.bench.progress is None:
            await asyncio.sleep(0.02)
        assert session.state.bench.progress.phase == "preparing"
        await session.bench.cancel()
        with pytest.raises(BenchCancelled):
            await task
        assert await finished(session, run_id) == before

    shared(scenario)


@pytest.mark.slow
def test_persistence_mode_and_programs_are_looked_at_each_second_of_a_run(tmp_path: Path) -> None:
    """An agent looks at them every 5 s; a change between two looks would be lost on the result."""
    from workbench.hosts.local import LocalHost
    from workbench.sim import profiles
    from workbench.sim.driver_state import SimState
    from workbench.sim.simulated_host import SimulatedHost

    host = SimulatedHost(LocalHost(), "rtx-pro-6000", str(tmp_path))

    async def main() -> None:
        sim = SimState(host.driver_state, profiles.get_profile("rtx-pro-6000"))
        async with Meter(host) as measuring, asyncio.timeout(20):
            watch = measuring.watch_gpus([0])

            async def seen(said: str) -> None:
                async with asyncio.timeout(3.5):  # a second, and what a busy machine adds
                    while not any(said in text for text in watch.describe_changes_during_run()):
                        await asyncio.sleep(0.05)

            sim.change_setting(0, persistence=True)
            await seen("persistence mode off -> on")
            sim.change_setting(0, persistence=False)
            await seen("persistence mode off -> on -> off")
            sim.publish_load(
                os.getpid(),
                {0: {"memory_bytes": 1 << 30, "busy": 0.5, "memory": 0.5, "compute": 0.5}},
            )
            await seen(f"({os.getpid()}) on GPU0")

    asyncio.run(main())


@pytest.mark.parametrize("lost_at", [Meter.reading_after, GpuAlterations.read_altered_settings])
def test_a_lost_connection_keeps_what_was_measured(
    shared: Callable[[Scenario], None],
    monkeypatch: pytest.MonkeyPatch,
    lost_at: Callable[..., Awaitable[Any]],
) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    sent = asyncio.Event()
    client = Measurement._run_load_client

    async def send(self: Measurement) -> BenchOutcome:
        outcome = await client(self)
        sent.set()
        return outcome

    async def read(self: Any, *args: Any) -> Any:
        if sent.is_set():
            raise HostUnreachable("no connection for 30 s", host="box")
        return await lost_at(self, *args)

    monkeypatch.setattr(Measurement, "_run_load_client", send)
    monkeypatch.setattr(
        Meter if lost_at is Meter.reading_after else GpuAlterations, lost_at.__name__, read
    )

    async def scenario(session: Session, run_id: str) -> None:
        summary = await measured(session, run_id, api_key_env="MY_KEY")
        assert summary.requests_ok == SHAPE["requests"] and summary.e2e_ms is not None
        (why,) = [reason for reason in summary.refused if reason.startswith("partial result")]
        assert "the connection to the host was lost" in why and "no connection for 30 s" in why
        if lost_at is Meter.reading_after:
            assert (
                summary.power_w is None and ("was lost during the run") in summary.absent["power_w"]
            )

    shared(scenario)


def test_the_settings_are_read_once_before_a_benchmark_and_once_after_it(
    shared: Callable[[Scenario], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each reading starts two programs on the host. A command has read them when it began."""
    reads: list[float] = []
    real = GpuAlterations.read_altered_settings

    async def read(self: GpuAlterations) -> None:
        reads.append(time.monotonic())
        await real(self)

    monkeypatch.setenv("MY_KEY", KEY)
    monkeypatch.setattr(GpuAlterations, "read_altered_settings", read)
    # a busy machine may take more than a second
    monkeypatch.setattr("workbench.session.bench.bench._ALTERATIONS_VALID_S", 60.0)

    async def scenario(session: Session, run_id: str) -> None:
        await session.gpu.alterations.read_altered_settings()
        reads.clear()
        await measured(session, run_id, api_key_env="MY_KEY")
        assert len(reads) == 1

    shared(scenario)

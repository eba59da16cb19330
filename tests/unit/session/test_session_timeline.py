"""The timeline of the session's host: its readings, and the events that the session's own changes
become."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import pytest
from support.fake_host import FakeHost
from support.guarded import FAST
from support.serving import free_port

from workbench.model.bench import BenchProgress
from workbench.model.errors import HostError, StoreError
from workbench.model.gpu import DriverInfo, GpuSample, HostSample, Telemetry
from workbench.model.measurement_owner import MeasurementOwner
from workbench.model.server_run import ServerState
from workbench.model.setting_records import Drift
from workbench.model.settings import ClockRange, GpuSettings
from workbench.model.timeline import CLIENT_TOK_S, ENGINE, EventKind
from workbench.session.history.timeline_events import EventSource
from workbench.session.session import Session
from workbench.session.state import HostView, QualityView, SessionState

SHORT = {"requests": 3, "max_tokens": 8, "input_tokens": 16, "warmup": 0, "concurrency": 1}


def on(scenario: Callable[[Session], Awaitable[None]], profile: str = "rtx-pro-6000") -> None:
    async def go() -> None:
        session = Session.of_host(None, profile)
        _ = session.timeline
        try:
            await session.link.connect()
            await asyncio.wait_for(scenario(session), 60)
        finally:
            for status in await session.servers.supervisor.runs():
                await session.servers.supervisor.stop(status.run_id, grace_s=1)
            await session.close()

    asyncio.run(go())


async def eventually(condition: Callable[[], object], what: str, deadline_s: float = 20.0) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"waited {deadline_s:g} s for {what}"
        await asyncio.sleep(0.02)


def kinds(session: Session) -> list[EventKind]:
    return [event.kind for event in session.timeline.history.events]


def texts(session: Session) -> list[str]:
    return [event.text for event in session.timeline.history.events]


def test_tokens_per_second_follow_the_clock_of_the_client() -> None:
    """A busy screen reads several reports at once. The rate between two of them was taken by the time
    at which they were read, and one second of a timeline had twice the tok/s of the result."""
    session = Session(FakeHost())
    timeline = session.timeline
    for number in range(20):  # 200 tokens in each 0.2 s, all read at once
        progress = BenchProgress(0, 0, 9, 4, 200 * number, 1000.0, 0.2 * number)
        session.core.update(bench=replace(session.state.bench, progress=progress))
    (cell,) = timeline.history.cell_means(CLIENT_TOK_S, time.time(), 60, 1)
    assert cell == pytest.approx(1000.0)


@pytest.mark.long
@pytest.mark.slow
def test_a_server_a_benchmark_and_a_setting_become_events_beside_the_readings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WORKBENCH_SIM_START_S", "0.3")

    async def scenario(session: Session) -> None:
        await session.telemetry.start()
        history = session.timeline.history
        await eventually(lambda: (0, "power_w") in history, "a reading")
        await session.plans.load_preset("vllm-any")
        session.plans.set_flag("port", str(free_port()))
        run_id = await session.servers.start()
        assert (await session.servers.wait_ready(run_id, 20)).state is ServerState.READY
        result_id = await session.bench.benchmark_run(run_id, **SHORT)
        assert (await session.gpu.apply_settings(GpuSettings(power_limit_w=400.0))).ok
        assert (await session.gpu.revert_settings()).ok
        await session.servers.stop(run_id)
        assert kinds(session) == [
            EventKind.SERVER_START,
            EventKind.SERVER_READY,
            EventKind.BENCH_BEGIN,
            EventKind.BENCH_END,
            EventKind.SETTING_MADE,
            EventKind.SETTING_REVERTED,
            EventKind.SERVER_END,
        ], texts(session)
        start, ready, begin, end, made, reverted, stopped = history.events
        assert run_id in start.text and "READY" in ready.text and "stopped" in stopped.text
        assert begin.text == "benchmark of 1 stream begins" and end.result_id == result_id
        assert made.text == "GPU0 power limit 400 W" and made.gpu_index == 0
        assert reverted.text == "GPU0 power limit 600 W again"
        now = time.time()
        assert all(now - 60 < event.unix_s <= now for event in history.events)
        power = history.cell_means((0, "power_w"), now, 1, 5)
        assert [value for value in power if value is not None], power
        assert {
            (0, name) for name in ("gpu_util_pct", "sm_mhz", "limit_w", "memory_used_bytes")
        } <= set(history)

        async def kept() -> bool:
            timeline = await session.results.timelines.get(result_id)
            assert timeline is not None and timeline.step_s == 1
            assert timeline.history.value_at((0, "power_w"), timeline.begin_s) is not None
            marks = {event.kind for event in timeline.history.events}
            assert {EventKind.BENCH_BEGIN, EventKind.BENCH_END, EventKind.SERVER_READY} <= marks
            return (
                timeline.last_s > timeline.end_s + 1
                and (0, "memory_used_bytes") in timeline.history
            )

        while not await kept():  # the seconds after the benchmark come later
            await asyncio.sleep(0.2)
        path = session.results.timelines.path_of_timeline(result_id)
        path.write_bytes(path.read_bytes()[:-20])
        with pytest.raises(StoreError, match="could not be read"):
            await session.results.timelines.get(result_id)
        await session.results.delete(result_id)
        assert not path.exists()

    on(scenario)


@pytest.mark.long
@pytest.mark.slow
def test_a_result_of_the_command_line_has_a_timeline_too_and_an_imported_one_has_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WORKBENCH_SIM_START_S", "0.3")

    async def scenario(session: Session) -> None:
        await session.plans.load_preset("vllm-any")
        session.plans.set_flag("port", str(free_port()))
        run_id = await session.servers.start()
        await session.servers.wait_ready(run_id, 20)
        result_id = await session.bench.benchmark_run(
            run_id, **{**SHORT, "requests": 30, "max_tokens": 100}
        )
        timeline = await session.results.timelines.get(result_id)
        assert (
            timeline is not None
            and timeline.history.value_at((0, "gpu_util_pct"), timeline.end_s - 1) is not None
        )
        assert CLIENT_TOK_S in timeline.history
        session.results.timelines.path_of_timeline(result_id).unlink()
        assert await session.results.timelines.get(result_id) is None

    on(scenario)


@pytest.mark.slow
@pytest.mark.long
def test_a_trial_that_the_guard_ends_is_told_as_such() -> None:
    async def scenario(session: Session) -> None:
        session.gpu.guard.options = FAST
        session.gpu.guard.start_heartbeats()
        await session.telemetry.start()
        assert (await session.gpu.apply_settings(GpuSettings(power_limit_w=400.0), trial_s=1.0)).ok
        await eventually(
            lambda: any("guard" in text for text in texts(session)), "the guard's revert"
        )
        assert kinds(session)[:2] == [EventKind.SETTING_TRIAL, EventKind.SETTING_REVERTED]
        assert texts(session)[0] == "GPU0 power limit 400 W on trial"
        assert texts(session)[1].startswith("GPU0 power limit 600 W again"), texts(session)

    on(scenario)


@pytest.mark.slow
def test_equal_settings_of_several_gpus_are_one_event_and_those_of_others_name_their_user() -> None:
    async def scenario(session: Session) -> None:
        assert (await session.gpu.apply_settings(GpuSettings(power_limit_w=200.0))).ok
        (mine,) = texts(session)
        assert mine == "GPU0-3 power limit 200 W" and kinds(session) == [EventKind.SETTING_MADE]
        theirs = replace(
            session.state.alterations[0], by="eve", setting="persistence", now=True, before=False
        )
        session.core.update(others=(theirs,))
        assert texts(session)[1] == "GPU0 persistence mode on by eve"
        drift = Drift(
            1,
            "",
            "power_limit_w",
            150.0,
            "set to 200 W by Workbench, now 150 W: changed by someone else",
        )
        session.core.update(drift=(drift,))
        assert texts(session)[2].startswith("GPU1 power limit set to 200 W by Workbench, now 150 W")
        assert (await session.gpu.revert_settings()).ok
        assert texts(session)[3].startswith("GPU0-3 power limit ") and texts(session)[3].endswith(
            " again"
        )

    on(scenario, "four-pcie")


def test_a_lost_link_and_another_workbenchs_benchmark_are_events() -> None:
    async def scenario() -> None:
        host = FakeHost(lambda call: (0, ""))
        session = Session(host)
        _ = session.timeline
        with pytest.raises(HostError):
            await session.link.connect()
            host.link(False)
            await host.run(["true"])
        host.link(True)
        assert kinds(session) == [EventKind.LINK_LOST, EventKind.LINK_BACK], texts(session)
        session.core.update_host(
            measured_by=MeasurementOwner("a benchmark", "eve", "else", time.time(), 1)
        )
        session.core.update_host(measured_by=None)
        assert texts(session)[2:] == [
            "a benchmark by eve from else begins",
            "a benchmark by eve from else ends",
        ]
        await session.close()

    asyncio.run(scenario())


def test_another_host_begins_a_new_history() -> None:
    async def scenario(session: Session) -> None:
        cleared: list[bool] = []
        session.timeline.on_clear.append(lambda: cleared.append(True))
        now = time.time()
        session.timeline.add_engine_values({"generation_tok_s": 100.0}, now)
        session.timeline.add_event(EventKind.QUEUEING, "3 requests wait")
        assert session.timeline.history.value_at((ENGINE, "generation_tok_s"), now) is not None
        await session.switch_host("sim:four-pcie")
        await eventually(lambda: session.state.telemetry is not None, "a reading of the other host")
        history = session.timeline.history
        assert cleared and (ENGINE, "generation_tok_s") not in history and (3, "power_w") in history
        assert not any(event.kind is EventKind.QUEUEING for event in history.events)

    on(scenario)


def reading(unix_s: float, *reasons: Sequence[str]) -> Telemetry:
    gpus = tuple(GpuSample(i, f"GPU-{i}", event_reasons=tuple(r)) for i, r in enumerate(reasons))
    return Telemetry(unix_s, unix_s, DriverInfo(), HostSample(), (), gpus)


def test_a_throttle_reason_is_told_when_it_begins_and_a_flapping_one_ever_more_rarely() -> None:
    source = EventSource(Session(FakeHost(lambda call: (0, ""))).state)
    t0 = 1_764_000_000.0

    def told(second: float, *reasons: Sequence[str]) -> list[str]:
        return [
            event.text
            for event in source.events_in_reading(reading(t0 + second, *reasons), t0 + second)
        ]

    assert told(0, ["HW slowdown"], []) == [], "it began before the first reading"
    assert told(1, ["HW slowdown", "GPU idle"], ["applications clocks setting"]) == []
    assert told(2, ["SW power cap"], ["SW power cap"]) == ["GPU0-1 throttled: SW power cap"]
    assert told(3, ["SW power cap"], ["SW power cap"]) == []
    assert told(40, ["SW power cap"], []) == ["GPU0 throttled: SW power cap"], (
        "it was away for 37 s"
    )
    flapping = sum(
        len(told(100 + s, ["SW thermal slowdown"] if s % 2 else [], [])) for s in range(3600)
    )
    assert flapping == 1
    slow = sum(len(told(5000 + s, [], ["sync boost"] if s % 40 == 0 else [])) for s in range(7200))
    assert slow <= 8, slow


@pytest.mark.slow
def test_a_clock_lock_is_kept_beside_the_readings() -> None:
    async def scenario(session: Session) -> None:
        await session.telemetry.start()
        history = session.timeline.history
        await eventually(lambda: (0, "power_w") in history, "a reading")
        assert (0, "sm_lock_max_mhz") not in history
        assert (await session.gpu.apply_settings(GpuSettings(gpu_clocks=ClockRange(1200, 1500)))).ok
        ends = [(0, "sm_lock_min_mhz"), (0, "sm_lock_max_mhz")]
        await eventually(
            lambda: [history.value_at(key, time.time()) for key in ends] == [1200.0, 1500.0],
            "the lock",
        )
        assert (await session.gpu.revert_settings()).ok
        await eventually(
            lambda: (
                history.value_at((0, "power_w"), time.time())
                and history.value_at(ends[0], time.time()) is None
            ),
            "",
        )

    on(scenario)


def test_a_comparison_of_answers_becomes_two_events() -> None:
    before = SessionState(host=HostView("box"))
    source = EventSource(before)
    view = QualityView("kv-cache-dtype=auto", "kv-cache-dtype=fp8")
    found: list[tuple[EventKind, str]] = []
    changes = (
        view,
        replace(view, step="A: texts scored"),
        replace(view, found="its answers are the same within 0.001 KLD"),
        replace(view, running=False, found="its answers are the same within 0.001 KLD"),
        view,
        replace(view, running=False, ended="stopped"),
    )
    for change in changes:
        state = replace(before, quality=change)
        events = source.events_in_state(state, frozenset({"quality"}), 5.0)
        found += [(event.kind, event.text) for event in events]
    begins = (
        EventKind.QUALITY_BEGIN,
        "comparison of answers begins: A kv-cache-dtype=auto, B kv-cache-dtype=fp8",
    )
    assert found == [
        begins,
        (
            EventKind.QUALITY_END,
            "comparison of answers ends: its answers are the same within 0.001 KLD",
        ),
        begins,
        (EventKind.QUALITY_END, "comparison of answers ends: stopped"),
    ]

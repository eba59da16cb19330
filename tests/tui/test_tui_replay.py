"""A recording on the real screen: what it shows, its keys, and that nothing can be run on it."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.real_screen import RealScreen, crashes, real_screen

from workbench.model.errors import InputError
from workbench.model.gpu import GpuInfo
from workbench.model.timeline import ENGINE, Event, EventKind
from workbench.session import replay
from workbench.session.history.recorder import Recorder
from workbench.session.replay import Replay
from workbench.session.session import Session
from workbench.store.recording import (
    CellWriter,
    Header,
    format_event,
    format_gpu_infos,
    parse_line_time,
)
from workbench.tui.bindings import ACTING
from workbench.tui.panes import KEYS

T0 = 1_764_000_000
GIB = 2**30


def recorded(path: Path, seconds: int = 120, simulated: bool = False) -> Path:
    """Write a recording of one GPU with a benchmark in its middle."""
    cells = CellWriter(1)
    lines = [
        format_gpu_infos(
            T0,
            [
                GpuInfo(
                    0, "GPU-0", "NVIDIA RTX 5090", power_max_w=600.0, memory_total_bytes=32 * GIB
                )
            ],
        )
    ]
    for second in range(seconds):
        loaded = seconds // 3 <= second < 2 * seconds // 3
        values = {
            "gpu_util_pct": 99.0 if loaded else 0.0,
            "power_w": 480.0 if loaded else 30.0,
            "sm_mhz": 2700.0 if loaded else 210.0,
            "memory_used_bytes": 20.0 * GIB,
            "limit_w": 600.0,
            "temperature_c": 55.0,
        }
        engine = {
            (ENGINE, "generation_tok_s"): 1234.0 if loaded else 0.0,
            (ENGINE, "running"): 8.0 if loaded else 0.0,
        }
        read = {(0, name): value for name, value in values.items()} | engine
        lines += cells.add_reading(range(T0 + second, T0 + second + 1), read)
    lines += cells.finish_open_cells()
    for second, kind in (
        (seconds // 3, EventKind.BENCH_BEGIN),
        (2 * seconds // 3, EventKind.BENCH_END),
    ):
        lines.append(
            format_event(
                Event(
                    T0 + second, kind, f"benchmark of 8 streams {kind.value.split()[1]}s", None, 7
                )
            )
        )
    path.write_text(
        Header("gpu-box", simulated, 1, T0).line() + "".join(sorted(lines, key=parse_line_time))
    )
    return path


def replayed(
    path: Path, scenario: Callable[[RealScreen], Awaitable[None]], speed: float = 64.0
) -> None:
    async def main() -> None:
        session = Replay(path, speed)
        async with real_screen(session=session) as screen:
            await scenario(screen)
        await session.close()

    asyncio.run(main())
    assert not crashes(), crashes()[0].read_text()


@pytest.mark.slow
def test_a_recording_is_shown_as_it_was_and_says_what_it_is(tmp_path: Path) -> None:
    async def scenario(s: RealScreen) -> None:
        await s.until(
            "REPLAY",
            "RTX 5090",
            "tok/s",
            lambda: "gpu-box" in s.row(0),
            lambda: "SIMULATED" not in s.row(0),
        )
        await s.press("P")
        await s.until("paused")
        held = s.session.timeline.history.clock()
        await s.press("left_parenthesis", "P")
        await s.until("32x", lambda: s.session.timeline.history.clock() > held)
        await s.press("right_parenthesis")
        await s.until("64x")
        await s.until("the recording ends here", "ended")
        history = s.session.timeline.history
        assert [e.kind for e in history.events] == [EventKind.BENCH_BEGIN, EventKind.BENCH_END]
        assert history.cell_means((0, "power_w"), T0 + 119, 40, 3) == [30.0, 480.0, 30.0]
        assert not s.state.bench.running and s.state.telemetry.gpus[0].power_w == 30.0

    replayed(recorded(tmp_path / "a.jsonl"), scenario)


@pytest.mark.slow
def test_nothing_runs_on_a_recording_and_a_simulated_one_says_so(tmp_path: Path) -> None:
    async def scenario(s: RealScreen) -> None:
        await s.until("REPLAY", "SIMULATED", "a recording: nothing can be started or changed here")
        for key in ("s", "b", "x", "r", "g", "V", "X", "S", "H", "T"):
            await s.press(key)
            await s.until(f"{key} needs a host: this is a recording")
            assert s.app.screen is s.app.main, "a form or a page covers the recording"
            await s.press("escape")
        await s.press("h", "escape", "6", "enter")
        await s.until("enter needs a host")
        await s.until(lambda: s.state.host.replay.ended)
        assert not s.state.servers and not s.state.alterations

    replayed(recorded(tmp_path / "a.jsonl", simulated=True), scenario)


def test_the_keys_that_a_replay_rejects_exist() -> None:
    assert {id for id in ACTING if id in KEYS} == ACTING


def test_the_keys_of_a_replay_say_what_they_are_for_on_a_host() -> None:
    async def scenario() -> None:
        async with real_screen() as s:
            await s.press("P")
            await s.until("this key works in a replay, but")

    asyncio.run(scenario())


def test_a_file_that_is_no_recording_is_refused(tmp_path: Path) -> None:
    for content in (
        b"",
        b"\x1f\x8b\x00",
        b"{}\n",
        b"\x00" * 5000,
        b'{"workbench": "recording", "version": 99}\n',
    ):
        (tmp_path / "x").write_bytes(content)
        with pytest.raises(InputError):
            Replay(tmp_path / "x")
    with pytest.raises(InputError, match="cannot be read"):
        Replay(tmp_path / "absent")


hostile = st.fixed_dictionaries(
    {"t": st.one_of(st.integers(T0 - 10, T0 + 10), st.floats(), st.just(1e11), st.just(0))},
    optional={
        "full": st.booleans(),
        "v": st.dictionaries(
            st.sampled_from(
                (
                    "0.power_w",
                    "0.sm_mhz",
                    "99.gpu_util_pct",
                    "-1.x",
                    "0.state",
                    "0.event_reasons",
                    "0.pstate",
                    "0.live",
                )
            ),
            st.one_of(
                st.floats(),
                st.integers(-(10**20), 10**20),
                st.just(10**400),
                st.none(),
                st.text(max_size=5),
            ),
        ),
        "event": st.sampled_from([*EventKind, "unknown"]),
        "text": st.sampled_from(
            ("\x1b[2J\x1b]52;c;AAAA\x07", "[bold]x[/]", "a" * 20_000, "\u202eabc", "${x}")
        ),
        "infos": st.just(
            [{"index": 0, "uuid": "\x1b[31m", "name": "RTX\x1b[2J[red]", "power_max_w": math.nan}]
        ),
        "gpu": st.integers(-3, 200),
    },
)


@pytest.mark.long
@pytest.mark.slow
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(hostile, max_size=30))
def test_a_hostile_recording_neither_crashes_nor_escapes(
    tmp_path: Path, lines: list[dict[str, object]]
) -> None:
    header = Header("box\x1b[2J", False, 1, T0).line()
    (tmp_path / "h.jsonl").write_text(header + "".join(json.dumps(line) + "\n" for line in lines))

    async def scenario(s: RealScreen) -> None:
        await s.until("REPLAY", lambda: s.state.host.replay.ended)
        assert "\x1b" not in s.text

    replayed(tmp_path / "h.jsonl", scenario)


def test_a_recording_with_endless_events_in_one_second_does_not_hold_the_screen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A turn ends after half a tick, however many events are due."""
    clock = count(0.0, 0.001)  # each look at the clock takes a millisecond
    monkeypatch.setattr(replay, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    shown_in_turns = [0]
    advance, show_event = Replay._advance_recording, Replay._show_event

    def counted_turn(player: Replay, until_s: float) -> None:
        shown_in_turns.append(0)
        advance(player, until_s)

    def counted_event(player: Replay, event: Event) -> None:
        shown_in_turns[-1] += 1
        show_event(player, event)

    monkeypatch.setattr(Replay, "_advance_recording", counted_turn)
    monkeypatch.setattr(Replay, "_show_event", counted_event)
    path = tmp_path / "many.jsonl"
    with path.open("w") as file:
        file.write(Header("box", False, 1, T0).line())
        for number in range(20_000):
            file.write(format_event(Event(T0, EventKind.THROTTLE, f"event {number}")))

    async def scenario(s: RealScreen) -> None:
        await s.until(lambda: len(s.session.timeline.history.events) >= 1000)
        await s.until("REPLAY")
        assert 0 < max(shown_in_turns) <= 1000 * replay.TICK_INTERVAL_S / 2

    replayed(path, scenario)


def test_an_event_of_before_is_not_recorded(tmp_path: Path) -> None:
    """A replay began with "vllm stopped" of a run that had ended hours before the recording."""
    path = tmp_path / "now.jsonl"
    session = Session.of_host(None, "four-pcie")
    recorder = Recorder(session, path)
    for hear in session.timeline.on_event:
        hear(
            Event(time.time() - 3600, EventKind.SERVER_END, "vllm stopped, an hour ago", None, None)
        )
        hear(Event(time.time(), EventKind.SERVER_END, "vllm stopped now", None, None))
    recorder.close()
    assert "vllm stopped now" in path.read_text() and "an hour ago" not in path.read_text()

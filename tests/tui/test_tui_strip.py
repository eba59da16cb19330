"""The telemetry strip on the screen: three graphs at every size, the cursor, the zoom, folding."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from statistics import mean
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fake_canned import NOW
from support.fake_session import FakeSession
from support.real_screen import PROFILE, RealScreen, shown

from workbench.model.gpu import GpuInfo, HostSample
from workbench.model.server_run import ServerState
from workbench.model.settings import GpuSettings
from workbench.model.timeline import Event, EventKind
from workbench.sim import driver_state, profiles
from workbench.tui.widgets.gpu_metrics import (
    POWER,
    is_scale_top_reported,
    replace_means_at_limit_changes,
)
from workbench.tui.widgets.gpu_strip import _cpu_overload_row

SIZES = ((80, 24), (120, 40), (200, 60))
AGO_S = (12, 2)  # begin and end of the benchmark
UNITS = {"util": "%", "power": "W", "sm": "MHz"}


def after_a_benchmark(gpus: int) -> FakeSession:
    """Return a session whose GPUs were idle but for a benchmark of 10 s, which ended 2 s ago."""
    session = FakeSession(gpus)
    history, now = session.timeline.history, session.ticks
    history.clear()
    for tick in range(now - 60, now + 1):
        session.load = 1.0 if now - AGO_S[0] <= tick < now - AGO_S[1] else 0.02
        session.remember(tick)
    kinds = (EventKind.BENCH_BEGIN, EventKind.BENCH_END)
    for kind, ago_s in zip(kinds, AGO_S, strict=True):
        history.add_event_if_new(Event(NOW + now - ago_s, kind, f"{kind} of 8 streams"))
    return session


def strip_rows(d: Any) -> list[str]:
    return [d.row(1 + n) for n in range(d.app.main.strip.size.height)]


def levels(d: Any, label: str) -> list[int]:
    """Return the heights of the values in the graph with this label."""
    rows, strip = strip_rows(d), d.app.main.strip
    layout = strip.arranged
    columns = layout.columns
    height = layout.heights[list(UNITS).index(label) if layout.stacked else 0]
    first = next(n for n, row in enumerate(rows) if row.startswith(label))
    start = columns.graph_starts[0]
    body = [row.ljust(400)[start : start + columns.cells] for row in rows[first : first + height]]
    heights = []
    for cell in zip(*body, strict=True):
        dots = [ord(char) - 0x2800 if char != " " else 0 for char in cell]
        for column in (0x47, 0xB8):
            heights.append(sum((dot & column).bit_count() for dot in dots))
    return heights


@pytest.mark.ci_cases(4)
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("gpus", [1, 2, 4, 8])
def test_three_labelled_graphs_show_a_benchmark_at_every_size(
    drive: Any, size: tuple[int, int], gpus: int
) -> None:
    async def scenario(d: Any) -> None:
        text, now_s = "\n".join(strip_rows(d)), int(NOW) + d.session.ticks
        strip = d.app.main.strip
        window = strip.view.window(now_s, strip.arranged.columns.cells)
        first_s = window.first_cell * window.cell_s
        for label, unit in UNITS.items():
            assert text.count(f"{label} ") == 1 and unit in text
            drawn = levels(d, label)
            busy = [drawn[now_s - ago_s - first_s] for ago_s in range(AGO_S[1] + 1, AGO_S[0])]
            idle = [drawn[now_s - ago_s - first_s] for ago_s in range(AGO_S[1])]
            assert min(busy) > max(idle) > 0, (label, drawn)
        axis = strip_rows(d)[-1]
        assert axis.count("=]") == axis.count("[=") == 1
        assert strip.size.height <= size[1] * 0.4

    drive(scenario, session=after_a_benchmark(gpus), size=size)


def test_the_cursor_shows_the_figures_and_events_of_an_earlier_second(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        def util_pct() -> int:
            return int(d.row(2).removeprefix("util ").rstrip().removesuffix("%").split()[-1])

        height = d.app.main.strip.size.height
        await d.press("less_than_sign")  # the end of the benchmark
        await d.until(lambda: "benchmark end of 8 streams" in d.text)
        assert d.app.main.strip.size.height == height + 1
        assert "-2s" in d.row(height + 1) and " [ Back " in d.row(39)
        idle_pct = util_pct()
        await d.press("left_square_bracket")
        await d.until(lambda: "nothing happened" in d.text and "-4s" in d.text)
        assert util_pct() > 80 > 20 > idle_pct
        d.session.tick()
        await d.until(lambda: "-5s" in d.text)  # the time goes on, the picture stands still
        await d.press("escape")
        await d.until(lambda: "nothing happened" not in d.text)
        assert d.app.main.strip.size.height == height and " [ Back " not in d.row(39)

    drive(scenario, session=after_a_benchmark(1))


def test_the_cursor_goes_far_and_comes_back(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        strip, now_s = d.app.main.strip, int(NOW) + 100
        assert now_s % 2 == 0  # a cell has two seconds
        await d.press("left_curly_bracket", "left_curly_bracket", "left_curly_bracket")
        assert strip.view.cursor_s == now_s - 60
        await d.press("right_curly_bracket", "right_square_bracket")
        assert strip.view.cursor_s == now_s - 38
        await d.press("greater_than_sign")
        assert strip.view.cursor_s == now_s - 12
        await d.press("0")
        assert strip.view.is_live

    drive(scenario, session=after_a_benchmark(4))


def test_the_length_of_a_cell_is_chosen_with_keys(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        for label in ("-2m", "-10m", "-30m", "-2h", "-2h"):
            await d.press("minus")
            await d.until(lambda label=label: f" {label} " in d.text, label)
        for _ in range(4):
            await d.press("plus")
        await d.until(lambda: "-30s" in d.text)

    drive(scenario, gpus=4)


def test_equal_gpus_fold_and_unfold(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        strip = d.app.main.strip
        assert d.row(1).startswith("8 x RTX PRO 6000 96G") and strip.size.height == 5
        await d.press("F")
        await d.until(lambda: strip.size.height == 9)
        assert [d.row(n)[0] for n in range(1, 9)] == list("01234567")
        await d.press("F")
        await d.until(lambda: strip.size.height == 5)

    drive(scenario, gpus=8, size=(80, 24))


def test_a_click_on_a_graph_shows_that_second(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        strip = d.app.main.strip
        window = strip.view.window(strip.now_s, strip.arranged.columns.cells)
        await d.pilot.click(strip, offset=(strip.arranged.columns.graph_starts[0] + 5, 2))
        assert strip.view.cursor_s == 2 * (window.first_cell + 5)
        wheel = SimpleNamespace(stop=lambda: None)
        strip.on_mouse_scroll_up(wheel)
        assert strip.view.cursor_s == 2 * (window.first_cell + 2)
        strip.on_mouse_scroll_down(wheel)
        assert strip.view.cursor_s == 2 * (window.first_cell + 5)

    drive(scenario, gpus=4)


@contextmanager
def working_gpus() -> Iterator[None]:
    """Let the simulated GPUs work as for an engine, until the end of the block."""
    driver = driver_state.SimState(
        f"{os.environ['XDG_STATE_HOME']}/workbench/sim/{PROFILE}/driver",
        profiles.get_profile(PROFILE),
    )
    ended = threading.Event()

    def work() -> None:
        part = {"busy": 0.95, "memory": 0.8, "compute": 0.9, "memory_bytes": 20e9}
        while not ended.wait(0.4):
            loads = {index: dict(part) for index in range(driver.profile.count)}
            driver.publish_load(os.getpid(), loads, active_unix_s=time.time())

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        driver.withdraw_load(os.getpid())


@pytest.mark.slow
@pytest.mark.long
def test_a_power_limit_changes_the_picture_from_then_on_and_never_before() -> None:
    """250 W, 200 W, 170 W, then reverted, all under load: three levels, three marks, and the same
    past."""

    async def scenario(s: RealScreen) -> None:
        strip, history = s.app.main.strip, s.session.timeline.history

        async def settled(limit_w: float) -> float:
            """Wait until the limit holds the GPU for 6 s. Return the Unix time."""

            def holds() -> bool:
                limits, watts = (
                    history.cell_means((0, name), strip.now_s, 1, 6)
                    for name in ("limit_w", "power_w")
                )
                return set(limits) == {limit_w} and all(
                    w and 0.9 * limit_w < w <= limit_w + 2 for w in watts
                )

            await s.until(holds, seconds=60)
            return strip.now_s

        def picture(at_s: float) -> list[str]:
            """Return the 2 cells of the power before a time, as they are drawn now."""
            columns, height = strip.arranged.columns, strip.arranged.heights[1]
            end = columns.graph_starts[0] + strip.view.window(
                strip.now_s, columns.cells
            ).column_of_time(at_s)
            first = 2 + strip.arranged.heights[0]
            return [s.row(row).ljust(200)[end - 2 : end] for row in range(first, first + height)]

        times, pictures = [await settled(250.0)], []
        for limit_w in (200.0, 170.0):
            pictures.append(picture(times[-1]))
            assert (await s.session.gpu.apply_settings(GpuSettings(power_limit_w=limit_w))).ok
            times.append(await settled(limit_w))
        pictures.append(picture(times[-1]))
        roles = {role for row in strip.rows(*strip.content_size) for _, role in row}
        assert "limited" in roles  # held at the limit
        assert (await s.session.gpu.revert_settings()).ok
        await settled(250.0)
        assert [picture(at_s) for at_s in times] == pictures and len(
            {str(p) for p in pictures}
        ) == 3
        settings = [e.kind for e in history.events if e.kind.value.startswith("setting")]
        assert settings == [EventKind.SETTING_MADE] * 2 + [EventKind.SETTING_REVERTED]
        signs = s.row(strip.size.height).split(" now")[0]
        assert signs.count("g") == 2 and signs.count("r") == 1

    with working_gpus():
        shown(scenario, size=(200, 60))


@pytest.mark.parametrize("size", SIZES[:2], ids=lambda size: f"{size[0]}x{size[1]}")
def test_a_server_on_another_node_is_not_shown_with_the_gpus_of_its_login_host(
    drive: Any, size: tuple[int, int]
) -> None:
    said = "the server runs on node c01; these are the GPUs of "

    async def scenario(d: Any) -> None:
        server = d.session.state.server
        assert server is not None and said not in d.text
        before = d.app.main.strip.size.height
        job = replace(server, run_as="slurm", handle="12", node="c01", alive=True)
        d.session.push(servers=(job,))
        await d.until(lambda: said in strip_rows(d)[0], "the sentence above the graphs")
        await d.until(lambda: d.app.main.strip.size.height == before + 1, "a row for it")
        await d.press("6")
        await d.until(
            lambda: "`workbench --container slurm:12` shows the GPUs of the job." in d.text
        )
        d.session.push(servers=(replace(job, state=ServerState.STOPPED, alive=False),))
        await d.until(lambda: said not in d.text, "the sentence goes with the server")

    drive(scenario, stage="ready", size=size)


@pytest.mark.parametrize(
    ("facts", "known"),
    [({}, False), ({"power_max_w": 350.0}, True), ({"power_default_w": 300.0}, True)],
)
def test_only_a_limit_of_the_driver_is_called_the_maximum(
    facts: dict[str, float], known: bool
) -> None:
    """A vGPU reports no power limit, and the top of its axis read "max 600W"."""
    assert is_scale_top_reported(POWER, replace(GpuInfo(0, "GPU-0", "A"), **facts)) == known


@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 15), st.sampled_from((170.0, 300.0)))
def test_a_limit_that_is_drawn_was_in_force(before: int, after: int, size: int, now: float) -> None:
    """The mean of 250 and 170 W was drawn, and told, as a limit of 190 W."""
    seconds = [250.0] * (before + size) + [now] * after
    cells = [mean(seconds[at : at + size]) for at in range(0, len(seconds), size)]
    shown = replace_means_at_limit_changes(cells, now)
    assert len(shown) == len(cells) and set(shown) <= {250.0, now}
    assert shown == sorted(shown, reverse=now < 250.0)


@pytest.mark.parametrize(
    ("load", "said"),
    [(28.4, "load 28 on 2 CPUs"), (2.0, ""), (None, "")],
)
def test_a_host_whose_cpus_are_all_taken_is_told(load: float | None, said: str) -> None:
    host = HostSample(load_1m=load, cpu_count=2)
    row = _cpu_overload_row(SimpleNamespace(host=host))  # type: ignore[arg-type]
    assert "".join(text for text, _ in row) == said

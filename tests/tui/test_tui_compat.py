"""The private names of Textual that textual_private.py uses: a test fails if an update of Textual
moves one."""

from __future__ import annotations

import contextlib
import inspect
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual._compositor import CompositorUpdate
from textual.app import App
from textual.cache import FIFOCache
from textual.drivers._writer_thread import MAX_QUEUED_WRITES, WriterThread
from textual.strip import Strip

from workbench.tui import shown_frame
from workbench.tui.shown_frame import cut_strip
from workbench.tui.textual_private import (
    count_waiting_frames,
    make_strip_caches_on_demand,
    run_bound_action,
)
from workbench.tui.themed_app import ThemedApp
from workbench.tui.unused_palette import UnusedPalette


def test_the_writer_queue_is_where_the_guard_looks() -> None:
    import io

    thread = WriterThread(io.StringIO())
    for _ in range(3):
        thread.write("x")

    class Driver:
        _writer_thread = thread

    class Fake:
        _driver = Driver()

    assert count_waiting_frames(Fake()) == 3  # type: ignore[arg-type]
    assert MAX_QUEUED_WRITES > 10


def test_without_a_driver_nothing_waits() -> None:
    assert count_waiting_frames(object()) == 0  # type: ignore[arg-type]


def test_bindings_are_run_by_the_app() -> None:
    assert list(inspect.signature(App._check_bindings).parameters) == ["self", "key", "priority"]
    assert inspect.iscoroutinefunction(run_bound_action)


def test_a_frame_of_ours_is_a_frame_of_textual() -> None:
    assert list(inspect.signature(App._display).parameters) == ["self", "screen", "renderable"]
    assert "CompositorUpdate" in inspect.getsource(App._display)
    assert hasattr(CompositorUpdate, "render_segments")


def test_cells_sent_directly_equal_those_that_the_compositor_draws_later(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        sent: list[Any] = []
        display = d.app._display
        d.app._display = lambda screen, update: (sent.append(update), display(screen, update))
        for _ in range(3):
            d.session.tick()
            await d.pilot.pause()
        assert any(type(u).__name__ == "_Cells" for u in sent)
        power = f"{d.session.state.telemetry.gpus[0].power_w:.0f}/600W"
        assert power in d.text

    drive(scenario)


def test_a_covered_widget_is_left_to_the_compositor(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        await d.press("h")
        sent: list[Any] = []
        d.app._display = lambda screen, update: sent.append(update)
        d.session.tick()
        await d.pilot.pause()
        assert not any(type(u).__name__ == "_Cells" for u in sent)

    drive(scenario)


def test_cells_outside_of_the_screen_are_not_sent(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        await d.press("F")  # the strip is higher than the screen
        assert d.app.main.strip.region.bottom > d.app.size.height
        pieces: list[Any] = []
        d.app._display = lambda _, update: pieces.extend(getattr(update, "pieces", ()))
        d.session.tick()
        await d.until(lambda: pieces)
        rows, columns = d.app.size.height, d.app.size.width
        outside = [(x, y) for x, y, cells in pieces if y >= rows or x + cells.cell_length > columns]
        assert not outside

    drive(scenario, size=(60, 8), gpus=8)


@given(
    st.lists(st.text("ab ▁█日本", max_size=6), max_size=6), st.integers(0, 30), st.integers(0, 30)
)
def test_part_of_equals_crop(texts: list[str], start: int, size: int) -> None:
    strip = Strip(
        [Segment(text, Style(color=f"color({n})")) for n, text in enumerate(texts) if text]
    )
    ours, theirs = cut_strip(strip, start, start + size), strip.crop(start, start + size)
    assert [s for s in ours if s.text] == [s for s in theirs if s.text]
    assert ours.cell_length == Strip(list(ours)).cell_length


def caches_made(strip: Strip) -> list[str]:
    """Return the caches of a Strip that are made already."""
    found = []
    for name in Strip.__slots__:
        with contextlib.suppress(AttributeError):
            if isinstance(object.__getattribute__(strip, name), FIFOCache):
                found.append(name)
    return found


def test_a_strip_makes_a_cache_when_it_first_uses_it() -> None:
    """Seven caches of each Strip of a settled screen took 1.4 MiB."""
    make_strip_caches_on_demand()
    strip = Strip([Segment("abc")])
    assert caches_made(strip) == []
    assert strip.crop(0, 2) is strip.crop(0, 2)
    assert caches_made(strip) == ["_crop_cache"]
    assert [one.text for one in strip.divide([1, 3])] == ["a", "bc"]
    assert caches_made(strip) == ["_divide_cache", "_crop_cache"]
    assert not hasattr(strip, "_no_cache")


def test_a_sign_that_is_not_looked_up_takes_one_cell() -> None:
    signs = [chr(n) for n in range(32, 0x3000) if shown_frame.ONE_CELL.fullmatch(chr(n))]
    assert {"a", "é", "▁", "█", "⣿", "─", "·"} <= set(signs)
    assert [sign for sign in signs if cell_len(sign) != 1] == []


def test_nothing_uses_the_palette_that_is_left_out() -> None:
    """Textual's other modules need only names of it, and the screen shows no palette."""
    assert not ThemedApp.ENABLE_COMMAND_PALETTE
    with pytest.raises(TypeError, match="does not load the palette"):
        UnusedPalette(UnusedPalette.REPLACED).CommandPalette()

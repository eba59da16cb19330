"""How often the screen is drawn: one frame for a reading, with ages and elapsed times."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from workbench.tui import bridge


def frames_of(d: Any) -> list[Any]:
    """Return a list that grows with each frame of cells that is sent to the terminal."""
    sent: list[Any] = []
    display = d.app._display

    def kept(screen: Any, update: Any) -> None:
        if type(update).__name__ == "_Cells":
            sent.append(update)
        display(screen, update)

    d.app._display = kept
    return sent


def test_a_reading_is_one_frame_with_the_elapsed_times(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        drawn_with_reading: list[bool] = []
        draw = d.app.main.draw_elapsed_times
        d.app.main.draw_elapsed_times = lambda state, drawn=False: (
            drawn_with_reading.append(drawn),
            draw(state, drawn),
        )
        sent = frames_of(d)
        d.app.main.bridge._last_tick_s = float("-inf")  # the last frame is a second old
        d.app.main.status_bar._painted = []  # draws itself, as with another second of the server
        d.app.main.status_bar.repaint()
        await d.pilot.pause()
        del sent[:]
        d.session.tick()
        await d.pilot.pause()
        assert len(sent) == 1
        assert drawn_with_reading == [True]
        d.session.tick()  # the next reading, within the same second
        await d.pilot.pause()
        assert len(sent) == 2
        assert drawn_with_reading == [True]
        # readings come often: the next one brings the clock with it, although it may be late
        loop, clock = asyncio.get_running_loop(), d.app.main.bridge._clock
        assert clock.when() - loop.time() > bridge.CLOCK_PERIOD_S

    drive(scenario, stage="ready")


def test_two_widgets_that_change_are_one_frame(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        sent = frames_of(d)
        d.session.push(host=d.session.state.host, plan=None, telemetry=None)
        await d.pilot.pause()
        del sent[:]
        with d.app.batch_terminal_writes():
            d.app.send_row_pieces([])
            assert sent == []
            d.app.main.strip.repaint()
            assert sent == []
            with d.app.batch_terminal_writes():  # a drawing within another one
                pass
            assert sent == []

    drive(scenario, stage="ready")


def test_without_readings_elapsed_times_are_drawn_by_the_clock(
    drive: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridge, "CLOCK_PERIOD_S", 0.02)
    monkeypatch.setattr(bridge, "CLOCK_LATE_S", 0.01)

    async def scenario(d: Any) -> None:
        drawn_with_reading: list[bool] = []
        d.app.main.draw_elapsed_times = lambda state, drawn=False: drawn_with_reading.append(drawn)
        await d.until(lambda: len(drawn_with_reading) >= 3)
        assert not any(drawn_with_reading)

    drive(scenario, stage="ready")


def test_rare_readings_do_not_put_the_clock_off(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        loop, main = asyncio.get_running_loop(), d.app.main.bridge
        main._schedule_clock_drawing(60.0)  # it must not come due by itself on a slow machine
        main._last_reading_s, main._last_tick_s = loop.time() - 1.5, loop.time() + 60.0
        clock = main._clock
        d.session.tick()
        await d.pilot.pause()
        assert main._clock is clock and not clock.cancelled()

    drive(scenario, stage="ready")

"""`workbench fleet` in a terminal, used as a user does: hosts open and close, a filter, a host that
hangs, a signal."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from support.command_line import CommandLine
from support.typed_screen import TypedScreen

HOSTS = ("sim:four-pcie@a", "sim:four-pcie@b", "sim:gb10@c")


@pytest.fixture
def line(tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path, TERM="xterm-256color", LANG="C.UTF-8")


@pytest.fixture
def screen(line: CommandLine) -> Iterator[TypedScreen]:
    opened = TypedScreen(("fleet", *HOSTS), (120, 40), line.env, line.directory)
    yield opened
    opened.close()


def live(count: int, of: int = len(HOSTS)) -> str:
    return f"{count}/{of} hosts live"


def agents_of(screen: TypedScreen, name: str) -> list[psutil.Process]:
    """Return the telemetry agents of a simulated host below the screen."""
    wanted = f"/sim/{name.removeprefix('sim:')}/"
    found = []
    for process in psutil.Process(screen.child.pid).children(recursive=True):
        try:
            if wanted in process.environ().get("WORKBENCH_SIM_STATE", "") + "/":
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.mark.slow
def test_a_host_is_opened_and_q_comes_back_to_the_fleet(screen: TypedScreen) -> None:
    screen.until(live(3), "SIMULATED")
    screen.press("down", "enter")
    screen.until("4 x A100", "^p palette", "four-pcie@b", lambda text: live(3) not in text)
    screen.press("q")
    text = screen.until(live(3), "Filter")
    assert re.search(r"^> sim:four-pcie@b", text, re.MULTILINE), (
        "the cursor is on the host that was open"
    )
    screen.press("down", "enter")
    screen.until("GB10", "^p palette")
    screen.press("q")
    screen.until(live(3))
    screen.press("q")
    assert screen.ended() == 0


@pytest.mark.slow
def test_the_filter_and_the_order(screen: TypedScreen) -> None:
    screen.until(live(3))
    screen.press("/")
    screen.type("gb10")
    screen.until(live(1, 1).replace("hosts", "host"), "enter keep")
    screen.press("enter")
    screen.until("filter: gb10", lambda text: "four-pcie@a" not in text)
    screen.press("escape")
    screen.until(live(3))
    screen.press("s", "s", "s")  # power, the highest first
    text = screen.until("powerv")
    assert text.index("four-pcie") < text.index("sim:gb10@c")
    screen.press("S")
    screen.until("power^", lambda text: text.index("sim:gb10@c") < text.index("sim:four-pcie"))
    screen.press("q")
    assert screen.ended() == 0


@pytest.mark.long
@pytest.mark.slow
def test_a_host_that_hangs_shows_its_age_and_the_screen_answers(screen: TypedScreen) -> None:
    screen.until(live(3))
    stopped = agents_of(screen, HOSTS[0])
    assert stopped
    for process in stopped:
        process.send_signal(signal.SIGSTOP)
    try:
        screen.until(live(2), lambda text: re.search(r"a +! \d+s old", text) is not None)
        screen.press("?")
        screen.until("open the host under the cursor")
        screen.press("escape")
    finally:
        for process in stopped:
            with suppress(psutil.NoSuchProcess):  # the fleet has started another in its place
                process.send_signal(signal.SIGCONT)
    screen.until(live(3))
    screen.press("q")
    assert screen.ended() == 0


@pytest.mark.slow
def test_a_signal_ends_it_and_leaves_no_agent(screen: TypedScreen) -> None:
    screen.until(live(3))
    agents = [agent for name in HOSTS for agent in agents_of(screen, name)]
    assert len(agents) >= 3
    os.kill(screen.child.pid, signal.SIGTERM)
    assert screen.ended() == 128 + signal.SIGTERM
    _, alive = psutil.wait_procs(agents, timeout=10)
    assert not alive


@pytest.mark.slow
@pytest.mark.long
def test_json_is_one_reading(line: CommandLine) -> None:
    done = line("fleet", *HOSTS)
    assert done.code == 0 and done.document["simulated"] is True
    assert done.document["totals"]["live"] == 3 and done.document["totals"]["gpus"] == 9
    first = done.document["hosts"][0]
    assert (first["name"], first["state"], len(first["gpus"])) == (HOSTS[0], "live", 4)
    assert first["gpus"][0]["power_w"] > 0 and "A100" in first["gpus"][0]["name"]
    refused = line("fleet", "sim:nothing")
    assert refused.code == 1 and refused.document["hosts"][0]["state"] == "refused"
    wrong = line("--host", "sim:gb10", "fleet")
    assert wrong.code == 2 and "takes its hosts as arguments" in wrong.document["error"]

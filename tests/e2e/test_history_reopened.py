"""The screen is killed in the middle of a benchmark and opened again: the graphs go on after a gap,
with the marks."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.command_line import ROOT, CommandLine
from support.serving import free_port
from support.typed_screen import TypedScreen

from workbench.model.timeline import Event, EventKind, History
from workbench.store import history_files

PROFILE, PRESET = "four-pcie", "vllm-qwen3-vl-2b-tp4-eager"
POWER = (0, "power_w")


@pytest.fixture
def host(tmp_path: Path) -> Iterator[CommandLine]:
    line = CommandLine(
        tmp_path,
        before=("--simulate", PROFILE),
        WORKBENCH_SIM_START_S="0.5",
        TERM="xterm-256color",
        LANG="C.UTF-8",
    )
    own = Path(line.env["XDG_CONFIG_HOME"], "workbench", "presets", f"{PRESET}.toml")
    own.parent.mkdir(parents=True)
    own.write_text(
        (ROOT / "presets" / own.name).read_text().replace("port = 8004", f"port = {free_port()}")
    )
    yield line
    line.stop_all()


def kept() -> History:
    folder = history_files.history_directory(f"sim:{PROFILE}", simulated=True)
    return history_files.load_history(folder, f"sim:{PROFILE}", time.time()).history


def marks(history: History) -> list[Event]:
    return [
        event
        for event in history.events
        if event.kind in (EventKind.BENCH_BEGIN, EventKind.BENCH_END)
    ]


@pytest.mark.long
@pytest.mark.slow
def test_a_screen_killed_in_a_benchmark_has_its_history_and_the_marks_when_it_is_opened_again(
    host: CommandLine,
) -> None:
    argv = ("demo", "--host-profile", PROFILE)
    first = TypedScreen(argv, (120, 40), host.env, host.directory)
    first.until("qwen3-vl-2b-tp4-eager", "4 x A100")
    first.press("p", "t", "p", "4", "enter")
    first.until("enforce-eager", "$ vllm serve")
    first.press("s", "enter")
    first.until("READY vllm :")
    first.press("b")
    first.until("streams at once")
    first.press("enter")
    first.until(lambda text: re.search(r"\b[1-9]\d*/48", text) is not None)
    deadline = time.monotonic() + 20
    while not marks(kept()):
        assert time.monotonic() < deadline, "the benchmark's begin is not on disk"
        first.settle()
    first.kill()
    killed_s = time.time()

    (begin, end) = marks(kept())
    assert begin.kind is EventKind.BENCH_BEGIN and end.kind is EventKind.BENCH_END
    assert (
        killed_s - 15 < end.unix_s <= killed_s
        and ("Workbench ended during the benchmark") in end.text
    )
    time.sleep(6)  # a gap that a cell of the graphs can show: real time is what is tested

    second = TypedScreen(argv, (120, 40), host.env, host.directory)
    try:
        second.until("4 x A100", "READY vllm :")
        # the benchmark on the axis
        second.until(lambda text: re.search(r"\[(=|bench)*\]", text) is not None)
        second.press("4")
        second.until("was cut off, because its Workbench wa")  # cut by the pane
        second.press("<")
        second.until("Workbench ended during the benchmark")
        deadline = time.monotonic() + 20
        while (cells := kept().cell_means(POWER, time.time(), 1, 60))[-4:].count(None) == 4:
            assert time.monotonic() < deadline, cells
            second.settle()
        gap = [
            kept().value_at(POWER, second_s)
            for second_s in range(int(killed_s) + 1, int(killed_s) + 5)
        ]
        assert gap == [None] * 4 and kept().value_at(POWER, int(begin.unix_s)) is not None
        assert len(marks(kept())) == 2
    finally:
        second.close()

"""The history on disk: what a kill, a full disk, a damaged or foreign file and a second Workbench
do to it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.model.errors import InputError
from workbench.model.gpu import GpuInfo
from workbench.model.timeline import ENGINE, Event, EventKind
from workbench.store import history_files, recording
from workbench.store.history_files import HistoryWriter
from workbench.store.recording import Boot, Cell, CellWriter, End, Header, Infos

T0 = 1_764_000_000
NOW = T0 + 600.0
POWER, ENGINE_RATE = (0, "power_w"), (ENGINE, "generation_tok_s")


def cells_of(lines: list[str]) -> list[Cell]:
    return [item for item in recording.parse_items(lines) if isinstance(item, Cell)]


def written(
    folder: Path, *lines: str, host: str = "box", step_s: int = 1, name: str = "1-1-a.1.1s.jsonl"
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("".join([Header(host, False, step_s, T0).line(), *lines]))


@given(
    st.lists(
        st.dictionaries(
            st.tuples(st.integers(-1, 7), st.sampled_from(("power_w", "sm_mhz"))),
            st.integers(0, 9999),
            max_size=6,
        ),
        max_size=150,
    )
)
def test_what_is_written_is_read(readings: list[dict[tuple[int, str], int]]) -> None:
    writer = CellWriter(1)
    lines = [
        line
        for i, values in enumerate(readings)
        for line in writer.add_reading(range(T0 + i, T0 + i + 1), dict(values))
    ]
    lines += writer.finish_open_cells()
    expected = [(T0 + i, values) for i, values in enumerate(readings) if values]
    assert [(cell.unix_s, cell.values) for cell in cells_of(lines)] == expected


@given(st.data())
def test_a_damaged_line_costs_at_most_the_cells_to_the_next_full_one(data: st.DataObject) -> None:
    writer = CellWriter(1)
    lines = [
        line
        for i in range(200)
        for line in writer.add_reading(range(T0 + i, T0 + i + 1), {POWER: float(i // 7)})
    ]
    at = data.draw(st.integers(0, len(lines) - 1))
    lines[at] = data.draw(
        st.sampled_from(
            (lines[at][: len(lines[at]) // 2], "\x00\xff", "[" * 5000, "", "null", "{}")
        )
    )
    read = {cell.unix_s: cell.values for cell in cells_of(lines)}
    assert all(values == {POWER: float((second - T0) // 7)} for second, values in read.items())
    assert len(read) >= len(lines) - recording.FULL_EVERY - 1


@given(st.lists(st.one_of(st.binary(max_size=200), st.text(max_size=200)), max_size=20))
def test_a_foreign_file_is_never_an_error_of_the_reader(lines: list[str | bytes]) -> None:
    for item in recording.parse_items(lines):
        assert isinstance(item, Cell | Event | Infos | Boot | End)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(
    st.dictionaries(
        st.sampled_from(
            (
                "t",
                "v",
                "full",
                "event",
                "text",
                "gpu",
                "result",
                "infos",
                "boot",
                "end",
                "workbench",
                "version",
                "host",
            )
        ),
        json_values
        | st.sampled_from(
            ("benchmark begin", T0, {"0.power_w": 1e308}, {"99.x": True}, [{"index": -3}])
        ),
    )
)
def test_hostile_lines_give_only_clean_and_bounded_items(line: dict[str, object]) -> None:
    text = json.dumps(line)
    try:
        header = recording.parse_header(text, "file")
        assert header.host.isprintable()
    except InputError as error:
        assert error.next_step
    for item in recording.parse_items([text, text]):
        assert 0 <= item.unix_s <= 1e11
        if isinstance(item, Cell):
            assert all(
                -1 <= gpu < 100 and abs(value) < 1e30 for (gpu, _), value in item.values.items()
            )
        elif isinstance(item, Event):
            assert "\x1b" not in item.text and "\n" not in item.text


def test_escape_sequences_of_a_recording_are_removed() -> None:
    line = json.dumps(
        {"t": T0, "event": "throttle", "text": "\x1b]0;x\x07HW\x1b[31m slowdown\nx", "gpu": 0}
    )
    info = json.dumps({"t": T0, "infos": [{"index": 0, "uuid": "u", "name": "RTX\x1b[2J\r"}]})
    event, infos = recording.parse_items([line, info])
    assert isinstance(event, Event) and event.text == "HW slowdown x"
    assert isinstance(infos, Infos) and infos.infos == (GpuInfo(0, "u", "RTX "),)


HUGE = "1" + "0" * 400  # JSON has no largest number; Python's float has


def test_numbers_that_no_gpu_has_are_left_out() -> None:
    values = f'"0.power_w": {HUGE}, "0.sm_mhz": NaN, "0.fan_pct": -Infinity, "0.x": 1'
    line = f'{{"t": {T0}, "full": true, "v": {{{values}}}}}'
    limits = f'"power_max_w": NaN, "power_min_w": -5, "memory_total_bytes": {HUGE}, "absent": {{"a": "b"}}'
    infos = f'{{"t": {T0}, "infos": [{{"index": 0, "uuid": "u", "name": "n", {limits}}}, 5, null]}}'
    late = f'{{"t": {HUGE}, "full": true, "v": {{"0.power_w": 1}}}}'
    cell, gpus = recording.parse_items([line, infos, late])
    assert isinstance(cell, Cell) and cell.values == {(0, "x"): 1.0}
    assert isinstance(gpus, Infos)
    (info,) = gpus.infos
    assert replace(info, absent={}) == GpuInfo(0, "u", "n")
    assert {"a", "power_max_w", "power_min_w", "memory_total_bytes"} == info.absent.keys()


def test_a_small_compressed_file_with_endless_lines_is_given_up() -> None:
    read = 0

    def lines() -> Iterator[str]:
        nonlocal read
        while True:
            read += 1
            yield '{"t":1,"event":"unknown"}'

    assert not list(recording.parse_items(lines())) and read < 2000


def test_a_pipe_or_a_device_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(InputError, match="is not a file"):
            recording.open_recording(path)


def test_a_newer_and_another_format_are_refused_with_the_next_step() -> None:
    newer = Header("box", False, 1, T0).line().replace('"version":1', '"version":2')
    for text, said in (
        (newer, "newer Workbench"),
        ("{}", "not a recording"),
        ("", "not a recording"),
    ):
        with pytest.raises(InputError, match=said):
            recording.parse_header(text, "file")


# ---- the files


@pytest.fixture
def folder(clean_environment: None) -> Path:
    return history_files.history_directory("box", simulated=False)


@pytest.fixture
def writer(folder: Path) -> Iterator[HistoryWriter]:
    made = HistoryWriter(folder, Header("box", False, 1, T0), lambda problem: None)
    yield made
    made.close()


def lines_at(first: int, count: int, watts: float) -> list[str]:
    cells = CellWriter(1)
    return [
        *cells.add_reading(range(T0 + first, T0 + first + count), {POWER: watts, ENGINE_RATE: 5.0}),
        *cells.finish_open_cells(),
    ]


def test_two_workbenches_on_one_host_are_merged_and_a_simulated_host_is_apart(folder: Path) -> None:
    for first, watts in ((0, 100.0), (300, 200.0)):
        writer = HistoryWriter(folder, Header("box", False, 1, T0), lambda problem: None)
        for line in lines_at(first, 10, watts):
            writer.write_line(1, line)
        writer.close()
    history = history_files.load_history(folder, "box", NOW).history
    assert history.value_at(POWER, T0 + 5) == 100.0 and history.value_at(POWER, T0 + 305) == 200.0
    assert history.value_at(ENGINE_RATE, T0 + 5) == 5.0
    assert history.value_at(POWER, T0 + 100) is None, "the time between is a gap"
    assert history_files.history_directory("box", simulated=True) != folder
    assert not list(history_files.load_history(folder, "another host", NOW).history), (
        "the header names the host"
    )


def test_damaged_foreign_and_unreadable_files_leave_the_others(folder: Path) -> None:
    written(folder, *lines_at(0, 10, 100.0))
    (folder / "2-2-b.1.1s.jsonl").write_bytes(os.urandom(5000))
    (folder / "3-3-c.1.1s.jsonl").symlink_to("/etc/passwd")
    os.mkfifo(folder / "4-4-d.1.1s.jsonl")
    (folder / "5-5-e.1.1s.jsonl").mkdir()
    written(folder, *lines_at(10**6, 10, 5.0), name="6-6-f.1.1s.jsonl")  # of a clock that was wrong
    history = history_files.load_history(folder, "box", NOW).history
    assert history.value_at(POWER, T0 + 5) == 100.0 and history.value_at(POWER, NOW) is None


CHILD = """
import sys, time
from pathlib import Path
from workbench.model.timeline import Event, EventKind
from workbench.store.history_files import HistoryWriter
from workbench.store.recording import CellWriter, Header, format_event
writer = HistoryWriter(Path(sys.argv[1]), Header("box", False, 1, 0.0), print)
cells = CellWriter(1)
writer.write_line(10, format_event(Event(1764000003.0, EventKind.BENCH_BEGIN, "benchmark of 8 streams begins")))
second = 1764000000
while True:
    for line in cells.add_reading(range(second, second + 1), {(0, "power_w"): float(second % 100)}):
        writer.write_line(1, line)
    second += 1
    print(second, flush=True)
    time.sleep(0.001)
"""


def test_a_kill_loses_at_most_the_last_seconds_and_the_benchmark_that_it_cut_has_its_end(
    folder: Path,
) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    while int(child.stdout.readline()) < T0 + 200:
        pass
    alive = history_files.load_history(folder, "box", NOW).history
    assert [event.kind for event in alive.events] == [EventKind.BENCH_BEGIN], (
        "its Workbench is alive"
    )
    child.send_signal(signal.SIGKILL)
    with child:
        last = int((child.stdout.read().split() or [T0 + 200])[-1])
    history = history_files.load_history(folder, "box", float(last)).history
    known = [second for second in range(T0, last) if history.value_at(POWER, second) is not None]
    assert known[0] == T0 and known[-1] > last - 50 and len(known) == known[-1] - T0 + 1
    assert all(history.value_at(POWER, second) == second % 100 for second in known)
    begin, end = history.events
    assert end.kind is EventKind.BENCH_END and begin.unix_s < end.unix_s <= last
    assert end.text == "benchmark of 8 streams ends: Workbench ended during the benchmark"


@pytest.mark.parametrize("how", ["not a directory", "full"])
def test_a_disk_that_cannot_be_written_is_told_once_and_costs_only_the_history(
    folder: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said, told = list[str](), threading.Event()

    def tell(problem: str) -> None:
        said.append(problem)
        told.set()

    if how == "full":
        monkeypatch.setattr(
            history_files.os,
            "write",
            lambda *_: (_ for _ in ()).throw(OSError(28, "No space left")),
        )
    else:
        folder.parent.parent.mkdir(parents=True)
        folder.parent.write_text("a file")
    writer = HistoryWriter(folder, Header("box", False, 1, T0), tell)
    for line in lines_at(0, 100, 100.0):
        writer.write_line(1, line)
    assert told.wait(10)
    writer.close()
    assert len(said) == 1 and str(folder) in said[0]


def test_old_files_are_removed_and_all_files_are_bounded(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    other = history_files.history_directory("gone", simulated=False)
    for place, name, age_s in (
        (folder, "1-1-a.1.1s.jsonl", 2 * 3600),
        (folder, "1-1-a.1.10s.jsonl", 2 * 3600),
        (folder, "2-2-b.1.10s.jsonl", 3 * 86_400),
        (folder, "3-3-c.1.1s.jsonl", 10),
        (other, "1-1-a.1.1s.jsonl", 7 * 86_400),
    ):
        written(place, name=name)
        os.utime(place / name, (now - age_s, now - age_s))
    history_files.delete_old_files(folder, now)
    assert sorted(path.name for path in folder.iterdir()) == [
        "1-1-a.1.10s.jsonl",
        "3-3-c.1.1s.jsonl",
    ]
    assert not other.exists()
    monkeypatch.setattr(history_files, "MOST_BYTES", 100)
    written(folder, "x" * 200, name="4-4-d.1.1s.jsonl")
    history_files.delete_old_files(folder, time.time())
    assert not list(folder.iterdir()) if folder.exists() else True


def test_files_of_others_stay_and_those_of_the_future_go_first(
    folder: Path, tmp_path: Path
) -> None:
    now = time.time()
    data = tmp_path / "data"
    data.mkdir()
    (data / "training.jsonl").write_text("mine")
    written(folder, name="keep.jsonl")
    (folder.parent / "link").symlink_to(data)
    for path in (data / "training.jsonl", folder / "keep.jsonl"):
        os.utime(path, (now - 10**6, now - 10**6))
    half = "x" * (history_files.MOST_BYTES // 2)
    for name, at in (
        ("1-1-a.1.1s.jsonl", now + 10**7),
        ("2-2-b.1.1s.jsonl", now),
        ("3-3-c.1.1s.jsonl", now - 60),
    ):
        written(folder, half if at != now else "", name=name)
        os.utime(folder / name, (at, at))
    history_files.delete_old_files(folder, now)
    assert (data / "training.jsonl").exists() and (folder / "keep.jsonl").exists()
    assert not (folder / "1-1-a.1.1s.jsonl").exists(), "a wrong clock made it"
    assert (folder / "2-2-b.1.1s.jsonl").exists() and (folder / "3-3-c.1.1s.jsonl").exists()


def test_a_full_disk_leaves_neither_files_nor_descriptors(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_files, "_RETRY_S", 0.0)
    writer = HistoryWriter(folder, Header("box", False, 1, T0), lambda problem: None)
    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(
        history_files.os, "write", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left"))
    )
    for line in lines_at(0, 50, 100.0):
        writer.write_line(1, line)
    writer.close()
    assert len(os.listdir("/proc/self/fd")) < before + 10 and not list(folder.iterdir())


def test_a_huge_file_is_not_read(folder: Path) -> None:
    written(folder, *lines_at(0, 10, 100.0))
    written(folder, name="2-2-b.1.1s.jsonl")
    os.truncate(folder / "2-2-b.1.1s.jsonl", 10**12)  # with a hole, as after a loss of power
    assert history_files.load_history(folder, "box", NOW).history.value_at(POWER, T0 + 5) == 100.0


def test_own_files_are_not_read_again(folder: Path, writer: HistoryWriter) -> None:
    for line in lines_at(0, 10, 100.0):
        writer.write_line(1, line)
    writer.close()
    assert POWER in history_files.load_history(folder, "box", NOW).history
    assert POWER not in history_files.load_history(folder, "box", NOW, writer.name).history

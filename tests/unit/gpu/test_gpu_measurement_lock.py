"""The measurement lock: one holder at a time on a host, whichever user; released when the holder
dies in any way."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.hostile import hostile_numbers, hostile_texts

from workbench.gpu import remote_programs
from workbench.gpu.measurement_lock import (
    IfHeld,
    _owner_from_json,
    locked_for_measurement,
    read_lock_holder,
)
from workbench.hosts.local import LocalHost
from workbench.model.errors import BenchError

# one that every user may run
PYTHON = shutil.which("python3", path="/usr/bin:/usr/local/bin") or sys.executable
LOCK = replace(remote_programs.MEASUREMENT_LOCK_PROGRAM, kept=False)
FIELDS = ("what", "user", "machine", "since_unix_s", "pid")
anything = hostile_numbers() | hostile_texts() | st.none()
HOLDER = LOCK.argv(PYTHON, False, {"what": "experiment 7", "machine": "far-away", "wait": False})


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory for all users, of this test. It is not below pytest's directory, which each start
    of pytest on the machine closes to other users."""
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o1777)
        monkeypatch.setenv("WORKBENCH_GPU_REGISTER", directory)
        yield Path(directory)


@contextlib.contextmanager
def held(place: Path, **how: object) -> Iterator[subprocess.Popen[bytes]]:
    """By another process, which is killed at the end at the latest."""
    process = subprocess.Popen(HOLDER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **how)  # type: ignore[call-overload]
    try:
        process.stdin.write(LOCK.stdin_frame(False))
        process.stdin.flush()
        assert json.loads(process.stdout.readline()) == {"held": True}
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


async def taken(wait: bool = False, told: list[str] | None = None) -> bool:
    """Whether it is to be had."""
    async with locked_for_measurement(
        LocalHost(),
        "a benchmark",
        if_held=IfHeld.WAIT if wait else IfHeld.REFUSE,
        report=(told if told is not None else []).append,
    ):
        return True


def test_a_second_one_is_refused_with_who_what_and_since(place: Path) -> None:
    async def scenario() -> None:
        async with locked_for_measurement(LocalHost(), "a sweep of \x1b[31mpower", report=print):
            with pytest.raises(
                BenchError,
                match=f"is being measured: a sweep of .*power, by {getpass.getuser()} since",
            ) as e:
                await taken()
            assert (
                "\x1b" not in e.value.message
                and e.value.next_step is not None
                and "--wait" in e.value.next_step
            )
        assert await taken()

    for _ in range(3):
        asyncio.run(scenario())
    assert len(list(place.iterdir())) <= 2, "the lock, and what the last one said"


def test_one_that_waits_begins_when_the_first_ends(place: Path) -> None:
    async def scenario() -> None:
        told: list[str] = []
        async with locked_for_measurement(LocalHost(), "the first", report=print):
            second = asyncio.create_task(taken(True, told))
            while not told:
                await asyncio.sleep(0.01)
            assert "the first, by" in told[0] and not second.done()
        assert await asyncio.wait_for(second, 30)

    asyncio.run(scenario())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_it_is_free_when_its_holder_is_killed(place: Path, number: signal.Signals) -> None:
    with held(place) as process:
        with pytest.raises(BenchError, match=r"experiment 7, by .* from far-away since"):
            asyncio.run(taken())
        process.send_signal(number)
        process.wait()
        assert asyncio.run(taken())


def test_it_is_free_when_whoever_started_its_holder_is_gone(place: Path) -> None:
    with held(place) as process:
        process.stdin.close()  # type: ignore[union-attr]
        process.wait(30)
        assert asyncio.run(taken())


@pytest.mark.skipif(
    os.geteuid() != 0 or sys.executable == PYTHON,
    reason="becoming another user takes root, and a python3 for all",
)
def test_another_user_holds_it(place: Path) -> None:
    with (
        held(place, user=65534, group=65534, cwd="/"),
        pytest.raises(BenchError, match="experiment 7, by nobody"),
    ):
        asyncio.run(taken())
    told: list[str] = []
    assert asyncio.run(taken(told=told)) and not told, (
        "the lock file of another user serves as well"
    )
    with held(place), held_by_nobody_is_refused(place):
        pass


@contextlib.contextmanager
def held_by_nobody_is_refused(place: Path) -> Iterator[None]:
    done = subprocess.run(
        HOLDER,
        input=LOCK.stdin_frame(False),
        stdout=subprocess.PIPE,
        user=65534,
        group=65534,
        cwd="/",
        check=True,
    )
    assert json.loads(done.stdout)["by"]["what"] == "experiment 7"
    yield


@pytest.mark.parametrize("kind", ["fifo", "link", "directory"])
def test_what_stands_in_place_of_the_lock_stops_nobody(place: Path, kind: str) -> None:
    lock = place / "workbench-measuring.lock"
    if kind == "fifo":
        os.mkfifo(lock)
    elif kind == "link":
        lock.symlink_to(place / "elsewhere")
    else:
        lock.mkdir()
    told: list[str] = []
    assert asyncio.run(asyncio.wait_for(taken(told=told), 30))
    assert len(told) == 1 and "it is unknown whether others measure on this host" in told[0]
    assert not (place / "elsewhere").exists()


async def named(place: Path) -> str:
    """Who has it, as the refusal says."""
    with pytest.raises(BenchError) as refused:
        await taken()
    return refused.value.message


@contextlib.contextmanager
def flocked(path: Path, **how: object) -> Iterator[subprocess.Popen[bytes]]:
    """By a program that is not Workbench."""
    program = (
        "import fcntl, os, sys; f = os.open(sys.argv[1], os.O_RDONLY | os.O_CREAT); "
        "fcntl.flock(f, fcntl.LOCK_EX); print(1, flush=True); sys.stdin.read()"
    )
    argv = [PYTHON, "-c", program, str(path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(argv, **pipes, **how) as process:  # type: ignore[call-overload]
        try:
            assert process.stdout.readline() == b"1\n"
            yield process
        finally:
            process.kill()


def test_another_program_that_has_the_lock_is_named_with_its_user_and_command(place: Path) -> None:
    with flocked(place / "workbench-measuring.lock") as process:
        message = asyncio.run(asyncio.wait_for(named(place), 30))
        assert f"by {getpass.getuser()} since" in message and f"(process {process.pid})" in message
        assert "the command `" in message and "fcntl.flock" in message


def test_two_measurements_at_the_same_time_name_each_other(place: Path) -> None:
    async def scenario() -> None:
        told: list[str] = []
        here, began_s = LocalHost(), time.monotonic()
        beside = locked_for_measurement(here, "ours", if_held=IfHeld.BESIDE, report=print)
        async with locked_for_measurement(here, "theirs", report=told.append) as theirs:
            assert theirs.owner_texts_since(began_s) == ()
            async with beside as ours:
                assert ours.owner_texts_since(began_s)[0].startswith("theirs, by ")
                await until(lambda: bool(theirs.owner_texts_since(began_s)))
            await until(lambda: not theirs.owner_texts_since(time.monotonic()))
            # of a load that began before its end, it stays known
            assert theirs.owner_texts_since(began_s)[0].startswith("ours, by ")
            assert len(told) == 1 and "at the same time: ours, by " in told[0]
        assert not list(place.glob("workbench-measuring-beside.*"))

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_a_lock_whose_program_is_killed_is_taken_again_and_its_loss_is_known(place: Path) -> None:
    """The measurement went on without a lock, and nothing said so."""

    async def scenario() -> None:
        told: list[str] = []
        began_s = time.monotonic()
        async with locked_for_measurement(LocalHost(), "ours", report=told.append) as others:
            assert others.duration_without_lock_s(began_s) is None
            (file,) = place.glob("workbench-measuring.*.json")
            os.kill(json.loads(file.read_text())["pid"], signal.SIGKILL)
            await until(lambda: others.duration_without_lock_s(began_s) is not None)
            await until(lambda: not others.lock_is_lost)
            with pytest.raises(BenchError, match="is being measured: ours, by "):
                await taken()
            assert len(told) == 1 and "the measurement lock is lost" in told[0]
            assert others.duration_without_lock_s(began_s) > 0.0  # type: ignore[operator]
            assert (
                others.duration_without_lock_s(time.monotonic()) is None
            )  # of a load that begins now
        assert await taken()

    asyncio.run(asyncio.wait_for(scenario(), 30))


async def until(true: Callable[[], bool]) -> None:
    while not true():
        await asyncio.sleep(0.01)


ODD_TIMES = ["1e308", "-1e300", '"nan"', "NaN", "1e999", "9" * 400, "true", "-1", "null"]


@pytest.mark.parametrize("since", ODD_TIMES)
def test_a_junk_file_of_a_neighbour_names_nobody_and_stops_nothing(place: Path, since: str) -> None:
    """Its own lock is held, so that it looks like that of a running holder."""
    junk = place / "workbench-measuring.7.x.json"
    said = f'{{"pid": 1, "since_unix_s": {since}, "what": "x", "machine": "m"}}'
    junk.write_text(said)
    with flocked(junk):
        assert asyncio.run(read_lock_holder(LocalHost(), str(place))) is None
        with held(place):
            assert asyncio.run(named(place)).partition(": ")[2].startswith("experiment 7, by ")
            found = asyncio.run(read_lock_holder(LocalHost(), str(place)))
            assert found is not None and found.what == "experiment 7" and str(found)


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(FIELDS, anything)) | anything)
def test_whatever_the_program_on_the_host_says_names_an_owner_or_nobody(said: object) -> None:
    owner = _owner_from_json(said)
    assert owner is None or (str(owner).isprintable() and len(str(owner)) < 1000)


def test_forged_words_are_never_believed_nor_waited_for(place: Path) -> None:
    os.mkfifo(place / "workbench-measuring.0.aa.json")
    (place / "workbench-measuring.0.bb.json").write_text("{" * 3000)
    (place / "workbench-measuring.0.cc.json").write_text(
        json.dumps({"what": "x", "pid": 1, "since_unix_s": 1e999})
    )
    (place / "workbench-measuring.0.dd.json").write_text("x" * 100_000)
    with held(place), pytest.raises(BenchError, match="experiment 7, by"):
        asyncio.run(asyncio.wait_for(taken(), 30))

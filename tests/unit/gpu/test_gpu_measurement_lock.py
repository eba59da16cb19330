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
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from workbench.gpu import remote_programs
from workbench.gpu.measurement_lock import locked_for_measurement
from workbench.hosts.local import LocalHost
from workbench.model.errors import BenchError

# one that every user may run
PYTHON = shutil.which("python3", path="/usr/bin:/usr/local/bin") or sys.executable
LOCK = replace(remote_programs.MEASUREMENT_LOCK, kept=False)
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
        process.stdin.write(LOCK.frame(False))
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
        LocalHost(), "a benchmark", wait=wait, tell=(told if told is not None else []).append
    ):
        return True


def test_a_second_one_is_refused_with_who_what_and_since(place: Path) -> None:
    async def scenario() -> None:
        async with locked_for_measurement(
            LocalHost(), "a sweep of \x1b[31mpower", wait=False, tell=print
        ):
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
        async with locked_for_measurement(LocalHost(), "the first", wait=False, tell=print):
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
        input=LOCK.frame(False),
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


def test_forged_words_are_never_believed_nor_waited_for(place: Path) -> None:
    os.mkfifo(place / "workbench-measuring.0.aa.json")
    (place / "workbench-measuring.0.bb.json").write_text("{" * 3000)
    (place / "workbench-measuring.0.cc.json").write_text(
        json.dumps({"what": "x", "pid": 1, "since_unix_s": 1e999})
    )
    (place / "workbench-measuring.0.dd.json").write_text("x" * 100_000)
    with held(place), pytest.raises(BenchError, match="experiment 7, by"):
        asyncio.run(asyncio.wait_for(taken(), 30))

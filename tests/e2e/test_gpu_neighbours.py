"""What neighbours on a host write about their measurements stops no change and no revert of GPU
settings, and neither does a warning that cannot be made."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.scripted_server import ScriptedServer, chat_events, chunked, openai

from workbench.model.measurement_owner import MeasurementOwner
from workbench.session.bench.measurement_lock import MeasurementLock
from workbench.session.gpu.alterations import GpuAlterations

PRO = ("--simulate", "rtx-pro-6000")
HOLD = (
    "import fcntl, os, sys; [fcntl.flock(os.open(p, os.O_RDONLY | os.O_CREAT), fcntl.LOCK_EX) "
    "for p in sys.argv[1:]]; print(1, flush=True); sys.stdin.read()"
)
ODD = ["1e308", "-1e300", '"nan"', "NaN", "1e999", "9" * 400, "true", "[]"]
Cli = Callable[..., Any]


@pytest.fixture(params=ODD)
def neighbour(request: pytest.FixtureRequest, cli: Cli) -> Iterator[int]:
    """A process that holds the measurement lock, and a file in which it names itself wrongly. The
    value is its process id."""
    change(cli, 500)  # makes the register of the simulated host
    (place,) = Path(os.environ["XDG_STATE_HOME"]).rglob("register")
    files = [place / "workbench-measuring.lock", place / "workbench-measuring.0.x.json"]
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, *map(str, files)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == b"1\n"
        said = f'"pid": {process.pid}, "since_unix_s": {request.param}'
        files[1].write_text(f'{{{said}, "what": "x", "machine": "m"}}')
        yield process.pid
        process.kill()


def limit_w(cli: Cli) -> float:
    return float(cli(*PRO, "gpu", "status", "--json").document["gpus"][0]["power_limit_w"])


def change(cli: Cli, watts: int) -> None:
    ran = cli(*PRO, "gpu", "set", "--power-limit", str(watts), "--yes")
    assert ran.code == 0, ran


@pytest.mark.ci_cases(1)
@pytest.mark.slow
def test_a_junk_file_of_a_neighbour_stops_nothing(cli: Cli, neighbour: int) -> None:
    change(cli, 400)
    assert limit_w(cli) == 400
    ran = cli(*PRO, "gpu", "revert")
    assert ran.code == 0 and "is being measured" in ran.err and str(neighbour) in ran.err
    assert limit_w(cli) == 600
    assert "defect" not in ran.err + ran.out


@pytest.mark.ci_cases(1)
@pytest.mark.parametrize(
    ("of", "name"),
    [
        (MeasurementLock, "refresh_other_lock_owner"),
        (GpuAlterations, "read"),
        (MeasurementOwner, "__str__"),
    ],
)
def test_a_warning_that_cannot_be_made_stops_no_revert(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, of: type, name: str
) -> None:
    before = limit_w(cli)
    change(cli, 400)

    def fails(*_: object) -> str:
        raise OverflowError("timestamp out of range for platform time_t")

    async def owned(self: MeasurementLock) -> None:
        owner = MeasurementOwner("a benchmark", "eve", "far", 1e308, 1)
        self._core.update_host(measured_by=owner)

    with monkeypatch.context() as patch:
        patch.setattr(MeasurementLock, "refresh_other_lock_owner", owned)
        patch.setattr(of, name, fails)
        ran = cli(*PRO, "gpu", "revert", "--json")
    assert ran.code == 0 and ran.document["ok"], ran
    assert "warning: it is unknown whether others measure" in ran.err
    assert limit_w(cli) == before
    assert json.loads(ran.out)["outcomes"][0]["ok"]


def whole(*_: object) -> list[bytes | str]:
    time.sleep(0.05)  # the server's pace
    return [chunked(chat_events(3))]


@pytest.mark.slow
def test_a_lock_that_somebody_keeps_can_be_passed_over_and_marks_the_result(cli: Cli) -> None:
    """A neighbour may hold the lock for ever, with any program. A second one measures beside it."""
    place = Path(os.environ["WORKBENCH_GPU_REGISTER"])
    place.mkdir(exist_ok=True)
    place.chmod(0o1777)
    small = ("--requests", "8", "--concurrency", "4", "--max-tokens", "3", "--warmup", "0")
    files = [place / "workbench-measuring.lock", place / "workbench-measuring-beside.0.x.json"]
    with (
        subprocess.Popen(
            [sys.executable, "-c", HOLD, *map(str, files)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as process,
        ScriptedServer(openai(whole)) as server,
    ):
        assert process.stdout is not None and process.stdout.readline() == b"1\n"
        files[1].write_text(
            '{"pid": 1, "since_unix_s": 1.0, "what": "a sweep", "machine": "far-away"}'
        )
        refused = cli("bench", "--url", server.url, *small)
        ran = cli("bench", "--url", server.url, *small, "--anyway", "--json")
        process.kill()
    assert refused.code == 1 and f"process {process.pid}" in refused.err, refused
    assert "--anyway" in refused.err
    said = "somebody else measured on this host at the same time: the command `"
    told = json.dumps(ran.document)
    assert said in told and "; a sweep, by " in told and " from far-away since" in told, ran
    assert "measuring beside it" in ran.err


@pytest.mark.slow
def test_a_result_says_that_its_lock_was_lost(cli: Cli) -> None:
    """Somebody killed the program that held the lock, and the benchmark went on without a word."""
    place = Path(os.environ["WORKBENCH_GPU_REGISTER"])
    killed: list[int] = []

    def answer(*asked: object) -> list[bytes | str]:
        for file in () if killed else place.glob("workbench-measuring.*.json"):
            killed.append(json.loads(file.read_text())["pid"])
            os.kill(killed[0], signal.SIGKILL)
        return whole(*asked)

    small = ("--requests", "8", "--concurrency", "4", "--max-tokens", "3", "--warmup", "0")
    with ScriptedServer(openai(answer)) as server:
        ran = cli("bench", "--url", server.url, *small, "--json")
    assert killed, ran
    told = json.dumps(ran.document)
    assert "the measurement lock of this host was lost for" in told

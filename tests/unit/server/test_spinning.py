"""A start whose GPUs only spin is told from slow starts that work."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Callable

import pytest
from support.fake_runs import READY_S, Make, start
from support.serving import supervised

from workbench.hosts.local import LocalHost
from workbench.model.gpu import DriverInfo, GpuSample, HostSample, Telemetry
from workbench.model.server_run import ServerState, ServerStatus
from workbench.server import spinning
from workbench.server.spinning import SpinWatch, spinning_finding
from workbench.server.supervisor import ServerEvent, Supervisor
from workbench.session.session import Session

GIB = 2**30
Reading = tuple[float, float, float]  # utilization in percent, power in watts, memory in GiB
Gpu = Callable[[float], Reading]  # by seconds


def sample(index: int, reading: Reading, limit_w: float | None = 300.0) -> GpuSample:
    util, power, memory = reading
    return GpuSample(
        index,
        f"GPU-{index}",
        gpu_util_pct=util,
        power_w=power,
        power_limit_enforced_w=limit_w,
        memory_used_bytes=int(memory * GIB),
    )


def named_after_s(gpus: list[Gpu], seconds: int, used: set[int] | None = None) -> int | None:
    """Return after how many seconds a start on these GPUs is named, None if it is not."""
    watch = SpinWatch()
    for at_s in range(0, seconds, 2):
        watch.add_reading([sample(i, gpu(at_s)) for i, gpu in enumerate(gpus)], float(at_s))
        if watch.find_spinning_gpus(used):
            return at_s
    return None


IDLE: Gpu = lambda at_s: (0.0, 18.0, 0.5)  # noqa: E731
SPINS: Gpu = lambda at_s: (100.0, 62.0, 22.0)  # noqa: E731
WORKS: Gpu = lambda at_s: (100.0, 250.0, 22.0)  # noqa: E731

HANGS: dict[str, list[Gpu]] = {
    "both ranks in a collective": [SPINS, SPINS],
    "one rank waits, the other has ended": [SPINS, IDLE],
    "96 % and 22 W": [lambda at_s: (96.0, 22.0, 8.0)],
    "utilization and power flicker": [lambda at_s: (97.0 + at_s % 3, 60.0 + at_s % 5, 22.0)],
    "after a minute of loading": [lambda at_s: (5.0, 70.0, at_s / 4) if at_s < 60 else SPINS(at_s)],
    "four ranks during capture": [SPINS] * 4,
}


@pytest.mark.parametrize("gpus", HANGS.values(), ids=HANGS)
def test_a_start_that_spins_is_named_after_three_minutes(gpus: list[Gpu]) -> None:
    named_s = named_after_s(gpus, 300)
    assert named_s is not None and 180 <= named_s <= 245


def slow_start(seed: int) -> list[Gpu]:
    """Return the GPUs of a start that works, for ten minutes without a line of the log."""
    rng = random.Random(seed)
    kind = seed % 8
    jitter = [rng.uniform(-1, 1) for _ in range(700)]
    step_s = rng.randint(20, 150)

    def gpu(at_s: float) -> Reading:
        noise = jitter[int(at_s)]
        match kind:
            case 0:  # weights arrive from a slow disk
                return 2.0 + noise, 60.0 + noise, 1.0 + at_s * 0.01
            case 1:  # the CPU compiles
                return 0.0, 20.0 + noise, 20.0
            case 2:  # kernels are tuned: busy, little power, changing
                return 60.0 + 35 * noise, 50.0 + 20 * noise, 20.0
            case 3:  # graphs are captured: memory grows in steps
                return 99.0, 60.0, 20.0 + at_s // step_s * 0.01
            case 4:  # prefill of the profile run
                return 100.0, 220.0 + 20 * noise, 20.0
            case 5:  # one long kernel after the other, with power
                return 100.0, 90.0 + noise, 20.0
            case 6:  # phases, of at most 150 s
                return (100.0, 60.0, 20.0) if at_s // step_s % 2 else (0.0, 25.0, 20.0)
            case _:  # weights are copied: busy with little power
                return 80.0 + noise, 55.0, 1.0 + at_s * 0.02

    return [gpu] * rng.choice((1, 2, 4))


def test_no_kind_of_slow_start_is_called_a_hang() -> None:
    assert [seed for seed in range(8) if named_after_s(slow_start(seed), 260) is not None] == []


@pytest.mark.slow
@pytest.mark.long
def test_none_of_200_slow_starts_is_called_a_hang() -> None:
    assert [seed for seed in range(200) if named_after_s(slow_start(seed), 600) is not None] == []


def test_gpus_of_others_count_only_if_nothing_says_whose_they_are() -> None:
    assert named_after_s([SPINS, WORKS], 400) is None
    assert named_after_s([SPINS, WORKS], 400, {0}) == 180
    assert named_after_s([SPINS, WORKS], 400, {1}) is None
    assert named_after_s([SPINS], 400, {0, 1}) is None  # one of them is not read


def test_an_absent_value_and_a_gap_in_the_readings_are_no_proof() -> None:
    watch = SpinWatch()
    for at_s in range(0, 400, 2):
        watch.add_reading([sample(0, SPINS(at_s), None)], float(at_s))
    assert not watch.find_spinning_gpus(None)
    for at_s in range(0, 400, 20):
        watch.add_reading([sample(0, SPINS(at_s))], float(at_s))
    assert not watch.find_spinning_gpus(None)


def test_the_finding_says_what_is_seen_and_what_to_do() -> None:
    watch = SpinWatch()
    for at_s in range(0, 200, 2):
        watch.add_reading([sample(0, (96.0, 22.0, 8.0)), sample(1, SPINS(at_s))], float(at_s))
    found = spinning_finding(watch.find_spinning_gpus(None), "starting the workers", 3, 94.6)
    assert found.code == "start.spinning" and found.evidence == (
        "GPU 0: 96 % utilization, 22 W of 300 W; GPU 1: 100 % utilization, 62 W of 300 W"
    )
    assert "spinning, not working, for 3 min in the phase “starting the workers”" in found.text
    assert "This start took 95 s before" in found.text and "NCCL_P2P_DISABLE=1" in (found.fix or "")


@pytest.mark.slow
def test_a_real_start_that_was_stopped_by_a_signal_is_named(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spinning, "SPINNING_AFTER_S", 0.3)
    monkeypatch.setattr("workbench.server.watched_run.STUCK_AFTER_S", 0.2)

    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        run_id = await start(supervisor, make("never"))
        await supervisor.wait(run_id, lambda now: now.phase is not None, READY_S)
        pid = supervisor.status(run_id).pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            named = asyncio.ensure_future(supervisor.wait(run_id, is_spinning, READY_S))
            while not named.done():
                supervisor.record_gpu_samples([sample(0, SPINS(0)), sample(1, SPINS(0))])
                await asyncio.wait([named], timeout=0.05)
            now = named.result()
        finally:
            os.kill(pid, signal.SIGCONT)
        assert now.state is ServerState.STARTING
        assert [f.code for f in now.findings][:2] == ["start.spinning", "start.stuck"]
        assert "in the phase “loading weights”" in now.findings[0].text

    supervised(scenario)


def is_spinning(status: ServerStatus) -> bool:
    return any(finding.code == "start.spinning" for finding in status.findings)


def test_a_session_gives_each_reading_of_the_gpus_to_its_supervisor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = Session(LocalHost())
    heard: list[tuple[GpuSample, ...]] = []
    monkeypatch.setattr(session.servers.supervisor, "record_gpu_samples", heard.append)
    gpus = (sample(0, SPINS(0)),)
    session.servers.forward_gpu_reading(Telemetry(0.0, 0.0, DriverInfo(), HostSample(), (), gpus))
    assert heard == [gpus] and session.servers.forward_gpu_reading in session.telemetry.on_reading

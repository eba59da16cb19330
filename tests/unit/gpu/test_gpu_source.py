"""Telemetry of a host, through the real agent on the simulated NVML library."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from nvml_child import Driver
from support.guarded import Bare

from workbench.gpu.telemetry.source import TelemetrySource
from workbench.gpu.telemetry.source_of_host import read_telemetry_once
from workbench.hosts.base import HostUnreachable
from workbench.hosts.local import LocalHost, LocalStream
from workbench.model.errors import HostError
from workbench.model.gpu import DriverStatus, GpuState, Telemetry
from workbench.sim.simulated_host import SimulatedHost

FAST = {"slow_s": 0.3, "info_s": 0.4, "retry_s": 0.1, "hung_s": 0.2}


class Watched:
    """A source with the readings it gave."""

    def __init__(
        self, host: LocalHost | None = None, interval_s: float = 0.05, **options: Any
    ) -> None:
        self.readings: list[Telemetry] = []
        self.source = TelemetrySource(
            host or LocalHost(), interval_s, self.readings.append, agent_options=FAST, **options
        )

    async def __aenter__(self) -> Watched:
        await self.source.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.source.close()

    async def until(self, holds: Callable[[Telemetry], Any]) -> Telemetry:
        async with asyncio.timeout(60):
            while self.source.latest is None or not holds(self.source.latest):
                await asyncio.sleep(0.01)
        return self.source.latest


def run(work: Awaitable[None]) -> None:
    async def main() -> None:
        await work

    asyncio.run(main())


async def eventually(holds: Callable[[], Any]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.01)


def agents() -> set[int]:
    """Process ids of agents that are children of ours, at any depth."""
    found = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command = (entry / "cmdline").read_bytes()
            environ = (entry / "environ").read_bytes()
        except OSError:
            continue
        here = os.environ.get("NVML_STUB_SCRIPT", "?").encode()
        if (
            b"-c\0# workbench telemetry agent" in command
            and here in environ
            and not command.startswith(b"sh\0")
        ):
            found.add(int(entry.name))
    return found


def test_a_whole_reading(driver: Driver) -> None:
    driver.set("process 0 4242\t5368709120", "virtualization 0 1")

    async def work() -> None:
        async with Watched() as watched:
            reading = await watched.until(
                lambda t: t.infos and t.gpus and t.gpus[0].pcie_tx_mb_s is not None
            )
            assert reading.driver.status is DriverStatus.OK and reading.driver.source == "nvml"
            info, gpu = reading.info(0), reading.gpus[0]
            assert (
                info is not None
                and info.virtualization == "passthrough"
                and info.power_max_w == 600.0
            )
            assert (
                gpu.state is GpuState.LIVE
                and set(gpu.absent)
                == {"pcie_replays_per_min", "xid"}  # of seldom readings, and of events
                and gpu.event_reasons == ("SW power cap",)
            )
            assert gpu.processes is not None and gpu.processes[0].memory_bytes == 5368709120
            # read seldom, kept between
            assert (gpu.persistence, gpu.fan_pct, gpu.pcie_gen) == (True, 40, 5)
            assert (
                reading.host.memory_total_bytes
                and reading.host.load_1m is not None
                and not reading.simulated
            )
            assert watched.source.problem is None
            age = watched.source.age_s
            assert age is not None and age < 5

    run(work())


def test_lost_gpu_keeps_no_old_values(driver: Driver) -> None:
    async def work() -> None:
        async with Watched() as watched:
            await watched.until(lambda t: len(t.gpus) == 2)
            driver.set("lost 1 15")
            reading = await watched.until(lambda t: t.gpus[1].state is GpuState.LOST)
            gpu = reading.gpus[1]
            assert (
                gpu.message and gpu.fan_pct is None and gpu.sm_mhz is None and gpu.processes is None
            )
            assert reading.gpus[0].sm_mhz == 2790
            driver.set("lost 1 0", "epoch 1 1")
            await watched.until(lambda t: t.gpus[1].sm_mhz == 2790)

    run(work())


@pytest.mark.parametrize(
    ("code", "status"), [(9, "no driver"), (18, "driver/library mismatch"), (4, "no permission")]
)
def test_a_driver_problem_is_a_reading(driver: Driver, code: int, status: str) -> None:
    driver.set(f"nvmlInitWithFlags * !{code}")

    async def work() -> None:
        reading = await read_telemetry_once(LocalHost())
        assert reading.driver.status == status and reading.gpus == () and reading.driver.message

    run(work())


def test_hung_driver(driver: Driver) -> None:
    async def work() -> None:
        async with Watched() as watched:
            await watched.until(lambda t: t.gpus)
            driver.set("hang 1 nvmlDeviceGetPerformanceState")
            reading = await watched.until(lambda t: t.driver.status is DriverStatus.HUNG)
            assert ("GPU1: nvmlDeviceGetPerformanceState has not returned") in (
                watched.source.problem or ""
            )
            assert [g.state for g in reading.gpus] == [GpuState.NOT_READ, GpuState.ERROR]
            assert (
                reading.gpus[0].message == ("not read while GPU1 does not answer")
                and reading.gpus[0].sm_mhz is None
            )
            driver.clear()
            await watched.until(lambda t: t.driver.status is DriverStatus.OK and t.gpus[0].sm_mhz)
            assert watched.source.problem is None

    run(work())


@pytest.mark.slow
def test_an_agent_that_hangs_is_listened_to_until_another_is_started(driver: Driver) -> None:
    async def work() -> None:
        async with Watched(abandon_s=0.5) as watched:
            await watched.until(lambda t: t.gpus)
            first = agents()
            driver.set("hang * nvmlDeviceGetPerformanceState")
            await eventually(lambda: agents() - first)
            driver.clear()
            await watched.until(lambda t: t.driver.status is DriverStatus.OK and t.gpus[0].sm_mhz)
        await eventually(lambda: not agents())

    run(work())


def test_closing_does_not_wait_for_a_hung_driver(driver: Driver) -> None:
    driver.set("hang * nvmlInitWithFlags")

    async def work() -> None:
        async with Watched() as watched:
            await eventually(lambda: watched.source.problem)
        await eventually(lambda: not agents())

    run(work())


def test_a_killed_agent_is_started_again(driver: Driver) -> None:
    async def work() -> None:
        async with Watched() as watched:
            await watched.until(lambda t: t.gpus)
            (pid,) = agents()
            os.kill(pid, signal.SIGKILL)
            await eventually(lambda: watched.source.problem)
            assert "ended" in (watched.source.problem or "")
            count = len(watched.readings)
            await eventually(
                lambda: len(watched.readings) > count and watched.source.problem is None
            )

    run(work())


@pytest.mark.slow
def test_a_stopped_agent_is_left_behind(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workbench.gpu.telemetry.source.SILENT_BACKOFF_RANGE_S", (0.05, 0.1))

    async def work() -> None:
        async with Watched(silent_s=0.5) as watched:
            await watched.until(lambda t: t.gpus)
            (pid,) = agents()
            os.kill(pid, signal.SIGSTOP)
            await eventually(lambda: "sent nothing" in (watched.source.problem or ""))
            count = len(watched.readings)
            await eventually(lambda: len(watched.readings) > count)
        await eventually(lambda: pid not in agents())

    run(work())


def test_interval_change_and_refresh_reach_the_agent(driver: Driver) -> None:
    async def work() -> None:
        async with Watched(interval_s=30.0) as watched:
            first = await watched.until(lambda t: t.gpus)
            driver.set("nvmlDeviceGetPersistenceMode * 0")
            await watched.source.request_full_reading()
            second = await watched.until(lambda t: t.t_s > first.t_s)
            assert second.gpus[0].persistence is False
            await watched.source.set_interval(0.05)
            await eventually(lambda: len(watched.readings) > 6)

    run(work())


def test_lines_that_are_not_the_agents_are_passed_over(driver: Driver) -> None:
    class Noisy(LocalHost):
        async def stream(
            self,
            argv: Sequence[str],
            *,
            input: bytes = b"",
            env: Mapping[str, str] | None = None,
        ) -> LocalStream:
            return await super().stream(
                ["sh", "-c", 'echo Welcome; echo "{not json"; exec "$@"', "sh", *argv],
                input=input,
                env=env,
            )

    async def work() -> None:
        async with Watched(Noisy()) as watched:
            await watched.until(lambda t: t.gpus)

    run(work())


@pytest.mark.slow
def test_a_lost_link_is_told_and_picked_up_again(driver: Driver) -> None:
    class Flaky(LocalHost):
        """Makes its link again by itself, as a host behind ssh does."""

        failures = 0

        async def stream(self, *args: Any, **kw: Any) -> Any:
            if self.failures:
                self.failures -= 1
                raise HostUnreachable("no route to host", host="far")
            return await super().stream(*args, **kw)

    async def work() -> None:
        host = Flaky()
        async with Watched(host) as watched:
            await watched.until(lambda t: t.gpus)
            before = watched.source.latest
            host.failures = 2
            os.kill(agents().pop(), signal.SIGKILL)
            await eventually(lambda: watched.source.problem == "no route to host")
            # the last reading stays, with its age
            assert before is not None and watched.source.latest is not None
            count = len(watched.readings)
            await eventually(lambda: len(watched.readings) > count)
            assert watched.source.problem is None and host.failures == 0

    run(work())


def test_no_reading_at_all_is_an_error_for_a_person(driver: Driver) -> None:
    class Dead(LocalHost):
        async def stream(self, *_: Any, **__: Any) -> LocalStream:
            raise HostUnreachable("connection refused", host="far")

    async def work() -> None:
        with pytest.raises(HostError, match="connection refused"):
            await read_telemetry_once(Dead(), timeout_s=0.3)

    run(work())


def test_read_once_is_whole_and_leaves_nothing_behind(driver: Driver) -> None:
    async def work() -> None:
        reading = await read_telemetry_once(LocalHost())
        assert len(reading.infos) == len(reading.gpus) == 2 and reading.gpus[0].persistence is True
        await eventually(lambda: not agents())

    run(work())


@pytest.mark.slow
def test_energy_and_clocks_during_a_time(driver: Driver) -> None:
    from workbench.gpu.telemetry.benchmark_readings import summarize_gpu_readings

    async def work() -> None:
        async with Watched() as watched:
            await watched.until(lambda t: t.gpus)
            t0 = time.monotonic()
            for step in range(1, 11):
                driver.set(f"field.83 * {5000000 + step * 50_000}")  # 50 J each step
                count = len(watched.readings)
                await eventually(lambda n=count: len(watched.readings) > n + 1)
            t1 = time.monotonic()
            await asyncio.sleep(0.15)
            got = summarize_gpu_readings(
                watched.source.readings_between(t0, t1), [0, 1], t0, t1, interval_s=0.05
            )
            assert got.energy_j == pytest.approx(1000.0, rel=0.15)  # ten steps of 50 J on two GPUs
            assert got.power_w == pytest.approx(got.energy_j / (t1 - t0))
            assert (
                got.sm_mhz == 2790
                and got.event_reasons == {"SW power cap": 1.0}
                and got.samples >= 10
            )

    run(work())


@pytest.mark.parametrize(
    "line",
    [
        '{"driver": {"status": "a\x1b]52;c;x"}}',
        '{"driver": 5}',
        '{"infos": [{"surprise": 1}]}',
        '{"t": 1, "u": 1, "host": {}, "gpus": 7}',
        '{"t": 1, "u": 1, "host": {}, "gpus": [{"index": 0, "state": "none"}]}',
        '{"a":' + "[" * 100_000,
    ],
)
def test_what_is_no_reading_is_a_problem_of_the_host_and_no_defect(line: str) -> None:
    class Stranger(LocalHost):
        async def stream(self, argv: Sequence[str], **options: Any) -> LocalStream:
            return await super().stream(["sh", "-c", 'printf "%s\\n" "$1"', "sh", line])

    async def scenario() -> None:
        with pytest.raises(HostError):
            await read_telemetry_once(Stranger(), 0.5)

    run(scenario())


@pytest.mark.slow
def test_a_pause_of_this_process_is_not_taken_for_silence_of_the_agent(driver: Driver) -> None:
    async def work() -> None:
        async with Watched(silent_s=1.0) as watched:
            await watched.until(lambda reading: reading.gpus)
            agents, problems = driver.calls("nvmlInitWithFlags"), []
            time.sleep(2.5)
            resumed = len(watched.readings)
            async with asyncio.timeout(60):
                while len(watched.readings) < resumed + 40:  # longer than the limit
                    problems.append(watched.source.problem or "")
                    await asyncio.sleep(0.05)
            assert not any("gave up" in problem for problem in problems)
            assert driver.calls("nvmlInitWithFlags") == agents  # no other one was started

    run(work())


def test_an_agent_that_was_sent_reads_the_simulated_driver(tmp_path: Path) -> None:
    """It has few modules of Workbench, and the simulated driver imports others."""

    async def main() -> None:
        host = SimulatedHost(Bare(), "rtx-pro-6000", str(tmp_path))
        await host.connect()
        (gpu,) = (await read_telemetry_once(host)).gpus
        assert gpu.power_w

    asyncio.run(main())

"""nvidia-smi's text, and the fallback that reads a running nvidia-smi. The rows have the shape of
what drivers 570 to 595 print; the values are made up."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from smi_stub import Smi

from workbench.gpu.telemetry import nvidia_smi
from workbench.gpu.telemetry.nvidia_smi_stream import NvidiaSmiFollower
from workbench.gpu.telemetry.source import TelemetrySource
from workbench.gpu.telemetry.source_of_host import read_telemetry_once
from workbench.hosts.local import LocalHost
from workbench.hosts.python_programs import TOO_OLD
from workbench.model.gpu import DriverStatus, GpuState, HostSample

GOOD = {
    "index": "0",
    "count": "1",
    "uuid": "GPU-1",
    "driver_version": "590.48.01",
    "name": "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
    "pci.bus_id": "00000000:01:00.0",
    "compute_cap": "12.0",
    "clocks.max.sm": "3090",
    "clocks.max.mem": "14001",
    "power.default_limit": "600.00",
    "power.min_limit": "150.00",
    "power.max_limit": "600.00",
    "memory.reserved": "641",
    "pcie.link.gen.max": "5",
    "pcie.link.width.max": "16",
    "ecc.mode.current": "Disabled",
    "clocks.sm": "2790",
    "clocks.mem": "13365",
    "power.draw.instant": "512.25",
    "power.draw": "509.10",
    "power.draw.average": "508.90",
    "power.limit": "600.00",
    "enforced.power.limit": "600.00",
    "utilization.gpu": "97",
    "utilization.memory": "55",
    "memory.used": "40123",
    "memory.total": "97887",
    "temperature.gpu": "61",
    "temperature.memory": "N/A",
    "fan.speed": "42",
    "pstate": "P1",
    "clocks_event_reasons.active": "0x0000000000000004",
    "pcie.link.gen.current": "5",
    "pcie.link.width.current": "16",
    "persistence_mode": "Enabled",
}
HOST = HostSample(memory_total_bytes=128 << 30)


def csv(**changes: str) -> str:
    cells = {**GOOD, **{k.replace("__", "."): v for k, v in changes.items()}}
    return ", ".join(cells[column] for column in nvidia_smi.COLUMNS)


def parsed(line: str, used: int | None = None) -> tuple[Any, Any]:
    row = nvidia_smi.parse_row(nvidia_smi.COLUMNS, line)
    assert row is not None
    return nvidia_smi.parse_info_and_sample(row, HOST, used)


def test_a_row() -> None:
    info, gpu = parsed(csv())
    assert (info.index, info.uuid, info.sm_max_mhz, info.power_max_w, info.ecc) == (
        0,
        "GPU-1",
        3090,
        600.0,
        False,
    )
    assert (info.memory_total_bytes, info.memory_reserved_bytes) == (97887 << 20, 641 << 20)
    assert (gpu.sm_mhz, gpu.memory_mhz, gpu.power_w, gpu.power_average_w) == (
        2790,
        13365,
        512.25,
        508.9,
    )
    assert (gpu.memory_used_bytes, gpu.pstate, gpu.persistence) == (40123 << 20, 1, True)
    assert gpu.event_reasons == ("SW power cap",) and gpu.temperature_c == 61.0
    assert gpu.absent == {
        "memory_temperature_c": "not supported",
        "pcie_rx_mb_s": "nvidia-smi does not give it",
        "pcie_tx_mb_s": "nvidia-smi does not give it",
        "pcie_replays_per_min": "nvidia-smi does not give it",
        "xid": "nvidia-smi does not give it",
        "energy_j": "nvidia-smi does not give it",
        "pcie_replay_count": "nvidia-smi does not give it",
        "temperature_margin_c": "nvidia-smi does not give it",
    }


@pytest.mark.parametrize(
    ("token", "why"),
    [
        ("[N/A]", "not supported"),
        ("N/A", "not supported"),
        ("[Not Supported]", "not supported"),
        ("Not Supported", "not supported"),
        ("[Requested functionality has been deprecated]", "deprecated"),
        ("[Insufficient Permissions]", "no permission"),
        ("[Function Not Found]", "not known to this driver"),
        ("[Unknown Error]", "unknown error"),
        ("[GPU requires reset]", "gpu needs a reset"),
        ("[Something New]", "something new"),
        ("ERR!", "error"),
        ("", "empty"),
        ("twelve", "not understood: twelve"),
        ("-1", "not understood: -1"),
        ("nan", "not understood: nan"),
    ],
)
def test_an_absent_value_has_its_reason_and_is_never_zero(token: str, why: str) -> None:
    _, gpu = parsed(csv(clocks__sm=token, pstate=token, utilization__gpu=token, memory__used=token))
    for field in ("sm_mhz", "pstate", "gpu_util_pct", "memory_used_bytes"):
        assert getattr(gpu, field) is None and gpu.absent[field] == why
    assert gpu.memory_mhz == 13365 and gpu.state is GpuState.LIVE


def test_power_falls_back_to_the_older_column() -> None:
    _, gpu = parsed(csv(**{"power.draw.instant": "[N/A]"}))
    assert gpu.power_w == 509.1 and "power_w" not in gpu.absent
    _, gpu = parsed(csv(**{"power.draw.instant": "[N/A]", "power.draw": "[N/A]"}))
    assert gpu.power_w is None and gpu.absent["power_w"] == "not supported"


def test_gb10_is_unified() -> None:
    line = csv(
        name="NVIDIA GB10", memory__used="[N/A]", memory__total="[N/A]", power__limit="[N/A]"
    )
    info, gpu = parsed(line, used=5 << 30)
    assert info.unified_memory and info.memory_total_bytes == gpu.memory_total_bytes == 128 << 30
    assert gpu.memory_used_bytes == 5 << 30 and gpu.absent["power_limit_w"] == "not supported"
    _, gpu = parsed(line)
    assert gpu.memory_used_bytes is None and "unified" in gpu.absent["memory_used_bytes"]


def test_a_name_with_commas() -> None:
    info, gpu = parsed(csv(name="NVIDIA Odd, Very Odd"))
    assert info.name == "NVIDIA Odd, Very Odd" and gpu.sm_mhz == 2790


@pytest.mark.parametrize(
    "line", ["", "0, 1", "No devices were found", "Failed to initialize NVML: Unknown Error", ",,,"]
)
def test_what_is_no_row(line: str) -> None:
    assert nvidia_smi.parse_row(nvidia_smi.COLUMNS, line) is None


@given(
    st.lists(
        st.text(st.characters(exclude_characters="\n\r,"), max_size=30), min_size=40, max_size=40
    )
)
def test_whatever_it_prints_gives_values_or_reasons(cells: list[str]) -> None:
    row = nvidia_smi.parse_row(nvidia_smi.COLUMNS, ",".join(["3", *cells])[:2000])
    if row is None:
        return
    info, gpu = nvidia_smi.parse_info_and_sample(row, HOST)
    assert gpu.index == info.index == 3
    for field in (
        "sm_mhz",
        "power_w",
        "gpu_util_pct",
        "memory_used_bytes",
        "temperature_c",
        "pstate",
        "fan_pct",
    ):
        value = getattr(gpu, field)
        assert (value is None) == (field in gpu.absent)
        assert value is None or value >= 0


@given(st.text(max_size=200), st.integers(-15, 255))
def test_driver_problem_never_fails(text: str, code: int) -> None:
    found = nvidia_smi.parse_driver_problem(text, code)
    assert found is None or found.status is not DriverStatus.OK


@pytest.mark.parametrize(
    ("text", "code", "status"),
    [
        (
            "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: "
            "590.48",
            18,
            "driver/library mismatch",
        ),
        (
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make "
            "sure",
            9,
            "no driver",
        ),
        ("No devices were found", 6, "no gpu"),
        ("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.", 12, "no library"),
        ("Failed to initialize NVML: Insufficient Permissions", 4, "no permission"),
        ("Failed to initialize NVML: Unknown Error", 255, "error"),
        ("", 9, "no driver"),
        ("", 77, "error"),
    ],
)
def test_driver_problems(text: str, code: int, status: str) -> None:
    found = nvidia_smi.parse_driver_problem(text, code)
    assert (
        found is not None
        and found.status == status
        and found.message
        and found.source == "nvidia-smi"
    )


def test_columns_that_an_older_one_does_not_know() -> None:
    text = 'Field "clocks_event_reasons.active" is not a valid field to query.\n\n'
    fewer = nvidia_smi.drop_or_rename_invalid_column(nvidia_smi.COLUMNS, text)
    assert (
        fewer is not None
        and "clocks_throttle_reasons.active" in fewer
        and len(fewer) == len(nvidia_smi.COLUMNS)
    )
    fewer = nvidia_smi.drop_or_rename_invalid_column(
        fewer, 'Field "power.draw.instant" is not a valid field to query.'
    )
    assert fewer is not None and "power.draw.instant" not in fewer
    assert nvidia_smi.drop_or_rename_invalid_column(fewer, "3, 1, GPU-1") is None
    row = dict.fromkeys(fewer, "[N/A]") | {"index": "0", "uuid": "GPU-1", "power.draw": "9.5"}
    row["clocks_throttle_reasons.active"] = "0x0000000000000001"
    _, gpu = nvidia_smi.parse_info_and_sample(row, HOST)
    assert gpu.power_w == 9.5 and gpu.event_reasons == ("GPU idle",)


def test_processes_and_host() -> None:
    text = (
        "GPU-1, 4242, 1024, /usr/bin/python3\nGPU-1, 77, [N/A], [Not Found]\nnonsense\nGPU-2, "
        "5, 1, a, b\n"
    )
    found = nvidia_smi.parse_processes(text)
    assert [(p.pid, p.memory_bytes, p.name) for p in found["GPU-1"]] == [
        (4242, 1 << 30, "python3"),
        (77, None, None),
    ]
    assert found["GPU-2"][0].name == "a, b"
    host = nvidia_smi.parse_host_memory_and_load(
        "MemTotal:  1024 kB\nMemFree: 1 kB\nMemAvailable:  512 kB\n0.50 0.40 0.30 1/200 4242\n"
    )
    assert (host.memory_total_bytes, host.memory_available_bytes, host.load_1m) == (
        1 << 20,
        512 << 10,
        0.5,
    )
    assert nvidia_smi.parse_host_memory_and_load("").absent["memory_total_bytes"]


class NoPython(LocalHost):
    """A host whose python3 cannot run the agent."""

    kind, is_local = "ssh", False
    is_local = False

    def __init__(self, code: int = TOO_OLD) -> None:
        super().__init__()
        self.code = code

    async def stream(self, argv: Any, **options: Any) -> Any:
        if argv[0] == "python3":
            argv = ["sh", "-c", f"exit {self.code}"]
        return await super().stream(argv, **options)


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Smi:
    made = Smi(tmp_path / "bin", tmp_path / "script", tmp_path / "journal")
    monkeypatch.setenv("PATH", f"{made.here}:{os.environ['PATH']}")
    return made


def run(work: Awaitable[None]) -> None:
    async def main() -> None:
        async with asyncio.timeout(30):
            await work

    asyncio.run(main())


LOOPING = """
if "compute-apps" in line:
    print("GPU-0, 4242, 1024, python3")
else:
    for tick in range(1000 if "-lms" in line else 1):
        {body}
        sys.stdout.flush()
        if "-lms" in line: time.sleep(0.05)
"""


@pytest.mark.parametrize("code", [TOO_OLD, 127])
def test_without_python_nvidia_smi_is_read(fake: Smi, code: int) -> None:
    rows = [csv(index=str(i), uuid=f"GPU-{i}", count="2") for i in range(2)]
    fake.query(LOOPING.format(body=f"print({rows[0]!r}); print({rows[1]!r})"))

    async def work() -> None:
        readings: list[Any] = []
        source = TelemetrySource(NoPython(code), 0.05, readings.append)
        await source.start()
        while len(readings) < 3:
            await asyncio.sleep(0.01)
        await source.close()
        last = readings[-1]
        assert last.driver.source == "nvidia-smi" and last.driver.driver_version == "590.48.01"
        assert [g.uuid for g in last.gpus] == ["GPU-0", "GPU-1"] and last.gpus[0].power_w == 512.25
        assert last.gpus[0].processes[0].pid == 4242 and last.gpus[1].processes == ()
        assert last.host.memory_total_bytes and last.gpus[1].sm_mhz == 2790
        assert sum("-lms" in call for call in fake.calls) == 1  # one process for all readings

    run(work())


def test_a_lost_gpu_in_the_text(fake: Smi) -> None:
    rows = [csv(index=str(i), uuid=f"GPU-{i}", count="2") for i in range(2)]
    lost = (
        "Unable to determine the device handle for GPU1: 0000:0B:00.0: GPU is lost.  Reboot "
        "the system"
    )
    fake.query(
        LOOPING.format(body=f"print({rows[0]!r}); print({rows[1]!r} if tick < 2 else {lost!r})")
    )

    async def work() -> None:
        follower = NvidiaSmiFollower(LocalHost(), 0.05)
        streams: list[Any] = []
        async for reading in follower.readings(streams.append):
            if reading.gpus[-1].state is GpuState.LOST:
                break
        assert [g.index for g in reading.gpus] == [0, 1] and "GPU is lost" in (
            reading.gpus[1].message or ""
        )
        assert reading.gpus[0].sm_mhz == 2790 and reading.gpus[1].uuid == "GPU-1"
        await streams[0].close()

    run(work())


def test_an_old_nvidia_smi(fake: Smi) -> None:
    """It complains of one unknown column at a time, with exit status 2."""
    fake.query(
        "known = {'power.draw.instant': 0, 'power.draw.average': 0, 'memory.reserved': 0, "
        "'compute_cap': 0}\n"
        "asked = args[0].split('=', 1)[1].split(',')\n"
        "bad = [c for c in asked if c in known or c.startswith('clocks_event')]\n"
        "if bad:\n    print('Field \"%s\" is not a valid field to query.\\n' % bad[0]); "
        "sys.exit(2)\n"
        "print(', '.join({'index': '0', 'count': '1', 'uuid': 'GPU-0', "
        "'clocks_throttle_reasons.active': '0x8'}"
        ".get(c, '7') for c in asked), flush=True); time.sleep(0 if '-lms' not in args else 30)\n"
    )

    async def work() -> None:
        reading = await read_telemetry_once(NoPython())
        gpu = reading.gpus[0]
        assert gpu.event_reasons == ("HW slowdown",) and gpu.power_w == 7.0
        assert gpu.absent["power_average_w"] == "not known to this nvidia-smi"

    run(work())


def test_a_driver_problem_through_nvidia_smi(fake: Smi) -> None:
    fake.query("print('Failed to initialize NVML: Driver/library version mismatch'); sys.exit(18)")

    async def work() -> None:
        reading = await read_telemetry_once(NoPython())
        assert (
            reading.driver.status is DriverStatus.MISMATCH and reading.driver.source == "nvidia-smi"
        )
        assert reading.host.memory_total_bytes

    run(work())


@pytest.mark.slow
def test_neither_python_nor_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from workbench.model.errors import HostError

    async def work() -> None:
        with pytest.raises(HostError, match="neither a python3 that runs the agent nor nvidia-smi"):
            await read_telemetry_once(NoPython())

    run(work())


def test_the_library_is_missing_but_nvidia_smi_works(
    fake: Smi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKBENCH_NVML_LIBRARY", str(tmp_path / "nowhere.so"))
    fake.query(LOOPING.format(body=f"print({csv()!r})"))

    async def work() -> None:
        reading = await read_telemetry_once(LocalHost())
        assert reading.driver.source == "nvidia-smi" and reading.gpus[0].sm_mhz == 2790

    run(work())


def test_the_library_is_missing_and_nvidia_smi_hangs(
    fake: Smi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An nvidia-smi that does not answer says more than a missing library."""
    monkeypatch.setenv("WORKBENCH_NVML_LIBRARY", str(tmp_path / "nowhere.so"))
    monkeypatch.setattr("workbench.gpu.telemetry.source.NVIDIA_SMI_TIMEOUT_S", 0.3)
    fake.query("import time; time.sleep(60)")

    async def work() -> None:
        source = TelemetrySource(LocalHost(), 0.1)
        await source.start()
        async with asyncio.timeout(30):
            while source.latest is None or source.latest.driver.status is not DriverStatus.HUNG:
                await asyncio.sleep(0.01)
        await source.close()
        message = str(source.latest.driver.message)
        assert message.startswith("nvidia-smi did not answer in 0.3 s")

    run(work())

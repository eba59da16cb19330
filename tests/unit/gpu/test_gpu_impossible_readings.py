"""A driver that answers with success and an impossible value: the value is missing, with the
reason, for the agent, the guard, the screen and the commands."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from nvml_child import Child, Driver
from support.guarded import FAST, GuardedHost, guarded, run
from support.procs import eventually

from workbench.gpu.telemetry import plausible_readings
from workbench.gpu.telemetry.nvidia_smi import COLUMNS, parse_info_and_sample
from workbench.model.gpu import GpuSample, HostSample, Telemetry
from workbench.model.timeline import History
from workbench.model.untrusted_numbers import range_of_field
from workbench.session.session import Session
from workbench.store.recording import CellWriter
from workbench.tui.widgets.graph import bar_height_eighths

UNITS = ("_w", "_mhz", "_pct", "_bytes", "_c", "_j", "_mb_s", "pcie_gen", "pcie_width")
FIELDS = [f.name for f in fields(GpuSample) if f.name.endswith(UNITS)]
NUMBERS = itertools.count(1)  # an SM clock for each example, which marks its reading
IMPOSSIBLE = "the driver's answer is "
ANSWERS = {
    ("type.186 * 0", "field.186 * nan"): "power_w",
    ("type.186 * 0", "field.186 * inf"): "power_w",
    # The value of the older function counts if that of the field is "not available".
    (
        "type.186 * 1",
        "field.186 * 0xFFFFFFFF",
        "nvmlDeviceGetPowerUsage * 0xFFFFFFFF",
    ): "power_w",
    ("field.186 * 99999999999",): "power_w",
    ("type.185 * 0", "field.185 * -inf"): "power_average_w",
    ("field.83 * -1", "energy * -1"): "energy_j",
    ("type.82 * 5", "field.82 * -128"): "memory_temperature_c",
    ("temperature * -128",): "temperature_c",
    ("util.gpu * 0xFFFFFFFF",): "gpu_util_pct",
    ("util.memory * 101",): "memory_util_pct",
    ("nvmlDeviceGetEnforcedPowerLimit * 0xFFFFFFFE",): "power_limit_enforced_w",
    ("memory.used * -1",): "memory_used_bytes",
    ("clock.sm * 0xFFFFFFF0",): "sm_mhz",
    ("reasons * -1",): "event_reasons",
}


def strict(line: str) -> Any:
    """Parse JSON as the standard defines it, without NaN and Infinity."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(line, parse_constant=refuse)


@pytest.mark.parametrize(("lines", "field"), ANSWERS.items(), ids=[a[-1] for a in ANSWERS])
def test_an_impossible_value_is_missing_with_the_reason(
    agent: Callable[..., Child], driver: Driver, lines: tuple[str, ...], field: str
) -> None:
    driver.set(*lines)
    gpu = agent().sample()["gpus"][0]
    assert field not in gpu
    why = gpu["absent"][field]
    assert why.startswith(IMPOSSIBLE) or why == "not available"
    assert gpu["pstate"] == 1  # the other values stay


def field_lines(watts: float, utilization: int, celsius: int, energy_mj: float) -> tuple[str, ...]:
    return (
        "type.186 * 0",
        f"field.186 * {watts!r}",
        f"util.gpu * {utilization}",
        f"temperature * {celsius}",
        "type.83 * 0",
        f"field.83 * {energy_mj!r}",
    )


@pytest.fixture
def one_agent(agent: Callable[..., Child]) -> Child:
    return agent()


@pytest.mark.slow
@given(
    watts=st.floats(),
    utilization=st.integers(0, 2**32 - 1),
    celsius=st.integers(-(2**31), 2**31 - 1),
    energy_mj=st.floats(),
)
@example(watts=math.nan, utilization=2**32 - 1, celsius=-128, energy_mj=2.0**64)
@settings(max_examples=40, suppress_health_check=list(HealthCheck), deadline=None)
def test_whatever_the_driver_answers_the_line_is_json_within_the_limits(
    one_agent: Child,
    driver: Driver,
    watts: float,
    utilization: int,
    celsius: int,
    energy_mj: float,
) -> None:
    number = next(NUMBERS)
    lines = field_lines(watts, utilization, celsius, energy_mj)
    driver.clear([*Driver.FIELDS, f"clock.sm * {number}", *lines])
    gpu = one_agent.sample(lambda d: d["gpus"] and d["gpus"][0].get("sm_mhz") == number)["gpus"][0]
    strict(json.dumps(gpu))
    for field in ("power_w", "gpu_util_pct", "temperature_c", "energy_j"):
        low, high = range_of_field(field)
        if field in gpu:
            assert low <= gpu[field] <= high
        else:
            assert gpu["absent"][field]


@given(
    st.dictionaries(
        st.sampled_from(FIELDS),
        st.one_of(st.floats(), st.integers(-(2**70), 2**70)),
    )
)
def test_each_value_is_within_its_limits_or_has_a_reason(values: dict[str, Any]) -> None:
    left, absent = dict(values), dict[str, str]()
    plausible_readings.remove_impossible_values(left, absent)
    assert left.keys() | absent.keys() == values.keys() and not left.keys() & absent.keys()
    strict(json.dumps(left, allow_nan=False))
    assert all(why.startswith(IMPOSSIBLE) for why in absent.values())


def test_nvidia_smi_too() -> None:
    row = dict.fromkeys(COLUMNS, "1") | {
        "index": "0",
        "uuid": "GPU-x",
        "name": "NVIDIA A100",
        "utilization.gpu": "4294967295",
        "power.draw.instant": "4294967.29",
        "power.max_limit": "4294967.29",
    }
    info, sample = parse_info_and_sample(row, HostSample())
    assert sample.gpu_util_pct is None and sample.power_w is None and info.power_max_w is None
    assert sample.absent["gpu_util_pct"] == f"{IMPOSSIBLE}an impossible number (4.29497e+09)"
    assert info.absent["power_max_w"].startswith(IMPOSSIBLE)


# ---- the guard


@pytest.fixture
def box(tmp_path: Path) -> Iterator[GuardedHost]:
    with guarded(tmp_path / "host") as made:
        yield made


@pytest.mark.slow
@pytest.mark.ci_cases(1)
@pytest.mark.parametrize("celsius", [4294967295, -128, 151])
def test_the_guard_acts_on_no_impossible_temperature_and_says_so(
    box: GuardedHost, celsius: int
) -> None:
    older = {"missing": ["nvmlDeviceGetTemperatureV"]} if celsius > 2**31 else {}
    box.sim.set_faults(celsius={"0": 60.0}, **older)
    assert run(box.change()).ok
    box.sim.set_faults(celsius={"0": celsius})
    eventually(lambda: IMPOSSIBLE in (run(box.look()).view.problem or ""), "the guard to say so")
    box.stays(5 * FAST["heat_s"], lambda: box.in_force() == (450.0, (1000, 2000)))
    assert f"({celsius:.6g})" in (run(box.look()).view.problem or "")
    box.sim.set_faults(celsius={"0": 60.0})
    eventually(lambda: run(box.look()).view.problem is None, "the temperature to be watched again")


# ---- the screen and the recording


def test_a_graph_leaves_a_cell_empty() -> None:
    assert [
        bar_height_eighths(v, 0.0, 100.0, 8) for v in (math.nan, math.inf, -math.inf, None)
    ] == [0] * 4


def test_a_listener_that_fails_ends_neither_the_readings_nor_the_other_listeners(
    tmp_path: Path,
) -> None:
    heard: list[Telemetry] = []

    def fails(_: Telemetry) -> None:
        raise ValueError("cannot convert float NaN to integer")

    async def work() -> None:
        session = Session.of_host(None, "rtx-pro-6000")
        try:
            await session.link.connect()
            session.telemetry.on_reading[:0] = [fails]
            session.telemetry.on_reading.append(heard.append)
            session.telemetry.interval_s = 0.1
            await session.telemetry.start()
            async with asyncio.timeout(20):
                while len(heard) < 5:
                    await asyncio.sleep(0.02)
            notice = session.state.notice
            assert notice and "cannot convert float NaN" in notice.text and notice.number == 1
        finally:
            await session.close()

    asyncio.run(work())


def test_a_value_that_is_not_finite_leaves_a_gap_in_the_history_and_the_recording() -> None:
    history, writer = History(), CellWriter(1)
    values = {(0, "power_w"): math.nan, (0, "sm_mhz"): 2790.0}
    history.add_reading_to_seconds(values, range(100, 101))
    lines = [*writer.add_reading(range(100, 101), values), *writer.finish_open_cells()]
    assert history.cell_means((0, "power_w"), 100.5, 1, 1)[0] is None
    assert history.cell_means((0, "sm_mhz"), 100.5, 1, 1)[0] == 2790.0
    assert strict(lines[0])["v"] == {"0.sm_mhz": 2790}

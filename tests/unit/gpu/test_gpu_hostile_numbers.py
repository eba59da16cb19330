"""Readings of a host that sends impossible numbers: each becomes absent with a reason, and the
others stay as they are."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.hostile import hostile_numbers, hostile_texts

from workbench.cli.gpu_status import _gpu_reading_texts, _gpu_state_json
from workbench.gpu.telemetry import nvidia_smi
from workbench.gpu.telemetry.agent_messages import AgentMessageDecoder, decode_hung_call
from workbench.model.gpu import GpuSample, HostSample, Telemetry
from workbench.model.gpu_readings import READINGS
from workbench.model.untrusted_numbers import range_of_field
from workbench.store import recording
from workbench.tui.widgets.graph import bar_height_eighths

SAMPLE: dict[str, Any] = {
    "index": 0,
    "uuid": "GPU-a",
    "sm_mhz": 2790,
    "memory_mhz": 13365,
    "power_w": 251.5,
    "power_limit_w": 600.0,
    "power_limit_enforced_w": 600.0,
    "gpu_util_pct": 97,
    "memory_used_bytes": 40 << 30,
    "memory_total_bytes": 96 << 30,
    "temperature_c": 61,
    "event_reasons": ["SW power cap"],
    "energy_j": 1.5e6,
    "slow": {
        "fan_pct": 40,
        "pcie_gen": 5,
        "persistence": True,
        "processes": [{"pid": 1, "memory_bytes": None, "name": "vllm"}],
    },
}
INFO: dict[str, Any] = {
    "index": 0,
    "uuid": "GPU-a",
    "name": "RTX",
    "power_max_w": 600.0,
    "supported_sm_mhz": [210, 3090],
}
HOST = {"memory_total_bytes": 1 << 40, "load_1m": 0.5, "cpu_count": 64}
NUMBERS = [name for name, value in SAMPLE.items() if isinstance(value, int | float)]
NUMBERS.remove("index")
anything = hostile_numbers() | hostile_texts() | st.none()


def document(gpu: dict[str, Any]) -> dict[str, Any]:
    return {"t": 12.5, "u": 1.76e9, "host": HOST, "gpus": [gpu]}


def numbers_in(data: object, name: str = "") -> Iterator[tuple[str, float]]:
    if isinstance(data, bool):
        return
    if isinstance(data, int | float):
        yield name, data
    elif isinstance(data, dict):
        for key, value in data.items():
            yield from numbers_in(value, str(key))
    elif isinstance(data, list | tuple):
        for value in data:
            yield from numbers_in(value, name)


def assert_shown(reading: Telemetry) -> None:
    """Assert that every number of the reading is possible, and can be shown everywhere."""
    for name, value in numbers_in(dataclasses.asdict(reading)):
        low, high = range_of_field(name)
        assert math.isfinite(value) and low <= value <= high, (name, value)
    json.dumps(dataclasses.asdict(reading), allow_nan=False)
    for sample in reading.gpus:
        _gpu_state_json(reading.info(sample.index), sample)
        assert all(len(text) < 40 for text in _gpu_reading_texts(sample))
        for name in READINGS:
            value = getattr(sample, name)
            if value is not None:
                recording.round_for_graph(name, value)
                bar_height_eighths(value, 0.0, 600.0, 8)


@given(st.dictionaries(st.sampled_from([*SAMPLE, "state", "absent"]), anything, min_size=1))
def test_whatever_a_host_sends_for_a_gpu_is_shown_or_refused(odd: dict[str, Any]) -> None:
    decoder = AgentMessageDecoder()
    decoder.decode_message({"driver": {"status": "ok"}, "simulated": False})
    decoder.decode_message({"infos": [INFO]})
    try:
        reading = decoder.decode_message(document({**SAMPLE, **odd}))
    except ValueError:
        assert odd.keys() & {"index", "uuid", "state", "slow"}, "these decide about the whole"
        return
    assert reading is not None
    assert_shown(reading)
    (gpu,) = reading.gpus
    for name in NUMBERS:
        if name not in odd:
            assert getattr(gpu, name) == SAMPLE[name]
        elif getattr(gpu, name) is None and odd[name] is not None and gpu.has_readings:
            assert gpu.absent[name], "the reason"


@given(st.dictionaries(st.sampled_from(["t", "u", "host", "gpus"]), anything))
def test_whatever_a_host_sends_as_a_reading_is_shown_or_refused(odd: dict[str, Any]) -> None:
    try:
        reading = AgentMessageDecoder().decode_message({**document(SAMPLE), **odd})
    except ValueError:
        return
    assert reading is not None
    assert_shown(reading)


@given(st.sampled_from([*INFO, "pcie_gen_max", "unified_memory", "absent"]), anything)
def test_whatever_a_host_sends_as_properties_is_shown_or_refused(name: str, value: object) -> None:
    decoder = AgentMessageDecoder()
    try:
        decoder.decode_message({"infos": [{**INFO, name: value}]})
    except ValueError:
        return
    reading = decoder.decode_message(document(SAMPLE))
    assert reading is not None
    assert_shown(reading)


@given(anything, anything, anything)
def test_a_hung_call_is_possible_or_refused(function: object, gpu: object, for_s: object) -> None:
    try:
        call = decode_hung_call({"hung": function, "gpu": gpu, "for_s": for_s})
    except ValueError:
        return
    assert f"{call.for_s:.0f}".isdecimal() and (call.gpu is None or call.gpu >= 0)


cells = hostile_numbers().map(str) | st.text() | st.sampled_from(["9" * 5000, "1e999", "[N/A]"])


@given(st.dictionaries(st.sampled_from(nvidia_smi.COLUMNS), cells))
def test_whatever_nvidia_smi_prints_is_shown_or_refused(odd: dict[str, str]) -> None:
    said = {"index": "0", "count": "1", "uuid": "GPU-a", "name": "RTX", "power.draw": "250.1"}
    row = {**dict.fromkeys(nvidia_smi.COLUMNS, "1"), **said, **odd}
    line = ",".join(row[column].replace(",", " ") for column in nvidia_smi.COLUMNS)
    read = nvidia_smi.parse_row(nvidia_smi.COLUMNS, line)
    if read is None:
        return
    info, sample = nvidia_smi.parse_info_and_sample(read, HostSample())
    assert_shown(
        Telemetry(1.0, 1.0, AgentMessageDecoder().driver, HostSample(), (info,), (sample,)),
    )


@given(st.lists(cells, min_size=4, max_size=4))
def test_whatever_is_printed_about_processes_and_the_host_is_a_number_or_left_out(
    words: list[str],
) -> None:
    found = nvidia_smi.parse_processes(", ".join(words))
    host = nvidia_smi.parse_host_memory_and_load(
        f"MemTotal: {words[0]} kB\n{words[1]} 0.1 0.1 1/2 3\n"
    )
    rows = [dataclasses.asdict(process) for several in found.values() for process in several]
    for name, value in numbers_in([rows, dataclasses.asdict(host)]):
        low, high = range_of_field(name)
        assert low <= value <= high


def test_values_that_are_sent_rarely_replace_none_of_the_others() -> None:
    slow = {"index": 5, "uuid": "GPU-b", "sm_mhz": 1, "fan_pct": 40, "state": "lost"}
    reading = AgentMessageDecoder().decode_message(document({**SAMPLE, "slow": slow}))
    assert reading is not None
    (gpu,) = reading.gpus
    assert (gpu.index, gpu.uuid, gpu.sm_mhz, gpu.fan_pct, gpu.has_readings) == (
        0,
        "GPU-a",
        2790,
        40,
        True,
    )


@pytest.mark.parametrize("name", ["sm_mhz", "power_w", "memory_used_bytes", "temperature_c"])
def test_1e308_costs_only_its_own_cell(name: str) -> None:
    gpu = AgentMessageDecoder().decode_message(document({**SAMPLE, name: 1e308}))
    assert gpu is not None and getattr(gpu.gpus[0], name) is None
    assert gpu.gpus[0].absent == {name: "an impossible number (1e+308)"}
    assert isinstance(gpu.gpus[0], GpuSample) and gpu.gpus[0].gpu_util_pct == 97

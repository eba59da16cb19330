"""Numbers from other programs: which are possible, and that no impossible one passes the gate."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.hostile import ODD_NUMBERS, hostile_numbers

from workbench.model.untrusted_numbers import (
    RANGES,
    integer_or_none,
    number_for_field,
    number_or_none,
    parse_decimal,
    parse_whole_number,
    range_of_field,
    replace_non_finite,
    why_number_is_impossible,
)


@pytest.mark.parametrize(
    ("field", "unit"),
    [
        ("power_w", "w"),
        ("supported_sm_mhz", "mhz"),
        ("pcie_rx_mb_s", "mb_s"),
        ("since_unix_s", "unix_s"),
        ("heartbeat_s", "s"),
        ("fan_pct", "fan_pct"),
        ("gpu_util_pct", "pct"),
        ("pcie_gen", "pcie_gen"),
    ],
)
def test_the_unit_in_a_name_decides_the_range(field: str, unit: str) -> None:
    assert range_of_field(field) == RANGES[unit]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("power_w", 4_294_967.295),  # 0xFFFFFFFF mW, NVML's "not available"
        ("gpu_util_pct", 0xFFFFFFFF),
        ("temperature_c", -128),
        ("energy_j", (2**64 - 1) / 1000),
        ("sm_mhz", -1),
        ("memory_used_bytes", 2**64 - 1),
    ],
)
def test_what_a_driver_sends_in_place_of_a_value_is_no_value(field: str, value: float) -> None:
    assert number_for_field(field, value) is None
    assert "impossible" in why_number_is_impossible(value, *range_of_field(field))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("power_w", 575.3),
        ("sm_mhz", 3090),
        ("memory_mhz", 14_001),
        ("temperature_c", -20),
        ("energy_j", 4.1e9),
        ("fan_pct", 104),
        ("memory_total_bytes", 64 << 40),
        ("gpu_util_pct", 0),
    ],
)
def test_real_values_pass_unchanged(field: str, value: float) -> None:
    assert number_for_field(field, value) is value


@given(hostile_numbers(), st.sampled_from(sorted(RANGES)))
def test_whatever_passes_is_finite_and_in_its_range(value: object, field: str) -> None:
    low, high = range_of_field(field)
    found = number_or_none(value, low, high)
    why = why_number_is_impossible(value, low, high)
    assert (found is None) == bool(why)
    assert why.isprintable() and len(why) < 80
    if found is not None:
        assert not isinstance(found, bool) and math.isfinite(found) and low <= found <= high
        json.dumps(found, allow_nan=False)


@pytest.mark.parametrize("value", ODD_NUMBERS, ids=lambda value: f"{str(value)[:12]}")
def test_no_odd_value_is_a_count(value: object) -> None:
    assert integer_or_none(value, 0, 2**31 - 1) is None


@given(hostile_numbers().map(str) | st.text() | st.text("0123456789.eE+-_nai\u0663"))
def test_whatever_a_text_says_is_a_number_of_the_range_or_none(text: str) -> None:
    found = parse_decimal(text, 0, 100)
    assert found is None or 0 <= found <= 100
    count = parse_whole_number(text)
    assert count is None or 0 <= count < 10**18


@given(st.recursive(hostile_numbers(), lambda d: st.lists(d) | st.dictionaries(st.text(), d)))
def test_json_for_scripts_has_no_number_that_json_lacks(data: object) -> None:
    text = json.dumps(replace_non_finite(data), allow_nan=False)
    assert replace_non_finite(json.loads(text)) == json.loads(text)


def test_a_text_that_is_a_number_is_read() -> None:
    assert parse_decimal(" 41.50 ", 0, 100) == 41.5
    assert parse_decimal("1e2", 0, 100) == 100
    assert parse_decimal("1_0", 0, 100) is None
    assert parse_whole_number("9" * 18) == 10**18 - 1
    assert parse_whole_number("9" * 19) is None

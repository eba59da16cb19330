"""The clocks that a driver lists, in a form that a person can read."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.model.gpu import format_supported_clocks


@pytest.mark.parametrize(
    ("clocks", "text"),
    [
        ([], ""),
        ([14001, 405, 810, 7001, 810], "405, 810, 7001, 14001 MHz"),
        (range(180, 3091, 15), "180-3090 MHz in steps of 15 (195 clocks)"),
        (
            [139, 151, 164, 177, 189, 202, 215, 227, 240],
            "139-240 MHz in steps of 12 or 13 (9 clocks)",
        ),
        (
            [*range(200, 260, 15), *range(1000, 1025, 5)],
            "200-245 MHz in steps of 15, 1000-1020 MHz in steps of 5 (9 clocks)",
        ),
    ],
)
def test_clocks_in_short(clocks: list[int], text: str) -> None:
    assert format_supported_clocks(clocks) == text


@given(st.lists(st.integers(1, 20_000), max_size=300))
def test_any_list_is_one_short_text_with_its_ends(clocks: list[int]) -> None:
    text = format_supported_clocks(clocks)
    assert len(text) < 200 and "\n" not in text
    if clocks:
        assert re.match(rf"{min(clocks)}\b", text)
        assert len(set(clocks)) <= 8 or f"({len(set(clocks))} clocks)" in text

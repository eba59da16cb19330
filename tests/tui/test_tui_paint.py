"""Rows have exact widths, and the changed spans turn the old row into the new one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.model.server_run import ServerState, ServerStatus
from workbench.session.state import HostView, SessionState
from workbench.tui.cells import (
    changed_column_spans,
    cut_text,
    fit_row,
    justify_row,
    pad_text,
    row_width,
    wrap_text,
)
from workbench.tui.formats import (
    duration_text,
    flag_default_text,
    flag_value_text,
    number_text,
    setting_text,
    short_gpu_name,
)
from workbench.tui.widgets.status_bar import StatusBar

TEXT = st.text(alphabet="ab ▇█x0123…é漢", max_size=9)
ROW = st.lists(st.tuples(TEXT, st.sampled_from(["text", "dim", "good"])), max_size=6).map(tuple)


def cells(row: tuple[tuple[str, str], ...]) -> list[tuple[str, str]]:
    """Return one entry per terminal cell; a wide character has two."""
    from rich.cells import cell_len

    out: list[tuple[str, str]] = []
    for text, role in row:
        for c in text:
            out += [(c, role)] + [("", role)] * (cell_len(c) - 1)
    return out


@given(ROW, st.integers(1, 40))
def test_a_row_fits_exactly(row: tuple[tuple[str, str], ...], width: int) -> None:
    assert row_width(fit_row(row, width)) == width


@given(TEXT, st.integers(0, 12))
def test_cut_and_pad_keep_the_width(text: str, width: int) -> None:
    assert row_width(((cut_text(text, width), "text"),)) <= width
    assert row_width(((pad_text(text, width), "text"),)) == width


@given(ROW, ROW, st.integers(1, 30))
def test_the_spans_sent_make_the_new_row(old: tuple, new: tuple, width: int) -> None:
    old, new = fit_row(old, width), fit_row(new, width)
    before, after = cells(old), cells(new)
    screen = list(before)
    for start, end in changed_column_spans(old, new):
        assert 0 <= start < end <= width
        screen[start:end] = after[start:end]
    assert screen == after


def test_only_the_changed_digits_are_sent() -> None:
    old = (("util  ", "dim"), ("▇▇▇▇▆", "spark"), ("       97%", "text"))
    new = (("util  ", "dim"), ("▇▇▇▇▇", "spark"), ("       98%", "text"))
    assert changed_column_spans(old, new) == [(10, 11), (19, 20)]


def test_missing_text_is_marked_and_blanks_are_not() -> None:
    assert fit_row((("abcdef", "text"),), 4) == (("abc…", "text"),)
    assert fit_row((("abcd", "text"), ("   ", "text")), 4) == (("abcd", "text"),)


def test_the_right_part_stays() -> None:
    row = justify_row((("a long text on the left", "text"),), (("right", "dim"),), 12)
    assert "".join(t for t, _ in row) == "a long…right" or row_width(row) == 12


def test_wide_characters_are_wrapped_by_their_cells_and_lose_nothing() -> None:
    text = "ü 文字 " * 12 + "文" * 30
    for width in (8, 9, 16, 33):
        lines = wrap_text(text, width, "  ")
        assert all(row_width([(line, "text")]) <= width for line in lines)
        assert "".join("".join(lines).split()) == "".join(text.split())


def test_wrapping_keeps_words() -> None:
    assert wrap_text("one two three", 9) == ["one two", "three"]


def test_figures_for_people() -> None:
    assert [duration_text(s) for s in (58, 761, 11220, 187200)] == [
        "58s",
        "12m41s",
        "3h07m",
        "2d04h",
    ]
    assert [number_text(v) for v in (None, 5812.4, 24.93, 9.641, 0.0461, 0)] == [
        *("n/a", "5,812", "24.9", "9.64", "0.046", "0.00")
    ]
    assert [flag_value_text(v) for v in (None, True, [1, 2], {"a": 1})] == [
        "-",
        "on",
        "1 2",
        '{"a":1}',
    ]
    assert (flag_value_text(""), flag_default_text("")) == ("''", "-"), "an empty value is a value"
    assert setting_text("gpu_clocks", "210,1755") == "GPU clocks 210-1755 MHz"
    assert short_gpu_name("NVIDIA RTX PRO 6000 Blackwell Workstation Edition") == "RTX PRO 6000"


@pytest.mark.parametrize(
    "server",
    [
        None,
        ServerStatus(
            "20261122-180228-sglang-5e8c", "sglang", ServerState.READY, "gpu-box", port=30000
        ),
    ],
)
def test_a_narrow_status_bar_names_the_key_that_applies_the_preset(
    server: ServerStatus | None,
) -> None:
    host = HostView(
        "sim:rtx-pro-6000-passthrough", link="connected", simulated="rtx-pro-6000-passthrough"
    )
    bar = StatusBar()
    bar.state = SessionState(
        host,
        servers=(server,) if server else (),
        run_id=server.run_id if server else None,
        unapplied=("GPU0 power limit",),
    )
    (row,) = bar.rows(80, 1)
    text = "".join(part for part, _ in row)
    assert "preset not applied (A)" in text and "SIMULATED" in text and row_width(row) == 80

"""The plots of results: what they show, and what they leave out."""

from __future__ import annotations

from dataclasses import replace

from support.made_results import bench_row

from workbench.session.bench.row import BenchRow
from workbench.tui.glyphs import G
from workbench.tui.widgets.plot import plot_rows


def row(number: int, tok_s: float | None, *refused: str) -> BenchRow:
    return bench_row(number, "", tok_s, refused=refused)


def drawn(*rows: BenchRow) -> str:
    return "\n".join("".join(text for text, _ in line) for line in plot_rows(rows, 60, 20))


def test_rejected_results_set_no_scale() -> None:
    good = [row(n, 700.0 + n) for n in range(1, 9)]
    text = drawn(*good, row(9, 319_000.0, "the client limited the load"))
    assert "tok/s (1 rejected)" in text
    assert "#9" not in text and "319" not in text and "300" not in text.replace(",", "")
    assert "left out" not in drawn(*good)


def test_without_a_valid_result_the_plot_says_why() -> None:
    assert "every result was rejected" in drawn(row(1, 319_000.0, "too fast"))
    assert "no result has a throughput yet" in drawn(row(1, None))


def test_few_results_are_bars_whose_lengths_and_numbers_show_a_difference() -> None:
    """Points that plotext rounds to the same row of four looked equal."""
    first, second = (
        replace(row(n, 400.0 * n), ttft_p50_ms=ttft) for n, ttft in ((1, 83.4), (2, 59.3))
    )
    lines = drawn(first, second).splitlines()
    assert "83.4" in lines[1] and "59.3" in lines[2]
    assert lines[1].count(G.bar_full) != lines[2].count(G.bar_full)
    many = [row(n, 700.0 + n) for n in range(1, 30)]
    low = ["".join(text for text, _ in line) for line in plot_rows(many, 60, 9)]
    assert len(low) <= 9 and "#29" in low[-1]  # the newest that fit, not a plot of three rows

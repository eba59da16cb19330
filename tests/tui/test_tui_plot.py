"""The plots of results: what they show, and what they leave out."""

from __future__ import annotations

from workbench.session.bench_row import BenchRow
from workbench.tui.widgets.plot import plot_rows


def row(number: int, tok_s: float | None, *refused: str) -> BenchRow:
    return BenchRow(
        id=number,
        unix_s=0.0,
        label="",
        model="m",
        engine="vllm",
        concurrency=4,
        output_tok_s=tok_s,
        ttft_p50_ms=None,
        ttft_p90_ms=None,
        itl_mean_ms=None,
        power_w=None,
        tok_per_joule=None,
        requests_ok=8,
        requests_failed=0,
        simulated=False,
        refused=refused,
    )


def drawn(*rows: BenchRow) -> str:
    return "\n".join("".join(text for text, _ in line) for line in plot_rows(rows, 60, 20))


def test_rejected_results_set_no_scale() -> None:
    good = [row(n, 700.0 + n) for n in range(1, 9)]
    text = drawn(*good, row(9, 319_000.0, "the client limited the load"))
    assert "output tok/s by result (1 rejected left out)" in text
    assert "#9" not in text and "319" not in text and "300" not in text.replace(",", "")
    assert "left out" not in drawn(*good)


def test_without_a_valid_result_the_plot_says_why() -> None:
    assert "every result was rejected" in drawn(row(1, 319_000.0, "too fast"))
    assert "no result has a throughput yet" in drawn(row(1, None))

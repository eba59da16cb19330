"""The text that `bench` prints about a result."""

from __future__ import annotations

from dataclasses import replace

from support import made_results

from workbench.cli import result_output
from workbench.model.bench import BenchSummary, Distribution
from workbench.report.result_blocks import key_metrics

WAITED = Distribution(500.0, 450.0, 900.0, 990.0, 0.0, 1000.0, 40)


def read(summary: BenchSummary) -> str:
    return "\n".join(result_output.result_lines(replace(made_results.result(), summary=summary)))


def test_latency_from_the_schedule_is_shown_for_a_rate() -> None:
    closed = made_results.result().summary
    open_loop = replace(
        closed, queue_ms=WAITED, ttft_from_schedule_ms=WAITED, e2e_from_schedule_ms=WAITED
    )
    before, _, after = read(open_loop).partition("measured from the scheduled start")
    assert (
        "TTFT       mean 90.0" in before
        and ("queued     mean 500.0  p50 450.0  p90 900.0 ms  (p99 n/a: ") in after
    )
    assert "TTFT       mean 500.0" in after and "end to end mean 500.0" in after
    assert "scheduled start" not in read(closed)
    names = [name for name, *_ in key_metrics(open_loop).items]
    assert "TTFT from the schedule p50" in names and "TTFT p50" not in names
    assert "TTFT p50" in [name for name, *_ in key_metrics(closed).items]


def test_an_invalid_result_says_so_first() -> None:
    said = read(
        replace(
            made_results.result().summary,
            refused=("the cache answered",),
            errors={"reset": 2},
            requests_failed=2,
        )
    )
    first, second, *_ = said.splitlines()
    assert "40 ok, 2 failed {'reset': 2}" in first
    assert second == "  REJECTED: the cache answered"

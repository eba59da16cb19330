"""What a server's log says of its start is the same whether all lines are searched or only those of
new forms."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench import engines
from workbench.engines.base import Engine
from workbench.server.log_patterns import remove_numbers_from_lines
from workbench.server.start_lines import StartLines

SAID = [
    "(APIServer pid=1) INFO 11-22 21:10:11 [utils.py:1] vLLM API server version 0.32.0",
    "Loading safetensors checkpoint shards:  50% Completed | 1/2",
    "Loading safetensors checkpoint shards: 100% Completed | 2/2",
    "INFO 11-22 21:10:12 [core.py:1] GPU KV cache size: 12,345 tokens",
    "INFO 11-22 21:10:13 [core.py:1] Engine 000: 7 requests",
    "INFO 11-22 21:10:14 [core.py:1] Engine 000: 8 requests",
    "Port 5000 is currently in use. Switching to 5001",
    "Port 5000 is currently in use. Switching to 5002",
    "Loading model modules 40%",
    "",
]


@given(
    st.sampled_from(["vllm", "tabbyapi"]),
    st.lists(st.sampled_from(SAID), max_size=30),
    st.integers(1, 10),
)
def test_only_new_forms_are_searched(name: str, lines: list[str], size: int) -> None:
    engine = engines.get_engine(name)
    searched, quick = StartLines(engine, None), StartLines(engine, None)
    for line in lines:
        searched.update_if_start_fact_found(line)
    for start in range(0, len(lines), size):
        batch = lines[start : start + size]
        quick.search_new_lines(batch, remove_numbers_from_lines(batch))
    assert (quick.phase, quick.version, quick.port) == (
        searched.phase,
        searched.version,
        searched.port,
    )


def test_a_busy_log_costs_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[str] = []
    phase: Callable[[Engine, str], str | None] = Engine.start_phase_in_log_line
    monkeypatch.setattr(
        Engine,
        "start_phase_in_log_line",
        lambda self, line: counts.append(line) or phase(self, line),
    )  # type: ignore[func-returns-value]
    start = StartLines(engines.get_engine("vllm"), None)
    for second in range(10):
        batch = [
            f"INFO [loggers.py:{n}] Engine 000: {n % 997} tokens/s"
            for n in range(2000 * second, 2000 * second + 2000)
        ]
        start.search_new_lines(batch, remove_numbers_from_lines(batch))
    assert len(counts) == 1

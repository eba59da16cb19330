"""Short log lines: what is left of a line in a narrow pane."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from workbench.server.log_lines import LogRing
from workbench.session.servers.run_log import RunLog
from workbench.tui.panes.log import LogPane
from workbench.tui.panes.log_lines import (
    OWN,
    condense_log_line,
    format_log_line,
    is_access_line,
    is_workbench_poll,
    line_group_key,
)

ACCESS = 'INFO:     127.0.0.1:40612 - "POST /v1/completions HTTP/1.1" 200 OK'


@pytest.mark.parametrize(
    ("line", "short"),
    [
        ("(EngineCore pid=7) WARNING 11-21 12:03:07 [loader.py:1] text", "12:03:07 WARNING text"),
        ("(APIServer pid=1) INFO 11-21 12:03:07 [loader.py:1] text", "12:03:07 text"),
        ("[2026-11-21 12:03:07 TP0] ERROR: text", "12:03:07 ERROR text"),
        (ACCESS, "POST /v1/completions 200"),
        (f"[rank 0] {ACCESS}", "r0 POST /v1/completions 200"),
        (
            "[rank 12] (Worker pid=7) WARNING 11-21 12:03:07 [loader.py:1] text",
            "r12 12:03:07 WARNING text",
        ),
        ("[ray 1] a line of Ray", "ray1 a line of Ray"),
        ("[rank zero] a line of a program", "[rank zero] a line of a program"),
        ("a line of a program", "a line of a program"),
    ],
)
def test_a_line_keeps_its_rank_its_time_its_level_and_its_message(line: str, short: str) -> None:
    assert condense_log_line(line) == short


VLLM_SPEED = (
    "(APIServer pid=2898) INFO 11-23 12:03:07 [loggers.py:335] Engine 001: Avg prompt throughput: "
    "62.4 tokens/s, Avg generation throughput: 1512.3 tokens/s, Running: 8 reqs, Waiting: 3 reqs, "
    "GPU KV cache usage: 1.2%, Prefix cache hit rate: 0.0%"
)
SGLANG_SPEED = (
    "[2026-11-21 12:03:07 DP1 TP0] Decode batch, #running-req: 8, #token: 1234, token usage: 0.02, "
    "cuda graph: True, gen throughput (token/s): 512.34, #queue-req: 5, "
)


def test_the_speed_of_an_engine_is_in_columns_at_every_width() -> None:
    assert format_log_line(VLLM_SPEED, 190) == (
        "12:03:07 e1 prompt/s     62  gen/s   1512  running   8  waiting   3  KV  1.2%"
    )
    assert format_log_line(VLLM_SPEED, 60) == "12:03:07 e1 p/s 62 g/s 1512 run 8 wait 3 KV 1.2%"
    assert format_log_line(VLLM_SPEED, 36) == "12:03:07 e1 g/s 1512 r 8+3 KV 1.2%"
    for width in (32, 10):  # the pane cuts it
        assert format_log_line(VLLM_SPEED, width) == "12:03:07 e1 1512/s r 8+3 KV 1%"
    assert "gen/s    512  running   8  waiting   5  KV  2.0%" in format_log_line(SGLANG_SPEED, 120)
    # without a KV cache usage it is not 0
    assert format_log_line(VLLM_SPEED.partition(", GPU")[0], 190).endswith("KV   n/a")
    assert format_log_line(ACCESS, 190) == condense_log_line(ACCESS)


def test_requests_of_a_rank_are_requests() -> None:
    assert is_access_line(f"[rank 1] {ACCESS}")


POLL = 'INFO:     127.0.0.1:4 - "GET /metrics?asked_by=workbench HTTP/1.1" 200 OK'
OTHERS = 'INFO:     127.0.0.1:5 - "GET /metrics HTTP/1.1" 200 OK'


def test_only_polls_of_workbench_that_succeeded_are_its_own() -> None:
    assert is_workbench_poll(POLL) and is_workbench_poll(f"[2026-11-21 12:03:07] {POLL}")
    assert not is_workbench_poll(OTHERS)
    assert not is_workbench_poll(POLL.replace("200 OK", "500 Internal Server Error"))
    assert not is_workbench_poll("a prompt that contains ?asked_by=workbench")


def test_equal_requests_share_a_row_whenever_and_by_whom_they_were_sent() -> None:
    failed = OTHERS.replace("200 OK", "500 Internal Server Error")
    again = OTHERS.replace("127.0.0.1:", "127.0.0.1:1")
    assert line_group_key(OTHERS) == line_group_key(again) == "GET /metrics 200"
    for time in ("12:03:07", "12:03:12"):  # SGLang
        assert line_group_key(f"[2026-11-21 {time}] {OTHERS}") == "GET /metrics 200"
    assert line_group_key(failed) == "GET /metrics 500"
    assert line_group_key(f"[rank 1] {OTHERS}") == "[rank 1] GET /metrics 200"
    assert [line_group_key(POLL), line_group_key("loading weights")] == [OWN, ""]


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("srv  log_server_r: request: GET /v1/models 127.0.0.1 200", "GET /v1/models 200"),
        ("20:33:45 srv  log_server_r: request: GET /health 10.0.0.2 503", "GET /health 503"),
        ("srv  log_server_r: done request: POST /completion ::1 200", "POST /completion 200"),
        ("srv  log_server_r: request: POST /completion 127.0.0.1 400", ""),
        ("main: processing request: GET what 5 of 200 parts", ""),
    ],
)
def test_requests_of_llama_server_are_known(line: str, key: str) -> None:
    assert line_group_key(line) == key
    assert is_access_line(line) == bool(key)


def test_polls_of_workbench_take_one_row_among_the_lines_of_others() -> None:
    ring = LogRing()
    lines = ["the first line"]
    for number in range(30):
        lines += [POLL, POLL.replace("/metrics", "/health"), f"Prefill batch {number}", OTHERS]
    ring.extend([*lines, POLL])
    session: Any = SimpleNamespace(log=RunLog(lambda: ring), state=None)
    pane = LogPane(session)
    newest = pane._read_newest_lines_and_counts(len(ring), 12)
    assert len(newest) == 12
    texts = ["".join(text for text, _ in pane._repeated_line_row(raw, n, 80)) for raw, n in newest]
    assert texts[-1] == "Workbench asked 11 times"
    assert [text for text in texts if "asked_by" in text] == []
    assert sum("Prefill batch" in text for text in texts) == 5
    assert sum("GET /metrics" in text for text in texts) == 6  # those of another program

"""Short log lines: what is left of a line in a narrow pane."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from workbench.server.log_lines import LogRing
from workbench.session.servers.run_log import RunLog
from workbench.tui.panes.log import LogPane
from workbench.tui.panes.log_lines import OWN, condensed, is_access, is_own_poll, kind_of

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
    assert condensed(line) == short


def test_requests_of_a_rank_are_requests() -> None:
    assert is_access(f"[rank 1] {ACCESS}")


POLL = 'INFO:     127.0.0.1:4 - "GET /metrics?asked_by=workbench HTTP/1.1" 200 OK'
OTHERS = 'INFO:     127.0.0.1:5 - "GET /metrics HTTP/1.1" 200 OK'


def test_only_polls_of_workbench_that_succeeded_are_its_own() -> None:
    assert is_own_poll(POLL) and is_own_poll(f"[2026-11-21 12:03:07] {POLL}")
    assert not is_own_poll(OTHERS)
    assert not is_own_poll(POLL.replace("200 OK", "500 Internal Server Error"))
    assert not is_own_poll("a prompt that contains ?asked_by=workbench")


def test_a_line_has_the_kind_of_those_that_share_its_row() -> None:
    failed = OTHERS.replace("200 OK", "500 Internal Server Error")
    again = OTHERS.replace("127.0.0.1:", "127.0.0.1:1")
    assert again != OTHERS and kind_of(again) == kind_of(OTHERS) == condensed(OTHERS)
    assert [kind_of(POLL), kind_of("loading weights")] == [OWN, ""]
    assert kind_of(failed) == "GET /metrics 500"


def test_polls_of_workbench_take_one_row_among_the_lines_of_others() -> None:
    ring = LogRing()
    lines = ["the first line"]
    for number in range(30):
        lines += [POLL, POLL.replace("/metrics", "/health"), f"Prefill batch {number}", OTHERS]
    ring.extend([*lines, POLL])
    session: Any = SimpleNamespace(log=RunLog(lambda: ring), state=None)
    pane = LogPane(session)
    newest = pane._newest(len(ring), 12)
    assert len(newest) == 12
    texts = ["".join(text for text, _ in pane._counted(raw, n, 80)) for raw, n in newest]
    assert texts[-1] == "Workbench asked 11 times"
    assert [text for text in texts if "asked_by" in text] == []
    assert sum("Prefill batch" in text for text in texts) == 5
    assert sum("GET /metrics" in text for text in texts) == 6  # those of another program

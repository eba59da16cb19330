"""Short log lines: what is left of a line in a narrow pane."""

from __future__ import annotations

import pytest

from workbench.tui.panes.log_lines import condensed, is_access

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

"""SIGKILL at any moment while GPU settings are changed, kept in force or reverted, and while the
guard reverts them. The guard or the next start always restores the previous values, and the next
start says so."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.killed_runs import kills, table


def judged(found: list[dict[str, Any]], count: int) -> None:
    print("\n" + table(found))
    assert [kill for kill in found if kill["problem"]] == []
    assert len({kill["number"] for kill in found}) == len(found) == count


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_killed_anywhere(tmp_path: Path) -> None:
    judged(kills(tmp_path, 4, 75, 1, 280), 4)  # 18 s; 95 s on a busy machine


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_killed_anywhere_a_thousand_times(tmp_path: Path) -> None:
    found = kills(tmp_path, 1000, 1, 2, 7000)
    judged(found, 1000)
    phases = Counter(kill["phase"] for kill in found)
    assert all(phases[phase] >= 30 for phase in ("apply", "hold", "revert", "guard's revert")), (
        phases
    )
    steps = Counter(
        (kill["phase"], kill["step"]) for kill in found if kill["phase"] in ("apply", "revert")
    )
    assert len(steps) >= 15 and min(steps.values()) >= 10, steps
    assert (
        sum(kill["by_guard"] for kill in found) >= 100
        and sum(kill["reported"] for kill in found) >= 100
    )
    assert Counter(kill["what"] for kill in found).keys() == {"process", "all", "guard"}

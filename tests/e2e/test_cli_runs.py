"""servers and runs prune, by the command line, with many old runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.ended_runs import make_ended

from workbench.store import paths

Cli = Callable[..., Any]


def runs_in(listing: str) -> list[str]:
    """Return the lines of runs; other programs of this machine may serve too, and are listed below
    them."""
    return [line for line in listing.splitlines() if "-vllm-00" in line]


@pytest.mark.slow
def test_old_runs_are_counted_listed_and_removed(cli: Cli, clean_environment: None) -> None:
    root = paths.state_dir() / "runs"
    ids = make_ended(root, 30, days_ago=3)
    failed = make_ended(root, 1, exit_code=1, stopped=False, days_ago=4)
    assert len(runs_in(cli("servers").out)) == 31  # all of them, and now they are marked
    again = cli("servers")
    assert len(runs_in(again.out)) == 20 and "11 older runs have ended" in again.err
    assert cli("servers", "--json").document["older_runs"] == 11
    assert len(runs_in(cli("servers", "--all").out)) == 31
    assert cli("logs", ids[2]).out.startswith("a line of the log")
    for wrong in ([], ["--older-than", "30"], ["--size", "-1G"], ["--keep", "-1"]):
        assert cli("runs", "prune", *wrong, "--yes").code == 2
    asked = cli("runs", "prune", "--older-than", "2d")
    assert (
        asked.code == 2
        and "30 runs would be removed" in asked.err
        and len(list(root.iterdir())) == 31
    )
    pruned = cli("runs", "prune", "--keep", "5", "--yes", "--json").document
    assert pruned["removed"] == ids[24::-1] and pruned["unread_failures"] == failed
    last = cli("runs", "prune", "--older-than", "2d", "--yes")
    assert (
        "5 runs removed" in last.out
        and (f"1 failed run whose log nobody has read: {failed[0]}") in last.err
    )
    assert cli("logs", failed[0]).code == 0
    assert f"removed {failed[0]}" in cli("runs", "prune", "--older-than", "2d", "--yes").out
    assert not list(root.iterdir())


@pytest.mark.parametrize("text", ["", "d", "3 d", "1e3d", "3s"])
def test_an_age_needs_a_number_and_a_unit(cli: Cli, text: str) -> None:
    assert cli("runs", "prune", "--older-than", text, "--yes").code == 2

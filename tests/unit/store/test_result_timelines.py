"""Tests of stored timelines of results whose files are damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from workbench.model.errors import StoreError
from workbench.store import result_timelines
from workbench.store.recording import CellWriter, Header


def test_times_that_are_years_apart_are_not_read_as_cells(tmp_path: Path) -> None:
    """Each step between the first time and the last would be a cell of every graph."""
    cells = CellWriter(1)
    lines = [
        line
        for at in (1, 10**11)
        for line in cells.add_reading(range(at, at + 1), {(0, "power_w"): 250.0})
    ]
    lines += cells.finish_open_cells()
    path = tmp_path / "timeline"
    result_timelines.write_timeline(path, Header("box", False, 1, 0.0), lines)
    with pytest.raises(StoreError, match="is damaged: it seems to cover"):
        result_timelines.read_timeline(path)

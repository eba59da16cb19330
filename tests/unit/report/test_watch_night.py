"""The history of a watch: what changed, the candidate or the machine, and from which night on."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from workbench.model.watch import ALARM, QUIET, Night, NightEntry, Watch
from workbench.report.blocks import Table, TextBlock
from workbench.report.watch_night import night_blocks
from workbench.tui.block_rows import block_rows
from workbench.tui.cells import row_width

WATCH = Watch("vllm-any", "venv:/opt/new", "03:00")
CHOSEN = (("attention backend", "FLASH_ATTN", "FLASHINFER"),)


def nights(machine: Sequence[float], candidate: Sequence[float]) -> list[Night]:
    """Return one night for each pair of levels in percent, newest first. Nights differ by 0.3 %."""
    rng, made = random.Random(2), list[Night]()
    for number, (pinned, share) in enumerate(zip(machine, candidate, strict=True), 1):
        speed = pinned * (1 + rng.gauss(0, 0.003))
        entry = NightEntry(
            WATCH,
            ALARM if share < 100 else QUIET,
            pinned_version="0.32.0",
            version=f"0.33.{(number - 1) // 4}",
            pinned_speed=speed,
            speed=speed * share / 100 * (1 + rng.gauss(0, 0.003)),
            chosen=CHOSEN,
            simulated=True,
        )
        made.append(Night(number, 86_400.0 * number, (entry,), done=True))
    return made[::-1]


def test_the_pinned_arm_separates_the_machine_from_the_upgrade() -> None:
    newest, *earlier = nights([100.0] * 8 + [95.0] * 4, [100.0] * 4 + [97.0] * 8)
    blocks = night_blocks(newest, earlier)
    history = next(b for b in blocks if isinstance(b, Table) and b.head[0] == "night")
    said = {12 - place: row[-1] for place, row in enumerate(history.rows) if row[-1]}
    assert said.keys() == {5, 9} and said[5].startswith("new version; candidate -")
    assert said[9].startswith("new version; machine -") and "candidate" not in said[9]
    last = blocks[-1]
    assert isinstance(last, TextBlock) and "from night 9 on, version 0.33.2" in last.text


def test_equal_nights_have_no_change_point() -> None:
    newest, *earlier = nights([100.0] * 12, [100.0] * 12)
    last = night_blocks(newest, earlier)[-1]
    assert isinstance(last, TextBlock) and last.text == "No change point in 12 nights."


@pytest.mark.parametrize("width", [78, 118])
def test_a_page_has_the_history_and_what_was_chosen_at_each_width(width: int) -> None:
    newest, *earlier = nights([100.0] * 8, [100.0] * 4 + [97.0] * 4)
    rows = block_rows(night_blocks(newest, earlier), width)
    text = "\n".join("".join(cell[0] for cell in row) for row in rows)
    assert max(map(row_width, rows)) <= width
    assert "candidate -" in text and "FLASHINFER" in text and "SIMULATED" in text
    assert "1 alarm" in text and "██" in text

"""Pages that share their texts with the command line and the reports."""

from __future__ import annotations

import pytest
from support.made_results import result

from workbench.model.conditions_table import condition_labels_and_texts
from workbench.report.blocks import Facts
from workbench.report.result_blocks import condition_blocks
from workbench.store.paths import shipped_presets_dir
from workbench.store.preset_text import preset_sections
from workbench.store.presets import PresetLibrary
from workbench.tui.pages.result import result_rows
from workbench.tui.pages.texts import preset_rows

WIDTH = 2000  # no line is wrapped


def lines(rows: list[tuple[tuple[str, str], ...]]) -> list[str]:
    return ["".join(text for text, _ in row) for row in rows]


@pytest.fixture(scope="module")
def library() -> PresetLibrary:
    return PresetLibrary()


@pytest.mark.ci_cases(20)
@pytest.mark.parametrize(
    "preset_id", sorted(path.stem for path in shipped_presets_dir().glob("*.toml"))
)
def test_the_page_of_a_preset_shows_every_line_of_its_text(
    library: PresetLibrary, preset_id: str
) -> None:
    preset = library.get(preset_id)
    shown = lines(preset_rows(preset, WIDTH))
    for section in preset_sections(preset):
        assert section.title in shown
        for line in section.lines:
            assert any(line.text in each and each.startswith(line.label) for each in shown), line


def test_the_page_and_the_report_of_a_result_show_every_condition() -> None:
    made = result()
    texts = condition_labels_and_texts(made.conditions)
    shown = lines(result_rows(made, WIDTH))
    reported = [
        row for block in condition_blocks(made) if isinstance(block, Facts) for row in block.rows
    ]
    for label, text in texts:
        assert f"{label:<12}{text}" in shown and (label, text) in reported

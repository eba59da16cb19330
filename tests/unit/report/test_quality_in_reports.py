"""A comparison of answers is in every report about the two sides."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from support import made_results as made

from workbench.model.quality import InstrumentProof, Interval, QualityMeasure
from workbench.report.blocks import Alert, Table, TextBlock
from workbench.report.content import Report
from workbench.report.formats.terminal import block_lines
from workbench.report.quality_blocks import quality_blocks
from workbench.report.registry import output_format

SUMMARY = "its answers differ: KLD >= 0.035 ± 0.003"
TWO = Report((made.result(), made.result(8)), comparison=made.comparison(), quality=made.quality())
TRIAL = Report((made.result(),), experiment=made.experiment(), quality=made.quality())


@pytest.mark.parametrize("form", ["md", "txt", "html"])
@pytest.mark.parametrize("report", [TWO, TRIAL], ids=["comparison", "experiment"])
def test_each_format_for_readers_shows_the_answers(form: str, report: Report) -> None:
    text = output_format(form).render(report)
    assert "0.035 ± 0.003" in text
    assert "Answers of A and B" in text
    assert "prose-orchard" in text
    assert "0.03200 to 0.03800" in text
    assert "SIMULATED" in text


def test_json_has_all_of_it() -> None:
    quality = json.loads(output_format("json").render(TWO))["quality"]
    assert quality["summary"] == SUMMARY
    assert quality["measures"][0]["value"] == {"value": 0.035, "low": 0.032, "high": 0.038}
    assert quality["texts"][0]["name"] == "prose-orchard"
    assert quality["simulated"] is True


def test_without_a_comparison_of_answers_nothing_is_said() -> None:
    text = output_format("md").render(replace(TWO, quality=None))
    assert "Answers of A and B" not in text


def test_an_instrument_that_was_not_usable_is_named() -> None:
    proof = InstrumentProof("B", "prefill", False, reason="all zeros", defect="vLLM #53488")
    blocks = quality_blocks(
        replace(made.quality(), proofs=(proof,), measures=(), texts=(), worst=None)
    )
    (alert,) = [one for one in blocks if isinstance(one, Alert) and one.kind == "warning"]
    assert alert.lines == ("prefill of B: all zeros (vLLM #53488)",)
    assert not any(isinstance(one, Table) for one in blocks)
    assert TextBlock(SUMMARY) in blocks


def test_a_share_is_never_above_the_whole() -> None:
    share = QualityMeasure("same_top", Interval(0.98, 0.95, 1.01))
    lines = "\n".join(block_lines(quality_blocks(replace(made.quality(), measures=(share,)))))
    assert "98.00 (95.00 to 100.00)" in lines


def test_the_first_token_that_differs_stands_side_by_side() -> None:
    lines = [" ".join(line.split()) for line in block_lines(quality_blocks(made.quality()))]
    assert 'A, token 13 " the"' in lines
    assert 'B, token 13 " a"' in lines
    assert 'A, token 7 " = 0; i < n; i++)"' in lines
    assert 'B, token 7 " a a a a a a a"' in lines

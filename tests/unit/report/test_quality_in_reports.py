"""A comparison of answers is in every report about the two sides."""

from __future__ import annotations

import csv
import json
from dataclasses import replace

import pytest
from support import made_results as made

from workbench.engines.answer_settings import collect_answer_settings
from workbench.model.bench import Conditions
from workbench.model.quality import NOT_MEASURED, InstrumentProof, Interval, QualityMeasure
from workbench.report.blocks import Alert, Table, TextBlock
from workbench.report.content import Report, comparisons_by_result_id
from workbench.report.formats.terminal import block_lines
from workbench.report.quality_blocks import compared_sides_rows, quality_blocks
from workbench.report.registry import find_output_format
from workbench.report.series_blocks import experiment_outcome_blocks

SUMMARY = "its answers differ: KLD >= 0.035 ± 0.003"
TWO = Report((made.result(), made.result(8)), comparison=made.comparison(), quality=made.quality())
TRIAL = Report((made.result(),), experiment=made.experiment(), quality=made.quality())


@pytest.mark.parametrize("form", ["md", "txt", "html"])
@pytest.mark.parametrize("report", [TWO, TRIAL], ids=["comparison", "experiment"])
def test_each_format_for_readers_shows_the_answers(form: str, report: Report) -> None:
    text = find_output_format(form).render(report)
    assert "0.035 ± 0.003" in text
    assert "Answers of A and B" in text
    assert "prose-orchard" in text
    assert "0.03200 to 0.03800" in text
    assert "ln probability under A" in text and "-0.152 (-0.210 to -0.094)" in text
    assert "its own -0.412, those of B -0.564 nats per token" in text
    assert "SIMULATED" in text


def test_json_has_all_of_it() -> None:
    quality = json.loads(find_output_format("json").render(TWO))["quality"]
    assert quality["summary"] == SUMMARY
    assert quality["measures"][0]["value"] == {"value": 0.035, "low": 0.032, "high": 0.038}
    assert quality["texts"][0]["name"] == "prose-orchard"
    assert quality["answer_scores"]["b"] == -0.564
    assert quality["simulated"] is True


@pytest.mark.parametrize(("answers", "mark"), [("same", "good"), ("differs", ""), ("broken", "")])
def test_a_faster_b_with_other_answers_is_not_marked_as_good(answers: str, mark: str) -> None:
    """The screen and HTML showed "B is faster, but its answers differ" in the colour of a success."""
    faster = made.experiment()
    assert faster.comparison is not None and faster.change_of_deciding_metric is not None
    assert faster.change_of_deciding_metric.verdict == "better"
    compared = replace(faster.comparison, quality_verdict=answers)
    [first, *_] = experiment_outcome_blocks(replace(faster, comparison=compared))
    assert isinstance(first, TextBlock) and (first.lead, first.mark) == (True, mark)


ALONE = made.result(simulated=True)
OF_RESULT = replace(
    made.quality(), id=3, conditions_b=collect_answer_settings(ALONE.conditions), unix_s=1.0
)
OLDER = replace(OF_RESULT, id=2, verdict="same", summary="its answers are the same", measures=())


@pytest.mark.parametrize("form", ["md", "txt", "html"])
def test_the_report_of_one_result_has_the_comparisons_that_it_belongs_to(form: str) -> None:
    text = find_output_format(form).render(
        Report.from_result(ALONE, comparisons=(OF_RESULT, OLDER))
    )
    assert "0.03200 to 0.03800" in text and "prose-orchard" in text
    assert "comparison of answers 3" in text
    assert "B against llama-8b: its answers are the same (comparison of answers 2)" in text


def test_a_report_of_several_results_has_one_line_about_each_comparison() -> None:
    both = (ALONE, made.result(8, model="org/other", simulated=True))
    text = find_output_format("md").render(
        Report(both, answers=comparisons_by_result_id(both, (OF_RESULT,)))
    )
    assert text.count("comparison of answers 3") == 1
    assert "0.03200 to 0.03800" not in text


def test_csv_has_the_measures_of_the_newest_comparison() -> None:
    text = find_output_format("csv").render(
        Report.from_result(ALONE, comparisons=(OF_RESULT, OLDER))
    )
    cells = dict(csv.reader(text.splitlines()))
    assert cells["quality.verdict"] == "differs" and cells["quality.side"] == "B"
    assert cells["quality.kl"] == "0.035" and cells["quality.kl.high"] == "0.038"
    assert cells["quality.kl.floor"] == "0.0002"
    assert cells["quality.answer_score"] == "-0.152"
    assert "quality.verdict" not in find_output_format("csv").render(Report.from_result(ALONE))


def test_a_comparison_of_other_or_of_simulated_servers_is_not_that_of_a_result() -> None:
    real = replace(OF_RESULT, simulated=False)
    hardly_known = Conditions("box", "vllm", None, "org/tiny", simulated=True)
    unmeasured = replace(OF_RESULT, verdict=NOT_MEASURED)
    assert not comparisons_by_result_id((ALONE,), (real, unmeasured, made.quality()))
    assert not comparisons_by_result_id((replace(ALONE, conditions=hardly_known),), (OF_RESULT,))
    assert comparisons_by_result_id((ALONE,), (OF_RESULT,)) == {ALONE.id: (("B", OF_RESULT),)}


def test_without_a_comparison_of_answers_nothing_is_said() -> None:
    text = find_output_format("md").render(replace(TWO, quality=None))
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
    assert "A, token 13 “ the”" in lines
    assert "B, token 13 “ a”" in lines
    assert "A, token 7 “ = 0; i < n; i++)”" in lines
    assert "B, token 7 “ a a a a a a a”" in lines


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        ({"command": "vllm"}, {"flag kv-cache-dtype": "fp8"}, "kv-cache-dtype not set > fp8"),
        ({"flag kv-cache-dtype": "fp8"}, {"program": "vllm"}, "kv-cache-dtype fp8 > not set"),
        ({"flag kv-cache-dtype": "fp8"}, {"address": "box"}, "kv-cache-dtype fp8 > not known"),
        ({"flag kv-cache-dtype": ""}, {"flag kv-cache-dtype": "fp8"}, 'kv-cache-dtype "" > fp8'),
    ],
)
def test_a_setting_that_one_side_lacks_is_said_in_words(
    a: dict[str, str], b: dict[str, str], said: str
) -> None:
    sides = replace(made.quality(), conditions_a=a, conditions_b=b)
    assert dict(compared_sides_rows(sides))["B differs in"] == said


def test_nothing_is_said_of_the_settings_of_a_server_that_was_never_reached() -> None:
    known = {"program": "vllm", "flag dtype": "bfloat16"}
    for a, b in ((known, {}), ({}, known)):
        sides = replace(made.quality(), conditions_a=a, conditions_b=b)
        assert [name for name, _ in compared_sides_rows(sides)] == ["A", "B"]


def test_a_measure_of_another_version_is_shown_by_its_name() -> None:
    """An imported file may name any measure, and each page and report about it must still open."""
    later = QualityMeasure("cosine", Interval(0.25, 0.2, 0.3))
    lines = "\n".join(block_lines(quality_blocks(replace(made.quality(), measures=(later,)))))
    assert "cosine" in lines
    assert "0.25000 (0.20000 to 0.30000)" in lines

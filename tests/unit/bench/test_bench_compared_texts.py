"""Tests of comparisons whose text says that the speed says nothing: garbage is never better, usage
that cannot be true on both sides is suspected, and the content of the load is part of the verdict.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from support.simulated_runs import result_of

from workbench.advisor.advisor import list_advice_findings
from workbench.advisor.facts import facts_from_result
from workbench.advisor.verdicts import format_verdict
from workbench.bench import experiment as design
from workbench.bench.compare import compare
from workbench.bench.metric_changes import BETTER, HINT
from workbench.model.answer_text import (
    ProbeOutcome,
    ProbePartOutcome,
    SetFeatures,
    TextFinding,
    TextReport,
)
from workbench.model.bench import BenchResult, Comparison
from workbench.model.experiment import AdvisedChange, Arm, Experiment, ExperimentRun, ExperimentSpec

GARBAGE = TextFinding("error", "text.degenerate", "degenerate output: all", '"!!!!!!!!"')
Change = Callable[[BenchResult], BenchResult]


def _said(excerpt: str, per_token: float, *findings: TextFinding) -> Change:
    load = SetFeatures(8, 8, characters_per_token=per_token, excerpts=(excerpt,))

    def change(result: BenchResult) -> BenchResult:
        text = TextReport(load, None, findings)
        return replace(result, summary=replace(result.summary, text=text))

    return change


def _with(**fields: Any) -> Change:
    def change(result: BenchResult) -> BenchResult:
        return replace(result, conditions=replace(result.conditions, **fields))

    return change


def _prompts(name: str) -> Change:
    return lambda result: replace(result, spec=replace(result.spec, prompts_name=name))


def _with_real_text(result: BenchResult) -> BenchResult:
    return replace(result, spec=replace(result.spec, content="text"))


GOOD, BAD = _said('"Rivers shape valleys."', 4.6), _said('"!!!!!!!!"', 1.0, GARBAGE)


def _experiment(a: Change, b: Change, *more: Change, faster: float = 1.2) -> Experiment:
    """Return a finished experiment of five pairs in which B is faster."""
    spec = ExperimentSpec(a=Arm(), b=Arm(sets=("knob=2",)), plan={}, pairs=5)
    results, runs = {}, []
    for pair in range(spec.pairs):
        for arm in design.arm_order_of_pair(spec, pair):
            number = len(results) + 1
            speed = (1.0 if arm == "A" else faster) * (1 + 0.002 * (pair % 3))
            made = result_of(number, arm, speed, seed=pair)
            for change in (a if arm == "A" else b, *more):
                made = change(made)
            results[number] = made
            runs.append(ExperimentRun(number - 1, pair, arm, "done", number))
    return design.evaluate_experiment(Experiment(1, 0.0, "box", spec, tuple(runs), "done"), results)


def _comparison(experiment: Experiment) -> Comparison:
    assert experiment.comparison is not None
    return experiment.comparison


def test_the_faster_side_is_better_if_both_sides_answer() -> None:
    one = _experiment(GOOD, GOOD)
    assert one.verdict.startswith("B is faster by ")
    assert _comparison(one).metrics[0].verdict == BETTER
    assert [text and text.excerpt for _, text in _comparison(one).sides_and_texts] == (
        ['"Rivers shape valleys."'] * 2
    )


@pytest.mark.parametrize(("a", "b", "side"), [(GOOD, BAD, "B"), (BAD, GOOD, "A")])
def test_garbage_is_never_better(a: Change, b: Change, side: str) -> None:
    one = _experiment(a, b)
    assert one.verdict.startswith("no claim: B is faster by ")
    assert one.verdict.endswith(f', but the text of {side} is not an answer: "!!!!!!!!"')
    assert not [m for m in _comparison(one).metrics if m.verdict == BETTER]
    assert _comparison(one).warnings[0] == (
        f'the text of {side} is not an answer: "!!!!!!!!" (degenerate output: all)'
    )


def test_a_side_that_claims_too_many_tokens_has_text_that_is_sound() -> None:
    says = "usage not credible: 2.3 characters per token"
    doubled = _said('"Rivers shape valleys."', 2.3, TextFinding("error", "text.usage", says))
    one = _experiment(GOOD, doubled, faster=2.0)
    assert one.verdict.endswith(", but the usage of B is not credible")
    assert f"the usage of B is not credible ({says})" in _comparison(one).warnings
    assert "is not an answer" not in " ".join((one.verdict, *_comparison(one).warnings))


def test_a_server_that_was_doubted_at_its_start_makes_no_claim() -> None:
    one = _experiment(GOOD, GOOD, _with(server_text="equal answers"))
    assert "the text of A is not an answer" in one.verdict and one.verdict.startswith("no claim")


def test_usage_that_is_twice_as_high_for_the_same_text_is_suspected() -> None:
    one = _experiment(GOOD, _said('"Rivers shape valleys."', 2.3), faster=2.0)
    assert one.verdict.startswith(
        "no claim: the runs are not comparable (the usage of B is suspect"
    )
    assert "4.6 characters per token in A and 2.3 in B" in _comparison(one).warnings[0]
    assert {m.verdict for m in _comparison(one).metrics} & {BETTER} == set()
    assert HINT in {m.verdict for m in _comparison(one).metrics}


def test_other_models_have_other_tokens() -> None:
    a, b = (change(result_of(n, "A", 1.0)) for n, change in enumerate((GOOD, _said("", 2.0)), 1))
    other = replace(b, conditions=replace(b.conditions, model="org/other"))
    assert any("is suspect" in warning for warning in compare(a, b).warnings)
    assert not any("is suspect" in warning for warning in compare(a, other).warnings)


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("speculative-config", "speculation guesses a list of words better"),
        ("spec-draft-n-max", "speculation guesses a list of words better"),
        ("enable-prefix-caching", "the prefix cache has nothing to supply"),
        ("disable-radix-cache", "the prefix cache has nothing to supply"),
        ("enable-expert-parallel", "a list of words uses other experts"),
        ("moe-backend", "a list of words uses other experts"),
    ],
)
def test_the_content_of_the_load_is_part_of_a_verdict_that_depends_on_it(
    flag: str, said: str
) -> None:
    flags = {"model": "org/tiny"}

    def with_flag(result: BenchResult) -> BenchResult:
        return _with(flags={**flags, flag: "on"})(GOOD(result))

    def without(result: BenchResult) -> BenchResult:
        return _with(flags=flags)(GOOD(result))

    one = _experiment(without, with_flag)
    assert one.verdict.startswith("B is faster by ")
    assert "the load was a list of words at temperature 0" in one.verdict and said in one.verdict
    assert said in " ".join(_comparison(one).notes)
    advised = AdvisedChange("spec.try", "try it", "up to +50 % tok/s", 1)
    assert said in format_verdict(replace(one, advice=advised))
    own = _experiment(without, with_flag, _prompts("chats.jsonl, 40 prompts"))
    assert "list of words" not in own.verdict
    real = _experiment(without, with_flag, _with_real_text)
    assert real.verdict.startswith("B is faster by ") and "list of words" not in real.verdict
    shares_nothing = "the load was excerpts of real text at temperature 0: such prompts share no"
    assert (shares_nothing in real.verdict) == ("cach" in flag)


def test_other_flags_do_not_depend_on_the_content() -> None:
    def fewer(result: BenchResult) -> BenchResult:
        return _with(flags={"max-num-seqs": 64, "temperature": 1, "step": 2})(GOOD(result))

    assert "list of words" not in _experiment(GOOD, fewer).verdict


def test_advice_about_garbage_says_so_first() -> None:
    made = BAD(result_of(1, "A", 1.0))
    refused = replace(made, summary=replace(made.summary, refused=(GARBAGE.text,)))
    for result in (made, refused, _with(server_text="equal answers")(GOOD(made))):
        first = list_advice_findings(facts_from_result(result))[0]
        assert (first.code, first.level) == ("result.text", "error")
    assert not [
        f for f in list_advice_findings(facts_from_result(GOOD(made))) if f.code == "result.text"
    ]


def _probe_said(remembered: int, **load: int) -> Change:
    places = {
        "alone": ProbePartOutcome(3, 0, remembered),
        "together": ProbePartOutcome(8, 0, remembered),
    }
    features = SetFeatures(16, 16, excerpts=('"Rivers."',), **load)

    def change(result: BenchResult) -> BenchResult:
        text = TextReport(features, ProbeOutcome(places))
        return replace(result, summary=replace(result.summary, text=text))

    return change


@pytest.mark.parametrize(
    ("b", "said"),
    [
        (_probe_said(0), "55 of 55 answers to the probe of A and 0 of 55 to that of B"),
        (_probe_said(3, equal=16), "0 of 80 answers of A and 80 of 80 of B are equal"),
        (_probe_said(3, looping=12), "0 of 80 answers of A and 60 of 80 of B repeat a phrase"),
        (
            _probe_said(3, ended_in_answers=14),
            "0 of 80 answers of A and 70 of 80 of B end in a few characters again and again",
        ),
    ],
)
def test_a_side_that_answers_otherwise_is_not_better(b: Change, said: str) -> None:
    known = replace_places(3, 8)
    one = _experiment(known, b if "probe" in said else replace_places(3, 8, b))
    assert one.verdict.startswith("no claim: the runs are not comparable (the texts differ: ")
    assert said in one.verdict
    assert BETTER not in {m.verdict for m in _comparison(one).metrics}
    assert _experiment(known, known).verdict.startswith("B is faster by ")


def replace_places(alone: int, together: int, then: Change | None = None) -> Change:
    """Return a change to a result whose probe knew this many code words of 3 and of 8."""
    places = {"alone": ProbePartOutcome(3, 0, alone), "together": ProbePartOutcome(8, 0, together)}

    def change(result: BenchResult) -> BenchResult:
        made = (then or _probe_said(0))(result)
        assert made.summary.text is not None
        text = replace(made.summary.text, probe=ProbeOutcome(places))
        return replace(made, summary=replace(made.summary, text=text))

    return change


def test_usage_that_is_a_little_higher_in_each_run_is_suspected() -> None:
    one = _experiment(GOOD, _said('"Rivers shape valleys."', 4.0), faster=1.15)
    assert one.verdict.startswith(
        "no claim: the runs are not comparable (the usage of B is suspect"
    )
    assert (
        "4.00 characters per token at most in B, and 4.60 at least"
        in (_comparison(one).warnings[0])
    )
    near = _experiment(GOOD, _said('"Rivers shape valleys."', 4.4), faster=1.15)
    assert near.verdict.startswith("B is faster by ")


def test_a_side_that_repeats_long_paragraphs_is_not_better() -> None:
    def compressed(share: float) -> Change:
        load = SetFeatures(32, 32, compressed=share, excerpts=('"Rivers."',))

        def change(result: BenchResult) -> BenchResult:
            return replace(result, summary=replace(result.summary, text=TextReport(load)))

        return change

    one = _experiment(compressed(0.42), compressed(0.13))
    assert "no claim" in one.verdict and "those of B repeat more" in one.verdict
    assert _experiment(compressed(0.42), compressed(0.38)).verdict.startswith("B is faster by ")

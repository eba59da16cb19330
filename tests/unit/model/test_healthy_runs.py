"""No run of a healthy model is refused because of its text."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from support.healthy_texts import SENTENCES, HealthyRun, babble, text

from workbench.model.answer_probe import NOT_FOLLOWED, assess_probe, summarize_probe
from workbench.model.answer_text import features_of_answers, text_features
from workbench.model.answer_verdict import AskedLoad, findings_about_load
from workbench.model.findings import Finding, Level


def found(run: HealthyRun, *, short: bool = False) -> list[Finding]:
    probed, answers = run.probed(), run.short_load() if short else run.load()
    asked = AskedLoad("m", prompt_tokens=150.0, ends=short or not run.ignore_eos)
    probe = summarize_probe(probed)
    return [
        *assess_probe(probed, model="m", asks_sent_at_once=16, long_tokens=run.long_tokens),
        *findings_about_load(features_of_answers(answers), asked, probe),
    ]


@pytest.mark.parametrize("seeds", [range(60), pytest.param(range(1000), marks=pytest.mark.slow)])
@pytest.mark.long
def test_no_healthy_run_is_refused(seeds: range) -> None:
    marks: Counter[str] = Counter()
    for seed in seeds:
        run = HealthyRun(seed)
        findings = found(run)
        refused = [one for one in findings if one.level is Level.ERROR]
        assert not refused, (seed, run.kind, run.strength, refused)
        marks.update({one.code for one in findings if one.level is Level.WARN})
    del marks[NOT_FOLLOWED]  # of tiny models, as it should be
    assert sum(marks.values()) <= 0.02 * len(seeds), marks


@pytest.mark.parametrize(
    "seeds", [range(40), pytest.param(range(1000), marks=[pytest.mark.slow, pytest.mark.long])]
)
def test_short_answers_of_natural_length_are_no_fault(seeds: range) -> None:
    """A model that ends its answers to the load at once has "no content", but answers the probe."""
    for seed in seeds:
        run = HealthyRun(seed)
        refused = [one for one in found(run, short=True) if one.level is Level.ERROR]
        assert not refused, (seed, run.kind, run.strength, refused)


def test_answers_that_end_at_once_are_marked_beside_a_sound_probe_only() -> None:
    run = HealthyRun(1)
    ended = [replace(answer, text="", output_tokens=1) for answer in run.short_load()]
    asked = AskedLoad("m", ends=True)
    (marked,) = findings_about_load(
        features_of_answers(ended), asked, summarize_probe(run.probed())
    )
    (refused,) = findings_about_load(features_of_answers(ended), asked)
    assert (marked.level, refused.level) == (Level.WARN, Level.ERROR)
    assert "ended" in marked.text and "at once" in marked.text


@pytest.mark.parametrize("kind", SENTENCES)
def test_texts_of_any_length_are_language(kind: str) -> None:
    draw = random.Random(kind)
    for size in (20, 40, 80, 200, 600, 2000):
        for jump in (0.0, 0.1, 0.4):
            said = text(draw, kind, size, jump)
            assert text_features(said).defect == "", said


def test_babble_is_no_garbage() -> None:
    draw = random.Random(1)
    assert all(
        text_features(babble(draw, size)).defect == "" for size in (40, 200, 600) for _ in range(50)
    )

"""The text of the two sides of a comparison: an excerpt of each, whether it is an answer, and
whether their token counts can both be true. A side whose text is no answer is not faster, whatever
it counts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from operator import attrgetter
from statistics import median
from typing import Any

from workbench.model.answer_probe import ProbePart
from workbench.model.answer_text import SetFeatures, TextReport, describe_text_fault
from workbench.model.answer_verdict import (
    LEAST_COMPARED,
    OTHER_SHARE,
    differing_answer_kinds_with_counts,
    is_more_repetitive,
)
from workbench.model.bench import ArmText, BenchResult, BenchSpec, BenchSummary
from workbench.model.counts import format_four_digits
from workbench.model.known_values import known_values, mean_or_none, round_or_none

_COUNTED_FEATURES = (
    "looked_at",
    "collapsed",
    "looping",
    "ended_in_answers",
    "equal",
    "odd",
    "salad",
)

SLIGHT_USAGE_FACTOR = 1.08  # between each run of one side and each run of the other
_MIN_RUNS_FOR_SLIGHT_USAGE, _LOOPING_SHARE = 3, 0.1
USAGE_FACTOR = 1.5  # between the characters per token of two sides with one tokenizer
# Flags and variables whose effect depends on what the text says: a pattern of their names, and what
# a list of words is for them.
_PREFIX_CACHE_OPTIONS = (
    re.compile(r"prefix-cach|radix-cache|cache-prompt|cache-reuse|lmcache", re.IGNORECASE),
    "such prompts share no prefix, so the prefix cache has nothing to supply",
)
_TEXT_DEPENDENT_OPTIONS = (
    (
        re.compile(r"speculat|draft|ngram|eagle|(^|-)mtp(-|$)|^spec-", re.IGNORECASE),
        "speculation guesses a list of words better than other text",
    ),
    _PREFIX_CACHE_OPTIONS,
    (
        re.compile(r"moe|expert|(^|-)ep(-|$)|eplb|deepep", re.IGNORECASE),
        "a list of words uses other experts, and fewer of them, than other text",
    ),
)


def describe_broken_text(summary: BenchSummary) -> str | None:
    """Return a sentence that says why the text of a result is no answer, with an excerpt and the
    speed. None if it is an answer."""
    broken = summary.text_error
    if broken is None:
        return None
    what = describe_text_fault(broken.code, "its {}", broken.excerpt)
    why = f"{what} ({broken.text})"
    if summary.output_tok_s is None:
        return why
    return f"{why}; {format_four_digits(summary.output_tok_s)} tok/s of it say nothing"


def summarize_text_of_arm(runs: Sequence[BenchResult]) -> ArmText | None:
    """Return the text of one side of a comparison: that of its first run with a problem, otherwise
    that of its first run. None if no text of any run was examined, and no server's text is in
    doubt."""
    loads = _load_text_features(runs)
    doubted = next(filter(None, (run.conditions.server_text for run in runs)), "")
    if not loads:
        return ArmText("", doubted) if doubted else None
    excerpt = next(chain.from_iterable(load.excerpts for load in loads), "")
    counted = list(filter(None, (load.characters_per_token for load in loads)))
    per_token = round_or_none(mean_or_none(counted), 2)
    for run in runs:
        if broken := run.summary.text_error:
            return ArmText(broken.excerpt or excerpt, broken.text, per_token, broken.code)
    return ArmText(excerpt, doubted, per_token)


def warn_of_text_problems(
    a: ArmText | None, b: ArmText | None, own_tokenizers: bool
) -> Iterator[str]:
    """Yield one sentence for each reason why two sides cannot be compared by their text.
    `own_tokenizers` says whether the sides have different models or engines, whose tokens may
    differ in length."""
    for side, text in (("A", a), ("B", b)):
        if text is not None and text.problem:
            what = describe_text_fault(text.code, f"the {{}} of {side}", text.excerpt)
            yield f"{what} ({text.problem})"
    if own_tokenizers or a is None or b is None:
        return
    x, y = a.characters_per_token, b.characters_per_token
    if x and y and max(x, y) >= USAGE_FACTOR * min(x, y):
        side = "A" if x < y else "B"
        yield (
            f"the usage of {side} is suspect: {format_four_digits(x)} characters per token in A and "
            f"{format_four_digits(y)} in B, so {side} may count tokens that it does not send"
        )


def _load_text_features(runs: Sequence[BenchResult]) -> list[SetFeatures]:
    """Return the features of the answers of each run whose text was examined."""
    return [text.load for text in _examined_texts(runs)]


def _examined_texts(runs: Sequence[BenchResult]) -> list[TextReport]:
    return known_values(run.summary.text for run in runs)


def warn_of_different_texts(a: Sequence[BenchResult], b: Sequence[BenchResult]) -> Iterator[str]:
    """Yield one sentence for each difference between the answers of two sides with one model: a
    feature that clearly more answers of one side have, or code words that clearly fewer answers of
    one side repeat. Yield none if the sides have different models."""
    if a[0].conditions.model != b[0].conditions.model:
        return
    yield from _warn_of_suspect_token_usage(a, b)
    x, y = _sum_answer_features(a), _sum_answer_features(b)
    for kind, one, other in differing_answer_kinds_with_counts(x, y):
        yield (
            f"the texts differ: {one} of {x.looked_at} answers of A and {other} of {y.looked_at} of"
            f" B {kind}"
        )
    for side, less, more in (("A", x, y), ("B", y, x)):
        if is_more_repetitive(less, more):
            yield (
                f"the texts differ: those of {side} repeat more, in long units: they compress to"
                f" {100 * (less.compressed or 0):.0f} % of their size, and the others to"
                f" {100 * (more.compressed or 0):.0f} %"
            )
    known, asked = _correct_and_total_probe_answers(a)
    known_b, asked_b = _correct_and_total_probe_answers(b)
    if min(asked, asked_b) < LEAST_COMPARED:
        return
    if abs(known / asked - known_b / asked_b) >= OTHER_SHARE:
        yield (
            f"the texts differ: {known} of {asked} answers to the probe of A and {known_b} of"
            f" {asked_b} to that of B have the code word that they were asked to repeat"
        )


def _warn_of_suspect_token_usage(
    a: Sequence[BenchResult], b: Sequence[BenchResult]
) -> Iterator[str]:
    """Yield a sentence if each run of one side has fewer characters per token than each run of the
    other, by a factor that one model with one tokenizer does not have."""
    if a[0].conditions.engine != b[0].conditions.engine:
        return
    x, y = _characters_per_token_of_runs(a), _characters_per_token_of_runs(b)
    if min(len(x), len(y)) < _MIN_RUNS_FOR_SLIGHT_USAGE:
        return
    for side, few, many in (("A", x, y), ("B", y, x)):
        factor = min(many) / max(few)
        if factor >= SLIGHT_USAGE_FACTOR and median(many) < USAGE_FACTOR * median(few):
            yield (
                f"the usage of {side} is suspect: {max(few):.2f} characters per token at most in"
                f" {side}, and {min(many):.2f} at least in the other side, with the same model and"
                f" load, so {side} may count tokens that it does not send"
            )


def _characters_per_token_of_runs(runs: Sequence[BenchResult]) -> list[float]:
    """Return the characters per token of the runs whose answers do not repeat themselves."""
    found = []
    for load in _load_text_features(runs):
        repeating = load.fraction_of_answers(load.looping + load.collapsed)
        if load.characters_per_token and repeating < _LOOPING_SHARE:
            found.append(load.characters_per_token)
    return found


def _sum_answer_features(runs: Sequence[BenchResult]) -> SetFeatures:
    """Return the counts of the runs' examined answers, each summed over the runs, and the median of
    the shares to which the answers compress."""
    loads = _load_text_features(runs)
    sums: dict[str, Any] = {name: sum(map(attrgetter(name), loads)) for name in _COUNTED_FEATURES}
    compressed = sorted(filter(None, (load.compressed for load in loads)))
    if not compressed:
        return SetFeatures(**sums)
    return SetFeatures(**sums, compressed=compressed[len(compressed) // 2])


def _correct_and_total_probe_answers(runs: Sequence[BenchResult]) -> tuple[int, int]:
    """Return how many answers to short prompts of the probes have their code word, and how many
    there are."""
    remembered = answers = 0
    for text in _examined_texts(runs):
        short = dict(text.probe.places) if text.probe is not None else {}
        short.pop(ProbePart.LONG, None)
        for place in short.values():
            remembered += place.remembered
            answers += place.answers
    return remembered, answers


def load_content_caveat(spec: BenchSpec, differences: Sequence[Mapping[str, Any]]) -> str:
    """Return why the prompts that Workbench makes may mislead about the changed flags, such as
    those of speculation. "" if no change depends on what the prompts say, or if the prompts are
    text of the user."""
    own = spec.prompts_name or spec.prompts or spec.command or spec.trace_reuse
    if own or spec.endpoint == "embeddings":
        return ""
    names = [str(d["name"]).replace("_", "-") for d in differences if d["kind"] in ("flag", "env")]
    reservations = (_PREFIX_CACHE_OPTIONS,) if spec.has_real_text else _TEXT_DEPENDENT_OPTIONS
    why = [text for pattern, text in reservations if any(map(pattern.search, names))]
    if not why:
        return ""
    what = "excerpts of real text" if spec.has_real_text else "a list of words"
    return f"the load was {what} at temperature {spec.temperature:g}: {'; '.join(why)}"

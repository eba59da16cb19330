"""The comparison of the answers of two servers as blocks of a document."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from workbench.engines.answer_settings import list_changed_answer_settings
from workbench.model.counts import count_of
from workbench.model.quality import (
    ANSWER_SCORE,
    FORKS,
    KL,
    LN_PPL,
    SAME_TOP,
    AnswerScores,
    ForkCount,
    ForkedAnswer,
    Interval,
    OwnMeasure,
    QualityMeasure,
    QualityResult,
    ScoredItem,
    TextDifference,
    WorstText,
)
from workbench.report.blocks import (
    SIMULATED,
    Alert,
    Block,
    Facts,
    Fold,
    Heading,
    Table,
    TextBlock,
    bulleted_list,
    simulated_alert,
)
from workbench.report.content import Answers
from workbench.report.format_values import NA

_MOST_ITEMS = 200  # shown
_FLAG = "flag "  # in front of the name of a flag among the conditions
_TITLES = {  # measure -> title, digits, factor
    KL: ("KLD per token, at least", 5, 1.0),
    LN_PPL: ("change of ln perplexity", 5, 1.0),
    SAME_TOP: ("same top token, %", 2, 100.0),
    FORKS: ("forks per 1,000 tokens", 2, 1.0),
    ANSWER_SCORE: ("ln probability under A", 3, 1.0),
}


def quality_blocks(result: QualityResult) -> list[Block]:
    """Return the blocks that describe a comparison of answers: the verdict, the measures beside
    those of A against itself, where A and B part, and how it was measured."""
    return [
        Heading("Answers of A and B"),
        *simulated_alert(result.simulated),
        TextBlock(result.summary),
        *instrument_problem_blocks(result),
        Facts(compared_sides_rows(result)),
        *quality_detail_blocks(result),
    ]


def compared_sides_rows(result: QualityResult) -> tuple[tuple[str, str], ...]:
    """Return rows (label, text) on what was compared: A, B, and the settings in which B differs, if
    both sides are known and differ."""
    sides = (("A", result.a), ("B", result.b))
    if not result.conditions_a or not result.conditions_b:
        return sides  # one of them was never reached
    changes = list_changed_answer_settings(result.conditions_a, result.conditions_b)
    changes = tuple(name for name in changes if name != "address")  # A and B say it already
    if not changes:
        return sides
    differs = ", ".join(_setting_change_text(result, name) for name in changes)
    return *sides, ("B differs in", differs)


def instrument_problem_blocks(result: QualityResult) -> list[Block]:
    """Return the block that says which instruments were not usable, and why; [] if all were."""
    unusable = [proof for proof in result.proofs if not proof.usable]
    if not unusable:
        return []
    lines = tuple(f"{proof.lane} of {proof.side}: {proof.why_unusable}" for proof in unusable)
    return [Alert("warning", "An instrument was not usable", lines)]


def quality_detail_blocks(result: QualityResult) -> list[Block]:
    """Return the blocks below the verdict: measures, where A and B part, how it was measured,
    notes, and each text."""
    blocks = [
        *_user_measure_blocks(result.own),
        *_measure_tables(result.measures),
        *_worst_text_blocks(result),
        *_forked_answer_blocks(result),
    ]
    blocks += [Heading("How it was measured", 3), Facts(tuple(_how_measured_rows(result)))]
    blocks += bulleted_list(result.notes)
    if result.texts:
        blocks.append(Fold("Each text", (_text_differences_table(result.texts),)))
    return [*blocks, *_changed_item_blocks(result.own)]


def _user_measure_blocks(own: OwnMeasure | None) -> list[Block]:
    """Return the blocks about the user's own measure; [] without one."""
    if own is None:
        return []
    difference, pairs = own.difference, count_of(own.pairs, "item")
    digits, factor, unit = (1, 100.0, " points") if own.right_wrong else (4, 1.0, "")
    text = f"{factor * difference.value:+.{digits}f}{unit}"
    if difference.bounds is not None:
        low, high = difference.bounds
        text += f" ({factor * low:+.{digits}f} to {factor * high:+.{digits}f})"
    rows = [("score", own.field)]
    if own.right_wrong:
        rows.append(("right", f"A {own.mean_a:.1%}, B {own.mean_b:.1%} of {pairs}"))
        rows.append(("changed", f"{own.lost} only A has right, {own.gained} only B has right"))
        test = "exact McNemar test; interval: Newcombe 1998, method 10"
    else:
        rows.append(("mean", f"A {own.mean_a:.4g}, B {own.mean_b:.4g} of {pairs}"))
        test = "paired t test"
    rows += [("B - A", text), ("p", f"{own.p:.2g} ({test})")]
    if own.only_a or own.only_b:
        rows.append(("not paired", f"{own.only_a} only of A, {own.only_b} only of B"))
    if own.command:
        rows.append(("command", shlex.join(own.command)))
    return [Heading("Your own measure", 3), Facts(tuple(rows))]


def _changed_item_blocks(own: OwnMeasure | None) -> list[Block]:
    if own is None:
        return []
    changed = [one for one in own.items if one.a != one.b]
    if not changed:
        return []
    shown = sorted(changed, key=_score_change)[:_MOST_ITEMS]
    rows = tuple((one.name, _score_text(one.a), _score_text(one.b)) for one in shown)
    blocks: list[Block] = [Table(("item", "A", "B"), rows, frozenset({1, 2}))]
    if len(changed) > len(shown):
        blocks.append(TextBlock(f"{len(changed) - len(shown):,} more are in JSON"))
    return [Fold("Each item whose score changed", blocks)]


def _score_change(item: ScoredItem) -> float:
    """Return the score of B minus that of A; infinity for an item that only one side has. So the
    items with the largest loss come first."""
    if item.a is None or item.b is None:
        return math.inf
    return item.b - item.a


def _score_text(value: float | None) -> str:
    return NA if value is None else f"{value:.4g}"


def answer_comparison_blocks(answers: Answers, *, with_measures: bool) -> list[Block]:
    """Return the blocks about the comparisons of answers in which the configuration of a result was
    one side; [] without any. Each has one line, and if `with_measures` is true, the newest one also
    has all its measures."""
    if not answers:
        return []
    blocks: list[Block] = [Heading("Answers against other configurations")]
    lines = [answer_comparison_line(side, one) for side, one in answers]
    if not with_measures:
        return [*blocks, *bulleted_list(lines)]
    _, newest = answers[0]
    blocks.append(TextBlock(lines[0]))
    for one in quality_blocks(newest):
        if isinstance(one, Heading):
            blocks.append(Heading(one.text, 3))
        elif one is not SIMULATED:
            blocks.append(one)
    return [*blocks, *bulleted_list(lines[1:])]


def answer_comparison_line(side: str, result: QualityResult) -> str:
    """Return one line about a comparison of answers in which a configuration was `side`."""
    other, said = result.a, result.summary
    if side == "A":
        other, said = result.b, said.replace("its answers", "the answers of B", 1)
    text = f"{side} against {other}: {said}"
    if result.id:
        text += f" (comparison of answers {result.id})"
    return text


def _measure_tables(measures: Sequence[QualityMeasure]) -> list[Block]:
    """Return one table for the measures of each lane, concurrency and number of texts."""
    ways: dict[str, list[QualityMeasure]] = {}
    for one in measures:
        way = f"By {one.lane}, {one.concurrency} at a time, {count_of(one.texts, 'text')}"
        ways.setdefault(way, []).append(one)
    blocks: list[Block] = []
    for way, found in ways.items():
        head = ("measure", "verdict", "B against A", "A against A", "margin")
        table = Table(head, tuple(map(_measure_row, found)), frozenset({2, 3, 4}))
        blocks += [Heading(way, 3), table]
    return blocks


def _measure_row(measure: QualityMeasure) -> tuple[str, ...]:
    title, _, _ = _measure_title_digits_factor(measure.name)
    value = _interval_text(measure.value, measure.name)
    floor = _interval_text(measure.floor, measure.name)
    margin = NA if measure.margin is None else f"{measure.margin:g}"
    return title, measure.verdict or NA, value, floor, margin


def _measure_title_digits_factor(name: str) -> tuple[str, int, float]:
    """Return (title, decimals, factor by which values are multiplied) of a measure. A measure of
    another version, which is not known here, has its name as its title."""
    return _TITLES.get(name, (name, 5, 1.0))


def _interval_text(value: Interval | None, name: str) -> str:
    if value is None:
        return NA
    _, digits, factor = _measure_title_digits_factor(name)
    text = f"{factor * value.value:.{digits}f}"
    if value.bounds is None:
        return text
    low, high = value.bounds
    if name == SAME_TOP:  # a share
        high = min(high, 1.0)
    return f"{text} ({factor * low:.{digits}f} to {factor * high:.{digits}f})"


def _worst_text_blocks(result: QualityResult) -> list[Block]:
    worst = result.worst
    if worst is None:
        return []
    rows = [("text", f"{worst.name} ({worst.kind}), KLD >= {worst.kl:.3g}")]
    if worst.position is not None:
        rows += _divergence_rows(worst, worst.position)
    else:
        rows.append(("tokens", "A and B have the same most probable token at each position"))
    return [Heading("The text that differs most", 3), Facts(tuple(rows))]


def _forked_answer_blocks(result: QualityResult) -> list[Block]:
    forked = result.forked
    if forked is None:
        return []
    title = f"{forked.name} ({forked.kind}), {forked.concurrency} at a time"
    rows = (("answer to", title), *_divergence_rows(forked, forked.position))
    return [Heading("The answers that part first", 3), Facts(rows)]


def _divergence_rows(divergence: WorstText | ForkedAnswer, position: int) -> list[tuple[str, str]]:
    """Return the rows (label, quoted text) about the token at which A and B part, which is at
    `position`. The quotes show spaces at the ends."""
    token = f"token {position + 1}"
    return [
        ("after", f"“{divergence.before}”"),
        (f"A, {token}", f"“{divergence.a}”"),
        (f"B, {token}", f"“{divergence.b}”"),
    ]


def _how_measured_rows(result: QualityResult) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    if result.text_set:
        rows.append(("texts", f"{result.text_set}, version {result.text_version}"))
    positions = f"{result.positions:,}, the {result.top_k} most probable tokens of each"
    rows.append(("positions", positions))
    for title, forks in (("forks of B", result.forks), ("forks of A", result.forks_floor)):
        if forks is not None:
            rows.append((title, _forks_text(forks)))
    scores = result.answer_scores
    if scores is not None:
        rows.append(("answers under A", _answer_scores_text(scores)))
    for proof in result.proofs:
        if proof.usable:
            text = f"{proof.lane}, proven on {count_of(proof.positions, 'position')}"
            rows.append((f"instrument of {proof.side}", text))
    if result.took_s is not None:
        rows.append(("took", f"{result.took_s:.0f} s"))
    if result.imported:
        rows.append(("imported", result.imported))
    rows.append(("unit of the intervals", "one text: the tokens of a text are correlated"))
    return rows


def _setting_change_text(result: QualityResult, name: str) -> str:
    """Return a setting with its values on both sides, such as "kv-cache-dtype auto > fp8"."""
    before = _setting_value_text(result.conditions_a, name)
    after = _setting_value_text(result.conditions_b, name)
    return f"{name} {before} > {after}"


def _setting_value_text(side: Mapping[str, Any], name: str) -> str:
    value = side.get(f"{_FLAG}{name}", side.get(name))
    if value is not None:
        return f"{value}" or '""'
    for known in side:
        if known in ("program", "command") or known.startswith(_FLAG):
            return "not set"
    return "not known"  # only the address of the server is known


def _answer_scores_text(scores: AnswerScores) -> str:
    return (
        f"its own {scores.a:.3f}, those of B {scores.b:.3f} nats per token "
        f"({count_of(scores.answers, 'answer')}, {scores.tokens:,} tokens of B, by {scores.lane})"
    )


def _forks_text(forks: ForkCount) -> str:
    return (
        f"{forks.forks} in {forks.at_risk:,} tokens at risk of {count_of(forks.answers, 'answer')}, "
        f"and {count_of(forks.ties, 'tie')}"
    )


def _text_differences_table(texts: Sequence[TextDifference]) -> Table:
    rows = tuple(
        (
            one.name,
            one.kind,
            f"{one.lane}, {one.concurrency}",
            f"{one.positions:,}",
            f"{one.kl:.5f}",
            f"{one.ln_ppl:+.5f}",
            f"{100 * one.same_top:.1f}",
        )
        for one in sorted(texts, key=lambda one: -one.kl)
    )
    head = ("text", "kind", "measured by", "positions", "KLD >=", "ln PPL", "same token, %")
    return Table(head, rows, frozenset({3, 4, 5, 6}))

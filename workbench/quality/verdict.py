"""The verdict about quality: whether the answers of B are the same as those of A.

A is measured again before B is: the difference between A and A is the *floor*, what this machine
calls equal. B is judged by how much more it differs from A than A does from itself. "Same" is
shown by two one-sided tests against a margin; a difference that was not found shows nothing. Each
measure that can say "differs" is tested, and Holm's procedure keeps the chance of any false
"differs" at 5 %.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from statistics import fmean

from workbench.model.counts import count_of
from workbench.model.known_values import values_if_all_known
from workbench.model.lazy_dataclass import dataclass
from workbench.model.multiple_tests import rejected_by_holm_procedure
from workbench.model.quality import (
    ANSWER_SCORE,
    BROKEN,
    DIFFERS,
    FORKS,
    KL,
    KL_MARGIN,
    LN_PPL,
    LN_PPL_MARGIN,
    NOT_DECIDED,
    NOT_MEASURED,
    SAME,
    SAME_TOP,
    AnswerScore,
    AnswerScores,
    ForkCount,
    ForkedAnswer,
    GreedyAnswer,
    InstrumentProof,
    Interval,
    QualityMeasure,
    QualityResult,
    ScoredText,
    TextDifference,
    TextKey,
    WorstText,
)
from workbench.quality.statistics import (
    LEVEL,
    SKEWED_LEVEL,
    count_forks,
    count_further_texts_needed,
    count_scored_top_tokens,
    earliest_fork_and_token_index,
    first_differing_position_and_tokens,
    have_same_tokens,
    is_mean_within_margin,
    mean_with_confidence_interval,
    p_value_of_more_forks,
    p_value_of_nonzero_mean,
    p_value_of_positive_mean,
    p_value_of_sparse_differences,
    share_of_unscored_tokens,
    text_difference,
    top2_gap_noise_nats,
    top2_gap_noise_under_load_nats,
    why_scored_text_is_unusable,
)
from workbench.quality.token_texts import TokenTexts, text_of_tokens

LEAST_TEXTS = 24  # with fewer, Student's t is not exact enough for values as skewed as divergences
BROKEN_KL = 1.0  # nats, mean over a text; a usable quantization stays below 0.1
# Nats per token, by which A finds the answers of B less probable than its own: 7 times for each
# token. Text of a much smaller model stays below.
BROKEN_ANSWERS = 2.0
_APART = 0.05  # p-value at which two measurements of A diverge differently
_BROKEN_OVER_FLOOR = 4.0  # times the floor of that text
_BEFORE, _AFTER = 12, 12  # tokens shown before the first one that differs, and of an answer from it
_MOST_NOTED = 3  # names of texts in a note


@dataclass(frozen=True, slots=True)
class ScoredAnswers:
    """The log probabilities under A of answers: of its own (`a`), of its own written `again`, and
    of those of B (`b`). All were written `concurrency` together."""

    a: Sequence[AnswerScore] = ()
    again: Sequence[AnswerScore] = ()
    b: Sequence[AnswerScore] = ()
    concurrency: int = 1

    def paired_answer_scores(self) -> list[tuple[AnswerScore, AnswerScore | None, AnswerScore]]:
        """Return (score of A, of A again, of B) for each text for which A and B have one. That of A
        again is None if its second answer has no score."""
        a, again, b = map(_scores_without_problem, (self.a, self.again, self.b))
        return [(one, again.get(name), b[name]) for name, one in a.items() if name in b]

    def mean_scores(self) -> AnswerScores | None:
        """Return the mean log probabilities under A of the answers of A and of B; None if no text
        has both scores."""
        trios = self.paired_answer_scores()
        if not trios:
            return None
        return AnswerScores(
            a=fmean(a.logprob for a, _, _ in trios),
            b=fmean(b.logprob for _, _, b in trios),
            answers=len(trios),
            tokens=sum(b.tokens for _, _, b in trios),
            lane=trios[0][0].lane,
        )


def _scores_without_problem(scores: Sequence[AnswerScore]) -> dict[str, AnswerScore]:
    return {one.name: one for one in scores if not one.problem}


LaneAndConcurrency = tuple[str, int]  # (lane, concurrency)


@dataclass(frozen=True, slots=True)
class Margins:
    """The largest differences that count as the same: of the divergence in nats per position, and
    of ln perplexity."""

    kl: float = KL_MARGIN
    ln_ppl: float = LN_PPL_MARGIN


_MARGINS = Margins()
_NO_ANSWERS = ScoredAnswers()


@dataclass(frozen=True, slots=True)
class LaneDifferences:
    """The differences of one lane and concurrency, text by text. `floor` has the same differences
    between A and A, by the name of the text; it is empty if A was not measured again."""

    texts: tuple[TextDifference, ...]
    floor: Mapping[str, TextDifference]
    top_k: int

    @property
    def lane_and_concurrency(self) -> LaneAndConcurrency:
        return self.texts[0].lane, self.texts[0].concurrency


def compute_quality_result(
    a: Sequence[ScoredText],
    b: Sequence[ScoredText],
    *,
    floors: Sequence[Sequence[ScoredText]] = (),
    greedy_a: Sequence[GreedyAnswer] = (),
    greedy_b: Sequence[GreedyAnswer] = (),
    greedy_floor: Sequence[GreedyAnswer] = (),
    scored_answers: ScoredAnswers = _NO_ANSWERS,
    proofs: Sequence[InstrumentProof] = (),
    names: tuple[str, str] = ("A", "B"),
    text_set: tuple[str, str] = ("", ""),
    margins: Margins = _MARGINS,
    simulated: bool = False,
    pieces: tuple[TokenTexts, TokenTexts] = ({}, {}),
) -> QualityResult:
    """Return the verdict about the texts that B scored, compared with those that A scored.

    `floors` are further measurements of A: in the same session, and after a restart. Per lane and
    concurrency, the one that differs most from A counts. `greedy_floor` has greedy answers of A
    again, and `scored_answers` how probable A finds them all. `text_set` is (name, version).
    `pieces` has the texts of the tokens of A and of B, as far as they are known; other tokens are
    shown by their ids."""
    notes: list[str] = []
    refused = {proof.lane: proof for proof in proofs if not proof.usable}
    a = _keep_scored_texts_without_problem("A", a, refused, notes)
    b = _keep_scored_texts_without_problem("B", b, refused, notes)
    again = [
        _keep_scored_texts_without_problem("A again", texts, refused, notes) for texts in floors
    ]
    compared = _compare_scored_texts(a, b, again, notes)
    if _are_tokens_incomparable(a, b, greedy_a, greedy_b):
        notes.append("A and B have other tokens, so where their answers part is not known")
        greedy_b = ()
    alone = max((top2_gap_noise_nats(a, texts) for texts in again), default=0.0)
    noise = max(alone, top2_gap_noise_under_load_nats(greedy_a, greedy_floor))
    forks = count_forks(greedy_a, greedy_b, noise)
    forks_floor = count_forks(greedy_a, greedy_floor, noise)
    _add_notes_about_unscored_answers(scored_answers, notes)
    measures, more = compute_measures_and_texts_needed(
        compared, forks, forks_floor, margins, scored_answers
    )
    everything = [text for part in compared for text in part.texts]
    broken = list(chain.from_iterable(map(_texts_that_show_damage, compared)))
    verdict = combine_verdicts(measures)
    if broken or _measure_of_broken_answers(measures):
        verdict = BROKEN
    elif refused and not compared and verdict == NOT_DECIDED:
        verdict = NOT_MEASURED  # answers alone can show a difference, and nothing else
    summary = _summary_sentence(
        verdict, measures, forks, forks_floor, more, broken, len(everything)
    )
    refusals = list(map(_unusable_instrument_text, refused.values()))
    if verdict == NOT_MEASURED:
        why = next(chain(refusals, notes), "there is no text that both scored")
        summary = f"{NOT_MEASURED}: {why}"
    top_k = min((part.top_k for part in compared), default=0)
    if compared and any(map(share_of_unscored_tokens, (*a, *b))):
        notes.append(
            f"the server names only its {top_k} most probable tokens, so ln perplexity counts "
            "another token like the last of them"
        )
    if compared and not again:
        notes.append("A was not measured again, so nothing says what this machine calls equal")
    return QualityResult(
        a=names[0],
        b=names[1],
        verdict=verdict,
        summary=summary,
        measures=measures,
        forks=forks,
        forks_floor=forks_floor,
        forked=_earliest_forked_answer(greedy_a, greedy_b, noise, pieces),
        answer_scores=scored_answers.mean_scores(),
        texts=tuple(everything),
        worst=_most_diverging_text(a, b, everything, pieces),
        proofs=tuple(proofs),
        text_set=text_set[0],
        text_version=text_set[1],
        positions=sum(text.positions for text in everything),
        top_k=top_k,
        more_texts=more,
        simulated=simulated,
        notes=(*dict.fromkeys(notes), *refusals),
    )


def _unusable_instrument_text(proof: InstrumentProof) -> str:
    return f"instrument not usable, {proof.lane} of {proof.side}: {proof.why_unusable}"


def _keep_scored_texts_without_problem(
    side: str, texts: Sequence[ScoredText], refused: Mapping[str, object], notes: list[str]
) -> list[ScoredText]:
    """Return the texts of `side` that can be used. Add a note on why others cannot, each reason
    once; those of a lane in `refused` need no note."""
    good = []
    reasons: dict[str, list[str]] = {}
    for text in texts:
        if text.lane in refused:
            continue
        problem = why_scored_text_is_unusable(text)
        if problem:
            reasons.setdefault(problem, []).append(text.name)
        else:
            good.append(text)
    for problem, names in reasons.items():
        notes.append(f"{side} left out {_text_count_with_names(names)}: {problem}")
    return good


def _text_count_with_names(names: Sequence[str]) -> str:
    shown = ", ".join(dict.fromkeys(names[:_MOST_NOTED]))
    if len(names) > _MOST_NOTED:
        shown += f" and {len(names) - _MOST_NOTED} more"
    return f"{count_of(len(names), 'text')} ({shown})"


def _texts_by_key(texts: Sequence[ScoredText]) -> dict[TextKey, ScoredText]:
    return {text.key: text for text in texts}


def _compare_scored_texts(
    a: Sequence[ScoredText],
    b: Sequence[ScoredText],
    floors: Sequence[Sequence[ScoredText]],
    notes: list[str],
) -> list[LaneDifferences]:
    others = _texts_by_key(b)
    again = list(map(_texts_by_key, floors))
    pairs: dict[LaneAndConcurrency, list[tuple[ScoredText, ScoredText]]] = {}
    missing: list[str] = []
    recut: list[str] = []
    for text in a:
        other = others.get(text.key)
        if other is None:
            missing.append(text.name)
        elif not have_same_tokens(text, other):
            recut.append(text.name)
        else:
            pairs.setdefault((text.lane, text.concurrency), []).append((text, other))
    if missing and others:  # if B scored nothing, the reason is said elsewhere
        notes.append(f"B did not score {_text_count_with_names(missing)}")
    if recut:
        notes.append(f"A and B cut {_text_count_with_names(recut)} into different tokens")
    return [_compare_pairs_with_floors(found, again) for found in pairs.values()]


def _are_tokens_incomparable(
    a: Sequence[ScoredText],
    b: Sequence[ScoredText],
    greedy_a: Sequence[GreedyAnswer],
    greedy_b: Sequence[GreedyAnswer],
) -> bool:
    """Return whether no token of A can be compared with one of B: each text is cut differently, or
    one server names its tokens by ids and the other by their texts."""
    named = {type(one.tokens[0]) for one in (*greedy_a, *greedy_b) if one.tokens}
    others = _texts_by_key(b)
    pairs = [(text, others[text.key]) for text in a if text.key in others]
    recut = bool(pairs) and not any(have_same_tokens(one, other) for one, other in pairs)
    return recut or len(named) > 1


def _compare_pairs_with_floors(
    pairs: Sequence[tuple[ScoredText, ScoredText]],
    floors_by_key: Sequence[Mapping[TextKey, ScoredText]],
) -> LaneDifferences:
    k = min(map(count_scored_top_tokens, chain.from_iterable(pairs)))
    found: list[dict[str, TextDifference]] = []
    for texts in floors_by_key:
        floor = {}
        for text, _ in pairs:
            other = texts.get(text.key)
            if other is not None and have_same_tokens(text, other):
                floor[text.name] = text_difference(
                    text, other, min(k, count_scored_top_tokens(other))
                )
        found.append(floor)
    return compare_with_floor(tuple(text_difference(x, y, k) for x, y in pairs), found, k)


def compare_with_floor(
    texts: Sequence[TextDifference], floors: Sequence[Mapping[str, TextDifference]], top_k: int
) -> LaneDifferences:
    """Return the differences between B and A, text by text, with their floor. `floors` has those
    between each further measurement of A and the first one, by the name of the text.

    The floor is the mean of the further measurements. If one of them diverges more than another by
    more than chance, as after a restart that matters, it is that one alone. The change of ln
    perplexity is that against the mean of all measurements of A: the noise of a single one would be
    part of every text's change.
    """
    return LaneDifferences(
        texts=tuple(_difference_from_mean(text, floors) for text in texts),
        floor=_select_noise_floor(floors),
        top_k=top_k,
    )


def _difference_from_mean(
    text: TextDifference, floors: Sequence[Mapping[str, TextDifference]]
) -> TextDifference:
    """Return the difference of a text with its change of ln perplexity against the mean of all
    measurements of A. Those are differences to the first one, for which it is 0."""
    changes = [0.0, *(floor[text.name].ln_ppl for floor in floors if text.name in floor)]
    return replace(text, ln_ppl=text.ln_ppl - math.fsum(changes) / len(changes))


def _select_noise_floor(
    floors: Sequence[Mapping[str, TextDifference]],
) -> Mapping[str, TextDifference]:
    known = list(filter(None, floors))
    if len(known) < 2:
        return next(iter(known), {})
    largest = max(known, key=_mean_kl_nats)
    for other in known:
        more = [text.kl - other[name].kl for name, text in largest.items() if name in other]
        if more and p_value_of_positive_mean(more) < _APART:
            return largest
    found: dict[str, list[TextDifference]] = {}
    for name, text in chain.from_iterable(floor.items() for floor in known):
        found.setdefault(name, []).append(text)
    return {name: _mean_text_difference(texts) for name, texts in found.items()}


def _mean_text_difference(found: Sequence[TextDifference]) -> TextDifference:
    return replace(
        found[0],
        kl=fmean(text.kl for text in found),
        ln_ppl=fmean(text.ln_ppl for text in found),
        same_top=fmean(text.same_top for text in found),
    )


def _mean_kl_nats(floor: Mapping[str, TextDifference]) -> float:
    return mean_with_confidence_interval([text.kl for text in floor.values()]).value


# -- measures --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Tested:
    """One measure with what its verdict needs. `excess` is empty if the measure is only shown.
    `weight` is its share of the chance of a false "differs"."""

    measure: QualityMeasure
    p: float | None = None
    excess: tuple[float, ...] = ()
    weight: float = 1.0


def compute_measures_and_texts_needed(
    compared: Sequence[LaneDifferences],
    forks: ForkCount | None,
    forks_floor: ForkCount | None,
    margins: Margins,
    answers: ScoredAnswers = _NO_ANSWERS,
) -> tuple[tuple[QualityMeasure, ...], int | None]:
    """Return the measures with their verdicts, and how many more texts would probably decide all of
    them (0 if all are decided, None if too many). With fewer than LEAST_TEXTS texts it is the
    number that a first test lacks. `forks` counts where greedy answers of A and B part,
    `forks_floor` where two answers of A do; None if this was not measured."""
    # The two long texts are scored in another way than the short ones, and are too few for a test.
    enough = any(len(part.texts) >= LEAST_TEXTS for part in compared)
    tested: list[_Tested] = []
    for part in compared:
        of_part = _test_text_measures(part, margins)
        if enough and len(part.texts) < LEAST_TEXTS:
            of_part = list(map(_as_untested_measure, of_part))
        tested += of_part
    of_answers = []
    if forks is not None:
        of_answers.append(_test_fork_rate(forks, forks_floor))
    if answers.paired_answer_scores():
        of_answers.append(_test_answer_scores(answers))
    # Two measures of the same answers count as one, so that scores of texts find as much.
    sharing = sum(one.p is not None for one in of_answers)
    tested += [replace(one, weight=1 / max(1, sharing)) for one in of_answers]
    stands = rejected_by_holm_procedure(
        [one.p for one in tested], 1 - LEVEL, [one.weight for one in tested]
    )
    measures = []
    needed: list[int | None] = []
    for one, found in zip(tested, stands, strict=True):
        verdict = _verdict_of_measure(one, found)
        measures.append(replace(one.measure, verdict=verdict))
        if verdict == NOT_DECIDED:
            needed.append(_count_further_texts_needed(one))
    known = values_if_all_known(needed)
    if known is None:
        return tuple(measures), None
    return tuple(measures), max(known, default=0)


def _mean_with_interval_or_none(values: Sequence[float], level: float = LEVEL) -> Interval | None:
    """Return the mean of `values` with its interval; None without values."""
    return mean_with_confidence_interval(values, level) if values else None


def _test_text_measures(part: LaneDifferences, margins: Margins) -> list[_Tested]:
    lane, concurrency = part.lane_and_concurrency

    def measure_of_field(
        name: str,
        pick: Callable[[TextDifference], float],
        level: float = SKEWED_LEVEL,
        margin: float | None = None,
    ) -> QualityMeasure:
        return QualityMeasure(
            name=name,
            value=mean_with_confidence_interval(list(map(pick, part.texts)), level),
            floor=_mean_with_interval_or_none(list(map(pick, part.floor.values())), level),
            margin=margin,
            texts=len(part.texts),
            lane=lane,
            concurrency=concurrency,
        )

    kl = measure_of_field(KL, lambda text: text.kl, margin=margins.kl)
    tested_kl = _Tested(kl, excess=tuple(text.kl for text in part.texts))
    # Without a floor, noise cannot be told from a difference, so nothing is tested.
    excess = tuple(t.kl - part.floor[t.name].kl for t in part.texts if t.name in part.floor)
    if excess:
        kl = replace(kl, excess=_mean_with_interval_or_none(excess, SKEWED_LEVEL))
        tested_kl = _Tested(kl, p_value_of_positive_mean(excess), excess)
    ln_ppl = tuple(text.ln_ppl for text in part.texts)
    of_ln_ppl = measure_of_field(LN_PPL, lambda text: text.ln_ppl, LEVEL, margins.ln_ppl)
    return [
        tested_kl,
        _Tested(of_ln_ppl, p_value_of_nonzero_mean(ln_ppl), ln_ppl),
        _Tested(measure_of_field(SAME_TOP, lambda text: text.same_top)),
    ]


def _as_untested_measure(tested: _Tested) -> _Tested:
    """Return a measure without its test and its margin, so that it is only shown."""
    return _Tested(replace(tested.measure, margin=None))


def _test_fork_rate(forks: ForkCount, floor: ForkCount | None) -> _Tested:
    shown = QualityMeasure(
        name=FORKS,
        value=forks.per_1000,
        texts=forks.answers,
        lane="greedy",
        concurrency=forks.concurrency,
    )
    if floor is None:
        return _Tested(shown)
    return _Tested(replace(shown, floor=floor.per_1000), p_value_of_more_forks(forks, floor))


def _test_answer_scores(answers: ScoredAnswers) -> _Tested:
    """Return the measure of how much less or more probable A finds the answers of B than its own,
    with its p-value. If A wrote twice, both of its answers count as its own: which was written
    first says nothing."""
    trios = answers.paired_answer_scores()
    changes, floor = [], []
    for a, again, b in trios:
        own = [a.logprob]
        if again is not None:
            own.append(again.logprob)
            floor.append(again.logprob - a.logprob)
        changes.append(b.logprob - fmean(own))
    shown = QualityMeasure(
        name=ANSWER_SCORE,
        value=mean_with_confidence_interval(changes),
        floor=_mean_with_interval_or_none(floor),
        texts=len(trios),
        lane="greedy",
        concurrency=answers.concurrency,
    )
    return _Tested(shown, p_value_of_sparse_differences(changes) if floor else None)


def _measure_of_broken_answers(measures: Sequence[QualityMeasure]) -> QualityMeasure | None:
    """Return the measure that shows that A finds the answers of B so improbable that B is broken;
    None if there is none."""
    for one in _differing_measures(measures, ANSWER_SCORE):
        high = one.value.high
        if high is not None and high <= -BROKEN_ANSWERS:
            return one
    return None


def _add_notes_about_unscored_answers(answers: ScoredAnswers, notes: list[str]) -> None:
    """Note which answers A could not score, each reason once."""
    reasons: dict[str, list[str]] = {}
    for one in (*answers.a, *answers.b):
        if one.problem:
            reasons.setdefault(one.problem, []).append(one.name)
    for problem, names in reasons.items():
        found = list(dict.fromkeys(names))
        notes.append(f"A did not score the answers to {_text_count_with_names(found)}: {problem}")


def _verdict_of_measure(tested: _Tested, is_significant: bool) -> str:
    margin = tested.measure.margin
    if margin is None:
        return DIFFERS if is_significant else ""
    if len(tested.excess) < LEAST_TEXTS:
        return NOT_DECIDED
    if is_mean_within_margin(tested.excess, margin):
        return SAME
    return DIFFERS if is_significant else NOT_DECIDED


def _count_further_texts_needed(tested: _Tested) -> int | None:
    few = LEAST_TEXTS - len(tested.excess)
    if few > 0 or tested.measure.margin is None:
        return max(few, 1)
    return count_further_texts_needed(tested.excess, tested.measure.margin)


def combine_verdicts(measures: Sequence[QualityMeasure]) -> str:
    """Return the verdict that follows from the verdicts of all measures. NOT_MEASURED without
    measures, and NOT_DECIDED if no measure has a verdict."""
    verdicts = [measure.verdict for measure in measures]
    for verdict in (DIFFERS, NOT_DECIDED, SAME):
        if verdict in verdicts:
            return verdict
    return NOT_DECIDED if measures else NOT_MEASURED


def _texts_that_show_damage(part: LaneDifferences) -> list[TextDifference]:
    """Return the texts at which B diverges from A more than a working model does. One text is
    enough: damage may begin with the second turn of a chat, or with a long context."""
    broken = []
    for text in part.texts:
        limit = BROKEN_KL
        if floor := part.floor.get(text.name):
            limit = max(limit, _BROKEN_OVER_FLOOR * floor.kl)
        if text.kl >= limit:
            broken.append(text)
    return broken


def _most_diverging_text(
    a: Sequence[ScoredText],
    b: Sequence[ScoredText],
    texts: Sequence[TextDifference],
    pieces: tuple[TokenTexts, TokenTexts],
) -> WorstText | None:
    if not texts:
        return None
    found = max(texts, key=lambda text: text.kl)
    x, y = _texts_by_key(a)[found.key], _texts_by_key(b)[found.key]
    parted = first_differing_position_and_tokens(x, y)
    if parted is None:
        return WorstText(found.name, found.kind, found.kl)
    place, of_a, of_b = parted
    before = x.tokens[max(0, place - _BEFORE) : place]
    return WorstText(
        name=found.name,
        kind=found.kind,
        kl=found.kl,
        position=place,
        a=text_of_tokens([of_a], pieces[0]),
        b=text_of_tokens([of_b], pieces[1]),
        before=text_of_tokens(before, pieces[0]),
    )


def _earliest_forked_answer(
    a: Sequence[GreedyAnswer],
    b: Sequence[GreedyAnswer],
    noise_nats: float,
    pieces: tuple[TokenTexts, TokenTexts],
) -> ForkedAnswer | None:
    found = earliest_fork_and_token_index(a, b, noise_nats)
    if found is None:
        return None
    x, y, place = found
    return ForkedAnswer(
        name=x.name,
        kind=x.kind,
        position=place,
        before=text_of_tokens(x.tokens[max(0, place - _BEFORE) : place], pieces[0]),
        a=text_of_tokens(x.tokens[place : place + _AFTER], pieces[0]),
        b=text_of_tokens(y.tokens[place : place + _AFTER], pieces[1]),
        concurrency=x.concurrency,
    )


# -- words -----------------------------------------------------------------------------------------


def _summary_sentence(
    verdict: str,
    measures: Sequence[QualityMeasure],
    forks: ForkCount | None,
    forks_floor: ForkCount | None,
    more_texts: int | None,
    broken: Sequence[TextDifference],
    texts: int,
) -> str:
    if verdict == BROKEN:
        return f"its answers are broken: {_broken_texts_sentence(measures, broken, texts)}"
    if verdict == SAME:
        margin = _measures_with_name(measures, KL)[0].margin
        return f"its answers are the same within {margin:g} KLD"
    if verdict == DIFFERS:
        return f"its answers differ: {_difference_sentence(measures, forks, forks_floor)}"
    how_many = "more texts would hardly decide it"
    if more_texts:
        how_many = count_of(more_texts, "more text")
    return f"whether its answers are the same is not decided: {how_many}"


def _measures_with_name(measures: Sequence[QualityMeasure], name: str) -> list[QualityMeasure]:
    return [one for one in measures if one.name == name]


def _differing_measures(measures: Sequence[QualityMeasure], name: str) -> list[QualityMeasure]:
    """Return the measures of this name that show a difference."""
    return [one for one in _measures_with_name(measures, name) if one.verdict == DIFFERS]


def _broken_texts_sentence(
    measures: Sequence[QualityMeasure], broken: Sequence[TextDifference], texts: int
) -> str:
    parts = []
    if broken:
        worst = max(broken, key=lambda text: text.kl)
        parts.append(
            f"{len(broken)} of {count_of(texts, 'text')}, the worst {worst.name} with KLD >= "
            f"{worst.kl:.2g}"
        )
    senseless = _measure_of_broken_answers(measures)
    if senseless is not None:
        parts.append(f"A finds what it writes {_probability_difference_text(senseless)}")
    return "; ".join(parts)


def _difference_sentence(
    measures: Sequence[QualityMeasure], forks: ForkCount | None, forks_floor: ForkCount | None
) -> str:
    parts = []
    if kls := _differing_measures(measures, KL) or _measures_with_name(measures, KL):
        parts.append(
            f"KLD >= {format_value_with_half_width(max(kls, key=lambda one: one.value.value))}"
        )
    if moved := _differing_measures(measures, LN_PPL):
        largest = max(moved, key=lambda one: abs(one.value.value))
        parts.append(f"ln perplexity {format_value_with_half_width(largest, sign='+')}")
    if forks is not None:
        rate = f"{_fork_rate_text(forks)} forks per 1,000 tokens"
        if forks_floor is not None:
            rate += f" (floor {_fork_rate_text(forks_floor)})"
        parts.append(rate)
    for one in _differing_measures(measures, ANSWER_SCORE):
        parts.append(f"A finds what it writes {_probability_difference_text(one)}")
    return ", ".join(parts)


def _probability_difference_text(measure: QualityMeasure) -> str:
    """Return how much less or more probable A finds the answers of B, such as "less probable than
    its own answers by 0.52 ± 0.10 nats per token"."""
    value, word = measure.value, "more"
    if value.value < 0:
        value, word = value.negated, "less"
    by = format_value_with_half_width(replace(measure, value=value))
    return f"{word} probable than its own answers by {by} nats per token"


def _fork_rate_text(forks: ForkCount) -> str:
    value = forks.per_1000.value
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def format_value_with_half_width(measure: QualityMeasure, sign: str = "") -> str:
    """Return the value of a measure with the half width of its interval, for example "0.035 ±
    0.003". The half width has one digit, or two if it begins with 1."""
    value = measure.value
    if value.bounds is None:
        return f"{value.value:{sign}.2g}"
    low, high = value.bounds
    half = (high - low) / 2
    if half <= 0:
        return f"{value.value:{sign}.2g} ± 0"
    digits = 0
    while half * 10**digits < 0.95 and digits < 9:
        digits += 1
    if half * 10**digits < 1.95:
        digits += 1
    return f"{value.value:{sign}.{digits}f} ± {half:.{digits}f}"

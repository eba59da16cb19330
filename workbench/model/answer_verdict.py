"""What follows from the text of a benchmark: the findings about the answers of its load, together
with those about the probe.

The load alone proves little: with `ignore_eos`, a healthy model has to go on after its answer and
repeats itself, so a loop is a fault only if the probe (answer_probe.py), where a model may end its
answer, is broken too, or if every answer is one repeated token from its first character on.
"""

from __future__ import annotations

from collections.abc import Sequence

from workbench.model.answer_probe import (
    DEGENERATE,
    FINISH,
    OTHER_MODEL,
    PROMPT_CUT,
    REASONING_ONLY,
    USAGE,
    may_be_same_model,
    prompt_was_cut,
)
from workbench.model.answer_text import ProbeOutcome, SetFeatures, TextFinding
from workbench.model.findings import Finding, Level, by_severity, error_if_certain
from workbench.model.lazy_dataclass import dataclass

_NEARLY_ALL = 0.9
_MOST = 0.5
_MANY = 0.25
_SOME = 0.1
_PART = 0.05  # of the load, if answers of the probe are broken too
_LEAST_ANSWERS = 4
_LEAST_BROKEN = 2  # answers of a probe
_EQUAL_CHARACTERS = 200  # models begin answers to similar prompts with equal words
_SURELY_EQUAL_CHARACTERS, _SURELY_EQUAL = 300, 8  # of a model that follows: it read no prompt
# Characters of a token, mean over a run. Four tokens of one byte can be a character.
_LEAST_PER_TOKEN, _MOST_PER_TOKEN = 0.2, 14.0
_PROMPT_PER_TOKEN = 12.0
_LEAST_TOKENS = 8  # of an answer; in shorter ones, the end mark is most of the usage
_OTHER_PER_TOKEN = 1.5  # factor between two runs of one model with one load
_OTHER_PER_TOKEN_OF_PROSE, _MANY_ANSWERS = 1.12, 32
CHANGED = "text.changed"
_COMPRESSED = 0.6  # of the compressed size; of healthy answers to one load it hardly changes
OTHER_SHARE, LEAST_COMPARED = 0.5, 8  # of the answers, and how many


_NO_PROBE = ProbeOutcome()


@dataclass(frozen=True, slots=True)
class AskedLoad:
    """What a benchmark asked for. `model` is the name in its requests. `prompt_characters` is the
    mean length of the user's own prompts; None for synthetic ones. `ends` says whether the model
    may end its answers, and `hides_reasoning` whether the engine sends no text before the reasoning
    has ended."""

    model: str
    prompt_characters: float | None = None
    prompt_tokens: float | None = None  # mean of a request, by usage
    ends: bool = False
    hides_reasoning: bool = False

    @property
    def has_own_prompts(self) -> bool:
        return self.prompt_characters is not None


@dataclass(frozen=True, slots=True)
class EarlierResult:
    """An earlier result of the same model and kind of load, to compare with. `same_lengths` says
    whether its prompts and answers were as long."""

    result_id: int
    load: SetFeatures
    same_lengths: bool = False


def findings_about_load(
    load: SetFeatures,
    asked: AskedLoad,
    probe: ProbeOutcome = _NO_PROBE,
    *,
    why_nonsense_is_expected: str = "",
    earlier: EarlierResult | None = None,
) -> tuple[Finding, ...]:
    """Return the findings about the answers of a load. `probe` is the outcome of the probe; without
    answers if there was none. `why_nonsense_is_expected` is as in `answer_probe.assess_probe`.
    `earlier` is a result to compare with; None if there is none."""
    broken = _find_broken_answers(load, asked, probe, why_nonsense_is_expected)
    levels = {one.level for one in broken}
    changed: list[Finding] = []
    usage: list[Finding] = []
    if not why_nonsense_is_expected:
        if levels <= {Level.INFO}:
            changed = _find_changed_answers(load, earlier)
        if Level.ERROR not in levels:
            usage = _find_wrong_usage(load, asked, earlier)
    return (
        *broken,
        *changed,
        *_find_truncated_prompts(load, asked),
        *usage,
        *_find_other_models(load, asked),
        *_find_reasoning_only(load),
        *_find_content_filter_in_load(load),
    )


def worst_text_finding_per_code(findings: Sequence[Finding]) -> tuple[TextFinding, ...]:
    """Return findings as they are stored with a result, the most severe first. Of several findings
    with the same code, only the most severe one is kept."""
    first = {one.code: one for one in reversed(by_severity(findings))}
    return tuple(
        TextFinding(str(one.level), one.code, one.text, one.evidence or "")
        for one in by_severity(tuple(first.values()))
    )


def _find_broken_answers(
    load: SetFeatures, asked: AskedLoad, probe: ProbeOutcome, why_nonsense_is_expected: str
) -> list[Finding]:
    if not load.looked_at:
        return []
    text, level = _broken_answers_text_and_level(load, asked, probe)
    if not text:
        return []
    if why_nonsense_is_expected:
        text, level = f"{text}; this is expected, because {why_nonsense_is_expected}", Level.INFO
    return [Finding(level, DEGENERATE, text, evidence=_excerpt_of_load(load))]


def _broken_answers_text_and_level(
    load: SetFeatures, asked: AskedLoad, probe: ProbeOutcome
) -> tuple[str, Level]:
    """Return (what is wrong with the answers of the load, how severe it is). If nothing is wrong,
    the text is "" and the level means nothing."""
    of, fraction = f"of {load.looked_at} answers", load.fraction_of_answers
    level = _level_of_repeated_answers(load, probe)
    if level is not None:
        text = f'degenerate output: {load.repeated_answers} {of} are only "{load.repeated}"'
        return text, level
    if fraction(load.salad) >= _MANY:
        level = error_if_certain(fraction(load.salad) >= _MOST and not asked.has_own_prompts)
        return f"degenerate output: {load.salad} {of} mix scripts or symbols at random", level
    if fraction(load.odd) >= _SOME:
        level = error_if_certain(fraction(load.odd) >= _MOST)
        return f"degenerate output: {load.odd} {of} have characters no language uses", level
    if fraction(load.collapsed) >= _MOST:
        text = f"{load.collapsed} {of} repeat one or two tokens"
        if probe.is_sound and not asked.ends:
            return f"{text}; without an end mark (ignore_eos) healthy models do that", Level.INFO
        return text, Level.WARN
    if fraction(load.empty) >= _MOST:
        return _empty_answers_text_and_level(load, asked, probe)
    if fraction(load.equal) >= _NEARLY_ALL and load.equal_characters >= _EQUAL_CHARACTERS:
        level = _level_of_equal_answers(load, asked, probe)
        return f"{load.equal} {of} to different prompts are equal", level
    if asked.ends and fraction(load.looping) >= _MOST:
        return f"{load.looping} {of} repeat a phrase", Level.WARN
    if fraction(load.ended_in_answers) >= _MOST:
        return _broken_ends_text_and_level(load, asked)
    return "", Level.INFO


def _level_of_repeated_answers(load: SetFeatures, probe: ProbeOutcome) -> Level | None:
    """Return how severe it is that answers are nothing but one repeated unit. None if too few are,
    or if only words are repeated and the probe is sound."""
    fraction, broken = load.fraction_of_answers(load.repeated_answers), probe.broken_answer_count
    if fraction >= _NEARLY_ALL and load.looked_at >= _LEAST_ANSWERS:
        return Level.ERROR
    least = _PART if broken else _SOME
    if load.repeated_answers < max(_LEAST_ANSWERS, least * load.looked_at):
        return None
    if not any(map(str.isalnum, load.repeated)):
        # an answer of the probe that is broken too proves that `ignore_eos` is not the cause
        return error_if_certain(broken > 0 or fraction >= _MOST)
    if broken >= _LEAST_BROKEN:  # of a word, one broken answer of the probe may be chance
        return Level.ERROR
    return None


def _empty_answers_text_and_level(
    load: SetFeatures, asked: AskedLoad, probe: ProbeOutcome
) -> tuple[str, Level]:
    """Return (what is wrong with a load of which at least half of the answers are empty, how severe
    it is)."""
    empty = f"{load.empty} of {load.looked_at} answers"
    stopped = load.finish_reasons.get("stop", 0) / max(1, load.answers)
    # an answer that cost tokens is a failed request
    if probe.is_sound and asked.ends and stopped >= load.fraction_of_answers(load.empty):
        text = f"no content: the model ended {empty} at once, without text"
        return f"{text}, so the rates mean little; it answers the prompts of the probe", Level.WARN
    return f"no content: {empty} have no text", error_if_certain(asked.ends)


def _broken_ends_text_and_level(load: SetFeatures, asked: AskedLoad) -> tuple[str, Level]:
    """Return (what is wrong with a load of which at least half of the answers end in one short unit
    again and again, how severe it is). The probe does not show this, because its answers are
    shorter."""
    text = f'{load.ended_in_answers} of {load.looked_at} answers end in "{load.ended_in}" again and again'
    if asked.ends or not any(map(str.isalnum, load.ended_in)):
        return text, Level.WARN
    return f"{text}; without an end mark (ignore_eos) healthy models do that", Level.INFO


def _level_of_equal_answers(load: SetFeatures, asked: AskedLoad, probe: ProbeOutcome) -> Level:
    """Return how severe it is that nearly all answers of a load are equal. A model that follows the
    probe says something else to each list of words, unless it has come to a loop."""
    if asked.has_own_prompts or load.repeating_answer_count >= _SOME * load.looked_at:
        return Level.WARN
    long = load.equal_characters >= _SURELY_EQUAL_CHARACTERS
    return error_if_certain(probe.is_sound and long and load.looked_at >= _SURELY_EQUAL)


def differing_answer_kinds_with_counts(
    a: SetFeatures, b: SetFeatures
) -> list[tuple[str, int, int]]:
    """Return (what the answers do, how many of `a`, how many of `b`) for each kind of text that is
    common in one load and not in the other. [] if one of them has too few answers."""
    if min(a.looked_at, b.looked_at) < LEAST_COMPARED:
        return []
    kinds = {
        "repeat one or two tokens": (a.collapsed, b.collapsed),
        "repeat a phrase": (a.looping, b.looping),
        "end in a few characters again and again": (a.ended_in_answers, b.ended_in_answers),
        "are equal to the answer to another prompt": (a.equal, b.equal),
        "have characters no language uses": (a.odd, b.odd),
        "mix scripts or symbols at random": (a.salad, b.salad),
    }
    return [
        (kind, one, other)
        for kind, (one, other) in kinds.items()
        if abs(a.fraction_of_answers(one) - b.fraction_of_answers(other)) >= OTHER_SHARE
    ]


def is_more_repetitive(a: SetFeatures, b: SetFeatures) -> bool:
    """Return whether the answers of `a` repeat themselves much more than those of `b`: they can be
    compressed much better. False if one of them has too few answers, or too short ones."""
    if min(a.looked_at, b.looked_at) < LEAST_COMPARED:
        return False
    if not a.compressed or not b.compressed:
        return False
    return a.compressed < _COMPRESSED * b.compressed


def _find_changed_answers(load: SetFeatures, earlier: EarlierResult | None) -> list[Finding]:
    """Return a finding if many answers do what they did not do under the same load before; [] also
    if there is no earlier result with prompts and answers as long. A healthy model that may not end
    its answers repeats itself, but it then does so each time."""
    if earlier is None or not earlier.same_lengths:
        return []
    change = _describe_changed_answers(load, earlier)
    if not change:
        return []
    text = f"the text has changed: {change}"
    return [Finding(Level.WARN, CHANGED, text, evidence=_excerpt_of_load(load))]


def _describe_changed_answers(load: SetFeatures, earlier: EarlierResult) -> str:
    """Return what the answers do more than those of the earlier result; "" if nothing."""
    before = earlier.load
    for kind, count, count_before in differing_answer_kinds_with_counts(load, before):
        if count > count_before:
            return (
                f"{count} of {load.looked_at} answers {kind}, and {count_before} of"
                f" {before.looked_at} in result {earlier.result_id} with the same model and load"
            )
    if not is_more_repetitive(load, before):
        return ""
    return (
        f"answers compress to {_compressed_size_text(load)} of their size, and to"
        f" {_compressed_size_text(before)} in result {earlier.result_id} with the same model and"
        " load, so they repeat more"
    )


def _compressed_size_text(load: SetFeatures) -> str:
    assert load.compressed is not None
    return f"{100 * load.compressed:.0f} %"


def _find_truncated_prompts(load: SetFeatures, asked: AskedLoad) -> list[Finding]:
    tokens = asked.prompt_tokens
    if tokens is None:
        return []
    if load.prompt_words and prompt_was_cut(load.prompt_words, tokens):
        text = (
            f"prompt cut: usage says {tokens:.0f} prompt tokens for prompts of"
            f" {load.prompt_words:,} words"
        )
        return [Finding(Level.ERROR, PROMPT_CUT, text)]
    if asked.prompt_characters and asked.prompt_characters > _PROMPT_PER_TOKEN * tokens:
        text = (
            f"prompt cut: usage says {tokens:.0f} prompt tokens for prompts of"
            f" {asked.prompt_characters:,.0f} characters"
        )
        return [Finding(Level.ERROR, PROMPT_CUT, text)]
    return []


def _find_wrong_usage(
    load: SetFeatures, asked: AskedLoad, earlier: EarlierResult | None
) -> list[Finding]:
    per_token = load.characters_per_token
    if (
        per_token is None
        or load.fraction_of_answers(load.collapsed) >= _SOME
        or load.fraction_of_answers(load.empty) == 1
    ):
        return []
    tokens = load.characters / max(per_token, 0.001) / max(1, load.looked_at)  # of an answer
    if asked.ends and 0 < tokens < _LEAST_TOKENS:
        return []
    says = f"usage not credible: {per_token:.1f} characters per token"
    if per_token > _MOST_PER_TOKEN:
        return [Finding(Level.ERROR, USAGE, f"{says}, so it counts too few tokens")]
    if per_token < _LEAST_PER_TOKEN:
        hidden, level = "", Level.ERROR
        if asked.hides_reasoning:
            hidden, level = ", unless they are hidden reasoning", Level.INFO
        elif not asked.ends:
            hidden, level = ", unless most tokens are hidden marks after the end", Level.WARN
        return [Finding(level, USAGE, f"{says}, so it counts too many tokens{hidden}")]
    if earlier is None or not earlier.load.characters_per_token:
        return []
    before, factor = earlier.load.characters_per_token, _OTHER_PER_TOKEN
    if (
        earlier.same_lengths
        and _has_many_unrepetitive_answers(load)
        and _has_many_unrepetitive_answers(earlier.load)
    ):
        factor = _OTHER_PER_TOKEN_OF_PROSE
    if 1 / factor < per_token / before < factor:
        return []
    text = f"{says}, and {before:.1f} in result {earlier.result_id} with the same model and load"
    return [Finding(Level.WARN, USAGE, text)]


def _has_many_unrepetitive_answers(load: SetFeatures) -> bool:
    """Return whether there are many answers and hardly one repeats itself: the characters per token
    of such answers hardly change from run to run."""
    fraction = load.fraction_of_answers(load.repeating_answer_count)
    return load.looked_at >= _MANY_ANSWERS and fraction < _SOME


def _find_other_models(load: SetFeatures, asked: AskedLoad) -> list[Finding]:
    others = [name for name in load.models if not may_be_same_model(asked.model, name)]
    if not others:
        return []
    if len(load.models) > 1:
        named = ", ".join(f"{count} x {name}" for name, count in load.models.items())
        return [Finding(Level.ERROR, OTHER_MODEL, f"several models answered: {named}")]
    text = f"another model answered: {others[0]} instead of {asked.model}"
    return [Finding(Level.WARN, OTHER_MODEL, text)]


def _find_reasoning_only(load: SetFeatures) -> list[Finding]:
    if load.fraction_of_answers(load.reasoning_only) < _MOST:
        return []
    text = (
        f"reasoning only: {load.reasoning_only} of {load.looked_at} answers ended while the model"
        " was still reasoning; --max-tokens is too low for an answer"
    )
    return [Finding(Level.WARN, REASONING_ONLY, text)]


def _find_content_filter_in_load(load: SetFeatures) -> list[Finding]:
    filtered = load.finish_reasons.get("content_filter", 0)
    if not filtered:
        return []
    text = f"{filtered} of {load.answers} answers were ended by a content filter"
    return [Finding(error_if_certain(filtered >= _SOME * load.answers), FINISH, text)]


def _excerpt_of_load(load: SetFeatures) -> str:
    return next(iter(load.excerpts), "")

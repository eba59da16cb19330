"""What the numbers and texts of a comparison of answers can be. A comparison from the file of
another person is checked here before it is stored: a page would show what it says as measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeAlias

from workbench.model.quality import (
    BROKEN,
    DIFFERS,
    FORKS,
    KL,
    NOT_DECIDED,
    SAME,
    SAME_TOP,
    ForkCount,
    Interval,
    OwnMeasure,
    QualityMeasure,
    QualityResult,
)
from workbench.model.untrusted_numbers import (
    ANY,
    EXACT,
    RANGES,
    is_number,
    why_number_is_impossible,
)
from workbench.model.untrusted_text import LINE_CHARS, NAME_CHARS

MOST_COMPARISONS = 200  # of one result: as many of the newest are looked at
MOST_NOTES = 1_000  # sentences; a comparison that was measured here has some ten
MOST_TEXTS = 10_000
MOST_ITEMS = 200_000  # of the user's own measure
_MOST_CONDITIONS_CHARS = 100_000  # of all settings of a side
# Sentences, quotes, and the sides with their flags. Other texts are names.
_LONG_TEXTS = ("a", "b", "summary", "notes", "reason", "before", "command")

_CUT_CHARS = 64  # `clean` says how much it cut off, and a long name ends in a digest

_SHARE = (0, 1)
_NOT_NEGATIVE = (0, EXACT)
_COUNTS = (
    "texts",
    "positions",
    "tokens",
    "position",
    "top_k",
    "more_texts",
    "concurrency",
    "forks",
    "ties",
    "at_risk",
    "answers",
    "pairs",
    "lost",
    "gained",
    "only_a",
    "only_b",
)
# name of a field -> (lowest, highest) possible number; the unit in the name decides on others
_RANGES: Mapping[str, tuple[float, float]] = {
    **dict.fromkeys(_COUNTS, _NOT_NEGATIVE),
    **dict.fromkeys(("p", "same_top"), _SHARE),
    **dict.fromkeys(("kl", "margin", "largest", "noise"), _NOT_NEGATIVE),
    "took_s": RANGES["s"],
    "unix_s": RANGES["unix_s"],
}
_OF_MEASURES: Mapping[str, tuple[float, float]] = {
    KL: _NOT_NEGATIVE,
    FORKS: _NOT_NEGATIVE,
    SAME_TOP: _SHARE,
}
_DIFFERING = (DIFFERS, BROKEN)
_LISTS = {"notes": MOST_NOTES, "texts": MOST_TEXTS, "items": MOST_ITEMS}


# a field such as "own.p", and why its value cannot be
FieldProblem: TypeAlias = tuple[str, str]


def impossible_field_and_reason(result: QualityResult) -> FieldProblem:
    """Return (the first field of a comparison of answers whose value is impossible, such as
    "own.p", why it is). ("", "") if there is none."""
    return next(_impossible_fields_and_reasons(result), ("", ""))


def _impossible_fields_and_reasons(result: QualityResult) -> Iterator[FieldProblem]:
    yield from _problems_of_fields(result, "")
    if any(one.verdict == DIFFERS for one in result.measures) and result.verdict not in _DIFFERING:
        yield "verdict", f"it is {result.verdict}, and one of its measures {DIFFERS}"
    for number, measure in enumerate(result.measures):
        yield from _problems_of_measure(measure, f"measures[{number}]")
    for name in ("forks", "forks_floor"):
        count = getattr(result, name)
        if count is not None:
            yield from _problems_of_fork_count(count, name)
    if result.answer_scores is not None:
        for name in ("a", "b"):
            why = why_number_is_impossible(getattr(result.answer_scores, name), -EXACT, 0)
            if why:
                yield f"answer_scores.{name}", f"it is {why}"
    if result.own is not None:
        yield from _problems_of_own_measure(result.own, "own")
    for name in ("conditions_a", "conditions_b"):
        if len(repr(getattr(result, name))) > _MOST_CONDITIONS_CHARS:
            yield name, f"it is longer than {_MOST_CONDITIONS_CHARS:,} characters"


def _problems_of_fields(record: Any, path: str) -> Iterator[FieldProblem]:
    """Yield a FieldProblem for each impossible number, text or list in a record. `path` is the path
    of the record, "" for the whole comparison."""
    for one in fields(record):
        at = f"{path}.{one.name}" if path else one.name
        value = getattr(record, one.name)
        if isinstance(value, tuple):
            most = _LISTS.get(one.name, MOST_TEXTS)
            if len(value) > most:
                yield at, f"it has more than {most:,} entries"
            for number, entry in enumerate(value):
                yield from _problems_of_value(one.name, entry, f"{at}[{number}]")
        else:
            yield from _problems_of_value(one.name, value, at)


def _problems_of_value(name: str, value: Any, path: str) -> Iterator[FieldProblem]:
    if is_dataclass(value):
        yield from _problems_of_fields(value, path)
    elif isinstance(value, str):
        most = LINE_CHARS if name in _LONG_TEXTS else NAME_CHARS
        if len(value) > most + _CUT_CHARS:
            yield path, f"it is longer than {most:,} characters"
    elif is_number(value):
        why = why_number_is_impossible(value, *_RANGES.get(name, ANY))
        if why:
            yield path, f"it is {why}"


def _problems_of_measure(measure: QualityMeasure, path: str) -> Iterator[FieldProblem]:
    if measure.verdict not in ("", SAME, DIFFERS, NOT_DECIDED):
        yield f"{path}.verdict", f"it is none of {SAME}, {DIFFERS}, {NOT_DECIDED}"
    for name in ("value", "floor"):
        interval = getattr(measure, name)
        if interval is not None:
            why = why_number_is_impossible(interval.value, *_OF_MEASURES.get(measure.name, ANY))
            if why:
                yield f"{path}.{name}.value", f"it is {why}"
            yield from _problems_of_interval(interval, f"{path}.{name}")
    if measure.excess is not None:
        yield from _problems_of_interval(measure.excess, f"{path}.excess")


def _problems_of_interval(interval: Interval, path: str) -> Iterator[FieldProblem]:
    low, high = interval.low, interval.high
    if (low is None) != (high is None):
        yield path, "its interval has one end only"
    elif low is not None and high is not None and not low <= interval.value <= high:
        yield path, "its value lies outside of its interval"


def _problems_of_fork_count(count: ForkCount, path: str) -> Iterator[FieldProblem]:
    if count.forks + count.ties > count.answers:
        yield path, "more answers part than there are"
    if count.per_1000.value < 0:
        yield f"{path}.per_1000.value", "it is below 0"
    yield from _problems_of_interval(count.per_1000, f"{path}.per_1000")


def _problems_of_own_measure(own: OwnMeasure, path: str) -> Iterator[FieldProblem]:
    if own.verdict not in (DIFFERS, NOT_DECIDED):
        yield f"{path}.verdict", f"it is none of {DIFFERS}, {NOT_DECIDED}"
    if own.lost + own.gained > own.pairs:
        yield f"{path}.pairs", "more items changed than were paired"
    both = sum(one.a is not None and one.b is not None for one in own.items)
    if both != own.pairs:
        yield f"{path}.pairs", f"{both:,} of its items have two scores"
    if own.right_wrong:
        for name in ("mean_a", "mean_b"):
            why = why_number_is_impossible(getattr(own, name), *_SHARE)
            if why:
                yield f"{path}.{name}", f"it is {why}, where each item is right or wrong"
    yield from _problems_of_interval(own.difference, f"{path}.difference")

"""The user's own measure: scores of items, from the files of an evaluation program, paired and
tested.

Files have one JSON object per line: Workbench's own form {"item": …, "score": …}, the samples of
lm-evaluation-harness (`--log_samples`), or the results of verifiers (`vf-eval --save-results`).
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import sub
from pathlib import Path
from statistics import fmean
from typing import Any

from workbench.model.counts import count_of
from workbench.model.errors import InputError, error_reason
from workbench.model.lazy_dataclass import dataclass
from workbench.model.quality import (
    BROKEN,
    DIFFERS,
    NOT_DECIDED,
    NOT_MEASURED,
    SAME,
    Interval,
    OwnMeasure,
    QualityResult,
    ScoredItem,
)
from workbench.model.quality_limits import MOST_ITEMS
from workbench.model.untrusted_numbers import EXACT
from workbench.model.untrusted_text import NAME_CHARS, clean_text
from workbench.quality.statistics import (
    LEVEL,
    mean_with_confidence_interval,
    p_value_of_nonzero_mean,
)

_MOST_FILE_BYTES = 512 * 1024 * 1024
_SHARE_LOST = 0.05  # p below it: a difference
_EXPECTED = (
    'each line is a JSON object: {"item": "…", "score": 1}, a sample of lm-eval (--log_samples), or a '
    "result of vf-eval (--save-results)"
)
_SAMPLES = re.compile(r"samples_(.+?)(?:_\d{4}-\d\d-\d\dT[\d.:-]+)?")
# fields of a sample of lm-eval without its list "metrics", the first that is there
_KNOWN_METRICS = ("exact_match", "acc_norm", "acc", "pass@1", "f1", "score")
_QUOTED = re.compile(r"-?\d+|\".*\"", re.DOTALL)  # texts that are shown in quotes
_MOST_BITS = 128  # of a number that is a name
_Z = 1.959963984540054  # of the standard normal distribution, 97.5 %


@dataclass(frozen=True, slots=True)
class ItemScores:
    """The score of each item, and the field that it comes from. An item that occurs several times,
    as with several rollouts, has the mean of its scores."""

    field: str
    by_item: Mapping[str, float]


def read_item_scores(directory: Path, field: str | None = None) -> ItemScores:
    """Return the scores in all .jsonl files below a directory. `field` is the field of the score;
    by default the first metric that the program names. As in lm-eval, a filter may follow a comma
    (exact_match,flexible-extract); by default, the first filter of a file counts, because a
    document under two filters is one observation. Raises InputError that names file, line and
    reason."""
    field, _, wanted = (field or "").partition(",")
    found: dict[str, list[float]] = {}
    fields: dict[str, str] = {}  # field -> the place where it was first used
    for path in sorted(directory.rglob("*.jsonl")):
        filter_ = wanted
        for place, line in _non_empty_lines(path, directory):
            entry = _parse_json_object(line, place)
            own_filter = _clean_name_part(entry.get("filter"))
            filter_ = filter_ or own_filter
            if own_filter != filter_:
                continue
            item, name, value = _parse_item_field_and_score(entry, path.stem, field, place)
            fields.setdefault(name, place)
            found.setdefault(item, []).append(value)
            if len(found) > MOST_ITEMS:
                raise InputError(f"{place}: more than {MOST_ITEMS:,} items", next_step=_EXPECTED)
    if not found:
        raise InputError(
            "the command wrote no scores: there is no .jsonl file with a line in its directory",
            next_step="let the command write its samples below {items}: for lm-eval "
            "--output_path {items} --log_samples",
        )
    if len(fields) > 1:
        (first, _), (second, at) = list(fields.items())[:2]
        raise InputError(
            f"{at}: the score is in the field {second!r}, and before in {first!r}",
            next_step=f"choose one: --eval-score {first}",
        )
    return ItemScores(next(iter(fields)), {item: fmean(values) for item, values in found.items()})


def _non_empty_lines(path: Path, directory: Path) -> Sequence[tuple[str, bytes]]:
    """Return (place for messages, line) for each line of a file that is not empty. Raises
    InputError if the file cannot be read."""
    name = path.relative_to(directory)
    try:
        # a pipe would be waited for without end, and a device has no end
        if not path.is_file():
            raise InputError(f"{name} is not a regular file", next_step=_EXPECTED)
        if path.stat().st_size > _MOST_FILE_BYTES:
            raise InputError(f"{name} is larger than {_MOST_FILE_BYTES >> 20} MiB")
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{name} could not be read: {error_reason(error)}") from None
    lines = enumerate(data.split(b"\n"), start=1)
    return [(f"{name}, line {number}", line) for number, line in lines if line.strip()]


def _parse_json_object(line: bytes, location: str) -> Mapping[str, Any]:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        raise InputError(f"{location}: not JSON", next_step=_EXPECTED) from None
    if not isinstance(entry, dict):
        raise InputError(f"{location}: not a JSON object", next_step=_EXPECTED)
    return entry


def _parse_item_field_and_score(
    entry: Mapping[str, Any], file_stem: str, field: str, location: str
) -> tuple[str, str, float]:
    """Return (item, field of the score, score) of a line. `field` is the field that the user chose,
    "" for the one by default. Raises InputError if the line lacks one of them."""
    item, fallback = _find_item_and_score_field(entry, file_stem)
    if not item:
        raise InputError(
            f'{location}: the item has no name: there is no "item", "doc_id" or "example_id"',
            next_step=_EXPECTED,
        )
    name = field or fallback
    if name is None:
        names = ", ".join(sorted(clean_text(str(one), 40) for one in entry)[:12])
        raise InputError(
            f"{location}: there is no score among the fields {names}",
            next_step="name its field, such as --eval-score exact_match",
        )
    if name not in entry:
        raise InputError(f"{location}: there is no field {name!r}", next_step=_EXPECTED)
    value = entry[name]
    if isinstance(value, bool):
        return item, name, float(value)
    possible = isinstance(value, (int, float)) and abs(value) <= EXACT  # not NaN
    if not possible:
        raise InputError(
            f"{location}: the score {name!r} is {clean_text(json.dumps(value), 60)}, not a number",
            next_step="name another field with --eval-score; a metric of the whole set has no score "
            "of an item",
        )
    return item, name, float(value)


def _find_item_and_score_field(entry: Mapping[str, Any], stem: str) -> tuple[str, str | None]:
    """Return (name of the item, field of the score) of a line. The name is "" and the field None if
    the line has none."""
    if own := _format_item_name(entry.get("item")):
        return own, _name_if_field(entry, "score")
    if number := _format_item_name(entry.get("doc_id")):
        task = _SAMPLES.fullmatch(stem)
        parts = [task[1] if task else stem, number]
        if (filtered := _clean_name_part(entry.get("filter"))) != "none":
            parts.append(filtered)
        return ":".join(filter(None, parts)), _score_field_of_sample(entry)
    reward = _name_if_field(entry, "reward")
    # verifiers before example_id; "id" alone says nothing
    older = entry.get("id") if reward else None
    if number := _format_item_name(entry.get("example_id", older)):
        parts = [_clean_name_part(entry.get("task")), number]
        return ":".join(filter(None, parts)), reward
    return "", None


def _name_if_field(entry: Mapping[str, Any], name: str) -> str | None:
    return name if name in entry else None


def _score_field_of_sample(entry: Mapping[str, Any]) -> str | None:
    """Return the name of the field that has the score, in a sample that lm-eval has logged. None if
    the sample has no score."""
    metrics = entry.get("metrics")
    if not isinstance(metrics, list):
        metrics = list(_KNOWN_METRICS)
    known = [one for one in metrics if isinstance(one, str) and one in entry]
    # of a metric of the whole set, such as a corpus F1, a sample has a list and no score
    return min(known, key=lambda one: not isinstance(entry[one], (int, float)), default=None)


def _format_item_name(value: Any) -> str:
    """Return the name of an item; "" if the value is none. Two values never have one name: the text
    "1" is not the number 1, and is shown in quotes."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value) if value.bit_length() <= _MOST_BITS else ""
    if not isinstance(value, str) or not value:
        return ""
    text = f'"{value}"' if _QUOTED.fullmatch(value) else value
    shown = clean_text(text, NAME_CHARS).strip()
    if shown == text:
        return shown
    # long names, such as whole questions, may begin alike, and others differ in what is not shown
    digest = hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{shown} ({digest[:12]})"


def _clean_name_part(value: Any) -> str:
    """Return a text that is part of a name, such as a task or a filter; "" if the value is none."""
    if not isinstance(value, str):
        return ""
    return clean_text(value, NAME_CHARS).strip()


# -- tests -----------------------------------------------------------------------------------------


def compare_item_scores(a: ItemScores, b: ItemScores, command: Sequence[str] = ()) -> OwnMeasure:
    """Return the paired comparison of the scores of A and B. Right or wrong (0 or 1 throughout):
    the exact McNemar test, and Newcombe's interval of the difference. Other scores: the paired t
    test and its interval. Raises InputError if no item has two scores."""
    if a.field != b.field:
        raise InputError(
            f"the scores of A are in the field {a.field!r}, and those of B in {b.field!r}",
            next_step=f"choose one: --eval-score {a.field}",
        )
    names = dict.fromkeys([*a.by_item, *b.by_item])
    items = tuple(ScoredItem(one, a.by_item.get(one), b.by_item.get(one)) for one in names)
    pairs = [(x, b.by_item[name]) for name, x in a.by_item.items() if name in b.by_item]
    if not pairs:
        raise InputError(
            "no item of A is among those of B, so no scores can be paired",
            next_step="let the command measure the same items each time",
        )
    of_a, of_b = zip(*pairs, strict=True)
    right_wrong = {*of_a, *of_b} <= {0.0, 1.0}
    lost = gained = 0
    if right_wrong:
        lost, gained = pairs.count((1.0, 0.0)), pairs.count((0.0, 1.0))
        both = pairs.count((1.0, 1.0))
        neither = len(pairs) - both - lost - gained
        p = mcnemar_p(lost, gained)
        difference = newcombe_interval(both, lost, gained, neither)
    else:
        differences = list(map(sub, of_b, of_a))
        p = _p_value_of_score_differences(differences)
        difference = mean_with_confidence_interval(differences, LEVEL)
    return OwnMeasure(
        field=a.field,
        right_wrong=right_wrong,
        items=items,
        pairs=len(pairs),
        mean_a=fmean(of_a),
        mean_b=fmean(of_b),
        difference=difference,
        p=p,
        verdict=DIFFERS if p < _SHARE_LOST else NOT_DECIDED,
        lost=lost,
        gained=gained,
        only_a=len(a.by_item) - len(pairs),
        only_b=len(b.by_item) - len(pairs),
        command=tuple(command),
    )


def _p_value_of_score_differences(differences: Sequence[float]) -> float:
    """Return the p-value of the paired t test that scores differ. If all differences are equal and
    not 0, return that of the exact sign test: the t test would be sure after two items."""
    smallest, largest = round(min(differences), 12), round(max(differences), 12)
    if len(differences) > 1 and smallest == largest != 0.0:
        return min(1.0, 2 * 0.5 ** len(differences))
    return p_value_of_nonzero_mean(differences)


def mcnemar_p(lost: int, gained: int) -> float:
    """Return the p-value of the exact two-sided McNemar test (McNemar 1947, with the binomial
    distribution of the items in which the two sides differ): twice the smaller tail, at most 1."""
    trials = lost + gained
    whole = math.lgamma(trials + 1) - trials * math.log(2)
    tail = math.fsum(
        math.exp(whole - math.lgamma(i + 1) - math.lgamma(trials - i + 1))
        for i in range(min(lost, gained) + 1)
    )
    return min(1.0, 2 * tail)


def newcombe_interval(both: int, lost: int, gained: int, neither: int) -> Interval:
    """Return the difference between two paired shares, B - A, with its 95 % interval: method 10 of
    Newcombe (Statistics in Medicine 17, 1998, 2635-2650), from Wilson's intervals of the two shares
    and their correlation."""
    n = both + lost + gained + neither
    p_a, p_b = (both + lost) / n, (both + gained) / n
    (low_a, high_a), (low_b, high_b) = _wilson_interval(p_a, n), _wilson_interval(p_b, n)
    phi = _phi_correlation(both, lost, gained, neither)
    down_b, up_b, down_a, up_a = p_b - low_b, high_b - p_b, p_a - low_a, high_a - p_a
    below = math.sqrt(max(0.0, down_b**2 - 2 * phi * down_b * up_a + up_a**2))
    above = math.sqrt(max(0.0, up_b**2 - 2 * phi * up_b * down_a + down_a**2))
    return Interval(p_b - p_a, p_b - p_a - below, p_b - p_a + above)


def _wilson_interval(share: float, n: int) -> tuple[float, float]:
    middle = share + _Z**2 / (2 * n)
    half = _Z * math.sqrt(share * (1 - share) / n + _Z**2 / (4 * n * n))
    return (middle - half) / (1 + _Z**2 / n), (middle + half) / (1 + _Z**2 / n)


def _phi_correlation(both: int, lost: int, gained: int, neither: int) -> float:
    """Return the phi correlation of the two sides, with Newcombe's correction for continuity; 0 if
    one of them is right always or never."""
    product = (both + lost) * (gained + neither) * (both + gained) * (lost + neither)
    if not product:
        return 0.0
    covariance = float(both * neither - lost * gained)
    if covariance > 0:
        covariance = max(0.0, covariance - (both + lost + gained + neither) / 2)
    return covariance / math.sqrt(product)


# -- words -----------------------------------------------------------------------------------------


def add_user_measure_to_result(result: QualityResult, own: OwnMeasure) -> QualityResult:
    """Return the comparison with the user's own measure added. If that measure differs, the verdict
    is that the answers differ, whatever the log probabilities say, unless they are broken."""
    verdict = result.verdict
    if own.verdict == DIFFERS and verdict != BROKEN:
        verdict = DIFFERS
    elif verdict == NOT_MEASURED:
        verdict = NOT_DECIDED
    joint = ", but" if own.verdict == DIFFERS and result.verdict == SAME else ";"
    return replace(
        result,
        own=own,
        verdict=verdict,
        summary=f"{result.summary}{joint} {user_measure_sentence(own)}",
        notes=(*result.notes, *_sentences_about_unpaired_items(own)),
    )


def user_measure_sentence(own: OwnMeasure) -> str:
    """Return the outcome of the user's own measure as one clause."""
    if own.right_wrong:
        values = f"A has {100 * own.mean_a:.1f} % right, B {100 * own.mean_b:.1f} %"
    else:
        values = f"A scores {own.mean_a:.4g} on average, B {own.mean_b:.4g}"
    found = "differs" if own.verdict == DIFFERS else "shows no difference"
    return f"your measure {found}: {values} of {count_of(own.pairs, 'item')} (p = {own.p:.2g})"


def _sentences_about_unpaired_items(own: OwnMeasure) -> list[str]:
    """Return a sentence for each side with items that the other side lacks; [] if there are
    none."""
    notes = []
    only_a = [one.name for one in own.items if one.b is None]
    only_b = [one.name for one in own.items if one.a is None]
    for side, other, names in (("A", "B", only_a), ("B", "A", only_b)):
        if not names:
            continue
        shown = ", ".join(names[:3])
        if len(names) > 3:
            shown += f" and {len(names) - 3} more"
        notes.append(
            f"your measure left out {count_of(len(names), 'item')} of {side} that {other} lacks: "
            f"{shown}"
        )
    return notes

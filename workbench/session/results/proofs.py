"""Shareable proofs: an experiment, or two groups of results, with everything that its verdict
follows from, and the check of such a proof by another person's Workbench.

`make_proof` and `verify_proof` use one function, `_figures_from_results`: it computes all figures
from the results, as the comparison of an experiment does. What a proof says is right if it is what
its results give.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from workbench import __version__
from workbench.bench import experiment as design
from workbench.bench.compare import compare
from workbench.bench.metric_changes import find_metric
from workbench.model.bench import BenchResult, Comparison, format_half_width
from workbench.model.counts import count_of
from workbench.model.errors import InputError
from workbench.model.experiment import WARM_UP, Experiment, RunState
from workbench.model.json_records import field_values_with_tuples, from_json, to_json
from workbench.model.lazy_dataclass import dataclass
from workbench.model.quality import QualityResult
from workbench.model.quality_limits import impossible_field_and_reason
from workbench.model.secrets import mask_data
from workbench.model.series_state import SeriesState
from workbench.model.untrusted_numbers import (
    path_and_reason_of_impossible_number,
    replace_non_finite,
)
from workbench.model.untrusted_text import clean_data, clean_text
from workbench.report import proof_document
from workbench.report.content import Report
from workbench.report.formats import html

_MAX_RUNS = 1_000
_MAX_SHOWN_CHARACTERS = 160
_CLAIM_FIELDS = ("comparison", "verdict", "smallest_pct", "measured")
_COMPUTATION_ERRORS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


@dataclass(frozen=True, slots=True)
class ProvenContent:
    """The content of a proof: the results by id, and what compares them: an experiment, or the ids
    of two groups."""

    results: Mapping[int, BenchResult]
    experiment: Experiment | None = None
    groups: tuple[tuple[int, ...], ...] = ()
    quality: QualityResult | None = None

    @property
    def title(self) -> str:
        """What the proof is about, in a few words."""
        if self.experiment is not None:
            pairs = count_of(self.experiment.completed_pairs, "pair")
            return f"experiment {self.experiment.id} on {self.experiment.host}, {pairs}"
        a, b = (", ".join(f"#{one}" for one in group) for group in self.groups)
        return f"results {b} against {a}"

    @property
    def simulated(self) -> bool:
        return any(one.conditions.simulated for one in self.results.values())


@dataclass(frozen=True, slots=True)
class ProofDifference:
    """One statement of a proof that does not follow from the rest of it. `recomputed` is what
    follows; "" if `says` is the whole statement."""

    place: str
    says: str
    recomputed: str = ""

    @property
    def description(self) -> str:
        if not self.recomputed:
            return f"{self.place}: {self.says}"
        return f"{self.place}: the proof says {self.says}, recomputed {self.recomputed}"


@dataclass(frozen=True, slots=True)
class VerifiedProof:
    """The outcome of a check: what the proof is about, the verdict as this Workbench computes it,
    and each statement that differs."""

    title: str
    verdict: str
    differences: tuple[ProofDifference, ...]
    checked: tuple[str, ...]
    simulated: bool
    workbench_version: str


# ---- make


def make_proof(report: Report) -> dict[str, Any]:
    """Return the data of the proof of a report, with secrets masked. Raises InputError if the
    report proves nothing: no comparison, a result that is missing or not valid, or an answer whose
    text nobody has checked."""
    masked = report.with_masked_secrets()
    experiment = masked.experiment
    if experiment is not None:
        _require_provable_experiment(experiment, masked.results)
    elif masked.comparison is None:
        raise InputError(
            "a proof needs something that was compared",
            next_step="give --experiment N, or two groups of results, the first as A",
        )
    kept = masked.results
    if experiment is not None:
        used = {run.result_id for run in chain(*design.list_complete_pairs(experiment))}
        kept = tuple(result for result in kept if result.id in used)
    for result in kept:
        _require_provable_result(result)
    document: dict[str, Any] = {
        "workbench_proof": proof_document.FORMAT,
        "workbench_report": 1,
        "workbench_version": __version__,
        "simulated": masked.simulated,
        "results": [*map(_result_json, kept)],
        "texts": {str(result.id): _sent_name_and_answer_digest(result) for result in kept},
    }
    if experiment is not None:
        document["experiment"] = to_json(experiment)
    else:
        document["groups"] = [*map(list, report.groups)]
    if masked.quality is not None:
        document["quality"] = to_json(masked.quality)
    plain: dict[str, Any] = json.loads(json.dumps(replace_non_finite(document)))
    claims = _figures_from_results(read_proof(plain))
    if experiment is not None:
        plain["experiment"] |= claims
    else:
        plain["comparison"] = claims["comparison"]
    return plain


def render_proof_page(document: Mapping[str, Any]) -> str:
    """Return the proof as an HTML page that contains its data."""
    return proof_document.proof_page_with_data(document, _page_html(document, read_proof(document)))


def _page_html(document: Mapping[str, Any], proven: ProvenContent) -> str:
    report = Report(
        results=tuple(proven.results.values()),
        comparison=None,
        experiment=proven.experiment,
        quality=proven.quality,
    )
    stated = document.get("comparison")
    if stated is not None:
        report = replace(report, comparison=from_json(Comparison, stated))
    return html.render(report.with_masked_secrets())


def _result_json(result: BenchResult) -> dict[str, Any]:
    return {**to_json(result), "simulated": result.conditions.simulated}


def _require_provable_experiment(experiment: Experiment, results: Sequence[BenchResult]) -> None:
    which = f"experiment {experiment.id}"
    if experiment.state != SeriesState.DONE:
        raise InputError(
            f"{which} is {experiment.state}, so it has no verdict to prove",
            next_step=f"finish it: `{experiment.resume_command}`",
        )
    known = {result.id for result in results}
    runs = list(chain(*design.list_complete_pairs(experiment)))
    gone = [f"#{run.result_id}" for run in runs if run.result_id not in known]
    if gone or not runs:
        raise InputError(
            f"results of {which} were deleted: {', '.join(gone) or 'all'}",
            next_step="run the experiment again",
        )


def _require_provable_result(result: BenchResult) -> None:
    """Raise InputError if a result cannot be part of a proof."""
    which, summary = f"result #{result.id}", result.summary
    if result.conditions.imported:
        raise InputError(
            f"{which} was imported ({result.conditions.imported}), so this Workbench cannot prove it",
            next_step="ask whoever measured it for the proof",
        )
    if summary.refused:
        raise InputError(
            f"{which} is not valid: {'; '.join(summary.refused)}", next_step="measure it again"
        )
    if not _was_answer_text_checked(result):
        raise InputError(
            f"the text of {which} was not checked, so its speed may be that of garbage",
            next_step="measure again with this Workbench, which looks at the answers of each "
            "benchmark; embeddings and your own command have no text",
        )


def _was_answer_text_checked(result: BenchResult) -> bool:
    """Return whether answers of the load were looked at, or a probe got answers. A skipped probe is
    stored too, with the reason, and does not count."""
    text = result.summary.text
    if text is None:
        return False
    if text.probe is not None and text.probe.places:
        return True
    return text.load.looked_at > 0


def _sent_name_and_answer_digest(result: BenchResult) -> dict[str, str]:
    """Return what identifies the texts of a result: as "sent" the name of its prompts or trace, or
    the content of its synthetic prompts, and as "answers_sha256" a hash of what is stored of the
    answers."""
    sent = result.spec.text_source_name or result.spec.content
    return {"sent": sent, "answers_sha256": _digest_of_answers(result)}


def _digest_of_answers(result: BenchResult) -> str:
    stored = None
    if result.summary.text is not None:
        stored = replace_non_finite(to_json(result.summary.text))
    text = json.dumps(stored, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


# ---- read


def read_proof(document: Mapping[str, Any]) -> ProvenContent:
    """Return the content of a proof's data. Raises ValueError that says which part is
    impossible."""
    if why := path_and_reason_of_impossible_number(document):
        raise ValueError(why)
    cleaned = clean_data(document, proof_document.MOST_BYTES, lines=True)
    results: dict[int, BenchResult] = {}
    for each in _required_list_field(cleaned, "results"):
        result = from_json(BenchResult, each)
        if result.id in results:
            raise ValueError(f"results: #{result.id} is in it twice")
        results[result.id] = result
    quality = None
    if cleaned.get("quality") is not None:
        quality = from_json(QualityResult, cleaned["quality"])
        place, problem = impossible_field_and_reason(quality)
        if problem:
            raise ValueError(f"quality.{place}: {problem}")
    if "experiment" in cleaned:
        return ProvenContent(results, _parse_experiment(cleaned["experiment"]), quality=quality)
    groups = []
    for group in _required_list_field(cleaned, "groups"):
        if isinstance(group, list):
            groups.append(tuple(number for number in group if isinstance(number, int)))
    are_two = len(groups) == 2 and all(groups)
    if not are_two or sorted(chain(*groups)) != sorted(results):
        raise ValueError("groups: they must be two, and contain each result once")
    return ProvenContent(results, groups=tuple(groups), quality=quality)


def _required_list_field(document: Mapping[str, Any], name: str) -> list[Any]:
    found = document.get(name)
    if not isinstance(found, list) or not found or len(found) > _MAX_RUNS:
        raise ValueError(f"{name}: not a list of 1 to {_MAX_RUNS} parts")
    return found


def _parse_experiment(data: Any) -> Experiment:
    made = from_json(Experiment, data)
    made = replace(made, spec=replace(made.spec, bench=field_values_with_tuples(made.spec.bench)))
    try:
        design.check_experiment_spec(made.spec)
    except InputError as error:
        raise ValueError(f"experiment.spec: {error.message}") from None
    if len(made.runs) > _MAX_RUNS:
        raise ValueError(f"experiment.runs: more than {_MAX_RUNS}")
    for place, run in enumerate(made.runs):
        if not WARM_UP <= run.pair < design.MAX_PAIRS or run.arm not in ("A", "B"):
            raise ValueError(f"experiment.runs[{place}]: no such pair or arm")
    return made


# ---- compute again


def _figures_from_results(proven: ProvenContent) -> dict[str, Any]:
    """Return what follows from the results of a proof, as JSON: the comparison with all means,
    intervals and verdicts and, of an experiment, its verdict as a sentence."""
    quality = (proven.quality,) if proven.quality is not None else ()
    experiment = proven.experiment
    if experiment is None:
        a, b = ([proven.results[number] for number in group] for group in proven.groups)
        found: dict[str, Any] = {"comparison": to_json(compare(a, b, quality=quality))}
    else:
        judged = design.evaluate_experiment(experiment, proven.results, quality)
        if judged.comparison is None:
            raise ValueError("experiment.runs: no complete pair has both results")
        found = {
            "comparison": to_json(judged.comparison),
            "verdict": judged.verdict,
            "smallest_pct": judged.smallest_pct,
            "measured": judged.measured,
        }
    return dict(json.loads(json.dumps(replace_non_finite(mask_data(found)))))


def verify_proof(path: Path) -> VerifiedProof:
    """Check the proof in a file: its checksums, and whether everything that it says follows from
    its results. Raises InputError if it cannot be read at all."""
    document, page = proof_document.read_proof_data_and_page(path)
    try:
        proven = read_proof(document)
        again = _figures_from_results(proven)
        differences = tuple(_proof_differences(document, page, proven, again))
        title = proven.title
        verdict = again.get("verdict") or _first_metric_change_text(again["comparison"])
    except InputError as error:
        raise _unusable_proof_error(path, error.message) from None
    except RecursionError:
        raise _unusable_proof_error(path, "its data are nested too deeply") from None
    except _COMPUTATION_ERRORS as error:
        raise _unusable_proof_error(path, clean_text(str(error), _MAX_SHOWN_CHARACTERS)) from None
    return VerifiedProof(
        title=title,
        verdict=verdict,
        differences=differences,
        checked=_checked_part_texts(proven, again, shows_page=_can_check_page(document, page)),
        simulated=proven.simulated,
        workbench_version=clean_text(
            str(document.get("workbench_version", "")), _MAX_SHOWN_CHARACTERS
        ),
    )


def _unusable_proof_error(path: Path, why: str) -> InputError:
    return InputError(
        f"{path}: the proof cannot be computed again: {why}",
        next_step="ask for the file again; `workbench results report … --proof` writes it",
    )


def _can_check_page(document: Mapping[str, Any], page: str) -> bool:
    """Return whether the proof has a page, and this Workbench has the version that wrote it: only
    that makes the same page from the same data."""
    return bool(page) and document.get("workbench_version") == __version__


def _checked_part_texts(
    proven: ProvenContent, recomputed: Mapping[str, Any], *, shows_page: bool
) -> tuple[str, ...]:
    """Return a text for each part of a proof that was checked, such as "6 results". `shows_page`
    says whether the lines of the page were compared too."""
    metrics = recomputed["comparison"]["metrics"]
    counts = [
        count_of(len(proven.results), "result"),
        f"{count_of(len(metrics), 'metric')} with means, intervals and verdicts",
    ]
    if proven.experiment is not None:
        counts.insert(1, count_of(proven.experiment.completed_pairs, "raw pair"))
    if proven.quality is not None:
        counts.append("the comparison of the answers")
    if shows_page:
        counts.append("each line of the page")
    return tuple(counts)


def _first_metric_change_text(comparison: Mapping[str, Any]) -> str:
    first = comparison["metrics"][0]
    if first["change_pct"] is None or first["interval_pct"] is None:
        return f"{first['metric']}: {first['verdict']}"
    size = f"{first['change_pct']:+.1f} % ± {format_half_width(first['interval_pct'])}"
    return f"{first['metric']} {size}: {first['verdict']}"


def _proof_differences(
    document: Mapping[str, Any], page: str, proven: ProvenContent, recomputed: Mapping[str, Any]
) -> Iterator[ProofDifference]:
    if document.get("sha256") != proof_document.digest_of_proof(document):
        yield ProofDifference("checksum", "the data were changed after they were written")
    yield from _page_differences(document, page, proven)
    if proven.experiment is not None:
        yield from _run_differences(proven.experiment, proven.results)
    yield from _text_differences(document, proven)
    simulated = proven.simulated
    if document.get("simulated") != simulated:
        yield ProofDifference(
            "simulated", _value_text(document.get("simulated")), f"{simulated}, by its results"
        )
    place = "experiment" if proven.experiment is not None else ""
    said = document.get(place) if place else document
    assert isinstance(said, Mapping)
    for name in recomputed:
        yield from _compare_values(f"{place}.{name}".strip("."), said.get(name), recomputed[name])


def _page_differences(
    document: Mapping[str, Any], page: str, proven: ProvenContent
) -> Iterator[ProofDifference]:
    if proof_document.page_was_changed(document, page):
        yield ProofDifference("checksum", "the page was changed after it was written")
    if not _can_check_page(document, page):
        return
    ours = _page_html(document, proven).splitlines()
    theirs = page.splitlines()
    for number, (line, expected) in enumerate(zip(theirs, ours, strict=False), start=1):
        if line != expected:
            place = f"page, line {number}"
            yield ProofDifference(place, *_stated_and_expected_excerpts(line, expected))
            return
    if len(ours) != len(theirs):
        yield ProofDifference("page", f"{len(theirs)} lines", f"{len(ours)} from its data")


def _stated_and_expected_excerpts(line: str, expected: str) -> tuple[str, str]:
    """Return excerpts of both lines, from a little before the first character in which they
    differ."""
    at = next(
        (i for i, (x, y) in enumerate(zip(line, expected, strict=False)) if x != y),
        min(len(line), len(expected)),
    )
    start = max(0, at - 40)
    return _value_text(line[start : start + 80]), _value_text(expected[start : start + 80])


def _run_differences(
    experiment: Experiment, results: Mapping[int, BenchResult]
) -> Iterator[ProofDifference]:
    metric, spec = find_metric(experiment.spec.metric), experiment.spec
    used: set[int] = set()
    for pair in design.list_complete_pairs(experiment):
        for run in pair:
            place = f"run {run.place + 1}, {run.pair_label} {run.arm}"
            result = results.get(run.result_id or 0)
            if result is None:
                yield ProofDifference(
                    place, f"result #{run.result_id}", "no such result in the proof"
                )
                continue
            if result.id in used:
                yield ProofDifference(
                    place, f"result #{result.id}", "the result of another run too"
                )
            used.add(result.id)
            value = metric.value_in(result.summary)
            if run.value != value:
                yield ProofDifference(
                    f"{place}: {metric.name}", _value_text(run.value), _value_text(value)
                )
            if result.summary.refused:
                yield ProofDifference(place, "a valid result", "; ".join(result.summary.refused))
        first = min(pair, key=lambda run: run.place)
        drawn = design.arm_order_of_pair(spec, first.pair)[0]
        if first.arm != drawn:
            place = f"order of pair {first.pair + 1}"
            yield ProofDifference(
                place, f"{first.arm} first", f"{drawn} first, drawn from its seed"
            )
    if experiment.state != SeriesState.DONE:
        yield ProofDifference(
            "experiment.state", str(experiment.state), "only a finished one has a verdict"
        )
    unfinished = [
        r for r in experiment.runs if r.state not in (*design.MEASURED_STATES, RunState.FAILED)
    ]
    if unfinished:
        yield ProofDifference("experiment.runs", f"{len(unfinished)} of them are not finished")


def _text_differences(
    document: Mapping[str, Any], proven: ProvenContent
) -> Iterator[ProofDifference]:
    texts = document.get("texts")
    said = texts if isinstance(texts, Mapping) else {}
    for number, result in proven.results.items():
        if not _was_answer_text_checked(result):
            yield ProofDifference(f"text of #{number}", "a proof", "nobody checked this text")
        yield from _compare_values(
            f"text of #{number}", said.get(str(number)), _sent_name_and_answer_digest(result)
        )


def _compare_values(path: str, stated: Any, recomputed: Any) -> Iterator[ProofDifference]:
    """Yield where what a proof says (`stated`) is not what was computed again."""
    if isinstance(recomputed, Mapping) and isinstance(stated, Mapping):
        for name in dict.fromkeys([*recomputed, *stated]):
            yield from _compare_values(f"{path}.{name}", stated.get(name), recomputed.get(name))
    elif (
        isinstance(recomputed, list) and isinstance(stated, list) and len(recomputed) == len(stated)
    ):
        for number, (x, y) in enumerate(zip(stated, recomputed, strict=True), start=1):
            yield from _compare_values(f"{path}[{number}]", x, y)
    elif type(stated) is not type(recomputed) or stated != recomputed:
        yield ProofDifference(path, _value_text(stated), _value_text(recomputed))


def _value_text(value: Any) -> str:
    if value is None:
        return "nothing"
    text = value if isinstance(value, str) else json.dumps(value)
    return clean_text(text, _MAX_SHOWN_CHARACTERS)

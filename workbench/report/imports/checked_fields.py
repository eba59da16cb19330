"""Access to the fields of a JSON document from another tool. Each field is checked, and each error
names the file and the field.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from itertools import pairwise, starmap
from pathlib import Path
from typing import Any, TypeVar

from workbench.model.bench import BenchSpec, BenchSummary, Conditions
from workbench.model.distribution import PERCENTILES, Distribution
from workbench.model.errors import InputError
from workbench.model.lazy_dataclass import dataclass
from workbench.model.metrics import METRICS
from workbench.model.quality import QualityResult
from workbench.model.untrusted_numbers import (
    EXACT,
    number_for_field,
    number_or_none,
    range_of_field,
    why_number_is_impossible,
)
from workbench.report.format_values import NOT_IN_FILE

WINDOWS = ("steady", "whole run")  # of BenchSummary.window
MOST_CHARS = 65_536  # of a text, such as the command line of another tool
NOTHING_IMPORTED = "no result of this file was imported"
_RISING = ("min", *PERCENTILES, "max")  # the parts of a distribution, the lowest first
_ROUNDED = 1e-6  # share by which rounding may change their order
# beginning of a field's name -> part of a latency, in the files of vLLM and SGLang
_PARTS = {"mean": "mean", "median": "p50", **{p.title: p.name for p in PERCENTILES.values()}}
_SUMS = ("power_w",)  # over GPUs: the range of the unit is that of one GPU
_TOTALS = {  # what a rate counts
    "output_tok_s": "output_tokens",
    "whole_run_tok_s": "output_tokens",
    "request_s": "requests_ok",
}
_FAR = 10  # a rate may be that of a part of the run, but not so far from the mean of the run
_STATED_CONDITIONS = ("model", "engine", "host")  # fields of ImportOptions and of Conditions
Found = TypeVar("Found")
_METRICS = tuple(name for name, metric in METRICS.items() if not metric.optional)


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """Properties of the imported results that the user states, such as the model, because result
    files may lack them."""

    model: str | None = None
    engine: str | None = None
    host: str | None = None
    simulated: bool = False

    @property
    def stated_conditions(self) -> dict[str, Any]:
        """What the user stated, as fields of Conditions."""
        stated = {name: getattr(self, name) for name in _STATED_CONDITIONS}
        return {name: value for name, value in stated.items() if value}


@dataclass(frozen=True, slots=True)
class Imported:
    """An imported result that is not stored yet. `samples` has one record per request, with the
    fields of bench.records.RequestRecord. It is empty if the file has no single requests."""

    spec: BenchSpec
    conditions: Conditions
    summary: BenchSummary
    unix_s: float
    samples: tuple[Mapping[str, Any], ...] = ()
    note: str = ""
    tags: tuple[str, ...] = ()
    uid: str = ""
    quality: tuple[QualityResult, ...] = ()  # comparisons of answers that the file has with it


class Fields:
    """A JSON object of the imported file. `at` is its place in the document, "" for the outermost
    object, and `line` the line at which the document begins, None if the file has only one. An
    object that is absent (`data` is None) is false and has no fields. The methods return a field
    with its type checked, or None if it is absent or null. They raise InputError for a wrong type.
    """

    def __init__(
        self, file: Path, data: Mapping[str, Any] | None, at: str = "", line: int | None = None
    ) -> None:
        self.file, self.data, self.at, self.line = file, data or {}, at, line
        self._is_present = data is not None

    def __bool__(self) -> bool:
        return self._is_present

    def field_error(self, name: str, problem: str) -> InputError:
        """Return the error for a field whose value is invalid. `name` is the field, and `problem` a
        text such as "the field must be a number"."""
        found = repr(self.data.get(name))
        if len(found) > 60:
            found = f"{found[:59]}…"
        return self.inner_value_error(name, f"{problem}, found {found}")

    def inner_value_error(self, path_in_object: str, problem: str) -> InputError:
        """Return the error for a value inside of this object. `path_in_object` is the path of the
        value, such as "own.p", and `problem` says what is wrong with it."""
        place_in_file = str(self.file)
        if self.line is not None:
            place_in_file += f":{self.line}"
        text = f"{place_in_file}: {self._path_of_field(path_in_object)}: {problem}"
        return InputError(text, next_step=NOTHING_IMPORTED)

    def _path_of_field(self, name: str) -> str:
        return ".".join(filter(None, (self.at, name)))

    def number(self, name: str, unit: str = "") -> float | None:
        """Return the field `name`, which must be a finite number that is not negative; None if it
        is absent. `unit`, such as "tok_s", says which numbers are possible (RANGES in
        untrusted_numbers.py). Raises InputError for any other value."""
        value = self.data.get(name)
        if value is None:
            return None
        highest = _highest_possible_value(unit)
        if not _is_number_up_to(value, highest):
            raise self.field_error(name, f"the field must be {_expected_range_text(highest)}")
        return float(value)

    def positive_number(self, name: str, unit: str = "") -> float | None:
        """Return the field `name` as `number` does; None also if it is 0."""
        return self.number(name, unit) or None

    def count(self, name: str) -> int | None:
        """Return the field `name`, which must be a whole number that is not negative; None if it is
        absent."""
        value = self.number(name)
        if value is None:
            return None
        if value != int(value):
            raise self.field_error(name, "the field must be a whole number")
        return int(value)

    def required_count(self, name: str) -> int:
        value = self.count(name)
        if value is None:
            raise self.field_error(name, "the field must be a whole number")
        return value

    def text(self, name: str) -> str | None:
        """Return the field `name`, which must be text of at most MOST_CHARS characters; None if it
        is absent or empty. Raises InputError for any other value."""
        value = self.data.get(name)
        if not isinstance(value, str | None):
            raise self.field_error(name, "the field must be text")
        if value and len(value) > MOST_CHARS:
            problem = f"the field must be text of at most {MOST_CHARS:,} characters"
            raise self.field_error(name, problem)
        return value or None

    def text_or(self, name: str, otherwise: str = "") -> str:
        """Return the field `name` as `text` does; `otherwise` if it is absent or empty."""
        return self.text(name) or otherwise

    def number_or_0(self, name: str) -> float:
        return self.number(name) or 0.0

    def count_or_0(self, name: str) -> int:
        return self.count(name) or 0

    def flag(self, name: str) -> bool | None:
        value = self.data.get(name)
        if not isinstance(value, bool | None):
            raise self.field_error(name, "the field must be true or false")
        return value

    def object(self, name: str) -> Fields:
        value = self.data.get(name)
        if not isinstance(value, dict | None):
            raise self.field_error(name, "the field must be an object")
        return Fields(self.file, value, self._path_of_field(name), self.line)

    def objects(self, name: str) -> list[Fields]:
        """Return the field `name`, which must be a list of objects; [] if it is absent."""
        found = self._list(name, "a list of objects", lambda value: isinstance(value, dict))
        at = self._path_of_field(name)
        return [Fields(self.file, v, f"{at}[{i}]", self.line) for i, v in enumerate(found)]

    def numbers(self, name: str, unit: str = "") -> list[float]:
        """Return the field `name`, which must be a list of numbers as `number` accepts them; [] if
        it is absent."""
        highest = _highest_possible_value(unit)
        expected = f"a list of which each value is {_expected_range_text(highest)}"
        found = self._list(name, expected, lambda value: _is_number_up_to(value, highest))
        return list(map(float, found))

    def _list(self, name: str, expected: str, is_valid: Callable[[Any], bool]) -> list[Any]:
        """Return the field `name`, which must be a list of valid values; [] if it is absent.
        `expected` says so in the error, such as "a list of objects"."""
        value = self.data.get(name)
        if value is None:
            return []
        if not isinstance(value, list) or not all(map(is_valid, value)):
            raise self.field_error(name, f"the field must be {expected}")
        return value

    def latency_statistics_ms(self, tag: str) -> dict[str, float]:
        """Return the statistics in milliseconds that the file states of a latency, by their names
        in Distribution. They are in fields such as "p99_TAG_ms". {} if all are 0, as without
        streaming."""
        found = {}
        for name, part in _PARTS.items():
            value = self.number(f"{name}_{tag}_ms")
            if value is not None:
                found[part] = value
        if not any(found.values()):
            return {}
        return found

    def unix_seconds_or_file_time(self, name: str) -> float:
        """Return the time in Unix seconds in the field `name`. If the field is absent or 0, the
        time is the modification time of the file."""
        return self.number(name, "unix_s") or self.file.stat().st_mtime

    def run_duration_s(self, name: str, requests: int) -> float | None:
        """Return the duration of a run in which `requests` were answered, in seconds; None if the
        field is absent. Raises InputError if it is 0 in spite of these requests."""
        duration_s = self.number(name, "s")
        if duration_s == 0 and requests:
            raise self.field_error(name, "the field must be more than 0, as requests were answered")
        return duration_s

    def unix_seconds_and_note(self, name: str, form: str | None = None) -> tuple[float, str]:
        """Return (time in Unix seconds, note) from the field `name`, in the strptime format `form`
        or by default in ISO 8601. A time without a time zone is read in this machine's zone. If the
        field is absent, the time is the modification time of the file. In these two cases the note
        says so, otherwise it is empty."""
        text = self.text(name)
        if text is None:
            return self.file.stat().st_mtime, "the file has no time: its modification time is shown"
        try:
            found = datetime.strptime(text, form) if form else datetime.fromisoformat(text)
            unix_s = number_for_field("unix_s", found.timestamp())
        except (ValueError, OverflowError):  # no date, or one that no clock here can show
            unix_s = None
        if unix_s is None:
            raise self.field_error(name, "the field must be a date and time since 1970")
        note = "the time in the file has no time zone: this machine's is assumed"
        if found.tzinfo:
            note = ""
        return unix_s, note


def first_field(read: Callable[[str], Found], *names: str) -> Found:
    """Return the first of several fields that is neither absent nor 0 or empty, because tools and
    their versions have different names for it. `read` returns the field of a name. If none is
    found, return what it returns for the last name."""
    for name in names:
        found = read(name)
        if found:
            break
    return found


def mean_tokens_of_requests(
    input_tokens: int | None, output_tokens: int | None, requests: int
) -> dict[str, int]:
    """Return the mean tokens of the prompts and answers of `requests` requests as fields of
    BenchSpec, given their totals. A total that is unknown or 0 gives no field, and {} is returned
    without a request."""
    if not requests:
        return {}
    totals = {"input_tokens": input_tokens, "max_tokens": output_tokens}
    return {name: round(tokens / requests) for name, tokens in totals.items() if tokens}


def _is_number_up_to(value: Any, highest: float) -> bool:
    return number_or_none(value, 0, highest) is not None


def _highest_possible_value(unit: str) -> float:
    return min(range_of_field(unit)[1], EXACT)


def _expected_range_text(highest: float) -> str:
    if highest == EXACT:
        return "a number that is 0 or more"
    return f"a number from 0 to {highest:,.0f}"


def imported_result(
    tool: str,
    options: ImportOptions,
    model: str,
    workload: Mapping[str, Any],
    summary: BenchSummary,
    unix_s: float,
    gpus: tuple[dict[str, Any], ...] = (),
    **known: Any,
) -> Imported:
    """Return the result of a run of `model` that `tool` measured. `workload` has the fields of
    BenchSpec that are known for this run, and `known` further fields of Imported."""
    conditions = Conditions(
        host=options.host or "imported",
        engine=options.engine,
        engine_version=None,
        model=model,
        gpus=gpus,
        client=NOT_IN_FILE,
        imported=tool,
        simulated=options.simulated,
        known_workload=tuple(workload),
        model_bytes=NOT_IN_FILE,
    )
    spec = BenchSpec(url="", model=model, profile="imported", **workload)
    return Imported(spec, conditions, summary, unix_s, **known)


def imported_summary(absence_reasons: Mapping[str, str], **known_metrics: Any) -> BenchSummary:
    """Return a summary with the metrics in `known_metrics`. A value that no run can have is
    withheld, with the reason. Every other metric is absent, for the reason that `absence_reasons`
    has for it, or else because the file does not contain it. Without `errors`, failed requests are
    counted as one kind, "failed"."""
    metrics = {**dict.fromkeys(_METRICS), **known_metrics}
    withheld = _reasons_to_withhold(metrics)
    absence_reasons = {**absence_reasons, **withheld}
    metrics |= dict.fromkeys(withheld)
    partial = metrics.get("partial", {})
    metrics["partial"] = {name: partial[name] for name in partial if name not in withheld}
    absent = {
        name: absence_reasons.get(name, NOT_IN_FILE) for name in _METRICS if metrics[name] is None
    }
    tpot = metrics["tpot_ms"]
    tpot_mean_ms = tpot.mean if tpot is not None else 0.0
    if tpot_mean_ms > 0 and metrics["per_stream_tok_s"] is None:
        metrics["per_stream_tok_s"] = (
            1000 / tpot_mean_ms
        )  # the same definition as in bench/summary.py
        absent.pop("per_stream_tok_s")
    extra = {name: reason for name, reason in absence_reasons.items() if name not in _METRICS}
    failed = metrics.setdefault("requests_failed", 0)
    metrics.setdefault("errors", {"failed": failed} if failed else {})
    return BenchSummary(**metrics, absent={**absent, **extra})


def _reasons_to_withhold(metrics: Mapping[str, Any]) -> dict[str, str]:
    """Return, by the name of the metric, why its value is withheld: no run can have it."""
    numbers = {name: value for name, value in metrics.items() if isinstance(value, (int, float))}
    reasons = {}
    for name, value in numbers.items():
        if name not in _SUMS:
            reasons[name] = why_number_is_impossible(value, *range_of_field(name))
    for rate, total in _TOTALS.items():
        counted = numbers.get(total)
        by_rate = numbers.get(rate, 0) * numbers.get("duration_s", 0)
        if not counted or reasons.get(rate):
            continue
        if by_rate > _FAR * counted:
            counts = f"the file counts {counted:,.0f}"
            reasons[rate] = f"this rate gives {by_rate:,.0f} in the duration, and {counts}"
    for name, parts in _statistics_by_latency(metrics).items():
        reasons[name] = _why_impossible_latency(parts)
    return {name: f"withheld: {why}" for name, why in reasons.items() if why}


def _statistics_by_latency(metrics: Mapping[str, Any]) -> dict[str, Mapping[str, float | None]]:
    found: dict[str, Mapping[str, float | None]] = {}
    for name, value in metrics.items():
        if isinstance(value, Distribution):
            found[name] = {part: getattr(value, part) for part in (*_RISING, "mean")}
    return {**found, **metrics.get("partial", {})}


def _why_impossible_latency(statistics: Mapping[str, float | None]) -> str:
    """Return why the statistics of a latency, in milliseconds, are impossible; "" if they are
    not."""
    known = {part: value for part, value in statistics.items() if value is not None}
    for value in known.values():
        if why := why_number_is_impossible(value, *range_of_field("ms")):
            return why
    rising = [known[part] for part in _RISING if part in known]
    if not all(starmap(_is_ascending_within_rounding, pairwise(rising))):
        return "its percentiles in the file are not in order"
    around_mean = [known[part] for part in ("min", "mean", "max") if part in known]
    if "mean" in known and not all(starmap(_is_ascending_within_rounding, pairwise(around_mean))):
        return "its mean in the file is not between its minimum and its maximum"
    return ""


def _is_ascending_within_rounding(lower: float, higher: float) -> bool:
    """Return whether the values can be in this order, apart from how they were rounded."""
    return higher >= lower * (1 - _ROUNDED)


def served_model_name(fields: Fields, options: ImportOptions, name: str | None) -> str:
    """Return the name of the model that was served. It is the name that the user gave in `options`,
    or else `name`, which comes from the file. Raises InputError if neither is known."""
    model = options.model or name
    if not model:
        raise InputError(
            f"{fields.file}: the file does not name the model", next_step="add --model NAME"
        )
    return model

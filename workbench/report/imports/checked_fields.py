"""Access to the fields of a JSON document from another tool. Each field is checked, and each error
names the file and the field.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from workbench.model.bench import BenchSpec, BenchSummary, Conditions
from workbench.model.errors import InputError
from workbench.model.lazy_dataclass import dataclass
from workbench.model.metrics import METRICS
from workbench.model.quality import QualityResult
from workbench.model.untrusted_numbers import EXACT, number
from workbench.report.format_values import NOT_IN_FILE

MOST_CHARS = 65_536  # of a text, such as the command line of another tool
# duration_s has no "unknown": a summary without it says 0.
_METRICS = tuple(
    name for name, metric in METRICS.items() if not metric.optional and name != "duration_s"
)


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """Properties of the imported results that the user states, such as the model, because result
    files may lack them."""

    model: str | None = None
    engine: str | None = None
    host: str | None = None
    simulated: bool = False


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
    object. The methods return a field with its type checked, or None if it is absent or null. They
    raise InputError for a wrong type."""

    def __init__(self, file: Path, data: Mapping[str, Any], at: str = "") -> None:
        self.file, self.data, self.at = file, data, at

    def wrong(self, name: str, problem: str) -> InputError:
        """Return the error for a field whose value is invalid. `name` is the field, and `problem` a
        text such as "the field must be a number"."""
        value = repr(self.data.get(name))
        found = value if len(value) <= 60 else value[:59] + "…"
        return self.wrong_inside(name, f"{problem}, found {found}")

    def wrong_inside(self, place: str, problem: str) -> InputError:
        """Return the error for a value inside of this object. `place` is where it is, such as
        "own.p", and `problem` says what it is."""
        at = f"{self.at}.{place}" if self.at else place
        return InputError(
            f"{self.file}: {at}: {problem}", next_step="no result of this file was imported"
        )

    def number(self, name: str) -> float | None:
        """Return the field `name`, which must be a finite number that is not negative; None if it
        is absent. Raises InputError for any other value."""
        value = self.data.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not _usable(value):
            raise self.wrong(name, "the field must be a number that is 0 or more")
        return float(value)

    def count(self, name: str) -> int | None:
        value = self.number(name)
        if value is None:
            return None
        if value != int(value):
            raise self.wrong(name, "the field must be a whole number")
        return int(value)

    def required_count(self, name: str) -> int:
        value = self.count(name)
        if value is None:
            raise self.wrong(name, "the field must be a whole number")
        return value

    def text(self, name: str) -> str | None:
        value = self.data.get(name)
        if value is not None and not isinstance(value, str):
            raise self.wrong(name, "the field must be text")
        if value and len(value) > MOST_CHARS:
            raise self.wrong(name, f"the field must be text of at most {MOST_CHARS:,} characters")
        return value or None

    def flag(self, name: str) -> bool | None:
        value = self.data.get(name)
        if value is not None and not isinstance(value, bool):
            raise self.wrong(name, "the field must be true or false")
        return value

    def object(self, name: str) -> Fields | None:
        value = self.data.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.wrong(name, "the field must be an object")
        return Fields(self.file, value, f"{self.at}.{name}" if self.at else name)

    def objects(self, name: str) -> list[Fields]:
        """Return the field `name`, which must be a list of objects; [] if it is absent."""
        value = self.data.get(name)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(v, dict) for v in value):
            raise self.wrong(name, "the field must be a list of objects")
        at = f"{self.at}.{name}" if self.at else name
        return [Fields(self.file, v, f"{at}[{i}]") for i, v in enumerate(value)]

    def numbers(self, name: str) -> list[float] | None:
        value = self.data.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(_is_number(v) and _usable(v) for v in value):
            raise self.wrong(name, "the field must be a list of numbers that are 0 or more")
        return [float(v) for v in value]

    def unix_time(self, name: str, form: str | None = None) -> tuple[float, str]:
        """Return (time in Unix seconds, note) from the field `name`, in the strptime format `form`
        or by default in ISO
        8601. A time without a time zone is read in this machine's zone. If the field is absent, the
              time is the modification time of the file. In these two cases the note says so,
              otherwise it is empty."""
        text = self.text(name)
        if text is None:
            return self.file.stat().st_mtime, "the file has no time: its modification time is shown"
        try:
            found = datetime.strptime(text, form) if form else datetime.fromisoformat(text)
        except ValueError:
            raise self.wrong(name, "the field must be a date and time") from None
        note = (
            ""
            if found.tzinfo
            else ("the time in the file has no time zone: this machine's is assumed")
        )
        return found.timestamp(), note


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _usable(value: float) -> bool:
    return number(value, 0, EXACT) is not None


def conditions(
    tool: str, options: ImportOptions, model: str, workload: Sequence[str], **known: Any
) -> Conditions:
    """Return the conditions of a run that `tool` measured. `model` is the model's name unless
    `options` has one, and `known` are further conditions. `workload` names the fields of BenchSpec
    that are known for this run."""
    return Conditions(
        host=options.host or "imported",
        engine=options.engine,
        engine_version=None,
        model=options.model or model,
        client=NOT_IN_FILE,
        imported=tool,
        simulated=options.simulated,
        known_workload=tuple(workload),
        model_bytes=NOT_IN_FILE,
        **known,
    )


def summary(reasons: Mapping[str, str], **known: Any) -> BenchSummary:
    """Return a summary with the metrics in `known`. Every other metric is absent, for the reason
    that `reasons` has for it, or else because the file does not contain the metric."""
    metrics = {**dict.fromkeys(_METRICS), **known}
    absent = {name: reasons.get(name, NOT_IN_FILE) for name in _METRICS if metrics[name] is None}
    tpot = metrics["tpot_ms"]
    if metrics["per_stream_tok_s"] is None and tpot is not None and tpot.mean > 0:
        metrics["per_stream_tok_s"] = 1000 / tpot.mean  # the same definition as in bench/summary.py
        absent.pop("per_stream_tok_s")
    extra = {name: reason for name, reason in reasons.items() if name not in _METRICS}
    base: dict[str, Any] = {"requests_failed": 0, "errors": {}, "duration_s": 0.0, **metrics}
    return BenchSummary(**{**base, "absent": {**absent, **extra}})


def model_of(fields: Fields, options: ImportOptions, name: str | None) -> str:
    """Return the name of the model that was served. It is the name that the user gave in `options`,
    or else `name`, which comes from the file. Raises InputError if neither is known."""
    model = options.model or name
    if not model:
        raise InputError(
            f"{fields.file}: the file does not name the model", next_step="add --model NAME"
        )
    return model

"""Reading a stranger's JSON: each field checked, each complaint with the file and the field's name."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from workbench.model.bench import BenchSpec, BenchSummary, Conditions, Distribution
from workbench.model.errors import InputError

FIGURES = (
    "prompt_tokens",
    "output_tokens",
    "cached_tokens",
    "output_tok_s",
    "request_s",
    "ttft_ms",
    "itl_ms",
    "tpot_ms",
    "e2e_ms",
    "tokens_per_chunk",
    "per_stream_tok_s",
    "power_w",
    "energy_j",
    "tok_per_joule",
    "client_cpu_pct",
)
NOT_IN_FILE = "not in the imported file"  # as store.report.values knows it


@dataclass(frozen=True, slots=True)
class Told:
    """What the person says of an imported result."""

    model: str | None = None
    engine: str | None = None
    host: str | None = None
    simulated: bool = False


@dataclass(frozen=True, slots=True)
class Imported:
    """One result, not yet stored. `samples` have the fields of bench.records.RequestRecord, where they are known."""

    spec: BenchSpec
    conditions: Conditions
    summary: BenchSummary
    unix_s: float
    samples: tuple[Mapping[str, Any], ...] = ()
    note: str = ""
    tags: tuple[str, ...] = ()
    uid: str = ""


class Fields:
    """One JSON object of `file`; `at` is its place there, "" for the top. Getters give None for what is absent or
    null, and raise InputError for what is of the wrong kind."""

    def __init__(self, file: Path, data: Mapping[str, Any], at: str = "") -> None:
        self.file, self.data, self.at = file, data, at

    def wrong(self, name: str, expected: str) -> InputError:
        value = repr(self.data.get(name))
        found = value if len(value) <= 60 else value[:59] + "…"
        place = f"{self.at}.{name}" if self.at else name
        return InputError(f"{self.file}: {place}: expected {expected}, found {found}", next_step="nothing was imported")

    def number(self, name: str) -> float | None:
        """A finite number, 0 or more."""
        value = self.data.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not _usable(value):
            raise self.wrong(name, "a number that is 0 or more")
        return float(value)

    def count(self, name: str) -> int | None:
        value = self.number(name)
        if value is None:
            return None
        if value != int(value):
            raise self.wrong(name, "a whole number")
        return int(value)

    def needed(self, name: str) -> int:
        value = self.count(name)
        if value is None:
            raise self.wrong(name, "a whole number")
        return value

    def text(self, name: str) -> str | None:
        value = self.data.get(name)
        if value is not None and not isinstance(value, str):
            raise self.wrong(name, "a text")
        return value or None

    def flag(self, name: str) -> bool | None:
        value = self.data.get(name)
        if value is not None and not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return value

    def inner(self, name: str) -> Fields | None:
        value = self.data.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.wrong(name, "an object")
        return Fields(self.file, value, f"{self.at}.{name}" if self.at else name)

    def inners(self, name: str) -> list[Fields]:
        """A list of objects; [] where it is absent."""
        value = self.data.get(name)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(v, dict) for v in value):
            raise self.wrong(name, "a list of objects")
        at = f"{self.at}.{name}" if self.at else name
        return [Fields(self.file, v, f"{at}[{i}]") for i, v in enumerate(value)]

    def numbers(self, name: str) -> list[float] | None:
        value = self.data.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(_is_number(v) and _usable(v) for v in value):
            raise self.wrong(name, "a list of numbers that are 0 or more")
        return [float(v) for v in value]

    def when(self, name: str, form: str | None = None) -> tuple[float, str]:
        """Unix seconds, and a note on how sure they are. The file's own time where the field is absent."""
        text = self.text(name)
        if text is None:
            return self.file.stat().st_mtime, "the file names no time: its own modification time is shown"
        try:
            found = datetime.strptime(text, form) if form else datetime.fromisoformat(text)
        except ValueError:
            raise self.wrong(name, "a date and time") from None
        zone = "" if found.tzinfo else "the time in the file has no zone: it is read as this machine's"
        return found.timestamp(), zone


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _usable(value: float) -> bool:
    try:
        return math.isfinite(value) and value >= 0
    except OverflowError:  # an integer beyond any float
        return False


def distribution(values: Iterable[float]) -> Distribution | None:
    """Percentiles by linear interpolation, as everywhere here; None for no values."""
    known = sorted(values)
    if not known:
        return None
    cuts = statistics.quantiles(known, n=100, method="inclusive") if len(known) > 1 else known * 99
    return Distribution(
        mean=statistics.fmean(known),
        p50=cuts[49],
        p90=cuts[89],
        p99=cuts[98],
        min=known[0],
        max=known[-1],
        count=len(known),
    )


def conditions(tool: str, told: Told, model: str, workload: Sequence[str], **known: Any) -> Conditions:
    """Of a run that another tool made: what it ran on is known only as far as `told` and `known` say."""
    return Conditions(
        host=told.host or "imported",
        engine=told.engine,
        engine_version=None,
        model=told.model or model,
        client="not in the imported file",
        imported=tool,
        simulated=told.simulated,
        known_workload=tuple(workload),
        model_bytes=NOT_IN_FILE,
        **known,
    )


def summary(reasons: Mapping[str, str], **known: Any) -> BenchSummary:
    """`known` figures; the others are absent, for the reason given or because the file does not hold them."""
    figures = {**dict.fromkeys(FIGURES), **known}
    absent = {name: reasons.get(name, NOT_IN_FILE) for name in FIGURES if figures[name] is None}
    tpot = figures["tpot_ms"]
    if figures["per_stream_tok_s"] is None and tpot is not None and tpot.mean > 0:
        figures["per_stream_tok_s"] = 1000 / tpot.mean  # as bench.summary defines it
        absent.pop("per_stream_tok_s")
    extra = {n: why for n, why in reasons.items() if n not in FIGURES}
    base: dict[str, Any] = {"requests_failed": 0, "errors": {}, "duration_s": 0.0, **figures}
    return BenchSummary(**{**base, "absent": {**absent, **extra}})


def the_model(fields: Fields, told: Told, name: str | None) -> str:
    """What was served; InputError where neither the file nor the person says so."""
    model = told.model or name
    if not model:
        raise InputError(f"{fields.file}: the model is not named in it", next_step="give it: --model NAME")
    return model

"""A report as data: JSON with all samples, CSV with a line per result, or per request."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from workbench.model.bench import BenchResult, Comparison
from workbench.model.bench_json import to_json
from workbench.model.experiment import Experiment
from workbench.model.secrets import mask_data
from workbench.model.sweep import Sweep
from workbench.model.untrusted_text import clean, escaped

FORMAT = 1
SIMULATED = "SIMULATED: figures of a model, not of hardware"
_SAMPLE = (
    "index",
    "warmup",
    "start_s",
    "ttft_us",
    "end_us",
    "chunks",
    "prompt_tokens",
    "output_tokens",
    "cached_tokens",
    "first_tokens",
    "finish_reason",
    "error",
    "detail",
)
Samples = Mapping[int, Sequence[Mapping[str, Any]]]


def one_json(result: BenchResult, samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    more = {"samples": list(samples)} if samples else {}
    return {**mask_data(to_json(result)), "simulated": result.conditions.simulated, **more}


def as_json(
    results: Sequence[BenchResult],
    samples: Samples,
    compared: Comparison | None,
    experiment: Experiment | None,
    swept: Sweep | None,
) -> str:
    document: dict[str, Any] = {
        "workbench_report": FORMAT,
        "simulated": any(r.conditions.simulated for r in results),
        "results": [one_json(r, samples.get(r.id, ())) for r in results],
    }
    for name, value in (("comparison", compared), ("experiment", experiment), ("sweep", swept)):
        if value is not None:
            document[name] = mask_data(asdict(value))
    return text_of(document)


def text_of(document: Mapping[str, Any]) -> str:
    return escaped(json.dumps(document, indent=2, ensure_ascii=False)) + "\n"


def pairs_csv(result: BenchResult) -> str:
    """Two columns, name and value: one line per figure and condition; an absent value is empty, its reason stands
    under summary.absent."""
    data = mask_data(to_json(result))
    rows = [("simulated", SIMULATED if result.conditions.simulated else "no"), *flat(data)]
    return _written(("name", "value"), rows)


def results_csv(results: Sequence[BenchResult]) -> str:
    """A line per result, a column for each figure and condition that any of them has."""
    tables = [
        {"simulated": SIMULATED if r.conditions.simulated else "no", **dict(flat(mask_data(to_json(r))))}
        for r in results
    ]
    names = list(dict.fromkeys(name for table in tables for name in table))
    return _written(names, [[table.get(name) for name in names] for table in tables])


def samples_csv(results: Sequence[BenchResult], samples: Samples) -> str:
    """A line per request; `gaps_us` are separated by spaces."""
    rows = []
    for result in results:
        mark = SIMULATED if result.conditions.simulated else "no"
        for one in samples.get(result.id, ()):
            gaps = " ".join(map(str, one.get("gaps_us", ())))
            rows.append([result.id, mark, *(one.get(name) for name in _SAMPLE), gaps])
    return _written(("result", "simulated", *_SAMPLE, "gaps_us"), rows)


def _written(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([_inert(name) for name in head])
    writer.writerows([["" if v is None else _inert(v) for v in row] for row in rows])
    return out.getvalue()


def flat(data: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    """Nested mappings flattened to dotted names; lists stay one JSON value."""
    for key, value in data.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{name}.")
        elif isinstance(value, (Mapping, list, tuple)):
            yield name, json.dumps(value, ensure_ascii=False)
        else:
            yield name, value


def _inert(value: Any) -> Any:
    """Text that a spreadsheet would run as a formula gets an apostrophe in front; nothing in it reaches a terminal."""
    if not isinstance(value, str):
        return value
    value = clean(value, len(value), lines=True)
    return f"'{value}" if value[:1] in ("=", "+", "-", "@", "\t", "\r") else value

"""Benchmark data to JSON and back: the worker's pipe, the results database and exports share one form.

Fields that this version does not know are dropped, missing ones take their default, so that results written by
another version stay readable.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from workbench.model.bench import (
    BenchResult,
    BenchSpec,
    BenchSummary,
    Conditions,
    Distribution,
    EngineDuring,
    GpuDuring,
)

_DISTRIBUTIONS = ("ttft_ms", "itl_ms", "tpot_ms", "e2e_ms", "queue_ms", "ttft_from_schedule_ms", "e2e_from_schedule_ms")


def to_json(value: BenchSpec | BenchSummary | Conditions | BenchResult) -> dict[str, Any]:
    return asdict(value)


def _known(cls: Any, data: Mapping[str, Any]) -> dict[str, Any]:
    names = {f.name for f in fields(cls)}
    return {k: v for k, v in data.items() if k in names}


def spec_from_json(data: Mapping[str, Any]) -> BenchSpec:
    """Raises TypeError when `url` or `model` is missing."""
    known = _known(BenchSpec, data)
    for name in ("prompts", "command"):
        known[name] = tuple(known.get(name) or ())
    return BenchSpec(**known)


def conditions_from_json(data: Mapping[str, Any]) -> Conditions:
    known = _known(Conditions, data)
    for name in ("argv", "gpus", "known_workload"):
        known[name] = tuple(known.get(name) or ())
    return Conditions(**known)


def summary_from_json(data: Mapping[str, Any]) -> BenchSummary:
    known = _known(BenchSummary, data)
    for name in _DISTRIBUTIONS:
        if known.get(name) is not None:
            known[name] = Distribution(**_known(Distribution, known[name]))
    if known.get("gpu") is not None:
        gpu = _known(GpuDuring, known["gpu"])
        lists = {n: tuple(gpu.get(n) or ()) for n in ("gpus", "power_w_each", "energy_j_each")}
        known["gpu"] = GpuDuring(**{**gpu, **lists})
    if known.get("engine") is not None:
        engine = _known(EngineDuring, known["engine"])
        known["engine"] = EngineDuring(**{**engine, "disagreements": tuple(engine.get("disagreements") or ())})
    for name in ("notes", "refused", "marked", "command_output"):
        known[name] = tuple(known.get(name) or ())
    return BenchSummary(**known)


def result_from_json(data: Mapping[str, Any]) -> BenchResult:
    return BenchResult(
        id=data["id"],
        unix_s=data["unix_s"],
        spec=spec_from_json(data["spec"]),
        conditions=conditions_from_json(data["conditions"]),
        summary=summary_from_json(data["summary"]),
        note=data.get("note", ""),
        tags=tuple(data.get("tags") or ()),
    )

"""A sweep: one benchmark at each of several values of a GPU setting, the concurrency or a flag."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """`state`: "planned", "measuring", "done", "failed" (`error`), "skipped". `x` is the value as a number, None for a
    word. What was not measured is None."""

    label: str  # "400 W", "c=16", "max-num-seqs=512 kv-cache-dtype=fp8"
    x: float | None
    state: str = "planned"
    result_ids: tuple[int, ...] = ()
    tok_s: float | None = None
    tok_per_joule: float | None = None
    power_w: float | None = None
    sm_mhz: float | None = None
    temperature_c: float | None = None
    ttft_p50_ms: float | None = None
    ttft_p99_ms: float | None = None
    itl_mean_ms: float | None = None
    in_force: str | None = None  # of a GPU setting: what the load showed
    error: str | None = None
    bound: bool | None = None  # of a power limit: whether it held the clocks down, or was drawn


@dataclass(frozen=True, slots=True)
class SweepSpec:
    """What a sweep was asked for, kept before its first measurement, secrets masked: with it the sweep is resumed."""

    values: tuple[str, ...]  # as typed: "400", "210-1500"; of flags "name=value"
    bench: Mapping[str, Any] = field(default_factory=dict)  # fields of BenchSpec
    runs: int = 1
    pairs: int = 0
    measured: Mapping[str, str] = field(default_factory=dict)  # GPUs, driver, engine, model: the same to its end
    # of a GPU setting
    run_id: str | None = None
    url: str | None = None
    gpus: tuple[str, ...] = ()  # UUIDs
    settle_s: float = 0.0
    # of flags
    plan: Mapping[str, Any] | None = None  # the start, as JSON (model.plan)
    preset_id: str | None = None
    max_minutes: float | None = None


@dataclass(frozen=True, slots=True)
class Sweep:
    """`kind`: "power_limit_w", "gpu_clocks", "concurrency" or "flag"; `state`: "running", "done", "stopped", "failed".
    `knee` is the index of the point beyond which more buys little, with `knee_text` saying by which rule."""

    id: int
    unix_s: float
    host: str
    kind: str
    name: str  # axis title: "power limit", "concurrency", "max-num-seqs"
    unit: str  # "W", "MHz", ""
    points: tuple[SweepPoint, ...]
    state: str = "running"
    knee: int | None = None
    knee_text: str = ""
    simulated: bool = False
    left_s: float | None = None
    notes: tuple[str, ...] = ()
    error: str | None = None
    experiment_id: int | None = None  # the A/B experiment that compared the best value of a flag with the start
    server: str | None = None  # run that the sweep has started and has on now
    confirmed: bool | None = None  # by pairs against the start; None: not compared
    spec: SweepSpec | None = None  # None: of an older Workbench, or a kind that is not resumed
    before: str | None = None  # run that was stopped for the sweep, and is to be started again after it
    # While a GPU setting of the sweep may be on: "owners", the processes that have carried it out (gpu/owners.py), and
    # "gpus", what each had at the start by UUID.
    start: Mapping[str, Any] | None = None

    @property
    def resumable(self) -> bool:
        """Whether there is something left to measure, and enough is known to go on."""
        left = self.state in ("stopped", "failed") or any(p.state != "done" for p in self.points)
        return self.spec is not None and self.state != "running" and left

    @property
    def values_done(self) -> int:
        return sum(p.state == "done" for p in self.points)


def taken_up(sweep: Sweep) -> Sweep:
    """Return the sweep as it goes on: what was measured stays with what is said of it, all else is to be made."""
    points = tuple(p if p.state == "done" else SweepPoint(p.label, p.x) for p in sweep.points)
    of_values = tuple(f"{p.label}: " for p in points if p.state == "done")
    notes = tuple(note for note in sweep.notes if note.startswith(of_values))
    notes += (f"resumed: {sweep.values_done} of {len(points)} values had been measured before",)
    fresh = replace(sweep, state="running", knee=None, knee_text="", left_s=None, error=None, confirmed=None)
    return replace(fresh, points=points, notes=notes)

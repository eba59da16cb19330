"""A sweep: one benchmark at each of several values of a GPU setting, the concurrency or a flag."""

from __future__ import annotations

from dataclasses import dataclass


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

"""What corrections of the five write-ups forbid a tune to propose. The numbers are those of
tests/unit/store/test_document_corrections.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from workbench.engines.gpu_table import find_gpu_type
from workbench.engines.plan_context import PlanContext
from workbench.engines.weight_bits import normalize_quantization
from workbench.model.settings import GpuSettings
from workbench.model.tune import (
    TuneCandidate,
    gpu_settings_of_candidate,
    plan_assignments_of_candidate,
)

_SHARES = ("gpu-memory-utilization", "mem-fraction-static")
_OF_ONE_STREAM = (*_SHARES, "chunked-prefill-size", "max-running-requests", "schedule-policy")
_FOUR_BITS = ("AWQ", "GPTQ", "NVFP4", "MXFP4")


@dataclass(frozen=True)
class Proposed:
    """A candidate of a tune, with the plan and the load for which it is proposed."""

    context: PlanContext
    streams: int
    goal: str
    flags: dict[str, str]
    settings: GpuSettings

    @property
    def capability(self) -> str:
        return self.context.gpus[0].compute_capability or ""

    @property
    def bits(self) -> str | None:
        facts = self.context.plan.model_facts
        return normalize_quantization(facts.quantization) if facts and facts.quantization else None

    def number(self, name: str) -> float:
        return float(self.flags.get(name, "0"))


def _splits_without_need(one: Proposed) -> bool:
    """Several requests, cards without NVLink, and a plan whose model is on one card already."""
    kind = find_gpu_type(one.context.gpus[0].name)
    linked = kind is not None and kind.nvlink
    split = one.number("tensor-parallel-size") > one.context.flag_count_or_one(
        "tensor-parallel-size"
    )
    return split and one.streams > 1 and not linked and one.context.gpus_needed_per_node == 1


# (corrections, what they forbid, whether a candidate is that)
FORBIDDEN: tuple[tuple[str, str, Callable[[Proposed], bool]], ...] = (
    (
        "0-7, 1-13",
        "memory share, prefill chunk or request limit for the speed of one stream",
        lambda one: (
            one.streams == 1 and one.goal == "tok_s" and bool({*one.flags} & {*_OF_ONE_STREAM})
        ),
    ),
    (
        "0-9",
        "an attention kernel that the chip cannot run",
        lambda one: (
            one.flags.get("attention-backend", "").lower() in ("fa3", "fa4")
            and one.capability.startswith("12.")
        ),
    ),
    ("0-3, 0-11, 1-4", "a lock of the memory clock", lambda one: "memory_clocks" in one.settings),
    (
        "1-3, 1-5",
        "clocks or power for speed",
        lambda one: one.goal == "tok_s" and bool(one.settings),
    ),
    (
        "2-11",
        "a larger memory share on a GB10",
        lambda one: (
            "GB10" in one.context.gpus[0].name and any(one.number(s) > 0.8 for s in _SHARES)
        ),
    ),
    (
        "2-15, 2-16",
        "pipeline stages",
        lambda one: one.number("pipeline-parallel-size") > 1,
    ),
    (
        "3-2, 4-17",
        "another quantization of a 4-bit checkpoint, or AWQ without one",
        lambda one: (
            "quantization" in one.flags
            and (one.bits in _FOUR_BITS or one.flags["quantization"] not in ("fp8",))
        ),
    ),
    ("3-9", "dtype float8", lambda one: "float8" in one.flags.get("dtype", "")),
    (
        "3-10",
        "one request at a time",
        lambda one: one.streams > 1 and one.flags.get("max-num-seqs") == "1",
    ),
    ("3-12, 4-18", "a split of a model that fits one card", _splits_without_need),
    (
        "4-16",
        "removed flags of speculation",
        lambda one: bool({*one.flags} & {"speculative-model", "num-speculative-tokens"}),
    ),
)


def forbidden(
    context: PlanContext, streams: int, goal: str, candidates: Sequence[TuneCandidate]
) -> list[str]:
    """Return which candidates the corrections forbid, with the numbers of the corrections."""
    found = []
    for one in candidates:
        words = dict(word.split("=", 1) for word in plan_assignments_of_candidate(one.sets))
        proposed = Proposed(context, streams, goal, words, gpu_settings_of_candidate(one.sets))
        found += [
            f"{' '.join(one.sets)}: {what} ({numbers})"
            for numbers, what, is_that in FORBIDDEN
            if is_that(proposed)
        ]
        found += [
            f"{' '.join(one.sets)}: {name} is no flag"
            for name in words
            if name not in context.catalog.flags
        ]
    return found

"""The input of the advisor's rules: the configuration of a server, its GPUs, the load, and the
measured values.

A value that is unknown is None. Many values are unknown for results of other tools and of older
versions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field, replace
from enum import Enum
from itertools import starmap
from typing import TYPE_CHECKING, NamedTuple

from workbench import engines
from workbench.engines.gpu_table import GpuType, find_gpu_type
from workbench.engines.plan_context import PlanContext
from workbench.model.flags import FlagSetting
from workbench.model.lazy_dataclass import dataclass
from workbench.model.plan import LaunchPlan, ModelFacts
from workbench.model.settings import POWER_LIMIT

if TYPE_CHECKING:
    from workbench.model.bench import (
        BenchResult,
        BenchSpec,
        BenchSummary,
        Conditions,
        EngineDuring,
        GpuDuring,
    )
    from workbench.model.findings import Finding
    from workbench.model.server_run import EngineMetrics

NODES_OF_ONE_GPU = "NVIDIA GB10"  # a DGX Spark is a machine with one GPU
MEMORY_BOUND = 0.6  # of the speed limit: healthy decoding of a dense model reaches 60 to 95 %
LAUNCH_BOUND = 0.3  # below it, kernel launches or synchronization take most of a step
_FEW_STREAMS = 8  # more streams make a step longer by computing
_NUMBERS = (
    *("memory_total_bytes", "sm_max_mhz", "memory_max_mhz", "power_default_w", "power_max_w"),
    "temperature_slowdown_c",
)


class DecodingLimit(Enum):
    """What takes most of a decoding step. With BETWEEN, neither memory reads nor kernel launches
    do."""

    MEMORY = "memory reads"
    BETWEEN = "between"
    LAUNCHES = "kernel launches"


class StreamSpeed(NamedTuple):
    """The measured decoding speed of each stream (simultaneous request), and the speed that the
    memory bandwidth allows it."""

    tok_s: float
    limit_tok_s: float

    @property
    def fraction_of_limit(self) -> float:
        return self.tok_s / self.limit_tok_s


class Weights(NamedTuple):
    """The bytes of a model's weights, and their mean bits per weight."""

    total_bytes: float
    bits: float


class MeasuredRun(NamedTuple):
    """The load of a valid result and its metrics."""

    spec: BenchSpec
    summary: BenchSummary


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """One GPU of the server: its properties, the power limit `limit_w` that applied, and its mean
    power `power_w` during the run."""

    index: int
    name: str = ""
    memory_total_bytes: float | None = None
    sm_max_mhz: float | None = None
    memory_max_mhz: float | None = None
    power_default_w: float | None = None
    power_max_w: float | None = None
    temperature_slowdown_c: float | None = None
    virtualization: str | None = None
    limit_w: float | None = None
    power_w: float | None = None

    @property
    def type(self) -> GpuType | None:
        return find_gpu_type(self.name)


@dataclass(frozen=True, slots=True)
class Facts:
    """All input of the advisor's rules. `plan_context` is the server's plan and engine, None if its
    command line is unknown. `summary` has the metrics of a result. For an invalid result, `summary`
    is None and `refused` has the reasons."""

    plan_context: PlanContext | None = None
    sizes: ModelFacts | None = None
    gpus: tuple[GpuFacts, ...] = ()
    spec: BenchSpec | None = None
    streams: int | None = None  # of a closed loop; None for another load, or if it is unknown
    summary: BenchSummary | None = None
    refused: tuple[str, ...] = ()
    # why the text of the server was no answer, or a doubt about the text of the result
    text_doubt: str = ""
    client_cpu_pct: float | None = None  # of a core, also of an invalid result
    ceiling_tok_s: float | None = None
    ceiling_missing: str = ""  # why it is None; "": not recorded
    in_force: Mapping[str, str] = field(default_factory=dict)  # "gpu0.gpu_clocks" -> InForce
    imported: str | None = None
    preset_id: str | None = None
    preset_gpus: tuple[str, ...] = ()  # NVML names of the GPUs that the preset is for
    log: tuple[Finding, ...] = ()
    now: EngineMetrics | None = None  # counters of a running server
    memory_available_bytes: float | None = None  # of the host, now
    # the newest earlier result of the same configuration and load
    before: BenchResult | None = None
    expected_tok_s: float | None = None  # speed of one stream that someone promised

    @property
    def gpu_types(self) -> tuple[GpuType, ...]:
        """The types of those GPUs whose type is known."""
        return tuple(filter(None, (gpu.type for gpu in self.gpus)))

    @property
    def gpu_type_ids(self) -> frozenset[str]:
        """The ids of those GPU types that are known, as in engines/gpu_table.json."""
        return frozenset(known.id for known in self.gpu_types)

    # ---- derived

    @property
    def known_sizes(self) -> ModelFacts:
        """The sizes of the model; all of them are unknown if nothing is known of it."""
        return self.sizes or ModelFacts("")

    def find_measured_run(self) -> MeasuredRun | None:
        """Return the load and the metrics of the result; None without a valid result."""
        if self.spec is None or self.summary is None:
            return None
        return MeasuredRun(self.spec, self.summary)

    def find_gpu_during_benchmark(self) -> GpuDuring | None:
        """Return the readings of the GPUs during the benchmark; None without a valid result."""
        return self.summary.gpu if self.summary else None

    def find_gpu_util_pct(self) -> float | None:
        """Return the GPUs' mean utilization during the benchmark in percent; None if it was not
        read."""
        gpu = self.find_gpu_during_benchmark()
        return gpu.gpu_util_pct if gpu else None

    @property
    def engine_during_benchmark(self) -> EngineDuring | None:
        """The engine's counters during the benchmark; None without a valid result."""
        return self.summary.engine if self.summary else None

    def has_flag(self, name: str) -> bool:
        """Return whether the server's engine has the flag `name`, set or not. False if the server's
        command line is unknown."""
        return name in self.plan_context.catalog.flags if self.plan_context else False

    @property
    def can_have_replicas(self) -> bool:
        """Whether the server's engine has the flag for data-parallel replicas, and does not use all
        GPUs anyway. False if the server's command line is unknown."""
        context = self.plan_context
        if context is None or context.engine.uses_all_gpus:
            return False
        return self.has_flag("data-parallel-size")

    def find_plan_of_one_stream(self) -> PlanContext | None:
        """Return the plan and engine of a server whose load had one stream. None for another load,
        or if the server's command line is unknown."""
        return self.plan_context if self.streams == 1 else None

    def find_plan_in_eager_mode(self) -> PlanContext | None:
        """Return the plan and engine of a server that was started with CUDA graphs turned off; None
        for another server."""
        return self.plan_context if self.enabled_eager_flag else None

    @property
    def concurrency_flag(self) -> str:
        """The engine's flag that limits the requests at a time. "" if it has none, or if the
        server's command line is unknown."""
        return self.plan_context.engine.concurrency_flag if self.plan_context else ""

    @property
    def enabled_eager_flag(self) -> str:
        """The flag that turns CUDA graphs off; "" if the server was not started with it."""
        return self.plan_context.enabled_eager_flag if self.plan_context else ""

    def parallel_size_of_flag(self, name: str) -> int:
        """Return the parallel size that the flag `name` sets, such as the number of GPUs of tensor
        parallelism. 1 if the flag is not set or the command line is unknown."""
        return self.plan_context.flag_count_or_one(name) if self.plan_context else 1

    @property
    def tp(self) -> int:
        return self.parallel_size_of_flag("tensor-parallel-size")

    @property
    def pp(self) -> int:
        return self.parallel_size_of_flag("pipeline-parallel-size")

    @property
    def dp(self) -> int:
        return self.parallel_size_of_flag("data-parallel-size")

    @property
    def node_count(self) -> int:
        """The number of machines that the server spans; 1 if its command line is unknown."""
        if self.plan_context is None:
            return 1
        if not self.gpus:
            return self.plan_context.node_count
        ranks = self.tp * self.pp
        if self.gpus[0].name == NODES_OF_ONE_GPU:
            return ranks * self.dp
        if self.plan_context.engine.uses_all_gpus:
            return self.plan_context.node_count
        return max(self.plan_context.node_count, math.ceil(ranks / len(self.gpus)))

    @property
    def per_stream_tok_s(self) -> float | None:
        if self.summary is None:
            return None
        return _positive_or_none(self.summary.per_stream_tok_s)

    def find_stream_speed(self) -> StreamSpeed | None:
        """Return the measured decoding speed of each stream with the speed that the memory
        bandwidth allows; None if either is unknown."""
        speed, limit = self.per_stream_tok_s, self.ceiling_tok_s
        if not speed or not limit:
            return None
        return StreamSpeed(speed, limit)

    @property
    def decoding_limit(self) -> DecodingLimit | None:
        """What takes most of a decoding step, by the fraction of the speed that the memory
        bandwidth allows. None if that speed is unknown, or if many streams, which make a step
        longer by computing, decode at less than 60 % of it."""
        speed = self.find_stream_speed()
        if speed is None:
            return None
        if speed.fraction_of_limit >= MEMORY_BOUND:
            return DecodingLimit.MEMORY
        if not self.has_few_streams:
            return None
        if speed.fraction_of_limit >= LAUNCH_BOUND:
            return DecodingLimit.BETWEEN
        return DecodingLimit.LAUNCHES

    @property
    def is_memory_bound(self) -> bool:
        return self.decoding_limit == DecodingLimit.MEMORY

    @property
    def is_launch_bound(self) -> bool:
        return self.decoding_limit == DecodingLimit.LAUNCHES

    @property
    def is_slowed_by_weight_reads(self) -> bool:
        """Whether reading the weights takes at least 60 % of each decoding step; with at most 8
        streams, at least 30 %. False if the speed that the memory bandwidth allows is unknown."""
        return self.decoding_limit in (DecodingLimit.MEMORY, DecodingLimit.BETWEEN)

    @property
    def has_few_streams(self) -> bool:
        """Whether the load has at most 8 streams (simultaneous requests). False if it is not a
        closed loop, or if their number is unknown."""
        if not self.streams:
            return False
        return self.streams <= _FEW_STREAMS

    @property
    def gain_to_bandwidth_limit_pct(self) -> float:
        """The largest possible gain in percent before decoding reaches the speed that the memory
        bandwidth allows, if each token still needs the same bytes. Infinite if that speed is
        unknown."""
        speed = self.find_stream_speed()
        if speed is None:
            return math.inf
        return 100 * (1 / speed.fraction_of_limit - 1)

    def find_weight_bytes(self) -> float | None:
        """Return the bytes of the model's weights; None if they are unknown."""
        return _positive_or_none(self.known_sizes.weight_bytes)

    def find_weights(self) -> Weights | None:
        """Return the bytes and bits of the model's weights. None if the bytes or the number of
        weights is unknown."""
        weight_bytes, parameters = self.find_weight_bytes(), self.known_sizes.parameters
        if not weight_bytes or not parameters:
            return None
        return Weights(weight_bytes, 8 * weight_bytes / parameters)

    def find_accepted_draft_pct(self) -> float | None:
        """Return the percentage of the draft tokens that the engine accepted during the benchmark;
        None if it counted none."""
        engine = self.engine_during_benchmark
        return engine.spec_accepted_pct if engine else None

    @property
    def uses_speculative_decoding(self) -> bool:
        """Whether the server used speculative decoding, according to the engine's counters or the
        flags."""
        if self.find_accepted_draft_pct() is not None:
            return True
        if self.plan_context is None:
            return False
        return (
            self.plan_context.engine.drafted_tokens_per_step(self.plan_context.plan.flag_values)
            != 0
        )

    def fraction_of_run_limited_by(self, reason: str) -> float:
        """Return the share of the run (0..1) in which the driver reported the clock event reason
        `reason`, such as "SW power cap"."""
        gpu = self.find_gpu_during_benchmark()
        if gpu is None:
            return 0.0
        return gpu.event_reasons.get(reason, 0.0)


def plan_context_from_conditions(conditions: Conditions) -> PlanContext | None:
    """Return the plan and engine of the server that was measured, given the result's conditions.
    None if the server's command line is unknown."""
    engine = engines.find_engine(conditions.engine)
    if engine is None or not (conditions.flags or conditions.argv):
        return None
    plan = LaunchPlan(
        engine.name,
        conditions.model,
        conditions.model_facts,
        tuple(starmap(FlagSetting, conditions.flags.items())),
        tuple(starmap(FlagSetting, conditions.env.items())),
    )
    return PlanContext(plan, engine.catalog(conditions.engine_version), engine)


def facts_from_result(result: BenchResult, extra_facts: Facts | None = None) -> Facts:
    """Return the input of the advisor's rules for a stored result. `extra_facts` has values that a
    result does not contain, such as findings about the server's log. If it is None, these values
    are unknown."""
    conditions, summary = result.conditions, result.summary
    return replace(
        extra_facts or Facts(),
        plan_context=plan_context_from_conditions(conditions),
        sizes=conditions.model_facts,
        gpus=tuple(_gpu_facts_from_result(conditions, summary)),
        spec=result.spec,
        streams=_streams_of_result(result),
        summary=None if summary.refused else summary,
        refused=summary.refused,
        client_cpu_pct=summary.client_cpu_pct,
        ceiling_tok_s=_positive_or_none(conditions.ceiling_tok_s),
        ceiling_missing="" if conditions.ceiling_tok_s else conditions.ceiling_basis,
        in_force=conditions.in_force,
        imported=conditions.imported,
        preset_id=conditions.preset_id,
        text_doubt=_reason_to_doubt_text(result),
    )


def _reason_to_doubt_text(result: BenchResult) -> str:
    """Return why the text of a result, or of its server at the start, is no answer; "" if it is
    one."""
    broken = result.summary.text_error
    if broken is None:
        return result.conditions.server_text
    if broken.excerpt:
        return f"{broken.text}; it answered {broken.excerpt}"
    return broken.text


def _positive_or_none(value: float | None) -> float | None:
    if value is None or value <= 0:
        return None
    return value


def _streams_of_result(result: BenchResult) -> int | None:
    spec, known = result.spec, result.conditions.known_workload
    if spec.command or spec.has_schedule:
        return None
    if result.conditions.imported and "concurrency" not in known:
        return None
    return spec.concurrency


def _gpu_facts_from_result(conditions: Conditions, summary: BenchSummary) -> list[GpuFacts]:
    during, power = summary.gpu, {}
    if during is not None:
        power = dict(zip(during.gpus, during.power_w_each, strict=False))
    found = []
    for place, gpu in enumerate(conditions.gpus):
        index = gpu.get("index", place)
        known = {name: gpu[name] for name in _NUMBERS if isinstance(gpu.get(name), int | float)}
        limit = conditions.gpu_settings.get(f"gpu{index}.{POWER_LIMIT.key}")
        if isinstance(limit, int | float):
            known["limit_w"] = limit
        guest = gpu.get("virtualization")
        if isinstance(guest, str):
            known["virtualization"] = guest
        name = str(gpu.get("name") or "")
        found.append(GpuFacts(index=index, name=name, power_w=power.get(index), **known))
    return found

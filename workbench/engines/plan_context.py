"""The input of the rules that check a plan: plan, engine, flag catalog, installed version, and
GPUs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from workbench.engines.base import Engine
from workbench.engines.flag_values import parse_human_int
from workbench.model.findings import PlanChange
from workbench.model.flags import FlagCatalog, FlagValue
from workbench.model.gpu import GpuInfo
from workbench.model.gpu_allotment import (
    NO_ALLOTMENT,
    Allotment,
    visible_gpus_and_first_unknown_word,
)
from workbench.model.host_cores import HostCores
from workbench.model.job_request import VISIBLE_TO_CUDA
from workbench.model.lazy_dataclass import dataclass
from workbench.model.model_shape import ModelShape
from workbench.model.plan import LaunchPlan, ModelFacts


def list_visible_gpus(plan: LaunchPlan, gpus: Sequence[GpuInfo]) -> tuple[GpuInfo, ...]:
    """Return the host's GPUs as CUDA shows them to the plan's server. A GPU that is divided with
    MIG is not shown itself. In its place stand the instances that CUDA_VISIBLE_DEVICES names, or
    the first one if it names none."""
    if not any(gpu.instances for gpu in gpus):
        return tuple(gpus)
    listed = plan.env_texts.get(VISIBLE_TO_CUDA, "")
    named = [name for name in map(str.strip, listed.split(",")) if name.startswith("MIG-")]
    if not named:
        return tuple(
            gpu.mig_instance_as_gpu(gpu.instances[0]) if gpu.instances else gpu for gpu in gpus
        )
    parts = [(gpu, instance) for gpu in gpus for instance in gpu.instances]
    return tuple(
        gpu.mig_instance_as_gpu(part)
        for name in named
        for gpu, part in parts
        if part.uuid.startswith(name)
    )


@dataclass(frozen=True, slots=True)
class PlanContext:
    """A plan together with the engine, catalog, installed version and GPUs for which it is
    checked."""

    plan: LaunchPlan
    catalog: FlagCatalog
    engine: Engine
    gpus: tuple[GpuInfo, ...] = ()
    installed: str | None = None
    allotment: Allotment = NO_ALLOTMENT  # what the host's own environment says of its GPUs
    cores: HostCores | None = None  # of the host, where the server runs on it

    @property
    def engine_version(self) -> str:
        """The installed version of the engine; that of the catalog if it is unknown."""
        return self.installed or self.catalog.version

    @property
    def has_unified_memory(self) -> bool:
        """Whether a GPU shares its memory with the host."""
        return any(gpu.unified_memory for gpu in self.gpus)

    @property
    def smallest_gpu_bytes(self) -> int:
        """The memory of the smallest GPU; 0 if no GPU reports its memory."""
        return min((g.memory_total_bytes for g in self.gpus if g.memory_total_bytes), default=0)

    def changes_to_unset(self, *names: str) -> tuple[PlanChange, ...]:
        """Return the changes that remove those flags of `names` that the plan sets."""
        given = self.plan.flag_values
        return tuple(PlanChange(name, None) for name in names if given.get(name) is not None)

    def effective_flag_value(self, name: str) -> FlagValue | None:
        """Return the value of a flag in the plan. If the plan does not set it, return the catalog's
        default, or None if there is none.
        """
        given = self.plan.flag(name)
        if given is None and name in self.catalog.flags:
            return self.catalog.flags[name].default
        return given

    def effective_flag_number(self, name: str) -> float | None:
        """Return the value of a flag as a finite number, or None if it is not a number. "" as
        `name` stands for a flag that the engine does not have."""
        value = self.effective_flag_value(name)
        if isinstance(value, bool):
            return None
        try:
            if isinstance(value, str) and "." not in value:
                value = parse_human_int(value)
            number = float(value)  # type: ignore[arg-type]  # not a number: TypeError
        except (TypeError, ValueError, OverflowError):
            return None
        return number if math.isfinite(number) else None

    def positive_flag_number(self, name: str, default: float = 0.0) -> float:
        """Return the value of a flag as a number above 0; `default` if it is no such number."""
        number = self.effective_flag_number(name)
        return default if number is None or number <= 0 else number

    def flag_number_in_plan(self, name: str) -> float | None:
        """Return the number that the plan itself gives a flag. None if it does not set the flag."""
        return None if self.plan.flag(name) is None else self.effective_flag_number(name)

    def flag_count_or_one(self, name: str) -> int:
        """Return the value of a flag that sets a number of ranks, replicas or nodes. The result is
        1 if the flag is not set or its value is not a number above 1."""
        return max(1, int(self.positive_flag_number(name, default=1.0)))

    def is_switched_on(self, name: str) -> bool:
        """Return whether a flag is switched on."""
        return self.effective_flag_value(name) is True

    @property
    def enabled_eager_flag(self) -> str:
        """The engine's flag that turns CUDA graphs off, if it is switched on. "" if it is off, or
        if the engine has no such flag."""
        flag = self.engine.eager_flag
        return flag if self.is_switched_on(flag) else ""

    def environment_value(self, name: str) -> str | None:
        """Return the value of an environment variable in the plan, or None if the plan does not set
        it."""
        return self.plan.env_texts.get(name)

    @property
    def model_facts(self) -> ModelFacts:
        """The sizes of the plan's model; all of them unknown if nothing is known of the model."""
        return self.plan.model_facts or ModelFacts(self.plan.model)

    @property
    def weight_bytes(self) -> float | None:
        """The bytes of the model's weights; None if they are unknown."""
        return self.model_facts.weight_bytes

    @property
    def model_shape(self) -> ModelShape:
        """The shape of the model; all of its sizes unknown if nothing is known of it."""
        return self.model_facts.known_shape

    @property
    def computes_all_layers_on_cpu(self) -> bool:
        """Whether the CPU computes all layers of the model."""
        return self.engine.computes_all_layers_on_cpu(self)

    @property
    def node_count(self) -> int:
        """The number of nodes (hosts) that the server spans."""
        return max(self.flag_count_or_one("nnodes"), len({node.rank for node in self.plan.nodes}))

    @property
    def ranks_per_replica(self) -> int:
        """The number of tensor-parallel ranks of all pipeline stages of one replica."""
        return self.flag_count_or_one("tensor-parallel-size") * self.flag_count_or_one(
            "pipeline-parallel-size"
        )

    @property
    def gpus_needed_per_node(self) -> int:
        """The number of GPUs that the plan uses on one node."""
        if self.engine.uses_all_gpus:
            return 1
        ranks = self.ranks_per_replica * self.flag_count_or_one("prefill-context-parallel-size")
        return -(-ranks * self.engine.replicas_per_node(self) // self.node_count)

    @property
    def visible_gpu_count(self) -> int:
        """The number of the host's GPUs that CUDA_VISIBLE_DEVICES leaves visible."""
        listed = self.environment_value(VISIBLE_TO_CUDA)
        if listed is None:
            return len(self.gpus)
        visible, _ = visible_gpus_and_first_unknown_word(listed, self.gpus)
        return len(visible)

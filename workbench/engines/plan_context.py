"""What a plan is judged in: its catalog, the installed version, the GPUs; with typed access to its values."""

from __future__ import annotations

import math
from dataclasses import dataclass

from workbench.engines.base import Engine
from workbench.engines.flag_values import human_int
from workbench.model.flags import FlagCatalog, FlagValue
from workbench.model.gpu import GpuInfo
from workbench.model.plan import LaunchPlan


@dataclass(frozen=True, slots=True)
class Situation:
    plan: LaunchPlan
    catalog: FlagCatalog
    engine: Engine
    gpus: tuple[GpuInfo, ...] = ()
    installed: str | None = None

    def value(self, name: str) -> FlagValue | None:
        """As set, else the catalog's default."""
        given = self.plan.flag(name)
        if given is None and name in self.catalog.flags:
            return self.catalog.flags[name].default
        return given

    def number(self, name: str) -> float | None:
        """None when neither set nor defaulted, or not a number."""
        value = self.value(name)
        if isinstance(value, str):
            try:
                value = human_int(value) if not value.count(".") else float(value)
            except ValueError:
                return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        try:
            number = float(value)
        except OverflowError:
            return None
        return number if math.isfinite(number) else None

    def count(self, name: str) -> int:
        """A number of ranks, replicas or nodes: at least 1."""
        return max(1, int(self.number(name) or 1))

    def on(self, name: str) -> bool:
        return self.value(name) is True

    def env(self, name: str) -> str | None:
        return next((str(e.value) for e in self.plan.env if e.name == name), None)

    @property
    def nodes(self) -> int:
        return max(self.count("nnodes"), len(self.plan.nodes))

    @property
    def gpus_needed(self) -> int:
        """GPUs that the plan uses on one node."""
        if self.engine.name not in ("vllm", "sglang"):
            return 1
        replicas = self.count("data-parallel-size")
        if self.engine.name == "vllm":
            replicas = int(self.number("data-parallel-size-local") or replicas)
        elif self.on("enable-dp-attention"):
            replicas = 1  # attention is replicated inside the tensor-parallel group
        ranks = self.count("tensor-parallel-size") * self.count("pipeline-parallel-size")
        ranks *= self.count("prefill-context-parallel-size")
        return -(-ranks * replicas // self.nodes)

    @property
    def gpus_visible(self) -> int:
        """GPUs of the host that the plan's environment leaves visible."""
        listed = self.env("CUDA_VISIBLE_DEVICES")
        if listed is None:
            return len(self.gpus)
        return min(len(self.gpus), len([d for d in listed.split(",") if d.strip() not in ("", "-1")]))

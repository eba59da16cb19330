"""Chooses the GPUs and the parallelism of a recipe of the vLLM project. Such a recipe says how much
GPU memory a variant needs and which strategies are possible, but leaves the number of GPUs to its
reader."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from workbench.model.counts import count_of
from workbench.model.findings import Level
from workbench.model.gpu import GpuInfo
from workbench.model.lazy_dataclass import dataclass
from workbench.model.untrusted_numbers import is_number
from workbench.model.untrusted_text import as_table
from workbench.recipes.imports.fields import (
    count_field,
    text_field,
    text_list_field,
)
from workbench.recipes.recipe import Given, Notes

GB = 10**9  # the recipes count memory in the manufacturers' gigabytes
_COUNTS = (1, 2, 4, 8, 16, 32, 64)
_EXPERT_PARALLEL = ("single_node_tep", "single_node_dep")
_STRATEGIES = ("single_node_tp", *_EXPERT_PARALLEL)  # in the recipes' order of preference
_GENERATIONS = {"9": "hopper", "10": "blackwell", "12": "blackwell"}  # by compute capability


@dataclass(frozen=True, slots=True)
class Placement:
    """The strategy that a recipe recommends, and the number of GPUs for one variant. `strategy` is
    "" if the recipe has no strategy for a single node. `gpus` is None if the number is unknown."""

    strategy: str
    gpus: int | None
    need_gb: float | None  # GPU memory of the variant

    @property
    def flags(self) -> Mapping[str, int | bool]:
        """The flags of vLLM for this placement."""
        found: dict[str, int | bool] = {}
        is_expert_parallel = self.strategy in _EXPERT_PARALLEL
        least = 1 if is_expert_parallel else 2
        if self.gpus is not None and self.gpus >= least:
            kind = "data" if self.strategy == "single_node_dep" else "tensor"
            found[f"{kind}-parallel-size"] = self.gpus
        if is_expert_parallel:
            found["enable-expert-parallel"] = True
        return found

    @property
    def memory_gib(self) -> float | None:
        """The memory in GiB that each GPU must have; None if the recipe does not say it."""
        if self.gpus is None or self.need_gb is None:
            return None
        return round(self.need_gb * GB / 2**30 / self.gpus, 1)

    def fits_on_gpus(self, gpus: Sequence[GpuInfo]) -> bool:
        """Return whether the variant fits on a host with these GPUs. False if its number of GPUs,
        its memory or that of the GPUs is unknown."""
        size = _least_gpu_memory_gb(gpus)
        if size is None or self.gpus is None or self.need_gb is None:
            return False
        return self.gpus <= len(gpus) and self.gpus * size >= self.need_gb


def choose_placement(
    document: Mapping[str, Any], variant: Mapping[str, Any], given: Given, notes: Notes
) -> Placement:
    """Return the placement of a variant: the number of GPUs that the recipe declares for it, or
    else the smallest that has the memory. If the GPUs of the host are unknown or of different
    sizes, the number may be unknown."""
    strategy = _preferred_strategy(document, given.gpus, notes)
    need = _number_field(variant, "vram_minimum_gb")
    declared = _stated_gpu_count(document, variant, strategy, given.gpus)
    least = _least_gpu_count(document, strategy, given.gpus)
    if declared is not None:
        return Placement(strategy, max(declared, least), need)
    size = _least_gpu_memory_gb(given.gpus)
    if size is None or need is None:
        return Placement(strategy, least if least > 1 and need is None else None, need)
    enough = math.ceil(need / size)
    return Placement(strategy, next((n for n in _COUNTS if n >= max(enough, least)), None), need)


def add_memory_fit_note(
    document: Mapping[str, Any],
    variants: Mapping[str, Any],
    chosen: str,
    placement: Placement,
    given: Given,
    notes: Notes,
) -> None:
    """Add to `notes` whether the chosen variant fits on the GPUs of the host, and if it does not,
    which other variants do."""
    need, gpus = placement.need_gb, placement.gpus
    size = _least_gpu_memory_gb(given.gpus)
    if need is None:
        notes.add(Level.INFO, "memory", "the recipe does not say how much GPU memory it needs")
        return
    if size is None or given.gpus is None:
        unknown = "the GPUs of the host are not known" if given.gpus is None else "no GPU is known"
        text = f"the variant {chosen} needs {need:g} GB of GPU memory, and {unknown}"
        if gpus is not None:
            text += f"; the recipe declares {gpus} GPUs"
        fix = "import it for a host with GPUs (--host NAME), or set tensor-parallel-size"
        notes.add(Level.WARN, "memory", text, fix=fix)
        return
    host = f"{len(given.gpus)} x {size:.0f} GB"
    text = f"the variant {chosen} needs {need:g} GB of GPU memory"
    if placement.fits_on_gpus(given.gpus):
        notes.add(Level.INFO, "memory", f"{text}: {gpus} of {host}")
        return
    if gpus is not None:
        text += f" on {gpus} GPUs"
    text += f"; this host has {host}"
    others = _describe_other_fitting_variants(document, variants, chosen, given.gpus)
    fix = f"take {' or '.join(others)}" if others else "no variant of the recipe fits on this host"
    notes.add(Level.WARN, "does-not-fit", text, fix=fix)


def _describe_other_fitting_variants(
    document: Mapping[str, Any],
    variants: Mapping[str, Any],
    chosen: str,
    gpus: tuple[GpuInfo, ...],
) -> Sequence[str]:
    """Return each variant besides `chosen` that fits on these GPUs, as text with the option that
    reads it, its memory and its number of GPUs."""
    found = []
    for name, variant in variants.items():
        if name == chosen or not isinstance(variant, Mapping):
            continue
        other = choose_placement(document, variant, Given(gpus=gpus), Notes())
        count = other.gpus
        if count is not None and other.fits_on_gpus(gpus):
            found.append(f"--entry {name} ({other.need_gb:g} GB on {count_of(count, 'GPU')})")
    return found


def collect_override_arguments_and_environment(
    document: Mapping[str, Any],
    variant: Mapping[str, Any],
    strategy: str,
    given: Given,
    notes: Notes,
) -> tuple[list[str], dict[str, Any]]:
    """Return (arguments, environment) that the recipe adds for its strategy and for the generation
    of the host's GPUs. A strategy's own settings for the GPUs replace those of the recipe and of
    the variant. All other overrides are added to `notes`."""
    keys = _hardware_override_keys(given.gpus)
    by_strategy = as_table(document.get("strategy_overrides"))
    of_strategy = as_table(by_strategy.get(strategy))
    own_hardware = as_table(of_strategy.get("hardware_overrides"))
    chosen = [(f"strategy_overrides for {strategy}", of_strategy)]
    by_hardware = [("the strategy's hardware_overrides", own_hardware)]
    if not own_hardware.keys() & set(keys):
        by_hardware = [
            (f"hardware_overrides of {owner}", as_table(table.get("hardware_overrides")))
            for owner, table in (("the recipe", document), ("the variant", variant))
        ]
    for where, hardware in by_hardware:
        for key in [key for key in keys if key in hardware][:1]:
            chosen.append((f"{where} for {key}", hardware[key]))
    arguments: list[str] = []
    env: dict[str, Any] = {}
    for where, table in chosen:
        for name, value in as_table(table).items():
            if name == "extra_args":
                arguments += text_list_field(table, name, notes)
            elif name in ("extra_env", "env") and isinstance(value, Mapping):
                env |= value
            elif name not in ("tp", "hardware_overrides"):
                notes.add_not_understood_warning(f"{where}: {name}", value)
    _add_other_override_notes(document, variant, strategy, keys, notes)
    return arguments, env


def _add_other_override_notes(
    document: Mapping[str, Any],
    variant: Mapping[str, Any],
    strategy: str,
    keys: Sequence[str],
    notes: Notes,
) -> None:
    for name in as_table(document.get("strategy_overrides")):
        if name != strategy:
            why = f"the preset uses the strategy {strategy or 'of no recipe'}"
            notes.add_left_out_note(f"strategy_overrides for {name}", why)
    for owner, table in (("the recipe", document), ("the variant", variant)):
        for key in as_table(table.get("hardware_overrides")):
            if key not in keys:
                text = f"hardware_overrides of {owner} for {key}"
                notes.add_left_out_note(
                    text, "the host has no such GPU" if keys else "no GPU is known"
                )
    listed = text_list_field(document, "compatible_strategies", notes)
    others = [name for name in listed if name != strategy]
    if others:
        notes.add_left_out_note(
            f"the strategies {', '.join(others)}", f"the preset uses {strategy}"
        )


def _preferred_strategy(
    document: Mapping[str, Any], gpus: Sequence[GpuInfo] | None, notes: Notes
) -> str:
    """Return the strategy that the recipe prefers on one node; "" if it has none."""
    listed = text_list_field(document, "compatible_strategies", notes)
    preferred = text_field(document, "default_strategy", notes)
    gates = as_table(document.get("strategy_hardware"))
    keys = _hardware_override_keys(gpus)
    for name in dict.fromkeys((preferred, *_STRATEGIES)):
        if name not in _STRATEGIES:
            continue
        gate = _first_value(as_table(gates.get(name)), keys)
        if gate == "unsupported":
            continue
        if gate == "supported" or name in listed:
            return name
    return ""


def _stated_gpu_count(
    document: Mapping[str, Any],
    variant: Mapping[str, Any],
    strategy: str,
    gpus: Sequence[GpuInfo] | None,
) -> int | None:
    """Return the number of GPUs that the recipe states for a variant, else for its strategy. None
    if it states none, and for a strategy that uses all GPUs of the node."""
    if strategy in _EXPERT_PARALLEL:  # they use all GPUs of the node
        return None
    by_strategy = as_table(as_table(document.get("strategy_overrides")).get(strategy))
    for value in (variant.get("tp"), by_strategy.get("tp")):
        found = (
            _first_value(value, _hardware_override_keys(gpus))
            if isinstance(value, Mapping)
            else value
        )
        if (number := count_field({"tp": found}, "tp")) is not None:
            return number
    return None


def _least_gpu_count(
    document: Mapping[str, Any], strategy: str, gpus: Sequence[GpuInfo] | None
) -> int:
    """Return the least number of GPUs with which the strategy works for this model, by the recipe's
    strategy_min_gpus; at least 2 for expert parallelism, else 1."""
    stated = document.get("strategy_min_gpus")
    table = as_table(stated)
    values = [stated, table.get(strategy)]
    for key in _hardware_override_keys(gpus):
        of_hardware = table.get(key)
        values += [of_hardware, as_table(of_hardware).get(strategy)]
    counts = [count_field({"least": value}, "least") or 1 for value in values]
    return max(2 if strategy in _EXPERT_PARALLEL else 1, *counts)


def _hardware_override_keys(gpus: Sequence[GpuInfo] | None) -> list[str]:
    """Return the names that the recipes have for the host's GPUs, the most exact first; [] if no
    GPU is known."""
    if not gpus:
        return []
    words = re.findall(r"[a-z]+\d+[a-z]*|[a-z]+|\d+", gpus[0].name.lower())
    major = (gpus[0].compute_capability or "").partition(".")[0]
    generation = _GENERATIONS.get(major)
    exact = [word for word in words if re.fullmatch(r"[a-z]+\d+", word)]
    families = [f"dgx_spark_{word}" for word in exact if word == "gb10"]
    return [*families, *exact, *([generation] if generation else []), "nvidia", "default"]


def _first_value(table: Any, keys: Sequence[str]) -> Any:
    """Return the value of the first of `keys` that the table has; None if it has none of them. An
    empty list of keys, for unknown GPUs, stands for "default"."""
    found = as_table(table)
    return next((found[key] for key in (keys or ["default"]) if key in found), None)


def _least_gpu_memory_gb(gpus: Sequence[GpuInfo] | None) -> float | None:
    """Return the memory in GB of the GPU that has least; None if that of no GPU is known."""
    sizes = [gpu.memory_total_bytes for gpu in gpus or () if gpu.memory_total_bytes]
    return min(sizes) / GB if sizes else None


def _number_field(table: Mapping[str, Any], name: str) -> float | None:
    """Return the field `name` if it is a number above 0 and below a million, otherwise None."""
    value = table.get(name)
    if not is_number(value):
        return None
    return float(value) if 0 < value < 10**6 else None

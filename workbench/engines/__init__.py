"""What differs per engine: command lines, flag catalogs as data, validation, memory estimates, log and metric names.

engine = engines.get("vllm")
catalog = engine.catalog("0.33.0")
plan = engines.plan_from_preset(preset, {"model_dir": "/models"})
plan = engines.apply_assignments(plan, catalog, ["max-num-seqs=512"])
findings = engines.validate(plan, catalog)
command = engine.command(plan)
"""

from __future__ import annotations

from workbench.engines.base import METRICS, Engine
from workbench.engines.catalog import (
    canonical_name,
    lookup,
    nearest_name,
    same_release,
    satisfies,
    search,
    search_env,
    version_key,
)
from workbench.engines.flag_values import format_value, parse_value
from workbench.engines.memory_estimate import MemoryFit, fit
from workbench.engines.plans import (
    EXECUTABLE,
    apply_assignments,
    plan_from_preset,
    rows,
    set_flag,
    shown_finding,
    with_executable,
)
from workbench.engines.registry import get, names
from workbench.engines.validate import check_value, validate

__all__ = [
    "EXECUTABLE",
    "METRICS",
    "Engine",
    "MemoryFit",
    "apply_assignments",
    "canonical_name",
    "check_value",
    "fit",
    "format_value",
    "get",
    "lookup",
    "names",
    "nearest_name",
    "parse_value",
    "plan_from_preset",
    "rows",
    "same_release",
    "satisfies",
    "search",
    "search_env",
    "set_flag",
    "shown_finding",
    "validate",
    "version_key",
    "with_executable",
]

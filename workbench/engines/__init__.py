"""Inference engines: command lines, flag catalogs, validation, memory estimates, names of log lines
and metrics.

base.py             the interface of an engine; vllm.py, sglang.py, tabbyapi.py and llamacpp.py implement it
command_line.py     parse the command line of an engine into a plan
answer_settings.py  which settings of an engine change its answers
reported_settings.py  where a running engine reports the values of its settings: log, metrics page, JSON answers
registry.py         find an engine by its name
catalog.py          flags and environment variables of each engine version (data in catalogs/): lookup and search
catalog_files.py    the directory of this data; own_flags.py makes a catalog from the flags that an engine prints
tunable_flags.py    what a tune may try with the flags of an engine
flag_groups.py      groups of flags and the most used flags (data in catalogs/)
flag_values.py      parse, format and check values of flags
host_entries.py     add the settings of a host in hosts.toml to a plan
cluster.py          spread a plan over the nodes of a cluster; ray.py has the commands of Ray
plans.py            make plans from presets, change plans; the rows of a flag editor
run_as.py           the rows of a flag editor for the launcher (process, systemd, docker, ...) and its options
containers.py       a server in a container: image, command line, mounted paths and GPUs
validate.py         check a plan flag by flag; rules.py has the checks of several flags, plan_context.py their input;
                    trap_rules.py has those of published traps, tuning_rules.py those of waste and
                    risk
memory_locks.py     GPUs on which a lock of the memory clock costs throughput
memory_estimate.py  whether a plan fits in GPU memory; kv_size.py has the size of the KV cache
fit_table.py        the quantizations, numbers of GPUs and context lengths with which a model fits in GPU memory
model_facts.py      the sizes of a plan's model: model_config.py (config.json), gguf.py and weight_files.py (headers of
                    weight files), weight_bits.py (bits per weight of each quantization)
roofline.py         speed limits set by the hardware; gpu_table.py has data of GPU types, speculation.py draft tokens
result_limits.py    compare a result with its speed limit and with a published speed (references.py, references.json)
preset_trust.py     the parts of a preset that may run foreign code

engine = engines.get_engine("vllm")
catalog = engine.catalog("0.33.0")
plan = engines.plan_from_preset(preset, {"model_dir": "/models"})
plan = engines.apply_assignments(plan, catalog, ["max-num-seqs=512"])
findings = engines.validate_plan(plan, catalog)
command = engine.command(plan)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workbench.engines.base import METRICS, Engine
    from workbench.engines.catalog import (
        canonical_flag_name,
        look_up_flag,
        most_similar_flag_name,
        parse_version_numbers,
        search_flags,
        search_variables,
        version_satisfies,
    )
    from workbench.engines.flag_groups import flag_group_names, sort_key_of_flag
    from workbench.engines.flag_values import format_flag_value, parse_flag_value
    from workbench.engines.memory_estimate import MemoryFit, estimate_memory_or_reason
    from workbench.engines.plans import (
        EXECUTABLE,
        NAME_PROGRAM_STEP,
        apply_assignments,
        list_changed_flags,
        make_flag_rows,
        most_severe_finding_text_and_level,
        plan_from_preset,
        set_executable,
        set_flag,
    )
    from workbench.engines.registry import engine_names, find_engine, get_engine, short_engine_name
    from workbench.engines.run_as import RUN_AS, is_launcher_row, make_launcher_rows
    from workbench.engines.validate import check_flag_value, validate_plan

__all__ = [
    "EXECUTABLE",
    "METRICS",
    "NAME_PROGRAM_STEP",
    "RUN_AS",
    "Engine",
    "MemoryFit",
    "apply_assignments",
    "canonical_flag_name",
    "check_flag_value",
    "engine_names",
    "estimate_memory_or_reason",
    "find_engine",
    "flag_group_names",
    "format_flag_value",
    "get_engine",
    "is_launcher_row",
    "list_changed_flags",
    "look_up_flag",
    "make_flag_rows",
    "make_launcher_rows",
    "most_severe_finding_text_and_level",
    "most_similar_flag_name",
    "parse_flag_value",
    "parse_version_numbers",
    "plan_from_preset",
    "search_flags",
    "search_variables",
    "set_executable",
    "set_flag",
    "short_engine_name",
    "sort_key_of_flag",
    "validate_plan",
    "version_satisfies",
]

# Module -> the names above that it has. A module is imported when one of its names is first used:
# all of them take 1 MiB, which a screen without a server does not need.
_NAMES_OF_MODULES = {
    "base": "METRICS Engine",
    "catalog": "canonical_flag_name look_up_flag most_similar_flag_name "
    "search_variables search_flags parse_version_numbers version_satisfies",
    "flag_groups": "flag_group_names sort_key_of_flag",
    "flag_values": "format_flag_value parse_flag_value",
    "memory_estimate": "MemoryFit estimate_memory_or_reason",
    "plans": "EXECUTABLE NAME_PROGRAM_STEP apply_assignments make_flag_rows list_changed_flags "
    "plan_from_preset set_flag most_severe_finding_text_and_level set_executable",
    "registry": "engine_names find_engine get_engine short_engine_name",
    "run_as": "RUN_AS is_launcher_row make_launcher_rows",
    "validate": "check_flag_value validate_plan",
}

if not TYPE_CHECKING:

    def __getattr__(name):
        """Return the function or class `name` of a module of this package. Raise AttributeError if
        this file does not list it."""
        from importlib import import_module

        for module, names in _NAMES_OF_MODULES.items():
            if name in names.split():
                globals()[name] = getattr(import_module(f"{__name__}.{module}"), name)
                return globals()[name]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

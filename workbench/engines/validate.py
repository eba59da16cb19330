"""Validation of a plan: each flag and variable is checked against the catalog, then rules check
their combinations.

A finding is an ERROR only if the engine itself would reject the plan at start. A flag that the
catalog does not contain is an ERROR only if the catalog describes the installed release, because
another release may have that flag.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import starmap

from workbench.engines import registry
from workbench.engines.catalog import (
    RemovedSetting,
    load_removed_settings,
    look_up_flag,
    most_similar_flag_name,
    most_similar_variable_name,
    parse_version_numbers,
)
from workbench.engines.flag_values import (
    find_invalid_choice,
    find_range_problem,
    find_type_problem,
    find_unlisted_value,
    format_argument,
    parse_json_value,
)
from workbench.engines.plan_context import PlanContext, list_visible_gpus
from workbench.engines.plans import VARIABLE
from workbench.engines.rules import apply_all_rules
from workbench.model.errors import InputError, suggestion_or_next_step
from workbench.model.findings import Finding, Level, PlanChange, by_severity
from workbench.model.flags import EnvSpec, FlagCatalog, FlagKind, FlagSetting, FlagSpec, FlagValue
from workbench.model.gpu import GpuInfo
from workbench.model.gpu_allotment import NO_ALLOTMENT, Allotment
from workbench.model.plan import LaunchPlan, ModelFacts
from workbench.model.server_run import format_run_and_start_time
from workbench.model.untrusted_text import as_table

_E4M3 = "fp8_e4m3"  # what "fp8" means for the cache of vLLM; each engine accepts this word
_SWITCH_WORDS = ("0", "1", "true", "false", "on", "off")  # of a variable
_NUMBERS: Mapping[str, Callable[[str], object]] = {"int": int, "float": float}


def validate_plan(
    plan: LaunchPlan,
    catalog: FlagCatalog,
    installed_version: str | None = None,
    gpus: Sequence[GpuInfo] = (),
    allotment: Allotment = NO_ALLOTMENT,
) -> tuple[Finding, ...]:
    """Return the findings about a plan that has not been started, most severe first.
    `installed_version` is None if it is unknown. `gpus` are the GPUs of the host; without them, no
    rule about GPUs applies. `allotment` has the GPUs that the host's environment or a job scheduler
    gives to the server."""
    engine, shown = registry.get_engine(plan.engine), list_visible_gpus(plan, gpus)
    context = PlanContext(plan, catalog, engine, shown, installed_version, allotment)
    found: list[Finding] = [*_check_plan_values(context)]
    if gpus and not shown:
        text = "CUDA_VISIBLE_DEVICES names a MIG instance that this host does not have"
        fix = "`workbench gpu status` lists the instances"
        found.append(Finding(Level.ERROR, "gpus.no-instance", text, "CUDA_VISIBLE_DEVICES", fix))
    flags, variables = [*plan.flags], [*plan.env]
    for node in plan.nodes:
        variables += starmap(FlagSetting, node.env.items())
        if not node.role:  # Ray has options of its own
            flags += starmap(FlagSetting, node.flags.items())
    for setting in flags:
        found += _check_flag(context, setting)
    found += _report_repeated_flags(context)
    for setting in variables:
        found += _check_variable(context, setting)
    found += apply_all_rules(context)
    once: dict[tuple[str, str | None, str], Finding] = {}
    for finding in found:
        once.setdefault((finding.code, finding.flag, finding.text), finding)
    return by_severity(once.values())


def check_flag_value(
    spec: FlagSpec, value: FlagValue, is_catalog_exact: bool = True, fp8_cache: str = _E4M3
) -> Finding | None:
    """Return the finding about one value of a flag, or None if the value is valid.
    `is_catalog_exact` is True if the catalog describes the installed release; otherwise a value
    that the catalog lacks is only a warning. `fp8_cache` is the engine's word for a KV cache with 8
    bits per value, for the proposed fix."""
    unset = (PlanChange(spec.name, None),)
    if problem := find_type_problem(spec, value):
        code = "flag.type"
        if isinstance(value, list | tuple) and not spec.repeatable:
            code = "flag.repeated"
        elif spec.kind == FlagKind.JSON:
            code = "flag.json"
        text = f"{spec.name} {problem}"
        return Finding(Level.ERROR, code, text, spec.name, _default_value_text(spec), changes=unset)
    if (wrong := find_invalid_choice(spec, value)) is not None:
        return _make_invalid_choice_finding(spec, value, wrong, is_catalog_exact, fp8_cache)
    if (wrong := find_unlisted_value(spec, value)) is not None:
        return _make_unlisted_value_finding(spec, wrong)
    if problem := find_range_problem(spec, value):
        text = f"{spec.name} {problem}"
        return Finding(
            Level.ERROR, "flag.range", text, spec.name, _default_value_text(spec), changes=unset
        )
    if spec.json_fields and (unknown := _find_unknown_json_key(spec, value)):
        text = f"the value of {spec.name} has the unknown key {unknown!r}"
        near = next(iter(get_close_matches(unknown, spec.json_fields, n=1)), None)
        fix = suggestion_or_next_step(near, f"known: {_join_some_names(spec.json_fields)}")
        return Finding(_level_by_certainty(is_catalog_exact), "flag.json-key", text, spec.name, fix)
    return None


def _make_invalid_choice_finding(
    spec: FlagSpec, value: FlagValue, invalid_word: str, is_catalog_exact: bool, fp8_cache: str
) -> Finding:
    """Return the finding about `invalid_word`, a word in `value` that is none of the flag's
    choices."""
    near = _most_similar_choice(spec, invalid_word, spec.choices)
    fix = suggestion_or_next_step(near, f"one of {_join_some_names(spec.choices)}")
    # no version of vLLM or SGLang accepts it
    if spec.name == "dtype" and re.match(r"fp?(loat)?8", invalid_word):
        is_catalog_exact, near = True, None
        fix = f"set quantization to fp8 for weights, kv-cache-dtype to {fp8_cache} for the cache"
    only_case = invalid_word.lower() in map(str.lower, spec.choices)
    level = _level_by_certainty(not invalid_word or (is_catalog_exact and not only_case))
    text = f"{spec.name} is {invalid_word!r}, which is not one of the choices of this flag"
    change = PlanChange(spec.name, near if isinstance(value, str) else None)
    return Finding(level, "flag.choice", text, spec.name, fix, changes=(change,))


def _make_unlisted_value_finding(spec: FlagSpec, value: str) -> Finding:
    """Return the finding about the word `value`, which is none of the flag's known words."""
    near = _most_similar_choice(spec, value, spec.words)
    fix = suggestion_or_next_step(near, f"one of {_join_some_names(spec.words)}")
    text = f"{spec.name} is {value!r}, which is no value of this flag that Workbench knows"
    level = Level.ERROR
    if value:
        level, text = Level.WARN, f"{text}; a newer engine or a plugin may have it"
    change = PlanChange(spec.name, near)
    return Finding(level, "flag.word", text, spec.name, fix, changes=(change,))


def _level_by_certainty(certain: bool) -> Level:
    """Return ERROR if the engine would certainly refuse the plan (`certain`), otherwise WARN."""
    return Level.ERROR if certain else Level.WARN


def _most_similar_choice(spec: FlagSpec, word: str, choices: Sequence[str]) -> str | None:
    """Return the one of `choices` that is most similar to the word that the user wrote; None if
    none is similar. For a flag of number formats, such as dtype, only another spelling of the same
    name counts."""
    if word.lower() == "fp8" and _E4M3 in spec.choices:
        return _E4M3
    near = get_close_matches(word, choices, n=1)
    if "dtype" in spec.name or spec.name == "quantization":
        same = word.lower().replace("-", "_")
        near = [choice for choice in choices if choice.lower().replace("-", "_") == same]
    return next(iter(near), None)


def _choose_fp8_cache_word(context: PlanContext) -> str:
    """Return the engine's word for a KV cache with 8 bits per value: "fp8" if its flag accepts
    that, otherwise "fp8_e4m3"."""
    spec = context.catalog.flags.get("kv-cache-dtype")
    if spec is not None and "fp8" in (*spec.choices, *spec.words):
        return "fp8"
    return _E4M3


def _check_plan_values(context: PlanContext) -> Iterator[Finding]:
    plan, catalog = context.plan, context.catalog
    if not plan.model:
        yield Finding(
            Level.ERROR,
            "model.missing",
            "the plan sets no model",
            fix="set model to a hub id or a path",
        )
    for string in _texts_with_preset_variables(plan):
        if match := VARIABLE.search(string):
            text = f"variable {match[1]} has no value"
            yield Finding(Level.ERROR, "variable.missing", text, fix=f"--var {match[1]}=…")
    yield from _report_remembered_variables(context)
    yield from _report_model_sizes(plan.model_facts)
    if context.installed and not _is_catalog_of_installed_release(context):
        text = (
            f"the plan was checked against the flags of {context.engine.title} "
            f"{catalog.version}, but version "
        )
        yield Finding(Level.INFO, "version.catalog", f"{text}{context.installed} is installed")
    for name in ("host", "port"):
        value = plan.flag(name)
        if isinstance(value, list | dict | bool):
            yield Finding(
                Level.ERROR,
                "flag.type",
                f"{name} is {format_argument(value)!r}, expected one value",
                name,
            )


def _report_remembered_variables(context: PlanContext) -> Iterator[Finding]:
    """Report each variable of the preset whose value was taken from an earlier run. Also report
    each variable that has the preset's default although an earlier run used another value."""
    plan = context.plan
    for name, source in plan.sources.items():
        value = plan.variables.get(name)
        if source.run_id is None or value is None or not plan.contains_fillable_text(value):
            continue
        flag = None
        if value == plan.model:
            flag = context.engine.model_flags[0]
        earlier = format_run_and_start_time(source.run_id)
        if source.kind == "remembered":
            text, code = f"{name} {value}: remembered from {earlier}", "variable.remembered"
            yield Finding(Level.HINT, code, text, flag, f"use --var {name}=… to set another value")
        else:
            text = f"{name} {value} is the preset's default; {earlier} used {source.instead}"
            yield Finding(
                Level.HINT, "variable.default", text, flag, f"--var {name}={source.instead}"
            )


def _report_model_sizes(facts: ModelFacts | None) -> Iterator[Finding]:
    """Report sizes of the model that are unknown, and sizes that were read from the model's files
    and not from the preset."""
    if facts is None:
        return
    if facts.missing:
        without = "no speed limit"
        if not facts.weight_bytes:
            without = f"no memory estimate and {without}"
        yield Finding(Level.HINT, "model.facts", f"{without}: {facts.missing}")
    elif facts.weight_bytes and not facts.source.startswith("preset "):
        source = facts.source
        if not source.startswith("the "):
            source = f"its {source}"
        megabytes = facts.weight_bytes / 1e6
        size = f"{megabytes:.1f} MB"
        if megabytes >= 50:
            size = f"{megabytes / 1e3:.1f} GB"
        text = f"sizes of the model are from {source}: {size} of weights"
        yield Finding(Level.INFO, "model.facts", text)


def _check_flag(context: PlanContext, setting: FlagSetting) -> Iterator[Finding]:
    match = look_up_flag(context.catalog, setting.name)
    if match.spec is None:
        yield _make_unknown_flag_finding(context, setting.name)
        return
    spec, value = match.spec, match.invert_value_if_negated(setting.value)
    certain, fp8_cache = _is_catalog_of_installed_release(context), _choose_fp8_cache_word(context)
    open_variable = isinstance(value, str) and VARIABLE.search(value)  # has a finding of its own
    if not open_variable and (finding := check_flag_value(spec, value, certain, fp8_cache)):
        yield finding
    if spec.deprecated:
        yield _make_deprecated_flag_finding(context, spec.name)
    has_word_for_off = spec.negation or spec.value_takes_bool_word
    if value is False and spec.kind == FlagKind.BOOL and not has_word_for_off:
        text = f"{spec.name} cannot be switched off on the command line, so the command omits it"
        yield Finding(Level.INFO, "flag.no-negation", text, spec.name, "unset it")
    if context.engine.argparse_values and spec.nargs in ("+", "*"):
        yield from _report_words_with_dashes(spec.name, value)


def _make_deprecated_flag_finding(context: PlanContext, name: str) -> Finding:
    text = f"{name} is deprecated in {context.engine.title} {context.catalog.version}"
    entry = load_removed_settings(context.engine.name, "flags").get(name)
    if entry is None:
        return Finding(Level.HINT, "flag.deprecated", text, name)
    changes = _propose_replacement(context, name, entry)
    return Finding(Level.HINT, "flag.deprecated", text, name, entry.fix, changes=changes)


def _report_words_with_dashes(name: str, value: FlagValue) -> Iterator[Finding]:
    """Report a value of several words, one of which argparse would read as a flag."""
    if not isinstance(value, list | tuple) or len(value) < 2:
        return
    words = map(format_argument, value)
    dashed = [w for w in words if w.startswith("-") and not re.fullmatch(r"-\d+", w)]
    if dashed:
        text = f"{name}: {dashed[0]!r} in a list would be read as a flag"
        fix = "use values that do not begin with a dash"
        yield Finding(Level.ERROR, "flag.dash", text, name, fix)


def _make_unknown_flag_finding(context: PlanContext, name: str) -> Finding:
    level = _level_by_certainty(_is_catalog_of_installed_release(context))
    title, version = context.engine.title, context.catalog.version
    if entry := load_removed_settings(context.engine.name, "flags").get(name):
        text = f"{title} {version} does not have {name}: {entry.reason}{_format_removal_versions(entry)}"
        return Finding(
            level,
            "flag.removed",
            text,
            name,
            entry.fix,
            changes=_propose_replacement(context, name, entry),
        )
    near = most_similar_flag_name(context.catalog, name)
    fix = suggestion_or_next_step(near, "unset it, or search for its new name")
    changes: tuple[PlanChange, ...] = (PlanChange(name, None),)
    if near:
        changes = _propose_flag_rename(context, name, near)
    text = f"{title} {version} does not have a flag {name}"
    return Finding(level, "flag.unknown", text, name, fix, changes=changes)


def _propose_flag_rename(context: PlanContext, name: str, new: str) -> tuple[PlanChange, ...]:
    """Return the changes that remove the flag `name` and set the flag `new` to the same value. The
    second change is left out if `new` does not accept the value or is set already."""
    value, spec = context.plan.flag(name), context.catalog.flags.get(new)
    if value is None or context.plan.flag(new) is not None:
        return (PlanChange(name, None),)
    if spec is not None and find_type_problem(spec, value) is not None:
        return (PlanChange(name, None),)
    return PlanChange(name, None), PlanChange(new, value)


def _propose_replacement(
    context: PlanContext, name: str, entry: RemovedSetting
) -> tuple[PlanChange, ...]:
    """Return the changes that replace a removed flag; () if the user must decide what replaces the
    flag."""
    if not entry.renamed:
        return (PlanChange(name, None),) if entry.fix.startswith("unset it") else ()
    flag, _, key = entry.renamed.partition(".")
    if not key:
        return _propose_flag_rename(context, name, flag)
    joined = dict(as_table(context.plan.flag(flag)))
    unset = []
    for other, removed in load_removed_settings(context.engine.name, "flags").items():
        new, value = removed.renamed.partition(".")[2], context.plan.flag(other)
        if new and value is not None:
            joined[new] = value
            unset.append(PlanChange(other, None))
    return (*unset, PlanChange(flag, joined))


def _format_removal_versions(entry: RemovedSetting) -> str:
    if not entry.since:
        return ""
    again = f", accepted again since {entry.until}" if entry.until else ""
    return f" (rejected since {entry.since}{again})"


def _is_catalog_of_installed_release(context: PlanContext) -> bool:
    return context.engine.is_same_release(context.installed, context.catalog.version)


def _report_repeated_flags(context: PlanContext) -> Iterator[Finding]:
    seen: set[str] = set()
    for setting in context.plan.flags:
        name = look_up_flag(context.catalog, setting.name).name
        spec = context.catalog.flags.get(name)
        # of two lists the last one counts
        adds_up = spec is not None and spec.repeatable and spec.nargs is None
        if name in seen and not adds_up:
            yield Finding(
                Level.WARN,
                "flag.repeated",
                f"{name} is set twice; the last value is used",
                name,
                "remove one of the two values",
                changes=(PlanChange(name, None), PlanChange(name, setting.value)),
            )
        seen.add(name)


def _check_variable(context: PlanContext, setting: FlagSetting) -> Iterator[Finding]:
    name, value, prefix = setting.name, str(setting.value), context.engine.env_prefix
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        yield Finding(
            Level.ERROR,
            "env.name",
            f"{name!r} is not a valid name for an environment variable",
            name,
        )
    elif entry := _find_removal_of_variable(context, name):
        text = f"{name} has no effect: {entry.reason}"
        unset = (PlanChange(name, None, env=True),)
        yield Finding(Level.WARN, "env.removed", text, name, entry.fix, changes=unset)
    elif spec := context.catalog.env.get(name):
        if problem := _expected_value_if_wrong(spec, value):
            yield Finding(Level.WARN, "env.value", f"{name} is {value!r}, expected {problem}", name)
    elif (
        context.catalog.env
        and prefix
        and name.startswith(prefix)
        and name not in context.engine.more_env
    ):
        yield _make_unknown_variable_finding(context, name, value)


def _make_unknown_variable_finding(context: PlanContext, name: str, value: str) -> Finding:
    strict = context.is_switched_on(
        "fail-on-environ-validation"
    ) and _is_catalog_of_installed_release(context)
    text = f"{context.engine.title} {context.catalog.version} does not read the variable {name}"
    changes = [PlanChange(name, None, env=True)]
    fix = "unset it"
    if near := most_similar_variable_name(context.catalog, name):
        fix = f"did you mean {near}?"
        if context.environment_value(near) is None:
            changes.append(PlanChange(near, value, env=True))
    return Finding(
        _level_by_certainty(strict), "env.unknown", text, name, fix, changes=tuple(changes)
    )


def _find_removal_of_variable(context: PlanContext, name: str) -> RemovedSetting | None:
    """Return the entry of the catalog of removed variables for `name`. None if it has no such
    entry, or if the installed version still reads the variable."""
    entry = load_removed_settings(context.engine.name, "env").get(name)
    if entry is None or not entry.since:
        return entry
    still_read = parse_version_numbers(context.engine_version) < parse_version_numbers(entry.since)
    return None if still_read else entry


def _expected_value_if_wrong(spec: EnvSpec, value: str) -> str | None:
    """Return what the variable expects, such as "0 or 1", if `value` is something else. None if
    `value` is valid."""
    if spec.choices:
        choices = map(str.lower, spec.choices)
        return None if value.lower() in choices else f"one of {_join_some_names(spec.choices)}"
    if spec.type == "bool":
        return None if value.lower() in _SWITCH_WORDS else "0 or 1"
    if number := _NUMBERS.get(spec.type):
        try:
            number(value)
        except ValueError:
            return "a number"
    return None


def _find_unknown_json_key(spec: FlagSpec, value: FlagValue) -> str | None:
    """Return the first key of a JSON object that the flag does not have. None if all keys are
    known, or if the value is no JSON object."""
    if isinstance(value, str):
        try:
            value = parse_json_value(value)
        except InputError:
            return None
    if not isinstance(value, dict):
        return None
    return next((key for key in value if key not in spec.json_fields), None)


def _default_value_text(spec: FlagSpec) -> str | None:
    if spec.default not in (None, "", [], {}):
        return f"its default is {format_argument(spec.default)}"
    if spec.default_note:
        return f"its default: {spec.default_note}"
    return None


def _join_some_names(names: Sequence[str], max_count: int = 8) -> str:
    listed = ", ".join(names[:max_count])
    if len(names) > max_count:
        listed += f", … ({len(names)} in all)"
    return listed


def _texts_with_preset_variables(plan: LaunchPlan) -> Iterator[str]:
    """Yield every text of a plan that may contain a `${name}` of its preset: the model, the working
    directory, the words of the program, and all strings in the values of flags and variables."""

    def strings_in_value(value: FlagValue) -> Iterable[str]:
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            for v in value.values():
                yield from strings_in_value(v)
        elif isinstance(value, list | tuple):
            for v in value:
                yield from strings_in_value(v)

    yield from (plan.model, plan.workdir or "", *plan.executable)
    for setting in (*plan.flags, *plan.env):
        yield from strings_in_value(setting.value)

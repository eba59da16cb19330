"""Validation of a plan: each flag and variable is checked against the catalog, then rules check
their combinations.

A finding is an ERROR only if the engine itself would reject the plan at start. A flag that the
catalog does not contain is an ERROR only if the catalog describes the installed release, because
another release may have that flag.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches

from workbench.engines import registry
from workbench.engines.catalog import (
    Removed,
    lookup,
    nearest_env,
    nearest_name,
    removed,
    version_key,
)
from workbench.engines.flag_values import (
    choice_problem,
    json_value,
    range_problem,
    type_problem,
    unknown_word,
    word,
)
from workbench.engines.plan_context import Situation, visible_gpus
from workbench.engines.plans import VARIABLE
from workbench.engines.rules import cross_checks
from workbench.model.errors import InputError
from workbench.model.findings import Finding, Level, PlanChange, by_severity
from workbench.model.flags import EnvSpec, FlagCatalog, FlagKind, FlagSetting, FlagSpec, FlagValue
from workbench.model.gpu import GpuInfo
from workbench.model.gpu_allotment import NO_ALLOTMENT, Allotment
from workbench.model.plan import LaunchPlan, ModelFacts
from workbench.model.server_run import run_and_time

_E4M3 = "fp8_e4m3"  # what "fp8" means for the cache of vLLM; each engine accepts this word


def validate(
    plan: LaunchPlan,
    catalog: FlagCatalog,
    installed_version: str | None = None,
    gpus: Sequence[GpuInfo] = (),
    allotment: Allotment = NO_ALLOTMENT,
) -> tuple[Finding, ...]:
    """Return the findings about a plan that has not been started, most severe first.
    `installed_version` is None if it is unknown. `allotment` has what the host's own environment
    says of its GPUs."""
    engine, shown = registry.get(plan.engine), visible_gpus(plan, gpus)
    here = Situation(plan, catalog, engine, shown, installed_version, allotment)
    found: list[Finding] = [*_of_plan(here)]
    if gpus and not shown:
        text = "CUDA_VISIBLE_DEVICES names a MIG instance that this host does not have"
        fix = "`workbench gpu status` lists the instances"
        found.append(Finding(Level.ERROR, "gpus.no-instance", text, "CUDA_VISIBLE_DEVICES", fix))
    ranks = [node for node in plan.nodes if not node.role]  # Ray has options of its own
    settings = (
        *plan.flags,
        *(FlagSetting(n, v) for node in ranks for n, v in node.flags.items()),
    )
    for setting in settings:
        found += _of_flag(here, setting)
    found += _repeated(here)
    variables = (
        *plan.env,
        *(FlagSetting(n, v) for node in plan.nodes for n, v in node.env.items()),
    )
    for setting in variables:
        found += _of_variable(here, setting)
    found += cross_checks(here)
    once: dict[tuple[str, str | None, str], Finding] = {}
    for finding in found:
        once.setdefault((finding.code, finding.flag, finding.text), finding)
    return by_severity(once.values())


def check_value(
    spec: FlagSpec, value: FlagValue, certain: bool = True, fp8_cache: str = _E4M3
) -> Finding | None:
    """Return the finding about one value of a flag, or None if the value is valid. `certain` is
    True if the catalog describes the installed release."""
    if problem := type_problem(spec, value):
        code = "flag.json" if spec.kind == FlagKind.JSON else "flag.type"
        if isinstance(value, list | tuple) and not spec.repeatable:
            code = "flag.repeated"
        unset = (PlanChange(spec.name, None),)
        return Finding(
            Level.ERROR, code, f"{spec.name} {problem}", spec.name, _value_fix(spec), changes=unset
        )
    if (wrong := choice_problem(spec, value)) is not None:
        near = _near_choices(spec, wrong, spec.choices)
        fix = f"did you mean {near[0]}?" if near else f"one of {_some(spec.choices)}"
        # no version of vLLM or SGLang accepts it
        if spec.name == "dtype" and re.match(r"fp?(loat)?8", wrong):
            certain, near = True, []
            fix = (
                f"set quantization to fp8 for weights, kv-cache-dtype to {fp8_cache} for the cache"
            )
        only_case = wrong.lower() in (c.lower() for c in spec.choices)
        level = Level.ERROR if not wrong or (certain and not only_case) else Level.WARN
        return Finding(
            level,
            "flag.choice",
            f"{spec.name} is {wrong!r}, which is not one of the choices of this flag",
            spec.name,
            fix,
            changes=(PlanChange(spec.name, near[0] if near and isinstance(value, str) else None),),
        )
    if (wrong := unknown_word(spec, value)) is not None:
        near = _near_choices(spec, wrong, spec.words)
        fix = f"did you mean {near[0]}?" if near else f"one of {_some(spec.words)}"
        others = "; a newer engine or a plugin may have it" if wrong else ""
        return Finding(
            Level.WARN if wrong else Level.ERROR,
            "flag.word",
            f"{spec.name} is {wrong!r}, which is no value of this flag that Workbench knows{others}",
            spec.name,
            fix,
            changes=(PlanChange(spec.name, near[0] if near else None),),
        )
    if problem := range_problem(spec, value):
        unset = (PlanChange(spec.name, None),)
        return Finding(
            Level.ERROR,
            "flag.range",
            f"{spec.name} {problem}",
            spec.name,
            _value_fix(spec),
            changes=unset,
        )
    if spec.json_fields and (unknown := _unknown_key(spec, value)):
        near = get_close_matches(unknown, spec.json_fields, n=1)
        fix = f"did you mean {near[0]}?" if near else f"known: {_some(spec.json_fields)}"
        level = Level.ERROR if certain else Level.WARN
        return Finding(
            level,
            "flag.json-key",
            f"the value of {spec.name} has the unknown key {unknown!r}",
            spec.name,
            fix,
        )
    return None


def _near_choices(spec: FlagSpec, wrong: str, choices: Sequence[str]) -> list[str]:
    """Return the choice that the user means with the word `wrong`, or [] if none is near. The word
    of one number format is never taken for another."""
    if wrong.lower() == "fp8" and _E4M3 in spec.choices:
        return [_E4M3]
    if "dtype" in spec.name or spec.name == "quantization":
        same = wrong.lower().replace("-", "_")
        return [choice for choice in choices if choice.lower().replace("-", "_") == same][:1]
    return get_close_matches(wrong, choices, n=1)


def _fp8_cache(here: Situation) -> str:
    """Return the engine's word for a KV cache with 8 bits per value."""
    spec = here.catalog.flags.get("kv-cache-dtype")
    words = (*spec.choices, *spec.words) if spec is not None else ()
    return "fp8" if "fp8" in words else _E4M3


def _of_plan(here: Situation) -> Iterator[Finding]:
    plan, catalog = here.plan, here.catalog
    if not plan.model:
        yield Finding(
            Level.ERROR,
            "model.missing",
            "the plan sets no model",
            fix="set model to a hub id or a path",
        )
    for string in _texts_with_variables(plan):
        if match := VARIABLE.search(string):
            text = f"variable {match[1]} has no value"
            yield Finding(Level.ERROR, "variable.missing", text, fix=f"--var {match[1]}=…")
    yield from _remembered_values(here)
    yield from _unknown_sizes(plan.model_facts)
    if here.installed and not _is_catalog_of_release(here):
        text = (
            f"the plan was checked against the flags of {here.engine.title} "
            f"{catalog.version}, but version "
        )
        yield Finding(Level.INFO, "version.catalog", f"{text}{here.installed} is installed")
    for name in ("host", "port"):
        value = plan.flag(name)
        if isinstance(value, list | dict | bool):
            yield Finding(
                Level.ERROR, "flag.type", f"{name} is {word(value)!r}, expected one value", name
            )


def _remembered_values(here: Situation) -> Iterator[Finding]:
    """Report each variable of the preset whose value was taken from an earlier run. Also report
    each variable that has the preset's default although an earlier run used another value."""
    plan = here.plan
    for name, source in plan.sources.items():
        value = plan.variables.get(name)
        if source.run_id is None or value is None or not plan.uses(value):
            continue
        flag = here.engine.model_flags[0] if value == plan.model else None
        earlier = run_and_time(source.run_id)
        if source.kind == "remembered":
            text, code = f"{name} {value}: remembered from {earlier}", "variable.remembered"
            yield Finding(Level.HINT, code, text, flag, f"use --var {name}=… to set another value")
        else:
            text = f"{name} {value} is the preset's default; {earlier} used {source.instead}"
            yield Finding(
                Level.HINT, "variable.default", text, flag, f"--var {name}={source.instead}"
            )


def _unknown_sizes(facts: ModelFacts | None) -> Iterator[Finding]:
    """Report sizes of the model that are unknown, and sizes that were read from the model's files
    and not from the preset."""
    if facts is not None and facts.missing:
        without = (
            "no speed limit" if facts.weight_bytes else ("no memory estimate and no speed limit")
        )
        yield Finding(Level.HINT, "model.facts", f"{without}: {facts.missing}")
    elif facts is not None and facts.weight_bytes and not facts.source.startswith("preset "):
        source = facts.source if facts.source.startswith("the ") else f"its {facts.source}"
        megabytes = facts.weight_bytes / 1e6
        size = f"{megabytes / 1e3:.1f} GB" if megabytes >= 50 else f"{megabytes:.1f} MB"
        text = f"sizes of the model are from {source}: {size} of weights"
        yield Finding(Level.INFO, "model.facts", text)


def _of_flag(here: Situation, setting: FlagSetting) -> Iterator[Finding]:
    match = lookup(here.catalog, setting.name)
    if match.spec is None:
        yield _unknown_flag(here, setting.name)
        return
    spec = match.spec
    value = (
        not setting.value if match.negated and isinstance(setting.value, bool) else setting.value
    )
    certain, fp8_cache = _is_catalog_of_release(here), _fp8_cache(here)
    open_variable = isinstance(value, str) and VARIABLE.search(value)  # has a finding of its own
    if not open_variable and (finding := check_value(spec, value, certain, fp8_cache)):
        yield finding
    if spec.deprecated:
        text = f"{spec.name} is deprecated in {here.engine.title} {here.catalog.version}"
        entry = removed(here.engine.name, "flags").get(spec.name)
        changes = _replacement(here, spec.name, entry) if entry else ()
        yield Finding(
            Level.HINT,
            "flag.deprecated",
            text,
            spec.name,
            entry.fix if entry else None,
            changes=changes,
        )
    if (
        value is False
        and not spec.negation
        and not spec.value_takes_bool_word
        and spec.kind == FlagKind.BOOL
    ):
        text = f"{spec.name} cannot be switched off on the command line, so the command omits it"
        yield Finding(Level.INFO, "flag.no-negation", text, spec.name, "unset it")
    if (
        here.engine.argparse_values
        and isinstance(value, list | tuple)
        and len(value) > 1
        and spec.nargs in ("+", "*")
    ):
        words = [word(one) for one in value]
        dashed = [w for w in words if w.startswith("-") and not re.fullmatch(r"-\d+", w)]
        if dashed:
            text = f"{spec.name}: {dashed[0]!r} in a list would be read as a flag"
            yield Finding(
                Level.ERROR,
                "flag.dash",
                text,
                spec.name,
                "use values that do not begin with a dash",
            )


def _unknown_flag(here: Situation, name: str) -> Finding:
    level = Level.ERROR if _is_catalog_of_release(here) else Level.WARN
    title, version = here.engine.title, here.catalog.version
    if entry := removed(here.engine.name, "flags").get(name):
        text = f"{title} {version} does not have {name}: {entry.reason}{_since(entry)}"
        return Finding(
            level, "flag.removed", text, name, entry.fix, changes=_replacement(here, name, entry)
        )
    near = nearest_name(here.catalog, name)
    fix = f"did you mean {near}?" if near else "unset it, or search for its new name"
    changes = _renamed(here, name, near) if near else (PlanChange(name, None),)
    text = f"{title} {version} does not have a flag {name}"
    return Finding(level, "flag.unknown", text, name, fix, changes=changes)


def _renamed(here: Situation, name: str, new: str) -> tuple[PlanChange, ...]:
    """Return the changes that remove the flag `name` and set the flag `new` to the same value. The
    second change is left out if `new` does not accept the value or is set already."""
    value, spec = here.plan.flag(name), here.catalog.flags.get(new)
    if (
        value is None
        or here.plan.flag(new) is not None
        or (spec and (type_problem(spec, value) is not None))
    ):
        return (PlanChange(name, None),)
    return PlanChange(name, None), PlanChange(new, value)


def _replacement(here: Situation, name: str, entry: Removed) -> tuple[PlanChange, ...]:
    """Return the changes that replace a removed flag; () if the user must decide what replaces the
    flag."""
    if entry.renamed:
        flag, _, key = entry.renamed.partition(".")
        if not key:
            return _renamed(here, name, flag)
        together = {
            n: e.renamed.partition(".")[2]
            for n, e in removed(here.engine.name, "flags").items()
            if e.renamed
        }
        old, plan = here.plan.flag(flag), here.plan
        parts = {
            new: plan.flag(n) for n, new in together.items() if new and plan.flag(n) is not None
        }
        unset = tuple(
            PlanChange(n, None) for n, new in together.items() if new and plan.flag(n) is not None
        )
        return (*unset, PlanChange(flag, {**(old if isinstance(old, dict) else {}), **parts}))
    return (PlanChange(name, None),) if entry.fix.startswith("unset it") else ()


def _since(entry: Removed) -> str:
    if not entry.since:
        return ""
    again = f", accepted again since {entry.until}" if entry.until else ""
    return f" (rejected since {entry.since}{again})"


def _is_catalog_of_release(here: Situation) -> bool:
    return here.engine.same_release(here.installed, here.catalog.version)


def _repeated(here: Situation) -> Iterator[Finding]:
    seen: set[str] = set()
    for setting in here.plan.flags:
        name = lookup(here.catalog, setting.name).name
        spec = here.catalog.flags.get(name)
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


def _of_variable(here: Situation, setting: FlagSetting) -> Iterator[Finding]:
    name, value, prefix = setting.name, str(setting.value), here.engine.env_prefix
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        yield Finding(
            Level.ERROR,
            "env.name",
            f"{name!r} is not a valid name for an environment variable",
            name,
        )
    elif entry := _removed_variable(here, name):
        text = f"{name} has no effect: {entry.reason}"
        unset = (PlanChange(name, None, env=True),)
        yield Finding(Level.WARN, "env.removed", text, name, entry.fix, changes=unset)
    elif spec := here.catalog.env.get(name):
        if problem := _variable_problem(spec, value):
            yield Finding(Level.WARN, "env.value", f"{name} is {value!r}, expected {problem}", name)
    elif (
        here.catalog.env and prefix and name.startswith(prefix) and name not in here.engine.more_env
    ):
        near = nearest_env(here.catalog, name)
        strict = here.on("fail-on-environ-validation") and _is_catalog_of_release(here)
        yield Finding(
            Level.ERROR if strict else Level.WARN,
            "env.unknown",
            f"{here.engine.title} {here.catalog.version} does not read the variable {name}",
            name,
            f"did you mean {near}?" if near else "unset it",
            changes=(
                PlanChange(name, None, env=True),
                *([PlanChange(near, value, env=True)] if near and here.env(near) is None else []),
            ),
        )


def _removed_variable(here: Situation, name: str) -> Removed | None:
    """Return the entry of the catalog of removed variables for `name`; None if the installed
    version still reads the variable."""
    entry = removed(here.engine.name, "env").get(name)
    version = version_key(here.installed or here.catalog.version)
    still_read = entry is not None and bool(entry.since) and version < version_key(entry.since)
    return None if still_read else entry


def _variable_problem(spec: EnvSpec, value: str) -> str | None:
    if spec.choices:
        return (
            None
            if value.lower() in (c.lower() for c in spec.choices)
            else f"one of {_some(spec.choices)}"
        )
    match spec.type:
        case "bool":
            return None if value.lower() in ("0", "1", "true", "false", "on", "off") else "0 or 1"
        case "int" | "float":
            try:
                (int if spec.type == "int" else float)(value)
            except ValueError:
                return "a number"
    return None


def _unknown_key(spec: FlagSpec, value: FlagValue) -> str | None:
    if isinstance(value, str):
        try:
            value = json_value(value)
        except InputError:
            return None
    return (
        next((k for k in value if k not in spec.json_fields), None)
        if isinstance(value, dict)
        else None
    )


def _value_fix(spec: FlagSpec) -> str | None:
    if spec.default not in (None, "", [], {}):
        return f"its default is {word(spec.default)}"
    return f"its default: {spec.default_note}" if spec.default_note else None


def _some(names: Sequence[str], most: int = 8) -> str:
    return ", ".join(names[:most]) + (f", … ({len(names)} in all)" if len(names) > most else "")


def _texts_with_variables(plan: LaunchPlan) -> Iterator[str]:
    """Yield every text of a plan that may contain a `${name}` of its preset."""

    def inside(value: FlagValue) -> Iterable[str]:
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            for v in value.values():
                yield from inside(v)
        elif isinstance(value, list | tuple):
            for v in value:
                yield from inside(v)

    yield from (plan.model, plan.workdir or "", *plan.executable)
    for setting in (*plan.flags, *plan.env):
        yield from inside(setting.value)

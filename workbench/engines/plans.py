"""Plans made from presets and changed by assignments, and plans as rows of a flag editor."""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from workbench.engines import registry
from workbench.engines.catalog import (
    FlagMatch,
    look_up_flag,
    most_similar_flag_name,
    most_similar_variable_name,
)
from workbench.engines.flag_groups import sort_key_of_flag
from workbench.engines.flag_values import elements_of_value, parse_flag_value
from workbench.engines.model_facts import model_facts_from_preset
from workbench.engines.run_as import is_launcher_row, set_launcher_row
from workbench.model.errors import InputError, PlanError, suggestion_or_next_step
from workbench.model.findings import Finding, most_severe_level
from workbench.model.flags import (
    FlagCatalog,
    FlagKind,
    FlagRow,
    FlagSetting,
    FlagSpec,
    FlagValue,
    Origin,
)
from workbench.model.plan import LaunchPlan, Node, VariableSource
from workbench.model.run_options import set_run_option
from workbench.model.untrusted_text import as_table

if TYPE_CHECKING:
    from workbench.model.preset import Preset

# listed by a flag editor among the flags: the program that starts the engine
EXECUTABLE = "executable"
# for all commands that start a server: most of them have no option for it
NAME_PROGRAM_STEP = (
    "name the program in the row `executable` of the Launch pane, under [executables] in "
    "config.toml, or with `workbench start PRESET --executable PATH`"
)
VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_-]*)\}")


def plan_from_preset(
    preset: Preset,
    variables: Mapping[str, str] = MappingProxyType({}),
    sources: Mapping[str, VariableSource] = MappingProxyType({}),
) -> LaunchPlan:
    """Return the plan of a preset, with each `${name}` replaced by the value of that variable. The
    plan has no GPU or host settings.

    `variables` are the values that the user gave; a variable without one has its default. `sources`
    says where each value comes from. Raises PlanError for a variable without a value or default,
    and for a variable that the preset does not declare.
    """
    values = _choose_variable_values(preset, variables)
    engine = registry.get_engine(preset.engine.name)
    catalog = engine.catalog()
    executable = tuple(_replace_variables(preset.engine.executable or (), values))
    plan = LaunchPlan(
        engine=engine.name,
        model=_replace_variables(preset.model.id, values),
        executable=executable,
        executable_from="preset" if executable else "",
        workdir=_replace_variables(preset.engine.workdir or None, values),
        image=preset.engine.image,
        run_as=preset.launch.run_as,
        env=tuple(
            FlagSetting(k, _replace_variables(v, values), Origin.PRESET)
            for k, v in preset.env.items()
        ),
        open_files=preset.engine.open_files,
        engine_versions=preset.engine.versions,
        preset_id=preset.id,
        nodes=tuple(_node_from_preset_entry(catalog, n, values) for n in preset.nodes),
        variables=values,
        sources={n: sources.get(n, _given_or_default_source(n, variables)) for n in values},
    )
    for name, option in preset.launch.run_options.items():
        texts = [option] if isinstance(option, str) else option
        plan = set_run_option(plan, name, _replace_variables(texts, values))
    for name, value in preset.flags.items():
        plan = set_flag(plan, catalog, name, _replace_variables(value, values), Origin.PRESET)
    own = {n: v.default or v.example or "" for n, v in preset.variables.items()}
    facts = model_facts_from_preset(
        preset, _replace_variables(preset.model.id, own), plan.flag_values
    )
    return replace(plan, model_facts=facts)


def set_flag(
    plan: LaunchPlan,
    catalog: FlagCatalog,
    spelling: str,
    value: FlagValue,
    origin: Origin = Origin.EDITED,
) -> LaunchPlan:
    """Return the plan with a flag set to `value`, under the flag's main name.

    A spelling that turns a flag off ("no-enforce-eager") inverts the value. "config.key" sets one
    key of a JSON flag. The flag that names the model sets the plan's model instead.
    """
    match = look_up_flag(catalog, spelling)
    if match.name in registry.get_engine(plan.engine).model_flags and isinstance(value, str):
        return replace(plan, model=value)
    if match.spec is None and (dotted := _json_flag_and_keys(catalog, spelling)):
        base, keys = dotted
        return plan.with_flag(base.name, _set_json_key(plan.flag(base.name), keys, value), origin)
    return plan.with_flag(match.name, match.invert_value_if_negated(value), origin)


def apply_assignments(
    plan: LaunchPlan,
    catalog: FlagCatalog,
    sets: Sequence[str] = (),
    unsets: Sequence[str] = (),
    envs: Sequence[str] = (),
) -> LaunchPlan:
    """Return the plan changed by the options --set (`sets`: "flag=value", or "flag" to switch it
    on), --unset (`unsets`: names of flags or variables) and --env (`envs`: "NAME=value").

    In `sets`, the name "model" sets the model, "executable" the program that starts the engine, and
    "run-as" the launcher. A flag that the catalog does not contain is set too. A repeatable flag
    gets the values of all its assignments. Raises InputError for an invalid assignment.
    """
    for name in unsets:
        plan = _remove_setting(plan, catalog, name)
    given: dict[str, list[Any]] = {}  # values of flags that may be repeated
    for assignment in sets:
        name, equals, text = assignment.partition("=")
        if not name.strip("- "):
            raise InputError(
                f"{assignment!r} has no flag name", next_step="write the assignment as flag=value"
            )
        if name.strip().lstrip("-") == "model":
            plan = replace(plan, model=text.strip())
            continue
        if name.strip().lstrip("-") == EXECUTABLE:
            plan = set_executable(plan, text)
            continue
        if is_launcher_row(name):
            plan = set_launcher_row(plan, name, text)
            continue
        match = look_up_flag(catalog, name)
        value = _parse_assigned_value(match, text if equals else None)
        if match.spec and match.spec.repeatable:
            value = given[match.name] = [*given.get(match.name, ()), *elements_of_value(value)]
        plan = set_flag(plan, catalog, name, value)
    for assignment in envs:
        name, equals, text = assignment.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise InputError(
                f"{assignment!r} does not set an environment variable",
                next_step="write the assignment as NAME=value",
            )
        plan = plan.with_env(name, text)
    return plan


def set_executable(plan: LaunchPlan, text: str, named_by: str = "given") -> LaunchPlan:
    """Return the plan with another program that starts the engine. `text` is a name on PATH or an
    absolute path, with its arguments quoted as in a shell; "" means the engine's usual program.
    `named_by` says who chose the program: "given" (the user), "preset", or the name of a
    configuration file. Raises InputError for a relative path or a missing quote."""
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise InputError(
            f"executable {text!r}: {error}", next_step="close each quotation mark in the executable"
        ) from None
    if not words:
        return replace(plan, executable=(), executable_from="")
    program = words[0]
    if "/" in program and not program.startswith("/") and not plan.workdir:
        raise InputError(
            f"executable {program!r} is not an absolute path",
            next_step="write the full path of the program, beginning with /",
        )
    return replace(plan, executable=words, executable_from=named_by)


def make_flag_rows(
    plan: LaunchPlan, catalog: FlagCatalog, findings: Iterable[Finding] = (), view: str = "changed"
) -> tuple[FlagRow, ...]:
    """Return the rows of a flag editor for `plan`, each with the most severe of the `findings`
    about it. View "changed" has only the flags and variables that the plan sets; view "all" also
    has every other flag of the catalog."""
    by_flag: defaultdict[str | None, list[Finding]] = defaultdict(list)
    for finding in findings:
        by_flag[finding.flag].append(finding)

    def make_row(
        name: str,
        value: FlagValue | None,
        origin: Origin,
        spec: FlagSpec | None,
        is_env: bool = False,
    ) -> FlagRow:
        text, level = most_severe_finding_text_and_level(by_flag[name], name)
        known = catalog.env.get(name) if is_env else spec
        return FlagRow(
            name, value, known.default if known else None, origin, spec, text, level, is_env
        )

    listed = [make_row(f.name, f.value, f.origin, catalog.flags.get(f.name)) for f in plan.flags]
    if view == "all":
        given = plan.flag_values
        for spec in catalog.flags.values():
            if spec.name not in given:
                listed.append(make_row(spec.name, None, Origin.DEFAULT, spec))
    listed += [make_row(e.name, e.value, e.origin, None, is_env=True) for e in plan.env]
    return tuple(listed)


def list_changed_flags(
    plan: LaunchPlan, catalog: FlagCatalog, base: LaunchPlan | None = None
) -> tuple[FlagRow, ...]:
    """Return the flags and variables of a plan that have another value than the engine's default,
    and those that were edited. The edited ones come first, then the most used ones, then the
    variables. `base` is the plan before the edits: what only `base` sets has a row without a value.
    The model and the address are left out."""
    elsewhere = (*registry.get_engine(plan.engine).model_flags, "host", "port")
    given = {*plan.flag_values, *plan.env_texts}
    removed = [
        replace(row, value=None, origin=Origin.EDITED)
        for row in make_flag_rows(base or plan, catalog)
        if row.name not in given
    ]

    def is_changed(row: FlagRow) -> bool:
        if row.name in elsewhere or row.origin is Origin.INHERITED:
            return False
        return row.origin is Origin.EDITED or row.value != row.default

    def sort_key(row: FlagRow) -> tuple[bool, bool, tuple[int, int]]:
        return row.origin is not Origin.EDITED, row.is_env, sort_key_of_flag(row.spec)

    return tuple(
        sorted(filter(is_changed, (*removed, *make_flag_rows(plan, catalog))), key=sort_key)
    )


def most_severe_finding_text_and_level(
    findings: Iterable[Finding], name: str
) -> tuple[str | None, str | None]:
    """Return (text, level) of the most severe finding about the flag or variable `name`; (None,
    None) if there is none.
    """
    found = [f for f in findings if f.flag == name]
    level = most_severe_level(found)
    if level is None:
        return None, None
    return next(f.text for f in found if f.level == level), str(level)


def _choose_variable_values(preset: Preset, given: Mapping[str, str]) -> dict[str, str]:
    unknown = sorted(given.keys() - preset.variables.keys())
    if unknown:
        known = ", ".join(preset.variables) or "none"
        raise PlanError(
            f"preset {preset.id} has no variable {', '.join(unknown)}",
            next_step=f"its variables: {known}",
        )
    values: dict[str, str] = {}
    missing = []
    for name, variable in preset.variables.items():
        value = given.get(name, variable.default)
        if value is None:
            missing.append(name)
        else:
            values[name] = value
    if missing:
        first = preset.variables[missing[0]]
        example = f", e.g. {first.example}" if first.example else ""
        raise PlanError(
            f"preset {preset.id} needs a value for {', '.join(missing)} "
            f"({first.description}{example})",
            next_step=" ".join(f"--var {name}=…" for name in missing),
        )
    return values


def _given_or_default_source(name: str, given: Mapping[str, str]) -> VariableSource:
    return VariableSource("given" if name in given else "default")


def _replace_variables(value: Any, variables: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {k: _replace_variables(v, variables) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_variables(v, variables) for v in value]
    if not isinstance(value, str):
        return value

    def variable_value(match: re.Match[str]) -> str:
        if match[1] not in variables:
            raise PlanError(
                f"{value!r} uses a variable {match[1]} that the preset does not declare",
                next_step=f"declare the variable in the preset under [variables.{match[1]}]",
            )
        return variables[match[1]]

    return VARIABLE.sub(variable_value, value)


def _node_from_preset_entry(catalog: FlagCatalog, entry: Any, variables: Mapping[str, str]) -> Node:
    flags: dict[str, FlagValue] = {}
    for name, value in entry.flags.items():
        match = look_up_flag(catalog, name)
        flags[match.name] = match.invert_value_if_negated(_replace_variables(value, variables))
    return Node(
        _replace_variables(entry.name, variables),
        entry.rank,
        flags,
        _replace_variables(entry.env, variables),
    )


def _json_flag_and_keys(catalog: FlagCatalog, spelling: str) -> tuple[FlagSpec, list[str]] | None:
    """Split a spelling such as "speculative-config.model" into the JSON flag and the keys inside
    its value. None if the spelling does not name a key of a JSON flag."""
    base, *keys = spelling.strip().lstrip("-").split(".")
    if not keys or not all(keys):
        return None
    spec = look_up_flag(catalog, base).spec
    if spec is None or spec.kind != FlagKind.JSON:
        return None
    return spec, keys


def _set_json_key(value: FlagValue | None, keys: list[str], new: FlagValue) -> dict[str, FlagValue]:
    changed = dict(as_table(value))
    first, *inner = keys
    if inner:
        new = _set_json_key(changed.get(first), inner, new)
    changed[first] = new
    return changed


def _parse_assigned_value(match: FlagMatch, text: str | None) -> FlagValue:
    if text is not None:
        return parse_flag_value(match.spec, text)
    if match.spec is None or match.spec.kind == FlagKind.BOOL or match.spec.nargs == "?":
        return True
    raise InputError(f"--{match.name} needs a value", next_step=f"write {match.name}=value")


def _remove_setting(plan: LaunchPlan, catalog: FlagCatalog, name: str) -> LaunchPlan:
    """Return the plan without the flag or variable `name`. "executable" and the rows of the
    launcher get their defaults. Raises InputError if the plan does not set `name` and the catalog
    does not contain it."""
    if name.strip().lstrip("-") == EXECUTABLE:
        return set_executable(plan, "")
    if is_launcher_row(name):
        return set_launcher_row(plan, name, "")
    canonical = look_up_flag(catalog, name).name
    if name in plan.env_texts:
        return plan.without_env(name)
    if name in catalog.env or canonical in {*catalog.flags, *plan.flag_values}:
        return plan.without_flag(canonical)
    near = most_similar_flag_name(catalog, canonical) or most_similar_variable_name(catalog, name)
    have = ", ".join([*plan.flag_values, *plan.env_texts]) or "none"
    raise InputError(
        f"the plan does not set {name}, and {catalog.engine} {catalog.version} does not know it",
        next_step=suggestion_or_next_step(near, f"the plan sets: {have}"),
    )

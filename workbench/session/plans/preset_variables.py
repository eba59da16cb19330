"""The values of a preset's variables and the sources of these values: the user, the cluster, the
preset, an earlier READY run, or the host."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from workbench.model.plan import VariableSource
from workbench.model.secrets import MASK

if TYPE_CHECKING:
    from workbench.hosts.base import Host
    from workbench.model.flags import FlagSetting
    from workbench.model.plan import LaunchPlan, Node
    from workbench.model.preset import Preset
    from workbench.store.config_schema import Remembered

ResolvedVariables = dict[str, tuple[str, VariableSource]]


def resolve_variables(
    preset: Preset,
    host: Host,
    remembered: Mapping[str, Remembered],
    given: Mapping[str, str] | None = None,
) -> ResolvedVariables:
    """Return the value and the source of each variable of the preset that has a known value. The
    sources, in order of precedence: the user (`given`), the nodes of the cluster, the preset's
    default, a READY run (`remembered`), the host. On a simulated host, the last source is the
    preset's example."""
    known: ResolvedVariables = {}
    for name, value in (given or {}).items():
        known[name] = (value, VariableSource("given"))
    for name, variable in preset.variables.items():
        if name in known:
            continue
        earlier = remembered.get(name)
        if name in host.cluster_variables:
            known[name] = (host.cluster_variables[name], VariableSource("cluster"))
        elif variable.default is not None:
            source = VariableSource("default")
            if earlier is not None and earlier.value != variable.default:
                source = VariableSource("default", earlier.run, earlier.value)
            known[name] = (variable.default, source)
        elif earlier is not None:
            known[name] = (earlier.value, VariableSource("remembered", earlier.run))
        elif name in host.preset_variables:
            known[name] = (host.preset_variables[name], VariableSource("example"))
        elif variable.example and host.simulated is not None:
            known[name] = (variable.example, VariableSource("example"))
    return known


def plan_with_cluster_values(plan: LaunchPlan, values: Mapping[str, str]) -> LaunchPlan:
    """Return the plan with the variables `values` of this cluster, such as its nodes' addresses, in
    place of those of the host for which it was loaded. In flags and environment, each old value is
    replaced by the new one. Variables from the user stay. If no old value is to be replaced, the
    plan is returned as it is."""
    renewed, texts = {}, {}
    given = _user_given_variables(plan)
    for name, new in values.items():
        old = plan.variables.get(name, new)
        if old != new and name not in given:
            renewed[name] = new
            if old:
                texts[old] = new
    if not texts:
        return plan
    words = "|".join(map(re.escape, sorted(texts, key=len, reverse=True)))
    pattern = re.compile(rf"(?<![\w.-])(?:{words})(?![\w.-])")

    def replace_in_text(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        return pattern.sub(lambda found: texts[found[0]], value)

    def replace_in_setting(setting: FlagSetting) -> FlagSetting:
        return replace(setting, value=replace_in_text(setting.value))

    def replace_in_node(node: Node) -> Node:
        flags = {name: replace_in_text(value) for name, value in node.flags.items()}
        env = {name: replace_in_text(value) for name, value in node.env.items()}
        return replace(node, flags=flags, env=env)

    return replace(
        plan,
        flags=tuple(map(replace_in_setting, plan.flags)),
        env=tuple(map(replace_in_setting, plan.env)),
        nodes=tuple(map(replace_in_node, plan.nodes)),
        variables={**plan.variables, **renewed},
        sources={**plan.sources, **dict.fromkeys(renewed, VariableSource("cluster"))},
    )


def variables_to_remember(plan: LaunchPlan) -> dict[str, str]:
    """Return {name: value} of the variables that the user gave and that the plan still uses. Masked
    values are left out, because they cannot be used again."""
    found = {}
    for name in _user_given_variables(plan):
        value = plan.variables[name]
        if value != MASK and plan.contains_fillable_text(value):
            found[name] = value
    return found


def _user_given_variables(plan: LaunchPlan) -> list[str]:
    """Return the variables whose values come from the user."""
    return [name for name, source in plan.sources.items() if source.kind == "given"]

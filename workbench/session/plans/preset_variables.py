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
    from workbench.model.plan import LaunchPlan
    from workbench.model.preset import Preset
    from workbench.store.config_schema import Remembered

KnownVariables = dict[str, tuple[str, VariableSource]]


def known_variables(
    preset: Preset,
    host: Host,
    remembered: Mapping[str, Remembered],
    given: Mapping[str, str] | None = None,
) -> KnownVariables:
    """Return the value and the source of each variable of the preset that has a known value. The
    sources, in order of precedence: the user, the nodes of the cluster, the preset's default, a
    READY run, the host. On a simulated host, the last source is the preset's example."""
    given = given or {}
    simulated = host.simulated is not None
    of_host = host.preset_variables
    known: KnownVariables = {
        name: (value, VariableSource("given")) for name, value in given.items()
    }
    for name, variable in preset.variables.items():
        earlier = remembered.get(name)
        if name in given:
            continue
        if name in host.cluster_variables:
            known[name] = (host.cluster_variables[name], VariableSource("cluster"))
            continue
        if variable.default is not None:
            differs = earlier is not None and earlier.value != variable.default
            source = (
                VariableSource("default", earlier.run, earlier.value)
                if earlier and differs
                else None
            )
            known[name] = (variable.default, source or VariableSource("default"))
        elif earlier is not None:
            known[name] = (earlier.value, VariableSource("remembered", earlier.run))
        elif name in of_host:
            known[name] = (of_host[name], VariableSource("example"))
        elif simulated and variable.example:
            known[name] = (variable.example, VariableSource("example"))
    return known


def add_cluster_variables(plan: LaunchPlan, values: Mapping[str, str]) -> LaunchPlan:
    """Return a plan that was loaded for another host with the variables `values` of this cluster,
    such as its nodes' addresses. Flags and environment that contain an old value get the new value.
    Values from the user stay."""
    mine = {name for name, source in plan.sources.items() if source.kind == "given"}
    renewed = {
        name: new
        for name, new in values.items()
        if plan.variables.get(name, new) != new and name not in mine
    }
    texts = {plan.variables[name]: new for name, new in renewed.items() if plan.variables[name]}
    if not texts:
        return plan
    words = "|".join(re.escape(old) for old in sorted(texts, key=len, reverse=True))
    pattern = re.compile(rf"(?<![\w.-])(?:{words})(?![\w.-])")

    def there(value: Any) -> Any:
        return (
            pattern.sub(lambda found: texts[found[0]], value) if isinstance(value, str) else value
        )

    def all_there(settings: Mapping[str, Any]) -> dict[str, Any]:
        return {name: there(value) for name, value in settings.items()}

    return replace(
        plan,
        flags=tuple(replace(setting, value=there(setting.value)) for setting in plan.flags),
        env=tuple(replace(setting, value=there(setting.value)) for setting in plan.env),
        nodes=tuple(
            replace(node, flags=all_there(node.flags), env=all_there(node.env))
            for node in plan.nodes
        ),
        variables={**plan.variables, **renewed},
        sources={**plan.sources, **dict.fromkeys(renewed, VariableSource("cluster"))},
    )


def variables_to_remember(plan: LaunchPlan) -> dict[str, str]:
    """Return the variables that the user gave and that the plan still uses, by name. Masked values
    are left out, because they cannot be used again."""
    return {
        name: plan.variables[name]
        for name, source in plan.sources.items()
        if source.kind == "given"
        and plan.variables[name] != MASK
        and plan.contains_text(plan.variables[name])
    }

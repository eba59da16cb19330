"""The launchers that can run a server on its host (values of the option `--as`), and the options of
each launcher (`--run-option NAME=VALUE`).

option      one option with its help and its check
systemd     the options of the launcher `systemd`
containers  the options of the launchers `docker` and `podman`
jobs        the options of the launchers `slurm` and `pbs`

The code of each launcher is in server/launchers. The options are here, because presets, plans and
their checks use them too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from workbench.model.errors import InputError, suggestion_or_next_step
from workbench.model.run_options import containers, jobs, systemd
from workbench.model.run_options.option import RunOption

if TYPE_CHECKING:
    from workbench.model.plan import LaunchPlan

PROCESS = "process"  # a server that Workbench starts itself, without a launcher
OPTIONS: dict[str, tuple[RunOption, ...]] = {
    PROCESS: (),
    "systemd": systemd.OPTIONS,
    "docker": containers.OPTIONS,
    "podman": containers.OPTIONS,
    "slurm": jobs.SLURM,
    "pbs": jobs.PBS,
}


def require_launcher_name(launcher: str) -> str:
    """Return `launcher` if it names a launcher, such as "systemd", or is "process". Raises
    InputError for any other name."""
    if launcher not in OPTIONS:
        raise InputError(
            f"there is no launcher {launcher!r}", next_step=f"use one of {', '.join(OPTIONS)}"
        )
    return launcher


def starts_container_image(launcher: str) -> bool:
    """Return whether the launcher called `launcher` starts the server from an image of a
    container."""
    return any(option.name == "image" for option in OPTIONS.get(launcher, ()))


def launcher_option(launcher: str, name: str) -> RunOption:
    """Return the option `name` of the launcher called `launcher`. Raises InputError if this
    launcher has no such option, or if there is no such launcher."""
    options = {option.name: option for option in OPTIONS[require_launcher_name(launcher)]}
    if name in options:
        return options[name]
    from difflib import get_close_matches

    near = next(iter(get_close_matches(name, options, n=1, cutoff=0.6)), None)
    known = ", ".join(options) or "none; choose a launcher with --as first"
    raise InputError(
        f"the launcher {launcher!r} has no run option {name!r}",
        next_step=suggestion_or_next_step(near, f"its options: {known}"),
    )


def launcher_option_value(launcher: str, options: Mapping[str, str], name: str) -> str:
    """Return the value of the option `name` of the launcher called `launcher`: the value in
    `options`, otherwise the option's default."""
    return options.get(name, launcher_option(launcher, name).default)


def launcher_option_values(launcher: str, options: Mapping[str, str], name: str) -> tuple[str, ...]:
    """Return all values of the repeatable option `name` of the launcher called `launcher`, in
    order."""
    return tuple(launcher_option_value(launcher, options, name).splitlines())


def set_launcher(plan: LaunchPlan, launcher: str) -> LaunchPlan:
    """Return the plan with the launcher called `launcher`. Run options that this launcher does not
    have are removed from the plan. Raises InputError if there is no such launcher."""
    names = {option.name for option in OPTIONS[require_launcher_name(launcher)]}
    return replace(
        plan, run_as=launcher, run_options={n: v for n, v in plan.run_options.items() if n in names}
    )


def set_run_option(plan: LaunchPlan, name: str, values: Sequence[str]) -> LaunchPlan:
    """Return the plan with the option `name` of its launcher set to `values`; with no values, the
    option has its default. Raises InputError for an unknown option or an invalid value."""
    option = launcher_option(plan.run_as, name)
    kept = [option.parse(value) for value in values]
    if len(kept) > 1 and not option.repeatable:
        raise InputError(
            f"the run option {name} is given {len(kept)} times", next_step="give the option once"
        )
    others = {n: v for n, v in plan.run_options.items() if n != name}
    return replace(plan, run_options={**others, name: "\n".join(kept)} if kept else others)


def with_launcher_and_options(
    plan: LaunchPlan, launcher: str | None, assignments: Sequence[str]
) -> LaunchPlan:
    """Return the plan changed by the options `--as` (`launcher`; None leaves the launcher
    unchanged) and `--run-option` (`assignments` such as "NAME=VALUE"). Raises InputError for an
    unknown launcher or option, and for an invalid value."""
    if launcher is not None:
        plan = set_launcher(plan, launcher)
    given: dict[str, list[str]] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals or not name:
            raise InputError(f"--run-option {assignment!r} is not of the form NAME=VALUE")
        given.setdefault(name.strip(), []).append(value)
    for name, values in given.items():
        plan = set_run_option(plan, name, values)
    return plan

"""The launcher of a server and its options, as rows of a flag editor: "run-as" has the launcher,
"run-as.NAME" its option NAME."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from workbench.model.errors import InputError
from workbench.model.flags import FlagKind, FlagRow, FlagSpec, Origin
from workbench.model.plan import LaunchPlan
from workbench.model.run_options import (
    OPTIONS,
    PROCESS,
    require_launcher_name,
    set_launcher,
    set_run_option,
)
from workbench.model.run_options.option import RunOption

RUN_AS = "run-as"
_OPTION = f"{RUN_AS}."
_ABOUT = (
    "What runs the server on its host: Workbench itself as a process, or a launcher. Each "
    "has options of its own."
)


def is_launcher_row(name: str) -> bool:
    """Return whether `name` names a row of the flag editor for the launcher or one of its options:
    "run-as" or "run-as.NAME"."""
    return name == RUN_AS or name.startswith(_OPTION)


def set_launcher_row(plan: LaunchPlan, name: str, text: str) -> LaunchPlan:
    """Return the plan after the user has entered `text` in the row `name`; "" restores the default.
    Raises InputError for an unknown launcher or option, and for an invalid value."""
    if name == RUN_AS:
        return set_launcher(plan, require_launcher_name(text.strip() or PROCESS))
    option = name.removeprefix(_OPTION)
    repeatable = {known.name for known in OPTIONS[plan.run_as] if known.repeatable}
    values = [text] if text.strip() else []
    try:
        if option in repeatable:
            values = shlex.split(text)
    except ValueError as error:
        raise InputError(
            f"{name}: {error}", next_step=f"close each quotation mark in {name}"
        ) from None
    return set_run_option(plan, option, values)


def make_launcher_rows(plan: LaunchPlan, base: LaunchPlan, view: str) -> Iterator[FlagRow]:
    """Yield the rows for the plan's launcher and all its options. `base` is the plan before the
    user's edits; rows that differ from it are marked as edited. View "changed" has no rows if the
    server runs as an ordinary process."""
    if view == "changed" and plan.run_as == PROCESS:
        return
    spec = FlagSpec(
        RUN_AS, FlagKind.STR, choices=tuple(OPTIONS), default=PROCESS, help=_ABOUT, most_used=1
    )
    value = None if plan.run_as == PROCESS else plan.run_as
    yield FlagRow(
        RUN_AS, value, PROCESS, _origin_of_launcher_value(plan.run_as != base.run_as, value), spec
    )
    for option in OPTIONS[plan.run_as]:
        kept = plan.run_options.get(option.name)
        text = kept
        if kept is not None and option.repeatable:
            text = shlex.join(kept.splitlines())
        edited = kept != base.run_options.get(option.name)
        spec = _flag_spec_from_option(option)
        origin = _origin_of_launcher_value(edited, text)
        yield FlagRow(spec.name, text, spec.default, origin, spec)


def _origin_of_launcher_value(edited: bool, value: str | None) -> Origin:
    if value is None:
        return Origin.DEFAULT
    if edited:
        return Origin.EDITED
    return Origin.PRESET


def _flag_spec_from_option(option: RunOption) -> FlagSpec:
    about = f"{option.help[:1].upper()}{option.help[1:]}."
    return FlagSpec(
        f"{_OPTION}{option.name}",
        FlagKind.STR,
        choices=option.choices,
        default=option.default or None,
        help=about,
        most_used=1,
    )

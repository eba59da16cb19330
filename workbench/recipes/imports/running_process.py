"""Reads the command of a running server as a recipe, including the environment variables that tune
an engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from workbench.engines.command_line import find_indexed_engine_starts
from workbench.engines.preset_trust import is_tuning_variable
from workbench.model.counts import count_of
from workbench.model.secrets import mask_argv
from workbench.recipes.imports.server_command import (
    ServerCommand,
    no_server_finding,
    plan_of_command,
)
from workbench.recipes.recipe import Notes, Recipe, drop_values_unfit_for_preset, shorten_value

FORM_TITLE = "command of a running process"


def recipe_of_process(
    argv: Sequence[str], env: Mapping[str, str] | None, workdir: str | None
) -> Recipe:
    """Return the recipe of a process with this command line, environment and working directory.
    `env` is None if the environment cannot be read."""
    notes = Notes()
    found = next(find_indexed_engine_starts(argv), None)
    if found is None:
        notes.findings.append(
            no_server_finding(FORM_TITLE, [shorten_value(" ".join(mask_argv(argv)))])
        )
        return drop_values_unfit_for_preset(Recipe(None, FORM_TITLE), notes)
    start = found[1]
    if env is None:
        notes.add_left_out_note(
            "its environment", "only the process's own user and root can read it"
        )
        env = {}
    own = {name: text for name, text in env.items() if is_tuning_variable(name)}
    if len(own) < len(env):
        count = len(env) - len(own)
        what = f"what its environment has besides ({count_of(count, 'variable')})"
        notes.add_left_out_note(what, "it does not tune an engine")
    relative = any("/" in word and not word.startswith("/") for word in start.executable)
    named = "." in start.engine.launch[-1]  # such an engine starts in its source directory
    plan = plan_of_command(ServerCommand(start, own, workdir if relative or named else None), notes)
    return drop_values_unfit_for_preset(Recipe(plan, FORM_TITLE), notes)

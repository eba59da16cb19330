"""A recipe file for sparkrun, a tool that starts servers in containers on one or several DGX
Sparks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from workbench.model.errors import InputError
from workbench.model.findings import Level
from workbench.model.open_files import open_files_option
from workbench.recipes import yaml_text
from workbench.recipes.exports.containers import add_container_notes
from workbench.recipes.exports.shell import format_flag_per_line, quote_argument
from workbench.recipes.launch import Launch, Word, argument_or_secret
from workbench.recipes.recipe import Notes, shorten_value

# Flags with which sparkrun tells each node its place.
_FLAGS_OF_NODES = (
    "nnodes",
    "node-rank",
    "master-addr",
    "master-port",
    "headless",
    "dist-init-addr",
)
# The limits of sparkrun's containers; a recipe that sets one limit replaces all of them.
_LIMITS = ("memlock=-1:-1", "stack=67108864")


def sparkrun_recipe_text(launch: Launch, notes: Notes) -> str:
    """Return the text of the recipe. Raises InputError if sparkrun cannot start the engine."""
    engine = launch.engine
    if not engine.sparkrun_runtime:
        raise InputError(
            f"sparkrun cannot start {engine.title}", next_step="export the server in another format"
        )
    add_container_notes(launch, notes)
    # sparkrun knows the engine by its usual program at the beginning of the command.
    words = list(map(quote_argument, (*engine.launch, *_arguments_common_to_nodes(launch, notes))))
    known = {"model": launch.plan.model, "port": str(launch.port), "host": launch.host}
    for name in known:
        if any(f"{{{name}}}" in word for word in words):
            text = (
                f"sparkrun replaces {{{name}}} in the command, and the plan means the "
                "characters themselves"
            )
            notes.add(Level.ERROR, "replaced", text)
    for name, text in launch.env.items():
        if "$" in text:
            notes.add(Level.ERROR, "replaced", f"sparkrun replaces variables in {name}: {text}")
    defaults: dict[str, Any] = {"port": launch.port, "host": launch.host}
    for name in defaults:
        words[words.index(engine.command_line_option(name)) + 1] = f"{{{name}}}"
    document = {
        "recipe_version": "2",
        "name": launch.name,
        "model": launch.plan.model,
        "runtime": engine.sparkrun_runtime,
        "container": launch.image,
        "min_nodes": launch.host_count,
        "max_nodes": launch.host_count,
        "metadata": {"description": shorten_value(launch.title)},
        "defaults": defaults,
        "env": {
            **_environment_common_to_nodes(launch),
            **{name: f"${{{name}}}" for name in launch.secrets},
        },
        "executor_config": _ulimit_fields(launch),
        "command": format_flag_per_line(words) + "\n",
    }
    return yaml_text.dump_yaml(yaml_text.drop_empty_fields(document))


def _arguments_common_to_nodes(launch: Launch, notes: Notes) -> list[Word]:
    """Return the arguments of the command that all nodes share."""
    plan = replace(launch.plan, nodes=())
    if launch.nodes:
        for name in _FLAGS_OF_NODES:
            plan = plan.without_flag(name)
        what = "what belongs to one node, such as its address and rank,"
        notes.add_left_out_note(what, "sparkrun sets its own for each node")
    argv = launch.engine.command(plan).argv
    return list(map(argument_or_secret, argv[len(launch.engine.first_command_words(plan)) :]))


def _environment_common_to_nodes(launch: Launch) -> dict[str, str]:
    """Return the environment variables that all nodes share. On several nodes, the address of the
    host is none of them."""
    own = launch.engine.host_address_env if launch.nodes else None
    return {name: text for name, text in launch.env.items() if name != own}


def _ulimit_fields(launch: Launch) -> dict[str, list[str]]:
    return {"ulimit": [*_LIMITS, open_files_option(launch.open_files)]} if launch.open_files else {}

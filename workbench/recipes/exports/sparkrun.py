"""A recipe file for sparkrun, a tool that starts servers in containers on one or several DGX
Sparks."""

from __future__ import annotations

from typing import Any

from workbench.model.errors import InputError
from workbench.model.findings import Level
from workbench.recipes import yaml_text
from workbench.recipes.exports.containers import check_image
from workbench.recipes.exports.shell import flag_lines, quoted
from workbench.recipes.launch import Launch
from workbench.recipes.recipe import Notes, short


def recipe(launch: Launch, notes: Notes) -> str:
    """Return the text of the recipe. Raises InputError if sparkrun cannot start the engine."""
    engine = launch.engine
    if not engine.sparkrun_runtime:
        raise InputError(
            f"sparkrun cannot start {engine.title}", next_step="export the server in another format"
        )
    check_image(launch, notes)
    # sparkrun knows the engine by its usual program at the beginning of the command.
    arguments = launch.in_image[len(engine.image_program or engine.launch) :]
    words = [quoted(word) for word in (*engine.launch, *arguments)]
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
        words[words.index(f"--{name}") + 1] = f"{{{name}}}"
    nodes = max(1, len(launch.nodes))
    if launch.nodes:
        notes.left_out(
            "the nodes' addresses, flags and variables", "sparkrun sets its own for each node"
        )
    document = {
        "recipe_version": "2",
        "name": launch.name,
        "model": launch.plan.model,
        "runtime": engine.sparkrun_runtime,
        "container": launch.image,
        "min_nodes": nodes,
        "max_nodes": nodes,
        "metadata": {"description": short(launch.title or launch.name)},
        "defaults": defaults,
        "env": {**launch.env, **{name: f"${{{name}}}" for name in launch.secrets}},
        "command": flag_lines(words) + "\n",
    }
    return yaml_text.dump({key: value for key, value in document.items() if value})

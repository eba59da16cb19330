"""Reads scripts that start no server themselves, but write the systemd unit or the script that
does. The file is a here-document of the script, and nothing is written or run."""

from __future__ import annotations

import re

from workbench.recipes.imports import shell_script, systemd_unit
from workbench.recipes.recipe import Given, Notes, Recipe

# of a text that may start a server
_ENGINE = re.compile(r"vllm|sglang|llama-server|tabby|docker run|podman run", re.IGNORECASE)


def read(text: str, notes: Notes, given: Given) -> Recipe | None:
    """Return the recipe in the first file that a script writes and that starts a server. None if it
    writes no such file. The notes about the script are replaced by those about the file."""
    for written in shell_script.written_texts(text):
        own = Notes()
        if systemd_unit.recognizes(written):
            recipe = systemd_unit.read(written, own)
        elif _ENGINE.search(written):
            recipe = shell_script.read(written, own, Given(directory=given.directory))
        else:
            continue
        if recipe.plan is not None:
            given.check_entry(recipe.form, "server command")
            own.left_out("the rest of the script", "the server stands in a file that it writes")
            notes.findings, notes.variables = own.findings, own.variables
            return recipe
    return None

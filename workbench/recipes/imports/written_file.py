"""Reads scripts that start no server themselves, but write the systemd unit or the script that
does. The file is a here-document of the script, and nothing is written or run."""

from __future__ import annotations

import re

from workbench.engines import registry
from workbench.recipes.imports import shell_script, systemd_unit
from workbench.recipes.recipe import Given, Notes, Recipe

_CONTAINER = re.compile(r"(?:docker|podman) run")


def read_file_written_by_script(text: str, notes: Notes, given: Given) -> Recipe | None:
    """Return the recipe in the first file that the script `text` writes and that starts a server.
    The notes about the script are then replaced by those about the file. None if the script writes
    no such file. Raises InputError if there is one and `given.entry` asks for an entry."""
    for written in shell_script.here_documents(text):
        own = Notes()
        if systemd_unit.recognizes(written):
            recipe = systemd_unit.read(written, own)
        elif _may_start_server(written):
            recipe = shell_script.read(written, own, Given(directory=given.directory))
        else:
            continue
        if recipe.plan is not None:
            given.require_entry_among(recipe.form, "server command")
            own.add_left_out_note(
                "the rest of the script", "the server stands in a file that it writes"
            )
            notes.findings, notes.variables = own.findings, own.variables
            return recipe
    return None


def _may_start_server(text: str) -> bool:
    """Return whether a text may run a container or the server of an engine."""
    names_server = re.search(registry.join_engine_process_patterns(), text, re.IGNORECASE)
    return bool(names_server or _CONTAINER.search(text))

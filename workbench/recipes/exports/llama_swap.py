"""An export in the format of llama-swap, a proxy that starts model servers on demand: a
configuration with one model."""

from __future__ import annotations

from workbench.model.errors import InputError
from workbench.model.findings import Level
from workbench.recipes import yaml_text
from workbench.recipes.exports.shell import (
    add_open_file_limit_warning,
    format_flag_per_line,
    quote_argument,
)
from workbench.recipes.launch import Launch, Secret, Word
from workbench.recipes.recipe import Notes


def llama_swap_text(launch: Launch, notes: Notes) -> str:
    """Return the text of a llama-swap configuration with one model. llama-swap chooses the port.
    Raises InputError for an argument that contains "${" or a line break, because llama-swap would
    change the argument."""
    add_open_file_limit_warning(launch, notes, "llama-swap")
    words: list[Word] = list(launch.argv)
    for word in (*words, *launch.env.values()):
        text = word.prefix if isinstance(word, Secret) else word
        if "${" in text or "\n" in text:
            raise InputError(
                f"llama-swap cannot pass {text!r} to the server: it replaces ${{…}} and splits "
                "text at line breaks"
            )
    if launch.workdir:
        notes.add(
            Level.WARN,
            "workdir",
            f"llama-swap must be started in {launch.workdir}: it sets no working directory",
        )
    at = words.index(launch.engine.command_line_option("port")) + 1
    shown = list(map(_quote_word_for_llama_swap, words))
    shown[at] = "${PORT}"
    model = {
        "name": launch.title,
        "cmd": format_flag_per_line(shown) + "\n",
        "env": [f"{name}={text}" for name, text in launch.env.items()]
        + [f"{name}=${{env.{name}}}" for name in launch.secrets],
        "checkEndpoint": launch.engine.health_path,
    }
    models = {launch.name: yaml_text.drop_empty_fields(model)}
    return yaml_text.dump_yaml({"models": models})


def _quote_word_for_llama_swap(word: Word) -> str:
    if isinstance(word, Secret):
        return f"{quote_argument(word.prefix)}${{env.{word.variable}}}"
    return quote_argument(word)

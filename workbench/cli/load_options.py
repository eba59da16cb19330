"""Options that describe the load of a benchmark: requests, tokens, rate and prompts. They are made
from their declarations in model/load_spec.py."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from workbench.cli.registry import OneOf, Option, one_of, option, switch
from workbench.model import load_options
from workbench.model.errors import InputError
from workbench.model.load_options import Choice, Constant, LoadOption, Switch
from workbench.model.load_spec import OPTIONS


def _option_of(declared: LoadOption) -> Option:
    """Return the command-line argument that a declaration describes."""
    words, help = declared.words, declared.help.replace("%", "%%")  # argparse formats the help
    kind = declared.kind
    keywords: dict[str, Any] = {}
    if isinstance(kind, Switch):
        return switch(words, help)
    if declared.name.removeprefix("--").replace("-", "_") != declared.dest:
        keywords["dest"] = declared.dest
    if isinstance(kind, Choice):
        return option(words, help, choices=kind.choices, **keywords)
    if isinstance(kind, Constant):
        return option(words, help, action="store_const", const=kind.value, **keywords)
    return option(words, help, kind.parse, **keywords)


def _options_of(group: str) -> tuple[Option | OneOf, ...]:
    """Return the command-line arguments of a group of load options. Options that exclude each other
    are one argument."""
    found: list[Option | OneOf] = []
    of_group = [declared for declared in OPTIONS if declared.group == group]
    for declared in of_group:
        if not declared.exclusive:
            found.append(_option_of(declared))
            continue
        rivals = [other for other in of_group if other.exclusive == declared.exclusive]
        if rivals[0] is declared:
            found.append(one_of(*map(_option_of, rivals)))
    return tuple(found)


(CONCURRENCY,) = _options_of(load_options.STREAMS)
SIZE = _options_of(load_options.SIZE)
SHAPE = _options_of(load_options.SHAPE)
CLIENT = _options_of(load_options.CLIENT)


def load_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of BenchSpec that the command line sets, with their values."""
    given = {one.dest: getattr(arguments, one.dest, None) for one in OPTIONS}
    del given["own_command"]
    given["command"] = _own_command(arguments)
    return {name: value for name, value in given.items() if value is not None}


def quality_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return whether and with which texts an experiment compares the answers too, as fields of
    ExperimentSpec."""
    texts = str(Path(arguments.texts).absolute()) if arguments.texts else ""
    return {"quality": not arguments.no_quality, "quality_texts": texts}


def _own_command(arguments: argparse.Namespace) -> tuple[str, ...] | None:
    """Return the words of the user's own benchmark command, which is given after `--` or by
    --command. None if there is none. Raises InputError if both are given.
    """
    given, after_dashes = (
        getattr(arguments, "own_command", None),
        getattr(arguments, "own_words", None),
    )
    if after_dashes == ():
        raise InputError(
            "no benchmark command is given after --",
            next_step="give the command, for example: workbench bench RUN -- vf-eval …",
        )
    if given and after_dashes:
        raise InputError(
            "the benchmark command is given twice",
            next_step="give the command after --, or with --command TEXT",
        )
    return given or after_dashes

"""Options that describe the load of a benchmark: requests, tokens, rate and prompts. They are made
from their declarations in model/load_spec.py."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from workbench.cli.declared_arguments import convert_options_to_arguments
from workbench.cli.registry import OneOf, Option
from workbench.cli.shared_options import select_given
from workbench.model import declared_options
from workbench.model.errors import InputError
from workbench.model.load_spec import OPTIONS


def _make_options_of_group(group: str) -> tuple[Option | OneOf, ...]:
    return convert_options_to_arguments(one for one in OPTIONS if one.group == group)


(CONCURRENCY,) = _make_options_of_group(declared_options.STREAMS)
SIZE = _make_options_of_group(declared_options.SIZE)
SHAPE = _make_options_of_group(declared_options.SHAPE)
CLIENT = _make_options_of_group(declared_options.CLIENT)


def read_load_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of BenchSpec that the command line sets, with their values."""
    given = {one.dest: getattr(arguments, one.dest, None) for one in OPTIONS}
    del given["own_command"]
    given["command"] = _read_custom_benchmark_command(arguments)
    return select_given(given)


def read_quality_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return whether an experiment also compares the answers, and with which texts, as fields of
    ExperimentSpec. Raises InputError for --texts together with --no-quality."""
    if arguments.texts and arguments.no_quality:
        raise InputError(
            "--texts names the texts of a comparison of answers, which --no-quality leaves out",
            next_step="leave out one of the two",
        )
    texts = str(Path(arguments.texts).absolute()) if arguments.texts else ""
    return {"quality": not arguments.no_quality, "quality_texts": texts}


def _read_custom_benchmark_command(arguments: argparse.Namespace) -> tuple[str, ...] | None:
    """Return the words of the user's own benchmark command, which is given after `--` or by
    --command. None if there is none. Raises InputError if both are given.
    """
    given = getattr(arguments, "own_command", None)
    after_dashes = getattr(arguments, "own_words", None)
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

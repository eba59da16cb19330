"""Options that several groups of commands share."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from workbench.cli.registry import make_exclusive_options, option, repeatable_option
from workbench.model.errors import InputError
from workbench.model.run_options import OPTIONS
from workbench.model.untrusted_text import VARIABLE_NAME


def select_given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the options that the command line gives: their value is not None."""
    return {name: value for name, value in options.items() if value is not None}


def parse_name_value_pairs(
    option: str, pairs: Sequence[str], next_step: str = ""
) -> dict[str, str]:
    """Return the values in texts of the form name=value, by name. Raises InputError for any other
    text. `option` is the option that takes the texts, for the error."""
    values: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise InputError(
                f"{option} {pair!r} is not of the form name=value",
                next_step=next_step or f"{option} name=value",
            )
        values[name] = value
    return values


def make_seconds_parser(lowest: float, highest: float) -> Callable[[str], float]:
    """Return a function that reads a number of seconds of this range from an argument."""

    def parse_seconds(text: str) -> float:
        try:
            seconds = float(text)
        except ValueError:
            seconds = -1.0
        if not lowest <= seconds <= highest:
            raise argparse.ArgumentTypeError(
                f"{text!r} is not a number of seconds from {lowest:,} to {highest:,}"
            )
        return seconds

    return parse_seconds


def _complete_assignment_from_environment(text: str) -> str:
    """Return NAME=value for the text NAME, with the value that the variable has in this process.
    Any other text is returned unchanged."""
    if VARIABLE_NAME.fullmatch(text) is None:
        return text
    if text not in os.environ:
        raise argparse.ArgumentTypeError(f"the variable {text} is not set here: give {text}=value")
    return f"{text}={os.environ[text]}"


EXECUTABLE_HELP = "the program that starts the engine, for example one in a virtual environment"

PRESET = option("preset PRESET", "id of a preset, or path of a preset file")
CHANGES = (
    repeatable_option("--set flag=value", "set a launch flag; repeatable", dest="sets"),
    repeatable_option(
        "--unset name", "remove a launch flag or an environment variable; repeatable", dest="unsets"
    ),
    repeatable_option(
        "--env K[=V]",
        "set an environment variable of the server; without a value, copy the variable from this "
        "environment, so that a secret is on no command line; repeatable",
        dest="envs",
        type=_complete_assignment_from_environment,
    ),
    option("--executable PATH", EXECUTABLE_HELP),
    repeatable_option(
        "--var name=value", "set a variable of the preset; repeatable", dest="variables"
    ),
)
RUN_AS = (
    option(
        "--as WORD",
        f"what runs the server on its host: {', '.join(OPTIONS)} (process, or what the preset or "
        "hosts.toml says)",
        dest="run_as",
    ),
    repeatable_option(
        "--run-option NAME=VALUE",
        "set an option of what runs the server; repeatable",
        dest="run_options",
    ),
)
TRUST = option(
    "--trust",
    "also accept the parts of someone else's preset that could run other programs (`workbench "
    "plan` lists them)",
)
IF_MEASURED = make_exclusive_options(
    option(
        "--wait",
        "if another user is measuring on the host, wait until that measurement ends",
        action="store_const",
        const="wait",
        dest="if_measured",
    ),
    option(
        "--anyway",
        "measure even if another user is measuring on the host; the result says so",
        action="store_const",
        const="beside",
        dest="if_measured",
    ),
)
QUALITY = (
    option(
        "--no-quality",
        "do not compare the answers of A and B. By default they are compared beside the runs if A "
        "and B differ in a setting that can change them",
    ),
    option(
        "--texts FILE",
        'your own texts for that comparison: one JSON object {"text": "…"} per line',
    ),
)
YES = option("--yes", "do not ask for confirmation")
DRY_RUN = option("--dry-run", "only print the commands")
MAX_MINUTES_LEFT = option("--max-minutes M", "time limit from now (default: no limit)", float)

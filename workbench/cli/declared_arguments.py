"""Command-line arguments that are made from declared options (model/declared_options.py)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from workbench.cli.registry import OneOf, Option, make_exclusive_options, option, switch_option
from workbench.model.declared_options import Choice, Constant, DeclaredOption, Switch


def convert_options_to_arguments(options: Iterable[DeclaredOption]) -> tuple[Option | OneOf, ...]:
    """Return the command-line arguments of the options. Options that exclude each other are one
    argument."""
    found: list[Option | OneOf] = []
    options = tuple(options)
    for declared in options:
        if not declared.exclusive:
            found.append(_option_of(declared))
            continue
        rivals = [other for other in options if other.exclusive == declared.exclusive]
        if rivals[0] is declared:
            found.append(make_exclusive_options(*map(_option_of, rivals)))
    return tuple(found)


def _option_of(declared: DeclaredOption) -> Option:
    """Return the command-line argument that a declaration describes."""
    words, help = declared.words, declared.help.replace("%", "%%")  # argparse formats the help
    kind = declared.kind
    keywords: dict[str, Any] = {}
    if isinstance(kind, Switch):
        return switch_option(words, help)
    if declared.name.removeprefix("--").replace("-", "_") != declared.dest:
        keywords["dest"] = declared.dest
    if isinstance(kind, Choice):
        return option(words, help, choices=kind.choices, **keywords)
    if isinstance(kind, Constant):
        return option(words, help, action="store_const", const=kind.value, **keywords)
    return option(words, help, kind.parse, **keywords)

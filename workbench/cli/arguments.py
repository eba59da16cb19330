"""What the argument trees of all commands are built with."""

from __future__ import annotations

import argparse
from typing import Any, TypeAlias

Commands: TypeAlias = "argparse._SubParsersAction[Any]"


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        from workbench.model.errors import InputError

        if any(f" {option}" in message.replace("=", " ") for option in ("--host", "--simulate")):
            raise InputError(message, next_step="--host and --simulate stand before the command")
        raise InputError(message, next_step=f"{self.prog} --help")


def add(sub: Commands, name: str, help: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = sub.add_parser(name, help=help, description=help, allow_abbrev=False)
    parser.add_argument("--json", action="store_true", help=argparse.SUPPRESS)
    return parser


def group(sub: Commands, name: str, help: str) -> Commands:
    parser = add(sub, name, help)
    return parser.add_subparsers(dest="action", metavar="ACTION", required=True)


def plan_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("preset", metavar="PRESET", help="id of a preset, or path of a preset file")
    parser.add_argument("--set", action="append", default=[], metavar="flag=value", dest="sets")
    parser.add_argument("--unset", action="append", default=[], metavar="flag", dest="unsets")
    parser.add_argument("--env", action="append", default=[], metavar="K=V", dest="envs")
    parser.add_argument("--var", action="append", default=[], metavar="name=value", dest="variables")

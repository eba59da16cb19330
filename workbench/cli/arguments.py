"""What the argument trees of all commands are built with."""

from __future__ import annotations

import argparse
from typing import Any, TypeAlias

from workbench.cli.examples import epilog

Commands: TypeAlias = "argparse._SubParsersAction[Any]"


class Parser(argparse.ArgumentParser):
    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        """`--option=--` would become an empty list, of which no type is asked."""
        if action.option_strings and action.nargs is None and "--" in arg_strings:
            self.error(f"argument {'/'.join(action.option_strings)}: -- is no value")
        return super()._get_values(action, arg_strings)

    def error(self, message: str) -> None:  # type: ignore[override]
        from workbench.model.errors import InputError

        raise InputError(message, next_step=f"{self.prog} --help")


def global_options(parser: argparse.ArgumentParser, default: Any) -> None:
    """Add the options that every command takes, before it or after it."""
    options = parser.add_argument_group("options of every command")
    options.add_argument("--host", metavar="NAME", default=default, help="a host from your ssh config, or USER@HOST")
    options.add_argument("--simulate", metavar="PROFILE", default=default, help="a simulated host (demo --list)")
    options.add_argument(
        "--json", action="store_true", default=default or False, help="one JSON document on stdout, messages on stderr"
    )


def add(sub: Commands, name: str, help: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = sub.add_parser(
        name,
        help=help,
        description=help,
        allow_abbrev=False,
        epilog=epilog(name if sub._prog_prefix == "workbench" else f"{sub._prog_prefix.split()[1]} {name}"),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    global_options(parser, argparse.SUPPRESS)
    return parser


def group(sub: Commands, name: str, help: str) -> Commands:
    parser = add(sub, name, help)
    return parser.add_subparsers(dest="action", metavar="ACTION", required=True)


def trust_option(parser: argparse.ArgumentParser) -> None:
    help = "run also what a stranger's preset names besides its engine's usual program (`workbench plan` shows it)"
    parser.add_argument("--trust", action="store_true", help=help)


def turn_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--wait",
        action="store_true",
        dest="wait_turn",
        help="where somebody else measures on the host, begin after that",
    )


def plan_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("preset", metavar="PRESET", help="id of a preset, or path of a preset file")
    parser.add_argument("--set", action="append", default=[], metavar="flag=value", dest="sets")
    parser.add_argument("--unset", action="append", default=[], metavar="flag", dest="unsets")
    parser.add_argument("--env", action="append", default=[], metavar="K=V", dest="envs")
    parser.add_argument("--executable", metavar="PATH", help="program that starts the engine: in a venv, say")
    parser.add_argument("--var", action="append", default=[], metavar="name=value", dest="variables")

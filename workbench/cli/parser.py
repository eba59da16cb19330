"""Parsing of the command line. The argparse tree is built from the registry and contains only the
commands that this command line needs.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from workbench.cli.registry import FIRST_WORDS, GROUPS, CommandEntry, load_commands

USAGE = """workbench [--host NAME | --cluster NAME | --simulate PROFILE] [--container KIND:NAME] [--json] COMMAND …
       workbench [HOST]             open the screen (HOST: of hosts.toml or your ssh config; default: this machine)
       workbench demo               open the screen on a simulated host
       workbench help COMMAND       explain a command"""
EPILOG = """examples:
  workbench demo
  workbench gpu-box.example
  workbench presets list
  workbench --simulate four-pcie start vllm-any --wait

exit codes:
  0    success
  1    failure
  2    bad usage or input
  3    the benchmark finished, but its result is not valid
  4    `watch run` found an upgrade that is worse than the pinned version
  130  interrupted; 128 plus its number after any other signal"""

_SCREEN_OPTIONS = ("--mouse", "--interval")
_HOST_OPTIONS = (
    (
        "--host",
        "NAME",
        "a host of hosts.toml or of your ssh config, USER@HOST, or HOST/KIND:NAME for a container",
    ),
    ("--container", "KIND:NAME", "a container on the host, such as podman:vllm or pct:101"),
    (
        "--cluster",
        "NAME",
        "a cluster of hosts.toml: its first node, and all nodes for a server that spans them",
    ),
    ("--simulate", "PROFILE", "a simulated host; `workbench demo --list` lists them"),
)
_WITH_VALUE = tuple(name for name, *_ in _HOST_OPTIONS)
_Subparsers: TypeAlias = "argparse._SubParsersAction[Any]"


class Parser(argparse.ArgumentParser):
    """An argument parser that raises InputError where argparse would exit. It also raises
    InputError if an option that takes one value is given twice with different values; argparse
    would take the last."""

    def __init__(self, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.given: dict[str, Any] = {}  # values of the options on the command line, by dest
        self.register("action", None, _StoreOnce)
        self.register("action", "store", _StoreOnce)
        self.register("action", "switch", _SwitchOnce)

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        self.given = {}
        return super().parse_known_args(args, namespace)

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        """Return the values of a command-line argument. Raises InputError for `--option=--`, whose
        value argparse would drop."""
        if action.option_strings and action.nargs is None and "--" in arg_strings:
            self.error(f"argument {'/'.join(action.option_strings)}: -- is not a value")
        return super()._get_values(action, arg_strings)

    def error(self, message: str) -> None:  # type: ignore[override]
        raise _input_error(_in_plain_words(message), f"{self.prog} --help")


def _in_plain_words(message: str) -> str:
    """Return a message of argparse without the names of Python's types."""
    for type_name, expected in (("int", "whole number"), ("float", "number")):
        message = message.replace(f"invalid {type_name} value:", f"expected a {expected}, not")
    return message


class _StoreOnce(argparse.Action):
    """An argparse action that stores a value. It raises InputError if the option is given again
    with a different value."""

    def __call__(
        self, parser: Any, namespace: argparse.Namespace, value: Any, option: str | None = None
    ) -> None:
        if option is not None:
            _refuse_second_value(parser, self, value)
        setattr(namespace, self.dest, value)


class _SwitchOnce(argparse.BooleanOptionalAction):
    """An argparse action for an option with a --no- form. It raises InputError if both forms are
    given."""

    def __call__(
        self, parser: Any, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        super().__call__(parser, namespace, values, option)
        _refuse_second_value(parser, self, getattr(namespace, self.dest))


def _refuse_second_value(parser: Parser, action: argparse.Action, value: Any) -> None:
    earlier = parser.given.setdefault(action.dest, value)
    if earlier is not value and earlier != value:  # NaN is not equal to itself
        names = "/".join(action.option_strings)
        raise _input_error(f"{names} is given twice, with different values", f"give {names} once")


def parse_command_line(argv: Sequence[str]) -> argparse.Namespace:
    """Return the namespace of a command line. Its `command` has the words of the command, its
    `handler` the function that runs it.

    Raises InputError if the line is not valid. Exits with 0 after printing the help for `--help`.
    """
    count = _count_leading_options(argv)
    leading, rest = list(argv[:count]), list(argv[count:])
    if rest and rest[0] in ("-V", "--version"):
        rest[0] = "version"
    if not rest or rest[0].split("=")[0] in _SCREEN_OPTIONS:
        return _parse_screen_arguments(None, [*leading, *rest])
    if rest[0] == "help":
        rest = [*rest[1:], "--help"]
    rest, after_dashes = _split_off_benchmark_command(rest)
    if not rest[0].startswith("-") and rest[0] not in FIRST_WORDS:
        return _parse_host_screen_arguments(rest[0], rest[1:], leading)
    first_words: Iterable[str] = FIRST_WORDS
    if rest[0] in FIRST_WORDS:
        first_words = [rest[0]]
    parser = build_parser(first_words)
    words = _join_command_words(rest, parser)
    command_words = 2 if words[0] in GROUPS else 1
    arguments, unknown = parser.parse_known_args(
        [*words[:command_words], *leading, *words[command_words:]]
    )
    if unknown:
        raise _input_error(
            f"unrecognized arguments: {' '.join(unknown)}", f"workbench {arguments.command} --help"
        )
    arguments.own_words = after_dashes
    return arguments


def build_parser(
    first_words: Iterable[str] = FIRST_WORDS, commands_without_arguments: Iterable[str] = ()
) -> argparse.ArgumentParser:
    """Return the argparse tree of the commands whose first word is in `first_words`. Commands in
    `commands_without_arguments` are added without their arguments.
    """
    root = Parser(
        prog="workbench",
        usage=USAGE,
        allow_abbrev=False,
        description="Tune LLM inference servers on NVIDIA GPUs.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    root.add_argument("-V", "--version", action="store_true", help="print the version")
    _add_global_options(root, None)
    top: _Subparsers = root.add_subparsers(
        prog="workbench", dest="command", metavar="COMMAND", required=True
    )
    for word in first_words:
        if word not in GROUPS:
            for found in load_commands(word):
                _add_command(top, found.name, found)
            continue
        members = load_commands(word)
        group = _add_parser(top, word, GROUPS[word], members[0].examples[:1])
        actions: _Subparsers = group.add_subparsers(dest="action", metavar="ACTION", required=True)
        for found in members:
            _add_command(actions, found.name.removeprefix(f"{word} "), found)
    for word in commands_without_arguments:
        top.add_parser(word)
    return root


def _add_command(subparsers: _Subparsers, name: str, found: CommandEntry) -> None:
    parser = _add_parser(subparsers, name, found.summary, found.examples)
    parser.usage = found.usage
    for argument in found.arguments:
        argument.add_to(parser)
    parser.set_defaults(command=found.name, handler=found.handler)


def _add_parser(
    subparsers: _Subparsers, name: str, summary: str, examples: Iterable[str]
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        allow_abbrev=False,
        epilog="\n".join(["examples:", *(f"  {line}" for line in examples)]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_global_options(parser, argparse.SUPPRESS)
    return parser


def _add_global_options(parser: argparse.ArgumentParser, default: Any) -> None:
    """Add the options that every command accepts, both before and after the name of the command."""
    options = parser.add_argument_group("options of every command")
    for name, metavar, text in _HOST_OPTIONS:
        options.add_argument(name, metavar=metavar, default=default, help=text)
    text = "print one JSON document on stdout, and messages on stderr"
    options.add_argument("--json", action="store_true", default=default or False, help=text)


def _split_off_benchmark_command(
    words: list[str],
) -> tuple[list[str], tuple[str, ...] | None]:
    """Split the words of `bench` at `--`. Return the words before it, and the user's own benchmark
    command after it. The command is None without `--`, and for any other command."""
    if words[0] != "bench" or "--" not in words:
        return words, None
    at = words.index("--")
    return words[:at], tuple(words[at + 1 :])


def _join_command_words(words: list[str], parser: argparse.ArgumentParser) -> list[str]:
    """Join the first two words to one word if the pair is the name of a command, such as
    "experiment resume". Otherwise return the words unchanged, because some commands, such as
    "experiment PRESET", have a name of one word."""
    groups = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    if not groups or not words:
        return words
    joined = " ".join(words[:2])
    if joined in groups[0].choices:
        return [joined, *words[2:]]
    child = groups[0].choices.get(words[0])
    if child is None:
        return words
    return [words[0], *_join_command_words(words[1:], child)]


def _count_leading_options(argv: Sequence[str]) -> int:
    """Return how many words at the start of the command line are global options or their values."""
    count = 0
    while count < len(argv) and argv[count].split("=")[0] in (*_WITH_VALUE, "--json"):
        count += 2 if argv[count] in _WITH_VALUE else 1
    return count


def _parse_host_screen_arguments(
    host: str, options: list[str], leading_options: list[str]
) -> argparse.Namespace:
    """Return the namespace for the command that opens the screen on the host called `host`. Raises
    InputError if neither hosts.toml nor ssh has such a host, because the word is then probably a
    mistyped command."""
    import difflib

    from workbench.session.hosts import names as host_names

    # the resolver, which can take a second, is asked last: most such words are mistyped commands
    has_words = bool(options) and not options[0].startswith("-")
    if has_words and options[0] in FIRST_WORDS and host_names.is_host_name_resolvable(host):
        raise _input_error(
            f"{host!r} is a host and not a command",
            f"`workbench --host {host} {' '.join(options)}` runs the command on this host",
        )
    if has_words or not host_names.is_host_name_resolvable(host):
        near = difflib.get_close_matches(
            host, [*FIRST_WORDS, "help", *host_names.known_host_names()], n=1, cutoff=0.75
        )
        hint = f" Did you mean `workbench {near[0]}`?" if near else ""
        raise _input_error(
            f"{host!r} is not a command, and neither hosts.toml nor ssh knows a host of that "
            f"name.{hint}",
            "`workbench --help` lists the commands; `workbench --host NAME` tries to reach any "
            "host",
        )
    return _parse_screen_arguments(host, [*leading_options, *options])


def _parse_screen_arguments(host: str | None, options: Sequence[str]) -> argparse.Namespace:
    from workbench.cli.screen import SCREEN_OPTIONS, open_screen

    parser = Parser(prog="workbench [HOST]", add_help=False, allow_abbrev=False)
    for each in SCREEN_OPTIONS:
        each.add_to(parser)
    _add_global_options(parser, None)
    arguments = parser.parse_args(options)
    arguments.command, arguments.handler, arguments.target = "screen", open_screen, host
    return arguments


def _input_error(message: str, next_step: str) -> Exception:
    from workbench.model.errors import InputError

    return InputError(message, next_step=next_step)

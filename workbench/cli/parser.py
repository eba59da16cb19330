"""Arguments of every command, as one argparse tree."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from workbench import __version__

USAGE = """workbench [--host NAME | --simulate PROFILE] [--json] COMMAND …
       workbench [HOST]             the screen (HOST: a name from your ssh config; none: this machine)
       workbench demo               the screen on a simulated host"""


_SCREEN_OPTIONS = ("--mouse", "--interval")
_INTERVAL_S = (0.2, 60.0)
_Commands: TypeAlias = "argparse._SubParsersAction[Any]"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        from workbench.model.errors import InputError

        if any(f" {option}" in message.replace("=", " ") for option in ("--host", "--simulate")):
            raise InputError(message, next_step="--host and --simulate stand before the command")
        raise InputError(message, next_step=f"{self.prog} --help")


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Arguments -> namespace with `command`. Raises InputError; `--help` and `--version` exit 0."""
    globals_, rest = _globals().parse_known_args(_leading(argv))
    rest = [*rest, *argv[len(_leading(argv)) :]]
    if not rest or rest[0].split("=")[0] in _SCREEN_OPTIONS:
        return _screen(None, rest, globals_)
    # All the others cost 7 ms, which a screen need not wait for.
    parser = _root(_screens) if rest[0] == "demo" else _root(*_GROUPS)
    if not rest[0].startswith("-") and rest[0] not in commands(parser):
        return _screen_on(rest, globals_, commands(parser))
    space = parser.parse_args(rest)
    for name, value in vars(globals_).items():  # options are accepted before and after the command
        if value or not hasattr(space, name):
            setattr(space, name, value)
    return space


def commands(parser: argparse.ArgumentParser) -> list[str]:
    action = next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    return list(action.choices)


def _leading(argv: Sequence[str]) -> list[str]:
    """The options before the command."""
    count = 0
    while count < len(argv) and argv[count].startswith("-"):
        takes_value = argv[count] in ("--host", "--simulate")
        count += 2 if takes_value else 1
    return list(argv[:count])


def _screen_on(rest: list[str], globals_: argparse.Namespace, known: list[str]) -> argparse.Namespace:
    import difflib

    from workbench.model.errors import InputError

    near = difflib.get_close_matches(rest[0], known, n=1, cutoff=0.75)
    if near or (len(rest) > 1 and not rest[1].startswith("-")):
        hint = f" Did you mean `workbench {near[0]}`?" if near else ""
        raise InputError(f"no command called {rest[0]!r}.{hint}", next_step="workbench --help")
    return _screen(rest[0], rest[1:], globals_)


def _screen(host: str | None, options: Sequence[str], globals_: argparse.Namespace) -> argparse.Namespace:
    screen = _Parser(prog="workbench [HOST]", add_help=False, allow_abbrev=False)
    _screen_options(screen)
    screen.add_argument("--json", action="store_true")
    space = screen.parse_args(options)
    space.json |= globals_.json
    return argparse.Namespace(**{**vars(globals_), **vars(space), "command": "screen", "target": host})


def _globals() -> argparse.ArgumentParser:
    parser = _Parser(prog="workbench", add_help=False, allow_abbrev=False)
    _global_options(parser)
    return parser


def _global_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", metavar="NAME", help="a host from your ssh config instead of this machine")
    parser.add_argument("--simulate", metavar="PROFILE", help="a simulated host (workbench demo --list names them)")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout, messages on stderr")


def _root(*groups: Callable[[_Commands], None]) -> argparse.ArgumentParser:
    parser = _Parser(prog="workbench", usage=USAGE, allow_abbrev=False, description="Tune LLM inference servers.")
    parser.add_argument("--version", action="version", version=f"workbench {__version__}")
    sub = parser.add_subparsers(prog="workbench", dest="command", metavar="COMMAND", required=True)
    for group in groups:
        group(sub)
    return parser


def _add(sub: _Commands, name: str, help: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = sub.add_parser(name, help=help, description=help, allow_abbrev=False)
    parser.add_argument("--json", action="store_true", help=argparse.SUPPRESS)
    return parser


def _group(sub: _Commands, name: str, help: str) -> _Commands:
    parser = _add(sub, name, help)
    return parser.add_subparsers(dest="action", metavar="ACTION", required=True)


def _screens(sub: _Commands) -> None:
    demo = _add(sub, "demo", "the screen on a simulated host: no GPU needed")
    demo.add_argument("--host-profile", default="rtx-pro-6000", metavar="NAME")
    demo.add_argument("--list", action="store_true", help="names of the simulated hosts")
    _screen_options(demo)
    shot = _add(sub, "screenshots", "render the screen's pictures (SVG and PNG) from a simulated host")
    shot.add_argument("directory", nargs="?", default="screenshots")


def _screen_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--mouse", action="store_true")
    parser.add_argument("--interval", type=_interval, metavar="S", help="seconds between two readings (1)")


def _interval(text: str) -> float:
    lowest, highest = _INTERVAL_S
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not lowest <= seconds <= highest:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from {lowest:g} to {highest:g}")
    return seconds


def _plan_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("preset", metavar="PRESET", help="id of a preset, or path of a preset file")
    parser.add_argument("--set", action="append", default=[], metavar="flag=value", dest="sets")
    parser.add_argument("--unset", action="append", default=[], metavar="flag", dest="unsets")
    parser.add_argument("--env", action="append", default=[], metavar="K=V", dest="envs")
    parser.add_argument("--var", action="append", default=[], metavar="name=value", dest="variables")


def _presets(sub: _Commands) -> None:
    actions = _group(sub, "presets", "the library of documented setups")
    _add(actions, "list", "every preset that was found")
    _add(actions, "show", "one preset with its claims and caveats").add_argument("id")
    check = _add(actions, "check", "check preset files; nothing in them is run")
    check.add_argument("files", nargs="+", metavar="FILE")
    _add(actions, "path", "where presets are looked for")
    flags = _add(sub, "flags", "every launch flag that an engine version knows")
    flags.add_argument("engine")
    flags.add_argument("--version", dest="engine_version", metavar="V")
    flags.add_argument("--search", metavar="TEXT")
    _plan_options(_add(sub, "plan", "argv, environment and findings of a launch; starts nothing"))


def _servers(sub: _Commands) -> None:
    start = _add(sub, "start", "start a server that outlives this command; prints the run id")
    _plan_options(start)
    start.add_argument("--wait", action="store_true", help="until it is READY or has failed")
    start.add_argument("--timeout", type=float, default=1800.0, metavar="S")
    _add(sub, "servers", "runs of this host, adopted or not")
    logs = _add(sub, "logs", "a run's log from its first byte")
    logs.add_argument("run", metavar="RUN")
    logs.add_argument("--follow", action="store_true")
    _add(sub, "stop", "end a run: every process of it, and no other").add_argument("run", metavar="RUN")


def _measuring(sub: _Commands) -> None:
    bench = _add(sub, "bench", "benchmark a run, or any OpenAI-compatible server by URL")
    bench.add_argument("run", nargs="?", metavar="RUN")
    bench.add_argument("--url", help="base URL of a server that Workbench did not start")
    bench.add_argument("--model", help="model name to ask for (default: the first the server names)")
    bench.add_argument("--concurrency", default=None, metavar="N[,N…]")
    for name in ("requests", "max-tokens", "input-tokens", "warmup"):
        bench.add_argument(f"--{name}", type=int, default=None, metavar="N")
    bench.add_argument("--shared-prefix", action="store_true", help="keep the prefix cache in play")
    bench.add_argument("--api-key-env", metavar="NAME", help="environment variable that holds the API key")
    actions = _group(sub, "results", "stored benchmark results")
    _add(actions, "list", "newest first")
    _add(actions, "show", "one result with all its conditions").add_argument("id", type=int)
    export = _add(actions, "export", "one result as a file's text on stdout")
    export.add_argument("id", type=int)
    export.add_argument("--format", choices=("json", "csv", "md"), default="json", dest="form")
    compare = _add(sub, "compare", "what changed between two results, and what it did")
    compare.add_argument("a", type=int)
    compare.add_argument("b", type=int)


def _gpu(sub: _Commands) -> None:
    actions = _group(sub, "gpu", "GPU state and settings")
    _add(actions, "status", "clocks, power, limits, temperature, processes")
    setter = _add(actions, "set", "change settings: shown first, recorded before, read back after")
    setter.add_argument("--gpu", default="all", metavar="I|UUID|all")
    setter.add_argument("--persistence", choices=("on", "off"))
    setter.add_argument("--power-limit", type=float, metavar="W")
    setter.add_argument("--lock-gpu-clocks", metavar="MIN,MAX")
    setter.add_argument("--lock-memory-clocks", metavar="MHZ|MIN,MAX")
    setter.add_argument("--reset-gpu-clocks", action="store_true")
    setter.add_argument("--reset-memory-clocks", action="store_true")
    setter.add_argument("--dry-run", action="store_true", help="print the commands only")
    setter.add_argument("--yes", action="store_true", help="do not ask")
    revert = _add(actions, "revert", "give back what was there before Workbench changed it")
    revert.add_argument("--gpu", default="all", metavar="I|UUID|all")
    revert.add_argument("--yes", action="store_true")


def _doctor(sub: _Commands) -> None:
    _add(sub, "doctor", "facts of this host and what is missing")


_GROUPS = (_screens, _presets, _servers, _measuring, _gpu, _doctor)

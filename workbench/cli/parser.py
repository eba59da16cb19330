"""Arguments of every command, as one argparse tree."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

from workbench.cli.arguments import Commands, Parser, add, global_options, group, plan_options, trust_option
from workbench.cli.bench_arguments import measuring
from workbench.cli.examples import epilog
from workbench.cli.experiment_arguments import experiments
from workbench.cli.gpu_arguments import gpu
from workbench.cli.option_help import explain
from workbench.cli.results_arguments import results

USAGE = """workbench [--host NAME | --simulate PROFILE] [--json] COMMAND …
       workbench [HOST]             the screen (HOST: a name from your ssh config; none: this machine)
       workbench demo               the screen on a simulated host"""


_SCREEN_OPTIONS = ("--mouse", "--interval")
_INTERVAL_S = (0.2, 60.0)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Return the namespace of a command line, with `command`. Raises InputError. `--help` exits 0."""
    globals_, rest = _globals().parse_known_args(_leading(argv))
    rest = [*rest, *argv[len(_leading(argv)) :]]
    if rest and rest[0] in ("-V", "--version"):
        return argparse.Namespace(command="version", json="--json" in argv)
    if not rest or rest[0].split("=")[0] in _SCREEN_OPTIONS:
        return _screen(None, rest, globals_)
    # All the others cost 7 ms, which a screen need not wait for.
    rest, own = _own_command(rest)
    parser = _root(_screens) if rest[0] == "demo" else tree()
    if rest[0] == "help":
        rest = [*rest[1:], "--help"]
    rest = _joined(rest, parser)
    if not rest[0].startswith("-") and rest[0] not in commands(parser):
        return _screen_on(rest, globals_, commands(parser))
    space = parser.parse_args(rest)
    space.own_words = own
    for name, value in vars(globals_).items():
        after = getattr(space, name, None)
        if value and after and value != after:
            raise _twice(name)
        if value or not hasattr(space, name):
            setattr(space, name, value)
    return space


def tree() -> argparse.ArgumentParser:
    """Return the arguments of every command, for parsing and for completion."""
    return _root(*_GROUPS)


def _twice(option: str) -> Exception:
    from workbench.model.errors import InputError

    return InputError(f"--{option} is given twice, with two values", next_step="give it once")


def _own_command(words: list[str]) -> tuple[list[str], tuple[str, ...] | None]:
    """`bench … -- COMMAND…` cut in two: what follows is not ours to read."""
    if words[0] != "bench" or "--" not in words:
        return words, None
    at = words.index("--")
    return words[:at], tuple(words[at + 1 :])


def commands(parser: argparse.ArgumentParser) -> list[str]:
    action = next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    return list(action.choices)


def _joined(words: list[str], parser: argparse.ArgumentParser) -> list[str]:
    """Join two words that are one command: "experiment resume", beside "experiment PRESET"; also in a group."""
    groups = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    if not groups or not words:
        return words
    if " ".join(words[:2]) in groups[0].choices:
        return [" ".join(words[:2]), *words[2:]]
    child = groups[0].choices.get(words[0])
    return [words[0], *_joined(words[1:], child)] if child is not None else words


def _leading(argv: Sequence[str]) -> list[str]:
    """The options before the command."""
    count = 0
    while count < len(argv) and argv[count].startswith("-"):
        takes_value = argv[count] in ("--host", "--simulate")
        count += 2 if takes_value else 1
    return list(argv[:count])


def _screen_on(rest: list[str], globals_: argparse.Namespace, known: list[str]) -> argparse.Namespace:
    """Return the screen on the host `rest[0]` if ssh knows that name. Raises InputError for a mistyped command."""
    import difflib

    from workbench import hosts
    from workbench.model.errors import InputError

    if (len(rest) > 1 and not rest[1].startswith("-")) or not hosts.is_known(rest[0]):
        near = difflib.get_close_matches(rest[0], known, n=1, cutoff=0.75)
        hint = f" Did you mean `workbench {near[0]}`?" if near else ""
        raise InputError(
            f"no command is called {rest[0]!r}, and ssh knows no host of that name.{hint}",
            next_step="`workbench --help` lists the commands; `workbench --host NAME` opens a host all the same",
        )
    return _screen(rest[0], rest[1:], globals_)


def _screen(host: str | None, options: Sequence[str], globals_: argparse.Namespace) -> argparse.Namespace:
    screen = Parser(prog="workbench [HOST]", add_help=False, allow_abbrev=False)
    _screen_options(screen)
    global_options(screen, argparse.SUPPRESS)
    space = screen.parse_args(options)
    return argparse.Namespace(**{**vars(globals_), **vars(space), "command": "screen", "target": host})


def _globals() -> argparse.ArgumentParser:
    parser = Parser(prog="workbench", add_help=False, allow_abbrev=False)
    global_options(parser, None)
    return parser


def _root(*groups: Callable[[Commands], None]) -> argparse.ArgumentParser:
    parser = Parser(
        prog="workbench",
        usage=USAGE,
        allow_abbrev=False,
        description="Tune LLM inference servers on NVIDIA GPUs.",
        epilog=epilog(""),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-V", "--version", action="store_true", help="print the version")
    global_options(parser, None)
    sub = parser.add_subparsers(prog="workbench", dest="command", metavar="COMMAND", required=True)
    for add_group in groups:
        add_group(sub)
    explain(parser)
    return parser


def _screens(sub: Commands) -> None:
    demo = add(sub, "demo", "the screen on a simulated host: no GPU needed")
    demo.add_argument("--host-profile", default="rtx-pro-6000", metavar="NAME")
    demo.add_argument("--list", action="store_true", help="names of the simulated hosts")
    _screen_options(demo)
    shot = add(sub, "screenshots", "render the screen's pictures from simulated hosts")
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


def _presets(sub: Commands) -> None:
    actions = group(sub, "presets", "the library of documented setups")
    add(actions, "list", "every preset that was found")
    add(actions, "show", "one preset with its claims and caveats").add_argument("id")
    check = add(actions, "check", "check preset files; nothing in them is run")
    check.add_argument("files", nargs="+", metavar="FILE")
    add(actions, "path", "where presets are looked for")
    flags = add(sub, "flags", "every launch flag that an engine version knows")
    flags.add_argument("engine", metavar="ENGINE", help="vllm, sglang, tabbyapi or llamacpp")
    flags.add_argument("--version", dest="engine_version", metavar="V")
    flags.add_argument("--search", metavar="TEXT")
    plan_options(add(sub, "plan", "argv, environment and findings of a launch; starts nothing"))


def _servers(sub: Commands) -> None:
    start = add(sub, "start", "start a server that outlives this command; prints the run id")
    plan_options(start)
    trust_option(start)
    start.add_argument("--wait", action="store_true", help="until it is READY or has failed")
    start.add_argument("--timeout", type=float, default=1800.0, metavar="S")
    add(sub, "servers", "runs of this host, adopted or not")
    logs = add(sub, "logs", "a run's log from its first byte")
    logs.add_argument("run", metavar="RUN")
    logs.add_argument("--follow", action="store_true")
    add(sub, "stop", "end a run: every process of it, and no other").add_argument("run", metavar="RUN")


def _doctor(sub: Commands) -> None:
    add(sub, "doctor", "facts of this host and what is missing")


def _about(sub: Commands) -> None:
    config = group(sub, "config", "the configuration file")
    add(config, "print", "every setting in force, defaults included")
    add(config, "path", "where the file is")
    shell = add(sub, "completion", "completion code for a shell")
    shell.add_argument("shell", choices=("bash", "zsh", "fish"))
    add(sub, "help", "help for a command").add_argument("words", nargs="*", metavar="COMMAND")


_GROUPS = (_screens, _presets, _servers, measuring, results, experiments, gpu, _doctor, _about)

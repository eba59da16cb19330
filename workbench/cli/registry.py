"""The registry of commands. A command file declares each command with `@command` above its handler.

A command file is imported only when one of its commands is run, explained or completed
(`FIRST_WORDS`). Command files import large modules inside their handlers, so that
`workbench --help`, which imports all command files, is quick.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple


class FirstWord(NamedTuple):
    """What the commands with the same first word have in common: the files under workbench/cli that
    declare them, and whether they run on the host of the command line. They do not if they use no
    host, or name their hosts themselves."""

    files: tuple[str, ...]
    on_host: bool = True


# first word of a command -> what its commands have in common
FIRST_WORDS: dict[str, FirstWord] = {
    "demo": FirstWord(("screen",), on_host=False),
    "fleet": FirstWord(("fleet",), on_host=False),
    "record": FirstWord(("recordings",)),
    "replay": FirstWord(("recordings",), on_host=False),
    "presets": FirstWord(("presets", "preset_apply")),
    "flags": FirstWord(("presets",), on_host=False),
    "explain": FirstWord(("explain",), on_host=False),
    "import": FirstWord(("recipes",)),
    "export": FirstWord(("recipes",)),
    "plan": FirstWord(("plan",)),
    "fit": FirstWord(("fit",)),
    "start": FirstWord(("servers",)),
    "servers": FirstWord(("servers",)),
    "logs": FirstWord(("servers",)),
    "explain-log": FirstWord(("explain_log",), on_host=False),
    "inforce": FirstWord(("inforce",)),
    "stop": FirstWord(("servers",)),
    "adopt": FirstWord(("servers",)),
    "restart": FirstWord(("servers",)),
    "probe": FirstWord(("servers",)),
    "jobs": FirstWord(("jobs",)),
    "endpoint": FirstWord(("endpoint",)),
    "runs": FirstWord(("runs",)),
    "cluster": FirstWord(("cluster", "cluster_check"), on_host=False),
    "bench": FirstWord(("bench",)),
    "compare": FirstWord(("compare",), on_host=False),
    "quality": FirstWord(("quality",)),
    "results": FirstWord(("results",), on_host=False),
    "advise": FirstWord(("advise",)),
    "experiment": FirstWord(("experiments",)),
    "sweep": FirstWord(("sweeps",)),
    "capacity": FirstWord(("capacity",)),
    "tune": FirstWord(("tune",)),
    "watch": FirstWord(("watch",)),
    "bisect": FirstWord(("bisect",)),
    "trace": FirstWord(("trace_capture",)),
    "gpu": FirstWord(("gpu_status", "gpu_settings", "gpu_verify", "gpu_sweep")),
    "doctor": FirstWord(("doctor",)),
    "hosts": FirstWord(("hosts",), on_host=False),
    "models": FirstWord(("models",)),
    "config": FirstWord(("about",), on_host=False),
    "version": FirstWord(("about",), on_host=False),
    "completion": FirstWord(("completion",), on_host=False),
}

# Words that are not commands themselves but groups of commands.
GROUPS = {
    "presets": "list, show, check and apply presets (documented server setups)",
    "results": "list, annotate, export and import stored benchmark results",
    "trace": "record the traffic of a server for `bench --trace`",
    "watch": "judge upgrades at night against the version that a preset pins",
    "runs": "remove the directories of runs that have ended",
    "cluster": "one server on several hosts",
    "gpu": "show, change, verify and sweep GPU settings",
    "hosts": "list, show, add and check the hosts that commands can name",
    "models": "list, check, copy and download the files of models on hosts",
    "config": "show the configuration",
}

Handler = Callable[[argparse.Namespace], Awaitable[int] | int]


class Option(NamedTuple):
    """A command-line argument: its names, and the keyword arguments for argparse's add_argument."""

    names: tuple[str, ...]
    keywords: dict[str, Any]

    @property
    def dest(self) -> str:
        """The name of the attribute under which argparse stores the value of this argument."""
        return str(self.keywords.get("dest", self.names[-1].strip("-").replace("-", "_")))

    def add_to(self, parser: argparse._ActionsContainer) -> None:
        parser.add_argument(*self.names, **self.keywords)


def option(
    spec: str, help: str, type: Callable[[str], Any] | None = None, **keywords: Any
) -> Option:
    """Return a command-line argument. `spec` has its names and its metavar: "--rate R", "-o
    --output FILE", "run RUN".

    An option without metavar, choices and action is a flag, whose value is True if it is given.
    """
    words = spec.split()
    count = sum(word.startswith("-") for word in words) or 1
    names, metavar = tuple(words[:count]), " ".join(words[count:])
    if metavar:
        keywords["metavar"] = metavar
    elif names[0].startswith("-") and not keywords.keys() & {"choices", "action"}:
        keywords["action"] = "store_true"
    if type is not None:
        keywords["type"] = type
    return Option(names, {"help": help, **keywords})


def repeatable(spec: str, help: str, **keywords: Any) -> Option:
    """Return an option that may be given several times. Its value is the list of all values."""
    return option(spec, help, action="append", default=[], **keywords)


def switch(spec: str, help: str) -> Option:
    """Return an option that also has a --no- form. Its value is True or False, or None if neither
    form is given."""
    return option(spec, help, action="switch")  # of parser.Parser


class OneOf(NamedTuple):
    """A group of options of which at most one may be given. If `required` is True, one must be
    given."""

    options: tuple[Option, ...]
    required: bool

    def add_to(self, parser: argparse._ActionsContainer) -> None:
        group = parser.add_mutually_exclusive_group(required=self.required)
        for each in self.options:
            each.add_to(group)


class CommandEntry(NamedTuple):
    """A command of Workbench: its words, a summary in one line, arguments, examples and handler."""

    name: str
    summary: str
    arguments: tuple[Option | OneOf, ...]
    examples: tuple[str, ...]
    usage: str | None
    handler: Handler


_COMMANDS: dict[str, CommandEntry] = {}


def exactly_one_of(*options: Option, required: bool = False) -> OneOf:
    return OneOf(options, required)


def command(
    name: str,
    summary: str,
    *arguments: Option | OneOf,
    examples: tuple[str, ...],
    usage: str | None = None,
) -> Callable[[Handler], Handler]:
    """Return a decorator that registers a handler as the command `name`. Each example is a command
    line that the parser accepts.
    """

    def register(handler: Handler) -> Handler:
        _COMMANDS[name] = CommandEntry(name, summary, arguments, examples, usage, handler)
        return handler

    return register


def commands_of(word: str) -> list[CommandEntry]:
    """Return the commands whose first word is `word`, in the order of their file. The file is
    imported if necessary."""
    for file in FIRST_WORDS[word].files:
        importlib.import_module(f"workbench.cli.{file}")
    return [found for name, found in _COMMANDS.items() if name.split()[0] == word]

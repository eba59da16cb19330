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

# first word of a command -> the files under workbench/cli that declare its commands.
# workbench/model/host_commands.py says which of them run on the host of the command line.
FIRST_WORDS: dict[str, tuple[str, ...]] = {
    "demo": ("screen",),
    "fleet": ("fleet",),
    "record": ("recordings",),
    "replay": ("recordings",),
    "presets": ("presets", "preset_apply"),
    "flags": ("presets",),
    "explain": ("explain",),
    "import": ("recipes",),
    "export": ("recipes",),
    "plan": ("plan",),
    "fit": ("fit",),
    "start": ("servers",),
    "servers": ("servers",),
    "logs": ("servers",),
    "explain-log": ("explain_log",),
    "inforce": ("inforce",),
    "stop": ("servers",),
    "adopt": ("servers",),
    "restart": ("servers",),
    "probe": ("servers",),
    "jobs": ("jobs",),
    "endpoint": ("endpoint",),
    "runs": ("runs",),
    "cluster": ("cluster", "cluster_check"),
    "bench": ("bench",),
    "compare": ("compare",),
    "quality": ("quality",),
    "results": ("results",),
    "advise": ("advise",),
    "experiment": ("experiments",),
    "sweep": ("sweeps",),
    "capacity": ("capacity",),
    "tune": ("tune",),
    "watch": ("watch",),
    "bisect": ("bisect",),
    "trace": ("trace_capture",),
    "gpu": ("gpu_status", "gpu_settings", "gpu_verify", "gpu_sweep"),
    "doctor": ("doctor",),
    "hosts": ("hosts",),
    "models": ("models",),
    "config": ("about",),
    "version": ("about",),
    "completion": ("completion",),
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
    count = max(1, sum(word.startswith("-") for word in words))
    names, metavar = tuple(words[:count]), " ".join(words[count:])
    if metavar:
        keywords["metavar"] = metavar
    elif names[0].startswith("-") and not keywords.keys() & {"choices", "action"}:
        keywords["action"] = "store_true"
    if type is not None:
        keywords["type"] = type
    return Option(names, {"help": help, **keywords})


def repeatable_option(spec: str, help: str, **keywords: Any) -> Option:
    """Return an option that may be given several times. Its value is the list of all values."""
    return option(spec, help, action="append", default=[], **keywords)


def switch_option(spec: str, help: str) -> Option:
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


def make_exclusive_options(*options: Option, required: bool = False) -> OneOf:
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


def load_commands(word: str) -> list[CommandEntry]:
    """Return the commands whose first word is `word`, in the order of their file. The file is
    imported if necessary."""
    for file in FIRST_WORDS[word]:
        importlib.import_module(f"workbench.cli.{file}")
    return [found for name, found in _COMMANDS.items() if name.split()[0] == word]

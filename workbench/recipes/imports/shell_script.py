"""Finds the server's command and its environment in a command line or a shell script. Nothing is
run.

The effects of assignments, `export` and `cd` are computed, and variables with known values are
replaced. Every other command is only added to the notes.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from workbench.engines.command_line import recognize, starts_in
from workbench.model.errors import InputError
from workbench.model.findings import Level
from workbench.recipes.imports import containers
from workbench.recipes.imports.server_command import ServerCommand, no_server, plan_of
from workbench.recipes.recipe import COMPUTED, Notes, Recipe, short
from workbench.recipes.shell_text import Code, Simple, Variable, Word, simple_commands

FORM = "command line"
_DEEPEST = 3  # scripts within scripts
_MOST_CHARS = 1024 * 1024  # of all words of a script with its variables filled in


_KEYWORDS = containers.word_set("if then elif else do while until ! { time exec command nohup")
_NO_EFFECT = containers.word_set("set shopt umask true : fi done esac } ) shift return")
# Programs that start another program, whose words follow their own.
_WRAPPERS = containers.word_set(
    "env sudo numactl taskset nice ionice chrt setsid stdbuf timeout uv uvx poetry conda mamba "
    "pixi srun mpirun "
    "systemd-run screen tmux unbuffer nsys"
)
_VARIABLE = re.compile(r"\$\{\w+\}")  # a directory that the shell script's surroundings choose
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?:\[\w*\])?\+?=(.*)", re.DOTALL)


@dataclass(slots=True)
class _State:
    """The state of a shell script after the commands processed so far. `variables` are the shell's
    variables, `env` is the environment of the programs that it starts, and `found` has the server
    commands."""

    notes: Notes
    variables: dict[str, str]
    env: dict[str, str]
    positional: Sequence[str] = ()
    depth: int = 0
    workdir: str | None = None
    chars: int = 0  # of the words with variables so far
    found: list[ServerCommand] = field(default_factory=list)


def read(text: str, notes: Notes, entry: str | None = None) -> Recipe:
    """Return the recipe of a command line or a shell script. Parts that are not understood are
    added to `notes`. `entry` is not used."""
    commands = interpret(text, notes)
    if not commands:
        notes.findings.insert(0, no_server(FORM))
        return Recipe(None, FORM)
    return recipe_of(commands, notes, FORM)


def recipe_of(commands: Sequence[ServerCommand], notes: Notes, form: str) -> Recipe:
    """Return the recipe of the first of `commands`. The other commands are added to `notes`,
    because a preset starts one server. `form` is the format of the recipe."""
    for other in commands[1:]:
        words = shlex.join((*other.start.executable, *other.start.arguments))
        about = f"a preset starts one server: {other.start.engine.title} {short(words)}"
        notes.left_out("another server command", about)
    return Recipe(plan_of(commands[0], notes), form, gpus=commands[0].gpus)


def interpret(
    text: str,
    notes: Notes,
    variables: Mapping[str, str] | None = None,
    env: Mapping[str, str] | None = None,
    positional: Sequence[str] = (),
    depth: int = 0,
) -> list[ServerCommand]:
    """Return the server commands in a shell script, which is not run. `variables`, `env` and
    `positional` are the shell's variables, its environment and the script's arguments, and `depth`
    is the number of scripts around this one. Raises InputError if the text cannot be split into
    words."""
    if depth > _DEEPEST:
        notes.refused("a script within scripts", text)
        return []
    environment = dict(env or {})
    state = _State(notes, {**(variables or {}), **environment}, environment, positional, depth)
    try:
        for command in simple_commands(text):
            _follow(command, state)
    except RecursionError:
        raise InputError("the script's quotes or variables are nested too deeply") from None
    return state.found


def _follow(command: Simple, state: _State) -> None:
    words = [text for word in command.words for text in _expanded(word, state)]
    for redirect in command.redirects:
        state.notes.refused("a redirection", redirect)
    while words and words[0] in _KEYWORDS:
        if words.pop(0) in ("if", "elif", "while", "until"):
            state.notes.refused("a condition", command.source)
            return
    own: dict[str, str] = {}
    while words and (found := _ASSIGNMENT.fullmatch(words[0])):
        own[found[1]] = found[2]
        words.pop(0)
    if not words:
        state.variables |= own
        state.env |= {name: value for name, value in own.items() if name in state.env}
    elif words[0] in ("export", "declare", "typeset", "readonly", "local"):
        _export(words, state)
    elif words[0] == "cd" and len(words) <= 3:
        state.workdir = None if len(words) == 1 or _VARIABLE.fullmatch(words[-1]) else words[-1]
    elif words[0] not in _NO_EFFECT:
        _program(words, own, command, state)


def _export(words: Sequence[str], state: _State) -> None:
    exported = words[0] == "export" or any(re.fullmatch(r"-\w*x\w*", word) for word in words)
    for word in words[1:]:
        found = _ASSIGNMENT.fullmatch(word)
        if found:
            state.variables[found[1]] = found[2]
        name = found[1] if found else word
        if exported and name in state.variables:
            state.env[name] = state.variables[name]


def _program(words: list[str], own: Mapping[str, str], command: Simple, state: _State) -> None:
    """Process a command that starts a program. `words` are the program and its arguments, and `own`
    are the variables that are assigned in front of it. If it starts a server, add the server's
    command to `state.found`, otherwise add a note that the command is not run."""
    env, name = {**state.env, **own}, words[0].rpartition("/")[2]
    script = containers.script_of(words)
    if name in containers.PROGRAMS:
        container = containers.read_run(words, state.notes)
        found = (
            containers.server_commands(container, state.notes, interpret, state.depth)
            if container is not None
            else []
        )
    elif script is not None:
        found = interpret(script[0], state.notes, state.variables, env, script[1], state.depth + 1)
    elif start := recognize(words):
        found = [ServerCommand(start, env, state.workdir)]
    else:
        found = _wrapped(words, env, state) if name in _WRAPPERS else []
    if not found:
        state.notes.refused("a shell command", command.source)
    state.found += found


def _wrapped(words: list[str], env: dict[str, str], state: _State) -> list[ServerCommand]:
    """Return the server command that a program such as `env`, `sudo` or `numactl` starts; [] if it
    starts no server."""
    for at, start in starts_in(words):
        before = words[:at]
        env |= {found[1]: found[2] for word in before if (found := _ASSIGNMENT.fullmatch(word))}
        rest = [word for word in before if not _ASSIGNMENT.fullmatch(word) and word != "env"]
        if rest:
            state.notes.left_out(f"`{shlex.join(rest)}`", "a preset starts the engine itself")
        return [ServerCommand(start, env, state.workdir)]
    for at in range(1, len(words)):
        if words[at].rpartition("/")[2] in containers.PROGRAMS:
            container = containers.read_run(words[at:], state.notes)
            return (
                containers.server_commands(container, state.notes, interpret, state.depth)
                if container is not None
                else []
            )
    return []


def _expanded(word: Word, state: _State) -> list[str]:
    """Return the texts to which a word expands: all arguments of the script for "$@", otherwise one
    text."""
    if word == (Variable("@"),) or word == ("", Variable("@"), "") or word == ("", Variable("@")):
        return list(state.positional)
    return [_text(word, state)]


def _text(word: Word, state: _State) -> str:
    """Return the text of a word with its variables replaced. Raises InputError if the texts of all
    words exceed _MOST_CHARS."""
    if len(word) == 1 and isinstance(word[0], str):
        return word[0]
    parts = []
    for part in word:
        parts.append(_part_text(part, state))
        state.chars += len(parts[-1])
        if state.chars > _MOST_CHARS:
            raise InputError(
                "the values of the script's variables grow beyond 1 MiB, the limit for a script"
            )
    return "".join(parts)


def _part_text(part: str | Variable | Code, state: _State) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, Code) or part.name == "@":
        source = part.source if isinstance(part, Code) else "$@"
        state.notes.add(Level.WARN, "computed", f"only a shell could compute {source}")
        return COMPUTED
    if part.name in state.variables:
        return state.variables[part.name]
    if part.default is not None:
        return _text(part.default, state)
    return state.notes.variable(part.name, FORM)

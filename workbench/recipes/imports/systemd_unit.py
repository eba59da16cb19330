"""Reads systemd service units as recipes: the command in ExecStart with its environment, its
working directory and its limit of open files. Nothing in a unit is run, and no file that it names
is read."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace

from workbench.model.findings import Finding, Level
from workbench.model.untrusted_numbers import parse_whole_number
from workbench.recipes.imports.server_command import ServerCommand, no_server_finding
from workbench.recipes.imports.shell_script import find_server_commands, recipe_of_commands
from workbench.recipes.recipe import Notes, Recipe

FORM_TITLE = "systemd unit"
_SECTION = re.compile(r"\[([^\[\]]+)\]")
_COMMAND_PREFIXES = "@-:+!|"  # they change how systemd runs a command, not which command it runs
_VARIABLE_NAME = re.compile(r"\$\$|\$\{([A-Za-z_]\w*)\}")
_WHOLE_VARIABLE = re.compile(r"\$([A-Za-z_]\w*)")
_SPECIFIER = re.compile(r"%(.)")
_SPECIFIERS = {"h": "home", "u": "user", "i": "instance", "I": "instance", "H": "hostname"}
_ESCAPES = {"n": "\n", "t": "\t", "s": " ", "r": "\r"}
_OPEN_FILES = range(256, 2**30 + 1)  # that a preset may ask for
_OTHER_COMMANDS = ("ExecStartPre", "ExecStartPost", "ExecCondition", "ExecReload", "ExecStop")
_READ = ("ExecStart", "Environment", "EnvironmentFile", "WorkingDirectory", "LimitNOFILE")
_IDENTITY = ("User", "Group", "DynamicUser")

Settings = Sequence[tuple[str, str]]  # (name, value) of the lines of a section, in their order


def recognizes(text: str) -> bool:
    """Return whether `text` is the file of a unit with a section [Service]."""
    lines = _logical_lines(text)
    begins_with_section = _SECTION.fullmatch(next(iter(lines), "")) is not None
    return begins_with_section and "[Service]" in lines


def read(text: str, notes: Notes) -> Recipe:
    """Return the recipe of a unit; without a plan if the unit starts no server. Parts of the unit
    that a preset cannot contain are added to `notes`."""
    sections = _parse_sections(text)
    service = sections.get("Service", ())
    title = " ".join(value for name, value in sections.get("Unit", ()) if name == "Description")
    commands = _values_of_setting(service, "ExecStart")
    found = _server_commands_of_unit(commands, _environment_of_unit(service, notes), notes)
    if not found:
        notes.findings.insert(0, _no_server_finding(commands))
        return Recipe(None, FORM_TITLE, title=title)
    workdir = _working_directory(service, notes)
    placed = [replace(one, workdir=one.workdir or workdir) for one in found]
    recipe = recipe_of_commands(placed, notes, FORM_TITLE)
    _add_ignored_setting_notes(service, notes)
    if recipe.plan is None:
        return recipe
    plan = replace(recipe.plan, open_files=_open_file_limit(service, notes))
    return replace(recipe, plan=plan, title=title)


def _logical_lines(text: str) -> list[str]:
    """Return the lines of a unit file without comments and empty lines. A line that ends with a
    backslash is joined with the next one."""
    lines: list[str] = []
    joined = ""
    for line in text.splitlines():
        stripped = line.strip()
        ends_joined_line = bool(joined) and not stripped
        if _is_comment_or_empty(stripped) and not ends_joined_line:
            continue
        if stripped.endswith("\\"):
            joined += f"{stripped[:-1]} "
            continue
        lines.append(f"{joined}{stripped}")
        joined = ""
    return lines if not joined else [*lines, joined.strip()]


def _is_comment_or_empty(line: str) -> bool:
    return not line or line.startswith(("#", ";"))


def _parse_sections(text: str) -> Mapping[str, Settings]:
    found: dict[str, list[tuple[str, str]]] = {}
    section = ""
    for line in _logical_lines(text):
        if match := _SECTION.fullmatch(line):
            section = match[1]
            continue
        name, equals, value = line.partition("=")
        if equals:
            found.setdefault(section, []).append((name.strip(), value.strip()))
    return found


def _values_of_setting(settings: Settings, name: str) -> list[str]:
    """Return the values of a setting that may be given several times. An empty value discards
    those before it."""
    found: list[str] = []
    for key, value in settings:
        if key == name:
            found = [*found, value] if value else []
    return found


def _environment_of_unit(service: Settings, notes: Notes) -> dict[str, str]:
    """Return the variables that the unit sets itself. Files of variables are added to `notes`."""
    env: dict[str, str] = {}
    for value in _values_of_setting(service, "Environment"):
        for word in _split_words(value):
            name, equals, text = word.partition("=")
            if equals:
                env[name] = _expand_specifiers(text, notes)
            else:
                notes.add_not_understood_warning("a part of Environment", word)
    for path in _values_of_setting(service, "EnvironmentFile"):
        text = f"the variables in the file {path.removeprefix('-')} are not read"
        fix = "add the variables that the server needs with --env NAME=VALUE"
        notes.add(Level.WARN, "env-file", text, fix=fix)
    return env


def _server_commands_of_unit(
    commands: Sequence[str], env: Mapping[str, str], notes: Notes
) -> list[ServerCommand]:
    """Return the commands of the servers that the commands of ExecStart start."""
    found: list[ServerCommand] = []
    for command in commands:
        words = _expand_variables(_split_words(command.lstrip(_COMMAND_PREFIXES)), env, notes)
        if words:
            found += find_server_commands(shlex.join(words), notes, env=env)
    return found


def _expand_variables(words: Sequence[str], env: Mapping[str, str], notes: Notes) -> list[str]:
    """Return the words of a command with its variables replaced, as systemd does it: `${NAME}`
    becomes a part of its word, and a word `$NAME` becomes any number of words."""
    found: list[str] = []
    for word in words:
        whole = _WHOLE_VARIABLE.fullmatch(word)
        if whole is None:
            found.append(_VARIABLE_NAME.sub(lambda m: _value_of_variable(m[1], env, notes), word))
        elif whole[1] in env:
            found += env[whole[1]].split()
        else:
            text = f"{word} is left out: only a file of variables or the environment has its value"
            notes.add(Level.WARN, "computed", text)
    return [_expand_specifiers(word, notes) for word in found]


def _value_of_variable(name: str | None, env: Mapping[str, str], notes: Notes) -> str:
    """Return the value of the variable `name`, or a reference to a variable of the preset if the
    unit does not set it. None stands for `$$`, a dollar sign."""
    if name is None:
        return "$"
    return env[name] if name in env else notes.add_variable_and_get_reference(name, FORM_TITLE)


def _expand_specifiers(text: str, notes: Notes) -> str:
    """Return `text` with "%%" as "%". A specifier such as %h, whose value only systemd knows,
    becomes a reference to a variable of the preset."""

    def specifier_text(match: re.Match[str]) -> str:
        if match[1] == "%":
            return "%"
        name = _SPECIFIERS.get(match[1])
        return notes.add_variable_and_get_reference(name, FORM_TITLE) if name else match[0]

    return _SPECIFIER.sub(specifier_text, text)


def _split_words(text: str) -> list[str]:
    """Split a value into words at white space. Quotes and the escapes of C are resolved."""
    words: list[str] = []
    word: str | None = None
    quote = ""
    at = 0
    while at < len(text):
        char = text[at]
        at += 1
        if char == "\\" and at < len(text):
            piece, at = _escaped_character_and_next_index(text, at)
        elif char == quote:
            piece = quote = ""
        elif quote:
            piece = char
        elif char in "\"'":
            piece, quote = "", char
        elif char.isspace():
            if word is not None:
                words.append(word)
            word = None
            continue
        else:
            piece = char
        word = (word or "") + piece
    return words if word is None else [*words, word]


def _escaped_character_and_next_index(text: str, index: int) -> tuple[str, int]:
    """Return (character, index after it) for the escape whose backslash stands before `index`."""
    if hexadecimal := re.compile(r"x([0-9A-Fa-f]{2})").match(text, index):
        return chr(int(hexadecimal[1], 16)), hexadecimal.end()
    char = text[index]
    return _ESCAPES.get(char, char), index + 1


def _working_directory(service: Settings, notes: Notes) -> str | None:
    """Return the working directory of the unit; None if it sets none. "~" becomes a reference to a
    variable of the preset."""
    values = _values_of_setting(service, "WorkingDirectory")
    if not values:
        return None
    path = values[-1].removeprefix("-")
    return (
        notes.add_variable_and_get_reference("home", FORM_TITLE)
        if path == "~"
        else _expand_specifiers(path, notes)
    )


def _open_file_limit(service: Settings, notes: Notes) -> int | None:
    """Return the limit of open files that the unit sets; None if it sets none. A value that a
    preset cannot have is added to `notes`."""
    values = _values_of_setting(service, "LimitNOFILE")
    if not values:
        return None
    number = parse_whole_number(values[-1].partition(":")[0])
    if number is not None and number in _OPEN_FILES:
        return number
    notes.add_not_understood_warning("LimitNOFILE", values[-1])
    return None


def _add_ignored_setting_notes(service: Settings, notes: Notes) -> None:
    """Add to `notes` the settings of the unit that its preset does not contain."""
    identity = ", ".join(f"{name}={value}" for name, value in service if name in _IDENTITY)
    if identity:
        why = "Workbench starts the server as the user whom it runs as"
        notes.add_left_out_note(f"the user of the unit, {identity},", why)
    for name, value in service:
        if name in _OTHER_COMMANDS:
            notes.add_not_run_warning(f"the command in {name}", value)
    known = (*_READ, *_IDENTITY, *_OTHER_COMMANDS)
    others = ", ".join(dict.fromkeys(name for name, _ in service if name not in known))
    if others:
        why = "it tells systemd how to run the unit, and the server nothing"
        notes.add_left_out_note(f"each of the settings {others}", why)


def _no_server_finding(commands: Sequence[str]) -> Finding:
    """Return the finding that the unit starts no server. If the unit starts a script, the next
    step is to import that script."""
    finding = no_server_finding(FORM_TITLE, commands[:1])
    for command in commands[:1]:
        for word in _split_words(command.lstrip(_COMMAND_PREFIXES)):
            if word.startswith("/") and re.search(r"\.(ba)?sh$", word):
                fix = f"the unit runs a script; import it: workbench import {word}"
                return replace(finding, fix=fix)
    return finding

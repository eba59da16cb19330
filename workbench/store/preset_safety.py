"""Findings about dangerous content of a preset: values that look like shell commands, and names
that redirect execution.

Commands are argv lists, so no shell ever runs such a value. The findings tell the user what the
author of the preset probably intended.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from workbench.engines import registry
from workbench.engines.preset_trust import (
    find_foreign_executable,
    find_foreign_flags,
    find_foreign_run_options,
    find_foreign_variables,
    find_foreign_workdir,
)
from workbench.model.findings import Finding, Level
from workbench.model.run_options import PROCESS
from workbench.model.secrets import is_secret_name
from workbench.model.untrusted_text import as_list, as_table
from workbench.store.toml_lines import FieldPath

_VARIABLE_NAME = re.compile(r"\$\{([a-z][a-z0-9_]{0,31})\}")
_SUBSTITUTION = re.compile(r"\$\(|`|<\(|>\(")
_LINE_BREAK = re.compile(r"[\n\r\x00\x0b\x0c\x85\u2028\u2029]")
_COMMANDS = (
    r"(?:(?:/[\w.+-]{1,40}){0,6}/)?(?:rm|mv|dd|sh|bash|zsh|dash|curl|wget|nc|ncat|ssh|scp|sudo|su|doas|chmod|chown|kill|pkill|killall|eval|"
    r"exec|source|python[\d.]*|perl|ruby|node|php|nohup|setsid|mkfs\S*|shutdown|reboot|systemctl|crontab|echo|cat|tee)"
)
_CHAINED = re.compile(rf"(?:;|&&|\|\||\||&)\s*{_COMMANDS}(?=\s|$)")
_METACHARACTER = re.compile(r";|&&|\|\||\s\|\s|(?:^|\s)>{1,2}\s*\S|\s&$")
_SHELL_NAME = re.compile(r"\$[A-Za-z_]\w*|^~/")
# C0 and C1 controls (terminal escapes) and the characters that reorder text; tab and newline are
# for prose.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def _set_of_words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SHELLS = _set_of_words(
    "sh bash dash zsh ksh csh tcsh fish busybox env sudo doas su eval exec xargs nohup setsid perl "
    "ruby node php awk "
    "sed curl wget nc ncat ssh scp rm mv cp dd chmod chown kill pkill killall crontab at systemctl "
    "tee"
)
_EVALUATES = frozenset(("-c", "-e", "--eval", "-"))  # what follows is code
LOOK = "check it: the first start needs --trust"
_SHOWN = 60  # characters of a text in a message
_FLAG_NAME = re.compile(r"^[A-Za-z0-9][\w.+-]*$")
_ENV_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")


def walk_values(value: Any, path: FieldPath = ()) -> Iterator[tuple[FieldPath, Any]]:
    """Yield (path, value) for every value of a document that is not a table or list. The document
    must not be deeply nested."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from walk_values(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from walk_values(item, (*path, index))
    else:
        yield path, value


def walk_launch_parts(document: Mapping[str, Any]) -> Iterator[tuple[FieldPath, Any]]:
    """Yield (path, value) for the parts of a preset document that reach a command line or an
    environment variable. A value can be a whole table, such as that of the flags."""
    tables: list[tuple[FieldPath, Any, tuple[str, ...]]] = [
        (("engine",), document.get("engine"), ("executable", "workdir")),
        (("model",), document.get("model"), ("id",)),
        (("launch",), document.get("launch"), ("run_options",)),
        ((), document, ("flags", "env")),
    ]
    for index, node in enumerate(as_list(document.get("nodes"))):
        tables.append((("nodes", index), node, ("flags", "env")))
    for name, variable in as_table(document.get("variables")).items():
        tables.append((("variables", name), variable, ("default",)))
    for path, table, keys in tables:
        if isinstance(table, Mapping):
            yield from (((*path, key), table[key]) for key in keys if key in table)


def variables_used_in(text: str) -> list[str]:
    """Return the names of the variables that `text` uses as ${name}."""
    return _VARIABLE_NAME.findall(text)


def safety_findings(document: Mapping[str, Any]) -> Iterator[tuple[FieldPath, Finding]]:
    """Yield (path of the value, finding) for each suspicious value in a preset document."""
    engine = _engine_of_document(document)
    for path, value in walk_values(document):
        if isinstance(value, str) and (found := _CONTROL.search(value)):
            text = f"contains the control character U+{ord(found[0]):04X}"
            yield path, _error_finding("preset.control-character", text)
    for path, part in walk_launch_parts(document):
        for inner, value in walk_values(part, path):
            yield from ((inner, found) for found in _value_findings(value))
        match path[-1], part:
            case "flags", Mapping():
                yield from _findings_of_flags(engine, part, path)
            case "env", Mapping():
                yield from _findings_of_env(engine, part, path)
            case "run_options", Mapping():
                for foreign in find_foreign_run_options(_launcher_of_document(document), part):
                    yield path, foreign.finding_with_fix(LOOK)
            case "executable", list():
                argv = [word for word in part if isinstance(word, str)]
                yield from ((path, found) for found in _executable_findings(engine, argv))
            case "workdir", str():
                yield from ((path, found) for found in _workdir_findings(engine, part))


def _engine_of_document(document: Mapping[str, Any]) -> str:
    name = as_table(document.get("engine")).get("name")
    known = registry.engine_names()
    return name if name in known else known[0]


def _launcher_of_document(document: Mapping[str, Any]) -> str:
    return str(as_table(document.get("launch")).get("run_as", PROCESS))


def _value_findings(value: Any) -> Iterator[Finding]:
    if isinstance(value, str):
        yield from _launch_text_findings(value)
    elif not isinstance(value, bool | int | float):
        text = f"a launch value cannot be a date: {value}"
        yield _error_finding("preset.wrong-type", text, "put quotes around the value")
    elif not abs(value) < math.inf:  # as for NaN
        yield _error_finding("preset.wrong-value", f"{value} is not a usable number")


def _workdir_findings(engine: str, workdir: str) -> Iterator[Finding]:
    for found in find_foreign_workdir(engine, workdir):
        yield found.finding_with_fix(LOOK)
    if ".." in workdir.split("/"):
        text = f"{workdir!r} leaves its directory with .."
        yield _error_finding("preset.path-traversal", text)


def _launch_text_findings(value: str) -> Iterator[Finding]:
    bare = _VARIABLE_NAME.sub("", value)
    if found := _SUBSTITUTION.search(value) or _CHAINED.search(value):
        yield _error_finding(
            "preset.suspicious-value",
            f"looks like a command: {_shorten(value)} contains {_shorten(found[0].strip())}; values "
            "are passed unchanged",
            "write the value itself, without shell syntax",
        )
    elif _LINE_BREAK.search(value):
        yield _error_finding(
            "preset.suspicious-value",
            f"a launch value must be one line: {_shorten(value)}",
            "put the text into a file and give its path",
        )
    elif found := _METACHARACTER.search(bare):
        text = f"shell syntax has no effect here: {_shorten(value)} contains {_shorten(found[0].strip())}"
        yield Finding(
            Level.WARN,
            "preset.suspicious-value",
            text,
            fix="write the value itself, without shell syntax",
        )
    elif found := _SHELL_NAME.search(bare):
        text = f"Workbench does not expand {found[0]} in {_shorten(value)}"
        yield Finding(
            Level.WARN,
            "preset.not-expanded",
            text,
            fix="define a variable of the preset and write ${name} in place of the value",
        )
    if "${" in bare:
        yield _error_finding(
            "preset.variable-syntax",
            f"{_shorten(value)} contains an invalid variable",
            "write ${name} with a-z, 0-9 and _",
        )


def _findings_of_flags(
    engine: str, flags: Mapping[str, Any], path: FieldPath
) -> Iterator[tuple[FieldPath, Finding]]:
    for name, value in flags.items():
        at = (*path, name)
        if name.startswith("-"):
            text = f"flag names are written without dashes: {_shorten(name)}"
            yield at, _error_finding("preset.flag-name", text, f'write "{name.lstrip("-")}"')
        elif not _FLAG_NAME.match(name):
            yield at, _error_finding("preset.flag-name", f"not a flag name: {_shorten(name)}")
        for part in find_foreign_flags(engine, {name: value}):
            yield at, part.finding_with_fix(LOOK)
        if _is_plain_secret(name, value):
            yield at, _secret_finding(name)


def _findings_of_env(
    engine: str, env: Mapping[str, Any], path: FieldPath
) -> Iterator[tuple[FieldPath, Finding]]:
    for name, value in env.items():
        at = (*path, name)
        if not _ENV_NAME.match(name):
            text = f"not the name of an environment variable: {_shorten(name)}"
            yield at, _error_finding("preset.env-name", text)
        for part in find_foreign_variables(engine, {name: value}):
            yield at, part.finding_with_fix(LOOK)
        if _is_plain_secret(name, value):
            yield at, _secret_finding(name)


def _is_plain_secret(name: str, value: Any) -> bool:
    """Return whether the setting `name` is a secret and `value` its text. False for an empty text,
    and for one that is only the name of a variable."""
    if not is_secret_name(name) or value == "":
        return False
    return isinstance(value, str) and not _VARIABLE_NAME.fullmatch(value)


def _executable_findings(engine: str, argv: list[str]) -> Iterator[Finding]:
    if not argv:
        yield _error_finding(
            "preset.suspicious-executable", "the executable is an empty list", "omit it"
        )
        return
    if any(a.rsplit("/", 1)[-1] in _SHELLS for a in argv):
        text = (
            "a preset cannot start a shell or a tool that runs other programs: "
            f"{_shorten(' '.join(argv))}"
        )
        yield _error_finding("preset.suspicious-executable", text, "name the engine's program")
    elif not _EVALUATES.isdisjoint(argv[1:]):
        text = f"code on the command line: {_shorten(' '.join(argv))}"
        yield _error_finding("preset.suspicious-executable", text, "name the engine's program")
    elif any(".." in a.split("/") for a in argv):
        text = f"{_shorten(' '.join(argv))} leaves its directory with .."
        yield _error_finding("preset.path-traversal", text)
    else:
        yield from (part.finding_with_fix(LOOK) for part in find_foreign_executable(engine, argv))


def _secret_finding(name: str) -> Finding:
    text = f"{name} contains a secret in plain text"
    return Finding(
        Level.WARN,
        "preset.secret",
        text,
        flag=name,
        fix='define a variable of the kind "secret-env", which names an environment variable with '
        "the secret",
    )


def _error_finding(code: str, text: str, fix: str | None = None) -> Finding:
    return Finding(Level.ERROR, code, text, fix=fix)


def _shorten(text: str) -> str:
    ellipsis = "…" if len(text) > _SHOWN else ""
    return f'"{escape_and_shorten(text)}{ellipsis}"'


def escape_and_shorten(text: str) -> str:
    """Return the first 60 characters of a text for a message, with unprintable ones escaped."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text[:_SHOWN])

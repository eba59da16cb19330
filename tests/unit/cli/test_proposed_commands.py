"""Each `workbench` command that a message proposes exists, with all its options."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

import workbench
from workbench.cli.parser import parse_command_line
from workbench.cli.registry import FIRST_WORDS
from workbench.model.errors import InputError

PACKAGE = Path(workbench.__file__).parent
QUOTED = re.compile(r"`workbench ([^`]+)`")
WORDS = "|".join(FIRST_WORDS)
BARE = re.compile(rf"(?<![`\w./-])workbench ((?:--[a-z]+ \S+ )*(?:{WORDS})(?![\w-])[^`;,()\n]*)")
A_VALUE = "1"  # in place of what the program fills in


def texts_in(path: Path) -> Iterator[str]:
    """Yield the texts of a module but for docstrings, each f-string as one."""
    if path.suffix == ".json":
        yield path.read_text("utf-8").replace('\\"', '"')
        return
    tree = ast.parse(path.read_text("utf-8"))
    skipped: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            skipped |= {id(one.value) for one in node.body[:1] if isinstance(one, ast.Expr)}
        if isinstance(node, ast.JoinedStr):
            skipped |= {id(one) for one in ast.walk(node) if one is not node}
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        if isinstance(node, ast.JoinedStr):
            parts = (one.value if isinstance(one, ast.Constant) else A_VALUE for one in node.values)
            yield "".join(map(str, parts))


def proposed_commands() -> Iterator[tuple[str, str]]:
    """Yield (file, command line without the first word) for each command in a text."""
    for path in sorted([*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.json")]):
        for text in texts_in(path):
            for found in (*QUOTED.findall(text), *BARE.findall(text)):
                yield path.name, found


def why_unknown(command: str) -> str:
    """Return what the parser does not know in a command; "" if it knows all of it. A place for a
    value, and prose behind a command, are no errors."""
    try:
        words = shlex.split(command.rstrip(".:"))
    except ValueError:  # a part of a text in quotes
        words = command.split()
    if words[0] not in FIRST_WORDS and not words[0].startswith("--"):
        return ""  # the name of a host
    try:
        parse_command_line(words)
    except SystemExit:  # --help
        return ""
    except InputError as error:
        said = error.message
        if "is not a command" in said or "invalid choice" in said:
            return said
        unknown = said.partition("unrecognized arguments:")[2].split()
        options = [word for word in unknown if word.startswith("--") and word != "--"]
        return f"no option {' '.join(options)}" if options else ""
    return ""


def test_each_proposed_command_and_its_options_exist(capsys: pytest.CaptureFixture[str]) -> None:
    found = set(proposed_commands())
    assert ("watches.py", "watch list") in found, "no text was found"
    unknown = {one: why for one in found if (why := why_unknown(one[1]))}
    # an action of `gpu`, and a command behind a host, that the program fills in
    for one in [("guard.py", "gpu 1"), ("names.py", "--host 1 …")]:
        unknown.pop(one, None)
    assert not unknown


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("start PRESET --executable PATH", ""),
        ("watch add PRESET --candidate X --executable PATH", "no option --executable"),
        ("gpu revet", "invalid choice"),
        ("results show ID", ""),
    ],
)
def test_what_does_not_exist_is_found(command: str, why: str) -> None:
    assert why in why_unknown(command) and bool(why) == bool(why_unknown(command))

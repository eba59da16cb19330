"""The documentation names only files, commands, options and keys that exist."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import pytest

from workbench.cli.parser import build_parser, parse_command_line
from workbench.model.errors import WorkbenchError
from workbench.store.config import Config
from workbench.store.glossary import read_all_terms
from workbench.tui.panes import ALL_KEYS

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
REFERENCE = (ROOT / "docs" / "REFERENCE.md").read_text()
TOP = sorted(path.name for path in ROOT.iterdir() if path.name not in (".git", ".venv"))
# A path of this repository: it begins with a name of the top level, and holds no placeholder.
REPOSITORY_PATH = re.compile(rf"`((?:{'|'.join(map(re.escape, TOP))})(?:/[\w.*/-]*)?)`")
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_path_and_link_of_a_page_exists(page: Path) -> None:
    text = page.read_text()
    absent = [
        name for name in REPOSITORY_PATH.findall(text) if not list(ROOT.glob(name.rstrip("/")))
    ]
    absent += [link for link in LINK.findall(text) if not (page.parent / link).exists()]
    assert not absent


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_line_of_a_page_is_valid(page: Path) -> None:
    names = {name for name, _ in accepted(build_parser())}
    for line in command_lines(page.read_text()):
        if line.removeprefix("workbench ") in names:  # the page speaks of the command
            continue
        try:
            parse_command_line(shlex.split(line)[1:])
        except WorkbenchError as error:
            pytest.fail(f"{line}: {error}")


def command_lines(text: str) -> Iterator[str]:
    """Yield each `workbench …` command of the shell blocks and between backticks, with numbers for
    its placeholders."""
    lines = [
        line
        for language, block in FENCE.findall(text)
        if language == "sh"
        for line in block.splitlines()
    ]
    lines += re.findall(r"`([^`\n]+)`", FENCE.sub("", text))
    known = {name.split()[0] for name, _ in accepted(build_parser())}
    for line in lines:
        found = re.search(r"(?:^|[ /(])(workbench (?:--[a-z]+ \S+ )?(\S+)[^)#&|]*)", line)
        if found and found[2] in known and not re.search(r"[…\[]|COMMAND", found[1]):
            yield re.sub(r"\b(IDS?|N|S)\b", "1", found[1]).strip()


def test_the_reference_lists_every_command_and_option() -> None:
    assert dict(documented()) == dict(accepted(build_parser()))


def test_the_reference_lists_every_choice_of_an_option() -> None:
    parsers = dict(commands_of(build_parser()))
    for name, entry in entries():
        choices = {
            option: set(action.choices)
            for action in parsers[name]._actions
            for option in action.option_strings
            if action.choices and option in OPTION.findall(entry)
        }
        listed = re.findall(r"(--[a-z-]+) ([a-z]+(?:\|[a-z]+)+)\]", entry)
        assert {option: set(words.split("|")) for option, words in listed} == choices, name


def documented() -> Iterator[tuple[str, set[str]]]:
    """Yield each command of the reference's synopsis with its options."""
    groups = {
        "PLAN OPTIONS": options_of("PLAN OPTIONS, which"),
        "LOAD OPTIONS": options_of("LOAD OPTIONS, which"),
    }
    for name, entry in entries():
        shared = [options for group, options in groups.items() if group in entry]
        yield name, set(OPTION.findall(entry)).union(*shared)


def entries() -> Iterator[tuple[str, str]]:
    """Yield each command of the reference's synopsis with its text."""
    known = dict(commands_of(build_parser()))
    for language, block in FENCE.findall(REFERENCE):
        for entry in re.split(r"\n(?=workbench )", block) if language == "text" else ():
            words = list(
                takewhile(lambda word: re.fullmatch(r"[a-z][a-z-]*", word), entry.split()[1:])
            )
            name = next(
                (
                    " ".join(words[:n])
                    for n in range(len(words), 0, -1)
                    if " ".join(words[:n]) in known
                ),
                None,
            )
            if name is not None:
                yield name, entry


def options_of(start: str) -> set[str]:
    """Return the options in the paragraph that begins with `start`, and in the table that it
    announces."""
    paragraph, following = REFERENCE[REFERENCE.index(start) :].split("\n\n")[:2]
    return set(OPTION.findall(paragraph + following * paragraph.endswith(":")))


def accepted(parser: argparse.ArgumentParser) -> Iterator[tuple[str, set[str]]]:
    """Yield each command of the parser with its own options."""
    for name, command in commands_of(parser):
        options = {
            option
            for action in command._actions
            for option in action.option_strings
            if option.startswith("--")
        }
        yield (
            name,
            options - {"--help", "--host", "--container", "--cluster", "--simulate", "--json"},
        )


def commands_of(
    parser: argparse.ArgumentParser, name: str = ""
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield the name and the parser of each command."""
    groups = [
        action for action in parser._actions if isinstance(action, argparse._SubParsersAction)
    ]
    for group in groups:
        for word, child in group.choices.items():
            yield from commands_of(child, f"{name} {word}".strip())
    if name and not groups:
        yield name, parser


def test_the_reference_lists_every_setting_of_the_configuration_file() -> None:
    section = REFERENCE[
        REFERENCE.index("## Configuration file") : REFERENCE.index("## Environment variables")
    ]
    defaults = [(name, getattr(Config(), name)) for name in Config.__dataclass_fields__]
    names = [
        inner
        for name, value in defaults
        for inner in getattr(value, "__dataclass_fields__", (name,))
    ]
    assert len(names) > 4 and not [name for name in names if name not in section]


def test_the_reference_lists_every_key() -> None:
    section = REFERENCE[REFERENCE.index("## Keys") : REFERENCE.index("## Configuration file")]
    rows = [
        line.split(" | ") for line in section.splitlines() if line.startswith("| ") and "`" in line
    ]
    listed = {
        ("" if len(row) == 2 else row[0].strip("| "), key)
        for row in rows
        for key in keys_in(row[len(row) - 2])
    }
    assert listed == {(key.where, key.name_on_keyboard) for key in ALL_KEYS}


def keys_in(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_the_glossary_page_has_the_terms_of_the_program() -> None:
    page = re.findall(
        r"^\| (.+?) \| (.+) \|$", (ROOT / "docs" / "GLOSSARY.md").read_text(), re.MULTILINE
    )
    assert [row for row in page if row[0] not in ("term", "---")] == [
        (t.term, t.means) for t in read_all_terms()
    ]

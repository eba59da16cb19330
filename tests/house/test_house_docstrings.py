"""Docstrings, maps of folders and pages for developers name only what exists."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "workbench"
SOURCES = sorted(PACKAGE.rglob("*.py"))
# Each text in three quotes. A docstring begins its line; a script follows a name or a bracket.
TEXT = re.compile(r'(?P<indent>^ *)?r?"""(?P<text>.*?)"""', re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"^ *#.*", re.MULTILINE)
CLASS = re.compile(r"^class (\w+)\b(?:\((.*?)\))?:", re.MULTILINE)
DOTTED = re.compile(r"(?<![\w./])([A-Za-z_]\w*)\.([A-Za-z_]\w*)")
BACKTICKED = re.compile(r"`([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(?:\([^`\n]*\))?`")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
# The ends of names that are files, which other tests check, or belong to other programs.
FILE_ENDS = {
    "began",
    "exit",
    "json",
    "log",
    "md",
    "out",
    "pid",
    "py",
    "service",
    "sh",
    "toml",
    "yml",
}
# Maps that name their files by a rule: one file for each engine, command, tool or format.
BY_RULE = {
    ".",
    "cli",
    "recipes/exports",
    "recipes/imports",
    "report/formats",
    "report/imports",
    "sim/engines",
    "sim/stand_in",
    "sim/stand_in/torch",
}
# Names of other programs that pages and docstrings speak of.
FOREIGN = {
    "InitVar",
    "JsonExportData",
    "dequeue",
    "get_request",
    "recvmsg_into",
    "run_headless",
    "start_worker_monitor",
}
PAGES = ("ARCHITECTURE", "CONTRIBUTING", "REFERENCE", "SPEED", "SECURITY", "SETUPS")


def words_of(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", text))


@cache
def text_of(path: Path) -> str:
    return path.read_text("utf-8")


@cache
def docstrings_of(path: Path) -> list[str]:
    found = TEXT.finditer(text_of(path))
    return [one["text"] for one in found if one["indent"] is not None]


@cache
def code_of(path: Path) -> str:
    # A class that has only its docstring keeps a body, so that it does not take the next lines.
    def without_docstring(found: re.Match[str]) -> str:
        return found[0] if found["indent"] is None else f"{found['indent']}pass"

    return COMMENT.sub("", TEXT.sub(without_docstring, text_of(path)))


@cache
def words_of_modules() -> dict[str, frozenset[str]]:
    """Return the words in the code of the modules of each name; of a folder, its files as well."""
    found: dict[str, frozenset[str]] = {}
    for path in SOURCES:
        is_folder = path.name == "__init__.py"
        name = path.parent.name if is_folder else path.stem
        inside = frozenset(one.stem for one in path.parent.iterdir()) if is_folder else frozenset()
        found[name] = found.get(name, frozenset()) | words_of(code_of(path)) | inside
    return found


@cache
def words_of_classes() -> dict[str, frozenset[str]]:
    """Return the words in the code of each class of the package, and of its bases."""
    own: dict[str, frozenset[str]] = {}
    for path in SOURCES:
        code = code_of(path)
        for found in CLASS.finditer(code):
            rest = code[found.end() :]
            end = re.search(r"^\S", rest, re.MULTILINE)
            body = rest[: end.start()] if end else rest
            own[found[1]] = own.get(found[1], frozenset()) | words_of(f"{found[2]} {body}")
    found_words = {}
    for name, words in own.items():
        bases = words & own.keys()
        found_words[name] = words.union(*(own[base] for base in bases))
    return found_words


@cache
def known_words() -> frozenset[str]:
    """Return each word of the code and of the data files, and the names of all files."""
    data = [
        path
        for folder in (PACKAGE, ROOT / "presets")
        for path in folder.rglob("*")
        if path.suffix in (".json", ".sh", ".tcss", ".toml")
    ]
    words: set[str] = set()
    words.update(*words_of_modules().values())
    words.update(*(words_of(path.read_text("utf-8")) for path in data))
    words.update(*(words_of(path.read_text("utf-8")) for path in (ROOT / "tests").rglob("*.py")))
    words |= words_of((ROOT / "pyproject.toml").read_text("utf-8"))
    words.update(path.stem for path in PACKAGE.rglob("*"))
    return frozenset(words) | FOREIGN


def absent_members(text: str) -> list[str]:
    """Return the names in `text` such as `module.name` or `Class.name` that do not exist."""
    absent = []
    for owner, name in DOTTED.findall(text):
        if name in FILE_ENDS:
            continue
        members = words_of_classes().get(owner)
        if members is None and "_" in owner:  # a word with a dot is mostly the end of a sentence
            members = words_of_modules().get(owner)
        if members is not None and name not in members:
            absent.append(f"{owner}.{name}")
    return absent


def test_docstrings_name_only_members_that_exist() -> None:
    absent = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in SOURCES
        for docstring in docstrings_of(path)
        for name in absent_members(docstring)
    ]
    assert not absent


def test_docstrings_name_only_identifiers_that_exist() -> None:
    absent = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in SOURCES
        for docstring in docstrings_of(path)
        for name in BACKTICKED.findall(docstring)
        if not known_words().issuperset(name.split("."))
    ]
    assert not absent


def test_the_map_of_a_folder_names_each_of_its_modules() -> None:
    """The docstring of an `__init__.py` is the map of its folder: add each new module to it."""
    absent = []
    for path in PACKAGE.rglob("__init__.py"):
        folder = path.parent
        docstring = docstrings_of(path)[:1]
        if str(folder.relative_to(PACKAGE)) in BY_RULE or not docstring:
            continue
        named = words_of(docstring[0])
        prefixes = tuple(re.findall(r"(\w+)\*\.py", docstring[0])) or ("\0",)
        modules = (one.stem for one in folder.glob("*.py") if not one.stem.startswith("__"))
        folders = (one.parent.name for one in folder.glob("*/__init__.py"))
        absent += [
            f"{path.relative_to(ROOT)}: {name}"
            for name in (*modules, *folders)
            if name not in named and not name.startswith(prefixes)
        ]
    assert not absent


@pytest.mark.parametrize("page", PAGES)
def test_a_page_names_only_what_exists(page: str) -> None:
    text = FENCE.sub("", (ROOT / "docs" / f"{page}.md").read_text("utf-8"))
    absent = [
        name for name in BACKTICKED.findall(text) if not known_words().issuperset(name.split("."))
    ]
    assert not absent + absent_members(" ".join(BACKTICKED.findall(text)))

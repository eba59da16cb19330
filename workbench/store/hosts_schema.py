"""The schema of hosts.toml: hosts and clusters with their fields, and the check of a document
against it.

An invalid value makes its whole host or cluster unusable, because a host without its container, for
example, would be a different machine. Other entries stay usable. An unknown field is only reported.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import field
from difflib import get_close_matches
from functools import partial
from typing import Any

from workbench.engines import registry
from workbench.hosts import ssh_names
from workbench.hosts.container_kinds import KINDS
from workbench.model.errors import InputError
from workbench.model.host_entry import ClusterEntry, ClusterNode, HostEntry, HostsFile
from workbench.model.lazy_dataclass import dataclass
from workbench.model.run_options import OPTIONS, PROCESS, launcher_option
from workbench.model.untrusted_text import NAME_CHARS, UNSAFE, VARIABLE_NAME, clean_text
from workbench.store.toml_schema import (
    UNUSABLE,
    Kind,
    Problem,
    add_problem,
    check_boolean,
    choice_checker,
    list_checker,
    number_checker,
    table_checker,
)
from workbench.store.toml_schema import check_text as check_any_text

LOCAL = "local"
SECTIONS = ("hosts", "clusters")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,252}")
_CLOSE = 0.8  # similarity from which a name is taken for a misspelled one, by difflib
_MOST_STEPS = 16  # from a host to the machine that its `ssh` means at last
_NODE = re.compile(r"[^\s]{1,300}")
_ONE_LINE = re.compile(r"[^\n]+")

Path = tuple[str, ...]


def _pattern_checker(pattern: re.Pattern[str], expected: str) -> Kind:
    """Return a function that checks a text that must match `pattern` and have no unsafe characters.
    `expected` describes a valid text in messages."""

    def check(value: Any, path: Path, problems: list[Problem]) -> Any:
        if isinstance(value, str) and pattern.fullmatch(value) and not UNSAFE.search(value):
            return value
        return add_problem(path, f"{expected} is expected", problems)

    return check


def _check_label(value: Any, path: Path, problems: list[Problem]) -> Any:
    checked = check_any_text(value, path, problems)
    if checked is UNUSABLE:
        return UNUSABLE
    return clean_text(checked, NAME_CHARS).strip()


_check_text = _pattern_checker(_ONE_LINE, "one line of text without control characters")


def _check_text_or_number(value: Any, path: Path, problems: list[Problem]) -> Any:
    """Return the value of a variable or an option as text. A whole number becomes its digits. For
    anything but a text or a whole number, add a problem to `problems` and return UNUSABLE."""
    if type(value) is int:  # a bool is none
        return str(value)
    if isinstance(value, str) and not UNSAFE.search(value):
        return value
    return add_problem(
        path, "text without control characters, or a whole number, is expected", problems
    )


def _check_option_values(value: Any, path: Path, problems: list[Problem]) -> Any:
    """Return the value of a run option as text, with one line per item for a list. For an invalid
    value or item, add a problem to `problems` and return UNUSABLE."""
    values = value if isinstance(value, list) else [value]
    found = list_checker(_check_text_or_number)(values, path, problems)
    if found is UNUSABLE:
        return UNUSABLE
    return "\n".join(found)


def _check_ssh(value: Any, path: Path, problems: list[Problem]) -> Any:
    if not isinstance(value, str):
        return check_any_text(value, path, problems)
    try:
        return ssh_names.require_host_name(value)
    except InputError:
        expected = (
            "an alias of your ssh configuration, HOST, USER@HOST or another host of this "
            "file is expected"
        )
        return add_problem(path, expected, problems)


def _check_container(value: Any, path: Path, problems: list[Problem]) -> Any:
    if isinstance(value, str):
        kind, _, name = value.partition(":")
        if kind in KINDS and KINDS[kind].pattern.fullmatch(name):
            return value
    return add_problem(
        path,
        f"KIND:NAME is expected, such as podman:vllm; the kinds are {', '.join(KINDS)}",
        problems,
    )


def _check_program(value: Any, path: Path, problems: list[Problem]) -> Any:
    checked = _check_text(value, path, problems)
    if checked is UNUSABLE:
        return UNUSABLE
    try:
        words = shlex.split(checked)
    except ValueError:
        return add_problem(path, "a program, quoted as in a shell, is expected", problems)
    if not words:
        return add_problem(path, "a program is expected", problems)
    return checked


def _check_directory(value: Any, path: Path, problems: list[Problem]) -> Any:
    checked = _check_text(value, path, problems)
    if checked is UNUSABLE or checked.startswith(("/", "~/")):
        return checked
    return add_problem(path, "absolute paths, or paths that begin with ~/, are expected", problems)


def _keyed_table_checker(keys: re.Pattern[str], expected: str, kind: Kind) -> Kind:
    """Return a function that checks a table whose keys must match `keys` and whose values `kind`
    checks. If a key or value is invalid, the function returns UNUSABLE. `expected` describes a
    valid key in messages."""

    def check(value: Any, path: Path, problems: list[Problem]) -> Any:
        if not isinstance(value, dict):
            return add_problem(path, "a table is expected", problems)
        found = {}
        for name, each in value.items():
            at = (*path, name)
            if keys.fullmatch(name):
                found[name] = kind(each, at, problems)
            else:
                found[name] = add_problem(at, f"{expected} is expected", problems)
        if any(each is UNUSABLE for each in found.values()):
            return UNUSABLE
        return found

    return check


_ENGINES = re.compile("|".join(registry.engine_names()))
_OPTION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_FIELDS: dict[str, Kind] = {
    "ssh": _check_ssh,
    "container": _check_container,
    "label": _check_label,
    "engines": _keyed_table_checker(
        _ENGINES, f"the name of an engine ({', '.join(registry.engine_names())})", _check_program
    ),
    "env": _keyed_table_checker(
        VARIABLE_NAME, "the name of an environment variable", _check_text_or_number
    ),
    "run_as": choice_checker(*OPTIONS),
    "run_options": _keyed_table_checker(_OPTION, "the name of an option", _check_option_values),
    "models": list_checker(_check_directory),
    "sudo": check_boolean,
}
_NODE_FIELDS: dict[str, Kind] = {
    "host": _pattern_checker(_NODE, "the name of a host"),
    "address": _pattern_checker(re.compile(r"[0-9A-Za-z.:_-]+"), "an address"),
    "interface": _pattern_checker(re.compile(r"[\w.:@-]+"), "the name of a network interface"),
    "rdma": list_checker(_pattern_checker(re.compile(r"[\w.:-]+"), "the names of RDMA devices")),
}


def _check_node(value: Any, path: Path, problems: list[Problem]) -> Any:
    if isinstance(value, str):
        value = {"host": value}
    if not isinstance(value, dict) or "host" not in value:
        text = "a list of names of hosts, or of tables with a host, is expected"
        return add_problem(path, text, problems)
    before = len(problems)
    fields = table_checker(dict, _NODE_FIELDS)(value, path, problems)
    if any(problem.text for problem in problems[before:]):
        return UNUSABLE
    return ClusterNode(**fields)


def _check_nodes(value: Any, path: Path, problems: list[Problem]) -> Any:
    found = list_checker(_check_node)(value, path, problems)
    if found == ():
        return add_problem(path, "at least one node is expected", problems)
    return found


_CLUSTER_FIELDS: dict[str, Kind] = {
    "label": _check_label,
    "nodes": _check_nodes,
    "reserve_gib": number_checker(0, 100_000),
}


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of checking hosts.toml: the usable entries, the problems, and (section, name) of
    each unusable entry."""

    file: HostsFile = field(default_factory=HostsFile)
    problems: tuple[Problem, ...] = ()
    unusable: frozenset[tuple[str, str]] = frozenset()


def check_hosts_document(document: Mapping[str, Any]) -> Checked:
    """Return the usable hosts and clusters of a document, with the problems of all entries."""
    unknown = [name for name in document if name not in SECTIONS]
    problems = [Problem((name,), _did_you_mean(name, SECTIONS)) for name in unknown]
    unusable: set[tuple[str, str]] = set()

    def check_section_entries(
        section: str, make_entry: Any, fields: dict[str, Kind]
    ) -> dict[str, Any]:
        found: dict[str, Any] = {}
        tables = document.get(section, {})
        if not isinstance(tables, dict):
            add_problem((section,), "a table is expected", problems)
            return found
        for name, value in tables.items():
            before = len(problems)
            entry = table_checker(partial(make_entry, name), fields)(
                value, (section, name), problems
            )
            _check_entry(section, name, value, problems)
            if isinstance(entry, HostEntry):
                _check_run_options(entry, problems)
            if any(problem.text for problem in problems[before:]):
                unusable.add((section, name))
            else:
                found[name] = entry
        return found

    hosts = check_section_entries("hosts", HostEntry, _FIELDS)
    clusters = check_section_entries("clusters", ClusterEntry, _CLUSTER_FIELDS)
    for name in _find_hosts_in_loops(hosts):
        del hosts[name]
        unusable.add(("hosts", name))
        add_problem(
            ("hosts", name, "ssh"),
            "a machine is expected, but the hosts lead to one another in a circle",
            problems,
        )
    explained = {problem.path for problem in problems if problem.text}
    shown = tuple(problem for problem in problems if problem.text or problem.path not in explained)
    return Checked(HostsFile(hosts, clusters), shown, frozenset(unusable))


def _did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """Return the sentence that suggests the known name which is the most like the unknown `name`;
    None if none is similar."""
    close = get_close_matches(name, known, 1, _CLOSE)
    if not close:
        return None
    return f"hosts.toml has no such name here: write {close[0]}"


def _check_entry(section: str, name: str, value: Any, problems: list[Problem]) -> None:
    """Add to `problems` the problems of a host or cluster that no check of a single field finds,
    such as an invalid name."""
    if not _NAME.fullmatch(name):
        add_problem(
            (section, name),
            "a name of at most 253 letters, digits and . _ - @ is expected",
            problems,
        )
    if not isinstance(value, dict):
        return
    if section == "clusters":
        if "nodes" not in value:
            add_problem((section, name), "nodes is missing", problems)
        return
    for field_name, inner in value.items():
        if isinstance(inner, dict) and field_name not in _FIELDS:
            quoted = f'a name that contains dots needs quotes: [hosts."{name}.{field_name}"]'
            text = _did_you_mean(field_name, _FIELDS) or quoted
            add_problem((section, name, field_name), text, problems)
    is_elsewhere = value.get("ssh", LOCAL) != LOCAL or "container" in value
    if name == LOCAL and is_elsewhere:
        text = "local is this machine: another name is expected for another host"
        add_problem((section, name), text, problems)


def _check_run_options(entry: HostEntry, problems: list[Problem]) -> None:
    for name, text in entry.run_options.items():
        try:
            option = launcher_option(entry.run_as or PROCESS, name)
            for line in text.splitlines():
                option.parse(line)
        except InputError as error:
            text = "; ".join(filter(None, (error.message, error.next_step)))
            add_problem(("hosts", entry.name, "run_options", name), text, problems)


def _find_hosts_in_loops(hosts: Mapping[str, HostEntry]) -> list[str]:
    """Return the names of the hosts whose `ssh` fields lead to no machine, because they refer to
    each other in a loop. A chain of more than _MOST_STEPS hosts counts as a loop."""

    def is_in_loop(name: str) -> bool:
        for _ in range(_MOST_STEPS):
            entry = hosts.get(name)
            if entry is None or entry.ssh is None or entry.ssh == name:
                return False
            name = entry.ssh
        return True

    return list(filter(is_in_loop, hosts))

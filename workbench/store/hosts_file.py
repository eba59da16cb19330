"""The user's file hosts.toml: hosts with their containers, engines and environments, and clusters
of hosts.

A missing file counts as empty. An invalid entry is reported and cannot be used; all other entries
can. A change keeps comments and unknown fields; a file that is not valid TOML is not changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.model.errors import InputError, StoreError
from workbench.store import paths

if TYPE_CHECKING:  # most starts have no hosts.toml, and load nothing for it
    from workbench.model.findings import Finding
    from workbench.model.host_entry import ClusterEntry, HostEntry, HostsFile
    from workbench.store.hosts_schema import Checked
    from workbench.store.toml_schema import Problem

_WHAT = {"hosts": "host", "clusters": "cluster"}
_MOST_FINDINGS, _MOST_NAMES, _FIELD_CHARS = 30, 10, 120  # that are told


class HostsStore:
    """The user's file hosts.toml. It is read at its first use, and again whenever it has
    changed."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or paths.hosts_file()
        self._read: tuple[tuple[int, ...] | None, Checked, tuple[Finding, ...]] | None = None
        self._broken: StoreError | None = None

    @property
    def content(self) -> HostsFile:
        """The usable hosts and clusters of the file."""
        from workbench.model.host_entry import HostsFile

        if not self.path.exists():
            return HostsFile()
        checked, _ = self._read_file()
        return checked.file

    @property
    def findings(self) -> tuple[Finding, ...]:
        """A finding for each value that cannot be used, and for each unknown field. If there are
        more than 30, the errors come first, and the last finding says how many are left out."""
        if not self.path.exists():
            return ()
        _, findings = self._read_file()
        return _most_serious_findings(findings, str(self.path))

    def host(self, name: str) -> HostEntry | None:
        """Return the host called `name`. If the file has no such host, return None, and the caller
        uses `name` as an SSH host. Raises InputError if the entry is invalid, and StoreError if the
        file cannot be read."""
        entry: HostEntry | None = self._find_entry("hosts", name)
        return entry

    def cluster(self, name: str) -> ClusterEntry:
        """Return the cluster called `name`. Raises InputError if the file has no such cluster or
        its entry is invalid."""
        entry: ClusterEntry | None = self._find_entry("clusters", name)
        if entry is None:
            import difflib

            known = tuple(self.content.clusters)
            step = f"its clusters: {', '.join(known[:_MOST_NAMES]) or 'none'}"
            if len(known) > _MOST_NAMES:
                step += f" and {len(known) - _MOST_NAMES} more"
            if near := difflib.get_close_matches(name, known, n=1):
                step = f"did you mean {near[0]}?"
            raise InputError(f"{self.path} has no cluster {name!r}", next_step=step)
        return entry

    def _find_entry(self, section: str, name: str) -> Any:
        if not self.path.exists():
            return None
        found, findings = self._read_file()
        if self._broken is not None:
            raise self._broken
        if (section, name) in found.unusable:
            field = f"{section}.{name}."
            own = [finding for finding in findings if f"{finding.field}.".startswith(field)]
            raise InputError(
                f"the {_WHAT[section]} {name} cannot be used: {own[0].file_and_line_text}: {own[0].text}",
                next_step=f"correct {self.path}",
                findings=_most_serious_findings(own, str(self.path)),
            )
        return getattr(found.file, section).get(name)

    def add(self, entry: HostEntry, *, replace: bool = False) -> None:
        """Write a host to the file. Raises InputError if the entry is not valid, or if the file has
        a host of this name and `replace` is not set. Raises StoreError if the file cannot be
        changed."""
        import tomlkit

        from workbench.store.hosts_schema import check_hosts_document
        from workbench.store.text_files import read_user_text, write_atomic
        from workbench.store.toml_edit import merge_into_table

        text = read_user_text(self.path)
        _parse_toml(text, self.path)
        document = tomlkit.parse(text)
        wanted = document.unwrap()
        hosts = wanted.setdefault("hosts", {})
        if not isinstance(hosts, dict):
            raise StoreError(
                f"`hosts` in {self.path} is not a TOML table",
                next_step="correct hosts.toml, then try again",
            )
        if entry.name in hosts and not replace:
            step = "give --replace to replace it, or choose another name"
            raise InputError(f"{self.path} already has a host {entry.name}", next_step=step)
        new = entry.name not in hosts
        hosts[entry.name] = _non_default_fields(entry)
        for problem in check_hosts_document(wanted).problems:
            if problem.text and problem.path[:2] == ("hosts", entry.name):
                name = ".".join(problem.path[2:]) or "name"
                step = f"correct the value of {name}, then try again"
                raise InputError(f"{name}: {problem.text}", next_step=step)
        if "hosts" not in document:
            document["hosts"] = tomlkit.table(is_super_table=True)
        merge_into_table(document, wanted)
        if new:  # an empty line before what follows
            document["hosts"][entry.name].add(tomlkit.nl())
        write_atomic(self.path, tomlkit.dumps(document))
        self._read = None

    def _read_file(self) -> tuple[Checked, tuple[Finding, ...]]:
        from workbench.model.findings import Finding, Level
        from workbench.store.hosts_schema import Checked, check_hosts_document
        from workbench.store.text_files import read_user_text
        from workbench.store.toml_lines import LineIndex

        stamp = self._file_stamp()
        if self._read is not None and self._read[0] == stamp:
            return self._read[1], self._read[2]
        self._broken = None
        try:
            text = read_user_text(self.path)
            found = check_hosts_document(_parse_toml(text, self.path))
            lines = LineIndex(text)
            problems = dict.fromkeys(found.problems)  # those of a list are often all the same
            findings = tuple(
                _hosts_file_finding(problem, str(self.path), lines.line_of_field(problem.path))
                for problem in problems
            )
        except StoreError as error:
            self._broken, found = error, Checked()
            findings = (
                Finding(
                    Level.ERROR,
                    "hosts.unusable",
                    error.message.removeprefix(f"{self.path} "),  # the finding names the file
                    file=str(self.path),
                    fix=error.next_step,
                ),
            )
        self._read = stamp, found, findings
        return found, findings

    def _file_stamp(self) -> tuple[int, ...] | None:
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ctime_ns, found.st_size


def _parse_toml(text: str, path: Path) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise StoreError(
            f"{path} is not valid TOML: {error}", next_step="correct or remove hosts.toml"
        ) from error


def _non_default_fields(entry: HostEntry) -> dict[str, Any]:
    """Return the fields of a host entry that differ from their defaults, without its name."""
    from dataclasses import fields

    found = {}
    for each in fields(entry):
        value = _to_toml_value(getattr(entry, each.name))
        if each.name != "name" and value not in (None, "", [], {}):
            found[each.name] = value
    return found


def _to_toml_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple):
        return list(value)
    return value


def _most_serious_findings(findings: Sequence[Finding], file: str) -> tuple[Finding, ...]:
    """Return all findings if they are at most 30. Otherwise return the 30 most serious ones, and a
    last finding that says how many are left out."""
    from workbench.model.findings import Finding, Level, by_severity

    if len(findings) <= _MOST_FINDINGS:
        return tuple(findings)
    first, rest = by_severity(findings)[:_MOST_FINDINGS], len(findings) - _MOST_FINDINGS
    text = f"{rest:,} more problems of the file are not listed"
    fix = "correct these first, then look again"
    return *first, Finding(Level.WARN, "hosts.more", text, file=file, fix=fix)


def _hosts_file_finding(problem: Problem, file: str, line: int | None) -> Finding:
    from workbench.model.findings import Finding, Level
    from workbench.model.untrusted_text import clean_text

    name = ".".join(problem.path)
    shown = clean_text(name, _FIELD_CHARS)
    if problem.text is None:
        text = f"{shown}: Workbench has no such field and ignores it"
        return Finding(Level.WARN, "hosts.unknown-field", text, file=file, line=line, field=name)
    text = f"{shown}: {problem.text}; the entry is not used"
    return Finding(Level.ERROR, "hosts.wrong-value", text, file=file, line=line, field=name)

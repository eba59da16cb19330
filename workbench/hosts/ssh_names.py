"""Names of ssh hosts: checks that a text can be a name, and finds the names that ssh knows without
a connection."""

from __future__ import annotations

import base64
import fnmatch
import glob
import hashlib
import hmac
import os
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from workbench.model.errors import InputError

_NAME = re.compile(r"(?:[A-Za-z0-9_.][A-Za-z0-9_.-]*@)?\.?[A-Za-z0-9_][A-Za-z0-9_.:%-]*")
# ssh_config(5): a keyword, then whitespace or one "=" with whitespace around it, then the arguments
_DIRECTIVE = re.compile(r"\s*\"?(?P<keyword>[A-Za-z]+)\"?(?:\s*=\s*|\s+)(?P<rest>.*)")
_ARGUMENT = re.compile(
    r"""
    \s*
    (?P<argument>
        (?: "(?:\\["'\\]|[^"])*"      # in double quotes
        |   '(?:\\["'\\]|[^'])*'      # in single quotes
        |   \\["'\\ ]                # one escaped character
        |   [^\s"']
        )+
    )
    """,
    re.VERBOSE,
)
_QUOTE_OR_ESCAPED = re.compile(r"""\\(["'\\ ])|["']""")
_LONGEST = 253  # characters of a name in DNS
_RESOLVER_WAIT_S = 1.0


def require_host_name(name: str) -> str:
    """Return `name` unchanged if it can name a host: an alias, HOST, ADDRESS or USER@HOST. Raises
    InputError for any other text, such as one that ssh would read as an option.
    """
    if not _NAME.fullmatch(name):
        step = "give a name of your ssh configuration, HOST or USER@HOST"
        raise InputError(f"{name!r} is not a valid host name", next_step=step)
    return name


def parse_jump_host_and_options(text: str) -> tuple[str, dict[str, Any]]:
    """Parse one ProxyJump host, [ssh://][user@]host[:port]. Return the host and a dict with
    "username" and "port" if they are in the text.
    """
    user, _, rest = text.strip().removeprefix("ssh://").rpartition("@")
    host, colon, port = rest.rpartition(":")
    if not colon or not port.isdecimal() or (":" in host and not host.endswith("]")):
        host, port = rest, ""
    given: dict[str, Any] = {"username": user} if user else {}
    return host.strip("[]"), given | ({"port": int(port)} if port else {})


def list_host_aliases(config: Path | None = None) -> list[str]:
    """Return the host aliases in an ssh configuration file. Patterns, too long names and
    names with characters that no host name has are left out. None means the user's ~/.ssh/config."""
    names: list[str] = []
    for block in _host_blocks(config or _user_ssh_config_path()):
        usable = (n for n in block.patterns if _NAME.fullmatch(n) and len(n) <= _LONGEST)
        names += filter(block.applies_to, usable)
    return list(dict.fromkeys(names))


def can_find_ssh_name(name: str) -> bool:
    """Return whether ssh can know `name`: an address, an alias or pattern in its configuration, a
    name in known_hosts, or a name that resolves within a second.
    """
    host = name.rpartition("@")[2]
    if "@" in name or "." in host or ":" in host:
        return True
    blocks = _host_blocks(_user_ssh_config_path())
    if any("*" not in block.patterns and block.applies_to(host) for block in blocks):
        return True
    return _is_in_known_hosts(host) or _name_resolves(host)


def _user_ssh_config_path() -> Path:
    return Path.home() / ".ssh" / "config"


class _HostBlock(NamedTuple):
    """A `Host` line: its patterns, and those of the `Host` lines below which its file is
    included."""

    patterns: tuple[str, ...]
    around: tuple[tuple[str, ...], ...]

    def applies_to(self, name: str) -> bool:
        """Return whether ssh applies the block to a host called `name`."""
        return all(_match_patterns(patterns, name) for patterns in (self.patterns, *self.around))


def _match_patterns(patterns: tuple[str, ...], name: str) -> bool:
    """Return whether `name` matches one of the patterns of a `Host` line, and none after a "!"."""
    positive = [pattern for pattern in patterns if not pattern.startswith("!")]
    negated = [pattern[1:] for pattern in patterns if pattern.startswith("!")]
    if any(_match_pattern(pattern, name) for pattern in negated):
        return False
    return any(_match_pattern(pattern, name) for pattern in positive)


def _match_pattern(pattern: str, name: str) -> bool:
    return fnmatch.fnmatchcase(name, pattern.replace("[", "[[]"))  # ssh has no sets of characters


def _host_blocks(
    config: Path, around: tuple[tuple[str, ...], ...] = (), open_files: tuple[Path, ...] = ()
) -> Iterator[_HostBlock]:
    """Yield the blocks of an ssh configuration file and of the files that it includes.
    `open_files` are the files that lead to it; a circle ends where it closes."""
    try:
        lines = config.read_text(errors="replace").split("\n")
    except OSError:
        return
    chain = (config, *open_files)
    included_in = around
    for line in lines:
        keyword, arguments = _parse_keyword_and_arguments(line)
        if keyword == "host":
            patterns = tuple(arguments)
            yield _HostBlock(patterns, around)
            included_in = (*around, patterns)
        elif keyword == "match":
            included_in = around
        elif keyword == "include":
            for found in _list_included_files(chain[-1].parent, arguments):
                if found not in chain:
                    yield from _host_blocks(found, included_in, chain)


def _list_included_files(directory: Path, patterns: list[str]) -> Iterator[Path]:
    """Yield the files that an `Include` line names. `directory` is that of the user's file."""
    for pattern in patterns:
        # Path.expanduser raises for an unknown user, and Path.glob finds hidden files
        path = directory / os.path.expanduser(pattern)  # noqa: PTH111
        yield from map(Path, sorted(glob.glob(str(path))))  # noqa: PTH207


def _parse_keyword_and_arguments(line: str) -> tuple[str, list[str]]:
    """Return the keyword of a line of an ssh configuration file, in lower case, and its arguments
    without their quotes. A comment ends the line. The keyword is "" for a line without arguments
    and for one that ssh refuses because a quote is not closed."""
    found = _DIRECTIVE.fullmatch(line.rstrip())
    if found is None:
        return "", []
    try:
        return found["keyword"].lower(), split_arguments(found["rest"])
    except ValueError:
        return "", []


def split_arguments(text: str) -> list[str]:
    """Split a text of an ssh configuration file into its arguments, without their quotes and
    without a comment at the end. Raises ValueError if a quote is not closed."""
    arguments = []
    rest = text.strip()
    while rest and not rest.startswith("#"):
        argument = _ARGUMENT.match(rest)
        if argument is None:
            raise ValueError("a quote is not closed")
        arguments.append(_QUOTE_OR_ESCAPED.sub(r"\1", argument["argument"]))
        rest = rest[argument.end() :].lstrip()
    return arguments


def _is_in_known_hosts(host: str) -> bool:
    try:
        lines = (Path.home() / ".ssh" / "known_hosts").read_text(errors="replace").splitlines()
    except OSError:
        return False
    fields = (line.split() for line in lines if line.strip() and not line.startswith("#"))
    return any(
        _known_hosts_field_contains(
            words[1] if words[0].startswith("@") and len(words) > 1 else words[0], host
        )
        for words in fields
    )


def _known_hosts_field_contains(field: str, host: str) -> bool:
    """Return whether the first field of a known_hosts line contains `host`, as text or in the
    hashed form |1|salt|HMAC-SHA1."""
    if not field.startswith("|1|"):
        return host in (name.strip("[]").partition("]:")[0] for name in field.split(","))
    try:
        salt, digest = (base64.b64decode(part) for part in field[3:].split("|"))
    except ValueError:
        return False
    return hmac.compare_digest(hmac.new(salt, host.encode(), hashlib.sha1).digest(), digest)


def _name_resolves(host: str) -> bool:
    found: list[bool] = []

    def resolve_host() -> None:
        try:
            found.append(bool(socket.getaddrinfo(host, 22)))
        except (OSError, UnicodeError):
            found.append(False)

    thread = threading.Thread(target=resolve_host, daemon=True)
    thread.start()
    thread.join(_RESOLVER_WAIT_S)
    return bool(found and found[0])

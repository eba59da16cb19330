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
# sshd(8), "SSH_KNOWN_HOSTS FILE FORMAT": the names may follow a marker, such as @cert-authority
_KNOWN_HOSTS_NAMES = re.compile(r"\s*(?:@\S+\s+)?(?P<names>[^\s#]\S*)")
_QUOTE_OR_ESCAPED = re.compile(r"""\\(["'\\ ])|["']""")
_LONGEST = 253  # characters of a name in DNS
_RESOLVER_WAIT_S = 1.0


def require_host_name(name: str) -> str:
    """Return `name` unchanged if it has the form of a host's name: an alias, HOST, ADDRESS or
    USER@HOST. Raises InputError for any other text, such as one that ssh would take for an
    option."""
    if not _NAME.fullmatch(name):
        step = "give a name of your ssh configuration, HOST or USER@HOST"
        raise InputError(f"{name!r} is not a valid host name", next_step=step)
    return name


def parse_jump_host_and_options(text: str) -> tuple[str, dict[str, Any]]:
    """Parse one ProxyJump host, [ssh://][user@]host[:port]. Return (host, options of asyncssh); the
    options "username" and "port" are set if the text has them."""
    user, _, rest = text.strip().removeprefix("ssh://").rpartition("@")
    host, colon, port = rest.rpartition(":")
    if not colon or not port.isdecimal() or (":" in host and not host.endswith("]")):
        host, port = rest, ""
    given: dict[str, Any] = {"username": user} if user else {}
    return host.strip("[]"), given | ({"port": int(port)} if port else {})


def list_host_aliases(config: Path | None = None) -> list[str]:
    """Return the host aliases in the ssh configuration file `config`, None for the user's
    ~/.ssh/config. Patterns and names that no host can have are left out. [] without such a file."""
    names: list[str] = []
    for block in _host_blocks(config or _user_ssh_config_path()):
        usable = (n for n in block.patterns if _NAME.fullmatch(n) and len(n) <= _LONGEST)
        names += filter(block.applies_to, usable)
    return list(dict.fromkeys(names))


def can_find_ssh_name(name: str) -> bool:
    """Return whether ssh can know `name`: an address, a name that an alias or a pattern of its
    configuration matches, a name in known_hosts, or one that resolves within a second."""
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
    """A `Host` line of an ssh configuration. `around` has the patterns of the `Host` lines below
    which its file is included."""

    patterns: tuple[str, ...]
    around: tuple[tuple[str, ...], ...]

    def applies_to(self, name: str) -> bool:
        """Return whether the settings of this block apply to a host called `name`."""
        return all(_match_patterns(patterns, name) for patterns in (self.patterns, *self.around))


def _match_patterns(patterns: tuple[str, ...], name: str) -> bool:
    """Return whether `name` matches a pattern of a `Host` line. False if it also matches a pattern
    after a "!", which excludes it."""
    has_match = False
    for pattern in patterns:
        if _match_pattern(pattern.removeprefix("!"), name):
            if pattern.startswith("!"):
                return False
            has_match = True
    return has_match


def _match_pattern(pattern: str, name: str) -> bool:
    return fnmatch.fnmatchcase(name, pattern.replace("[", "[[]"))  # ssh has no sets of characters


def _host_blocks(
    config: Path, around: tuple[tuple[str, ...], ...] = (), open_files: tuple[Path, ...] = ()
) -> Iterator[_HostBlock]:
    """Yield the `Host` blocks of the ssh configuration file `config` and of the files that it
    includes. `around` has the patterns of the `Host` lines below which `config` is included, and
    `open_files` the files that include it, which are not read again. Nothing if it cannot be
    read."""
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
    """Yield the existing files that match `patterns`, the arguments of an `Include` line. Relative
    ones begin at `directory`."""
    for pattern in patterns:
        # Path.expanduser raises for an unknown user, and Path.glob finds hidden files
        path = directory / os.path.expanduser(pattern)  # noqa: PTH111
        yield from map(Path, sorted(glob.glob(str(path))))  # noqa: PTH207


def _parse_keyword_and_arguments(line: str) -> tuple[str, list[str]]:
    """Return (keyword in lower case, arguments without their quotes) of a line of an ssh
    configuration file. ("", []) for a line without arguments, and for one in which a quote is not
    closed."""
    found = _DIRECTIVE.fullmatch(line.rstrip())
    if found is None:
        return "", []
    try:
        return found["keyword"].lower(), split_arguments(found["rest"])
    except ValueError:
        return "", []


def split_arguments(text: str) -> list[str]:
    """Return the arguments in `text`, a part of a line of an ssh configuration file, without their
    quotes. A comment at the end is left out. Raises ValueError if a quote is not closed."""
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
    for line in lines:
        found = _KNOWN_HOSTS_NAMES.match(line)
        if found is not None and _known_hosts_field_contains(found["names"], host):
            return True
    return False


def _known_hosts_field_contains(field: str, host: str) -> bool:
    """Return whether `field`, the names in a known_hosts line, has the name `host`, as text or
    hashed as |1|SALT|HMAC-SHA1. False for a hash that cannot be decoded."""
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
    return found == [True]

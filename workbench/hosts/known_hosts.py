"""known_hosts files: finds the keys of a host, makes the errors for unknown and changed keys, and
adds a key.

The ssh library interprets the lines (hashed names, patterns, certificate authorities). Its parser
is the parameter `parse`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from workbench.hosts.base import HostKeyChanged, HostKeyUnknown, HostUnreachable

DEFAULT_USER = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2")
DEFAULT_GLOBAL = ("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")
DEFAULT_PORT = 22


class KnownKeys(Protocol):
    """The parsed lines of known_hosts files. `match` returns those of one host: keys, certificate
    authorities, revoked keys, and the same for X.509 certificates."""

    def match(self, host: str, addr: str, port: int | None) -> Sequence[Sequence[Any]]: ...


class PublicKey(Protocol):
    def get_fingerprint(self) -> str: ...
    def get_algorithm(self) -> str: ...
    def export_public_key(self) -> bytes: ...


class HostKeys:
    """The known keys of one host, and the check of the key that the host presents. `host` is the
    name by which the user knows the host, `address` the one by which ssh knows it. `aliased` says
    whether the ssh configuration sets HostKeyAlias: known_hosts lists an alias without a port.

    After a key was rejected, `problem` is the error with the reason, and `accepting` is (the
    known_hosts file, the line to add to it to accept the key)."""

    def __init__(
        self,
        host: str,
        known: KnownKeys,
        *,
        address: str,
        file: str,
        aliased: bool,
        accepted: set[str],
    ) -> None:
        self._host, self._address = host, address
        self._all = known
        self._file = file
        self._aliased = aliased
        self._accepted = accepted  # fingerprints that the user accepted in this process
        self._name = host  # the entry in known_hosts, once the key was looked up
        self.known: Sequence[Any] = ()
        self.accepting = ("", "")
        self.problem: HostUnreachable | None = None

    def known_keys_of_host(self, host: str, addr: str, port: int | None) -> Any:
        """Return (keys, certificate authorities, revoked keys, …) of the host from known_hosts, for
        the ssh library. As in OpenSSH with CheckHostIP no, `addr` is not looked up. Keys that are
        listed without the host's port are left out: `accepts` checks those."""
        self._name = self._name_in_known_hosts(host, port)
        exact = self._all.match(self._name, "", None)
        plain = self._all.match(host, "", None)
        self.known = exact[0]
        return (exact[0], *([*x, *y] for x, y in zip(exact[1:], plain[1:], strict=True)))

    def accepts(self, host: str, port: int, key: PublicKey) -> bool:
        """Return whether to trust `key`, which is none of the keys that `known_keys_of_host`
        returned: the user has accepted it, or known_hosts lists it without the port. If False,
        `problem` has the reason."""
        fingerprint, kind = key.get_fingerprint(), key.get_algorithm()
        if fingerprint in self._accepted:
            return True
        if not self.known and key in self._all.match(host, "", None)[0]:
            return True  # listed without the port, which OpenSSH accepts too
        name = self._name = self._name_in_known_hosts(host, port)
        if self.known:
            self.problem = self.key_changed_error(f"it is now {kind} {fingerprint}")
            return False
        self.accepting = (self._file, f"{name} {key.export_public_key().decode().strip()}")
        self.problem = HostKeyUnknown(
            f"the key of {name} is not known: {kind} {fingerprint}",
            host=self._host,
            fingerprint=fingerprint,
            key_type=kind,
            next_step="compare the fingerprint with that of the host's key file (ssh-keygen -lf "
            "FILE on the host),"
            f" then accept the key, or log in once with: ssh {self._address}",
        )
        return False

    def key_changed_error(self, difference: str) -> HostKeyChanged:
        """Return the error for a host whose key differs from the one in known_hosts. `difference`
        says what is different, such as "it is now ssh-ed25519 SHA256:…"."""
        return HostKeyChanged(
            f"the key of {self._name} differs from the one in known_hosts ({difference}): "
            "the host was installed anew, or another machine answers in its place",
            host=self._host,
            next_step="if you know why the key changed, remove the old one and connect again: "
            f"ssh-keygen -f {self._file} -R '{self._name}'",
        )

    def _name_in_known_hosts(self, host: str, port: int | None) -> str:
        return host if self._aliased or port in (None, DEFAULT_PORT) else f"[{host}]:{port}"


def read_known_hosts(files: Iterable[str], parse: Callable[[str], KnownKeys]) -> KnownKeys:
    """Return the known keys in all of `files` together. `parse` parses the text of such files. As
    in OpenSSH, a missing file or an invalid line is ignored."""
    lines: list[str] = []
    for file in files:
        try:
            lines += Path(file).expanduser().read_text(errors="replace").splitlines()
        except OSError:
            continue
    return parse("".join(f"{line}\n" for line in lines if _is_valid_line(line, parse)))


def _is_valid_line(line: str, parse: Callable[[str], KnownKeys]) -> bool:
    try:
        parse(line)
    except ValueError:
        return False
    return True


def append_line(file: str, line: str) -> None:
    """Append `line` to the text file `file`. The file (0600) and its directories (0700) are created
    if they are missing. Raises OSError."""
    path = Path(file).expanduser()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    with os.fdopen(handle, "r+b") as out:
        size = out.seek(0, os.SEEK_END)
        if size:
            out.seek(size - 1)
        ends = not size or out.read(1) == b"\n"
        out.write((b"" if ends else b"\n") + line.encode() + b"\n")

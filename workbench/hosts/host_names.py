"""Names of hosts as a person or an ssh configuration gives them."""

from __future__ import annotations

import re
from typing import Any

from workbench.model.errors import InputError

_NAME = re.compile(r"(?:[A-Za-z0-9_.][A-Za-z0-9_.-]*@)?[A-Za-z0-9_][A-Za-z0-9_.:%-]*")


def check(name: str) -> str:
    """`name` if it can be one: an alias, HOST, ADDRESS or USER@HOST. InputError otherwise, for an option above all."""
    if not _NAME.fullmatch(name):
        step = "give a name of your ssh configuration, HOST or USER@HOST"
        raise InputError(f"not a host name: {name!r}", next_step=step)
    return name


def hop(text: str) -> tuple[str, dict[str, Any]]:
    """A ProxyJump host, [ssh://][user@]host[:port]: the host, and "username" and "port" where they are given."""
    user, _, rest = text.strip().removeprefix("ssh://").rpartition("@")
    host, colon, port = rest.rpartition(":")
    if not colon or not port.isdigit() or (":" in host and not host.endswith("]")):
        host, port = rest, ""
    given: dict[str, Any] = {"username": user} if user else {}
    return host.strip("[]"), given | ({"port": int(port)} if port else {})

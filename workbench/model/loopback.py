"""Whether an address is one that only programs on the same host reach."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Return whether `host`, the address on which a server listens, is a loopback address, the name
    localhost or the path of a Unix socket."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost" or host.startswith("/")

"""Under which boot a host runs."""

from __future__ import annotations

from workbench.hosts.base import Host
from workbench.model.errors import HostError
from workbench.model.untrusted_text import clean_text

BOOT_ID = "/proc/sys/kernel/random/boot_id"
_MOST_BYTES = 64


async def read_boot_id(host: Host) -> str | None:
    """Return the kernel's identifier of the present boot of `host`, which another start of the host
    changes. None if it cannot be read."""
    try:
        text = await host.read_file(BOOT_ID, limit=_MOST_BYTES)
    except HostError:
        return None
    return clean_text(text.decode("utf-8", "replace")).strip() or None

"""The server whose traffic is captured: where this machine reaches it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from workbench.model.errors import InputError, ServerError
from workbench.session.bench.server_load import forward_server_port, open_server_address
from workbench.session.servers import server_address

if TYPE_CHECKING:
    from workbench.session.session import Session


@asynccontextmanager
async def open_server_address_and_port(
    session: Session, run_id: str | None, url: str | None
) -> AsyncIterator[tuple[str, int]]:
    """Make a server reachable on this machine while the block runs, and yield its address and port
    there. The server is the one at `url`, or else the run `run_id`. Raises InputError for a URL
    with https, whose bytes cannot be read, and ServerError for a run whose port is unknown."""
    if url is None:
        assert run_id is not None
        status = session.servers.supervisor.status(run_id)
        if status.port is None:
            raise ServerError(f"the port of run {run_id} is not known", host=session.host.name)
        opened = forward_server_port(session.host, status.port, status.node)
    else:
        address = server_address.parse_server_url(url)
        if urlsplit(address.base).scheme == "https":
            raise InputError(
                f"{url} is encrypted, so what passes cannot be read",
                next_step="give the http address of the server behind it",
            )
        opened = open_server_address(session.host, address)
    async with opened as base:
        there = server_address.parse_server_url(base)
        yield there.hostname, there.port

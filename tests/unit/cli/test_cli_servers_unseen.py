"""`workbench servers` on a host on which the servers of others cannot be searched for."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from workbench.cli import servers
from workbench.hosts.base import command_not_found_error


def test_without_python3_only_the_servers_of_others_are_missing() -> None:
    async def others() -> Any:
        raise command_not_found_error(["python3"], "box")

    parts: dict[str, Any] = {
        "servers": SimpleNamespace(find_external_servers=others),
        "core": SimpleNamespace(host=SimpleNamespace(name="box")),
    }
    session: Any = SimpleNamespace(**parts)
    found, unseen = asyncio.run(servers._find_external_servers_or_problem(session))
    assert found is None and unseen is not None
    assert "python3: no such executable" in unseen and "install python3 on box" in unseen

"""The names by which units of systemd are followed."""

from __future__ import annotations

import asyncio

import pytest
from support.fake_host import FakeHost

from workbench.model.errors import ServerError
from workbench.server.launchers.systemd import launcher


@pytest.mark.parametrize("handle", ["*", "vllm*.service", "vllm?", "[a-z]"])
def test_a_pattern_is_no_unit(handle: str) -> None:
    """A restart would be that of every unit that matches."""
    host = FakeHost(lambda call: "MainPID=1\n")
    with pytest.raises(ServerError, match="is a pattern"):
        asyncio.run(launcher("systemd").find(host, handle, {}))

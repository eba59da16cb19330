"""A session on a machine on which no server has run."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.ended_runs import make_ended

from workbench.session.session import Session


def test_a_screen_without_a_run_notices_the_first_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The supervisor is made with the first run, which another Workbench may have started."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    async def scenario() -> None:
        session = Session.of_host()
        try:
            await session.link.connect()
            await session.servers.adopt()
            assert session.state.servers_read and not session.state.servers
            made = make_ended(tmp_path / "workbench" / "runs", 1)
            await session.servers.look_elsewhere()
            assert [status.run_id for status in session.state.servers] == made
        finally:
            await session.close()

    asyncio.run(scenario())

"""A session on a machine on which no server has run."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
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
            await session.servers.list_runs_and_select_one()
            assert session.state.servers_read and not session.state.servers
            made = make_ended(tmp_path / "workbench" / "runs", 1)
            await session.servers.list_servers_started_elsewhere()
            assert [status.run_id for status in session.state.servers] == made
        finally:
            await session.close()

    asyncio.run(scenario())


@pytest.mark.slow
def test_an_ended_run_is_listed_without_the_known_lines_of_logs(tmp_path: Path) -> None:
    """They are needed when a log is read or explained, and take 0.4 MiB."""
    make_ended(tmp_path / "workbench" / "runs", 1)
    code = (
        "import asyncio, sys\n"
        "from workbench.session.session import Session\n"
        "async def main():\n"
        "    session = Session.of_host()\n"
        "    await session.link.connect()\n"
        "    await session.servers.list_runs_and_select_one()\n"
        "    assert len(session.state.servers) == 1\n"
        "    print(*sys.modules)\n"
        "    await session.close()\n"
        "asyncio.run(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=110,
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path)},
    )
    loaded = done.stdout.split()
    assert "workbench.server.watched_run" in loaded, done.stderr
    assert "workbench.server.log_patterns" not in loaded

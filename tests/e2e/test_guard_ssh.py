"""Settings changed over a real sshd whose link is lost: the guard over there gives them back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.guarded import WANTED, WITHIN_S, guarded
from support.procs import alive
from support.serving import eventually as until
from support.ssh_box import PROFILE, Box, box

from workbench.session.session import Session

HEARTBEAT_S = 3.0
OFF = (None, None)
LOSSES: dict[str, Callable[[Box], None]] = {
    "cut": lambda far: far.server.cut(),
    "silent": lambda far: far.server.silence(),
}


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["cut", pytest.param("silent", marks=pytest.mark.long)])
def test_a_lost_link(tmp_path: Path, loss: str) -> None:
    """Cut, which also ends all that sshd runs for the session; and with nothing passing any more,
    unnoticed by sshd."""
    config = tmp_path / "xdg-config" / "workbench" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text(f"[gpu]\nheartbeat_s = {HEARTBEAT_S}\n")
    with box(tmp_path) as far, guarded(far.state_dir, PROFILE) as there:

        async def scenario(session: Session) -> None:
            report = await session.gpu.apply_settings(WANTED)
            assert report.ok and report.guard is not None and report.guard.running
            guard, beats = there.pid, there.gpu / "guard" / "beats"
            await asyncio.sleep(HEARTBEAT_S + 1)
            assert there.in_force() == (450.0, (1000, 2000))
            await asyncio.to_thread(LOSSES[loss], far)
            (beat,) = beats.iterdir()
            missed_at = beat.stat().st_mtime + HEARTBEAT_S
            await until(
                lambda: there.in_force() == OFF and not there.altered,
                30.0,
                "the settings of before",
            )
            late_s = time.time() - missed_at
            print(f"link {loss}: given back {late_s:.1f} s after the missed heartbeat")
            assert late_s < WITHIN_S
            await until(lambda: not alive(guard), what="the guard to end")
            await asyncio.to_thread(far.server.restore)
            await until(lambda: session.state.alterations == (), what="the person to be told")
            await until(
                lambda: session.state.guard is not None and not session.state.guard.running,
                what="its end",
            )
            assert session.state.guard and "no heartbeat for 3 s" in (session.state.guard.did or "")

        async def go() -> None:
            async with far.session() as session:
                await scenario(session)

        asyncio.run(go())

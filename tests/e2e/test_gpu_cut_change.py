"""A change of GPU settings over a real sshd, whose link is cut before or after the command: the
screen says what became of the change, and does not show a value that was never set."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from support.guarded import guarded
from support.procs import alive
from support.serving import eventually as until
from support.ssh_box import PROFILE, Box, box

from workbench.gpu.settings import unconfirmed_changes
from workbench.model.errors import WorkbenchError
from workbench.model.settings import GpuSettings
from workbench.session.session import Session
from workbench.tui.widgets.guard_state import guard_deadline_passed_text

HEARTBEAT_S = 3.0


@asynccontextmanager
async def opened(far: Box, notices: list[str]) -> AsyncIterator[Session]:
    async with far.session() as session:

        def heard(state: Any, changed: frozenset[str]) -> None:
            if "notice" in changed and state.notice:
                notices.append(state.notice.text)

        session.core.subscribe(heard)
        yield session


@pytest.fixture(autouse=True)
def short_heartbeat(tmp_path: Path) -> None:
    config = tmp_path / "xdg-config" / "workbench" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text(f"[gpu]\nheartbeat_s = {HEARTBEAT_S}\n")


@pytest.mark.long
@pytest.mark.slow
def test_a_change_that_was_cut_off_before_its_command_is_taken_back(tmp_path: Path) -> None:
    notices: list[str] = []
    with box(tmp_path) as far, guarded(far.state_dir, PROFILE) as there:

        async def scenario(session: Session) -> None:
            change = asyncio.create_task(
                session.gpu.apply_settings(GpuSettings(power_limit_w=350.0))
            )
            await until(there.journal.exists, what="the journal to announce the change")
            await asyncio.to_thread(far.server.cut)
            with pytest.raises(WorkbenchError):
                await change
            assert there.in_force()[0] is None and there.altered == [("power_limit_w", 350.0)]
            await asyncio.to_thread(far.server.restore)
            await until(lambda: session.state.host.link == "connected", 60, "the link")
            await until(lambda: not there.altered, 30, "the entry to be taken back")
            await until(lambda: not session.state.alterations, what="the screen to show it")
            text = "GPU0 power limit 350 W was not applied: the link was lost before the command"
            await until(lambda: any(text in notice for notice in notices), 30, "the message")
            assert not any("killed" in notice for notice in notices), notices

        async def go() -> None:
            async with opened(far, notices) as session:
                await scenario(session)

        asyncio.run(go())
        log = json.loads(there.journal.read_text())["log"]
        assert [line["what"] for line in log if "cut off" in line["what"]] == [
            "cut off: not applied"
        ]
        with suppress(FileNotFoundError):
            assert not alive(there.pid)


@pytest.mark.slow
def test_during_an_outage_the_screen_says_that_the_guard_has_reverted(tmp_path: Path) -> None:
    with box(tmp_path) as far, guarded(far.state_dir, PROFILE) as there:

        async def scenario(session: Session) -> None:
            assert (await session.gpu.apply_settings(GpuSettings(power_limit_w=350.0))).ok
            await until(lambda: session.state.guard_deadline_unix_s, what="a heartbeat")
            assert guard_deadline_passed_text(session.state) == ""
            await asyncio.to_thread(far.server.cut)
            await until(lambda: session.state.host.link == "lost", 30, "the loss of the link")
            await until(lambda: guard_deadline_passed_text(session.state), 30, "the deadline")
            assert "the guard has reverted by now (deadline " in guard_deadline_passed_text(
                session.state
            )
            await until(lambda: there.in_force()[0] is None, 10, "the revert")

        async def go() -> None:
            async with far.session() as session:
                await scenario(session)

        asyncio.run(go())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("watts", "text", "left"),
    [
        (600.0, "power limit 350 W was not applied: the Workbench that began the change ended", []),
        (350.0, "power limit 350 W was applied, although the answer was lost", ["applied"]),
        (500.0, "", ["pending"]),
    ],
)
def test_the_value_of_the_host_decides_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, watts: float, text: str, left: list[str]
) -> None:
    with guarded(tmp_path / "host") as there:

        async def work() -> None:
            assert (await there.change(GpuSettings(power_limit_w=350.0))).ok
            data = json.loads(there.journal.read_text())
            data["entries"][0]["state"] = "pending"
            data["entries"][0]["owner"].update(pid=2**22, start="1")  # a process that has ended
            there.journal.write_text(json.dumps(data))
            there.sim.change_setting(0, limit_w=watts)
            assert (
                await unconfirmed_changes.settle_cut_off_changes(there.host) == ()
            )  # its command could still run
            monkeypatch.setattr(unconfirmed_changes, "SETTLED_AFTER_S", 0.0)
            settled = await unconfirmed_changes.settle_cut_off_changes(there.host)
            assert [text in one.text for one in settled] == ([True] if text else [])

        asyncio.run(work())
        entries = json.loads(there.journal.read_text())["entries"]
        assert [entry["state"] for entry in entries] == left


def test_a_second_change_that_was_cut_off_leaves_the_first_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unconfirmed_changes, "SETTLED_AFTER_S", 0.0)
    with guarded(tmp_path / "host") as there:

        async def work() -> None:
            assert (await there.change(GpuSettings(power_limit_w=400.0))).ok
            first = json.loads(there.journal.read_text())
            assert (await there.change(GpuSettings(power_limit_w=350.0))).ok
            cut = json.loads(there.journal.read_text())
            old = {k: first["entries"][0][k] for k in ("now", "state", "watch", "set_unix_s")}
            cut["entries"][0].update(state="pending", earlier=old)
            there.journal.write_text(json.dumps(cut))
            there.sim.change_setting(0, limit_w=400.0)
            (settled,) = await unconfirmed_changes.settle_cut_off_changes(there.host)
            assert not settled.applied

        asyncio.run(work())
        (entry,) = json.loads(there.journal.read_text())["entries"]
        assert (entry["before"], entry["now"], entry["state"]) == (600.0, 400.0, "applied")

"""A key with a passphrase: the command line and the screen ask for it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest
from support.sshd import Sshd, keygen, sshd

from workbench.hosts.base import AuthFailed, HostUnreachable
from workbench.hosts.login_question import LoginQuestion
from workbench.hosts.ssh import SshHost
from workbench.session.session import Session
from workbench.tui.app import WorkbenchApp
from workbench.tui.modals.login import Login

SECRET = "open sesame"
ENTER = "\r"


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[Sshd]:
    """A real sshd that accepts only a key with a passphrase."""
    with sshd(tmp_path / "sshd") as server:
        keygen(tmp_path / "locked", SECRET)
        (server.directory / "authorized_keys").write_text((tmp_path / "locked.pub").read_text())
        server.ssh_config_path.write_text(
            server.stanza(IdentityFile=str(tmp_path / "locked"), IdentityAgent="none")
        )
        yield server


def test_a_command_asks_on_its_terminal(locked: Sshd, tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "config").write_text(locked.ssh_config_path.read_text())
    argv = ["-m", "workbench", "--host", "box", "servers"]
    with pexpect.spawn(
        sys.executable, argv, env={**os.environ, "HOME": str(home)}, encoding="utf-8"
    ) as terminal:
        terminal.expect(
            "Passphrase for .*, to log in to box; it stays on this machine: ", timeout=30
        )
        terminal.send(SECRET + ENTER)
        terminal.expect(pexpect.EOF, timeout=30)
        assert SECRET not in terminal.before
    assert terminal.exitstatus == 0, terminal.before


@pytest.mark.slow
def test_the_screen_asks(locked: Sshd) -> None:
    session = Session(SshHost("box", ssh_config=locked.ssh_config_path))

    async def main() -> None:
        app = WorkbenchApp(session)
        async with app.run_test(size=(120, 40)) as pilot:
            async with asyncio.timeout(30):
                while not isinstance(app.screen, Login):
                    await pilot.pause(0.05)
                app.screen.field.value = SECRET
                await pilot.press("enter")
                while session.state.host.link != "connected":
                    await pilot.pause(0.05)
            assert not isinstance(app.screen, Login)

    asyncio.run(main())


@pytest.mark.slow
def test_a_passphrase_outlives_an_outage_but_not_a_failed_login(locked: Sshd) -> None:
    """Each retry while the host was gone forgot the passphrase, so the user had to type it again
    after an outage."""
    asked: list[str] = []
    answers = ["mistyped", "mistyped", "mistyped", SECRET]

    async def ask(question: LoginQuestion) -> str | None:
        asked.append(question.wanted)
        return answers.pop(0)

    async def main() -> None:
        host = SshHost("box", ssh_config=locked.ssh_config_path)
        host.login_prompt = ask
        try:
            with pytest.raises(AuthFailed, match=r"the passphrase of .*locked is wrong"):
                await host.connect()
            await host.connect()
            locked.cut()
            with pytest.raises(HostUnreachable):
                await host._open_connection()
            locked.restore()
            (await host._open_connection()).close()
        finally:
            await host.close()

    asyncio.run(main())
    first, *again, last = asked
    assert first == last and again == [f"Wrong. {first}"] * 2, "three times, as ssh does"


@pytest.mark.slow
def test_a_declined_question_is_a_login_that_failed(locked: Sshd) -> None:
    session = Session(SshHost("box", ssh_config=locked.ssh_config_path))

    async def main() -> None:
        app = WorkbenchApp(session)
        async with app.run_test(size=(80, 24)) as pilot:
            async with asyncio.timeout(30):
                while not isinstance(app.screen, Login):
                    await pilot.pause(0.05)
                await pilot.press("escape")
                while session.state.host.link != "failed":
                    await pilot.pause(0.05)

    asyncio.run(main())

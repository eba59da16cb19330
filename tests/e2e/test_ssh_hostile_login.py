"""A hostile SSH server at login: its banner, its questions and its demand for a new password reach
the user only as text in a frame that names the server, and only a few times."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import asyncssh
import pexpect
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.hostile import assert_safe, hostile_texts
from support.procs import eventually
from support.sshd import keygen

from workbench.hosts.base import AuthFailed, HostUnreachable
from workbench.hosts.login_question import MARGIN, LoginQuestion, clean_server_lines
from workbench.hosts.ssh import SshHost
from workbench.model.errors import HostError
from workbench.session.session import Session
from workbench.tui.app import WorkbenchApp
from workbench.tui.modals.login import Login

CLIPBOARD = "\x1b]52;c;cHduZWQtYnktc3No\x07"  # "pwned-by-ssh"
TITLE = "\x1b]0;TITLE-PWNED\x07"
SUDO = "[sudo] password for root on local (sent to sudo only):"
PROMPT = f"{CLIPBOARD}{TITLE}\r\x1b[2K{SUDO}"
PADDED = " " * 200 + "\n" * 60 + SUDO + " " + "x" * 5000


class Hostile(asyncssh.SSHServer):
    """Asks and asks, whatever is answered. `answers` collects the answers."""

    def __init__(
        self, prompts: Sequence[str], answers: list[str], per_try: int, ends: str = ""
    ) -> None:
        self.prompts, self.answers, self.per_try, self.ends = prompts, answers, per_try, ends
        self.round = 0

    def auth_completed(self) -> None:
        if self.ends == "after the login":
            self.connection.disconnect(asyncssh.DISC_BY_APPLICATION, PADDED)

    def connection_made(self, conn: Any) -> None:
        self.connection = conn
        conn.send_auth_banner(f"{CLIPBOARD}{TITLE}{SUDO} banner")

    def password_auth_supported(self) -> bool:
        return True

    def validate_password(self, username: str, password: str) -> bool:
        self.answers.append(password)
        raise asyncssh.PasswordChangeRequired(PROMPT)

    def kbdint_auth_supported(self) -> bool:
        return True

    def get_kbdint_challenge(self, username: str, lang: str, submethods: str) -> Any:
        return PROMPT, PROMPT, "", [(self.prompts[0], False)]

    def validate_kbdint_response(self, username: str, responses: Sequence[str]) -> Any:
        self.answers += responses
        if self.ends == "the login":
            self.connection.disconnect(asyncssh.DISC_BY_APPLICATION, PADDED)
        if self.ends == "after the login":
            return True
        self.round += 1
        if self.round % self.per_try == 0:
            return False
        return PROMPT, PADDED, "", [(self.prompts[self.round % len(self.prompts)], True)]


@contextlib.contextmanager
def hostile(
    home: Path, prompts: Sequence[str] = (PROMPT, PADDED), per_try: int = 1, ends: str = ""
) -> Iterator[list[str]]:
    """A server that `home`/.ssh/config calls "evil". The value is the list of the answers that it
    got."""
    answers: list[str] = []
    (home / ".ssh").mkdir(parents=True, exist_ok=True)
    keygen(home / "host_key")
    ready, ports = threading.Event(), list[int]()
    loop = asyncio.new_event_loop()
    ending = asyncio.Event()

    servers: list[Hostile] = []

    def serve_one() -> Hostile:
        servers.append(Hostile(prompts, answers, per_try, ends))
        return servers[-1]

    async def serve() -> None:
        listening = await asyncssh.listen(
            "127.0.0.1",
            0,
            server_factory=serve_one,
            server_host_keys=[str(home / "host_key")],
        )
        ports.append(listening.get_port())
        ready.set()
        await ending.wait()
        listening.close()
        for server in servers:
            server.connection.abort()
            await server.connection.wait_closed()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    assert ready.wait(20)
    key = (home / "host_key.pub").read_text()
    (home / ".ssh" / "known").write_text(f"[127.0.0.1]:{ports[0]} {key}")
    (home / ".ssh" / "config").write_text(
        f"Host evil\n HostName 127.0.0.1\n Port {ports[0]}\n IdentityAgent none\n"
        f" UserKnownHostsFile {home}/.ssh/known\n IdentitiesOnly yes\n IdentityFile {home}/none\n"
    )
    try:
        yield answers
    finally:
        loop.call_soon_threadsafe(ending.set)
        thread.join(20)
        loop.close()


@pytest.mark.parametrize("per_try", [1, 50])
def test_a_server_is_answered_three_times_at_most(tmp_path: Path, per_try: int) -> None:
    """One that fails each try, and one that asks on and on within a try."""
    asked: list[LoginQuestion] = []

    async def ask(question: LoginQuestion) -> str:
        asked.append(question)
        return "no"

    with hostile(tmp_path, per_try=per_try) as answers:
        host = SshHost("evil", ssh_config=tmp_path / ".ssh" / "config", ask=ask)
        with pytest.raises(AuthFailed):
            asyncio.run(asyncio.wait_for(host.connect(), 30))
    by_server = [question for question in asked if question.said]
    assert len(by_server) == 3 and len(asked) <= 4, "three rounds, and one password"
    assert len(answers) <= 4
    for question in asked:
        assert question.host == "evil" and not question.stays_here
        assert_safe(question.text(80))


@pytest.mark.slow
@pytest.mark.parametrize(("ends", "most"), [("the login", 1), ("after the login", 3)])
def test_a_server_that_ends_each_connection_is_not_answered_again_and_again(
    tmp_path: Path, ends: str, most: int
) -> None:
    """A lost connection is restored by itself, and its server could ask each time."""
    asked: list[LoginQuestion] = []
    refused: list[HostError | None] = []

    async def ask(question: LoginQuestion) -> str:
        asked.append(question)
        return "no"

    async def main() -> None:
        host = SshHost("evil", ssh_config=tmp_path / ".ssh" / "config", ask=ask)
        host.on_link(lambda event: refused.append(event.refused))
        with contextlib.suppress(HostUnreachable):
            await host.connect()
        if ends == "the login":
            return
        async with asyncio.timeout(60):
            while not any(refused):
                await asyncio.sleep(0.05)
        with pytest.raises(AuthFailed, match="ended 3 connections"):
            await host.run(["true"])
        await host.close()

    with hostile(tmp_path, ends=ends) as answers:
        asyncio.run(main())
    assert len(asked) == len(answers) == most


def test_the_last_words_of_a_server_are_one_line_in_quotation_marks(tmp_path: Path) -> None:
    async def ask(question: LoginQuestion) -> str:
        return "no"

    with hostile(tmp_path, ends="the login"):
        host = SshHost("evil", ssh_config=tmp_path / ".ssh" / "config", ask=ask)
        with pytest.raises(AuthFailed, match="the login ended after your answer") as ended:
            asyncio.run(asyncio.wait_for(host.connect(), 30))
    said = ended.value.message
    assert_safe(said)
    assert f'"{SUDO} xxx' in said and "\n" not in said and len(said) < 300


def rows_of(terminal: str) -> list[str]:
    return [row.rstrip("\r") for row in terminal.split("\n")]


def test_a_terminal_shows_the_words_of_a_server_only_in_its_frame(
    clean_environment: None, tmp_path: Path
) -> None:
    argv = ["-m", "workbench", "--host", "evil", "gpu", "status"]
    with (
        hostile(tmp_path),
        pexpect.spawn(
            sys.executable,
            argv,
            env={**os.environ, "HOME": str(tmp_path)},
            encoding="utf-8",
            dimensions=(24, 80),
        ) as terminal,
    ):
        shown = ""
        for _ in range(3):
            terminal.expect("Your answer, sent to evil: ", timeout=60)
            shown += terminal.before
            terminal.sendline("my-secret")
        terminal.expect("Password, sent to evil: ", timeout=60)
        shown += terminal.before
        terminal.sendline("")
        terminal.expect(pexpect.EOF, timeout=60)
        shown += terminal.before
    assert "\x1b" not in shown and "\x07" not in shown and "my-secret" not in shown
    assert "The server evil asks:" in shown and SUDO in shown and "banner" not in shown
    for row in rows_of(shown):
        assert len(row) <= 80 and (row.startswith(MARGIN) or "[sudo]" not in row)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_clipboard_and_title_of_tmux_stay_as_they_are(
    clean_environment: None, tmp_path: Path
) -> None:
    socket = tmp_path / "tmux"
    command = shlex.join([sys.executable, "-m", "workbench", "--host", "evil", "gpu", "status"])

    def tmux(*words: str) -> str:
        argv = ["tmux", "-S", str(socket), *words]
        environment = {**os.environ, "HOME": str(tmp_path)}
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
        return done.stdout

    (tmp_path / ".tmux.conf").write_text("set -s set-clipboard on\n")
    with hostile(tmp_path):
        try:
            tmux("new-session", "-d", "-x", "80", "-y", "24", "sh")
            title = tmux("display-message", "-p", "#{pane_title}")
            tmux("send-keys", command, "Enter")
            asked = "Your answer, sent to evil:"
            eventually(lambda: asked in tmux("capture-pane", "-p"), "the question", 60)
            screen = tmux("capture-pane", "-p")
            assert "The server evil asks:" in screen
            assert tmux("list-buffers") == ""
            assert tmux("display-message", "-p", "#{pane_title}") == title
            assert not re.search(r"^\[sudo\]", screen, re.MULTILINE)
        finally:
            tmux("kill-server")


@pytest.mark.slow
def test_the_screen_shows_the_words_of_a_server_in_a_frame(tmp_path: Path) -> None:
    from support.grid import grid

    with hostile(tmp_path):
        session = Session(SshHost("evil", ssh_config=tmp_path / ".ssh" / "config"))

        async def main() -> None:
            app = WorkbenchApp(session)
            async with app.run_test(size=(100, 40)) as pilot, asyncio.timeout(60):
                while not isinstance(app.screen, Login):
                    await pilot.pause(0.05)
                await pilot.pause()
                text = grid(app)
                assert "Log in to evil" in text and "The server evil asks:" in text
                assert f"{MARGIN}[sudo] password for root" in text
                assert "Your answer, sent to evil" in text
                assert_safe(text)
                await pilot.press("escape")

        asyncio.run(main())


def test_a_login_shell_that_prints_without_end_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its output before the first command is neither kept nor searched again and again."""
    keygen(tmp_path / "host_key")

    async def flood(process: Any) -> None:
        with contextlib.suppress(Exception):
            while True:
                process.stdout.write(b"x" * 65_536)
                await process.stdout.drain()

    class Open(asyncssh.SSHServer):
        def begin_auth(self, username: str) -> bool:
            return False

    async def main() -> None:
        listening = await asyncssh.listen(
            "127.0.0.1",
            0,
            server_factory=Open,
            server_host_keys=[str(tmp_path / "host_key")],
            process_factory=flood,
            encoding=None,
        )
        port = listening.get_port()
        (tmp_path / "known").write_text(
            f"[127.0.0.1]:{port} {(tmp_path / 'host_key.pub').read_text()}"
        )
        (tmp_path / "config").write_text(
            f"Host evil\n HostName 127.0.0.1\n Port {port}\n IdentityAgent none\n"
            f" UserKnownHostsFile {tmp_path}/known\n IdentityFile {tmp_path}/none\n"
        )
        host = SshHost("evil", ssh_config=tmp_path / "config")
        with pytest.raises(HostError, match="printed more than 4 MiB"):
            await asyncio.wait_for(host.stream(["true"]), 60)
        await host.close()
        listening.close()

    asyncio.run(main())


@given(st.lists(hostile_texts() | st.text(), max_size=4), st.integers(20, 300))
def test_no_words_of_a_server_leave_the_frame(texts: list[str], columns: int) -> None:
    question = LoginQuestion("Your answer", "box", clean_server_lines(*texts))
    first, *rows = question.text(columns).split("\n")
    assert_safe("\n".join([first, *rows]))
    if question.said:
        assert first == "The server box asks:" and rows[-1] == "Your answer, sent to box: "
        assert all(row.startswith(MARGIN) for row in rows[:-1]) and len(rows) < 60
        if columns <= 100:
            assert all(len(row) <= max(columns, 26) for row in rows[:-1])

"""Who may be connected to and as whom: host keys, jump hosts, the person's ssh configuration."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import asyncssh
import pytest
from support.sshd import Sshd, keygen, sshd, wait_for

from workbench.hosts import open_host, ssh
from workbench.hosts.base import AuthFailed, HostKeyChanged, HostKeyUnknown, HostUnreachable
from workbench.hosts.login_question import LoginQuestion
from workbench.hosts.ssh import SshHost
from workbench.model.errors import HostError


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Sshd]:
    with sshd(tmp_path / "sshd") as running:
        yield running


async def works(host: SshHost) -> bool:
    try:
        return (await host.run(["echo", "ok"])).out == "ok\n"
    finally:
        await host.close()


def connects(server: Sshd, alias: str = "box", **options: object) -> bool:
    return asyncio.run(works(SshHost(alias, ssh_config=server.ssh_config_path, **options)))  # type: ignore[arg-type]


def test_an_unknown_key_is_asked_about_and_remembered(server: Sshd) -> None:
    server.known_hosts_path.unlink()

    async def main() -> None:
        host = SshHost("box", ssh_config=server.ssh_config_path)
        with pytest.raises(HostKeyUnknown) as asked:
            await host.connect()
        assert asked.value.fingerprint == server.fingerprint()
        assert asked.value.key_type == "ssh-ed25519"
        with pytest.raises(HostError, match="the host offered no key"):
            host.accept_host_key("SHA256:another")
        assert not server.known_hosts_path.exists()
        host.accept_host_key(asked.value.fingerprint)
        assert await works(host)

    asyncio.run(main())
    assert connects(server)  # another process does not ask again
    assert len(server.known_hosts_path.read_text().splitlines()) == 1


def test_a_key_that_cannot_be_remembered_holds_for_this_session(server: Sshd) -> None:
    config = server.stanza(UserKnownHostsFile="/dev/null")
    server.ssh_config_path.write_text(config)

    async def main() -> None:
        host = SshHost("box", ssh_config=server.ssh_config_path)
        with pytest.raises(HostKeyUnknown) as asked:
            await host.connect()
        host.accept_host_key(asked.value.fingerprint)
        assert await works(host)

    asyncio.run(main())


def test_a_changed_key_is_refused_and_said_what_to_do(server: Sshd) -> None:
    server.new_host_key()
    before = server.known_hosts_path.read_text()
    with pytest.raises(HostKeyChanged, match="differs") as refused:
        connects(server)
    assert server.fingerprint() in str(refused.value)
    assert (f"ssh-keygen -f {server.known_hosts_path} -R '[127.0.0.1]:{server.port}'") in str(
        refused.value.next_step
    )
    assert server.known_hosts_path.read_text() == before


def test_a_key_that_changes_while_the_link_is_down_is_refused_too(server: Sshd) -> None:
    async def main() -> None:
        host = SshHost("box", ssh_config=server.ssh_config_path)
        await host.connect()
        await asyncio.to_thread(server.cut)
        await asyncio.to_thread(server.new_host_key)
        await asyncio.to_thread(server.restore)
        await asyncio.to_thread(wait_for, lambda: not host.connected, "the loss")
        with pytest.raises(HostKeyChanged):
            await host.run(["true"])
        await host.close()

    asyncio.run(main())


def test_a_name_that_dns_does_not_allow_is_called_so() -> None:
    with pytest.raises(HostUnreachable, match="DNS allows no such name"):
        asyncio.run(SshHost("n" * 64, ssh_config=os.devnull).connect())


def test_a_revoked_key_is_refused(server: Sshd) -> None:
    server.known_hosts_path.write_text(f"@revoked {server.known_hosts_path.read_text()}")
    with pytest.raises(HostKeyChanged, match="revoked"):
        connects(server)


def test_hashed_names_broken_lines_and_keys_known_without_a_port_do(server: Sshd) -> None:
    key = server.known_hosts_path.read_text().split(maxsplit=1)[1]
    server.known_hosts_path.write_text(f"broken line\n|1|nonsense\n127.0.0.1 {key}")
    assert connects(server)
    server.known_hosts_path.write_text(f"other.example {key}")
    with pytest.raises(HostKeyUnknown):
        connects(server)


def test_a_key_that_is_not_accepted(server: Sshd, tmp_path: Path) -> None:
    keygen(tmp_path / "other_key")
    server.ssh_config_path.write_text(server.stanza(IdentityFile=str(tmp_path / "other_key")))
    with pytest.raises(AuthFailed, match="none of your keys") as refused:
        connects(server)
    assert "ssh-copy-id box" in str(refused.value.next_step)


def test_a_key_with_a_passphrase_is_asked_for_once(server: Sshd, tmp_path: Path) -> None:
    pytest.importorskip("bcrypt")
    keygen(tmp_path / "locked", "open sesame")
    (server.directory / "authorized_keys").write_text((tmp_path / "locked.pub").read_text())
    server.ssh_config_path.write_text(server.stanza(IdentityFile=str(tmp_path / "locked")))
    asked: list[str] = []

    async def ask(question: LoginQuestion) -> str:
        asked.append(question.wanted)
        return "open sesame"

    with pytest.raises(AuthFailed):
        connects(server)

    async def main() -> None:
        host = SshHost("box", ssh_config=server.ssh_config_path, ask=ask)
        await host.connect()
        await asyncio.to_thread(server.cut)
        await asyncio.to_thread(server.restore)
        assert await works(host)

    asyncio.run(main())
    assert asked == [f"Passphrase for {tmp_path / 'locked'}"]


def test_a_wrong_passphrase_is_an_auth_failure(server: Sshd, tmp_path: Path) -> None:
    keygen(tmp_path / "locked", "open sesame")
    server.ssh_config_path.write_text(server.stanza(IdentityFile=str(tmp_path / "locked")))

    async def ask(question: LoginQuestion) -> str:
        return "wrong"

    with pytest.raises(AuthFailed):
        connects(server, ask=ask)


@pytest.mark.parametrize("shell", ["bash", "dash", "zsh", "fish", "tcsh", "csh", "busybox sh"])
def test_any_login_shell_runs_the_same_commands(server: Sshd, shell: str) -> None:
    """sshd hands the command to the user's shell: newlines, "!" and quotes must not be read by it."""
    if shutil.which(shell.split()[0]) is None:
        pytest.skip(f"{shell} is not installed")
    (server.home / ".config/fish").mkdir(parents=True)
    for name in (".tcshrc", ".cshrc", ".bashrc", ".zshenv", ".config/fish/config.fish"):
        (server.home / name).write_text('echo "a noisy start-up file"\n')
    server.login_shell(shell)
    words = ["it's", 'a "b" $HOME `id`', "!!", "two\nlines", "back\\slash", "{a,b}* ?", "ü%41"]

    async def main() -> None:
        host = SshHost("box", ssh_config=server.ssh_config_path)
        done = await host.run(["printf", "%s|", *words], env={"A": "b c"})
        assert (done.returncode, done.out, done.err) == (0, "".join(f"{w}|" for w in words), "")
        assert (await host.run(["sh", "-c", "exit 7"])).returncode == 7
        assert (await host.run(["cat"], input=b"in\n")).out == "in\n"
        stream = await host.stream(["sh", "-c", 'read x; echo "got $x"'], input=b"y\n")
        assert [line async for line in stream.lines()] == [b"got y"]
        await stream.close()
        await host.write_file(f"{server.directory}/new/file", b"data\n")
        assert (await host.facts()).uid == os.getuid()
        await host.close()

    asyncio.run(main())
    assert (server.directory / "new/file").read_bytes() == b"data\n"


def test_an_old_key_exchange_is_not_called_a_changed_key(server: Sshd) -> None:
    server.configure(KexAlgorithms="diffie-hellman-group1-sha1")
    # sshd finds no common algorithm either: on a busy machine it may hang up before its offer has
    # been read.
    with pytest.raises(
        HostUnreachable,
        match=r"diffie-hellman-group1-sha1|Connection "
        r"lost",
    ) as refused:
        connects(server)
    assert not isinstance(refused.value, HostKeyChanged)


def test_a_changed_key_is_named_as_known_hosts_names_it(server: Sshd) -> None:
    server.ssh_config_path.write_text(server.stanza(HostKeyAlias="alias"))
    key = (server.directory / "host_key.pub").read_text().split()
    server.known_hosts_path.write_text(f"alias {key[0]} {key[1]}\n")
    assert connects(server)
    server.new_host_key()
    with pytest.raises(HostKeyChanged) as refused:
        connects(server)
    assert "-R 'alias'" in str(refused.value.next_step)


@pytest.fixture
def agent_socket(server: Sshd, tmp_path: Path) -> Iterator[str]:
    """An ssh-agent that holds the client's key."""
    socket = str(tmp_path / "agent")
    with subprocess.Popen(["ssh-agent", "-D", "-a", socket], stdout=subprocess.DEVNULL) as agent:
        wait_for(lambda: Path(socket).exists(), "the agent")
        environment = {**os.environ, "SSH_AUTH_SOCK": socket}
        subprocess.run(["ssh-add", "-q", str(server.client_key_path)], env=environment, check=True)
        yield socket
        agent.terminate()


def test_the_agent_is_used(
    server: Sshd, agent_socket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.client_key_path.unlink()
    monkeypatch.setenv("HOME", str(server.directory))
    server.ssh_config_path.write_text(server.stanza(IdentitiesOnly="no"))
    with pytest.raises(AuthFailed):
        connects(server)
    monkeypatch.setenv("SSH_AUTH_SOCK", agent_socket)
    assert connects(server)


class Asks(asyncssh.SSHServer):
    """Wants a password, or a code by keyboard-interactive, and no key."""

    def __init__(self, way: str) -> None:
        self.way = way

    def password_auth_supported(self) -> bool:
        return self.way == "password"

    def validate_password(self, username: str, password: str) -> bool:
        return password == "right"

    def kbdint_auth_supported(self) -> bool:
        return self.way == "code"

    def get_kbdint_challenge(self, username: str, lang: str, submethods: str) -> Any:
        return "", "", "", [("One-time code:", False)]

    def validate_kbdint_response(self, username: str, responses: Sequence[str]) -> bool:
        return list(responses) == ["right"]


@pytest.mark.slow
@pytest.mark.parametrize(("way", "prompt"), [("password", "Password"), ("code", "One-time code:")])
def test_passwords_and_codes_are_asked_for_if_there_is_someone_to_ask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, prompt: str
) -> None:
    monkeypatch.setattr(ssh, "CONNECT_S", 0.7)
    keygen(tmp_path / "host_key")
    config = tmp_path / "config"
    asked: list[str] = []

    async def ask(question: LoginQuestion) -> str | None:
        asked.append(question.said[0] if question.said else question.wanted)
        await asyncio.sleep(0.8)  # a person types slowly: that is no reason to give up
        return answers.pop(0)

    async def main() -> None:
        listening = await asyncssh.listen(
            "127.0.0.1",
            0,
            server_factory=lambda: Asks(way),
            server_host_keys=[str(tmp_path / "host_key")],
        )
        port = listening.get_port()
        key = (tmp_path / "host_key.pub").read_text()
        (tmp_path / "known").write_text(f"[127.0.0.1]:{port} {key}")
        config.write_text(
            f"Host box\n HostName 127.0.0.1\n Port {port}\n UserKnownHostsFile {tmp_path}/known\n"
            f" IdentitiesOnly yes\n IdentityFile {tmp_path}/none\n IdentityAgent none\n"
        )
        with pytest.raises(AuthFailed, match="no terminal to ask the user"):
            await SshHost("box", ssh_config=config).connect()
        with pytest.raises(AuthFailed, match="did not accept the password"):
            await SshHost("box", ssh_config=config, ask=ask).connect()
        assert asked == [prompt]
        host = SshHost("box", ssh_config=config, ask=ask)
        await host.connect()
        await host.close()
        listening.close()

    answers = [None, "right"]
    asyncio.run(main())


def test_include_and_identity_files_that_are_not_there(server: Sshd, tmp_path: Path) -> None:
    (tmp_path / "more").write_text(server.stanza())
    missing = tmp_path / "no_such_key"
    server.ssh_config_path.write_text(
        f"Include {tmp_path}/more\nHost *\n    IdentityFile {missing}\n"
    )
    assert connects(server)


def test_a_broken_configuration_is_said(server: Sshd) -> None:
    server.ssh_config_path.write_text("Host box\n    Port nonsense\n")
    with pytest.raises(HostError, match="ssh configuration"):
        connects(server)


def test_jump_hosts(server: Sshd) -> None:
    server.ssh_config_path.write_text(
        server.stanza("jump")
        + server.stanza("second", ProxyJump="jump")
        + server.stanza(ProxyJump="second")
    )
    before = server.cutter.accepted
    assert connects(server)
    assert server.cutter.accepted == before + 3


def test_an_unknown_jump_host_is_asked_about(server: Sshd) -> None:
    other = server.directory / "jump_known_hosts"
    server.ssh_config_path.write_text(
        server.stanza("jump", UserKnownHostsFile=str(other)) + server.stanza(ProxyJump="jump")
    )

    async def main() -> None:
        host = SshHost("box", ssh_config=server.ssh_config_path)
        with pytest.raises(HostKeyUnknown) as asked:
            await host.connect()
        host.accept_host_key(asked.value.fingerprint)
        assert await works(host)

    asyncio.run(main())
    assert other.exists()


def test_jump_hosts_in_a_circle(server: Sshd) -> None:
    server.ssh_config_path.write_text(
        server.stanza("jump", ProxyJump="box") + server.stanza(ProxyJump="jump")
    )
    with pytest.raises(HostUnreachable, match="circle"):
        connects(server)


def test_a_jump_host_named_for_all_hosts_is_not_its_own(server: Sshd) -> None:
    server.ssh_config_path.write_text(
        f"{server.stanza('jump')}{server.stanza()}Host *\n    ProxyJump jump\n"
    )
    assert connects(server)


def test_open_host_uses_the_persons_own_configuration(
    server: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "config").write_text(server.stanza())
    monkeypatch.setenv("HOME", str(home))

    async def main() -> None:
        host = open_host("box")
        assert (await host.run(["echo", "ok"])).out == "ok\n"
        await host.close()

    asyncio.run(main())

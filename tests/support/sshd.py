"""A real OpenSSH sshd on loopback, behind a proxy that can cut, silence and restore the link.

    with sshd(tmp_path) as server:
        host = SshHost(server.host_alias, ssh_config=server.ssh_config_path)
        server.cut(); server.restore()

Import it as `from support.sshd import sshd` (pytest puts tests/ on the path for tests/conftest.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.relay import Relay

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
DEADLINE_S = 10.0


class Cutter:
    """A TCP proxy in a thread of its own. `cut` resets connections and refuses new ones. `silence`
    keeps all connections open but passes nothing on. `restore` ends both; silenced connections
    continue."""

    def __init__(self, target_port: int) -> None:
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._relay = Relay(target_port, self._pump)
        self.port = self._relay.port
        self.cut, self.close = self._relay.cut, self._relay.close

    @property
    def accepted(self) -> int:
        """The number of connections that were accepted."""
        return self._relay.accepted

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, up: bool
    ) -> None:
        while data := await reader.read(65536):
            await self._flowing.wait()
            writer.write(data)
            await writer.drain()

    async def _flow(self, flowing: bool) -> None:
        (self._flowing.set if flowing else self._flowing.clear)()

    def silence(self) -> None:
        self._relay.call(self._flow(False))

    def restore(self) -> None:
        self._relay.call(self._flow(True))
        self._relay.listen()


class Sshd:
    """A running sshd. Users log in as the current user with a key made for the test; nothing in
    ~/.ssh is read or written."""

    host_alias = "box"

    def __init__(
        self,
        directory: Path,
        max_sessions: int,
        environment: dict[str, str],
        within: Sequence[str] = (),
    ) -> None:
        self.directory = directory
        self._within = within
        self.state_home = directory / "remote-state"
        self.known_hosts_path = directory / "known_hosts"
        self.ssh_config_path = directory / "ssh_config"
        self.client_key_path = directory / "client_key"
        self.home = directory / "home"  # so that nothing of the person's own shell start-up is read
        self.home.mkdir()
        self.environment = {
            "HOME": str(self.home),
            "XDG_STATE_HOME": str(self.state_home),
            **environment,
        }
        self._max_sessions = max_sessions
        self._options: dict[str, str] = {}
        self.server_port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        keygen(self.client_key_path)
        keygen(directory / "host_key")
        shutil.copy(f"{self.client_key_path}.pub", directory / "authorized_keys")
        self._serve()
        self.cutter = Cutter(self.server_port)
        self.port = self.cutter.port
        self.trust()
        self.ssh_config_path.write_text(self.stanza())

    def stanza(self, alias: str | None = None, **more: str) -> str:
        """Return a Host block of an SSH configuration; `more` adds or replaces options."""
        options = {
            "HostName": "127.0.0.1",
            "Port": str(self.port),
            "User": getpass.getuser(),
            "IdentityFile": str(self.client_key_path),
            "IdentitiesOnly": "yes",
            "UserKnownHostsFile": str(self.known_hosts_path),
            "GlobalKnownHostsFile": "/dev/null",
            **more,
        }
        lines = [f"Host {alias or self.host_alias}", *(f"    {k} {v}" for k, v in options.items())]
        return "\n".join(lines) + "\n"

    def trust(self) -> None:
        key = (self.directory / "host_key.pub").read_text().split()
        self.known_hosts_path.write_text(f"[127.0.0.1]:{self.port} {key[0]} {key[1]}\n")

    def fingerprint(self) -> str:
        """Return the fingerprint of the host key as ssh-keygen shows it: "SHA256:…"."""
        listed = subprocess.run(
            ["ssh-keygen", "-lf", str(self.directory / "host_key.pub")],
            capture_output=True,
            text=True,
            check=True,
        )
        return listed.stdout.split()[1]

    def new_host_key(self) -> None:
        """Replace the host key, as a new installation does. known_hosts keeps the old key."""
        for name in ("host_key", "host_key.pub"):
            (self.directory / name).unlink()
        keygen(self.directory / "host_key")
        self._stop()
        self._serve()

    def cut(self) -> None:
        """Reset the connections and refuse new ones."""
        self.cutter.cut()

    def silence(self) -> None:
        """Let nothing pass, and close nothing: a dead link."""
        self.cutter.silence()

    def restore(self) -> None:
        self.cutter.restore()

    def login_shell(self, shell: str) -> None:
        """Run each command as sshd does for a user with this login shell."""
        key = Path(f"{self.client_key_path}.pub").read_text()
        forced = f'exec {shell} -c \\"$SSH_ORIGINAL_COMMAND\\"'
        (self.directory / "authorized_keys").write_text(f'command="{forced}" {key}')

    def configure(self, **options: str) -> None:
        """Restart sshd with more options in sshd_config."""
        self._options.update(options)
        self._stop()
        self._serve()

    def _serve(self) -> None:
        setenv = " ".join(f'"{k}={v}"' for k, v in self.environment.items())
        config = self.directory / "sshd_config"
        config.write_text(
            f"Port {self.server_port}\nListenAddress 127.0.0.1\nHostKey "
            f"{self.directory / 'host_key'}\n"
            f"AuthorizedKeysFile {self.directory / 'authorized_keys'}\nPidFile none\nUsePAM "
            "no\nStrictModes no\n"
            "PasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin "
            "yes\nMaxStartups 100\n"
            f"MaxSessions {self._max_sessions}\nLoginGraceTime 20\nLogLevel VERBOSE\nSetEnv "
            f"{setenv}\n" + "".join(f"{name} {value}\n" for name, value in self._options.items())
        )
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)  # where sshd confines itself before the login
        assert SSHD is not None
        log = (self.directory / "sshd.log").open("ab")
        with log:
            self._process = subprocess.Popen(
                [*self._within, SSHD, "-D", "-e", "-f", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_for(
            lambda: self._answers(), f"sshd; its log:\n{(self.directory / 'sshd.log').read_text()}"
        )

    def _answers(self) -> bool:
        assert self._process is not None and self._process.poll() is None, (
            self.directory / "sshd.log"
        ).read_text()
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", self.server_port), 1) as s,
        ):
            return s.recv(4) == b"SSH-"
        return False

    def _stop(self) -> None:
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        self._process.wait(DEADLINE_S)

    def close(self) -> None:
        self.cutter.close()
        self._stop()


def keygen(path: Path, passphrase: str = "") -> None:
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-C", "test", "-f", str(path)],
        check=True,
        stdin=subprocess.DEVNULL,
    )


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def wait_for(condition: Any, what: str, deadline_s: float = DEADLINE_S) -> None:
    """Wait until `condition()` is true; fail the test after `deadline_s`."""
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"waited {deadline_s:g} s for {what}"
        time.sleep(0.02)


@contextlib.contextmanager
def sshd(
    directory: Path,
    *,
    max_sessions: int = 10,
    environment: dict[str, str] | None = None,
    within: Sequence[str] = (),
) -> Iterator[Sshd]:
    """Run sshd with all of its files in `directory`, which is created. `environment` is the
    environment of logins. `within` are words before its command, such as those that enter a
    container."""
    if SSHD is None or shutil.which("ssh-keygen") is None:
        pytest.skip("needs OpenSSH's sshd and ssh-keygen (apt-get install openssh-server)")
    directory.mkdir(parents=True, exist_ok=True)
    server = Sshd(directory, max_sessions, environment or {}, within)
    try:
        yield server
    finally:
        server.close()

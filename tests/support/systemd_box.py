"""A real systemd in a container of podman, with this machine's programs, Python and Workbench. It
shares the machine's network and nothing else; `restart` is its reboot.

    with systemd_box(tmp_path) as box:
        box("systemctl", "status")
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.podman import TESTS, Podman, podman
from support.procs import eventually

REPOSITORY = TESTS.parent
INIT = "/usr/lib/systemd/systemd"


class Box:
    def __init__(self, engine: Podman, directory: Path, seen: tuple[Path, ...] = ()) -> None:
        self.directory = directory  # seen in the box too
        self._seen = seen
        self.name = f"systemd-{os.getpid()}"
        self._podman = engine

    def boot(self) -> None:
        mounts = [
            f"{self.directory}:{self.directory}",
            *(f"{path}:{path}:ro" for path in (Path("/etc/alternatives"), *self._seen)),
        ]
        options = [
            "--privileged",
            "--systemd=always",
            "--shm-size=1g",
            *(word for mount in mounts for word in ("-v", mount)),
        ]
        self._podman.start(self.name, *options, command=(INIT, "--unit=basic.target"))
        self.wait()

    def wait(self) -> None:
        def running() -> bool:
            return self("systemctl", "is-active", "basic.target", check=False) == "active"

        eventually(running, "systemd", 30.0)

    def __call__(self, *argv: str, check: bool = True, **env: str) -> str:
        """Return the output of a command in the box. Raises AssertionError if it fails and `check`
        is set."""
        env = {"PYTHONPATH": str(REPOSITORY), **env}  # another checkout may be installed
        variables = [word for name, value in env.items() for word in ("-e", f"{name}={value}")]
        return self._podman("exec", *variables, self.name, *argv, check=check)

    def entering(self) -> list[str]:
        """Return the words before a command that run it in the box."""
        return [str(self._podman.bin / "podman"), "exec", self.name]

    def start_user_manager(self) -> None:
        """Start root's own service manager, as a login does. There is no PAM in the box."""
        place, manager = (
            "/run/systemd/system/user@0.service.d",
            (f"HOME={self.directory} XDG_RUNTIME_DIR=/run/user/0"),
        )
        text = f"[Service]\\nPAMName=\\nEnvironment={manager}\\n"
        self("sh", "-c", f"mkdir -p {place}; printf '{text}' >{place}/no-pam.conf")
        self("systemctl", "daemon-reload")
        self("systemctl", "start", "user@0.service")

    def restart(self) -> None:
        """Reboot: every process of the box is killed, the files stay."""
        self._podman("kill", self.name)
        self._podman("wait", self.name)
        self._podman("start", self.name)
        self.wait()


@contextlib.contextmanager
def systemd_box(directory: Path, *seen: Path) -> Iterator[Box]:
    """Boot a box with all of its files in `directory`; it sees the paths `seen` too. Skips the test
    where that cannot be."""
    if not Path(INIT).exists():
        pytest.skip(f"needs systemd ({INIT})")
    with podman(directory / "podman") as engine:
        box = Box(engine, directory, seen)
        try:
            box.boot()
        except AssertionError as error:
            pytest.skip(f"systemd cannot run in a container here: {error}")
        yield box

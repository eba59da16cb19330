"""Two users of one simulated host through the real command line: two state directories, or two real
accounts."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from support.procs import eventually
from support.sources import python_path

from workbench.sim import profiles
from workbench.sim.driver_state import SimState

PRO = "rtx-pro-6000"
ORIGINAL_W = 600.0


class User:
    """One user. `state` is the simulated host's state directory; `prefix` are the words that run a
    process as this user."""

    def __init__(
        self, name: str, home: Path, env: dict[str, str], python: str, prefix: tuple[str, ...] = ()
    ) -> None:
        self.name, self.python, self.prefix = name, python, prefix
        self.env = {
            **env,
            **{f"XDG_{kind}_HOME": str(home / kind.lower()) for kind in ("STATE", "DATA", "CACHE")},
        }
        self.env["XDG_CONFIG_HOME"] = str(home / "config")
        self.gpu = home / "state" / "workbench" / "sim" / PRO / "gpu"

    def spawn(self, *words: str, command: str = "gpu") -> subprocess.Popen[str]:
        argv = [
            *self.prefix,
            self.python,
            "-m",
            "workbench",
            "--simulate",
            PRO,
            command,
            *words,
            "--json",
        ]
        pipe = subprocess.PIPE
        return subprocess.Popen(
            argv,
            cwd="/",
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
            text=True,
        )

    def run(self, *words: str) -> tuple[int, dict[str, Any]]:
        return done(self.spawn(*words))

    def ok(self, *words: str) -> dict[str, Any]:
        code, document = self.run(*words)
        assert code == 0, document
        return document

    @property
    def entries(self) -> list[dict[str, Any]]:
        """The settings that this user's Workbench has changed, without those that a revert has left
        to somebody else."""
        return [entry for entry in self.journal if not entry["state"].startswith("left to ")]

    @property
    def left(self) -> list[dict[str, Any]]:
        return [entry for entry in self.journal if entry not in self.entries]

    @property
    def journal(self) -> list[dict[str, Any]]:
        with suppress(FileNotFoundError):
            return list(json.loads((self.gpu / "journal.json").read_text())["entries"])
        return []

    def kill_guard(self) -> None:
        with suppress(OSError, ValueError):
            os.kill(int((self.gpu / "guard" / "pid").read_text().split()[0]), 9)

    def reverted(self, within_s: float = 30.0) -> None:
        """Wait until this user's guard has reverted a trial."""
        eventually(lambda: not self.entries, f"the end of {self.name}'s trial", within_s)


def done(process: subprocess.Popen[str]) -> tuple[int, dict[str, Any]]:
    with process:
        out, err = process.communicate(timeout=60)
    assert "Traceback" not in err, err
    return process.returncode, dict(json.loads(out))


class TwoUsers:
    """Users `a` and `b` of one GPU; `power_w` and `lock_mhz` are the GPU's true settings."""

    def __init__(self, a: User, b: User, driver: Path) -> None:
        self.a, self.b, self.register = a, b, driver / "register"
        self.sim = SimState(str(driver), profiles.get_profile(PRO))

    @property
    def power_w(self) -> float:
        return self.sim.settings()[0].limit_w or ORIGINAL_W

    @property
    def lock_mhz(self) -> tuple[int, int] | None:
        return self.sim.settings()[0].gpu_lock_mhz

    def by_hand(self, power_w: float) -> None:
        """Change a setting with nvidia-smi, as an administrator does."""
        self.sim.change_setting(0, limit_w=power_w)

    def end(self) -> None:
        for user in (self.a, self.b):
            user.kill_guard()


@contextmanager
def shared_driver() -> Iterator[Path]:
    """Return a directory that every account may write to."""
    path = Path(tempfile.mkdtemp(prefix="workbench-sim-"))
    path.chmod(0o777)
    register = path / "register"
    register.mkdir()
    register.chmod(0o1777)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def environment(driver: Path) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": python_path(),
        "WORKBENCH_SIM_STATE": str(driver),
    }


@contextmanager
def two_directories(home: Path) -> Iterator[TwoUsers]:
    with shared_driver() as driver:
        a, b = (User(name, home / name, environment(driver), sys.executable) for name in "ab")
        users = TwoUsers(a, b, driver)
        try:
            yield users
        finally:
            users.end()


@contextmanager
def two_accounts() -> Iterator[TwoUsers]:
    """Yield two real accounts. Skip the test if accounts cannot be created or cannot read these
    sources."""
    if os.geteuid() != 0:
        pytest.skip("needs root to make accounts")
    if not all(map(shutil.which, ("useradd", "userdel", "runuser"))):
        pytest.skip("no useradd, userdel or runuser here")
    with shared_driver() as driver:
        mark, names = uuid.uuid4().hex[:6], []
        try:
            made = []
            for letter in "ab":
                name = f"wbt-{letter}{mark}"
                subprocess.run(["useradd", "--create-home", name], check=True, capture_output=True)
                names.append(name)
                made.append(_account(name, driver))
            users = TwoUsers(*made, driver)
            try:
                yield users
            finally:
                users.end()
        finally:
            for name in names:
                subprocess.run(
                    ["userdel", "--force", "--remove", name], check=False, capture_output=True
                )


def _account(name: str, driver: Path) -> User:
    prefix, env = ("runuser", "-u", name, "--"), environment(driver)
    found = filter(
        None,
        (
            sys.executable,
            shutil.which(f"python3.{sys.version_info[1]}", path="/usr/bin:/usr/local/bin"),
        ),
    )
    for python in found:
        argv = [*prefix, python, "-c", "import textual, workbench.cli"]
        if subprocess.run(argv, env=env, cwd="/", capture_output=True, check=False).returncode == 0:
            return User(name, Path("/home") / name, env, python, prefix)
    pytest.skip("another account cannot run this Python or read these sources")

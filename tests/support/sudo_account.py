"""A real account of this machine with a password, rules for the real sudo, and GPUs that only root
can change.

The driver is simulated, but Workbench does not know that: it looks for rights as on a real host.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pexpect
import pytest
from support.sources import ROOT, python_path

from workbench.sim import profiles
from workbench.sim.driver_state import SimState

PROFILE = "four-pcie"
DEFAULT_W = 250.0
SECRET = "Tr0ub4dor quartz"
SMI = """#!{python} -IS
import os, sys
changes = [word for word in sys.argv[1:] if word.startswith(("-p", "--lock", "--reset"))]
if changes and os.geteuid() != 0:
    sys.exit("Insufficient Permissions")
if changes:
    with open({calls!r}, "a") as file:
        file.write(" ".join(sys.argv[1:]) + "\\n")
os.umask(0)
os.environ.update(WORKBENCH_SIM_PROFILE={profile!r}, WORKBENCH_SIM_STATE={driver!r})
sys.path.insert(0, {root!r})
from workbench.sim.nvidia_smi import main
sys.exit(main())
"""
DRIVER = """
import os, runpy
os.environ.update(WORKBENCH_SIM_PROFILE={profile!r}, WORKBENCH_SIM_STATE={driver!r})
globals().update(runpy.run_path({root!r} + "/workbench/sim/driver.py"))
"""


class SudoAccount:
    """A real account. `roots` is a directory that everybody may read and only root may change;
    `home` is the account's home for one test."""

    def __init__(self, name: str, python: str, roots: Path) -> None:
        self.name, self.python, self.roots = name, python, roots
        self.home = Path(f"~{name}").expanduser() / uuid.uuid4().hex[:6]
        self.rule = Path("/etc/sudoers.d") / name
        self.driver = roots / f"driver-{self.home.name}"
        self.calls_file = self.driver / "calls"
        self.driver.mkdir()
        self.driver.chmod(0o777)
        (roots / "bin").mkdir(exist_ok=True)
        facts = {
            "profile": PROFILE,
            "driver": str(self.driver),
            "root": str(ROOT),
            "calls": str(self.calls_file),
        }
        (roots / "bin" / "nvidia-smi").write_text(SMI.format(python=python, **facts))
        (roots / "bin" / "nvidia-smi").chmod(0o755)
        (roots / "driver.py").write_text(DRIVER.format(**facts))
        self.bin, self.gpu = self.home / "bin", self.home / "state" / "workbench" / "gpu"
        self.journal = self.gpu / "journal.json"
        self.env = {
            "PATH": f"{self.bin}:{roots / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": python_path(),
            "WORKBENCH_SIM_DRIVER": str(roots / "driver.py"),
            "WORKBENCH_GPU_REGISTER": str(self.driver / "register"),
            **{
                f"XDG_{kind}_HOME": str(self.home / kind.lower())
                for kind in ("STATE", "DATA", "CACHE", "CONFIG")
            },
        }
        self.sh(f"umask 077; mkdir -p {self.bin}")
        self.sim = SimState(str(self.driver), profiles.get_profile(PROFILE))

    def allow(self, rules: str) -> None:
        """Set the rules of sudo; "" removes them."""
        if not rules:
            self.rule.unlink(missing_ok=True)
            return
        new = self.roots / "rules"
        new.write_text(rules)
        subprocess.run(["visudo", "-c", "-q", "-f", str(new)], check=True)
        self.rule.write_text(rules)
        self.rule.chmod(0o440)

    @property
    def prefix(self) -> tuple[str, ...]:
        return ("runuser", "-u", self.name, "--")

    def sh(self, script: str) -> str:
        """Run a shell command as this account."""
        argv = [*self.prefix, "sh", "-ec", script]
        return subprocess.run(
            argv, env=self.env, cwd="/", check=True, capture_output=True, text=True, timeout=30
        ).stdout

    def run(self, *words: str, timeout_s: float = 60) -> tuple[int, dict[str, Any]]:
        """Run `workbench gpu …` without a terminal."""
        argv = [*self.prefix, self.python, "-m", "workbench", "gpu", *words, "--json"]
        done = subprocess.run(
            argv,
            env=self.env,
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, dict(json.loads(done.stdout))

    def ok(self, *words: str) -> dict[str, Any]:
        code, document = self.run(*words)
        assert code == 0, document
        return document

    def typed(self, *words: str, secret: str = SECRET) -> tuple[int, str]:
        """Run `workbench gpu …` at a terminal and type sudo's password if sudo asks for it."""
        argv = [*self.prefix[1:], self.python, "-m", "workbench", "gpu", *words]
        screen = pexpect.spawn(
            "runuser",
            argv,
            env=self.env,
            cwd="/",
            encoding="utf-8",
            timeout=60,
            dimensions=(50, 250),
        )
        shown = ""
        while screen.expect([r"\[sudo\] password [^:]*: ", pexpect.EOF]) == 0:
            shown += screen.before
            screen.sendline(secret)
        screen.close()
        return screen.exitstatus, shown + screen.before

    def power_w(self, gpu: int = 0) -> float:
        return self.sim.settings()[gpu].limit_w or DEFAULT_W

    @property
    def calls(self) -> list[str]:
        """Return the changes that nvidia-smi was ordered to make as root."""
        return self.calls_file.read_text().splitlines() if self.calls_file.exists() else []

    @property
    def entries(self) -> list[dict[str, Any]]:
        return list(json.loads(self.journal.read_text())["entries"])

    @property
    def guards(self) -> list[int]:
        """Return the process ids of all guards of this test's state directory, of any user."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                words = path.read_bytes()
                if b"guard of GPU settings" in words and str(self.home).encode() in words:
                    found.append(int(path.parent.name))
        return found

    def end(self) -> None:
        for pid in self.guards:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.allow("")


@contextmanager
def accounts(count: int) -> Iterator[tuple[list[str], str, Path]]:
    """Create accounts. Yield their names, a Python that they can run, and a directory of root. Skip
    the test, with a reason, if this machine does not allow it."""
    if os.geteuid() != 0:
        pytest.skip("needs root to make accounts")
    wanted = ("useradd", "userdel", "chpasswd", "runuser", "sudo", "visudo")
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    if missing := [name for name in wanted if shutil.which(name, path=path) is None]:
        pytest.skip(f"no {', '.join(missing)} here")
    roots = Path(tempfile.mkdtemp(prefix="workbench-roots-"))
    roots.chmod(0o755)
    names = [f"wbt-{uuid.uuid4().hex[:8]}" for _ in range(count)]
    try:
        for name in names:
            subprocess.run(["useradd", "--create-home", name], check=True, capture_output=True)
        given = "".join(f"{name}:{SECRET}\n" for name in names)
        subprocess.run(["chpasswd"], input=given, text=True, check=True, capture_output=True)
        yield names, _python(names[0]), roots
    finally:
        for name in names:
            (Path("/etc/sudoers.d") / name).unlink(missing_ok=True)
            subprocess.run(["userdel", "--remove", name], check=False, capture_output=True)
        shutil.rmtree(roots, ignore_errors=True)


def _python(name: str) -> str:
    version = f"python3.{sys.version_info[1]}"
    for python in filter(
        None, (sys.executable, shutil.which(version, path="/usr/bin:/usr/local/bin"))
    ):
        env = {"PYTHONPATH": python_path()}
        argv = ["runuser", "-u", name, "--", python, "-c", "import textual, workbench.cli"]
        if (
            subprocess.run(
                argv, env={**os.environ, **env}, cwd="/", capture_output=True, check=False
            ).returncode
            == 0
        ):
            return python
    pytest.skip("another account cannot run this Python or read these sources")

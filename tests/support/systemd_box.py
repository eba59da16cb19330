"""A real systemd in a container of podman, with this machine's programs, Python and Workbench. It shares the machine's
network and nothing else; `restart` is its reboot.

    with systemd_box(tmp_path) as box:
        box("systemctl", "status")
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.procs import eventually

IMAGE = "this-machine:1"
REPOSITORY = Path(__file__).resolve().parents[2]
INIT = "/usr/lib/systemd/systemd"
# crun refuses a machine that mixes both versions of cgroups, and limits can only be raised with a capability that test
# machines may lack: they are taken out of each container's and each command's configuration.
_RUNTIME = f"""#!{sys.executable}
import json, os, sys
args = sys.argv[1:]
for option, path, inner in (("--bundle", "config.json", "process"), ("--process", "", None)):
    if option in args:
        path = os.path.join(args[args.index(option) + 1], path).rstrip("/")
        with open(path) as file:
            config = json.load(file)
        for name in ("rlimits", "oomScoreAdj"):
            (config[inner] if inner else config).pop(name, None)
        with open(path, "w") as file:
            json.dump(config, file)
os.execv({{runc!r}}, ["runc", *args])
"""


class Box:
    def __init__(self, directory: Path) -> None:
        self.directory = directory  # seen in the box too
        self.name = f"systemd-{os.getpid()}"
        runtime = directory / "runc"
        runtime.write_text(_RUNTIME.format(runc=shutil.which("runc")))
        runtime.chmod(0o755)
        places = ["--root", f"{directory}/root", "--runroot", f"{directory}/run"]
        self._podman = ["podman", *places, "--cgroup-manager", "cgroupfs", "--events-backend", "file"]
        self._podman += ["--runtime", str(runtime)]

    def podman(self, *words: str, input: bytes | None = None, check: bool = True) -> str:
        done = subprocess.run([*self._podman, *words], input=input, capture_output=True, check=False)
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(words)}: {done.stdout.decode()}{done.stderr.decode()}")
        return done.stdout.decode()

    def boot(self) -> None:
        self.podman("import", "-", IMAGE, input=_image())
        seen = ("/usr", "/etc/alternatives", sys.base_prefix, sys.prefix, str(REPOSITORY))
        mounts = [word for place in dict.fromkeys(seen) for word in ("-v", f"{place}:{place}:ro")]
        mounts += ["-v", f"{self.directory}:{self.directory}"]
        options = ["--privileged", "--systemd=always", "--network=host", *mounts]
        self.podman("run", "-d", "--name", self.name, *options, IMAGE, INIT, "--unit=basic.target")
        self.wait()

    def wait(self) -> None:
        def running() -> bool:
            return self("systemctl", "is-active", "basic.target", check=False).strip() == "active"

        eventually(running, "systemd", 30.0)

    def __call__(self, *argv: str, check: bool = True, **env: str) -> str:
        """Return the output of a command in the box."""
        variables = [word for name, value in env.items() for word in ("-e", f"{name}={value}")]
        return self.podman("exec", *variables, self.name, *argv, check=check)

    def start_user_manager(self) -> None:
        """Start root's own service manager, as a login does. There is no PAM in the box."""
        place, manager = "/run/systemd/system/user@0.service.d", f"HOME={self.directory} XDG_RUNTIME_DIR=/run/user/0"
        text = f"[Service]\\nPAMName=\\nEnvironment={manager}\\n"
        self("sh", "-c", f"mkdir -p {place}; printf '{text}' >{place}/no-pam.conf")
        self("systemctl", "daemon-reload")
        self("systemctl", "start", "user@0.service")

    def restart(self) -> None:
        """Reboot: every process of the box is killed, the files stay."""
        self.podman("kill", self.name)
        self.podman("wait", self.name)
        self.podman("start", self.name)
        self.wait()

    def close(self) -> None:
        self.podman("rm", "--force", "--time", "0", self.name, check=False)
        subprocess.run(["umount", "-R", f"{self.directory}/root/overlay"], capture_output=True, check=False)


def _image() -> bytes:
    """Return an image as a tar file: directories, and links into /usr, which is mounted from this machine."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name in ("usr", "tmp", "proc", "dev", "sys", "etc", "run", "root", "var"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        for name in ("bin", "sbin", "lib", "lib64"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, f"usr/{name}"
            tar.addfile(entry)
    return buffer.getvalue()


@contextlib.contextmanager
def systemd_box(directory: Path) -> Iterator[Box]:
    """Boot a box with all of its files in `directory`. Skips the test where that cannot be."""
    lacks = [name for name in ("podman", "runc") if shutil.which(name) is None]
    if lacks or os.geteuid() != 0 or not Path(INIT).exists():
        pytest.skip(f"needs root, systemd, podman and runc{': not found: ' if lacks else ''}{', '.join(lacks)}")
    box = Box(directory)
    try:
        try:
            box.boot()
        except RuntimeError as error:
            pytest.skip(f"systemd cannot run in a container here: {error}")
        yield box
    finally:
        box.close()

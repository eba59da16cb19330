"""A real podman with storage of its own, and Docker's own command line in front of it.

    with podman(tmp_path) as engine:
        engine.start("box")                       # a container with this machine's programs, on the host's network
        monkeypatch.setenv("PATH", engine.path)   # `podman` and `docker` are those of `engine`

It needs root, podman and runc. Some test machines lack the right to raise resource limits and mix
both versions of cgroups, which crun refuses: a small program in front of runc takes the limits out
of each container's configuration.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.sshd import wait_for

IMAGE = "this-machine:1"
TESTS = Path(__file__).resolve().parents[1]
_RUNTIME = f"""#!{sys.executable}
import json, os, sys, time
args = sys.argv[1:]
while "create" in args and os.path.exists({{hold!r}}):
    open({{hold!r}} + "ing", "w").close()
    time.sleep(0.02)
def given(*names):
    return next((args[i + 1] for i, arg in enumerate(args) if arg in names), None)
bundle, process = given("--bundle", "-b"), given("--process", "-p")
if path := os.path.join(bundle, "config.json") if bundle else process:
    with open(path) as file:
        config = json.load(file)
    limited = config["process"] if bundle else config
    limited.pop("rlimits", None)
    limited.pop("oomScoreAdj", None)
    with open(path, "w") as file:
        json.dump(config, file)
os.execv({{runc!r}}, ["runc", *args])
"""


def missing() -> str | None:
    """Return why podman cannot run here, or None."""
    if os.geteuid() != 0:
        return "needs root"
    lacks = [name for name in ("podman", "runc") if shutil.which(name) is None]
    return f"needs {' and '.join(lacks)} (apt-get install podman runc uidmap)" if lacks else None


def seen_places() -> tuple[str, ...]:
    """Return the directories with this machine's programs, Python and Workbench. A path file of the
    virtual environment can name further directories of packages."""
    first = ("/usr", sys.base_prefix, sys.prefix, str(TESTS.parent))
    further = [
        path
        for path in sys.path
        if Path(path).is_dir() and not any(Path(path).is_relative_to(place) for place in first)
    ]
    return tuple(dict.fromkeys((*first, *further)))


class Podman:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.bin = directory / "bin"
        self.bin.mkdir(parents=True)
        runtime = directory / "oci" / "runc"
        runtime.parent.mkdir()
        # while it exists, no container is created; then "holding" is there, too
        self.hold = directory / "hold"
        runtime.write_text(_RUNTIME.format(runc=shutil.which("runc"), hold=str(self.hold)))
        runtime.chmod(0o755)
        # The driver overlay leaves mounts, with which no test directory can be removed.
        # podman refuses a path of more than 50 characters
        self._run = tempfile.mkdtemp(prefix="podman-")
        options = f"--root {directory}/root --runroot {self._run} --storage-driver vfs"
        options += " --cgroup-manager cgroupfs --events-backend file"
        self.program("podman", f'exec {shutil.which("podman")} {options} --runtime {runtime} "$@"')
        self._service: subprocess.Popen[bytes] | None = None
        self("import", "-", IMAGE, input=_image())

    @property
    def path(self) -> str:
        return f"{self.bin}:{os.environ['PATH']}"

    def program(self, name: str, line: str) -> None:
        """Write a program that is found first on `path`."""
        file = self.bin / name
        file.write_text(f"#!/bin/sh\n{line}\n")
        file.chmod(0o755)

    def __call__(self, *words: str, input: bytes | None = None, check: bool = True) -> str:
        done = subprocess.run(
            [str(self.bin / "podman"), *words], input=input, capture_output=True, check=False
        )
        said = f"{done.stdout.decode()}{done.stderr.decode()}"
        assert not check or done.returncode == 0, f"podman {' '.join(words)}: {said}"
        return done.stdout.decode().strip()

    def start(
        self, name: str, *options: str, network: str = "host", command: tuple[str, ...] = ()
    ) -> None:
        """Run a container with this machine's programs, Python and Workbench. Its main process does
        nothing."""
        mounts = [word for place in seen_places() for word in ("-v", f"{place}:{place}:ro")]
        main = command or ("/usr/bin/sleep", "infinity")
        self(
            "run",
            "-d",
            "--init=false",
            "--name",
            name,
            f"--network={network}",
            *mounts,
            *options,
            IMAGE,
            *main,
        )

    def processes(self, name: str) -> list[str]:
        """Return the command lines of the processes in a container, without the main one."""
        listed = self("top", name, "hpid", check=False).splitlines()[1:]
        lines = []
        for pid in listed[1:]:
            with contextlib.suppress(OSError):
                words = Path("/proc", pid.strip(), "cmdline").read_bytes().split(b"\0")
                lines.append(b" ".join(words).decode("utf-8", "replace").strip())
        return [line for line in lines if line]

    def docker(self) -> None:
        """Put Docker's own command line on `path`, in front of this podman."""
        if self._service is not None:
            return
        client = shutil.which("docker", path=os.environ["PATH"].replace(f"{self.bin}:", ""))
        if (
            client is None
            or "podman"
            in subprocess.run([client, "--version"], capture_output=True, text=True).stdout
        ):
            pytest.skip("needs Docker's command line (apt-get install docker.io)")
        socket = self.directory / "docker.sock"
        command = [str(self.bin / "podman"), "system", "service", "-t", "0", f"unix://{socket}"]
        self._service = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        wait_for(socket.exists, "podman's socket")
        self.program("docker", f'exec {client} -H unix://{socket} "$@"')

    def close(self) -> None:
        self("rm", "--all", "--force", "--time", "0", check=False)
        if self._service is not None:
            self._service.kill()
            self._service.wait()
        shutil.rmtree(self._run, ignore_errors=True)


def _image() -> bytes:
    """Return an image as a tar file. It has directories, and links into /usr, which is mounted from
    this machine."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name in ("usr", "tmp", "proc", "dev", "sys", "etc", "run", "root", "var", "var/tmp"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name.endswith("tmp") else 0o755
            tar.addfile(entry)
        for name in ("bin", "sbin", "lib", "lib64"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, f"usr/{name}"
            tar.addfile(entry)
    return buffer.getvalue()


@contextlib.contextmanager
def podman(directory: Path) -> Iterator[Podman]:
    """Set up podman with all of its files in `directory`, which is created. Skips the test where
    podman cannot run."""
    if why := missing():
        pytest.skip(why)
    engine = Podman(directory)
    try:
        try:
            engine.start("probe", command=("/usr/bin/true",))
        except AssertionError as error:
            pytest.skip(f"podman cannot run a container here: {error}")
        engine("rm", "--force", "probe")
        yield engine
    finally:
        engine.close()

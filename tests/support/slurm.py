"""A real Slurm with one node: munged, slurmctld and slurmd of this machine, on loopback, with ports
of their own.

    with slurm(tmp_path) as cluster:
        monkeypatch.setenv("SLURM_CONF", cluster.conf)

The node is called c01 and has the address 127.0.0.2 and a host name of its own, as a node behind a
login host has. Its four GPUs are files. There is no accounting, so sacct answers nothing, as on
many small clusters.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.sshd import free_port, wait_for

NODE, ADDRESS = "c01", "127.0.0.2"
PROGRAMS = (
    "munged",
    "slurmctld",
    "slurmd",
    "sbatch",
    "squeue",
    "scancel",
    "scontrol",
    "sinfo",
    "unshare",
)
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
_CONF = """\
ClusterName=one
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
AuthType=auth/munge
AuthInfo=socket={dir}/munge.socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation={dir}/state
SlurmdSpoolDir={dir}/spool
SlurmctldLogFile={dir}/slurmctld.log
SlurmdLogFile={dir}/slurmd.log
SlurmctldPidFile={dir}/slurmctld.pid
SlurmdPidFile={dir}/slurmd.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
ReturnToService=2
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,bf_interval=1
KillWait=3
MessageTimeout=5
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName=c01 NodeHostname=c01 NodeAddr=127.0.0.2 CPUs=16 RealMemory=4000 Gres=gpu:4 State=UNKNOWN
PartitionName=gpu Nodes=c01 Default=YES State=UP PriorityTier=1
PartitionName=urgent Nodes=c01 State=UP PriorityTier=9 PreemptMode=OFF
"""


class Slurm:
    """A running cluster. `conf` is the value of SLURM_CONF."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.conf = str(directory / "slurm.conf")
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        for name in ("state", "spool"):
            (directory / name).mkdir(parents=True)
        directory.chmod(0o755)
        ports = {"controller": free_port(), "node": free_port()}
        (directory / "slurm.conf").write_text(_CONF.format(dir=directory, **ports))
        (directory / "gres.conf").write_text(f"Name=gpu File={directory}/gpu[0-3]\n")
        for number in range(4):
            os.mknod(directory / f"gpu{number}", 0o20666, os.makedev(1, 3))
        key = directory / "munge.key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o400)
        words = [f"--{name}={directory}/munge.{name}" for name in ("socket", "pid", "seed")]
        words += [f"--key-file={key}", f"--log-file={directory}/munged.log"]
        self._start("munged", ["munged", "--foreground", "--force", *words])
        wait_for(lambda: (directory / "munge.socket").exists(), "munged")
        self.start_controller()
        in_node = [
            "unshare",
            "--uts",
            "sh",
            "-c",
            'hostname "$1" && shift && exec "$@"',
            "sh",
            NODE,
        ]
        self._start("slurmd", [*in_node, "slurmd", "-D"])
        wait_for(
            lambda: "idle" in self.run("sinfo", "-h", "-o", "%T"), f"slurmd; see {directory}", 30
        )

    def _start(self, name: str, argv: list[str]) -> None:
        with (self.directory / f"{name}.out").open("ab") as out:
            self._processes[name] = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                env={**os.environ, "SLURM_CONF": self.conf, "PATH": _PATH},
            )

    def start_controller(self) -> None:
        self._start("slurmctld", ["slurmctld", "-D"])

    def stop_controller(self) -> None:
        self._stop("slurmctld")

    def _stop(self, name: str) -> None:
        process = self._processes.pop(name)
        for sent in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.kill(process.pid, sent)
                process.wait(10)
                return

    def run(self, *argv: str) -> str:
        """Return the output of a command of Slurm, whatever its exit code."""
        env = {**os.environ, "SLURM_CONF": self.conf, "PATH": _PATH}
        return subprocess.run(argv, capture_output=True, text=True, env=env, timeout=30).stdout

    def submit(self, *words: str, command: str = "sleep 600") -> str:
        """Submit a job that others need not know, and return its id."""
        output = str(self.directory / "others-%j.out")
        return self.run("sbatch", "--parsable", "-o", output, *words, f"--wrap={command}").strip()

    def jobs(self) -> list[str]:
        """Return "ID STATE" of all jobs that have not ended."""
        return self.run("squeue", "-h", "-o", "%i %T").splitlines()

    def close(self) -> None:
        """Cancel all jobs and end the daemons."""
        if "slurmctld" not in self._processes:
            self.start_controller()
        wait_for(lambda: "c01" in self.run("sinfo", "-h", "-o", "%N"), "slurmctld", 20)
        self.run("scancel", "--user=root")
        wait_for(lambda: not self.jobs(), "the end of all jobs", 30)
        for name in tuple(self._processes):
            self._stop(name)


@contextlib.contextmanager
def slurm(directory: Path) -> Iterator[Slurm]:
    """Run a cluster in `directory`. Skips the test if this machine cannot."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=_PATH) is None]
    if missing:
        pytest.skip(
            f"Slurm is not installed: {', '.join(missing)} not found (apt-get install "
            "slurm-wlm munge)"
        )
    if os.geteuid() != 0:
        pytest.skip("a node with a host name of its own needs root")
    cluster = Slurm(directory)
    try:
        yield cluster
    finally:
        cluster.close()

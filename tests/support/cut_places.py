"""The places in which servers are cut (random_cuts.py): how they start there, what can be cut, and
what may be left."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
from support.clusters import cluster as cluster_of
from support.clusters import commands_of, plan_of
from support.killing import descendants
from support.podman import IMAGE, TESTS, Podman, podman
from support.procs import alive, with_argument
from support.serving import free_port
from support.slurm import Slurm, slurm
from support.sshd import Sshd, sshd

from workbench import engines
from workbench.hosts.base import Host
from workbench.hosts.cluster import ClusterHost
from workbench.hosts.container import open_container
from workbench.hosts.local import LocalHost
from workbench.hosts.ssh import SshHost
from workbench.model.flags import FlagSetting
from workbench.model.plan import LaunchPlan
from workbench.model.run_options import with_launcher_and_options
from workbench.model.server_run import ServerStatus
from workbench.server.cluster_supervisor import ClusterSupervisor
from workbench.server.supervisor import Supervisor
from workbench.sim.simulated_host import BIN, SimulatedHost

VLLM = engines.get_engine("vllm")
PROFILE = "four-pcie"
START_S = 1.5  # that the simulated engine needs


class Place:
    """Where servers run. A round has a state directory of its own, whose path no process contains
    after it."""

    name = ""
    cuts: tuple[str, ...] = (
        "screen",
        "screen and its children",
        "keeper",
        "keeper and its children",
        "child",
        "server",
    )
    telemetry = False

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.state = directory

    def begin(self, number: int) -> None:
        self.state = self.directory / f"round-{number}"
        self.state.mkdir(parents=True)
        self.port = free_port()

    def host(self) -> Host:
        return SimulatedHost(LocalHost(), PROFILE, str(self.state))

    def supervisor(self, on_event: Callable[[Any], None] = lambda event: None) -> Supervisor:
        return Supervisor(self.host(), on_event)

    def options(self) -> tuple[str, ...]:
        return ()

    def plan(self) -> LaunchPlan:
        flags = (FlagSetting("port", self.port), FlagSetting("max-model-len", 4096))
        env = (FlagSetting("WORKBENCH_SIM_START_S", str(START_S)),)
        plan = LaunchPlan("vllm", "Qwen/Qwen3-0.6B", flags=flags, env=env)
        return (
            with_launcher_and_options(plan, self.name, self.options())
            if self.name in LAUNCHERS
            else plan
        )

    async def start(self, supervisor: Supervisor) -> ServerStatus:
        plan = self.plan()
        return await supervisor.start(plan, VLLM.command(plan), VLLM, simulated=True)

    def run_dir(self) -> Path | None:
        return max(self.state.glob("**/runs/*-*-vllm-*"), key=lambda path: path.name, default=None)

    def keeper(self) -> int | None:
        with suppress(OSError, ValueError, TypeError, IndexError):
            return int((self.run_dir() / "pid").read_text().split()[0])  # type: ignore[operator]
        return None

    def servers(self) -> list[int]:
        found = [pid for pid in with_argument(str(self.port)) if _words(pid, "engine_server.py")]
        return [pid for pid in found if not _words(pid, "random_cuts.py")]

    def serves(self) -> bool:
        with suppress(httpx.HTTPError):
            return httpx.get(f"http://127.0.0.1:{self.port}/health", timeout=3).status_code == 200
        return False

    def own_log(self, status: ServerStatus) -> list[str] | None:
        """Return the lines that the launcher has of the server; None if it has no log of its own."""
        return None

    def outside(self, what: str, dice: random.Random) -> None:
        raise NotImplementedError(what)

    def left(self) -> list[str]:
        """Return what is left of the round: processes, and what else the place knows."""
        found = []
        for entry in Path("/proc").iterdir():
            if (
                not entry.name.isdigit()
                or int(entry.name) == os.getpid()
                or not alive(int(entry.name))
            ):
                continue
            with suppress(OSError):
                words = (entry / "cmdline").read_bytes()
                seen = words + b"\0" + (entry / "environ").read_bytes()
                if f"{self.state}".encode() in seen and b"random_cuts" not in words:
                    found.append(
                        f"{entry.name} "
                        f"{words.replace(bytes(1), b' ').decode('utf-8', 'replace')[:150]}"
                    )
        return found + [
            f"{path} is left" for path in self.state.glob("**/runs/*/*") if path.name in SECRETS
        ]

    def left_of_server(self) -> list[str]:
        """Return what is left while a screen lives, which may have programs on the hosts."""
        return [line for line in self.left() if not (self.telemetry and line.split()[0].isdigit())]

    def clear(self) -> None:
        """End what a failed round has left."""
        for line in self.left():
            with suppress(ValueError, OSError):
                os.kill(int(line.split()[0]), signal.SIGKILL)


SECRETS = frozenset({"server", "environment"})
LAUNCHERS = frozenset({"podman", "docker", "systemd", "slurm"})


def _words(pid: int, text: str) -> bool:
    with suppress(OSError):
        return text.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


class PodmanPlace(Place):
    name = "podman"
    cuts = (*Place.cuts, "podman rm -f", "podman stop", "podman kill", "conmon")

    def __init__(self, directory: Path, engine: Podman) -> None:
        super().__init__(directory)
        self.engine = engine

    def options(self) -> tuple[str, ...]:
        places = dict.fromkeys(
            ("/usr", sys.base_prefix, sys.prefix, str(TESTS.parent), str(self.directory))
        )
        mounts = [f"mount={place}:{place}" for place in places]
        return (f"image={IMAGE}", "gpus=none", "grace=2", "hub-cache=none", *mounts)

    def plan(self) -> LaunchPlan:
        host = self.host()
        assert isinstance(host, SimulatedHost)
        plan = super().plan()
        env = [
            FlagSetting(name, value) for name, value in host.environment().items() if name != "PATH"
        ]
        env.append(FlagSetting("PATH", f"{BIN}:{Path(sys.executable).parent}:/usr/bin:/bin"))
        made = LaunchPlan(
            plan.engine,
            plan.model,
            flags=plan.flags,
            env=(*plan.env, *env),
            executable=(f"{BIN}/vllm",),
            executable_from="given",
        )
        return with_launcher_and_options(made, self.name, self.options())

    def containers(self) -> list[str]:
        return self.engine(
            "ps", "--all", "--filter", "label=workbench.run", "--format", "{{.Names}}"
        ).split()

    def own_log(self, status: ServerStatus) -> list[str] | None:
        words = [str(self.engine.bin / "podman"), "logs", status.handle or ""]
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        return done.stdout.decode("utf-8", "replace").splitlines()

    def outside(self, what: str, dice: random.Random) -> None:
        if what == "conmon":
            for pid in [int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit()]:
                if _words(pid, "conmon") and any(_words(pid, name) for name in self.containers()):
                    os.kill(pid, signal.SIGKILL)
            return
        words = {
            "podman rm -f": ("rm", "-f", "-t", "0"),
            "podman stop": ("stop", "-t", "1"),
            "podman kill": ("kill",),
        }
        for name in self.containers():
            self.engine(*words[what], name, check=False)

    def left(self) -> list[str]:
        pulls = [
            str(path)
            for path in Path("/var/tmp").glob("workbench-pull-*")
            if self.run_dir() is not None
        ]
        mine = [path for path in pulls if str(self.run_dir()).rpartition("/")[2] in path]
        return [*super().left(), *(f"container {name}" for name in self.containers()), *mine]

    def clear(self) -> None:
        self.engine("rm", "-f", "-t", "0", *self.containers(), check=False)
        super().clear()


class SystemdPlace(Place):
    name = "systemd"
    cuts = (*Place.cuts, "systemctl stop", "systemctl restart", "systemctl kill -s KILL")

    def options(self) -> tuple[str, ...]:
        return ("scope=system",)

    def units(self) -> list[str]:
        listed = _output(
            "systemctl", "list-units", "--all", "--plain", "--no-legend", "workbench-*"
        )
        return [line.split()[0] for line in listed.splitlines() if line.strip()]

    def own_log(self, status: ServerStatus) -> list[str] | None:
        return _output(
            "journalctl", "-q", "--no-pager", "-o", "cat", "-u", status.handle or ""
        ).splitlines()

    def outside(self, what: str, dice: random.Random) -> None:
        for unit in self.units():
            subprocess.run([*what.split(), unit], capture_output=True, check=False, timeout=60)

    def left(self) -> list[str]:
        return [*super().left(), *(f"unit {unit}" for unit in self.units())]

    def clear(self) -> None:
        for unit in self.units():
            subprocess.run(
                ["systemctl", "kill", "-s", "KILL", unit], capture_output=True, check=False
            )
            subprocess.run(["systemctl", "stop", unit], capture_output=True, check=False)
            subprocess.run(["systemctl", "reset-failed", unit], capture_output=True, check=False)
        super().clear()


class SlurmPlace(Place):
    name = "slurm"
    cuts = (*Place.cuts, "scancel", "scancel -s KILL", "slurmctld restarted", "requeue")

    def __init__(self, directory: Path, cluster: Slurm) -> None:
        super().__init__(directory)
        self.cluster = cluster

    def options(self) -> tuple[str, ...]:
        return ("gpus=1",)

    def plan(self) -> LaunchPlan:
        return super().plan().with_flag("host", "0.0.0.0")

    def jobs(self) -> list[str]:
        return [line.split()[0] for line in self.cluster.jobs()]

    def own_log(self, status: ServerStatus) -> list[str] | None:
        return Path(status.run_dir or "", "job.log").read_text(errors="replace").splitlines()

    def outside(self, what: str, dice: random.Random) -> None:
        if what == "slurmctld restarted":
            self.cluster.stop_controller()
            time.sleep(dice.uniform(0, 4))
            self.cluster.start_controller()
            return
        words = {"scancel": ["scancel"], "scancel -s KILL": ["scancel", "-f", "-s", "KILL"]}
        for job in self.jobs():
            self.cluster.run(*words.get(what, ["scontrol", "requeue"]), job)

    def left(self) -> list[str]:
        return [*super().left(), *(f"job {job}" for job in self.jobs())]

    def clear(self) -> None:
        self.cluster.run("scancel", "-f", "--user=root")
        super().clear()


class ContainerPlace(Place):
    name = "container"
    telemetry = True
    cuts = (
        "screen",
        "screen and its children",
        "exec",
        "server",
        "pause",
        "stop and start",
        "rm and run",
    )

    def __init__(self, directory: Path, engine: Podman) -> None:
        super().__init__(directory)
        self.engine, self.box = engine, f"cut-{os.getpid()}"
        self.run_box()

    def run_box(self) -> None:
        self.engine.start(self.box, "-v", f"{self.directory}:{self.directory}")

    def host(self) -> Host:
        return SimulatedHost(
            open_container(LocalHost(), "podman", self.box), PROFILE, str(self.state)
        )

    def outside(self, what: str, dice: random.Random) -> None:
        if what == "exec":
            for pid in with_argument("exec"):
                if _words(pid, self.box):
                    with suppress(OSError):
                        os.kill(pid, signal.SIGKILL)
            return
        if what == "rm and run":
            self.engine("rm", "-f", "-t", "0", self.box)
            time.sleep(dice.uniform(0, 2))
            self.run_box()
            return
        first, then = {
            "pause": (("pause",), ("unpause",)),
            "stop and start": (("stop", "-t", "0"), ("start",)),
        }[what]
        self.engine(*first, self.box, check=False)
        time.sleep(dice.uniform(0, 6))
        self.engine(*then, self.box)


class ClusterPlace(Place):
    name = "cluster"
    telemetry = True
    cuts: tuple[str, ...] = (
        "screen",
        "screen and its children",
        "link 0",
        "link 1",
        "silence 0",
        "silence 1",
        "sshd 0",
        "sshd 1",
        "rank 0",
        "rank 1",
    )

    def __init__(self, directory: Path, boxes: Sequence[Sshd]) -> None:
        super().__init__(directory)
        self.boxes = boxes

    def begin(self, number: int) -> None:
        super().begin(number)
        self.made: LaunchPlan | None = None

    def host(self) -> ClusterHost:
        return cluster_of(
            self.state, [SshHost("box", ssh_config=box.ssh_config_path) for box in self.boxes]
        )

    def supervisor(self, on_event: Callable[[Any], None] = lambda event: None) -> Supervisor:
        return ClusterSupervisor(self.host(), on_event)

    async def start(self, supervisor: Supervisor) -> ServerStatus:
        assert isinstance(supervisor, ClusterSupervisor) and isinstance(
            supervisor.host, ClusterHost
        )
        plan = plan_of(
            supervisor.host, WORKBENCH_SIM_START_S=str(START_S), WORKBENCH_SIM_PEER_LOST_S="never"
        )
        plan = plan.with_flag("port", self.port)
        return await supervisor.start_ranks(plan, commands_of(plan), VLLM, simulated=True)

    def ranks(self) -> list[int]:
        """Return the processes of the ranks, in their order."""
        found: list[int] = []
        for node in ("spark-01", "spark-02"):
            for path in self.state.glob(f"{node}/runs/*/pid"):
                with suppress(OSError, ValueError, IndexError):
                    found.append(int(path.read_text().split()[0]))
        return found

    def servers(self) -> list[int]:
        return [pid for pid in self.ranks() if alive(pid)]

    def outside(self, what: str, dice: random.Random) -> None:
        kind, _, number = what.partition(" ")
        box = self.boxes[int(number)]
        if kind == "rank":
            for pid in self.ranks()[int(number) : int(number) + 1]:
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        elif kind == "sshd":
            # the listener lives: inetd and systemd would start it again
            for pid in descendants(box._process.pid):
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        else:
            (box.cut if kind == "link" else box.silence)()
            time.sleep(dice.uniform(0, 6))
            if kind == "silence":
                box.cut()
            box.restore()


def _output(*argv: str) -> str:
    return subprocess.run(
        argv, capture_output=True, text=True, errors="replace", check=False, timeout=60
    ).stdout


@contextlib.contextmanager
def place_called(name: str, directory: Path) -> Iterator[Place]:
    with contextlib.ExitStack() as stack:
        if name in ("podman", "container"):
            engine = stack.enter_context(podman(directory / "pm"))
            os.environ["PATH"] = engine.path
            (directory / "r").mkdir()
            yield (PodmanPlace if name == "podman" else ContainerPlace)(directory / "r", engine)
        elif name == "slurm":
            one = stack.enter_context(slurm(directory / "slurm"))
            os.environ["SLURM_CONF"] = one.conf
            yield SlurmPlace(directory / "r", one)
        elif name == "cluster":
            boxes = [stack.enter_context(sshd(directory / node)) for node in ("a", "b")]
            yield ClusterPlace(directory / "r", boxes)
        else:
            yield SystemdPlace(directory / "r")

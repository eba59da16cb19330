"""The kinds of containers: for each kind, the commands that enter a container, report its state,
and list containers.

What these commands do, according to their manuals and sources: `docker inspect` and `podman
inspect` print the same fields (docs.docker.com and docs.podman.io); `pct exec` runs lxc-attach with
the arguments as a list, and passes the caller's environment on (PVE/CLI/pct.pm of pve-container);
lxc-attach clears the environment with --clear-env and sets PATH (attach.c of LXC). A running job of
Slurm is entered like a container: `srun --overlap` adds a step that shares the resources of the job
(slurm.schedmd.com/srun.html; Slurm 20.11 or later). Without --unbuffered, srun prints only whole
lines.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from workbench.hosts.base import Completed
from workbench.model.lazy_dataclass import dataclass
from workbench.model.untrusted_text import NAME_CHARS, clean_json, clean_text

RUNNING = "running"
ABSENT = "absent"
_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# on the first node of the job
_ONE_TASK = ("--nodes=1", "--ntasks=1", "--relative=0", "--unbuffered", "--mpi=none")
_NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]*"


@dataclass(frozen=True, slots=True)
class ContainerState:
    """The state of a container. `state` is RUNNING, ABSENT, or a word such as "paused" or "exited".
    `id` and `name` are known if the program reports them."""

    state: str
    id: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class ListedContainer:
    """A running container of a host. `id` is empty if containers of its kind have only a name."""

    kind: str
    name: str
    image: str = ""
    id: str = ""

    @property
    def address(self) -> str:
        """The container as it is written after the name of its host, such as "podman:vllm"."""
        return f"{self.kind}:{self.name}"


@dataclass(frozen=True, slots=True)
class ContainerKind:
    """A kind of container, such as docker. The functions `enter` and `look` take the name of a
    container: `enter` returns the words to put before a command so that it runs in the container,
    and `look` the command that reports its state."""

    name: str
    program: str
    pattern: re.Pattern[str]  # of containers' names
    enter: Callable[[str], tuple[str, ...]]  # the words before a command; stdin is passed on
    look: Callable[[str], tuple[str, ...]]  # the command that reports the state
    state: Callable[[Completed], ContainerState | None]  # from its result; None if it has none
    listing: tuple[str, ...]  # the command that lists the running containers
    parse_listing: Callable[[str], Iterable[ListedContainer]]
    # the words before the name with which a user ends a state; "": any other state
    wake: Mapping[str, str]
    runtime: str  # as systemd-detect-virt calls it
    rights: str  # what lets a user run the program
    environment: tuple[str, ...] = ()  # the words before the program, and before sudo
    look_s: float = 5.0  # between two looks at the state: the cost of one differs
    noun: str = "container"
    # whether it is on another machine than its host, with the files of that host
    elsewhere: bool = False

    def command_to_start_or_examine(self, state: str, name: str) -> str:
        """Return the command with which the user can start the container `name`, or for a job see
        why it does not run. `state` is its present state, which is not RUNNING."""
        return f"{self.wake.get(state, self.wake[''])} {name}"


def is_permission_error_message(problem: str) -> bool:
    """Return whether `problem`, the error message of a container program, says that the user may
    not use the program."""
    return re.search("permission|root|password|sudo", problem, re.IGNORECASE) is not None


def _parse_docker_or_podman_state(done: Completed) -> ContainerState | None:
    if done.returncode != 0:
        return ContainerState(ABSENT) if "no such" in done.err.lower() else None
    try:
        found: dict[str, Any] = clean_json(done.stdout)[0]
        state = clean_text(str(found["State"]["Status"]), NAME_CHARS)
        return ContainerState(
            state,
            clean_text(str(found["Id"]), 80),
            clean_text(str(found["Name"]).lstrip("/"), NAME_CHARS),
        )
    except (ValueError, LookupError, TypeError):
        return None


def _parse_pct_state(done: Completed) -> ContainerState | None:
    if done.returncode != 0:
        return ContainerState(ABSENT) if "does not exist" in done.err else None
    word = clean_text(done.out, NAME_CHARS).partition("status:")[2].strip()
    if not word:
        return None
    return ContainerState(word)


def _parse_lxc_state(done: Completed) -> ContainerState | None:
    if done.returncode != 0:
        return ContainerState(ABSENT) if "doesn't exist" in done.err else None
    word = clean_text(done.out, NAME_CHARS).strip().lower()
    if not word:
        return None
    return ContainerState(word)


def _parse_incus_or_lxd_state(done: Completed) -> ContainerState | None:
    if done.returncode != 0:
        return None
    name, _, state = clean_text(done.out, NAME_CHARS).strip().partition(",")
    return ContainerState(state.lower(), name=name) if name else ContainerState(ABSENT)


def _make_docker_like_kind(name: str) -> ContainerKind:
    def parse_listing(text: str) -> Iterable[ListedContainer]:
        for line in text.splitlines():
            id_, _, rest = line.partition("\t")
            called, _, image = rest.partition("\t")
            if called:
                yield ListedContainer(name, called.split(",")[0], image, id_)

    return ContainerKind(
        name,
        name,
        re.compile(_NAME),
        lambda container: (name, "exec", "-i", container),
        lambda container: (name, "inspect", "--type", "container", container),
        _parse_docker_or_podman_state,
        (name, "ps", "--format", "{{.ID}}\t{{.Names}}\t{{.Image}}"),
        parse_listing,
        {"paused": f"{name} unpause", "": f"{name} start"},
        runtime=name,
        rights="add your user to the group docker on that host"
        if name == "docker"
        else "run it as its owner",
    )


def _parse_pct_list(text: str) -> Iterable[ListedContainer]:
    for line in text.splitlines()[1:]:
        number, state, *rest = [*line.split(), "", ""][:4]
        if number.isdecimal() and state == RUNNING:
            yield ListedContainer(
                "pct", number, next((word for word in reversed(rest) if word), "")
            )


def _parse_lxc_list(text: str) -> Iterable[ListedContainer]:
    return (ListedContainer("lxc", name) for name in text.split())


_PCT = ContainerKind(
    "pct",
    "pct",
    re.compile(r"[1-9][0-9]{0,9}"),
    lambda container: ("pct", "exec", container, "--"),
    lambda container: ("pct", "status", container),
    _parse_pct_state,
    ("pct", "list"),
    _parse_pct_list,
    {"": "pct start"},
    runtime="lxc",
    rights="log in as root, or allow your user `sudo -n pct`",
    # --keep-env 0 would do that too, but older versions do not know it
    environment=("env", "-i", _PATH),
    look_s=15.0,  # pct is Perl, and takes half a second of CPU
)
_LXC = ContainerKind(
    "lxc",
    "lxc-attach",
    re.compile(_NAME),
    lambda container: ("lxc-attach", "--clear-env", "-n", container, "--"),
    lambda container: ("lxc-info", "-n", container, "-s", "-H"),
    _parse_lxc_state,
    ("lxc-ls", "--running", "-1"),
    _parse_lxc_list,
    {"frozen": "lxc-unfreeze -n", "": "lxc-start -n"},
    runtime="lxc",
    rights="log in as root, or allow your user `sudo -n lxc-attach` and `sudo -n lxc-info`",
)


def _make_incus_or_lxd_kind(name: str, program: str) -> ContainerKind:
    """Return the kind of Incus or LXD, whose client is called `program`."""

    def parse_listing(text: str) -> Iterable[ListedContainer]:
        return (ListedContainer(name, line.strip()) for line in text.splitlines() if line.strip())

    return ContainerKind(
        name,
        program,
        re.compile(r"[A-Za-z][A-Za-z0-9-]*"),
        lambda container: (program, "exec", container, "--mode=non-interactive", "--"),
        lambda container: (program, "list", f"^{container}$", "--format=csv", "--columns=ns"),
        _parse_incus_or_lxd_state,
        (program, "list", "status=running", "--format=csv", "--columns=n"),
        parse_listing,
        {"": f"{program} start"},
        runtime="lxc",
        rights=f"add your user to the group {name} on that host",
    )


def _parse_slurm_job_state(done: Completed) -> ContainerState | None:
    """Return the state of a Slurm job from the output of squeue, None if squeue did not report it.
    The state's `id` consists of the job's first node and its start time, because both change when
    the job is queued again and restarts."""
    if done.returncode != 0:
        return ContainerState(ABSENT) if "invalid job id" in done.err.lower() else None
    word, _, place = next(
        iter(clean_text(done.out, NAME_CHARS, lines=True).splitlines()), ""
    ).partition("|")
    return ContainerState(word.lower(), place) if word else ContainerState(ABSENT)


def _parse_slurm_job_list(text: str) -> Iterable[ListedContainer]:
    for line in text.splitlines():
        job, _, name = line.partition("|")
        if name:
            yield ListedContainer("slurm", job, name)


_SLURM = ContainerKind(
    "slurm",
    "srun",
    re.compile(
        r"[1-9][0-9]{0,9}(_[0-9]{1,9}|\+[0-9]{1,9})?"
    ),  # also a task of an array, or a part of a heterogeneous job
    lambda job: ("srun", f"--jobid={job}", "--overlap", *_ONE_TASK),
    lambda job: ("squeue", "-h", "-t", "all", "-j", job, "-o", "%T|%B %S"),
    _parse_slurm_job_state,
    ("squeue", "--me", "-h", "-t", "RUNNING", "-o", "%i|%j"),
    _parse_slurm_job_list,
    {"pending": "squeue --start -j", "": "squeue -t all -j"},
    runtime="",
    rights="log in as the user whose job it is",
    look_s=15.0,  # slurmctld is shared by all users
    noun="job",
    elsewhere=True,
)

KINDS: Mapping[str, ContainerKind] = MappingProxyType(
    {
        kind.name: kind
        for kind in (
            _make_docker_like_kind("docker"),
            _make_docker_like_kind("podman"),
            _PCT,
            _LXC,
            _make_incus_or_lxd_kind("incus", "incus"),
            _make_incus_or_lxd_kind("lxd", "lxc"),
            _SLURM,
        )
    }
)

"""Runs that have ended: their end mark, and their removal.

The end mark is a file in the run directory. It says whether the run failed and when it ended, so
that later listings of the host's runs need not examine the run. It is written once the end is
recorded and no process of the run lives. A second file, `read`, says that a user has seen the run's
log. Only runs with an end mark are removed, and never a failed run whose log no user has seen.
"""

from __future__ import annotations

import math
import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from workbench.hosts import detached_process, shell_scripts
from workbench.hosts.base import Host
from workbench.hosts.detached_process import ProcessStatus
from workbench.model.findings import Finding, Level
from workbench.model.lazy_dataclass import dataclass
from workbench.model.server_run import ServerState, ServerStatus
from workbench.model.untrusted_numbers import parse_decimal, parse_whole_number, range_of_field
from workbench.server.run_directory import RUN_ID_PATTERN

_Item = TypeVar("_Item")

FULL_DISK_KIB = 64  # a disk with less free space counts as full
_MAX_RUNS_PER_COMMAND = 1000  # runs in one command line, whose length is limited
_FAILED_KIND = "failed"
_KIND_OF_STATE = {
    ServerState.STOPPED: "stopped",
    ServerState.FAILED: _FAILED_KIND,
    ServerState.CRASHED: _FAILED_KIND,
}


@dataclass(frozen=True, slots=True)
class EndedRun:
    """A run that is marked as ended, with the size of its directory on disk."""

    run_id: str
    failed: bool
    read: bool  # a user has seen its log
    age_s: float  # since its end, by the host's clock
    size_kib: int

    @property
    def must_not_be_removed(self) -> bool:
        """Whether the run failed and no user has seen its log."""
        return self.failed and not self.read


def end_mark_text(seen: ProcessStatus, status: ServerStatus) -> str | None:
    """Return the text of the mark that records the end of the run `seen`: "stopped" or "failed", a
    space, and the Unix time of the end. None if the run is marked already, has not ended, or began
    before the host's last boot: on a shared home directory, it may live on another machine."""
    kind = _KIND_OF_STATE.get(status.state)
    if kind is None or seen.marked or seen.exit_code is None:
        return None
    if seen.alive or seen.members or not seen.same_boot:
        return None
    return f"{kind} {seen.ended_unix_s or seen.now_unix_s:.0f}"


async def write_end_marks(host: Host, root: str, marks: Mapping[str, str | None]) -> None:
    """Write the marks which record that runs have ended. `marks` has the text of each run's mark by
    run id, None for a run that gets none. `root` is the directory of all runs."""
    found = [(run_id, text) for run_id, text in marks.items() if text]
    for some in _batch_items_per_command(found):
        await detached_process.mark_runs_ended(host, root, dict(some))


def _batch_items_per_command(items: Sequence[_Item]) -> Iterator[Sequence[_Item]]:
    """Yield the items in their order, in parts that fit into one command line each."""
    for begin in range(0, len(items), _MAX_RUNS_PER_COMMAND):
        yield items[begin : begin + _MAX_RUNS_PER_COMMAND]


async def mark_log_as_read(host: Host, run_dir: str) -> None:
    """Record in the run directory that a user has seen the log of the run."""
    await host.run(shell_scripts.shell_argv('umask 077; : >"$1/read"', run_dir))


async def check_disk_space(host: Host, run_dir: str) -> tuple[Finding, ...]:
    """Return a finding if the disk with the run directory is full, so that the log may lack the
    reason of a failure. () if it is not, or if its free space is unknown."""
    done = await host.run(["df", "-Pk", "--", run_dir])
    lines = done.out.splitlines()
    if done.returncode or not lines:
        return ()
    words = lines[-1].split()
    if len(words) <= 5:
        return ()
    free_kib, mount = parse_whole_number(words[3]), words[-1]
    if free_kib is None or free_kib >= FULL_DISK_KIB:
        return ()
    text = (
        f"the disk of {run_dir} is full ({mount}): the log may end before the reason of the failure"
    )
    fix = (
        "free some space on that disk, or set XDG_STATE_HOME on the host to a directory on "
        "another disk"
    )
    return (Finding(Level.ERROR, "disk.full", text, fix=fix),)


async def read_ended_runs(host: Host, root: str) -> tuple[EndedRun, ...]:
    """Return the runs below `root`, the directory of all runs, that are marked as ended, the newest
    first."""
    done = await host.run(shell_scripts.shell_argv(shell_scripts.ENDED_RUNS, root), timeout_s=120.0)
    marks: dict[str, list[str]] = {}
    sizes: dict[str, int] = {}
    now_unix_s = 0.0
    for line in done.out.splitlines():
        found_words = line.split()
        if len(found_words) < 2:
            continue
        kind, *words = found_words
        if kind == "run":
            if len(words) == 4 and parse_whole_number(words[3]) is not None:
                marks[words[0]] = words[1:]
        elif kind == "now":
            now_unix_s = parse_decimal(words[0], *range_of_field("unix_s")) or 0.0
        elif (size := parse_whole_number(kind)) is not None:
            sizes[words[0].removeprefix("./")] = size
    found = (
        EndedRun(
            run_id,
            kind == _FAILED_KIND,
            read == "read",
            now_unix_s - float(unix_s),
            sizes.get(run_id, 0),
        )
        for run_id, (read, kind, unix_s) in marks.items()
        if RUN_ID_PATTERN.fullmatch(run_id)
    )
    return tuple(sorted(found, key=lambda run: run.run_id, reverse=True))


def choose_runs_to_remove(
    runs: Sequence[EndedRun],
    *,
    older_than_s: float = math.inf,
    keep: float = math.inf,
    size_kib: float = math.inf,
) -> tuple[EndedRun, ...]:
    """Return the runs to remove: those that ended more than `older_than_s` seconds ago, those after
    the `keep` newest, and the oldest ones beyond a total of `size_kib` KiB. Failed runs whose log
    no user has seen are left out. `runs` and the result begin with the newest."""
    found, total_kib = [], 0
    for place, run in enumerate(runs, 1):
        total_kib += run.size_kib
        exceeds_limit = run.age_s > older_than_s or place > keep or total_kib > size_kib
        if exceeds_limit and not run.must_not_be_removed:
            found.append(run)
    return tuple(found)


async def remove_runs(host: Host, root: str, runs: Iterable[EndedRun]) -> tuple[str, ...]:
    """Remove the directories of `runs` below `root`, and return the ids of the runs that were
    removed. A run with a living process stays, as does a failed one whose log no user has seen."""
    removable = (run.run_id for run in runs if not run.must_not_be_removed)
    names = list(filter(RUN_ID_PATTERN.fullmatch, removable))
    removed: list[str] = []
    for some in _batch_items_per_command(names):
        paths = {posixpath.join(root, name): name for name in some}
        alive = await detached_process.find_run_dirs_with_processes(host, list(paths))
        dead = [name for path, name in paths.items() if path not in alive]
        done = await host.run(
            shell_scripts.shell_argv(shell_scripts.REMOVE_RUNS, root, *dead), timeout_s=300.0
        )
        removed += done.out.split()
    return tuple(removed)

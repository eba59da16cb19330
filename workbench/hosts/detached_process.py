"""Processes that outlive the program that starts them, each in a run directory on its host. This
works on every Host.

<run_dir>/   absolute path, mode 0700; its files have mode 0600
    log            stdout and stderr of the process; created exclusively, so a run directory is used once
    pid starttime  the process that was started: id, and start time in clock ticks since boot
    sid sid_starttime  its session: the leader is a shell that only records the exit
    boot_id token started  boot id, the run's mark in the environment of its processes, Unix seconds
    exit           "CODE TICKS UNIX_S [KILLS]" once the process has ended; CODE is 128 + n for signal n;
                   TICKS since boot; KILLS: processes of its control group that the kernel has
                   killed for lack of memory since the start
    members        all processes that were seen in the run, as "PID:START", so that they are recognized later
    ended          "KIND UNIX_S": the run's end is recorded and none of its processes lives (see `mark_runs_ended`)
    shm shm_before shared memory files that the run created ("inode path"), and those that existed
    before it
"""

from __future__ import annotations

import re
import secrets
import shlex
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field, replace

from workbench.hosts import run_processes, shell_scripts
from workbench.hosts.base import (
    CommandNotFound,
    Completed,
    FileError,
    Host,
    command_not_found_error,
    raise_if_argv_invalid,
)
from workbench.hosts.run_processes import Members, Process, RunFiles, Survey, signal_name
from workbench.model.errors import HostError
from workbench.model.lazy_dataclass import dataclass
from workbench.model.untrusted_numbers import parse_whole_number
from workbench.model.untrusted_text import clean_text

SLICE_S = 5.0  # longest wait within one command on the host, so that a lost link is noticed
# time for the session's leader to record the exit after the last other process has ended
LEADER_S = 1.0
# what a start script prints: process id, start time and session id
_STARTED_LINE = re.compile(r"ok ([1-9][0-9]{0,17}) ([0-9]{1,18}) ([0-9]{1,18})\s*")
_MORE_SURVEYS = 2  # at most, while runs start that the first one misses


class RunDirUsed(HostError):
    """The error for a start in a run directory that already contains a run."""


class PortClaimed(HostError):
    """The error for a start on a port that the process of another start has claimed."""


class WorkdirMissing(HostError):
    """The error for a working directory that does not exist or that the user may not enter."""


@dataclass(frozen=True, slots=True)
class DetachedProcess:
    """A process that `start_detached` has started. `sid` is the id of its session and of its
    process group. `start_time` is in clock ticks since the host was booted."""

    pid: int
    sid: int
    start_time: int


# the files of a run directory that this module and its scripts write, and `status` reads
OWN_FILES = (
    *("pid", "starttime", "sid", "sid_starttime", "boot_id", "token"),
    *("started", "exit", "ended", "members"),
)


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """The state of a run at one moment. `alive` says whether the process that was started still
    runs. `members` are all living processes of the run; some of them can outlive that process."""

    run_dir: str
    alive: bool
    pid: int | None = None
    exit_code: int | None = None  # 128 + n for signal n
    exit_signal: str | None = None
    # living processes of the run, without the shell that leads the session
    members: tuple[int, ...] = ()
    sid: int | None = None
    start_time: int | None = None
    started_unix_s: float | None = None
    ended_unix_s: float | None = None
    ended_ago_s: float | None = None  # at the reading, by no clock that can be set
    now_unix_s: float = 0.0  # the host's clock
    lost: str | None = None  # why it is not known how the process ended
    marked: bool = False  # as ended, so that later surveys need not read it
    # whether the run was started since the host's last boot, on this machine
    same_boot: bool = True
    # contents of the requested files that exist
    files: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StopReport:
    """The outcome of `stop_run`. `left` are the ids of the processes that still run, because they
    hang in the kernel or the user may not signal them."""

    pids_signalled: tuple[int, ...] = ()
    killed: tuple[int, ...] = ()
    left: tuple[int, ...] = ()
    shared_memory_removed: tuple[str, ...] = ()
    status: ProcessStatus | None = None

    @property
    def has_ended_all_processes(self) -> bool:
        return not self.left


@dataclass(frozen=True, slots=True)
class _RunState:
    """A run in one survey of its host. `found` are its living processes."""

    run: RunFiles
    survey: Survey
    found: Members

    @property
    def status(self) -> ProcessStatus:
        return _status_from_survey(self.run, self.survey, self.found)


async def start_detached(
    host: Host,
    run_dir: str,
    argv: Sequence[str],
    env: Mapping[str, str] | None = None,
    workdir: str | None = None,
    open_files: int | None = None,
    port: int | None = None,
) -> DetachedProcess:
    """Start `argv` as a process that outlives this program, with stdin from /dev/null and its
    output in the file `log` of `run_dir`, which is created if it is missing.

    The limit of open files is raised to `open_files`, or to the hard limit if that is lower. The
    process claims `port` until it ends, so that no other start takes that port. The values of `env`
    are never on a command line. Raises CommandNotFound, WorkdirMissing, PortClaimed, RunDirUsed,
    FileError (no permission, disk full), or another HostError."""
    raise_if_argv_invalid(argv, host.name)
    if not run_dir.startswith("/"):
        raise FileError(f"run directory {run_dir} is not an absolute path", host=host.name)
    command = shell_scripts.start_script_argv(
        run_dir.rstrip("/"), secrets.token_hex(8), workdir or "", argv, open_files, port
    )
    return _parse_started_process(await host.run(command, env=env), host, run_dir, argv, workdir)


async def restart_in_run_dir(
    host: Host, run_dir: str, argv: Sequence[str], env: Mapping[str, str] | None = None
) -> DetachedProcess:
    """Start `argv` in the directory of a run whose process has ended, as the new process of that
    run. The files of the ended process are moved to a subdirectory, and what it left in its session
    is killed. Raises RunDirUsed if the run's process is alive or another caller starts it again,
    and the other errors of `start_detached`."""
    state = await _read_run_state(host, run_dir)
    if state.status.alive:
        raise RunDirUsed(f"the process of the run in {run_dir} still runs", host=host.name)
    await _kill_session_except_leader(host, state)
    command = shell_scripts.restart_script_argv(
        run_dir.rstrip("/"), f"{state.run.pid}-{state.run.start}", argv
    )
    return _parse_started_process(await host.run(command, env=env), host, run_dir, argv, None)


async def kill_remaining_session_processes(host: Host, run_dir: str) -> None:
    """Kill the processes that the ended process of a run has left in its session. Do nothing while
    the run's process is alive."""
    state = await _read_run_state(host, run_dir)
    if not state.status.alive:
        await _kill_session_except_leader(host, state)


async def _kill_session_except_leader(host: Host, state: _RunState) -> None:
    """Kill the processes in the run's session, except its leader. Do nothing if the leader lives
    and no end is recorded: another caller has just started the run again, and `state` was read
    while it wrote the files."""
    leader = state.survey.processes.get(state.run.sid or 0)
    if leader is not None and leader.alive and state.run.exit_code is None:
        return
    left = [p for p in state.found.others if p.session == state.run.sid]
    if left:
        await _signal_and_list_reached_pids(
            host, "KILL", [p.pid_and_start for p in left], left, SLICE_S
        )


def _parse_started_process(
    done: Completed, host: Host, run_dir: str, argv: Sequence[str], workdir: str | None
) -> DetachedProcess:
    """Return the process that a start script has started. `done` is the result of the script.
    Raises the HostError for what the script printed, if it started none."""
    started = _STARTED_LINE.fullmatch(done.out)
    if done.returncode == 0 and started is not None:
        pid, start_time, sid = map(int, started.groups())
        return DetachedProcess(pid=pid, start_time=start_time, sid=sid)
    words = done.out.split()
    kind = words[1] if words[:1] == ["error"] and len(words) > 1 else ""
    if kind == "claimed":
        raise _port_claimed_error(host, words[2:])
    raise _start_error(kind, host, run_dir, argv, workdir, done)


def _port_claimed_error(host: Host, claimant_words: Sequence[str]) -> PortClaimed:
    """Return the error for a port that another start has claimed. `claimant_words` are the user of
    that start and, if known, its run id."""
    user, run_id = (*claimant_words, "", "")[:2]
    which = f"a server of {clean_text(user)}"
    if run_id:
        which = f"run {clean_text(run_id)} of {clean_text(user)}"
    return PortClaimed(
        f"the port was taken by another start at the same time: {which}",
        host=host.name,
        next_step="set another port, or wait for the end of that server; it was not disturbed",
    )


def _start_error(
    script_error: str,
    host: Host,
    run_dir: str,
    argv: Sequence[str],
    workdir: str | None,
    done: Completed,
) -> HostError:
    shown = shlex.join(argv)
    if script_error == "command":
        return command_not_found_error(argv, host.name, shown)
    if script_error == "workdir":
        message = f"working directory {workdir} cannot be entered"
        return WorkdirMissing(
            message,
            host=host.name,
            command=shown,
            next_step="create the directory, or correct the path",
        )
    if script_error == "used":
        step = "start with a new run directory"
        return RunDirUsed(
            f"{run_dir} already contains a run", host=host.name, command=shown, next_step=step
        )
    if script_error == "write":
        full = "no space left" in done.err.lower()
        step = "free some space on the host" if full else "check the directory's permissions"
        return FileError(
            f"cannot write in {run_dir}: {done.problem}",
            host=host.name,
            command=shown,
            next_step=step,
        )
    if script_error == "setsid":
        step = "install util-linux or busybox on the host"
        return CommandNotFound(
            "setsid: no such executable", host=host.name, command=shown, next_step=step
        )
    return HostError(
        f"the server could not be started: {done.problem}", host=host.name, command=shown
    )


async def is_process_alive(host: Host, process: DetachedProcess) -> bool:
    """Return whether `process` itself, not another one with its id, still runs. A zombie does not.
    This reads a single file, so it can be called every second."""
    try:
        stat = await host.read_file(f"/proc/{process.pid}/stat", limit=1024)
    except FileError:
        return False
    words = stat.rpartition(b") ")[2].split()
    if len(words) < 20 or words[0] in (b"Z", b"X"):
        return False
    return parse_whole_number(words[19].decode("ascii", "replace")) == process.start_time


async def find_existing_pids(host: Host, pids: Collection[int]) -> frozenset[int]:
    """Return those of the process ids that exist on the host now."""
    if not pids:
        return frozenset()
    done = await host.run(
        shell_scripts.shell_argv(shell_scripts.EXISTING, *(str(pid) for pid in sorted(pids)))
    )
    numbers = (parse_whole_number(word) for word in done.out.split())
    return frozenset(number for number in numbers if number is not None)


async def read_status(host: Host, run_dir: str, *, files: Sequence[str] = ()) -> ProcessStatus:
    """Return the state of the run in `run_dir`, and record its new members there. `files` names
    files in `run_dir`; the state has the contents of those that exist. Raises HostError if the
    directory does not exist."""
    state = await _read_run_state(host, run_dir, files)
    await _record_new_run_members(host, state.run, state.found)
    return state.status


async def read_runs_and_unread_names(
    host: Host, root: str, *, files: Sequence[str] = (), newest_count: int = 0
) -> tuple[tuple[ProcessStatus, ...], tuple[str, ...]]:
    """Return (states of the runs in the directory `root`, sorted by name; names of the runs that
    were not read). A run is not read if it is marked as ended and not among the `newest_count`
    newest ones. `files` names files in the run directories; each state has the contents of those
    that exist. Both are () if `root` does not exist."""
    survey = await _survey_host(host, ["-r", root.rstrip("/"), str(newest_count)], files)
    runs = sorted(survey.runs, key=lambda run: run.run_dir)
    return tuple(_make_run_state(run, survey).status for run in runs), survey.older


async def mark_runs_ended(host: Host, root: str, mark_text_by_name: Mapping[str, str]) -> None:
    """Mark runs in the directory `root` as ended, so that `read_runs_and_unread_names` need not
    read them. `mark_text_by_name` has the text of each mark by the name of the run's directory.
    Mark a run only if its end is recorded and none of its processes lives."""
    words = [word for run in mark_text_by_name.items() for word in run]
    if words:
        await host.run(shell_scripts.shell_argv(shell_scripts.MARK_ENDED, root, *words))


async def find_run_dirs_with_processes(host: Host, run_dirs: Sequence[str]) -> frozenset[str]:
    """Return those of the run directories that have a living process."""
    survey = await _survey_host(host, run_dirs, ())
    return frozenset(
        run.run_dir for run in survey.runs if run_processes.find_living_members(run, survey).all
    )


async def stop_run(
    host: Host, run_dir: str, grace_s: float = 15.0, kill_after_s: float = 10.0
) -> StopReport:
    """End every process of the run, and remove the shared memory files that it left. The process
    group gets SIGTERM. After `grace_s` seconds, the remaining processes get SIGKILL again and
    again, for up to `kill_after_s` seconds. Raises HostError if `run_dir` does not exist."""
    state = await _read_run_state(host, run_dir)
    signalled: set[int] = set()
    killed: set[int] = set()
    if state.found.all:
        await record_shared_memory_files(host, run_dir, [p.pid for p in state.found.others])
        signalled = await _terminate_and_list_signalled_pids(host, state)
    deadline = time.monotonic() + grace_s
    while state.found.others and (rest := deadline - time.monotonic()) > 0:
        await _signal_and_list_reached_pids(host, "TERM", (), state.found.others, rest)
        state = await _read_run_state(host, run_dir, earlier=state)
    deadline = time.monotonic() + max(kill_after_s, LEADER_S)
    while state.found.all and (rest := deadline - time.monotonic()) > 0:
        killed |= await _kill_and_list_signalled_pids(host, state, rest)
        state = await _read_run_state(host, run_dir, earlier=state)
    return StopReport(
        pids_signalled=tuple(sorted(signalled | killed)),
        killed=tuple(sorted(killed)),
        left=tuple(p.pid for p in state.found.all),
        shared_memory_removed=await remove_unused_shared_memory_files(host, run_dir)
        if not state.found.all
        else (),
        status=state.status,
    )


async def _terminate_and_list_signalled_pids(host: Host, state: _RunState) -> set[int]:
    """Send SIGTERM to the run's process group, and one by one to the members that left the group.
    Return the process ids that got the signal. No process gets it twice: some servers then exit at
    once without cleaning up."""
    sid, others = state.run.sid, state.found.others
    group = [p for p in state.found.all if p.group == sid]
    targets = [f"{group[-1].pid_and_start}:{sid}"] if group else []
    sent = await _signal_and_list_reached_pids(
        host, "TERM", [*targets, *(p.pid_and_start for p in others if p.group != sid)]
    )
    reached = bool(group) and group[-1].pid in sent
    return {p.pid for p in others if (reached if p.group == sid else p.pid in sent)}


async def _kill_and_list_signalled_pids(host: Host, state: _RunState, wait_s: float) -> set[int]:
    """Send SIGKILL to all members of the run except the session's leader, and return the process
    ids that got it. The leader records how the server ended. If it is alone, wait up to `wait_s`
    seconds for its end, then kill it too; it is not in the answer."""
    leader, others = state.found.leader, state.found.others
    if others:
        return await _signal_and_list_reached_pids(
            host, "KILL", [p.pid_and_start for p in others], others, wait_s
        )
    if leader is not None:
        await _signal_and_list_reached_pids(host, "KILL", (), (leader,), min(wait_s, LEADER_S))
        again = await _read_run_state(host, state.run.run_dir, earlier=state)
        if again.found.leader is not None and not again.found.others:
            await _signal_and_list_reached_pids(
                host, "KILL", [leader.pid_and_start], (leader,), wait_s
            )
    return set()


async def record_shared_memory_files(host: Host, run_dir: str, pids: Sequence[int]) -> None:
    """Write the names of the shared memory files that the living processes `pids` created to the
    run directory, so that the files can be removed after these processes are killed. `stop_run`
    calls this; call it also when the server is ready."""
    if pids:
        await host.run(
            shell_scripts.shell_argv(
                shell_scripts.RECORD_SHARED_MEMORY, run_dir, *(str(p) for p in pids)
            )
        )


async def remove_unused_shared_memory_files(host: Host, run_dir: str) -> tuple[str, ...]:
    """Remove the shared memory files that the run created and that no process uses any more. Return
    their paths."""
    done = await host.run(shell_scripts.shell_argv(shell_scripts.CLEAR_SHARED_MEMORY, run_dir))
    return tuple(done.out.splitlines())


async def _survey_host(host: Host, arguments: Sequence[str], files: Sequence[str]) -> Survey:
    """Return the host's process table, and the files of the runs, which are read after it. The
    survey is repeated if a run was started between the two, because it has files and no process.
    `arguments` are those of the script SURVEY after the names of `files`. Raises HostError if the
    processes cannot be listed."""
    survey = await _survey_host_once(host, arguments, files)
    for _ in range(_MORE_SURVEYS):
        if not any(run_processes.run_started_after_survey(run, survey) for run in survey.runs):
            break
        survey = await _survey_host_once(host, arguments, files)
    return survey


async def _survey_host_once(host: Host, arguments: Sequence[str], files: Sequence[str]) -> Survey:
    words = (" ".join(files), *arguments)
    done = await host.run(shell_scripts.shell_argv(shell_scripts.SURVEY, *words))
    survey = run_processes.parse_survey(done.stdout)
    if survey is None:
        raise HostError(f"cannot list the processes of the runs: {done.problem}", host=host.name)
    return survey


async def _read_run_state(
    host: Host, run_dir: str, files: Sequence[str] = (), *, earlier: _RunState | None = None
) -> _RunState:
    """Return the state of one run. A process that belonged to the run in its state `earlier` still
    belongs to it, even if it has left the run's session since. Raises HostError if `run_dir` does
    not exist."""
    survey = await _survey_host(host, [run_dir.rstrip("/")], files)
    if not survey.runs:
        step = "`workbench servers` lists the runs of a host"
        raise HostError(f"there is no run directory {run_dir}", host=host.name, next_step=step)
    run = survey.runs[0]
    if earlier is not None:
        run = replace(
            run, seen=run.seen | earlier.run.seen | {p.pid_and_start for p in earlier.found.others}
        )
    return _make_run_state(run, survey)


def _make_run_state(run: RunFiles, survey: Survey) -> _RunState:
    return _RunState(run, survey, run_processes.find_living_members(run, survey))


async def _record_new_run_members(host: Host, run: RunFiles, found: Members) -> None:
    """Add the members of the run in `found` that are new to the file `members` in the run
    directory. It shows that a process belongs to the run, even after the process's parents have
    ended."""
    new = [p.pid_and_start for p in found.others if p.pid_and_start not in run.seen]
    if new:
        await host.run(
            shell_scripts.shell_argv(
                'dir=$1; shift; umask 077; printf "%s\\n" "$@" >>"$dir/members"', run.run_dir, *new
            )
        )


def _status_from_survey(run: RunFiles, survey: Survey, found: Members) -> ProcessStatus:
    pids = tuple(p.pid for p in found.others)
    running, lost = False, None
    if run.exit_code is None:
        # the leader alone: before the start, or while the exit is recorded
        running = run.pid in pids or found.leader is not None
        lost = None if running else _why_exit_is_unknown(run, survey)
    return ProcessStatus(
        run.run_dir,
        alive=running,
        pid=run.pid,
        exit_code=run.exit_code,
        exit_signal=signal_name(run.exit_code),
        members=pids,
        sid=run.sid,
        start_time=run.start,
        started_unix_s=run.started_unix_s,
        ended_unix_s=run.ended_unix_s,
        ended_ago_s=run_processes.seconds_since_run_ended(run, survey),
        now_unix_s=survey.now_unix_s,
        lost=lost,
        marked=run.marked,
        same_boot=run.boot_id == survey.boot_id,
        files=run.files,
    )


def _why_exit_is_unknown(run: RunFiles, survey: Survey) -> str:
    """Return why a run that does not run has no exit code."""
    if run.boot_id is None or run.sid is None:
        return "the server was never started"
    if run.boot_id != survey.boot_id:
        return "the host was restarted, or the server was started on another host"
    if _pid_1_started_after_run(run, survey):
        return "the container was restarted, which ended the server"
    return "the shell that records the server's exit was killed"


def _pid_1_started_after_run(run: RunFiles, survey: Survey) -> bool:
    """Return whether process 1 started after the run. If so, the container in which the run was
    started has restarted since, which ended all its processes."""
    init = survey.processes.get(1)
    return init is not None and run.sid_start is not None and init.start > run.sid_start


async def _signal_and_list_reached_pids(
    host: Host,
    signal_name: str,
    targets: Sequence[str],
    wait_for: Sequence[Process] = (),
    wait_s: float = 0.0,
) -> set[int]:
    """Send the signal `signal_name`, such as "TERM", to `targets`: processes as "PID:START", and
    process groups as "PID:START:GROUP" with a member. Return the process ids that got it, for a
    group that of the member. Then wait up to `wait_s` seconds (at most SLICE_S) for the end of the
    processes `wait_for`."""
    keys = [p.pid_and_start for p in wait_for]
    seconds = max(1, round(min(wait_s, SLICE_S))) if keys else 0
    done = await host.run(
        shell_scripts.shell_argv(
            shell_scripts.SIGNAL, signal_name, str(seconds), *targets, "--", *keys
        ),
        timeout_s=seconds + 30,
    )
    reached = set[int]()
    for line in done.out.splitlines():
        label, _, target = line.partition(" ")
        pid = parse_whole_number(target.partition(":")[0])
        if label == "sent" and pid is not None:
            reached.add(pid)
    return reached

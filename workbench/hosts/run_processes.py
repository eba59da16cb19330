"""The decision which processes belong to a run, from the process table that the script
`shell_scripts.SURVEY` prints.

A process id alone proves nothing, since ids are reused. A process belongs to the run if one of
these is true; then all its descendants belong to it too:
  * it is the process that was started, or one seen as a member before: same id, same start time,
    same boot;
  * its environment contains the run's token;
  * it is in the run's session, and the session is still the original one: either its leader has the
    recorded start time, or the leader has ended and a member is known by the rules above or started
    before the exit was recorded. (The kernel does not reuse a session's number while a process is
    in it.)
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from dataclasses import field

from workbench.model.lazy_dataclass import dataclass
from workbench.model.untrusted_numbers import parse_decimal, parse_whole_number, range_of_field

# `sh` reports 128 + n for a command ended by signal n. A program that itself exits with such a code
# looks the same.
SIGNAL_BASE = 128
# USER_HZ, which Linux reports to all programs of every architecture that has NVIDIA GPUs
TICKS_PER_S = 100


@dataclass(frozen=True, slots=True)
class Process:
    """A row of the host's process table. `start` is the start time in clock ticks since boot."""

    pid: int
    state: str
    parent: int
    group: int
    session: int
    start: int

    @property
    def alive(self) -> bool:
        return self.state not in "ZX"

    @property
    def pid_and_start(self) -> str:
        """The process as the files of a run name it: "PID:START"."""
        return f"{self.pid}:{self.start}"


@dataclass(frozen=True, slots=True)
class RunFiles:
    """The contents of the files in a run directory. A value is None if its file is missing or
    unreadable."""

    run_dir: str
    pid: int | None = None
    start: int | None = None
    sid: int | None = None
    sid_start: int | None = None
    boot_id: str | None = None
    token: str | None = None
    started_unix_s: float | None = None
    exit_code: int | None = None
    exit_ticks: int | None = None
    ended_unix_s: float | None = None
    seen: frozenset[str] = frozenset()  # members recorded earlier, as `Process.pid_and_start`
    marked: bool = False  # as ended: an earlier survey found its end recorded, and no process of it
    files: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Survey:
    """The state of a host at one moment: its process table, and the run directories that were read
    just after it. `older` are the names of run directories that are marked as ended and were not
    read."""

    boot_id: str
    now_unix_s: float
    processes: Mapping[int, Process]
    tokens: Mapping[int, str]
    runs: tuple[RunFiles, ...]
    older: tuple[str, ...] = ()
    uptime_s: float | None = None  # since the host's boot


@dataclass(frozen=True, slots=True)
class Members:
    """The living processes of a run. `leader` is the shell that leads the session and records how
    the server ended, None if it has ended. `others` are the processes of the server."""

    leader: Process | None
    others: tuple[Process, ...]

    @property
    def all(self) -> tuple[Process, ...]:
        return (*self.others, self.leader) if self.leader else self.others


def parse_survey(output: bytes) -> Survey | None:
    """Return what `output`, that of the script SURVEY, says about its host; None if it is cut off.
    Lines of another form are left out."""
    boot, now, complete = "", 0.0, False
    uptime: float | None = None
    processes: dict[int, Process] = {}
    tokens: dict[int, str] = {}
    runs: list[tuple[str, dict[str, str], dict[str, list[bytes]]]] = []
    older: list[str] = []
    # index of the run whose files are printed: they come in the order of the runs, after them
    printed = 0
    for raw in output.split(b"\n"):
        if raw.startswith(b"/"):
            while printed < len(runs) and not raw.startswith(os.fsencode(runs[printed][0]) + b"/"):
                printed += 1
            if printed < len(runs):
                file, _, line = raw[len(os.fsencode(runs[printed][0])) + 1 :].partition(b":")
                runs[printed][2].setdefault(file.decode("ascii", "replace"), []).append(
                    line + b"\n"
                )
            continue
        kind, _, rest = raw.decode("utf-8", "surrogateescape").partition(" ")
        if kind == "proc":
            process = _parse_process_row(rest)
            if process is not None:
                processes[process.pid] = process
        elif kind == "token":
            pid, _, token = rest.partition(" ")
            tokens[parse_whole_number(pid) or 0] = token
        elif kind == "run":
            runs.append((rest, {}, {}))
        elif kind == "older":
            older.append(rest)
        elif kind == "value" and runs:
            name, _, value = rest.partition(" ")
            runs[-1][1][name] = value
        elif kind == "boot":
            boot = rest
        elif kind == "now":
            now = parse_decimal(rest, *range_of_field("unix_s")) or 0.0
        elif kind == "uptime":
            uptime = parse_decimal(rest, *range_of_field("uptime_s"))
        elif kind == "end":
            complete = True
    if not complete:
        return None
    found = (
        _parse_run_files(run_dir, values, {n: b"".join(lines) for n, lines in files.items()})
        for run_dir, values, files in runs
    )
    return Survey(boot, now, processes, tokens, tuple(found), tuple(older), uptime)


def _parse_process_row(row: str) -> Process | None:
    """Return the process in `row`, a row of the host's process table; None for another form."""
    pid, state, *rest = [*row.split(), "", ""]
    numbers = [parse_whole_number(word) for word in (pid, *rest[:4])]
    known = [number for number in numbers if number is not None]
    if len(known) < 5 or len(rest) != 6:
        return None
    return Process(known[0], state, *known[1:])


def _parse_run_files(run_dir: str, values: Mapping[str, str], files: dict[str, bytes]) -> RunFiles:
    ended = [parse_whole_number(word) for word in values.get("exit", "").split()]
    code, ticks, unix = (*ended, None, None, None)[:3]
    seen = files.pop("members", b"").decode("ascii", "replace").split()
    started = parse_whole_number(values.get("started"))
    return RunFiles(
        run_dir,
        pid=parse_whole_number(values.get("pid")),
        start=parse_whole_number(values.get("starttime")),
        sid=parse_whole_number(values.get("sid")),
        sid_start=parse_whole_number(values.get("sid_starttime")),
        boot_id=values.get("boot_id"),
        token=values.get("token") or None,
        started_unix_s=None if started is None else float(started),
        exit_code=code,
        exit_ticks=ticks,
        ended_unix_s=None if unix is None else float(unix),
        seen=frozenset(seen),
        marked="ended" in values,
        files=files,
    )


def find_living_members(run: RunFiles, survey: Survey) -> Members:
    """Return the living processes of `run`; none if the host was restarted since. Zombies do not
    count as living."""
    if run.boot_id != survey.boot_id:
        return Members(None, ())
    table = survey.processes
    known = {p.pid for p in table.values() if _is_recognized_member(p, run, survey.tokens)}
    leader = table.get(run.sid or 0)
    if leader is not None and leader.start != run.sid_start:
        leader = None
    session = [p for p in table.values() if p.session == run.sid]
    is_session_own = leader is not None
    if run.sid not in table:
        is_session_own = any(_confirms_session_of_run(p, run, known) for p in session)
    if is_session_own:
        known.update(p.pid for p in session)
    found = _roots_and_descendants(known, table)
    if leader is not None:
        found.discard(leader.pid)
        leader = leader if leader.alive else None
    return Members(leader, tuple(table[pid] for pid in sorted(found) if table[pid].alive))


def run_started_after_survey(run: RunFiles, survey: Survey) -> bool:
    """Return whether the run was started after the process table of `survey` was read, so that it
    has no process there. False for a run that has ended, and after a restart of the host."""
    starts = [start for start in (run.start, run.sid_start) if start is not None]
    if not starts or run.exit_code is not None or run.boot_id != survey.boot_id:
        return False
    read_at = max((process.start for process in survey.processes.values()), default=0)
    return max(starts) >= read_at and not find_living_members(run, survey).all


def _is_recognized_member(process: Process, run: RunFiles, tokens: Mapping[int, str]) -> bool:
    """Return whether a process belongs to `run`: it is the one that was started, was recorded as a
    member, or has the run's token in its environment. `tokens` has the token of each process, by
    process id."""
    if process.pid_and_start in run.seen:
        return True
    if (process.pid, process.start) == (run.pid, run.start):
        return True
    return run.token is not None and tokens.get(process.pid) == run.token


def _confirms_session_of_run(process: Process, run: RunFiles, member_pids: set[int]) -> bool:
    """Return whether `process`, whose session has the id of the run's session, shows that this is
    still that session: its id is in `member_pids`, those of the run's members, or it started before
    the run's end was recorded. Ids of sessions are reused."""
    return process.pid in member_pids or (
        run.exit_ticks is not None and process.start <= run.exit_ticks
    )


def _roots_and_descendants(roots: set[int], table: Mapping[int, Process]) -> set[int]:
    children: dict[int, list[int]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process.pid)
    found, todo = set(roots), list(roots)
    while todo:
        for child in children.get(todo.pop(), ()):
            if child not in found:
                found.add(child)
                todo.append(child)
    return found


def signal_name(exit_code: int | None) -> str | None:
    """Return the name of the signal that `exit_code`, a number above 128, stands for, such as
    "SIGKILL" for 137. None for any other code."""
    if exit_code is None or exit_code <= SIGNAL_BASE:
        return None
    try:
        return signal.Signals(exit_code - SIGNAL_BASE).name
    except ValueError:
        return None


def seconds_since_run_ended(run: RunFiles, survey: Survey) -> float | None:
    """Return how many seconds before the survey the run's server ended, by a clock that cannot be
    set. None if the server has not ended, or ended before the host's last boot."""
    if run.exit_ticks is None or survey.uptime_s is None or run.boot_id != survey.boot_id:
        return None
    return max(0.0, survey.uptime_s - run.exit_ticks / TICKS_PER_S)

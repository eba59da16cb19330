"""Finds out why a server has ended: the line of its log that explains it, the process of the server
that ended first, and what the kernel says about that.

A server consists of several processes. If one of them is killed, it writes nothing, and the others
only log that something has failed. The engine's log names the process that ended, and the kernel's
log says whether the kernel killed it, or a signal for an invalid memory access did.
"""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import Sequence
from dataclasses import replace

from workbench.engines.base import Engine
from workbench.hosts import shell_scripts
from workbench.hosts.base import FileError, Host
from workbench.hosts.run_processes import TICKS_PER_S
from workbench.model.findings import Finding, Level
from workbench.model.lazy_dataclass import dataclass
from workbench.model.untrusted_numbers import parse_decimal, parse_whole_number, range_of_field
from workbench.model.untrusted_text import clean_text
from workbench.server import log_patterns
from workbench.server.explained_log import find_line_of_cause
from workbench.server.watched_run import WatchedRun

# An error so many lines before the line that reports a part's end is the reason of that end.
_LINES_BEFORE = 500
_VIOLENT_SIGNALS = frozenset({"SIGKILL", "SIGSEGV", "SIGBUS", "SIGABRT", "SIGILL", "SIGFPE"})
_KERNEL_TIME = re.compile(r"^\[\s*(\d+\.\d+)\]\s*")
_CLOCK_TOLERANCE_S = 60.0  # the kernel's clock and the one of process starts differ after a suspend
# "Killed process 12 (NAME)", "NAME[12]: segfault at", "traps: NAME[12] trap", "pid=12, name=NAME"
_PROCESS_OF_LINE = re.compile(
    r"Killed process (?P<killed>\d+) \((?P<killed_name>[^)]*)\)"
    r"|(?P<name>[^\s\[\]]+)\[(?P<pid>\d+)\]:? (?:segfault at|general protection|trap )"
    r"|\bpid=(?P<of_gpu>\d+)"
)
_KERNEL_KILLED = re.compile(r"Killed process \d+")
_FINDING_CODE = "exit.process"  # of findings about a process that ended
_KERNEL_LOG_HINT = "see the kernel's log: sudo dmesg -T | grep -iE 'killed process|segfault|Xid'"
_OOM_GUARD_HINT = "see journalctl -u earlyoom -u systemd-oomd"
_PART_NAME = re.compile(r".*(?P<kind>enginecore|worker).*?(?P<number>\d*)")
_PROCESS_PREFIX = re.compile(r"^\((?P<part>\w+)[^)]*? pid=(?P<pid>\d+)\) ")


@dataclass(frozen=True, slots=True)
class EndedProcess:
    """A process of a server whose end another process of it has logged, in the line `line`.
    `number` is the index of that line in the log. `signal_name` is None if no signal ended it, or
    if the log does not say. `code` is the exit code, or minus the number of the signal."""

    name: str
    pid: int | None
    code: int | None
    line: str
    number: int
    last_line: str | None = None  # that it wrote itself

    @property
    def signal_name(self) -> str | None:
        if self.code is None or self.code >= 0:
            return None
        try:
            return signal.Signals(-self.code).name
        except ValueError:
            return f"signal {-self.code}"

    @property
    def title(self) -> str:
        return f"{self.name} (pid {self.pid})" if self.pid else self.name


@dataclass(frozen=True, slots=True)
class ServerEnding:
    """Why a server has ended. `reason` is None if neither its log nor its processes tell.
    `findings` are those about its processes, not those about its log."""

    reason: str | None
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class KernelLog:
    """The lines of the kernel's log about the processes of one run, none if the user may not read
    it (`readable`). `oom_kills` is how many processes in the run's control group the kernel has
    killed for lack of memory, None if unknown."""

    readable: bool
    lines: tuple[str, ...] = ()
    oom_kills: int | None = None

    @property
    def kill_report_line(self) -> str | None:
        return next((line for line in self.lines if _KERNEL_KILLED.search(line)), None)

    @property
    def reports_lack_of_memory(self) -> bool:
        return self.kill_report_line is not None or bool(self.oom_kills)


async def analyse_exit(host: Host, run: WatchedRun, first_error: str | None) -> ServerEnding:
    """Return why the server of `run` has ended. Its log must have been read before. `first_error`
    is the line of the log that explains the end, None if no line does. Raises HostError if the host
    cannot be queried."""
    lines = run.follower.ring.lines()
    ended = find_first_ended_process(lines, run.engine)
    if ended is not None:
        before = lines[max(0, ended.number - _LINES_BEFORE) : ended.number]
        cause = await asyncio.to_thread(find_line_of_cause, before, run.record.engine)
        if cause is not None:
            return ServerEnding(cause)
        kernel = await read_kernel_log(host, run, ended)
        return _explain_process_end(ended, kernel, run)
    ended_by = run.facts.exit_signal
    if ended_by not in _VIOLENT_SIGNALS or run.facts.launched is not None:
        return ServerEnding(first_error)
    kernel = await read_kernel_log(host, run, None)
    if first_error is not None and not kernel.lines and not kernel.oom_kills:
        return ServerEnding(first_error)
    return ServerEnding(None, _kernel_findings(kernel, ended_by))


def find_first_ended_process(lines: Sequence[str], engine: Engine | None) -> EndedProcess | None:
    """Return the first process whose end the log `lines` of `engine` report; None if they report
    none, or if the engine is unknown."""
    patterns = engine.part_ended_logs if engine is not None else ()
    for number, line in enumerate(lines):
        matches = (pattern.search(line) for pattern in patterns)
        found = next(filter(None, matches), None)
        if found is not None:
            groups = found.groupdict()
            code = parse_decimal(groups.get("code"), *range_of_field("exit_code"))
            text = log_patterns.strip_log_prefix(line)
            exit_code = None if code is None else int(code)
            pid = parse_whole_number(groups.get("pid"))
            ended = EndedProcess(groups["part"], pid, exit_code, text, number)
            return _add_pid_and_last_line(ended, lines[:number])
    return None


def _add_pid_and_last_line(process: EndedProcess, earlier_lines: Sequence[str]) -> EndedProcess:
    """Return `process` with its id and its last line, which it wrote with the prefix "(NAME
    pid=12)" in one of `earlier_lines`. It is unchanged if no such line is its own, or if several
    processes could be meant."""
    own: dict[int, tuple[str, str]] = {}
    for line in earlier_lines:
        prefix = _PROCESS_PREFIX.match(line)
        if prefix is not None and _is_same_vllm_process(process.name, prefix["part"]):
            own[parse_whole_number(prefix["pid"]) or 0] = (prefix["part"], line)
    if process.pid is None and len(own) == 1:
        (pid, (name, line)), *_ = own.items()
        return replace(process, name=name, pid=pid, last_line=log_patterns.strip_log_prefix(line))
    if process.pid in own:
        return replace(process, last_line=log_patterns.strip_log_prefix(own[process.pid][1]))
    return process


def _is_same_vllm_process(reported: str, prefix: str) -> bool:
    """Return whether `reported`, the name of a process of vLLM in the report of its end, and
    `prefix`, the name in front of a log line, are of one process, such as "engine core" and
    "EngineCore", or "VllmWorker-1" and "Worker_TP1". A name without a number fits any."""
    found = _PART_NAME.fullmatch(re.sub(r"[\s_-]", "", reported).lower())
    own = _PART_NAME.fullmatch(re.sub(r"[\s_-]", "", prefix).lower())
    if found is None or own is None:
        return False
    if found["kind"] != own["kind"]:
        return False
    return found["number"] == own["number"] or "" in (found["number"], own["number"])


async def read_kernel_log(host: Host, run: WatchedRun, process: EndedProcess | None) -> KernelLog:
    """Return what the kernel's log says about the processes of `run` and about `process`, the one
    that ended first, None if unknown. Raises HostError if the host cannot be queried."""
    pids = {run.facts.pid, *await _read_member_pids(host, run)}
    if process is not None:
        pids.add(process.pid)
    done = await host.run(shell_scripts.shell_argv(shell_scripts.KERNEL_LOG))
    state, *lines = done.out.splitlines() or [""]
    began_s = (run.start_time or 0) / TICKS_PER_S
    about = [
        line
        for line in map(clean_text, lines)
        if _is_kernel_line_about_run(line, pids, process, began_s)
    ]
    # Several lines report one kill; the one with the memory comes first.
    about.sort(key=lambda line: _KERNEL_KILLED.search(line) is None)
    return KernelLog(state == "read", tuple(about), await _count_oom_kills(host, run))


async def _read_member_pids(host: Host, run: WatchedRun) -> set[int]:
    try:
        text = (await host.read_file(f"{run.run_dir}/members")).decode("ascii", "replace")
    except FileError:
        return set()
    keys = (word.partition(":")[0] for word in text.split())
    return {number for number in map(parse_whole_number, keys) if number is not None}


async def _count_oom_kills(host: Host, run: WatchedRun) -> int | None:
    try:
        data = await host.read_file(f"{run.run_dir}/exit", limit=256)
    except FileError:
        return None
    words = data.decode("ascii", "replace").split()
    return parse_whole_number(words[3]) if len(words) > 3 else None


def _is_kernel_line_about_run(
    line: str, pids: set[int | None], process: EndedProcess | None, began_s: float
) -> bool:
    """Return whether a line of the kernel's log is about one of the processes `pids`, or about
    `process` by its name: the kernel has another id for a process in a container. False for a line
    from before `began_s`, seconds since boot."""
    time = _KERNEL_TIME.match(line)
    if time is not None and float(time[1]) < began_s - _CLOCK_TOLERANCE_S:
        return False
    found = _PROCESS_OF_LINE.search(line)
    if found is None:
        return False
    pid = parse_whole_number(found["killed"] or found["pid"] or found["of_gpu"])
    if pid is not None and pid in pids:
        return True
    short = (found["killed_name"] or found["name"] or "").rpartition("::")[2]
    if process is None or len(short) <= 3:
        return False
    return process.name.lower().startswith(short.lower())


def _explain_process_end(process: EndedProcess, kernel: KernelLog, run: WatchedRun) -> ServerEnding:
    assert run.engine is not None
    ended_by = "SIGKILL" if kernel.kill_report_line else process.signal_name
    if kernel.reports_lack_of_memory:
        how = "the kernel killed it for lack of memory"
    elif ended_by is not None:
        how = f"{ended_by} killed it"
    elif process.code is not None:
        how = f"exit code {process.code}"
    else:
        how = f"{run.engine.title} does not log which signal or exit code ended it"
    first, *more = _kernel_findings(kernel, ended_by)
    last = f"; the last line of {process.name}: “{process.last_line}”" if process.last_line else ""
    first = replace(first, text=first.text + last, evidence=process.line, line=process.number + 1)
    return ServerEnding(f"{process.title} ended first: {how}", (first, *more))


def _kernel_findings(kernel: KernelLog, ended_by: str | None) -> tuple[Finding, ...]:
    """Return one or more findings with what the kernel says about the end of a process, also if
    that is nothing. `ended_by` is the name of the signal that ended it, None if unknown."""
    if kernel.lines:
        return tuple(
            _quote_line_in_finding(finding) for finding in _explain_kernel_lines(kernel.lines)
        )
    source, fix = "the kernel's log", f"{_KERNEL_LOG_HINT}; {_OOM_GUARD_HINT}"
    if kernel.oom_kills:
        processes = "a process" if kernel.oom_kills == 1 else f"{kernel.oom_kills} processes"
        text = f"the kernel killed {processes} of the run's control group for lack of memory"
        fix = "use less memory on the host, or raise the memory limit of the session or container"
        source = "memory.events"
    elif not kernel.readable:
        text = "this user cannot read the kernel's log, which may name the reason"
    elif ended_by == "SIGKILL":
        text = "neither Workbench nor the kernel sent this signal"
        fix = f"another program or user sent it: {_OOM_GUARD_HINT}"
    else:
        text = "the kernel's log says nothing about it"
        fix = f"a program that SIGKILL ends leaves no message: {_OOM_GUARD_HINT}"
    return (Finding(Level.ERROR, _FINDING_CODE, text, fix=fix, source=source),)


def _explain_kernel_lines(lines: Sequence[str]) -> tuple[Finding, ...]:
    """Return the findings about the known `lines` of the kernel's log; if none is known, one
    finding that quotes the first."""
    if known := log_patterns.explain_lines(lines):
        return known
    line = log_patterns.strip_log_prefix(lines[0])
    text = "the kernel's log names it"
    return (Finding(Level.ERROR, _FINDING_CODE, text, fix=_KERNEL_LOG_HINT, evidence=line),)


def _quote_line_in_finding(finding: Finding) -> Finding:
    line = _KERNEL_TIME.sub("", finding.evidence or "")
    return replace(finding, text=f"{finding.text}; the kernel's log: “{line}”")

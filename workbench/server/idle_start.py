"""Tells a start in which nothing happens from a slow start that works.

A start can hang without keeping a GPU busy: its processes wait for each other, for a disk that does
not answer, or a signal has stopped them. Then none of them uses the CPU, reads or writes. A start
that loads, downloads or compiles does at least one of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from workbench.hosts.base import Host
from workbench.hosts.run_processes import TICKS_PER_S
from workbench.hosts.script_files import read_script
from workbench.hosts.shell_scripts import shell_argv
from workbench.model.counts import count_of
from workbench.model.findings import Finding, Level
from workbench.model.lazy_dataclass import dataclass
from workbench.model.untrusted_numbers import parse_whole_number
from workbench.model.untrusted_text import clean_text
from workbench.server.start_times import format_earlier_start

QUIET_LOG_S = 60.0  # without a line of the log until the processes of a start are looked at
HANGING_AFTER_S = 120.0  # without work until a start counts as hanging
READ_INTERVAL_S = 15.0  # from one reading to the next
_READ_TIMEOUT_S = 10.0
_MAX_IDLE_CORE_SHARE = 0.02  # of one core: health checks take less
_MAX_IDLE_IO_BYTES = 1 << 20
_MAX_IDLE_PAGE_FAULTS = 50  # pages that had to be read: weights are mapped into memory
_MAX_SHOWN_PROCESSES = 6  # processes in the evidence
_STOPPED_STATE, _DISK_WAIT_STATE = "T", "D"  # states of a process

_ACTIVITY_SCRIPT = read_script(__file__, "read_activity.sh")


@dataclass(frozen=True, slots=True)
class ProcessActivity:
    """What one process has done since it began. `waits_in` is the function of the kernel in which
    it waits, "" if the kernel does not say."""

    pid: int
    name: str
    state: str
    cpu_s: float
    io_bytes: int
    faults: int
    waits_in: str = ""


@dataclass(frozen=True, slots=True)
class ActivityReading:
    """One reading of what the processes of a start have done. `at_s` is its monotonic time."""

    at_s: float
    processes: tuple[ProcessActivity, ...]

    @property
    def pids(self) -> frozenset[int]:
        return frozenset(process.pid for process in self.processes)

    def has_worked_since(self, before: ActivityReading) -> bool:
        """Return whether the processes have worked since the reading `before`: they used the CPU,
        read or wrote more than idle ones do, or a process is new or has ended."""
        if self.pids != before.pids:
            return True
        limits = (
            ("cpu_s", _MAX_IDLE_CORE_SHARE * max(1.0, self.at_s - before.at_s)),
            ("io_bytes", _MAX_IDLE_IO_BYTES),
            ("faults", _MAX_IDLE_PAGE_FAULTS),
        )
        return any(
            self.sum_over_processes(name) - before.sum_over_processes(name) > limit
            for name, limit in limits
        )

    def sum_over_processes(self, field: str) -> float:
        """Return the sum of the field `field` of ProcessActivity, such as "cpu_s", over all
        processes."""
        return float(sum(map(attrgetter(field), self.processes)))


class IdleWatch:
    """Finds, in successive readings of the processes of a start, since when none of them has
    worked."""

    def __init__(self) -> None:
        self._first: ActivityReading | None = None
        self.last: ActivityReading | None = None

    def add_reading(self, reading: ActivityReading | None) -> None:
        """Add a reading. None stands for processes that cannot be read: the idle time begins
        anew."""
        self.last = reading
        if reading is None or self._first is None or reading.has_worked_since(self._first):
            self._first = reading

    @property
    def last_reading_at_s(self) -> float:
        """The monotonic time of the last reading; 0 if there is none."""
        if self.last is None:
            return 0.0
        return self.last.at_s

    @property
    def idle_s(self) -> float:
        """Seconds between the first and the last of the readings since which no process has
        worked; 0 without a reading."""
        if self._first is None or self.last is None:
            return 0.0
        return self.last.at_s - self._first.at_s


async def read_activity(host: Host, pids: Sequence[int], at_s: float) -> ActivityReading | None:
    """Return what the processes `pids` have done so far. `at_s` is the monotonic time of this
    reading. None if there are none, or if not all values can be read. Raises HostError if the host
    cannot be queried."""
    if not pids:
        return None
    done = await host.run(shell_argv(_ACTIVITY_SCRIPT, *map(str, pids)), timeout_s=_READ_TIMEOUT_S)
    lines = done.out.splitlines()
    known = tuple(filter(None, map(_parse_activity, lines)))
    if not known or len(known) < len(lines):
        return None
    return ActivityReading(at_s, known)


def _parse_activity(line: str) -> ProcessActivity | None:
    pid, _, rest = line.partition("\t")
    io, _, rest = rest.partition("\t")
    waits_in, _, rest = rest.partition("\t")
    name, _, stat = rest.partition("\t")
    words = stat.split()
    numbers = map(parse_whole_number, (pid, io, *words[9:10], *words[11:13]))
    known = [number for number in numbers if number is not None]
    if len(known) != 5:
        return None
    number, moved, faults, user, system = known
    return ProcessActivity(
        pid=number,
        name=clean_text(name, 40),
        state=words[0],
        cpu_s=(user + system) / TICKS_PER_S,
        io_bytes=moved,
        faults=faults,
        waits_in="" if waits_in == "0" else clean_text(waits_in, 40),
    )


def idle_finding(
    watch: IdleWatch, phase: str | None, silent_s: float, earlier_start_s: float | None
) -> Finding:
    """Return the finding about a start whose processes do nothing, as `watch` has seen. `phase` is
    the start-up phase that the log reported last, None if unknown, and `silent_s` how long the log
    is silent. `earlier_start_s` is how long the start before took, None if unknown."""
    processes = watch.last.processes if watch.last is not None else ()
    text = (
        f"hanging, not working, for {watch.idle_s / 60:.0f} min in the phase "
        f"“{phase or 'starting'}”: no new line in the log for {silent_s / 60:.0f} min, and its "
        f"{count_of(len(processes), 'process', 'processes')} neither used the CPU nor read "
        f"anything{format_earlier_start(earlier_start_s)}"
    )
    return Finding(
        Level.WARN,
        "start.idle",
        text,
        fix=_fix_for_states(processes),
        source="proc(5)",
        evidence="; ".join(map(_process_text, processes[:_MAX_SHOWN_PROCESSES])),
    )


def _fix_for_states(processes: Sequence[ProcessActivity]) -> str:
    if pids := _pids_in_state(processes, _STOPPED_STATE):
        return f"a signal has stopped process {pids}: kill -CONT {pids} lets it go on"
    if pids := _pids_in_state(processes, _DISK_WAIT_STATE):
        return (
            f"process {pids} waits in the kernel for a disk or a driver: sudo dmesg | tail, and "
            "check the (network) disk of the model"
        )
    return (
        "its processes wait for each other or for another node: py-spy dump --pid shows where; stop "
        "it, and start with NCCL_DEBUG=INFO; systemd's RemoveIPC=yes deletes the shared memory of a "
        "user who has logged out (loginctl enable-linger)"
    )


def _pids_in_state(processes: Sequence[ProcessActivity], state: str) -> str:
    return " ".join(str(one.pid) for one in processes if one.state.upper() == state)


def _process_text(process: ProcessActivity) -> str:
    waits = f" in {process.waits_in}" if process.waits_in else ""
    return f"{process.pid} {process.name} {process.state}{waits}"

"""The check of a host: whether Workbench reaches the host, and whether the host has everything that
its entry in hosts.toml and Workbench itself need. `workbench doctor` examines a host in depth."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from workbench.doctor import examination
from workbench.hosts.base import HostUnreachable
from workbench.hosts.container_listing import ContainerList, list_containers
from workbench.hosts.login_question import Ask, LoginQuestion
from workbench.hosts.script_files import read_script
from workbench.hosts.shell_scripts import parse_key_value_pairs, shell_argv
from workbench.model.counts import count_of
from workbench.model.errors import InputError, WorkbenchError
from workbench.model.findings import Finding, Level, by_severity
from workbench.model.gpu import DriverStatus
from workbench.model.host_entry import HostEntry
from workbench.model.lazy_dataclass import dataclass
from workbench.model.run_options import PROCESS
from workbench.model.untrusted_numbers import parse_decimal, parse_whole_number, range_of_field
from workbench.model.untrusted_text import NAME_CHARS, clean_text
from workbench.server import state_disk
from workbench.server.launchers import launcher_of
from workbench.session.hosts.settings import HostSettings
from workbench.store.config import ConfigStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from workbench.doctor.examination import Examination
    from workbench.hosts.base import Host, HostFacts
    from workbench.session.session import Session

HOST_TIMEOUT_S = 30.0
MAX_CHECKS_AT_ONCE = 8
_LOOK_TIMEOUT_S = 10.0
# that matters: ages of runs and the heartbeat of the guard are times of the host
_MAX_CLOCK_SKEW_S = 2.0
_MIN_PYTHON_VERSION = (3, 8)

_LOOK_SCRIPT = (
    r"""
echo "now=$(date +%s.%N 2>/dev/null)"
"""
    + state_disk.DISK_LOOK_SCRIPT
    + read_script(__file__, "check_host.sh")
)


@dataclass(frozen=True, slots=True)
class HostCheck:
    """The outcome of the check of one host. `labels_and_texts` are pairs (label, text) about the
    host."""

    name: str
    reached: bool
    labels_and_texts: tuple[tuple[str, str], ...] = ()
    findings: tuple[Finding, ...] = ()
    latency_ms: float | None = None
    # of the host against this machine: above 0 if the host is ahead
    clock_skew_s: float | None = None

    @property
    def ok(self) -> bool:
        return self.reached and not any(finding.level is Level.ERROR for finding in self.findings)

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "reached": self.reached,
            "lines": list(map(list, self.labels_and_texts)),
            "findings": [finding.as_json() for finding in self.findings],
            "latency_ms": self.latency_ms,
            "clock_skew_s": self.clock_skew_s,
            "ok": self.ok,
        }


async def check_all_hosts(
    names: Sequence[str],
    open_session: Callable[[str], Session],
    ask: Ask | None,
    limit_s: float = HOST_TIMEOUT_S,
) -> Sequence[HostCheck]:
    """Check hosts, several at the same time, and return their checks. A host that cannot be reached
    or checked within `limit_s` seconds has that as a finding, and `reached` is False. `ask` puts
    the questions for passwords to the user, one at a time; None: the user cannot be asked."""
    slots, asking = asyncio.Semaphore(MAX_CHECKS_AT_ONCE), asyncio.Lock()

    async def ask_one_at_a_time(question: LoginQuestion) -> str | None:
        assert ask is not None
        async with asking:
            return await ask(question)

    async def check_in_time(name: str) -> HostCheck:
        async with slots:
            try:
                async with asyncio.timeout(limit_s):
                    return await _check_host(name, open_session, ask_one_at_a_time if ask else None)
            except TimeoutError:
                text = f"the check did not end within {limit_s:g} s"
                step = f"workbench --host {name} doctor"
                problem = _host_finding(Level.ERROR, "slow", text, step)
            except WorkbenchError as error:
                problem = _host_finding(Level.ERROR, "unreachable", error.message, error.next_step)
            return HostCheck(name, False, findings=(problem,))

    return await asyncio.gather(*map(check_in_time, names))


async def _check_host(
    name: str, open_session: Callable[[str], Session], ask: Ask | None
) -> HostCheck:
    # may load the ssh library, which takes long
    session = await asyncio.to_thread(open_session, name)
    session.link.ask = ask
    try:
        await session.link.connect()
        settings = HostSettings(session.core, ConfigStore())
        entry, parts = settings.host_entry or HostEntry(name), examination.TimedParts()
        programs = settings.chosen_programs_by_engine()
        seen, looked, inside = await asyncio.gather(
            examination.examine(session.host, programs, parts),
            parts.read_part_within_limit(
                "the state directory and the clock",
                _inspect_host(session.host, entry),
                _LOOK_TIMEOUT_S,
                _HostInspection(),
            ),
            parts.read_part_within_limit(
                "the containers",
                list_containers(session.host, sudo=entry.sudo),
                _LOOK_TIMEOUT_S,
                ContainerList(),
            ),
        )
    finally:
        await session.close()
    found = [
        *parts.problems,
        *_system_findings(seen, looked),
        *_entry_findings(seen, looked, entry, programs),
    ]
    lines = (
        *_host_labels_and_texts(seen, looked, entry),
        *(("inside", text) for text in inside.lines),
    )
    return HostCheck(name, True, lines, by_severity(found), seen.facts.latency_ms, looked.skew_s)


@dataclass(frozen=True, slots=True)
class _HostInspection:
    """What the shell script of the check has printed about the host. A value that is not known is
    None or "". `absent` and `there` are the model directories of hosts.toml that are missing and
    present."""

    state_dir: str = ""
    skew_s: float | None = None
    written: str = ""  # "yes", or why nothing can be written into `state_dir`
    free_kib: int | None = None
    program: str | None = None  # with which the launcher starts servers; "": not on PATH
    sudo: str = ""
    absent: tuple[str, ...] = ()
    there: tuple[str, ...] = ()


async def _inspect_host(host: Host, entry: HostEntry) -> _HostInspection:
    uses_sudo = entry.sudo is not False
    try:
        state_dir = await host.state_dir()
    except HostUnreachable:
        raise
    except WorkbenchError as error:
        return _HostInspection(written=error.message)
    started, sent = time.time(), time.monotonic()
    sudo_word = "sudo" if uses_sudo else ""
    argv = shell_argv(_LOOK_SCRIPT, state_dir, _start_program_name(entry), sudo_word, *entry.models)
    done = await host.run(argv, timeout_s=_LOOK_TIMEOUT_S)
    took_s = time.monotonic() - sent
    rows = parse_key_value_pairs(done.out)
    values = dict(reversed(rows))
    sudo = "not used: hosts.toml says sudo = false"
    if uses_sudo:
        sudo = values.get("sudo", "not installed")
    models: dict[str, list[str]] = {"absent": [], "there": []}
    for key, value in rows:
        if key in models:
            models[key].append(value)
    return _HostInspection(
        state_dir,
        _compute_clock_skew_s(values.get("now", ""), started, took_s),
        values.get("written", done.problem),
        parse_whole_number(values.get("free_kib")),
        values.get("program"),
        sudo,
        tuple(models["absent"]),
        tuple(models["there"]),
    )


def _start_program_name(entry: HostEntry) -> str:
    """Return the program with which the launcher of this entry starts servers, such as systemd-run;
    "" if Workbench starts them itself."""
    launcher = launcher_of(entry.run_as or PROCESS)
    return launcher.start_program_name if launcher else ""


def _compute_clock_skew_s(now: str, started: float, took_s: float) -> float | None:
    """Return by how many seconds a host's clock is ahead of this machine's; a negative number if it
    is behind. `now` is the host's time as text, read within `took_s` seconds after `started` on
    this machine. The result is 0 if the duration of the reading can explain the difference, and
    None if `now` is not a number."""
    whole, _, rest = now.partition(".")
    if not whole.isdecimal():
        return None
    resolution_s = 0.0
    if not rest.isdecimal():
        now, resolution_s = whole, 1.0
    there = parse_decimal(now, *range_of_field("unix_s"))
    if there is None:
        return None
    early_s, late_s = there - started - took_s, there + resolution_s - started
    return round(early_s if early_s > 0 else min(0.0, late_s), 3)


def _host_finding(level: Level, code: str, text: str, fix: str | None) -> Finding:
    return Finding(level, f"host.{code}", text, fix=fix)


def _python_problem(facts: HostFacts) -> str | None:
    """Return what is wrong with the host's python3. None if it is new enough, or its version is not
    known."""
    if facts.python3 is None:
        return "there is no python3"
    if facts.python3_version is None:
        return None
    parts = facts.python3_version.split(".")[:2]
    version = tuple(map(int, filter(str.isdecimal, parts)))
    if version and version < _MIN_PYTHON_VERSION:
        return f"python3 is {facts.python3_version}"
    return None


def _system_findings(seen: Examination, looked: _HostInspection) -> Sequence[Finding]:
    found = list[Finding]()
    problem = _python_problem(seen.facts)
    if problem is not None:
        text = f"{problem}: telemetry is read from nvidia-smi, and GPU settings cannot be changed"
        fix = "install python3 3.8 or newer there"
        found.append(_host_finding(Level.WARN, "python3", text, fix))
    found += state_disk.state_directory_findings(looked.state_dir, looked.written, looked.free_kib)
    if looked.skew_s is not None and abs(looked.skew_s) > _MAX_CLOCK_SKEW_S:
        side = "ahead" if looked.skew_s > 0 else "behind"
        text = (
            f"the clock is {abs(looked.skew_s):.0f} s {side}: ages of runs and results are "
            "wrong by that"
        )
        found.append(_host_finding(Level.WARN, "clock", text, "timedatectl set-ntp true"))
    return found


def _entry_findings(
    seen: Examination, looked: _HostInspection, entry: HostEntry, programs: Mapping[str, str]
) -> Sequence[Finding]:
    """Return problems of the host's entry in hosts.toml: engines, programs and model directories
    that are not on the host, and a right to use sudo that the user lacks there."""
    found = list[Finding]()
    for engine in seen.engines:
        if engine.engine in programs and engine.path is None:
            text = engine.problem or f"{engine.engine} is not there"
            fix = (
                "correct `engines` of the host in hosts.toml, or [executables] in "
                f"config.toml: {engine.engine}"
            )
            found.append(_host_finding(Level.WARN, "engine", text, fix))
    wanted = _start_program_name(entry)
    if wanted and looked.program == "":
        text = f"servers are started as {entry.run_as}, and {wanted} is not on PATH there"
        fix = f"install {wanted}, or change run_as in hosts.toml"
        found.append(_host_finding(Level.ERROR, "run-as", text, fix))
    if entry.sudo and looked.sudo in ("not installed", "asks for a password"):
        text = f"hosts.toml says sudo = true, and sudo is {looked.sudo}".replace("is asks", "asks")
        fix = "`workbench gpu sudoers` prints rules that need no password"
        found.append(_host_finding(Level.WARN, "sudo", text, fix))
    for path in looked.absent:
        text = f"the model directory {path} is not there, or cannot be read"
        fix = "correct `models` of the host in hosts.toml"
        found.append(_host_finding(Level.WARN, "models", text, fix))
    return found


def _host_labels_and_texts(
    seen: Examination, looked: _HostInspection, entry: HostEntry
) -> Sequence[tuple[str, str]]:
    lines = [("reached", _connection_text(seen.facts)), ("GPUs", _gpus_text(seen))]
    installed = [engine for engine in seen.engines if engine.path]
    engines = [f"{e.engine} {e.version_text} at {e.path}" for e in installed]
    lines.append(("engines", ", ".join(engines) or "none found"))
    if looked.sudo:
        lines.append(("sudo", looked.sudo))
    if entry.run_as:
        lines.append(("start as", f"{entry.run_as} ({looked.program or 'program not found'})"))
    if looked.state_dir:
        free = ""
        if looked.free_kib is not None:
            free = f", {looked.free_kib / 2**20:.0f} GiB free"
        lines.append(("state", f"{looked.state_dir}{free}"))
    if looked.there:
        lines.append(("models", ", ".join(looked.there)))
    return [(label, clean_text(text, 2 * NAME_CHARS)) for label, text in lines]


def _connection_text(facts: HostFacts) -> str:
    """Return a text on the connection to a host and on its system: the user, the latency, the
    operating system, the container and python3."""
    parts = [f"as {facts.user or 'unknown'}"]
    if facts.latency_ms:  # none on this machine
        parts.append(f"{facts.latency_ms:.1f} ms")
    parts.append(facts.os or "unknown system")
    if facts.container:
        parts.append(f"in a container ({facts.container})")
    if facts.python3:
        parts.append(f"python3 {facts.python3_version or 'of unknown version'}")
    else:
        parts.append("no python3")
    return ", ".join(parts)


def _gpus_text(seen: Examination) -> str:
    if not seen.was_driver_read:
        return "not read"
    if seen.gpus:
        counts = Counter(gpu.name for gpu in seen.gpus)
        counted = ", ".join(f"{count} x {name}" for name, count in counts.items())
        return f"{counted}, driver {seen.driver.driver_version or 'unknown'}"
    if seen.driver.status is DriverStatus.NO_LIBRARY:
        return "none"
    return f"none: {seen.driver.status}"


def given_or_configured_names(names: Sequence[str], configured: Sequence[str]) -> Sequence[str]:
    """Return `names`, or if it is empty `configured`, the hosts of hosts.toml, each once. Raises
    InputError if both are empty."""
    found = tuple(dict.fromkeys(names or configured))
    if not found:
        raise InputError(
            "hosts.toml names no host", next_step="give names: workbench hosts check NAME…"
        )
    return found


def usable_host_count_text(checks: Sequence[HostCheck]) -> str:
    """Return a sentence on how many of the checked hosts can be used."""
    return f"{sum(check.ok for check in checks)} of {count_of(len(checks), 'host')} can be used"

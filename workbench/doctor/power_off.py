"""What happened on a host before its power went: the last minute that a screen has recorded under
the boot before, if nothing says that the host was shut down."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from workbench.doctor.optional_text import join_nonempty
from workbench.engines import gpu_table
from workbench.hosts.base import Host
from workbench.hosts.script_files import read_script
from workbench.hosts.shell_scripts import parse_key_value_pairs, shell_argv
from workbench.hosts.swept_command import run_and_end_leftovers
from workbench.model.findings import Finding, Level
from workbench.model.lazy_dataclass import dataclass
from workbench.model.timeline import ENGINE
from workbench.model.untrusted_numbers import number_for_field

if TYPE_CHECKING:
    from workbench.model.gpu import GpuInfo
    from workbench.store.history_files import EndOfBoot, LoadedHistory
    from workbench.store.recording import Cell

LOOK_S = 10.0
OUTPUT_MAX_BYTES = 65536
_APART_S = 120.0  # the journal went on so long: what was recorded is not the end
_RESTART_S = 1800.0  # without a journal, a later start says nothing about the end of the recording
_SAME_CLOCK_S = 2.0
_SHUT_DOWN = re.compile(
    r"journal stopped|systemd-shutdown|reached target .*(shut ?down|reboot|power.?off|halt|kexec)"
    r"|system is (rebooting|powering|going)|powering off",
    re.IGNORECASE,
)
_TROUBLE = re.compile(
    r"kernel panic|\boops\b|nvrm: xid|critical temperature|thermal.*shut|hardware error|\bmce\b"
    r"|out of memory|aer: .*fatal",
    re.IGNORECASE,
)
_CAP_MHZ = "0-2000"
_CAP_SOURCE = (
    "MiaAI-Lab/DeepSeek-v4-Flash-DSpark-2x-DGX-Spark#146 (2450 to 2000 MHz); rwlove/home-ops#13053"
)
_SCRIPT = read_script(__file__, "check_power_off.sh")


class WtmpEntry(NamedTuple):
    """A start of the host, or a shutdown if `is_start` is False, with its Unix time by the host's
    clock."""

    unix_s: float
    is_start: bool


@dataclass(frozen=True, slots=True)
class ShutdownFacts:
    """What a host says about the end of an earlier boot. `journal_last_s` is the time of the
    journal's last line under it, None if the journal cannot be read. `wtmp` has the starts and
    shutdowns of the host, in the order of their times. Times are Unix seconds of the host's clock,
    which is `ahead_s` before this machine's."""

    ahead_s: float = 0.0
    started_s: float | None = None
    journal_last_s: float | None = None
    in_order: bool = False
    trouble: str | None = None
    wtmp: tuple[WtmpEntry, ...] = ()


async def read_last_power_off_finding(
    host: Host, history: LoadedHistory, boot_id: str | None
) -> Finding | None:
    """Return the finding that the host went off without a shutdown before the boot `boot_id`, with
    its last recorded minute. None if nothing was recorded then, if the recording or the host ended
    in order, or if the recording ended long before the host did. Raises HostError if the host does
    not answer."""
    end = history.find_unclean_previous_boot_end(boot_id) if boot_id else None
    if end is None:
        return None
    done = await run_and_end_leftovers(host, shell_argv(_SCRIPT, end.boot_id), timeout_s=LOOK_S)
    facts = parse_shutdown_facts(
        done.stdout[:OUTPUT_MAX_BYTES].decode("utf-8", "replace"), time.time()
    )
    return assess_end_of_boot(end, history.infos, facts)


def parse_shutdown_facts(output: str, now: float) -> ShutdownFacts:
    """Parse `output`, which check_power_off.sh printed. `now` is the Unix time of this machine.
    Lines that cannot be understood are skipped."""
    ahead_s = 0.0
    started_s = journal_last_s = None
    journal: list[str] = []
    wtmp: list[WtmpEntry] = []
    for key, value in parse_key_value_pairs(output):
        if key == "now":
            ahead_s = (_parse_unix_s(value) or now) - now
        elif key == "started":
            started_s = _parse_unix_s(value)
        elif key == "journal":
            at_s = _parse_unix_s(value.partition(" ")[0])
            if at_s is not None:
                journal_last_s = at_s
                journal.append(value)
        elif key == "wtmp":
            wtmp += _parse_wtmp_entry(value)
    return ShutdownFacts(
        ahead_s=ahead_s if abs(ahead_s) > _SAME_CLOCK_S else 0.0,
        started_s=started_s,
        journal_last_s=journal_last_s,
        in_order=any(map(_SHUT_DOWN.search, journal)),
        trouble=next(filter(_TROUBLE.search, reversed(journal)), None),
        wtmp=tuple(sorted(wtmp)),
    )


def _parse_unix_s(text: str) -> float | None:
    try:
        return number_for_field("unix_s", float(text))
    except ValueError:
        return None


def _parse_wtmp_entry(line: str) -> Iterator[WtmpEntry]:
    kind = line.partition(" ")[0]
    at = re.search(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d\d:?\d\d", line)
    if at is not None and kind in ("reboot", "shutdown"):
        try:
            yield WtmpEntry(datetime.fromisoformat(at[0]).timestamp(), kind == "reboot")
        except ValueError:
            return


def assess_end_of_boot(
    end: EndOfBoot, infos: Sequence[GpuInfo], facts: ShutdownFacts
) -> Finding | None:
    """Return the finding that the host went off at the end of a recording. None if the host was
    shut down, if it ran on long after the recording, or if too little is known about that."""
    last_s = end.last_s + facts.ahead_s  # by the host's clock
    after = [entry for entry in facts.wtmp if entry.unix_s > last_s - _SAME_CLOCK_S]
    next_s, was_started = after[0] if after else (facts.started_s, None)
    journal_s = facts.journal_last_s
    if facts.in_order or was_started is False:
        return None
    if journal_s is None:
        if next_s is None or next_s - last_s > _RESTART_S:
            return None
    elif journal_s - last_s > _APART_S:
        return None
    known = journal_s is not None or was_started is True
    at = datetime.fromtimestamp(end.last_s).astimezone()
    ends = f"after {at:%Y-%m-%d %H:%M:%S}, where the recording ends"
    text = f"this host was started again {ends}, and whether it was shut down cannot be read"
    if known:
        text = f"this host went off without a shutdown {ends}"
    cells = end.last_minute_cells
    told = "; ".join(_gpu_texts(end, infos))
    ran = "; ".join(event.text for event in end.running.values())
    span_s = round(end.last_s - cells[0].unix_s)
    text += f". In its last {span_s} s: {told}. What ran: {ran or 'no server of Workbench'}"
    if facts.trouble:
        text += f". The journal had: {facts.trouble[:300]}"
    return _power_off_finding_with_fix(text, infos)


def _gpu_texts(end: EndOfBoot, infos: Sequence[GpuInfo]) -> Iterator[str]:
    """Yield a text for each GPU with the mean and the highest values of its readings in the last
    minute, and one for the server if its speed is known."""
    cells = end.last_minute_cells
    names = {info.index: info.name for info in infos}
    for gpu in sorted({gpu for cell in cells for gpu, _ in cell.values if gpu != ENGINE}):
        readings = join_nonempty(
            _mean_and_highest_text(cells, gpu, "power_w", "W"),
            _mean_and_highest_text(cells, gpu, "sm_mhz", "MHz"),
            _mean_and_highest_text(cells, gpu, "temperature_c", "°C"),
            _mean_and_highest_text(cells, gpu, "gpu_util_pct", "% utilization"),
        )
        yield f"GPU {gpu} ({names.get(gpu, 'GPU')}) {readings}"
    speed = _mean_and_highest_text(cells, ENGINE, "generation_tok_s", "tok/s")
    if speed:
        yield f"the server {speed}"


def _mean_and_highest_text(cells: Sequence[Cell], gpu: int, name: str, unit: str) -> str:
    values = [cell.values[gpu, name] for cell in cells if (gpu, name) in cell.values]
    if not values:
        return ""
    mean, highest = f"{fmean(values):.0f}", f"{max(values):.0f}"
    return f"{mean} {unit}" + (f" (at most {highest})" if highest != mean else "")


def _power_off_finding_with_fix(text: str, infos: Sequence[GpuInfo]) -> Finding:
    kinds = filter(None, map(gpu_table.find_gpu_type, (info.name for info in infos)))
    if any(kind.unified_memory for kind in kinds):
        fix = (
            f"cap the SM clock: workbench gpu set --gpu-clocks {_CAP_MHZ}. Another owner saw 10 °C less, "
            "the same speed, and no further power-off; measure what it costs here"
        )
        return Finding(
            Level.WARN,
            "host.power-off",
            text,
            fix=fix,
            source=_CAP_SOURCE,
            settings=(f"gpu-clocks={_CAP_MHZ}",),
        )
    fix = (
        "check the power supply and its cables: the peaks of several cards are above their limits. "
        "A lower limit is a test: workbench gpu set --power-limit W"
    )
    return Finding(Level.WARN, "host.power-off", text, fix=fix)

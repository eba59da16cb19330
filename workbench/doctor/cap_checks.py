"""Checks of what holds the GPUs or the host down at this moment, and of errors that the kernel has
recorded since its start."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from workbench.advisor.gpu_rules import THERMAL_REASONS, has_stuck_clock
from workbench.doctor.examination import Examination
from workbench.doctor.table import load_doctor_table, threshold_and_source
from workbench.model.findings import Finding, Level
from workbench.model.gpu import GpuSample
from workbench.model.timeline import QUIET_REASONS

_POWER_CAP = "SW power cap"
_XID = re.compile(r"NVRM: Xid \(([^)]*)\): (\d+)")
_XID_SEVERE = frozenset(
    {"48", "61", "62", "64", "74", "79", "95", "119", "120", "121", "140", "143"}
)
_MINEFIELD = "https://github.com/Blackwellboy/model-serving-minefield/pull/55"


def check_slowed_clocks(seen: Examination) -> Iterator[Finding]:
    """Report GPUs whose clocks the driver lowers at this moment, with the driver's reasons."""
    for _, now in seen.gpus_with_readings:
        named = _slowing_reasons(now)
        if not named:
            continue
        level = Level.WARN
        fix = "sudo nvidia-smi -q -d PERFORMANCE names the counters of each reason"
        if named == [_POWER_CAP]:
            level, fix = Level.INFO, "a higher power limit is a gain only if it is measured"
        elif set(named).intersection(THERMAL_REASONS):
            fix = "improve the cooling, or lower the power limit: workbench gpu set --power-limit W"
        reasons = ", ".join(named)
        text = f"GPU {now.index} runs slower now: {reasons} ({_power_and_temperature_text(now)})"
        yield Finding(level, "gpu.slowed", text, fix=fix, evidence=reasons)


def _slowing_reasons(now: GpuSample) -> list[str]:
    """Return the driver's reasons for a lower clock. Those that are no fault, such as an idle GPU,
    are left out."""
    return [reason for reason in now.event_reasons if reason not in QUIET_REASONS]


def _power_and_temperature_text(now: GpuSample) -> str:
    parts = []
    if now.power_w and now.limit_w:
        parts.append(f"{now.power_w:.0f} of {now.limit_w:.0f} W")
    if now.temperature_c is not None:
        parts.append(f"{now.temperature_c:.0f} °C")
    if now.temperature_margin_c is not None:
        parts.append(f"{now.temperature_margin_c:.0f} °C below its highest")
    return ", ".join(parts)


def check_unexplained_low_clock(seen: Examination) -> Iterator[Finding]:
    """Report a GB10 whose clock is low under load although the driver names no reason."""
    for gpu, now in seen.gpus_with_readings:
        if now.sm_mhz is None or now.gpu_util_pct is None or "event_reasons" in now.absent:
            continue
        if _slowing_reasons(now) or not has_stuck_clock(gpu.name, now.sm_mhz, now.gpu_util_pct):
            continue
        text = (
            f"GPU {now.index} works at {now.sm_mhz} MHz, and the driver names no reason: GB10 can stay "
            "at 500 to 850 MHz after power trouble"
        )
        fix = "stop the server, unplug the machine for a minute, then measure again"
        evidence = f"SM {now.sm_mhz} MHz at {now.gpu_util_pct:.0f} % utilization"
        yield Finding(
            Level.WARN, "gb10.hidden-cap", text, fix=fix, evidence=evidence, source=_MINEFIELD
        )


def check_prochot(seen: Examination) -> Iterator[Finding]:
    """Report that the board slows its processors down (PROCHOT), as that of a DGX Spark does."""
    host = seen.host_sample
    if not host.prochot:
        return
    text = "the board holds its processors down (PROCHOT)"
    input_w = host.rails_w.get("dc_input")
    if input_w is not None:
        text += f"; {input_w:.0f} W come in"
    fix = (
        "check the power adapter and the cooling; unplug the machine for a minute, then look again"
    )
    yield Finding(Level.WARN, "host.prochot", text, fix=fix, evidence=f"level {host.power_level}")


def check_memory_and_disk_pressure(seen: Examination) -> Iterator[Finding]:
    """Report that all processes of the host waited for memory, or for the disk, in too large a
    share of the last 10 s."""
    kinds = (
        (
            "memory",
            "memory_pressure_pct",
            "end what you do not need, or give the server less memory",
        ),
        (
            "the disk",
            "io_pressure_pct",
            "`iotop` shows what reads and writes; a start loads slowly now",
        ),
    )
    for what, name, fix in kinds:
        share = getattr(seen.host_sample, name)
        most, source = threshold_and_source(name)
        if share is not None and share >= most:
            text = f"all processes of the host waited for {what} in {share:.0f} % of the last 10 s"
            yield Finding(
                Level.WARN,
                "host.pressure",
                text,
                fix=fix,
                source=source,
                evidence=f"PSI full {share}",
            )


def check_pcie_replays(seen: Examination) -> Iterator[Finding]:
    """Report a GPU whose PCIe link has sent many packets again since the driver was loaded."""
    most, source = threshold_and_source("pcie_replays")
    for _, now in seen.gpus_with_readings:
        count = now.pcie_replay_count
        if count is None or count < most:
            continue
        text = (
            f"the PCIe link of GPU {now.index} has sent {count:,} packets again since the driver was "
            "loaded"
        )
        fix = "check riser, seating and slot; a lower PCIe generation in the BIOS is a test"
        yield Finding(
            Level.HINT,
            "gpu.pcie-replays",
            text,
            fix=fix,
            source=source,
            evidence=f"{count} replays",
        )


def check_xid_errors(seen: Examination) -> Iterator[Finding]:
    """Report the numbered errors of GPUs (Xid) in the kernel's log since the host's start, once for
    each GPU and number."""
    table = load_doctor_table()["xids"]
    named = list(filter(None, map(_XID.search, seen.values.xids)))
    found = Counter(match.groups() for match in named)
    newest = {match.groups(): match.string for match in named}
    for (place, number), count in found.items():
        meaning, fix = table["rows"].get(number, ("not in Workbench's table", "look the number up"))
        times = f" {count} times" if count > 1 else ""
        yield Finding(
            Level.WARN if number in _XID_SEVERE else Level.HINT,
            "gpu.xid",
            f"the kernel has recorded Xid {number} of {place}{times}: {meaning}",
            fix=fix,
            source=table["source"],
            evidence=newest[place, number],
        )


CHECKS = (
    check_slowed_clocks,
    check_unexplained_low_clock,
    check_prochot,
    check_memory_and_disk_pressure,
    check_pcie_replays,
    check_xid_errors,
)

"""Parsing of nvidia-smi's output, for hosts without a usable python3 or NVML.

One `nvidia-smi --query-gpu=… -lms N` runs as long as its readings are needed, so that the driver is
not initialised again for each reading. A cell in brackets, `N/A` or `ERR!` is a missing value with
its reason, never 0.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from workbench.gpu.telemetry import clock_event_reasons
from workbench.gpu.telemetry.plausible_readings import (
    remove_impossible_values,
    remove_placeholder_values,
)
from workbench.model import gpu_readings
from workbench.model.gpu import (
    DriverInfo,
    DriverStatus,
    GpuInfo,
    GpuProcess,
    GpuSample,
    GpuState,
    HostSample,
)
from workbench.model.untrusted_numbers import (
    MOST_GPUS,
    RANGES,
    integer_or_none,
    number_for_field,
    parse_decimal,
    parse_whole_number,
    range_of_field,
)

MIB = 1 << 20
MAX_PLAUSIBLE_BYTES = int(RANGES["bytes"][1])
# Column of --query-gpu -> (field of GpuSample or GpuInfo, factor or None for text). Several names:
# newer first.
SAMPLE_COLUMNS: Mapping[str, tuple[str, float | None]] = {
    **{one.column: (one.field, 1) for one in gpu_readings.ALL if one.column},
    "power.draw.instant": ("power_w", 1),
    "power.draw": ("power_draw", 1),
    "power.draw.average": ("power_average_w", 1),
    "memory.used": ("memory_used_bytes", MIB),
    "memory.total": ("memory_total_bytes", MIB),
    "temperature.memory": ("memory_temperature_c", 1),
    "pstate": ("pstate", None),
    "clocks_event_reasons.active": ("event_reasons", None),
    "clocks_throttle_reasons.active": ("event_reasons", None),
}
INFO_COLUMNS: Mapping[str, tuple[str, float | None]] = {
    "name": ("name", None),
    "pci.bus_id": ("pci_bus_id", None),
    "compute_cap": ("compute_capability", None),
    **{one.column: (one.field, 1) for one in gpu_readings.PROPERTIES if one.column},
    "power.min_limit": ("power_min_w", 1),
    "power.max_limit": ("power_max_w", 1),
    "memory.reserved": ("memory_reserved_bytes", MIB),
    "ecc.mode.current": ("ecc", None),
}
KEY_COLUMNS = ("index", "count", "uuid", "driver_version")
COLUMNS = (
    *KEY_COLUMNS,
    *INFO_COLUMNS,
    *(c for c in SAMPLE_COLUMNS if c != "clocks_throttle_reasons.active"),
)
OLD_COLUMN_NAMES = {"clocks_event_reasons.active": "clocks_throttle_reasons.active"}
SWITCH_FIELDS = {"ecc", *(one.field for one in gpu_readings.ALL if one.switch)}
WHOLE_NUMBER_FIELDS = {
    each.name for kind in (GpuSample, GpuInfo) for each in fields(kind) if each.type == "int | None"
}
REASONS_NOT_GIVEN = dict.fromkeys(
    (
        *("pcie_rx_mb_s", "pcie_tx_mb_s", "pcie_replays_per_min"),
        *("xid", "energy_j", "pcie_replay_count"),
        *(one.field for one in gpu_readings.ALL if one.column == ""),
    ),
    "nvidia-smi does not give it",
)
REASON_OF_TOKEN = {
    "n/a": "not supported",
    "not supported": "not supported",
    "requested functionality has been deprecated": "deprecated",
    "insufficient permissions": "no permission",
    "function not found": "not known to this driver",
    "gpu requires reset": "gpu needs a reset",
    "gpu is lost": "gpu is lost",
    "unknown error": "unknown error",
    "err!": "error",
    "": "empty",
}
SWITCH_WORDS = {"enabled": True, "on": True, "disabled": False, "off": False}
FIELD_PARSERS: Mapping[str, tuple[str, Callable[[str], Any]]] = {  # a pattern, and what reads it
    "pstate": (r"P\d{1,2}", lambda text: int(text[1:])),
    "event_reasons": (
        r"0x[0-9A-Fa-f]{1,16}",
        lambda text: tuple(clock_event_reasons.reasons_in_mask(int(text, 16))),
    ),
}
INVALID_FIELD = re.compile(r'Field "([^"]+)" is not a valid field to query')
LOST_DEVICE = re.compile(
    r"Unable to determine the device handle for "
    r"(?:GPU|gpu)\s*(\d*)\s*:?\s*([0-9A-Fa-f:.]+): (.+)"
)
# Text -> status, most telling first. As nvidia-smi 550-590 prints it.
DRIVER_PROBLEMS = (
    ("driver/library version mismatch", DriverStatus.MISMATCH),
    ("couldn't communicate with the nvidia driver", DriverStatus.NO_DRIVER),
    ("driver is not loaded", DriverStatus.NO_DRIVER),
    ("couldn't find libnvidia-ml", DriverStatus.NO_LIBRARY),
    ("no devices were found", DriverStatus.NO_GPU),
    ("insufficient permissions", DriverStatus.NO_PERMISSION),
    ("unknown error", DriverStatus.ERROR),
)
DRIVER_STATUS_BY_EXIT_CODE = {
    4: DriverStatus.NO_PERMISSION,
    6: DriverStatus.NO_GPU,
    9: DriverStatus.NO_DRIVER,
}


def reason_of_empty_cell(text: str) -> str | None:
    """Return why a cell of nvidia-smi's output has no value, such as "not supported" for "[N/A]";
    None if it has a value."""
    bare = text.strip()
    if bare.startswith("[") and bare.endswith("]"):
        inner = bare[1:-1].strip().lower()
        return REASON_OF_TOKEN.get(inner, inner)
    return REASON_OF_TOKEN.get(bare.lower())


def query_argv(columns: Sequence[str], interval_s: float | None = None) -> list[str]:
    argv = ["nvidia-smi", "--query-gpu=" + ",".join(columns), "--format=csv,noheader,nounits"]
    if interval_s is not None:
        argv += ["-lms", str(max(50, round(interval_s * 1000)))]
    return argv


def drop_or_rename_invalid_column(columns: Sequence[str], text: str) -> tuple[str, ...] | None:
    """Return `columns` without the one that nvidia-smi's error `text` calls invalid. If an older
    nvidia-smi knows that column by another name, it gets this name. None if `text` is another
    error or none."""
    found = INVALID_FIELD.search(text)
    if not found or found[1] not in columns:
        return None
    at = columns.index(found[1])
    old = OLD_COLUMN_NAMES.get(found[1])
    return (*columns[:at], *filter(None, [old]), *columns[at + 1 :])


def parse_driver_problem(text: str, returncode: int) -> DriverInfo | None:
    """Return a DriverInfo with the problem that the output and the exit code of nvidia-smi report,
    None if they report none."""
    said = " ".join(text.split())
    for words, status in DRIVER_PROBLEMS:
        if words in said.lower():
            return DriverInfo(status=status, message=said, source="nvidia-smi")
    if returncode in (0, 2):
        return None
    status = DRIVER_STATUS_BY_EXIT_CODE.get(returncode, DriverStatus.ERROR)
    message = said or f"nvidia-smi ended with {returncode}"
    return DriverInfo(status=status, message=message, source="nvidia-smi")


def parse_row(columns: Sequence[str], line: str) -> dict[str, str] | None:
    """Return the cells of a line of nvidia-smi's output by column. None if the line is not a row of
    a query for `columns`."""
    cells = _split_cells(line)
    if integer_or_none(parse_whole_number(cells[0]), 0, MOST_GPUS - 1) is None:
        return None
    extra = len(cells) - len(columns)
    if extra > 0 and "name" in columns:
        at = columns.index("name")
        cells[at : at + extra + 1] = [", ".join(cells[at : at + extra + 1])]
    if len(cells) != len(columns):
        return None
    return dict(zip(columns, cells, strict=True))


def _split_cells(line: str, most_splits: int = -1) -> list[str]:
    return list(map(str.strip, line.split(",", most_splits)))


def parse_values_and_absent_reasons(
    row: Mapping[str, str], columns: Mapping[str, tuple[str, float | None]]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return (values in a row by field, why each other field has no value). `columns` has (field,
    factor) by column; the factor is None for a text."""
    values: dict[str, Any] = {}
    absent: dict[str, str] = {}
    for column, (name, factor) in columns.items():
        if column not in row:
            absent.setdefault(name, "not known to this nvidia-smi")
        elif why := reason_of_empty_cell(row[column]):
            absent[name] = why
        elif (value := _parse_cell_value(name, row[column], factor)) is None:
            absent[name] = f"not understood: {row[column]}"
        else:
            values[name] = value
    for name in values:
        absent.pop(name, None)
    return values, absent


def _parse_cell_value(name: str, text: str, factor: float | None) -> Any:
    if name in SWITCH_FIELDS:
        return SWITCH_WORDS.get(text.lower())
    if name in FIELD_PARSERS:
        pattern, parse = FIELD_PARSERS[name]
        return parse(text) if re.fullmatch(pattern, text) else None
    if factor is None:
        return text
    if not re.fullmatch(r"\d{1,15}(\.\d{1,9})?", text):
        return None
    number = float(text) * factor
    return int(number) if name in WHOLE_NUMBER_FIELDS else number


def parse_info_and_sample(
    row: Mapping[str, str], host: HostSample, used: int | None = None
) -> tuple[GpuInfo, GpuSample]:
    """Return (properties, present values) of the GPU in one row of nvidia-smi's output. nvidia-smi
    reports no used memory for a GPU that shares the host's memory. For such a GPU, `used` is that
    memory: the bytes of all processes on the GPU."""
    index, uuid = int(row["index"]), row["uuid"]
    info, info_absent = parse_values_and_absent_reasons(row, INFO_COLUMNS)
    values, absent = parse_values_and_absent_reasons(row, SAMPLE_COLUMNS)
    draw = values.pop("power_draw", None)
    absent.pop("power_draw", None)
    if "power_w" not in values and draw is not None:
        values["power_w"] = draw
        absent.pop("power_w", None)
    remove_impossible_values(values, absent)
    remove_impossible_values(info, info_absent)
    name = info.pop("name", "unknown")
    unified = "GB10" in name
    info["memory_total_bytes"] = values.get("memory_total_bytes")
    if unified:
        remove_placeholder_values(values, absent)
        remove_placeholder_values(info, info_absent)
        absent.pop("memory_used_bytes", None)
        absent.pop("memory_total_bytes", None)
        values["memory_total_bytes"] = info["memory_total_bytes"] = host.memory_total_bytes
        values["memory_used_bytes"] = used
        if used is None:
            absent["memory_used_bytes"] = "unified memory, and the processes were not listed"
    elif "memory_total_bytes" in absent:
        info_absent["memory_total_bytes"] = absent["memory_total_bytes"]
    sample = GpuSample(
        index=index,
        uuid=uuid,
        state=GpuState.LIVE,
        absent={**REASONS_NOT_GIVEN, **absent},
        **values,
    )
    if "gpu is lost" in absent.values():
        sample = replace(sample, state=GpuState.LOST, message="GPU is lost")
    return GpuInfo(
        index=index, uuid=uuid, name=name, unified_memory=unified, absent=info_absent, **info
    ), sample


def parse_lost_gpu_message(line: str) -> str | None:
    """Return the message of a line that nvidia-smi prints in place of a lost GPU's row; None for
    any other line."""
    if not LOST_DEVICE.search(line):
        return None
    return line.strip()


PROCESS_ARGV = [
    "nvidia-smi",
    "--query-compute-apps=gpu_uuid,pid,used_memory,process_name",
    "--format=csv,noheader,nounits",
]


def parse_processes(text: str) -> dict[str, tuple[GpuProcess, ...]]:
    """Return the processes by GPU UUID, from the output of PROCESS_ARGV. Lines that cannot be
    understood are skipped. A GPU without processes is missing."""
    found: dict[str, tuple[GpuProcess, ...]] = {}
    for line in text.splitlines():
        cells = _split_cells(line, 3)
        if len(cells) == 4 and (process := _parse_process(*cells[1:])):
            found[cells[0]] = (*found.get(cells[0], ()), process)
    return found


def _parse_process(pid_text: str, mib_text: str, path: str) -> GpuProcess | None:
    pid, mib = parse_whole_number(pid_text), parse_whole_number(mib_text)
    if pid is None or number_for_field("pid", pid) is None:
        return None
    memory = None if mib is None else integer_or_none(mib * MIB, 0, MAX_PLAUSIBLE_BYTES)
    name = None if reason_of_empty_cell(path) else path.rsplit("/", 1)[-1]
    return GpuProcess(pid=pid, memory_bytes=memory, name=name)


def parse_host_memory_and_load(text: str) -> HostSample:
    """Parse the output of `cat /proc/meminfo /proc/loadavg`. What it lacks is None, with the reason
    in `absent`."""
    found = {
        name: integer_or_none(int(kib) * 1024, 0, MAX_PLAUSIBLE_BYTES)
        for name, kib in re.findall(r"^(Mem\w+):\s+(\d{1,15}) kB", text, re.MULTILINE)
    }
    load = re.search(r"^(\d+\.\d+) \d+\.\d+ \d+\.\d+ \d+/\d+", text, re.MULTILINE)
    fields = (
        "cpu_governor",
        "cpu_c_states",
        "memory_pressure_pct",
        "io_pressure_pct",
        "prochot",
    )
    absent = dict.fromkeys(fields, "not read without python3 on the host")
    if not found:
        absent["memory_total_bytes"] = absent["memory_available_bytes"] = "not in /proc/meminfo"
    return HostSample(
        memory_total_bytes=found.get("MemTotal"),
        memory_available_bytes=found.get("MemAvailable"),
        load_1m=parse_decimal(load[1], *range_of_field("load_1m")) if load else None,
        absent=absent,
    )

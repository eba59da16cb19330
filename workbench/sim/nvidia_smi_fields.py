"""The query fields of the simulated nvidia-smi, with the header, unit and text of the real program.

A missing value is printed as `[N/A]` if it is not supported, as `N/A` for the memory temperature,
and as a sentence in brackets for other errors.
"""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable
from typing import Any

from workbench.sim.nvml_library import SimulatedNvml

ABSENT = {
    3: "[N/A]",
    4: "[Insufficient Permissions]",
    13: "[Function Not Found]",
    15: "[GPU is lost]",
    26: "[Requested functionality has been deprecated]",
    999: "[Unknown Error]",
}
REASONS = {
    "gpu_idle": 0x1,
    "applications_clocks_setting": 0x2,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
}


class NvmlError(Exception):
    """The error for an NVML return code other than success."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Cell:
    """A stand-in for any C struct of NVML: an object that accepts any attributes, into which an
    NVML function writes its result."""

    value: Any = 0
    sensorType = 0

    def __init__(self) -> None:
        self._obj = self


class Device:
    """One simulated GPU. Its values are read with the NVML functions that pynvml would call."""

    def __init__(self, library: SimulatedNvml, index: int) -> None:
        self.library = library
        self.index = index
        self.handle = ctypes.c_void_p(index + 1)

    def call(self, name: str, *arguments: Any) -> None:
        """Call the NVML function `name` for this GPU. Raises NvmlError if it does not succeed."""
        try:
            function = getattr(self.library, name)
        except AttributeError:
            raise NvmlError(13) from None
        code = function(self.handle, *arguments)
        if code:
            raise NvmlError(code)

    def get(self, name: str, *arguments: Any) -> Any:
        """Return the value that the NVML function nvmlDeviceGet… writes; `name` is its end."""
        cell = Cell()
        self.call("nvmlDeviceGet" + name, *arguments, cell)
        return cell.value

    def text(self, name: str) -> str:
        """Return the text that the NVML function nvmlDeviceGet… writes; `name` is its end."""
        cell = Cell()
        self.call("nvmlDeviceGet" + name, cell, 96)
        return str(cell.value.decode())

    def read_struct(self, getter_suffix: str) -> Any:
        cell = Cell()
        self.call("nvmlDeviceGet" + getter_suffix, cell)
        return cell

    @property
    def bus_id(self) -> str:
        return str(self.read_struct("PciInfo_v3").busId.decode())

    def read_field_value(self, field_id: int) -> int:
        entry, values = Cell(), Cell()
        entry.fieldId, entry.scopeId, entry.value = field_id, 0, Cell()  # type: ignore[attr-defined]
        values._obj = [entry]  # type: ignore[assignment]
        self.call("nvmlDeviceGetFieldValues", 1, values)
        if entry.nvmlReturn:  # type: ignore[attr-defined]
            raise NvmlError(entry.nvmlReturn)  # type: ignore[attr-defined]
        return int(entry.value.uiVal)


def _watts_reader(name: str) -> Callable[[Device], str]:
    return lambda d: f"{d.get(name) / 1000:.2f}"


def _watts_field_reader(number: int) -> Callable[[Device], str]:
    return lambda d: f"{d.read_field_value(number) / 1000:.2f}"


def _number_reader(name: str, *arguments: Any) -> Callable[[Device], str]:
    return lambda d: str(d.get(name, *arguments))


def _memory_reader(part: str) -> Callable[[Device], str]:
    return lambda d: str(math.ceil(getattr(d.read_struct("MemoryInfo_v2"), part) / (1 << 20)))


def _reason_reader(bit: int) -> Callable[[Device], str]:
    return lambda d: "Active" if d.get("CurrentClocksEventReasons") & bit else "Not Active"


def _nvml_error_reader(nvml_code: int) -> Callable[[Device], str]:
    def raise_nvml_error(_device: Device) -> str:
        raise NvmlError(nvml_code)

    return raise_nvml_error


def _system_value_reader(function_name: str) -> Callable[[Device], str]:
    def read_system_value(device: Device) -> str:
        cell = Cell()
        getattr(device.library, function_name)(cell, 80)
        return str(cell.value.decode())

    return read_system_value


def _power_limit_reader(end_index: int) -> Callable[[Device], str]:
    def read_power_limit(device: Device) -> str:
        ends = (Cell(), Cell())
        device.call("nvmlDeviceGetPowerManagementLimitConstraints", *ends)
        return f"{ends[end_index].value / 1000:.2f}"

    return read_power_limit


def _compute_capability(device: Device) -> str:
    major, minor = Cell(), Cell()
    device.call("nvmlDeviceGetCudaComputeCapability", major, minor)
    return f"{major.value}.{minor.value}"


def _ecc_mode(device: Device) -> str:
    current, pending = Cell(), Cell()
    device.call("nvmlDeviceGetEccMode", current, pending)
    return "Enabled" if current.value else "Disabled"


def _timestamp_text(_device: Device) -> str:
    now = time.time()
    return time.strftime("%Y/%m/%d %H:%M:%S", time.localtime(now)) + f".{int(now % 1 * 1000):03d}"


_FIELDS: dict[str, tuple[str, Callable[[Device], str]]] = {  # name: unit, reader
    "timestamp": ("", _timestamp_text),
    "index": ("", lambda d: str(d.index)),
    "count": ("", lambda d: str(d.library._state.profile.count)),
    "name": ("", lambda d: d.text("Name")),
    "uuid": ("", lambda d: d.text("UUID")),
    "serial": ("", _nvml_error_reader(3)),
    "driver_version": ("", _system_value_reader("nvmlSystemGetDriverVersion")),
    "pci.bus_id": ("", lambda d: d.bus_id),
    "compute_cap": ("", _compute_capability),
    "persistence_mode": ("", lambda d: "Enabled" if d.get("PersistenceMode") else "Disabled"),
    "compute_mode": ("", lambda d: "Default"),
    "mig.mode.current": ("", _nvml_error_reader(3)),
    "ecc.mode.current": ("", _ecc_mode),
    "pstate": ("", lambda d: f"P{d.get('PerformanceState')}"),
    "fan.speed": ("%", _number_reader("FanSpeed")),
    "temperature.gpu": ("", lambda d: str(d.read_struct("TemperatureV").temperature)),
    "temperature.memory": ("", lambda d: "N/A"),
    "utilization.gpu": ("%", lambda d: str(d.read_struct("UtilizationRates").gpu)),
    "utilization.memory": ("%", lambda d: str(d.read_struct("UtilizationRates").memory)),
    "memory.total": ("MiB", _memory_reader("total")),
    "memory.reserved": ("MiB", _memory_reader("reserved")),
    "memory.used": ("MiB", _memory_reader("used")),
    "memory.free": ("MiB", _memory_reader("free")),
    "power.draw": ("W", _watts_reader("PowerUsage")),
    "power.draw.average": ("W", _watts_field_reader(185)),
    "power.draw.instant": ("W", _watts_field_reader(186)),
    "power.limit": ("W", _watts_reader("PowerManagementLimit")),
    "enforced.power.limit": ("W", _watts_reader("EnforcedPowerLimit")),
    "power.default_limit": ("W", _watts_reader("PowerManagementDefaultLimit")),
    "power.min_limit": ("W", _power_limit_reader(0)),
    "power.max_limit": ("W", _power_limit_reader(1)),
    "clocks_event_reasons.active": ("", lambda d: f"0x{d.get('CurrentClocksEventReasons'):016X}"),
    "clocks_event_reasons.supported": (
        "",
        lambda d: f"0x{d.get('SupportedClocksEventReasons'):016X}",
    ),
    "pcie.link.gen.current": ("", _number_reader("CurrPcieLinkGeneration")),
    "pcie.link.gen.gpucurrent": ("", _number_reader("CurrPcieLinkGeneration")),
    "pcie.link.gen.max": ("", _number_reader("MaxPcieLinkGeneration")),
    "pcie.link.gen.gpumax": ("", _number_reader("MaxPcieLinkGeneration")),
    "pcie.link.width.current": ("", _number_reader("CurrPcieLinkWidth")),
    "pcie.link.width.max": ("", _number_reader("MaxPcieLinkWidth")),
}
# name in a query: header, unit, reader
FIELDS = {name: (name, *field) for name, field in _FIELDS.items()}
for _short, _kind in (("gr", 0), ("sm", 1), ("mem", 2), ("video", 3)):
    _long = {"gr": "graphics", "mem": "memory"}.get(_short, _short)
    for _name in {f"clocks.{_short}", f"clocks.current.{_long}"}:
        FIELDS[_name] = (f"clocks.current.{_long}", "MHz", _number_reader("ClockInfo", _kind))
    for _name in {f"clocks.max.{_short}", f"clocks.max.{_long}"}:
        FIELDS[_name] = (f"clocks.max.{_long}", "MHz", _number_reader("MaxClockInfo", _kind))
    if _short in ("gr", "mem"):
        for _name in {f"clocks.applications.{_short}", f"clocks.applications.{_long}"}:
            FIELDS[_name] = (
                f"clocks.applications.{_long}",
                "MHz",
                _number_reader("ApplicationsClock", _kind),
            )
for _short, _bit in REASONS.items():
    FIELDS[f"clocks_event_reasons.{_short}"] = (
        f"clocks_event_reasons.{_short}",
        "",
        _reason_reader(_bit),
    )
for _name in [n for n in FIELDS if n.startswith("clocks_event_reasons.")]:
    FIELDS[_name.replace("_event_", "_throttle_")] = FIELDS[_name]
FIELDS.update(
    {"gpu_name": FIELDS["name"], "gpu_uuid": FIELDS["uuid"], "gpu_bus_id": FIELDS["pci.bus_id"]},
)


def query_cell(device: Device, name: str, units: bool) -> str:
    """Return the value of the query field `name` as the real program prints it, with its unit if
    `units` is True. If the value is missing, return the text that the real program prints for the
    error."""
    _, unit, read = FIELDS[name]
    try:
        text = read(device)
    except NvmlError as refused:
        return ABSENT.get(refused.code, "[Unknown Error]")
    return f"{text} {unit}" if unit and units else text


def query_header(name: str, units: bool) -> str:
    """Return the title of the query field `name`, with its unit if `units` is True."""
    title, unit, _ = FIELDS[name]
    return f"{title} [{unit}]" if unit and units else title

"""What the agent reads from one GPU, and which of it the driver refuses. Sent to the host: see agent.py.

A value that is not given is left out and its reason stands under `absent`, by the names of model.gpu's fields.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import byref
from typing import Any, Protocol

from .nvml import (
    BAD_VERSION,
    EVENT_REASONS,
    LOST,
    MEM,
    MEMORY_V2,
    MISMATCH,
    NO_FUNCTION,
    NOT_AVAILABLE_32,
    NOT_AVAILABLE_64,
    NOT_LOADED,
    NOT_SUPPORTED,
    PCIE_MB_S_PER_LANE,
    RESET_REQUIRED,
    SETTLED,
    SM,
    TEMPERATURE_V1,
    U32,
    U64,
    UNINITIALIZED,
    UNKNOWN,
    VALUE_KINDS,
    VERSION_1_OF_8_BYTES,
    VIRTUALIZATION,
    AddressingMode,
    DeviceHandle,
    DriverGone,
    FieldValue,
    GpuDown,
    Margin,
    Memory,
    MemoryV2,
    Nvml,
    Pci,
    Process,
    Temperature,
    Utilization,
    reason,
)

INSUFFICIENT_SIZE = 7
FAST_FIELDS = (186, 185, 83, 197, 198, 82)  # power now and averaged, energy, PCIe tx and rx bytes, memory temperature
SLOWDOWN_T_LIMIT = 194  # degrees above the highest operating temperature, 0 or negative; Ada and later


def field_value(slot: Any) -> Any:
    return getattr(slot.value, VALUE_KINDS[slot.valueType] if slot.valueType < len(VALUE_KINDS) else "ullVal")


class HostFacts(Protocol):
    memory_total_bytes: int | None

    def process_name(self, pid: int) -> str | None: ...


class Gpu:
    """One GPU: its handle, what it refuses to tell, and its readings."""

    def __init__(self, nvml: Nvml, index: int, host: HostFacts) -> None:
        self.nvml, self.index, self.host = nvml, index, host
        self.handle: Any = DeviceHandle()
        self.uuid = self.name = ""
        self.down: int | None = None  # the code for which it cannot be read now
        self.retry_at = 0.0
        self.fresh = True  # its slow readings are due at once
        self.known: dict[str, Any] | None = None  # the last info
        self.bad = 0  # the last failure of a single reading
        self.unified = False
        self.refused: dict[str, int] = {}
        self.out: dict[str, Any] = {}
        self.absent: dict[str, str] = {}
        self.link: tuple[int | None, int | None] = (None, None)
        self.pcie: dict[str, tuple[float, int]] = {}
        self.process_bytes: int | None = None
        self.slowdown_c: float | None = None
        self.u32, self.u64, self.memory_v1, self.util = U32(), U64(), Memory(), Utilization()
        self.memory_v2 = MemoryV2(version=MEMORY_V2)
        self.heat = Temperature(version=TEMPERATURE_V1)
        self.fields = (FieldValue * len(FAST_FIELDS))()
        for place, number in enumerate(FAST_FIELDS):
            self.fields[place].fieldId = number

    def find(self) -> None:
        """A fresh handle, by UUID once that is known: indices may move."""
        handle = DeviceHandle()
        code = 0
        if self.uuid:
            code = self.nvml.call("nvmlDeviceGetHandleByUUID", ctypes.c_char_p(self.uuid.encode()), byref(handle))
        else:
            code = self.nvml.call("nvmlDeviceGetHandleByIndex_v2", U32(self.index), byref(handle))
        if code in (UNINITIALIZED, NOT_LOADED, MISMATCH):
            raise DriverGone(code)
        if code:
            raise GpuDown(code)
        self.handle = handle
        self.refused.clear()
        self.pcie.clear()
        self.uuid = self.nvml.text("nvmlDeviceGetUUID", handle) or self.uuid
        self.name = self.nvml.text("nvmlDeviceGetName", handle) or self.name
        self.unified = self.shares_host_memory()

    def shares_host_memory(self) -> bool:
        """GB10 by name: its memory calls fail or tell nonsense. Others: memory is refused and addressing is ATS."""
        if "GB10" in self.name:
            return True
        mode = AddressingMode(version=VERSION_1_OF_8_BYTES)
        return (
            self.nvml.call("nvmlDeviceGetMemoryInfo", self.handle, byref(self.memory_v1)) == NOT_SUPPORTED
            and self.nvml.call("nvmlDeviceGetAddressingMode", self.handle, byref(mode)) == 0
            and mode.value == 2
        )

    def ok(self, field: str, code: int) -> bool:
        """Whether the call gave a value; otherwise the reason goes under `absent`, or the GPU or the driver is gone."""
        if code == 0:
            return True
        if code in (LOST, RESET_REQUIRED):
            raise GpuDown(code)
        if code in (UNINITIALIZED, NOT_LOADED, MISMATCH):
            raise DriverGone(code)
        if code in SETTLED:
            self.refused[field] = code
        else:
            self.bad = code
        self.absent[field] = reason(code)
        return False

    def skip(self, field: str) -> bool:
        """A field that this driver has refused for good is not asked for at every tick."""
        code = self.refused.get(field)
        if code is None:
            return False
        self.absent[field] = reason(code)
        return True

    def number(self, field: str, name: str, *args: Any, scale: float = 0) -> None:
        if self.skip(field) or not self.ok(field, self.nvml.call(name, self.handle, *args, byref(self.u32))):
            return
        value = self.u32.value
        if value == NOT_AVAILABLE_32:
            self.absent[field] = reason(-1)
        else:
            self.out[field] = round(value * scale, 3) if scale else value

    def gather(self, read: Callable[[], None]) -> dict[str, Any]:
        """What `read` leaves in `out`, with the reasons for what is missing."""
        self.out, self.absent = {}, {}
        read()
        if self.absent:
            self.out["absent"] = self.absent
        return self.out

    def sample(self, now: float, slow: bool) -> dict[str, Any]:
        """One reading; with `slow`, what is read seldom stands under "slow" with reasons of its own."""
        self.bad = 0
        seldom = self.gather(self.slow) if slow else None
        if seldom is not None:
            self.link = (seldom.get("pcie_gen"), seldom.get("pcie_width"))
        sample = self.gather(lambda: self.fast(now))
        if self.bad and not any(key in sample for key in ("sm_mhz", "power_w", "temperature_c", "gpu_util_pct")):
            raise GpuDown(self.bad)
        if seldom is not None:
            sample["slow"] = seldom
        return sample

    def fast(self, now: float) -> None:
        self.number("sm_mhz", "nvmlDeviceGetClockInfo", SM)
        self.number("memory_mhz", "nvmlDeviceGetClockInfo", MEM)
        self.number("pstate", "nvmlDeviceGetPerformanceState")
        if self.out.get("pstate", 0) > 15:  # NVML_PSTATE_UNKNOWN is 32
            del self.out["pstate"]
            self.absent["pstate"] = "unknown to the driver"
        self.number("power_limit_w", "nvmlDeviceGetPowerManagementLimit", scale=0.001)
        self.number("power_limit_enforced_w", "nvmlDeviceGetEnforcedPowerLimit", scale=0.001)
        self.batch(now)
        self.utilization()
        self.memory()
        self.temperature()
        self.events()

    def batch(self, now: float) -> None:
        """The field values, in one call; each has a return code of its own, set beforehand so that none is stale."""
        values: dict[int, Any] = {}
        codes: dict[int, int] = dict.fromkeys(FAST_FIELDS, self.refused.get("fields", 0))
        if "fields" not in self.refused:
            for slot in self.fields:
                slot.nvmlReturn = UNKNOWN
            code = self.nvml.call(
                "nvmlDeviceGetFieldValues", self.handle, ctypes.c_int32(len(FAST_FIELDS)), byref(self.fields)
            )
            self.ok("fields", code)
            self.absent.pop("fields", None)
            for slot in self.fields:
                codes[slot.fieldId] = code or slot.nvmlReturn
                if codes[slot.fieldId] == LOST:
                    raise GpuDown(LOST)
                if not codes[slot.fieldId]:
                    values[slot.fieldId] = (field_value(slot), slot.valueType)
        self.power(values, codes)
        self.traffic("pcie_tx_mb_s", values.get(197), codes[197], now)
        self.traffic("pcie_rx_mb_s", values.get(198), codes[198], now)
        if 82 in values:
            self.out["memory_temperature_c"] = values[82][0]
        else:
            self.absent["memory_temperature_c"] = reason(codes[82])

    def power(self, values: dict[int, Any], codes: dict[int, int]) -> None:
        if 186 in values:
            self.out["power_w"] = round(values[186][0] * 0.001, 3)
        else:  # before Ampere, and on GA100, this is the instant itself; elsewhere a 1 s average
            self.number("power_w", "nvmlDeviceGetPowerUsage", scale=0.001)
        if 185 in values:
            self.out["power_average_w"] = round(values[185][0] * 0.001, 3)
        else:
            self.absent["power_average_w"] = reason(codes[185])
        if 83 in values:
            self.out["energy_j"] = round(values[83][0] * 0.001, 3)
        elif not self.skip("energy_j"):
            code = self.nvml.call("nvmlDeviceGetTotalEnergyConsumption", self.handle, byref(self.u64))
            if self.ok("energy_j", code):
                self.out["energy_j"] = round(self.u64.value * 0.001, 3)

    def traffic(self, field: str, value: tuple[int, int] | None, code: int, now: float) -> None:
        """Megabytes per second from a byte counter that may wrap; silent where it could have wrapped unseen."""
        if value is None:
            self.absent[field] = reason(code)
            return
        count, kind = value
        before = self.pcie.get(field)
        self.pcie[field] = (now, count)
        if before is None or now <= before[0]:
            self.absent[field] = "needs a second reading"
            return
        seconds, moved = now - before[0], count - before[1]
        generation, width = self.link
        if kind == 1:  # 32 bits
            fastest = PCIE_MB_S_PER_LANE.get(generation or 0, 0.0) * (width or 0) * 1e6
            if fastest * seconds >= 2**32:
                self.absent[field] = "the driver's 32-bit byte counter can wrap between two readings"
                return
            moved %= 2**32
        if moved < 0:
            self.absent[field] = "the counter was reset"
        else:
            self.out[field] = round(moved / seconds / 1e6, 3)

    def utilization(self) -> None:
        field = "gpu_util_pct"
        if not self.skip(field) and self.ok(
            field, self.nvml.call("nvmlDeviceGetUtilizationRates", self.handle, byref(self.util))
        ):
            self.out[field], self.out["memory_util_pct"] = self.util.gpu, self.util.memory
        else:
            self.absent["memory_util_pct"] = self.absent[field]

    def memory(self) -> None:
        """v2 without the driver's reserved part where known, else v1; the host's memory where it is shared."""
        if self.unified:
            self.out["memory_total_bytes"] = self.host.memory_total_bytes
            if self.process_bytes is None:
                self.absent["memory_used_bytes"] = "unified memory, and the driver does not list processes"
            else:
                self.out["memory_used_bytes"] = self.process_bytes
            return
        if self.skip("memory_used_bytes"):
            self.absent["memory_total_bytes"] = self.absent["memory_used_bytes"]
            return
        info = self.memory_v2
        code = NO_FUNCTION
        if "memory v2" not in self.refused:
            code = self.nvml.call("nvmlDeviceGetMemoryInfo_v2", self.handle, byref(info))
            if code in SETTLED:
                self.refused["memory v2"] = code
        if code in SETTLED:
            info = self.memory_v1
            code = self.nvml.call("nvmlDeviceGetMemoryInfo", self.handle, byref(info))
        if self.ok("memory_used_bytes", code):
            self.out["memory_used_bytes"], self.out["memory_total_bytes"] = info.used, info.total
        else:
            self.absent["memory_total_bytes"] = self.absent["memory_used_bytes"]

    def temperature(self) -> None:
        field = "temperature_c"
        if self.skip(field):
            return
        if "temperature v" not in self.refused:
            code = self.nvml.call("nvmlDeviceGetTemperatureV", self.handle, byref(self.heat))
            if code == 0:
                self.out[field] = self.heat.temperature
                return
            if code not in (NO_FUNCTION, BAD_VERSION, NOT_SUPPORTED):
                self.ok(field, code)
                return
            self.refused["temperature v"] = code
        self.number(field, "nvmlDeviceGetTemperature", U32(0))

    def events(self) -> None:
        field = "event_reasons"
        if self.skip(field):
            return
        code = self.nvml.first(
            ("nvmlDeviceGetCurrentClocksEventReasons", self.handle, byref(self.u64)),
            ("nvmlDeviceGetCurrentClocksThrottleReasons", self.handle, byref(self.u64)),
        )
        if self.ok(field, code):
            mask = self.u64.value
            names = [name for bit, name in enumerate(EVENT_REASONS) if mask >> bit & 1]
            rest = mask >> len(EVENT_REASONS) << len(EVENT_REASONS)
            self.out[field] = [*names, f"unknown (0x{rest:x})"] if rest else names

    def slow(self) -> None:
        self.number("fan_pct", "nvmlDeviceGetFanSpeed")
        self.number("pcie_gen", "nvmlDeviceGetCurrPcieLinkGeneration")
        self.number("pcie_width", "nvmlDeviceGetCurrPcieLinkWidth")
        self.number("persistence", "nvmlDeviceGetPersistenceMode")
        if "persistence" in self.out:
            self.out["persistence"] = bool(self.out["persistence"])
        self.processes()

    def processes(self) -> None:
        if self.skip("processes"):
            return
        found: dict[int, dict[str, Any]] = {}
        for kind, family in (("graphics", "Graphics"), ("compute", "Compute")):
            code, rows = self.process_list(f"nvmlDeviceGet{family}RunningProcesses")
            if code and kind == "graphics":
                continue  # some GPUs have no graphics; compute decides what is known
            if not self.ok("processes", code):
                self.process_bytes = None
                return
            for row in rows:
                used = row.usedGpuMemory
                found[row.pid] = {
                    "pid": row.pid,
                    "memory_bytes": None if used == NOT_AVAILABLE_64 else used,
                    "name": self.host.process_name(row.pid),
                    "kind": kind,
                }
        self.out["processes"] = [found[pid] for pid in sorted(found)]
        self.process_bytes = sum(p["memory_bytes"] or 0 for p in found.values())

    def process_list(self, name: str) -> tuple[int, Any]:
        room = 16
        for _ in range(4):  # the list can grow between two calls
            count, rows = U32(room), (Process * room)()
            code = self.nvml.first(
                (name + "_v3", self.handle, byref(count), rows), (name + "_v2", self.handle, byref(count), rows)
            )
            if code != INSUFFICIENT_SIZE:
                return code, rows[: count.value] if code == 0 else ()
            room = count.value * 2 + 16
        return INSUFFICIENT_SIZE, ()

    def info(self) -> dict[str, Any]:
        self.refused.clear()  # ask again now and then for what was refused
        info = self.gather(self.static)
        info.update(index=self.index, uuid=self.uuid, name=self.name, unified_memory=self.unified)
        return info

    def static(self) -> None:
        self.number("sm_max_mhz", "nvmlDeviceGetMaxClockInfo", SM)
        self.number("memory_max_mhz", "nvmlDeviceGetMaxClockInfo", MEM)
        self.number("power_default_w", "nvmlDeviceGetPowerManagementDefaultLimit", scale=0.001)
        low, high = U32(), U32()
        code = self.nvml.call("nvmlDeviceGetPowerManagementLimitConstraints", self.handle, byref(low), byref(high))
        if self.ok("power_max_w", code):
            self.out["power_min_w"], self.out["power_max_w"] = low.value / 1000, high.value / 1000
        else:
            self.absent["power_min_w"] = self.absent["power_max_w"]
        self.number("pcie_gen_max", "nvmlDeviceGetMaxPcieLinkGeneration")
        self.number("pcie_width_max", "nvmlDeviceGetMaxPcieLinkWidth")
        self.number("memory_bus_bits", "nvmlDeviceGetMemoryBusWidth")
        self.static_memory()
        self.identity()
        if self.slowdown_c is None:
            self.slowdown_c = self.slowdown()
        if self.slowdown_c is None:
            self.absent["temperature_slowdown_c"] = reason(NOT_SUPPORTED)
        else:
            self.out["temperature_slowdown_c"] = self.slowdown_c

    def static_memory(self) -> None:
        total = "memory_total_bytes"
        self.memory()
        self.out.pop("memory_used_bytes", None)
        why = self.absent.pop("memory_used_bytes", None)
        if self.unified:
            self.absent["memory_reserved_bytes"] = "unified memory"
        elif total in self.out and "memory v2" not in self.refused:
            self.out["memory_reserved_bytes"] = self.memory_v2.reserved
        else:
            self.absent["memory_reserved_bytes"] = why or "not known to this driver: it is part of the used bytes"

    def identity(self) -> None:
        pci, major, minor = Pci(), ctypes.c_int(), ctypes.c_int()
        if self.ok("pci_bus_id", self.nvml.call("nvmlDeviceGetPciInfo_v3", self.handle, byref(pci))):
            self.out["pci_bus_id"] = pci.busId.decode("ascii", "replace")
        code = self.nvml.call("nvmlDeviceGetCudaComputeCapability", self.handle, byref(major), byref(minor))
        if self.ok("compute_capability", code):
            self.out["compute_capability"] = f"{major.value}.{minor.value}"
        if self.ok("virtualization", self.nvml.call("nvmlDeviceGetVirtualizationMode", self.handle, byref(self.u32))):
            mode = self.u32.value
            self.out["virtualization"] = VIRTUALIZATION[mode] if mode < len(VIRTUALIZATION) else f"mode {mode}"
        current, pending = U32(), U32()
        if self.ok("ecc", self.nvml.call("nvmlDeviceGetEccMode", self.handle, byref(current), byref(pending))):
            self.out["ecc"] = bool(current.value)

    def slowdown(self) -> float | None:
        """Degrees at which the hardware slows itself: the threshold, or from the margin left on Ada and later."""
        call = self.nvml.call
        limits = (FieldValue * 1)(FieldValue(fieldId=SLOWDOWN_T_LIMIT, nvmlReturn=UNKNOWN))
        margin = Margin(version=VERSION_1_OF_8_BYTES)
        if (
            call("nvmlDeviceGetFieldValues", self.handle, ctypes.c_int32(1), byref(limits)) == 0
            and limits[0].nvmlReturn == 0
            and call("nvmlDeviceGetMarginTemperature", self.handle, byref(margin)) == 0
        ):
            now = self.gather_temperature()
            if now is not None:
                return float(now + margin.marginTemperature - field_value(limits[0]))
        if call("nvmlDeviceGetTemperatureThreshold", self.handle, U32(1), byref(self.u32)) == 0:
            return float(self.u32.value)
        return None

    def gather_temperature(self) -> int | None:
        self.temperature()
        self.absent.pop("temperature_c", None)
        found: int | None = self.out.pop("temperature_c", None)
        return found

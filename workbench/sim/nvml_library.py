"""The simulated driver as NVML's C library would look to pynvml: functions that take handles and byref() arguments.

pynvml 13 calls `getattr(nvmlLib, name)(...)`: handles are pointer objects, results go through `ctypes.byref` (whose
target is `._obj`), arrays and string buffers are passed as they are, and every function returns an NVML code. Struct
fields are set by name, so any binding with NVML's field names will do. A function that this library does not have
raises AttributeError, as ctypes does for a missing symbol.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any

from workbench.sim import physics
from workbench.sim.driver_state import SimState, SimulatedReading

SUCCESS, UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION = 0, 1, 2, 3, 4
NOT_FOUND, INSUFFICIENT_SIZE, GPU_IS_LOST, DEPRECATED, UNKNOWN = 6, 7, 15, 26, 999
CLOCK_GRAPHICS, CLOCK_SM, CLOCK_MEM, CLOCK_VIDEO = range(4)
DOUBLE, UNSIGNED_INT, UNSIGNED_LONG_LONG = 0, 1, 3
MIB = 1 << 20


class NvmlRefusal(Exception):
    """An NVML return code on its way out."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def _value(argument: Any) -> int:
    return int(getattr(argument, "value", argument))


def _put(target: Any, value: Any) -> None:
    getattr(target, "_obj", target).value = value


class SimulatedNvml:
    """Stands where `pynvml.nvmlLib` stands. Public names are NVML's; everything else starts with an underscore."""

    def __init__(self, state: SimState) -> None:
        self._state = state
        self._uuids = [state.profile.uuid(i) for i in range(state.profile.count)]
        self._entries: dict[str, Callable[..., int]] = {}

    def __getattr__(self, name: str) -> Callable[..., int]:
        if name not in self._entries:
            body = getattr(type(self), "_" + name, None) if name.startswith("nvml") else None
            if body is None or name in self._state.faults().get("missing", ()):
                raise AttributeError(f"undefined symbol: {name}")
            self._entries[name] = self._entry(name, body)
        return self._entries[name]

    def _entry(self, name: str, body: Callable[..., Any]) -> Callable[..., int]:
        def call(*arguments: Any) -> int:
            faults = self._state.faults()
            if faults:
                if faults.get("hang") in (name, "*"):
                    while True:
                        time.sleep(3600)
                if name in faults.get("codes", {}):
                    return int(faults["codes"][name])
            try:
                body(self, *arguments)
            except NvmlRefusal as refused:
                return refused.code
            return SUCCESS

        return call

    def _index(self, handle: Any) -> int:
        index = ctypes.c_size_t.from_buffer(handle).value - 1
        if not 0 <= index < self._state.profile.count:
            raise NvmlRefusal(INVALID_ARGUMENT)
        if index in self._state.faults().get("lost", ()):
            raise NvmlRefusal(GPU_IS_LOST)
        return index

    def _reading(self, handle: Any) -> SimulatedReading:
        return self._state.readings()[self._index(handle)]

    # -- library and system --------------------------------------------------------------------------------------

    def _nvmlInitWithFlags(self, _flags: Any = 0) -> None:
        code = int(self._state.faults().get("init", 0))
        if code:
            raise NvmlRefusal(code)

    _nvmlInit_v2 = _nvmlInitWithFlags

    def _nvmlShutdown(self) -> None:
        pass

    def _nvmlSystemGetDriverVersion(self, buffer: Any, _size: Any) -> None:
        _put(buffer, self._state.profile.driver_version.encode())

    def _nvmlSystemGetNVMLVersion(self, buffer: Any, _size: Any) -> None:
        _put(buffer, self._state.profile.nvml_version.encode())

    def _nvmlSystemGetCudaDriverVersion(self, out: Any) -> None:
        _put(out, self._state.profile.cuda_version)

    _nvmlSystemGetCudaDriverVersion_v2 = _nvmlSystemGetCudaDriverVersion

    # -- devices -------------------------------------------------------------------------------------------------

    def _nvmlDeviceGetCount_v2(self, out: Any) -> None:
        _put(out, self._state.profile.count)

    def _give(self, out: Any, index: int) -> None:
        if index in self._state.faults().get("lost", ()):
            raise NvmlRefusal(GPU_IS_LOST)
        ctypes.c_size_t.from_buffer(out._obj).value = index + 1

    def _nvmlDeviceGetHandleByIndex_v2(self, index: Any, out: Any) -> None:
        if not 0 <= _value(index) < self._state.profile.count:
            raise NvmlRefusal(INVALID_ARGUMENT)
        self._give(out, _value(index))

    def _nvmlDeviceGetHandleByUUID(self, uuid: Any, out: Any) -> None:
        text = getattr(uuid, "value", uuid)
        text = text.decode() if isinstance(text, bytes) else text
        if text not in self._uuids:
            raise NvmlRefusal(NOT_FOUND)
        self._give(out, self._uuids.index(text))

    def _nvmlDeviceGetHandleByPciBusId_v2(self, bus_id: Any, out: Any) -> None:
        text = getattr(bus_id, "value", bus_id)
        text = (text.decode() if isinstance(text, bytes) else text).upper()
        ids = [self._state.profile.bus_id(i) for i in range(self._state.profile.count)]
        if text not in ids:
            raise NvmlRefusal(NOT_FOUND)
        self._give(out, ids.index(text))

    def _nvmlDeviceGetIndex(self, handle: Any, out: Any) -> None:
        _put(out, self._index(handle))

    def _nvmlDeviceGetName(self, handle: Any, buffer: Any, _size: Any) -> None:
        self._index(handle)
        _put(buffer, self._state.profile.gpu.name.encode())

    def _nvmlDeviceGetUUID(self, handle: Any, buffer: Any, _size: Any) -> None:
        _put(buffer, self._uuids[self._index(handle)].encode())

    def _nvmlDeviceGetPciInfo_v3(self, handle: Any, out: Any) -> None:
        index, info = self._index(handle), out._obj
        text = self._state.profile.bus_id(index)
        info.busId, info.busIdLegacy = text.encode(), text[4:].encode()
        info.domain, info.bus, info.device = int(text[:8], 16), int(text[9:11], 16), 0

    def _nvmlDeviceGetCudaComputeCapability(self, handle: Any, major: Any, minor: Any) -> None:
        self._index(handle)
        _put(major, self._state.profile.gpu.compute_capability[0])
        _put(minor, self._state.profile.gpu.compute_capability[1])

    def _nvmlDeviceGetVirtualizationMode(self, handle: Any, out: Any) -> None:
        self._index(handle)
        _put(out, self._state.profile.virtualization)

    def _nvmlDeviceGetAddressingMode(self, handle: Any, out: Any) -> None:
        self._index(handle)
        out._obj.value = 2 if self._state.profile.gpu.unified_memory else 1

    def _nvmlDeviceGetEccMode(self, handle: Any, current: Any, pending: Any) -> None:
        self._index(handle)
        ecc = self._state.profile.gpu.ecc
        if ecc is None:
            raise NvmlRefusal(NOT_SUPPORTED)
        _put(current, int(ecc))
        _put(pending, int(ecc))

    def _nvmlDeviceGetMemoryBusWidth(self, handle: Any, out: Any) -> None:
        self._index(handle)
        _put(out, self._state.profile.gpu.bus_bits)

    def _nvmlDeviceGetNumaNodeId(self, handle: Any, out: Any) -> None:
        _put(out, self._state.profile.numa_node(self._index(handle)))

    def _nvmlDeviceGetPersistenceMode(self, handle: Any, out: Any) -> None:
        _put(out, int(self._reading(handle).setting.persistence))

    # -- clocks --------------------------------------------------------------------------------------------------

    def _clock_kind(self, kind: Any) -> int:
        number = _value(kind)
        if number not in range(4):
            raise NvmlRefusal(INVALID_ARGUMENT)
        if number == CLOCK_MEM and not self._state.profile.gpu.reports_memory_clock:
            raise NvmlRefusal(NOT_SUPPORTED)
        return number

    def _nvmlDeviceGetClockInfo(self, handle: Any, kind: Any, out: Any) -> None:
        point = self._reading(handle).point
        kind = self._clock_kind(kind)
        if kind == CLOCK_VIDEO:
            _put(out, round(point.sm_mhz * 0.87))
        else:
            _put(out, point.memory_mhz if kind == CLOCK_MEM else point.sm_mhz)

    def _nvmlDeviceGetMaxClockInfo(self, handle: Any, kind: Any, out: Any) -> None:
        self._index(handle)
        gpu, kind = self._state.profile.gpu, self._clock_kind(kind)
        if kind == CLOCK_VIDEO:
            _put(out, round(gpu.sm_max_mhz * 0.87))
        else:
            _put(out, gpu.memory_max_mhz if kind == CLOCK_MEM else gpu.sm_max_mhz)

    def _nvmlDeviceGetApplicationsClock(self, handle: Any, _kind: Any, _out: Any) -> None:
        self._index(handle)
        raise NvmlRefusal(DEPRECATED)

    _nvmlDeviceGetDefaultApplicationsClock = _nvmlDeviceGetApplicationsClock

    def _fill(self, values: list[int], count: Any, out: Any) -> None:
        """NVML's two-call pattern: too small a buffer answers with the size that is needed."""
        room = count._obj.value
        count._obj.value = len(values)
        if values and (out is None or room < len(values)):
            raise NvmlRefusal(INSUFFICIENT_SIZE)
        for i, value in enumerate(values):
            out[i] = value

    def _nvmlDeviceGetSupportedMemoryClocks(self, handle: Any, count: Any, out: Any) -> None:
        self._index(handle)
        if not self._state.profile.gpu.memory_steps_mhz:
            raise NvmlRefusal(NOT_SUPPORTED)
        self._fill(list(self._state.profile.gpu.memory_steps_mhz), count, out)

    def _nvmlDeviceGetSupportedGraphicsClocks(self, handle: Any, memory_mhz: Any, count: Any, out: Any) -> None:
        self._index(handle)
        gpu = self._state.profile.gpu
        if not gpu.memory_steps_mhz:
            raise NvmlRefusal(NOT_SUPPORTED)
        if _value(memory_mhz) not in gpu.memory_steps_mhz:
            raise NvmlRefusal(NOT_FOUND)
        steps = int((gpu.sm_max_mhz - gpu.sm_idle_mhz) / gpu.sm_step_mhz)
        self._fill([round(gpu.sm_max_mhz - i * gpu.sm_step_mhz) for i in range(steps + 1)], count, out)

    def _nvmlDeviceGetCurrentClocksEventReasons(self, handle: Any, out: Any) -> None:
        _put(out, self._reading(handle).point.reasons)

    def _nvmlDeviceGetSupportedClocksEventReasons(self, handle: Any, out: Any) -> None:
        self._index(handle)
        _put(out, 0x1FF)

    _nvmlDeviceGetCurrentClocksThrottleReasons = _nvmlDeviceGetCurrentClocksEventReasons
    _nvmlDeviceGetSupportedClocksThrottleReasons = _nvmlDeviceGetSupportedClocksEventReasons

    def _nvmlDeviceGetPerformanceState(self, handle: Any, out: Any) -> None:
        _put(out, self._reading(handle).point.pstate)

    def _nvmlDeviceGetUtilizationRates(self, handle: Any, out: Any) -> None:
        reading = self._reading(handle)
        unified = self._state.profile.gpu.unified_memory  # stuck at 0 there
        out._obj.gpu, out._obj.memory = reading.gpu_util_pct, 0 if unified else reading.point.memory_util_pct

    # -- power, energy, temperature ------------------------------------------------------------------------------

    def _nvmlDeviceGetPowerUsage(self, handle: Any, out: Any) -> None:
        _put(out, round(self._reading(handle).power_average_w * 1000))

    def _limit(self, handle: Any, watts: float | None, out: Any) -> None:
        self._index(handle)
        if watts is None:
            raise NvmlRefusal(NOT_SUPPORTED)
        _put(out, round(watts * 1000))

    def _nvmlDeviceGetPowerManagementLimit(self, handle: Any, out: Any) -> None:
        self._limit(handle, self._reading(handle).power_limit_w, out)

    _nvmlDeviceGetEnforcedPowerLimit = _nvmlDeviceGetPowerManagementLimit

    def _nvmlDeviceGetPowerManagementDefaultLimit(self, handle: Any, out: Any) -> None:
        self._limit(handle, self._state.profile.gpu.power_default_w, out)

    def _nvmlDeviceGetPowerManagementLimitConstraints(self, handle: Any, low: Any, high: Any) -> None:
        self._limit(handle, self._state.profile.gpu.power_min_w, low)
        self._limit(handle, self._state.profile.gpu.power_max_w, high)

    def _nvmlDeviceGetTotalEnergyConsumption(self, handle: Any, out: Any) -> None:
        _put(out, round(self._reading(handle).energy_j * 1000))

    def _nvmlDeviceGetTemperatureV(self, handle: Any, out: Any) -> None:
        reading = self._reading(handle)
        if out._obj.sensorType != 0:
            raise NvmlRefusal(INVALID_ARGUMENT)
        out._obj.temperature = round(reading.temperature_c)

    def _nvmlDeviceGetTemperature(self, handle: Any, sensor: Any, out: Any) -> None:
        if _value(sensor) != 0:
            raise NvmlRefusal(INVALID_ARGUMENT)
        _put(out, round(self._reading(handle).temperature_c))

    def _nvmlDeviceGetMarginTemperature(self, handle: Any, out: Any) -> None:
        margin = self._state.profile.gpu.slowdown_c - self._reading(handle).temperature_c
        out._obj.marginTemperature = round(margin)

    def _nvmlDeviceGetTemperatureThreshold(self, handle: Any, kind: Any, out: Any) -> None:
        self._index(handle)
        above = {0: 5.0, 1: 2.0, 3: 0.0}.get(_value(kind))
        if above is None or self._state.profile.gpu.unified_memory:
            raise NvmlRefusal(NOT_SUPPORTED)
        _put(out, round(self._state.profile.gpu.slowdown_c + above))

    def _nvmlDeviceGetFanSpeed(self, handle: Any, out: Any) -> None:
        reading = self._reading(handle)
        if not self._state.profile.gpu.fan:
            raise NvmlRefusal(NOT_SUPPORTED)
        _put(out, round(max(30.0, min(100.0, 30.0 + 1.4 * (reading.temperature_c - 50.0)))))

    # -- memory, PCIe, processes ---------------------------------------------------------------------------------

    def _nvmlDeviceGetMemoryInfo(self, handle: Any, out: Any) -> None:
        reading, gpu = self._reading(handle), self._state.profile.gpu
        if gpu.unified_memory:
            raise NvmlRefusal(NOT_SUPPORTED)
        info = out._obj
        info.total = gpu.memory_bytes
        info.used = reading.memory_used_bytes + gpu.reserved_mib * MIB
        info.free = info.total - info.used

    def _nvmlDeviceGetMemoryInfo_v2(self, handle: Any, out: Any) -> None:
        reading, gpu = self._reading(handle), self._state.profile.gpu
        if gpu.unified_memory:
            raise NvmlRefusal(NOT_SUPPORTED)
        info = out._obj
        info.total, info.reserved, info.used = gpu.memory_bytes, gpu.reserved_mib * MIB, reading.memory_used_bytes
        info.free = info.total - info.reserved - info.used

    def _pcie(self, handle: Any, out: Any, value: int) -> None:
        self._index(handle)
        _put(out, value)

    def _nvmlDeviceGetCurrPcieLinkGeneration(self, handle: Any, out: Any) -> None:
        idle = self._reading(handle).point.pstate >= 8
        self._pcie(handle, out, 1 if idle else self._state.profile.gpu.pcie_gen)

    def _nvmlDeviceGetCurrPcieLinkWidth(self, handle: Any, out: Any) -> None:
        self._pcie(handle, out, self._state.profile.gpu.pcie_width)

    def _nvmlDeviceGetMaxPcieLinkGeneration(self, handle: Any, out: Any) -> None:
        self._pcie(handle, out, self._state.profile.gpu.pcie_gen)

    _nvmlDeviceGetGpuMaxPcieLinkGeneration = _nvmlDeviceGetMaxPcieLinkGeneration
    _nvmlDeviceGetMaxPcieLinkWidth = _nvmlDeviceGetCurrPcieLinkWidth

    def _nvmlDeviceGetComputeRunningProcesses_v3(self, handle: Any, count: Any, out: Any) -> None:
        processes = self._reading(handle).processes
        room = count._obj.value
        count._obj.value = len(processes)
        if processes and (out is None or room < len(processes)):
            raise NvmlRefusal(INSUFFICIENT_SIZE)
        for i, process in enumerate(processes):
            out[i].pid, out[i].usedGpuMemory = process.pid, process.memory_bytes
            out[i].gpuInstanceId = out[i].computeInstanceId = 0xFFFFFFFF

    def _nvmlDeviceGetGraphicsRunningProcesses_v3(self, handle: Any, count: Any, _out: Any) -> None:
        self._index(handle)
        count._obj.value = 0

    _nvmlDeviceGetMPSComputeRunningProcesses_v3 = _nvmlDeviceGetGraphicsRunningProcesses_v3

    # -- field values --------------------------------------------------------------------------------------------

    def _nvmlDeviceGetFieldValues(self, handle: Any, count: Any, values: Any) -> None:
        reading = self._reading(handle)
        array, stamp = values._obj, int(time.time() * 1e6)
        for i in range(_value(count)):
            entry = array[i]
            entry.timestamp = stamp
            found = self._field(int(entry.fieldId), int(entry.scopeId), reading)
            if found is None:
                entry.nvmlReturn = NOT_SUPPORTED
                continue
            entry.nvmlReturn, entry.valueType = SUCCESS, found[0]
            if found[0] == UNSIGNED_INT:
                entry.value.uiVal = found[1]
            else:
                entry.value.ullVal = found[1]

    def _field(self, field: int, scope: int, reading: SimulatedReading) -> tuple[int, int] | None:
        """(value type, value) of one field id, or None where this board does not give it."""
        gpu = self._state.profile.gpu
        if scope != 0:
            return None
        watts = {
            185: reading.power_average_w,
            186: reading.power_instant_w,
            187: gpu.power_min_w,
            188: gpu.power_max_w,
            189: gpu.power_default_w,
            190: reading.power_limit_w,
            192: reading.power_limit_w,
        }
        if field in watts:
            value = watts[field]
            return None if value is None else (UNSIGNED_INT, round(value * 1000))
        if field in (83, 191):
            return UNSIGNED_LONG_LONG, round(reading.energy_j * 1000)
        return None

    # -- setters -------------------------------------------------------------------------------------------------

    def _set(self, handle: Any, **change: Any) -> None:
        index, faults = self._index(handle), self._state.faults()
        if faults.get("no_permission"):
            raise NvmlRefusal(NO_PERMISSION)
        kept = {k: v for k, v in change.items() if k not in faults.get("ignored", ())}
        if kept:
            self._state.change_setting(index, **kept)
        if index in [faults.get("lost_after", {}).get(name) for name in change]:
            self._state.set_faults(lost=[*faults.get("lost", ()), index], lost_after=None)

    def _nvmlDeviceSetPersistenceMode(self, handle: Any, mode: Any) -> None:
        self._set(handle, persistence=bool(_value(mode)))

    def _nvmlDeviceSetPowerManagementLimit(self, handle: Any, milliwatts: Any) -> None:
        gpu, watts = self._state.profile.gpu, _value(milliwatts) / 1000.0
        if gpu.power_min_w is None or gpu.power_max_w is None:
            raise NvmlRefusal(NOT_SUPPORTED)
        if not gpu.power_min_w <= watts <= gpu.power_max_w:
            raise NvmlRefusal(INVALID_ARGUMENT)
        self._set(handle, power_limit_w=None if watts == gpu.power_default_w else watts)

    def _nvmlDeviceSetGpuLockedClocks(self, handle: Any, low: Any, high: Any) -> None:
        low, high = _value(low), _value(high)
        symbolic = {physics.TDP_MHZ, physics.UNLIMITED_MHZ}
        if (low in symbolic) != (high in symbolic) or low > high:
            raise NvmlRefusal(INVALID_ARGUMENT)
        self._set(handle, gpu_lock_mhz=[low, high])

    def _nvmlDeviceResetGpuLockedClocks(self, handle: Any) -> None:
        self._set(handle, gpu_lock_mhz=None)

    def _nvmlDeviceSetMemoryLockedClocks(self, handle: Any, low: Any, high: Any) -> None:
        if not self._state.profile.gpu.memory_locks:
            raise NvmlRefusal(NOT_SUPPORTED)
        if _value(low) > _value(high):
            raise NvmlRefusal(INVALID_ARGUMENT)
        self._set(handle, memory_lock_mhz=[_value(low), _value(high)])

    def _nvmlDeviceResetMemoryLockedClocks(self, handle: Any) -> None:
        if not self._state.profile.gpu.memory_locks:
            raise NvmlRefusal(NOT_SUPPORTED)
        self._set(handle, memory_lock_mhz=None)

"""The simulated driver as NVML's C library for pynvml: functions with handles and byref()
arguments.

pynvml 13 calls `getattr(nvmlLib, name)(...)`. Handles are pointer objects, results go through
`ctypes.byref` (whose target is `._obj`), arrays and string buffers are passed directly, and every
function returns an NVML code. Struct fields are set by name, so that any binding with NVML's field
names works. A missing function raises AttributeError, like a missing symbol in ctypes.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from typing import Any

from workbench.sim import physics
from workbench.sim.driver_state import SimState, SimulatedReading
from workbench.sim.profiles import HostProfile

SUCCESS, UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION = 0, 1, 2, 3, 4
NOT_FOUND, INSUFFICIENT_SIZE, GPU_IS_LOST, DEPRECATED, UNKNOWN = 6, 7, 15, 26, 999
CLOCK_GRAPHICS, CLOCK_SM, CLOCK_MEM, CLOCK_VIDEO = range(4)
HOST_BRIDGE, SEVERAL_NODES = 30, 50
P2P_OK, P2P_NOT_OF_GPU, P2P_NOT_SUPPORTED = 0, 2, 5
P2P_NVLINK = 2
TIMEOUT, EVENT_XID = 10, 0x8
_VALUE_TYPES = {"dVal": 0, "uiVal": 1, "ullVal": 3}  # nvmlValueType_t
MIB = 1 << 20
INSTANCE_BITS = 16  # of a handle: those of the GPU; above them, those of a MIG instance


class NvmlRefusal(Exception):
    """Raised inside an NVML function to return an error code to the caller."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


# of a structure of numbers: pynvml's own functions look for a text in each
_attribute = object.__getattribute__
_set_attribute = object.__setattr__


def _value_of_argument(argument: Any) -> int:
    return int(getattr(argument, "value", argument))


def _text_of_argument(argument: Any) -> str:
    text = getattr(argument, "value", argument)
    return text.decode() if isinstance(text, bytes) else str(text)


def _write_output_argument(target: Any, value: Any) -> None:
    getattr(target, "_obj", target).value = value


def _write_output_arguments(targets: Sequence[Any], values: Sequence[Any]) -> None:
    if None in values:
        raise NvmlRefusal(NOT_SUPPORTED)
    for target, value in zip(targets, values):  # noqa: B905 (Python 3.9)
        _write_output_argument(target, value)


def _round_to_milliunits(value: float | None) -> int | None:
    return None if value is None else round(value * 1000)


def _fan_pct(profile: HostProfile, reading: SimulatedReading) -> int | None:
    if not profile.gpu.fan:
        return None
    return round(max(30.0, min(100.0, 30.0 + 1.4 * (reading.temperature_c - 50.0))))


# Functions that only read: the values of their results, in the order of the arguments. None is
# NOT_SUPPORTED.
_SYSTEM: dict[str, Callable[[HostProfile], tuple[Any, ...]]] = {
    "nvmlSystemGetDriverVersion": lambda p: (p.driver_version.encode(),),
    "nvmlSystemGetNVMLVersion": lambda p: (p.nvml_version.encode(),),
    "nvmlSystemGetCudaDriverVersion": lambda p: (p.cuda_version,),
    "nvmlDeviceGetCount_v2": lambda p: (p.count,),
}
_DEVICE: dict[str, Callable[[HostProfile, SimulatedReading], tuple[Any, ...]]] = {
    "nvmlDeviceGetIndex": lambda p, r: (r.index,),
    "nvmlDeviceGetName": lambda p, r: (p.gpu.name.encode(),),
    "nvmlDeviceGetUUID": lambda p, r: (p.uuid(r.index).encode(),),
    "nvmlDeviceGetCudaComputeCapability": lambda p, r: p.gpu.compute_capability,
    "nvmlDeviceGetVirtualizationMode": lambda p, r: (p.virtualization,),
    "nvmlDeviceGetAddressingMode": lambda p, r: (2 if p.gpu.unified_memory else 1,),
    "nvmlDeviceGetEccMode": lambda p, r: (p.gpu.ecc, p.gpu.ecc),
    "nvmlDeviceGetMemoryBusWidth": lambda p, r: (p.gpu.bus_bits,),
    "nvmlDeviceGetNumaNodeId": lambda p, r: (p.numa_node(r.index),),
    "nvmlDeviceGetPersistenceMode": lambda p, r: (int(r.setting.persistence),),
    "nvmlDeviceGetCurrentClocksEventReasons": lambda p, r: (r.point.reasons,),
    "nvmlDeviceGetSupportedClocksEventReasons": lambda p, r: (0x1FF,),
    "nvmlDeviceGetPerformanceState": lambda p, r: (r.point.pstate,),
    "nvmlDeviceGetPowerUsage": lambda p, r: (_round_to_milliunits(r.power_average_w),),
    "nvmlDeviceGetPowerManagementLimit": lambda p, r: (_round_to_milliunits(r.limit_w),),
    "nvmlDeviceGetPowerManagementDefaultLimit": lambda p, r: (
        _round_to_milliunits(p.gpu.power_default_w),
    ),
    "nvmlDeviceGetPowerManagementLimitConstraints": lambda p, r: (
        _round_to_milliunits(p.gpu.power_min_w),
        _round_to_milliunits(p.gpu.power_max_w),
    ),
    "nvmlDeviceGetTotalEnergyConsumption": lambda p, r: (_round_to_milliunits(r.energy_j),),
    "nvmlDeviceGetMigMode": lambda p, r: (1, 1) if p.mig else (None,),
    "nvmlDeviceGetMaxMigDeviceCount": lambda p, r: (7 if p.mig else 0,),
    "nvmlDeviceGetFanSpeed": lambda p, r: (_fan_pct(p, r),),
    "nvmlDeviceGetCurrPcieLinkGeneration": lambda p, r: (
        1 if r.point.pstate >= 8 else p.gpu.pcie_gen,
    ),
    "nvmlDeviceGetMaxPcieLinkGeneration": lambda p, r: (p.gpu.pcie_gen,),
    "nvmlDeviceGetCurrPcieLinkWidth": lambda p, r: (p.pcie_width or p.gpu.pcie_width,),
}
# Fields of nvmlDeviceGetFieldValues: the member of nvmlValue_t, and its value. None is
# NOT_SUPPORTED.
_FIELDS: dict[int, tuple[str, Callable[[HostProfile, SimulatedReading], int | None]]] = {
    83: ("ullVal", lambda p, r: _round_to_milliunits(r.energy_j)),
    185: ("uiVal", lambda p, r: _round_to_milliunits(r.power_average_w)),
    186: ("uiVal", lambda p, r: _round_to_milliunits(r.power_instant_w)),
    187: ("uiVal", lambda p, r: _round_to_milliunits(p.gpu.power_min_w)),
    188: ("uiVal", lambda p, r: _round_to_milliunits(p.gpu.power_max_w)),
    189: ("uiVal", lambda p, r: _round_to_milliunits(p.gpu.power_default_w)),
    190: ("uiVal", lambda p, r: _round_to_milliunits(r.limit_w)),
    191: ("ullVal", lambda p, r: _round_to_milliunits(r.energy_j)),
    192: ("uiVal", lambda p, r: _round_to_milliunits(r.limit_w)),
}
_NO_FIELD: tuple[str, Callable[[HostProfile, SimulatedReading], int | None]] = (
    "ullVal",
    lambda p, r: None,
)
# Functions for which the handle of a MIG instance is a GPU of its own.
_OF_INSTANCE: dict[str, Callable[[HostProfile, int, int], tuple[Any, ...]]] = {
    "nvmlDeviceGetUUID": lambda p, i, n: (p.mig_instance_uuid(i, n).encode(),),
    "nvmlDeviceGetName": lambda p, i, n: (f"{p.gpu.name} MIG {(p.mig or '?')[0]}".encode(),),
    "nvmlDeviceGetGpuInstanceId": lambda p, i, n: (n + 7,),
    "nvmlDeviceGetComputeInstanceId": lambda p, i, n: (0,),
}
_SAME_AS = {
    "nvmlSystemGetCudaDriverVersion_v2": "nvmlSystemGetCudaDriverVersion",
    "nvmlDeviceGetCurrentClocksThrottleReasons": "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetSupportedClocksThrottleReasons": "nvmlDeviceGetSupportedClocksEventReasons",
    "nvmlDeviceGetEnforcedPowerLimit": "nvmlDeviceGetPowerManagementLimit",
    "nvmlDeviceGetGpuMaxPcieLinkGeneration": "nvmlDeviceGetMaxPcieLinkGeneration",
    "nvmlDeviceGetMaxPcieLinkWidth": "nvmlDeviceGetCurrPcieLinkWidth",
}


class SimulatedNvml:
    """A replacement for `pynvml.nvmlLib`. Its public names are those of NVML functions; all other
    names start with an underscore."""

    def __init__(self, state: SimState) -> None:
        self._state = state
        self._uuids = [state.profile.uuid(i) for i in range(state.profile.count)]
        self._entries: dict[str, Callable[..., int]] = {}
        self._event_sets: list[int | None] = []  # the GPU of each set of events

    def __getattr__(self, name: str) -> Callable[..., int]:
        if name not in self._entries:
            body = self._find_implementation(name) if name.startswith("nvml") else None
            if body is None or name in self._state.faults().get("missing", ()):
                raise AttributeError(f"undefined symbol: {name}")
            self._entries[name] = self._make_entry_point(name, body)
        return self._entries[name]

    def _find_implementation(self, name: str) -> Callable[..., None] | None:
        """Return the Python function that implements the NVML function `name`. None if the
        simulated library lacks it."""
        name = _SAME_AS.get(name, name)
        whole = self._find_gpu_implementation(name)
        of_instance = _OF_INSTANCE.get(name)
        if whole is None or of_instance is None:
            return whole

        def call_for_gpu_or_instance(handle: Any, *results: Any) -> None:
            number = self._gpu_and_instance_of_handle(handle)
            if number is None:
                whole(handle, *results)
            else:
                _write_output_arguments(results, of_instance(self._state.profile, *number))

        return call_for_gpu_or_instance

    def _find_gpu_implementation(self, name: str) -> Callable[..., None] | None:
        """Return the Python function that implements the NVML function `name` for a whole GPU."""
        if name in _SYSTEM:
            return lambda *results: _write_output_arguments(
                results, _SYSTEM[name](self._state.profile)
            )
        if name in _DEVICE:
            return lambda handle, *results: _write_output_arguments(
                results, _DEVICE[name](self._state.profile, self._reading_of_handle(handle))
            )
        return getattr(self, "_" + name, None)

    def _make_entry_point(self, name: str, body: Callable[..., None]) -> Callable[..., int]:
        """Return a function that calls `body` and returns an NVML code. If a simulated fault
        requires this for the NVML function `name`, the function hangs or returns an error code
        instead."""

        def call_and_return_code(*arguments: Any) -> int:
            faults = self._state.faults()
            if faults:
                if faults.get("hang") in (name, "*"):
                    while True:
                        time.sleep(3600)
                if name in faults.get("codes", {}):
                    return int(faults["codes"][name])
            try:
                body(*arguments)
            except NvmlRefusal as refusal:
                return refusal.code
            return SUCCESS

        return call_and_return_code

    def _gpu_and_instance_of_handle(self, handle: Any) -> tuple[int, int] | None:
        """Return (index of the GPU, number of the instance on it) for the handle of a MIG instance;
        None for that of a whole GPU."""
        value = ctypes.c_size_t.from_buffer(handle).value
        number = value >> INSTANCE_BITS
        return ((value & ~(-1 << INSTANCE_BITS)) - 1, number - 1) if number else None

    def _index_of_handle(self, handle: Any) -> int:
        index = ctypes.c_size_t.from_buffer(handle).value - 1
        if index >> INSTANCE_BITS > 0:
            raise NvmlRefusal(NOT_SUPPORTED)
        if not 0 <= index < self._state.profile.count:
            raise NvmlRefusal(INVALID_ARGUMENT)
        if index in self._state.faults().get("lost", ()):
            raise NvmlRefusal(GPU_IS_LOST)
        return index

    def _reading_of_handle(self, handle: Any) -> SimulatedReading:
        return self._state.gpu_readings()[self._index_of_handle(handle)]

    # -- library and system ------------------------------------------------------------------------

    def _nvmlInitWithFlags(self, _flags: Any = 0) -> None:
        code = int(self._state.faults().get("init", 0))
        if code:
            raise NvmlRefusal(code)

    _nvmlInit_v2 = _nvmlInitWithFlags

    def _nvmlShutdown(self) -> None:
        pass

    # -- devices -----------------------------------------------------------------------------------

    def _write_handle(self, out: Any, index: int) -> None:
        if index in self._state.faults().get("lost", ()):
            raise NvmlRefusal(GPU_IS_LOST)
        ctypes.c_size_t.from_buffer(out._obj).value = index + 1

    def _nvmlDeviceGetHandleByIndex_v2(self, index: Any, out: Any) -> None:
        if not 0 <= _value_of_argument(index) < self._state.profile.count:
            raise NvmlRefusal(INVALID_ARGUMENT)
        self._write_handle(out, _value_of_argument(index))

    def _nvmlDeviceGetHandleByUUID(self, uuid: Any, out: Any) -> None:
        text = _text_of_argument(uuid)
        if text not in self._uuids:
            raise NvmlRefusal(NOT_FOUND)
        self._write_handle(out, self._uuids.index(text))

    def _nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Any, number: Any, out: Any) -> None:
        index, mig = self._index_of_handle(handle), self._state.profile.mig
        if mig is None or not 0 <= _value_of_argument(number) < mig[1]:
            raise NvmlRefusal(NOT_FOUND)
        value = (index + 1) | (_value_of_argument(number) + 1) << INSTANCE_BITS
        ctypes.c_size_t.from_buffer(out._obj).value = value

    def _nvmlDeviceGetHandleByPciBusId_v2(self, bus_id: Any, out: Any) -> None:
        text = _text_of_argument(bus_id).upper()
        ids = [self._state.profile.bus_id(i) for i in range(self._state.profile.count)]
        if text not in ids:
            raise NvmlRefusal(NOT_FOUND)
        self._write_handle(out, ids.index(text))

    def _nvmlDeviceGetPciInfo_v3(self, handle: Any, out: Any) -> None:
        index, info = self._index_of_handle(handle), out._obj
        text = self._state.profile.bus_id(index)
        info.busId, info.busIdLegacy = text.encode(), text[4:].encode()
        info.domain, info.bus, info.device = int(text[:8], 16), int(text[9:11], 16), 0

    def _nvmlDeviceGetTopologyCommonAncestor(self, one: Any, other: Any, out: Any) -> None:
        profile = self._state.profile
        nodes = {profile.numa_node(self._index_of_handle(handle)) for handle in (one, other)}
        _write_output_argument(out, HOST_BRIDGE if len(nodes) == 1 else SEVERAL_NODES)

    def _nvmlDeviceGetP2PStatus(self, one: Any, other: Any, kind: Any, out: Any) -> None:
        self._index_of_handle(one), self._index_of_handle(other)
        direct = self._state.profile.interconnect.custom_us is not None
        status = self._state.faults().get("p2p", P2P_OK if direct else P2P_NOT_OF_GPU)
        _write_output_argument(
            out, P2P_NOT_SUPPORTED if _value_of_argument(kind) == P2P_NVLINK else int(status)
        )

    # -- clocks ------------------------------------------------------------------------------------

    def _clock_mhz(self, kind: Any, sm_mhz: int, memory_mhz: int) -> int:
        """Return the clock of the kind that NVML numbers with `kind`, given the SM clock and the
        memory clock. Raises NvmlRefusal if there is no such clock."""
        number = _value_of_argument(kind)
        if number not in range(4):
            raise NvmlRefusal(INVALID_ARGUMENT)
        if number == CLOCK_VIDEO:
            return round(sm_mhz * 0.87)
        if number != CLOCK_MEM:
            return sm_mhz
        if not self._state.profile.gpu.reports_memory_clock:
            raise NvmlRefusal(NOT_SUPPORTED)
        return memory_mhz

    def _nvmlDeviceGetClockInfo(self, handle: Any, kind: Any, out: Any) -> None:
        point = self._reading_of_handle(handle).point
        _write_output_argument(out, self._clock_mhz(kind, point.sm_mhz, point.memory_mhz))

    def _nvmlDeviceGetMaxClockInfo(self, handle: Any, kind: Any, out: Any) -> None:
        self._index_of_handle(handle)
        gpu = self._state.profile.gpu
        _write_output_argument(out, self._clock_mhz(kind, gpu.sm_max_mhz, gpu.memory_max_mhz))

    def _nvmlDeviceGetApplicationsClock(self, handle: Any, _kind: Any, _out: Any) -> None:
        self._index_of_handle(handle)
        raise NvmlRefusal(DEPRECATED)

    _nvmlDeviceGetDefaultApplicationsClock = _nvmlDeviceGetApplicationsClock

    def _write_array(self, values: list[int], count: Any, out: Any) -> None:
        """Write `values` to the array `out` and their number to `count`. If the array is too small,
        write the required size to `count` and raise the NVML error for this."""
        self._require_buffer_size(len(values), count, out)
        for i, value in enumerate(values):
            out[i] = value

    def _require_buffer_size(self, needed: int, count: Any, out: Any) -> None:
        room = count._obj.value
        count._obj.value = needed
        if needed and (out is None or room < needed):
            raise NvmlRefusal(INSUFFICIENT_SIZE)

    def _nvmlDeviceGetSupportedMemoryClocks(self, handle: Any, count: Any, out: Any) -> None:
        self._index_of_handle(handle)
        if not self._state.profile.gpu.memory_steps_mhz:
            raise NvmlRefusal(NOT_SUPPORTED)
        self._write_array(list(self._state.profile.gpu.memory_steps_mhz), count, out)

    def _nvmlDeviceGetSupportedGraphicsClocks(
        self, handle: Any, memory_mhz: Any, count: Any, out: Any
    ) -> None:
        self._index_of_handle(handle)
        gpu = self._state.profile.gpu
        if not gpu.memory_steps_mhz:
            raise NvmlRefusal(NOT_SUPPORTED)
        if _value_of_argument(memory_mhz) not in gpu.memory_steps_mhz:
            raise NvmlRefusal(NOT_FOUND)
        steps = int((gpu.sm_max_mhz - gpu.sm_idle_mhz) / gpu.sm_step_mhz)
        self._write_array(
            [round(gpu.sm_max_mhz - i * gpu.sm_step_mhz) for i in range(steps + 1)], count, out
        )

    def _nvmlDeviceGetUtilizationRates(self, handle: Any, out: Any) -> None:
        reading = self._reading_of_handle(handle)
        if self._state.profile.mig:
            raise NvmlRefusal(NOT_SUPPORTED)
        unified = self._state.profile.gpu.unified_memory  # always 0 with unified memory
        out._obj.gpu, out._obj.memory = (
            reading.gpu_util_pct,
            0 if unified else reading.point.memory_util_pct,
        )

    # -- power, energy, temperature ----------------------------------------------------------------

    def _nvmlDeviceGetTemperatureV(self, handle: Any, out: Any) -> None:
        reading = self._reading_of_handle(handle)
        if out._obj.sensorType != 0:
            raise NvmlRefusal(INVALID_ARGUMENT)
        out._obj.temperature = round(reading.temperature_c)

    def _nvmlDeviceGetTemperature(self, handle: Any, sensor: Any, out: Any) -> None:
        if _value_of_argument(sensor) != 0:
            raise NvmlRefusal(INVALID_ARGUMENT)
        _write_output_argument(out, round(self._reading_of_handle(handle).temperature_c))

    def _nvmlDeviceGetMarginTemperature(self, handle: Any, out: Any) -> None:
        margin = self._state.profile.gpu.slowdown_c - self._reading_of_handle(handle).temperature_c
        out._obj.marginTemperature = round(margin)

    def _nvmlDeviceGetTemperatureThreshold(self, handle: Any, kind: Any, out: Any) -> None:
        self._index_of_handle(handle)
        above = {0: 5.0, 1: 2.0, 3: 0.0}.get(_value_of_argument(kind))
        if above is None or self._state.profile.gpu.unified_memory:
            raise NvmlRefusal(NOT_SUPPORTED)
        _write_output_argument(out, round(self._state.profile.gpu.slowdown_c + above))

    # -- memory, PCIe, processes -------------------------------------------------------------------

    def _nvmlDeviceGetMemoryInfo(self, handle: Any, out: Any) -> None:
        if self._gpu_and_instance_of_handle(handle) is not None:
            self._fill_instance_memory(out._obj)
            return
        reading, gpu = self._reading_of_handle(handle), self._state.profile.gpu
        if gpu.unified_memory:
            raise NvmlRefusal(NOT_SUPPORTED)
        info = out._obj
        info.total = gpu.memory_bytes
        info.used = reading.memory_used_bytes + gpu.reserved_mib * MIB
        info.free = info.total - info.used

    def _fill_instance_memory(self, info: Any) -> None:
        info.total, info.used = self._state.profile.mig_instance_bytes, 13 * MIB
        info.free = info.total - info.used

    def _nvmlDeviceGetMemoryInfo_v2(self, handle: Any, out: Any) -> None:
        if self._gpu_and_instance_of_handle(handle) is not None:
            self._fill_instance_memory(out._obj)
            return
        reading, gpu = self._reading_of_handle(handle), self._state.profile.gpu
        if gpu.unified_memory:
            raise NvmlRefusal(NOT_SUPPORTED)
        info = out._obj
        info.total, info.reserved, info.used = (
            gpu.memory_bytes,
            gpu.reserved_mib * MIB,
            reading.memory_used_bytes,
        )
        info.free = info.total - info.reserved - info.used

    def _nvmlDeviceGetComputeRunningProcesses_v3(self, handle: Any, count: Any, out: Any) -> None:
        processes = self._reading_of_handle(handle).processes
        self._require_buffer_size(len(processes), count, out)
        for i, process in enumerate(processes):
            out[i].pid, out[i].usedGpuMemory = process.pid, process.memory_bytes
            out[i].gpuInstanceId = out[i].computeInstanceId = 0xFFFFFFFF

    def _nvmlDeviceGetGraphicsRunningProcesses_v3(self, handle: Any, count: Any, _out: Any) -> None:
        self._index_of_handle(handle)
        count._obj.value = 0

    _nvmlDeviceGetMPSComputeRunningProcesses_v3 = _nvmlDeviceGetGraphicsRunningProcesses_v3

    # -- errors
    # --------------------------------------------------------------------------------------

    def _nvmlDeviceGetPcieReplayCounter(self, handle: Any, out: Any) -> None:
        index = self._reading_of_handle(handle).index
        if self._state.profile.gpu.unified_memory:
            raise NvmlRefusal(NOT_SUPPORTED)
        _write_output_argument(out, int(self._state.faults().get("replays", {}).get(str(index), 0)))

    def _nvmlEventSetCreate(self, out: Any) -> None:
        self._event_sets.append(None)
        ctypes.c_size_t.from_buffer(out._obj).value = len(self._event_sets)

    def _nvmlDeviceRegisterEvents(self, handle: Any, _types: Any, events: Any) -> None:
        number = ctypes.c_size_t.from_buffer(events).value
        self._event_sets[number - 1] = self._index_of_handle(handle)

    def _nvmlEventSetWait_v2(self, events: Any, data: Any, _timeout_ms: Any) -> None:
        index = self._event_sets[ctypes.c_size_t.from_buffer(events).value - 1]
        xid = self._state.faults().get("xid", {}).get(str(index))
        if xid is None:
            raise NvmlRefusal(TIMEOUT)
        data._obj.eventType, data._obj.eventData = EVENT_XID, int(xid)

    # -- field values ------------------------------------------------------------------------------

    def _nvmlDeviceGetFieldValues(self, handle: Any, count: Any, values: Any) -> None:
        reading, profile = self._reading_of_handle(handle), self._state.profile
        false_values = self._state.faults().get("fields", {})
        stamp = int(time.time() * 1e6)
        for entry in values._obj[: _value_of_argument(count)]:
            field = _attribute(entry, "fieldId")
            kind, read = _FIELDS.get(field, _NO_FIELD)
            value: float | None = read(profile, reading)
            if str(field) in false_values:
                kind, value = "dVal", float(false_values[str(field)])
            elif _attribute(entry, "scopeId"):
                value = None
            _set_attribute(entry, "timestamp", stamp)
            _set_attribute(entry, "nvmlReturn", NOT_SUPPORTED if value is None else SUCCESS)
            if value is not None:
                _set_attribute(entry, "valueType", _VALUE_TYPES[kind])
                setattr(_attribute(entry, "value"), kind, value)

    # -- setters -----------------------------------------------------------------------------------

    def _change_setting(self, handle: Any, **change: Any) -> None:
        index, faults = self._index_of_handle(handle), self._state.faults()
        if faults.get("no_permission"):
            raise NvmlRefusal(NO_PERMISSION)
        kept = {k: v for k, v in change.items() if k not in faults.get("ignored", ())}
        if kept:
            self._state.change_setting(index, **kept)
        if index in [faults.get("lost_after", {}).get(name) for name in change]:
            self._state.set_faults(lost=[*faults.get("lost", ()), index], lost_after=None)

    def _nvmlDeviceSetPersistenceMode(self, handle: Any, mode: Any) -> None:
        self._change_setting(handle, persistence=bool(_value_of_argument(mode)))

    def _nvmlDeviceSetPowerManagementLimit(self, handle: Any, milliwatts: Any) -> None:
        gpu, watts = self._state.profile.gpu, _value_of_argument(milliwatts) / 1000.0
        if gpu.power_min_w is None or gpu.power_max_w is None:
            raise NvmlRefusal(NOT_SUPPORTED)
        if not gpu.power_min_w <= watts <= gpu.power_max_w:
            raise NvmlRefusal(INVALID_ARGUMENT)
        self._change_setting(handle, limit_w=None if watts == gpu.power_default_w else watts)

    def _nvmlDeviceSetGpuLockedClocks(self, handle: Any, low: Any, high: Any) -> None:
        low, high = _value_of_argument(low), _value_of_argument(high)
        symbolic = {physics.TDP_MHZ, physics.UNLIMITED_MHZ}
        if (low in symbolic) != (high in symbolic) or low > high:
            raise NvmlRefusal(INVALID_ARGUMENT)
        self._change_setting(handle, gpu_lock_mhz=[low, high])

    def _nvmlDeviceResetGpuLockedClocks(self, handle: Any) -> None:
        self._change_setting(handle, gpu_lock_mhz=None)

    def _nvmlDeviceSetMemoryLockedClocks(self, handle: Any, low: Any, high: Any) -> None:
        if not self._state.profile.gpu.memory_locks:
            raise NvmlRefusal(NOT_SUPPORTED)
        if _value_of_argument(low) > _value_of_argument(high):
            raise NvmlRefusal(INVALID_ARGUMENT)
        self._change_setting(
            handle, memory_lock_mhz=[_value_of_argument(low), _value_of_argument(high)]
        )

    def _nvmlDeviceResetMemoryLockedClocks(self, handle: Any) -> None:
        if not self._state.profile.gpu.memory_locks:
            raise NvmlRefusal(NOT_SUPPORTED)
        self._change_setting(handle, memory_lock_mhz=None)

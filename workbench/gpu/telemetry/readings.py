"""The readings of one GPU, and the reasons for missing values. Workbench sends this module to the
host, so it needs nothing but pynvml and Python 3.8.

A value that the driver does not report is left out, and its reason is under `absent`, by the field
names of model/gpu.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import pynvml
from pynvml import NVML_SUCCESS, NVMLError

from workbench.gpu.telemetry import clock_event_reasons
from workbench.gpu.telemetry.nvml_library import (
    DRIVER_GONE,
    GPU_GONE,
    SETTLED,
    DriverDownError,
    GpuDownError,
    Nvml,
    nvml_error_text,
)
from workbench.gpu.telemetry.plausible_readings import (
    possible_value,
    remove_impossible_values,
    remove_placeholder_values,
)
from workbench.model import gpu_readings
from workbench.model.pcie_link import pcie_link_mb_s

TYPE_CHECKING = False  # typing is not imported on a host: it takes half a MiB
if TYPE_CHECKING:
    from typing import Any, Protocol

    from workbench.model.gpu_readings import Reading

    Call = tuple[str, str, tuple[int, ...], float, bool]

    class HostMemory(Protocol):
        memory_total_bytes: int | None

        def process_name(self, pid: int) -> str | None: ...

        def container_of_process(self, pid: int) -> str: ...


# NVML_VALUE_NOT_AVAILABLE is -1, which is this number in the 32 and 64 bits of an unsigned value.
NOT_AVAILABLE = (0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF)
POWER, POWER_AVERAGE = pynvml.NVML_FI_DEV_POWER_INSTANT, pynvml.NVML_FI_DEV_POWER_AVERAGE
ENERGY, MEMORY_HEAT = pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION, pynvml.NVML_FI_DEV_MEMORY_TEMP
PCIE_TX, PCIE_RX = pynvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES, pynvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES
FAST_FIELDS = (POWER, POWER_AVERAGE, ENERGY, PCIE_TX, PCIE_RX, MEMORY_HEAT)
# with the scope: pynvml raises and catches without it
FAST_FIELDS_OF_GPU = tuple((field, 0) for field in FAST_FIELDS)
# Degrees above the highest operating temperature, 0 or negative; Ada and later.
SLOWDOWN_T_LIMIT = pynvml.NVML_FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT
# names in full: remote_programs.py finds by them what another machine needs of pynvml
PROCESSES = (
    (
        "graphics",
        "graphics processes",
        "nvmlDeviceGetGraphicsRunningProcesses_v3",
        "nvmlDeviceGetGraphicsRunningProcesses_v2",
    ),
    (
        "compute",
        "processes",
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetComputeRunningProcesses_v2",
    ),
)
# in the order of nvmlValueType_t
VALUE_KINDS = tuple(field[0] for field in pynvml.c_nvmlValue_t._fields_)
VIRTUALIZATION = ("none", "passthrough", "vgpu", "host vgpu", "host vsga")
MOST_EVENTS = 16  # of one reading
ATS = 2  # NVML_DEVICE_ADDRESSING_MODE_ATS: the GPU uses the host's page tables
# pynvml's structures look for a text in each attribute
GET_FIELD_CODE = pynvml.c_nvmlFieldValue_t.nvmlReturn.__get__
GET_FIELD_KIND = pynvml.c_nvmlFieldValue_t.valueType.__get__
GET_FIELD_VALUE = pynvml.c_nvmlFieldValue_t.value.__get__


def declared_nvml_calls(readings: Iterable[Reading]) -> list[Call]:
    """Return (field, NVML function, its arguments, scale, whether it is a switch) of each of
    `readings` that one call of NVML returns. The others are left out."""
    calls = []
    for one in readings:
        if one.nvml:
            arguments = tuple(getattr(pynvml, name) for name in one.nvml[1:])
            calls.append((one.field, one.nvml[0], arguments, one.scale, one.switch))
    return calls


FAST_CALLS = declared_nvml_calls(one for one in gpu_readings.ALL if not one.seldom)
SLOW_CALLS = declared_nvml_calls(one for one in gpu_readings.ALL if one.seldom)
PROPERTIES = declared_nvml_calls(gpu_readings.PROPERTIES)


def nvml_field_value_and_type(slot: Any) -> tuple[Any, int]:
    """Return (value, nvmlValueType_t) of `slot`, an NVML structure with the value of one field."""
    kind = GET_FIELD_KIND(slot)
    name = VALUE_KINDS[kind] if kind < len(VALUE_KINDS) else "ullVal"
    return getattr(GET_FIELD_VALUE(slot), name), kind


class GpuReader:
    """Reads one GPU. It keeps the GPU's NVML handle, and remembers which values this GPU lacks."""

    def __init__(self, nvml: Nvml, index: int, host: HostMemory) -> None:
        self.nvml, self.index, self.host = nvml, index, host
        self.handle: Any = None
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
        self.replayed: tuple[float, int] | None = None  # PCIe packets, with the time of the reading
        self.events_of: Any = None  # the set of events with the errors of this GPU
        self.listens = False  # whether such a set was asked for
        self.instances: list[tuple[str, Any]] = []  # UUIDs and handles of the parts made with MIG
        # the supported ones: read once, they do not change
        self.clocks: dict[str, list[int]] | None = None

    def get_handle(self) -> None:
        """Get a fresh NVML handle of the GPU, by UUID once the UUID is known, because indices can
        change. Raises GpuDownError or DriverDownError if NVML returns none."""
        try:
            if self.uuid:
                self.handle = self.nvml.call("nvmlDeviceGetHandleByUUID", self.uuid.encode())
            else:
                self.handle = self.nvml.call("nvmlDeviceGetHandleByIndex", self.index)
        except NVMLError as error:
            if error.value in DRIVER_GONE:
                raise DriverDownError(error.value) from None
            raise GpuDownError(error.value) from None
        self.refused.clear()
        self.pcie.clear()
        self.replayed, self.events_of, self.listens = None, None, False
        self.clocks = None
        self.uuid = self.nvml.call_or_none("nvmlDeviceGetUUID", self.handle) or self.uuid
        self.name = self.nvml.call_or_none("nvmlDeviceGetName", self.handle) or self.name
        self.unified = self.shares_host_memory()

    def shares_host_memory(self) -> bool:
        """Return whether the GPU shares the host's memory. A GB10 does. Another GPU does if the
        driver does not support memory calls for it and its addressing mode is ATS."""
        if "GB10" in self.name:
            return True
        try:
            self.nvml.call("nvmlDeviceGetMemoryInfo", self.handle)
        except pynvml.NVMLError_NotSupported:
            return bool(self.nvml.call_or_none("nvmlDeviceGetAddressingMode", self.handle) == ATS)
        except NVMLError:
            pass
        return False

    def note_failed_call(self, field: str, code: int) -> None:
        """Record why the value `field` is missing, from `code`, NVML's return code. Raises
        GpuDownError or DriverDownError if `code` means that the GPU or the driver is lost."""
        if code in GPU_GONE:
            raise GpuDownError(code)
        if code in DRIVER_GONE:
            raise DriverDownError(code)
        if code in SETTLED:
            self.refused[field] = code
        else:
            self.bad = code
        self.absent[field] = nvml_error_text(code)

    def call_nvml_or_record_absence(self, field: str, name: str, *args: Any) -> Any:
        """Call the NVML function `name` and return its value. If it fails, put the reason into
        `absent` under `field`, and return None. A call that the driver will never accept is not
        repeated."""
        code = self.refused.get(field)
        if code is not None:
            self.absent[field] = nvml_error_text(code)
            return None
        try:
            return self.nvml.call(name, self.handle, *args)
        except NVMLError as error:
            self.note_failed_call(field, error.value)
        return None

    def call_newer_or_older_function(
        self, field: str, newer_call: tuple[Any, ...], older_call: tuple[Any, ...]
    ) -> Any:
        """Return the value of a newer NVML function, or of an older one if this driver or board
        does not have the newer one. If both fail, return None, and put the reason into `absent`
        under `field`. `newer_call` and `older_call` are (name of the function, arguments…)."""
        mark = "newer " + field
        if mark not in self.refused:
            value = self.call_nvml_or_record_absence(mark, *newer_call)
            why = self.absent.pop(mark, None)
            if mark not in self.refused:
                if why is not None:
                    self.absent[field] = why
                return value
        return self.call_nvml_or_record_absence(field, *older_call)

    def read_number(self, field: str, name: str, *args: Any, scale: float = 0) -> None:
        value = self.call_nvml_or_record_absence(field, name, *args)
        if value in NOT_AVAILABLE:
            self.absent[field] = "not available"
        elif value is not None:
            self.out[field] = round(value * scale, 3) if scale else value

    def read_declared_values(self, calls: list[Call]) -> None:
        """Make these calls of NVML, and store the value of each in `out`, or the reason why it is
        missing in `absent`."""
        for field, name, arguments, scale, switch in calls:
            self.read_number(field, name, *arguments, scale=scale)
            if switch and field in self.out:
                self.out[field] = bool(self.out[field])

    def collect_values(self, read: Callable[[], None]) -> dict[str, Any]:
        """Call `read`, which writes values to `self.out`, and return these values by field. The
        reasons of missing values are under "absent". Values that no GPU can have are removed."""
        self.out, self.absent = {}, {}
        read()
        remove_impossible_values(self.out, self.absent)
        if self.unified:
            remove_placeholder_values(self.out, self.absent)
        if self.absent:
            self.out["absent"] = self.absent
        return self.out

    def read_sample(self, now: float, with_slow_values: bool) -> dict[str, Any]:
        """Read the GPU once, at the time `now` in seconds, and return its values by name. With
        `with_slow_values`, also read the values that are read rarely. They and the reasons for
        missing ones are under "slow". Raises GpuDownError if the GPU cannot be read now."""
        self.bad = 0
        seldom = self.collect_values(self.read_slow_values) if with_slow_values else None
        if seldom is not None:
            self.link = (seldom.get("pcie_gen"), seldom.get("pcie_width"))
        sample = self.collect_values(lambda: self.read_fast_values(now))
        if self.bad and not any(
            key in sample for key in ("sm_mhz", "power_w", "temperature_c", "gpu_util_pct")
        ):
            raise GpuDownError(self.bad)
        if seldom is not None:
            sample["slow"] = seldom
        return sample

    def read_fast_values(self, now: float) -> None:
        self.read_declared_values(FAST_CALLS)
        self.read_number("pstate", "nvmlDeviceGetPerformanceState")
        if self.out.get("pstate", 0) > 15:  # NVML_PSTATE_UNKNOWN is 32
            del self.out["pstate"]
            self.absent["pstate"] = "unknown to the driver"
        self.read_field_values(now)
        self.read_utilization()
        self.read_memory()
        self.read_temperature()
        self.read_event_reasons()

    def read_field_values(self, now: float) -> None:
        """Read power, energy, PCIe traffic and memory temperature in one NVML call, in which each
        value has a return code of its own. Raises GpuDownError if the GPU is lost."""
        values: dict[int, tuple[Any, int]] = {}
        slots = self.call_nvml_or_record_absence(
            "fields", "nvmlDeviceGetFieldValues", FAST_FIELDS_OF_GPU
        )
        why = dict.fromkeys(FAST_FIELDS, self.absent.pop("fields", ""))
        for place, slot in enumerate(slots or ()):
            field, code = FAST_FIELDS[place], GET_FIELD_CODE(slot)
            if code == pynvml.NVML_ERROR_GPU_IS_LOST:
                raise GpuDownError(code)
            if code != NVML_SUCCESS:
                why[field] = nvml_error_text(code)
                continue
            found = nvml_field_value_and_type(slot)
            if found[0] in NOT_AVAILABLE:
                why[field] = "not available"
            else:
                values[field] = found
        self.store_power_and_energy(values, why)
        self.store_pcie_mbyte_per_s("pcie_tx_mb_s", values.get(PCIE_TX), why[PCIE_TX], now)
        self.store_pcie_mbyte_per_s("pcie_rx_mb_s", values.get(PCIE_RX), why[PCIE_RX], now)
        if MEMORY_HEAT in values:
            self.out["memory_temperature_c"] = values[MEMORY_HEAT][0]
        else:
            self.absent["memory_temperature_c"] = why[MEMORY_HEAT]

    def store_power_and_energy(
        self, values: dict[int, tuple[Any, int]], why_absent: dict[int, str]
    ) -> None:
        """Store power and energy from `values`, the (value, type) of each NVML field that was read.
        For a field that was not, call the older function, or store the reason in `why_absent`."""
        if POWER in values:
            self.out["power_w"] = round(values[POWER][0] * 0.001, 3)
        else:  # before Ampere, and on GA100, this is the instant itself; elsewhere a 1 s average
            self.read_number("power_w", "nvmlDeviceGetPowerUsage", scale=0.001)
        if POWER_AVERAGE in values:
            self.out["power_average_w"] = round(values[POWER_AVERAGE][0] * 0.001, 3)
        else:
            self.absent["power_average_w"] = why_absent[POWER_AVERAGE]
        if ENERGY in values:
            energy_mj = values[ENERGY][0]
        else:
            energy_mj = self.call_nvml_or_record_absence(
                "energy_j", "nvmlDeviceGetTotalEnergyConsumption"
            )
        if energy_mj in NOT_AVAILABLE:
            self.absent["energy_j"] = "not available"
        elif energy_mj is not None:
            self.out["energy_j"] = round(energy_mj * 0.001, 3)

    def store_pcie_mbyte_per_s(
        self, field: str, value: tuple[int, int] | None, why: str, now: float
    ) -> None:
        """Store under `field` the rate of a PCIe byte counter in MB/s, or the reason why the rate
        is unknown. `value` is (byte count, nvmlValueType_t) at the time `now` in seconds, or None
        if the counter could not be read, for the reason `why`. A counter of 32 bits may have passed
        its end between two readings."""
        if value is None:
            self.absent[field] = why
            return
        count, kind = value
        before_s, before_count = self.pcie.get(field, (now, count))
        self.pcie[field] = (now, count)
        if now <= before_s:
            self.absent[field] = "needs a second reading"
            return
        seconds, moved = now - before_s, count - before_count
        if kind == pynvml.NVML_VALUE_TYPE_UNSIGNED_INT:
            fastest = 1e6 * (pcie_link_mb_s(*self.link) or 0.0)
            if fastest * seconds >= 2**32:
                self.absent[field] = (
                    "the driver's 32-bit byte counter can wrap between two readings"
                )
                return
            moved %= 2**32
        if moved < 0:
            self.absent[field] = "the counter was reset"
        else:
            self.out[field] = round(moved / seconds / 1e6, 3)

    def read_utilization(self) -> None:
        field = "gpu_util_pct"
        rates = self.call_nvml_or_record_absence(field, "nvmlDeviceGetUtilizationRates")
        if rates is None:
            if self.instances:
                self.absent[field] = "not reported while MIG is on"
            self.absent["memory_util_pct"] = self.absent[field]
        else:
            self.out[field], self.out["memory_util_pct"] = rates.gpu, rates.memory

    def read_memory(self) -> Any:
        """Store the total and the used memory of the GPU. If the GPU shares the host's memory,
        store the host's total, and the memory of the GPU's processes as used. Return NVML's
        structure with the GPU's memory, None if there is none."""
        if self.unified:
            self.out["memory_total_bytes"] = self.host.memory_total_bytes
            if self.process_bytes is None:
                self.absent["memory_used_bytes"] = (
                    "unified memory, and the driver does not list processes"
                )
            else:
                self.out["memory_used_bytes"] = self.process_bytes
            return None
        name = "nvmlDeviceGetMemoryInfo"
        # version 2 does not count the part that the driver reserves as used
        info = self.call_newer_or_older_function(
            "memory_used_bytes", (name, pynvml.nvmlMemory_v2), (name,)
        )
        if info is None:
            self.absent["memory_total_bytes"] = self.absent["memory_used_bytes"]
        else:
            self.out["memory_used_bytes"], self.out["memory_total_bytes"] = info.used, info.total
        return info

    def read_temperature(self) -> None:
        value = self.call_newer_or_older_function(
            "temperature_c",
            ("nvmlDeviceGetTemperatureV", pynvml.NVML_TEMPERATURE_GPU),
            ("nvmlDeviceGetTemperature", pynvml.NVML_TEMPERATURE_GPU),
        )
        if value is not None:
            self.out["temperature_c"] = value

    def read_event_reasons(self) -> None:
        mask = self.call_newer_or_older_function(
            "event_reasons",
            ("nvmlDeviceGetCurrentClocksEventReasons",),
            ("nvmlDeviceGetCurrentClocksThrottleReasons",),
        )
        if mask in NOT_AVAILABLE:
            self.absent["event_reasons"] = "not available"
        elif mask is not None:
            self.out["event_reasons"] = clock_event_reasons.reasons_in_mask(mask)

    def read_slow_values(self) -> None:
        self.read_declared_values(SLOW_CALLS)
        self.read_pcie_replays()
        self.read_xid()
        self.read_processes()
        if not self.instances:
            return
        used: dict[str, int] = {}
        for uuid, handle in self.instances:
            memory = self.read_instance_memory(handle)
            if memory is not None:
                used[uuid] = memory.used
        self.out["instance_used_bytes"] = used

    def read_pcie_replays(self) -> None:
        """Store how many damaged packets the PCIe link has sent again: since the driver was loaded,
        and per minute since the last reading."""
        field = "pcie_replays_per_min"
        count = self.call_nvml_or_record_absence(field, "nvmlDeviceGetPcieReplayCounter")
        if count is None:
            self.absent["pcie_replay_count"] = self.absent[field]
            return
        self.out["pcie_replay_count"] = count
        now, before = time.monotonic(), self.replayed
        self.replayed = (now, count)
        if before is None or now <= before[0] or count < before[1]:
            self.absent[field] = "needs a second reading"
        else:
            self.out[field] = round(60 * (count - before[1]) / (now - before[0]), 1)

    def read_xid(self) -> None:
        """Store the number (Xid) of the newest error since the last call, 0 if there was none. If
        the driver reports no errors as events, store the reason."""
        if self.events_of is None:
            self.absent["xid"] = "the driver does not report errors as events"
            return
        self.out["xid"] = 0
        for _ in range(MOST_EVENTS):
            found = self.nvml.call_or_none("nvmlEventSetWait_v2", self.events_of, 0)
            if found is None:
                return
            self.out["xid"] = found.eventData

    def read_instance_memory(self, handle: Any) -> Any:
        """Return NVML's structure with the memory of a MIG instance. None if there is none, or if
        its numbers are impossible."""
        name = "nvmlDeviceGetMemoryInfo"
        found = self.nvml.call_or_none(
            name, handle, pynvml.nvmlMemory_v2
        ) or self.nvml.call_or_none(name, handle)
        if found is None:
            return None
        for number in (found.used, found.total):
            if possible_value("memory_used_bytes", number) is None:
                return None
        return found

    def read_instances(self) -> None:
        """Store whether the GPU is divided with MIG, and its instances. Of a GPU that has no MIG,
        store neither a value nor a reason."""
        self.instances = []
        modes = self.nvml.call_or_none("nvmlDeviceGetMigMode", self.handle)
        if modes is None:
            return
        self.out["mig"] = modes[0] == pynvml.NVML_DEVICE_MIG_ENABLE
        most = self.nvml.call_or_none("nvmlDeviceGetMaxMigDeviceCount", self.handle) or 0
        found = []
        for index in range(most if self.out["mig"] else 0):
            handle = self.nvml.call_or_none(
                "nvmlDeviceGetMigDeviceHandleByIndex", self.handle, index
            )
            uuid = None if handle is None else self.nvml.call_or_none("nvmlDeviceGetUUID", handle)
            if uuid is None:  # instances can have gaps in their numbers
                continue
            memory = self.read_instance_memory(handle)
            total = None if memory is None else memory.total
            name = self.nvml.call_or_none("nvmlDeviceGetName", handle) or ""
            found.append(
                {
                    "index": index,
                    "uuid": uuid,
                    "profile": name.rpartition("MIG ")[2] or "of unknown size",
                    "memory_total_bytes": total,
                }
            )
            self.instances.append((uuid, handle))
        self.out["instances"] = found

    def read_processes(self) -> None:
        found: dict[int, dict[str, Any]] = {}
        for kind, field, newer, older in PROCESSES:
            rows = self.call_newer_or_older_function(field, (newer,), (older,))
            if rows is None:
                if kind == "compute":
                    self.process_bytes = None
                    break
                continue
            for row in rows:
                found[row.pid] = {
                    "pid": row.pid,
                    "memory_bytes": possible_value("memory_used_bytes", row.usedGpuMemory),
                    "name": self.host.process_name(row.pid),
                    "kind": kind,
                    "place": self.host.container_of_process(row.pid),
                }
        else:
            self.out["processes"] = [found[pid] for pid in sorted(found)]
            known = (p["memory_bytes"] for p in found.values())
            self.process_bytes = sum(filter(None, known))
        # some GPUs have no graphics; compute decides what is known
        self.absent.pop("graphics processes", None)

    def read_properties(self) -> dict[str, Any]:
        self.refused.clear()  # ask again now and then for what was refused
        info = self.collect_values(self.read_static_properties)
        info.update(index=self.index, uuid=self.uuid, name=self.name, unified_memory=self.unified)
        return info

    def read_static_properties(self) -> None:
        self.read_declared_values(PROPERTIES)
        if self.clocks is None:
            self.clocks = self.read_supported_clocks()
        self.out.update(self.clocks)
        limits_mw = self.call_nvml_or_record_absence(
            "power_max_w", "nvmlDeviceGetPowerManagementLimitConstraints"
        )
        if limits_mw is None:
            self.absent["power_min_w"] = self.absent["power_max_w"]
        else:
            self.out["power_min_w"], self.out["power_max_w"] = (
                limits_mw[0] / 1000,
                limits_mw[1] / 1000,
            )
        self.read_reserved_memory()
        self.read_identity()
        self.read_instances()
        self.register_events()
        if self.slowdown_c is None:
            self.slowdown_c = self.read_slowdown_c()
        if self.slowdown_c is None:
            self.absent["temperature_slowdown_c"] = nvml_error_text(pynvml.NVML_ERROR_NOT_SUPPORTED)
        else:
            self.out["temperature_slowdown_c"] = self.slowdown_c

    def register_events(self) -> None:
        """Let the driver keep this GPU's errors for `read_xid`, once per handle. Do nothing if it
        refuses."""
        if self.listens:
            return
        self.listens = True
        try:
            events = self.nvml.call("nvmlEventSetCreate")
            kind = pynvml.nvmlEventTypeXidCriticalError
            self.nvml.call("nvmlDeviceRegisterEvents", self.handle, kind, events)
        except NVMLError:
            return
        self.events_of = events

    def read_supported_clocks(self) -> dict[str, list[int]]:
        """Return {"supported_memory_mhz": clocks, "supported_sm_mhz": clocks}: the clocks in MHz to
        which the GPU can be locked, ascending. The SM clocks are those at the highest memory clock.
        Clocks that no GPU can have are left out. {} if the driver lists none."""
        memory = self.nvml.call_or_none("nvmlDeviceGetSupportedMemoryClocks", self.handle)
        if not memory:
            return {}
        sm = self.nvml.call_or_none(
            "nvmlDeviceGetSupportedGraphicsClocks", self.handle, max(memory)
        )
        listed = {"memory_mhz": memory, "sm_mhz": sm or ()}
        return {
            "supported_" + name: sorted(
                {mhz for mhz in clocks if possible_value(name, mhz) is not None}
            )
            for name, clocks in listed.items()
        }

    def read_reserved_memory(self) -> None:
        reserved = getattr(self.read_memory(), "reserved", None)
        self.out.pop("memory_used_bytes", None)
        why = self.absent.pop("memory_used_bytes", None)
        if self.unified:
            self.absent["memory_reserved_bytes"] = "unified memory"
        elif reserved is not None:
            self.out["memory_reserved_bytes"] = reserved
        else:
            self.absent["memory_reserved_bytes"] = why or (
                "not known to this driver: it is part of the used bytes"
            )

    def read_identity(self) -> None:
        pci = self.call_nvml_or_record_absence("pci_bus_id", "nvmlDeviceGetPciInfo_v3")
        if pci is not None:
            self.out["pci_bus_id"] = pci.busId
        capability = self.call_nvml_or_record_absence(
            "compute_capability", "nvmlDeviceGetCudaComputeCapability"
        )
        if capability is not None:
            self.out["compute_capability"] = "{}.{}".format(*capability)
        mode = self.call_nvml_or_record_absence("virtualization", "nvmlDeviceGetVirtualizationMode")
        if mode is not None:
            self.out["virtualization"] = (
                VIRTUALIZATION[mode] if mode < len(VIRTUALIZATION) else f"mode {mode}"
            )
        ecc = self.call_nvml_or_record_absence("ecc", "nvmlDeviceGetEccMode")
        if ecc is not None:
            self.out["ecc"] = bool(ecc[0])

    def read_slowdown_c(self) -> float | None:
        """Return the temperature in °C at which the hardware slows itself. The driver reports it as
        a margin (Ada and later) or as a threshold. None if it reports neither."""
        limit = self.nvml.call_or_none(
            "nvmlDeviceGetFieldValues", self.handle, ((SLOWDOWN_T_LIMIT, 0),)
        )
        if limit is not None and limit[0].nvmlReturn == NVML_SUCCESS:
            margin = self.nvml.call_or_none("nvmlDeviceGetMarginTemperature", self.handle)
            now = possible_value("temperature_c", self.read_temperature_c())
            if margin is not None and now is not None:
                found = float(now + margin - nvml_field_value_and_type(limit[0])[0])
                if possible_value("temperature_slowdown_c", found) is not None:
                    return found
        threshold = self.nvml.call_or_none(
            "nvmlDeviceGetTemperatureThreshold",
            self.handle,
            pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN,
        )
        known = possible_value("temperature_slowdown_c", threshold)
        return None if known is None else float(known)

    def read_temperature_c(self) -> int | None:
        self.read_temperature()
        self.absent.pop("temperature_c", None)
        found: int | None = self.out.pop("temperature_c", None)
        return found

"""Readings of GPU temperatures and thermal limits for the guard. NVML is called through ctypes,
because the package pynvml would need 15 MB of memory. A thread makes the calls, because a driver
call can hang for ever.

Workbench sends this module to the host, so it uses only the standard library and Python 3.8. The
environment variable WORKBENCH_SIM_DRIVER names a Python file that replaces NVML, and
WORKBENCH_NVML_LIBRARY another NVML library.
"""

from __future__ import annotations

import ctypes
import math
import os
import threading
import time
from collections.abc import Callable

from workbench.gpu.telemetry.plausible_readings import possible_value, why_value_is_impossible

TYPE_CHECKING = False  # typing is not imported on a host: it takes half a MiB
if TYPE_CHECKING:
    from typing import Any

LIMIT_C = 85.0  # if the driver does not report its thermal limit
PLAUSIBLE_C = (50.0, 120.0)
RETRY_S = 10.0  # until the next try with an absent driver or a lost GPU
# nvml.h: nvmlTemperatureSensors_t, nvmlTemperatureThresholds_t,
# NVML_FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT
SENSOR_GPU, THRESHOLD_SLOWDOWN, SLOWDOWN_T_LIMIT = 0, 1, 194
CLOCKS = {"gpu_clocks": 1, "memory_clocks": 2}  # nvmlClockType_t of the clock that a lock acts on


class Temperature(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_uint),
        ("sensorType", ctypes.c_uint),
        ("temperature", ctypes.c_int),
    )


class Margin(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint), ("marginTemperature", ctypes.c_int))


class NvmlValue(ctypes.Union):
    _fields_ = (
        ("siVal", ctypes.c_int),
        ("uiVal", ctypes.c_uint),
        ("ullVal", ctypes.c_ulonglong),
        ("dVal", ctypes.c_double),
    )


class NvmlField(ctypes.Structure):
    _fields_ = (
        ("fieldId", ctypes.c_uint),
        ("scopeId", ctypes.c_uint),
        ("timestamp", ctypes.c_longlong),
        ("latencyUsec", ctypes.c_longlong),
        ("valueType", ctypes.c_int),
        ("nvmlReturn", ctypes.c_int),
        ("value", NvmlValue),
    )


class ImpossibleTemperatureError(Exception):
    """Raised if NVML reports success and a temperature that no GPU can have. The text of the
    exception is the reason."""


class NvmlCallError(Exception):
    """Raised if an NVML call fails. The argument of the exception is NVML's return code. It is 13
    if the library lacks the function."""


def load_nvml() -> Any:
    """Load NVML, and return the library, whose attributes are its C functions. Raises OSError if
    the library is missing."""
    path = os.environ.get("WORKBENCH_SIM_DRIVER")
    if path:
        import runpy

        return runpy.run_path(path)["library"]()
    return ctypes.CDLL(os.environ.get("WORKBENCH_NVML_LIBRARY") or "libnvidia-ml.so.1")


def make_versioned_structure(kind: Any) -> Any:
    made = kind()
    made.version = ctypes.sizeof(kind) | 1 << 24
    return made


class NvmlSensors:
    """Reads temperatures and limits of GPUs through NVML, from one initialization of NVML to the
    next."""

    def __init__(self) -> None:
        self.library = load_nvml()
        self.handles: dict[str, Any] = {}
        self.newer = True  # nvmlDeviceGetTemperatureV
        try:
            self.call_nvml("nvmlInitWithFlags", 0)
        except NvmlCallError:
            self.call_nvml("nvmlInit_v2")

    def call_nvml(self, name: str, *args: Any) -> None:
        """Call the function `name` of the NVML library. Raises NvmlCallError with its return code
        if that is not 0, and with 13 (function not found) if the library lacks the function."""
        try:
            function = getattr(self.library, name)
        except AttributeError:
            raise NvmlCallError(13) from None
        code = function(*args)
        if code:
            raise NvmlCallError(code)

    def gpu_handle(self, uuid: str) -> Any:
        """Return NVML's handle of the GPU `uuid`. NVML is asked once, and the handle is kept.
        Raises NvmlCallError if NVML refuses."""
        if uuid not in self.handles:
            made = ctypes.c_void_p()
            self.call_nvml(
                "nvmlDeviceGetHandleByUUID", ctypes.c_char_p(uuid.encode()), ctypes.byref(made)
            )
            self.handles[uuid] = made
        return self.handles[uuid]

    def temperature_c(self, uuid: str) -> int:
        """Return the temperature of the GPU `uuid` in °C. Raises ImpossibleTemperatureError if the
        driver reports a temperature that no GPU can have, and NvmlCallError if it reports none."""
        found = self.unchecked_temperature_c(uuid)
        if why := why_value_is_impossible("temperature_c", found):
            raise ImpossibleTemperatureError(why)
        return found

    def unchecked_temperature_c(self, uuid: str) -> int:
        """Return the temperature of the GPU `uuid` in °C as the driver reports it, which may be
        impossible. Raises NvmlCallError if NVML refuses."""
        handle = self.gpu_handle(uuid)
        if self.newer:
            reading = make_versioned_structure(Temperature)
            try:
                self.call_nvml("nvmlDeviceGetTemperatureV", handle, ctypes.byref(reading))
                return int(reading.temperature)
            except NvmlCallError as refused:
                # not supported, not known to this driver, another version
                if refused.args[0] not in (3, 13, 25):
                    raise
                self.newer = False
        value = ctypes.c_uint()
        self.call_nvml("nvmlDeviceGetTemperature", handle, SENSOR_GPU, ctypes.byref(value))
        return int(value.value)

    def slowdown_temperature_c(self, uuid: str) -> float:
        """Return the temperature in °C at which the driver slows the GPU `uuid` down. If the driver
        reports none, or only one outside PLAUSIBLE_C, return LIMIT_C."""
        for read_limit_c in (self.slowdown_by_margin_c, self.slowdown_by_threshold_c):
            try:
                found = read_limit_c(uuid)
            except (NvmlCallError, ImpossibleTemperatureError):
                continue
            if PLAUSIBLE_C[0] <= found <= PLAUSIBLE_C[1]:
                return found
        return LIMIT_C

    def slowdown_by_margin_c(self, uuid: str) -> float:
        """Return the slowdown temperature in °C: the present temperature, plus the margin to the
        limit, minus the margin at which the GPU slows down. Raises NvmlCallError if the driver
        reports no margin."""
        field, margin = NvmlField(), make_versioned_structure(Margin)
        field.fieldId = SLOWDOWN_T_LIMIT
        handle, fields = self.gpu_handle(uuid), (NvmlField * 1)(field)
        self.call_nvml("nvmlDeviceGetFieldValues", handle, 1, ctypes.byref(fields))
        if fields[0].nvmlReturn:
            raise NvmlCallError(fields[0].nvmlReturn)
        self.call_nvml("nvmlDeviceGetMarginTemperature", handle, ctypes.byref(margin))
        return float(self.temperature_c(uuid) + margin.marginTemperature - fields[0].value.siVal)

    def slowdown_by_threshold_c(self, uuid: str) -> float:
        """Return the slowdown temperature in °C that the driver reports as a threshold. Raises
        NvmlCallError if it reports none."""
        value = ctypes.c_uint()
        self.call_nvml(
            "nvmlDeviceGetTemperatureThreshold",
            self.gpu_handle(uuid),
            THRESHOLD_SLOWDOWN,
            ctypes.byref(value),
        )
        return float(value.value)

    def max_clock_mhz(self, uuid: str, clock: int) -> float | None:
        value = ctypes.c_uint()
        try:
            self.call_nvml(
                "nvmlDeviceGetMaxClockInfo", self.gpu_handle(uuid), clock, ctypes.byref(value)
            )
        except NvmlCallError:
            return None
        known = possible_value("sm_max_mhz", value.value)
        return None if known is None else float(known)


class TemperatureReader:
    """A thread that reads temperatures. Every `pace_s` seconds it reads the GPUs whose UUIDs are in
    `watched`. By UUID, `celsius` has their temperatures and `limits` their thermal limits in °C.
    `highest_mhz` has the highest clock in MHz by (UUID, key of the setting that locks this clock).
    `problem` says why some GPUs cannot be read, None if all can. `report_change` is called, in the
    thread, when a GPU reaches its limit or cools down, and when limits or the problem change."""

    def __init__(self, pace_s: float, report_change: Callable[[], None]) -> None:
        self.pace_s, self.report_change = pace_s, report_change
        self.watched: tuple[str, ...] = ()
        self.celsius: dict[str, int] = {}
        self.limits: dict[str, float] = {}
        self.highest_mhz: dict[tuple[str, str], float | None] = {}
        self.refusal: str | None = None
        self.wake = threading.Event()
        self.sensors: NvmlSensors | None = None
        self.reported: object = None  # what the last call of `report_change` was about
        self.asking_since = math.inf  # while no GPU is being asked

    def start(self) -> None:
        """Start the thread that reads temperatures. Call this after the guard's forks, because
        Python 3.13 starts no thread that was created before a fork."""
        threading.Thread(target=self.run, name="temperatures", daemon=True).start()

    def set_watched_gpus(self, uuids: tuple[str, ...]) -> None:
        if uuids != self.watched:
            self.watched = uuids
            for uuid in [u for u in self.celsius if u not in uuids]:
                self.celsius.pop(uuid, None)
            self.wake.set()

    def text_if_at_limit(self, uuid: str) -> str:
        """Return "reached 91 °C, its limit is 90 °C" if the GPU `uuid` is at its thermal limit,
        otherwise "", also if its temperature or its limit is unknown."""
        celsius, limit = self.celsius.get(uuid), self.limits.get(uuid)
        if celsius is None or limit is None or celsius < limit:
            return ""
        return f"reached {celsius} °C, its limit is {limit:g} °C"

    @property
    def problem(self) -> str | None:
        if time.monotonic() - self.asking_since > RETRY_S:
            return "temperatures are not watched: the driver does not answer"
        return self.refusal if self.watched else None

    def run(self) -> None:
        """Read the watched GPUs without end, at the pace of `pace_s` seconds; after a failure,
        every RETRY_S seconds."""
        while True:
            pause_s: float | None = None
            if self.watched:
                pause_s = self.pace_s if self.try_to_read_temperatures() else RETRY_S
            self.wake.wait(pause_s)
            self.wake.clear()

    def try_to_read_temperatures(self) -> bool:
        """Read the temperatures of all watched GPUs once, and return whether at least one GPU
        answered, if only with a temperature that no GPU can have."""
        self.asking_since, problem, answered = time.monotonic(), None, False
        for uuid in self.watched:
            try:
                self.sensors = self.sensors or NvmlSensors()
                self.celsius[uuid] = self.sensors.temperature_c(uuid)
                if uuid not in self.limits:
                    for lock, clock in CLOCKS.items():
                        self.highest_mhz[uuid, lock] = self.sensors.max_clock_mhz(uuid, clock)
                    self.limits[uuid] = self.sensors.slowdown_temperature_c(uuid)
                answered = True
            except (NvmlCallError, ImpossibleTemperatureError, OSError) as why:
                answered = answered or isinstance(why, ImpossibleTemperatureError)
                self.celsius.pop(uuid, None)
                problem = f"the temperature of {uuid} is not watched: {self.failure_text(why)}"
        if not answered:
            self.sensors = None  # a fresh start of NVML can help
        self.refusal, self.asking_since = problem, math.inf
        hot = list(filter(self.text_if_at_limit, self.watched))
        news = (problem, tuple(self.limits), hot)
        if news != self.reported:
            self.reported = news
            self.report_change()
        return answered

    def failure_text(self, why: Exception) -> str:
        if isinstance(why, NvmlCallError):
            return f"the driver answers NVML error {why.args[0]}"
        return str(why)

"""The part of NVML that the agent uses: constants and layouts as in nvml.h (NVML 13), and the library itself.

Sent to the host together with readings.py and agent.py: standard library only, Python 3.8 or later. The C library is
called directly: importing pynvml from source costs 18 MB and 0.1 s of CPU, and some of its functions drop the return
code. Arguments have the same forms as pynvml's, so that one simulated library serves both.
"""

# ruff: noqa: PTH123
# (pathlib is slow to import, and this runs on every host)

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from typing import Any

NOT_AVAILABLE_32 = 0xFFFFFFFF
NOT_AVAILABLE_64 = 0xFFFFFFFFFFFFFFFF

UNINITIALIZED, NOT_SUPPORTED, NO_PERMISSION, NOT_LOADED, NO_LIBRARY, NO_FUNCTION = 1, 3, 4, 9, 12, 13
LOST, RESET_REQUIRED, BLOCKED, MISMATCH, BAD_VERSION, DEPRECATED, NO_GPU, UNKNOWN = 15, 16, 17, 18, 25, 26, 28, 999
SETTLED = (NOT_SUPPORTED, NO_FUNCTION, BAD_VERSION, DEPRECATED)  # will not change until the driver does
REASONS = {
    -1: "not available", 1: "driver not initialised", 2: "invalid argument", 3: "not supported", 4: "no permission",
    6: "not found", 7: "insufficient size", 9: "driver not loaded", 10: "driver timed out", 11: "interrupt problem",
    12: "library not found", 13: "not known to this driver", 14: "corrupted infoROM", 15: "gpu is lost",
    16: "gpu needs a reset", 17: "blocked by the operating system", 18: "driver/library mismatch", 25: "wrong version",
    26: "deprecated", 28: "no gpu", 999: "unknown error",
}  # fmt: skip
EVENT_REASONS = (
    "GPU idle", "applications clocks setting", "SW power cap", "HW slowdown", "sync boost", "SW thermal slowdown",
    "HW thermal slowdown", "HW power brake slowdown", "display clock setting",
)  # fmt: skip
VIRTUALIZATION = ("none", "passthrough", "vgpu", "host vgpu", "host vsga")
PCIE_MB_S_PER_LANE = {1: 250.0, 2: 500.0, 3: 985.0, 4: 1969.0, 5: 3938.0, 6: 7563.0, 7: 15125.0}  # per direction
DRIVER_MESSAGES = {
    NOT_LOADED: ("no driver", "the NVIDIA driver is not loaded: load it (modprobe nvidia) or install it"),
    NO_LIBRARY: ("no library", "libnvidia-ml.so.1 was not found: no NVIDIA driver is installed here"),
    MISMATCH: (
        "driver/library mismatch",
        "the driver library and the loaded kernel module differ: reboot or reload the module; in a container, "
        "install the library version of the host's driver",
    ),
    NO_GPU: ("no gpu", "the driver runs but has no GPU"),
    NO_PERMISSION: ("no permission", "the driver refuses this user: see who may open /dev/nvidiactl and /dev/nvidia*"),
    BLOCKED: ("no permission", "the operating system or a device cgroup blocks /dev/nvidia*"),
    UNKNOWN: ("error", "Unknown Error; in a container its access to /dev/nvidia* may have been revoked: restart it"),
}
REVOKED = "the driver cannot be opened: access to /dev/nvidia* was revoked (device cgroup); restart the container"


STATES = {LOST: "lost", NO_PERMISSION: "no permission", BLOCKED: "no permission"}  # of one GPU; any other: "error"
STATE_MESSAGES = {
    LOST: "GPU is lost: it fell off the bus (XID 79 in the kernel log); a reset or a reboot of the host brings it back",
    RESET_REQUIRED: "the GPU needs a reset: nvidia-smi --gpu-reset, or reboot the host",
    NO_PERMISSION: "this user may not open the GPU",
    BLOCKED: "the operating system or a device cgroup blocks the GPU",
}


class Device(ctypes.Structure):
    """Opaque."""


DeviceHandle = ctypes.POINTER(Device)


def struct(name: str, *fields: tuple[str, Any]) -> Any:
    return type(name, (ctypes.Structure,), {"_fields_": list(fields)})


U32, U64 = ctypes.c_uint, ctypes.c_ulonglong
Utilization = struct("Utilization", ("gpu", U32), ("memory", U32))
Memory = struct("Memory", ("total", U64), ("free", U64), ("used", U64))
MemoryV2 = struct("MemoryV2", ("version", U32), ("total", U64), ("reserved", U64), ("free", U64), ("used", U64))
MEMORY_V2 = 0x02000028
Temperature = struct("Temperature", ("version", U32), ("sensorType", U32), ("temperature", ctypes.c_int))
TEMPERATURE_V1 = 0x0100000C
Margin = struct("Margin", ("version", U32), ("marginTemperature", ctypes.c_int))
AddressingMode = struct("AddressingMode", ("version", U32), ("value", U32))
VERSION_1_OF_8_BYTES = 0x01000008
Pci = struct(
    "Pci", ("busIdLegacy", ctypes.c_char * 16), ("domain", U32), ("bus", U32), ("device", U32), ("pciDeviceId", U32),
    ("pciSubSystemId", U32), ("busId", ctypes.c_char * 32),
)  # fmt: skip
Process = struct("Process", ("pid", U32), ("usedGpuMemory", U64), ("gpuInstanceId", U32), ("computeInstanceId", U32))


class Value(ctypes.Union):
    """In the order of nvmlValueType_t."""

    _fields_ = [
        ("dVal", ctypes.c_double),
        ("uiVal", U32),
        ("ulVal", ctypes.c_ulong),
        ("ullVal", U64),
        ("sllVal", ctypes.c_longlong),
        ("siVal", ctypes.c_int),
        ("usVal", ctypes.c_ushort),
    ]


VALUE_KINDS = tuple(field[0] for field in Value._fields_)


FieldValue = struct(
    "FieldValue", ("fieldId", ctypes.c_uint32), ("scopeId", ctypes.c_uint32), ("timestamp", ctypes.c_int64),
    ("latencyUsec", ctypes.c_int64), ("valueType", U32), ("nvmlReturn", U32), ("value", Value),
)  # fmt: skip
SM, MEM = U32(1), U32(2)  # nvmlClockType_t


class GpuDown(Exception):
    """This GPU cannot be read now; the others can."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class DriverGone(Exception):
    """The driver went away under us."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Nvml:
    """The library, its functions called by name. `doing` and `since` are read by the watching thread."""

    def __init__(self) -> None:
        self.lib: Any = None
        self.functions: dict[str, Callable[..., int]] = {}
        self.doing: str | None = None
        self.since = 0.0
        self.simulated = bool(os.environ.get("WORKBENCH_SIM_DRIVER"))
        self.host_file: Callable[[str], str | None] = read_text

    def load(self) -> int:
        if self.lib is not None:
            return 0
        self.since, self.doing = time.monotonic(), "loading libnvidia-ml"
        try:
            if self.simulated:
                self.load_simulated(os.environ["WORKBENCH_SIM_DRIVER"])
            else:
                self.lib = ctypes.CDLL(os.environ.get("WORKBENCH_NVML_LIBRARY") or "libnvidia-ml.so.1")
        except OSError:
            return NO_LIBRARY
        finally:
            self.doing = None
        return 0

    def load_simulated(self, path: str) -> None:
        import runpy

        space = runpy.run_path(path)
        self.lib = space["library"]()
        stand_in = space.get("host_file")
        if stand_in is not None:
            self.host_file = lambda name: stand_in(name) or read_text(name)

    def unload(self) -> None:
        """Forget the library. After an upgrade of the driver only a fresh mapping can agree with the kernel module."""
        if self.lib is not None and not self.simulated:
            import _ctypes

            _ctypes.dlclose(self.lib._handle)
        self.lib = None
        self.functions.clear()

    def call(self, name: str, *args: Any) -> int:
        function = self.functions.get(name)
        if function is None:
            function = getattr(self.lib, name, None) or no_such_function
            self.functions[name] = function
        self.since = time.monotonic()  # before `doing`, so that the watching thread never sees an old time
        self.doing = name
        code = function(*args)
        self.doing = None
        return code

    def first(self, *calls: tuple[Any, ...]) -> int:
        """The first call whose function this driver knows."""
        code = NO_FUNCTION
        for call in calls:
            code = self.call(*call)
            if code not in (NO_FUNCTION, BAD_VERSION, DEPRECATED):
                break
        return code

    def text(self, name: str, *args: Any) -> str | None:
        buffer = ctypes.create_string_buffer(96)  # NVML_DEVICE_NAME_V2_BUFFER_SIZE, the longest that we ask for
        return buffer.value.decode("utf-8", "replace") if self.call(name, *args, buffer, U32(96)) == 0 else None


def no_such_function(*_: Any) -> int:
    return NO_FUNCTION


def read_text(path: str) -> str | None:
    try:
        with open(path, "rb") as file:
            return file.read().decode("utf-8", "replace")
    except OSError:
        return None


def reason(code: int) -> str:
    return REASONS.get(code, f"NVML error {code}")


def state_message(code: int) -> str:
    return STATE_MESSAGES.get(code, f"the driver answers {reason(code)} (NVML error {code})")

"""NVML through pynvml (nvidia-ml-py): loads the library, makes calls that another thread can watch,
and gives texts for return codes.

pynvml's getters raise NVMLError with NVML's return code as `value`; a few getters lose the code and
are not used here. Compare errors by `value`, because pynvml's NVMLError objects can only be
compared with each other.

Workbench sends this module to the host, so it needs nothing but pynvml and Python 3.8.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable

import pynvml
from pynvml import (
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    NVML_ERROR_DEPRECATED,
    NVML_ERROR_DRIVER_NOT_LOADED,
    NVML_ERROR_FUNCTION_NOT_FOUND,
    NVML_ERROR_GPU_IS_LOST,
    NVML_ERROR_GPU_NOT_FOUND,
    NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    NVML_ERROR_LIBRARY_NOT_FOUND,
    NVML_ERROR_NO_PERMISSION,
    NVML_ERROR_NOT_FOUND,
    NVML_ERROR_NOT_SUPPORTED,
    NVML_ERROR_OPERATING_SYSTEM,
    NVML_ERROR_RESET_REQUIRED,
    NVML_ERROR_UNINITIALIZED,
    NVML_ERROR_UNKNOWN,
    NVMLError,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_READ_BYTES = 65536
SETTLED = (  # will not change until the driver does
    NVML_ERROR_NOT_SUPPORTED,
    NVML_ERROR_FUNCTION_NOT_FOUND,
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    NVML_ERROR_DEPRECATED,
)
GPU_GONE = (NVML_ERROR_GPU_IS_LOST, NVML_ERROR_RESET_REQUIRED)
DRIVER_GONE = (
    NVML_ERROR_UNINITIALIZED,
    NVML_ERROR_DRIVER_NOT_LOADED,
    NVML_ERROR_LIB_RM_VERSION_MISMATCH,
)
REASONS = {
    1: "driver not initialised",
    2: "invalid argument",
    3: "not supported",
    4: "no permission",
    6: "not found",
    7: "insufficient size",
    9: "driver not loaded",
    10: "driver timed out",
    11: "interrupt problem",
    12: "library not found",
    13: "not known to this driver",
    14: "corrupted infoROM",
    15: "gpu is lost",
    16: "gpu needs a reset",
    17: "blocked by the operating system",
    18: "driver/library mismatch",
    25: "wrong version",
    26: "deprecated",
    28: "no gpu",
    999: "unknown error",
}
DRIVER_MESSAGES = {
    NVML_ERROR_DRIVER_NOT_LOADED: (
        "no driver",
        "the NVIDIA driver is not loaded: load it (modprobe nvidia) or install it",
    ),
    NVML_ERROR_LIBRARY_NOT_FOUND: (
        "no library",
        "libnvidia-ml.so.1 was not found: no NVIDIA driver is installed here",
    ),
    NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
        "driver/library mismatch",
        "the driver library and the loaded kernel module differ: reboot or reload the module; in a "
        "container, "
        "install the library version of the host's driver",
    ),
    NVML_ERROR_GPU_NOT_FOUND: ("no gpu", "the driver runs but has no GPU"),
    NVML_ERROR_NO_PERMISSION: (
        "no permission",
        "the driver rejects this user: check who may open /dev/nvidiactl and /dev/nvidia*",
    ),
    NVML_ERROR_OPERATING_SYSTEM: (
        "no permission",
        "the operating system or a device cgroup blocks /dev/nvidia*",
    ),
    NVML_ERROR_UNKNOWN: (
        "error",
        "Unknown Error; a container's access to /dev/nvidia* may have been revoked: restart the "
        "container",
    ),
}
REVOKED = (
    "the driver cannot be opened: access to /dev/nvidia* was revoked (device cgroup); "
    "restart the container"
)

STATES = {  # of one GPU; any other: "error"
    NVML_ERROR_GPU_IS_LOST: "lost",
    NVML_ERROR_NO_PERMISSION: "no permission",
    NVML_ERROR_OPERATING_SYSTEM: "no permission",
}
STATE_MESSAGES = {
    NVML_ERROR_GPU_IS_LOST: "GPU is lost: it fell off the bus (XID 79 in the kernel log); "
    "a reset or a reboot of the host brings it back",
    NVML_ERROR_NOT_FOUND: "the GPU is gone: it was removed, or its access was revoked (`dmesg | grep "
    "-i nvrm` names the cause); the driver numbers the remaining GPUs anew",
    NVML_ERROR_RESET_REQUIRED: "the GPU needs a reset: nvidia-smi --gpu-reset, or reboot the host",
    NVML_ERROR_NO_PERMISSION: "this user may not open the GPU",
    NVML_ERROR_OPERATING_SYSTEM: "the operating system or a device cgroup blocks the GPU",
}


class GpuDownError(Exception):
    """Raised if one GPU cannot be read now while the others can; `code` is NVML's return code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class DriverDownError(Exception):
    """Raised if the driver was unloaded while it was in use; `code` is NVML's return code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Nvml:
    """Calls pynvml's functions by name. During a call, `doing` is the function's name and `since`
    the time of its start (time.monotonic()), so that another thread can detect a call that hangs.
    """

    def __init__(self) -> None:
        self.doing: str | None = None
        self.since = 0.0
        self.slowest = (0.0, "")  # the slowest call of the present reading, with its seconds
        self.simulated = bool(os.environ.get("WORKBENCH_SIM_DRIVER"))
        self.host_file: Callable[[str], str] = read_text

    def open(self) -> None:
        """Load NVML and initialize it. Raises NVMLError if the library is missing or cannot be
        initialized."""
        if pynvml.nvmlLib is None:
            self.load()
        try:
            self.call("nvmlInitWithFlags", 0)
        except pynvml.NVMLError_FunctionNotFound:  # a driver from before it; pynvml knows no other
            self.doing = "nvmlInit_v2"
            code = pynvml.nvmlLib.nvmlInit_v2()
            self.doing = None
            if code:
                raise NVMLError(code) from None

    def load(self) -> None:
        """Load the NVML library, or the simulated one, that WORKBENCH_NVML_LIBRARY or
        WORKBENCH_SIM_DRIVER names. If neither is set, do nothing, because pynvml then loads
        libnvidia-ml.so.1 itself. Raises NVMLError if the library cannot be loaded."""
        path = os.environ.get("WORKBENCH_NVML_LIBRARY")
        if self.simulated:
            self.load_simulated(os.environ["WORKBENCH_SIM_DRIVER"])
        elif path:
            try:
                pynvml.nvmlLib = ctypes.CDLL(path)
            except OSError:
                raise NVMLError(NVML_ERROR_LIBRARY_NOT_FOUND) from None

    def load_simulated(self, path: str) -> None:
        import runpy

        space = runpy.run_path(path)
        pynvml.nvmlLib = space["library"]()
        stand_in = space.get("host_file")
        if stand_in is not None:
            self.host_file = lambda name: stand_in(name) or read_text(name)

    def unload(self) -> None:
        """Unload the NVML library, which pynvml itself never does. After an upgrade of the driver,
        NVML must be loaded again to match the kernel module."""
        if pynvml.nvmlLib is not None and not self.simulated:
            import _ctypes

            _ctypes.dlclose(pynvml.nvmlLib._handle)
        pynvml.nvmlLib = None
        pynvml._nvmlGetFunctionPointer_cache.clear()

    def call(self, name: str, *args: Any) -> Any:
        """Call pynvml's function `name` and return its result. Raises NVMLError if the driver
        rejects the call or lacks the function."""
        # before `doing`, so that the watching thread never sees an old time
        self.since = time.monotonic()
        self.doing = name
        try:
            return getattr(pynvml, name)(*args)
        finally:
            self.doing = None
            took_s = time.monotonic() - self.since
            if took_s > self.slowest[0]:
                self.slowest = (took_s, name)

    def call_or_none(self, name: str, *args: Any) -> Any:
        """Call pynvml's function `name` and return its result. None if the call fails or if a text
        in the result is not UTF-8."""
        try:
            return self.call(name, *args)
        except (NVMLError, UnicodeDecodeError):
            return None


def read_text(path: str) -> str:
    """Return the text of a file of the kernel, "" if it cannot be read."""
    try:  # not with `open`, which makes objects and six system calls for each file
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        pieces = []
        while piece := os.read(file, _READ_BYTES):
            pieces.append(piece)
        return b"".join(pieces).decode("utf-8", "replace")
    except OSError:
        return ""
    finally:
        os.close(file)


def nvml_error_text(code: int) -> str:
    return REASONS.get(code, f"NVML error {code}")


def gpu_state_message(code: int) -> str:
    return STATE_MESSAGES.get(
        code, f"the driver answers {nvml_error_text(code)} (NVML error {code})"
    )

"""The telemetry agent: a small program that reads NVML and prints one JSON document per line.

The agent runs on the host that owns the GPUs. Workbench sends its source there, with the modules
that AGENT_PROGRAM names and pynvml; the host needs nothing but Python 3.8. One thread reads
NVML. Another thread reads stdin and reports a driver call that does not return.

stdout:  {"driver": {...}, "simulated": bool}      at start and when it has changed
         {"infos": [{...}]}                        at start and when it has changed (checked every 30 s)
         {"t", "u", "host": {...}, "gpus": [..]}   each interval; every 5 s, each GPU also has "slow" values;
                                                   "t" is the agent's monotonic clock, "u" the Unix
                                                   time, in seconds
         {"hung": function, "gpu": index, "for_s": s}  while a driver call does not return
stdin:   {"interval_s": x} | {"refresh": true} | {"quit": true}, one per line; end of file ends the agent.
         "refresh" asks for the infos and the slow values at once.
argv[1]: {"interval_s": 1.0, "hung_s": 3.0, "slow_s": 5.0, "info_s": 30.0, "retry_s": 3.0}
         "retry_s" is the pause before NVML is loaded again after a failure.

Environment: WORKBENCH_NVML_LIBRARY is the path of a library in place of libnvidia-ml.so.1.
WORKBENCH_SIM_DRIVER is a Python file whose library() returns an object with NVML's C functions, in
place of pynvml.nvmlLib. An optional host_file(path) -> str | None in that file replaces
/proc/meminfo and the CPU governors. WORKBENCH_SIM_SYSFS is a simulated host's /sys, with its CPU
cores.
"""

# ruff: noqa: PTH116, PTH123, PTH208
# (pathlib and glob are slow to import, typing takes half a MiB, and this runs on every host)

from __future__ import annotations

import json
import os
import select
import sys
import threading
import time
from collections.abc import Iterable

from pynvml import (
    NVML_ERROR_GPU_NOT_FOUND,
    NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    NVML_ERROR_NOT_FOUND,
    NVML_ERROR_UNKNOWN,
    NVMLError,
)

from workbench.gpu.telemetry.board_power import MISSING, BoardPower
from workbench.gpu.telemetry.nvml_library import (
    DRIVER_MESSAGES,
    REVOKED,
    STATES,
    DriverDownError,
    GpuDownError,
    Nvml,
    gpu_state_message,
    nvml_error_text,
)
from workbench.gpu.telemetry.readings import GpuReader
from workbench.model import core_values, process_container

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# processes, fan, persistence, PCIe link: what is dear to read or rarely changes
SLOW_INTERVAL_S = 5.0
PROPERTIES_INTERVAL_S = 30.0
LONG_READING_S = 1.0  # a reading that takes longer is reported
GONE_TEXT = (
    "gone since the start: {}. It was removed, or its access was revoked (`dmesg | grep -i "
    "nvrm` names the cause). The other GPUs are shown with the driver's new numbers"
)
HUNG_S = 3.0  # a call that takes longer is said to hang
DRIVER_CALLS = ("nvmlDeviceGetCount", "nvmlDeviceGetCount_v2")  # and of no GPU
RETRY_S = 3.0  # looking again for an absent driver or a lost GPU
INIT_PID_NAMESPACE = 4026531836  # PROC_PID_INIT_INO, include/linux/proc_ns.h
SYSFS = os.environ.get("WORKBENCH_SIM_SYSFS", "/sys")
CORES_DIRECTORY = SYSFS + "/devices/system/cpu"
PRESSURE_FILES = {
    "memory_pressure_pct": "/proc/pressure/memory",
    "io_pressure_pct": "/proc/pressure/io",
}


class HostReader:
    """Reads memory, CPU governor, C-states, load and process names of this machine."""

    def __init__(self, nvml: Nvml) -> None:
        self.nvml = nvml
        self.memory_total_bytes: int | None = None
        self.governor: str | None = None
        self.c_states: str | None = None
        self.cpu_count = os.cpu_count()
        self.pressure_pct: dict[str, float] = {}
        self.board = BoardPower(SYSFS, lambda path: nvml.host_file(path))
        self.of_board: dict[str, Any] = {}
        try:
            self.own_pids = (
                not nvml.simulated and os.stat("/proc/self/ns/pid").st_ino != INIT_PID_NAMESPACE
            )
        except OSError:
            self.own_pids = False

    def read_host_sample(self) -> dict[str, Any]:
        out: dict[str, Any] = {"load_1m": round(os.getloadavg()[0], 2), "cpu_count": self.cpu_count}
        absent: dict[str, str] = {}
        wanted = {"MemTotal": "memory_total_bytes", "MemAvailable": "memory_available_bytes"}
        for line in self.nvml.host_file("/proc/meminfo").splitlines():
            name, _, rest = line.partition(":")
            if name in wanted:
                out[wanted.pop(name)] = int(rest.split()[0]) * 1024
                if not wanted:
                    break
        for field in wanted.values():
            absent[field] = "not in /proc/meminfo"
        self.memory_total_bytes = out.get("memory_total_bytes")
        out.update(self.pressure_pct)
        for field in PRESSURE_FILES:
            if field not in out:
                absent[field] = "this kernel does not report it (no PSI)"
        out.update(self.of_board)
        if "prochot" not in out:
            absent["prochot"] = MISSING
        for field, value, lacks in (
            ("cpu_governor", self.governor, "cpufreq"),
            ("cpu_c_states", self.c_states, "cpuidle"),
        ):
            if value is None:
                absent[field] = f"no {lacks} here (virtual machine or container)"
            else:
                out[field] = value
        if absent:
            out["absent"] = absent
        return out

    def read_cores(self) -> None:
        """Count the CPU cores, and store their governor and their C-states, each as one text: the
        value that all cores have, or "mixed: powersave 30, performance 2" with the number of cores
        that have each value. None if no core has one."""
        self.cpu_count = os.cpu_count()
        try:
            names = os.listdir(CORES_DIRECTORY)
        except OSError:
            names = ["cpu0"]
        cores = [
            f"{CORES_DIRECTORY}/{name}"
            for name in names
            if name.startswith("cpu") and name[3:].isdecimal()
        ]
        self.governor = _format_common_or_mixed_values(map(self.read_governor, cores))
        self.c_states = _format_common_or_mixed_values(map(self.read_c_states, cores))

    def read_pressure(self) -> None:
        """Store in which percentage of the last 10 s all processes waited for memory, and in which
        for the disk. Store also what the board reports of its power."""
        self.pressure_pct = {}
        for field, path in PRESSURE_FILES.items():
            for line in self.nvml.host_file(path).splitlines():
                if line.startswith("full avg10="):
                    self.pressure_pct[field] = float(line.split()[1].partition("=")[2])
        self.of_board = self.board.read_power_sensors()

    def read_governor(self, core: str) -> str:
        """Return the governor of the core whose directory is `core`, "" if it cannot be read."""
        return self.nvml.host_file(f"{core}/cpufreq/scaling_governor").strip()

    def read_c_states(self, core: str) -> str | None:
        """Return the C-states of the core whose directory is `core`: "on", "off", or "off:2-3" if
        only some are off. None if they cannot be read."""
        texts: list[str] = []
        while text := self.nvml.host_file(f"{core}/cpuidle/state{len(texts)}/disable"):
            texts.append(text)
        return core_values.format_core_c_states(texts)

    def process_name(self, pid: int) -> str | None:
        """Return the name of the process `pid`. None if it has ended, or if this machine is a
        container, because NVML's process ids are those of the host around it."""
        if self.own_pids:
            return None
        try:
            with open(f"/proc/{pid}/comm", "rb") as file:
                return file.read().decode("utf-8", "replace").strip()
        except OSError:
            return None

    def container_of_process(self, pid: int) -> str:
        """Return the container that the process `pid` runs in, such as "docker:0123456789ab". "" if
        it runs in none, or if this machine is itself a container."""
        if self.own_pids:
            return ""
        try:
            with open(f"/proc/{pid}/cgroup") as file:
                return process_container.parse_container_of_process(file.read())
        except OSError:
            return ""


def _format_common_or_mixed_values(values: Iterable[str | None]) -> str | None:
    """Return the value that all of `values` have, apart from "" and None. If they differ, return
    "mixed: " and how often each occurs. None if there is no other value."""
    counts: dict[str, int] = {}
    for value in filter(None, values):
        counts[value] = counts.get(value, 0) + 1
    ordered = sorted(counts, key=lambda value: (-counts[value], value))
    if len(ordered) > 1:
        return "mixed: " + ", ".join(f"{value} {counts[value]}" for value in ordered)
    return ordered[0] if ordered else None


class MessageWriter:
    """Writes JSON documents to stdout, one per line, from two threads. The agent ends when the
    reader has closed stdout."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.text_of = json.JSONEncoder(separators=(",", ":")).encode

    def write_message(self, document: dict[str, Any], wait_s: float = -1) -> None:
        data = self.text_of(document).encode() + b"\n"
        if not self.lock.acquire(timeout=wait_s):
            return
        try:
            while data:
                data = data[os.write(1, data) :]
        except OSError:
            os._exit(0)
        finally:
            self.lock.release()


class Agent:
    """The agent: `run` samples the GPUs in one thread, `watch_stdin` reads stdin in another."""

    def __init__(
        self,
        interval_s: float = 1.0,
        hung_s: float = HUNG_S,
        slow_s: float = SLOW_INTERVAL_S,
        info_s: float = PROPERTIES_INTERVAL_S,
        retry_s: float = RETRY_S,
    ) -> None:
        self.interval_s, self.hung_s = interval_s, hung_s
        self.slow_s, self.info_s, self.retry_s = slow_s, info_s, retry_s
        self.nvml = Nvml()
        self.host = HostReader(self.nvml)
        self.output = MessageWriter()
        self.wake = threading.Event()
        self.open = False
        self.retry_at = self.slow_at = self.info_at = self.reopen_at = 0.0
        self.pressure_at = 0.0
        self.gpus: list[GpuReader] = []
        self.missing: dict[str, int] = {}  # GPUs that are gone, with their last index
        self.at: int | None = None  # the GPU that was asked last
        self.said_driver: dict[str, Any] | None = None
        self.said_infos: list[dict[str, Any]] | None = None

    def run(self) -> None:
        """Sample until the agent ends. An unexpected exception is written to stderr and ends the
        agent."""
        try:
            self.write_readings()
        except Exception as fault:
            os.write(2, f"{type(fault).__name__}: {fault}\n".encode())
            os._exit(70)  # EX_SOFTWARE, sysexits.h

    def write_readings(self) -> None:
        """Read the GPUs and write the reading, once per interval and for ever. Intervals count from
        the start, so that the pace does not drift. Missed intervals are skipped."""
        due = time.monotonic()
        while True:
            self.write_reading()
            due += self.interval_s
            now = time.monotonic()
            if due < now:
                due += ((now - due) // self.interval_s + 1) * self.interval_s
            if self.wake.wait(due - now):
                self.wake.clear()
                due = time.monotonic()

    def write_reading(self) -> None:
        now, wall = time.monotonic(), time.time()
        self.nvml.slowest = (0.0, "")
        gpus: list[dict[str, Any]] = []
        host: dict[str, Any] = {}
        try:
            if not self.open and now >= self.retry_at:
                self.open_driver()
            seldom = now >= self.info_at
            if seldom:
                self.host.read_cores()
                self.host.board.find_sensors()
            if now >= self.pressure_at:
                self.host.read_pressure()
                self.pressure_at = now + self.slow_s - self.interval_s / 2
            host = self.host.read_host_sample()
            if self.open:
                gpus = self.read_gpus(now)
            if seldom:
                self.info_at = now + self.info_s
        except DriverDownError as gone:
            self.close_driver(gone.code)
        document = {
            "t": round(now, 4),
            "u": round(wall, 3),
            "host": host or self.host.read_host_sample(),
            "gpus": gpus,
        }
        took_s = time.monotonic() - now
        if took_s > LONG_READING_S:
            document["took_s"] = round(took_s, 1)
            document["slowest"] = "{1} {0:.2f} s".format(*self.nvml.slowest)
        self.output.write_message(document)

    def open_driver(self) -> None:
        try:
            self.nvml.open()
            count = self.nvml.call("nvmlDeviceGetCount")
            code = 0 if count else NVML_ERROR_GPU_NOT_FOUND
        except NVMLError as error:
            code = error.value
        if code:
            self.close_driver(code)
            return
        now = time.monotonic()
        self.open = True
        self.slow_at = self.info_at = 0.0
        self.reopen_at = now + self.info_s
        before = {gpu.uuid: gpu.index for gpu in self.gpus if gpu.uuid}
        self.gpus = [GpuReader(self.nvml, index, self.host) for index in range(count)]
        for gpu in self.gpus:
            self.open_gpu(gpu, now)
        self.missing = {**self.missing, **before}
        for gpu in self.gpus:
            self.missing.pop(gpu.uuid, None)
        gone = [f"GPU{index} ({uuid})" for uuid, index in self.missing.items()]
        cuda = self.nvml.call_or_none("nvmlSystemGetCudaDriverVersion_v2")
        self.report_driver(
            {
                "status": "ok",
                "driver_version": self.nvml.call_or_none("nvmlSystemGetDriverVersion"),
                "cuda_version": None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
                "nvml_version": self.nvml.call_or_none("nvmlSystemGetNVMLVersion"),
                **({"message": GONE_TEXT.format(", ".join(gone))} if gone else {}),
            }
        )

    def close_driver(self, code: int) -> None:
        status, message = DRIVER_MESSAGES.get(
            code, ("error", f"the driver answered: {nvml_error_text(code)}")
        )
        if code == NVML_ERROR_UNKNOWN and is_driver_access_denied():
            status, message = "no permission", REVOKED
        self.report_driver({"status": status, "message": f"{message} (NVML error {code})"})
        self.nvml.call_or_none("nvmlShutdown")
        if code == NVML_ERROR_LIB_RM_VERSION_MISMATCH:
            self.nvml.unload()
        self.open = False
        self.gpus = []
        self.said_infos = None
        self.retry_at = time.monotonic() + self.retry_s

    def report_driver(self, driver: dict[str, Any]) -> None:
        if driver != self.said_driver:
            self.said_driver = driver
            self.output.write_message({"driver": driver, "simulated": self.nvml.simulated})

    def open_gpu(self, gpu: GpuReader, now: float) -> None:
        self.at = gpu.index
        try:
            gpu.get_handle()
            gpu.down = None
            self.info_at = 0.0
        except GpuDownError as down:
            self.mark_gpu_down(gpu, down.code, now)

    def mark_gpu_down(self, gpu: GpuReader, code: int, now: float) -> None:
        gpu.down, gpu.retry_at, gpu.fresh = code, now + self.retry_s, True

    def read_gpus(self, now: float) -> list[dict[str, Any]]:
        for gpu in self.gpus:
            if gpu.down is not None and now >= gpu.retry_at:
                self.open_gpu(gpu, now)
        if now >= self.info_at:
            self.reread_properties(now)
        slow = now >= self.slow_at
        if slow:
            # the tick nearest to the cadence
            self.slow_at = now + self.slow_s - self.interval_s / 2
        return [self.read_gpu(gpu, now, slow) for gpu in self.gpus]

    def read_gpu(self, gpu: GpuReader, now: float, slow: bool) -> dict[str, Any]:
        out: dict[str, Any] = {}
        self.at = gpu.index
        try:
            if gpu.down is None:
                out = gpu.read_sample(now, slow or gpu.fresh)
                gpu.fresh = False
        except GpuDownError as down:
            self.mark_gpu_down(gpu, down.code, now)
        if gpu.down is not None:
            out = {"state": STATES.get(gpu.down, "error"), "message": gpu_state_message(gpu.down)}
        out["index"], out["uuid"] = gpu.index, gpu.uuid
        return out

    def needs_restart(self) -> bool:
        """Return whether NVML must be started again, because a GPU was added or removed or because
        no GPU can be read. Raises DriverDownError if the driver does not answer."""
        try:
            count = self.nvml.call("nvmlDeviceGetCount")
        except NVMLError as error:
            raise DriverDownError(error.value) from None
        gone = any(gpu.down == NVML_ERROR_NOT_FOUND for gpu in self.gpus)
        return gone or count != len(self.gpus) or all(gpu.down is not None for gpu in self.gpus)

    def reread_properties(self, now: float) -> None:
        """Read those properties of the GPUs that rarely change. Start NVML again if GPUs were added
        or removed."""
        if now >= self.reopen_at and self.needs_restart():
            self.nvml.call_or_none("nvmlShutdown")
            self.open_driver()
            if not self.open:
                return
        for gpu in self.gpus:
            self.at = gpu.index
            try:
                if gpu.down is None:
                    gpu.known = gpu.read_properties()
            except GpuDownError as down:
                self.mark_gpu_down(gpu, down.code, now)
        infos = [
            gpu.known or {"index": gpu.index, "uuid": gpu.uuid, "name": gpu.name}
            for gpu in self.gpus
        ]
        if infos != self.said_infos:
            self.said_infos = infos
            self.output.write_message({"infos": infos})

    def watch_stdin(self) -> None:
        """Read requests from stdin for ever, and write a message about a driver call that does not
        return. The end of stdin ends the agent."""
        pending = b""
        said_at = 0.0
        while True:
            pause = max(0.05, min(2.0, self.hung_s / 2))
            if select.select([0], [], [], pause)[0]:
                data = os.read(0, 65536)
                if not data:
                    os._exit(0)  # not even a hung call is waited for
                *lines, pending = (pending + data).split(b"\n")
                for line in lines:
                    self.handle_request_line(line)
            doing, stuck_s, now = (
                self.nvml.doing,
                time.monotonic() - self.nvml.since,
                time.monotonic(),
            )
            if (
                doing is not None
                and stuck_s >= self.hung_s
                and now - said_at >= min(1.0, self.hung_s)
            ):
                said_at = now
                of_gpu = doing.startswith("nvmlDevice") and doing not in DRIVER_CALLS
                self.output.write_message(
                    {"hung": doing, "gpu": self.at if of_gpu else None, "for_s": round(stuck_s, 1)},
                    wait_s=0.1,
                )

    def handle_request_line(self, line: bytes) -> None:
        try:
            order = json.loads(line)
            if order.get("quit"):
                os._exit(0)
            self.interval_s = min(
                3600.0, max(0.05, float(order.get("interval_s", self.interval_s)))
            )
        except (ValueError, TypeError, AttributeError):
            return  # nobody can be told; the next line may be sound
        if order.get("refresh"):
            self.slow_at = self.info_at = 0.0
        self.wake.set()


def is_driver_access_denied() -> bool:
    """Return whether the kernel denies access to /dev/nvidiactl. NVML in a container reports this
    only as an unknown error."""
    try:
        os.close(os.open("/dev/nvidiactl", os.O_RDWR))
    except PermissionError:
        return True
    except OSError:
        pass
    return False


def main() -> None:
    agent = Agent(**(json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}))
    threading.Thread(target=agent.run, daemon=True).start()
    agent.watch_stdin()

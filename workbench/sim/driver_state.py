"""The state of the simulated driver: files in one directory, shared by all processes of the
simulated host.

    settings.json   the settings of each GPU
    loads/*.json    one file per running engine: its process (pid and start time) and its load on each GPU
    thermal.json    temperature and energy of each GPU at one moment; readers compute later values from these
    faults.json     simulated faults; the docstring of `set_faults` lists them

If the directory is writable for all users, the files are too: users then share the simulated GPUs.

Before a writer changes a file, it takes a lock (flock) and stores the current temperature and
energy. Power is therefore constant from one `thermal.json` to the next, and readers need not write
anything.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from workbench.model.lazy_dataclass import dataclass
from workbench.sim import physics, profiles
from workbench.sim.physics import GpuActivity, GpuSetting, OperatingPoint
from workbench.sim.profiles import HostProfile

SNAPSHOT_S = 0.02  # calls within this time get the same reading
ALIVE_CHECK_S = 0.2
_STAT_BYTES = 4096
STALE_S = 3.0  # a load that has not been refreshed for this long counts as idle


@dataclass(frozen=True)
class SimulatedProcess:
    pid: int
    memory_bytes: int


@dataclass(frozen=True)
class SimulatedReading:
    """The readings of a simulated GPU at one moment. Units are in the field names."""

    index: int
    setting: GpuSetting
    point: OperatingPoint
    power_instant_w: float
    power_average_w: float
    limit_w: float | None
    gpu_util_pct: int
    temperature_c: float
    energy_j: float
    memory_used_bytes: int
    processes: tuple[SimulatedProcess, ...]


class SimState:
    """The simulated GPUs of one host profile. Their state is in files of one directory. Frequent
    calls are cheap, because only files that changed are read again."""

    def __init__(self, directory: str, profile: HostProfile) -> None:
        self.directory = Path(directory)
        self.profile = profile
        self._loads_dir = self.directory / "loads"
        if not self._loads_dir.is_dir():
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._loads_dir.mkdir(mode=0o700, exist_ok=True)
            self._loads_dir.chmod(self.directory.stat().st_mode & 0o777)
            self._store_initial_thermal_state()
        self._paths = {
            name: self.directory / name for name in ("settings.json", "thermal.json", "faults.json")
        }
        self._cache: dict[str, tuple[tuple[int, int], dict[str, Any]]] = {}
        self._loads: list[dict[str, Any]] = []
        self._loads_mtime = -1
        self._alive_checked = 0.0
        self._moment = 0.0
        self._faults: dict[str, Any] = {}
        self._faults_moment = 0.0
        self._readings: tuple[SimulatedReading, ...] = ()
        self._points: dict[object, OperatingPoint] = {}
        self._thermal_stamp = (-1, 0)
        self._thermal: tuple[float, list[float], list[float]] = (0.0, [], [])

    def _store_initial_thermal_state(self) -> None:
        """Store the time from which all processes count the energy, unless one is stored. If each
        began to count when it first read, one could see less than another, as after a reload of the
        driver."""
        start = self.directory / "thermal.json"
        if not start.exists():
            _write_json(start, self._initial_thermal_state(time.time()))

    def _initial_thermal_state(self, now: float) -> dict[str, Any]:
        """Return the stored temperatures and energies of GPUs that have done nothing yet."""
        count = self.profile.count
        return {"unix_s": now, "c": [self.profile.gpu.ambient_c + 4.0] * count, "j": [0.0] * count}

    # -- reading -----------------------------------------------------------------------------------

    def gpu_readings(self) -> tuple[SimulatedReading, ...]:
        """Return the current readings of all GPUs. Further calls within `SNAPSHOT_S` (0.02) seconds
        return the same readings."""
        moment = time.monotonic()
        if moment - self._moment > SNAPSHOT_S or not self._readings:
            self._readings = self._read_gpus(time.time())
            self._moment = moment
        return self._readings

    def faults(self) -> dict[str, Any]:
        """Return the faults that are simulated now, by name. Their file is read at most once in
        `SNAPSHOT_S` (0.02) seconds. Callers must not change the dict."""
        moment = time.monotonic()
        if moment - self._faults_moment > SNAPSHOT_S:
            self._faults_moment = moment
            self._faults = self._read_json_file("faults.json")
        return self._faults

    def settings(self) -> tuple[GpuSetting, ...]:
        """Return the settings of all GPUs."""
        stored = self._read_json_file("settings.json")
        return tuple(
            _setting_from_stored(stored.get(str(i), {})) for i in range(self.profile.count)
        )

    def engine_memory_bytes(self, gpu_index: int) -> int:
        """Return the number of bytes that running engines use on one GPU."""
        self._reload_live_loads()
        return sum(p.memory_bytes for p in self._engine_processes(gpu_index))

    def _read_gpus(self, now: float) -> tuple[SimulatedReading, ...]:
        profile, settings = self.profile, self.settings()
        self._reload_live_loads()
        activities = [self._gpu_activity_at(i, now) for i in range(profile.count)]
        points = self._advance_simulation(now, settings, activities)
        _, temperatures, energies = self._thermal
        told_c = self.faults().get("celsius", {})
        readings = []
        for i, point in enumerate(points):
            key = f"{profile.name}/{i}"
            processes = self._engine_processes(i)
            util = point.gpu_util_pct
            if util > 2:
                util = max(
                    1, min(100, util - round(abs(physics.half_second_noise(key + "u", now, 2.0))))
                )
            readings.append(
                SimulatedReading(
                    index=i,
                    setting=settings[i],
                    point=point,
                    power_instant_w=point.power_w
                    * (1.0 + physics.half_second_noise(key + "i", now, 0.008)),
                    power_average_w=point.power_w
                    * (1.0 + physics.half_second_noise(key + "a", now, 0.002)),
                    limit_w=settings[i].power_limit_w(profile.gpu),
                    gpu_util_pct=util,
                    temperature_c=float(told_c.get(str(i), temperatures[i])),
                    energy_j=energies[i],
                    # of the loads that the clocks belong to: not read again meanwhile
                    memory_used_bytes=sum(process.memory_bytes for process in processes),
                    processes=processes,
                )
            )
        return tuple(readings)

    def _advance_simulation(
        self, now: float, settings: tuple[GpuSetting, ...], activities: list[GpuActivity]
    ) -> list[OperatingPoint]:
        """Return the clocks and the power of each GPU at the Unix time `now`. Temperature and
        energy are integrated from their last stored values to `now`, in time steps that double from
        1 s on."""
        profile = self.profile
        stored = self._read_json_file("thermal.json")
        stamp = self._cache["thermal.json"][0]
        if stamp != self._thermal_stamp or not self._thermal[1]:
            self._thermal_stamp = stamp
            before = dict(enumerate(self._thermal[2]))
            start = stored or self._initial_thermal_state(now)
            # energy never decreases, even if an engine was killed before it stored its last values
            joules = [max(float(j), before.get(i, 0.0)) for i, j in enumerate(start["j"])]
            self._thermal = (float(start["unix_s"]), list(map(float, start["c"])), joules)
        at, temperatures, energies = self._thermal
        faults = self.faults()
        points: list[OperatingPoint] = []
        for i in range(profile.count):
            celsius, joules_i, t, step = temperatures[i], energies[i], min(at, now), 1.0
            ambient_c = faults.get("ambient", {}).get(str(i))
            gpu = profile.gpu if ambient_c is None else replace(profile.gpu, ambient_c=ambient_c)
            while True:
                point = self._operating_point_of(settings[i], activities[i], celsius)
                span = min(step, now - t)
                if span <= 0.0:
                    break
                celsius = physics.temperature_after(gpu, celsius, point.power_w, span)
                joules_i += point.power_w * span
                t, step = t + span, step * 2
            temperatures[i], energies[i] = celsius, joules_i
            capped_mhz = faults.get("capped", {}).get(str(i))
            if capped_mhz is not None:
                point = replace(point, sm_mhz=min(point.sm_mhz, int(capped_mhz)))
            points.append(point)
        self._thermal = (now, temperatures, energies)
        return points

    def _operating_point_of(
        self, setting: GpuSetting, load: GpuActivity, celsius: float
    ) -> OperatingPoint:
        hot = celsius if celsius >= self.profile.gpu.slowdown_c else None
        key = (
            setting,
            load.busy,
            load.memory,
            load.compute,
            load.idle_s < physics.COOL_DOWN_S,
            hot,
        )
        if key not in self._points:
            if len(self._points) > 64:
                self._points.clear()
            self._points[key] = physics.operating_point(self.profile, setting, load, celsius)
        return self._points[key]

    def _reload_live_loads(self) -> None:
        """Read the loads again if their directory has changed, and drop those of processes that
        have ended. That is looked up at most once in ALIVE_CHECK_S seconds."""
        mtime = os.stat(self._loads_dir).st_mtime_ns  # noqa: PTH116 (as above)
        moment = time.monotonic()
        if mtime != self._loads_mtime:
            self._loads_mtime = mtime
            files = sorted(self._loads_dir.glob("*.json"))
            self._loads = list(filter(None, map(_read_json, files)))
        elif moment - self._alive_checked < ALIVE_CHECK_S:
            return
        self._alive_checked = moment
        self._loads = [
            load
            for load in self._loads
            if process_start_ticks(int(load["pid"])) == load["start_ticks"]
        ]

    def _gpu_activity_at(self, gpu: int, now: float) -> GpuActivity:
        """Return the activity of all loads together on the GPU with this index, at the Unix time
        `now`."""
        total = physics.IDLE_ACTIVITY
        for load in self._loads:
            part = load["gpus"].get(str(gpu))
            if not part:
                continue
            age = max(0.0, now - float(load["unix_s"]))
            if part["busy"] > 0.0 and age < STALE_S:
                total = total.plus(GpuActivity(part["busy"], part["memory"], part["compute"], 0.0))
            elif load.get("active_unix_s"):
                total = total.plus(GpuActivity(idle_s=max(0.0, now - float(load["active_unix_s"]))))
        return total

    def _engine_processes(self, gpu: int) -> tuple[SimulatedProcess, ...]:
        key = str(gpu)
        return tuple(
            SimulatedProcess(int(load["pid"]), int(load["gpus"][key]["memory_bytes"]))
            for load in self._loads
            if key in load["gpus"]
        )

    def _read_json_file(self, name: str) -> dict[str, Any]:
        """Return the JSON object in a file of `_paths`; {} if there is none. It is read again only
        if it has changed."""
        path = self._paths[name]
        try:
            status = os.stat(path)  # noqa: PTH116 (pathlib takes twice as long)
            stamp = (status.st_mtime_ns, status.st_ino)
        except OSError:
            stamp = (0, 0)
        cached = self._cache.get(name)
        if cached is None or cached[0] != stamp:
            cached = self._cache[name] = (stamp, _read_json(path))
        return cached[1]

    # -- writing -----------------------------------------------------------------------------------

    def change_setting(self, gpu: int, **changes: Any) -> None:
        """Change fields of the `GpuSetting` of one GPU. The value None restores the default of the
        field."""
        with self._lock_and_store_thermal_state():
            stored = dict(self._read_json_file("settings.json"))
            mine = dict(stored.get(str(gpu), {}))
            for name, value in changes.items():
                name_in_file = _NAME_IN_FILE.get(name, name)
                if value is None:
                    mine.pop(name_in_file, None)
                else:
                    mine[name_in_file] = value
            stored[str(gpu)] = mine
            _write_json(self._paths["settings.json"], stored)
        self._readings = ()

    def publish_load(
        self,
        pid: int,
        loads_by_gpu: Mapping[int, Mapping[str, float]],
        *,
        active_unix_s: float | None = None,
    ) -> None:
        """Store the load of process `pid`. `loads_by_gpu` has for each GPU index the memory in
        bytes ("memory_bytes") and the shares of time, 0 to 1, in which the GPU is busy ("busy"),
        reads memory ("memory") and computes ("compute"). `active_unix_s` is when the process last
        used a GPU; None if it never did."""
        load = {
            "pid": pid,
            "start_ticks": process_start_ticks(pid),
            "unix_s": time.time(),
            "active_unix_s": active_unix_s,
            "gpus": {str(i): dict(part) for i, part in loads_by_gpu.items()},
        }
        with self._lock_and_store_thermal_state():
            _write_json(self._loads_dir / f"{pid}.json", load)
        self._readings = ()

    def withdraw_load(self, pid: int) -> None:
        """Delete the stored load of process `pid`, if it has one."""
        with self._lock_and_store_thermal_state(), contextlib.suppress(FileNotFoundError):
            (self._loads_dir / f"{pid}.json").unlink()
        self._readings = ()

    def set_faults(self, **faults: Any) -> None:
        """Set simulated faults of the driver, each by a keyword. None or an empty value removes a
        fault.

        lost=[1]                  GPU 1 has fallen off the bus: every call on it returns GPU_IS_LOST
        lost_after={"limit_w": 1}  GPU 1 falls off the bus right after a change of the setting "limit_w"
        init=18                   nvmlInit returns this NVML code (9 no driver, 18 wrong version, 4 or 17 no permission)
        no_permission=True        functions that change settings return NO_PERMISSION, as without CAP_SYS_ADMIN
        ignored=["limit_w"]       changes of these settings return success and have no effect
        hang="nvmlDeviceGetPowerUsage"  this function never returns ("*": any function)
        codes={"nvmlDeviceGetFanSpeed": 3}  these functions return this NVML code
        celsius={"0": 95}         GPU 0 reports this temperature
        fields={"186": "nan"}     these field values are this floating-point number
        ambient={"0": 60}         the air around GPU 0 has this temperature
        capped={"0": 700}         the SM clock of GPU 0 stays at this value or below, without a reason
        replays={"0": 12}         the PCIe link of GPU 0 has sent so many packets again
        xid={"0": 79}             GPU 0 reports this error in each reading
        pressure=30               all processes of the host wait for memory in 30 % of the time
        missing=["nvmlDeviceGetTemperatureV"]  the driver's library lacks these functions
        p2p=4                     the driver gives this NVML status for the access between each two GPUs
        copies={"hang": [[0, 1]]}  the trial of copies between GPUs fails; sim/stand_in/torch lists
        the ways
        """
        with self._lock_and_store_thermal_state():
            stored = {**self._read_json_file("faults.json"), **faults}
            _write_json(self._paths["faults.json"], {k: v for k, v in stored.items() if v})
        self._faults_moment = 0.0

    @contextlib.contextmanager
    def _lock_and_store_thermal_state(self) -> Iterator[None]:
        handle = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            with contextlib.suppress(PermissionError):  # another user created it
                os.fchmod(handle, self.directory.stat().st_mode & 0o666)
            fcntl.flock(handle, fcntl.LOCK_EX)
            self._loads_mtime = -1
            self._read_gpus(time.time())
            at, celsius, joules = self._thermal
            _write_json(self._paths["thermal.json"], {"unix_s": at, "c": celsius, "j": joules})
            self._delete_loads_of_ended_processes()
            yield
        finally:
            os.close(handle)

    def _delete_loads_of_ended_processes(self) -> None:
        alive = {f"{load['pid']}.json" for load in self._loads}
        for path in self._loads_dir.glob("*.json"):
            if path.name not in alive:
                with contextlib.suppress(FileNotFoundError):
                    path.unlink()


def sim_state_from_environment() -> SimState:
    """Return the state of the simulated host that the environment variables WORKBENCH_SIM_PROFILE
    and WORKBENCH_SIM_STATE select.
    """
    try:
        name, directory = os.environ["WORKBENCH_SIM_PROFILE"], os.environ["WORKBENCH_SIM_STATE"]
    except KeyError as missing:
        raise SystemExit(
            f"simulated host: the environment variable {missing.args[0]} is not set"
        ) from None
    try:
        return SimState(directory, profiles.get_profile(name))
    except KeyError as unknown:
        raise SystemExit(f"simulated host: {unknown.args[0]}") from None


def process_start_ticks(pid: int) -> int | None:
    """Return the start time of a process in clock ticks since boot (field 22 of /proc/PID/stat).
    None if the process has ended.
    """
    try:
        file = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fields = os.read(file, _STAT_BYTES).rpartition(b")")[2].split()
    except OSError:  # it ended in between
        return None
    finally:
        os.close(file)
    return None if fields[0] == b"Z" else int(fields[19])


# A field whose name in settings.json differs. A guard or a server of an earlier version reads and
# writes the file too.
_NAME_IN_FILE = {"limit_w": "power_limit_w"}


def _setting_from_stored(stored: Mapping[str, Any]) -> GpuSetting:
    def read_clock_range(name: str) -> tuple[int, int] | None:
        value = stored.get(name)
        return (int(value[0]), int(value[1])) if value else None

    return GpuSetting(
        persistence=bool(stored.get("persistence", False)),
        limit_w=stored.get(_NAME_IN_FILE["limit_w"]),
        gpu_lock_mhz=read_clock_range("gpu_lock_mhz"),
        memory_lock_mhz=read_clock_range("memory_lock_mhz"),
    )


def _read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; {} if the file is missing or not complete."""
    try:
        found: dict[str, Any] = json.loads(path.read_bytes())
        return found
    except (OSError, ValueError):
        return {}


def _write_json(path: Path, data: object) -> None:
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_text(json.dumps(data), encoding="utf-8")
    temporary.chmod(path.parent.stat().st_mode & 0o666)
    temporary.replace(path)

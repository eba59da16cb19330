"""The operating point of a simulated GPU: clocks, power and temperature from load, settings and
time. Pure functions.

Power over SM clock, with x = clock / clock during decode:

    P(x) = floor + span * activity * (0.85 x + 0.15 x^30)

The formula is fitted to a public sweep of a bare-metal RTX PRO 6000 (27B AWQ, one stream): 511 W at
2779 MHz, 450 W at 2661 MHz, 350 W at 2071 MHz. The same sweep shows how much a low SM clock slows a
memory-bound step (`memory_slowdown_factor`): -1.1 % at 400 W, -4.9 % at 350 W, -13 % at 300 W.
Other GPU types use the same formula with different watts.
"""

from __future__ import annotations

import math
import zlib

from workbench.model.lazy_dataclass import dataclass
from workbench.sim.profiles import GpuModel, HostProfile

IDLE, SW_POWER_CAP, SW_THERMAL = 0x1, 0x4, 0x20  # nvmlClocksEventReason bits
COOL_DOWN_S = 3.0  # clocks stay up this long after the last kernel
UNLIMITED_MHZ = 0xFFFFFF02
TDP_MHZ = 0xFFFFFF01
NOISE_PERIOD_S = 0.5
DRIFT_PERIODS_S = (43.0, 211.0, 997.0)  # from a few benchmark runs to a whole experiment


@dataclass(frozen=True)
class GpuSetting:
    """The settings of one GPU. None means the default."""

    persistence: bool = False
    limit_w: float | None = None
    gpu_lock_mhz: tuple[int, int] | None = None
    memory_lock_mhz: tuple[int, int] | None = None

    def power_limit_w(self, gpu: GpuModel) -> float | None:
        """Return the power limit of a GPU of this type in watts; None if it has none."""
        return self.limit_w or gpu.power_default_w


@dataclass(frozen=True)
class GpuActivity:
    """The activity of a GPU in the last half second. `busy`, `memory` and `compute` are the shares
    of time (0 to 1) in which any kernel runs, memory is read, and tensor cores work."""

    busy: float = 0.0
    memory: float = 0.0
    compute: float = 0.0
    idle_s: float = math.inf  # since the last kernel

    def plus(self, other: GpuActivity) -> GpuActivity:
        return GpuActivity(
            min(1.0, self.busy + other.busy),
            min(1.0, self.memory + other.memory),
            min(1.0, self.compute + other.compute),
            min(self.idle_s, other.idle_s),
        )


@dataclass(frozen=True)
class OperatingPoint:
    sm_mhz: int
    memory_mhz: int
    power_w: float
    pstate: int
    reasons: int
    gpu_util_pct: int
    memory_util_pct: int


IDLE_ACTIVITY = GpuActivity()


def memory_slowdown_factor(sm_mhz: float, gpu: GpuModel) -> float:
    """Return the factor (1 or more) by which a step that is limited by memory bandwidth takes
    longer, because the SM clock `sm_mhz` is below its normal value."""
    short = gpu.sm_compute_mhz / max(sm_mhz, 1.0) - 1.0
    return 1.0 if short <= 0 else 1.0 + 0.36 * short**1.85


def operating_point(
    profile: HostProfile, setting: GpuSetting, load: GpuActivity, temperature_c: float
) -> OperatingPoint:
    """Return the clocks, the power and the clock event reasons of a GPU with these settings, load
    and temperature. Noise is not included.
    """
    gpu = profile.gpu
    working = load.busy > 0.0
    up = working or load.idle_s < COOL_DOWN_S
    lock = setting.gpu_lock_mhz if profile.locks_work else None
    sm = _clamp_mhz_to_lock(float(gpu.sm_compute_mhz if up else gpu.sm_idle_mhz), lock, gpu)
    memory = _memory_clock_mhz(gpu, setting if profile.locks_work else GpuSetting(), up)
    reasons = 0
    if not working:
        x = sm / gpu.sm_compute_mhz
        power = gpu.power_floor_w * min(1.0, x) if up or x > 0.4 else gpu.power_idle_w
        pstate = gpu.pstate_compute if up else gpu.pstate_idle
        return OperatingPoint(round(sm), memory, power, pstate, IDLE, 0, 0)
    limit = setting.power_limit_w(gpu)
    level = _relative_power(gpu, load)
    if limit is not None and _power_w_at_clock(gpu, sm, level) > limit:
        sm, reasons = _highest_sm_mhz_at_power(gpu, limit, level, sm), SW_POWER_CAP
    if temperature_c >= gpu.slowdown_c:
        sm *= max(0.4, 1.0 - 0.05 * (temperature_c - gpu.slowdown_c + 1.0))
        reasons |= SW_THERMAL
    sm = math.floor(sm / gpu.sm_step_mhz) * gpu.sm_step_mhz
    power = _power_w_at_clock(gpu, sm, level)
    return OperatingPoint(
        round(sm),
        memory,
        power,
        gpu.pstate_compute,
        reasons,
        round(100 * load.busy),
        round(100 * load.memory),
    )


def _relative_power(gpu: GpuModel, load: GpuActivity) -> float:
    """Return the power of this load on a scale on which decoding, limited by memory, is 1.0; about
    0.35 if the GPU mostly waits for its next kernel. The power that a GPU with high clocks draws
    without a load is not included."""
    return load.busy * 0.3 + 0.7 * load.memory + gpu.compute_weight * load.compute


def _power_w_at_clock(gpu: GpuModel, sm_mhz: float, relative_power: float) -> float:
    x = sm_mhz / gpu.sm_compute_mhz
    return gpu.power_floor_w + (gpu.power_decode_w - gpu.power_floor_w) * relative_power * (
        0.85 * x + 0.15 * min(x, 1.2) ** 30
    )


def _highest_sm_mhz_at_power(
    gpu: GpuModel, limit_w: float, relative_power: float, max_sm_mhz: float
) -> float:
    """Return the highest SM clock, in MHz, at which the power for this load stays below `limit_w`.
    It is at least an eighth of the normal clock."""
    low, high = gpu.sm_compute_mhz / 8.0, max_sm_mhz
    for _ in range(18):
        middle = (low + high) / 2
        low, high = (
            (middle, high)
            if _power_w_at_clock(gpu, middle, relative_power) <= limit_w
            else (low, middle)
        )
    return low


def _clamp_mhz_to_lock(wanted_mhz: float, lock: tuple[int, int] | None, gpu: GpuModel) -> float:
    """Return the SM clock within the lock, and below the limit of the voltage; `wanted_mhz` without
    a lock."""
    if lock is None:
        return wanted_mhz
    named = {UNLIMITED_MHZ: gpu.sm_max_mhz, TDP_MHZ: gpu.sm_compute_mhz}
    ends = [named.get(end, end) for end in lock]
    return min(max(wanted_mhz, ends[0]), ends[1], float(gpu.sm_voltage_mhz))


def _memory_clock_mhz(gpu: GpuModel, setting: GpuSetting, clocks_up: bool) -> int:
    """Return the memory clock, with the lock of `setting` if it has one. `clocks_up` says whether
    the GPU works, or did so a moment ago."""
    wanted = gpu.memory_compute_mhz if clocks_up else gpu.memory_idle_mhz
    if setting.memory_lock_mhz is None or not gpu.memory_steps_mhz:
        return wanted
    low, high = (nearest_supported_clock(gpu.memory_steps_mhz, v) for v in setting.memory_lock_mhz)
    return min(max(wanted, low), high)


def nearest_supported_clock(steps: tuple[int, ...], mhz: int) -> int:
    """Return the clock among the supported clocks `steps` that is closest to `mhz`, as the real
    driver chooses it."""
    return min(steps, key=lambda s: abs(s - mhz))


def temperature_after(gpu: GpuModel, temperature_c: float, power_w: float, seconds: float) -> float:
    """Return the temperature after `seconds` at constant power. It approaches ambient + power x
    thermal resistance exponentially.
    """
    target = gpu.ambient_c + gpu.thermal_c_per_w * power_w
    return target + (temperature_c - target) * math.exp(-max(0.0, seconds) / gpu.thermal_tau_s)


def half_second_noise(seed: str, unix_s: float, amplitude: float) -> float:
    """Return a random number within ±amplitude that depends only on `seed` and on the current half
    second, so that all processes get the same number.
    """
    word = zlib.crc32(f"{seed}/{int(unix_s / NOISE_PERIOD_S)}".encode())
    return amplitude * (word / 0x7FFFFFFF - 1.0)


def relative_speed_drift(unix_s: float, std_dev: float) -> float:
    """Return by how much the machine is faster at this time than on average, as a share of the
    average speed; below 0 if it is slower.

    The difference is a slow wave with the standard deviation `std_dev`, the same for all servers of
    a machine.
    """
    waves = (math.sin(2 * math.pi * unix_s / period) for period in DRIFT_PERIODS_S)
    return std_dev * math.fsum(waves) * math.sqrt(2 / len(DRIFT_PERIODS_S))

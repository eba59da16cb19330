"""Detection of the steady state of a loaded GPU. Power, clock and temperature of the last seconds
are compared with those of the seconds before. All functions are pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from workbench.gpu.telemetry.reading_buffer import BenchmarkReading, Moment
from workbench.model.known_values import known_values, mean_or_none

WINDOW_S = 2.0  # twice the second over which drivers take their mean power
MAX_POWER_CHANGE_PCT, MAX_POWER_CHANGE_W = (
    2.0,
    2.0,
)  # whichever is more: noise of the readings under a constant load
MAX_CLOCK_CHANGE_PCT = 1.0  # two steps of 15 MHz at 2,700
MAX_TEMPERATURE_CHANGE_C = 0.5  # per window: leakage changes power by less than 0.5 % per degree
MIN_LOADED_UTILIZATION_PCT = 50.0  # utilization: an idle GPU is steady too, and says nothing

ReadValue = Callable[[BenchmarkReading], float | None]


def why_not_steady(
    moments: Sequence[Moment], gpus: Sequence[int], now_s: float, window_s: float = WINDOW_S
) -> str | None:
    """Return the first value that is not steady yet, as text: "GPU0: power 480 to 503 W". None if
    all GPUs are steady. Return a text also for a GPU that is not loaded or has too few readings.
    `now_s` is the present time.monotonic(). A value that the driver does not report is ignored."""
    for gpu in gpus:
        before = _readings_between(moments, gpu, now_s - 2 * window_s, now_s - window_s)
        now = _readings_between(moments, gpu, now_s - window_s, now_s)
        if min(len(before), len(now)) < 3:
            return f"GPU{gpu}: too few readings yet"
        busy_pct = _mean_of_known_values(before + now, lambda r: r.gpu_util_pct)
        if busy_pct is not None and busy_pct < MIN_LOADED_UTILIZATION_PCT:
            return f"GPU{gpu}: not loaded yet ({busy_pct:.0f} % utilization)"
        for name, unit, pick, allowed in _STEADY_READINGS:
            a, b = _mean_of_known_values(before, pick), _mean_of_known_values(now, pick)
            if a is not None and b is not None and abs(b - a) > allowed(a):
                return f"GPU{gpu}: {name} {a:.4g} to {b:.4g} {unit}"
    return None


_STEADY_READINGS: tuple[tuple[str, str, ReadValue, Callable[[float], float]], ...] = (
    (
        "power",
        "W",
        lambda r: r.power_w,
        lambda watts: max(MAX_POWER_CHANGE_W, watts * MAX_POWER_CHANGE_PCT / 100),
    ),
    ("SM clock", "MHz", lambda r: r.sm_mhz, lambda mhz: mhz * MAX_CLOCK_CHANGE_PCT / 100),
    ("temperature", "°C", lambda r: r.temperature_c, lambda _: MAX_TEMPERATURE_CHANGE_C),
)


def _readings_between(
    moments: Sequence[Moment], gpu: int, t0_s: float, t1_s: float
) -> list[BenchmarkReading]:
    return [r for m in moments if t0_s <= m.at_s < t1_s for r in m.gpus if r.gpu_index == gpu]


def _mean_of_known_values(
    readings: Sequence[BenchmarkReading], read_value: ReadValue
) -> float | None:
    return mean_or_none(known_values(map(read_value, readings)))

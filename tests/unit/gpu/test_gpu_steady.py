"""When a loaded GPU has settled."""

from __future__ import annotations

import pytest

from workbench.gpu.telemetry.reading_buffer import BenchmarkReading, Moment
from workbench.gpu.telemetry.steady_state import WINDOW_S, why_not_steady


def at(second: float, **fields: object) -> Moment:
    base = {
        "power_w": 400.0,
        "energy_j": None,
        "sm_mhz": 2400,
        "memory_mhz": 13365,
        "temperature_c": 60.0,
        "gpu_util_pct": 98.0,
        "event_reasons": (),
    }
    return Moment(second, (BenchmarkReading(gpu_index=0, **{**base, **fields}),))  # type: ignore[arg-type]


def moments(**later: object) -> list[Moment]:
    """Ten a second over two windows; `later` in the second one."""
    count = int(20 * WINDOW_S)
    return [at(i / 10, **(later if i / 10 >= WINDOW_S else {})) for i in range(count)]


NOW = 2 * WINDOW_S


def test_a_level_load_is_settled() -> None:
    assert why_not_steady(moments(), (0,), NOW) is None


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("power_w", 420.0, "power 400 to 420 W"),
        ("sm_mhz", 2100, "SM clock"),
        ("temperature_c", 61.0, "temperature"),
    ],
)
def test_what_still_moves_is_named(field: str, value: float, said: str) -> None:
    found = why_not_steady(moments(**{field: value}), (0,), NOW)
    assert found is not None and found.startswith("GPU0: ") and said in found


def test_noise_is_no_movement() -> None:
    assert (
        why_not_steady(moments(power_w=404.0, sm_mhz=2415, temperature_c=60.4), (0,), NOW) is None
    )


def test_an_idle_gpu_one_without_readings_and_one_without_a_thermometer() -> None:
    idle = [at(i / 10, gpu_util_pct=3.0) for i in range(40)]
    assert "not loaded yet" in str(why_not_steady(idle, (0,), NOW))
    assert "too few readings" in str(why_not_steady(moments(), (0, 1), NOW))
    # what is not given is not waited for
    assert why_not_steady(moments(temperature_c=None), (0,), NOW) is None

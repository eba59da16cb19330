"""The temperature at which the guard reverts: the driver's own limit, in each form in which drivers
report it. The guard has its own reader, because it may run for days beside the agent."""

from __future__ import annotations

import pytest
from nvml_child import Driver

from workbench.gpu.guard.temperatures import LIMIT_C, NvmlSensors

GPU = "GPU-00000000-0000-4000-8000-000000000000"
NOW_C = 61  # of the simulated library
NOT_SUPPORTED = 3


def sensors(driver: Driver, *lines: str) -> NvmlSensors:
    driver.set(f"temperature * {NOW_C}", *lines)
    return NvmlSensors()


@pytest.mark.parametrize(("slowdown", "margin"), [(-2, 26), (0, 26), (2, 30), (-5, 0), (-2, -1)])
def test_the_limit_of_ada_and_later_is_above_the_temperature_that_the_margin_ends_at(
    driver: Driver, slowdown: int, margin: int
) -> None:
    """Field 194 is the margin at which the driver slows down: at -2 it does so 2 degrees above the
    temperature at which no margin is left."""
    one = sensors(
        driver,
        f"field.194 * {slowdown}",
        "type.194 * 5",
        f"margin * {margin}",
        f"nvmlDeviceGetTemperatureThreshold * !{NOT_SUPPORTED}",
    )
    assert one.slowdown_temperature_c(GPU) == NOW_C + margin - slowdown


def test_the_limit_of_older_gpus_is_the_threshold(driver: Driver) -> None:
    one = sensors(
        driver,
        f"field.194 * !{NOT_SUPPORTED}",
        "threshold * 94",
    )
    assert one.slowdown_temperature_c(GPU) == 94


@pytest.mark.parametrize("margin", [-128, 127, 2**31 - 1])
def test_an_impossible_margin_is_not_believed(driver: Driver, margin: int) -> None:
    one = sensors(
        driver,
        "field.194 * -2",
        "type.194 * 5",
        f"margin * {margin}",
        "threshold * 90",
    )
    assert one.slowdown_temperature_c(GPU) == 90


def test_a_driver_without_a_limit_gets_a_careful_one(driver: Driver) -> None:
    one = sensors(
        driver,
        f"field.194 * !{NOT_SUPPORTED}",
        f"nvmlDeviceGetTemperatureThreshold * !{NOT_SUPPORTED}",
    )
    assert one.slowdown_temperature_c(GPU) == LIMIT_C

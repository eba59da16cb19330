"""The agent's own declarations against those of nvidia-ml-py."""

from __future__ import annotations

import ctypes
from typing import Any

import pynvml
import pytest

from workbench.gpu import nvml, readings


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (nvml.Utilization, pynvml.c_nvmlUtilization_t),
        (nvml.Memory, pynvml.c_nvmlMemory_t),
        (nvml.MemoryV2, pynvml.c_nvmlMemory_v2_t),
        (nvml.Temperature, pynvml.c_nvmlTemperature_v1_t),
        (nvml.Margin, pynvml.c_nvmlMarginTemperature_v1_t),
        (nvml.AddressingMode, pynvml.c_nvmlDeviceAddressingMode_t),
        (nvml.Pci, pynvml.nvmlPciInfo_t),
        (nvml.Process, pynvml.c_nvmlProcessInfo_v3_t),
        (nvml.FieldValue, pynvml.c_nvmlFieldValue_t),
        (nvml.Value, pynvml.c_nvmlValue_t),
    ],
    ids=lambda kind: kind.__name__,
)
def test_a_structure_has_the_same_fields_in_the_same_places(ours: Any, theirs: Any) -> None:
    def places(kind: Any) -> list[tuple[str, int, int]]:
        return [(f[0], getattr(kind, f[0]).offset, getattr(kind, f[0]).size) for f in kind._fields_]

    assert places(ours) == places(theirs)
    assert ctypes.sizeof(ours) == ctypes.sizeof(theirs)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("MEMORY_V2", "nvmlMemory_v2"),
        ("TEMPERATURE_V1", "nvmlTemperature_v1"),
        ("VERSION_1_OF_8_BYTES", "nvmlMarginTemperature_v1"),
        ("VERSION_1_OF_8_BYTES", "nvmlDeviceAddressingMode_v1"),
        ("UNINITIALIZED", "NVML_ERROR_UNINITIALIZED"),
        ("NOT_SUPPORTED", "NVML_ERROR_NOT_SUPPORTED"),
        ("NO_PERMISSION", "NVML_ERROR_NO_PERMISSION"),
        ("NOT_LOADED", "NVML_ERROR_DRIVER_NOT_LOADED"),
        ("NO_LIBRARY", "NVML_ERROR_LIBRARY_NOT_FOUND"),
        ("NO_FUNCTION", "NVML_ERROR_FUNCTION_NOT_FOUND"),
        ("LOST", "NVML_ERROR_GPU_IS_LOST"),
        ("RESET_REQUIRED", "NVML_ERROR_RESET_REQUIRED"),
        ("BLOCKED", "NVML_ERROR_OPERATING_SYSTEM"),
        ("MISMATCH", "NVML_ERROR_LIB_RM_VERSION_MISMATCH"),
        ("BAD_VERSION", "NVML_ERROR_ARGUMENT_VERSION_MISMATCH"),
        ("DEPRECATED", "NVML_ERROR_DEPRECATED"),
        ("NO_GPU", "NVML_ERROR_GPU_NOT_FOUND"),
        ("UNKNOWN", "NVML_ERROR_UNKNOWN"),
    ],
)
def test_a_constant_has_the_same_value(ours: str, theirs: str) -> None:
    assert getattr(nvml, ours) == getattr(pynvml, theirs)


def test_the_numbers_of_fields_clocks_and_value_kinds() -> None:
    assert readings.FAST_FIELDS == (
        pynvml.NVML_FI_DEV_POWER_INSTANT,
        pynvml.NVML_FI_DEV_POWER_AVERAGE,
        pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION,
        pynvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES,
        pynvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES,
        pynvml.NVML_FI_DEV_MEMORY_TEMP,
    )
    assert readings.SLOWDOWN_T_LIMIT == pynvml.NVML_FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT
    assert (nvml.SM.value, nvml.MEM.value) == (pynvml.NVML_CLOCK_SM, pynvml.NVML_CLOCK_MEM)
    kinds = ("DOUBLE", "UNSIGNED_INT", "UNSIGNED_LONG", "UNSIGNED_LONG_LONG", "SIGNED_LONG_LONG", "SIGNED_INT")
    assert [getattr(pynvml, f"NVML_VALUE_TYPE_{kind}") for kind in kinds] == list(range(6))
    assert nvml.VALUE_KINDS[:6] == ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal")


@pytest.mark.parametrize(
    ("bit", "name"),
    [
        ("GpuIdle", "GPU idle"),
        ("ApplicationsClocksSetting", "applications clocks setting"),
        ("SwPowerCap", "SW power cap"),
        ("HwSlowdown", "HW slowdown"),
        ("SyncBoost", "sync boost"),
        ("SwThermalSlowdown", "SW thermal slowdown"),
        ("HwThermalSlowdown", "HW thermal slowdown"),
        ("HwPowerBrakeSlowdown", "HW power brake slowdown"),
        ("DisplayClockSetting", "display clock setting"),
    ],
)
def test_event_reasons_stand_at_their_bits(bit: str, name: str) -> None:
    values = [getattr(pynvml, f"nvmlClocks{kind}Reason{bit}", None) for kind in ("Event", "Throttle")]
    value = next(v for v in values if v is not None)
    assert value == 1 << nvml.EVENT_REASONS.index(name)

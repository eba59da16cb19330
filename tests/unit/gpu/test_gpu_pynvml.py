"""What the agent takes for granted of nvidia-ml-py."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pynvml
import pytest

from workbench.gpu import remote_programs
from workbench.gpu.telemetry import agent, clock_event_reasons, nvml_library, readings


def test_every_function_that_is_called_by_name_exists_and_raises_what_the_driver_refuses() -> None:
    """Some of pynvml's functions drop the return code: none of those."""
    texts = "".join(Path(module.__file__).read_text() for module in (nvml_library, readings, agent))
    names = set(re.findall(r'"(nvml[A-Z]\w+)"', texts)) - {"nvmlInit_v2", "nvmlDevice", "nvmlDeviceGetCount_v2"}
    assert len(names) > 30
    assert not re.search(r"f[\"']nvml|[\"']nvml\w*[\"'] \+", texts)  # a name that is put together is not sent
    part = remote_programs.AGENT.library()["pynvml"]
    assert len(part) < 40_000
    for name in names - {"nvmlDeviceGetTemperatureV"}:
        assert f"def {name}(" in part
        assert re.search(r"_nvmlCheckReturn\(ret\)", inspect.getsource(getattr(pynvml, name))), name
    assert "_nvmlCheckReturn(ret)" in inspect.getsource(pynvml.nvmlDeviceGetTemperatureV1)


def test_the_codes_with_a_name_have_it() -> None:
    codes = {value for name, value in vars(pynvml).items() if name.startswith("NVML_ERROR_")}
    assert set(nvml_library.REASONS) <= codes
    assert nvml_library.reason(pynvml.NVML_ERROR_DEPRECATED) == "deprecated"
    assert nvml_library.reason(pynvml.NVML_ERROR_OPERATING_SYSTEM) == "blocked by the operating system"


def test_the_kinds_of_values() -> None:
    kinds = ("DOUBLE", "UNSIGNED_INT", "UNSIGNED_LONG", "UNSIGNED_LONG_LONG", "SIGNED_LONG_LONG", "SIGNED_INT")
    assert [getattr(pynvml, f"NVML_VALUE_TYPE_{kind}") for kind in kinds] == list(range(6))
    assert readings.VALUE_KINDS[:6] == ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal")


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
    assert value == 1 << clock_event_reasons.REASONS.index(name)


def test_it_parses_as_python_3_8() -> None:
    """Its source goes to hosts whose python3 may be that old."""
    ast.parse(Path(pynvml.__file__).read_text(), feature_version=(3, 8))

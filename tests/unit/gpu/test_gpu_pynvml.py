"""What the agent takes for granted of nvidia-ml-py."""

from __future__ import annotations

import ast
import inspect
import os
import re
import shutil
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pynvml
import pytest

from workbench.gpu import pynvml_part, remote_programs
from workbench.gpu.telemetry import agent, clock_event_reasons, nvml_library, readings


def test_every_function_that_is_called_by_name_exists_and_raises_what_the_driver_refuses() -> None:
    """Some of pynvml's functions drop the return code: none of those."""
    texts = "".join(Path(module.__file__).read_text() for module in (nvml_library, readings, agent))
    names = set(re.findall(r'"(nvml[A-Z]\w+)"', texts)) - {
        "nvmlInit_v2",
        "nvmlDevice",
        "nvmlDeviceGetCount_v2",
    }
    assert len(names) > 30
    # a name that is put together is not sent
    assert not re.search(r"f[\"']nvml|[\"']nvml\w*[\"'] \+", texts)
    part = remote_programs.AGENT_PROGRAM.library()["pynvml"]
    assert len(part) < 40_000
    for name in names - {"nvmlDeviceGetTemperatureV"}:
        assert f"def {name}(" in part
        assert re.search(r"_nvmlCheckReturn\(ret\)", inspect.getsource(getattr(pynvml, name))), name
    assert "_nvmlCheckReturn(ret)" in inspect.getsource(pynvml.nvmlDeviceGetTemperatureV1)


def test_the_codes_with_a_name_have_it() -> None:
    codes = {value for name, value in vars(pynvml).items() if name.startswith("NVML_ERROR_")}
    assert set(nvml_library.REASONS) <= codes
    assert nvml_library.nvml_error_text(pynvml.NVML_ERROR_DEPRECATED) == "deprecated"
    assert nvml_library.nvml_error_text(pynvml.NVML_ERROR_OPERATING_SYSTEM) == (
        "blocked by the operating system"
    )


def test_the_kinds_of_values() -> None:
    kinds = (
        "DOUBLE",
        "UNSIGNED_INT",
        "UNSIGNED_LONG",
        "UNSIGNED_LONG_LONG",
        "SIGNED_LONG_LONG",
        "SIGNED_INT",
    )
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
    values = [
        getattr(pynvml, f"nvmlClocks{kind}Reason{bit}", None) for kind in ("Event", "Throttle")
    ]
    value = next(v for v in values if v is not None)
    assert value == 1 << clock_event_reasons.REASONS.index(name)


def test_it_parses_as_python_3_8() -> None:
    """Its source goes to hosts whose python3 may be that old."""
    ast.parse(Path(pynvml.__file__).read_text(), feature_version=(3, 8))


# -- the part that is kept on this machine ---------------------------------------------------------


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "workbench"


def place() -> Path:
    return Path(remote_programs.AGENT_PROGRAM.places()[0])


def test_the_next_agent_imports_the_part_that_is_kept(cache: Path) -> None:
    whole = Path(pynvml.__file__)
    assert place() == whole.parent
    remote_programs.cache_pynvml_for_agent()
    assert place().parent == cache
    assert (place() / "pynvml.py").read_text() == remote_programs.AGENT_PROGRAM.library()["pynvml"]
    written = (place() / "pynvml.py").stat().st_mtime_ns
    remote_programs.cache_pynvml_for_agent()
    assert (place() / "pynvml.py").stat().st_mtime_ns == written


def test_the_part_is_kept_with_its_bytecode(cache: Path) -> None:
    """An agent that has to compile the part keeps 2 MiB more for as long as it runs."""
    remote_programs.cache_pynvml_for_agent()
    part = place() / "pynvml.py"
    loader = SourceFileLoader("pynvml", str(part))
    loader.source_to_code = lambda *_, **__: pytest.fail("compiled again")  # type: ignore[method-assign]
    assert loader.get_code("pynvml") is not None


def test_a_part_for_other_sources_is_not_used(cache: Path, tmp_path: Path) -> None:
    user = tmp_path / "user.py"
    user.write_text("pynvml.nvmlInitWithFlags(0)")
    pynvml_part.cache_reduced_pynvml([user])
    kept = pynvml_part.cached_pynvml_directory([user])
    assert kept is not None and "def nvmlInitWithFlags" in (kept / "pynvml.py").read_text()
    user.write_text("pynvml.nvmlDeviceGetCount_v2()")
    assert pynvml_part.cached_pynvml_directory([user]) is None


@pytest.mark.parametrize("what", ["cache", "folder", "file", "link"])
def test_a_part_that_another_user_can_write_is_not_used(cache: Path, what: str) -> None:
    remote_programs.cache_pynvml_for_agent()
    folder = place()
    if what == "link":
        folder.rename(cache / "moved")
        folder.symlink_to(cache / "moved")
    else:
        os.chmod({"cache": cache, "folder": folder, "file": folder / "pynvml.py"}[what], 0o777)
    assert place() == Path(pynvml.__file__).parent


def test_nothing_is_written_where_another_user_can_write(cache: Path) -> None:
    """root with another user's cache would follow a link that this user has placed there."""
    remote_programs.cache_pynvml_for_agent()
    folder = place()
    shutil.rmtree(folder / "__pycache__")
    (folder / "pynvml.py").unlink()
    os.chmod(folder, 0o777)
    remote_programs.cache_pynvml_for_agent()
    assert list(folder.iterdir()) == []


def test_a_cache_that_cannot_be_written_stays_as_it_is(cache: Path) -> None:
    cache.parent.mkdir()
    cache.write_text("a file")
    remote_programs.cache_pynvml_for_agent()
    assert place() == Path(pynvml.__file__).parent and cache.read_text() == "a file"


def test_no_module_of_the_agent_needs_typing() -> None:
    """It takes half a MiB in each agent."""
    paths = repr([str(Path(agent.__file__).parents[3]), str(Path(pynvml.__file__).parent)])
    stub = (
        "sys.modules['ctypes.util'] = type(sys)('util'); "
        "sys.modules['ctypes.util'].find_library = None"
    )
    code = (
        f"import sys; {stub}; sys.path += {paths}; from workbench.gpu.telemetry import agent; "
        "print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True
    )
    assert not {"typing", "pathlib", "glob", "asyncio", "subprocess"} & set(done.stdout.split())

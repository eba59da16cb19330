"""The simulated NVML library, built once from C, and its script."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from nvml_child import Child, Driver
from settings_bench import Bench
from smi_stub import Smi

SOURCE = Path(__file__).resolve().parents[2] / "support" / "nvml_stub" / "nvml_stub.c"


def build(directory: Path, *flags: str) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler to build the simulated NVML library")
    library = directory / "libnvml_stub.so"
    subprocess.run(
        [compiler, "-O1", "-Wall", "-Werror", "-shared", "-fPIC", *flags, "-o", library, SOURCE],
        check=True,
    )
    return library


@pytest.fixture(scope="session")
def stub_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="session")
def old_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml-old"), "-DOLD_DRIVER")


@pytest.fixture
def driver(stub_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver(tmp_path / "nvml.script", tmp_path / "nvml.log")
    monkeypatch.setenv("WORKBENCH_NVML_LIBRARY", str(stub_library))
    monkeypatch.setenv("NVML_STUB_SCRIPT", str(made.script))
    monkeypatch.setenv("NVML_STUB_LOG", str(made.log))
    return made


@pytest.fixture
def agent(driver: Driver) -> Iterator[Callable[..., Child]]:
    children: list[Child] = []

    def start(**options: Any) -> Child:
        children.append(Child(**options))
        return children[-1]

    yield start
    for child in children:
        child.close()


@pytest.fixture
def bench(driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    path = tmp_path / "xdg-state" / "workbench" / "gpu" / "journal.json"
    smi = Smi(tmp_path / "bin", driver.script, path)
    monkeypatch.setenv("PATH", f"{smi.here}:{os.environ['PATH']}")
    return Bench(smi, driver, path)

"""The versions and limits with which a host is compared. They are in table.json, with their sources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from workbench.model.findings import Level


@dataclass(frozen=True, slots=True)
class Architecture:
    """The oldest versions that know a GPU architecture. Code built for `cuda` runs; only from `cuda_full` on does CUDA
    compile for exactly this architecture. `driver` is a branch ("580"). None: no bound is known."""

    capability: str  # "12.0", as NVML gives it
    name: str  # "sm_120"
    cuda: str
    cuda_full: str
    driver: str
    torch: str
    flashinfer: str | None
    nvcc: str
    source: str


@dataclass(frozen=True, slots=True)
class PackageRule:
    """A problem of the versions of `package` below `below`, on GPUs of the `capabilities`."""

    package: str
    capabilities: tuple[str, ...]
    below: str
    level: Level
    text: str
    fix: str
    source: str


@cache
def data() -> Mapping[str, Any]:
    """Return the table as it is in the file."""
    import json
    from importlib.resources import files

    read: Mapping[str, Any] = json.loads(files("workbench.doctor").joinpath("table.json").read_text("utf-8"))
    return read


@cache
def architecture(capability: str | None) -> Architecture | None:
    """Return the row of a compute capability such as "12.0"; None if the table has none."""
    return next((Architecture(**row) for row in data()["architectures"] if row["capability"] == capability), None)


@cache
def package_rules() -> tuple[PackageRule, ...]:
    return tuple(
        PackageRule(**{**row, "capabilities": tuple(row["capabilities"]), "level": Level(row["level"])})
        for row in data()["packages"]
    )


def pinned(package: str, version: str) -> Mapping[str, str]:
    """Return the versions that this release of an engine's package was built with, by package; {} if unknown."""
    rows: list[dict[str, str]] = data()["pins"]["rows"]
    row = next((r for r in rows if (r["package"], r["version"]) == (package, version)), {})
    return {name: value for name, value in row.items() if name not in ("package", "version")}


def limit(name: str) -> tuple[float, str]:
    """Return (value, source) of a limit."""
    row = data()["limits"][name]
    return row["value"], row["source"]

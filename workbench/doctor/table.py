"""The versions and limits with which a host is compared. They are read from table.json, which names
the source of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any, TypeGuard

from workbench.model.findings import Level
from workbench.model.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Architecture:
    """The oldest versions of CUDA, driver, torch, FlashInfer and nvcc that support a GPU
    architecture. Code compiled with the CUDA version `cuda` runs on it, but only `cuda_full` and
    later can compile for exactly this architecture. `driver` is a driver branch such as "580".
    `flashinfer` is None if no bound is known."""

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
    """A known problem of all versions of `package` that are older than the version `below`, on GPUs
    with one of the compute `capabilities`."""

    package: str
    capabilities: tuple[str, ...]
    below: str
    level: Level
    text: str
    fix: str
    source: str


@cache
def load_doctor_table() -> Mapping[str, Any]:
    """Return the content of table.json, which is read once."""
    import json
    from importlib.resources import files

    read: Mapping[str, Any] = json.loads(
        files("workbench.doctor").joinpath("table.json").read_text("utf-8")
    )
    return read


@cache
def architecture_of_capability(capability: str | None) -> Architecture | None:
    """Return the architecture with a compute capability such as "12.0"; None if the table does not
    contain it."""
    for row in load_doctor_table()["architectures"]:
        if row["capability"] == capability:
            return Architecture(**row)
    return None


def known_architectures(capabilities: Iterable[str]) -> Iterator[Architecture]:
    """Yield the architecture of each of the compute capabilities that the table contains."""
    return filter(None, map(architecture_of_capability, capabilities))


@cache
def load_package_rules() -> tuple[PackageRule, ...]:
    return tuple(
        PackageRule(
            **{**row, "capabilities": tuple(row["capabilities"]), "level": Level(row["level"])}
        )
        for row in load_doctor_table()["packages"]
    )


def versions_pinned_by_package(package: str, version: str) -> Mapping[str, tuple[str, ...]]:
    """Return the versions of other packages with which `version` of `package` was built, {name:
    versions}; {} if unknown."""
    rows: list[dict[str, str]] = load_doctor_table()["pins"]["rows"]
    row = next((r for r in rows if (r["package"], r["version"]) == (package, version)), {})
    return {name: (pin,) for name, pin in row.items() if name not in ("package", "version")}


def is_known_and_below(value: float | None, limit: float) -> TypeGuard[float]:
    """Return whether `value` is known and below `limit`. False if `value` is None."""
    return value is not None and value < limit


def threshold_and_source(name: str) -> tuple[float, str]:
    """Return (value, source) of the threshold called `name` in table.json."""
    row = load_doctor_table()["limits"][name]
    return row["value"], row["source"]

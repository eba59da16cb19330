"""What is known about the paths between the GPUs of a host: what the kernel and the driver say of
them (gpu/topology.py), and how copies went that an engine's own torch made (gpu_trial.py).

The last trial of a host is kept in a file of its state directory, so that a start can say what it
found.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from workbench.engines import gpu_table
from workbench.gpu.remote_programs import TOPOLOGY_PROGRAM
from workbench.hosts.base import CommandTimeout, FileError, Host, HostUnreachable
from workbench.hosts.shell_scripts import shell_argv
from workbench.hosts.swept_command import read_output_and_end_leftovers
from workbench.model.errors import HostError
from workbench.model.lazy_dataclass import dataclass
from workbench.model.pcie_link import pcie_link_mb_s
from workbench.model.untrusted_numbers import number_for_field
from workbench.model.untrusted_records import read_record
from workbench.model.untrusted_text import clean_json

if TYPE_CHECKING:
    from workbench.model.gpu import DriverInfo, GpuInfo
    from workbench.server.engine_probe import InstalledEngine

T = TypeVar("T")
FILE = "gpu-paths.json"
FILE_MAX_BYTES = 1 << 20
OUTPUT_MAX_BYTES = 1 << 19
LOOK_S = 20.0
IMPORT_S = 60.0  # of torch, from a cold disk
CASE_S = 20.0
ALL_CASES_S = 240.0
WORDS = 1 << 24  # 64 MiB a copy
NVLINK_GB_S: Mapping[int | None, float] = {
    1: 20.0,
    2: 25.0,
    3: 25.0,
    4: 25.0,
    5: 50.0,
}  # one link, one direction
_STAND_IN = Path(__file__).parents[1] / "sim" / "stand_in"


@dataclass(frozen=True, slots=True)
class PathEnd:
    """A GPU as the end of a path. `acs` has, for each PCIe bridge above it, what the bridge sends
    up to the root complex as text; "" is nothing, and a bridge whose state only root can read is
    missing. `busy_count` is the number of processes on it."""

    index: int
    uuid: str = ""
    name: str = ""
    bus_id: str = ""
    slot: str | None = None
    mig: bool = False
    busy_count: int | None = None
    pcie_gen_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    nvlinks: int = 0
    nvlink_version: int | None = None
    numa_node: int | None = None
    iommu: str | None = None  # type of its IOMMU group
    acs: Mapping[str, str] = field(default_factory=dict)

    @property
    def pcie_link_gb_s(self) -> float | None:
        """The nominal bandwidth of the GPU's PCIe link in GB/s in one direction. None if unknown,
        and for a GPU with unified memory, because the link that it reports does not exist."""
        known = gpu_table.find_gpu_type(self.name)
        if known is not None and known.unified_memory:
            return None
        nominal = pcie_link_mb_s(self.pcie_gen_max, self.pcie_width)
        return None if nominal is None else nominal / 1000

    @property
    def pcie_link_text(self) -> str:
        if self.pcie_link_gb_s is None:
            return "PCIe link unknown"
        return f"PCIe {self.pcie_gen_max} x{self.pcie_width}"

    @property
    def slot_and_address_text(self) -> str:
        """Where the card is: its slot, if known, and its address on the PCIe bus."""
        return f"slot {self.slot}, {self.bus_id}" if self.slot else self.bus_id


@dataclass(frozen=True, slots=True)
class Copy:
    """The outcome of the copy in one direction of a pair. `wrong_bytes` arrived wrong, the first at
    the position `first_wrong`. `sender_wrong_bytes` were wrong already before the copy. `gb_s` is
    the bandwidth."""

    source: int
    target: int
    wrong_bytes: int = 0
    first_wrong: int | None = None
    sender_wrong_bytes: int = 0
    gb_s: float | None = None


@dataclass(frozen=True, slots=True)
class Pair:
    """Two GPUs. `ancestor`, `read`, `write` and `nvlink` are the driver's answers as text. `direct`
    says whether torch copies between them without the host's memory."""

    a: int
    b: int
    ancestor: str | None = None
    read: str | None = None
    write: str | None = None
    nvlink: str | None = None
    direct: bool | None = None
    copies: tuple[Copy, ...] = ()
    hang: bool = False
    unkillable: int | None = None
    error: str | None = None
    skipped: str | None = None

    @property
    def was_copy_tried(self) -> bool:
        return bool(self.copies) or self.hang or self.error is not None


@dataclass(frozen=True, slots=True)
class Reduction:
    """An all-reduce of 1 MiB over `ranks` GPUs. `p2p` is False if NCCL was told not to use
    peer-to-peer copies."""

    ranks: int
    p2p: bool = True
    wrong_bytes: int | None = None
    first_wrong: int | None = None
    mean_us: float | None = None
    hang: bool = False
    unkillable: int | None = None
    error: str | None = None
    skipped: str | None = None

    @property
    def is_correct(self) -> bool:
        return self.wrong_bytes == 0


@dataclass(frozen=True, slots=True)
class GpuPaths:
    """The paths between the GPUs of a host. `problem` says why the driver could not be asked, and
    `untried` why no data was copied. `tested_unix_s` is the time of the trial."""

    gpus: tuple[PathEnd, ...] = ()
    pairs: tuple[Pair, ...] = ()
    reductions: tuple[Reduction, ...] = ()
    driver: str | None = None
    cmdline: tuple[str, ...] = ()
    engine: str | None = None
    torch: str | None = None
    cuda: str | None = None
    nccl: str | None = None
    problem: str | None = None
    untried: str | None = None
    tested_unix_s: float | None = None
    limit_s: float = CASE_S

    def gpu(self, index: int) -> PathEnd:
        """Return the GPU with this index. If the driver named none, return one without
        properties."""
        return next((one for one in self.gpus if one.index == index), PathEnd(index))

    def nominal_gb_s(self, pair: Pair) -> float | None:
        """Return the nominal bandwidth between the two GPUs in GB/s in one direction: of their
        NVLinks if these work, otherwise of the slower PCIe link. None if unknown."""
        ends = self.gpu(pair.a), self.gpu(pair.b)
        if pair.nvlink == "ok" and all(end.nvlinks and end.nvlink_version for end in ends):
            each = NVLINK_GB_S.get(ends[0].nvlink_version)
            return each * min(end.nvlinks for end in ends) if each else None
        rates = [end.pcie_link_gb_s for end in ends if end.pcie_link_gb_s is not None]
        return min(rates) if len(rates) == len(ends) else None

    @property
    def was_copy_tried(self) -> bool:
        return any(pair.was_copy_tried for pair in self.pairs)


async def read_topology(host: Host) -> dict[str, Any]:
    """Return what the host says of the paths between its GPUs, as the program gpu/topology.py
    prints it, or {"error": reason}. Raises HostUnreachable if there is no connection."""
    try:
        done = await TOPOLOGY_PROGRAM.run(host, {}, timeout_s=LOOK_S)
    except HostUnreachable:
        raise
    except CommandTimeout:
        return {"error": f"it did not answer within {LOOK_S:.0f} s"}
    except HostError as error:
        return {"error": error.message}
    return next(iter(_parse_json_lines(done.out)), {"error": done.problem})


async def run_gpu_copy_trial(
    host: Host, engine: InstalledEngine, case_limit_s: float = CASE_S
) -> Sequence[Mapping[str, Any]]:
    """Let the engine's own Python copy data between the GPUs with the program gpu_trial.py, and
    return the JSON objects that it prints. If it cannot be run or prints none, return one object
    {"error": reason}. Raises HostUnreachable if there is no connection."""
    program = Path(__file__).with_name("gpu_trial.py").read_text("utf-8")
    orders = {"case_s": case_limit_s, "total_s": ALL_CASES_S, "words": WORDS, "backend": "nccl"}
    # both count the GPUs in the order of the driver
    variables = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    python = engine.python or "python3"
    if host.simulated:
        python, variables["PYTHONPATH"] = "python3", str(_STAND_IN)
    script = f'"$@" 2>/dev/null | head -c {OUTPUT_MAX_BYTES}'
    words = shell_argv(script, python, "-c", program, json.dumps(orders))
    limit_s = IMPORT_S + ALL_CASES_S + 3 * case_limit_s
    try:
        out = await read_output_and_end_leftovers(host, words, timeout_s=limit_s, env=variables)
    except HostUnreachable:
        raise
    except CommandTimeout:
        return [{"error": f"{python} did not end within {limit_s:g} s, and was killed"}]
    except HostError as error:
        return [{"error": f"{python} cannot be run: {error.message}"}]
    said = "no line that Workbench understands" if out.strip() else "nothing: it is no Python"
    return _parse_json_lines(out) or [{"error": f"{python} printed {said}"}]


def _parse_json_lines(text: str) -> list[dict[str, Any]]:
    """Return the JSON objects that a program printed, one a line. Other lines are skipped."""
    found = []
    for line in text.splitlines():
        try:
            document = clean_json(line)
        except ValueError:
            continue
        if isinstance(document, dict):
            found.append(document)
    return found


def parse_gpu_paths(
    topology: Mapping[str, Any], trial_output: Sequence[Mapping[str, Any]], engine: str | None
) -> GpuPaths:
    """Return the paths between GPUs from what the topology program and the trial printed.
    `trial_output` has one object per line of the trial, none if no trial was made. An entry that
    cannot be understood is left out."""
    gpus = _parse_valid_records(topology.get("gpus"), _parse_gpu_as_path_end)
    parsed = _parse_valid_records(topology.get("pairs"), partial(read_record, Pair))
    pairs = {(pair.a, pair.b): pair for pair in parsed}
    words = topology.get("cmdline")
    paths = GpuPaths(
        gpus=tuple(gpus),
        pairs=tuple(pairs.values()),
        driver=_text_or_none(topology.get("driver")),
        cmdline=tuple(filter(None, map(_text_or_none, _list_or_empty(words)))),
        problem=_text_or_none(topology.get("error")),
        engine=engine,
    )
    if not trial_output:
        return paths
    first = trial_output[0]
    at = _driver_index_by_device(first.get("devices"), paths.gpus)
    reductions = []
    errors = []
    has_case = False
    for said in trial_output:
        if "case" not in said:
            errors.append(_text_or_none(said.get("error")))
            continue
        has_case = True
        if said["case"] == "all-reduce":
            reductions.append(said)
        elif said["case"] == "pair":
            found = _pair_with_copy_outcome(said, at, first.get("peer"), pairs)
            if found is not None:
                pairs[found.a, found.b] = found
    if not has_case and len(gpus) > 1:
        errors.append("the program ended before its first case")
    untried = next(filter(None, errors), None)
    if first.get("hang"):
        untried = f"torch did not find its GPUs within {CASE_S:g} s"
    return replace(
        paths,
        pairs=tuple(pairs.values()),
        reductions=tuple(_parse_valid_records(reductions, partial(read_record, Reduction))),
        torch=_text_or_none(first.get("torch")),
        cuda=_text_or_none(first.get("cuda")),
        nccl=_text_or_none(first.get("nccl")),
        untried=untried,
    )


def _pair_with_copy_outcome(
    outcome: Mapping[str, Any],
    driver_indices: Mapping[int, int],
    peer_access: Any,
    pairs: Mapping[tuple[int, int], Pair],
) -> Pair | None:
    """Return the pair of GPUs that `outcome` names, with the outcome of its copies.
    `driver_indices` has the driver's index of each of torch's devices. `peer_access` has a row for
    each device, with whether it can copy directly to each other one. None if the outcome names no
    two known devices."""
    index = driver_indices
    copies = _parse_valid_records(outcome.get("copies"), partial(read_record, Copy))
    try:
        trial = read_record(Pair, outcome)
        a, b = sorted((index[trial.a], index[trial.b]))
        moved = [replace(one, source=index[one.source], target=index[one.target]) for one in copies]
    except (ValueError, KeyError):
        return None
    try:
        direct = bool(peer_access[trial.a][trial.b] and peer_access[trial.b][trial.a])
    except (TypeError, IndexError, KeyError):
        direct = None
    return replace(
        pairs.get((a, b), Pair(a, b)),
        direct=direct,
        copies=tuple(moved),
        hang=trial.hang,
        unkillable=trial.unkillable,
        error=trial.error,
        skipped=trial.skipped,
    )


def _driver_index_by_device(devices: Any, gpus: Sequence[PathEnd]) -> Mapping[int, int]:
    """Return {torch's index: the driver's index} of each device of torch. A device whose UUID the
    driver does not know keeps torch's index."""
    by_uuid = {gpu.uuid.removeprefix("GPU-"): gpu.index for gpu in gpus if gpu.uuid}
    found = {}
    for number, device in enumerate(_list_or_empty(devices)):
        uuid = device.get("uuid") if isinstance(device, dict) else None
        known = by_uuid.get(uuid.removeprefix("GPU-")) if isinstance(uuid, str) else None
        found[number] = number if known is None else known
    return found


def _parse_valid_records(entries: Any, parse_entry: Callable[[Any], T]) -> list[T]:
    """Return the valid ones of `entries`, parsed. `parse_entry` raises ValueError for others."""
    found = []
    for one in _list_or_empty(entries):
        try:
            found.append(parse_entry(one))
        except ValueError:
            continue
    return found


def _parse_gpu_as_path_end(entry: Any) -> PathEnd:
    end = read_record(PathEnd, entry)
    acs = entry.get("acs")
    busy = number_for_field("busy_count", entry.get("busy"))
    texts = {}
    for bridge, redirects in acs.items() if isinstance(acs, dict) else ():
        if isinstance(redirects, list):
            texts[bridge] = ", ".join(filter(None, map(_text_or_none, redirects)))
    return replace(end, acs=texts, busy_count=None if busy is None else int(busy))


def _list_or_empty(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _text_or_none(value: Any) -> str | None:
    return value[:500] if isinstance(value, str) and value else None


async def store_trial_outcome(
    host: Host, topology: Mapping[str, Any], trial_output: Sequence[Mapping[str, Any]], engine: str
) -> None:
    """Store the outcome of a trial on the host. Raises HostError if it cannot be written."""
    document = {
        "tested_unix_s": time.time(),
        "engine": engine,
        "seen": topology,
        "tried": trial_output,
    }
    await host.write_file(f"{await host.state_dir()}/{FILE}", json.dumps(document).encode())


def trial_matches_driver_and_gpus(
    paths: GpuPaths, driver: DriverInfo, gpus: Sequence[GpuInfo]
) -> bool:
    """Return whether the trial in `paths` was made with this driver version and exactly these
    GPUs."""
    uuids = {gpu.uuid for gpu in gpus}
    return paths.driver == driver.driver_version and {end.uuid for end in paths.gpus} == uuids


async def read_last_trial(host: Host) -> GpuPaths | None:
    """Return the outcome of the last trial that is stored on the host, None if there is none or its
    file cannot be understood. Raises HostUnreachable if there is no connection."""
    try:
        kept = await host.read_file(f"{await host.state_dir()}/{FILE}", limit=FILE_MAX_BYTES)
        document = clean_json(kept)
        tested = number_for_field("tested_unix_s", document["tested_unix_s"])
        paths = parse_gpu_paths(
            document["seen"], list(document["tried"]), _text_or_none(document["engine"])
        )
    except FileError:
        return None
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    return replace(paths, tested_unix_s=tested)

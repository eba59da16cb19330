"""Known traps of GPU settings: cases in which a setting does something else than its name or its
success message says. The texts and their sources are in setting_traps.json.

plan.py warns of traps before a setting is applied. proof.py names the traps that explain a reading
under load.
"""

from __future__ import annotations

from functools import cache

from workbench.engines import memory_locks
from workbench.engines.gpu_table import find_gpu_type
from workbench.model.gpu import GpuInfo
from workbench.model.lazy_dataclass import dataclass
from workbench.model.settings import GPU_CLOCKS, MEMORY_CLOCKS, ClockRange

NEAR_HIGHEST_CLOCK_SHARE = (
    0.95  # of the highest clock: cards under load run below it (2790 to 2865 of 3090 MHz)
)


@dataclass(frozen=True, slots=True)
class Trap:
    """A known trap: a case in which a GPU setting does something unexpected. `text` describes it
    for the user, and can contain {names}, which the function `fill_in_trap` replaces by values.
    `sources` says where it is documented."""

    id: str
    text: str
    sources: tuple[str, ...] = ()


@cache
def known_traps_by_id() -> dict[str, Trap]:
    """Return the known cases of unexpected effects by id, read once from setting_traps.json."""

    import json
    from importlib.resources import files

    rows = json.loads(
        files("workbench.gpu.settings").joinpath("setting_traps.json").read_text("utf-8")
    )["traps"]
    return {row["id"]: Trap(row["id"], row["text"], tuple(row["sources"])) for row in rows}


def fill_in_trap(trap_id: str, **facts: object) -> Trap:
    """Return the known trap with the id `trap_id`, with each {name} in its text replaced by the
    value of that name in `facts`. Raises KeyError if the id is unknown or a name has no value."""
    found = known_traps_by_id()[trap_id]
    return Trap(found.id, found.text.format(**facts), found.sources)


def memory_lock_trap() -> Trap:
    """Return the known case of a memory lock that costs throughput."""
    return fill_in_trap("memory.lock-can-cost", chip=memory_locks.CHIP, source=memory_locks.SOURCE)


def clock_lock_warnings(setting: str, clocks: ClockRange, info: GpuInfo) -> str:
    """Return warnings, as one text, about the traps of a lock of these clocks on this GPU.
    `setting` says which clocks the lock limits. "" if there are none."""
    known = find_gpu_type(info.name)
    found = []
    if setting == GPU_CLOCKS.key and _is_near_highest_clock(clocks, info):
        found.append(fill_in_trap("clock.max-is-not-sustained"))
    if setting == MEMORY_CLOCKS.key and known is not None:
        normal = known.memory_under_compute_mhz
        if normal and clocks.min_mhz > normal:
            found.append(fill_in_trap("memory.normal-clock", mhz=normal))
        elif clocks.min_mhz == clocks.max_mhz == normal:
            found.append(fill_in_trap("memory.lock-is-where-it-runs", mhz=normal))
        if memory_locks.does_memory_lock_cost_throughput(info.name):
            found.append(memory_lock_trap())
    return "; ".join(one.text for one in found)


def _is_near_highest_clock(clocks: ClockRange, info: GpuInfo) -> bool:
    if not info.sm_max_mhz:
        return False
    return clocks.min_mhz >= NEAR_HIGHEST_CLOCK_SHARE * info.sm_max_mhz


def alternative_to_clock_lock(info: GpuInfo) -> str | None:
    """Return what the user can do instead on a GPU whose clocks or power limit cannot be set. None
    if no alternative is known."""
    known = find_gpu_type(info.name)
    if known is None or not known.chip.endswith("GB10"):
        return None
    return fill_in_trap("gb10.clock-lock-only").text

"""What GPU settings are known to do other than they seem to. Data with sources; proof.py says when one applies."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True, slots=True)
class Trap:
    """`text` may hold {names} until `trap` has filled them in."""

    id: str
    text: str
    sources: tuple[str, ...] = ()


@cache
def all_traps() -> dict[str, Trap]:
    import json
    from importlib.resources import files

    rows = json.loads(files("workbench.gpu.settings").joinpath("setting_traps.json").read_text("utf-8"))["traps"]
    return {row["id"]: Trap(row["id"], row["text"], tuple(row["sources"])) for row in rows}


def trap(trap_id: str, **facts: object) -> Trap:
    """With its names filled in. KeyError for an id or a name that is not there: a defect, not input."""
    found = all_traps()[trap_id]
    return Trap(found.id, found.text.format(**facts), found.sources)

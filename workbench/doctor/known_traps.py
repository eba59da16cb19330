"""The published traps of serving on GB10 and SM12x cards, and what of Workbench sees each of them.
They are in known_traps.json, with their source."""

from __future__ import annotations

from functools import cache
from typing import Any

from workbench.model.lazy_dataclass import dataclass

# what can see a trap, and what that is called
KINDS = {
    "plan": "rule about a plan",
    "log": "pattern of a log line",
    "doctor": "check of a host",
    "advisor": "rule about a result",
    "text": "examination of the answers",
    "setting": "proof of a GPU setting",
}


@dataclass(frozen=True, slots=True)
class KnownTrap:
    """A published trap. `seen_by` has the rules, patterns and checks that see it, as KIND:CODE with
    the code of their findings. `why_not` says why nothing sees it, or what the rules cannot see.
    `versions` is None if the source states none. `status` is "reproduced", "measured",
    "contributed" or "reported", as in the source."""

    id: str
    title: str
    seen_by: tuple[str, ...]
    why_not: str | None
    versions: str | None
    status: str
    source: str

    def __post_init__(self) -> None:
        unknown = [seen for seen in self.seen_by if seen.partition(":")[0] not in KINDS]
        if unknown:
            raise ValueError(f"trap {self.id}: {unknown[0]!r} names no kind of rule")
        if not self.seen_by and not self.why_not:
            raise ValueError(f"trap {self.id} is not decided: it has neither seen_by nor why_not")

    @property
    def detection_text(self) -> str:
        """The codes of the findings about this trap, "none" if there are none, and then what they
        cannot see, or why nothing sees the trap."""
        codes = ", ".join(dict.fromkeys(seen.partition(":")[2] for seen in self.seen_by))
        return "; ".join(filter(None, (codes or "none", self.why_not)))


@cache
def known_traps() -> tuple[KnownTrap, ...]:
    """Return the traps of known_traps.json, in the order of the source. Raises ValueError for a
    trap that neither a rule sees nor a reason explains."""
    import json
    from importlib.resources import files

    document: dict[str, Any] = json.loads(
        files("workbench.doctor").joinpath("known_traps.json").read_text("utf-8")
    )
    return tuple(
        KnownTrap(
            **{
                **row,
                "seen_by": tuple(row["seen_by"]),
                "source": document["base"] + row["source"],
            }
        )
        for row in document["traps"]
    )


def known_traps_summary() -> str:
    """Return one line of text: how many published traps there are, and how many of them Workbench
    sees."""
    traps = known_traps()
    seen = sum(bool(trap.seen_by) for trap in traps)
    return f"{len(traps)} published traps: Workbench sees {seen}, and {len(traps) - seen} cannot be seen"

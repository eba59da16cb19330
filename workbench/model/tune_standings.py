"""Where the candidates of a tune stand: what each measured in the blocks of the race, its gain over the
start preset, and why it left. All functions are pure and read a stored tune."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

from workbench.model.lazy_dataclass import dataclass
from workbench.model.sweep import PointState, Sweep, SweepPoint
from workbench.model.tune import START, Goal, goal_called

Entry = tuple[str, ...]  # the changes that one server joins; () is the start preset
START_ENTRY: Entry = ()
Block = Mapping[Entry, float]  # -> the logarithm of what the goal measures, more is better

_OF_A_BLOCK = re.compile(r"^(\d+): ")
# begin the error of a point that was measured, and that broke a limit or may have broken one
_BREAKS, _MAY_BREAK = "breaks a limit: ", "was not shown to keep a limit: "
UNMEASURED = "was not measured"


def point_label(block: int, entry: Entry) -> str:
    """Return the label of a point: its block, and what the server changes."""
    return f"{block}: {name_of(entry)}"


def entry_of_point_label(label: str) -> tuple[int, Entry]:
    """Return the block and the changes that a label of a point names."""
    block, _, words = label.partition(": ")
    return int(block), () if words == START else tuple(shlex.split(words))


def spell_out_block(text: str) -> str:
    """Return a label or a note of a tune as people read it: "1: start" as "block 1: start"."""
    return _OF_A_BLOCK.sub(r"block \1: ", text)


def name_of(entry: Entry) -> str:
    """Return the changes of a server as one text: "start" for those of the start preset."""
    return shlex.join(entry) if entry else START


def changes_text(entry: Entry) -> str:
    """Return the changes of a server for a person to read: of a JSON value only the values, as in
    "speculative-config={ngram,3,4}"."""
    return " ".join(map(_shorten_assignment, entry)) if entry else START


def _shorten_assignment(assignment: str) -> str:
    name, equals, text = assignment.partition("=")
    if not text.startswith("{"):
        return assignment
    try:
        values = json.loads(text).values()
    except ValueError:
        return assignment
    return f"{name}{equals}{{{','.join(map(str, values))}}}"


def log_value(point: SweepPoint, goal: Goal) -> float | None:
    """Return the logarithm of what the goal measures; more is better. None without a value."""
    value = getattr(point, goal.field)
    if value is None or value <= 0:
        return None
    return -math.log(value) if goal.less_is_better else math.log(value)


def limit_error(why: str) -> str:
    """Return the error of a configuration that was measured and is out because of a limit."""
    return f"{_MAY_BREAK if UNMEASURED in why else _BREAKS}{why}"


def broken_limit(point: SweepPoint) -> str:
    """Return the limit that a measured point has broken; "" if it keeps all, or has no value."""
    error = point.error or ""
    return error.removeprefix(_BREAKS) if error.startswith(_BREAKS) else ""


def start_breaks(sweep: Sweep) -> str:
    """Return the limit that the start preset breaks in the race; "" if it keeps all."""
    starts = (p for p in sweep.points if entry_of_point_label(p.label)[1] == START_ENTRY)
    return next(filter(None, map(broken_limit, starts)), "")


def blocks_of(sweep: Sweep) -> list[Block]:
    """Return what the blocks measured so far. Of the candidates, only those that kept the limits are
    in it; the start preset always is, because the others are compared with it."""
    assert sweep.spec is not None and sweep.spec.tune is not None
    goal = goal_called(sweep.spec.tune.goal)
    count = max(entry_of_point_label(point.label)[0] for point in sweep.points)
    blocks: list[dict[Entry, float]] = [{} for _ in range(count)]
    for point in sweep.points:
        block, entry = entry_of_point_label(point.label)
        value = log_value(point, goal) if point.state == PointState.DONE else None
        if value is not None and (not point.error or entry == START_ENTRY):
            blocks[block - 1][entry] = value
    return list(blocks)


def _is_out(point: SweepPoint) -> bool:
    """Return whether a server could not be measured, or broke a limit."""
    return point.state == PointState.FAILED or (
        point.state == PointState.DONE and bool(point.error)
    )


def mean_gains(blocks: Sequence[Block]) -> dict[Entry, float]:
    """Return for each entry of the newest block the mean, over the blocks in which it ran, of the
    logarithm of its ratio to the start preset. A block without the start preset is left out."""
    usable = [block for block in blocks if START_ENTRY in block]
    return _gains_of_entries(usable[-1], usable) if usable else {}


def gains_of_survivors(sweep: Sweep) -> dict[Entry, float]:
    """Return the gains of the entries that are still in the race of a stored tune: those of the
    newest block, or of the block before if all of these are out. An entry whose second start there
    was no time for keeps what its first start has shown."""
    usable = [block for block in blocks_of(sweep) if START_ENTRY in block]
    newest: dict[Entry, SweepPoint] = {entry_of_point_label(p.label)[1]: p for p in sweep.points}
    still = {entry: point for entry, point in newest.items() if not _is_out(point)}
    for number in range(max(entry_of_point_label(p.label)[0] for p in sweep.points), 0, -1):
        known = [
            entry
            for entry, point in still.items()
            if entry_of_point_label(point.label)[0] == number
            and any(entry in block for block in usable)
        ]
        if found := _gains_of_entries(known, usable):
            return found
    return {}


def _gains_of_entries(entries: Iterable[Entry], usable: Sequence[Block]) -> dict[Entry, float]:
    return {
        entry: fmean(block[entry] - block[START_ENTRY] for block in usable if entry in block)
        for entry in entries
        if entry != START_ENTRY
    }


@dataclass(frozen=True, slots=True)
class Standing:
    """One configuration of the race. `values` has what the goal measured, by block, None where it was
    not measured. `gain` is the logarithm of its ratio to the start preset; None without one."""

    entry: Entry
    values: tuple[float | None, ...]
    gain: float | None
    points: tuple[SweepPoint, ...]

    @property
    def newest_point(self) -> SweepPoint:
        """The newest point of the configuration."""
        return self.points[-1]


def rank_configurations(sweep: Sweep) -> list[Standing]:
    """Return the configurations of a tune, the start preset first and then the best first. Those that
    reached the second block come before the others, and those without a value last."""
    assert sweep.spec is not None and sweep.spec.tune is not None
    goal = goal_called(sweep.spec.tune.goal)
    blocks = [block for block in blocks_of(sweep) if START_ENTRY in block]
    count = max(entry_of_point_label(point.label)[0] for point in sweep.points)
    points: dict[Entry, list[SweepPoint]] = {}
    for point in sweep.points:
        points.setdefault(entry_of_point_label(point.label)[1], []).append(point)
    found = []
    for entry, own in points.items():
        known = [entry] if any(entry in block for block in blocks) else []
        values: list[float | None] = [None] * count
        for point in own:
            if point.state == PointState.DONE:
                values[entry_of_point_label(point.label)[0] - 1] = getattr(point, goal.field)
        found.append(
            Standing(entry, tuple(values), _gains_of_entries(known, blocks).get(entry), tuple(own))
        )

    def rank(one: Standing) -> tuple[bool, bool, int, float]:
        is_out = one.gain is None or _is_out(one.newest_point)
        newest = entry_of_point_label(one.newest_point.label)[0]
        return (one.entry != START_ENTRY, is_out, -newest, -(one.gain or 0.0))

    return sorted(found, key=rank)

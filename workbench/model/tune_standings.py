"""Where the candidates of a tune stand: what each measured in the blocks of the race, its gain over
the start preset, and why it left. All functions are pure and read a stored tune."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from statistics import fmean

from workbench.model.lazy_dataclass import dataclass
from workbench.model.sweep import PointState, Sweep, SweepPoint
from workbench.model.tune import START, Goal, find_goal

Entry = tuple[str, ...]  # the changes that one server joins; () is the start preset
START_ENTRY: Entry = ()
Block = Mapping[Entry, float]  # -> the logarithm of what the goal measures, more is better

_OF_A_BLOCK = re.compile(r"^(\d+): ")
# begin the error of a point that was measured, and that broke a limit or may have broken one
_BREAKS, _MAY_BREAK = "breaks a limit: ", "was not shown to keep a limit: "
UNMEASURED = "was not measured"


def format_point_label(block: int, entry: Entry) -> str:
    """Return the label of a point: its block, and what the server changes."""
    return f"{block}: {format_entry(entry)}"


def parse_point_label(label: str) -> tuple[int, Entry]:
    """Return (number of the block, changes of the server) that the label of a point names."""
    block, _, words = label.partition(": ")
    return int(block), () if words == START else tuple(shlex.split(words))


def block_label_for_people(text: str) -> str:
    """Return a label or a note of a tune as people read it: "1: start" as "block 1: start"."""
    return _OF_A_BLOCK.sub(r"block \1: ", text)


def format_entry(entry: Entry) -> str:
    """Return the changes of a server as one text: "start" for those of the start preset."""
    return shlex.join(entry) if entry else START


def format_entry_for_people(entry: Entry) -> str:
    """Return the changes of a server for a person to read: of a JSON value only the values, as in
    "speculative-config={ngram,3,4}"."""
    return " ".join(map(_assignment_with_json_values, entry)) if entry else START


def _assignment_with_json_values(assignment: str) -> str:
    name, equals, text = assignment.partition("=")
    if not text.startswith("{"):
        return assignment
    try:
        values = json.loads(text).values()
    except ValueError:
        return assignment
    return f"{name}{equals}{{{','.join(map(str, values))}}}"


def signed_log_of_goal(point: SweepPoint, goal: Goal) -> float | None:
    """Return the logarithm of what the goal measures at a point, negated if less is better, so that
    more always is. None if there is no value above 0."""
    value = getattr(point, goal.field)
    if value is None or value <= 0:
        return None
    return goal.sign * math.log(value)


def limit_error_text(why: str) -> str:
    """Return the error of a configuration that was measured and is out because of a limit."""
    prefix = _MAY_BREAK if UNMEASURED in why else _BREAKS
    return f"{prefix}{why}"


def limit_broken_by_point(point: SweepPoint) -> str:
    """Return the limit that a measured point has broken; "" if none is known to be broken."""
    if point.error is None or not point.error.startswith(_BREAKS):
        return ""
    return point.error.removeprefix(_BREAKS)


def limit_broken_by_start(sweep: Sweep) -> str:
    """Return the limit that the start preset breaks in the race; "" if it keeps all."""
    starts = _points_by_entry(sweep).get(START_ENTRY, ())
    return next(filter(None, map(limit_broken_by_point, starts)), "")


def read_measured_blocks(sweep: Sweep) -> list[Block]:
    """Return what the blocks of a tune have measured so far, in their order. A block has the
    candidates that were measured in it and kept the limits. It has the start preset also if that
    broke a limit, because the others are compared with it."""
    goal = find_goal(sweep.tune_spec.goal)
    blocks: list[dict[Entry, float]] = [{} for _ in range(_count_blocks(sweep))]
    for point in sweep.points:
        block, entry = parse_point_label(point.label)
        if point.state != PointState.DONE or (point.error and entry != START_ENTRY):
            continue
        value = signed_log_of_goal(point, goal)
        if value is not None:
            blocks[block - 1][entry] = value
    return list(blocks)


def _blocks_with_start_preset(blocks: Iterable[Block]) -> list[Block]:
    """Return the blocks with the start preset, with which the others are compared."""
    return [block for block in blocks if START_ENTRY in block]


def _count_blocks(sweep: Sweep) -> int:
    return max(map(_block_number_of, sweep.points))


def _block_number_of(point: SweepPoint) -> int:
    """Return the number of the block that the point belongs to."""
    return parse_point_label(point.label)[0]


def _points_by_entry(sweep: Sweep) -> dict[Entry, list[SweepPoint]]:
    points: dict[Entry, list[SweepPoint]] = {}
    for point in sweep.points:
        points.setdefault(parse_point_label(point.label)[1], []).append(point)
    return points


def _failed_or_broke_limit(point: SweepPoint) -> bool:
    """Return whether a server could not be measured, or broke a limit."""
    if point.state == PointState.DONE:
        return bool(point.error)
    return point.state == PointState.FAILED


def mean_log_gains_of_newest_block(blocks: Sequence[Block]) -> dict[Entry, float]:
    """Return the gain of each entry of the newest block: the mean, over the blocks in which it ran,
    of the logarithm of its ratio to the start preset. Blocks without the start preset are left out;
    {} if none has it."""
    usable = _blocks_with_start_preset(blocks)
    if not usable:
        return {}
    return _mean_log_gains(usable[-1], usable)


def log_gains_of_remaining_entries(sweep: Sweep) -> dict[Entry, float]:
    """Return the mean log gains of the entries that are still in the race of a stored tune: those
    whose newest start was in the last block that has any. An entry that was not started a second
    time, for lack of time, keeps what its first start has shown. {} if none is left."""
    usable = _blocks_with_start_preset(read_measured_blocks(sweep))
    measured = set(chain.from_iterable(usable))
    survivors: dict[int, list[Entry]] = {}
    for entry, points in _points_by_entry(sweep).items():
        newest = points[-1]
        if entry in measured and not _failed_or_broke_limit(newest):
            survivors.setdefault(_block_number_of(newest), []).append(entry)
    for block in sorted(survivors, reverse=True):
        if found := _mean_log_gains(survivors[block], usable):
            return found
    return {}


def _mean_log_gains(entries: Iterable[Entry], usable: Sequence[Block]) -> dict[Entry, float]:
    return {
        entry: fmean(block[entry] - block[START_ENTRY] for block in usable if entry in block)
        for entry in entries
        if entry != START_ENTRY
    }


@dataclass(frozen=True, slots=True)
class RankedConfiguration:
    """One configuration of the race. `values` has what the goal measured in each block, None for a
    block in which it was not measured. `gain` is the mean logarithm of its ratio to the start
    preset; None if there is none."""

    entry: Entry
    values: tuple[float | None, ...]
    gain: float | None
    points: tuple[SweepPoint, ...]

    @property
    def newest_point(self) -> SweepPoint:
        """The newest point of the configuration."""
        return self.points[-1]


def rank_configurations(sweep: Sweep) -> list[RankedConfiguration]:
    """Return the configurations of a tune, the start preset first and then the best first. Those
    that reached the second block come before the others, and those without a value last."""
    goal = find_goal(sweep.tune_spec.goal)
    usable = _blocks_with_start_preset(read_measured_blocks(sweep))
    gains = _mean_log_gains(set(chain.from_iterable(usable)), usable)
    count, found = _count_blocks(sweep), []
    for entry, points in _points_by_entry(sweep).items():
        values: list[float | None] = [None] * count
        for point in points:
            if point.state == PointState.DONE:
                values[_block_number_of(point) - 1] = getattr(point, goal.field)
        found.append(RankedConfiguration(entry, tuple(values), gains.get(entry), tuple(points)))

    def ranking_key(one: RankedConfiguration) -> tuple[bool, bool, int, float]:
        is_out = one.gain is None or _failed_or_broke_limit(one.newest_point)
        newest = _block_number_of(one.newest_point)
        return (one.entry != START_ENTRY, is_out, -newest, -(one.gain or 0.0))

    return sorted(found, key=ranking_key)

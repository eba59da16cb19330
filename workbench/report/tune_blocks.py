"""Blocks about tunes: the plan before the start, the race, the final, and why each candidate left. The
command, the page and the reports show the same blocks."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Sequence

from workbench.model.counts import count_of
from workbench.model.experiment import Experiment
from workbench.model.metrics import short_title
from workbench.model.series_state import SeriesState
from workbench.model.sweep import PointState, Sweep
from workbench.model.tune import (
    GOALS,
    OF_LATENCIES,
    LeftOut,
    TuneCost,
    TuneLimits,
    TuneSpec,
    goal_called,
)
from workbench.model.tune_standings import (
    START_ENTRY,
    Entry,
    Standing,
    broken_limit,
    changes_text,
    entry_of_point_label,
    rank_configurations,
    spell_out_block,
    start_breaks,
)
from workbench.report.blocks import (
    Alert,
    Block,
    Facts,
    Heading,
    Items,
    Table,
    TextBlock,
    simulated_alert,
)
from workbench.report.format_values import change_text, metric_number, percent_change

_WROTE = "wrote the preset"  # begins the note about the preset of the winner
UNKNOWN = "known after the first run: there is no earlier start or benchmark like this one"


def plan_blocks(spec: TuneSpec, cost: TuneCost, *, simulated: bool) -> list[Block]:
    """Return the blocks that describe a tune before its start: its cost, its candidates with the
    reason for each, and what is left out, with the reason against it."""
    starts = (
        f"at most {cost.starts}: a race in two blocks, then the best against the start preset "
        f"in {cost.pairs} pairs of fresh starts"
    )
    if cost.checks:
        starts += f"; {cost.checks} of them compare the answers of the leader"
    rows = [
        ("goal", goal_called(spec.goal).title),
        ("limits", _spec_limits_text(spec)),
        ("each run", cost.load),
        ("starts", starts),
        ("takes", _cost_text(cost)),
    ]
    if cost.energy_kwh is not None:
        rows.append(("energy", f"at most {cost.energy_kwh:.2g} kWh by the GPUs' power limits"))
    return [
        *simulated_alert(simulated),
        Facts(tuple(rows)),
        Heading(count_of(len(spec.candidates), "candidate")),
        Items(tuple(f"{shlex.join(one.sets)}: {one.reason}" for one in spec.candidates)),
        *left_out_blocks(spec.left_out),
    ]


def _cost_text(cost: TuneCost) -> str:
    if cost.took_s is None:
        return UNKNOWN
    answers = " and the comparison of answers in the final" if cost.compares_answers else ""
    return f"about {_duration_text(cost.took_s)}{answers}"


def _duration_text(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 100 else f"{minutes / 60:.1f} h"


def _spec_limits_text(spec: TuneSpec) -> str:
    said = limits_text(spec.limits) or "none"
    counts = spec.goal in OF_LATENCIES
    return f"{said}; those on latencies say what counts" if counts else said


def tune_goal_text(spec: TuneSpec) -> str:
    """Return in one line what a tune improves, and within which limits."""
    return f"goal {goal_called(spec.goal).title}, limits {_spec_limits_text(spec)}"


def limits_text(limits: TuneLimits) -> str:
    """Return the limits as a person gives them."""
    most = {"power": limits.power_w, "temp": limits.temperature_c, "kld": limits.kld}
    said = [f"{name}<={value:g}" for name, value in most.items() if value is not None]
    return ", ".join(filter(None, (limits.slo, *said)))


def left_out_blocks(left_out: Iterable[LeftOut]) -> list[Block]:
    """Return the blocks with what a tune does not try. Changes with one reason share a line."""
    by_reason: dict[str, list[str]] = {}
    for one in left_out:
        by_reason.setdefault(one.reason, []).append(one.words)
    if not by_reason:
        return []
    lines = tuple(f"{', '.join(words)}: {reason}" for reason, words in by_reason.items())
    return [Heading("Left out"), Items(lines)]


def tune_blocks(sweep: Sweep, final: Experiment | None = None) -> list[Block]:
    """Return the blocks that describe a tune: what it has found, what was asked, the final, the race,
    its decisions, and what it did not try. `final` is the experiment of the final, if that is known. It
    stands before the race, which is over then, so that 24 rows show it while it runs."""
    assert sweep.spec is not None and sweep.spec.tune is not None
    blocks: list[Block] = [*found_blocks(sweep), TextBlock(tune_goal_text(sweep.spec.tune))]
    blocks += final_blocks(sweep, final)
    blocks += [Heading("Race"), race_table(sweep)]
    decisions = tuple(spell_out_block(note) for note in sweep.notes if not note.startswith(_WROTE))
    if decisions:
        blocks += [Heading("Decisions"), Items(decisions)]
    return [*blocks, *left_out_blocks(sweep.spec.tune.left_out)]


def found_blocks(sweep: Sweep) -> list[Block]:
    """Return the blocks that say what a tune has found, and what ended it if it is not done."""
    blocks: list[Block] = []
    if sweep.knee_text:
        mark = "good" if sweep.confirmed else ""
        blocks.append(TextBlock(sweep.knee_text, lead=True, mark=mark))
        blocks += [TextBlock(note) for note in sweep.notes if note.startswith(_WROTE)]
    if sweep.state == "failed":
        blocks.append(Alert("failed", "The tune has failed", (sweep.error or "",)))
    elif sweep.state == "stopped":
        blocks.append(Alert("warning", "The tune is stopped", (sweep.error or "",)))
    return blocks


def race_table(sweep: Sweep) -> Table:
    """Return the table of the race: what each configuration measured in each block, its gain over
    the start preset, and where it stands. The best come first."""
    assert sweep.spec is not None and sweep.spec.tune is not None
    goal = GOALS[sweep.spec.tune.goal]
    found = rank_configurations(sweep)
    blocks = max((len(one.values) for one in found), default=1)
    leads = _leading_entry(sweep, found)
    rows, marks = [], []
    for one in found:
        name, gain = "start preset", ""
        if one.entry != START_ENTRY:
            name = changes_text(one.entry)
            gain = "" if one.gain is None else change_text(100 * math.expm1(one.gain))
        values = (_metric_value_text(goal.metric, value) for value in one.values)
        rows.append((name, *values, gain, _state_text(sweep, one, leads)))
        marks.append(_standing_mark(one, leads))
    title = short_title(goal.metric)
    return Table(
        head=("configuration", *(f"{title} {n}" for n in range(1, blocks + 1)), "gain", "state"),
        rows=tuple(rows),
        numeric=frozenset(range(1, blocks + 2)),
        marks=tuple(marks),
    )


def final_blocks(sweep: Sweep, final: Experiment | None) -> list[Block]:
    """Return the blocks about the pairs of the final against the start preset; [] before it."""
    if final is None or final.id != sweep.experiment_id:
        if sweep.experiment_id is None:
            return []
        return [Heading("Final"), TextBlock(f"experiment {sweep.experiment_id}")]
    best = changes_text(final.spec.b.words)
    blocks: list[Block] = [Heading(f"Final: {best} against the start preset")]
    done = (
        f"{final.completed_pairs} of {count_of(final.spec.pairs, 'pair')} (experiment {final.id})"
    )
    blocks.append(TextBlock(f"{final.verdict}; {done}" if final.verdict else done))
    metric, decided = final.spec.metric, final.deciding_change
    if decided is None or not decided.pairs:
        return blocks
    rows = tuple(
        (
            str(number),
            _metric_value_text(metric, a),
            _metric_value_text(metric, b),
            change_text(percent_change(a, b)),
        )
        for number, (a, b) in enumerate(decided.pairs, start=1)
    )
    title = short_title(metric)
    head = ("pair", f"start {title}", f"best {title}", "change")
    return [*blocks, Table(head, rows, frozenset({0, 1, 2, 3}))]


def _metric_value_text(metric: str, value: float | None) -> str:
    return "" if value is None else metric_number(metric, value)


def _leading_entry(sweep: Sweep, found: Sequence[Standing]) -> Entry | None:
    """Return the configuration that leads the race now; None if the start preset does."""
    ahead = [one for one in found if one.entry != START_ENTRY and one.gain is not None]
    best = next((one for one in ahead if not one.newest_point.error), None)
    if best is None or best.gain is None:
        return None
    return best.entry if best.gain > 0 or start_breaks(sweep) else None


def _state_text(sweep: Sweep, one: Standing, leads: Entry | None) -> str:
    point = one.newest_point
    if one.entry == START_ENTRY:
        broken = next(filter(None, map(broken_limit, one.points)), "")
        if broken:
            return f"breaks a limit: {broken}"
    if point.state == PointState.SKIPPED and point.error == sweep.error:
        return "not tried"  # for the reason that the tune failed, which stands above
    if point.error:
        return f"not tried: {point.error}" if point.state == PointState.SKIPPED else point.error
    if point.state in (PointState.PLANNED, PointState.MEASURING):
        word = "waits" if point.state == PointState.PLANNED else "measuring"
        return f"leads, {word}" if one.entry == leads else word
    if one.entry == leads:
        if sweep.state == SeriesState.DONE:
            return "proven in the final" if sweep.confirmed else "not proven in the final"
        return "leads" if sweep.experiment_id is None else "in the final"
    left = f"{entry_of_point_label(point.label)[0]}: {changes_text(one.entry)}: "
    why = next((note for note in reversed(sweep.notes) if note.startswith(left)), "")
    if "; " in why:
        return why.rpartition("; ")[2]
    over = sweep.state == SeriesState.DONE and one.gain is not None and one.gain <= 0
    return "not better than the start preset" if over else ""


def _standing_mark(one: Standing, leads: Entry | None) -> str:
    if one.entry == START_ENTRY:
        return ""
    if one.newest_point.state == PointState.MEASURING:
        return "warning"
    if one.entry == leads:
        return "good"
    if one.newest_point.state == PointState.FAILED or broken_limit(one.newest_point):
        return "bad"
    return "dim" if one.gain is None or one.newest_point.error else ""

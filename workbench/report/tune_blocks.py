"""Blocks about tunes: the plan before the start, the race, the final, and why each candidate left.
The command, the page and the reports show the same blocks."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Sequence

from workbench.model.counts import count_of
from workbench.model.experiment import Experiment
from workbench.model.metrics import narrow_table_title
from workbench.model.series_state import SeriesState
from workbench.model.sweep import PointState, Sweep
from workbench.model.tune import (
    GOALS,
    OF_LATENCIES,
    LeftOut,
    TuneCost,
    TuneLimits,
    TuneSpec,
    find_goal,
)
from workbench.model.tune_standings import (
    START_ENTRY,
    Entry,
    RankedConfiguration,
    block_label_for_people,
    format_entry_for_people,
    limit_broken_by_point,
    limit_broken_by_start,
    parse_point_label,
    rank_configurations,
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
from workbench.report.format_values import change_text, format_metric_value, percent_change

_WROTE = "wrote the preset"  # begins the note about the preset of the winner
UNKNOWN = "known after the first run: there is no earlier start or benchmark like this one"


def tune_plan_blocks(spec: TuneSpec, cost: TuneCost, *, simulated: bool) -> list[Block]:
    """Return the blocks that describe a tune before its start: its cost, its candidates with the
    reason for each, and what is left out, with the reason against it."""
    starts = (
        f"at most {cost.starts}: a race in two blocks, then the best against the start preset "
        f"in {cost.pairs} pairs of fresh starts"
    )
    if cost.checks:
        starts += f"; {cost.checks} of them compare the answers of the leader"
    rows = [
        ("goal", find_goal(spec.goal).title),
        ("limits", _spec_limits_text(spec)),
        ("each run", cost.load),
        ("starts", starts),
        ("takes", _tune_duration_text(cost)),
    ]
    if cost.energy_kwh is not None:
        rows.append(("energy", f"at most {cost.energy_kwh:.2g} kWh by the GPUs' power limits"))
    return [
        *simulated_alert(simulated),
        Facts(tuple(rows)),
        Heading(count_of(len(spec.candidates), "candidate")),
        Items(tuple(f"{shlex.join(one.sets)}: {one.reason}" for one in spec.candidates)),
        *excluded_changes_blocks(spec.left_out),
    ]


def _tune_duration_text(cost: TuneCost) -> str:
    if cost.took_s is None:
        return UNKNOWN
    text = f"about {_duration_text(cost.took_s)}"
    if cost.compares_answers:
        text += " and the comparison of answers in the final"
    return text


def _duration_text(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def _spec_limits_text(spec: TuneSpec) -> str:
    text = limits_text(spec.limits) or "none"
    if spec.goal in OF_LATENCIES:
        text += "; those on latencies say what counts"
    return text


def tune_goal_text(spec: TuneSpec) -> str:
    """Return in one line what a tune improves, and within which limits."""
    return f"goal {find_goal(spec.goal).title}, limits {_spec_limits_text(spec)}"


def limits_text(limits: TuneLimits) -> str:
    """Return the limits in the form in which a person gives them, such as "ttft<=500@p95,
    power<=400"; "" without limits."""
    texts = [limits.slo] if limits.slo else []
    most = {"power": limits.power_w, "temp": limits.temperature_c, "kld": limits.kld}
    texts += [f"{name}<={value:g}" for name, value in most.items() if value is not None]
    return ", ".join(texts)


def excluded_changes_blocks(excluded: Iterable[LeftOut]) -> list[Block]:
    """Return the blocks with the changes that a tune does not try; [] if there are none. Changes
    with the same reason share a line."""
    by_reason: dict[str, list[str]] = {}
    for one in excluded:
        by_reason.setdefault(one.reason, []).append(one.words)
    if not by_reason:
        return []
    lines = tuple(f"{', '.join(words)}: {reason}" for reason, words in by_reason.items())
    return [Heading("Left out"), Items(lines)]


def tune_blocks(sweep: Sweep, final: Experiment | None = None) -> list[Block]:
    """Return the blocks that describe a tune: what it has found, what was asked, the final, the
    race, its decisions, and what it did not try. `final` is the experiment of the final, None
    before it. It stands before the race, so that 24 rows show it while it runs."""
    blocks: list[Block] = [*tune_outcome_blocks(sweep), TextBlock(tune_goal_text(sweep.tune_spec))]
    blocks += final_experiment_blocks(sweep, final)
    blocks += [Heading("Race"), race_table(sweep)]
    decisions = tuple(
        block_label_for_people(note) for note in sweep.notes if not note.startswith(_WROTE)
    )
    if decisions:
        blocks += [Heading("Decisions"), Items(decisions)]
    return [*blocks, *excluded_changes_blocks(sweep.tune_spec.left_out)]


def tune_outcome_blocks(sweep: Sweep) -> list[Block]:
    """Return the blocks that say what a tune has found, and what ended it if it is not done."""
    blocks: list[Block] = []
    if sweep.knee_text:
        mark = "good" if sweep.confirmed else ""
        blocks.append(TextBlock(sweep.knee_text, lead=True, mark=mark))
        blocks += [TextBlock(note) for note in sweep.notes if note.startswith(_WROTE)]
    why = (sweep.error or "",)
    if sweep.state == "failed":
        blocks.append(Alert("failed", "The tune has failed", why))
    elif sweep.state == "stopped":
        blocks.append(Alert("warning", "The tune is stopped", why))
    return blocks


def race_table(sweep: Sweep) -> Table:
    """Return the table of the race: what each configuration measured in each block, its gain over
    the start preset, and where it stands. The best come first."""
    goal = GOALS[sweep.tune_spec.goal]
    found = rank_configurations(sweep)
    blocks = max((len(one.values) for one in found), default=1)
    leads = _leading_entry(sweep, found)
    rows, marks = [], []
    for one in found:
        name, gain = "start preset", ""
        if one.entry != START_ENTRY:
            name = format_entry_for_people(one.entry)
            if one.gain is not None:
                gain = change_text(100 * math.expm1(one.gain))
        values = [_metric_value_text(goal.metric, value) for value in one.values]
        rows.append((name, *values, gain, _race_state_text(sweep, one, leads)))
        marks.append(_standing_mark(one, leads))
    title = narrow_table_title(goal.metric)
    return Table(
        head=("configuration", *(f"{title} {n}" for n in range(1, blocks + 1)), "gain", "state"),
        rows=tuple(rows),
        numeric=frozenset(range(1, blocks + 2)),
        marks=tuple(marks),
    )


def final_experiment_blocks(sweep: Sweep, final: Experiment | None) -> list[Block]:
    """Return the blocks about the final, the pairs of runs against the start preset; [] before it
    has begun. They only name its experiment if `final` is not that one."""
    if final is None or final.id != sweep.experiment_id:
        if sweep.experiment_id is None:
            return []
        return [Heading("Final"), TextBlock(f"experiment {sweep.experiment_id}")]
    best = format_entry_for_people(final.spec.b.target_and_change_texts)
    blocks: list[Block] = [Heading(f"Final: {best} against the start preset")]
    pairs = f"{final.completed_pairs} of {count_of(final.spec.pairs, 'pair')}"
    done = f"{pairs} (experiment {final.id})"
    blocks.append(TextBlock("; ".join(filter(None, (final.verdict, done)))))
    metric, decided = final.spec.metric, final.change_of_deciding_metric
    if decided is None or not decided.pairs:
        return blocks
    rows = []
    for number, (a, b) in enumerate(decided.pairs, start=1):
        values = (_metric_value_text(metric, a), _metric_value_text(metric, b))
        rows.append((str(number), *values, change_text(percent_change(a, b))))
    title = narrow_table_title(metric)
    head = ("pair", f"start {title}", f"best {title}", "change")
    return [*blocks, Table(head, tuple(rows), frozenset({0, 1, 2, 3}))]


def _metric_value_text(metric: str, value: float | None) -> str:
    return "" if value is None else format_metric_value(metric, value)


def _leading_entry(sweep: Sweep, found: Sequence[RankedConfiguration]) -> Entry | None:
    """Return the configuration that leads the race now; None if the start preset does."""
    for one in found:
        if one.entry == START_ENTRY or one.newest_point.error:
            continue
        if one.gain is None:
            continue
        if one.gain > 0 or limit_broken_by_start(sweep):
            return one.entry
        return None
    return None


def _race_state_text(sweep: Sweep, standing: RankedConfiguration, leader: Entry | None) -> str:
    point = standing.newest_point
    if standing.entry == START_ENTRY:
        broken = next(filter(None, map(limit_broken_by_point, standing.points)), "")
        if broken:
            return f"breaks a limit: {broken}"
    if point.state == PointState.SKIPPED and point.error == sweep.error:
        return "not tried"  # for the reason that the tune failed, which stands above
    if point.error:
        return f"not tried: {point.error}" if point.state == PointState.SKIPPED else point.error
    if point.state in _STATES_OF_A_POINT:
        state = _STATES_OF_A_POINT[point.state]
        return f"leads, {state}" if standing.entry == leader else state
    if standing.entry == leader:
        return _leader_state_text(sweep)
    left = f"{parse_point_label(point.label)[0]}: {format_entry_for_people(standing.entry)}: "
    why = next((note for note in reversed(sweep.notes) if note.startswith(left)), "")
    if "; " in why:
        return why.rpartition("; ")[2]
    if sweep.state == SeriesState.DONE and standing.gain is not None and standing.gain <= 0:
        return "not better than the start preset"
    return ""


_STATES_OF_A_POINT = {PointState.PLANNED: "waits", PointState.MEASURING: "measuring"}


def _leader_state_text(sweep: Sweep) -> str:
    if sweep.state == SeriesState.DONE:
        return "proven in the final" if sweep.confirmed else "not proven in the final"
    return "leads" if sweep.experiment_id is None else "in the final"


def _standing_mark(standing: RankedConfiguration, leader: Entry | None) -> str:
    if standing.entry == START_ENTRY:
        return ""
    if standing.newest_point.state == PointState.MEASURING:
        return "warning"
    if standing.entry == leader:
        return "good"
    if standing.newest_point.state == PointState.FAILED or limit_broken_by_point(
        standing.newest_point
    ):
        return "bad"
    if standing.gain is None or standing.newest_point.error:
        return "dim"
    return ""

"""The command `tune`, which searches a configuration that serves better than a preset, and proves it
in pairs of fresh starts."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from workbench.cli.experiment_text import UNKNOWN_DURATION, duration, report_progress
from workbench.cli.load_options import CONCURRENCY, SHAPE, SIZE, load_of, quality_of
from workbench.cli.open_session import connected
from workbench.cli.output import emit_or_say, note
from workbench.cli.plan import load_plan
from workbench.cli.questions import confirm
from workbench.cli.registry import command, option
from workbench.cli.shared_options import (
    CHANGES,
    IF_MEASURED,
    MAX_MINUTES_LEFT,
    PRESET,
    QUALITY,
    RUN_AS,
    TRUST,
    YES,
)
from workbench.cli.stop_signals import cancelled_by_signals
from workbench.cli.sweeps import SWEEP_ID, print_sweep, report_points, stored_sweep
from workbench.model.errors import InputError
from workbench.model.tune import TUNE, goal_called

if TYPE_CHECKING:
    from workbench.model.sweep import Sweep
    from workbench.session.series.sweep_parts import PlannedSweep
    from workbench.session.session import Session
    from workbench.session.state import SessionState

_STARTS = 30


@command(
    "tune",
    "search a configuration that serves better than a preset, and prove it in pairs of fresh starts",
    PRESET,
    *CHANGES,
    *RUN_AS,
    TRUST,
    option("--goal GOAL", "what to improve: tok_s, tok_j or ttft (tok_s)", default="tok_s"),
    option(
        "--subject-to LIMITS",
        "limits that every configuration must keep: 'ttft@p95<=500, power<=400, temp<=83'",
        default="",
        dest="limits",
    ),
    option("--starts N", f"largest number of servers to start ({_STARTS})", int, default=_STARTS),
    option("--hours H", "time limit of the whole tune, the final included", float),
    option("--plan", "only show the candidates, what is left out, and what the tune costs"),
    CONCURRENCY,
    *SIZE,
    *SHAPE,
    *QUALITY,
    IF_MEASURED,
    YES,
    usage="workbench tune PRESET [--goal GOAL] [--subject-to LIMITS] [--plan] [OPTION…]\n"
    "       workbench tune resume|show ID",
    examples=(
        "workbench tune vllm-any --concurrency 16 --hours 2 --starts 30",
        "workbench tune vllm-any --goal tok_j --subject-to 'ttft@p95<=500, power<=400' --plan",
    ),
)
async def tune(arguments: argparse.Namespace) -> int:
    if arguments.hours is not None and not arguments.hours > 0:
        raise InputError(
            f"a tune of {arguments.hours:g} hours is not possible",
            next_step="give more than 0 hours, or leave the limit out",
        )
    minutes = None if arguments.hours is None else 60 * arguments.hours
    async with connected(arguments) as session, cancelled_by_signals():
        await load_plan(session, arguments)
        await session.servers.adopt()
        planned = await session.sweeps.plan_tune(
            arguments.goal,
            arguments.limits,
            starts=arguments.starts,
            max_minutes=minutes,
            **quality_of(arguments),
            **load_of(arguments),
        )
        lines = list(_plan_lines(session, planned))
        if arguments.plan:
            emit_or_say(arguments.json, _plan_json(session, planned), lines)
            return 0
        for line in lines:
            note(line)
        await _confirm(session, arguments)
        session.subscribe(report_points(arguments))
        session.subscribe(report_decisions(arguments))
        session.subscribe(report_progress())
        sweep = await session.sweeps.run_tune(planned)
    return print_tune(sweep, arguments.json)


async def _confirm(
    session: Session, arguments: argparse.Namespace, own_run: str | None = None
) -> None:
    """Ask before the tune starts servers. `own_run` is a server that the tune itself has started."""
    server = session.state.server
    stops = ""
    if server is not None and server.state.alive and server.run_id != own_run:
        stops = f", stops run {server.run_id} ({server.model}), and starts it again afterwards"
    what = f"starts and stops servers on {session.host.name}{stops}"
    await confirm(
        arguments,
        f"The tune {what}. Continue?",
        problem=f"the tune {what}, and nobody can be asked to confirm",
        next_step="add --yes to confirm, or --plan to see what it would do",
    )


def _plan_lines(session: Session, planned: PlannedSweep) -> Iterator[str]:
    """Yield lines that describe a tune before its start: candidates, what is left out, the cost."""
    spec = planned.spec.tune
    assert spec is not None
    simulated = "  SIMULATED" if session.state.simulated else ""
    yield f"goal: {goal_called(spec.goal).title}; on {session.host.name}{simulated}"
    yield f"{len(spec.candidates)} candidates:"
    for one in spec.candidates:
        yield f"  {shlex.join(one.sets)}: {one.reason}"
    if spec.left_out:
        yield "left out:"
    for each in spec.left_out:
        yield f"  {each.words}: {each.reason}"
    yield (
        f"at most {_starts_of(planned)} starts: a race in two blocks, then the best against the "
        f"start preset in {planned.spec.pairs} pairs of fresh starts"
    )
    took_s = _duration_s(session, planned)
    if took_s is None:
        yield UNKNOWN_DURATION
        return
    energy = _energy_kwh(session, took_s)
    most = "" if energy is None else f", at most {energy:.2g} kWh by the GPUs' power limits"
    yield f"takes about {duration(took_s)}{most}"


def _starts_of(planned: PlannedSweep) -> int:
    from workbench.bench.tune_race import RaceSize, kept_of

    assert planned.spec.tune is not None
    count = len(planned.spec.tune.candidates)
    return RaceSize(count, kept_of(count), planned.spec.pairs).starts


def _duration_s(session: Session, planned: PlannedSweep) -> float | None:
    from workbench.model.experiment import Arm

    assert planned.spec.tune is not None
    changed = Arm(sets=planned.spec.tune.candidates[0].sets)
    two_pairs_s = session.experiments.estimate_s(
        Arm(), changed, pairs=2, throw_away=False, bench=dict(planned.spec.bench)
    )
    return None if two_pairs_s is None else _starts_of(planned) * two_pairs_s / 4


def _energy_kwh(session: Session, took_s: float) -> float | None:
    """Return the most energy that the plan's GPUs can take in this time, by their power limits. None
    if a limit is not known."""
    from workbench.session.conditions import gpus_of

    telemetry = session.state.telemetry
    if telemetry is None:
        return None
    used = gpus_of(session.plans.editor.plan, telemetry.infos)
    limits = [sample.limit_w for sample in telemetry.gpus if sample.index in used]
    known = [limit for limit in limits if limit is not None]
    return sum(known) * took_s / 3.6e6 if known and len(known) == len(limits) else None


def _plan_json(session: Session, planned: PlannedSweep) -> dict[str, object]:
    assert planned.spec.tune is not None
    took_s = _duration_s(session, planned)
    return {
        **asdict(planned.spec.tune),
        "pairs": planned.spec.pairs,
        "starts_planned": _starts_of(planned),
        "takes_s": took_s,
        "energy_kwh_most": None if took_s is None else _energy_kwh(session, took_s),
        "simulated": session.state.simulated,
    }


@command(
    "tune resume",
    "resume a tune that ended early; what was measured is kept",
    SWEEP_ID,
    MAX_MINUTES_LEFT,
    IF_MEASURED,
    YES,
    examples=("workbench tune resume 2",),
)
async def resume_tune(arguments: argparse.Namespace) -> int:
    stored = stored_sweep(arguments, TUNE, "a tune")
    async with connected(arguments) as session, cancelled_by_signals():
        await session.servers.adopt()
        await _confirm(session, arguments, own_run=stored.server)
        session.subscribe(report_points(arguments, stored))
        session.subscribe(report_decisions(arguments, stored))
        session.subscribe(report_progress())
        sweep = await session.sweeps.resume(stored.id, max_minutes=arguments.max_minutes)
    return print_tune(sweep, arguments.json)


@command(
    "tune show",
    "show a tune: its result, what each start measured, and why each candidate left",
    SWEEP_ID,
    examples=("workbench tune show 2",),
)
def show_tune(arguments: argparse.Namespace) -> int:
    print_sweep(stored_sweep(arguments, TUNE, "a tune"), arguments.json)
    return 0


def print_tune(sweep: Sweep, as_json: bool) -> int:
    """Print the tune. Return the exit code: 0 if it is complete, whether it found something better
    or not."""
    print_sweep(sweep, as_json)
    return 0 if sweep.state == "done" and sweep.knee_text else 1


def report_decisions(
    arguments: argparse.Namespace, resumed: Sweep | None = None
) -> Callable[[SessionState, frozenset[str]], None]:
    """Return a listener that prints each decision of the tune on stderr once. With --json, it prints
    nothing. Decisions of the tune before it was resumed are not printed again."""
    printed = set(resumed.notes) if resumed else set()

    def report(state: SessionState, changed: frozenset[str]) -> None:
        sweep = state.sweep
        if sweep is None or "sweep" not in changed or arguments.json:
            return
        for text in sweep.notes:
            if text not in printed:
                printed.add(text)
                note(text)

    return report

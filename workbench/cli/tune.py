"""The command `tune`, which searches a configuration that serves better than a preset, and proves
it in pairs of fresh starts."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING

from workbench.cli.experiment_text import make_experiment_progress_reporter
from workbench.cli.host_words import (
    add_options_of_recorded_host,
    add_options_of_recorded_host_to_lines,
)
from workbench.cli.load_options import (
    CONCURRENCY,
    SHAPE,
    SIZE,
    read_load_options,
    read_quality_options,
)
from workbench.cli.open_session import connect_session
from workbench.cli.output import print_json_or_lines, print_message, simulated_suffix
from workbench.cli.plan import load_plan
from workbench.cli.questions import require_confirmation
from workbench.cli.registry import command, option
from workbench.cli.shared_options import (
    CHANGES,
    IF_MEASURED,
    PRESET,
    QUALITY,
    RUN_AS,
    TRUST,
    YES,
)
from workbench.cli.stop_signals import cancel_on_signals
from workbench.cli.sweeps import (
    list_stored_sweeps,
    live_server_of_others,
    load_stored_sweep,
    load_sweep_to_resume,
    make_point_reporter,
    make_sweep_listener,
    print_sweep_list,
    report_resume_command_if_cancelled,
)
from workbench.model.errors import InputError
from workbench.model.tune import TUNE
from workbench.model.tune_standings import block_label_for_people

if TYPE_CHECKING:
    from workbench.model.experiment import Experiment
    from workbench.model.sweep import Sweep
    from workbench.model.tune import TuneCost
    from workbench.session.series.sweep_parts import PlannedSweep
    from workbench.session.session import Session
    from workbench.session.state import SessionState

_STARTS = 30
_ID = option("id", "id of a tune; `workbench tune list` lists them", int)


@command(
    "tune",
    "search a configuration that serves better than a preset, and prove it in pairs of fresh starts",
    PRESET,
    *CHANGES,
    *RUN_AS,
    TRUST,
    option(
        "--goal GOAL",
        "what to improve: tok_s, tok_j, ttft, goodput or users (tok_s)",
        default="tok_s",
    ),
    option(
        "--subject-to LIMITS",
        "limits that every configuration must keep: 'ttft<=500@p95, power<=400, temp<=83, kld<=0.001'",
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
    "       workbench tune resume|show|list …",
    examples=(
        "workbench tune vllm-any --concurrency 16 --hours 2 --starts 30",
        "workbench tune vllm-any --goal tok_j --subject-to 'ttft<=500@p95, power<=400' --plan",
    ),
)
async def tune_preset(arguments: argparse.Namespace) -> int:
    if arguments.hours is not None and not arguments.hours > 0:
        raise InputError(
            f"a tune of {arguments.hours:g} hours is not possible",
            next_step="give more than 0 hours, or leave the limit out",
        )
    minutes = None if arguments.hours is None else 60 * arguments.hours
    async with (
        connect_session(arguments) as session,
        cancel_on_signals(),
        report_resume_command_if_cancelled(session),
    ):
        await load_plan(session, arguments)
        await session.servers.list_runs_and_select_one()
        planned = await session.sweeps.plan_tune(
            arguments.goal,
            arguments.limits,
            starts=arguments.starts,
            max_minutes=minutes,
            **read_quality_options(arguments),
            **read_load_options(arguments),
        )
        cost = session.sweeps.estimate_tune_cost(planned)
        lines = list(_tune_plan_lines(session, planned, cost))
        if arguments.plan:
            print_json_or_lines(arguments.json, _tune_plan_json(session, planned, cost), lines)
            return 0
        for line in lines:
            print_message(line)
        await _confirm_server_starts(session, arguments)
        session.subscribe(make_point_reporter(arguments))
        session.subscribe(make_decision_reporter(arguments))
        session.subscribe(make_experiment_progress_reporter())
        sweep = await session.sweeps.run_tune(planned)
    return print_tune(sweep, arguments.json)


async def _confirm_server_starts(
    session: Session, arguments: argparse.Namespace, tune_run_id: str | None = None
) -> None:
    """Ask the user before the tune starts servers. The question names the running server that it
    stops. `tune_run_id` is a server that the tune itself has started, which is not named."""
    server = live_server_of_others(session, tune_run_id)
    stops = ""
    if server is not None:
        stops = f", stops run {server.run_id} ({server.model}), and starts it again afterwards"
    what = f"starts and stops servers on {session.host.name}{stops}"
    await require_confirmation(
        arguments,
        f"The tune {what}. Continue?",
        problem=f"the tune {what}, and nobody can be asked to confirm",
        next_step="add --yes to confirm, or --plan to see what it would do",
    )


def _tune_plan_lines(session: Session, planned: PlannedSweep, cost: TuneCost) -> Iterator[str]:
    """Yield lines that describe a tune before its start: candidates, what is left out, the cost."""
    from workbench.report.formats.terminal import block_lines
    from workbench.report.tune_blocks import tune_plan_blocks

    assert planned.spec.tune is not None
    yield f"tune of {planned.spec.preset_id or 'the plan'} on {session.host.name}"
    blocks = tune_plan_blocks(planned.spec.tune, cost, simulated=session.state.simulated)
    yield from block_lines(blocks)


def _tune_plan_json(session: Session, planned: PlannedSweep, cost: TuneCost) -> dict[str, object]:
    assert planned.spec.tune is not None
    return {
        **asdict(planned.spec.tune),
        "pairs": cost.pairs,
        "starts_planned": cost.starts,
        "takes_s": cost.took_s,
        "energy_kwh_most": cost.energy_kwh,
        "simulated": session.state.simulated,
    }


@command(
    "tune resume",
    "resume a tune that ended early; what was measured is kept",
    _ID,
    option("--max-minutes M", "time limit from now (default: what is left of --hours)", float),
    IF_MEASURED,
    YES,
    examples=("workbench tune resume 2",),
)
async def resume_tune(arguments: argparse.Namespace) -> int:
    stored = load_sweep_to_resume(arguments, TUNE, "a tune")
    async with (
        connect_session(arguments) as session,
        cancel_on_signals(),
        report_resume_command_if_cancelled(session),
    ):
        await session.servers.list_runs_and_select_one()
        await _confirm_server_starts(
            session, arguments, tune_run_id=stored.starting or stored.server
        )
        session.subscribe(make_point_reporter(arguments, stored))
        session.subscribe(make_decision_reporter(arguments, stored))
        session.subscribe(make_experiment_progress_reporter())
        sweep = await session.sweeps.resume(stored.id, max_minutes=arguments.max_minutes)
    return print_tune(sweep, arguments.json)


@command(
    "tune show",
    "show a tune: its result, what each start measured, and why each candidate left",
    _ID,
    examples=("workbench tune show 2",),
)
def show_tune(arguments: argparse.Namespace) -> int:
    print_tune(load_stored_sweep(arguments, TUNE, "a tune"), arguments.json)
    return 0


@command("tune list", "list the tunes, newest first", examples=("workbench tune list",))
def list_tunes(arguments: argparse.Namespace) -> int:
    return print_sweep_list(list_stored_sweeps(TUNE), arguments.json, "tunes")


def print_tune(sweep: Sweep, as_json: bool) -> int:
    """Print the tune. Return the exit code: 0 if it is complete and has a conclusion, also if it
    found nothing better, otherwise 1."""
    lines = add_options_of_recorded_host_to_lines(_tune_lines(sweep), sweep.host)
    print_json_or_lines(as_json, asdict(sweep), lines)
    return 0 if sweep.state == "done" and sweep.knee_text else 1


def _tune_lines(sweep: Sweep) -> Iterator[str]:
    from workbench.report.formats.terminal import block_lines
    from workbench.report.series_blocks import sweep_blocks

    simulated = simulated_suffix(sweep.simulated)
    title = sweep.name.removeprefix("tune of ")
    yield f"tune {sweep.id}: {title} on {sweep.host}  {sweep.state}{simulated}"
    yield from block_lines(sweep_blocks(sweep, (), _load_final_experiment(sweep)))
    if sweep.can_be_resumed and sweep.state != "done":
        yield f"to resume it: {sweep.resume_command}"


def _load_final_experiment(sweep: Sweep) -> Experiment | None:
    """Return the experiment of the final; None before it, or if it was deleted."""
    from workbench.store import paths
    from workbench.store.experiments import ExperimentsDb

    if sweep.experiment_id is None:
        return None
    with suppress(InputError):
        return ExperimentsDb(paths.results_db()).get(sweep.experiment_id)
    return None


def make_decision_reporter(
    arguments: argparse.Namespace, resumed: Sweep | None = None
) -> Callable[[SessionState, frozenset[str]], None]:
    """Return a listener that prints each decision of the tune on stderr once. With --json, it
    prints nothing. Decisions that the `resumed` tune made earlier are not printed again."""
    printed = set(resumed.notes) if resumed else set()

    def report(sweep: Sweep) -> None:
        for text in sweep.notes:
            if text not in printed:
                printed.add(text)
                print_message(
                    add_options_of_recorded_host(block_label_for_people(text), sweep.host)
                )

    return make_sweep_listener(arguments, report)

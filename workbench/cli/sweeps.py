"""The command `sweep`, which benchmarks a server with several values of its launch flags, and its
subcommands that resume, list and show sweeps.
"""

from __future__ import annotations

import argparse
import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING

from workbench.cli.experiment_text import (
    UNKNOWN_DURATION,
    format_duration,
    make_experiment_progress_reporter,
)
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
from workbench.cli.open_session import connect_session, select_recorded_host
from workbench.cli.output import print_json_or_lines, print_message, simulated_suffix
from workbench.cli.plan import load_plan
from workbench.cli.questions import require_confirmation
from workbench.cli.registry import command, option, repeatable_option
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
from workbench.cli.stop_signals import cancel_on_signals
from workbench.model.errors import InputError
from workbench.model.tune import TUNE
from workbench.model.tune_standings import block_label_for_people

if TYPE_CHECKING:
    from workbench.model.server_run import ServerStatus
    from workbench.model.sweep import Sweep, SweepPoint
    from workbench.session.session import Session
    from workbench.session.state import SessionState
    from workbench.store.sweeps import SweepStore

SWEEP_ID = option("id", "id of a sweep; `workbench sweep list` lists them", int)


@command(
    "sweep",
    "try values of one or two launch flags, and compare the best with the current values in pairs",
    PRESET,
    *CHANGES,
    *RUN_AS,
    TRUST,
    repeatable_option(
        "--flag NAME=v1,v2,…",
        "values to try; a second --flag tries all combinations of the two",
        dest="swept",
        required=True,
    ),
    option("--runs N", "runs of each value (1)", int, default=1),
    option(
        "--pairs N",
        "pairs of runs that compare the best values with the current ones (3; 0: no comparison)",
        int,
        default=3,
    ),
    option("--max-minutes M", "time limit of the whole sweep", float),
    CONCURRENCY,
    *SIZE,
    *SHAPE,
    *QUALITY,
    IF_MEASURED,
    YES,
    examples=("workbench sweep vllm-any --flag max-num-seqs=64,128,256",),
)
async def sweep_flags(arguments: argparse.Namespace) -> int:
    from workbench.session.series.flag_sweep_plan import list_combinations

    flags = _parse_values_by_flag(arguments.swept)
    async with (
        connect_session(arguments) as session,
        cancel_on_signals(),
        report_resume_command_if_cancelled(session),
    ):
        await load_plan(session, arguments)
        await session.servers.list_runs_and_select_one()
        # an invalid value is an error before the plan is printed
        combinations = list_combinations(session.plans.editor, flags)
        doubtful = [
            f.text for one in combinations for f in one.editor.list_flag_value_warnings(one.sets)
        ]
        for text in dict.fromkeys(doubtful):
            print_message(text)
        for line in _sweep_plan_lines(session, flags, arguments):
            print_message(line)
        await _confirm_server_stop(session, arguments)
        session.subscribe(make_point_reporter(arguments))
        session.subscribe(make_experiment_progress_reporter())
        sweep = await session.sweeps.run_flag_sweep(
            flags,
            runs=arguments.runs,
            pairs=arguments.pairs,
            max_minutes=arguments.max_minutes,
            **read_quality_options(arguments),
            **read_load_options(arguments),
        )
    return print_sweep(sweep, arguments.json)


def live_server_of_others(session: Session, own_run_id: str | None) -> ServerStatus | None:
    """Return the selected server if it is alive and is not the run `own_run_id`, which the sweep
    itself has started. Otherwise None."""
    server = session.state.server
    if server is None or not server.state.is_alive or server.run_id == own_run_id:
        return None
    return server


async def _confirm_server_stop(
    session: Session, arguments: argparse.Namespace, sweep_run_id: str | None = None
) -> None:
    """Ask the user before the sweep stops the running server. A server that the sweep itself has
    started (run id `sweep_run_id`) is stopped without a question.
    """
    server = live_server_of_others(session, sweep_run_id)
    if server is None:
        return
    run = f"run {server.run_id} ({server.model})"
    question = f"Stop {run} for the sweep, and start it again afterwards?"
    problem = f"the sweep would stop {run}, and start it again afterwards"
    next_step = "add --yes to let the sweep stop the run, or stop the run first"
    await require_confirmation(arguments, question, problem=problem, next_step=next_step)


def _sweep_plan_lines(
    session: Session, flags: Mapping[str, Sequence[str]], arguments: argparse.Namespace
) -> Iterator[str]:
    """Yield lines that describe a sweep before its start: the number of runs, the expected
    duration, estimated from earlier starts and benchmarks, and what comparing the answers costs."""
    from workbench.model.experiment import Arm

    configurations = 1 + math.prod(len(set(values)) for values in flags.values())
    runs, pair_runs = configurations * arguments.runs, 2 * arguments.pairs
    each = "one run"
    if arguments.runs > 1:
        each = f"{arguments.runs} runs"
    then = "without a comparison in pairs"
    if pair_runs:
        then = f"then the best is compared with the current values in {arguments.pairs} pairs"
    yield (
        f"up to {configurations} configurations with the current one, {each} each on a fresh "
        f"server; {then}"
    )
    changed = Arm(sets=tuple(f"{name}={values[0]}" for name, values in flags.items()))
    two_pairs_s = session.experiments.estimate_duration_s(
        Arm(), changed, pairs=2, throw_away=False, bench=read_load_options(arguments)
    )
    if two_pairs_s is None:
        yield UNKNOWN_DURATION
    else:
        yield f"takes about {format_duration((runs + pair_runs) * two_pairs_s / 4)}"
    options = {
        "pairs": arguments.pairs,
        "bench": read_load_options(arguments),
        **read_quality_options(arguments),
    }
    if not arguments.pairs:
        return
    if cost := session.experiments.answer_comparison_cost_text(Arm(), changed, **options):
        yield cost


def _parse_values_by_flag(words: Sequence[str]) -> dict[str, list[str]]:
    """Return the values by flag from words such as "name=v1,v2". A JSON value is one value, even if
    it contains commas. Raises InputError for a word without a name or without values."""
    found: dict[str, list[str]] = {}
    for word in words:
        name, equals, text = word.partition("=")
        name = name.strip().lstrip("-")
        values = [text]
        if not text.startswith(("{", "[")):
            values = [*filter(None, text.split(","))]
        if not equals or not name or not values:
            raise InputError(
                f"--flag {word!r} is not of the form NAME=v1,v2,…",
                next_step="give a flag and its values, for example --flag max-num-seqs=128,256,512",
            )
        found.setdefault(name, []).extend(values)
    return found


@command(
    "sweep resume",
    "resume a sweep of flags or of the concurrency that ended early: first the missing values, then "
    "the pairs",
    SWEEP_ID,
    MAX_MINUTES_LEFT,
    YES,
    IF_MEASURED,
    examples=("workbench sweep resume 2",),
)
async def resume_sweep(arguments: argparse.Namespace) -> int:
    stored = load_sweep_to_resume(arguments, "sweep", "a sweep of flags or of the concurrency")
    async with (
        connect_session(arguments) as session,
        cancel_on_signals(),
        report_resume_command_if_cancelled(session),
    ):
        await session.servers.list_runs_and_select_one()
        if stored.sweep_kind.starts_servers:
            await _confirm_server_stop(
                session, arguments, sweep_run_id=stored.starting or stored.server
            )
        session.subscribe(make_point_reporter(arguments, stored))
        session.subscribe(make_experiment_progress_reporter())
        sweep = await session.sweeps.resume(stored.id, max_minutes=arguments.max_minutes)
    return print_sweep(sweep, arguments.json)


def _sweep_store() -> SweepStore:
    from workbench.store import paths
    from workbench.store.sweeps import SweepStore

    return SweepStore(paths.sweeps_dir())


@command("sweep list", "list all sweeps, newest first", examples=("workbench sweep list",))
def list_sweeps(arguments: argparse.Namespace) -> int:
    return print_sweep_list(_sweep_store().list(), arguments.json, "sweeps")


def list_stored_sweeps(command: str) -> Sequence[Sweep]:
    """Return the stored sweeps that the command `command` made, newest first."""
    return [sweep for sweep in _sweep_store().list() if sweep.command == command]


def print_sweep_list(sweeps: Sequence[Sweep], as_json: bool, plural_name: str) -> int:
    """Print a line for each of the sweeps, or that there are none of `plural_name` yet. Return the
    exit code 0."""
    if not sweeps and not as_json:
        print_message(f"no {plural_name} yet")
    document = {"sweeps": list(map(asdict, sweeps))}
    return print_json_or_lines(as_json, document, map(_sweep_list_line, sweeps))


def _sweep_list_line(sweep: Sweep) -> str:
    done = sum(point.state == "done" for point in sweep.points)
    simulated = simulated_suffix(sweep.simulated)
    error = ""
    if sweep.error:
        error = f"  {sweep.error}"
    points = f"{done}/{len(sweep.points)} points"
    return (
        f"#{sweep.id:<4} {sweep.name:<18} {sweep.host}  {points}  {sweep.state}{simulated}{error}"
    )


@command(
    "sweep show",
    "show a sweep: its points, knee and notes",
    SWEEP_ID,
    examples=("workbench sweep show 2",),
)
def show_sweep(arguments: argparse.Namespace) -> int:
    print_sweep(_sweep_store().get(arguments.id), arguments.json)
    return 0


def load_sweep_to_resume(arguments: argparse.Namespace, command: str, expected_kind: str) -> Sweep:
    """Return the stored sweep whose id the command line gives, and select the sweep's host unless
    the command line names a host. Raises InputError if another command than `command` made the
    sweep; the message says that it is not `expected_kind`."""
    sweep = _sweep_store().get(arguments.id)
    if sweep.command != command:
        next_step = add_options_of_recorded_host(f"run `{sweep.resume_command}`", sweep.host)
        raise _make_wrong_kind_error(sweep, expected_kind, next_step)
    select_recorded_host(arguments, sweep.host)
    return sweep


def load_stored_sweep(arguments: argparse.Namespace, command: str, expected_kind: str) -> Sweep:
    """Return the stored sweep whose id the command line gives. Raises InputError if another command
    than `command` made the sweep; the message says that it is not `expected_kind`."""
    sweep = _sweep_store().get(arguments.id)
    if sweep.command != command:
        raise _make_wrong_kind_error(
            sweep, expected_kind, f"`workbench sweep show {sweep.id}` shows it"
        )
    return sweep


def _make_wrong_kind_error(sweep: Sweep, what: str, next_step: str) -> InputError:
    text = f"sweep {sweep.id} ({sweep.name}) is not {what}"
    return InputError(text, next_step=next_step)


def make_sweep_listener(
    arguments: argparse.Namespace, report: Callable[[Sweep], None]
) -> Callable[[SessionState, frozenset[str]], None]:
    """Return a listener that calls `report` with the running sweep whenever it has changed. With
    --json, it calls nothing."""

    def report_changed_sweep(state: SessionState, changed: frozenset[str]) -> None:
        if state.sweep is not None and "sweep" in changed and not arguments.json:
            report(state.sweep)

    return report_changed_sweep


def make_point_reporter(
    arguments: argparse.Namespace, resumed: Sweep | None = None
) -> Callable[[SessionState, frozenset[str]], None]:
    """Return a listener that prints each value of the sweep on stderr when its measurement starts
    or ends. With --json, it prints nothing.

    Values that the `resumed` sweep measured before it was interrupted are not printed again.
    """
    printed = {p.label: p.state for p in resumed.points if p.state == "done"} if resumed else {}

    def report(sweep: Sweep) -> None:
        for point in sweep.points:
            if point.state != "planned" and printed.get(point.label) != point.state:
                printed[point.label] = point.state
                print_message(_sweep_point_text(point, sweep))

    return make_sweep_listener(arguments, report)


def _sweep_point_text(point: SweepPoint, sweep: Sweep) -> str:
    name, detail = point.label, ""
    if sweep.kind == TUNE:
        name = block_label_for_people(name)
    if point.error:
        detail = f" ({point.error})"
    elif sweep.left_s:
        detail = f", about {sweep.left_s / 60:.1f} min left"
    return f"{name}: {point.state}{detail}"


@asynccontextmanager
async def report_resume_command_if_cancelled(session: Session) -> AsyncIterator[None]:
    """While this context manager is open, a command that a signal cancels says on stderr what its
    sweep has found, and which command resumes the sweep. It says nothing if the sweep cannot be
    resumed."""
    try:
        yield
    except asyncio.CancelledError:
        sweep = session.state.sweep
        if sweep is not None and sweep.can_be_resumed:
            done = (
                f"{sweep.measured_value_count} of {len(sweep.points)} {sweep.points_noun} are done"
            )
            print_message(
                f"sweep {sweep.id} ({sweep.name}) was stopped; so far: {sweep.knee_text or done}"
            )
            print_message(
                add_options_of_recorded_host(f"to resume it: {sweep.resume_command}", sweep.host)
            )
        raise


def print_sweep(sweep: Sweep, as_json: bool) -> int:
    """Print the sweep. Return the exit code: 0 if it is complete and measured at least one point,
    otherwise 1."""
    lines = add_options_of_recorded_host_to_lines(sweep_lines(sweep), sweep.host)
    print_json_or_lines(as_json, asdict(sweep), lines)
    return 0 if sweep.state == "done" and any(p.state == "done" for p in sweep.points) else 1


def sweep_lines(sweep: Sweep) -> Iterator[str]:
    """Yield lines that describe a sweep: the value beyond which a higher value gains little, the
    table of all values, notes, the error, and the command to resume it."""
    from workbench.report.formats.terminal import block_lines
    from workbench.report.series_blocks import sweep_blocks

    host = ""
    if sweep.host:
        host = f" on {sweep.host}"
    simulated = simulated_suffix(sweep.simulated)
    yield f"sweep {sweep.id}: {sweep.name}{host}  {sweep.state}{simulated}"
    yield from block_lines(sweep_blocks(sweep, ()))
    if sweep.can_be_resumed and sweep.state != "done":
        yield f"to resume it: {sweep.resume_command}"

"""The command `experiment`, which compares A with B in pairs of runs, and its subcommands that
resume, show and list experiments.
"""

from __future__ import annotations

import argparse
import signal
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from workbench.cli.declared_arguments import convert_options_to_arguments
from workbench.cli.experiment_arms import ARM_OPTIONS, read_arm_options
from workbench.cli.experiment_text import (
    experiment_lines,
    experiment_plan_lines,
    format_experiment_list_line,
    make_experiment_progress_reporter,
)
from workbench.cli.host_words import add_options_of_recorded_host_to_lines
from workbench.cli.load_options import (
    CONCURRENCY,
    SHAPE,
    SIZE,
    read_load_options,
    read_quality_options,
)
from workbench.cli.open_session import connect_session, create_local_session, select_recorded_host
from workbench.cli.output import print_json_or_lines, print_message
from workbench.cli.plan import load_plan, parse_variables
from workbench.cli.questions import require_confirmation
from workbench.cli.registry import command, option
from workbench.cli.servers import match_run_ids
from workbench.cli.shared_options import (
    CHANGES,
    IF_MEASURED,
    MAX_MINUTES_LEFT,
    QUALITY,
    RUN_AS,
    TRUST,
    YES,
    select_given,
)
from workbench.cli.stop_signals import cancel_on_signals
from workbench.model.errors import InputError
from workbench.model.experiment import OPTIONS
from workbench.model.server_run import ServerState

if TYPE_CHECKING:
    from workbench.model.experiment import Experiment, ExperimentSpec
    from workbench.session.session import Session
    from workbench.store.experiments import ExperimentsDb

_MIN_RUN_ID_CHARS = 4  # a shorter word is no part of a run id, but the name of a preset
_ID = option("id", "id of an experiment; `workbench experiment list` lists them", int)


@command(
    "experiment",
    "compare A with B in pairs of runs, and report the difference with an interval and a verdict",
    option(
        "base PRESET|RUN",
        "the configuration that --a and --b change. Without it, --a and --b each begin with a "
        "TARGET: a preset "
        "(started for each run), a run (used as it is, or started anew if changed), or the URL of "
        "a server",
        nargs="?",
    ),
    *ARM_OPTIONS,
    *CHANGES,
    *RUN_AS,
    *convert_options_to_arguments(OPTIONS),
    option(
        "--twins HOST1,HOST2",
        "run A and B on these two hosts with the same GPUs, driver and engine, swapped in half of "
        "the pairs, and say "
        "how much of the difference was the machine (6 pairs)",
    ),
    option("--at-most N", "largest number of pairs with --until, 5 or more (16)", int),
    CONCURRENCY,
    *SIZE,
    *SHAPE,
    *QUALITY,
    IF_MEASURED,
    TRUST,
    YES,
    usage='workbench experiment PRESET|RUN --a "flag=value …" --b "flag=value …" [OPTION…]\n'
    '       workbench experiment --a "TARGET flag=value …" --b "TARGET flag=value …" [OPTION…]\n'
    "       workbench experiment resume|show|list …",
    examples=(
        'workbench experiment vllm-any --a "max-num-seqs=64" --b "max-num-seqs=256" --pairs 5',
        "workbench experiment --a http://127.0.0.1:8000 --b http://127.0.0.1:8001 --pairs 5",
        'workbench experiment --a vllm-any --b "sglang-any tp-size=2" --var model=Qwen/Qwen3-0.6B',
        "workbench experiment vllm-any --host-a gpu-box-1 --host-b gpu-box-2",
        'workbench experiment vllm-any --b "max-num-seqs=256" --twins gpu-box-1,gpu-box-2',
        'workbench experiment RUN --gpu-a "power-limit=600" --gpu-b "power-limit=450" --until 2',
    ),
)
async def run_experiment(arguments: argparse.Namespace) -> int:
    twins = _read_twin_hosts(arguments)
    a, b = read_arm_options(arguments, "a"), read_arm_options(arguments, "b")
    options = {**_read_experiment_options(arguments), **({"twins": twins} if twins else {})}
    async with connect_session(arguments) as session:
        await session.servers.supervisor.runs()
        if a.target is None:
            await _load_base_plan(session, arguments)
        a, b, bases = await session.experiments.targets.resolve_targets(
            a, b, parse_variables(arguments)
        )
        if arguments.trust:
            session.experiments.targets.trust_preset_parts_of_plans(bases)
        spec = session.experiments.experiment_spec(a, b, **options)
        for line in experiment_plan_lines(
            spec, session.experiments.estimate_duration_s(a, b, **options)
        ):
            print_message(line)
        for warning in session.experiments.doubtful_value_warnings(a, b, bases):
            print_message(warning)
        if cost := session.experiments.answer_comparison_cost_text(a, b, bases, **options):
            print_message(cost)
        await _confirm_experiment_effects(session, spec, arguments)
        async with cancel_on_signals() as received:
            session.subscribe(make_experiment_progress_reporter())
            ended = await session.experiments.run_experiment(a, b, bases=bases, **options)
    return _print_ended_experiment(ended, arguments.json, received)


def _read_twin_hosts(arguments: argparse.Namespace) -> tuple[str, ...]:
    """Return the two host names that the user gave with --twins, or () without this option. If the
    command line names no host, the first of the two becomes the host of the command. The names are
    not checked here. Raises InputError for --twins together with --host-a or --host-b."""
    if arguments.twins is None:
        return ()
    if arguments.host_a or arguments.host_b:
        raise InputError(
            "--twins puts A and B on both hosts, so it cannot be combined with --host-a and "
            "--host-b",
            next_step="leave out --host-a and --host-b",
        )
    hosts = tuple(name.strip() for name in arguments.twins.split(",") if name.strip())
    if hosts and not (arguments.host or arguments.simulate):
        arguments.host = hosts[0]
    return hosts or (arguments.twins,)


def _read_experiment_options(arguments: argparse.Namespace) -> dict[str, Any]:
    if arguments.at_most is not None and arguments.until is None:
        raise InputError(
            "--at-most needs --until", next_step="use --pairs N for a fixed number of pairs"
        )
    given = {one.field: getattr(arguments, one.dest) for one in OPTIONS}
    given |= {"bench": read_load_options(arguments), **read_quality_options(arguments)}
    if arguments.until is not None:
        given["pairs"] = arguments.at_most
    return select_given(given)


async def _load_base_plan(session: Session, arguments: argparse.Namespace) -> None:
    """Load the plan that both arms of the experiment change, from the preset or the run that the
    command line names. Raises InputError if several runs have that name, or if the run was started
    with a secret."""
    from workbench.model.secrets import MASK

    run_ids, base = [s.run_id for s in session.servers.supervisor.statuses()], arguments.base
    hits = match_run_ids(run_ids, base)
    if len(base) < _MIN_RUN_ID_CHARS:
        hits = [run_id for run_id in hits if run_id == base]
    if not hits:
        await load_plan(session, argparse.Namespace(**{**vars(arguments), "preset": base}))
        return
    if len(hits) > 1:
        raise InputError(
            f"{len(hits)} runs match {base!r}", next_step="`workbench servers` lists the runs"
        )
    run_id = hits[0]
    plan = session.servers.supervisor.record(run_id).plan
    if plan is None or MASK in repr(plan):
        raise InputError(
            f"run {run_id} was started with a secret, which is not stored",
            next_step="give a preset in place of the run",
        )
    session.plans.edit_plan(plan, f"run {run_id}")
    await session.plans.locate_engine()
    session.plans.editor.apply_assignments(
        arguments.sets, arguments.unsets, arguments.envs, arguments.run_as, arguments.run_options
    )
    await session.servers.select(run_id)


async def _confirm_experiment_effects(
    session: Session, spec: ExperimentSpec, arguments: argparse.Namespace
) -> None:
    """Ask the user before the experiment stops running servers or changes GPU settings."""
    from workbench.bench import experiment as design

    effects = []
    if design.starts_server_for_each_run(spec.a, spec.b, bool(spec.twins)):
        targets = {arm.target.run_id for arm in (spec.a, spec.b) if arm.target}
        servers = [each.state.server for each in session.hosts.all_sessions]
        ready = [s.run_id for s in servers if s is not None and s.state is ServerState.READY]
        effects += [f"stops run {run_id}" for run_id in ready if run_id not in targets]
    if design.changes_gpu_settings(spec):
        effects.append("changes GPU settings, and reverts them at the end")
    if not effects:
        return
    text = f"the experiment {' and '.join(effects)}"
    question = f"T{text[1:]} on {session.host.name}. Continue?"
    problem = f"{text}, and nobody can be asked to confirm"
    await require_confirmation(
        arguments, question, problem=problem, next_step="add --yes to confirm"
    )


@command(
    "experiment resume",
    "resume an experiment that ended early, or add pairs to one that is done",
    _ID,
    option("--pairs N", "number of pairs in total; a changed number widens the interval", int),
    MAX_MINUTES_LEFT,
    IF_MEASURED,
    YES,
    examples=("workbench experiment resume 3",),
)
async def resume_experiment(arguments: argparse.Namespace) -> int:
    select_recorded_host(arguments, _experiments_db().get(arguments.id).host)
    async with connect_session(arguments) as session:
        before = await session.experiments.get(arguments.id)
        for run in await session.servers.supervisor.runs():
            if run.run_id == before.replaces and run.state is ServerState.READY:
                await session.servers.select(run.run_id)
        await _confirm_experiment_effects(session, before.spec, arguments)
        async with cancel_on_signals() as received:
            session.subscribe(make_experiment_progress_reporter(len(before.runs)))
            ended = await session.experiments.resume(
                arguments.id, pairs=arguments.pairs, max_minutes=arguments.max_minutes
            )
    return _print_ended_experiment(ended, arguments.json, received)


@command(
    "experiment show",
    "show an experiment: pairs, intervals and verdict",
    _ID,
    examples=("workbench experiment show 3",),
)
async def show_experiment(arguments: argparse.Namespace) -> int:
    _print_experiment(await create_local_session().experiments.get(arguments.id), arguments.json)
    return 0


def _experiments_db() -> ExperimentsDb:
    from workbench.store import paths
    from workbench.store.experiments import ExperimentsDb

    return ExperimentsDb(paths.results_db())


@command(
    "experiment list", "list experiments, newest first", examples=("workbench experiment list",)
)
def list_experiments(arguments: argparse.Namespace) -> int:
    found = _experiments_db().list()
    if not found and not arguments.json:
        print_message("no experiments yet")
    return print_json_or_lines(
        arguments.json,
        {"experiments": [_experiment_json(e) for e in found]},
        map(format_experiment_list_line, found),
    )


def _print_ended_experiment(
    ended: Experiment, as_json: bool, received: list[signal.Signals]
) -> int:
    """Print the experiment. Return the exit code: 0 if it is done, 128 plus the number of the
    signal that ended it, otherwise 1."""
    _print_experiment(ended, as_json)
    if ended.state == "done":
        return 0
    return 128 + received[0] if received else 1


def _print_experiment(found: Experiment, as_json: bool) -> None:
    lines = add_options_of_recorded_host_to_lines(experiment_lines(found), found.host)
    print_json_or_lines(as_json, _experiment_json(found), lines)


def _experiment_json(found: Experiment) -> dict[str, Any]:
    return {**asdict(found), "pairs_done": found.completed_pairs}

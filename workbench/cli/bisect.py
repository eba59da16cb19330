"""The command `bisect`, which searches the first bad one of several versions of an engine."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from workbench.cli.host_words import add_options_of_recorded_host
from workbench.cli.open_session import connect_session, create_session, select_recorded_host
from workbench.cli.output import print_json_or_lines, print_message, simulated_suffix
from workbench.cli.questions import require_confirmation
from workbench.cli.registry import command, option, repeatable_option
from workbench.cli.shared_options import IF_MEASURED, YES
from workbench.cli.stop_signals import cancel_on_signals
from workbench.cli.watch import make_experiment_pair_reporter, reject_unstorable_assignments
from workbench.model.errors import InputError

if TYPE_CHECKING:
    from workbench.model.bisection import Bisection, BisectStep
    from workbench.store.bisections import BisectionStore

_ID = option("id", "id of a bisection", int)


def _bisection_store() -> BisectionStore:
    from workbench.store import paths
    from workbench.store.bisections import BisectionStore

    return BisectionStore(paths.bisections_dir())


@command(
    "bisect",
    "search the first bad one of several versions of an engine, in log2(n) experiments",
    option("preset PRESET", "the preset that starts each version"),
    option(
        "versions VERSION",
        "image:NAME:TAG or venv:/PATH, in order: the good one first, the bad one last",
        nargs="+",
    ),
    repeatable_option(
        "--var name=value", "value of a variable of the preset; repeatable", dest="variables"
    ),
    repeatable_option("--set flag=value", "launch flag of all versions; repeatable", dest="sets"),
    option("--requests N", "requests of each benchmark (as the preset says)", int),
    option("--pairs N", "pairs of each experiment (5)", int, default=5),
    IF_MEASURED,
    YES,
    usage="workbench bisect PRESET GOOD VERSION… BAD [OPTION…]\n"
    "       workbench bisect resume|show ID",
    examples=(
        "workbench bisect vllm-any venv:/opt/vllm-0.31 venv:/opt/vllm-0.32 venv:/opt/vllm-0.33",
    ),
)
async def run_bisection(arguments: argparse.Namespace) -> int:
    from workbench.bench.experiment import MAX_PAIRS
    from workbench.model.bisection import Bisection
    from workbench.session.series.bisect import validated_versions
    from workbench.session.series.night_watch import (
        candidate_plan,
        plan_of_preset_with_variables,
        trust_image_of_candidate,
    )

    reject_unstorable_assignments(arguments)
    if not 2 <= arguments.pairs <= MAX_PAIRS:
        raise InputError(
            f"{arguments.pairs} pairs show nothing", next_step=f"give --pairs 2 to {MAX_PAIRS}"
        )
    session = create_session(arguments)
    versions = validated_versions(tuple(arguments.versions))
    plan = plan_of_preset_with_variables(session, arguments.preset, arguments.variables)
    candidates = [candidate_plan(plan, version) for version in versions]
    found = Bisection(
        id=0,
        unix_s=time.time(),
        host=session.host.name,
        preset=arguments.preset,
        versions=versions,
        variables=tuple(arguments.variables),
        sets=tuple(arguments.sets),
        requests=arguments.requests,
        pairs=arguments.pairs,
        simulated=bool(arguments.simulate),
    )
    await _confirm_bisection_start(arguments, found)
    for candidate in candidates:
        trust_image_of_candidate(candidate)
    return await _run_and_print_bisection(arguments, _bisection_store().add(found))


async def _confirm_bisection_start(arguments: argparse.Namespace, found: Bisection) -> None:
    what = f"the bisection starts and stops servers on {found.host}"
    await require_confirmation(
        arguments,
        f"T{what[1:]}. Continue?",
        problem=f"{what}, and nobody can be asked to confirm",
        next_step="add --yes to confirm",
    )


async def _run_and_print_bisection(arguments: argparse.Namespace, found: Bisection) -> int:
    from workbench.session.series.bisect import Bisector

    store = _bisection_store()
    print_message(
        f"bisection {found.id}; if it ends early, `{_resume_command(found)}` goes on with it"
    )
    with store.hold_lock(found.id):
        async with connect_session(arguments) as session:
            await session.servers.list_runs_and_select_one()
            session.subscribe(make_experiment_pair_reporter())
            async with cancel_on_signals(f"`{_resume_command(found)}` goes on with it"):
                found = await Bisector(found, session, store, print_message).carry_out_bisection()
    return print_json_or_lines(arguments.json, asdict(found), _bisection_lines(found))


@command(
    "bisect resume",
    "go on with a bisection that ended early; its experiments are kept",
    _ID,
    IF_MEASURED,
    YES,
    examples=("workbench bisect resume 2",),
)
async def resume_bisection(arguments: argparse.Namespace) -> int:
    found = _bisection_store().get(arguments.id)
    if found.state in ("done", "running"):
        raise InputError(
            f"bisection {found.id} is {found.state}",
            next_step=f"`workbench bisect show {found.id}` shows it",
        )
    select_recorded_host(arguments, found.host)
    await _confirm_bisection_start(arguments, found)
    return await _run_and_print_bisection(arguments, found)


@command(
    "bisect show",
    "show a bisection: its experiments, and the first bad version",
    _ID,
    examples=("workbench bisect show 2",),
)
def show_bisection(arguments: argparse.Namespace) -> int:
    found = _bisection_store().get(arguments.id)
    return print_json_or_lines(arguments.json, asdict(found), _bisection_lines(found))


def _bisection_lines(found: Bisection) -> Iterator[str]:
    simulated = simulated_suffix(found.simulated)
    yield f"bisection {found.id}  {found.state}  {found.host}  {found.preset}{simulated}"
    steps = {step.version: step for step in found.steps}
    for place, version in enumerate(found.versions):
        yield f"  {_version_verdict_text(place, steps.get(place)):<34}  {version}"
    if found.verdict:
        yield found.verdict
    if found.state in ("stopped", "failed"):
        text = f"{found.error}; to resume it: {_resume_command(found)}"
        yield add_options_of_recorded_host(text, found.host)


def _resume_command(found: Bisection) -> str:
    return add_options_of_recorded_host(f"workbench bisect resume {found.id}", found.host)


def _version_verdict_text(place: int, step: BisectStep | None) -> str:
    if place == 0:
        return "good, by you"
    if step is None:
        return "not measured"
    if step.loss_pct is None:
        return f"not finished, experiment {step.experiment_id}"
    said = "bad " if step.bad else "good"
    return f"{said} {-step.loss_pct:+.1f} %, experiment {step.experiment_id}"

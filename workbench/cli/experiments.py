"""experiment: made, resumed, shown, listed."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import shlex
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from workbench.cli.dispatch import Command, emit
from workbench.cli.experiment_arguments import shape_of
from workbench.cli.open_session import asked, connected, note, say
from workbench.cli.presets import take_plan, variables_of
from workbench.model.bench import half_width
from workbench.model.errors import InputError
from workbench.model.experiment import INTERRUPTED, Arm, Experiment, ExperimentRun, ExperimentSpec, Target
from workbench.model.server_run import ServerState
from workbench.model.settings import GpuSettings

if TYPE_CHECKING:
    from workbench.session.session import Session
    from workbench.session.state import SessionState


def experiment_json(experiment: Experiment) -> dict[str, Any]:
    return {**asdict(experiment), "pairs_done": experiment.pairs_done}


async def experiment(arguments: argparse.Namespace) -> int:
    a, b = _arm(arguments, "a"), _arm(arguments, "b")
    options = _options(arguments)
    async with connected(arguments) as session:
        await session.supervisor.runs()
        if a.target is None:
            await _take_base(session, arguments)
        a, b, bases = await session.look_up(a, b, variables_of(arguments))
        if arguments.trust:
            session.trust_bases(bases)
        spec = session.experiment_spec(a, b, **options)
        _tell_plan(session, spec, session.experiment_estimate_s(a, b, **options))
        await _may_begin(session, spec, arguments)
        with _in_order():
            session.subscribe(progress())
            ended = await session.experiment(a, b, bases=bases, **options)
    return _said(ended, arguments.json)


def _options(arguments: argparse.Namespace) -> dict[str, Any]:
    if arguments.at_most is not None and arguments.until is None:
        raise InputError("--at-most is for --until", next_step="--pairs N makes N pairs")
    given = {
        "pairs": arguments.pairs if arguments.until is None else arguments.at_most,
        "until_pct": arguments.until,
        "metric": arguments.metric,
        "max_minutes": arguments.max_minutes,
        "match_temperature_c": arguments.match_temperature,
        "throw_away": arguments.throw_away,
        "seed": arguments.seed,
        "order_seed": arguments.order_seed,
        "bench": shape_of(arguments),
    }
    return {name: value for name, value in given.items() if value is not None}


def _arm(arguments: argparse.Namespace, name: str) -> Arm:
    def words(option: str) -> tuple[str, ...]:
        try:
            return tuple(word for text in getattr(arguments, option) for word in shlex.split(text))
        except ValueError as error:
            raise InputError(f"--{option.replace('_', '-')}: {error}", next_step="quote it as for a shell") from None

    sets, target = words(name), None
    differ = (arguments.host_a, arguments.host_b, arguments.executable_a, arguments.executable_b)
    if arguments.base is None or any(differ):
        target = _target(arguments, sets, name)
        sets = (*arguments.sets, *(sets[1:] if arguments.base is None else sets))
    unsets, envs = words(f"unset_{name}"), words(f"env_{name}")
    if target is not None:
        unsets, envs = (*arguments.unsets, *unsets), (*arguments.envs, *envs)
    return Arm(sets, unsets, envs, _gpu(words(f"gpu_{name}"), name), target)


def _target(arguments: argparse.Namespace, words: Sequence[str], name: str) -> Target:
    """The base on the arm's own host and program; without a base, the first word."""
    host = getattr(arguments, f"host_{name}")
    executable = getattr(arguments, f"executable_{name}") or arguments.executable
    if arguments.base is not None:
        return Target(arguments.base, host, executable)
    if not words or ("=" in words[0] and "://" not in words[0]):
        raise InputError(
            f"--{name} begins with no target, and no PRESET|RUN is given that both share",
            next_step='for example experiment vllm-any --b "max-num-seqs=64", or experiment --a http://… --b http://…',
        )
    return Target(words[0], host, executable)


def _gpu(words: Sequence[str], arm: str) -> GpuSettings:
    """ "power-limit=400 lock-gpu-clocks=210,2400 reset-memory-clocks", with the names of `workbench gpu set`."""
    if not words:
        return GpuSettings()
    from workbench.cli.gpu_settings import wanted
    from workbench.cli.parser import parse

    argv = [part for word in words for part in _option(word)]
    try:
        return wanted(parse(["gpu", "set", *argv]))
    except InputError as error:
        raise InputError(
            f"--gpu-{arm} {' '.join(words)!r}: {error.message}",
            next_step="for example power-limit=400 lock-gpu-clocks=210,2400",
        ) from None


def _option(word: str) -> list[str]:
    name, equals, value = word.partition("=")
    if name.lstrip("-") in ("gpu", "dry-run", "yes", "json", "trial", "preset"):
        raise InputError(f"{name} is no GPU setting")
    return [f"--{name.lstrip('-')}", *([value] if equals else [])]


async def _take_base(session: Session, arguments: argparse.Namespace) -> None:
    """The plan that both arms change: a preset's, or what a run was started with."""
    from workbench.model.secrets import MASK

    statuses = session.supervisor.statuses()
    base = arguments.base
    exact = [s for s in statuses if s.run_id == base]
    hits = exact or [s for s in statuses if len(base) >= 4 and (s.run_id.startswith(base) or s.run_id.endswith(base))]
    if not hits:
        await take_plan(session, argparse.Namespace(**{**vars(arguments), "preset": base}))
        return
    if len(hits) > 1:
        raise InputError(f"{len(hits)} runs match {base!r}", next_step="workbench servers lists the runs")
    run_id = hits[0].run_id
    plan = session.supervisor.record(run_id).plan
    if plan is None or MASK in repr(plan):
        raise InputError(f"run {run_id} was started with a key, which is not kept", next_step="give its preset instead")
    session.take_plan(plan, f"run {run_id}")
    await session.look_for_engine()
    session.editor.assign(arguments.sets, arguments.unsets, arguments.envs)
    await session.select_run(run_id)


def _tell_plan(session: Session, spec: ExperimentSpec, takes_s: float | None) -> None:
    from workbench.bench import experiment as design

    restarts = design.restarts(spec.a, spec.b)
    upto = (
        f"{spec.pairs} pairs"
        if spec.until_pct is None
        else (f"{design.UNTIL_PAIRS} to {spec.pairs} pairs, until ± {spec.until_pct:g} %")
    )
    standing = [arm.target for arm in (spec.a, spec.b) if arm.target and not arm.target.plan]
    if len(standing) == 2:
        server = "servers that stay as they are"
    else:
        server = "a fresh server for each run" if restarts else "one server for all runs"
    note(f"A: {_words(spec.a)}\nB: {_words(spec.b)}")
    note(f"{upto} in a random order, {server}; claimed: {spec.metric}")
    if spec.throw_away is not False:
        compiling = ", and that of each arm that compiles," if restarts else ""
        each = "the first run of each arm" if spec.throw_away else f"the first run{compiling}"
        note(f"{each} is discarded")
    least = "at least " if spec.until_pct is not None else ""
    if takes_s is None:
        note("how long it takes is told after the first run: no earlier start or benchmark of this shape is known")
    else:
        note(f"takes {least}about {minutes(takes_s)}")


def _words(arm: Arm) -> str:
    target = [arm.target.words] if arm.target else []
    return (
        " ".join([*target, *arm.sets, *(f"-{name}" for name in arm.unsets), *arm.envs, *arm.gpu.words]) or "as the base"
    )


def minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


async def _may_begin(session: Session, spec: ExperimentSpec, arguments: argparse.Namespace) -> None:
    """What others would notice is asked about first."""
    from workbench.bench import experiment as design

    asks = []
    if design.restarts(spec.a, spec.b):
        standing = {arm.target.run_id for arm in (spec.a, spec.b) if arm.target}
        selected = [there.state.server for there in session.all_hosts]
        ready = [s.run_id for s in selected if s is not None and s.state is ServerState.READY]
        asks += [f"stops run {run_id}" for run_id in ready if run_id not in standing]
    if design.changes_gpus(spec):
        asks.append("changes GPU settings, and gives them back")
    if not asks or arguments.yes:
        return
    if arguments.json or not sys.stdin.isatty():
        raise InputError(f"this {' and '.join(asks)}; nobody can be asked here", next_step="add --yes")
    if not await asked(f"This {' and '.join(asks)} on {session.host.name}. Go on? [y/N] "):
        raise InputError("nothing was started", next_step="--yes does not ask")


@contextlib.contextmanager
def _in_order() -> Iterator[None]:
    """A hangup or TERM ends it as Ctrl-C does: everything is given back, and it can be resumed."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    numbers = (signal.SIGTERM, signal.SIGHUP)
    with contextlib.suppress(RuntimeError, ValueError):  # not the main thread
        for number in numbers:
            loop.add_signal_handler(number, task.cancel)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def progress(known: int = 0) -> Any:
    """Progress as lines on stderr: each run's figure, the interval after each pair. `known`: runs from before."""
    told: dict[str, Any] = {f"run {place}": True for place in range(known)}

    def tell(state: SessionState, changed: frozenset[str]) -> None:
        now = state.experiment
        if "experiment" not in changed or now is None:
            return
        if "id" not in told:
            told["id"] = now.id
            note(f"experiment {now.id}")
        for run in now.runs:
            if run.state in ("done", "discarded", "failed") and told.get(f"run {run.place}") is None:
                told[f"run {run.place}"] = True
                note(_run_line(run.place, now))
        if now.verdict.startswith("so far") and told.get("verdict") != now.verdict:
            told["verdict"] = now.verdict
            left = f"; about {minutes(now.left_s)} left" if now.left_s else ""
            note(f"  {now.verdict}{left}")

    return tell


def _run_line(place: int, experiment: Experiment) -> str:
    run = experiment.runs[place]
    figure = f"{run.value:,.2f}" if run.value is not None else f"{run.state}: {run.error}"
    took = f"  {run.took_s:.0f} s" if run.took_s is not None else ""
    return f"  {_which(run)} {run.arm}  {figure}{took}"


def _which(run: ExperimentRun) -> str:
    return "discarded" if run.pair < 0 else f"pair {run.pair + 1}"


async def resume(arguments: argparse.Namespace) -> int:
    """On the host that it was made on, where none is named."""
    from workbench.session.session import Session

    if not (arguments.host or arguments.simulate):
        made_on = Session.of_host().experiments_db.experiment(arguments.id).host
        arguments.host = None if made_on == "local" else made_on
    async with connected(arguments) as session:
        before = await session.experiment_called(arguments.id)
        await session.supervisor.runs()
        await _may_begin(session, before.spec, arguments)
        with _in_order():
            session.subscribe(progress(len(before.runs)))
            ended = await session.resume_experiment(
                arguments.id, pairs=arguments.pairs, max_minutes=arguments.max_minutes
            )
    return _said(ended, arguments.json)


async def show(arguments: argparse.Namespace) -> int:
    from workbench.session.session import Session

    found = await Session.of_host().experiment_called(arguments.id)
    if arguments.json:
        return emit(experiment_json(found))
    _say(found)
    return 0


async def list_(arguments: argparse.Namespace) -> int:
    from workbench.session.session import Session

    found = await Session.of_host().experiments()
    if arguments.json:
        return emit({"experiments": [experiment_json(e) for e in found]})
    for one in found:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(one.unix_s))
        simulated = "  SIMULATED" if one.simulated else ""
        arms = f"{_words(one.spec.a)} | {_words(one.spec.b)}"
        say(f"{one.id:<4} {when}  {one.host}  {one.state:<8} {arms}  {one.verdict}{simulated}")
    if not found:
        note("no experiments yet")
    return 0


def _said(experiment: Experiment, as_json: bool) -> int:
    if as_json:
        emit(experiment_json(experiment))
    else:
        _say(experiment)
    if experiment.state == "done":
        return 0
    return 130 if experiment.error == INTERRUPTED else 1


def _say(experiment: Experiment) -> None:
    simulated = "  SIMULATED" if experiment.simulated else ""
    say(f"experiment {experiment.id}  {experiment.state}  {experiment.host}{simulated}")
    say(f"A: {_words(experiment.spec.a)}\nB: {_words(experiment.spec.b)}")
    comparison = experiment.comparison
    if comparison is not None:
        for one in comparison.differences if experiment.spec.a.target else ():
            name = one["name"] if one["kind"] == one["name"] else f"{one['kind']} {one['name']}"
            say(f"  {name}: {one['a']} | {one['b']}")
        chosen = comparison.metrics[0]
        say(f"\n{chosen.metric} ({chosen.unit})")
        for number, (a, b) in enumerate(chosen.pairs, 1):
            moved = f"{100 * (b / a - 1):+.2f} %" if a and b else "n/a"
            say(f"  pair {number:<3} A {_figure(a):>10}  B {_figure(b):>10}  {moved:>9}")
        say("")
        for change in comparison.metrics:
            moved = "" if change.change_pct is None else f"{change.change_pct:+.1f} %"
            width = "" if change.interval_pct is None else f" ± {half_width(change.interval_pct)}"
            say(
                f"  {change.metric:<18} {_figure(change.a):>12} {_figure(change.b):>12} {change.unit:<6} "
                f"{moved:>9}{width:<8}  {change.verdict}"
            )
        for warning in comparison.warnings:
            say(f"  not like for like: {warning}")
        for line in comparison.notes:
            say(f"  {line}")
    for run in experiment.runs:
        if run.state in ("failed", "dropped"):
            say(f"  run {run.place + 1}, {_which(run)} {run.arm}: {run.state}: {run.error}")
    for line in experiment.note.splitlines():
        say(f"  {line}")
    if experiment.error:
        say(f"{experiment.state}: {experiment.error}")
    if experiment.verdict:
        say(experiment.verdict)
    if experiment.smallest_pct is not None and "would have been seen" not in experiment.verdict:
        say(f"the smallest difference that this design could have shown is {experiment.smallest_pct:.1f} %")
    if experiment.state in ("stopped", "failed"):
        say(f"go on with it: workbench experiment resume {experiment.id}")


def _figure(value: float | None) -> str:
    return "n/a" if value is None else f"{value:,.2f}"


COMMANDS: dict[str, Command] = {
    "experiment": experiment,
    "experiment resume": resume,
    "experiment show": show,
    "experiment list": list_,
}

"""gpu verify, gpu sweep, sweep; and what a concurrency sweep says."""

from __future__ import annotations

import argparse
import asyncio
import math
import signal
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from workbench.cli.dispatch import Command, emit
from workbench.cli.experiment_arguments import shape_of
from workbench.cli.experiments import minutes, progress
from workbench.cli.gpu_settings import concerned_by, named, password_for, say_commands, say_plan
from workbench.cli.open_session import asked, connected, note, say
from workbench.cli.presets import take_plan
from workbench.cli.servers import ready_run
from workbench.model.errors import InputError, WorkbenchError
from workbench.model.experiment import Arm
from workbench.model.settings import InForce, SettingCommand

if TYPE_CHECKING:
    from workbench.model.sweep import Sweep, SweepPoint
    from workbench.session.session import Session
    from workbench.session.state import SessionState

    Plan = Mapping[str, Sequence[SettingCommand]]

_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
_SHAPE = ("concurrency", "requests", "max_tokens", "input_tokens", "warmup", "seconds")


# -- verify ----------------------------------------------------------------------------------------------------------


async def verify(arguments: argparse.Namespace) -> int:
    """0 when every setting is shown to be in force, or capped."""
    if not 1.0 <= arguments.seconds <= 600:
        raise InputError(f"--seconds {arguments.seconds:g}: from 1 to 600", next_step="8 is enough for most")
    _one_target(arguments)
    async with connected(arguments) as session, _ended_by_signals():
        run_id = await ready_run(session, arguments.run)
        password = await _password_of_probe(session, arguments) if arguments.probe else None
        seen = await session.verify(
            arguments.seconds,
            run_id,
            arguments.url,
            probe=arguments.probe,
            password=password,
            concurrency=arguments.concurrency,
        )
    bad = any(p.in_force not in (InForce.YES, InForce.CAPPED) for p in seen.proofs) or bool(seen.unloaded)
    if not arguments.probe and any(p.in_force is InForce.CONSISTENT for p in seen.proofs):
        note("next: workbench gpu verify --probe tries another clock for 2 s under load, and sets yours again")
    if arguments.json:
        emit(
            {
                "host": session.host.name,
                "target": seen.target,
                "seconds": seen.seconds,
                "gpus": list(seen.gpus),
                "output_tok_s": seen.output_tok_s,
                "altered": bool(seen.proofs or seen.unloaded),
                "in_force": {f"{p.place}.{p.setting}": str(p.in_force) for p in seen.proofs},
                "proofs": [p.as_json() for p in seen.proofs],
                "messages": list(seen.lines),
                "simulated": seen.simulated,
            }
        )
        return int(bad)
    if seen.target:
        say(f"{seen.target}: {seen.seconds:g} s under load{'  SIMULATED' if seen.simulated else ''}")
    for line in seen.lines:
        say(f"  {line}" if seen.target else line)
    for source in seen.sources:
        say(f"  source: {source}")
    return int(bad)


async def _password_of_probe(session: Session, arguments: argparse.Namespace) -> str | None:
    """Asked for where a change needs one."""
    needed = (await session.rights()).refusal and not arguments.json and sys.stdin.isatty()
    return await password_for(session, arguments) if needed else None


def _one_target(arguments: argparse.Namespace) -> None:
    if arguments.run and arguments.url:
        raise InputError("a run and --url are both given", next_step="give one of them")


# -- gpu sweep -------------------------------------------------------------------------------------------------------


async def gpu_sweep(arguments: argparse.Namespace) -> int:
    _one_target(arguments)
    setting, text = next(
        (name, value)
        for name, value in (
            ("power_limit_w", arguments.power_limit),
            ("gpu_clocks", arguments.lock_gpu_clocks),
            ("memory_clocks", arguments.lock_memory_clocks),
        )
        if value is not None
    )
    values = [part.strip() for part in text.split(",") if part.strip()]
    bench = {name: getattr(arguments, name) for name in _SHAPE}
    async with connected(arguments) as session, _ended_by_signals():
        run_id = await ready_run(session, arguments.run)
        password = None
        if arguments.dry_run or not arguments.yes or sys.stdin.isatty():
            if run_id is None and arguments.url is None and arguments.gpu is None:
                run_id = await session.run_at_hand()
            plan = await session.plan_gpu_sweep(setting, values, arguments.gpu, run_id=run_id)
            if arguments.dry_run:
                return await _shown_only(session, arguments, plan)
            if not arguments.yes:
                await _agreed(session, arguments, f"Set {', '.join(values)} one after the other", plan)
            if any(c.right for commands in plan.values() for c in commands):
                password = await password_for(session, arguments)
        with _told(session, arguments.json):
            sweep = await session.gpu_sweep(
                setting,
                values,
                arguments.gpu,
                run_id=run_id,
                url=arguments.url,
                settle_s=arguments.settle,
                pairs=arguments.pairs,
                runs=arguments.runs,
                password=password,
                **{k: v for k, v in bench.items() if v is not None},
            )
    return said(sweep, arguments.json)


async def _agreed(session: Session, arguments: argparse.Namespace, what: str, plan: Plan) -> None:
    if arguments.json or not sys.stdin.isatty():
        raise InputError("nobody can be asked here", next_step="add --yes, or --dry-run to see the commands")
    first = next(iter(plan.values()))
    concerned = await concerned_by(session, first)
    say_plan(first, concerned)
    where = f"{session.host.name} ({named(concerned, first)})"
    if not await asked(f"{what} on {where}, and give back at the end what is there now? [y/N] "):
        raise InputError("nothing was changed")


async def _shown_only(session: Session, arguments: argparse.Namespace, plan: Plan) -> int:
    """The commands of a sweep that is not run. 1 where a right for one of them is missing."""
    rights = list(dict.fromkeys(c.right for commands in plan.values() for c in commands if c.right))
    if arguments.json:
        concerned = await concerned_by(session, next(iter(plan.values())))
        emit(
            {
                "host": session.host.name,
                "dry_run": True,
                "ok": not rights,
                "simulated": session.state.simulated,
                "steps": [
                    {"label": label, "commands": [list(c.argv) for c in commands]} for label, commands in plan.items()
                ],
                "commands": [list(c.argv) for commands in plan.values() for c in commands],
                "rights": rights,
                **concerned,
            }
        )
        return int(bool(rights))
    for label, commands in plan.items():
        say(f"# {label}")
        say_commands(commands)
    for right in rights:
        note(right)
    return int(bool(rights))


# -- flags -----------------------------------------------------------------------------------------------------------


async def flag_sweep(arguments: argparse.Namespace) -> int:
    from workbench.session.sweep_flags import combinations_of

    flags = _flags(arguments.swept)
    async with connected(arguments) as session, _ended_by_signals():
        await take_plan(session, arguments)
        await session.adopt()
        combinations_of(session.editor, flags)  # what cannot be swept is told before how long it takes
        _tell_plan(session, flags, arguments)
        await _may_stop(session, arguments)
        unsubscribe = session.subscribe(progress())  # of the pairs
        with _told(session, arguments.json):
            sweep = await session.flag_sweep(
                flags,
                runs=arguments.runs,
                pairs=arguments.pairs,
                max_minutes=arguments.max_minutes,
                **shape_of(arguments),
            )
        unsubscribe()
    return said(sweep, arguments.json)


async def _may_stop(session: Session, arguments: argparse.Namespace, own: str | None = None) -> None:
    """Ask about the server that runs, unless it is the sweep's `own`."""
    from workbench.session.serving import LIVE

    running = session.state.server
    if running is None or running.state not in LIVE or running.run_id == own or arguments.yes:
        return
    what = f"run {running.run_id} ({running.model})"
    if arguments.json or not sys.stdin.isatty():
        raise InputError(
            f"{what} would be stopped for the sweep, and started again after it",
            next_step="add --yes, or stop it yourself",
        )
    if not await asked(f"Stop {what} for the sweep, and start it again after it? [y/N] "):
        raise InputError("nothing was changed")


def _tell_plan(session: Session, flags: Mapping[str, Sequence[str]], arguments: argparse.Namespace) -> None:
    """What will be done and how long it takes, as far as earlier runs tell: a run is a start and a benchmark."""
    found = 1 + math.prod(len(set(values)) for values in flags.values())
    runs, pairs = found * arguments.runs, 2 * arguments.pairs
    each = "one run" if arguments.runs == 1 else f"{arguments.runs} runs"
    then = f"then the best against the start in {arguments.pairs} pairs" if pairs else "nothing compared in pairs"
    note(f"up to {found} configurations, the start among them, {each} each on a fresh server; {then}")
    changed = Arm(sets=tuple(f"{name}={values[0]}" for name, values in flags.items()))
    two_pairs_s = session.experiment_estimate_s(Arm(), changed, pairs=2, throw_away=False, bench=shape_of(arguments))
    if two_pairs_s is None:
        note("how long it takes is told after the first run: no earlier start or benchmark of this shape is known")
    else:
        note(f"takes about {minutes((runs + pairs) * two_pairs_s / 4)}")


def _flags(words: Sequence[str]) -> dict[str, list[str]]:
    """ "name=v1,v2": values by flag. A JSON value is one value, whatever commas it holds."""
    found: dict[str, list[str]] = {}
    for word in words:
        name, equals, text = word.partition("=")
        name = name.strip().lstrip("-")
        values = [text] if text.startswith(("{", "[")) else [v for v in text.split(",") if v]
        if not equals or not name or not values:
            raise InputError(f"--flag {word!r} is not NAME=v1,v2,…", next_step="--flag max-num-seqs=128,256,512")
        found.setdefault(name, []).extend(values)
    return found


# -- going on --------------------------------------------------------------------------------------------------------


async def resume(arguments: argparse.Namespace) -> int:
    kept = _kept(arguments)
    if kept.kind != "flag":
        raise InputError(f"sweep {kept.id} is one of the {kept.name}", next_step=_way_on(kept) or "make a new one")
    async with connected(arguments) as session, _ended_by_signals():
        await session.adopt()
        await _may_stop(session, arguments, own=kept.server)
        unsubscribe = session.subscribe(progress())
        with _told(session, arguments.json, kept):
            sweep = await session.resume_sweep(kept.id, max_minutes=arguments.max_minutes)
        unsubscribe()
    return said(sweep, arguments.json)


async def gpu_resume(arguments: argparse.Namespace) -> int:
    kept = _kept(arguments)
    async with connected(arguments) as session, _ended_by_signals():
        plan = await session.plan_sweep_resume(kept.id)
        if arguments.dry_run:
            return await _shown_only(session, arguments, plan)
        password = None
        if not arguments.yes:
            await _agreed(session, arguments, "Set the values that are missing one after the other", plan)
        if any(c.right for commands in plan.values() for c in commands):
            password = await password_for(session, arguments)
        with _told(session, arguments.json, kept):
            sweep = await session.resume_sweep(kept.id, password=password)
    return said(sweep, arguments.json)


def _kept(arguments: argparse.Namespace) -> Sweep:
    """The sweep; its host is meant where none is named."""
    from workbench.session.session import Session

    sweep = Session.of_host().sweeps.get(arguments.id)
    if not (arguments.host or arguments.simulate):
        arguments.host = None if sweep.host == "local" else sweep.host
    return sweep


def _way_on(sweep: Sweep) -> str | None:
    """The command that goes on with a sweep that ended early."""
    if not sweep.resumable or sweep.state == "done":
        return None
    return f"workbench {'' if sweep.kind == 'flag' else 'gpu '}sweep resume {sweep.id}"


# -- what all of them say --------------------------------------------------------------------------------------------


@contextmanager
def _told(session: Session, as_json: bool, resumed: Sweep | None = None) -> Iterator[None]:
    """Each point on stderr as it is done: sweeps take minutes. What one that is `resumed` has already is no news."""
    shown = {p.label: p.state for p in resumed.points if p.state == "done"} if resumed else {}

    def tell(state: SessionState, changed: frozenset[str]) -> None:
        for point in state.sweep.points if state.sweep and "sweep" in changed else ():
            if point.state != "planned" and shown.get(point.label) != point.state:
                shown[point.label] = point.state
                left = f", about {state.sweep.left_s / 60:.1f} min left" if state.sweep and state.sweep.left_s else ""
                note(f"{point.label}: {point.state}{f' ({point.error})' if point.error else left}")

    unsubscribe = session.subscribe(tell) if not as_json else lambda: None
    try:
        yield
    finally:
        unsubscribe()


@asynccontextmanager
async def _ended_by_signals() -> AsyncIterator[None]:
    """TERM and HUP end a command as Ctrl-C does: by cancelling it, so that it gives back what it has set."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    received: list[str] = []

    def end(number: signal.Signals) -> None:
        received.append(number.name)
        task.cancel()

    for number in _SIGNALS:
        with suppress(ValueError, RuntimeError):  # not in the main thread
            loop.add_signal_handler(number, end, number)
    try:
        yield
    except asyncio.CancelledError:
        if received:
            raise WorkbenchError(f"ended by {received[0]}") from None
        raise
    finally:
        for number in _SIGNALS:
            with suppress(ValueError, RuntimeError):
                loop.remove_signal_handler(number)


def sweep_json(sweep: Sweep) -> dict[str, Any]:
    return asdict(sweep)


def said(sweep: Sweep, as_json: bool) -> int:
    """0 when it went to its end with a point measured."""
    if as_json:
        emit(sweep_json(sweep))
    else:
        for line in table(sweep):
            say(line)
    return 0 if sweep.state == "done" and any(p.state == "done" for p in sweep.points) else 1


_COLUMNS = (
    ("tok/s", 10, lambda p: p.tok_s, ",.1f"),
    ("tok/J", 8, lambda p: p.tok_per_joule, ".3f"),
    ("W", 7, lambda p: p.power_w, ".0f"),
    ("SM MHz", 7, lambda p: p.sm_mhz, ".0f"),
    ("°C", 5, lambda p: p.temperature_c, ".0f"),
    ("TTFT p50", 9, lambda p: p.ttft_p50_ms, ",.1f"),
    ("p99 ms", 9, lambda p: p.ttft_p99_ms, ",.1f"),
    ("ITL ms", 7, lambda p: p.itl_mean_ms, ".2f"),
)


def table(sweep: Sweep) -> Sequence[str]:
    """For a terminal: one line for each point, then the knee, notes and errors."""
    place = f"  on {sweep.host}" if sweep.host else ""
    lines = [f"sweep {sweep.id}: {sweep.name}{place}  {sweep.state}{'  SIMULATED' if sweep.simulated else ''}"]
    width = max(5, *(len(p.label) for p in sweep.points)) if sweep.points else 5
    lines.append("  " + " " * width + "".join(f" {title:>{size}}" for title, size, *_ in _COLUMNS))
    for index, point in enumerate(sweep.points):
        mark = ">" if index == sweep.knee else " "
        lines.append(f"{mark} {point.label:<{width}}" + "".join(_cell(point, c) for c in _COLUMNS) + _remark(point))
    if sweep.knee_text:
        lines.append(f"knee: {sweep.knee_text}")
    lines += [f"note: {text}" for text in sweep.notes]
    if sweep.error:
        lines.append(f"error: {sweep.error}")
    if (command := _way_on(sweep)) is not None:
        lines.append(f"go on with it: {command}")
    return lines


def _cell(point: SweepPoint, column: tuple[str, int, Any, str]) -> str:
    _, size, pick, shape = column
    value = pick(point)
    return f" {'-' if value is None else format(value, shape):>{size}}"


def _remark(point: SweepPoint) -> str:
    if point.state == "done":
        return f"  in force: {point.in_force}" if point.in_force else ""
    return f"  {point.state.upper() if point.state == 'failed' else point.state}: {point.error or ''}".rstrip(": ")


# -- stored ones -----------------------------------------------------------------------------------------------------


def listed(arguments: argparse.Namespace) -> int:
    from workbench.session.session import Session

    found_ = Session.of_host().sweeps.list()
    if arguments.json:
        return emit({"sweeps": [sweep_json(s) for s in found_]})
    for sweep in found_:
        done = sum(p.state == "done" for p in sweep.points)
        simulated = "  SIMULATED" if sweep.simulated else ""
        points = f"{done}/{len(sweep.points)} points"
        why = f"  {sweep.error}" if sweep.error else ""
        say(f"#{sweep.id:<4} {sweep.name:<18} {sweep.host}  {points}  {sweep.state}{simulated}{why}")
    return 0


def shown(arguments: argparse.Namespace) -> int:
    from workbench.session.session import Session

    sweep = Session.of_host().sweeps.get(arguments.id)
    if arguments.json:
        return emit(sweep_json(sweep))
    for line in table(sweep):
        say(line)
    return 0


COMMANDS: dict[str, Command] = {
    "gpu verify": verify,
    "gpu sweep": gpu_sweep,
    "sweep": flag_sweep,
    "gpu sweep resume": gpu_resume,
    "sweep resume": resume,
    "sweep list": listed,
    "sweep show": shown,
}

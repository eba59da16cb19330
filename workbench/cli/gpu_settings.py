"""gpu set, revert, journal."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from workbench.cli.dispatch import Command, emit
from workbench.cli.gpu_guard import guard_lines
from workbench.cli.open_session import asked, connected, note, say
from workbench.model.errors import HostError, InputError
from workbench.model.settings import HOST, ClockRange, GpuSettings, SettingCommand, SettingOutcome, SettingsReport

if TYPE_CHECKING:
    from workbench.gpu.settings.journal import Record
    from workbench.session.session import Session
    from workbench.session.state import SessionState

OURS = "started by Workbench"
OTHERS_SHOWN = 8  # of one user and setting
FOREIGN = (
    "next: workbench gpu revert --foreign keep (leave what is there), ours (set ours again) or original (give "
    "back what was there before Workbench)"
)


def _clocks(text: str | None, option: str) -> ClockRange | None:
    if text is None:
        return None
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) == 1:
        numbers *= 2
    if len(numbers) != 2 or not 0 <= numbers[0] <= numbers[1]:
        raise InputError(f"{option} {text!r} is not MHZ or MIN,MAX in MHz", next_step=f"for example {option} 210,2400")
    return ClockRange(*numbers)


def wanted(arguments: argparse.Namespace) -> GpuSettings:
    """The settings that are given one by one; empty with --preset alone."""
    settings = GpuSettings(
        persistence=None if arguments.persistence is None else arguments.persistence == "on",
        power_limit_w=arguments.power_limit,
        gpu_clocks=_clocks(arguments.lock_gpu_clocks, "--lock-gpu-clocks"),
        memory_clocks=_clocks(arguments.lock_memory_clocks, "--lock-memory-clocks"),
        reset_gpu_clocks=arguments.reset_gpu_clocks,
        reset_memory_clocks=arguments.reset_memory_clocks,
        governor=arguments.governor,
    )
    if settings.empty and arguments.preset is None:
        raise InputError("no setting was asked for", next_step="workbench gpu set --help")
    if not settings.empty and arguments.preset is not None:
        raise InputError("--preset brings its own settings", next_step="give either --preset or settings")
    return settings


def _wanted(arguments: argparse.Namespace, session: Session) -> dict[str, GpuSettings]:
    """By GPU. A preset names its own GPUs; --gpu puts its settings on another."""
    settings = wanted(arguments)
    if arguments.preset is None:
        return {arguments.gpu: settings}
    found: dict[str, GpuSettings] = {}
    for selector, carried, reason in session.preset_gpu_settings(arguments.preset):
        place = selector if arguments.gpu == "all" else arguments.gpu
        given = {name: value for name, value in asdict(carried).items() if value not in (None, False)}
        given |= {name: getattr(carried, name) for name in given}  # not their dictionaries
        found[place] = replace(found.get(place, GpuSettings()), **given)
        if reason:
            note(f"{arguments.preset}: {reason}")
    if not found:
        raise InputError(f"preset {arguments.preset} carries no GPU settings")
    return found


async def set_(arguments: argparse.Namespace) -> int:
    if arguments.trial is not None and not arguments.trial > 0:
        raise InputError(f"--trial {arguments.trial:g}: expected seconds, more than 0")
    async with connected(arguments) as session:
        settings = _wanted(arguments, session)
        commands = await session.standing(await session.plan_gpus(settings))
        concerned = await concerned_by(session, commands)
        if not arguments.json:
            say_plan(commands, concerned)
        if not arguments.dry_run and not arguments.yes:
            if arguments.json or not sys.stdin.isatty():
                raise InputError("nobody can be asked here", next_step="add --yes, or --dry-run to see the commands")
            if not await asked(f"Run these on {session.host.name} ({named(concerned, commands)})? [y/N] "):
                note("nothing was changed")
                return 1
        password = None
        if not arguments.dry_run and any(c.right for c in commands):
            password = await password_for(session, arguments)
        report = await session.apply_gpus(
            settings, dry_run=arguments.dry_run, trial_s=arguments.trial, password=password
        )
        return _said(report, arguments, session, concerned)


async def revert(arguments: argparse.Namespace) -> int:
    async with connected(arguments) as session:
        gpu = None if arguments.gpu == "all" else arguments.gpu
        choice = arguments.foreign
        report = await session.revert_gpu(gpu, dry_run=arguments.dry_run, foreign=choice)
        if any(o.command.right for o in report.outcomes) and not arguments.dry_run:
            password = await password_for(session, arguments)
            if password is not None:
                report = await session.revert_gpu(gpu, password=password, foreign=choice)
        if not report.outcomes and not arguments.json:
            say("nothing to revert")
        if arguments.dry_run and not arguments.json:
            say_commands([o.command for o in report.outcomes if o.command.argv])
        code = _said(report, arguments, session)
        if any(o.foreign for o in report.outcomes) and not arguments.json:
            note(FOREIGN)
        return code


async def journal(arguments: argparse.Namespace) -> int:
    async with connected(arguments) as session:
        with suppress(HostError):  # whether the driver was reloaded; without GPUs the boot still tells
            session.update(telemetry=await session.reading())
        from workbench.gpu.settings.cpu_governor import governors_on
        from workbench.gpu.settings.journal import path_on

        records, log = await session.gpu_journal()
        await session.read_alterations()
        sysfs = (await governors_on(session.host)).sysfs if any(r.entry.gpu_uuid == HOST for r in records) else "/sys"
        document: dict[str, Any] = {
            "host": session.host.name,
            "journal": await path_on(session.host),
            "simulated": session.state.simulated,
            "entries": [_entry_json(r, sysfs) for r in records],
            "others": [asdict(a) for a in session.state.others],
            "others_problem": session.state.others_problem,
            "log": list(log),
        }
    if arguments.json:
        return emit(document)
    say(document["journal"])
    for one in document["entries"]:
        _say_entry(one)
    if not document["entries"]:
        say("nothing is altered by this Workbench")
    for other in others_lines(session.state):
        say(other)
    for line in log:
        _say_done(line)
    return 0


async def sudoers(arguments: argparse.Namespace) -> int:
    from workbench.gpu.settings.sudoers import PATH

    async with connected(arguments) as session:
        text, host = await session.sudoers(), session.host.name
    if arguments.json:
        return emit({"host": host, "path": PATH, "sudoers": text})
    sys.stdout.write(text)
    return 0


def _entry_json(record: Record, sysfs: str) -> dict[str, Any]:
    from workbench.gpu.settings.revert import by_hand

    entry = asdict(record.entry)
    hand = by_hand(record.entry.gpu_uuid, record.entry.setting, record.entry.before, sysfs)
    return {**entry, "owner_state": record.owner, "gone": record.gone, "by_hand": None if record.gone else hand}


def _say_entry(one: Mapping[str, Any]) -> None:
    where = "host" if one["gpu_uuid"] == HOST else f"GPU{one['gpu_index']} {one['gpu_name']}"
    known = {
        "read": "read before the change",
        "journal": "set by Workbench before",
        "default": "the driver's default",
        "unknown": "someone else's lock cannot be read back",
        "claim": f"as {one['origin']} told, whose value was there",
    }
    say(
        f"{where}: {one['setting']} {_shown(one['now'])}, was {_shown(one['before'])} "
        f"({known.get(one['before_known'], one['before_known'])})"
    )
    owner = {"this": "this process", "alive": "still runs", "dead": "is gone", "elsewhere": "on another machine"}
    since = _time(one["since_unix_s"])
    say(
        f"  {one['state']} since {since} by {one['who']}, process {one['owner'].get('pid')}, which "
        f"{owner[one['owner_state']]}"
    )
    say(f"  no longer in force: {one['gone']}" if one["gone"] else f"  by hand: {one['by_hand']}")


def others_lines(state: SessionState) -> Iterator[str]:
    """What other Workbenches of this host changed."""
    from workbench.gpu.settings.revert import shown

    shown_of: dict[tuple[str, str], int] = {}
    for one in state.others:
        group = (str(one.extra["by"]), one.setting)
        shown_of[group] = shown_of.get(group, 0) + 1
        if shown_of[group] > OTHERS_SHOWN:
            continue
        where = "host" if one.gpu_uuid == HOST else f"GPU{one.gpu_index}"
        kept = ", kept on" if one.extra.get("state") == "kept" else ""
        change = f"{one.setting} {shown(one.before)} -> {shown(one.now)}"
        yield f"altered by {one.extra['by']}: {where} {change}{kept}, since {_time(one.since_unix_s)}"
    for (by, setting), count in shown_of.items():
        if count > OTHERS_SHOWN:
            yield f"altered by {by}: {setting}, and {count - OTHERS_SHOWN} more (--json lists them)"
    if state.others_problem:
        yield f"  {state.others_problem}"


def _say_done(line: Mapping[str, Any]) -> None:
    where = "host" if line.get("gpu_uuid") == HOST else line.get("gpu_uuid", "")
    how = {True: "ok", False: "FAILED"}.get(line.get("ok", ""), "")
    change = _shown(line["now"]) if "now" in line else ""
    if "before" in line:
        change = f"{_shown(line['before'])} -> {change}"
    words = (
        _time(line.get("unix_s", 0.0)),
        line.get("who", ""),
        line.get("what", ""),
        where,
        line.get("setting", ""),
        change,
        how,
        line.get("message", ""),
    )
    say("  ".join(str(word) for word in words if word))


def _time(unix_s: float) -> str:
    import time

    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix_s))


async def concerned_by(session: Session, commands: Sequence[SettingCommand]) -> dict[str, Any]:
    """The GPUs that a plan changes and what runs on them: `gpus` and `processes`, as JSON has them. A setting of the
    host concerns nothing that could be listed."""
    indexes = {c.gpu_index for c in commands if c.gpu_uuid != HOST}
    if not indexes:
        return {"gpus": [], "processes": [], "processes_absent": {}}
    reading = await session.reading()
    samples = [s for s in reading.gpus if s.index in indexes]
    return {
        "gpus": [{"gpu": i.index, "uuid": i.uuid, "name": i.name} for i in reading.infos if i.index in indexes],
        "processes": [
            {"gpu": gpu, "pid": pid, "name": name, "ours": ours}
            for gpu, pid, name, ours in await session.gpu_processes()
            if gpu in indexes
        ],
        "processes_absent": {
            f"gpu{s.index}": s.absent.get("processes", "not read") for s in samples if s.processes is None
        },
    }


def say_commands(commands: Sequence[SettingCommand]) -> None:
    for command in commands:
        say(f"$ {command.typed}")
        if command.note:
            say(f"  {command.note}")


def say_plan(commands: Sequence[SettingCommand], concerned: Mapping[str, Any]) -> None:
    say_commands(commands)
    for gpu in concerned["gpus"]:
        say(f"GPU{gpu['gpu']} {gpu['name']}  {gpu['uuid']}")
        for process in concerned["processes"]:
            if process["gpu"] == gpu["gpu"]:
                say(
                    f"  process {process['pid']} {process['name']}, "
                    f"{OURS if process['ours'] else 'not started by Workbench here'}"
                )
        if why := concerned["processes_absent"].get(f"gpu{gpu['gpu']}"):
            say(f"  its processes are not known: {why}")


def named(concerned: Mapping[str, Any], commands: Sequence[SettingCommand]) -> str:
    """ "GPU0, GPU1; 2 processes use them, 1 of them not Workbench's"."""
    cpus = ["its CPUs"] if any(c.gpu_uuid == HOST for c in commands) else []
    gpus = ", ".join([*(f"GPU{g['gpu']}" for g in concerned["gpus"]), *cpus])
    count = len({p["pid"] for p in concerned["processes"]})
    if not count:
        return gpus
    others = len({p["pid"] for p in concerned["processes"] if not p["ours"]})
    use = f"{count} process uses" if count == 1 else f"{count} processes use"
    return f"{gpus}; {use} {'it' if len(concerned['gpus']) == 1 else 'them'}, {others} not started by Workbench"


async def password_for(session: Session, arguments: argparse.Namespace) -> str | None:
    """For sudo, from the terminal, where that helps and somebody is there."""
    if not session.state.host.sudo_password or arguments.json or not sys.stdin.isatty():
        return None
    from getpass import getpass

    user, host = session.state.host.user, session.host.name
    return await asyncio.to_thread(getpass, f"[sudo] password for {user} on {host} (sent to sudo only): ") or None


def _key(outcome: SettingOutcome) -> str:
    where = "host" if outcome.command.gpu_uuid == HOST else f"gpu{outcome.command.gpu_index}"
    return f"{where}.{outcome.command.setting}"


def _by_key(outcomes: Sequence[SettingOutcome], field: str) -> dict[str, Any]:
    """Governors that differ between cores take a command each: their values stand beside one another."""
    found: dict[str, Any] = {}
    for outcome in outcomes:
        key, value = _key(outcome), getattr(outcome, field)
        found[key] = value if found.get(key, value) == value else f"{found[key]} {value}"
    return found


def _outcome_json(o: SettingOutcome) -> dict[str, Any]:
    return {
        "gpu": o.command.gpu_index,
        "uuid": o.command.gpu_uuid,
        "setting": o.command.setting,
        "ok": o.ok,
        "before": o.before,
        "before_known": o.before_known,
        "requested": o.requested,
        "read_back": o.read_back,
        "in_force": str(o.in_force),
        "foreign": o.foreign,
        "message": o.message,
        "right": o.command.right,
        "command": o.command.typed,
        "note": o.command.note,
    }


def report_json(report: SettingsReport, host: str, simulated: bool) -> dict[str, Any]:
    return {
        "host": host,
        "commands": [list(o.command.argv) for o in report.outcomes if o.command.argv],
        "outcomes": [_outcome_json(o) for o in report.outcomes],
        "before": _by_key(report.outcomes, "before"),
        "requested": _by_key(report.outcomes, "requested"),
        "read_back": _by_key(report.outcomes, "read_back"),
        "in_force": {_key(o): str(o.in_force) for o in report.outcomes},
        "rolled_back": [_outcome_json(o) for o in report.rolled_back],
        "guard": asdict(report.guard) if report.guard else None,
        "journal": report.journal,
        "dry_run": report.dry_run,
        "ok": report.ok,
        "simulated": simulated,
    }


def _said(
    report: SettingsReport, arguments: argparse.Namespace, session: Session, concerned: Mapping[str, Any] | None = None
) -> int:
    if arguments.json:
        emit({**report_json(report, session.host.name, session.state.simulated), **(concerned or {})})
        return 0 if report.ok else 1
    for outcome in report.outcomes:
        told = "would run" if report.dry_run else "ok" if outcome.ok else "FAILED"
        if not outcome.command.argv:  # of a revert: nothing is run for it
            told = "NOT reverted" if outcome.foreign else "nothing to do"
        _say_outcome(outcome, told if outcome.command.right is None else "no right", report.dry_run)
    for outcome in report.rolled_back:
        _say_outcome(outcome, "given back" if outcome.ok else "NOT given back", False)
    for line in guard_lines(report.guard):
        say(line)
    return 0 if report.ok else 1


def _say_outcome(outcome: SettingOutcome, told: str, dry_run: bool) -> None:
    force = "" if dry_run or not outcome.command.argv else f" (in force: {outcome.in_force})"
    change = f"{_shown(outcome.before)} -> {_shown(outcome.requested)}" if outcome.command.argv else ""
    said = outcome.message.removeprefix(outcome.command.note).removeprefix("; ")  # the note stands under its command
    what = f"{outcome.command.where} {outcome.command.setting}: {told}{force}"
    say("  ".join(part for part in (what, change, said) if part))


def _shown(value: Any) -> str:
    from workbench.gpu.settings.revert import shown

    return shown(value)


COMMANDS: dict[str, Command] = {"gpu set": set_, "gpu revert": revert, "gpu journal": journal, "gpu sudoers": sudoers}

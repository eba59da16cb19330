"""GPU settings as terminal text: changes made by Workbench, commands to run, affected processes,
and the guard."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from workbench.model.setting_records import SettingCommand
from workbench.model.settings import (
    HOST,
    current_value_text_if_changed,
    format_stored_value,
    gpu_or_host_name,
    label_of,
)
from workbench.model.unconfirmed_changes import split_altered_and_begun_changes

if TYPE_CHECKING:
    from workbench.model.setting_records import GuardView, SettingOutcome, SettingsReport
    from workbench.session.session import Session
    from workbench.session.state import SessionState

STARTED_BY_WORKBENCH = "started by Workbench"
OTHERS_SHOWN = 8  # changes per user and setting
NO_HEARTBEAT = (
    "the settings stay in force until `workbench gpu revert`; the guard reverts only settings that "
    "heat a GPU over "
    "its limit"
)
FOREIGN_NEXT = (
    "next: workbench gpu revert --foreign keep (leave the foreign value), ours (set Workbench's "
    "value again) or "
    "original (restore the value from before Workbench)"
)


def format_setting_change(setting: str, before: Any, now: Any) -> str:
    """Return a change of a setting as text, such as "power limit 600 W -> 400 W". `before` and
    `now` may be values as they are stored in the journal.
    """
    return f"{label_of(setting)} {format_stored_value(setting, before)} -> {format_stored_value(setting, now)}"


def format_local_time(unix_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix_s))


def kept_setting_suffix(state: str) -> str:
    """Return ", kept in force" for a changed setting in the state "kept"; "" for any other
    state."""
    if state == "kept":
        return ", kept in force"
    return ""


def guard_json(view: GuardView | None) -> dict[str, Any] | None:
    """Return the state of the guard as a JSON object; None if no guard was ever started."""
    if view is None:
        return None
    return asdict(view)


def list_changes_by_other_processes(state: SessionState) -> Iterator[str]:
    """Yield one line for each change of a setting that another Workbench process on the host has
    made. After eight changes of a setting by one user, one line says how many more there are."""
    _, begun = split_altered_and_begun_changes(state.others, state.telemetry)
    outcomes = {(change.by, change.key): outcome for change, outcome in begun}
    counts: Counter[tuple[str, str]] = Counter()
    for one in state.others:
        group = (one.by, one.setting)
        counts[group] += 1
        if counts[group] > OTHERS_SHOWN:
            continue
        kept = kept_setting_suffix(one.state)
        change = (
            f"{gpu_or_host_name(one.gpu_uuid, one.gpu_index)} "
            f"{format_setting_change(one.setting, one.before, one.now)}"
        )
        said = outcomes.get((one.by, one.key), "altered")
        since = format_local_time(one.since_unix_s)
        live = current_value_text_if_changed(one.setting, one.gpu_uuid, one.now, state.telemetry)
        later = ""
        if live and said == "altered":
            later = f"; it is {live} now"
        yield f"{said} by {one.by}: {change}{kept}, since {since}{later}"
    for (by, setting), count in counts.items():
        if count > OTHERS_SHOWN:
            yield (
                f"altered by {by}: {label_of(setting)}, and {count - OTHERS_SHOWN} more "
                "(--json lists them)"
            )
    if state.host.others_problem:
        yield f"  {state.host.others_problem}"


async def read_affected_gpus_and_processes(
    session: Session, commands: Sequence[SettingCommand]
) -> dict[str, Any]:
    """Return the GPUs that the commands would change, and the processes on these GPUs, as a JSON
    object. Its fields are `gpus`, `processes`, and `processes_absent` (by GPU, the reason why the
    processes are unknown). Settings of the host, such as governors, affect no GPU process."""
    indexes = {c.gpu_index for c in commands if c.gpu_uuid != HOST}
    if not indexes:
        return {"gpus": [], "processes": [], "processes_absent": {}}
    reading = await session.telemetry.get_recent_reading()
    gpus = []
    for info in reading.infos:
        if info.index in indexes:
            gpus.append({"gpu": info.index, "uuid": info.uuid, "name": info.name})
    processes = []
    for gpu, pid, name, ours in await session.gpu.gpu_processes():
        if gpu in indexes:
            processes.append({"gpu": gpu, "pid": pid, "name": name, "ours": ours})
    absent = {}
    for sample in reading.gpus:
        if sample.index in indexes and sample.processes is None:
            absent[f"gpu{sample.index}"] = sample.absent.get("processes", "not read")
    return {"gpus": gpus, "processes": processes, "processes_absent": absent}


def format_affected_gpus(affected: Mapping[str, Any], commands: Sequence[SettingCommand]) -> str:
    """Return one line about the affected GPUs and processes, such as "GPU0, GPU1; 2 processes use
    them, 1 not started by Workbench".
    """
    gpus = [f"GPU{gpu['gpu']}" for gpu in affected["gpus"]]
    if any(c.gpu_uuid == HOST for c in commands):
        gpus.append("its CPUs")
    pids = {p["pid"] for p in affected["processes"]}
    if not pids:
        return ", ".join(gpus)
    others = len({p["pid"] for p in affected["processes"] if not p["ours"]})
    use = f"{len(pids)} processes use"
    if len(pids) == 1:
        use = "1 process uses"
    them = "it" if len(affected["gpus"]) == 1 else "them"
    return f"{', '.join(gpus)}; {use} {them}, {others} not {STARTED_BY_WORKBENCH}"


def setting_command_lines(commands: Sequence[SettingCommand]) -> Iterator[str]:
    for command in commands:
        yield f"$ {command.shell_line}"
        if command.note:
            yield f"  {command.note}"


def affected_gpu_lines(affected: Mapping[str, Any]) -> Iterator[str]:
    """Yield one line for each affected GPU and each process on it."""
    for gpu in affected["gpus"]:
        yield f"GPU{gpu['gpu']} {gpu['name']}  {gpu['uuid']}"
        for process in affected["processes"]:
            if process["gpu"] == gpu["gpu"]:
                starter = STARTED_BY_WORKBENCH
                if not process["ours"]:
                    starter = "not started by Workbench here"
                yield f"  process {process['pid']} {process['name']}, {starter}"
        if reason := affected["processes_absent"].get(f"gpu{gpu['gpu']}"):
            yield f"  its processes are unknown: {reason}"


def journal_recovery_lines(text: str | None) -> Iterator[str]:
    """Yield a warning with `text`, which says that the journal was lost and made anew. Yield
    nothing for None."""
    if text:
        yield f"warning: {text}"


def settings_report_lines(report: SettingsReport) -> Iterator[str]:
    """Yield the lines of a report on settings: each setting's outcome, each setting that was rolled
    back, the state of the guard, and whether the journal was made anew."""
    for outcome in report.outcomes:
        state = "ok" if outcome.ok else "FAILED"
        if report.dry_run:
            state = "would run"
        if outcome.command.right is not None:
            state = "no right"
        elif not outcome.command.argv:  # a revert that needs no command
            state = "NOT reverted" if outcome.foreign else "nothing to do"
        yield _setting_outcome_line(outcome, state, report.dry_run)
    for outcome in report.rolled_back:
        yield _setting_outcome_line(
            outcome, "rolled back" if outcome.ok else "NOT rolled back", False
        )
    yield from guard_lines(report.guard)
    if report.recovery is not None:
        yield from journal_recovery_lines(report.recovery.text)


def _setting_outcome_line(outcome: SettingOutcome, state: str, dry_run: bool) -> str:
    command = outcome.command
    force = change = ""
    if command.argv:
        before = format_stored_value(command.setting, outcome.before)
        change = f"{before} -> {format_stored_value(command.setting, outcome.requested)}"
        if not dry_run:
            force = f" (in force: {outcome.in_force})"
    line = f"{command.gpu_or_host_name} {label_of(command.setting)}: {state}{force}"
    # setting_command_lines printed the note
    message = outcome.message.removeprefix(command.note).removeprefix("; ")
    return "  ".join(filter(None, (line, change, message)))


def guard_lines(view: GuardView | None, include_last_action: bool = False) -> Iterator[str]:
    """Yield lines about the guard, the process that reverts GPU settings: its state and, if
    `include_last_action` is True, what it did last. `view` is None if no guard was ever started;
    then no line is yielded."""
    if view is None:
        return
    if view.running and not view.guarding:
        yield f"guard: process {view.pid} does NOT GUARD the settings: {view.problem}"
        yield f"  its log is {view.log}"
    elif view.running:
        yield f"guard: process {view.pid} guards the settings; its log is {view.log}"
        if view.trial_left_s is not None:
            yield (
                f"  reverts in {view.trial_left_s:.0f} s unless `workbench gpu confirm` keeps "
                "the settings"
            )
        if view.heartbeat_s is not None:
            age = ""
            if view.heartbeat_age_s is not None:
                age = f", last heartbeat {view.heartbeat_age_s:.0f} s ago"
            yield f"  reverts if their Workbench sends no heartbeat for {view.heartbeat_s:g} s{age}"
        elif view.trial_left_s is None:
            yield f"  {NO_HEARTBEAT}"
        for uuid, limit in view.temperature_limits_c.items():
            yield f"  {uuid}: settings that heat the GPU are reverted at {limit:g} °C"
    if view.note:
        yield f"  {view.note}"
    if view.problem and (view.guarding or not view.running):
        yield f"  ! {view.problem}" if view.running else f"guard: NOT RUNNING: {view.problem}"
    if include_last_action and view.did and view.did_unix_s:
        yield f"guard: {format_local_time(view.did_unix_s)} {view.did}"

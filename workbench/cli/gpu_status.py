"""The commands `gpu status` and `gpu journal`, which show readings of the GPUs and the settings
that Workbench has changed.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from workbench.cli.gpu_text import (
    format_local_time,
    format_setting_change,
    guard_json,
    guard_lines,
    journal_recovery_lines,
    kept_setting_suffix,
    list_changes_by_other_processes,
)
from workbench.cli.host_words import add_host_options_to_lines
from workbench.cli.open_session import (
    connect_session,
    read_gpus_in_background,
    warn_of_unreached_nodes,
)
from workbench.cli.output import (
    items_as_json,
    print_json,
    print_json_or_lines,
    print_lines,
    print_message,
    simulated_suffix,
)
from workbench.cli.registry import command
from workbench.model.counts import count_of
from workbench.model.errors import HostError, SettingsError
from workbench.model.gpu import (
    DriverStatus,
    GpuState,
    format_supported_clocks,
    reasons_with_missing_values,
)
from workbench.model.gpu_readings import READINGS
from workbench.model.setting_commands import PENDING, user_setting_is_left_to
from workbench.model.settings import HOST, format_stored_value, gpu_or_host_name, label_of
from workbench.model.unconfirmed_changes import split_altered_and_begun_changes

if TYPE_CHECKING:
    from workbench.gpu.settings.journal import Record
    from workbench.model.gpu import GpuInfo, GpuSample, Telemetry

_LINE_CHARS = 78  # of a line of readings


@command(
    "gpu status",
    "show clocks, power, temperature and memory of the GPUs, and changed settings",
    examples=("workbench gpu status", "workbench gpu status --json"),
)
async def print_gpu_status(arguments: argparse.Namespace) -> int:
    async with connect_session(arguments) as session:
        warn_of_unreached_nodes(session)
        async with read_gpus_in_background(session) as reading:
            await asyncio.to_thread(lambda: session.gpu)  # loads the modules of GPU settings
            telemetry = await reading
        from workbench.gpu.settings.alterations import find_drifts

        # shows whether the driver was reloaded since a change
        session.core.update(telemetry=telemetry)
        guard = None
        journal_problem: HostError | SettingsError | None = None
        doubts: tuple[str, ...] = ()
        try:
            guard = await session.gpu.guard.read_guard_state()  # and the journal
            doubts = tuple(await session.gpu.impossible_claim_texts())
        except (HostError, SettingsError) as error:  # the GPUs can be shown without the journal
            journal_problem = error
        state = session.state
        full = state.host.journal_disk_full
        drift = find_drifts(state.alterations, state.others, telemetry, full)
        altered, begun = split_altered_and_begun_changes(state.alterations, telemetry)
    driver_ok = telemetry.driver.status is DriverStatus.OK
    document = {
        "host": {"name": session.host.name, **asdict(telemetry.host)},
        "driver": asdict(telemetry.driver),
        "gpus": [_gpu_state_json(telemetry.info(s.index), s) for s in telemetry.gpus],
        "altered": items_as_json(altered),
        "begun": [{**one.change.as_json(), "outcome": one.outcome} for one in begun],
        "drift": items_as_json(drift),
        "others": items_as_json(state.others),
        "others_doubted": doubts,
        "others_problem": state.host.others_problem,
        "guard": guard_json(guard),
        "journal_recovery": state.host.journal_recovery,
        "journal_disk_full": full,
        "journal_problem": journal_problem.message if journal_problem else None,
        "simulated": telemetry.simulated,
        "slow": telemetry.slow_reading_text,
        "error": None if driver_ok else telemetry.driver.message,
    }
    if arguments.json:
        print_json(document)
    else:
        lines = [
            *_gpu_status_lines(document, telemetry),
            *list_changes_by_other_processes(state),
            *(f"  {text}" for text in doubts),
            *journal_recovery_lines(state.host.journal_recovery),
            *guard_lines(guard, include_last_action=True),
        ]
        print_lines(add_host_options_to_lines(lines, arguments))
    if journal_problem is not None:
        print_message(f"cannot read which settings Workbench has changed: {journal_problem}")
    if telemetry.driver.status is DriverStatus.NO_LIBRARY:
        print_message("no GPU on this host? `workbench demo` shows Workbench on a simulated host")
    return 0 if driver_ok else 1


def _gpu_state_json(info: GpuInfo | None, sample: GpuSample) -> dict[str, Any]:
    """Return the properties and readings of a GPU as one JSON object. Its field `absent` has the
    reasons for missing values.
    """
    static = asdict(info) if info else {}
    live = asdict(sample)
    both = {**static, **{k: v for k, v in live.items() if v is not None or k not in static}}
    return {**both, "absent": {**static.get("absent", {}), **live["absent"]}}


def _gpu_status_lines(document: Mapping[str, Any], telemetry: Telemetry) -> Iterator[str]:
    driver, host = document["driver"], document["host"]
    simulated = simulated_suffix(document["simulated"])
    cuda = ""
    if driver["cuda_version"]:
        cuda = f", CUDA {driver['cuda_version']}"
    yield (
        f"{host['name']}: driver {driver['driver_version'] or 'n/a'} "
        f"({driver['status']}){cuda}{simulated}"
    )
    for text in filter(None, (telemetry.driver.message, document["slow"])):
        yield f"  {text}"
    for gpu, sample in zip(document["gpus"], telemetry.gpus, strict=True):
        state = f"{gpu['state']} {gpu.get('message') or ''}".rstrip()
        name = f"GPU{gpu['index']} {gpu.get('name', '?')}"
        if gpu.get("node"):
            name = f"{gpu['node']} {name}"
        yield f"{name}  {gpu['uuid']}  {state}"
        yield from _join_texts_into_lines(_gpu_reading_texts(sample))
        if gpu["state"] == GpuState.LIVE:
            yield from _mig_instance_lines(gpu)
            yield from _lockable_clock_lines(gpu)
        if gpu["event_reasons"]:
            yield f"  clocks limited by: {', '.join(gpu['event_reasons'])}"
        if gpu["absent"]:
            texts = (
                f"{titles} ({reason})"
                for reason, titles in reasons_with_missing_values(gpu["absent"])
            )
            yield f"  n/a: {'; '.join(texts)}"
    for one in document["altered"]:
        state = one["extra"].get("state", "")
        kept = kept_setting_suffix(state)
        if user_setting_is_left_to({"state": state}):
            kept = f", {state}"
        where = gpu_or_host_name(one["gpu_uuid"], one["gpu_index"])
        change = format_setting_change(one["setting"], one["before"], one["now"])
        yield f"altered: {where} {change}{kept} (workbench gpu revert)"
        for drift in document["drift"]:
            if (drift["gpu_uuid"], drift["setting"]) == (one["gpu_uuid"], one["setting"]):
                yield f"  {drift['text']}"
    for one in document["begun"]:
        where = gpu_or_host_name(one["gpu_uuid"], one["gpu_index"])
        change = format_setting_change(one["setting"], one["before"], one["now"])
        yield f"{one['outcome']}: {where} {change} (workbench gpu revert clears it)"


def _mig_instance_lines(gpu: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line about MIG, and one for each of its instances. Yield nothing for a GPU that is
    not divided with MIG."""
    if not gpu.get("mig"):
        return
    yield f"  MIG is on: {count_of(len(gpu['instances']), 'instance')}, each a GPU of its own for CUDA"
    for one in gpu["instances"]:
        used = gpu["instance_used_bytes"].get(one["uuid"])
        yield (
            f"    {one['index']} {one['profile']}  {_gib_text(used)} of {_gib_text(one['memory_total_bytes'])}"
            f" GiB  {one['uuid']}"
        )


def _gib_text(size_bytes: float | None) -> str:
    if size_bytes is None:
        return "n/a"
    return f"{size_bytes / 2**30:.1f}"


def _lockable_clock_lines(gpu: Mapping[str, Any]) -> Iterator[str]:
    """Yield one line with the clocks to which the GPU can be locked, as short ranges."""
    texts = []
    for kind, field in (("SM", "supported_sm_mhz"), ("memory", "supported_memory_mhz")):
        if text := format_supported_clocks(gpu.get(field) or ()):
            texts.append(f"{kind} {text}")
    yield f"  clocks to lock: {'; '.join(texts) or 'n/a (not listed)'}"


def _gpu_reading_texts(sample: GpuSample) -> Iterator[str]:
    """Yield a text for each reading that people see, such as "power 312 W", and for the memory."""
    for one in READINGS.values():
        value = getattr(sample, one.field)
        text = "n/a" if value is None else f"{value:.0f}{one.unit}"
        yield f"{one.label} {text}"
    used, total = _gib_text(sample.memory_used_bytes), _gib_text(sample.memory_total_bytes)
    yield f"memory {used} of {total} GiB"


def _join_texts_into_lines(texts: Iterable[str]) -> Iterator[str]:
    """Yield the texts in indented lines, as many in each as it has room for."""
    line = ""
    for text in texts:
        if line and len(line) + len(text) > _LINE_CHARS:
            yield line
            line = ""
        line += f"  {text}"
    yield line


@command(
    "gpu journal",
    "show what Workbench changed on the host, who changed it, and the log of changes",
    examples=("workbench gpu journal --json",),
)
async def print_journal(arguments: argparse.Namespace) -> int:
    from workbench.gpu.settings.current_values import read_core_settings
    from workbench.gpu.settings.journal import journal_path_on

    async with connect_session(arguments) as session:
        # a reading shows whether the driver was reloaded; the boot id works without GPUs
        with suppress(HostError):
            session.core.update(telemetry=await session.telemetry.get_recent_reading())
        records, log = await session.gpu.alterations.read_journal_records_and_log()
        await session.gpu.alterations.read_altered_settings()
        sysfs = "/sys"
        if any(record.entry.gpu_uuid == HOST for record in records):
            sysfs = (await read_core_settings(session.host)).sysfs
        document: dict[str, Any] = {
            "host": session.host.name,
            "journal": await journal_path_on(session.host),
            "simulated": session.state.simulated,
            "entries": [_journal_entry_json(r, sysfs) for r in records],
            "others": items_as_json(session.state.others),
            "others_problem": session.state.host.others_problem,
            "journal_recovery": session.state.host.journal_recovery,
            "log": list(log),
        }
    lines = [
        *_journal_lines(document),
        *list_changes_by_other_processes(session.state),
        *journal_recovery_lines(session.state.host.journal_recovery),
        *map(_journal_log_line, log),
    ]
    named = add_host_options_to_lines(lines, arguments)
    return print_json_or_lines(arguments.json, document, named)


def _journal_entry_json(record: Record, sysfs: str) -> dict[str, Any]:
    from workbench.model.setting_commands import shell_command_to_set

    entry, by_hand = record.entry, None
    if not record.why_lost:
        by_hand = shell_command_to_set(entry.gpu_uuid, entry.setting, entry.before, sysfs)
    return {
        **entry.as_json(),
        "owner_state": record.owner,
        "gone": record.why_lost,
        "by_hand": by_hand,
    }


def _journal_lines(document: Mapping[str, Any]) -> Iterator[str]:
    yield document["journal"]
    for entry in document["entries"]:
        yield from _journal_entry_lines(entry)
    if not document["entries"]:
        yield "this Workbench has changed no setting"


def _journal_entry_lines(entry: Mapping[str, Any]) -> Iterator[str]:
    where = "host"
    if entry["gpu_uuid"] != HOST:
        where = f"GPU{entry['gpu_index']} {entry['gpu_name']}"
    source = {
        "read": "read before the change",
        "journal": "set by Workbench before",
        "default": "the driver's default",
        "unknown": "the clock lock of another program, which cannot be read",
        "claim": f"as recorded by {entry['origin']}, who changed it first",
    }.get(entry["before_known"], entry["before_known"])
    now = format_stored_value(entry["setting"], entry["now"])
    before = format_stored_value(entry["setting"], entry["before"])
    yield f"{where}: {label_of(entry['setting'])} {now}, before: {before} ({source})"
    owner = {
        "this": "is this process",
        "alive": "is running",
        "dead": "has ended",
        "elsewhere": "is on another machine",
    }[entry["owner_state"]]
    since = format_local_time(entry["since_unix_s"])
    state = entry["state"]
    if state == PENDING:
        state = "begun"
    yield (
        f"  {state} since {since} by {entry['who']}; process {entry['owner'].get('pid')} {owner}"
    )
    if entry["gone"]:
        yield f"  no longer in force: {entry['gone']}"
    else:
        yield f"  to revert it by hand: {entry['by_hand']}"


def _journal_log_line(line: Mapping[str, Any]) -> str:
    setting, place, change = line.get("setting", ""), line.get("gpu_uuid", ""), ""
    if place == HOST:
        place = "host"
    if "now" in line:
        change = format_stored_value(setting, line["now"])
    if "before" in line:
        change = f"{format_stored_value(setting, line['before'])} -> {change}"
    words = (
        format_local_time(line.get("unix_s", 0.0)),
        line.get("who", ""),
        line.get("what", ""),
        place,
        label_of(setting),
        change,
        {True: "ok", False: "FAILED"}.get(line.get("ok", ""), ""),
        line.get("message", ""),
    )
    return "  ".join(map(str, filter(None, words)))

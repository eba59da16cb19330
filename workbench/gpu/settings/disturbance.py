"""Disturbances of a benchmark: settings that changed on the server's GPUs, and other programs that
used these GPUs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from workbench.gpu.settings.register_client import LockChange
from workbench.model.gpu import GpuProcess, Telemetry
from workbench.model.setting_commands import is_clock_lock
from workbench.model.setting_records import Alteration
from workbench.model.settings import (
    HOST,
    SETTINGS,
    Setting,
    SettingValue,
    format_setting_value,
    gpu_or_host_name,
    label_of,
)

MAX_NAMED = 4
SETTINGS_CHANGED_TEXT = "settings changed during the run"


class DisturbanceWatch:
    """Finds disturbances of a benchmark in the readings of its GPUs. Pass to `record_telemetry`
    every reading from before the load to after it. Then `describe_changes_during_run` returns what
    changed. Only programs that compute on a GPU count, not those that draw windows."""

    def __init__(self, gpus: Sequence[int]) -> None:
        self._gpus = frozenset(gpus)
        self._values: dict[str, list[str]] = {}  # of each setting, one after the other
        self._first: dict[int, dict[int, str]] = {}  # programs of each GPU by pid
        self._came: dict[int, str] = {}
        self._went: dict[int, str] = {}

    def record_telemetry(self, telemetry: Telemetry | None) -> None:
        if telemetry is None:
            return
        for setting in SETTINGS:
            if setting.of_host:
                value = setting.current_value(telemetry, HOST)
                self._record_value(setting.label, setting, value)
        for sample in telemetry.gpus:
            if sample.index in self._gpus:
                for setting in SETTINGS:
                    if setting.reading and not setting.of_host:
                        value = getattr(sample, setting.reading)
                        self._record_value(f"GPU{sample.index} {setting.label}", setting, value)
                if sample.processes is not None:
                    self._record_programs(sample.index, sample.processes)

    def _record_value(self, name: str, setting: Setting, value: SettingValue | None) -> None:
        seen = self._values.setdefault(name, [])
        text = setting.format(round(value, 1) if isinstance(value, float) else value)
        if value is not None and seen[-1:] != [text]:
            seen.append(text)

    def _record_programs(self, gpu: int, found: Sequence[GpuProcess]) -> None:
        running = {
            p.pid: f"{p.name or 'process'} ({p.pid}) on GPU{gpu}"
            for p in found
            if "compute" in p.kind
        }
        first = self._first.setdefault(gpu, running)
        self._came.update(_programs_without_pids(running, first))
        self._went.update(_programs_without_pids(first, running))

    @property
    def new_process_ids(self) -> frozenset[int]:
        return frozenset(self._came)

    @property
    def has_seen_gpu_programs(self) -> bool:
        return any(self._first.values())

    def describe_other_programs(self, ours: frozenset[int]) -> tuple[str, ...]:
        """Return a warning that names the programs, other than the server, that used the GPUs
        during the whole benchmark, or () if there were none. `ours` are the server's process ids.
        If none of them was seen on the GPUs, return (), because the server is then in a container
        and its ids differ from those that the driver reports."""
        found = {pid: name for running in self._first.values() for pid, name in running.items()}
        others = list(_programs_without_pids(found, ours | self._went.keys()).values())
        if len(others) in (0, len(found)):
            return ()
        return (f"other programs used the GPU during the whole run: {_list_some_names(others)}",)

    def describe_changes_during_run(self, ours: frozenset[int] = frozenset()) -> tuple[str, ...]:
        """Return the changes during the benchmark as texts. `ours` are the process ids of the
        server under test, whose start or end is no change."""
        settings = [
            f"{name} {_value_sequence_text(values)}"
            for name, values in self._values.items()
            if len(values) > 1
        ]
        came = list(_programs_without_pids(self._came, ours).values())
        went = list(_programs_without_pids(self._went, ours).values())
        changes = {
            SETTINGS_CHANGED_TEXT: ", ".join(settings),
            "other programs started on the GPU during the run": _list_some_names(came),
            "programs on the GPU ended during the run": _list_some_names(went),
        }
        return tuple(f"{what}: {names}" for what, names in changes.items() if names)


def _programs_without_pids(programs: Mapping[int, str], pids: Collection[int]) -> dict[int, str]:
    return {pid: name for pid, name in programs.items() if pid not in pids}


def add_setters_to_reasons(
    reasons: Sequence[str], claimed: Sequence[Alteration], gpus: Collection[int]
) -> tuple[str, ...]:
    """Return `reasons`, the texts why a result is invalid. The text that settings changed gets the
    names of the users who changed them. `claimed` are the settings that other users have set during
    the run; only those of the host and of `gpus` are named."""
    setters = [
        f"{gpu_or_host_name(one.gpu_uuid, one.gpu_index)} {label_of(one.setting)} set by {one.by}"
        for one in claimed
        if one.gpu_uuid == HOST or one.gpu_index in gpus
    ]
    if not setters:
        return tuple(reasons)
    by = f" ({', '.join(setters)})"
    return tuple(f"{why}{by}" if why.startswith(SETTINGS_CHANGED_TEXT) else why for why in reasons)


def lock_change_texts(
    before: Sequence[Alteration],
    after: Sequence[Alteration],
    gpus: Sequence[int],
    meanwhile: Collection[LockChange] = (),
) -> tuple[str, ...]:
    """Return texts about the clock locks that changed during a run. The driver cannot report a
    lock, so the locks are taken from the alterations `before` and `after` the run, and from the
    changes that other users made `meanwhile`."""
    was, now = _lock_texts_by_setting(before, gpus), _lock_texts_by_setting(after, gpus)
    changed = []
    for key in sorted({*was, *now}):
        if was.get(key) != now.get(key):
            values = _value_sequence_text([was.get(key, "none"), now.get(key, "none")])
            changed.append(f"GPU{key[0]} {label_of(key[1])} {values}")
    changed += sorted(
        {
            f"GPU{one.gpu_index} {label_of(one.setting)} set and reverted by {one.by}"
            for one in meanwhile
            if one.gpu_index in gpus and was.get(one[:2]) == now.get(one[:2])
        }
    )
    if not changed:
        return ()
    return (f"{SETTINGS_CHANGED_TEXT}: {', '.join(changed)}",)


def _lock_texts_by_setting(
    alterations: Sequence[Alteration], gpus: Sequence[int]
) -> dict[tuple[int, str], str]:
    return {
        (one.gpu_index, one.setting): format_setting_value(one.setting, one.now)
        for one in alterations
        if one.gpu_index in gpus and is_clock_lock(one.setting)
    }


def _value_sequence_text(values: Sequence[str]) -> str:
    unit = " W" if all(v.endswith(" W") for v in values) else ""
    return " -> ".join(v.removesuffix(unit) for v in values) + unit


def _list_some_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return ", ".join(names[:MAX_NAMED]) + more

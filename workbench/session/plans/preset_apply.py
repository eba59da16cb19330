"""A preset applied as a whole: its launch, GPU settings, CPU settings, file limit and warm-up,
after one confirmation.

The server is started first, and the settings are changed when the server is READY: a start that
fails has changed nothing else. If one of the GPU and CPU settings cannot be applied, all of them
are reverted and the server is stopped again. A setting that somebody else has changed since the
confirmation is left alone."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from workbench.bench.workload import random_words_prompt
from workbench.model.counts import count_of
from workbench.model.errors import InputError, PlanError, SettingsError, WorkbenchError
from workbench.model.interrupted import Interrupted
from workbench.model.lazy_dataclass import dataclass
from workbench.model.secrets import mask_command
from workbench.model.server_run import ServerState, ServerStatus
from workbench.model.setting_commands import value_equals
from workbench.model.settings import HOST, GpuSettings, label_of, setting_of, stored_text
from workbench.server.file_limit import (
    FileLimit,
    can_open_files,
    format_file_limit,
    read_host_file_limit,
    read_process_file_limit,
)
from workbench.session.plans.preset_process_parts import (
    FILES_PART,
    WARM_UP_PART,
    file_limit_problem,
    note_warm_up,
)
from workbench.session.state import APPLYING_PRESET

if TYPE_CHECKING:
    from workbench.model.preset import Preset, WarmUp
    from workbench.model.setting_records import SettingOutcome, SettingsReport
    from workbench.session.session import Session


@dataclass(frozen=True, slots=True)
class PresetPart:
    """One part of a preset. `before` and `after` are the part's values before and after the preset
    is applied. `problem` is the reason why the part cannot be applied or was not applied; "" if
    there is none."""

    name: str  # "server", "GPU0 power limit", "CPU C-states", "open files", "warm-up"
    before: str
    after: str
    command: str = ""  # as the user would enter it in a shell
    problem: str = ""

    @property
    def text(self) -> str:
        return f"{self.name}: {self.change_text}"

    @property
    def change_text(self) -> str:
        if self.before == self.after:
            return f"already {self.after}"
        return f"{self.before} -> {self.after}" if self.before else self.after


@dataclass(frozen=True, slots=True)
class WholePreset:
    """Everything that applying the loaded preset changes. `settings` has the preset's GPU settings
    that this host supports, by GPU (index, UUID or "all")."""

    preset_id: str
    parts: tuple[PresetPart, ...]
    settings: Mapping[str, GpuSettings]
    outcomes: tuple[SettingOutcome, ...] = ()  # of a dry run of `settings`

    @property
    def missing_right(self) -> str | None:
        """Return the right that the preset's settings need and the user lacks; None if there is
        none."""
        return next((o.command.right for o in self.outcomes if o.command.right), None)

    @property
    def inapplicable_parts(self) -> tuple[PresetPart, ...]:
        """Return the parts of the preset that cannot be applied on this host."""
        return tuple(part for part in self.parts if part.problem)


@dataclass(frozen=True, slots=True)
class AppliedPreset:
    """The outcome of applying a preset. `run_id` is the server that runs now, None if none does."""

    preset_id: str
    run_id: str | None
    status: ServerStatus
    parts: tuple[PresetPart, ...]
    settings: SettingsReport | None = None

    @property
    def parts_not_applied(self) -> tuple[str, ...]:
        """Return as text the parts of the preset that were not applied, with the reason of each."""
        return tuple(f"{part.text} ({part.problem})" for part in self.parts if part.problem)


@dataclass(slots=True)
class _ApplyProgress:
    """How far the application of a preset has come: the server that it has started, and what became
    of the settings."""

    run_id: str | None = None
    settings: str = "no setting was changed"


class PresetApply:
    """Applies everything that the preset of the plan under edit contains: `look_at_preset` says what will
    change, `apply_preset` changes it."""

    def __init__(self, session: Session) -> None:
        self._core, self._presets, self._plans = session.core, session.presets, session.plans
        self._servers, self._gpu, self._load = session.servers, session.gpu, session.load

    def _preset_of_plan(self) -> Preset:
        preset_id = self._plans.editor.plan.preset_id
        if preset_id is None:
            raise PlanError(
                "the plan does not come from a preset", next_step="press p to pick a preset"
            )
        return self._presets.get(preset_id)

    async def look_at_preset(self) -> WholePreset:
        """Return all that applying the preset will change, in the order of the changes. Nothing is
        changed. Raises PlanError or NotTrusted if the plan cannot be started."""
        preset, editor = self._preset_of_plan(), self._plans.editor
        self._servers.check_startable(editor.effective_plan, editor)
        server = self._core.state.server
        running = (
            f"{server.run_id}, which is stopped first"
            if server is not None and server.alive
            else "not running"
        )
        command = mask_command(editor.launch_command()).shell()
        parts = [
            PresetPart(
                "server",
                running,
                f"{editor.engine.title} with {editor.effective_plan.model}",
                command,
            )
        ]
        if (files := editor.effective_plan.open_files) is not None:
            host = self._core.host
            parts.append(
                _files_part(
                    files, await read_host_file_limit(host), await can_open_files(host, files)
                )
            )
        settings, lacking = await self._settings_here(preset)
        outcomes: tuple[SettingOutcome, ...] = ()
        if settings:
            outcomes = (await self._gpu.apply_settings_by_gpu(settings, dry_run=True)).outcomes
        parts += [_setting_part(outcome) for outcome in outcomes] + lacking
        parts += [_warm_up_part(preset.warm_up)] if preset.warm_up else []
        return WholePreset(preset.id, tuple(parts), settings, outcomes)

    async def _settings_here(
        self, preset: Preset
    ) -> tuple[dict[str, GpuSettings], list[PresetPart]]:
        """Return the settings of the preset that can be set on this host, by GPU, and one part with
        the reason for each setting that cannot."""
        found: dict[str, GpuSettings] = {}
        lacking: list[PresetPart] = []
        for gpu, settings, _ in self._plans.preset_gpu_settings(preset.id):
            for key, value in settings.items():
                one = GpuSettings({key: value})
                try:
                    await self._gpu.plan_changes_by_gpu({gpu: one})
                except (InputError, SettingsError) as error:
                    lacking.append(_lacking_part(gpu, key, value, error))
                else:
                    found[gpu] = GpuSettings({**found.get(gpu, {}), **one})
        return found, lacking

    async def apply_preset(
        self,
        whole: WholePreset,
        *,
        password: str | None = None,
        timeout_s: float | None = None,
        on_step: Callable[[str], None] = lambda text: None,
    ) -> AppliedPreset:
        """Start the server, wait until it is READY, apply the settings, and warm the server up.
        `on_step` is called with a text before each step. Raises ServerError if the server cannot be
        started.

        If the server does not become READY, no setting is changed. If a setting cannot be applied,
        all of them are reverted, and the server is stopped. If the caller is cancelled, settings that
        are being applied are reverted, the server runs on, and Interrupted says so.
        """
        await self._check_rights(whole, password)
        progress = _ApplyProgress()
        try:
            with self._core.show_busy(APPLYING_PRESET):
                return await self._apply_parts(whole, password, timeout_s, on_step, progress)
        except asyncio.CancelledError as cut:
            raise Interrupted(_left_after_interruption(progress, cut)) from None

    async def _apply_parts(
        self,
        whole: WholePreset,
        password: str | None,
        timeout_s: float | None,
        on_step: Callable[[str], None],
        progress: _ApplyProgress,
    ) -> AppliedPreset:
        on_step("starting the server")
        run_id = progress.run_id = await self._servers.start()
        status = await self._servers.wait_ready(run_id, timeout_s)
        if status.state is not ServerState.READY:
            why = f"the server is {status.state}, not READY"
            rest = [replace(part, problem=part.problem or why) for part in whole.parts]
            return AppliedPreset(whole.preset_id, None, status, tuple(rest))
        report = None
        if whole.settings:
            on_step("applying the settings")
            progress.settings = "the guard reverts those settings that were changed"
            whole, report = await self._apply_settings(whole, run_id, password)
            if not report.ok:
                return await self._applied_until_stop(whole, run_id, report)
            progress.settings = "the settings stay in force until `workbench gpu revert`"
        parts = [
            await self._check_file_limit(part, status) for part in _add_problems(whole, report)
        ]
        if (warm_up := self._preset_of_plan().warm_up) is not None:
            on_step(f"warming up: {count_of(warm_up.requests, 'request')} of varying length")
            problem = await self._warm_up_server(run_id, warm_up)
            parts = [replace(p, problem=problem) if p.name == WARM_UP_PART else p for p in parts]
            self._plans.show_missing_parts(
                status.preset_id, await self._servers.missing_of_preset(status)
            )
        return AppliedPreset(whole.preset_id, run_id, status, tuple(parts), report)

    async def _check_rights(self, whole: WholePreset, password: str | None) -> None:
        """Raise SettingsError if a setting needs a right that the user lacks, before anything is
        changed."""
        right = whole.missing_right
        if right is not None and password is not None:
            commands = await self._gpu.plan_changes_by_gpu(
                whole.settings, await self._gpu.rights.with_password(password)
            )
            right = next((command.right for command in commands if command.right), None)
        if right is not None:
            parts = ", ".join(
                part.name for part in whole.parts if part.problem == whole.missing_right
            )
            raise SettingsError(
                f"{parts}: {right}; nothing was changed",
                host=self._core.host.name,
                next_step="obtain that right, or start the server without the settings: workbench "
                "start "
                f"{whole.preset_id}",
            )

    async def _drop_foreign_settings(self, whole: WholePreset) -> WholePreset:
        """Return the preset without the settings that somebody else has changed since `look_at_preset` showed
        them, because the user has not agreed to overwrite these values. The parts of these settings
        have the reason in `problem`."""
        now = {
            _setting_key(o): o
            for o in (await self._gpu.apply_settings_by_gpu(whole.settings, dry_run=True)).outcomes
        }
        kept: dict[str, GpuSettings] = {}
        foreign: dict[str, str] = {}
        for outcome in whole.outcomes:
            one, found = outcome.command, now.get(_setting_key(outcome))
            for selector, wanted in whole.settings.items():
                if one.setting not in wanted or not _selector_matches(outcome, selector):
                    continue
                known = (outcome.before, wanted[one.setting])
                if found is None or any(
                    value_equals(one.setting, found.before, value) for value in known
                ):
                    gpu = "all" if one.gpu_uuid == HOST else one.gpu_uuid
                    kept[gpu] = GpuSettings({**kept.get(gpu, {}), one.setting: wanted[one.setting]})
                else:
                    foreign[_setting_part(outcome).name] = _foreign_text(found)
        parts = [
            replace(part, problem=foreign.get(part.name, part.problem)) for part in whole.parts
        ]
        return replace(whole, parts=tuple(parts), settings=kept)

    async def _apply_settings(
        self, whole: WholePreset, run_id: str, password: str | None
    ) -> tuple[WholePreset, SettingsReport]:
        """Apply the settings, except those that somebody else has changed since `look_at_preset` showed them.
        Return the preset with the applied settings, and the report. Raises WorkbenchError after
        stopping the server if the settings cannot be applied."""
        try:
            whole = await self._drop_foreign_settings(whole)
            return whole, await self._gpu.apply_settings_by_gpu(whole.settings, password=password)
        except WorkbenchError as error:
            await self._servers.stop(run_id)
            error.message += f"; the server {run_id} was stopped again"
            raise

    async def _applied_until_stop(
        self, whole: WholePreset, run_id: str, report: SettingsReport
    ) -> AppliedPreset:
        await self._servers.stop(run_id)
        why = "stopped again, because the settings could not be applied"
        parts = [
            replace(part, problem=part.problem or why)
            if part.name in ("server", FILES_PART, WARM_UP_PART)
            else part
            for part in _add_problems(whole, report)
        ]
        return AppliedPreset(
            whole.preset_id, None, self._servers.supervisor.status(run_id), tuple(parts), report
        )

    async def _check_file_limit(self, part: PresetPart, status: ServerStatus) -> PresetPart:
        """Return `part`, the limit of open files, with the problem if the server's process has a
        limit that is too low. A part about anything else is returned unchanged."""
        if part.name != FILES_PART or status.pid is None:
            return part
        wanted = self._plans.editor.effective_plan.open_files or 0
        limit = await read_process_file_limit(self._core.host, status.pid)
        return replace(part, problem=file_limit_problem(wanted, limit))

    async def _warm_up_server(self, run_id: str, warm_up: WarmUp) -> str:
        """Send the requests of the warm-up, one at a time. Return why the warm-up failed; "" if
        every request was answered."""
        from workbench.bench import runner

        try:
            async with self._load.load_at_run(run_id, {}) as load:
                spec = replace(
                    load.spec,
                    prompts=tuple(_warm_up_prompts(warm_up)),
                    requests=warm_up.requests,
                    concurrency=1,
                    max_tokens=warm_up.max_tokens,
                    warmup=0,
                    until_steady=False,
                    rate=None,
                    seconds=None,
                    command=(),
                )
                outcome = await runner.run_load(spec, env=load.env, cancel=load.cancel)
        except WorkbenchError as error:
            return error.message
        failed = outcome.summary.requests_failed
        errors = ", ".join(f"{count} {kind}" for kind, count in outcome.summary.errors.items())
        self._core.record_command(
            f"# warm-up of {run_id}",
            f"{outcome.summary.requests_ok} of {warm_up.requests} requests ok",
        )
        await note_warm_up(self._core.host, await self._run_dir(run_id), warm_up.requests, failed)
        return (
            (f"{failed} of {count_of(warm_up.requests, 'request')} failed: {errors}")
            if failed
            else ""
        )

    async def _run_dir(self, run_id: str) -> str:
        return f"{await self._servers.supervisor.runs_dir()}/{run_id}"


# -- parts -----------------------------------------------------------------------------------------


def _files_part(wanted: int, limit: FileLimit | None, possible: bool) -> PresetPart:
    if limit is None:
        return PresetPart(FILES_PART, "not known", f"at least {wanted:,}")
    may_not = f"the hard limit is {format_file_limit(limit.hard)}, and this user may not raise it"
    problem = "" if possible or limit.hard >= wanted else may_not
    return PresetPart(
        FILES_PART,
        format_file_limit(limit.soft),
        format_file_limit(max(limit.soft, wanted)),
        "",
        problem,
    )


def _setting_part(outcome: SettingOutcome) -> PresetPart:
    one = outcome.command
    name = _setting_name(one.where if one.gpu_index >= 0 else "", one.setting)
    texts = [stored_text(one.setting, value) for value in (outcome.before, outcome.requested)]
    return PresetPart(name, texts[0], texts[1], one.shell_line, one.right or "")


def _setting_key(outcome: SettingOutcome) -> tuple[str, str]:
    return outcome.command.gpu_uuid, outcome.command.setting


def _selector_matches(outcome: SettingOutcome, selector: str) -> bool:
    """Return whether `selector` ("all", a GPU's index or its UUID) includes the GPU of the setting
    `outcome`. A setting of the host, not of a GPU, belongs to every selector."""
    one = outcome.command
    return one.gpu_uuid == HOST or selector in ("all", str(one.gpu_index), one.gpu_uuid)


def _foreign_text(found: SettingOutcome) -> str:
    """Return the text that a setting is left alone, because somebody changed it after the user had
    confirmed the preset. `found` is the setting's outcome in a dry run."""
    value, note = stored_text(found.command.setting, found.before), found.command.note
    return (
        f"left alone: changed to {value} after you had "
        f"confirmed{f' ({note})' if note else ''}; apply it again"
    )


def _lacking_part(gpu: str, key: str, value: Any, error: WorkbenchError) -> PresetPart:
    where = "each GPU" if gpu == "all" else f"GPU{gpu}"
    if setting_of(key).of_host:
        where = ""
    return PresetPart(_setting_name(where, key), "", stored_text(key, value), "", error.message)


def _setting_name(where: str, key: str) -> str:
    return f"{where} {label_of(key)}".strip()


def _warm_up_part(warm_up: WarmUp) -> PresetPart:
    low, high = warm_up.input_tokens
    what = (
        f"{count_of(warm_up.requests, 'request')} of about {low} to {high} tokens, "
        f"{warm_up.max_tokens} out"
    )
    return PresetPart(WARM_UP_PART, "", what)


def _add_problems(whole: WholePreset, report: SettingsReport | None) -> list[PresetPart]:
    """Return the parts of `whole`. Each part whose setting was not applied, according to `report`,
    has the reason in `problem`."""
    if report is None:
        return list(whole.parts)
    failed = {
        _setting_part(o).name: o.message or "not applied" for o in report.outcomes if not o.ok
    }
    return [replace(part, problem=failed.get(part.name, part.problem)) for part in whole.parts]


def _left_after_interruption(progress: _ApplyProgress, cut: asyncio.CancelledError) -> str:
    """Return what an interrupted application of a preset has left."""
    if progress.run_id is None:
        return "no setting was changed; `workbench servers` shows whether the server was started"
    settings = cut.left if isinstance(cut, Interrupted) else progress.settings
    runs_on = f"the server {progress.run_id} runs on until `workbench stop {progress.run_id}`"
    return f"{settings}; {runs_on}"


# -- the warm-up -----------------------------------------------------------------------------------


def _warm_up_prompts(warm_up: WarmUp) -> Sequence[str]:
    """Return the prompts of a preset's warm-up, as JSON texts. Their lengths rise evenly between
    the two numbers of tokens in `warm_up`."""
    low, high = warm_up.input_tokens
    steps = max(1, warm_up.requests - 1)
    source = random.Random(warm_up.requests)
    lengths = [low + round((high - low) * index / steps) for index in range(warm_up.requests)]
    return [json.dumps(random_words_prompt(source, length)) for length in lengths]

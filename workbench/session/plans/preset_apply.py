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
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from workbench.bench.workload import random_words_prompt
from workbench.model.counts import count_of
from workbench.model.errors import InputError, PlanError, SettingsError, WorkbenchError
from workbench.model.interrupted import Interrupted
from workbench.model.lazy_dataclass import dataclass
from workbench.model.secrets import mask_command
from workbench.model.server_run import ServerState, ServerStatus
from workbench.model.setting_commands import value_equals
from workbench.model.settings import HOST, GpuSettings, format_stored_value, label_of, setting_of
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
    record_warm_up,
)
from workbench.session.state import APPLYING_PRESET

if TYPE_CHECKING:
    from collections.abc import Iterable

    from workbench.model.preset import Preset, WarmUp
    from workbench.model.setting_records import (
        SettingCommand,
        SettingOutcome,
        SettingsReport,
    )
    from workbench.model.settings import SettingValue
    from workbench.session.plans.plan_editor import PlanEditor
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
class PresetPreview:
    """What applying the loaded preset would change. `settings` has the preset's GPU and CPU
    settings that this host supports, by GPU (index, UUID or "all")."""

    preset_id: str
    parts: tuple[PresetPart, ...]
    settings: Mapping[str, GpuSettings]
    outcomes: tuple[SettingOutcome, ...] = ()  # of a dry run of `settings`

    @property
    def first_missing_right(self) -> str | None:
        """The first right that the preset's settings need and the user lacks; None if there is
        none."""
        return _first_missing_right(outcome.command for outcome in self.outcomes)

    @property
    def inapplicable_parts(self) -> tuple[PresetPart, ...]:
        """The parts of the preset that cannot be applied on this host."""
        return tuple(part for part in self.parts if part.problem)

    def has_part(self, name: str) -> bool:
        return name in [part.name for part in self.parts]

    def parts_with_added_problems(self, problems: Mapping[str, str]) -> tuple[PresetPart, ...]:
        """Return all parts of the preset. A part that `problems` (part name -> problem) names gets
        that problem; the others keep theirs."""
        found = []
        for part in self.parts:
            found.append(replace(part, problem=problems.get(part.name, part.problem)))
        return tuple(found)


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
        """The parts of the preset that were not applied, as texts with the reason of each."""
        return tuple(f"{part.text} ({part.problem})" for part in self.parts if part.problem)


@dataclass(slots=True)
class _ApplyProgress:
    """How far the application of a preset has come: the server that it has started, and what became
    of the settings."""

    run_id: str | None = None
    settings: str = "no setting was changed"


class PresetApply:
    """Applies everything that the preset of the plan under edit contains: `preview_preset` says
    what will change, `apply_preset` changes it."""

    def __init__(self, session: Session) -> None:
        self._core, self._presets, self._plans = session.core, session.presets, session.plans
        self._servers, self._gpu, self._load = session.servers, session.gpu, session.server_load

    def _preset_of_plan(self) -> Preset:
        preset_id = self._plans.editor.plan.preset_id
        if preset_id is None:
            raise PlanError(
                "the plan does not come from a preset", next_step="press p to pick a preset"
            )
        return self._presets.get(preset_id)

    async def preview_preset(self) -> PresetPreview:
        """Return all that applying the preset will change, in the order of the changes. Nothing is
        changed. Raises PlanError or NotTrusted if the plan cannot be started."""
        preset, editor = self._preset_of_plan(), self._plans.editor
        self._servers.require_startable_plan(editor.effective_plan, editor)
        parts = [self._server_part(editor)]
        if (files := editor.effective_plan.open_files) is not None:
            host = self._core.host
            limit = await read_host_file_limit(host)
            parts.append(_file_limit_part(files, limit, await can_open_files(host, files)))
        settings, lacking = await self._supported_settings_and_unsupported_parts(preset)
        outcomes: tuple[SettingOutcome, ...] = ()
        if settings:
            outcomes = (await self._gpu.apply_settings_by_gpu(settings, dry_run=True)).outcomes
        parts += [*map(_setting_part, outcomes), *lacking]
        if preset.warm_up:
            parts.append(_warm_up_part(preset.warm_up))
        return PresetPreview(preset.id, tuple(parts), settings, outcomes)

    def _server_part(self, editor: PlanEditor) -> PresetPart:
        server = self._core.state.server
        before = "not running"
        if server is not None and server.alive:
            before = f"{server.run_id}, which is stopped first"
        after = f"{editor.engine.title} with {editor.effective_plan.model}"
        command = mask_command(editor.launch_command()).shell_line
        return PresetPart("server", before, after, command)

    async def _supported_settings_and_unsupported_parts(
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
                    lacking.append(_unsupported_setting_part(gpu, key, value, error))
                else:
                    found[gpu] = GpuSettings({**found.get(gpu, {}), **one})
        return found, lacking

    async def apply_preset(
        self,
        preview: PresetPreview,
        *,
        password: str | None = None,
        timeout_s: float | None = None,
        on_step: Callable[[str], None] = lambda text: None,
    ) -> AppliedPreset:
        """Start the server, wait until it is READY, apply the settings, and warm the server up.
        `on_step` is called with a text before each step, and `password` is for sudo. If the server
        does not become READY within `timeout_s` seconds (None: without limit), no setting is
        changed. If a setting cannot be applied, all of them are reverted, and the server is
        stopped. Raises ServerError if the server cannot be started. If the caller is cancelled,
        settings that are being applied are reverted, the server runs on, and Interrupted is
        raised."""
        await self._check_rights(preview, password)
        progress = _ApplyProgress()
        try:
            with self._core.show_as_busy(APPLYING_PRESET):
                return await self._apply_parts(preview, password, timeout_s, on_step, progress)
        except asyncio.CancelledError as cut:
            raise Interrupted(_interruption_text(progress, cut)) from None

    async def _apply_parts(
        self,
        preview: PresetPreview,
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
            rest = [replace(part, problem=part.problem or why) for part in preview.parts]
            return AppliedPreset(preview.preset_id, None, status, tuple(rest))
        report = None
        if preview.settings:
            on_step("applying the settings")
            progress.settings = "the guard reverts those settings that were changed"
            preview, report = await self._apply_settings(preview, run_id, password)
            if not report.ok:
                return await self._stop_after_failed_settings(preview, run_id, report)
            progress.settings = "the settings stay in force until `workbench gpu revert`"
        problems = _problems_by_setting_part_name(report)
        if preview.has_part(FILES_PART) and status.pid is not None:
            problems[FILES_PART] = await self._file_limit_problem(status.pid)
        if (warm_up := self._preset_of_plan().warm_up) is not None:
            on_step(f"warming up: {count_of(warm_up.requests, 'request')} of varying length")
            problems[WARM_UP_PART] = await self._warm_up_and_return_problem(run_id, warm_up)
            self._plans.show_unapplied_preset_parts(
                status.preset_id, await self._servers.process_parts_missing_from_preset(status)
            )
        parts = preview.parts_with_added_problems(problems)
        return AppliedPreset(preview.preset_id, run_id, status, parts, report)

    async def _check_rights(self, preview: PresetPreview, password: str | None) -> None:
        """Raise SettingsError if a setting needs a right that the user lacks, before anything is
        changed."""
        right = preview.first_missing_right
        if right is not None and password is not None:
            commands = await self._gpu.plan_changes_by_gpu(
                preview.settings, await self._gpu.rights.load_rights_with_password(password)
            )
            right = _first_missing_right(commands)
        if right is not None:
            names = [
                part.name for part in preview.parts if part.problem == preview.first_missing_right
            ]
            raise SettingsError(
                f"{', '.join(names)}: {right}; nothing was changed",
                host=self._core.host.name,
                next_step="obtain that right, or start the server without the settings: workbench "
                "start "
                f"{preview.preset_id}",
            )

    async def _drop_settings_changed_by_others(self, preview: PresetPreview) -> PresetPreview:
        """Return the preview without the settings that somebody else has changed since
        `preview_preset` showed them, because the user has not agreed to overwrite these values. The
        parts of these settings have the reason in `problem`."""
        dry_run = await self._gpu.apply_settings_by_gpu(preview.settings, dry_run=True)
        present = {_GPU_AND_SETTING(outcome): outcome for outcome in dry_run.outcomes}
        kept: dict[str, GpuSettings] = {}
        foreign: dict[str, str] = {}
        for outcome in preview.outcomes:
            command, now = outcome.command, present.get(_GPU_AND_SETTING(outcome))
            for selector, wanted in preview.settings.items():
                if command.setting not in wanted or not _does_selector_match(outcome, selector):
                    continue
                value = wanted[command.setting]
                if now is None or _is_present_value_in(now, (outcome.before, value)):
                    gpu = "all" if command.gpu_uuid == HOST else command.gpu_uuid
                    kept[gpu] = GpuSettings({**kept.get(gpu, {}), command.setting: value})
                else:
                    foreign[_setting_part(outcome).name] = _changed_by_others_text(now)
        return replace(preview, parts=preview.parts_with_added_problems(foreign), settings=kept)

    async def _apply_settings(
        self, preview: PresetPreview, run_id: str, password: str | None
    ) -> tuple[PresetPreview, SettingsReport]:
        """Apply the settings, except those that somebody else has changed since `preview_preset`
        showed them. Return the preview with the settings that were tried, and the report. If the
        change is refused, stop the server and raise the WorkbenchError."""
        try:
            preview = await self._drop_settings_changed_by_others(preview)
            return preview, await self._gpu.apply_settings_by_gpu(
                preview.settings, password=password
            )
        except WorkbenchError as error:
            await self._servers.stop(run_id)
            error.message += f"; the server {run_id} was stopped again"
            raise

    async def _stop_after_failed_settings(
        self, preview: PresetPreview, run_id: str, report: SettingsReport
    ) -> AppliedPreset:
        await self._servers.stop(run_id)
        why = "stopped again, because the settings could not be applied"
        problems = _problems_by_setting_part_name(report)
        for part in preview.parts:
            if part.name in ("server", FILES_PART, WARM_UP_PART):
                problems[part.name] = part.problem or why
        status = self._servers.supervisor.status(run_id)
        parts = preview.parts_with_added_problems(problems)
        return AppliedPreset(preview.preset_id, None, status, parts, report)

    async def _file_limit_problem(self, pid: int) -> str:
        """Return why the limit of open files of the server's process is too low; "" if it is
        not."""
        wanted = self._plans.editor.effective_plan.open_files or 0
        return file_limit_problem(wanted, await read_process_file_limit(self._core.host, pid))

    async def _warm_up_and_return_problem(self, run_id: str, warm_up: WarmUp) -> str:
        """Send the requests of the warm-up, one at a time. Return why the warm-up failed; "" if
        every request was answered."""
        from workbench.bench import runner

        try:
            async with self._load.open_load_on_run(run_id, {}) as load:
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
        await record_warm_up(self._core.host, await self._run_dir(run_id), warm_up.requests, failed)
        if not failed:
            return ""
        return f"{failed} of {count_of(warm_up.requests, 'request')} failed: {errors}"

    async def _run_dir(self, run_id: str) -> str:
        return f"{await self._servers.supervisor.runs_dir()}/{run_id}"


# -- parts -----------------------------------------------------------------------------------------


def _file_limit_part(wanted: int, limit: FileLimit | None, possible: bool) -> PresetPart:
    if limit is None:
        return PresetPart(FILES_PART, "not known", f"at least {wanted:,}")
    part = PresetPart(
        FILES_PART, format_file_limit(limit.soft), format_file_limit(max(limit.soft, wanted))
    )
    if possible or limit.hard >= wanted:
        return part
    problem = f"the hard limit is {format_file_limit(limit.hard)}, and this user may not raise it"
    return replace(part, problem=problem)


def _first_missing_right(commands: Iterable[SettingCommand]) -> str | None:
    return next(filter(None, map(attrgetter("right"), commands)), None)


def _setting_part(outcome: SettingOutcome) -> PresetPart:
    command, setting = outcome.command, outcome.command.setting
    name = _setting_part_name(command.gpu_or_host_name if command.gpu_index >= 0 else "", setting)
    before = format_stored_value(setting, outcome.before)
    after = format_stored_value(setting, outcome.requested)
    return PresetPart(name, before, after, command.shell_line, command.right or "")


_GPU_AND_SETTING = attrgetter("command.gpu_uuid", "command.setting")  # of an outcome


def _is_present_value_in(found: SettingOutcome, values: Iterable[SettingValue | None]) -> bool:
    """Return whether `values` contains the present value of a setting. `found` is the setting's
    outcome in a dry run, whose `before` is that value."""
    setting = found.command.setting
    return any(value_equals(setting, found.before, value) for value in values)


def _does_selector_match(outcome: SettingOutcome, selector: str) -> bool:
    """Return whether `selector` ("all", a GPU's index or its UUID) includes the GPU of the setting
    `outcome`. A setting of the host, not of a GPU, belongs to every selector."""
    command = outcome.command
    if command.gpu_uuid == HOST:
        return True
    return selector in ("all", str(command.gpu_index), command.gpu_uuid)


def _changed_by_others_text(found: SettingOutcome) -> str:
    """Return the sentence that a setting is left alone, because somebody changed it after the user
    had confirmed the preset. `found`, its outcome in a dry run, has the present value."""
    value = format_stored_value(found.command.setting, found.before)
    note = f" ({found.command.note})" if found.command.note else ""
    return f"left alone: changed to {value} after you had confirmed{note}; apply it again"


def _unsupported_setting_part(gpu: str, key: str, value: Any, error: WorkbenchError) -> PresetPart:
    where = f"GPU{gpu}"
    if setting_of(key).of_host:
        where = ""
    elif gpu == "all":
        where = "each GPU"
    return PresetPart(
        _setting_part_name(where, key), "", format_stored_value(key, value), "", error.message
    )


def _setting_part_name(gpu_or_host_name: str, key: str) -> str:
    return f"{gpu_or_host_name} {label_of(key)}".strip()


def _warm_up_part(warm_up: WarmUp) -> PresetPart:
    low, high = warm_up.input_tokens
    what = (
        f"{count_of(warm_up.requests, 'request')} of about {low} to {high} tokens, "
        f"{warm_up.max_tokens} out"
    )
    return PresetPart(WARM_UP_PART, "", what)


def _problems_by_setting_part_name(report: SettingsReport | None) -> dict[str, str]:
    """Return {part name: why the setting was not applied} of the settings that failed. {} without a
    report."""
    problems = {}
    if report is not None:
        for outcome in report.outcomes:
            if not outcome.ok:
                problems[_setting_part(outcome).name] = outcome.message or "not applied"
    return problems


def _interruption_text(progress: _ApplyProgress, cut: asyncio.CancelledError) -> str:
    """Return as text what an interrupted application of a preset has left: settings and a
    server."""
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

"""Presets and the plan under edit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.model.errors import PlanError, StoreError, WorkbenchError
from workbench.model.findings import Finding, Level
from workbench.session.core import SessionCore
from workbench.session.state import PlanView, PresetEntry

if TYPE_CHECKING:
    from workbench.model.flags import FlagRow
    from workbench.model.gpu import GpuInfo
    from workbench.model.plan import LaunchPlan, PlanChange
    from workbench.model.preset import Preset, Variable
    from workbench.session.editor import PlanEditor
    from workbench.session.variables import Known
    from workbench.store.config import ConfigStore
    from workbench.store.presets import PresetLibrary


EXECUTABLE = "executable"


class Planning(SessionCore):
    """Quick: nothing here asks the host but the look for the installed engine, which runs in the background."""

    _library: PresetLibrary | None = None
    _config: ConfigStore | None = None
    _editor: PlanEditor | None = None

    @property
    def library(self) -> PresetLibrary:
        from workbench.store.presets import PresetLibrary

        self._library = self._library or PresetLibrary()
        return self._library

    @property
    def config(self) -> ConfigStore:
        from workbench.store.config import ConfigStore

        self._config = self._config or ConfigStore()
        return self._config

    @property
    def editor(self) -> PlanEditor:
        if self._editor is None:
            raise PlanError("no plan is loaded", next_step="p picks a preset")
        return self._editor

    # ---- presets

    def list_presets(self) -> None:
        """Read the library again into the state."""
        entries = self.library.list()
        infos = self.state.telemetry.infos if self.state.telemetry else ()
        rows = [
            PresetEntry(
                id=entry.id,
                title=entry.title or entry.id,
                engine=entry.engine,
                hardware=entry.hardware,
                status=entry.status,
                own=entry.origin == "own",
                path=entry.path,
                summary=entry.summary,
                problem=entry.error.text if entry.error else None,
                baseline=entry.baseline,
                caveats=entry.caveats,
                fits=_fits(entry.gpu_names, entry.gpu_count, infos),
            )
            for entry in entries
        ]
        problem = next((f.text for f in self.library.findings() if f.level is Level.ERROR), None)
        self.update(presets=tuple(rows), presets_problem=problem if not rows else None, presets_read=True)

    def preset(self, preset_id: str) -> Preset:
        """By id, or by the path of a file."""
        return self.library.load(Path(preset_id)) if _is_file(preset_id) else self.library.get(preset_id)

    def _known_variables(self, preset: Preset, given: Mapping[str, str] | None = None) -> Known:
        from workbench.session.variables import known_variables

        return known_variables(preset, self.host, self.config.remembered(self.host.name, preset.id), given)

    def missing_variables(self, preset_id: str) -> Mapping[str, Variable]:
        preset = self.preset(preset_id)
        known = self._known_variables(preset)
        return {n: v for n, v in preset.variables.items() if n not in known}

    def plan_of(self, preset_id: str, variables: Mapping[str, str] | None = None) -> LaunchPlan:
        from workbench import engines

        preset = self.preset(preset_id)
        known = self._known_variables(preset, variables)
        values = {name: value for name, (value, _) in known.items()}
        plan = engines.plan_from_preset(preset, values, {name: source for name, (_, source) in known.items()})
        path = Path(preset_id) if _is_file(preset_id) else self.library.path(preset_id)
        plan = replace(plan, stranger=not self.library.is_shipped(path))
        own = self.config.executable(self.host.name, plan.engine)
        return engines.with_executable(plan, own, "config.toml") if own and not plan.executable else plan

    def remember_variables(self, run_id: str, plan: LaunchPlan) -> None:
        """Keep what was given for the variables of a run that is READY: for its preset, on this host."""
        from workbench.session.variables import worth_remembering

        values = worth_remembering(plan)
        if not values or plan.preset_id is None:
            return
        try:
            self.config.remember(self.host.name, plan.preset_id, values, run_id)
        except StoreError as error:
            self.notify(Level.WARN, f"the preset's variables are not remembered: {error.message}", error.next_step)

    async def load_preset(self, preset_id: str, variables: Mapping[str, str] | None = None) -> None:
        """Put the preset's plan under edit. Its GPU settings are shown, never applied by this."""
        plan = self.plan_of(preset_id, variables)
        self.take_plan(plan, self.preset(preset_id).title)
        if self.host.connected:
            self.spawn(self.look_for_engine())

    def take_plan(self, plan: LaunchPlan, title: str) -> None:
        """Put `plan` under edit; `look_for_engine` then tells what the host has to run it."""
        from workbench.session.editor import PlanEditor
        from workbench.store.trusted_presets import trusted

        self._editor = PlanEditor(plan, title)
        self._editor.around = replace(self._editor.around, gpus=self._infos(), trusted=trusted())
        self.show_plan()

    def untrusted(self) -> Sequence[Finding]:
        """What a stranger's preset makes run besides its engine's usual program; it is shown before the first start."""
        return tuple(part.finding() for part in self.editor.untrusted())

    def trust(self) -> None:
        """Agree to run these, now and later; another value is asked about again."""
        from workbench.store.trusted_presets import trust, trusted

        trust(part.digest for part in self.editor.untrusted())
        self.editor.around = replace(self.editor.around, trusted=trusted())
        self.show_plan()

    def _infos(self) -> tuple[GpuInfo, ...]:
        """The GPUs of the node that the plan is checked for. A simulated host stands for all nodes at once."""
        infos = self.state.telemetry.infos if self.state.telemetry else ()
        nodes = len(self._editor.plan.nodes) if self._editor is not None else 0
        return infos[: len(infos) // nodes] if nodes and self.state.host.simulated else infos

    async def look_for_engine(self) -> None:
        """Survey this host for the plan under edit, and show what was found."""
        editor = self.editor
        await self.survey(editor)
        if editor is self._editor:
            self.show_plan()

    async def survey(self, editor: PlanEditor) -> None:
        """Look which version of its engine this host has, and which model files: its plan is checked against them."""
        from workbench.server.engine_probe import probe

        await self.look_for_model(editor)
        found = await probe(self.host, editor.engine, editor.plan.executable, editor.plan.workdir)
        name = f"{editor.engine.title} {found.version or '(version unknown)'}"
        editor.around = replace(
            editor.around,
            installed_version=found.version,
            installed=name if found.path else None,
            installed_problem=found.problem,
            executables=tuple(dict.fromkeys((*filter(None, (found.path,)), *found.elsewhere))),
        )

    async def look_for_model(self, editor: PlanEditor) -> None:
        """Read the figures of the editor's model from its files, where the preset's are not for it."""
        if not editor.needs_look:
            return
        from workbench.engines.model_facts import model_key
        from workbench.server.model_files import read_facts

        plan = editor.plan
        facts = await read_facts(self.host, plan, {e.name: str(e.value) for e in plan.env})
        editor.around = replace(editor.around, models={**editor.around.models, model_key(plan): facts})
        if editor is self._editor:
            self.show_plan()

    def show_edited(self) -> None:
        """Show the plan after an edit; what the host knows of another model follows."""
        self.show_plan()
        if self._editor is not None and self._editor.needs_look and self.host.connected:
            self.spawn(self.look_for_model(self._editor))

    def show_plan(self) -> None:
        if self._editor is not None:
            self.update(plan=self.plan_view())

    def plan_view(self) -> PlanView:
        """The plan with what is found of it; gpu_settings.py adds what the preset's GPU settings lack."""
        return self.editor.view()

    def gpus_changed(self) -> None:
        """Called when the GPUs of the host are first known or others: what depends on them is told anew."""
        if self._editor is not None:
            self._editor.around = replace(self._editor.around, gpus=self._infos())
            self.show_plan()
        if self.state.presets:
            self.list_presets()

    # ---- edits

    def set_flag(self, name: str, text: str) -> None:
        self.editor.set_flag(name, text)
        self.show_edited()

    def unset_flag(self, name: str) -> None:
        self.editor.unset_flag(name)
        self.show_edited()
        if name == EXECUTABLE and self.host.connected:
            self.spawn(self.look_for_engine())

    def executables(self) -> Sequence[str]:
        """Programs of the plan's engine that were found on the host; none of them was started for this."""
        return self.editor.around.executables

    async def set_executable(self, text: str, *, keep: bool = False) -> None:
        """Name the program that starts the plan's engine ("": its own); `keep`: for every later plan on this host."""
        editor = self.editor
        editor.set_flag(EXECUTABLE, text)
        if keep:
            self.config.set(("executables", self.host.name, editor.engine.name), text or None)
        self.show_plan()
        if self.host.connected:
            await self.look_for_engine()

    def set_env(self, name: str, value: str) -> None:
        self.editor.set_env(name, value)
        self.show_edited()

    def unset_env(self, name: str) -> None:
        self.editor.unset_env(name)
        self.show_edited()

    def undo(self) -> None:
        self.editor.undo()
        self.show_edited()

    def redo(self) -> None:
        self.editor.redo()
        self.show_edited()

    def flag_rows(self, view: str = "changed", query: str = "") -> Sequence[FlagRow]:
        from workbench.model.secrets import mask_row

        return tuple(map(mask_row, self._editor.rows(view, query))) if self._editor else ()

    def script(self) -> str:
        from workbench.session.editor import script_of

        return script_of(self.editor.command(), self.editor.node_commands())

    async def save_preset(self, preset_id: str, title: str) -> str:
        from workbench.engines.preset_trust import foreign_parts
        from workbench.store.preset_edit import from_plan
        from workbench.store.trusted_presets import trust

        plan = self.editor.plan
        parent = self._parent_document(plan)
        path = self.library.save(from_plan(plan, parent, preset_id=preset_id, title=title), preset_id)
        if not self.editor.untrusted():  # written here by this user
            trust(part.digest for part in foreign_parts(plan, edited=True))
        self.list_presets()
        return str(path)

    def _parent_document(self, plan: LaunchPlan) -> Mapping[str, Any]:
        """The preset that the plan came from; the engine's general one when it came from a run or a lost file."""
        from workbench import engines

        general = engines.get(plan.engine).general_preset
        try:
            return self.library.document(plan.preset_id or general)
        except WorkbenchError:
            return self.library.document(general)

    def changes_against_running(self) -> Sequence[PlanChange]:
        """Nothing without a running server; serving.py knows what runs."""
        return ()


def _is_file(preset_id: str) -> bool:
    return preset_id.endswith(".toml") or len(Path(preset_id).parts) > 1


def _fits(names: Sequence[str], count: int, infos: Sequence[GpuInfo]) -> bool | None:
    """Whether the host has as many GPUs of the preset's kinds (no names: any); None while its GPUs are not known."""
    if not infos:
        return None
    return sum(not names or info.name in names for info in infos) >= count

"""The plan under edit, with which the next server is started: loading it, editing it, and checking
it against what the host has installed.

A screen has this module from its beginning, and a plan only later. So whatever edits and checks a
plan is imported where it is used: with the flags of the engines it takes 0.6 MiB.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from workbench import engines
from workbench.hosts.base import HostUnreachable, is_cluster
from workbench.model.errors import InputError, PlanError, WorkbenchError
from workbench.model.findings import Finding, Level, option_texts_of_changes
from workbench.session.hosts.settings import HostSettings
from workbench.session.plans.engine_flags import EngineFlags

if TYPE_CHECKING:
    from workbench.gpu.settings.preset_settings import PresetSettings
    from workbench.model.flags import FlagRow
    from workbench.model.gpu import GpuInfo, Telemetry
    from workbench.model.host_entry import HostEntry
    from workbench.model.plan import LaunchPlan
    from workbench.model.settings import GpuSettings, SettingValue
    from workbench.server.engine_probe import InstalledEngine
    from workbench.session.gpu.alterations import GpuAlterations
    from workbench.session.history.telemetry_watch import TelemetryWatch
    from workbench.session.plans.plan_editor import HostContext, PlanEditor
    from workbench.session.plans.presets import Presets
    from workbench.session.plans.recipes import ExportedPlan
    from workbench.session.state import PlanView
    from workbench.session.state_holder import StateHolder
    from workbench.store.config import ConfigStore

EXECUTABLE_ROW = "executable"
_PARTS = (
    "engines.host_entries",
    "engines.preset_trust",
    "engines.validate",
    "gpu.settings.preset_settings",
    "session.plans.plan_editor",
)


def _import_plan_modules() -> None:
    for name in _PARTS:
        import_module(f"workbench.{name}")


class Plans:
    """Holds the plan under edit, with which the next server is started, and shows it in the
    session's state after each change. `current` is the editor of that plan, None if no plan is
    loaded."""

    def __init__(
        self, core: StateHolder, config: ConfigStore, presets: Presets, telemetry: TelemetryWatch
    ) -> None:
        self._core, self._config, self._presets, self._telemetry = core, config, presets, telemetry
        self._settings = HostSettings(core, config)
        self._entry: HostEntry | None = None  # of the host, as the plan under edit contains it
        self.current: PlanEditor | None = None
        self._replaced: PlanEditor | None = None  # the edited plan before: an undo brings it back
        self.engine_flags = EngineFlags(core, config)
        self._gpu_settings: PresetSettings = ()  # of the loaded preset
        # id of a preset, what its server lacks of it
        self._of_run: tuple[str | None, Sequence[str]] = (None, ())
        self._loads_parts = False
        telemetry.on_gpus_changed.append(self._update_gpus_of_plan)
        telemetry.on_reading.append(self._recheck_unapplied_gpu_settings)

    def start_importing_modules(self) -> None:
        """Begin to import the modules that edit and check a plan, in a thread, unless that was done
        before. A screen does so at its first key, so that the first preset need not wait."""
        if not self._loads_parts:
            self._loads_parts = True
            self._core.spawn(asyncio.to_thread(_import_plan_modules))

    @property
    def editor(self) -> PlanEditor:
        """The editor of the plan under edit. Raises PlanError if no plan is loaded."""
        if self.current is None:
            raise PlanError("no plan is loaded", next_step="press p to pick a preset")
        return self.current

    # ---- the plan under edit

    async def load_preset(self, preset_id: str, variables: Mapping[str, str] | None = None) -> None:
        """Make the plan of a preset the plan under edit. `variables` are the values that the user
        gave for the preset's variables. The preset's GPU settings are shown, not applied."""
        plan = self._presets.make_plan(preset_id, variables)
        self.edit_plan(plan, self._presets.get(preset_id).title)
        if self._core.host.connected:
            self._core.spawn(self.locate_engine_and_ask_flags())

    def edit_plan(self, plan: LaunchPlan, title: str) -> None:
        """Make `plan` the plan under edit, with `title` on the screen. If the plan before was
        edited, an undo brings it back. Call `locate_engine` afterwards to check the plan against
        the host."""
        if self.current is not None and self.current.is_edited:
            self._replaced = self.current
        self.current, self._entry = self.make_editor(plan, title), self._settings.host_entry
        # again, because the GPUs to check are those of the nodes of the plan under edit
        self.current.host_context = self._make_host_context()
        self.show_plan()

    def make_editor(self, plan: LaunchPlan, title: str) -> PlanEditor:
        """Return an editor of `plan` on this host that does not replace the plan under edit. Call
        `locate_engine` with it to check the plan against the installed engine."""
        from workbench.session.plans.plan_editor import PlanEditor

        editor = PlanEditor(plan, title)
        editor.host_context = self._make_host_context()
        return editor

    def _make_host_context(self) -> HostContext:
        from workbench.session.plans.plan_editor import HostContext
        from workbench.store.trusted_presets import trusted_digests

        return HostContext(
            gpus=self._gpus_to_check(), trusted=trusted_digests(), **self._cluster_fields()
        )

    def _cluster_fields(self) -> dict[str, Any]:
        """Return the fields of `HostContext` that describe a cluster: its nodes and the memory to
        keep free. {} if the host is no cluster."""
        host = self._core.host
        if not is_cluster(host):
            return {}
        return {
            "places": self._settings.add_entries_to_nodes(host.places),
            "reserve_gib": host.entry.reserve_gib,
        }

    def adapt_plan_to_new_host(self) -> None:
        """Drop what was read of the previous host: its GPUs, engines and models. Replace the values
        that hosts.toml gave the plan for the previous host by those for the present host."""
        self._replaced = None  # it has values of the previous host
        if self.current is not None:
            self._replace_host_settings(self.current)
            self.current.host_context = replace(
                self.current.host_context,
                gpus=(),
                installed=None,
                installed_version=None,
                installed_problem=None,
                own_catalog=None,
                not_asked=None,
                found=None,
                models={},
                places=(),
                reserve_gib=None,
            )
            self.show_plan()

    def _replace_host_settings(self, editor: PlanEditor) -> None:
        from workbench.engines.host_entries import add_host_settings, remove_host_settings

        old, self._entry, program = self._entry, None, None
        try:
            self._entry, program = (
                self._settings.host_entry,
                self._settings.engine_program_and_source_file(editor.plan.engine),
            )
        except WorkbenchError as error:  # the entry cannot be used
            self._core.notify_error(error)
        editor.change_plan_and_history(
            lambda plan: add_host_settings(remove_host_settings(plan, old), self._entry, program)
        )

    def show_plan(self) -> None:
        """Show the plan and the unapplied GPU settings of its preset in the session's state."""
        self._gpu_settings = ()
        with suppress(WorkbenchError):
            self._gpu_settings = self.preset_gpu_settings()
        self._update_unapplied_and_detect_change()
        self._show_plan_view()

    def _show_plan_view(self) -> None:
        if self.current is not None:
            self._core.update(plan=self.view())

    def view(self) -> PlanView:
        """Return the plan as it is shown. Its findings include the GPU settings of its preset that
        are not in force."""
        from workbench.engines import host_entries
        from workbench.gpu.settings.preset_settings import memory_lock_warning

        view = self.editor.view()
        own = host_entries.report_host_settings(view.plan, self._entry)
        view = replace(
            view,
            findings=(*self._unreached_node_findings(), *view.findings, *own),
            can_undo=view.can_undo or self._replaced is not None,
        )
        lacks = self._presets.missing_hardware_text(view.plan.preset_id)
        if lacks:
            text = f"the preset is for other hardware: it {lacks}"
            source = f"preset {view.plan.preset_id}, hardware"
            fix = "its reference results and sizes are not valid here"
            other = Finding(
                Level.WARN, "preset.hardware", text, fix=fix, source=source, evidence=lacks
            )
            view = replace(view, findings=(*view.findings, other))
        locked = memory_lock_warning(self._gpu_settings, self._core.state.telemetry)
        if locked is not None:
            view = replace(view, findings=(*view.findings, locked))
        unapplied = self._core.state.unapplied
        if not unapplied:
            return view
        text = f"settings of the preset are not applied: {', '.join(unapplied)}"
        fix = (
            "press A to apply the preset whole, or run: workbench presets apply "
            f"{view.plan.preset_id}"
        )
        return replace(
            view, findings=(*view.findings, Finding(Level.WARN, "gpu.not-applied", text, fix=fix))
        )

    def _unreached_node_findings(self) -> tuple[Finding, ...]:
        """Return a finding about the first node of the cluster that cannot be reached. () if all
        can, or the host is no cluster."""
        host = self._core.host
        if not is_cluster(host):
            return ()
        try:
            host.check_nodes_reachable()
        except HostUnreachable as error:
            text, fix = error.message, error.next_step
            return (Finding(Level.ERROR, "cluster.unreached", text, fix=fix),)
        return ()

    def untrusted_findings(self) -> Sequence[Finding]:
        """Return a finding for each program or setting that a preset written by someone else adds
        to the plan and that the user does not trust yet."""
        return tuple(part.finding_with_fix() for part in self.editor.untrusted_preset_parts())

    def trust_preset_parts(self) -> None:
        """Trust the programs and settings that `untrusted_findings` returns, for this plan and
        later ones. A value that changes later must be trusted again."""
        from workbench.store.trusted_presets import trust_digests, trusted_digests

        trust_digests(part.digest for part in self.editor.untrusted_preset_parts())
        self.editor.host_context = replace(self.editor.host_context, trusted=trusted_digests())
        self.show_plan()

    def export_plan(self, form: str) -> ExportedPlan:
        """Return the plan in the form of another tool, such as "systemd". Raises InputError if the
        form cannot express the plan, and PlanError if the plan cannot be started."""
        from workbench.session.plans.recipes import export_plan

        editor = self.editor
        name = editor.plan.preset_id or editor.plan.engine
        return export_plan(editor.effective_plan, form, name=name, title=editor.title)

    async def write_preset_file(self, preset_id: str, title: str) -> str:
        """Write the plan as a preset of the user. Return the path of the file. Raises PresetError
        if the preset is not valid."""
        from workbench.store.preset_edit import document_from_plan  # loads an editor of TOML

        plan = self.editor.plan
        document = document_from_plan(
            plan, self._parent_document(plan), preset_id=preset_id, title=title
        )
        path = self._presets.library.save(document, preset_id)
        if not self.editor.untrusted_preset_parts():  # this user wrote the preset
            self._trust_parts_of_plan(plan)
        self._presets.reload_presets()
        self._edit_saved_preset(preset_id, title)
        return str(path)

    def _trust_parts_of_plan(self, plan: LaunchPlan) -> None:
        from workbench.engines.preset_trust import list_foreign_parts
        from workbench.store.trusted_presets import trust_digests

        trust_digests(part.digest for part in list_foreign_parts(plan, edited=True))

    async def write_tuned_preset_file(
        self,
        editor: PlanEditor,
        preset_id: str,
        title: str,
        evidence: Sequence[str],
        gpu: GpuSettings,
    ) -> str:
        """Write the plan of `editor` as a preset of the user, and return the path. If `gpu` has GPU
        settings, they replace those of its parent. `evidence`, sentences about what was measured,
        becomes its caveats. A preset of the same id and title, which a tune wrote before it was
        killed, is replaced. Raises PresetError if it cannot be written."""
        from workbench.model.settings import setting_of
        from workbench.store.preset_edit import document_from_plan  # loads an editor of TOML

        parent = self._parent_document(editor.plan)
        document = document_from_plan(editor.plan, parent, preset_id=preset_id, title=title)
        document["caveats"] = list(evidence)
        if gpu:
            fields = {
                setting_of(key).preset_field: _preset_form_of_value(each)
                for key, each in gpu.items()
            }
            document["gpu_settings"] = [{"gpu": "all", **fields, "reason": evidence[0]}]
        library = self._presets.library
        again = False
        with suppress(WorkbenchError):  # there is none
            again = library.read_document(preset_id).get("title") == title
        path = library.save(document, preset_id, replace_existing=again)
        self._presets.reload_presets()
        return str(path)

    def _edit_saved_preset(self, preset_id: str, title: str) -> None:
        """Make the preset that was just saved the one under edit, without any change to it."""
        from workbench.session.plans.plan_editor import PlanEditor

        before = self.editor
        with suppress(WorkbenchError):  # it needs a variable: the plan stays as it is
            saved = self._presets.make_plan(preset_id, before.plan.variables)
            self.current = PlanEditor(saved, title)
            self.current.host_context = before.host_context
            self.show_plan()

    def _parent_document(self, plan: LaunchPlan) -> Mapping[str, Any]:
        """Return the parsed file of the preset that the plan came from. If the plan came from none,
        or the file cannot be read, return that of the engine's general preset."""
        general = engines.get_engine(plan.engine).general_preset
        try:
            return self._presets.library.read_document(plan.preset_id or general)
        except WorkbenchError:
            return self._presets.library.read_document(general)

    # ---- the host

    def _gpus_to_check(self) -> tuple[GpuInfo, ...]:
        """Return the GPUs against which the plan is checked. On a cluster, these are the first
        node's GPUs; on a simulated host, the GPUs of one node of the plan; else all GPUs."""
        infos = self._core.state.gpu_infos
        if is_cluster(self._core.host):
            first_node = self._core.host.nodes[0].name
            return tuple(info for info in infos if info.node == first_node)
        if self.current is None or not self._core.state.host.simulated:
            return infos
        nodes = max(1, len(self.current.plan.nodes))
        return infos[: len(infos) // nodes]

    def _update_gpus_of_plan(self) -> None:
        if self.current is not None:
            self.current.host_context = replace(
                self.current.host_context, gpus=self._gpus_to_check()
            )
            self.show_plan()
        if self._core.state.presets:
            self._presets.reload_presets()

    async def locate_engine(self, editor: PlanEditor | None = None) -> InstalledEngine:
        """Find out which engine and model the host has for the plan of `editor` (None: the plan
        under edit), and store that in the editor. Return the engine. If the plan is the one under
        edit, it is shown with its new findings."""
        editor = editor or self.editor
        found = await self.probe_engine_and_model(editor)
        if editor is self.current:
            self.show_plan()
        return found

    async def locate_engine_unless_searched(self, editor: PlanEditor) -> None:
        """Find out which engine the host has for a plan, unless that was found out before."""
        if not editor.is_engine_search_done:
            await self.locate_engine(editor)

    async def locate_engine_and_ask_flags(self) -> None:
        """Find the engine of the plan under edit. If this engine was never asked for its own flags,
        ask it now."""
        editor = self.editor
        await self._ask_engine_flags(editor, await self.locate_engine(editor))

    async def _ask_engine_flags(self, editor: PlanEditor, found: InstalledEngine) -> None:
        """Ask the engine `found` for its own flags, and check the editor's plan against them. Do
        nothing for a program that someone else's preset names, and during a measurement, because
        the answer takes several seconds of CPU time."""
        state, plan = self._core.state, editor.plan
        if found.path is None or editor.host_context.own_catalog or state.host.simulated:
            return
        if plan.stranger and plan.executable_from == "preset":
            return
        if state.bench.running or state.running_series:
            return
        own, problem = None, None
        try:
            own = await self.engine_flags.query_engine_flags(editor.engine, found)
        except WorkbenchError as error:
            problem = error.message
        if editor.host_context.found == found:  # no other program was chosen meanwhile
            editor.host_context = replace(editor.host_context, own_catalog=own, not_asked=problem)
        if editor is self.current:
            self.show_plan()

    async def probe_engine_and_model(self, editor: PlanEditor) -> InstalledEngine:
        """Find out which version of the editor's engine and which model files the host has, and
        store that in `editor.host_context`. Return the engine."""
        from workbench.engines.containers import choose_image, parse_version_in_tag
        from workbench.model.run_options import starts_container_image
        from workbench.server.engine_probe import InstalledEngine, probe_engine
        from workbench.session.plans.preset_variables import plan_with_cluster_values

        host = self._core.host
        if is_cluster(host):  # its variables are known once it is connected
            editor.change_plan_and_history(
                lambda plan: plan_with_cluster_values(plan, host.cluster_variables)
            )
        await self.read_model_size(editor)
        plan, engine = editor.plan, editor.engine
        image = choose_image(plan, engine) if starts_container_image(plan.run_as) else None
        if image:
            version = parse_version_in_tag(image, engine)
            found = InstalledEngine(engine.name, None, version, how="tag of the image")
        else:
            found = await probe_engine(host, engine, plan.executable, plan.workdir)
        if _engine_program_key(editor.plan) != _engine_program_key(plan):
            return found  # the program was changed meanwhile, and is looked for by itself
        installed = None
        if image or found.path:
            installed = f"{engine.title} {found.version_text}"
        if image:
            installed = f"{installed} in the image {image}"
        editor.host_context = replace(
            editor.host_context,
            **self._cluster_fields(),  # the places of the nodes are known once the host is connected
            installed_version=found.version,
            installed=installed,
            found=found,
            installed_problem=found.problem,
            own_catalog=self.engine_flags.stored_catalog(editor.engine, found),
            not_asked=None,
            executables=tuple(dict.fromkeys((*filter(None, (found.path,)), *found.elsewhere))),
        )
        return found

    async def read_model_size(self, editor: PlanEditor) -> None:
        """Read the size of the editor's model from its files on the host into
        `editor.host_context`, if that size is needed and not known yet."""
        if not editor.must_read_model_size:
            return
        from workbench.engines.model_facts import model_files_key
        from workbench.server.model_files import read_model_facts

        plan = editor.plan
        facts = await read_model_facts(self._core.host, plan, plan.env_texts)
        editor.host_context = replace(
            editor.host_context, models={**editor.host_context.models, model_files_key(plan): facts}
        )
        if editor is self.current:
            self.show_plan()

    # ---- edits

    def _show_edited_plan(self) -> None:
        """Show the plan after an edit. If the edit changed the model, start to read the size of the
        new model."""
        self.show_plan()
        if self.editor.must_read_model_size and self._core.host.connected:
            self._core.spawn(self.read_model_size(self.editor))

    def set_flag(self, name: str, text: str) -> None:
        """Set a flag to the value that `text` denotes ("512", "on", JSON). Raises InputError, and
        changes nothing, if the value is invalid."""
        self.editor.set_flag(name, text)
        self._show_edited_plan()
        # an image has an engine of its own
        if name == engines.RUN_AS:
            self._locate_engine_again()

    def unset_flag(self, name: str) -> None:
        self.editor.unset_flag(name)
        self._show_edited_plan()
        if name in (EXECUTABLE_ROW, engines.RUN_AS):
            self._locate_engine_again()

    async def set_executable(self, text: str, *, for_later_plans: bool = False) -> None:
        """Set the program that starts the plan's engine; "" stands for the engine's usual program.
        With `for_later_plans`, config.toml names that program for all later plans on this host."""
        editor = self.editor
        editor.set_flag(EXECUTABLE_ROW, text)
        if for_later_plans:
            self._config.set(
                ("executables", self._core.host.name, editor.engine.name), text or None
            )
        editor.clear_located_engine()
        self.show_plan()
        if self._core.host.connected:
            self._core.spawn(self._ask_engine_flags(editor, await self.locate_engine()))

    def _locate_engine_again(self) -> None:
        """Search the host for the plan's program, which an edit has changed. Until it is found,
        nothing is said about the program before."""
        if self._core.host.connected:
            self.editor.clear_located_engine()
            self.show_plan()
            self._core.spawn(self.locate_engine_and_ask_flags())

    def set_env(self, name: str, value: str) -> None:
        self.editor.set_env(name, value)
        self._show_edited_plan()

    def unset_env(self, name: str) -> None:
        self.editor.unset_env(name)
        self._show_edited_plan()

    def apply_fix_and_describe(
        self, finding: Finding, server_plan: LaunchPlan | None = None
    ) -> str:
        """Make the changes that `finding` proposes in the plan under edit, and return them as text,
        such as "--unset max-num-seqs". For a finding about a server's log, `server_plan` is the
        plan of that server. Raises InputError if there is nothing to change, or if the plan under
        edit has another engine or model than `server_plan`."""
        if server_plan is None:
            changes = self.editor.apply_fix_and_return_changes(finding)
        else:
            if not self._has_engine_and_model_of(server_plan):
                raise InputError(
                    f"the plan under edit is not that of this server ({server_plan.engine}, {server_plan.model})",
                    next_step="press p and load the preset of that server, then press f again",
                )
            changes = finding.changes
            self.editor.apply_changes(changes)
        self._show_edited_plan()
        if any(change.name == EXECUTABLE_ROW for change in changes):
            self._locate_engine_again()
        return option_texts_of_changes(finding.changes)

    def _has_engine_and_model_of(self, other: LaunchPlan) -> bool:
        """Return whether the plan under edit has the engine and the model of `other`. False if no
        plan is loaded."""
        if self.current is None:
            return False
        plan = self.current.plan
        return (plan.engine, plan.model) == (other.engine, other.model)

    def undo(self) -> None:
        """Undo the last edit. If the plan has none, and a preset was loaded over an edited plan,
        make that plan the one under edit again. Without either, do nothing."""
        replaced = self._replaced
        if replaced is None or self.editor.can_undo:
            self._undo_or_redo(self.editor.undo)
            return
        self.current, self._replaced = replaced, None
        replaced.host_context = replace(replaced.host_context, gpus=self._gpus_to_check())
        self.show_plan()

    def redo(self) -> None:
        self._undo_or_redo(self.editor.redo)

    def _undo_or_redo(self, step: Callable[[], None]) -> None:
        """Undo or redo an edit. If that changes the program that starts the engine, search the host
        for it again."""
        before = _engine_program_key(self.editor.plan)
        step()
        self._show_edited_plan()
        if _engine_program_key(self.editor.plan) != before:
            self._locate_engine_again()

    def flag_rows(self, view: str = "changed", query: str = "") -> Sequence[FlagRow]:
        """Return rows of flags, () if no plan is loaded. `view` is "changed" (flags that are set)
        or "all". A query searches all flags, with the best match first."""
        if self.current is None:
            return ()
        from workbench.model.secrets import mask_row

        return tuple(map(mask_row, self.current.flag_rows(view, query)))

    def estimate_change(self, name: str, text: str) -> str:
        """Return as text how the estimates of the memory per GPU and of the KV cache change with
        flag `name` set to `text`, or unset if `text` is empty. Without an estimate, the text says
        why. Raises InputError for an invalid value."""
        from workbench.session.plans.estimate_text import memory_estimate_change_text

        return memory_estimate_change_text(
            self.editor.estimate_memory(), self.editor.estimate_memory(name, text)
        )

    def preset_texts_about_flag(self, name: str) -> Sequence[str]:
        """Return what the plan's preset says about a flag: the flag's value in the preset, then
        each warning or statement that mentions the flag. () if the preset says nothing about the
        flag."""
        from workbench.store.preset_text import texts_about_flag

        preset_id = self.editor.plan.preset_id
        if preset_id is None:
            return ()
        with suppress(WorkbenchError):
            found = engines.look_up_flag(self.editor.catalog, name).spec
            aliases = found.aliases if found is not None else ()
            return texts_about_flag(self._presets.get(preset_id), name, aliases)
        return ()

    # ---- GPU settings of presets

    def preset_gpu_settings(self, preset_id: str | None = None) -> PresetSettings:
        """Return (GPU index or "all", settings, reason for these settings) for each group of GPU
        settings of a preset (None: of the loaded one). () if the preset has none, or no preset is
        loaded."""
        if preset_id is None:
            preset_id = self.current.plan.preset_id if self.current is not None else None
        if preset_id is None:
            return ()
        from workbench.gpu.settings.preset_settings import settings_of_preset

        return settings_of_preset(self._presets.get(preset_id))

    async def compare_gpu_settings_with_preset(self, alterations: GpuAlterations) -> None:
        """Read the GPUs and `alterations` once, and compare them with the GPU settings of the
        plan's preset. Settings that are not applied become findings about the plan. Nothing is read
        if a screen reads the GPUs."""
        from workbench.gpu.settings.preset_settings import texts_of_settings_not_applied

        if self._core.state.telemetry is None and self.preset_gpu_settings():
            with suppress(WorkbenchError):
                await alterations.read_altered_settings()
                telemetry = await self._telemetry.get_recent_reading()
                changed = self._core.state.alterations
                self._core.update(
                    unapplied=texts_of_settings_not_applied(
                        self.preset_gpu_settings(), telemetry, changed
                    )
                )

    def show_unapplied_preset_parts(self, preset_id: str | None, parts: Sequence[str]) -> None:
        """Show in the plan's findings which parts of its preset the running server lacks. `parts`
        has one text for each, and `preset_id` is the preset of that server; None clears them."""
        self._of_run = preset_id, parts
        if self._update_unapplied_and_detect_change():
            self._show_plan_view()

    def _recheck_unapplied_gpu_settings(self, telemetry: Telemetry) -> None:
        if self._update_unapplied_and_detect_change():
            self._show_plan_view()

    def _update_unapplied_and_detect_change(self) -> bool:
        """Update `state.unapplied` for the loaded preset, and return whether it has changed."""
        state = self._core.state
        preset_id, of_run = self._of_run
        if self.current is None or preset_id != self.current.plan.preset_id:
            of_run = ()
        if not (self._gpu_settings or of_run or state.unapplied):
            return False
        from workbench.gpu.settings.preset_settings import texts_of_settings_not_applied

        now = (
            *texts_of_settings_not_applied(self._gpu_settings, state.telemetry, state.alterations),
            *of_run,
        )
        changed = now != state.unapplied
        if changed:
            self._core.update(unapplied=now)
        return changed


def _engine_program_key(plan: LaunchPlan) -> tuple[object, ...]:
    """Return the parts of a plan that decide which program starts its engine."""
    return plan.executable, plan.run_as, plan.run_options, plan.image, plan.workdir


def _preset_form_of_value(value: SettingValue) -> object:
    """Return the value of a GPU setting as a preset has it."""
    from workbench.model.settings import ClockRange

    return [value.min_mhz, value.max_mhz] if isinstance(value, ClockRange) else value

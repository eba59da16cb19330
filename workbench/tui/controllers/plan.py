"""The keys of the plan under edit: load and save presets, edit flags and variables, show and copy
the command."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.model.errors import InputError, WorkbenchError
from workbench.model.findings import Finding, Level, option_texts_of_changes
from workbench.model.flags import FlagRow
from workbench.session.state import PlanView, PresetEntry
from workbench.tui.cells import Row, paragraph_rows
from workbench.tui.controllers.base import Controller
from workbench.tui.formats import enclose_nonempty_text, path_end_text
from workbench.tui.glyphs import LEVELS
from workbench.tui.modals.ask import Confirm
from workbench.tui.modals.base import PickModal
from workbench.tui.modals.flag_edit import FlagEdit
from workbench.tui.modals.form import Field, Form, Values
from workbench.tui.modals.launch import command_rows, finding_rows
from workbench.tui.pages.base import Keys, Page
from workbench.tui.pages.texts import fit_page_rows, preset_rows
from workbench.tui.panes.launch import NOT_FLAGS, Launch
from workbench.tui.panes.presets import Presets

if TYPE_CHECKING:
    from workbench.model.plan import LaunchPlan
    from workbench.session.hosts.models import HostModels
    from workbench.session.plans.model_fit import FitReport

PATH_CELLS = 72


class PlanController(Controller):
    # presets
    async def load_preset(
        self, entry: PresetEntry | None, fitting: PresetEntry | None = None
    ) -> None:
        """Load the preset of `entry` as the plan; do nothing for None. First ask for those of the
        preset's variables that have neither a remembered value nor a default. Return when the plan
        is loaded or the form with the variables is open. If the preset does not fit the host's
        GPUs, say so, and name `fitting`, one that does."""
        if entry is None:
            return
        if entry.problem:
            self.show_message(
                f"{entry.id}: {entry.problem}", Level.ERROR, f"workbench presets check {entry.path}"
            )
            return
        missing = self.run_or_show_error(lambda: self.session.presets.missing_variables(entry.id))
        if missing is None:
            return
        if not missing:
            await self._load_preset_into_plan(entry, fitting)
            return

        def make_intro_rows(width: int) -> list[Row]:
            text = (
                "This setup names files or addresses of its author's machine. Workbench remembers "
                "your values once the "
                "server is READY."
            )
            rows = [*paragraph_rows(text, width, "dim"), ()]
            for name, variable in missing.items():
                rows += paragraph_rows(f"{name}: {variable.description}", width)
            return [*rows, ()]

        def reject_empty_values(values: Values) -> None:
            empty = [name for name, value in values.items() if not value]
            if empty:
                raise InputError(f"{', '.join(empty)}: a value is needed")

        async def load_preset_with_values(values: Values | None) -> None:
            if values is not None:
                await self._load_preset_into_plan(entry, fitting, values)

        fields = [
            Field(
                name, name, variable.default or "", enclose_nonempty_text("e.g. ", variable.example)
            )
            for name, variable in missing.items()
        ]
        self.app.push_screen(
            Form(
                f"Load {entry.id}",
                fields,
                intro=make_intro_rows,
                check=reject_empty_values,
                accept="load",
            ),
            load_preset_with_values,
        )

    async def _load_preset_into_plan(
        self, entry: PresetEntry, fitting: PresetEntry | None, values: Values | None = None
    ) -> None:
        self.go_to_pane("launch")
        before = self.state.plan
        try:
            await self.session.plans.load_preset(entry.id, values)
        except WorkbenchError as error:
            self.services.show_error(error)
            return
        level, next_step = Level.INFO, None
        told = []
        if entry.fits is False:
            level = Level.WARN
            told.append(f"{entry.id} does not fit the GPUs here: {entry.lacks}")
            if fitting is not None:
                next_step = f"{fitting.id} fits: press p to choose it"
        if before is not None and before.changes:
            told.append(f"{entry.id} is loaded in place of the plan that you had edited")
            next_step = "press u to go back to the edited plan"
        if told:
            self.show_message("; ".join(told), level, next_step)

    def show_selected_preset(self) -> None:
        entry = self.pane_of_type(Presets).current_item
        if entry is None:
            return
        preset = self.run_or_show_error(lambda: self.session.presets.get(entry.id))
        if preset is not None:
            self.services.pages.open(Page(f"Preset {preset.id}", lambda w: preset_rows(preset, w)))

    async def save_plan_as_preset(self) -> None:
        plan = self._plan_or_show_message()
        if plan is None:
            return
        base = plan.plan.preset_id or plan.plan.engine

        async def store_preset(values: Values) -> None:
            path = await self.session.plans.write_preset_file(values["id"], values["title"])
            self.show_message(f"saved: {path}")

        def require_id_and_title(values: Values) -> None:
            if not values["id"] or not values["title"]:
                raise InputError("a preset needs an id and a title")

        fields = [Field("id", "id", f"{base}-mine"), Field("title", "title", plan.title or base)]
        form = Form(
            "Save the plan as a preset",
            fields,
            check=require_id_and_title,
            accept="save",
            submit=store_preset,
            doing="saving",
        )
        await self.app.push_screen(form)

    # flags
    def _plan_or_show_message(self) -> PlanView | None:
        if self.state.plan is None:
            self.show_message("there is no plan yet", Level.WARN, "press p to load a preset")
        return self.state.plan

    async def edit_flag(self) -> None:
        row = self.pane_of_type(Launch).current_item
        if row is not None:
            await self.edit_flag_row(row)

    async def pick_flag_group(self) -> None:
        """Ask for a group of flags, and go to its first flag."""
        if self._plan_or_show_message() is None:
            return
        pane = self.pane_of_type(Launch)
        items = [(name, name, "text") for name in pane.group_names]
        picker = PickModal("Groups of flags", items, filter=True, free=False)

        def go_to_chosen_group(name: str | None) -> None:
            if name is not None:
                pane.move_to_group(name)

        await self.app.push_screen(picker, go_to_chosen_group)

    def go_to_adjacent_group(self, step: int) -> None:
        """Move the cursor to the next group of flags (`step` 1) or to the group before (`step`
        -1)."""
        if self._plan_or_show_message() is not None:
            self.pane_of_type(Launch).move_to_adjacent_group(step)

    async def edit_flag_row(self, row: FlagRow) -> None:
        if self._plan_or_show_message() is None:
            return
        if row.name == "executable" and not row.is_env:
            await self._edit_executable(row)
            return
        plans, name = self.session.plans, row.name
        if row.is_env:
            modal = FlagEdit(
                row, lambda text: plans.set_env(name, text), lambda: plans.unset_env(name)
            )
        elif name.partition(".")[0] in NOT_FLAGS:
            modal = FlagEdit(
                row, lambda text: plans.set_flag(name, text), lambda: plans.unset_flag(name)
            )
        else:
            modal = FlagEdit(
                row,
                lambda text: plans.set_flag(name, text),
                lambda: plans.unset_flag(name),
                notes=plans.preset_texts_about_flag(name),
                estimate=lambda text: plans.estimate_change(name, text),
            )

        def show_row_if_edited(done: bool | None) -> None:
            if done:
                self._show_edited_row(row.is_env, name)

        await self.app.push_screen(modal, show_row_if_edited)

    async def choose_engine_program(self) -> None:
        """Ask which of the installed programs, or which path, starts the engine of the plan."""
        if self._plan_or_show_message() is not None:
            await self._edit_executable(self._plan_row_named("executable"))

    async def choose_launcher(self) -> None:
        """Ask what runs the server on its host: Workbench itself, or a launcher such as systemd."""
        if self._plan_or_show_message() is not None:
            await self.edit_flag_row(self._plan_row_named("run-as"))

    def _plan_row_named(self, name: str) -> FlagRow:
        """Return the row of the plan with this name that is no environment variable."""
        rows = self.session.plans.flag_rows("all")
        return next(row for row in rows if (row.is_env, row.name) == (False, name))

    async def _edit_executable(self, row: FlagRow) -> None:
        """Ask which program starts the engine, and set it for this plan or for every plan. The user
        chooses the engine's own program or one found on the host, or types a path."""
        session, host, plan = self.session, self.state.host.name, self.state.plan
        assert plan is not None  # its row is edited
        own = f"{row.default}, as PATH finds it"
        items = [("", own, "text")]
        for path in plan.executables:
            items.append((path, path_end_text(path, PATH_CELLS), "text"))
        found = "These programs were found on the host; none of them was started."
        if not plan.executables:
            found = f"No program of {plan.plan.engine} was found here."
        intro = f"{found} You may type the path of another program."

        def ask_whether_for_every_plan(path: str | None) -> None:
            if path is None:
                return

            def set_executable(for_every_plan: bool | None) -> None:
                if for_every_plan is not None:
                    self.run_in_background(
                        session.plans.set_executable(path, for_later_plans=for_every_plan),
                        lambda _: self._show_edited_row(False, row.name),
                    )

            text = (
                f"Start every plan of this engine on {host} with {path or own}? The choice is "
                "kept in config.toml."
            )
            question = Confirm(
                "Engine executable",
                lambda w: paragraph_rows(text, w),
                yes="every plan",
                no="this plan only",
            )
            self.app.push_screen(question, set_executable)

        picker = PickModal(
            "Engine executable", items, chosen=str(row.value or ""), intro=intro, filter=True
        )
        await self.app.push_screen(picker, ask_whether_for_every_plan)

    def _show_edited_row(self, is_env: bool, row_name: str) -> None:
        self.go_to_pane("launch")
        self.pane_of_type(Launch).select_item((is_env, row_name))

    async def add_environment_variable(self) -> None:
        if self._plan_or_show_message() is None:
            return

        def variable_name_and_value(values: Values) -> tuple[str, str]:
            """Return the name and the value, also of NAME=value that was pasted as the name."""
            name, equals, value = values["name"].partition("=")
            if equals and not values["value"]:
                return name, value
            return values["name"], values["value"]

        async def set_variable(values: Values) -> None:
            name, value = variable_name_and_value(values)
            self.session.plans.set_env(name, value)
            self._show_edited_row(True, name)

        def check_variable_name(values: Values) -> None:
            name, _ = variable_name_and_value(values)
            if not (name.isascii() and name.isidentifier()):
                raise InputError(f"expected the name of an environment variable, got “{name}”")

        fields = [Field("name", "name"), Field("value", "value")]
        await self.app.push_screen(
            Form(
                "Environment variable",
                fields,
                check=check_variable_name,
                accept="set",
                submit=set_variable,
            )
        )

    def unset_flag(self) -> None:
        row, unset = self.pane_of_type(Launch).current_item, self.session.plans.unset_flag
        if row is None:
            return
        if row.is_env:
            unset = self.session.plans.unset_env
        self.run_or_show_error(lambda: unset(row.name))

    async def fix_finding(self) -> None:
        """Apply the fix of a finding, which is a problem that Workbench has found in the plan. If
        exactly one fixable finding is about the flag under the cursor, take that finding. Otherwise
        ask which finding to fix, unless there is only one."""
        plan = self._plan_or_show_message()
        if plan is None:
            return
        row = self.pane_of_type(Launch).current_item
        fixable = [f for f in plan.findings if f.changes]
        here = []
        if row is not None:
            here = [f for f in fixable if f.flag == row.name]
        for found in (here, fixable):
            if len(found) == 1:
                self._apply_fix(found[0])
                return
        if not fixable:
            self.show_message(
                "no finding of this plan has a fix that a key can apply",
                next_step="press v to list all findings",
            )
            return
        items = []
        for number, f in enumerate(fixable):
            options = option_texts_of_changes(f.changes)
            items.append((str(number), f"{options}   {f.text}", LEVELS[f.level][1]))
        first = str(fixable.index((here or fixable)[0]))
        picker = PickModal("Fix which finding?", items, chosen=first, free=False)

        def fix_chosen_finding(number: str | None) -> None:
            if number is not None:
                self._apply_fix(fixable[int(number)])

        await self.app.push_screen(picker, fix_chosen_finding)

    def _apply_fix(self, finding: Finding) -> None:
        done = self.run_or_show_error(lambda: self.session.plans.apply_fix_and_describe(finding))
        if done:
            self.show_message(f"changed in the plan: {done} (press u to undo)")

    def undo_plan_edit(self) -> None:
        if self.state.plan is not None and self.state.plan.can_undo:
            self.run_or_show_error(self.session.plans.undo)
        else:
            self.show_message("the plan has no edit to undo")

    def redo_plan_edit(self) -> None:
        if self.state.plan is not None and self.state.plan.can_redo:
            self.run_or_show_error(self.session.plans.redo)
        else:
            self.show_message("the plan has no undone edit to redo")

    # the command
    def show_command(self) -> None:
        plan = self._plan_or_show_message()
        if plan is None:
            return

        def make_command_rows(width: int) -> list[Row]:
            made: list[Row] = []
            for node, command in plan.nodes:
                made += [
                    ((f"# {node.name} ({node.node_title})", "strong"),),
                    *command_rows(command, width),
                ]
                for name, why in node.origins.items():
                    made += paragraph_rows(f"# {name}: {why}", width, "dim", "  ")
                made.append(())
            if plan.start_command and not plan.nodes:
                made = command_rows(plan.start_command, width)
            elif not plan.command:
                made = paragraph_rows(
                    "x The plan gives no command; the findings below say why.", width, "bad"
                )
            findings = finding_rows(plan.findings, width) or paragraph_rows("none", width, "dim")
            checked = f"Findings, checked against {plan.flag_source_text}"
            return [*made, (), ((checked, "strong"),), *findings]

        keys: Keys = {}
        if plan.command:
            keys = {"y": ("Copy", self.copy_command)}
        self.services.pages.open(Page("The full command", make_command_rows, lambda: keys))

    def open_fit_page(self) -> None:
        """Open a page about the model of the plan: which quantizations, numbers of GPUs and context
        lengths fit into GPU memory, and where the model's files are on the host. The page is
        updated when the plan or the used memory changes."""
        from workbench.session.plans.model_fit import fit_report_of_plan

        view = self._plan_or_show_message()
        if view is None:
            return
        made: tuple[LaunchPlan, object, FitReport] | None = None
        files: list[str] = []

        def make_fit_rows(width: int) -> list[Row]:
            nonlocal made
            view, telemetry = self.state.plan, self.state.telemetry
            if view is None:
                return []
            used = [(s.memory_used_bytes or 0) >> 28 for s in self.state.gpus]
            if made is None or made[0] is not view.plan or made[1] != used:
                made = (view.plan, used, fit_report_of_plan(view.plan, telemetry))
            host, lines = self.state.host, fit_page_rows(made[2], files, width)
            if host.link == "connected":
                return lines
            return [
                *paragraph_rows(
                    f"{host.name} cannot be reached: the free memory is an old reading",
                    width,
                    "warn",
                ),
                *lines,
            ]

        def show_model_files(models: HostModels) -> None:
            model = next((copy.model for copy in models.copies), view.plan.model)
            files[:] = models.report_lines(model)
            page.draw()

        page = Page("What fits", make_fit_rows)
        self.services.pages.open(page)
        if not self.state.simulated:  # a simulated host reads no model files
            self.run_in_background(
                lambda: self.session.models.find_copies_of_plan(view.plan),
                show_model_files,
                exclusive_group="model files",
            )

    def copy_command(self) -> None:
        plan, missing = self.state.plan, "there is no command to copy"
        if plan is None:
            self.show_message(missing, Level.WARN, "press p to load a preset")
        elif plan.command is None:
            self.show_message(missing, Level.WARN, "press v to see why")
        elif plan.nodes:
            self.copy_text("command of each node", plan.shell_command())
        else:
            self.copy_text("command", plan.shell_command())

"""Presets, the plan and its flags."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from workbench.model.findings import Level
from workbench.model.flags import FlagRow, Origin
from workbench.session.state import PresetEntry
from workbench.tui.actions.base import Actions

if TYPE_CHECKING:
    from workbench.tui.widgets.flags import Flags
    from workbench.tui.widgets.log_pane import LogPane
    from workbench.tui.widgets.presets import Presets
    from workbench.tui.widgets.results import Results


LOG_MATCHES = 500  # as many as the session looks for


class LaunchActions(Actions):
    presets: Presets
    flags: Flags
    log_pane: LogPane
    results: Results
    active: int

    # finding: one input per pane, above its list
    async def action_presets(self) -> None:
        self.go(1)
        await self.open_search(1)

    async def action_find(self) -> None:
        number = self.active if self.active in (1, 3) else 2  # in the results too: / after a benchmark edits a flag
        self.go(number)
        await self.open_search(number)

    async def action_filter(self) -> None:
        self.go(4)
        await self.open_search(4)

    async def open_search(self, number: int) -> None:
        from workbench.tui.widgets.search import Search

        pane = self.panes[number]  # type: ignore[attr-defined]
        for old in self.query(Search):
            if old.number == number:
                self.set_focus(old.entry)
                return
            await self.close_search(old)
        search = Search(number)
        await pane.mount(search, before=pane.body)
        self.set_focus(search.entry)

    async def close_search(self, search: object = None) -> None:
        from workbench.tui.widgets.search import Search

        for one in self.query(Search):
            if search is None or one is search:
                number = one.number
                self.searched(number, "", final=True)
                pane = self.panes[number]  # type: ignore[attr-defined]
                if one.entry.has_focus:
                    self.set_focus(pane.body)
                await one.remove()

    def searched(self, number: int, text: str, final: bool = False) -> None:
        """The text of a pane's search has changed."""
        if number == 1:
            self.presets.filter(text, keep=final)
            self.presets.lit = not final
        elif number == 2:
            self.flags.find(text, keep=final)
            self.flags.lit = not final
        elif number == 4:
            self.results.lit = not final
            if text != self.results.search:
                self.attempt(lambda: self.session.find_results(text), only="search")
        elif not final:
            self.log_pane.search = text
        self.refresh_titles()  # type: ignore[attr-defined]

    async def search_entered(self, number: int, text: str) -> None:
        """enter in a search: load the best preset, edit the best flag, or go to the hit."""
        if number == 1:
            entry = self.presets.current
            await self.close_search()
            self.load(entry)
        elif number == 2:
            row = self.flags.current
            if row is None and text.strip():
                row = FlagRow(text.strip().lstrip("-"), None, None, Origin.DEFAULT, None)
            await self.close_search()
            if row is not None:
                await self.edit_row(row)
        elif number == 4:  # the list stays narrowed down until esc
            self.results.lit = False
            self.set_focus(self.results)
            self.refresh_titles()  # type: ignore[attr-defined]
        elif text:
            hit = self.log_pane.find(text, again=self.log_pane.hit is not None and text == self.found)
            self.found = text
            self.attempt(self.session.search_log(text), lambda lines: self._log_searched(hit, lines), only="log search")
        else:
            self.log_pane.find("")

    found = ""  # what the log was searched for last
    matches: Sequence[tuple[int, str]] = ()  # its lines in the whole file

    def _log_searched(self, hit: bool, lines: Sequence[tuple[int, str]]) -> None:
        """How often it is in the whole file, of which the pane keeps the beginning and the end."""
        self.matches = lines
        if not lines:
            self.say(f"“{self.found}” is not in the log", Level.WARN)
            return
        count = f"{len(lines)} line{'s' * (len(lines) != 1)}" + (" or more" if len(lines) >= LOG_MATCHES else "")
        if hit:
            self.say(f"“{self.found}”: {count} of the whole log", next_step="enter goes to the next, m lists all")
        else:
            self.say(f"“{self.found}”: {count} of the log, none of them kept here", next_step="m lists them")

    async def action_matches(self) -> None:
        from workbench.tui.cells import Row, paragraph
        from workbench.tui.modals.base import TextModal

        if not self.matches:
            self.say("nothing has been found in the log", next_step="/ searches it")
            return

        def rows(width: int) -> list[Row]:
            made: list[Row] = []
            for number, text in self.matches:
                lines = paragraph(text, max(20, width - 9))
                made += [((f"{number if not n else '':>7}  ", "dim"), *line) for n, line in enumerate(lines)]
            return made

        await self.app.push_screen(TextModal(f"“{self.found}” in the log", rows, wide=True))

    # presets
    async def action_load(self) -> None:
        self.load(self.presets.current)

    def load(self, entry: PresetEntry | None) -> None:
        if entry is None:
            return
        if entry.problem:
            self.say(f"{entry.id}: {entry.problem}", Level.ERROR, f"workbench presets check {entry.path}")
            return
        missing = self.try_now(lambda: self.session.missing_variables(entry.id))
        if missing is None:
            return
        if not missing:
            self.go(2)
            self.attempt(self.session.load_preset(entry.id))
            return
        from workbench.tui.cells import Row, paragraph
        from workbench.tui.modals.form import Field, Form

        def intro(width: int) -> list[Row]:
            text = "This setup names things of its author's machine. They are remembered once its server is READY."
            rows = [*paragraph(text, width, "dim"), ()]
            for name, variable in missing.items():
                rows += paragraph(f"{name}: {variable.description}", width)
            return [*rows, ()]

        fields = [Field(n, n, v.default or "", f"e.g. {v.example}" if v.example else "") for n, v in missing.items()]

        def check(values: dict[str, str]) -> str | None:
            empty = [n for n, v in values.items() if not v]
            return f"{', '.join(empty)}: a value is needed" if empty else None

        def loaded(values: dict[str, str] | None) -> None:
            if values is not None:
                self.go(2)
                self.attempt(self.session.load_preset(entry.id, values))

        self.app.push_screen(Form(f"Load {entry.id}", fields, intro=intro, check=check, accept="load"), loaded)

    async def action_preset_detail(self) -> None:
        entry = self.presets.current
        if entry is None:
            return
        preset = self.try_now(lambda: self.session.preset(entry.id))
        if preset is None:
            return
        from workbench.tui.modals.base import TextModal
        from workbench.tui.modals.info import preset_rows

        await self.app.push_screen(TextModal(f"Preset {entry.id}", lambda w: preset_rows(preset, w)))

    async def action_save(self) -> None:
        if not self.need_plan():
            return
        from workbench.tui.modals.form import Field, Form

        plan = self.session.state.plan
        assert plan is not None
        base = plan.plan.preset_id or plan.plan.engine
        fields = [Field("id", "id", f"{base}-mine"), Field("title", "title", plan.title or base)]

        async def save(values: dict[str, str]) -> None:
            path = await self.session.save_preset(values["id"], values["title"])
            self.say(f"saved: {path}")

        def check(values: dict[str, str]) -> str | None:
            return None if values["id"] and values["title"] else "an id and a title are needed"

        form = Form("Save the plan as a preset", fields, check=check, accept="save", submit=save, doing="saving")
        await self.app.push_screen(form)

    async def action_new(self) -> None:
        await self.action_save()

    # flags
    def need_plan(self) -> bool:
        if self.session.state.plan is None:
            self.say("there is no plan yet", Level.WARN, "p picks a preset")
            return False
        return True

    async def action_edit(self) -> None:
        if self.flags.current is not None:
            await self.edit_row(self.flags.current)

    async def edit_row(self, row: FlagRow) -> None:
        if not self.need_plan():
            return
        from workbench.tui.modals.flag_edit import FlagEdit

        session = self.session
        if row.name == "executable" and not row.is_env:
            await self.edit_executable(row)
            return
        if row.is_env:
            modal = FlagEdit(row, lambda t: session.set_env(row.name, t), lambda: session.unset_env(row.name))
        else:
            modal = FlagEdit(row, lambda t: session.set_flag(row.name, t), lambda: session.unset_flag(row.name))
        await self.app.push_screen(modal, lambda done: self._edited(row.is_env, row.name) if done else None)

    async def edit_executable(self, row: FlagRow) -> None:
        """Choose the program that starts the engine: found on the host, or typed."""
        from workbench.tui.cells import paragraph
        from workbench.tui.formats import path_text
        from workbench.tui.modals.ask import Confirm
        from workbench.tui.modals.base import PickModal

        session, host = self.session, self.session.state.host.name
        own = f"{row.default}, as PATH finds it"
        items = [("", own, "text"), *((path, path_text(path, 72), "text") for path in session.executables())]
        intro = "Programs found on the host; none was started to list them. Or type the path of another."

        def chosen(path: str | None) -> None:
            if path is None:
                return

            def decided(keep: bool | None) -> None:
                if keep is not None:
                    self.attempt(session.set_executable(path, keep=keep), lambda _: self._edited(False, row.name))

            text = f"Start every plan of this engine on {host} with {path or own}? It is kept in config.toml."
            question = Confirm("Engine executable", lambda w: paragraph(text, w), yes="every plan", no="this plan only")
            self.app.push_screen(question, decided)

        picker = PickModal("Engine executable", items, chosen=str(row.value or ""), intro=intro, filter=True)
        await self.app.push_screen(picker, chosen)

    def _edited(self, is_env: bool, name: str) -> None:
        """The cursor goes to what was edited: what is known of it, and what is wrong, stands below the list."""
        self.go(2)
        self.flags.show(self.session.state)
        self.flags.select((is_env, name))

    async def action_add_env(self) -> None:
        if not self.need_plan():
            return
        from workbench.tui.modals.form import Field, Form

        async def given(values: dict[str, str]) -> None:
            self.session.set_env(values["name"], values["value"])
            self._edited(True, values["name"])

        def check(values: dict[str, str]) -> str | None:
            name = values["name"]
            good = name.replace("_", "a").isalnum() and name.isascii() and not name[0].isdigit() if name else False
            return None if good else f"expected a variable's name, got “{name}”"

        fields = [Field("name", "name"), Field("value", "value")]
        await self.app.push_screen(Form("Environment variable", fields, check=check, accept="set", submit=given))

    def action_unset(self) -> None:
        row = self.flags.current
        if row is None:
            return
        self.try_now(lambda: self.session.unset_env(row.name) if row.is_env else self.session.unset_flag(row.name))

    def action_toggle_all(self) -> None:
        self.flags.toggle_all()

    def action_undo(self) -> None:
        plan = self.session.state.plan
        if plan is None or not plan.can_undo:
            self.say("nothing to undo")
            return
        self.try_now(self.session.undo)

    def action_redo(self) -> None:
        plan = self.session.state.plan
        if plan is None or not plan.can_redo:
            self.say("nothing to redo")
            return
        self.try_now(self.session.redo)

    # the command
    async def action_command(self) -> None:
        plan = self.session.state.plan
        if plan is None:
            self.need_plan()
            return
        from workbench.tui.cells import Row, paragraph
        from workbench.tui.modals.base import TextModal
        from workbench.tui.modals.launch import command_rows, finding_rows

        def rows(width: int) -> list[Row]:
            made: list[Row] = []
            for node, command in plan.nodes:
                made += [((f"# {node.name} (rank {node.rank})", "strong"),), *command_rows(command, width), ()]
            if plan.command and not plan.nodes:
                made = command_rows(plan.command, width)
            elif not plan.command:
                made = paragraph("x The plan cannot become a command; the findings say why.", width, "bad")
            head: list[Row] = [(), (("Findings", "strong"),)]
            return [*made, *head, *(finding_rows(plan.findings, width) or paragraph("none", width, "dim"))]

        copy = plan.shell if plan.command else None
        await self.app.push_screen(TextModal("The full command", rows, wide=True, copy=copy))

    def action_copy(self) -> None:
        plan = self.session.state.plan
        if plan is None or plan.command is None:
            self.say("there is no command to copy", Level.WARN, "v says why" if plan else "p picks a preset")
            return
        self._copy("command" if not plan.nodes else "command of each node", plan.shell())

    def _copy(self, what: str, text: str) -> None:
        from workbench.tui.clipboard import copy

        self.attempt(copy(self.app, text), lambda became: self.say(f"{what} {became}"))

    def action_copy_script(self) -> None:
        if self.need_plan():
            script = self.try_now(self.session.script)
            if script:
                self._copy("shell script of the plan", script)

"""The keys for recipes of other tools: save a recipe as a preset, and copy the plan as a recipe of
another tool."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from workbench.model.counts import count_of
from workbench.model.errors import InputError
from workbench.model.findings import Level
from workbench.tui.cells import Row, paragraph_rows
from workbench.tui.clipboard import copy_to_clipboard_and_describe
from workbench.tui.controllers.base import Controller
from workbench.tui.formats import enclose_nonempty_text
from workbench.tui.modals.ask import Confirm
from workbench.tui.modals.base import PickModal
from workbench.tui.modals.form import Field, Form, Values
from workbench.tui.modals.launch import finding_rows
from workbench.tui.pages.texts import preset_rows
from workbench.tui.widgets.entry import LINE_END

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workbench.model.gpu import GpuInfo
    from workbench.session.plans.recipes import ImportedRecipe


class RecipeController(Controller):
    async def copy_plan_as_recipe(self) -> None:
        """Ask for the tool, and copy the plan to the clipboard as a recipe of that tool."""
        from workbench.recipes.registry import EXPORT_FORMS

        if self.state.plan is None:
            self.show_message("there is no plan yet", Level.WARN, "press p to load a preset")
            return

        def copy_in_chosen_format(name: str | None) -> None:
            if name is None:
                return
            made = self.run_or_show_error(lambda: self.session.plans.export_plan(name))
            if made is None:
                return
            left_out = "; ".join(
                f.text for f in made.findings if f.level in (Level.ERROR, Level.WARN)
            )
            level, form = Level.INFO, titles[made.form]
            if left_out:
                level = Level.WARN
            self.run_in_background(
                copy_to_clipboard_and_describe(self.app, made.text),
                lambda outcome: self.show_message(
                    f"the plan as {form} {outcome}{enclose_nonempty_text('; ', left_out)}", level
                ),
            )

        titles = {form.name: form.title for form in EXPORT_FORMS}
        items = [(name, title, "text") for name, title in titles.items()]
        await self.app.push_screen(
            PickModal("Copy the plan as", items, filter=True, free=False), copy_in_chosen_format
        )

    async def import_recipe(self) -> None:
        """Ask for a recipe of another tool, show the preset that is made from it, and ask whether
        to save the preset."""
        intro = (
            "The path of a recipe, compose file or script of another tool, or a pasted text. "
            "Nothing is run."
        )
        fields = [
            Field("source", "recipe", wide=True, lines=True),
            Field("id", "id", hint="empty: made from the recipe"),
        ]
        found: list[ImportedRecipe] = []

        def require_recipe_source(values: Values) -> None:
            if not values["source"].strip():
                raise InputError("enter the path of a recipe, or its text")

        async def read_recipe(values: Values) -> None:
            source = values["source"].replace(LINE_END, "\n").strip()
            preset_id = values["id"] or None
            path = Path(source).expanduser()
            recipes = self.session.presets.recipes
            is_path = len(source.split()) == 1 or ("\n" not in source and path.exists())
            gpus: Sequence[GpuInfo] | None = None
            if self.state.telemetry is not None:
                gpus = self.state.telemetry.infos
            if is_path:
                found[:] = [recipes.read_recipe_file(path, preset_id, gpus=gpus)]
            else:
                found[:] = [recipes.read_recipe_text(source, "", preset_id, gpus=gpus)]

        def show_recipe_if_read(values: Values | None) -> None:
            if values is not None:
                self._show_imported_recipe(found[0])

        form = Form(
            "Import a recipe",
            fields,
            intro=lambda width: [*paragraph_rows(intro, width, "dim"), ()],
            check=require_recipe_source,
            accept="read",
            submit=read_recipe,
            doing="reading",
        )
        await self.app.push_screen(form, show_recipe_if_read)

    def _show_imported_recipe(self, imported: ImportedRecipe) -> None:
        def make_recipe_rows(width: int) -> list[Row]:
            made = finding_rows(imported.findings, width) or paragraph_rows(
                "nothing was left out", width, "dim"
            )
            title = count_of(len(imported.findings), "finding")
            rows: list[Row] = [((title, "title"),), *made, ()]
            if imported.preset is not None:
                rows += preset_rows(imported.preset, width)
            return rows

        def save_if_confirmed(save: bool | None) -> None:
            if not save:
                return
            path = self.run_or_show_error(
                lambda: self.session.presets.recipes.write_preset_file(imported)
            )
            if path is not None:
                self.show_message(f"saved: {path}")

        question = Confirm(
            f"Import {imported.preset_id}",
            make_recipe_rows,
            yes="save it as your own preset",
            wide=True,
        )
        self.app.push_screen(question, save_if_confirmed)

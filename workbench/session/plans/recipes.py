"""Recipes of other tools: reading them as presets, and writing launches in other tools' forms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.model.errors import InputError, PresetError, error_reason
from workbench.model.findings import Finding, Level, by_severity
from workbench.model.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from workbench.model.gpu import GpuInfo
    from workbench.model.plan import LaunchPlan
    from workbench.model.preset import Preset
    from workbench.recipes.recipe import Given, Recipe
    from workbench.session.state_holder import StateHolder
    from workbench.store.presets import PresetLibrary

MAX_FILE_BYTES = 1024 * 1024  # of a file that is read; the forms have smaller limits of their own


@dataclass(frozen=True, slots=True)
class ImportedRecipe:
    """A recipe of another tool as a preset that is not saved yet. `preset` is None if an error
    among the findings prevents saving."""

    form: str
    preset_id: str
    document: dict[str, Any]
    preset: Preset | None
    findings: tuple[Finding, ...]
    # the number of GPUs in the preset follows from the GPUs of the host
    depends_on_gpus: bool = False


@dataclass(frozen=True, slots=True)
class ExportedPlan:
    """A launch of a server as text in the form of another tool, such as a systemd unit. `findings`
    are about the parts of the launch that this form cannot express."""

    form: str
    text: str
    findings: tuple[Finding, ...]


def export_plan(
    plan: LaunchPlan,
    form: str,
    *,
    name: str,
    title: str = "",
    gpus: int | None = None,
    node: str | None = None,
) -> ExportedPlan:
    """Return a plan as text in the form of the tool `form`, with references in place of secrets.
    `gpus` is the number of GPUs of all nodes (None: that of the plan). `node` chooses one node of
    a plan for several nodes, by its key, name or rank. Raises InputError if there is no such node
    or the form cannot express the plan, and PlanError for a plan that cannot be started."""
    from workbench.recipes.launch import RAY_ORDER, build_launch
    from workbench.recipes.preset_document import slug_of
    from workbench.recipes.recipe import Notes
    from workbench.recipes.registry import find_export_form

    notes = Notes()
    launch = build_launch(plan, notes, slug_of(name), title, gpus)
    if node is not None:
        found = [its for one, its in launch.nodes if node in (one.key, one.name, str(one.rank))]
        parts = ", ".join(one.key for one, _ in launch.nodes)
        if not found:
            step = f"its nodes: {parts or 'none'}"
            raise InputError(f"the plan has no node {node!r}", next_step=step)
        if launch.needs_ray:
            text = f"this starts one of the {len(launch.nodes)} parts of the server: {parts}"
            notes.add(Level.WARN, "one-part", text, fix=f"export each of them; {RAY_ORDER}")
        launch = found[0]
    text = find_export_form(form).render(launch, notes)
    return ExportedPlan(form, text, tuple(notes.findings))


class Recipes:
    """Reads recipes without running anything in them, and saves them as presets of the user.
    `on_saved` is called after each preset that was saved."""

    def __init__(
        self, core: StateHolder, library: PresetLibrary, on_saved: Callable[[], None]
    ) -> None:
        self._core, self._library, self._saved = core, library, on_saved

    def read_recipe_file(
        self,
        path: Path,
        preset_id: str | None = None,
        entry: str | None = None,
        gpus: Sequence[GpuInfo] | None = None,
    ) -> ImportedRecipe:
        """Return the recipe in a file as a preset that is not saved yet. `preset_id` is the id of
        that preset, by default one made from the recipe. `entry` is the service, variant or model
        to read from a file that has several. `gpus` are the GPUs of the host, None if they are
        unknown. Raises InputError if the file cannot be read or is no recipe."""
        from workbench.recipes.recipe import Given

        try:
            if not path.is_file():
                raise InputError(
                    f"{path} is not a file", next_step="give the path of a recipe, or --command"
                )
            with path.open("rb") as handle:
                data = handle.read(MAX_FILE_BYTES + 1)
        except (OSError, ValueError) as error:
            raise InputError(f"{path} cannot be read: {error_reason(error)}") from None
        if len(data) > MAX_FILE_BYTES or b"\0" in data:
            raise InputError(f"{path} is no recipe: it is larger than 1 MiB or not a text")
        directory = path.absolute().parent
        given = Given(entry, directory, None if gpus is None else tuple(gpus))
        return self._read_recipe(data.decode("utf-8-sig", "replace"), path.name, preset_id, given)

    def read_recipe_text(
        self,
        text: str,
        source: str = "",
        preset_id: str | None = None,
        entry: str | None = None,
        gpus: Sequence[GpuInfo] | None = None,
    ) -> ImportedRecipe:
        """Return a recipe or a pasted command line as a preset that is not saved yet. `source`
        names the origin of the text, and `preset_id` is the id of the preset, by default one made
        from the recipe. `entry` is the service, variant or model to read from a text that has
        several. `gpus` are the GPUs of the host, None if they are unknown. Raises InputError if the
        text is no recipe."""
        from workbench.recipes.recipe import Given

        given = Given(entry, None, None if gpus is None else tuple(gpus))
        return self._read_recipe(text, source, preset_id, given)

    def _read_recipe(
        self, text: str, source: str, preset_id: str | None, given: Given
    ) -> ImportedRecipe:
        from workbench.recipes.registry import parse_recipe_text

        recipe = parse_recipe_text(text, given)
        return self._import_recipe(recipe, f"{recipe.form} {source}".strip(), preset_id)

    async def read_running_process(self, pid: int, preset_id: str | None = None) -> ImportedRecipe:
        """Return the command of a running process of the host as a preset that is not saved yet.
        `preset_id` is the id of that preset, by default one made from the command. Raises
        InputError if the command starts no server."""
        from workbench.recipes.imports import running_process
        from workbench.server.process_command import read_command

        host = self._core.host
        found = (await read_command(host, pid)).without_control_characters()
        recipe = running_process.recipe_of_process(found.argv, found.env, found.workdir)
        return self._import_recipe(recipe, f"process {pid} on {host.name}", preset_id)

    def _import_recipe(self, recipe: Recipe, source: str, preset_id: str | None) -> ImportedRecipe:
        """Return a recipe as a checked preset that is not saved yet. Raises InputError, with all
        findings, if the recipe starts no server."""
        import tomlkit

        from workbench import engines
        from workbench.recipes.preset_document import preset_document_of_recipe, preset_id_of
        from workbench.store.preset_check import check_text
        from workbench.store.toml_edit import drop_none_values

        if recipe.plan is None:
            first, *others = recipe.findings
            raise InputError(first.text, next_step=first.fix, findings=tuple(others))
        chosen = preset_id or preset_id_of(recipe)
        document: dict[str, Any] = drop_none_values(
            preset_document_of_recipe(recipe, chosen, source)
        )
        checked = check_text(tomlkit.dumps(document))
        findings = [*recipe.findings, *(replace(f, line=None) for f in checked.findings)]
        if checked.preset is not None:
            catalog = engines.get_engine(recipe.plan.engine).catalog()
            findings += engines.validate_plan(recipe.plan, catalog)
        return ImportedRecipe(
            recipe.form,
            chosen,
            document,
            checked.preset,
            by_severity(findings),
            recipe.depends_on_gpus,
        )

    def write_preset_file(self, imported: ImportedRecipe) -> str:
        """Write the preset into the user's own directory. Return its path. Raises PresetError if it
        is not valid or exists already."""
        if imported.preset is None:
            first = next(f for f in imported.findings if f.level is Level.ERROR)
            raise PresetError(f"the preset cannot be saved: {first.text}", next_step=first.fix)
        path = self._library.save(imported.document, imported.preset_id)
        self._saved()
        return str(path)

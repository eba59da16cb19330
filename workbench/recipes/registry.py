"""The registry of recipe formats: those that Workbench reads and those that it writes.

For a new format, write one module and add an entry here. A module that reads a format has
`recognizes(document)` and `read(document, notes, given)`. Modules are imported when their format is
first used.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from workbench.model.errors import InputError
from workbench.model.lazy_dataclass import dataclass
from workbench.model.untrusted_text import clean_data, clean_json, clean_text
from workbench.recipes.recipe import COMPUTED, Given, Notes, Recipe, drop_values_unfit_for_preset

if TYPE_CHECKING:
    from workbench.recipes.launch import Launch


@dataclass(frozen=True, slots=True)
class ImportForm:
    """A format of recipes in YAML or JSON that Workbench reads. `module` is the name of its module
    in the package `recipes.imports`."""

    title: str
    module: str

    def recognizes(self, document: Mapping[str, Any]) -> bool:
        recognized: bool = import_module(f"workbench.recipes.imports.{self.module}").recognizes(
            document
        )
        return recognized

    def read(self, document: Mapping[str, Any], notes: Notes, given: Given) -> Recipe:
        recipe: Recipe = import_module(f"workbench.recipes.imports.{self.module}").read(
            document, notes, given
        )
        return recipe


# in the order in which they are tried; any other text is a command line or a script
IMPORT_FORMS = (
    ImportForm("compose files", "compose"),
    ImportForm("vLLM recipes", "vllm_recipe"),
    ImportForm("club presets", "club_preset"),
    ImportForm("llama-swap configurations", "llama_swap"),
    ImportForm("Kubernetes manifests", "kubernetes"),
    ImportForm("values of the vLLM production stack", "helm_values"),
    ImportForm("sparkrun and spark-vllm-docker recipes", "sparkrun"),
    ImportForm("TabbyAPI's config.yml", "tabby_config"),
    ImportForm("an engine's configuration files", "engine_config"),
)


@dataclass(frozen=True, slots=True)
class ExportForm:
    """A format in which Workbench writes the start of a server. Users type `name`, and menus show
    `title`. `function` of `module`, in the package `recipes.exports`, returns the text. `for_nodes`
    says whether the text can start a server on several nodes, and `with_files` whether it can write
    files that the server needs."""

    name: str
    title: str
    module: str
    function: str
    for_nodes: bool = False
    with_files: bool = False

    def render(self, launch: Launch, notes: Notes) -> str:
        """Return the start of the server as text in this format. Raises InputError if this format
        cannot express it."""
        if launch.nodes and not self.for_nodes:
            names = ", ".join(node.key for node, _ in launch.nodes)
            raise InputError(
                f"a {self.title} can start one node, and the plan has several",
                next_step=f"choose the node with --node: {names}",
            )
        if launch.files and not self.with_files:
            names = ", ".join(launch.files)
            raise InputError(
                f"the server needs the file {names}, which a {self.title} cannot write",
                next_step="export as one of "
                f"{', '.join(form.name for form in EXPORT_FORMS if form.with_files)}",
            )
        text: str = getattr(
            import_module(f"workbench.recipes.exports.{self.module}"), self.function
        )(launch, notes)
        return text


EXPORT_FORMS = (
    ExportForm("shell", "shell script", "shell", "shell_script", for_nodes=True, with_files=True),
    ExportForm("systemd", "systemd unit", "systemd", "systemd_unit_text"),
    ExportForm("docker", "Docker command", "containers", "docker_script"),
    ExportForm("podman", "Podman command", "containers", "podman_script"),
    ExportForm("compose", "compose file", "containers", "compose_file_text"),
    ExportForm(
        "slurm", "Slurm job script", "shell", "slurm_script", for_nodes=True, with_files=True
    ),
    ExportForm("pbs", "PBS job script", "shell", "pbs_script", with_files=True),
    ExportForm("sparkrun", "sparkrun recipe", "sparkrun", "sparkrun_recipe_text", for_nodes=True),
    ExportForm("llamaswap", "llama-swap configuration", "llama_swap", "llama_swap_text"),
    ExportForm(
        "helm", "Helm values (vLLM production stack)", "helm", "helm_values_text", for_nodes=True
    ),
)


def find_export_form(name: str) -> ExportForm:
    """Return the export format called `name`. Raises InputError, which lists the names, if there is
    none."""
    found = next((form for form in EXPORT_FORMS if form.name == name), None)
    if found is None:
        raise InputError(
            f"unknown export format {name!r}",
            next_step=f"use one of the formats {', '.join(f.name for f in EXPORT_FORMS)}",
        )
    return found


_NOTHING_GIVEN = Given()


def parse_recipe_text(text: str, given: Given = _NOTHING_GIVEN) -> Recipe:
    """Return the recipe in a text: a systemd unit, a document in one of IMPORT_FORMS, or else a
    command line or shell script. Its plan is None if it starts no server. Nothing in the text is
    run. Raises InputError if the text cannot be read, or has no entry `given.entry`."""
    from workbench.recipes.imports import systemd_unit

    text = clean_text(text, len(text), lines=True).replace(COMPUTED, "")
    notes = Notes()
    if systemd_unit.recognizes(text):
        given.require_entry_among(systemd_unit.FORM_TITLE, "entry")
        return drop_values_unfit_for_preset(systemd_unit.read(text, notes), notes)
    document = _parse_document(text)
    if document is None:
        return drop_values_unfit_for_preset(_recipe_of_script(text, notes, given), notes)
    for form in IMPORT_FORMS:
        if form.recognizes(document):
            try:
                return drop_values_unfit_for_preset(form.read(document, notes, given), notes)
            except RecursionError:
                raise InputError("a value of the recipe is nested too deeply") from None
    known = ", ".join(form.title for form in IMPORT_FORMS)
    raise InputError(
        "the document has no recipe format that Workbench knows; its fields: "
        f"{', '.join(document)[:200]}",
        next_step=f"use one of the formats that Workbench reads: {known}, scripts and command "
        "lines",
    )


def _recipe_of_script(text: str, notes: Notes, given: Given) -> Recipe:
    from workbench.recipes.imports import shell_script

    recipe = shell_script.read(text, notes, given)
    if recipe.plan is not None or "<<" not in text:
        return recipe
    from workbench.recipes.imports import written_file

    return written_file.read_file_written_by_script(text, notes, given) or recipe


def _parse_document(text: str) -> Mapping[str, Any] | None:
    """Return the mapping that a YAML or JSON text contains; several YAML documents become a List of
    Kubernetes. None if the text is a command line or a script. Raises InputError if the text is not
    valid, contains no mapping, or has several documents that are no objects of Kubernetes."""
    from workbench.recipes import yaml_text

    stripped = text.lstrip()
    if stripped.startswith(("{", "[")):
        return _require_mapping(_parse_json(stripped))
    if not _looks_like_yaml(text):
        return None
    documents = [
        clean_data(one, yaml_text.MAX_BYTES, lines=True)  # "\x1b" in quotes
        for one in yaml_text.load_all_documents(text)
    ]
    if len(documents) == 1:
        return _require_mapping(documents[0])
    objects = [one for one in documents if one is not None]
    if all(isinstance(one, dict) and "kind" in one for one in objects):
        return {"apiVersion": "v1", "kind": "List", "items": objects}
    raise InputError(
        f"the text has {len(documents)} YAML documents, and Workbench reads several only as the "
        "objects of Kubernetes",
        next_step="import a file with one of them",
    )


def _parse_json(text: str) -> Any:
    from workbench.recipes import yaml_text

    if len(text) > yaml_text.MAX_BYTES:
        raise InputError(
            f"the document has more than {yaml_text.MAX_BYTES // 1024} KiB, the limit for a recipe"
        )
    try:
        return clean_json(text, yaml_text.MAX_BYTES, lines=True)
    except ValueError as error:
        raise InputError(f"the document is not valid JSON: {error}") from None


def _require_mapping(document: Any) -> Mapping[str, Any]:
    if not isinstance(document, dict):
        raise InputError("the document is a list or a single value, but a recipe has named fields")
    return document


def _looks_like_yaml(text: str) -> bool:
    """Return whether the first line that is neither empty nor a comment is a field, such as "model:
    x", or begins a YAML document ("---")."""
    import re

    for line in text.splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            begin = r"""---|["']?[A-Za-z_][\w .-]*["']?\s*:(?:\s|$)"""
            return re.match(begin, line) is not None
    return False

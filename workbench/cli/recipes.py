"""The commands `import` and `export`. `import` makes a preset from a recipe of another tool;
`export` writes a launch as such a recipe."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.cli.open_session import (
    connect_session,
    create_local_session,
    read_gpus_in_background,
)
from workbench.cli.output import (
    format_finding_line,
    items_as_json,
    print_json,
    print_line,
    print_lines,
    print_message,
)
from workbench.cli.questions import require_confirmation
from workbench.cli.registry import command, make_exclusive_options, option
from workbench.cli.shared_options import CHANGES, YES
from workbench.model.errors import InputError, PresetError, WorkbenchError, error_reason
from workbench.recipes.registry import EXPORT_FORMS

if TYPE_CHECKING:
    from workbench.model.gpu import GpuInfo
    from workbench.model.plan import LaunchPlan
    from workbench.session.plans.recipes import ImportedRecipe
    from workbench.session.session import Session


@command(
    "import",
    "make a preset of a recipe, compose file, script or command line of another tool; nothing in "
    "it is run",
    option(
        "file FILE",
        "recipe, compose file, preset or script of another tool; - reads standard input",
        nargs="?",
    ),
    make_exclusive_options(
        option("--command LINE", "a command line that starts a server", dest="line"),
        option("--pid PID", "a server that runs on the host", int),
    ),
    option("--name ID", "id of the new preset (default: from the recipe)"),
    option(
        "--entry NAME",
        "service, variant, model or number of the server command to take from a file that has "
        "several",
    ),
    YES,
    examples=(
        "workbench import recipe.yaml --name my-recipe",
        'workbench import --command "vllm serve Qwen/Qwen3-8B -tp 2"',
        "workbench --host gpu-box import --pid 4711 --yes",
    ),
)
async def import_recipe(arguments: argparse.Namespace) -> int:
    """Read a recipe and show it as a preset, ask for confirmation, and save the preset. Return 0,
    or 2 if the recipe could not become a preset. Raises InputError if the recipe has no source or
    several."""
    if sum(given is not None for given in (arguments.file, arguments.line, arguments.pid)) != 1:
        raise InputError(
            "import needs exactly one source",
            next_step="give a FILE, or --command LINE, or --pid PID",
        )
    if arguments.pid is not None:
        async with connect_session(arguments) as session:
            imported = await session.presets.recipes.read_running_process(
                arguments.pid, arguments.name
            )
    else:
        session = create_local_session()
        read = _recipe_reader(session, arguments)
        imported = read(None)
        if imported.depends_on_gpus:
            imported = read(await _read_gpus_or_none(arguments))
    if not arguments.json:
        _print_imported_recipe(imported)
    path = None
    if imported.preset is not None and (arguments.yes or not arguments.json):
        await _confirm_preset_save(arguments, imported.preset_id)
        path = session.presets.recipes.write_preset_file(imported)
        if arguments.line is not None:
            _trust_preset_executable(session, imported.preset_id)
    if arguments.json:
        print_json(_imported_recipe_json(imported, path))
    elif path:
        print_line(f"saved: {path}\n`workbench plan {imported.preset_id}` shows its command")
    return 0 if imported.preset is not None else 2


def _recipe_reader(
    session: Session, arguments: argparse.Namespace
) -> Callable[[Sequence[GpuInfo] | None], ImportedRecipe]:
    """Return a function that reads the recipe for a host with the given GPUs; None means that they
    are not known."""
    recipes, name, entry = session.presets.recipes, arguments.name, arguments.entry
    if arguments.line is None and arguments.file != "-":
        return partial(recipes.read_recipe_file, Path(arguments.file), name, entry)
    text = arguments.line if arguments.line is not None else _read_standard_input()
    return partial(recipes.read_recipe_text, text, "", name, entry)


async def _read_gpus_or_none(arguments: argparse.Namespace) -> Sequence[GpuInfo] | None:
    """Return the GPUs of the host, None if they cannot be read. A recipe can be imported on a
    machine without GPUs."""
    try:
        async with (
            connect_session(arguments) as session,
            read_gpus_in_background(session) as reading,
        ):
            return (await reading).infos
    except WorkbenchError as error:
        print_message(f"the GPUs of the host are not known: {error.message}")
        return None


def _trust_preset_executable(session: Session, preset_id: str) -> None:
    """Trust the program of a saved preset, whose command line the user has typed and confirmed.
    Whatever else the line runs still needs consent at the start."""
    from workbench.engines.preset_trust import list_foreign_parts
    from workbench.store.trusted_presets import trust_digests

    with contextlib.suppress(WorkbenchError):  # a variable of the preset has no value yet
        parts = list_foreign_parts(session.presets.make_plan(preset_id, {}))
        trust_digests(part.digest for part in parts if part.name == "executable")


def _read_standard_input() -> str:
    import sys

    return sys.stdin.read(1 << 20)


async def _confirm_preset_save(arguments: argparse.Namespace, preset_id: str) -> None:
    question = f"Save the preset {preset_id}?"
    problem = f"the preset {preset_id} is not saved, because nobody can be asked to confirm"
    await require_confirmation(
        arguments, question, problem=problem, next_step="add --yes to save the preset"
    )


def _print_imported_recipe(imported: ImportedRecipe) -> None:
    from workbench.cli.presets import preset_section_lines

    if imported.preset is not None:
        print_line(f"{imported.preset_id}: {imported.preset.title}\n")
        print_lines(preset_section_lines(imported.preset, ("benchmark", "baseline")))
    for finding in imported.findings:
        print_message(f"  {format_finding_line(finding)}")
    if imported.preset is None:
        print_message("the preset cannot be saved; correct the errors in the recipe")


def _imported_recipe_json(imported: ImportedRecipe, path: str | None) -> dict[str, Any]:
    return {
        "form": imported.form,
        "id": imported.preset_id,
        "preset": imported.document,
        "findings": items_as_json(imported.findings),
        "saved": path,
    }


@command(
    "export",
    "write a launch in the form of another tool: a script, a service, a container, a job, a recipe",
    option("base PRESET|RUN", "id of a preset, path of a preset file, or id of a run on the host"),
    option(
        "--as FORM",
        f"form to write: {', '.join(f'{form.name} ({form.title})' for form in EXPORT_FORMS)}",
        lambda word: word.replace("-", ""),  # llama-swap spells its own name so
        dest="form",
        choices=[form.name for form in EXPORT_FORMS],
        default=EXPORT_FORMS[0].name,
    ),
    option("-o --output FILE", "write to a new file instead of standard output"),
    option("--node NAME", "one node of a launch on several hosts"),
    *CHANGES,
    examples=(
        "workbench export vllm-any --var model=Qwen/Qwen3-8B --as systemd",
        "workbench export vllm-llama-3.3-70b-2x-spark --as slurm --var head_ip=10.0.0.1 --var "
        "worker_ip=10.0.0.2",
    ),
)
async def export_launch(arguments: argparse.Namespace) -> int:
    """Print a launch in the form of another tool, or write it to a file. The text contains the
    names of secrets, never their values."""
    from workbench.session.plans.recipes import export_plan

    plan, title, gpus = await _load_plan_title_gpu_count(arguments)
    name = plan.preset_id or arguments.base
    exported = export_plan(
        plan, arguments.form, name=name, title=title, gpus=gpus, node=arguments.node
    )
    if arguments.output:
        _write_new_file(Path(arguments.output), exported.text)
    if arguments.json:
        findings = items_as_json(exported.findings)
        return print_json(
            {
                "form": exported.form,
                "text": exported.text,
                "file": arguments.output,
                "findings": findings,
            }
        )
    if arguments.output:
        print_line(f"written: {arguments.output}")
    else:
        print_line(exported.text.rstrip("\n"))
    for finding in exported.findings:
        print_message(f"  {format_finding_line(finding)}")
    return 0


async def _load_plan_title_gpu_count(
    arguments: argparse.Namespace,
) -> tuple[LaunchPlan, str, int | None]:
    """Return (launch plan, title, number of GPUs) for the preset or run that the command line
    names. The changes that the options request are applied to the plan. The number is None if
    unknown."""
    from workbench.cli.plan import parse_variables
    from workbench.cli.servers import find_run
    from workbench.engines import set_executable
    from workbench.session.plans.plan_editor import PlanEditor

    if arguments.cluster is not None:
        return await _cluster_plan_title_gpu_count(arguments)
    session, gpus = create_local_session(), None
    try:
        preset = session.presets.get(arguments.base)
        plan, title, gpus = (
            session.presets.make_plan(arguments.base, parse_variables(arguments)),
            preset.title,
            preset.hardware.count,
        )
    except PresetError as error:
        if error.findings:
            raise
        async with connect_session(arguments) as connection:
            try:
                run = await find_run(connection, arguments.base)
            except WorkbenchError:
                raise error from None
            record = connection.servers.supervisor.record(run.run_id)
            plan, title = record.plan, f"{run.engine} {run.model}"
    if arguments.executable is not None:
        plan = set_executable(plan, arguments.executable)
    editor = PlanEditor(plan, title)
    editor.apply_assignments(arguments.sets, arguments.unsets, arguments.envs)
    return editor.effective_plan, title, gpus


async def _cluster_plan_title_gpu_count(
    arguments: argparse.Namespace,
) -> tuple[LaunchPlan, str, int | None]:
    """Return (launch plan, title, number of GPUs) for a preset on the nodes of the cluster that the
    command line names. The nodes are asked for their addresses and network interfaces. The number
    is None if unknown."""
    from workbench.cli.plan import parse_variables
    from workbench.engines import set_executable

    async with connect_session(arguments) as session:
        preset = session.presets.get(arguments.base)
        plan = session.presets.make_plan(arguments.base, parse_variables(arguments))
        if arguments.executable is not None:
            plan = set_executable(plan, arguments.executable)
        session.plans.edit_plan(plan, preset.title)
        await session.plans.locate_engine()
        editor = session.plans.editor
        editor.apply_assignments(arguments.sets, arguments.unsets, arguments.envs)
        return editor.effective_plan, preset.title, preset.hardware.count


def _write_new_file(path: Path, text: str) -> None:
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise InputError(
            f"{path} exists already", next_step="choose another file name, or remove the file first"
        ) from None
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error_reason(error)}") from None

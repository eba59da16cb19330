"""The command that starts the server of a recipe, and its conversion to a plan. All import formats
produce this command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from workbench.engines import registry
from workbench.engines.base import Engine
from workbench.engines.catalog import look_up_flag, parse_version_numbers
from workbench.engines.command_line import EngineCommandLine, parse_plan, recognize_engine_start
from workbench.model.findings import Finding, Level
from workbench.model.flags import FlagCatalog, FlagKind, FlagSetting, Origin
from workbench.model.lazy_dataclass import dataclass
from workbench.model.plan import LaunchPlan
from workbench.model.secrets import is_secret_name
from workbench.model.untrusted_text import VARIABLE_NAME
from workbench.recipes.recipe import COMPUTED, Notes

VISIBLE_TO_CONTAINER = "NVIDIA_VISIBLE_DEVICES"


@dataclass(slots=True)
class ServerCommand:
    """A command that starts a server: engine, program and arguments in `start`, the environment,
    and if the server runs in a container, the image, paths and ports of that container."""

    start: EngineCommandLine
    env: dict[str, str] = field(default_factory=dict)
    workdir: str | None = None
    open_files: int | None = None
    image: str = ""
    gpus: int | None = None
    # path in the container -> path on the host
    paths: Mapping[str, str] = field(default_factory=dict)
    # port in the container -> port of the host
    ports: Mapping[int, int] = field(default_factory=dict)


def plan_of_command(command: ServerCommand, notes: Notes) -> LaunchPlan:
    """Return the plan that starts the same server on a host, without a container. Parts of the
    command that a plan cannot contain are added to `notes`."""
    engine = command.start.engine
    tag = command.image.partition("@")[0].rpartition(":")[2]
    version = tag.removeprefix("v") if parse_version_numbers(tag) else None
    env = {}
    for name, text in command.env.items():
        hides_secret_of_user = not text and is_secret_name(name)
        if _is_importable_variable(name, notes) and not hides_secret_of_user:
            env[name] = text
    start = replace(
        command.start, arguments=_drop_arguments_computed_by_shell(engine, command.start.arguments)
    )
    plan, findings = parse_plan(start, env, command.workdir, version)
    notes.findings += [found for found in findings if found not in notes.findings]
    plan = replace(
        plan,
        open_files=command.open_files,
        image=command.image or None,
        executable_from="preset" if plan.executable else "",
    )
    return _with_host_paths(_with_host_port(plan, engine, command.ports), command.paths, notes)


def _drop_arguments_computed_by_shell(engine: Engine, words: Sequence[str]) -> tuple[str, ...]:
    """Return the arguments `words` without those that only a shell could compute. Such an argument
    stays if it is the value of a flag, because the flag would otherwise take the next argument."""
    catalog, kept = engine.catalog(), []
    for before, word in zip(("", *words), words, strict=False):
        if word.strip(COMPUTED) or _is_flag_with_value(before, catalog):
            kept.append(word)
    return tuple(kept)


def _is_flag_with_value(word: str, catalog: FlagCatalog) -> bool:
    if not word.startswith("-"):
        return False
    spec = look_up_flag(catalog, word).spec
    return spec is not None and spec.kind is not FlagKind.BOOL


def _is_importable_variable(name: str, notes: Notes) -> bool:
    """Return whether a preset can have the environment variable `name`. If it is no name of one,
    add an error to `notes`."""
    if not VARIABLE_NAME.fullmatch(name):
        notes.add(
            Level.ERROR,
            "env-name",
            f"{name!r} is not the name of an environment variable; it is left out",
        )
        return False
    return name != VISIBLE_TO_CONTAINER


def _with_host_port(plan: LaunchPlan, engine: Engine, ports: Mapping[int, int]) -> LaunchPlan:
    """Return the plan with the host's port in place of the container's port. `ports` has the host's
    port by the container's port; the plan is unchanged if its port is not among them."""
    inside = plan.flag("port") or engine.default_port
    outside = ports.get(inside) if isinstance(inside, int) else None
    return plan.with_flag("port", outside, Origin.PRESET) if outside not in (None, inside) else plan


def _with_host_paths(plan: LaunchPlan, paths: Mapping[str, str], notes: Notes) -> LaunchPlan:
    """Return the plan with the host's paths in place of the container's paths, in its model, flags
    and environment. `paths` has the host's path by the container's path. A change is added to
    `notes`."""

    def replace_container_paths(value: Any) -> Any:
        if isinstance(value, list):
            return [replace_container_paths(one) for one in value]
        if isinstance(value, Mapping):  # such as the draft model in speculative-config
            return {name: replace_container_paths(one) for name, one in value.items()}
        if isinstance(value, str):
            for inner, outer in sorted(paths.items(), key=lambda pair: -len(pair[0])):
                if is_path_in_directory(value, inner):
                    return outer.rstrip("/") + value[len(inner.rstrip("/")) :]
        return value

    def replace_paths_in_settings(settings: tuple[FlagSetting, ...]) -> tuple[FlagSetting, ...]:
        return tuple(replace(s, value=replace_container_paths(s.value)) for s in settings)

    moved = replace(
        plan,
        model=replace_container_paths(plan.model),
        flags=replace_paths_in_settings(plan.flags),
        env=replace_paths_in_settings(plan.env),
    )
    if moved != plan:
        notes.add_left_out_note(
            "the container's directory layout", "paths in it became the host's paths of its volumes"
        )
    return moved


def is_path_in_directory(path: str, directory: str) -> bool:
    """Return whether `path` is the directory or lies below it."""
    return f"{path}/".startswith(f"{directory.rstrip('/')}/")


def recognize_start_in_container(
    image: str, entrypoint: Sequence[str], command: Sequence[str]
) -> EngineCommandLine | None:
    """Return the start of the engine that a container runs with this `entrypoint` and `command`. If
    they name no engine and `entrypoint` is empty, the engine is taken from the image's name. None
    if that names no engine either."""
    found = recognize_engine_start([*entrypoint, *command])
    if found is not None:
        return replace(found, executable=())
    engine = None if entrypoint else registry.find_engine_named_in_text(image)
    return None if engine is None else EngineCommandLine(engine, (), tuple(command))


def no_server_finding(form: str, found: Sequence[str] = ()) -> Finding:
    """Return the finding that a recipe starts no server of an engine that Workbench supports.
    `form` is the format of the recipe, and `found` are names of what it starts instead."""
    known = ", ".join(registry.get_engine(name).title for name in registry.engine_names())
    named = f"; it names {', '.join(found)}" if found else ""
    text = f"the {form} starts no server of {known}{named}"
    return Finding(
        Level.ERROR,
        "recipe.no-server",
        text,
        fix="give the server's command line with --command LINE",
    )

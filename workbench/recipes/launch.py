"""The data that an export writes: command line, environment, image and GPUs of a server.

An export contains no secret. In its place it has the name of an environment variable that the user
must set.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field, replace

from workbench.engines import registry
from workbench.engines.base import Engine
from workbench.engines.containers import choose_image, command_line_in_image
from workbench.engines.ray import uses_ray
from workbench.model.errors import InputError
from workbench.model.findings import Level
from workbench.model.flags import FlagSetting
from workbench.model.lazy_dataclass import dataclass
from workbench.model.plan import LaunchPlan, Node
from workbench.model.secrets import is_secret_name, mask_secrets_of_plan
from workbench.recipes.recipe import Notes

_MARK = "\ue001"  # around the name of a variable, in place of its secret value

RAY_ORDER = (
    "start Ray on the first node, then on the others, and the server when `ray status` shows "
    "all GPUs"
)


@dataclass(frozen=True, slots=True)
class Secret:
    """An argument of a command line that consists of `prefix` and a secret, which is the value of
    the environment variable `variable`."""

    variable: str
    prefix: str = ""


Word = str | Secret


@dataclass(frozen=True, slots=True)
class Launch:
    """A server to start, in the form that all exports use. `argv` is its command line on a host,
    `in_image` its command line in a container of `image`. For a server that spans several hosts,
    `nodes` has each node with its own Launch."""

    name: str
    title: str
    plan: LaunchPlan
    engine: Engine
    argv: tuple[Word, ...]
    in_image: tuple[Word, ...]
    env: Mapping[str, str]
    secrets: tuple[str, ...]  # names of environment variables that the user must set
    files: Mapping[str, str]
    host: str
    port: int
    image: str
    gpus: int  # of one node
    open_files: int | None = None  # that each process of the server may have open at least
    nodes: tuple[tuple[Node, Launch], ...] = field(default=())

    @property
    def host_count(self) -> int:
        """The number of hosts that the server spans. Nodes with the same rank, such as the server
        and its Ray, are on one host."""
        return max(1, len({node.rank for node, _ in self.nodes}))

    @property
    def needs_ray(self) -> bool:
        """Whether Ray must run on the nodes beside the server."""
        return any(node.role for node, _ in self.nodes)

    @property
    def workdir(self) -> str | None:
        return self.plan.workdir


def build_launch(
    plan: LaunchPlan, notes: Notes, name: str, title: str, gpus: int | None = None
) -> Launch:
    """Return what an export of the plan needs, as a Launch, with a further Launch for each node of
    the plan. Without a `title`, the name is the title. `gpus` is the number of GPUs of all nodes
    together, or None to take it from the plan. Raises PlanError for a plan that cannot be started,
    and InputError if a single node has a secret of its own."""
    engine = registry.get_engine(plan.engine)
    texts = (name, title or name)
    plan, secrets = _replace_secrets(plan, engine, notes)
    hosts = max(1, len({node.rank for node in plan.nodes}))
    count = max(1, (gpus or plan.gpu_count) // hosts)
    if uses_ray(plan) and not plan.nodes:
        _add_ray_note(notes)
    whole = _launch_of_node(replace(plan, nodes=()), None, engine, secrets, (*texts, count))
    nodes = tuple(
        (node, _launch_of_node(plan, node, engine, secrets, (*texts, count))) for node in plan.nodes
    )
    return replace(whole, nodes=nodes)


def _add_ray_note(notes: Notes) -> None:
    text = "on one host, vLLM starts Ray itself; for several hosts, nothing here starts Ray"
    fix = "export with `workbench --cluster NAME export`, which writes the commands of Ray too"
    notes.add(Level.WARN, "ray", text, fix=fix)


def _launch_of_node(
    plan: LaunchPlan,
    node: Node | None,
    engine: Engine,
    secrets: tuple[str, ...],
    name_title_and_gpus: tuple[str, str, int],
) -> Launch:
    name, title, gpus = name_title_and_gpus
    command = engine.command(plan, node)
    argv = tuple(map(argument_or_secret, command.argv))
    return Launch(
        name=name,
        title=title,
        plan=plan,
        engine=engine,
        argv=argv,
        in_image=command_line_in_image(plan, engine, argv),
        env=command.env,
        secrets=secrets,
        files=command.files,
        host=command.host,
        port=command.port,
        image=choose_image(plan, engine),
        gpus=gpus,
        open_files=command.open_files,
    )


def _replace_secrets(
    plan: LaunchPlan, engine: Engine, notes: Notes
) -> tuple[LaunchPlan, tuple[str, ...]]:
    """Return (the plan with a placeholder for each secret flag and without secret variables, the
    names of the environment variables that must contain the secrets). Raises InputError for a
    secret of a single node."""
    secrets: list[str] = []
    masked = mask_secrets_of_plan(plan)
    flags: list[FlagSetting] = []
    for flag, shown in zip(plan.flags, masked.flags, strict=True):
        if not is_secret_name(flag.name):
            if shown.value != flag.value:
                notes.add(
                    Level.WARN,
                    "masked",
                    f"the secret in --{flag.name} is masked: replace *** by the secret",
                )
            flags.append(shown)
            continue
        if flag.name == "api-key" and engine.api_key_env is not None:
            secrets.append(engine.api_key_env)
            continue
        secrets.append(re.sub(r"\W", "_", flag.name).upper())
        flags.append(replace(flag, value=f"{_MARK}{secrets[-1]}{_MARK}"))
    env: list[FlagSetting] = []
    for variable, shown in zip(plan.env, masked.env, strict=True):
        if is_secret_name(variable.name) and variable.value:
            secrets.append(variable.name)
        else:
            if shown.value != variable.value:
                text = (
                    f"the secret in the variable {variable.name} is masked: replace *** by "
                    "the secret"
                )
                notes.add(Level.WARN, "masked", text)
            env.append(shown)
    for node in plan.nodes:
        for name in (*node.flags, *node.env):
            if is_secret_name(name):
                raise InputError(
                    f"the plan sets the secret {name} for the node {node.name} alone, which an "
                    "export cannot express",
                    next_step="set the secret for the whole plan, not for one node",
                )
    return replace(plan, flags=tuple(flags), env=tuple(env)), tuple(dict.fromkeys(secrets))


def argument_or_secret(word: str) -> Word:
    """Return `word`, an argument of a command line, as it is, or as a Secret if it ends with the
    placeholder of one."""
    found = re.fullmatch(rf"(.*){_MARK}(\w+){_MARK}", word, re.DOTALL)
    return Secret(found[2], found[1]) if found else word

"""A launch plan: everything that a start of a server needs, so that it can be shown before anything
starts."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from typing import Any

from workbench.model.flags import FlagSetting, FlagValue, Origin
from workbench.model.lazy_dataclass import dataclass
from workbench.model.model_shape import ModelShape
from workbench.model.open_files import open_files_shell_prefix

PARALLEL_SIZES = ("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size")


@dataclass(frozen=True, slots=True)
class Node:
    """One host's part of a server that spans several hosts: its rank, and the flags and environment
    variables that apply only to this rank."""

    name: str
    rank: int
    flags: Mapping[str, FlagValue] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    role: str = ""  # "ray": not a rank of the engine, but the Ray on that host
    # variable of `env`: where its value is from
    origins: Mapping[str, str] = field(default_factory=dict)
    # in place of the plan's; (): the engine's own; None: that of the plan
    executable: tuple[str, ...] | None = None

    @property
    def node_title(self) -> str:
        return f"{self.role or 'rank'} {self.rank}"

    @property
    def key(self) -> str:
        """The name of this node among all nodes of a server, for a script that starts them: that of
        its host, followed by its role if it has one."""
        return "-".join(filter(None, (self.name, self.role)))


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Sizes of a model, from which Workbench estimates the speed limit and the memory need.

    A size that is unknown is None, and `missing` says why. The sizes are valid for the model `id`
    started with `flags`, which are those flags that change the weights.
    """

    id: str
    parameters: float | None = None  # count, e.g. 70e9
    quantization: str | None = None
    bytes_per_token: float | None = None  # bytes of weights read for one decoded token at batch 1
    weight_bytes: float | None = None  # bytes of weights held in GPU memory
    kv_bytes_per_token: float | None = None
    layers: int | None = None
    shape: ModelShape | None = None  # None: only the sizes above are known
    flags: Mapping[str, FlagValue] = field(default_factory=dict)
    source: str = ""  # "preset vllm-any", "config.json and weight files on spark-01"
    missing: str | None = None  # why a value is unknown

    @property
    def known_shape(self) -> ModelShape:
        """The shape of the model; all of its sizes are unknown if nothing is known of it."""
        return self.shape or ModelShape()


@dataclass(frozen=True, slots=True)
class VariableSource:
    """The origin of the value of a preset's variable. `kind` is "given" (by the user), "cluster",
    "remembered" (from an earlier run), "default" or "example".

    For a remembered value, `run_id` is the earlier run that used it successfully. For a default,
    `instead` is another value that an earlier run used, and `run_id` is that run; both are None if
    there is none. A remembered value never replaces a preset's default, so `instead` is only shown.
    """

    kind: str  # "given", "cluster", "remembered", "default", "example"
    run_id: str | None = None
    instead: str | None = None


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """The engine, model, flags and environment of a server to start. `Engine.command` makes the
    command from a plan."""

    engine: str  # one of engines.registry.names()
    model: str  # path or hub id as the engine is given it
    model_facts: ModelFacts | None = None
    flags: tuple[FlagSetting, ...] = ()  # in the order they appear on the command line
    env: tuple[FlagSetting, ...] = ()
    # argv prefix that overrides the engine's own, e.g. ("/opt/v/bin/vllm",)
    executable: tuple[str, ...] = ()
    stranger: bool = False  # the preset is not a shipped one; see engines/preset_trust.py
    # origin of `executable`: "preset", "config.toml", "hosts.toml", "given"; "": its own
    executable_from: str = ""
    workdir: str | None = None
    image: str | None = None  # container image, for exports and for a start as a container
    # what runs the server on its host: a word of `--as`, see server/launchers
    run_as: str = "process"
    # of `run_as`, such as {"partition": "gpu"}
    run_options: Mapping[str, str] = field(default_factory=dict)
    # that each process of the server may have open at least (RLIMIT_NOFILE)
    open_files: int | None = None
    engine_version: str | None = None  # of the catalog that the plan is checked against
    # PEP 440 range that the preset is valid for, e.g. ">=0.14,<0.34"
    engine_versions: str | None = None
    preset_id: str | None = None
    preset_file: str | None = None  # absolute path, of a preset that is not in the library
    nodes: tuple[Node, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    # of the `variables`, by name
    sources: Mapping[str, VariableSource] = field(default_factory=dict)

    def contains_fillable_text(self, value: str) -> bool:
        """Return whether the text `value` occurs in a part of the plan that a preset's variables
        can fill: the model, working directory, executable, flags, environment, run options, or the
        name, flags or environment of a node. If not, a variable with this value has no effect on
        the plan."""
        filled: list[object] = [self.model, self.workdir, self.executable]
        filled += [setting.value for setting in (*self.flags, *self.env)]
        filled += self.run_options.values()
        for node in self.nodes:
            filled += [node.name, *node.flags.values(), *node.env.values()]
        return any(value in text for text in _yield_texts_of_value(filled))

    @property
    def gpu_count(self) -> int:
        """The number of GPUs on all nodes together that the parallel sizes need; 1 if the plan sets
        no parallel size."""
        count = 1
        for name in PARALLEL_SIZES:
            count *= self.parallel_size_of_flag(name)
        return count

    def parallel_size_of_flag(self, name: str) -> int:
        """Return the parallel size that the flag `name` sets; 1 if the flag is missing or its value
        is not a valid size."""
        value = self.flag(name)
        if isinstance(value, int) and 0 < value < 10_000:
            return value
        return 1

    @property
    def flag_values(self) -> dict[str, FlagValue]:
        """The value of each flag that the plan sets, by name."""
        return _values_by_name(self.flags)

    @property
    def env_texts(self) -> dict[str, str]:
        """The text of each environment variable that the plan sets, by name."""
        return {variable.name: str(variable.value) for variable in self.env}

    def flag(self, name: str) -> FlagValue | None:
        return next((f.value for f in self.flags if f.name == name), None)

    def with_flag(self, name: str, value: FlagValue, origin: Origin = Origin.EDITED) -> LaunchPlan:
        """Return the plan with the flag `name` set to `value`. A flag that the plan has keeps its
        position; a new one comes last."""
        return replace(
            self, flags=_replace_or_append_setting(self.flags, FlagSetting(name, value, origin))
        )

    def without_flag(self, name: str) -> LaunchPlan:
        return replace(self, flags=_without_setting(self.flags, name))

    def with_env(self, name: str, value: str, origin: Origin = Origin.EDITED) -> LaunchPlan:
        return replace(
            self, env=_replace_or_append_setting(self.env, FlagSetting(name, value, origin))
        )

    def without_env(self, name: str) -> LaunchPlan:
        return replace(self, env=_without_setting(self.env, name))


def _yield_texts_of_value(value: object) -> Iterator[str]:
    """Yield the strings and numbers in `value` as texts. A switch and None have no text, and the
    keys of a mapping are not filled with variables."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _yield_texts_of_value(tuple(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _yield_texts_of_value(item)
    elif value is not None and not isinstance(value, bool):
        yield str(value)


def _replace_or_append_setting(
    settings: tuple[FlagSetting, ...], new: FlagSetting
) -> tuple[FlagSetting, ...]:
    """Return the settings with `new` in place of the one with its name; at the end if there is
    none."""
    names = [setting.name for setting in settings]
    if new.name not in names:
        return *settings, new
    return tuple(new if setting.name == new.name else setting for setting in settings)


def _without_setting(settings: tuple[FlagSetting, ...], name: str) -> tuple[FlagSetting, ...]:
    return tuple(setting for setting in settings if setting.name != name)


@dataclass(frozen=True, slots=True)
class Command:
    """A command to run: argv (never a shell string), extra environment variables, and files to
    write before the start.

    `files` maps names relative to the run directory to texts. When the process starts, `{run_dir}`
    in argv is replaced by the run directory on the host.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    workdir: str | None = None
    open_files: int | None = None  # as in LaunchPlan
    host: str = "127.0.0.1"  # what the server binds to
    port: int = 8000

    @property
    def shell_line(self) -> str:
        """The command as one line to paste into a shell: working directory, environment, program
        and arguments, quoted."""
        env = [f"{k}={shlex.quote(v)}" for k, v in self.env.items()]
        line = " ".join((*env, *map(shlex.quote, self.argv)))
        if self.workdir:
            line = f"cd {shlex.quote(self.workdir)} && {line}"
        if self.open_files:
            line = f"{open_files_shell_prefix(self.open_files)}{line}"
        return line


@dataclass(frozen=True, slots=True)
class PlanDifference:
    """One difference between the plans a and b, with the value of both. `kind` is "flag", "env",
    "model", "engine", "executable", "open files", "run as", "image", "run option" or "gpu"."""

    kind: str
    name: str
    a: Any
    b: Any


def plan_differences(a: LaunchPlan, b: LaunchPlan) -> tuple[PlanDifference, ...]:
    """Return the differences between two plans: engine, model and executable first, then flags and
    environment in the order of `b`."""
    named: list[tuple[str, Any, Any]] = [
        ("engine", a.engine, b.engine),
        ("model", a.model, b.model),
        ("executable", shlex.join(a.executable), shlex.join(b.executable)),
        ("open files", a.open_files, b.open_files),
        ("run as", a.run_as, b.run_as),
    ]
    if {a.run_as, b.run_as} != {"process"}:
        named.append(("image", a.image, b.image))
    changes = [PlanDifference(kind, kind, x, y) for kind, x, y in named if x != y]
    for kind, left, right in (
        ("flag", a.flag_values, b.flag_values),
        ("env", _values_by_name(a.env), _values_by_name(b.env)),
    ):
        for name in dict.fromkeys((*right, *left)):
            values = (left.get(name), right.get(name))
            if values[0] != values[1] or (name in left) != (name in right):
                changes.append(PlanDifference(kind, name, *values))
    for name in dict.fromkeys((*a.run_options, *b.run_options)):
        values = (a.run_options.get(name), b.run_options.get(name))
        if values[0] != values[1]:
            changes.append(PlanDifference("run option", name, *values))
    return tuple(changes)


def _values_by_name(settings: tuple[FlagSetting, ...]) -> dict[str, FlagValue]:
    return {setting.name: setting.value for setting in settings}

"""The schema of a preset file (TOML), as dataclasses. Presets may come from strangers, so loading a preset executes
nothing.

`${name}` in a string refers to a variable, whose value the user enters once. Types are strict: "8" is not a number.
store/preset_schema.py reads a document by the annotations of the fields. store/preset_check.py checks the rest, such as
undefined variables and values that try to run a program.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, make_dataclass
from typing import Annotated, Any, Literal, NamedTuple

from workbench.model.run_options import PROCESS
from workbench.model.settings import SETTINGS, ClockSetting, GpuSettings, NumberSetting, Setting, SwitchSetting


class Rule(NamedTuple):
    """A condition that the value of a field must meet besides its type, and the text of the error message for a value
    that does not meet it."""

    holds: Callable[[Any], object]
    expected: str


def _from_to(lowest: int, highest: int) -> Rule:
    return Rule(lambda value: lowest <= value <= highest, f"a whole number from {lowest:,} to {highest:,}")


def _matching(pattern: str, expected: str) -> Rule:
    return Rule(re.compile(pattern).fullmatch, expected)


def _in_order(value: tuple[int, int]) -> bool:
    return 0 <= value[0] <= value[1]


Id = Annotated[
    str, _matching("[a-z0-9][a-z0-9.-]{1,63}", "2 to 64 of a-z, 0-9, dots and dashes; the first is a letter or digit")
]
VariableName = Annotated[str, _matching("[a-z][a-z0-9_]{0,31}", "at most 32 of a-z, 0-9 and _; the first is a letter")]
_CLAUSE = r"(~=|==|!=|<=|>=|<|>) ?[0-9][\w.*+!-]*"
VersionRange = Annotated[
    str, _matching(f"{_CLAUSE}( ?, ?{_CLAUSE})*", 'a range of versions as in PEP 440, such as ">=0.14,<0.34"')
]
Text = Annotated[str, Rule(len, "at least 1 character")]
Title = Annotated[str, Rule(lambda text: 1 <= len(text) <= 80, "1 to 80 characters")]
Counted = Annotated[int, Rule(lambda value: value >= 1, "a whole number from 1")]
Index = Annotated[int, Rule(lambda value: value >= 0, "a whole number from 0")]
Positive = Annotated[float, Rule(lambda value: value > 0, "a number above 0")]
MhzRange = Annotated[tuple[int, int], Rule(_in_order, "[min, max] in MHz with 0 <= min <= max")]
Status = Literal["documented", "corrected", "measured", "untested", "simulated-only"]
Verdict = Literal["true", "false", "partly", "unproven"]
Impact = Literal["high", "medium", "low"]


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """The hardware that the preset was made for. Workbench compares it with the host's hardware, but never enforces
    it. `gpu_names` are the suitable GPUs, as NVML names them. `count` is the number of GPUs on all nodes together.
    `memory_gib` is the memory of one GPU. `platform` is the kind of machine: "bare metal", "esxi passthrough", "dgx
    spark", …"""

    gpu_names: list[str] = field(default_factory=list)
    count: Annotated[int, _from_to(1, 64)] = 1
    memory_gib: Positive | None = None
    platform: str | None = None
    unified_memory: bool = False
    interconnect: str | None = None


IMAGE = "[A-Za-z0-9][A-Za-z0-9._/:@-]*"  # name of a container image, with its tag or digest


@dataclass(frozen=True, kw_only=True)
class EngineRef:
    """The engine of the preset. `name` is one of engines.registry.names(). `versions` are those that the setup is valid
    for. `executable` is the program with its first arguments, instead of the usual ones. `image` is the container image
    of the setup, for `--as docker` and `export`. Each process of the server may have at least `open_files` files open
    (LimitNOFILE, RLIMIT_NOFILE)."""

    name: Text
    versions: VersionRange | None = None
    executable: list[str] | None = None
    workdir: str | None = None
    image: Annotated[str, _matching(IMAGE, "the name of a container image")] | None = None
    open_files: Annotated[int, _from_to(256, 2**30)] | None = None


@dataclass(frozen=True, kw_only=True)
class LaunchEntry:
    """The launcher of the server, as a word of `start --as`, and its options in the form of `--run-option`. A list sets
    an option several times."""

    run_as: str = PROCESS
    run_options: dict[str, str | list[str]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class EndpointEntry:
    """The entry of the server in the endpoint file of verifiers, which `workbench endpoint` writes: its name, as
    `vf-eval -m` takes it, and the path of the file on the host."""

    name: Text
    file: str = "configs/endpoints.py"


@dataclass(frozen=True, kw_only=True)
class PresetModel:
    """The model: its hub id or path, as passed to the engine, and the sizes that the preset's source states.

    parameters_b        billions of parameters
    bytes_per_token_gb  GB (1e9 bytes) of weights that one decoded token reads from memory, at batch size 1
    weight_gb           GB (1e9 bytes) of weights that one replica keeps in GPU memory
    kv_bytes_per_token  bytes of KV cache for each token of the context, with 16-bit values
    """

    id: Text
    parameters_b: Positive | None = None
    quantization: str | None = None
    bytes_per_token_gb: Positive | None = None
    weight_gb: Positive | None = None
    kv_bytes_per_token: Positive | None = None
    layers: Counted | None = None
    source: str | None = None


def _type_of(setting: Setting) -> Any:
    """Return the type of a setting's field in `[[gpu_settings]]`. Host settings apply to the host, whichever GPU is
    named."""
    if isinstance(setting, SwitchSetting):
        return bool | None
    if isinstance(setting, NumberSetting):
        return Positive | None
    if isinstance(setting, ClockSetting):
        return MhzRange | None
    choices = " or ".join(f'"{choice}"' for choice in setting.choices)
    rule = _matching("|".join(setting.choices) or "[a-z_]{1,32}", choices or "at most 32 of a-z and _")
    return Annotated[str, rule] | None


_Settings: Any = make_dataclass(
    "_Settings", [(s.preset_field, _type_of(s), None) for s in SETTINGS], frozen=True, kw_only=True
)


@dataclass(frozen=True, kw_only=True)
class GpuSettingsEntry(_Settings):  # type: ignore[misc]
    """One `[[gpu_settings]]` entry: settings that a preset suggests for one GPU or for all. Loading a preset never
    applies them."""

    gpu: int | Literal["all"] = "all"
    reason: str | None = None

    @property
    def settings(self) -> GpuSettings:
        given = {s: getattr(self, s.preset_field) for s in SETTINGS}
        return GpuSettings({s.key: s.from_stored(value) for s, value in given.items() if value is not None})


PromptTokens = Annotated[int, _from_to(1, 1_000_000)]


@dataclass(frozen=True, kw_only=True)
class WarmUp:
    """Requests that a server gets once, after it is READY and the settings are in force, so that kernels of all sizes
    are compiled. The lengths of their prompts rise evenly."""

    requests: Annotated[int, _from_to(1, 1000)] = 10
    input_tokens: Annotated[tuple[PromptTokens, PromptTokens], Rule(_in_order, "[shortest, longest] in tokens")] = (
        16,
        512,
    )
    max_tokens: Annotated[int, _from_to(1, 4096)] = 100


@dataclass(frozen=True, kw_only=True)
class HostSetting:
    """A host setting that the preset mentions. Workbench shows it and never applies it."""

    name: str
    value: str
    reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class NodeEntry:
    """One node of a server that spans several hosts, with the flags and environment that differ there. Ranks start at 0
    (the head node) and have no gaps."""

    name: str
    rank: Index
    flags: dict[str, Any] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)


def _ranked(nodes: list[NodeEntry]) -> bool:
    return sorted(node.rank for node in nodes) == list(range(len(nodes)))


@dataclass(frozen=True, kw_only=True)
class Variable:
    """A value that the user enters once per host. Workbench remembers it when a server has become READY with it.

    The value of a variable of the kind "secret-env" is the name of an environment variable, never the secret itself.
    """

    description: str
    kind: Literal["path", "text", "host", "port", "secret-env"] = "text"
    default: str | None = None
    example: str | None = None


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """The benchmark that the preset suggests. The time limits are those of one request (if absent, it follows from the
    speed of the server), of a silence after the first token, and of the whole run."""

    profile: str = "quick"
    concurrency: Annotated[list[Counted], Rule(len, "at least 1 number")] = field(default_factory=lambda: [1])
    requests: Counted = 32
    input_tokens: Counted = 128
    max_tokens: Counted = 128
    warmup: Index = 4
    endpoint: Literal["chat", "completions", "embeddings"] = "chat"
    timeout_s: Positive | None = None
    stall_s: Positive | None = None
    deadline_s: Positive | None = None


@dataclass(frozen=True, kw_only=True)
class ReferenceResult:
    """A measured or claimed value from the preset's source. `status` is the kind of source: "claimed by the document",
    "third party", "vendor", "arithmetic", … `ceiling` is the limit of the memory bandwidth, for the same metric and in
    the same unit."""

    metric: str
    value: float
    unit: str
    conditions: str
    status: str
    source: str
    ceiling: Positive | None = None


@dataclass(frozen=True, kw_only=True)
class DocumentClaim:
    """A statement of a document, with the judgement whether it is true and the correct statement. `basis` is the basis
    of the judgement: "arithmetic", "verified in a source", "checked by running it", … `lines` is the place of the
    statement, and `document` its document if it is not the preset's own."""

    text: str
    verdict: Verdict
    correct: str
    basis: str
    lines: str | None = None
    document: str | None = None
    impact: Impact | None = None


@dataclass(frozen=True, kw_only=True)
class SourceDocument:
    """A write-up about one or more setups, and its statements. The presets of these setups name it in `documents`, so
    that a correction stands in one file and is shown with each of them."""

    schema: Literal[1] = 1
    id: Id
    title: Title
    claims: list[DocumentClaim]


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """The origin of the preset: its document, the state of its verification, and a date."""

    document: str
    status: Status
    date: str | None = None
    note: str | None = None


@dataclass(frozen=True, kw_only=True)
class Preset:
    """One documented setup: engine, model, flags and GPU settings, the sources of its numbers, and its known problems.
    `flags` have their long names, without leading dashes. `documents` are shipped write-ups about this setup, whose
    claims are shown with the preset."""

    schema: Literal[1] = 1
    id: Id
    title: Title
    summary: str
    hardware: Hardware
    engine: EngineRef
    launch: LaunchEntry = field(default_factory=LaunchEntry)
    endpoint: EndpointEntry | None = None
    model: PresetModel
    flags: dict[str, Any] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    gpu_settings: list[GpuSettingsEntry] = field(default_factory=list)
    warm_up: WarmUp | None = None
    host_settings: list[HostSetting] = field(default_factory=list)
    nodes: Annotated[list[NodeEntry], Rule(_ranked, "nodes with the ranks 0, 1, 2, …, each once")] = field(
        default_factory=list
    )
    variables: dict[VariableName, Variable] = field(default_factory=dict)
    benchmark: Benchmark = field(default_factory=Benchmark)
    baseline: Id | None = None
    documents: list[Id] = field(default_factory=list)
    references: list[ReferenceResult] = field(default_factory=list)
    claims: list[DocumentClaim] = field(default_factory=list)
    caveats: list[str] = field(default_factory=list)
    provenance: Provenance

    def filled(self, text: str) -> str:
        """Return `text` with each `${name}` replaced by the variable's default. Without a default, the replacement is
        the example or the name, with the note "asked for"."""
        for name, variable in self.variables.items():
            known = variable.default or (f"{variable.example} (asked for)" if variable.example else None)
            text = text.replace(f"${{{name}}}", known or f"<{name}: asked for>")
        return text

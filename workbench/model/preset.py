"""The schema of a preset file (TOML), as pydantic models. Presets may come from strangers, so
loading a preset executes nothing.

`${name}` in a string refers to a variable, whose value the user enters once. Types are strict: "8"
is not a number. store/preset_check.py checks the rest, such as undefined variables and values that
try to run a program.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    Strict,
    StringConstraints,
    create_model,
    field_validator,
)

from workbench.model.declared_options import DeclaredOption
from workbench.model.errors import InputError
from workbench.model.load_spec import MOST_STREAMS
from workbench.model.load_spec import OPTIONS as LOAD_OPTIONS
from workbench.model.run_options import PROCESS
from workbench.model.settings import (
    SETTINGS,
    ClockSetting,
    GpuSettings,
    NumberSetting,
    Setting,
    SwitchSetting,
)

Id = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9.-]{1,63}$")]
VariableName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,31}$")]
_CLAUSE = r"(~=|==|!=|<=|>=|<|>) ?[0-9][\w.*+!-]*"
VersionRange = Annotated[str, StringConstraints(pattern=rf"^{_CLAUSE}( ?, ?{_CLAUSE})*$")]
# TOML has arrays, not tuples; the numbers stay strict
MhzRange = Annotated[tuple[int, int], Strict(False)]
Status = Literal["documented", "corrected", "measured", "untested", "simulated-only"]
Verdict = Literal["true", "false", "partly", "unproven"]
Impact = Literal["high", "medium", "low"]


class _Strict(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        str_strip_whitespace=True,
        strict=True,
        allow_inf_nan=False,
        defer_build=True,
    )


class Hardware(_Strict):
    """The hardware that the preset was made for. Workbench compares it with the host's hardware,
    but never enforces it."""

    gpu_names: list[str] = Field(
        default_factory=list, description="names of suitable GPUs, as NVML reports them"
    )
    count: int = Field(
        1, ge=1, le=64, description="number of GPUs of the setup, on all nodes together"
    )
    memory_gib: float | None = Field(None, gt=0, description="memory of one GPU in GiB")
    platform: str | None = Field(
        None,
        description='kind of machine: "bare metal", "esxi passthrough", "proxmox lxc", "dgx '
        'spark", …',
    )
    unified_memory: bool = False
    interconnect: str | None = None


IMAGE = "[A-Za-z0-9][A-Za-z0-9._/:@-]*"  # name of a container image, with its tag or digest


class EngineRef(_Strict):
    name: str = Field(min_length=1, description="one of engines.registry.names()")
    versions: VersionRange | None = Field(
        None, description='PEP 440 range that the setup is valid for: ">=0.14,<0.34"'
    )
    executable: list[str] | None = Field(
        None,
        description="program and first arguments that start the engine, instead of the usual ones",
    )
    workdir: str | None = None
    image: str | None = Field(
        None,
        pattern=f"^{IMAGE}$",
        description="container image of the setup, for `--as docker` and `export`",
    )
    open_files: int | None = Field(
        None,
        ge=256,
        le=2**30,
        description="smallest limit of open files for each process of the server (LimitNOFILE, "
        "RLIMIT_NOFILE)",
    )


class LaunchEntry(_Strict):
    """The launcher that starts the server, such as systemd or docker, and the launcher's
    options."""

    run_as: str = Field(
        PROCESS,
        description="what runs the server, as for `start --as`: process, systemd, docker, …",
    )
    run_options: dict[str, str | list[str]] = Field(
        default_factory=dict,
        description="options of the launcher by name, as for `--run-option`; a list gives an "
        "option several times",
    )


class EndpointEntry(_Strict):
    """The entry for this server in the endpoint file of the Python package verifiers. `workbench
    endpoint` writes the entry."""

    name: str = Field(
        min_length=1, description="name of the server in the endpoint file, for `vf-eval -m`"
    )
    file: str = Field("configs/endpoints.py", description="path of the endpoint file on the host")


# a number of billions: of bytes or parameters, from those of a toy to a thousand times the largest
_Size = Annotated[float, Field(ge=1e-6, le=1e6)]


class PresetModel(_Strict):
    id: str = Field(
        min_length=1, description="hub id or path of the model, as passed to the engine"
    )
    parameters_b: _Size | None = Field(None, description="billions of parameters")
    quantization: str | None = None
    bytes_per_token_gb: _Size | None = Field(
        None,
        description="GB (1e9 bytes) of weights that one decoded token reads from "
        "memory, at batch size 1",
    )
    weight_gb: _Size | None = Field(
        None, description="GB (1e9 bytes) of weights that one replica keeps in GPU memory"
    )
    kv_bytes_per_token: float | None = Field(
        None,
        ge=1,
        le=1e9,
        description="bytes of KV cache for each token of the context, with 16-bit values",
    )
    layers: int | None = Field(None, gt=0, le=100_000)
    source: str | None = None


def _require_ordered_clocks(value: tuple[int, int]) -> tuple[int, int]:
    """Return the clock range as it is. Raises ValueError if its minimum is below 0 or above its
    maximum."""
    if value[0] < 0 or value[0] > value[1]:
        raise ValueError("expected [min, max] in MHz with 0 <= min <= max")
    return value


PromptTokens = Annotated[int, Field(ge=1, le=1_000_000)]


def _require_ordered_lengths(value: tuple[int, int]) -> tuple[int, int]:
    """Return the lengths as they are. Raises ValueError if the shortest is above the longest."""
    if value[0] > value[1]:
        raise ValueError("expected [shortest, longest] in tokens")
    return value


def _pydantic_field_of_setting(setting: Setting) -> Any:
    """Return (type, default) of a setting's field in `[[gpu_settings]]`, for pydantic's
    `create_model`."""
    if isinstance(setting, SwitchSetting):
        return bool | None, None
    if isinstance(setting, NumberSetting):
        return float | None, Field(None, gt=0)
    if isinstance(setting, ClockSetting):
        return Annotated[MhzRange, AfterValidator(_require_ordered_clocks)] | None, None
    pattern = f"^({'|'.join(setting.choices)})$" if setting.choices else "^[a-z_]{1,32}$"
    return str | None, Field(
        None,
        pattern=pattern,
        description=f"{setting.help}; the setting applies to the host, whichever GPU is named",
    )


_SettingsFields: Any = create_model(
    "_SettingsFields",
    __base__=_Strict,
    **{s.preset_field: _pydantic_field_of_setting(s) for s in SETTINGS},
)


class GpuSettingsEntry(_SettingsFields):  # type: ignore[misc]
    """One `[[gpu_settings]]` entry: settings that a preset suggests for one GPU or for all. Loading
    a preset never applies them."""

    gpu: int | Literal["all"] = "all"
    reason: str | None = None

    @property
    def settings(self) -> GpuSettings:
        given = {s: getattr(self, s.preset_field) for s in SETTINGS}
        return GpuSettings(
            {s.key: s.from_stored(value) for s, value in given.items() if value is not None}
        )


class WarmUp(_Strict):
    """Warm-up requests that Workbench sends once, after the server is READY and the GPU settings
    are applied, so that kernels of all sizes are compiled. The prompt lengths rise evenly from the
    shortest to the longest."""

    requests: int = Field(10, ge=1, le=1000)
    input_tokens: Annotated[
        tuple[PromptTokens, PromptTokens], Strict(False), AfterValidator(_require_ordered_lengths)
    ] = (
        16,
        512,
    )
    max_tokens: int = Field(100, ge=1, le=4096)


class HostSetting(_Strict):
    """A host setting that the preset mentions. Workbench shows it and never applies it."""

    name: str
    value: str
    reason: str | None = None


class NodeEntry(_Strict):
    """One node of a server that spans several hosts, with the flags and environment that apply only
    to this node. Ranks start at 0 (the head node) and have no gaps."""

    name: str
    rank: int = Field(ge=0)
    flags: dict[str, Any] = Field(default_factory=dict)
    env: dict[str, str] = Field(default_factory=dict)


class Variable(_Strict):
    """A value that the user enters once per host. Workbench stores the value when a server that
    uses it has become READY.

    The value of a variable of the kind "secret-env" is the name of an environment variable, never
    the secret itself.
    """

    description: str
    kind: Literal["path", "text", "host", "port", "secret-env"] = "text"
    default: str | None = None
    example: str | None = None


def _load_option_field(option: DeclaredOption) -> Any:
    """Return (type, default) of a load option's field in `[benchmark]`, for pydantic's
    `create_model`."""

    def check(value: Any) -> Any:
        try:
            option.require_valid(value)
        except InputError as error:
            raise ValueError("; ".join(filter(None, (error.message, error.next_step)))) from None
        return value

    unset = option.default if option.preset_default is None else option.preset_default
    return Annotated[option.kind.preset_type, AfterValidator(check)], Field(
        unset, description=option.help
    )


_LoadFields: Any = create_model(
    "_LoadFields",
    __base__=_Strict,
    **{option.field: _load_option_field(option) for option in LOAD_OPTIONS if option.in_preset},
)


class Benchmark(_LoadFields):  # type: ignore[misc]
    """The benchmark that a preset suggests. The first concurrency is that of the suggestion."""

    profile: str = "quick"
    concurrency: list[Annotated[int, Field(ge=1, le=MOST_STREAMS)]] = Field(
        default_factory=lambda: [1], min_length=1
    )


class ReferenceResult(_Strict):
    metric: str
    value: float
    unit: str
    conditions: str
    status: str = Field(
        description='kind of source: "claimed by the document", "third party", "vendor", '
        '"arithmetic", …'
    )
    source: str
    ceiling: float | None = Field(
        None,
        gt=0,
        description="the highest value of the metric that the memory bandwidth allows, "
        "in the same unit",
    )


class DocumentClaim(_Strict):
    """A statement in the write-up on which the preset is based, with a verdict whether the
    statement is true."""

    text: str
    verdict: Verdict
    correct: str = Field(description="the correct statement")
    basis: str = Field(
        description='basis of the verdict: "arithmetic", "verified in a source", "checked by '
        'running it", …'
    )
    lines: str | None = Field(None, description="lines of the document that contain the statement")
    document: str | None = Field(
        None, description="document that contains the statement, if it is not the one of the preset"
    )
    impact: Impact | None = None


class SourceDocument(_Strict):
    """A write-up about one or more setups, with verdicts on its statements. Several presets can
    name the write-up in `documents`, so a correction is needed in one file only."""

    document_schema: Literal[1] = Field(1, alias="schema")
    id: Id
    title: str = Field(min_length=1, max_length=80)
    claims: list[DocumentClaim]


class Provenance(_Strict):
    """The origin of the preset: the write-up on which it is based, how far it is verified, and a
    date."""

    document: str
    status: Status
    date: str | None = None
    note: str | None = None


class Preset(_Strict):
    """One documented setup: engine, model, flags and GPU settings, the sources of its numbers, and
    its known problems."""

    preset_schema: Literal[1] = Field(1, alias="schema")
    id: Id
    title: str = Field(min_length=1, max_length=80)
    summary: str
    hardware: Hardware
    engine: EngineRef
    launch: LaunchEntry = Field(default_factory=lambda: LaunchEntry.model_validate({}))
    endpoint: EndpointEntry | None = None
    model: PresetModel
    flags: dict[str, Any] = Field(
        default_factory=dict, description="flags by their long names, without leading dashes"
    )
    env: dict[str, str] = Field(default_factory=dict)
    gpu_settings: list[GpuSettingsEntry] = Field(default_factory=list)
    warm_up: WarmUp | None = None
    host_settings: list[HostSetting] = Field(default_factory=list)
    nodes: list[NodeEntry] = Field(default_factory=list)
    variables: dict[VariableName, Variable] = Field(default_factory=dict)
    benchmark: Benchmark = Field(default_factory=lambda: Benchmark.model_validate({}))
    baseline: Id | None = None
    documents: list[Id] = Field(
        default_factory=list,
        description="shipped write-ups about this setup, whose claims are shown with the preset",
    )
    references: list[ReferenceResult] = Field(default_factory=list)
    claims: list[DocumentClaim] = Field(default_factory=list)
    caveats: list[str] = Field(default_factory=list)
    provenance: Provenance

    @field_validator("nodes")
    @classmethod
    def _check_ranks(cls, value: list[NodeEntry]) -> list[NodeEntry]:
        if sorted(n.rank for n in value) != list(range(len(value))):
            raise ValueError("the ranks of the nodes must be 0, 1, 2, …, each used once")
        return value

    def fill_in_variable_defaults(self, text: str) -> str:
        """Return `text` with each `${name}` replaced by the variable's default. Without a default,
        the replacement is the variable's example or name, marked "asked for", because the user will
        be asked for the value."""
        for name, variable in self.variables.items():
            shown = f"<{name}: asked for>"
            if variable.default:
                shown = variable.default
            elif variable.example:
                shown = f"{variable.example} (asked for)"
            text = text.replace(f"${{{name}}}", shown)
        return text

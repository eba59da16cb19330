"""The parts of a preset that may run foreign code. Users see them before the first start of a
preset from someone else.

`presets check`, `plan` and `start` all use this module, so that they report the same parts.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from workbench.engines import registry
from workbench.engines.catalog import look_up_flag
from workbench.model.findings import Finding, Level
from workbench.model.flags import Origin
from workbench.model.lazy_dataclass import dataclass
from workbench.model.run_options import OPTIONS
from workbench.model.secrets import mask_data, mask_text
from workbench.model.untrusted_text import clean_json, clean_text

if TYPE_CHECKING:
    from workbench.model.plan import LaunchPlan


def _words_in(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Variables that make a program load or run other code than its own.
_HIJACK = _words_in(
    "PATH BASH_ENV ENV SHELLOPTS BASHOPTS PS4 PROMPT_COMMAND IFS CDPATH PERL5OPT PERL5LIB RUBYOPT "
    "RUBYLIB NODE_OPTIONS "
    "GCONV_PATH GIT_SSH_COMMAND GIT_EXTERNAL_DIFF HOME SHELL CUDA_INJECTION64_PATH "
    "NVTX_INJECTION64_PATH OPENSSL_CONF "
    "TRITON_CACHE_MANAGER SSL_CERT_FILE "
    "GLIBC_TUNABLES VLLM_LOGGING_CONFIG_PATH TORCH_EXTENSIONS_DIR HF_HOME TMPDIR"
)
_HIJACK_PREFIXES = ("LD_", "DYLD_", "BASH_FUNC_", "PYTHON", "XDG_")
_HIJACK_ENDS = ("_CACHE_DIR", "_CACHE_ROOT")  # programs load compiled code from these directories
_HARMLESS = _words_in(
    "MAX_JOBS LANG LC_ALL TZ NO_COLOR PYTORCH_ALLOC_CONF PYTORCH_CUDA_ALLOC_CONF "
    "PYTHONUNBUFFERED PYTHONHASHSEED PYTHONDONTWRITEBYTECODE PYTHONIOENCODING PYTHONUTF8 "
    "PYTHONFAULTHANDLER"
)
# Variables that name a program, a library or a place, or let clients run code in the server.
_POINTERS = _words_in(
    "CC CXX NVCC CUDAHOSTCXX NCCL_NET HTTP_PROXY HTTPS_PROXY ALL_PROXY VLLM_USE_MODELSCOPE "
    "VLLM_SERVER_DEV_MODE "
    "VLLM_ALLOW_INSECURE_SERIALIZATION VLLM_ALLOW_RUNTIME_LORA_UPDATING "
    "VLLM_MEDIA_URL_ALLOW_REDIRECTS"
)
_POINTER_ENDS = re.compile(
    r"_(?:PATHS?|DIR|DIRS|DIRECTORY|FOLDER|FILE|HOME|ROOT|BASE|PREFIX|PLUGINS?|MODULES?|PACKAGE|HOOK|MANAGER|CONNECTOR|"
    r"CONF|CONFIG|URL|ENDPOINT|SERVER|PROXY|ADDRESS|LIBRARY|COMPILER|FLAGS|CACHE)"
)
_POINTS_NOWHERE = ("none", "", "0", "false", "IB", "Socket")
# Prefixes of variables that tune engines and their libraries. All other names are shown before the
# first start.
_TUNING = re.compile(
    r"(?:CUDA|NVIDIA|NCCL|GLOO|UCX|OMP|MKL|TORCH|TORCHINDUCTOR|PYTORCH|TRITON|FLASHINFER|RAY|HF|TOKENIZERS|VLLM|SGLANG|"
    r"SGL|GGML)_\w+"
)
_CODE_FLAGS = _words_in(
    "trust-remote-code middleware logits-processors worker-cls worker-extension-cls scheduler-cls "
    "custom-pipeline "
    "config log-config-file logging-config model-class-overrides hf-config-path code-revision "
    "auto-map inductor-passes "
    "custom-weight-loader forward-hooks enable-custom-logit-processor sidecar sidecar-args warmups "
    "msprobe-dump-config "
    "decrypted-config-file decrypted-draft-config-file lmcache-config-file flexkv-config-file "
    "tool-server tools "
    "tools-runtime mcp-servers-config mcp-servers-json video-ffmpeg-dir models-preset module-path "
    "class-name"
)
_CODE_ENDS = ("-plugin", "-module-path", "-cls")
# Flags whose value is an address, also one of a single word such as "gpu2".
_ADDRESS_FLAG = re.compile(
    r"rpc|docker-repo|(?:.+-)?(?:urls?|addr|address|domains|endpoints?|connect-endpoints|seed-instance-ip)"
)
_NO_ADDRESS = _words_in("enable-tokenizer-info-endpoint disable-access-log-for-endpoints")
# Flags that open the server to everybody who reaches its port.
_OPENING_FLAGS = _words_in("disable-auth")
_OFF: tuple[Any, ...] = (False, None, "", [])
# Values that name a file, an address or code. A hub id ("org/model") is a name; "pkg.module" and
# "pkg:Class" are code.
_REACHES = re.compile(
    r"-\D.*|[/~.\\].*|.*(?:://|\\|/\.\.?(?:/|$)).*|.*/.*/.*|"
    r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+(?::\w+)?|[A-Za-z_]\w*:[A-Za-z_]\w*",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class ForeignPresetPart:
    """A part of a preset that could make the host run code of the preset's author. `name` is
    "executable", "workdir", or the name of a variable, flag or run option. `about` is a second
    value that decides which code runs, such as the model for a flag that runs code from the model.
    """

    code: str
    name: str
    value: str
    text: str
    about: str = ""

    @property
    def digest(self) -> str:
        """The SHA-256 of this part. The user trusts the part if the user's list of trusted digests
        contains this one. A part with another `value` or `about` has another digest."""
        parts = (self.code, self.name, self.value, self.about)
        return hashlib.sha256("\0".join(parts).encode("utf-8", "replace")).hexdigest()

    def finding_with_fix(self, fix: str | None = None) -> Finding:
        return Finding(
            Level.WARN, self.code, clean_text(self.text), flag=clean_text(self.name), fix=fix
        )


def find_foreign_executable(engine: str, argv: Sequence[str]) -> Iterator[ForeignPresetPart]:
    """Yield a part if `argv` is another program than the one that usually starts the engine."""
    usual = registry.get_engine(engine)
    named = (
        len(argv) == 1 and argv[0] in usual.executables and usual.packages + usual.version_arguments
    )
    if argv and tuple(argv) != usual.launch and not named:
        command = shlex.join(argv)
        text = (
            f"{_mask_and_shorten(command)} starts {usual.title}, in place of {shlex.join(usual.launch)} as "
            "it is on PATH"
        )
        yield ForeignPresetPart("preset.unusual-executable", "executable", command, text)


def find_foreign_workdir(engine: str, workdir: str | None) -> Iterator[ForeignPresetPart]:
    """Yield a part if there is a working directory, because the engine can load code from it."""
    if workdir:
        text = f"{registry.get_engine(engine).title} runs the code in {_mask_and_shorten(workdir)}"
        yield ForeignPresetPart("preset.runs-code", "workdir", workdir, text)


def find_foreign_run_options(
    run_as: str, options: Mapping[str, Any]
) -> Iterator[ForeignPresetPart]:
    """Yield the options of the launcher `run_as` that give the server power over its host, or reach
    outside of it."""
    known = {option.name: option for option in OPTIONS.get(run_as, ())}
    powers = {part.name: part for part in find_privileged_run_options(run_as, options)}
    yield from powers.values()
    for name, value in options.items():
        option = known.get(name)
        if option is None or f"run-as.{name}" in powers:
            continue
        if option.foreign and value != option.default:
            text = f"{run_as}, {name}: {option.foreign}: {_format_masked_value(name, value)}"
            yield ForeignPresetPart("preset.run-option", f"run-as.{name}", str(value), text, run_as)


def find_privileged_run_options(
    run_as: str, options: Mapping[str, Any]
) -> Iterator[ForeignPresetPart]:
    """Yield those options of the launcher `run_as` that let the server control its host, such as a
    privileged container. It does not matter whether the user or a preset has set them."""
    for option in OPTIONS.get(run_as, ()):
        value = str(options.get(option.name, ""))
        if why := next(filter(None, map(option.power, value.splitlines())), ""):
            text = f"{run_as}, {option.name}: {why}: {_format_masked_value(option.name, value)}"
            yield ForeignPresetPart("run.power", f"run-as.{option.name}", value, text, run_as)


def find_foreign_image(plan: LaunchPlan) -> Iterator[ForeignPresetPart]:
    """Yield a part if the plan's container image is not the one that the engine's project
    publishes."""

    from workbench.model.run_options import starts_container_image

    usual = registry.get_engine(plan.engine)
    if not plan.image or not starts_container_image(plan.run_as):
        return
    repository = plan.image.partition("@")[0].removeprefix("docker.io/")
    if repository.partition(":")[0] != usual.image:
        text = f"{_mask_and_shorten(plan.image)} is not the image of {usual.title}, which is {usual.image}"
        yield ForeignPresetPart("preset.unusual-image", "image", plan.image, text)


def find_foreign_variables(engine: str, env: Mapping[str, Any]) -> Iterator[ForeignPresetPart]:
    """Yield a part for each environment variable that makes programs load other code, names a file
    or an address, has the effect of a foreign flag (`find_foreign_flags`), or is unknown to
    Workbench."""
    catalog = registry.get_engine(engine).catalog()
    flag_of = {spec.env: spec.name for spec in catalog.flags.values() if spec.env}
    for name, value in env.items():
        if flag := flag_of.get(name):  # has the effect of the flag
            for part in find_foreign_flags(engine, {flag: value}):
                yield replace(part, name=name)
        elif found := _foreign_variable_code_and_reason(name, value):
            code, says = found
            yield ForeignPresetPart(
                code, name, str(value), f"{name} {says}: {_format_masked_value(name, value)}"
            )


def _foreign_variable_code_and_reason(name: str, value: Any) -> tuple[str, str] | None:
    upper = name.upper()
    if upper in _HARMLESS:
        return None
    if upper in _HIJACK or upper.startswith(_HIJACK_PREFIXES) or upper.endswith(_HIJACK_ENDS):
        return "preset.hijacks-execution", "makes programs load or run other code"
    if upper in _POINTERS or _POINTER_ENDS.fullmatch(upper[upper.rfind("_") :]):
        if value in _POINTS_NOWHERE:
            return None
        return "preset.points-elsewhere", "selects a program, a library or the source of downloads"
    if not _TUNING.fullmatch(upper):
        return "preset.unknown", "is a variable that Workbench does not know"
    if not _refers_to_file_or_address(value):
        return None
    return ("preset.points-elsewhere", "names a file, a module or an address")


def find_foreign_flags(
    engine: str, flags: Mapping[str, Any], model: str = ""
) -> Iterator[ForeignPresetPart]:
    """Yield the flags that run code, open the server to others, name a file, a module or an
    address, or are unknown to Workbench. `model` is the model whose code would run."""
    catalog = registry.get_engine(engine).catalog()
    for spelling, value in flags.items():
        base, _, key = spelling.partition(".")  # "kv-transfer-config.kv_connector"
        name, spec, _ = look_up_flag(catalog, spelling)
        if spec is None and key:
            name, spec, _ = look_up_flag(catalog, base)
        shown = _format_masked_value(name, value)
        if value in _OFF:
            continue
        if _does_flag_run_code(name, {key: value} if key else value):
            says = (
                f"{spelling} lets the server run code from the model repository or from a "
                f"module: {shown}"
            )
            yield ForeignPresetPart("preset.runs-code", spelling, str(value), says, model)
        elif spec is None:
            says = f"{spelling} is a flag that Workbench does not know: {shown}"
            yield ForeignPresetPart("preset.unknown", spelling, str(value), says)
        elif name.replace("_", "-") in _OPENING_FLAGS:
            says = f"{spelling} lets everybody who reaches the server use it: {shown}"
            yield ForeignPresetPart("preset.opens-server", spelling, str(value), says)
        elif name not in _NAMES and (
            _does_flag_take_address(name) or _refers_to_file_or_address(value)
        ):
            yield ForeignPresetPart(
                "preset.points-elsewhere",
                spelling,
                str(value),
                f"{spelling} names a file, a module or an address: {shown}",
            )


# Flags whose value is a name or a text for clients, and never the place of code.
_NAMES = _words_in(
    "model served-model-name model-name model-path tokenizer alias api-key host revision "
    "tokenizer-revision"
)


def _does_flag_take_address(flag: str) -> bool:
    name = flag.replace("_", "-").lower()
    return _ADDRESS_FLAG.fullmatch(name) is not None and name not in _NO_ADDRESS


def is_tuning_variable(name: str) -> bool:
    """Return whether a variable of this name tunes an engine or one of its libraries."""
    return _TUNING.fullmatch(name) is not None


def _does_flag_run_code(name: str, value: Any) -> bool:
    name, value = name.replace("_", "-").lower(), _parse_json(value)
    if (name in _CODE_FLAGS or name.endswith(_CODE_ENDS)) and value not in _OFF:
        return True
    if not isinstance(value, Mapping):
        return False
    return any(_does_flag_run_code(str(key), inner) for key, inner in value.items())


def _refers_to_file_or_address(value: Any) -> bool:
    value = _parse_json(value)
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return any(map(_refers_to_file_or_address, value))
    return isinstance(value, str) and _REACHES.fullmatch(value.strip()) is not None


def _parse_json(value: Any) -> Any:
    if isinstance(value, str) and value.lstrip().startswith(("{", "[")):
        with suppress(ValueError):
            return clean_json(value, len(value))
    return value


def list_foreign_parts(plan: LaunchPlan, *, edited: bool = False) -> tuple[ForeignPresetPart, ...]:
    """Return the parts of the plan that may run foreign code. Flags, variables and programs count
    only if the preset set them; with `edited`, also if the user did."""
    chosen = {Origin.PRESET}
    if edited:
        chosen.add(Origin.EDITED)
    env = {s.name: s.value for s in plan.env if s.origin in chosen}
    flags = {s.name: s.value for s in plan.flags if s.origin in chosen}
    found: list[ForeignPresetPart] = []
    if edited or plan.executable_from == "preset":
        for part in find_foreign_executable(plan.engine, plan.executable):
            found.append(replace(part, about=plan.workdir or ""))
    found += find_foreign_workdir(plan.engine, plan.workdir)
    found += find_foreign_run_options(plan.run_as, plan.run_options)
    found += find_foreign_image(plan)
    for its_env, its_flags in ((env, flags), *((node.env, node.flags) for node in plan.nodes)):
        found += [
            *find_foreign_variables(plan.engine, its_env),
            *find_foreign_flags(plan.engine, its_flags, plan.model),
        ]
    return tuple({part.digest: part for part in found}.values())


def list_untrusted_parts(
    plan: LaunchPlan, trusted_digests: Iterable[str]
) -> tuple[ForeignPresetPart, ...]:
    """Return the parts of the plan to which the user must agree before the start. Parts whose
    digest is in `trusted_digests` are left out. A preset from someone else needs agreement to all
    parts that may run foreign code, any other plan only to options that let the server control its
    host."""
    known = frozenset(trusted_digests)
    found: Iterable[ForeignPresetPart] = find_privileged_run_options(plan.run_as, plan.run_options)
    if plan.stranger:
        found = list_foreign_parts(plan)
    return tuple(part for part in found if part.digest not in known)


def _format_masked_value(name: str, value: Any) -> str:
    return _mask_and_shorten(str(mask_data(value, name)))


def _mask_and_shorten(text: str) -> str:
    text = mask_text(text)
    if len(text) > 120:
        return f"{text[:120]}…"
    return text

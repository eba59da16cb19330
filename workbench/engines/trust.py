"""What a preset makes run besides its engine's usual program: shown before the first start of a stranger's preset.

One table for `presets check`, `plan` and `start`, so that all three say the same about the same preset.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workbench.engines import registry
from workbench.model.findings import Finding, Level
from workbench.model.flags import Origin
from workbench.model.secrets import mask_text

if TYPE_CHECKING:
    from workbench.model.plan import LaunchPlan


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Variables that make a program load or run something else than it was asked to.
_HIJACK = _words(
    "PATH BASH_ENV ENV SHELLOPTS BASHOPTS PS4 PROMPT_COMMAND IFS CDPATH PERL5OPT PERL5LIB RUBYOPT RUBYLIB NODE_OPTIONS "
    "GCONV_PATH GIT_SSH_COMMAND GIT_EXTERNAL_DIFF HOME SHELL CUDA_INJECTION64_PATH NVTX_INJECTION64_PATH OPENSSL_CONF "
    "GLIBC_TUNABLES VLLM_LOGGING_CONFIG_PATH TORCH_EXTENSIONS_DIR HF_HOME TMPDIR"
)
_HIJACK_PREFIXES = ("LD_", "DYLD_", "BASH_FUNC_", "PYTHON", "XDG_")
_HIJACK_ENDS = ("_CACHE_DIR", "_CACHE_ROOT")  # compiled code is loaded from there
_HARMLESS = _words(
    "PYTHONUNBUFFERED PYTHONHASHSEED PYTHONDONTWRITEBYTECODE PYTHONIOENCODING PYTHONUTF8 PYTHONFAULTHANDLER"
)
# Variables that name a program or library which the engine will run, or where it downloads from.
_POINTERS = _words(
    "CC CXX NVCC CUDAHOSTCXX CUDA_HOME CUDA_PATH TRITON_PTXAS_PATH TRITON_LIBCUDA_PATH NCCL_NET_PLUGIN "
    "NCCL_TUNER_PLUGIN NCCL_PROFILER_PLUGIN VLLM_PLUGINS VLLM_NCCL_SO_PATH HF_ENDPOINT PIP_INDEX_URL UV_INDEX_URL "
    "HTTP_PROXY HTTPS_PROXY ALL_PROXY"
)
_CODE_FLAGS = _words(
    "trust-remote-code middleware logits-processors worker-cls worker-extension-cls scheduler-cls tool-parser-plugin "
    "reasoning-parser-plugin io-processor-plugin kv-connector-module-path custom-pipeline"
)


@dataclass(frozen=True, slots=True)
class Foreign:
    """One thing that a preset makes run. `name`: "executable", "workdir", or of a variable or flag."""

    code: str
    name: str
    value: str
    text: str

    @property
    def digest(self) -> str:
        """What a user's trust is remembered by: another value is another thing."""
        return hashlib.sha256(f"{self.code}\0{self.name}\0{self.value}".encode("utf-8", "replace")).hexdigest()

    def finding(self, fix: str | None = None) -> Finding:
        return Finding(Level.WARN, self.code, self.text, flag=self.name, fix=fix)


def foreign_executable(engine: str, argv: Sequence[str]) -> Iterator[Foreign]:
    usual = registry.get(engine)
    named = len(argv) == 1 and argv[0] in usual.executables and usual.packages + usual.version_arguments
    if argv and tuple(argv) != usual.launch and not named:
        command = shlex.join(argv)
        text = f"{_short(command)} is not the usual program of {usual.title}, which is {shlex.join(usual.launch)}"
        yield Foreign("preset.unusual-executable", "executable", command, text)


def foreign_workdir(engine: str, workdir: str | None) -> Iterator[Foreign]:
    usual = registry.get(engine)
    if workdir and not usual.packages and not usual.version_arguments:
        text = f"{usual.title} runs the code that lies in {_short(workdir)}"
        yield Foreign("preset.runs-code", "workdir", workdir, text)


def foreign_env(env: Mapping[str, Any]) -> Iterator[Foreign]:
    for name, value in env.items():
        upper, shown = name.upper(), _short(str(value))
        hijack = upper in _HIJACK or upper.startswith(_HIJACK_PREFIXES) or upper.endswith(_HIJACK_ENDS)
        if hijack and upper not in _HARMLESS:
            text = f"{name} makes programs load or run something else: {shown}"
            yield Foreign("preset.hijacks-execution", name, str(value), text)
        elif upper in _POINTERS and value not in ("none", ""):
            text = f"{name} says which program or library is used, or where downloads come from: {shown}"
            yield Foreign("preset.points-elsewhere", name, str(value), text)


def foreign_flags(flags: Mapping[str, Any]) -> Iterator[Foreign]:
    for name, value in flags.items():
        if name.replace("_", "-") in _CODE_FLAGS and value not in (False, "", []):
            text = f"{name} lets code from the model repository or from a module run in the server"
            yield Foreign("preset.runs-code", name, str(value), text)


def foreign_parts(plan: LaunchPlan, *, edited: bool = False) -> tuple[Foreign, ...]:
    """What the preset of `plan` makes run; with `edited` also what its user set, as a saved preset holds it."""
    chosen = (Origin.PRESET, Origin.EDITED) if edited else (Origin.PRESET,)
    env = {s.name: s.value for s in plan.env if s.origin in chosen}
    flags = {s.name: s.value for s in plan.flags if s.origin in chosen}
    named = plan.executable if edited or plan.executable_from == "preset" else ()
    found: list[Foreign] = [*foreign_executable(plan.engine, named), *foreign_workdir(plan.engine, plan.workdir)]
    for its_env, its_flags in ((env, flags), *((node.env, node.flags) for node in plan.nodes)):
        found += [*foreign_env(its_env), *foreign_flags(its_flags)]
    return tuple({part.digest: part for part in found}.values())


def untrusted(plan: LaunchPlan, trusted: Iterable[str]) -> tuple[Foreign, ...]:
    """What of a stranger's preset its user has not looked at yet."""
    known = frozenset(trusted)
    return tuple(p for p in foreign_parts(plan) if p.digest not in known) if plan.stranger else ()


def _short(text: str) -> str:
    text = mask_text(text)
    return text if len(text) <= 120 else f"{text[:120]}…"

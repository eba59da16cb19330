"""What a preset from a stranger must not carry: values that try to run something, names that hijack execution.

Nothing here ever runs: commands are argv lists. These checks say what a value looks like it was meant to do, so that
the person sees it before the process that receives it does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from workbench.model.findings import Finding, Level
from workbench.model.secrets import is_secret_name
from workbench.store.toml_lines import FieldPath

_VARIABLE = re.compile(r"\$\{([a-z][a-z0-9_]{0,31})\}")
_SUBSTITUTION = re.compile(r"\$\(|`|<\(|>\(")
_LINE_BREAK = re.compile(r"[\n\r\x00\x0b\x0c\x85\u2028\u2029]")
_COMMANDS = (
    r"(?:(?:/[\w.+-]{1,40}){0,6}/)?(?:rm|mv|dd|sh|bash|zsh|dash|curl|wget|nc|ncat|ssh|scp|sudo|su|doas|chmod|chown|kill|pkill|killall|eval|"
    r"exec|source|python[\d.]*|perl|ruby|node|php|nohup|setsid|mkfs\S*|shutdown|reboot|systemctl|crontab|echo|cat|tee)"
)
_CHAINED = re.compile(rf"(?:;|&&|\|\||\||&)\s*{_COMMANDS}(?=\s|$)")
_METACHARACTER = re.compile(r";|&&|\|\||\s\|\s|(?:^|\s)>{1,2}\s*\S|\s&$")
_SHELL_NAME = re.compile(r"\$[A-Za-z_]\w*|^~/")
# C0 and C1 controls (terminal escapes) and the characters that reorder text; tab and newline are for prose.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SHELLS = _words(
    "sh bash dash zsh ksh csh tcsh fish busybox env sudo doas su eval exec xargs nohup setsid perl ruby node php awk "
    "sed curl wget nc ncat ssh scp rm mv cp dd chmod chown kill pkill killall crontab at systemctl tee"
)
_USUAL_EXECUTABLES = re.compile(
    r"^(?:vllm|sglang|llama-server|llama-cpp|tabbyapi|main\.py|start\.sh|python[\d.]*|uv|uvx|docker|podman|pct|"
    r"numactl|taskset|stdbuf|nice|torchrun|ray|\$\{\w+\})$"
)
_FLAG_NAME = re.compile(r"^[A-Za-z0-9][\w.+-]*$")
_ENV_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")

# Variables that make a program load or run something else than it was asked to.
_HIJACK = _words(
    "PATH PYTHONPATH PYTHONHOME PYTHONSTARTUP PYTHONUSERBASE PYTHONEXECUTABLE PYTHONBREAKPOINT PYTHONINSPECT "
    "PYTHONPLATLIBDIR PYTHONWARNINGS BASH_ENV ENV SHELLOPTS BASHOPTS PS4 PROMPT_COMMAND IFS CDPATH PERL5OPT PERL5LIB "
    "RUBYOPT RUBYLIB NODE_OPTIONS GCONV_PATH GIT_SSH_COMMAND GIT_EXTERNAL_DIFF HOME SHELL CUDA_INJECTION64_PATH "
    "NVTX_INJECTION64_PATH OPENSSL_CONF GLIBC_TUNABLES"
)
_HIJACK_PREFIXES = ("LD_", "DYLD_", "BASH_FUNC_")
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


def walk(value: Any, path: FieldPath = ()) -> Iterator[tuple[FieldPath, Any]]:
    """Every leaf of a document with its path. The caller has made sure that it is not deep."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from walk(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from walk(item, (*path, index))
    else:
        yield path, value


def launch_parts(document: Mapping[str, Any]) -> Iterator[tuple[FieldPath, Any]]:
    """The parts that reach a command line or an environment."""
    for section, keys in (("engine", ("executable", "workdir")), ("model", ("id",))):
        table = document.get(section)
        if isinstance(table, Mapping):
            yield from (((section, k), table[k]) for k in keys if k in table)
    yield from (((k,), document[k]) for k in ("flags", "env") if k in document)
    nodes = document.get("nodes")
    for index, node in enumerate(nodes if isinstance(nodes, list) else ()):
        if isinstance(node, Mapping):
            yield from ((("nodes", index, k), node[k]) for k in ("flags", "env") if k in node)
    variables = document.get("variables")
    for name, variable in variables.items() if isinstance(variables, Mapping) else ():
        if isinstance(variable, Mapping) and "default" in variable:
            yield ("variables", name, "default"), variable["default"]


def references(text: str) -> list[str]:
    """Names of the variables that `text` uses."""
    return _VARIABLE.findall(text)


def safety_findings(document: Mapping[str, Any], *, own: bool) -> Iterator[tuple[FieldPath, Finding]]:
    """All that is suspicious, each with its path. `own`: the person's own file, whose environment names are only warned
    about."""
    for path, value in walk(document):
        if isinstance(value, str) and (found := _CONTROL.search(value)):
            yield path, _error("preset.control-character", f"holds the control character U+{ord(found[0]):04X}", None)
    for path, part in launch_parts(document):
        for inner, value in walk(part, path):
            if isinstance(value, str):
                yield from ((inner, f) for f in _value_findings(value))
            elif not isinstance(value, bool | int | float):
                yield inner, _error("preset.wrong-type", f"a date cannot be a launch value: {value}", "quote it")
            elif value != value or value in (float("inf"), float("-inf")):
                yield inner, _error("preset.wrong-value", f"{value} is not a usable number", None)
        if path[-1] == "flags":
            yield from _flag_names(part, path)
        elif path[-1] == "env":
            yield from _env_names(part, path, own)
        elif path[-1] == "executable" and isinstance(part, list):
            yield from ((path, f) for f in _executable_findings([a for a in part if isinstance(a, str)]))
        elif path[-1] == "workdir" and isinstance(part, str) and ".." in part.split("/"):
            yield path, _error("preset.path-traversal", f"{part!r} climbs out of its directory with ..", None)


def _value_findings(value: str) -> Iterator[Finding]:
    bare = _VARIABLE.sub("", value)
    if found := _SUBSTITUTION.search(value) or _CHAINED.search(value):
        yield _error(
            "preset.suspicious-value",
            f"tries to run a command: {_short(value)} holds {_short(found[0].strip())}; values are passed as they are",
            "write the plain value",
        )
    elif _LINE_BREAK.search(value):
        yield _error("preset.suspicious-value", f"a launch value must be one line: {_short(value)}", "use a file")
    elif found := _METACHARACTER.search(bare):
        text = f"shell syntax has no effect here: {_short(value)} holds {_short(found[0].strip())}"
        yield Finding(Level.WARN, "preset.suspicious-value", text, fix="write the plain value")
    elif found := _SHELL_NAME.search(bare):
        text = f"{found[0]} is not expanded: {_short(value)}"
        yield Finding(Level.WARN, "preset.not-expanded", text, fix="define a variable and write ${name}")
    if "${" in bare:
        yield _error("preset.variable-syntax", f"not a variable: {_short(value)}", "write ${name}: a-z, 0-9 and _")


def _flag_names(flags: Any, path: FieldPath) -> Iterator[tuple[FieldPath, Finding]]:
    for name, value in flags.items() if isinstance(flags, Mapping) else ():
        at = (*path, name)
        if name.startswith("-"):
            text = f"flag names are written without dashes: {_short(name)}"
            yield at, _error("preset.flag-name", text, f'write "{name.lstrip("-")}"')
        elif not _FLAG_NAME.match(name):
            yield at, _error("preset.flag-name", f"not a flag name: {_short(name)}", None)
        elif name.replace("_", "-") in _CODE_FLAGS and value not in (False, "", []):
            text = f"{name} lets code from the model repository or from a module run in the server"
            yield at, Finding(Level.WARN, "preset.runs-code", text, flag=name, fix="leave it out if you can")
        if is_secret_name(name) and isinstance(value, str) and value and not _VARIABLE.fullmatch(value):
            yield at, _secret(name)


def _env_names(env: Any, path: FieldPath, own: bool) -> Iterator[tuple[FieldPath, Finding]]:
    for name, value in env.items() if isinstance(env, Mapping) else ():
        at, upper = (*path, name), name.upper()
        if not _ENV_NAME.match(name):
            yield at, _error("preset.env-name", f"not the name of an environment variable: {_short(name)}", None)
        elif upper in _HIJACK or upper.startswith(_HIJACK_PREFIXES):
            text = f"{name} makes programs load or run something else"
            level = Level.WARN if own else Level.ERROR
            yield at, Finding(level, "preset.hijacks-execution", text, flag=name, fix="set it on the host instead")
        elif upper in _POINTERS and value not in ("none", ""):
            text = f"{name} says which program or library is used, or where downloads come from: {_short(str(value))}"
            yield at, Finding(Level.WARN, "preset.points-elsewhere", text, flag=name)
        if is_secret_name(name) and isinstance(value, str) and value and not _VARIABLE.fullmatch(value):
            yield at, _secret(name)


def _executable_findings(argv: list[str]) -> Iterator[Finding]:
    if not argv:
        yield _error("preset.suspicious-executable", "the executable is an empty list", "leave it out")
        return
    name = argv[0].rsplit("/", 1)[-1]
    if any(a.rsplit("/", 1)[-1] in _SHELLS for a in argv):
        text = f"a preset cannot start a shell or a tool that runs others: {_short(' '.join(argv))}"
        yield _error("preset.suspicious-executable", text, "name the engine's program")
    elif any(a in ("-c", "-e", "--eval", "-") for a in argv[1:]):
        text = f"code on the command line: {_short(' '.join(argv))}"
        yield _error("preset.suspicious-executable", text, "name the engine's program")
    elif any(".." in a.split("/") for a in argv):
        yield _error("preset.path-traversal", f"{_short(' '.join(argv))} climbs out of its directory with ..", None)
    elif not _USUAL_EXECUTABLES.match(name):
        text = f"{_short(argv[0])} is not a program that engines are started with"
        yield Finding(Level.WARN, "preset.unusual-executable", text, fix="look at the command before you start it")


def _secret(name: str) -> Finding:
    text = f"{name} holds a secret in plain text"
    return Finding(Level.WARN, "preset.secret", text, flag=name, fix='define a variable of kind "secret-env"')


def _error(code: str, text: str, fix: str | None) -> Finding:
    return Finding(Level.ERROR, code, text, fix=fix)


def _short(text: str) -> str:
    """For a message: printable, and not longer than a line."""
    shown = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text[:60])
    return f'"{shown}…"' if len(text) > 60 else f'"{shown}"'

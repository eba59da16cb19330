"""Which engine is installed on a host: path, version and its own Python, without starting the engine.

`vllm --version` imports torch and takes 12 s, so versions of Python engines are read from the package metadata by
the interpreter that the launcher's first lines name.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from workbench.hosts.base import CommandTimeout, Host

if TYPE_CHECKING:
    from workbench.engines.base import Engine

# $1 is the path or name asked for first (may be empty), the others the engine's own names. Prints key=value lines: the
# first one found, and those in the usual places of venvs, conda and uv. None is started.
_FIND = r"""
first=$1; shift
look() {
    for name do
        path=$(command -v -- "$name" 2>/dev/null) || continue
        case $path in /*) ;; */*) path=$PWD/$path ;; *) continue ;; esac
        [ -x "$path" ] && [ ! -d "$path" ] || continue
        echo "path=$path"
        echo "simulated=${WORKBENCH_SIM_PROFILE:-}"
        head -c 2 -- "$path" | grep -q '#!' && head -n 3 -- "$path" | head -c 1000 | sed 's/^/script=/'
        return
    done
}
if [ -n "$first" ]; then look "$first"; else look "$@"; fi
echo "PATH=$PATH"
for name do
    for place in "$HOME"/venv*/bin "$HOME"/.venv*/bin "$HOME"/*/.venv/bin "$HOME"/*/venv/bin "$HOME"/.local/bin \
        "$HOME"/.local/share/uv/tools/*/bin "$HOME"/.local/share/pipx/venvs/*/bin "$HOME"/.virtualenvs/*/bin \
        "$HOME"/*conda*/envs/*/bin "$HOME"/*forge*/envs/*/bin "$HOME"/.conda/envs/*/bin "$HOME"/*/envs/*/bin \
        /opt/*/bin /opt/*/venv/bin /opt/*/.venv/bin /opt/*conda*/envs/*/bin /srv/*/bin /srv/*/.venv/bin; do
        [ -x "$place/$name" ] && [ ! -d "$place/$name" ] && echo "elsewhere=$place/$name"
    done
done
exit 0
"""
_VERSIONS = (  # tried in order: llama-server first names the GPUs, with their compute capability
    re.compile(r"version:?\s+(?:b|v)?(\d[\w.+-]*)", re.IGNORECASE),
    re.compile(r"\bv?(\d+\.\d+[\w.+-]*)"),
)
_METADATA = """
import sys
from importlib.metadata import PackageNotFoundError, version
for name in sys.argv[1:]:
    try:
        print(version(name))
        break
    except PackageNotFoundError:
        pass
"""


@dataclass(frozen=True, slots=True)
class InstalledEngine:
    """What was found on a host. `version` None: it could not be told (`how` says why)."""

    engine: str
    path: str | None  # None: not found; `problem` says where it was looked for
    version: str | None = None
    python: str | None = None  # the engine's own interpreter, when it is a Python program
    how: str = ""  # where the version was read from
    problem: str | None = None
    elsewhere: tuple[str, ...] = ()  # others, found in common places


async def probe(
    host: Host, engine: Engine, executable: Sequence[str] = (), workdir: str | None = None
) -> InstalledEngine:
    """Look for `executable[0]` when given, else for the engine's own names on the host's PATH. Two round trips.

    An engine that is run from its source directory is there when that directory, `workdir`, holds its script: any
    Python would do for it, so that finding one says nothing. Raises HostError only where the host itself cannot be
    asked.
    """
    if not executable and not engine.packages and not engine.version_arguments:
        missing = await _no_source(host, engine, workdir)
        if missing is not None:
            return InstalledEngine(engine.name, None, problem=missing)
    first = executable[0] if executable else ""
    done = await host.run(["sh", "-c", _FIND, "sh", first, *engine.executables], check=True)
    facts: dict[str, list[str]] = {}
    for line in done.out.splitlines():
        key, _, value = line.partition("=")
        facts.setdefault(key, []).append(value)
    if "path" not in facts:
        return _missing(host, engine, first, facts)
    path = facts["path"][0]
    python = _interpreter(facts.get("script", []))
    elsewhere = tuple(place for place in dict.fromkeys(facts.get("elsewhere", [])) if place != path)
    return replace(await _version_of(host, engine, path, python, facts["simulated"][0] != ""), elsewhere=elsewhere)


async def _version_of(host: Host, engine: Engine, path: str, python: str | None, simulated: bool) -> InstalledEngine:
    if not engine.packages and not engine.version_arguments:
        how = f"{engine.title} runs from its source directory and has no version number"
        return InstalledEngine(engine.name, path, None, python or path, how)
    if engine.packages and not simulated:
        return await _from_metadata(host, engine, path, python)
    return await _from_itself(host, engine, path, python)


async def _no_source(host: Host, engine: Engine, workdir: str | None) -> str | None:
    """Why the engine's source directory is not there."""
    script = engine.launch[-1]
    if workdir is None:
        return f"{engine.title} is run from its source directory, which a preset names"
    found = await host.run(["sh", "-c", '[ -f "$1" ]', "sh", posixpath.join(workdir, script)])
    if found.returncode == 0:
        return None
    return f"{workdir} on {host.name} holds no {script}: it is no {engine.title} checkout"


def _missing(host: Host, engine: Engine, first: str, facts: Mapping[str, list[str]]) -> InstalledEngine:
    elsewhere = tuple(dict.fromkeys(facts.get("elsewhere", [])))
    wanted = first or " or ".join(engine.executables)
    problem = f"{wanted} not found on {host.name}; looked in PATH={facts.get('PATH', [''])[0]}"
    if elsewhere:
        problem += f"; found outside of it: {', '.join(elsewhere)}"
    return InstalledEngine(engine.name, None, problem=problem, elsewhere=elsewhere)


def _interpreter(script: Sequence[str]) -> str | None:
    """The Python of a console script. Where the path is too long for "#!", pip writes `'''exec' "/long/path" …`."""
    if not script:
        return None
    words = script[0].removeprefix("#!").split()
    if words and "python" in posixpath.basename(words[0]):
        return words[0]
    if len(words) > 1 and posixpath.basename(words[0]) == "env" and "python" in words[-1]:
        return words[-1]
    for line in script[1:]:
        exec_ = re.match(r"""'''exec'\s+"?([^"]+?)"?\s+"\$0\"""", line)
        if exec_:
            return exec_.group(1)
    return None


async def _from_metadata(host: Host, engine: Engine, path: str, python: str | None) -> InstalledEngine:
    if python is None:
        how = f"{path} does not name its Python; the version is not known before it starts"
        return InstalledEngine(engine.name, path, how=how)
    done = await host.run([python, "-c", _METADATA, *engine.packages], timeout_s=20)
    version = done.out.strip() or None
    how = f"package metadata of {python}" if version else f"{python} has no package metadata for {engine.name}"
    return InstalledEngine(engine.name, path, version, python, how)


async def _from_itself(host: Host, engine: Engine, path: str, python: str | None) -> InstalledEngine:
    arguments = engine.version_arguments or ("--version",)
    how = shlex.join([path, *arguments])
    try:
        done = await host.run([path, *arguments], timeout_s=10)
    except CommandTimeout:
        return InstalledEngine(engine.name, path, None, python, f"{how} did not answer within 10 s")
    found = next((m for v in _VERSIONS if (m := v.search(done.out + done.err))), None)
    if done.returncode or found is None:
        return InstalledEngine(engine.name, path, None, python, f"{how} gave no version")
    version = found.group(1)
    return InstalledEngine(engine.name, path, f"b{version}" if version.isdigit() else version, python, how)

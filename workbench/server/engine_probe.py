"""Finds the engine that is installed on a host: the path of its program, its version, and the
Python that runs it.

The version of a Python engine is read from the name of its package metadata directory, without
running a program. An engine without such metadata is run to print its version, but only if its
program is found under the engine's own name in an absolute directory of PATH. A program that a
preset names is never run for this, because it could do anything.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from workbench.hosts.base import CommandTimeout, Host
from workbench.hosts.script_files import read_script
from workbench.hosts.shell_scripts import COUNT_CORES, READ_GPU_ALLOTMENT, parse_values_by_key
from workbench.hosts.swept_command import run_and_end_leftovers
from workbench.model import gpu_allotment, host_cores
from workbench.model.gpu_allotment import NO_ALLOTMENT, Allotment
from workbench.model.host_cores import HostCores
from workbench.model.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from workbench.engines.base import Engine

_FIND_ENGINE_SCRIPT = read_script(
    __file__, "find_engine.sh", READ_GPU_ALLOTMENT=READ_GPU_ALLOTMENT, COUNT_CORES=COUNT_CORES
)
_VERSION_PATTERNS = (  # tried in order: llama-server first names the GPUs, with their compute capability
    re.compile(r"version:?\s+(?:b|v)?(\d[\w.+-]{0,79})(?![\w.+-])", re.IGNORECASE),
    re.compile(r"\bv?(\d{1,18}\.\d{1,18}(?![\w.+-]{80})[\w.+-]*)"),
)
_READ_METADATA_SCRIPT = read_script(__file__, "read_metadata.sh")


@dataclass(frozen=True, slots=True)
class InstalledEngine:
    """The result of searching for an engine on a host. `path` is the path of its program, or None
    if no program was found; `problem` then says where it was searched. `how` says where the version
    was read, or why `version` is None."""

    engine: str
    path: str | None  # None: not found; `problem` says where it was searched
    version: str | None = None
    python: str | None = None  # the engine's own interpreter, when it is a Python program
    how: str = ""  # where the version was read from
    problem: str | None = None
    elsewhere: tuple[str, ...] = ()  # further programs of that name, in common places
    allotment: Allotment = NO_ALLOTMENT  # what the host's own environment says of its GPUs
    modified: str = ""  # when the program was changed, in seconds since 1970
    cores: HostCores | None = None  # of the host's CPUs; None if they are not known


async def probe_engine(
    host: Host, engine: Engine, executable: Sequence[str] = (), workdir: str | None = None
) -> InstalledEngine:
    """Return the engine that is installed on `host`. Searches for `executable[0]` if given,
    otherwise for the engine's own program names on PATH. Takes two round trips.

    An engine that runs from its source directory has only "python" as its program. It counts as
    installed if `workdir` contains its start script. Raises HostError only if the host itself
    cannot be queried.
    """
    if not executable and not engine.packages and not engine.version_arguments:
        missing = await _why_checkout_cannot_run(host, engine, workdir)
        if missing is not None:
            return InstalledEngine(engine.name, None, problem=missing)
    first = executable[0] if executable else ""
    done = await host.run(
        ["sh", "-c", _FIND_ENGINE_SCRIPT, "sh", first, *engine.executables], check=True
    )
    facts = parse_values_by_key(done.out.splitlines())
    allotment = gpu_allotment.parse_allotment(
        facts.get("job", [""])[0], facts.get("visible", [gpu_allotment.UNSET])[0]
    )
    if "path" not in facts:
        return replace(_make_missing_engine(host, engine, first, facts), allotment=allotment)
    path = facts["path"][0]
    python = _parse_interpreter(facts.get("script", []))
    elsewhere = tuple(place for place in dict.fromkeys(facts.get("elsewhere", [])) if place != path)
    known = await _read_installed_version(host, engine, path, python, facts)
    modified = "".join(facts.get("modified", []))
    counts = ("".join(facts.get(name, [])) for name in ("cpus", "cores", "nodes"))
    cores = host_cores.parse_cores(*counts)
    return replace(known, elsewhere=elsewhere, allotment=allotment, modified=modified, cores=cores)


async def _read_installed_version(
    host: Host, engine: Engine, path: str, python: str | None, facts: Mapping[str, list[str]]
) -> InstalledEngine:
    if not engine.packages and not engine.version_arguments:
        how = f"{engine.title} runs from its source directory and has no version number"
        return InstalledEngine(engine.name, path, None, python or path, how)
    own = facts["own"][0]
    # on a simulated host the stand-in answers, whatever the plan names
    if facts["simulated"][0] and own:
        return replace(await _read_version_from_program(host, engine, own, python), path=path)
    if engine.packages:
        return await _read_version_from_metadata(host, engine, path, python, facts["real"][0])
    if path != own:
        how = f"{path} is not the {engine.title} on PATH, so it was not run to ask for its version"
        return InstalledEngine(engine.name, path, None, python, how)
    return await _read_version_from_program(host, engine, path, python)


async def _why_checkout_cannot_run(host: Host, engine: Engine, workdir: str | None) -> str | None:
    """Return why the engine cannot run from its source directory `workdir`; None if that directory
    contains the engine's start script."""
    script = engine.launch[-1]
    if workdir is None:
        return (
            f"{engine.title} runs from its source directory; use a preset that names this directory"
        )
    found = await host.run(["sh", "-c", '[ -f "$1" ]', "sh", posixpath.join(workdir, script)])
    if found.returncode == 0:
        return None
    return (
        f"{workdir} on {host.name} contains no {script}, so it is not a checkout of {engine.title}"
    )


def _make_missing_engine(
    host: Host, engine: Engine, executable: str, facts: Mapping[str, list[str]]
) -> InstalledEngine:
    elsewhere = tuple(dict.fromkeys(facts.get("elsewhere", [])))
    wanted = executable or " or ".join(engine.executables)
    if "/" in executable:
        problem = f"{executable} on {host.name} {facts.get('fault', ['does not exist'])[0]}"
    else:
        problem = f"{wanted} not found on {host.name}; searched PATH={facts.get('PATH', [''])[0]}"
        problem += " and the places of virtual environments in the home directory, /opt and /srv"
    if elsewhere:
        problem += f"; found outside of PATH: {', '.join(elsewhere)}"
    return InstalledEngine(engine.name, None, problem=problem, elsewhere=elsewhere)


def _parse_interpreter(script: Sequence[str]) -> str | None:
    """Return the path of the Python that runs a console script; None if it is not a Python script.
    `script` has the first lines of the script. If the path is too long for a "#!" line, pip writes
    the line `'''exec' "/long/path" …` instead."""
    if not script:
        return None
    words = script[0].removeprefix("#!").split()
    if words and "python" in posixpath.basename(words[0]):
        return words[0]
    is_run_by_env = len(words) > 1 and posixpath.basename(words[0]) == "env"
    if is_run_by_env and "python" in words[-1]:
        return words[-1]
    for line in script[1:]:
        exec_ = re.match(r"""'''exec'\s+"?([^"]+?)"?\s+"\$0\"""", line)
        if exec_:
            return exec_.group(1)
    return None


async def _read_version_from_metadata(
    host: Host, engine: Engine, path: str, python: str | None, real: str
) -> InstalledEngine:
    """Return the engine with its version, which is read from the name of its Python package's
    metadata directory, such as "…/site-packages/vllm-0.33.0.dist-info". `path` is the program,
    `real` that path with symbolic links resolved, and `python` the Python that runs the program."""
    programs = [p for p in (python, path, real) if p and p.startswith("/")]
    prefixes = dict.fromkeys(posixpath.dirname(posixpath.dirname(program)) for program in programs)
    names = " ".join(name.replace("-", "_") for name in engine.packages)
    done = await host.run(["sh", "-c", _READ_METADATA_SCRIPT, "sh", names, *prefixes], timeout_s=20)
    directory = done.out.strip()
    version = posixpath.basename(directory).removesuffix(".dist-info").partition("-")[2] or None
    how = (
        f"no package metadata for {engine.name} beside {python or path}: the version is "
        "unknown until the start"
    )
    return InstalledEngine(
        engine.name, path, version, python, f"package metadata {directory}" if version else how
    )


async def _read_version_from_program(
    host: Host, engine: Engine, path: str, python: str | None
) -> InstalledEngine:
    arguments = engine.version_arguments or ("--version",)
    how = shlex.join([path, *arguments])
    try:
        done = await run_and_end_leftovers(host, [path, *arguments], timeout_s=10)
    except CommandTimeout:
        return InstalledEngine(engine.name, path, None, python, f"{how} did not answer within 10 s")
    matches = (version.search(done.out + done.err) for version in _VERSION_PATTERNS)
    found = next(filter(None, matches), None)
    if done.returncode or found is None:
        return InstalledEngine(engine.name, path, None, python, f"{how} printed no version")
    version = found.group(1)
    return InstalledEngine(
        engine.name, path, f"b{version}" if version.isdecimal() else version, python, how
    )

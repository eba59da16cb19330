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
    """What a search for an engine on a host has found. `path` is that of its program, None if there
    is none; `problem` then says where it was searched. `how` says where the version was read, or
    why `version` is None."""

    engine: str
    path: str | None
    version: str | None = None
    python: str | None = None  # the engine's own interpreter, when it is a Python program
    how: str = ""
    problem: str | None = None
    elsewhere: tuple[str, ...] = ()  # further programs of that name, in common places
    allotment: Allotment = NO_ALLOTMENT  # what the host's own environment says of its GPUs
    modified: str = ""  # when the program was changed, in seconds since 1970
    cores: HostCores | None = None  # of the host's CPUs; None if they are not known

    @property
    def version_text(self) -> str:
        """The version, or "(version unknown)"."""
        return self.version or "(version unknown)"


async def probe_engine(
    host: Host, engine: Engine, executable: Sequence[str] = (), workdir: str | None = None
) -> InstalledEngine:
    """Search `host` for the engine, and return what was found. The program searched is
    `executable[0]` if given, otherwise the engine's own program names on PATH. An engine that runs
    from its source directory is found if `workdir` contains its start script. Takes two or more
    round trips. Raises HostError if the host cannot be queried.
    """
    if not executable and _runs_from_source(engine):
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
    cores = host_cores.parse_host_cores(*counts)
    return replace(known, elsewhere=elsewhere, allotment=allotment, modified=modified, cores=cores)


def _runs_from_source(engine: Engine) -> bool:
    """Return whether the engine runs from its source directory, so that no package and no program
    has its version."""
    return not engine.packages and not engine.version_arguments


async def _read_installed_version(
    host: Host, engine: Engine, path: str, python: str | None, facts: Mapping[str, list[str]]
) -> InstalledEngine:
    if _runs_from_source(engine):
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
    """Return why the engine cannot run from the directory `workdir`; None if that contains its
    start script. Raises HostError."""
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
    """Return the path of the Python that runs a console script, whose first lines are `script`;
    None if it is not a Python script. If the path is too long for a "#!" line, pip writes the line
    `'''exec' "/long/path" …` instead."""
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


async def _read_version_from_metadata(
    host: Host, engine: Engine, path: str, python: str | None, real: str
) -> InstalledEngine:
    """Return the engine with its version from the name of its package's metadata directory, such as
    "…/site-packages/vllm-0.33.0.dist-info"; None if there is none. `path` is the program, `real`
    that path with symbolic links resolved, and `python` the Python that runs it. Raises
    HostError."""
    programs = filter(posixpath.isabs, filter(None, (python, path, real)))
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

"""Checks on the host before a server is started: working directory, executable, model path and
port. The checks take one round trip and change nothing."""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial

from workbench.engines import NAME_PROGRAM_STEP
from workbench.engines.model_facts import is_model_path
from workbench.hosts.base import Host
from workbench.hosts.script_files import read_script
from workbench.model.errors import ServerError
from workbench.model.findings import Finding, Level, PlanChange
from workbench.model.plan import Command, LaunchPlan
from workbench.model.secrets import mask_argv, mask_command
from workbench.model.server_run import ServerStatus
from workbench.model.untrusted_numbers import parse_hexadecimal
from workbench.server.launchers import launcher_of
from workbench.server.run_directory import RunRecord

_LOOK_SCRIPT = read_script(__file__, "check_port_and_directory.sh")


_MAX_HOLDER_CELLS = 80  # of the command line of a process that uses the port


async def check_before_start(
    host: Host,
    plan: LaunchPlan,
    command: Command,
    runs: Iterable[ServerStatus],
    *,
    simulated: bool = False,
    freed_ports: Collection[int] = (),
) -> None:
    """Raise ServerError for the first problem that would prevent the start of `command`: a missing
    file, or a used port. `runs` are all runs of the host. `freed_ports`, those of the server that
    is stopped before, count as free. The model of a `simulated` engine need not exist. Raises
    HostError if the host cannot be queried."""
    model = "" if simulated else _model_path(plan)
    facts, listening = await _read_facts_and_listening_ports(host, command, model)
    refuse = partial(_make_refusal, host, command)
    if uses_host_files(plan.run_as):
        _raise_for_missing_files(plan, command, model, facts, refuse)
    if command.port in freed_ports or not _uses_host_resource("port", plan.run_as):
        return
    problem = _explain_used_port(command, runs, facts, listening)
    if problem is not None:
        error = refuse(problem.text, problem.fix or "")
        error.findings = (problem,)
        raise error


def _model_path(plan: LaunchPlan) -> str:
    """Return the path of the plan's model; "" if the model is a hub id or missing."""
    if not is_model_path(plan.model):
        return ""
    return plan.model


def _make_refusal(host: Host, command: Command, message: str, next_step: str) -> ServerError:
    shown = mask_command(command).shell_line
    return ServerError(message, host=host.name, command=shown, next_step=next_step)


def list_freed_ports(replaced: ServerStatus | None) -> tuple[int, ...]:
    """Return the port that becomes free when the server `replaced` is stopped, in a tuple; () if it
    has none or has ended, and for None."""
    if replaced is None or replaced.port is None or not replaced.may_still_be_running:
        return ()
    return (replaced.port,)


async def check_files(
    host: Host, plan: LaunchPlan, command: Command, *, simulated: bool = False
) -> None:
    """Raise ServerError if the program, the working directory or the model of a server is missing
    on the host. Do nothing for a server that uses no files of the host. Raises HostError."""
    if not uses_host_files(plan.run_as):
        return
    model = "" if simulated else _model_path(plan)
    facts, _ = await _read_facts_and_listening_ports(host, command, model)
    _raise_for_missing_files(plan, command, model, facts, partial(_make_refusal, host, command))


def _raise_for_missing_files(
    plan: LaunchPlan,
    command: Command,
    model: str,
    facts: Mapping[str, str],
    refuse: Callable[[str, str], ServerError],
) -> None:
    if "workdir" in facts:
        raise refuse(
            f"working directory {command.workdir} does not exist",
            "create the directory on the host, or correct `workdir` in the plan",
        )
    if "executable" not in facts:
        raise refuse(*_missing_executable_problem_and_fix(command.argv[0], plan, facts))
    if "model" in facts:
        where = ""
        if command.workdir and not posixpath.isabs(model):
            where = f" (relative to {command.workdir})"
        raise refuse(
            f"model path {model} does not exist{where}",
            "correct the model path, or give a Hugging Face id",
        )


def uses_host_files(run_as: str) -> bool:
    """Return whether a server that the launcher `run_as` runs uses the programs and the files of
    the host itself, not those of an image or of a compute node."""
    return _uses_host_resource("files", run_as)


def _uses_host_resource(resource: str, run_as: str) -> bool:
    """Return whether a server of the launcher `run_as` uses a `resource` of the host, "files" or
    "port", and not that of an image or of a compute node."""
    launcher = launcher_of(run_as)
    return launcher is None or resource in launcher.looks_at


def claimed_port(record: RunRecord) -> int | None:
    """Return the port that the process of a run claims on its host before it listens. None if the
    run only follows a server, if that has no port, or if it is not a port of the host."""
    if record.adopts is not None or not record.has_port:
        return None
    is_on_host = _uses_host_resource("port", record.plan.run_as)
    return record.command.port if is_on_host else None


async def find_port_problem(
    host: Host, plan: LaunchPlan, command: Command, runs: Iterable[ServerStatus]
) -> Finding | None:
    """Return a warning about what uses the port of `command`, with a change to a free port. None if
    the port is free, or if the server will not use a port of this host. Raises HostError."""
    if not _uses_host_resource("port", plan.run_as):
        return None
    facts, listening = await _read_facts_and_listening_ports(host, command, "")
    return _explain_used_port(command, runs, facts, listening)


async def _read_facts_and_listening_ports(
    host: Host, command: Command, model: str
) -> tuple[Mapping[str, str], set[int]]:
    """Return ({key: value} of what _LOOK_SCRIPT found about the start of `command`, ports on which
    any process of the host listens). `model` is the path of the model, "" for none. Raises
    HostError."""
    search_path = command.env.get("PATH", "")
    argv = [command.argv[0], command.workdir or "", model, str(command.port), search_path]
    done = await host.run(["sh", "-c", _LOOK_SCRIPT, "sh", *argv], check=True)
    facts: dict[str, str] = {}
    listening: set[int] = set()
    for line in done.out.splitlines():
        key, _, value = line.partition("=")
        if key == "listens":
            port = parse_hexadecimal(value)
            if port is not None:
                listening.add(port)
        else:
            facts.setdefault(key, value)
    return facts, listening


def _missing_executable_problem_and_fix(
    name: str, plan: LaunchPlan, facts: Mapping[str, str]
) -> tuple[str, str]:
    if "exists" in facts:
        return f"{name} is not an executable file", (
            f"chmod +x {shlex.quote(name)}, or {NAME_PROGRAM_STEP}"
        )
    if "/" in name:
        return f"{name} does not exist", f"install {plan.engine} there, or {NAME_PROGRAM_STEP}"
    looked = f"searched PATH={facts.get('PATH', '')}"
    return f"{name} not found; {looked}", f"install {plan.engine}, or {NAME_PROGRAM_STEP}"


def _explain_used_port(
    command: Command, runs: Iterable[ServerStatus], facts: Mapping[str, str], listening: set[int]
) -> Finding | None:
    """Return a warning about what uses the port of `command`; None if it is free. `facts` and
    `listening` are from `_read_facts_and_listening_ports`, and `runs` are all runs of the host."""
    # An engine that is still loading may have bound the port without listening on it. Workbench
    # knows its own runs.
    alive = filter(_may_be_alive, runs)
    owners = {run.port: run for run in alive if _uses_host_resource("port", run.run_as)}
    used = listening | owners.keys()
    free = next((port for port in range(command.port + 1, 65536) if port not in used), None)
    another = "set another port" + (f": {free} is free" if free else "")
    if own := owners.get(command.port):
        by = f"{own.engine} run {own.run_id} ({own.state})"
        step = f"run workbench stop {own.run_id}"
    elif "taken" in facts:
        by, step = _format_port_holder(facts.get("holder", "")), "end that process"
    else:
        return None
    changes = (PlanChange("port", free),) if free else ()
    text = f"port {command.port} is in use by {by}"
    return Finding(Level.WARN, "host.port", text, fix=f"{step}, or {another}", changes=changes)


def _format_port_holder(holder: str) -> str:
    """Return the process that uses a port, for the user. `holder` is its id and its command line;
    "" if they are unknown, as those of another user."""
    pid, _, line = holder.partition(" ")
    if not pid:
        return "a process of another user"
    words = mask_argv(line.split())
    shown = " ".join([posixpath.basename(words[0]), *words[1:]]) if words else "name not known"
    return f"process {pid}: {shown[:_MAX_HOLDER_CELLS]}"


def _may_be_alive(run: ServerStatus) -> bool:
    return run.alive or not run.state.has_ended

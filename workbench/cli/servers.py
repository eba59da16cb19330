"""The commands `start`, `servers`, `logs`, `stop`, `adopt`, `restart` and `probe` for servers on
the host."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from workbench.cli.host_words import add_host_options, add_host_options_to_fixes
from workbench.cli.open_session import (
    connect_session,
    warn_if_benchmark_runs,
    warn_of_unreached_nodes,
)
from workbench.cli.output import (
    format_finding,
    format_finding_line,
    items_as_json,
    print_json,
    print_json_or_lines,
    print_line,
    print_message,
)
from workbench.cli.plan import load_plan, variables_json
from workbench.cli.questions import require_confirmation
from workbench.cli.registry import command, option
from workbench.cli.shared_options import CHANGES, PRESET, RUN_AS, TRUST, YES
from workbench.cli.stop_signals import cancel_on_signals
from workbench.model.counts import count_of
from workbench.model.errors import InputError
from workbench.model.findings import Level, by_severity
from workbench.model.server_run import ServerState, ServerStatus, launcher_and_state_text
from workbench.model.untrusted_numbers import parse_whole_number
from workbench.model.untrusted_text import clean_text

COMMAND_CHARS = 300  # shown of the command line of somebody else's server

if TYPE_CHECKING:
    from workbench.model.server_run import EngineMetrics
    from workbench.server.external_servers import FoundServer
    from workbench.session.session import Session

UNTRUSTED = 3  # exit code: the server is READY?, because its text is no answer
_ALL = 10**9
_START_HINT_CODES = (
    "variable.remembered",
    "variable.default",
    "bind.",
)  # codes of hints that a start prints too
# examples of what `adopt` takes
_ADOPTABLE = ("systemd:sglang.service", "podman:vllm", "slurm:4711")
_METRICS_S = 3.0
_MODELS_SHOWN = 5  # of a server that serves many
_RUN = option("run RUN", "id of a run, or its beginning or end; `workbench servers` lists them")
START_OPTIONS = (
    PRESET,
    *CHANGES,
    *RUN_AS,
    TRUST,
    option("--wait", "wait until the server is READY or has failed"),
    option("--timeout S", "time limit of --wait in seconds (1800)", float, default=1800.0),
)


@command(
    "start",
    "start a server that keeps running after this command, and print its run id",
    *START_OPTIONS,
    examples=(
        "workbench start vllm-any --wait",
        "workbench --host gpu-box start vllm-any --set port=8001 --wait --timeout 600",
    ),
)
async def start_background_server(arguments: argparse.Namespace) -> int:
    return await start_server(arguments)


async def start_server(arguments: argparse.Namespace) -> int:
    """Start a server with the options of the command `start`, and return the exit code."""
    async with connect_session(arguments) as session:
        session.servers.require_nodes_reached()
        planned = await load_plan(session, arguments)
        if planned.nodes and session.state.host.simulated and session.host.kind != "cluster":
            print_message(f"simulated: one process represents all {len(planned.nodes)} nodes")
        about_plan = by_severity(session.plans.editor.findings())
        for finding in add_host_options_to_fixes(about_plan, arguments):
            if finding.level is Level.WARN or finding.code.startswith(_START_HINT_CODES):
                print_message(format_finding_line(finding))
        about_host = await session.servers.host_findings()
        for finding in add_host_options_to_fixes(about_host, arguments):
            if finding.code != "host.port":  # the start itself refuses a port in use
                print_message(format_finding_line(finding))
        await warn_if_benchmark_runs(session)
        run_id = await session.servers.start()
        status = session.servers.supervisor.status(run_id)
        # what a launcher says about the start
        for finding in add_host_options_to_fixes(status.findings, arguments):
            print_message(format_finding(finding))
        if arguments.wait:
            print_message(f"{run_id}: waiting for READY")
            status = await session.servers.wait_ready(run_id, arguments.timeout)
        print_json_or_lines(
            arguments.json, {**status_json(status), "variables": variables_json(planned)}, run_id
        )
        return _report_start_outcome(status, arguments, session.servers.supervisor.statuses())


def _report_start_outcome(
    status: ServerStatus, arguments: argparse.Namespace, compared_runs: Sequence[ServerStatus] = ()
) -> int:
    """Say how the start ended, and return the exit code. `compared_runs` are the runs with which
    the duration of the start is compared."""
    why = status.reason or "see the log"
    if status.state in (ServerState.FAILED, ServerState.CRASHED):
        print_message(f"{status.engine} {status.state}: {why}")
        causes = [f for f in status.findings if status.alive or f.level is Level.ERROR]
        for finding in add_host_options_to_fixes(causes, arguments):
            print_message(f"  {format_finding(finding)}")
        if status.replaces is not None:
            again = f"`workbench restart {status.replaces}` starts again what ran before"
            print_message(f"next: {add_host_options(again, arguments)}")
        return 1
    if arguments.wait and status.state.has_ended:
        print_message(f"{status.engine} was stopped before it was READY: {why}")
        return 1
    if arguments.wait and not arguments.json:
        from workbench.server.start_times import format_start_duration

        took = format_start_duration(status, compared_runs)
        print_message(f"{status.state_word} at {status.url}{took}")
        for finding in add_host_options_to_fixes(status.findings, arguments):
            if finding.code.startswith("text."):
                print_message(f"  {format_finding(finding)}")
    return UNTRUSTED if status.text_problem else 0


@command(
    "servers",
    "list the newest runs on the host, and servers that Workbench did not start",
    option("--all", "list all runs, also those that ended long ago"),
    examples=("workbench servers", "workbench --host gpu-box servers --json"),
)
async def list_servers(arguments: argparse.Namespace) -> int:
    async with connect_session(arguments) as session:
        from workbench.server.supervisor import NEWEST_RUNS

        partly = warn_of_unreached_nodes(session)
        supervisor = session.servers.supervisor
        await supervisor.runs(_ALL if arguments.all else NEWEST_RUNS)
        statuses, older = await supervisor.check_servers_now(), len(supervisor.older)
        others, unseen = await _find_external_servers_or_problem(session)
        live = {}
        if arguments.json:
            live = await _live_metrics_by_run(session, statuses)
    if arguments.json:
        if unseen is not None:
            print_message(unseen)
        found = None
        if others is not None:
            found = [{**asdict(other), "url": other.url} for other in others]
        listed = [{**status_json(s), "live": live.get(s.run_id)} for s in statuses]
        return print_json(
            {"servers": listed, "older_runs": older, "not_started_by_workbench": found}
        )
    if not statuses and not others:
        print_message("no runs on the nodes that answer" if partly else "no runs on this host")
    for status in statuses:
        _print_server_run(status)
    for other in others or ():
        _print_external_server(other)
    if unseen is not None:
        print_message(unseen)
    if older:
        runs = count_of(older, "older run has", "older runs have")
        print_message(
            f"{runs} ended: `workbench servers --all` lists them, `workbench runs prune` removes "
            "them"
        )
    return 0


async def _find_external_servers_or_problem(
    session: Session,
) -> tuple[Sequence[FoundServer] | None, str | None]:
    """Return the servers that Workbench did not start. Without python3 on the host, return None and
    the reason: Workbench's own runs are listed all the same."""
    from workbench.hosts.base import CommandNotFound

    try:
        return await session.servers.find_external_servers(), None
    except CommandNotFound as error:
        text = f"servers that Workbench did not start cannot be listed: {error.message}"
        return None, f"{text} — install python3 on {session.core.host.name}"


async def _live_metrics_by_run(
    session: Session, statuses: Sequence[ServerStatus]
) -> dict[str, dict[str, Any]]:
    """Return {run id: live metrics} for the servers that are READY. The metrics of a server are
    computed from two readings of its counters, one second apart. Its field "absent" has the reason
    for each missing metric."""
    from workbench.model.engine_live import LIVE_METRICS
    from workbench.server.engine_rates import compute_rates

    supervisor = session.servers.supervisor
    runs = [s.run_id for s in statuses if s.state is ServerState.READY]

    async def read_metrics() -> list[EngineMetrics]:
        return list(
            await asyncio.gather(*(supervisor.metrics(run_id, _METRICS_S) for run_id in runs))
        )

    first = await read_metrics()
    if runs:
        await asyncio.sleep(1.0)
    live: dict[str, dict[str, Any]] = {}
    for run_id, before, now in zip(runs, first, await read_metrics(), strict=True):
        values = compute_rates(before, now)
        shown: dict[str, Any] = {}
        absent = {}
        for metric in LIVE_METRICS:
            shown[metric.field] = values.get(metric.field)
            for name in metric.counters:
                if now.absent.get(name):
                    absent[metric.field] = now.absent[name]
        live[run_id] = {**shown, "absent": absent}
    return live


def _print_server_run(status: ServerStatus) -> None:
    age = ""
    if status.started_unix_s:
        age = f"{(time.time() - status.started_unix_s) / 60:.0f} min"
    detail = status.reason or status.phase or status.url or ""
    if status.simulated:
        detail += " SIMULATED"
    print_line(
        f"{status.run_id}  {status.state_word:<12} {status.engine:<9} {status.model}  {age}  "
        f"{detail}"
    )
    if runs_as := launcher_and_state_text(status, time.time()):
        foreign = " (not started by Workbench)" if status.others else ""
        print_line(f"  {runs_as}{foreign}")
    for finding in status.findings:
        if status.alive and finding.level in (Level.ERROR, Level.WARN):
            print_line(f"  {format_finding_line(finding)}")


def _print_external_server(other: FoundServer) -> None:
    names, rest = other.models[:_MODELS_SHOWN], other.models[_MODELS_SHOWN:]
    models = ", ".join(names) or other.note
    if rest:
        models += f" and {len(rest)} more"
    print_line(
        f"pid {other.pid}, not started by Workbench: {other.engine or 'a server'} {models}  "
        f"{other.url}"
    )
    print_line(
        f"  {clean_text(other.command, COMMAND_CHARS)}\n  to benchmark it: {other.bench_command}"
    )
    if other.adopt_command:
        print_line(
            f"  unit {other.unit_text}; to let Workbench follow this server: {other.adopt_command}"
        )


@command(
    "logs",
    "print the log of a run from its first byte",
    _RUN,
    option("--follow", "keep printing until the run ends"),
    examples=("workbench logs RUN --follow",),
)
async def print_log(arguments: argparse.Namespace) -> int:
    async with connect_session(arguments) as session:
        status = await find_run(session, arguments.run)
        lines: list[str] = []
        await session.servers.supervisor.mark_log_as_read(status.run_id)
        async for batch in session.servers.supervisor.read_log(
            status.run_id, follow=arguments.follow
        ):
            if arguments.json:
                lines += batch.lines
            else:
                for line in batch.lines:
                    print_line(line)
                sys.stdout.flush()
        if arguments.json:
            print_json({"run_id": status.run_id, "lines": lines, "simulated": status.simulated})
    return 0


@command(
    "stop",
    "stop a run: all its processes, and no others",
    _RUN,
    option(
        "--uninstall",
        "also remove the unit that was installed at its start (--run-option installed=yes|boot)",
    ),
    examples=("workbench stop RUN", "workbench stop RUN --uninstall"),
)
async def stop_run(arguments: argparse.Namespace) -> int:
    from workbench.session.servers import adoption

    async with connect_session(arguments) as session:
        status = await find_run(session, arguments.run)
        await warn_if_benchmark_runs(session)
        await session.servers.stop(status.run_id)
        status = session.servers.supervisor.status(status.run_id)
        removed: Sequence[str] = ()
        if arguments.uninstall:
            removed = await adoption.stop_server_and_remove_unit(session, status.run_id)
    line = f"{status.run_id} {status.state}"
    if status.others and status.reason:
        line += f": {status.reason}"
    lines = [line, *(f"removed {path}" for path in removed)]
    return print_json_or_lines(
        arguments.json, {**status_json(status), "removed": list(removed)}, lines
    )


@command(
    "adopt",
    "follow a server that somebody else started as a unit, container or job",
    option(
        "server WORD:HANDLE",
        "what runs the server, and the name of its unit or container, or its job: "
        f"{', '.join(_ADOPTABLE)}",
    ),
    RUN_AS[1],
    option("--wait", "wait until the server is READY or has failed"),
    option("--timeout S", "time limit of --wait in seconds (1800)", float, default=1800.0),
    examples=("workbench adopt systemd:sglang.service --run-option scope=system --wait",),
)
async def adopt_external_server(arguments: argparse.Namespace) -> int:
    word, colon, handle = arguments.server.partition(":")
    if not colon or not handle:
        raise InputError(
            f"{arguments.server!r} is not of the form WORD:HANDLE",
            next_step=f"for example {_ADOPTABLE[0]}",
        )
    from workbench.session.servers import adoption

    async with connect_session(arguments) as session:
        run_id = await adoption.adopt_and_return_run_id(
            session, word, handle, arguments.run_options
        )
        status = session.servers.supervisor.status(run_id)
        if arguments.wait:
            print_message(f"{run_id}: waiting for READY")
            status = await session.servers.wait_ready(run_id, arguments.timeout)
        print_json_or_lines(arguments.json, status_json(status), run_id)
        return _report_start_outcome(status, arguments, session.servers.supervisor.statuses())


@command(
    "restart",
    "restart the server of a run with the same plan, also one that has ended",
    _RUN,
    YES,
    option("--wait", "wait until the server is READY or has failed"),
    option("--timeout S", "time limit of --wait in seconds (1800)", float, default=1800.0),
    examples=("workbench restart RUN", "workbench restart RUN --yes --wait"),
)
async def restart_run(arguments: argparse.Namespace) -> int:
    """Restart the unit, container or job of a run in place. The server of another run is replaced
    by one with the same plan, and that of an ended run is started again."""
    from workbench.session.servers import adoption

    async with connect_session(arguments) as session:
        status = await find_run(session, arguments.run)
        in_place = await adoption.can_restart_in_place(session, status.run_id)
        if in_place:
            shown = await adoption.preview_restart_command(session, status.run_id)
        else:
            shown = session.servers.supervisor.record(status.run_id).command.shell_line
        if status.may_still_be_running:
            await _confirm_restart(session, arguments, status, shown)
        run_id = status.run_id
        async with cancel_on_signals(_interrupted_restart_message(run_id)):
            if in_place:
                await adoption.restart_in_place(session, run_id)
            else:
                run_id = await session.servers.start_again(run_id)
        status = session.servers.supervisor.status(run_id)
        if arguments.wait:
            print_message(f"{run_id}: waiting for READY")
            status = await session.servers.wait_ready(run_id, arguments.timeout)
    document = {**status_json(status), "command": shown}
    said = f"{run_id} restarted: {shown}" if in_place else run_id
    print_json_or_lines(arguments.json, document, said)
    return _report_start_outcome(status, arguments, session.servers.supervisor.statuses())


def _interrupted_restart_message(run_id: str) -> str:
    """Return the message for a restart that a signal has ended: the server may be stopped and not
    started again, and which commands show and start it."""
    return (
        f"the server of run {run_id} may be stopped and not started again; `workbench servers` shows "
        f"what runs, and `workbench restart {run_id}` starts it"
    )


async def _confirm_restart(
    session: Session, arguments: argparse.Namespace, status: ServerStatus, shown: str
) -> None:
    """Ask whether to restart a live server, and warn if somebody measures on its host. `shown` is
    the command that starts the server. Raises Declined or InputError as `require_confirmation`
    does."""
    question = f"{session.host.name}: {shown}\nRestart the server of run {status.run_id}?"
    problem = f"nobody can be asked whether to run: {shown}"
    next_step = "add --yes to restart the server"
    await require_confirmation(arguments, question, problem=problem, next_step=next_step)
    await warn_if_benchmark_runs(session)


@command(
    "probe",
    "ask a READY server for text again, and say whether its text is an answer",
    _RUN,
    examples=("workbench probe RUN",),
)
async def probe_server(arguments: argparse.Namespace) -> int:
    async with connect_session(arguments) as session:
        status = await find_run(session, arguments.run)
        await warn_if_benchmark_runs(session)
        text = await session.servers.request_text_of_server(status.run_id)
        status = session.servers.supervisor.status(status.run_id)
    document = {"run_id": status.run_id, "state": status.state_word, "text": asdict(text)}
    doubts = [f"  {doubt}" for doubt in filter(None, (*text.notes, text.unjudged))]
    lines = [f"{status.run_id} is {status.state_word}: {text.summary}", *doubts]
    print_json_or_lines(arguments.json, document, lines)
    return UNTRUSTED if text.problem else 0


def status_json(status: ServerStatus) -> dict[str, Any]:
    return {
        **asdict(status),
        "state": status.state_word,
        "findings": items_as_json(status.findings),
    }


def match_run_ids(run_ids: Sequence[str], run: str) -> list[str]:
    """Return the run id that is `run`; if there is none, those that begin or end with `run`."""
    if run in run_ids:
        return [run]
    return [run_id for run_id in run_ids if run_id.startswith(run) or run_id.endswith(run)]


async def find_run(session: Session, run: str) -> ServerStatus:
    """Return the run whose id is `run`, or the only run whose id begins or ends with `run`. Raises
    InputError if there is no such run or more than one.
    """
    supervisor = session.servers.supervisor
    known = [*(s.run_id for s in await supervisor.runs()), *supervisor.older]
    if run not in known:
        if (pid := parse_whole_number(run)) is not None:
            await _refuse_external_server(session, pid)
        warn_of_unreached_nodes(session)
    hits = match_run_ids(known, run)
    if len(hits) == 1:
        return await supervisor.load_status(hits[0])
    problem = f"no run {run!r}"
    if hits:
        problem = f"{len(hits)} runs match {run!r}: {', '.join(hits[:5])}"
    raise InputError(
        problem, host=session.host.name, next_step="`workbench servers` lists the runs"
    )


async def _refuse_external_server(session: Session, pid_or_port: int) -> None:
    """Raise InputError if `pid_or_port` is the process id or the port of a server that Workbench
    did not start, because Workbench does not control such servers.
    """
    for other in await session.servers.find_external_servers():
        if pid_or_port not in (other.pid, other.port):
            continue
        log = "its output is where it was started"
        if other.output:
            log = f"its output goes to {other.output}"
        raise InputError(
            f"process {other.pid} at {other.url} was not started by Workbench; {log}",
            host=session.host.name,
            command=other.command,
            next_step=f"`{other.bench_command}` benchmarks it",
        )


async def wait_for_ready_run_id(session: Session, run: str | None) -> str | None:
    """Wait until the run that `run` names is READY, and return its id. None if `run` is None.
    Raises BenchError if the run has ended."""
    if run is None:
        return None
    status = await find_run(session, run)
    if status.state is ServerState.STARTING:
        print_message(f"{status.run_id}: waiting for READY")
    status = await session.servers.wait_ready(status.run_id)
    if status.text is not None and status.text_problem:
        print_message(f"{status.run_id} is {status.state_word.upper()}: {status.text.summary}")
    return await session.servers.ready_run_id(status.run_id)

"""The command `trace capture`, which writes the traffic of a server to a file without its text."""

from __future__ import annotations

import argparse
import asyncio
import shlex
import signal
import time
from collections.abc import Awaitable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.cli.gpu_verify import refuse_run_with_url
from workbench.cli.open_session import connect_session
from workbench.cli.output import print_json_or_lines, print_message, simulated_suffix
from workbench.cli.registry import command, option
from workbench.cli.servers import wait_for_ready_run_id
from workbench.cli.shared_options import make_seconds_parser
from workbench.cli.stop_signals import (
    EndedBySignal,
    format_termination_message,
    queue_termination_signals,
)
from workbench.model.counts import count_of
from workbench.model.errors import BenchError, WorkbenchError

if TYPE_CHECKING:
    from workbench.bench.traffic_capture import TrafficCapture

_PROGRESS_S = 10.0
_MOST_S = 30 * 86_400


def _parse_port(text: str) -> int:
    number = int(text) if text.isdecimal() else -1
    if not 0 <= number <= 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port from 0 to 65535")
    return number


@command(
    "trace capture",
    "write the traffic that passes through a port in front of a server to a trace, without text",
    option("run RUN", "id of a run (default: the newest READY run of the host)", nargs="?"),
    option("--url URL", "base URL of a server that Workbench did not start"),
    option(
        "--port N",
        "port on 127.0.0.1 to send the traffic to (0: any free one)",
        _parse_port,
        default=0,
    ),
    option(
        "--seconds N",
        "end after this time; without it, Ctrl-C ends the capture",
        make_seconds_parser(1, _MOST_S),
    ),
    option("-o --output FILE", "new file for the trace (captured-DATE-TIME.jsonl)", Path),
    usage="workbench trace capture [RUN | --url URL] [OPTION…]",
    examples=(
        "workbench trace capture RUN --port 9000 -o lunch.jsonl",
        "workbench trace capture --url http://127.0.0.1:8000 --seconds 600",
    ),
)
async def capture_trace(arguments: argparse.Namespace) -> int:
    from workbench.bench.traffic_capture import TrafficCapture
    from workbench.session.bench.capture import open_server_address_and_port

    refuse_run_with_url(arguments)
    path = arguments.output or Path(time.strftime("captured-%Y%m%d-%H%M%S.jsonl"))
    async with connect_session(arguments) as session:
        run_id = await wait_for_ready_run_id(session, arguments.run)
        if arguments.url is None:
            run_id = await session.servers.ready_run_id(run_id)
        simulated = session.host.simulated is not None and arguments.url is None
        async with open_server_address_and_port(session, run_id, arguments.url) as server:
            capturing = TrafficCapture(path)
            with queue_termination_signals() as signals:  # before clients can connect
                try:
                    await capturing.start(server, arguments.port)
                except BaseException:
                    await capturing.abandon_capture()
                    raise
                whose = arguments.url or f"run {run_id}"
                print_message(f"{capturing.url} passes on to {whose}; send your requests there")
                ended_by = await _wait_until_capture_ends(capturing, signals, arguments)
            totals = await capturing.end_capture()
    if not totals.get("requests"):
        path.unlink(missing_ok=True)
        raise _make_nothing_captured_error(totals, ended_by)
    code = _report_capture(arguments, path, run_id, totals, simulated=simulated)
    if ended_by is None:
        return code
    print_message(format_termination_message(ended_by, f"{path} has what was captured"))
    return 128 + ended_by


async def _wait_until_capture_ends(
    capturing: TrafficCapture,
    signals: asyncio.Queue[signal.Signals],
    arguments: argparse.Namespace,
) -> signal.Signals | None:
    """Wait for the end of the capture: for its time, for a signal, or for the end of the writer.
    Then wait for the requests in flight, until the next signal. Return the first signal, None if
    there was none."""
    seconds = arguments.seconds
    if seconds is None:
        print_message("Ctrl-C ends the capture")
    telling = asyncio.create_task(_print_capture_progress(capturing, arguments))
    first = asyncio.create_task(signals.get())
    try:
        await _wait_for_first_or_timeout(seconds, first, capturing.ended.wait())
    finally:
        telling.cancel()
    telling = asyncio.create_task(_print_requests_in_flight(capturing))
    next_one = asyncio.create_task(signals.get())
    try:
        await _wait_for_first_or_timeout(
            None, capturing.stop_accepting_and_drain(), next_one, capturing.ended.wait()
        )
    finally:
        telling.cancel()
    arrived = [one.result() for one in (first, next_one) if one.done() and not one.cancelled()]
    return arrived[0] if arrived else None


async def _print_capture_progress(capturing: TrafficCapture, arguments: argparse.Namespace) -> None:
    """Print how much was captured, whenever that has changed; nothing with --json."""
    told = 0
    while not arguments.json:
        await asyncio.sleep(_PROGRESS_S)
        totals = await capturing.request_totals_from_writer()
        requests = totals.get("requests", 0)
        if requests != told:
            told = requests
            print_message(
                f"{count_of(requests, 'request')}, {totals['prompt_tokens']:,} prompt tokens"
            )


async def _print_requests_in_flight(capturing: TrafficCapture) -> None:
    """Print for how many requests the end of the capture waits; nothing if there are none."""
    totals = await capturing.request_totals_from_writer()
    if capturing.ended.is_set():
        return
    in_flight = totals["passed"]["in_flight"]
    if in_flight:
        waiting = count_of(in_flight, "request is", "requests are")
        print_message(f"{waiting} in flight; Ctrl-C again cuts them")


async def _wait_for_first_or_timeout(timeout_s: float | None, *waits: Awaitable[Any]) -> None:
    """Wait until one of `waits` has ended or the time is over, and cancel the others."""
    from workbench.hosts.task_cancellation import cancel_all

    tasks = [asyncio.ensure_future(one) for one in waits]
    try:
        await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancel_all(tasks)


def _make_nothing_captured_error(
    totals: dict[str, Any], ended_by: signal.Signals | None
) -> WorkbenchError:
    """Return the error of a capture that ended without a request."""
    said = "".join(
        ("nothing was captured", *(f"; {one}" for one in _omitted_traffic_lines(totals)))
    )
    next_step = "send requests for chat or completions to the port while the capture runs"
    if ended_by is None:
        return BenchError(said, next_step=next_step)
    return EndedBySignal(ended_by, said, next_step=next_step)


def _report_capture(
    arguments: argparse.Namespace,
    path: Path,
    run_id: str | None,
    totals: dict[str, Any],
    *,
    simulated: bool,
) -> int:
    document = {"written": str(path), "run": run_id, "simulated": simulated, **totals}
    lines = [
        *_capture_lines(path, totals, simulated=simulated),
        *_replay_command_lines(arguments, run_id, path),
    ]
    return print_json_or_lines(arguments.json, document, lines)


def _replay_command_lines(
    arguments: argparse.Namespace, run_id: str | None, path: Path
) -> Iterator[str]:
    """Yield lines with the commands that replay the captured requests."""
    words = ["workbench"]
    for name in ("host", "cluster", "container", "simulate"):
        given = getattr(arguments, name)
        words += [f"--{name}", given] if given else []
    target = [run_id] if run_id else ["--url", arguments.url]
    trace = ["--trace", str(path)]
    yield f"next: `{shlex.join([*words, 'bench', *target, *trace])}` replays it"
    if run_id:
        compared = shlex.join([*words, "experiment", run_id, *trace])
        yield f"      `{compared} --b FLAG=VALUE` compares a change on it"


def _capture_lines(path: Path, totals: dict[str, Any], *, simulated: bool) -> Iterator[str]:
    seconds = totals["seconds"]
    took = f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:,.1f} minutes"
    mark = simulated_suffix(simulated)
    yield f"{path}: {count_of(totals['requests'], 'request')} in {took}{mark}"
    yield (
        f"  {totals['prompt_tokens']:,} prompt tokens, {totals['answer_tokens']:,} answer tokens; "
        f"{count_of(totals['conversations'], 'conversation')}, {count_of(totals['turns'], 'turn')} "
        "after another"
    )
    share = 100 * totals["reused_tokens"] / totals["prompt_tokens"]
    engine = ""
    if totals.get("cached_of_tokens"):
        said = 100 * totals["cached_tokens"] / totals["cached_of_tokens"]
        engine = f", and the engine reported {said:.1f} %"
    yield f"  a prefix cache without limit would reuse {share:.1f} % of the prompt tokens{engine}"
    if totals["estimated"]:
        yield (
            f"  {count_of(totals['estimated'], 'request')} with a length from characters, because the "
            "answer reports no tokens (stream_options: include_usage)"
        )
    if totals["cut"]:
        yield f"  {count_of(totals['cut'], 'answer')} cut by the client or the server"
    yield from (f"  {line}" for line in _omitted_traffic_lines(totals))
    yield "  the file contains no text and no hash of a text"


def _omitted_traffic_lines(totals: dict[str, Any]) -> Iterator[str]:
    """Yield lines about what went through the port and is not in the file."""
    left = [f"{number:,} {why}" for why, number in sorted(totals.get("left_out", {}).items())]
    if left:
        yield f"left out: {', '.join(left)}"
    refused = totals["passed"]["refused"]
    if refused:
        yield f"the server did not accept {count_of(refused, 'connection')}: check that it runs"
    unread = totals["passed"]["unread"]
    if unread:
        connections = count_of(unread, "connection")
        yield f"passed on unread: {connections} (no HTTP/1.1, too large, or too much at once)"

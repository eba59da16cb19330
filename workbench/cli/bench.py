"""The command `bench`, which benchmarks a run or a server by URL, or runs the user's own benchmark
command."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from workbench.cli import result_output
from workbench.cli.host_words import add_options_of_recorded_host_to_lines
from workbench.cli.load_options import CLIENT, SHAPE, SIZE, read_load_options
from workbench.cli.open_session import connect_session
from workbench.cli.output import print_json, print_lines, print_message
from workbench.cli.registry import command, option
from workbench.cli.servers import wait_for_ready_run_id
from workbench.cli.shared_options import IF_MEASURED
from workbench.cli.stop_signals import (
    cancel_on_signals,
    raise_ended_by_signal,
    stop_benchmark_on_signals,
)
from workbench.model.bench_cli_options import FOR_OWN_COMMAND
from workbench.model.counts import count_of
from workbench.model.errors import InputError
from workbench.model.load_spec import OPTIONS
from workbench.model.untrusted_text import clean_text

if TYPE_CHECKING:
    from workbench.model.bench import BenchProgress, BenchResult, BenchSummary
    from workbench.session.session import Session
    from workbench.session.state import SessionState

INVALID = 3  # exit code: there is a result, but it is not valid
_SILENT_S = 10.0  # time without a byte from the server after which the user is notified

_CONCURRENCY = option(
    "--concurrency N[,N…]",
    "number of requests in flight at the same time; several numbers are measured one after the "
    "other",
    dest="levels",
)


@command(
    "bench",
    "benchmark a run or any OpenAI-compatible server, with requests of Workbench or your own "
    "command",
    option("run RUN", "id of a run; `workbench servers` lists them", nargs="?"),
    option("--url URL", "base URL of a server that Workbench did not start"),
    _CONCURRENCY,
    *SIZE,
    *SHAPE,
    *CLIENT,
    option("--max-minutes M", "time limit for several concurrencies together", float),
    option("--repeat N", "run N times and show how much the results vary", int, default=1),
    IF_MEASURED,
    usage="workbench bench [RUN | --url URL] [OPTION…] [-- COMMAND…]",
    examples=(
        "workbench bench RUN --concurrency 8",
        "workbench bench --url http://127.0.0.1:8000 --concurrency 1,2,4,8,16",
        "workbench bench RUN --rate 4 --seconds 30 --arrival poisson",
        "workbench bench RUN --trace conversations.jsonl --first 1000 --speed 2x",
        "workbench bench RUN -- python eval.py --base-url {base_url}",
    ),
)
async def run_benchmark(arguments: argparse.Namespace) -> int:
    if bool(arguments.run) == bool(arguments.url):
        raise InputError(
            "`bench` needs either a run or --url", next_step="`workbench servers` lists the runs"
        )
    levels, load = parse_concurrency_levels(arguments.levels), read_load_options(arguments)
    if "command" in load:
        _refuse_load_options_beside_command(levels, load)
    if arguments.repeat < 1 or (arguments.repeat > 1 and len(levels) > 1):
        raise InputError(
            "--repeat must be 1 or more, and --concurrency must then be one number",
            next_step="give, for example, --concurrency 8 --repeat 5",
        )
    if arguments.max_minutes is not None and len(levels) < 2:
        raise InputError(
            "--max-minutes limits several concurrencies together, and one is measured",
            next_step="use --deadline S for the time of one benchmark",
        )
    # at the first wait; before it, the imports would compete
    asyncio.get_running_loop().call_soon(_import_benchmark_modules)
    async with connect_session(arguments) as session:
        shown = not arguments.json and sys.stderr.isatty()
        session.subscribe(
            _draw_benchmark_progress if shown else make_unresponsive_server_reporter()
        )
        run_id = await wait_for_ready_run_id(session, arguments.run)
        await session.gpu.alterations.read_altered_settings()
        if len(levels) > 1:
            return await _run_concurrency_sweep_command(session, arguments, levels, run_id, load)
        load["concurrency"] = next(iter(levels), None)
        results, received = await _run_repeated_benchmarks_until_signal(
            session, arguments, run_id, load
        )
    if len(results) > 1:
        _print_metric_spread(results, arguments.json)
    elif arguments.json:
        print_json(result_output.result_json(results[0]))
    if received:
        return 128 + received[0]
    return _exit_code_of_results(results)


def _import_benchmark_modules() -> None:
    """Import the modules that the benchmark will need, in a thread. Meanwhile the command waits for
    the host."""

    def import_benchmark_module() -> None:
        importlib.import_module("workbench.session.bench.bench")

    asyncio.get_running_loop().run_in_executor(None, import_benchmark_module)


async def _run_repeated_benchmarks_until_signal(
    session: Session, arguments: argparse.Namespace, run_id: str | None, load: dict[str, Any]
) -> tuple[list[BenchResult], list[signal.Signals]]:
    """Run the benchmark `--repeat` times and print each result. Return (results, signals that
    stopped the last benchmark); the signals are empty if none did. Raises EndedBySignal if a signal
    stopped it before there was a result."""
    from workbench.bench.runner import BenchCancelled

    results: list[BenchResult] = []
    received: list[signal.Signals] = []

    async def add_and_print_result(result_id: int) -> None:
        results.append(await session.results.get(result_id))
        if not arguments.json:
            print_lines(result_output.result_lines(results[-1]))

    try:
        async with stop_benchmark_on_signals(session, received):
            for _ in range(arguments.repeat):
                if run_id is not None:
                    await add_and_print_result(await session.bench.benchmark_run(run_id, **load))
                else:
                    await add_and_print_result(
                        await session.bench.benchmark_url(arguments.url, **load)
                    )
    except BenchCancelled as cancelled:
        if not received:
            raise
        if cancelled.result_id is not None:
            await add_and_print_result(cancelled.result_id)
        elif not results:
            raise_ended_by_signal(received)
    return results, received


async def _run_concurrency_sweep_command(
    session: Session,
    arguments: argparse.Namespace,
    levels: list[int],
    run_id: str | None,
    load: dict[str, Any],
) -> int:
    from workbench.cli.sweeps import report_resume_command_if_cancelled, sweep_lines

    url = arguments.url
    if run_id:
        url = None
    async with cancel_on_signals(), report_resume_command_if_cancelled(session):
        sweep = await session.sweeps.run_concurrency_sweep(
            levels, run_id=run_id, url=url, max_minutes=arguments.max_minutes, **load
        )
    results = [await session.results.get(i) for point in sweep.points for i in point.result_ids]
    if arguments.json:
        print_json(
            {"results": [result_output.result_json(r) for r in results], "sweep": asdict(sweep)}
        )
    else:
        for result in results:
            print_lines(result_output.result_lines(result))
        print_lines(add_options_of_recorded_host_to_lines(sweep_lines(sweep), sweep.host))
    return _exit_code_of_results(results) or int(sweep.state != "done")


def _refuse_load_options_beside_command(levels: Sequence[int], load: dict[str, Any]) -> None:
    """Raise InputError if options that describe requests are given together with the user's own
    benchmark command, because that command makes its own requests.
    """
    unused = load.keys() - {"command", *FOR_OWN_COMMAND}
    options = {one.dest: one.name for one in OPTIONS}
    names = [options[dest] for dest in unused]
    if levels:
        names.append("--concurrency")
    if names:
        raise InputError(
            f"{', '.join(sorted(names))}: your own command makes its own requests, so these options have "
            "no effect",
            next_step="remove these options, and give equivalent ones to your own command",
        )


def parse_concurrency_levels(text: str | None) -> list[int]:
    """Return the concurrencies in a text such as "1,8,32". The list is empty for None. Raises
    InputError for a number below 1.
    """
    if text is None:
        return []
    try:
        levels = [*map(int, text.split(","))]
    except ValueError:
        levels = []
    if not levels or min(levels) < 1:
        raise InputError(
            f"--concurrency {text!r} is not N or N,N,…",
            next_step="give numbers of streams, for example --concurrency 1,8,32",
        )
    return levels


def _print_metric_spread(results: list[BenchResult], as_json: bool) -> None:
    from workbench.bench.repeated_runs import spread_of_each_metric

    summaries = [result.summary for result in results]
    spreads, invalid = spread_of_each_metric(summaries), sum(map(_is_summary_invalid, summaries))
    if as_json:
        documents = [result_output.result_json(r) for r in results]
        print_json({"results": documents, "spread": list(map(asdict, spreads)), "refused": invalid})
    else:
        print_lines(result_output.metric_spread_lines(spreads, len(results), invalid))


def _exit_code_of_results(results: Sequence[BenchResult]) -> int:
    if any(map(_is_invalid, results)):
        return INVALID
    return 0


def _is_summary_invalid(summary: BenchSummary) -> bool:
    return bool(summary.refused)


def _is_invalid(result: BenchResult) -> bool:
    """Return whether a result was refused or has no request that succeeded. A result of the user's
    own command may have none, because its requests are not known."""
    if _is_summary_invalid(result.summary):
        return True
    return not result.summary.requests_ok and not result.spec.command


def _draw_benchmark_progress(state: SessionState, changed: frozenset[str]) -> None:
    if "bench" not in changed:
        return
    progress, text = state.bench.progress, ""
    if state.bench.running and progress is not None and progress.phase != "done":
        shown = progress.line or _request_counts_and_speed_text(progress)
        text = f"{progress.phase} {shown}  {progress.elapsed_s:.0f} s"
    sys.stderr.write(f"\r\x1b[K{clean_text(text)}")
    sys.stderr.flush()


def _request_counts_and_speed_text(progress: BenchProgress) -> str:
    text = f"{progress.done}/{progress.total}  {progress.output_tok_s:,.0f} tok/s"
    if progress.silent_s >= _SILENT_S:
        text += f"  {_unresponsive_server_text(progress)}"
    return text


def _unresponsive_server_text(progress: BenchProgress) -> str:
    return (
        f"no byte from the server for {progress.silent_s:.0f} s, "
        f"{count_of(progress.in_flight, 'request')} waiting"
    )


def make_unresponsive_server_reporter() -> Callable[[SessionState, frozenset[str]], None]:
    """Return a listener that prints a message on stderr when the server has sent nothing for 10,
    20, 40, … seconds."""
    next_s = _SILENT_S

    def report_unresponsive_server(state: SessionState, changed: frozenset[str]) -> None:
        nonlocal next_s
        progress = state.bench.progress
        if "bench" not in changed or progress is None:
            return
        if progress.silent_s < _SILENT_S:
            next_s = _SILENT_S
        elif progress.silent_s >= next_s:
            print_message(f"{progress.phase}: {_unresponsive_server_text(progress)}")
            next_s *= 2

    return report_unresponsive_server

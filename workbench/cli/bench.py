"""bench."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from workbench.cli import bench_text
from workbench.cli.dispatch import Command, emit
from workbench.cli.open_session import connected, note, say
from workbench.cli.servers import ready_run
from workbench.cli.stop_signals import raise_for, stopped_by_signals
from workbench.model.errors import InputError
from workbench.model.untrusted_text import clean

if TYPE_CHECKING:
    from workbench.model.bench import BenchProgress, BenchResult
    from workbench.session.session import Session
    from workbench.session.state import SessionState

_SILENT_S = 10.0  # without a byte: from here on it is told
REFUSED = 3  # exit code: there are figures, and they may not be used


# Of `_overrides`, what also goes for a command of the user's own; options that are not named as their field.
_FOR_A_COMMAND = {"command", "model", "api_key_env", "ca_file", "insecure", "deadline_s"}
_OPTION_NAMES = {
    "ca_file": "cacert",
    "timeout_s": "timeout",
    "stall_s": "stall-timeout",
    "stream": "no-stream",
    "prompts_file": "prompts",
    "ignore_eos": "natural-lengths",
}


def result_json(result: BenchResult) -> dict[str, Any]:
    """The summary's figures on top, then spec and conditions."""
    from workbench.model.json_records import to_json
    from workbench.model.secrets import mask_env

    summary: dict[str, Any] = to_json(result.summary)
    conditions = to_json(result.conditions)
    conditions["env"] = mask_env(conditions["env"])
    return {
        "id": result.id,
        "unix_s": result.unix_s,
        "simulated": result.conditions.simulated,
        **summary,
        "spec": to_json(result.spec),
        "conditions": conditions,
        "note": result.note,
        "tags": list(result.tags),
    }


async def bench(arguments: argparse.Namespace) -> int:
    if bool(arguments.run) == bool(arguments.url):
        raise InputError("give either a run or --url", next_step="workbench servers lists the runs")
    levels, overrides = _levels(arguments.concurrency), _overrides(arguments)
    if "command" in overrides:
        _check_for_a_command(levels, overrides)
    if arguments.repeat < 1 or (arguments.repeat > 1 and len(levels) > 1):
        raise InputError("--repeat is 1 or more, at one concurrency", next_step="for example --repeat 5")
    async with connected(arguments) as session:
        shown = not arguments.json and sys.stderr.isatty()
        session.subscribe(_draw_progress if shown else _silence_teller())
        run_id = await ready_run(session, arguments.run)
        await session.read_alterations()
        if len(levels) > 1:
            return await _bench_levels(session, arguments, levels, run_id, overrides)
        given = {**overrides, "concurrency": levels[0] if levels else None}
        results, received = await _repeated(session, arguments, run_id, given)
    _say_all(results, arguments.json)
    return 128 + received[0] if received else _code(results)


async def _repeated(
    session: Session, arguments: argparse.Namespace, run_id: str | None, given: dict[str, Any]
) -> tuple[list[BenchResult], list[signal.Signals]]:
    """Each result as it comes, and the signal that stopped the last one."""
    from workbench.bench.runner import BenchCancelled

    results: list[BenchResult] = []
    received: list[signal.Signals] = []

    async def keep(result_id: int) -> None:
        results.append(await session.result(result_id))
        if not arguments.json:
            _say(bench_text.lines(results[-1]))

    try:
        async with stopped_by_signals(session, received):
            for _ in range(arguments.repeat):
                if run_id is not None:
                    await keep(await session.bench_run(run_id, **given))
                else:
                    await keep(await session.bench_url(arguments.url, **given))
    except BenchCancelled as cancelled:
        if not received:
            raise
        if cancelled.result_id is not None:
            await keep(cancelled.result_id)
        elif not results:
            raise_for(received)
    return results, received


def _check_for_a_command(levels: Sequence[int], overrides: dict[str, Any]) -> None:
    """A command makes its own requests: what would shape ours is not silently left aside."""
    idle = sorted({*overrides, *(["concurrency"] if levels else [])} - _FOR_A_COMMAND)
    if idle:
        options = ", ".join(f"--{_OPTION_NAMES.get(name, name.replace('_', '-'))}" for name in idle)
        raise InputError(
            f"{options}: a command of your own makes its own requests",
            next_step="leave it out here, and give it to the command",
        )


async def _bench_levels(
    session: Session, arguments: argparse.Namespace, levels: list[int], run_id: str | None, overrides: dict[str, Any]
) -> int:
    """A sweep of the concurrency: results and where more streams buy little."""
    url = None if run_id else arguments.url
    sweep = await session.concurrency_sweep(
        levels, run_id=run_id, url=url, max_minutes=arguments.max_minutes, **overrides
    )
    results = [await session.result(i) for point in sweep.points for i in point.result_ids]
    if arguments.json:
        emit({"results": [result_json(r) for r in results], "sweep": asdict(sweep)})
    else:
        from workbench.cli.sweeps import table

        for result in results:
            _say(bench_text.lines(result))
        _say(table(sweep))
    return _code(results) or int(sweep.state != "done")


def _overrides(arguments: argparse.Namespace) -> dict[str, Any]:
    names = (
        "profile",
        "requests",
        "max_tokens",
        "input_tokens",
        "warmup",
        "seed",
        "seconds",
        "rate",
        "arrival",
        "length_spread",
        "until_steady",
        "endpoint",
        "model",
        "api_key_env",
    )
    given = {name: getattr(arguments, name) for name in names}
    given |= {
        "shared_prefix": arguments.shared_prefix or None,
        "stream": False if arguments.no_stream else None,
        "ignore_eos": False if arguments.natural_lengths else None,
        "ca_file": arguments.cacert,
        "insecure": arguments.insecure or None,
        "timeout_s": arguments.timeout,
        "stall_s": arguments.stall_timeout,
        "deadline_s": arguments.deadline,
        "prompts_file": arguments.prompts,
        "extra_body": extra_body(arguments.extra_body),
        "command": own_command(arguments),
    }
    return {name: value for name, value in given.items() if value is not None}


def extra_body(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        fields = json.loads(text)
    except ValueError as error:
        raise InputError(f"--extra-body is not JSON: {error}", next_step="for example '{\"top_k\": 1}'") from None
    if not isinstance(fields, dict):
        raise InputError("--extra-body is no JSON object", next_step="for example '{\"top_k\": 1}'")
    return fields


def own_command(arguments: argparse.Namespace) -> tuple[str, ...] | None:
    import shlex

    text, words = arguments.own_command, arguments.own_words
    if words == ():
        raise InputError("no command after --", next_step="for example: workbench bench RUN -- vf-eval …")
    if text is not None and words:
        raise InputError("a command is given twice", next_step="after --, or as --command TEXT")
    if text is not None:
        try:
            words = tuple(shlex.split(text))
        except ValueError as error:
            raise InputError(f"--command: {error}", next_step="quote it as a shell would want it") from None
        if not words:
            raise InputError("--command is empty", next_step="for example --command 'vf-eval … -n 100'")
    return words or None


def _say(lines: Iterable[str]) -> None:
    for line in lines:
        say(line)


def _say_all(results: list[BenchResult], as_json: bool) -> None:
    from workbench.bench.repeated_runs import spread

    if len(results) == 1:
        if as_json:
            emit(result_json(results[0]))
        return
    summaries = [r.summary for r in results]
    scatter, refused = spread(summaries), sum(bool(s.refused) for s in summaries)
    if as_json:
        emit(
            {
                "results": [result_json(r) for r in results],
                "spread": [asdict(one) for one in scatter],
                "refused": refused,
            }
        )
    else:
        _say(bench_text.spread_lines(scatter, len(results), refused))


def _code(results: Sequence[BenchResult]) -> int:
    """1: a benchmark without one answer; 3: figures that may not be used."""
    if any(not r.summary.requests_ok and not r.spec.command for r in results):
        return 1
    return REFUSED if any(r.summary.refused for r in results) else 0


def _levels(text: str | None) -> list[int]:
    if text is None:
        return []
    try:
        levels = [int(part) for part in text.split(",")]
    except ValueError:
        levels = []
    if not levels or min(levels) < 1:
        raise InputError(f"--concurrency {text!r} is not N or N,N,…", next_step="for example --concurrency 1,8,32")
    return levels


def _draw_progress(state: SessionState, changed: frozenset[str]) -> None:
    if "bench" not in changed:
        return
    progress, text = state.bench.progress, ""
    if state.bench.running and progress is not None and progress.phase != "done":
        text = f"{progress.phase} {progress.line or _counts(progress)}  {progress.elapsed_s:.0f} s"
    sys.stderr.write(f"\r\x1b[K{clean(text)}")
    sys.stderr.flush()


def _counts(progress: BenchProgress) -> str:
    silent = f"  {_silence(progress)}" if progress.silent_s >= _SILENT_S else ""
    return f"{progress.done}/{progress.total}  {progress.output_tok_s:,.0f} tok/s{silent}"


def _silence(progress: BenchProgress) -> str:
    return f"no byte from the server for {progress.silent_s:.0f} s, {progress.in_flight} requests wait"


def _silence_teller() -> Callable[[SessionState, frozenset[str]], None]:
    """Say on stderr that a server is silent, ever more seldom: a command that waits must not look like one that
    hangs."""
    next_s = _SILENT_S

    def tell(state: SessionState, changed: frozenset[str]) -> None:
        nonlocal next_s
        progress = state.bench.progress
        if "bench" not in changed or progress is None:
            return
        if progress.silent_s < _SILENT_S:
            next_s = _SILENT_S
        elif progress.silent_s >= next_s:
            note(f"{progress.phase}: {_silence(progress)}")
            next_s *= 2

    return tell


COMMANDS: dict[str, Command] = {
    "bench": bench,
}

"""bench."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from workbench.cli import bench_text
from workbench.cli.dispatch import Command, emit
from workbench.cli.opened import connected, say
from workbench.cli.servers import ready_run
from workbench.model.errors import InputError
from workbench.model.foreign_text import clean

if TYPE_CHECKING:
    from workbench.model.bench import BenchProgress, BenchResult
    from workbench.session.session import Session
    from workbench.session.state import SessionState

REFUSED = 3  # exit code: there are figures, and they may not be used


def result_json(result: BenchResult) -> dict[str, Any]:
    """The summary's figures on top, then spec and conditions."""
    from workbench.model.bench_json import to_json
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
    if arguments.repeat < 1 or (arguments.repeat > 1 and len(levels) > 1):
        raise InputError("--repeat is 1 or more, at one concurrency", next_step="for example --repeat 5")
    async with connected(arguments) as session:
        if not arguments.json and sys.stderr.isatty():
            session.subscribe(_draw_progress)
        run_id = await ready_run(session, arguments.run)
        await session.read_alterations()
        if len(levels) > 1:
            return await _bench_levels(session, arguments, levels, run_id, overrides)
        results = []
        for _ in range(arguments.repeat):
            given = {**overrides, "concurrency": levels[0] if levels else None}
            if run_id is not None:
                result_id = await session.bench_run(run_id, **given)
            else:
                result_id = await session.bench_url(arguments.url, **given)
            results.append(await session.result(result_id))
            if not arguments.json:
                _say(bench_text.lines(results[-1]))
    _say_all(results, arguments.json)
    return _code(results)


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
        from workbench.cli.sweeping import table

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
    from workbench.bench.repeats import spread

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
    return f"{progress.done}/{progress.total}  {progress.output_tok_s:,.0f} tok/s"


COMMANDS: dict[str, Command] = {
    "bench": bench,
}

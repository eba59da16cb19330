"""bench, compare."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from workbench.cli.dispatch import Command, emit
from workbench.cli.opened import connected, note, say
from workbench.cli.servers import found
from workbench.model.errors import InputError
from workbench.model.run import ServerState

if TYPE_CHECKING:
    from workbench.model.bench import BenchProgress, BenchResult, Comparison, Distribution
    from workbench.session.state import SessionState


def result_json(result: BenchResult) -> dict[str, Any]:
    """The summary's figures on top, then spec and conditions."""
    from workbench.model.bench_json import to_json
    from workbench.model.secrets import mask_env

    summary: dict[str, Any] = to_json(result.summary)
    conditions = to_json(result.conditions)
    conditions["env"] = mask_env(conditions["env"])
    return {
        "id": result.id, "unix_s": result.unix_s, "simulated": result.conditions.simulated, **summary,
        "spec": to_json(result.spec), "conditions": conditions, "note": result.note, "tags": list(result.tags),
    }  # fmt: skip


async def bench(arguments: argparse.Namespace) -> int:
    if bool(arguments.run) == bool(arguments.url):
        raise InputError("give either a run or --url", next_step="workbench servers lists the runs")
    overrides = {
        "requests": arguments.requests, "max_tokens": arguments.max_tokens, "input_tokens": arguments.input_tokens,
        "warmup": arguments.warmup, "model": arguments.model, "api_key_env": arguments.api_key_env,
        "shared_prefix": arguments.shared_prefix or None,
    }  # fmt: skip
    levels = _levels(arguments.concurrency)
    results = []
    async with connected(arguments) as session:
        if not arguments.json and sys.stderr.isatty():
            session.subscribe(_draw_progress)
        status = await found(session, arguments.run) if arguments.run else None
        if status is not None:
            if status.state is ServerState.STARTING:
                note(f"{status.run_id}: waiting for READY")
            status = await session.wait_ready(status.run_id)
        await session.read_alterations()
        for level in levels:
            given = {**overrides, "concurrency": level}
            if status is not None:
                result_id = await session.bench_run(status.run_id, **given)
            else:
                result_id = await session.bench_url(arguments.url, **given)
            results.append(await session.result(result_id))
            if not arguments.json:
                _say_result(results[-1])
    if arguments.json:
        emit(result_json(results[0]) if len(results) == 1 else {"results": [result_json(r) for r in results]})
    return 0 if all(r.summary.requests_ok for r in results) else 1


def _levels(text: str | None) -> list[int | None]:
    if text is None:
        return [None]
    try:
        levels = [int(part) for part in text.split(",")]
    except ValueError:
        levels = []
    if not levels or min(levels) < 1:
        raise InputError(f"--concurrency {text!r} is not N or N,N,…", next_step="for example --concurrency 1,8,32")
    return list(levels)


def _draw_progress(state: SessionState, changed: frozenset[str]) -> None:
    progress: BenchProgress | None = state.bench.progress
    if "bench" not in changed or progress is None or not state.bench.running:
        return
    sys.stderr.write(
        f"\r\x1b[K{progress.phase} {progress.done}/{progress.total}"
        f"  {progress.output_tok_s:,.0f} tok/s  {progress.elapsed_s:.0f} s"
    )
    if progress.done + progress.failed >= progress.total:
        sys.stderr.write("\r\x1b[K")
    sys.stderr.flush()


def _say_result(result: BenchResult) -> None:
    summary = result.summary
    simulated = "  SIMULATED" if result.conditions.simulated else ""
    failed = f", {summary.requests_failed} failed {dict(summary.errors)}" if summary.requests_failed else ""
    tunnel = " through the ssh tunnel" if result.conditions.client == "tunnel" else ""
    say(f"#{result.id}  concurrency {result.spec.concurrency}{tunnel}: {summary.requests_ok} ok{failed}{simulated}")
    say(f"  output     {_number(summary.output_tok_s, summary.absent, 'output_tok_s', 'tok/s')}")
    for name, title in (("ttft_ms", "TTFT"), ("itl_ms", "ITL"), ("tpot_ms", "TPOT"), ("e2e_ms", "end to end")):
        found_: Distribution | None = getattr(summary, name)
        if found_ is None:
            say(f"  {title:<10} n/a ({summary.absent.get(name, 'not given')})")
        else:
            say(f"  {title:<10} mean {found_.mean:.1f}  p50 {found_.p50:.1f}  p90 {found_.p90:.1f}"
                f"  p99 {found_.p99:.1f} ms")  # fmt: skip
    say(f"  power      {_number(summary.power_w, summary.absent, 'power_w', 'W')}")
    say(f"  efficiency {_number(summary.tok_per_joule, summary.absent, 'tok_per_joule', 'tok/J')}")
    for line in summary.notes:
        say(f"  note: {line}")


def _number(value: float | None, absent: Mapping[str, str], name: str, unit: str) -> str:
    return f"n/a ({absent.get(name, 'not given')})" if value is None else f"{value:,.2f} {unit}"


def compare(arguments: argparse.Namespace) -> int:
    from workbench.bench.compare import compare as compared
    from workbench.session.session import Session

    db = Session.of_host().results_db
    comparison: Comparison = compared(db.get(arguments.a), db.get(arguments.b))
    if arguments.json:
        return emit(asdict(comparison))
    say(f"A #{comparison.a} vs B #{comparison.b}{'  SIMULATED' if comparison.simulated else ''}")
    for one in comparison.differences:
        say(f"  {one['kind']} {one['name']}: {one['a']} -> {one['b']}")
    if not comparison.differences:
        say("  the same configuration")
    for change in comparison.metrics:
        a, b = (("n/a" if v is None else f"{v:,.2f}") for v in (change.a, change.b))
        moved = "" if change.change_pct is None else f"{change.change_pct:+.1f} %"
        width = "" if change.interval_pct is None else f" ± {change.interval_pct:.1f}"
        say(f"  {change.metric:<14} {a:>12} {b:>12} {change.unit:<6} {moved:>9}{width}  {change.verdict}")
    for warning in comparison.warnings:
        say(f"  not like for like: {warning}")
    for line in comparison.notes:
        say(f"  {line}")
    return 0


COMMANDS: dict[str, Command] = {
    "bench": bench,
    "compare": compare,
}

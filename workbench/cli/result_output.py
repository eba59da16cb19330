"""A benchmark result as terminal text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from workbench.model.answer_text import text_rows
from workbench.model.bench import P99_VALUES
from workbench.model.metrics import LATENCY, METRICS, metrics_of
from workbench.model.slo import slo_rows

if TYPE_CHECKING:
    from workbench.bench.repeated_runs import Spread
    from workbench.model.bench import (
        BenchResult,
        BenchSummary,
        Distribution,
        EngineDuring,
        GpuDuring,
    )

_FROM_SCHEDULE = (
    ("queue_ms", "queued"),
    ("ttft_from_schedule_ms", "TTFT"),
    ("e2e_from_schedule_ms", "end to end"),
)


def result_json(result: BenchResult) -> dict[str, Any]:
    """Return a result as a JSON object. It has the metrics of the summary at the top level, then
    `spec` and `conditions`. Secrets are masked.
    """
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


_CLIENTS = {"tunnel": " through the ssh tunnel", "host": " by a client on the server's host"}


def result_lines(result: BenchResult) -> Iterator[str]:
    """Yield the lines that `bench` prints for a result: load, throughput, latencies, energy, the
    engine's counters and notes.
    """
    from workbench.engines.result_limits import judgements

    summary, spec = result.summary, result.spec
    simulated = "  SIMULATED" if result.conditions.simulated else ""
    tunnel = _CLIENTS.get(result.conditions.client, "")
    if spec.command:
        yield (
            f"#{result.id}  {' '.join(spec.command)}{tunnel}: exit code "
            f"{summary.command_exit}{simulated}"
        )
    else:
        failed = (
            (f", {summary.requests_failed} failed {dict(summary.errors)}")
            if summary.requests_failed
            else ""
        )
        load = f"{spec.rate:g} requests/s" if spec.rate else f"concurrency {spec.concurrency}"
        yield (
            f"#{result.id}  {spec.profile}: {load}{tunnel}: {summary.requests_ok} "
            f"ok{failed}{simulated}"
        )
    for reason in summary.refused:
        yield f"  REJECTED: {reason}"
    for reason in summary.marked:
        yield f"  MARKED: {reason}"
    if spec.endpoint == "embeddings":
        yield f"  prompts    {_number(summary, 'prompt_tok_s')}, {_number(summary, 'request_s')}"
    else:
        yield f"  output     {_number(summary, 'output_tok_s')}{_duration(summary)}"
        for title, text in judgements(result):
            yield f"  {title:<10} {text}"
    if summary.in_flight_mean is not None:
        nominal = summary.in_flight_nominal
        yield f"  in flight  {summary.in_flight_mean:.1f}" + (
            f" of {nominal:g}" if nominal is not None else ""
        )
    if not spec.command:
        yield from _latencies(summary)
    yield from _slo(summary)
    yield from _energy(summary)
    for name, found in result.conditions.findings.items():
        yield f"  setting    {name}: {found}"
    if summary.engine is not None:
        yield f"  engine     {_engine(summary.engine)}"
    for title, text in text_rows(summary.text):
        yield f"  {title:<10} {text}"
    for line in summary.command_output:
        yield f"  | {line}"
    settings = tuple(result.conditions.findings.values())
    for note in summary.notes:
        if not any(found in note for found in settings):  # the verdict on a setting stands above
            yield f"  note: {note}"


def _duration(summary: BenchSummary) -> str:
    seconds = summary.duration_s if summary.window_s is None else summary.window_s
    if summary.output_tok_s is None:
        return ""
    whole = summary.whole_run_tok_s
    also = (
        (f" (whole run of {summary.duration_s:.1f} s: {whole:,.2f})")
        if summary.window == "steady" and whole
        else ""
    )
    return f" over {seconds:.1f} s, {summary.window}{also}"


def _latencies(summary: BenchSummary) -> Iterator[str]:
    for metric in metrics_of(LATENCY):
        if not metric.optional:
            absent = f"n/a ({summary.absent.get(metric.name, 'not given')})"
            yield f"  {metric.title:<10} {_percentiles(getattr(summary, metric.name)) or absent}"
    if summary.queue_ms is not None:
        yield "  measured from the scheduled start of each request, with the time in the queue:"
    for name, title in _FROM_SCHEDULE:
        if parts := _percentiles(getattr(summary, name)):
            yield f"  {title:<10} {parts}"


def _slo(summary: BenchSummary) -> Iterator[str]:
    for limit, verdict in slo_rows(summary.slo):
        yield f"  {'SLO':<10} {limit}  {verdict}"
    if summary.slo_pct is not None:
        rate, tokens = _number(summary, "goodput_request_s"), _number(summary, "goodput_tok_s")
        kept = f"{summary.slo_pct:.1f} % of the requests kept all limits"
        yield f"  {'goodput':<10} {rate}, {tokens}: {kept}"


def _percentiles(found: Distribution | None) -> str:
    if found is None:
        return ""
    p95 = "" if found.p95 is None else f"  p95 {found.p95:.1f}"
    p99 = "" if found.p99 is None else f"  p99 {found.p99:.1f}"
    few = "" if p99 else f"  (p99 n/a: {found.count:,} values, {P99_VALUES:,} are needed)"
    return f"mean {found.mean:.1f}  p50 {found.p50:.1f}  p90 {found.p90:.1f}{p95}{p99} ms{few}"


def _energy(summary: BenchSummary) -> Iterator[str]:
    yield f"  power      {_number(summary, 'power_w')}{_watts_of_each(summary.gpu)}"
    idle = "" if summary.idle_power_w is None else f", idle power {summary.idle_power_w:,.0f} W"
    energy = "" if summary.energy_j is None else f"  ({summary.energy_j:,.0f} J{idle})"
    yield f"  efficiency {_number(summary, 'tok_per_joule')}{energy}"
    if summary.tok_per_joule is not None:
        yield f"  net        {_number(summary, 'net_tok_per_joule')}"
        yield f"  request    {_number(summary, 'energy_per_request_j')}"


def _watts_of_each(gpu: GpuDuring | None) -> str:
    if gpu is None or len(gpu.power_w_each) < 2:
        return ""
    each = (
        f"GPU{i} {'n/a' if w is None else f'{w:.0f}'}"
        for i, w in zip(gpu.gpus, gpu.power_w_each, strict=False)
    )
    return f"  ({', '.join(each)})"


def _engine(engine: EngineDuring) -> str:
    parts = []
    for count, title in (
        (engine.requests_finished, "requests"),
        (engine.generation_tokens, "output tokens"),
    ):
        if count is not None:
            parts.append(f"{count:,} {title}")
    for name in ("running", "waiting"):
        mean, most = getattr(engine, f"{name}_mean"), getattr(engine, f"{name}_max")
        if mean is not None:
            parts.append(f"{name} {mean:.1f} (max {most})")
    for share, title in (
        (engine.kv_use_max_pct, "KV cache up to"),
        (engine.prefix_hit_pct, "prefix hits"),
        (engine.spec_accepted_pct, "drafts accepted"),
    ):
        if share is not None:
            parts.append(f"{title} {share:.1f} %")
    if engine.preemptions:
        parts.append(f"{engine.preemptions} preemptions")
    why = next(iter(engine.absent.values()), "no counters")
    return ", ".join(parts) or f"n/a ({why})"


def _number(summary: BenchSummary, name: str) -> str:
    value: float | None = getattr(summary, name)
    absent: Mapping[str, str] = summary.absent
    if value is None:
        return f"n/a ({absent.get(name, 'not given')})"
    return f"{value:,.{3 if value < 10 else 2}f} {METRICS[name].unit}"


def spread_lines(spreads: Sequence[Spread], runs: int, invalid: int) -> Iterator[str]:
    left_out = f", {invalid} of them invalid and left out" if invalid else ""
    yield f"{runs} runs{left_out}: geometric mean, and standard deviation between the runs"
    for one in spreads:
        cv = "" if one.cv_pct is None else f"  ± {one.cv_pct:.2f} %"
        yield f"  {one.metric:<14} {one.geometric_mean:>12,.2f} {one.unit:<6}{cv}"

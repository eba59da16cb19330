"""One result, or several beside one another, as blocks."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from workbench.engines.roofline import against_limit
from workbench.model.bench import BenchResult, BenchSpec, BenchSummary, EngineDuring, GpuDuring
from workbench.model.bench_cli_options import options
from workbench.model.secrets import SERVER_KEY_VARIABLE
from workbench.report import plots
from workbench.report.blocks import Alert, Block, CodeBlock, Facts, Figures, Fold, Heading, Items, Table, Text
from workbench.report.format_values import (
    DEFINITIONS,
    ENERGY,
    FIGURES,
    LATENCIES,
    NA,
    NOT_IN_FILE,
    PARTS,
    figure,
    is_untold,
    told,
    value_text,
    when,
)

SIMULATED = Alert("simulated", "SIMULATED", ("Figures of a model, not of hardware.",))
_NOT_SHOWN = {"url", "model", "salt", "prompts", "command", "extra_body", "api_key_env"}
_ENGINE = {
    "requests_finished": ("requests finished", ""),
    "prompt_tokens": ("prompt tokens", ""),
    "generation_tokens": ("generated tokens", ""),
    "running_mean": ("running, mean", ""),
    "running_max": ("running, highest", ""),
    "waiting_mean": ("waiting, mean", ""),
    "waiting_max": ("waiting, highest", ""),
    "kv_use_max_pct": ("KV cache in use, highest", "%"),
    "prefix_hit_pct": ("prefix cache hits", "%"),
    "preemptions": ("preemptions", ""),
    "spec_accepted_pct": ("draft tokens accepted", "%"),
}
_GPU = {
    "sm_mhz": ("SM clock, mean", "MHz"),
    "memory_mhz": ("memory clock, mean", "MHz"),
    "temperature_c": ("temperature, highest", "°C"),
    "gpu_util_pct": ("utilization, mean", "%"),
}


def title_of(result: BenchResult) -> str:
    return f"{result.conditions.model} on {result.conditions.host}"


def subtitle_of(result: BenchResult) -> str:
    """Number, engine and time."""
    made = result.conditions
    engine = " ".join(filter(None, (made.engine, made.engine_version)))
    source = f"imported: {made.imported}" if made.imported else f"Workbench {made.workbench_version}".rstrip()
    return " · ".join(filter(None, (f"Benchmark #{result.id}", engine, when(result.unix_s), source)))


def blocks_of(result: BenchResult, samples: Sequence[Mapping[str, Any]] = ()) -> list[Block]:
    """The whole of one result, what matters first. Its secrets are to be masked already."""
    summary = result.summary
    found: list[Block] = [*alerts(result), headline(summary)]
    throughput = plots.throughput(samples, summary)
    found += [throughput] if throughput else []
    found += [Heading("Latency"), latency_table(summary), *plots.latencies(samples)]
    found += [Heading("Figures"), Facts(_figures(summary))]
    found += _energy(summary)
    found += _engine(summary.engine)
    found += [Heading("Conditions"), *conditions(result)]
    found += [Heading("Workload"), Facts(workload(result))]
    found += _notes(result)
    found += [Fold("How these figures are defined", (Items(DEFINITIONS),))]
    return found


def alerts(result: BenchResult) -> list[Block]:
    found: list[Block] = [SIMULATED] if result.conditions.simulated else []
    if result.summary.refused:
        found.append(Alert("refused", "These figures may not be used", result.summary.refused))
    if result.summary.marked:
        found.append(Alert("warning", "These figures say less than they seem to", result.summary.marked))
    if result.conditions.imported:
        found.append(
            Alert(
                "warning",
                f"Measured by {result.conditions.imported}, not by Workbench",
                ("Its definitions differ as the notes say; engine, driver and GPUs are known only as far as shown.",),
            )
        )
    if result.summary.requests_failed:
        kinds = ", ".join(f"{n} × {kind}" for kind, n in result.summary.errors.items())
        found.append(Alert("warning", f"{result.summary.requests_failed} requests failed", (kinds,)))
    return found


def headline(summary: BenchSummary) -> Figures:
    over = summary.window if summary.window == "whole run" else "steady window"
    if summary.output_tok_s is None:
        over = summary.absent.get("output_tok_s", "not measured")
    items = [("output", figure(summary.output_tok_s, "tok/s"), over)]
    # At a rate a user's wait begins when the request is due, not when a stream was free for it.
    first = "ttft_ms" if summary.ttft_from_schedule_ms is None else "ttft_from_schedule_ms"
    for name in (first, "itl_ms"):
        middle, tail = summary.latency(name, "p50"), summary.latency(name, "p99")
        if middle is not None:
            items.append((f"{LATENCIES[name]} p50", figure(middle, "ms"), f"p99 {figure(tail, 'ms')}"))
    if summary.tok_per_joule is not None:
        items.append(("efficiency", figure(summary.tok_per_joule, "tok/J"), f"{figure(summary.power_w, 'W')} mean"))
    items.append(("requests", f"{summary.requests_ok:,} ok", told_failed(summary)))
    return Figures(tuple(items))


def told_failed(summary: BenchSummary) -> str:
    if not summary.requests_failed and "requests_failed" in summary.absent:
        return f"failed: {NA}"
    return f"{summary.requests_failed:,} failed"


def latency_table(summary: BenchSummary) -> Table:
    rows = []
    for name, title in LATENCIES.items():
        known = [summary.latency(name, part) for part in PARTS]
        if any(v is not None for v in known):
            rows.append((title, *(figure(v) for v in known)))
        elif name not in ("queue_ms", "ttft_from_schedule_ms", "e2e_from_schedule_ms"):
            rows.append((f"{title}: {NA} ({summary.absent.get(name, 'not measured')})", *[""] * len(PARTS)))
    return Table(("ms", *PARTS), tuple(rows), frozenset(range(1, len(PARTS) + 1)))


def _figures(summary: BenchSummary) -> tuple[tuple[str, str], ...]:
    failed = "".join(f", {n} {kind}" for kind, n in summary.errors.items())
    rows = [("requests", f"{summary.requests_ok:,} ok, {told_failed(summary)}{failed}")]
    optional = {"whole_run_tok_s", "window_s", "in_flight_mean", "in_flight_nominal", "command_exit"}
    for name, (title, unit) in FIGURES.items():
        if getattr(summary, name) is not None or not (name in optional or is_untold(summary, name)):
            rows.append((title, told(summary, name, unit)))
    if summary.warmup_requests:
        rows.append(("warm-up, not counted", f"{summary.warmup_requests:,} requests"))
    if any(is_untold(summary, name) for name in FIGURES):
        rows.append(("all else", NOT_IN_FILE))
    return tuple(rows)


def _energy(summary: BenchSummary) -> list[Block]:
    rows = [
        (t, told(summary, n, u))
        for n, (t, u) in ENERGY.items()
        if getattr(summary, n) is not None
        or (n in ("power_w", "energy_j", "tok_per_joule") and not is_untold(summary, n))
    ]
    if is_untold(summary, "power_w") and not rows:
        return []
    return [Heading("Energy and GPUs"), Facts((*rows, *_gpu(summary.gpu)))]


def _gpu(during: GpuDuring | None) -> tuple[tuple[str, str], ...]:
    if during is None:
        return (("GPUs during the run", f"{NA} (no telemetry was merged into this result)"),)
    rows = []
    for name, (title, unit) in _GPU.items():
        value = getattr(during, name)
        reason = during.absent.get(name, "not told")
        rows.append((title, figure(value, unit) if value is not None else f"{NA} ({reason})"))
    held = [f"{name} {100 * share:.0f} % of the time" for name, share in during.event_reasons.items() if share]
    return (*rows, ("clocks held back by", ", ".join(held) or "nothing seen"))


def _engine(engine: EngineDuring | None) -> list[Block]:
    """What the engine's own counters say; nothing where they were not read."""
    if engine is None:
        return []
    rows = []
    for name, (title, unit) in _ENGINE.items():
        value = getattr(engine, name)
        if value is not None or name in engine.absent:
            rows.append((title, figure(value, unit) if value is not None else f"{NA} ({engine.absent[name]})"))
    found: list[Block] = [Heading("The engine's own counters"), Facts(tuple(rows))]
    if engine.disagreements:
        found.append(Alert("warning", "Client and engine disagree", tuple(engine.disagreements)))
    return found


def conditions(result: BenchResult) -> list[Block]:
    """What the result depends on, and the command that started the server."""
    made = result.conditions
    gpus = ", ".join(str(g.get("name") or "unknown GPU") for g in made.gpus)
    rows = [
        ("host", made.host),
        ("engine", " ".join(filter(None, (made.engine, made.engine_version))) or NA),
        ("model", made.model),
        ("model files", f"{made.model_digest or NA} ({made.model_bytes})" if made.model_bytes else NA),
        ("driver, CUDA", f"{made.driver_version or NA}, {made.cuda_version or NA}"),
        ("GPUs", f"{len(made.gpus)}: {gpus}" if gpus else NA),
        ("load came from", made.client),
        ("simulated", "yes" if made.simulated else "no"),
    ]
    for name, title in (("preset_id", "preset"), ("run_id", "run")):
        if getattr(made, name):
            rows.append((title, getattr(made, name)))
    if limit := against_limit(result):
        rows.append(("limit by memory bandwidth", limit))
    rows += [
        (f"GPU setting {name}", _with_force(value_text(value), made.in_force.get(name)))
        for name, value in made.gpu_settings.items()
    ]
    rows += [(f"under load {name}", text) for name, text in made.findings.items()]
    found: list[Block] = [Facts(tuple(rows))]
    if made.argv:
        env = [f"{name}={shlex.quote(str(value))}" for name, value in made.env.items()]
        found.append(CodeBlock(" ".join([*env, *(shlex.quote(a) for a in made.argv)])))
    settings = [(name, value_text(value)) for name, value in made.flags.items()]
    settings += [(name, value_text(value)) for name, value in made.env.items()]
    if settings:
        found.append(Fold("Flags and environment, one by one", (Facts(tuple(settings)),)))
    return found


def _with_force(value: str, state: str | None) -> str:
    return f"{value} (in force: {state})" if state else value


def workload(result: BenchResult) -> tuple[tuple[str, str], ...]:
    """What was asked; of an imported result only what its file told."""
    spec, known = result.spec, result.conditions.known_workload
    rows = []
    for field in fields(BenchSpec):
        value = getattr(spec, field.name)
        unset = value is None or value == "" or value == ()
        if field.name not in _NOT_SHOWN and not unset and (not known or field.name in known or field.name == "profile"):
            rows.append((field.name.replace("_", " "), value_text(value)))
    if spec.extra_body:
        rows.append(("extra body", value_text(spec.extra_body)))
    if spec.command:
        rows.append(("command", shlex.join(spec.command)))
    if spec.api_key_env and spec.api_key_env != SERVER_KEY_VARIABLE:
        rows.append(("API key from", spec.api_key_env))
    if known:
        rows.append(("all else", "not told by the imported file"))
    else:
        rows.append(("again by", command_of(result)))
    return tuple(rows)


def command_of(result: BenchResult) -> str:
    """The command that measures this again, as far as a command line can say it."""
    spec, made = result.spec, result.conditions
    words = ["workbench", *(["--host", made.host] if made.host != "local" and made.run_id else []), "bench"]
    words += [made.run_id] if made.run_id else ["--url", spec.url, "--model", spec.model]
    return shlex.join([*words, *(["--", *spec.command] if spec.command else options(spec))])


def _notes(result: BenchResult) -> list[Block]:
    lines = [*([result.note] if result.note else []), *result.summary.notes]
    found: list[Block] = [Heading("Notes"), Items(tuple(lines))] if lines else []
    return [*found, Text(f"Tags: {', '.join(result.tags)}")] if result.tags else found


def overview(results: Sequence[BenchResult]) -> Table:
    """A line per result."""
    rows = []
    for r in results:
        s = r.summary
        name = f"#{r.id}" + (f" ({r.conditions.imported})" if r.conditions.imported else "")
        state = "rejected" if s.refused else f"{s.requests_failed} failed" if s.requests_failed else "ok"
        rows.append(
            (
                name,
                r.conditions.model,
                str(r.spec.concurrency) if _is_told(r, "concurrency") and not r.spec.command else NA,
                figure(s.output_tok_s),
                figure(s.latency("ttft_ms", "p50")),
                figure(s.latency("ttft_ms", "p99")),
                figure(s.latency("itl_ms", "mean")),
                figure(s.power_w),
                figure(s.tok_per_joule),
                state,
            )
        )
    head = ("result", "model", "streams", "tok/s", "TTFT p50 ms", "TTFT p99 ms", "ITL mean ms", "W", "tok/J", "state")
    return Table(head, tuple(rows), frozenset(range(2, 9)))


def _is_told(result: BenchResult, name: str) -> bool:
    known = result.conditions.known_workload
    return not known or name in known

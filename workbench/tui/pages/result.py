"""The page of a result: first the reasons why it is not valid or not reliable, then its metrics,
GPUs, engine and conditions."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from workbench.engines.result_limits import judgements
from workbench.model.answer_text import text_rows
from workbench.model.bench import P99_VALUES, BenchResult, BenchSummary, Distribution
from workbench.model.conditions_table import condition_texts
from workbench.model.counts import count_of
from workbench.model.plan import Command
from workbench.model.secrets import mask_argv, mask_env
from workbench.model.slo import slo_rows
from workbench.tui.cells import Row, beside, cut, pad, paragraph
from workbench.tui.formats import NA, figure, setting_name, settings_texts, value_text, whole

LABEL = 12


def result_rows(
    result: BenchResult, width: int, timeline: Sequence[Row] = (), advice: Sequence[Row] = ()
) -> list[Row]:
    """Return the rows of a result's page. `timeline` are rows with graphs of the seconds around the
    benchmark, and `advice` are rows with the most important findings of the advisor."""
    s, c = result.summary, result.conditions
    rows: list[Row] = []
    if s.refused:
        rows.append(((" REJECTED ", "reverse"), (" these values are not valid:", "bad")))
        for reason in s.refused:
            rows += paragraph(f"x {reason}", width, "bad", "  ")
        rows.append(())
    for reason in s.marked:
        rows += paragraph(f"! {reason}", width, "warn", "  ")
    if c.simulated:
        rows += [
            (
                (" SIMULATED ", "reverse"),
                (" these values come from a simulated GPU and engine", "warn"),
            ),
            (),
        ]
    if result.note or result.tags:
        tags = " ".join(f"#{tag}" for tag in result.tags)
        rows += [*paragraph(f"{result.note}  {tags}".strip(), width, "strong"), ()]
    rows += _figures(s, width)
    rows += _facts(list(judgements(result)), width)
    rows += [(), *advice] if advice else []
    rows += [(), *_latencies(s, width)]
    rows += _facts(_slo(s), width)
    rows += _facts(list(text_rows(s.text)), width)
    for name, reason in s.absent.items():
        rows += paragraph(f"n/a {name}: {reason}", width, "dim", "  ")
    for note in s.notes:
        rows += paragraph(f"! {note}", width, "warn", "  ")
    for line in s.command_output:
        rows += paragraph(f"| {line}", width, "dim", "  ")
    return [*rows, *timeline, *_gpus(s, width), *_engine(s, width), *_conditions(result, width)]


def _facts(facts: list[tuple[str, str]], width: int) -> list[Row]:
    room = max(20, width - LABEL)
    return [
        row
        for label, text in facts
        for row in beside(pad(label, LABEL), "dim", paragraph(text, room))
    ]


def _figures(s: BenchSummary, width: int) -> list[Row]:
    failed = f", {s.requests_failed} failed" if s.requests_failed else ""
    tokens = f"{figure(s.output_tokens, 0)} output tokens in {s.duration_s:.1f} s"
    rows = paragraph(f"{count_of(s.requests_ok, 'request')}{failed}, {tokens}", width)
    if s.errors:
        rows += paragraph(
            "errors: " + ", ".join(f"{k} {v}" for k, v in s.errors.items()), width, "bad"
        )
    over = s.window + (
        f" window of {s.window_s:.1f} s"
        if s.window_s is not None and s.window != "whole run"
        else ""
    )
    if s.whole_run_tok_s and s.window != "whole run":
        over += f", {figure(s.whole_run_tok_s)} over the whole run"
    facts = [
        ("output", f"{figure(s.output_tok_s)} tok/s  ({over})"),
        ("per stream", f"{figure(s.per_stream_tok_s)} tok/s"),
        ("requests", f"{figure(s.request_s)} /s"),
    ]
    if s.prompt_tok_s is not None:
        facts[:2] = [("prompts", f"{figure(s.prompt_tok_s)} tok/s  ({over})")]
    if s.in_flight_mean is not None:
        of = f" of {figure(s.in_flight_nominal)} requested" if s.in_flight_nominal else ""
        facts.append(("in flight", f"{figure(s.in_flight_mean)} streams{of}"))
    if s.client_cpu_pct is not None:
        facts.append(("client", f"{s.client_cpu_pct:.0f} % of its core"))
    if s.command_exit is not None:
        facts.append(("command", f"exit {s.command_exit}"))
    idle = f", idle {figure(s.idle_power_w, 0)} W" if s.idle_power_w is not None else ""
    facts.append(("power", f"{figure(s.power_w, 0)} W{idle}"))
    net = (
        (f", {figure(s.net_tok_per_joule)} without {_idle(s)}")
        if s.net_tok_per_joule is not None
        else ""
    )
    facts.append(("efficiency", f"{figure(s.tok_per_joule)} tok/J{net}"))
    if s.energy_per_request_j is not None:
        facts.append(
            ("energy", f"{figure(s.energy_j, 0)} J, {figure(s.energy_per_request_j)} J a request")
        )
    return rows + _facts(facts, width)


def _idle(s: BenchSummary) -> str:
    return "idle power" if s.idle_power_w is None else f"{figure(s.idle_power_w, 0)} W idle"


def _latencies(s: BenchSummary, width: int) -> list[Row]:
    cells = 10 if width >= 74 else 8
    heads: tuple[str, ...] = ("mean", "p50", "p90", "p95", "p99", "max")
    if width < LABEL + 8 * len(heads):
        heads = tuple(h for h in heads if h != "p95")
    rows: list[Row] = [((pad("ms", LABEL) + "".join(pad(h, cells, True) for h in heads), "head"),)]
    named = (
        ("TTFT", "ttft_ms"),
        ("ITL", "itl_ms"),
        ("TPOT", "tpot_ms"),
        ("end to end", "e2e_ms"),
        ("in queue", "queue_ms"),
    )
    few = False
    for label, name in named:
        d: Distribution | None = getattr(s, name)
        known = s.partial.get(name, {})
        if d is None and name == "queue_ms":
            continue
        if d is None and not known:
            rows.append(((pad(label, LABEL), "dim"), (pad(NA, cells, True), "dim")))
            continue
        values = [s.latency(name, h) for h in heads]
        few |= values[heads.index("p99")] is None
        rows.append(
            (
                (pad(label, LABEL), "dim"),
                ("".join(pad(figure(v, 1), cells, True) for v in values), "text"),
            )
        )
    if few:
        rows.append(((cut(f"{'':{LABEL}}p99 needs {P99_VALUES:,} values", width), "dim"),))
    if s.tokens_per_chunk is not None and abs(s.tokens_per_chunk - 1) > 0.005:
        rows += paragraph(
            f"{s.tokens_per_chunk:.2f} tokens in a chunk: ITL is between chunks", width, "dim"
        )
    return rows


def _slo(s: BenchSummary) -> list[tuple[str, str]]:
    facts = [("SLO", f"{limit}  {verdict}") for limit, verdict in slo_rows(s.slo)]
    if s.slo_pct is not None:
        kept = f"{s.slo_pct:.1f} % of the requests kept all limits"
        rates = f"{figure(s.goodput_request_s)} requests/s, {figure(s.goodput_tok_s)} tok/s"
        facts.append(("goodput", f"{rates}: {kept}"))
    return facts


def _gpus(s: BenchSummary, width: int) -> list[Row]:
    g = s.gpu
    if g is None:
        return []
    spread = ""
    if g.sm_mhz_min is not None and g.sm_mhz_max is not None and g.sm_mhz_min < g.sm_mhz_max:
        spread = f" ({g.sm_mhz_min:.0f} to {g.sm_mhz_max:.0f}, sd {figure(g.sm_mhz_sd, 0)})"
    clocks = f"SM {figure(g.sm_mhz, 0)} MHz{spread}, memory {figure(g.memory_mhz, 0)} MHz"
    rows: list[Row] = [(), (("GPUs during the run", "title"),)]
    rows += paragraph(f"{clocks}, {figure(g.temperature_c, 0)} C at most", width)
    if len(g.gpus) > 1 and g.power_w_each:
        each = ", ".join(
            f"GPU{i} {whole(w, ' W')}" for i, w in zip(g.gpus, g.power_w_each, strict=False)
        )
        rows += paragraph(each, width)
    for name, share in g.event_reasons.items():
        rows += paragraph(f"  {name}: {share * 100:.0f} % of the samples", width, "dim")
    return rows


def _engine(s: BenchSummary, width: int) -> list[Row]:
    """Return rows with the engine's own counters, and a warning for each counter that disagrees
    with the count of Workbench."""
    e = s.engine
    if e is None:
        return []
    facts: list[tuple[str, str]] = []
    if e.requests_finished is not None or e.generation_tokens is not None:
        tokens = (
            f"{figure(e.prompt_tokens, 0)} prompt and {figure(e.generation_tokens, 0)} "
            "output tokens"
        )
        facts.append(
            ("counted", f"{value_text(e.requests_finished)} requests, {tokens}, warm-up included")
        )
    for label, mean, most in (
        ("running", e.running_mean, e.running_max),
        ("waiting", e.waiting_mean, e.waiting_max),
    ):
        if mean is not None or most is not None:
            facts.append((label, f"{figure(mean)} requests, {value_text(most)} at most"))
    if e.kv_use_max_pct is not None:
        facts.append(("KV cache", f"{e.kv_use_max_pct:.0f} % at most"))
    if e.prefix_hit_pct is not None:
        facts.append(("prefix hits", f"{e.prefix_hit_pct:.1f} % of the prompt tokens"))
    if e.preemptions is not None:
        facts.append(("preempted", count_of(e.preemptions, "time")))
    if e.spec_accepted_pct is not None:
        facts.append(("drafts", f"{e.spec_accepted_pct:.0f} % accepted"))
    rows: list[Row] = (
        [(), (("The engine's own counters", "title"),), *_facts(facts, width)] if facts else []
    )
    for text in e.disagreements:
        rows += paragraph(f"! {text}", width, "warn", "  ")
    return rows


def load_text(result: BenchResult) -> str:
    """Return the load of a result in one line: profile, streams, requests, prompts, warm-up and
    client."""
    spec = result.spec
    if spec.command:
        return shlex.join(spec.command)
    prompts = spec.prompts_name or f"{spec.input_tokens} in"
    spread = f" ±{spec.length_spread * 100:.0f} %" if spec.length_spread else ""
    loop = f"{spec.rate:g} requests/s {spec.arrival}, " if spec.rate is not None else ""
    end = f", at most {spec.seconds:g} s" if spec.seconds is not None else ""
    warm = (f"{result.summary.warmup_requests or spec.warmup} warm-up") + (
        " until steady" if spec.until_steady else ""
    )
    size = f"{count_of(spec.concurrency, 'stream')}, {count_of(spec.requests, 'request')}"
    return f"{spec.profile}: {loop}{size}{end}, {prompts} / {spec.max_tokens}{spread} out, {warm}"


def _conditions(result: BenchResult, width: int) -> list[Row]:
    c = result.conditions
    facts = [
        ("load", load_text(result)),
        *condition_texts(c),
        ("settings", ", ".join(settings_texts(c.gpu_settings)) or "unchanged"),
    ]
    if c.in_force:
        facts.append(
            (
                "under load",
                ", ".join(f"{name} {said}" for name, said in settings_in_force(c.in_force)),
            )
        )
    facts += [("", text) for text in c.findings.values()]
    rows: list[Row] = [(), (("Conditions", "title"),), *_facts(facts, width)]
    command = Command(mask_argv(c.argv), mask_env(c.env)).shell()
    return [*rows, (), *paragraph(f"$ {command}", width, "dim", "  ")] if command else rows


def settings_in_force(in_force: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return pairs (label of a setting, verdict), such as [("GPU0 GPU clocks", "no effect")] for
    {"gpu0.gpu_clocks": "no effect"}."""
    return [(setting_name(name), said) for name, said in in_force.items()]

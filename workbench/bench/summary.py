"""The metrics of a run, computed from its request records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

from workbench.bench import time_uncertainty
from workbench.bench.records import (
    RequestRecord,
    count_failures_by_kind,
    select_successful,
    sum_of_field,
)
from workbench.bench.request_latency import tpot_ms
from workbench.bench.result_validity import (
    ClientFacts,
    reasons_for_invalid_result,
    reasons_for_unreliable_result,
    result_notes,
)
from workbench.bench.slo_attainment import (
    reason_by_absent_slo_metric,
    slo_metric_values,
    uncertain_attainment_notes,
)
from workbench.bench.steadiness import rate_error_pct
from workbench.bench.steady_window import (
    Window,
    choose_rate_window,
    count_requests_in,
    count_tokens_in,
    first_request_start_s,
    mean_requests_in_flight,
    request_end_s,
)
from workbench.model.bench import WITHHELD, BenchSpec, BenchSummary
from workbench.model.distribution import distribution_of
from workbench.model.known_values import known_values, ratio_or_none, round_or_none

_NO_TELEMETRY_REASON = "no telemetry of the server's GPUs was merged into this result"
_TOKEN_COUNTS = ("prompt_tokens", "output_tokens", "cached_tokens")
_METRICS_OF_WINDOW = ("output_tok_s", "request_s", "window_output_tokens", "window_requests")
_METRICS_FROM_CHUNKS = ("ttft_ms", "itl_ms", "tpot_ms", "tokens_per_chunk", "per_stream_tok_s")
_METRICS_FROM_USAGE = (
    "prompt_tokens",
    "output_tokens",
    "cached_tokens",
    "output_tok_s",
    "whole_run_tok_s",
    "window_output_tokens",
    "tokens_per_chunk",
    "tpot_ms",
    "per_stream_tok_s",
)

_METRICS_OF_RATE = ("queue_ms", "ttft_from_schedule_ms", "e2e_from_schedule_ms")  # with a rate only
_METRICS_OF_OUTPUT = {*_METRICS_FROM_CHUNKS, *_METRICS_FROM_USAGE} - {
    "prompt_tokens",
    "cached_tokens",
}


def summarize(
    spec: BenchSpec,
    counted: Sequence[RequestRecord],
    warmups: Sequence[RequestRecord],
    facts: ClientFacts,
) -> BenchSummary:
    """Return the metrics of a run. `counted` and `warmups` are the records of the measured and of
    the warm-up requests.

    `output_tok_s` and `request_s` are rates over the steady window (steady_window.py), and over the
    whole run if there is none; `whole_run_tok_s` is always a rate over the whole run. TTFT and
    end-to-end time begin when a request is sent. With a schedule, such as a request rate or a
    trace, a request may wait for a free stream before that: `queue_ms` is this wait, and the
    metrics named `…_from_schedule_ms` include it. Limits of an SLO include it too.
    """
    good, warm = select_successful(counted), select_successful(warmups)
    window = facts.window or choose_rate_window(spec, counted)
    duration_s = max(map(request_end_s, counted), default=0.0) - first_request_start_s(counted)
    metrics = _metrics_of_whole_run(good, duration_s, facts.first_tokens) | _metrics_in_window(
        good, window
    )
    metrics |= _latency_distributions_from_schedule(good)
    metrics["rate_error_pct"] = rate_error_pct(spec, counted, window)
    uncertainties = _latency_uncertainties(good, facts)
    withheld = {
        name: why
        for name, why in _reasons_of_withheld_latencies(uncertainties, facts).items()
        if metrics.get(name)
    }
    metrics |= dict.fromkeys(withheld)
    slo = slo_metric_values(spec.slo, counted, window, facts.first_tokens, withheld)
    if spec.endpoint == "embeddings":
        metrics["prompt_tok_s"] = _prompt_tok_per_s_in_window(good, window)
    return BenchSummary(
        requests_ok=len(good),
        requests_failed=len(counted) - len(good),
        errors=dict(count_failures_by_kind(counted).most_common()),
        duration_s=round(duration_s, 6),
        power_w=None,
        energy_j=None,
        tok_per_joule=None,
        client_cpu_pct=facts.client_cpu_pct,
        absent=_reason_by_absent_metric(spec, good, metrics)
        | withheld
        | reason_by_absent_slo_metric(spec.slo, slo),
        notes=(
            *result_notes(spec, counted, facts, window),
            *_uncertainty_notes(uncertainties),
            *uncertain_attainment_notes(spec.slo, slo, counted, facts.first_tokens),
        ),
        unsure_ms=_uncertainty_ms_by_metric(uncertainties),
        warmup_requests=len(warm),
        warmup_prompt_tokens=sum_of_field(warm, "prompt_tokens"),
        warmup_output_tokens=sum_of_field(warm, "output_tokens"),
        window=window.name,
        window_s=round(window.seconds, 6),
        in_flight_mean=round_or_none(mean_requests_in_flight(window, counted), 4),
        in_flight_nominal=None if spec.has_pauses else float(spec.concurrency),
        refused=reasons_for_invalid_result(spec, counted, facts, window),
        marked=reasons_for_unreliable_result(spec, counted, window),
        text=facts.text,
        **metrics,  # type: ignore[arg-type]
        **slo,  # type: ignore[arg-type]
    )


def _metrics_of_whole_run(
    good: Sequence[RequestRecord], duration_s: float, first_tokens: float | None
) -> dict[str, object]:
    """Return {metric name: value} for the metrics over the whole run, from the successful requests
    `good`. `first_tokens` is the number of tokens in a reply's first chunk, None if unknown. A
    metric that cannot be computed is None."""
    tokens: dict[str, int | None] = dict.fromkeys(_TOKEN_COUNTS)
    if good:
        tokens = {name: sum_of_field(good, name) for name in _TOKEN_COUNTS}
    output = tokens["output_tokens"]
    tpot = distribution_of(known_values(tpot_ms(record, first_tokens) for record in good))
    return {
        **tokens,
        "whole_run_tok_s": ratio_or_none(output, duration_s, 4),
        "ttft_ms": distribution_of(r.ttft_us / 1000 for r in good if r.ttft_us is not None),
        "itl_ms": distribution_of(chain.from_iterable(r.gaps_us for r in good), unit=1000),
        "tpot_ms": tpot,
        "e2e_ms": distribution_of(r.end_us / 1000 for r in good),
        "tokens_per_chunk": ratio_or_none(output, sum_of_field(good, "chunks"), 4),
        "per_stream_tok_s": ratio_or_none(1000, tpot.mean, 4) if tpot else None,
    }


def _metrics_in_window(good: Sequence[RequestRecord], window: Window) -> dict[str, object]:
    metrics: dict[str, object] = dict.fromkeys(_METRICS_OF_WINDOW)
    if not good:
        return metrics
    tokens, requests = count_tokens_in(window, good), count_requests_in(window, good)
    metrics["output_tok_s"] = ratio_or_none(tokens, window.seconds, 4)
    if window.seconds > 0:
        metrics["request_s"] = round(requests / window.seconds, 4)
    metrics["window_output_tokens"] = round_or_none(tokens, 3)
    metrics["window_requests"] = round(requests, 4)
    return metrics


def _prompt_tok_per_s_in_window(good: Sequence[RequestRecord], window: Window) -> float | None:
    """Return the prompt tokens per second of the requests in the window, or None without token
    usage. For a request that is partly in the window, only that part of its tokens counts."""
    tokens = sum_of_field(good, "prompt_tokens")
    if not tokens:
        return None
    inside = tokens / len(good) * count_requests_in(window, good)
    return round(inside / window.seconds, 4) if window.seconds > 0 else None


def _latency_distributions_from_schedule(good: Sequence[RequestRecord]) -> dict[str, object]:
    """Return {metric name: distribution} for the metrics that begin at a request's scheduled time.
    All of them are None without a request rate, because requests then have no scheduled times."""
    waits = [(r, 1000 * (r.start_s - r.due_s)) for r in good if r.due_s is not None]
    return {
        "queue_ms": distribution_of(max(0.0, wait) for _, wait in waits),
        "ttft_from_schedule_ms": distribution_of(
            wait + r.ttft_us / 1000 for r, wait in waits if r.ttft_us is not None
        ),
        "e2e_from_schedule_ms": distribution_of(wait + r.end_us / 1000 for r, wait in waits),
    }


def _latency_uncertainties(
    good: Sequence[RequestRecord], facts: ClientFacts
) -> dict[str, time_uncertainty.Uncertainty]:
    """Return {metric name: how far this latency may be wrong}; {} if all times are exact."""
    if not time_uncertainty.any_time_is_uncertain(good):
        return {}
    of_ttft = time_uncertainty.ttft_uncertainty(good)
    of_tpot = time_uncertainty.tpot_uncertainty(
        good, lambda record, more_us: tpot_ms(record, facts.first_tokens, more_us)
    )
    return {
        "ttft_ms": of_ttft,
        "ttft_from_schedule_ms": of_ttft,
        "itl_ms": time_uncertainty.itl_uncertainty(good),
        "tpot_ms": of_tpot,
        "per_stream_tok_s": of_tpot,
    }


def _uncertainty_ms_by_metric(
    uncertainties: Mapping[str, time_uncertainty.Uncertainty],
) -> dict[str, float]:
    """Return {metric name: by how many milliseconds it may be wrong} for the latencies that are
    reported all the same."""
    return {
        name: round(uncertainty.widest_ms, 3)
        for name, uncertainty in uncertainties.items()
        if name.endswith("_ms") and uncertainty.reported_uncertainty_ms > 0
    }


def _uncertainty_notes(uncertainties: Mapping[str, time_uncertainty.Uncertainty]) -> list[str]:
    notes = []
    for name in ("ttft_ms", "itl_ms", "tpot_ms"):
        uncertainty = uncertainties.get(name, time_uncertainty.EXACT)
        if uncertainty.reported_uncertainty_ms > time_uncertainty.MAX_UNCERTAINTY_MS:
            notes.append(
                f"the {name.removesuffix('_ms').upper()} is known within "
                f"{uncertainty.widest_ms:.1f} ms: the load client got several chunks with one time"
            )
    return notes


def _reasons_of_withheld_latencies(
    uncertainties: Mapping[str, time_uncertainty.Uncertainty], facts: ClientFacts
) -> dict[str, str]:
    """Return {metric name: reason} for the latencies that the client could not time well enough."""
    late_pct = 100 * facts.late_reads / max(1, facts.reads)
    why = (
        f"the load client read late ({late_pct:.0f} % of its reads by more than 0.5 ms, the worst by"
        f" {facts.latest_read_ms:.0f} ms) and got several chunks with one time; use fewer streams,"
        " or give the client free cores"
    )
    return {
        name: f"{WITHHELD}its {uncertainty.too_wide}: {why}"
        for name, uncertainty in uncertainties.items()
        if uncertainty.too_wide is not None
    }


def _reason_by_absent_metric(
    spec: BenchSpec, good: list[RequestRecord], metrics: Mapping[str, object]
) -> dict[str, str]:
    """Return {metric name: reason} for the energy metrics, which come later, and for each metric
    that is None and exists without a request rate."""
    reasons = dict.fromkeys(("power_w", "energy_j", "tok_per_joule"), _NO_TELEMETRY_REASON)
    for name, value in metrics.items():
        if value is None and name not in _METRICS_OF_RATE:
            reasons[name] = _why_metric_is_absent(spec, name, good)
    return reasons


def _why_metric_is_absent(spec: BenchSpec, name: str, good: list[RequestRecord]) -> str:
    if not good:
        return "no request succeeded"
    if name == "rate_error_pct":
        return "the steady window is too short, or the load sets the rate"
    if spec.endpoint == "embeddings" and name in _METRICS_OF_OUTPUT:
        return "an embedding has no output tokens"
    if name == "cached_tokens" and sum_of_field(good, "prompt_tokens") is not None:
        return "the server's usage does not contain the number of cached prompt tokens"
    counted = name if name == "prompt_tokens" else "output_tokens"
    without = sum(getattr(record, counted) is None for record in good)
    if without and name in _METRICS_FROM_USAGE:
        return f"{without} of {len(good)} replies had no token usage"
    if name in _METRICS_FROM_CHUNKS and not spec.stream:
        return "the replies were not streamed"
    if name in ("ttft_ms", "tokens_per_chunk"):
        return "no reply had content"
    if name in ("itl_ms", "tpot_ms", "per_stream_tok_s"):
        return "no reply had content after its first chunk"
    if name in ("output_tok_s", "whole_run_tok_s"):
        return "the replies had no tokens"
    return "the run took no time that can be measured"

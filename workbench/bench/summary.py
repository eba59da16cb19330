"""From request records to the figures of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from workbench.bench.records import RequestRecord
from workbench.model.bench import BenchSpec, BenchSummary, Distribution, GpuDuring

_BUSY_CLIENT_PCT = 70.0  # above it the client's own pace may be what is measured
_CACHED_SHARE = 0.01
_ODD_READS = 0.01  # share of reads above which a person is told
_NO_TELEMETRY = "no telemetry of the server's GPUs was merged into this result"
_FROM_USAGE = (
    "prompt_tokens",
    "output_tokens",
    "cached_tokens",
    "output_tok_s",
    "tokens_per_chunk",
    "tpot_ms",
    "per_stream_tok_s",
)


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What the client knows beside the records. `dropped`: optional fields that the engine refused."""

    notes: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    client_cpu_pct: float | None = None
    calibrated: bool = False
    reads: int = 0
    unstamped_reads: int = 0
    late_reads: int = 0  # taken more than 2 ms after the bytes came
    latest_read_ms: float = 0.0


def quantile(ordered: Sequence[float], p: float) -> float:
    """The p-quantile (0..1) of an ascending, non-empty sequence by linear interpolation, as numpy's default."""
    at = p * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def distribution(values: Iterable[float], digits: int = 4) -> Distribution | None:
    """None when there are no values."""
    ordered = sorted(values)
    if not ordered:
        return None
    p50, p90, p99 = (round(quantile(ordered, p), digits) for p in (0.5, 0.9, 0.99))
    mean = round(sum(ordered) / len(ordered), digits)
    low, high = round(ordered[0], digits), round(ordered[-1], digits)
    return Distribution(mean=mean, p50=p50, p90=p90, p99=p99, min=low, max=high, count=len(ordered))


def tpot_ms(record: RequestRecord) -> float | None:
    """(last - first chunk) / (tokens - tokens in the first chunk). Where the server does not say how many tokens the
    first chunk carried it is taken as one. None without usage, or with nothing after the first chunk."""
    after_first = (record.output_tokens or 0) - (record.first_tokens or 1)
    if after_first <= 0 or not record.gaps_us:
        return None
    return sum(record.gaps_us) / 1000 / after_first


def total(values: Sequence[int | None]) -> int | None:
    """The sum; None where one is not known: a part is no total. 0 for none at all."""
    known = [v for v in values if v is not None]
    return sum(known) if len(known) == len(values) else None


def summarize(
    spec: BenchSpec, counted: Sequence[RequestRecord], warmups: Sequence[RequestRecord], facts: RunFacts
) -> BenchSummary:
    """`output_tok_s` is over the whole run: tokens of the requests that were ok, from the first write to the last
    byte of any request."""
    good = [r for r in counted if r.ok]
    warm = [r for r in warmups if r.ok]
    errors = Counter(r.error for r in counted if r.error)
    starts = [r.start_s for r in counted]
    duration_s = max((r.start_s + r.end_us / 1e6 for r in counted), default=0.0) - min(starts, default=0.0)
    output = total([r.output_tokens for r in good])
    tpot = distribution(t for r in good if (t := tpot_ms(r)) is not None)
    chunks = sum(r.chunks for r in good)
    figures = {
        "prompt_tokens": total([r.prompt_tokens for r in good]) if good else None,
        "output_tokens": output if good else None,
        "cached_tokens": total([r.cached_tokens for r in good]) if good else None,
        "output_tok_s": round(output / duration_s, 4) if output and duration_s > 0 else None,
        "request_s": round(len(good) / duration_s, 4) if good and duration_s > 0 else None,
        "ttft_ms": distribution(r.ttft_us / 1000 for r in good if r.ttft_us is not None),
        "itl_ms": distribution(g / 1000 for r in good for g in r.gaps_us),
        "tpot_ms": tpot,
        "e2e_ms": distribution(r.end_us / 1000 for r in good),
        "tokens_per_chunk": round(output / chunks, 4) if output and chunks else None,
        "per_stream_tok_s": round(1000 / tpot.mean, 4) if tpot and tpot.mean > 0 else None,
    }
    return BenchSummary(
        requests_ok=len(good),
        requests_failed=len(counted) - len(good),
        errors=dict(errors.most_common()),
        duration_s=round(duration_s, 6),
        power_w=None,
        energy_j=None,
        tok_per_joule=None,
        client_cpu_pct=facts.client_cpu_pct,
        absent=_absent(good, figures),
        notes=_notes(spec, counted, good, facts),
        warmup_requests=len(warm),
        warmup_prompt_tokens=total([r.prompt_tokens for r in warm]),
        warmup_output_tokens=total([r.output_tokens for r in warm]),
        **figures,  # type: ignore[arg-type]
    )


def _absent(good: list[RequestRecord], figures: Mapping[str, object]) -> dict[str, str]:
    """A reason for every None."""
    reasons = dict.fromkeys(("power_w", "energy_j", "tok_per_joule"), _NO_TELEMETRY)
    for name, value in figures.items():
        if value is None:
            reasons[name] = _why(name, good)
    return reasons


def _why(name: str, good: list[RequestRecord]) -> str:
    if not good:
        return "no request succeeded"
    if name == "cached_tokens" and all(r.prompt_tokens is not None for r in good):
        return "the server's usage does not say how many prompt tokens were cached"
    without = sum((r.prompt_tokens if name == "prompt_tokens" else r.output_tokens) is None for r in good)
    if without and name in _FROM_USAGE:
        return f"{without} of {len(good)} replies carried no token usage"
    if name in ("ttft_ms", "tokens_per_chunk"):
        return "no reply had content"
    if name in ("itl_ms", "tpot_ms", "per_stream_tok_s"):
        return "no reply had content after its first chunk"
    return "the replies had no tokens" if name == "output_tok_s" else "the run took no time that can be measured"


def _notes(
    spec: BenchSpec, counted: Sequence[RequestRecord], good: list[RequestRecord], facts: RunFacts
) -> tuple[str, ...]:
    notes = list(facts.notes)
    if facts.dropped:
        notes.append(f"the server refused {', '.join(facts.dropped)}: sent without")
    failures = Counter((r.error, r.detail) for r in counted if r.error)
    notes += [f"{n} x {kind}: {detail}" for (kind, detail), n in failures.most_common(3)]
    short = sum(r.error == "short" for r in counted)
    if short:
        notes.append(f"{short} replies ended before {spec.max_tokens} tokens: the server does not follow ignore_eos")
    prompt = total([r.prompt_tokens for r in good])
    if good and prompt:
        notes.append(f"prompts of {prompt / len(good):.0f} tokens each ({_length_of(spec, facts)})")
    cached = total([r.cached_tokens for r in good])
    if cached and prompt and cached > _CACHED_SHARE * prompt and not spec.shared_prefix:
        notes.append(f"{100 * cached / prompt:.0f} % of the prompt tokens came from the prefix cache")
    if good and facts.client_cpu_pct is not None and facts.client_cpu_pct > _BUSY_CLIENT_PCT:
        notes.append(f"the client itself used {facts.client_cpu_pct:.0f} % of a core: it may have been the limit")
    if facts.unstamped_reads > _ODD_READS * facts.reads:
        notes.append(f"{facts.unstamped_reads} of {facts.reads} reads were timed by the client: no kernel stamp")
    if facts.late_reads > _ODD_READS * facts.reads:
        notes.append(
            f"the client's machine was busy: {100 * facts.late_reads / facts.reads:.0f} % of the reads came over 2 ms"
            f" late (worst {facts.latest_read_ms:.0f} ms); shorter times than that may be off"
        )
    return tuple(notes)


def _length_of(spec: BenchSpec, facts: RunFacts) -> str:
    if spec.prompts_name:
        salted = "" if spec.shared_prefix else ", a mark of ours in front of each"
        return f"of {spec.prompts_name}{salted}"
    if spec.prompt_words:
        return f"{spec.input_tokens} asked, by the server's tokenizer"
    how = "calibrated in the warm-up" if facts.calibrated else "not calibrated: no warm-up with usage"
    return f"{spec.input_tokens} asked, {how}"


def with_gpu(summary: BenchSummary, gpu: GpuDuring) -> BenchSummary:
    """The summary with what the GPUs did. tok/J counts output tokens against the energy of all the server's GPUs,
    idle power included; energy is the driver's counter where `gpu` has it, else mean power times duration."""
    energy = gpu.energy_j
    if energy is None and gpu.power_w is not None:
        energy = round(gpu.power_w * summary.duration_s, 3)
    absent = {k: v for k, v in summary.absent.items() if k not in ("power_w", "energy_j", "tok_per_joule")}
    if gpu.power_w is None:
        absent["power_w"] = gpu.absent.get("power_w", "the driver gave no power during the run")
    ratio = None
    if energy is None:
        absent["energy_j"] = gpu.absent.get("energy_j") or absent.get("power_w", "the driver gave no energy")
        absent["tok_per_joule"] = absent["energy_j"]
    elif not summary.output_tokens:
        absent["tok_per_joule"] = absent.get("output_tokens", "no output tokens")
    elif energy <= 0:
        absent["tok_per_joule"] = "the energy counter did not move during the run"
    else:
        ratio = round(summary.output_tokens / energy, 6)
    return replace(summary, power_w=gpu.power_w, energy_j=energy, tok_per_joule=ratio, gpu=gpu, absent=absent)

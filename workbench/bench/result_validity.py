"""Whether the figures of a run may be used, and what a person must know to read them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from workbench.bench import steadiness
from workbench.bench.records import SHORT, RequestRecord, total
from workbench.bench.steady_window import STEADY, Window, mean_in_flight
from workbench.model.bench import BenchSpec

BUSY_CLIENT_PCT = 70.0  # above it the client's own pace may be what is measured
LEAST_LOAD = 0.97  # of the streams, or of the rate, that were asked for
CACHED_SHARE = 0.01
FAILED_SHARE = 0.01  # of the requests: above it what is measured is another load than the asked one
_LATE_MS = 10.0  # behind the schedule: from here on a start is late
_ODD_READS = 0.01  # share of reads above which a person is told


@dataclass(frozen=True, slots=True)
class ClientFacts:
    """What the client knows beside the records. `dropped`: optional fields that the engine refused. `prompt_words`:
    words in each synthetic prompt, None for the person's own. `window`: None: by the records alone."""

    notes: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    client_cpu_pct: float | None = None  # over the window
    calibrated: bool = False
    prompt_words: int | None = None
    capped: int = 0  # requests that were due while all streams were taken
    unsent: int = 0  # requests that were due before the run's time was over, and never sent
    window: Window | None = None
    first_tokens: float | None = None  # in the first chunk of a warm-up reply, by the server's usage
    partial: str = ""  # why the run ended before all its requests were made
    reads: int = 0
    unstamped_reads: int = 0
    late_reads: int = 0  # taken more than 2 ms after the bytes came
    latest_read_ms: float = 0.0


def refusals(spec: BenchSpec, counted: Sequence[RequestRecord], facts: ClientFacts, window: Window) -> tuple[str, ...]:
    """Why these figures are not those of the server under the asked load; () where they are."""
    good = [r for r in counted if r.ok]
    failures = _failures(counted)
    partial = f"partial: {facts.partial} after {len(counted)} of {spec.requests} requests" if facts.partial else None
    reasons = (
        partial,
        failures,
        None
        if failures or partial
        else _idle_streams(spec, counted, window),  # dead streams are idle, and not by the client
        _busy(good, facts),
        _cached(spec, good, facts),
        _not_offered(spec, counted),
        _not_sent(spec, counted, facts),
        steadiness.overload(spec, counted),
    )
    return tuple(r for r in reasons if r)


def marks(spec: BenchSpec, counted: Sequence[RequestRecord], window: Window) -> tuple[str, ...]:
    """Why these figures, though they are the server's, say less than they seem to."""
    reasons = (steadiness.too_short(counted, window), steadiness.halves_apart(counted, window))
    return tuple(r for r in reasons if r)


def _failures(counted: Sequence[RequestRecord]) -> str | None:
    """Requests that failed gave their time and their place to others: the rest ran under another load."""
    kinds = Counter(r.error for r in counted if r.error)
    failed = kinds.total()
    if failed <= FAILED_SHARE * len(counted):
        return None
    named = ", ".join(f"{count} x {kind}" for kind, count in kinds.most_common())
    return (
        f"{failed} of {len(counted)} requests failed at the server ({named}): at most"
        f" {100 * FAILED_SHARE:.0f} % may, since the others then ran under another load than the one asked for"
    )


def _idle_streams(spec: BenchSpec, counted: Sequence[RequestRecord], window: Window) -> str | None:
    """Only in a closed loop's steady window: ramp and tail, and a rate, leave streams idle by themselves."""
    mean = mean_in_flight(window, counted)
    if spec.rate is not None or window.name != STEADY or mean is None or mean >= LEAST_LOAD * spec.concurrency:
        return None
    return (
        f"{mean:.2f} of {spec.concurrency} streams were in flight on average"
        f" ({_below(100 * mean / spec.concurrency)} %, at least {100 * LEAST_LOAD:.0f} % are needed):"
        " the client, or connecting, held the load back"
    )


def _below(percent: float) -> str:
    """Rounded down: a value below a limit must not read as the limit."""
    return f"{int(10 * percent) / 10:g}"


def _busy(good: Sequence[RequestRecord], facts: ClientFacts) -> str | None:
    if not good or facts.client_cpu_pct is None or facts.client_cpu_pct <= BUSY_CLIENT_PCT:
        return None
    return (
        f"the client itself used {facts.client_cpu_pct:.0f} % of a core (at most {BUSY_CLIENT_PCT:.0f} % may be):"
        " it may have been the limit"
    )


def _cached(spec: BenchSpec, good: Sequence[RequestRecord], facts: ClientFacts) -> str | None:
    """More than 1 % of the prompt tokens came from the prefix cache, what the chat template may account for left out.

    Prompts differ from their first word on, so that all they can share is the template before it. How long that is is
    not known, but a prompt of W words of ours has at most tokens - W of a template: hits beyond that are of our text.
    (Engines count hits in blocks of 1 to 64 tokens, rounded down: that hides hits, and makes none.)
    """
    prompt = total([r.prompt_tokens for r in good])
    if not prompt or spec.shared_prefix or spec.prompts:
        return None
    words = facts.prompt_words or 0
    own = sum(
        max(0, r.cached_tokens - (max(0, r.prompt_tokens - words) if words else 0))
        for r in good
        if r.cached_tokens is not None and r.prompt_tokens is not None
    )
    if own <= CACHED_SHARE * prompt:
        return None
    return f"{100 * own / prompt:.0f} % of the prompt tokens came from the prefix cache: nothing computed them"


def _not_offered(spec: BenchSpec, counted: Sequence[RequestRecord]) -> str | None:
    """An open loop whose starts fell behind and stayed behind: another rate than the asked one was measured."""
    starts = sorted((r.due_s, r.start_s) for r in counted if r.due_s is not None)
    if spec.rate is None or len(starts) < 2:
        return None
    due_span_s = starts[-1][0] - starts[0][0]
    behind_s = starts[-1][1] - starts[-1][0]
    if behind_s <= max(_LATE_MS / 1000, due_span_s * (1 / LEAST_LOAD - 1)):
        return None
    reached = (len(starts) - 1) / (due_span_s + behind_s)
    scheduled = (len(starts) - 1) / due_span_s if due_span_s > 0 else spec.rate
    return (
        f"requests started at {reached:.2f} per second, the schedule had {scheduled:.2f}: the last one was"
        f" {behind_s:.1f} s behind, since all {spec.concurrency} streams were taken"
    )


def _not_sent(spec: BenchSpec, counted: Sequence[RequestRecord], facts: ClientFacts) -> str | None:
    """The worst waits of an overloaded open loop are those of requests that it never sent."""
    due = len(counted) + facts.unsent
    if facts.unsent <= (1 - LEAST_LOAD) * due:
        return None
    why = f"all {spec.concurrency} streams were taken"
    return f"{facts.unsent} of {due} requests that were due were never sent, since {why}"


def notes_of(spec: BenchSpec, counted: Sequence[RequestRecord], facts: ClientFacts, window: Window) -> tuple[str, ...]:
    good = [r for r in counted if r.ok]
    notes = list(facts.notes)
    if spec.insecure and spec.url.startswith("https:"):
        notes.append("the server's certificate was not checked (--insecure)")
    if window.why and good:
        notes.append(f"rates are over the whole run, ramp and tail included: {window.why}")
    if facts.dropped:
        notes.append(f"the server refused {', '.join(facts.dropped)}: sent without")
    failures = Counter((r.error, r.detail) for r in counted if r.error)
    notes += [f"{n} x {kind}: {detail}" for (kind, detail), n in failures.most_common(3)]
    short = sum(r.error == SHORT for r in counted)
    if short:
        notes.append(f"{short} replies ended before the asked length: the server does not follow ignore_eos")
    lengths = [r.output_tokens for r in good if r.output_tokens is not None]
    if lengths and not spec.extra_body.get("ignore_eos", spec.ignore_eos):
        notes.append(
            f"natural lengths: answers of {sum(lengths) / len(lengths):.0f} tokens on average, {min(lengths)} to"
            f" {max(lengths)}, as the model ended them"
        )
    notes += _odd_replies(counted, good)
    notes += _first_chunk_notes(good, facts)
    notes += _prompt_notes(spec, good, facts)
    notes += _schedule_notes(spec, counted, facts)
    if facts.unstamped_reads > _ODD_READS * facts.reads:
        notes.append(f"{facts.unstamped_reads} of {facts.reads} reads were timed by the client: no kernel stamp")
    if facts.late_reads > _ODD_READS * facts.reads:
        notes.append(
            f"the client's machine was busy: {100 * facts.late_reads / facts.reads:.0f} % of the reads came over 2 ms"
            f" late (worst {facts.latest_read_ms:.0f} ms); shorter times than that may be off"
        )
    return tuple(notes)


def _odd_replies(counted: Sequence[RequestRecord], good: Sequence[RequestRecord]) -> list[str]:
    """What was counted as ok all the same."""
    without_done, without_usage = sum(r.without_done for r in good), sum(r.output_tokens is None for r in good)
    again = sum(r.reconnected for r in counted)
    notes = []
    if without_done:
        notes.append(f"{without_done} of {len(good)} replies came without [DONE]; their bodies were complete")
    if without_usage:
        notes.append(f"{without_usage} of {len(good)} replies carried no token usage: chunks are not tokens")
    encoded = sum(r.encoded for r in counted)
    if encoded:
        notes.append(f"{encoded} of {len(counted)} replies came compressed, and their times hold what that held back")
    if again:
        notes.append(f"{again} of {len(counted)} requests were sent anew: the server had closed the kept connection")
    return notes


def _first_chunk_notes(good: Sequence[RequestRecord], facts: ClientFacts) -> list[str]:
    """Where TPOT depends on what the server does not say."""
    open_ = [r for r in good if r.first_tokens is None and 1 < r.chunks < (r.output_tokens or 0)]
    if not open_ or facts.first_tokens is not None:
        return []
    tokens = sum(r.output_tokens or 0 for r in open_) / len(open_)
    per_chunk = tokens / (sum(r.chunks for r in open_) / len(open_))
    low_pct = 100 * (1 - (tokens - per_chunk) / (tokens - 1))
    return [
        f"TPOT takes the first chunk as one token, since the server does not say how many it holds: at {per_chunk:.1f}"
        f" tokens per chunk it may be {low_pct:.0f} % too low"
    ]


def _prompt_notes(spec: BenchSpec, good: Sequence[RequestRecord], facts: ClientFacts) -> list[str]:
    prompt, cached = total([r.prompt_tokens for r in good]), total([r.cached_tokens for r in good])
    if not good or not prompt:
        return []
    length = f"prompts of {prompt / len(good):.0f} tokens each"
    if spec.prompts:
        salted = "" if spec.shared_prefix else ", with a mark of ours in front of each: no cache knows them"
        notes = [f"{length}, of {spec.prompts_name or 'a file'}{salted}"]
    elif spec.prompt_words:
        notes = [f"{length} ({spec.input_tokens} asked, by the server's tokenizer)"]
    else:
        how = "calibrated in the warm-up" if facts.calibrated else "not calibrated: no warm-up with usage"
        notes = [f"{length} ({spec.input_tokens} asked, {how})"]
    if cached and cached > CACHED_SHARE * prompt and not spec.shared_prefix and not _cached(spec, good, facts):
        why = "all they share is the chat template" if spec.prompts else "no more than a chat template can be"
        notes.append(f"{cached / len(good):.0f} prompt tokens of each came from the prefix cache: {why}")
    return notes


def _schedule_notes(spec: BenchSpec, counted: Sequence[RequestRecord], facts: ClientFacts) -> list[str]:
    waits_ms = [1000 * (r.start_s - r.due_s) for r in counted if r.due_s is not None]
    late = sum(wait > _LATE_MS for wait in waits_ms)
    if not late:
        return []
    why = f"all {spec.concurrency} streams were taken {facts.capped} times" if facts.capped else "connecting took time"
    return [
        f"behind schedule: {late} of {len(waits_ms)} requests started more than {_LATE_MS:.0f} ms late"
        f" (worst {max(waits_ms):.0f} ms): {why}"
    ]

"""The validity of a run's metrics, and the notes that the user needs to interpret them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from urllib.parse import urlsplit

from workbench.bench import steadiness
from workbench.bench.records import (
    SHORT_ANSWER,
    RequestRecord,
    count_failures_by_kind,
    select_successful,
    sum_of_field,
)
from workbench.bench.steady_window import STEADY_WINDOW, Window, mean_requests_in_flight
from workbench.bench.trace_load import trace_load
from workbench.model.answer_text import TextReport
from workbench.model.bench import BUSY_CLIENT_PCT, FAILED_SHARE, BenchSpec
from workbench.model.counts import count_of
from workbench.model.distribution import quantile
from workbench.model.known_values import known_values
from workbench.model.lazy_dataclass import dataclass

RATE_NOT_OFFERED_PREFIX = "requests started at"  # begins a reason
MIN_LOAD_SHARE = 0.97  # share of the requested streams or rate that must be reached
MAX_CACHED_SHARE = 0.01
_LATE_START_MS = 10.0  # a start that is further behind its schedule is late
_SHORT_REQUEST_MS = 10.0  # between two requests, a stream needs about 0.2 ms: 3 % of 7 ms
_STALL_ADVICE = "see the log of the server at that time, and measure again"
_ODD_READS_SHARE = 0.01  # share of unusual reads above which the result gets a note


@dataclass(frozen=True, slots=True)
class ClientFacts:
    """Observations of the load client about a run. `dropped` are the names of optional request
    fields that the engine rejected. `prompt_words` is the number of words in a synthetic prompt, or
    None for the user's own prompts. If `window` is None, the steady window is computed from the
    records."""

    notes: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    client_cpu_pct: float | None = None  # over the window
    calibrated: bool = False
    prompt_words: int | None = None
    capped: int = 0  # requests that were due while all streams were taken
    unsent: int = 0  # requests that were due before the run's time was over, and never sent
    window: Window | None = None
    # in the first chunk of a warm-up reply, by the server's usage
    first_tokens: float | None = None
    partial: str = ""  # why the run ended before all its requests were made
    reads: int = 0
    unstamped_reads: int = 0
    late_reads: int = 0  # taken more than 0.5 ms after the bytes came
    latest_read_ms: float = 0.0
    text: TextReport | None = None


def reasons_for_invalid_result(
    spec: BenchSpec, counted: Sequence[RequestRecord], facts: ClientFacts, window: Window
) -> tuple[str, ...]:
    """Return the reasons why a result is invalid: its metrics are not the metrics of the server
    under the requested load. Empty if the result is valid."""
    good = select_successful(counted)
    reasons = [_reason_of_failures(counted)]
    if facts.partial:
        done = f"{len(counted)} of {spec.requests} requests"
        reasons.insert(0, f"partial result: {facts.partial} after {done}")
    if not any(reasons):  # failed streams are idle too
        reasons.append(_reason_of_idle_streams(spec, counted, window))
    reasons += (
        _reason_of_stalls(spec, counted, window, invalidates=True),
        _reason_of_busy_client(good, facts),
        _reason_of_cached_prompts(spec, good, facts),
        _reason_of_rate_not_offered(spec, counted),
        _reason_of_rate_not_sent(spec, counted, facts),
    )
    if not spec.trace_name:
        reasons.append(steadiness.why_server_overloaded(spec, counted))
    return tuple(filter(None, reasons))


def reasons_for_unreliable_result(
    spec: BenchSpec, counted: Sequence[RequestRecord], window: Window
) -> tuple[str, ...]:
    """Return the reasons why a valid result is less reliable than it seems, for example because the
    run was short. Empty if there are none."""
    reasons = [steadiness.why_measurement_too_short(counted, window)]
    if spec.trace_name:  # the second half of a trace may just have more to do
        reasons.append(steadiness.why_server_overloaded(spec, counted))
    else:
        reasons.append(steadiness.why_halves_differ(spec, counted, window))
    reasons.append(_reason_of_stalls(spec, counted, window, invalidates=False))
    return tuple(filter(None, reasons))


def _reason_of_failures(counted: Sequence[RequestRecord]) -> str | None:
    """Return a reason to reject the result if more than 1 % of the requests failed, because the
    other requests then ran under a smaller load. Otherwise None."""
    kinds = count_failures_by_kind(counted)
    failed = kinds.total()
    if failed <= FAILED_SHARE * len(counted):
        return None
    named = ", ".join(f"{count} x {kind}" for kind, count in kinds.most_common())
    return (
        f"{failed} of {len(counted)} requests failed at the server ({named}); more than "
        f"{100 * FAILED_SHARE:.0f} % are"
        " too many, since the others then ran under another load than the requested one"
    )


def _reason_of_idle_streams(
    spec: BenchSpec, counted: Sequence[RequestRecord], window: Window
) -> str | None:
    """Return a reason to reject the result if fewer streams than requested were in flight on
    average; otherwise None.

    Only the steady window of a run without a request rate is checked. With a request rate or a
    think time, and near the start and the end of every run, streams are idle for other reasons.
    """
    if spec.has_pauses or window.name != STEADY_WINDOW:
        return None
    mean = mean_requests_in_flight(window, counted)
    if mean is None or mean >= MIN_LOAD_SHARE * spec.concurrency:
        return None
    return (
        f"{mean:.2f} of {spec.concurrency} streams were in flight on average"
        f" ({_format_percent_rounded_down(100 * mean / spec.concurrency)} %, at least {100 * MIN_LOAD_SHARE:.0f} % are"
        f" needed): {_why_streams_were_idle(counted, window)}"
    )


def _reason_of_stalls(
    spec: BenchSpec, counted: Sequence[RequestRecord], window: Window, *, invalidates: bool
) -> str | None:
    """Return a sentence about the stalls of a run. With `invalidates`, return it only if they make
    the result invalid; without, only if they do not. None otherwise, and if there are no stalls or
    too many requests failed.

    Stalls for more than 3 % of the window make a result invalid, since its mean is then that of no
    server. Not in a trace, where one long prompt may hold up all streams.
    """
    stalls = [] if _reason_of_failures(counted) else steadiness.find_stalls(counted)
    if not stalls:
        return None
    too_long = steadiness.share_of_window_stalled(stalls, window) > 1 - MIN_LOAD_SHARE
    rejects = too_long and not spec.trace_name
    if rejects != invalidates:
        return None
    return f"{steadiness.describe_stalls(stalls, counted, window)}; {_STALL_ADVICE}"


def _why_streams_were_idle(counted: Sequence[RequestRecord], window: Window) -> str:
    """Return why streams were idle between two requests: there was little to do, or the client was
    slow."""
    request_ms = sum(r.end_us for r in counted) / 1000 / len(counted)
    if request_ms < _SHORT_REQUEST_MS:
        return (
            f"answers of {request_ms:.1f} ms are too short, since a stream needs some time between"
            " two requests; use more --max-tokens"
        )
    if window.seconds < steadiness.MIN_WINDOW_S:
        return f"the run of {window.seconds:.2f} s is too short; use more --requests"
    return "the client, or the time to connect, limited the load"


def _format_percent_rounded_down(percent: float) -> str:
    """Return the percentage as text with one decimal, rounded down, so that a value below a limit
    never looks equal to the limit."""
    return f"{int(10 * percent) / 10:g}"


def _reason_of_busy_client(good: Sequence[RequestRecord], facts: ClientFacts) -> str | None:
    used_pct = facts.client_cpu_pct
    if not good or used_pct is None or used_pct <= BUSY_CLIENT_PCT:
        return None
    return (
        f"the client itself used {used_pct:.0f} % of a core (the limit is "
        f"{BUSY_CLIENT_PCT:.0f} %), so it"
        " may have limited the load"
    )


def _reason_of_cached_prompts(
    spec: BenchSpec, good: Sequence[RequestRecord], facts: ClientFacts
) -> str | None:
    """Return a reason to reject the result if more than 1 % of the prompt tokens came from the
    prefix cache, not counting the chat template; otherwise None.

    Two prompts differ from their first word on, so they share only the chat template before it. The
    template's length is unknown, but a prompt of T tokens whose words have at least W tokens has at
    most T - W tokens of template. More cached tokens than that are tokens of the prompt's text.
    """
    prompt = sum_of_field(good, "prompt_tokens")
    if not prompt or spec.shared_prefix or spec.prompts or spec.trace_name:
        return None
    words = spec.least_tokens_of_words(facts.prompt_words or 0)
    own = 0
    for record in good:
        if record.cached_tokens is None or record.prompt_tokens is None:
            continue
        template = max(0, record.prompt_tokens - words) if words else 0
        own += max(0, record.cached_tokens - template)
    if own <= MAX_CACHED_SHARE * prompt:
        return None
    return (
        f"{100 * own / prompt:.0f} % of the prompt tokens came from the prefix cache and were "
        "not computed"
    )


def _reason_of_rate_not_offered(spec: BenchSpec, counted: Sequence[RequestRecord]) -> str | None:
    """Return a reason to reject the result if the client started requests later than the requested
    rate demands, and never caught up. Otherwise return None. The measured rate is then not the
    requested one."""
    starts = sorted((r.due_s, r.start_s) for r in counted if r.due_s is not None)
    if not spec.has_schedule or len(starts) < 2:
        return None
    due_span_s = starts[-1][0] - starts[0][0]
    behind_s = starts[-1][1] - starts[-1][0]
    if due_span_s <= 0:  # all are due at once
        return None
    if behind_s <= max(_LATE_START_MS / 1000, due_span_s * (1 / MIN_LOAD_SHARE - 1)):
        return None
    reached = (len(starts) - 1) / (due_span_s + behind_s)
    scheduled = (len(starts) - 1) / due_span_s
    return (
        f"{RATE_NOT_OFFERED_PREFIX} {reached:.2f} per second instead of the scheduled {scheduled:.2f}: "
        "the last one was"
        f" {behind_s:.1f} s late, since {_busy_streams_text(spec)} busy"
    )


def _reason_of_rate_not_sent(
    spec: BenchSpec, counted: Sequence[RequestRecord], facts: ClientFacts
) -> str | None:
    """Return a reason to reject the result if, at a requested rate, more than 3 % of the due
    requests were never sent. Otherwise return None. Those requests would have waited longest, so
    the latencies of the sent requests alone look too good."""
    due = len(counted) + facts.unsent
    if facts.unsent <= (1 - MIN_LOAD_SHARE) * due:
        return None
    return f"{facts.unsent} of {due} due requests were never sent, since {_busy_streams_text(spec)} busy"


def _busy_streams_text(spec: BenchSpec) -> str:
    if spec.concurrency == 1:
        return "the only stream was"
    return f"all {spec.concurrency} streams were"


def result_notes(
    spec: BenchSpec, counted: Sequence[RequestRecord], facts: ClientFacts, window: Window
) -> tuple[str, ...]:
    """Return the notes on a result, one sentence each: failures, lengths, prompts, schedule,
    accuracy of the times."""
    good = select_successful(counted)
    notes = list(facts.notes)
    if spec.insecure and urlsplit(spec.url).scheme == "https":
        notes.append("the server's certificate was not checked (--insecure)")
    if window.why and good:
        notes.append(f"rates cover the whole run, including ramp and tail: {window.why}")
    if facts.dropped:
        notes.append(
            f"the server rejected the request fields {', '.join(facts.dropped)}, so requests were "
            "sent without them"
        )
    failures = Counter((r.error, r.detail) for r in counted if r.error)
    notes += [f"{n} x {kind}: {detail}" for (kind, detail), n in failures.most_common(3)]
    if spec.endpoint == "chat" and any("chat template" in (detail or "") for _, detail in failures):
        notes.append("the model has no chat template: measure it with --endpoint completions")
    short = sum(r.error == SHORT_ANSWER for r in counted)
    if short:
        notes.append(
            f"{short} replies ended before the requested length: the server does not "
            "follow ignore_eos"
        )
    if not spec.extra_body.get("ignore_eos", spec.ignore_eos):
        notes += _natural_length_notes(good)
    notes += _odd_reply_notes(spec, counted, good)
    notes += _first_chunk_notes(good, facts)
    notes += _prompt_notes(spec, good, facts)
    notes += _schedule_notes(spec, counted, facts)
    if facts.unstamped_reads > _ODD_READS_SHARE * facts.reads:
        notes.append(
            f"the client timed {facts.unstamped_reads} of {facts.reads} reads itself, because the "
            "kernel gave no time"
        )
    return tuple(notes)


def _natural_length_notes(good: Sequence[RequestRecord]) -> list[str]:
    """Return a note on the lengths of answers that the model may end: how many it did end, and how
    many the token limit ended."""
    lengths = known_values(r.output_tokens for r in good)
    if not lengths:
        return []
    cut = sum(r.finish_reason == "length" for r in good)
    size = f"{min(lengths)} to {max(lengths)} tokens, {sum(lengths) / len(lengths):.0f} on average"
    if not cut:
        return [f"natural lengths: the model ended its answers after {size}"]
    if cut == len(good):
        return [f"natural lengths: the token limit ended all answers, after {size}"]
    return [f"natural lengths: the token limit ended {cut} of {len(good)} answers; {size}"]


def _odd_reply_notes(
    spec: BenchSpec, counted: Sequence[RequestRecord], good: Sequence[RequestRecord]
) -> list[str]:
    """Return notes on successful replies that lacked [DONE] or token usage, or were compressed."""
    without_done = sum(r.without_done for r in good)
    without_usage = sum(r.output_tokens is None for r in good)
    notes = []
    if without_done:
        notes.append(
            f"{without_done} of {len(good)} replies had no [DONE], but their bodies were complete"
        )
    if without_usage and spec.endpoint != "embeddings":  # an embedding has no output tokens
        notes.append(
            f"{without_usage} of {len(good)} replies had no token usage, and chunks are not tokens"
        )
    encoded = sum(r.encoded for r in counted)
    if encoded:
        notes.append(
            f"{encoded} of {len(counted)} replies were compressed, which delays chunks and "
            "distorts their times"
        )
    return notes


def _first_chunk_notes(good: Sequence[RequestRecord], facts: ClientFacts) -> list[str]:
    """Return a list with a note if TPOT may be too low, because the server does not report how many
    tokens the first chunk has. Otherwise the list is empty."""
    if facts.first_tokens is not None:
        return []
    replies = chunks = tokens = 0
    for record in good:
        if record.first_tokens is not None or record.output_tokens is None:
            continue
        if 1 < record.chunks < record.output_tokens:
            replies += 1
            chunks += record.chunks
            tokens += record.output_tokens
    if not replies:
        return []
    per_reply, per_chunk = tokens / replies, tokens / chunks
    low_pct = 100 * (1 - (per_reply - per_chunk) / (per_reply - 1))
    if low_pct < 0.5:
        return []
    return [
        "TPOT counts the first chunk as one token, since the server does not report its tokens: "
        f"at {per_chunk:.1f}"
        f" tokens per chunk, TPOT may be {low_pct:.0f} % too low"
    ]


def _length_difference_note(spec: BenchSpec, good: Sequence[RequestRecord]) -> str:
    """Return how far the lengths of single prompts are from those in the trace, as the end of a
    note. "" for a load that is no trace."""
    if not spec.trace:
        return ""
    load = trace_load(spec.trace)
    apart = sorted(
        abs(one.prompt_tokens - load.input_tokens(one.index))
        for one in good
        if one.prompt_tokens is not None
    )
    most = count_of(round(quantile(apart, 0.95)), "token")
    return f"; 95 % of them within {most}, all within {apart[-1]}"


def _prompt_notes(spec: BenchSpec, good: Sequence[RequestRecord], facts: ClientFacts) -> list[str]:
    prompt, cached = sum_of_field(good, "prompt_tokens"), sum_of_field(good, "cached_tokens")
    if not prompt:
        return []
    notes = [
        f"prompts of {prompt / len(good):.0f} tokens each{_prompt_origin_text(spec, good, facts)}"
    ]
    if not cached or cached <= MAX_CACHED_SHARE * prompt:
        return notes
    if spec.shared_prefix or spec.trace_name or _reason_of_cached_prompts(spec, good, facts):
        return notes
    why = "no more than a chat template can have"
    if spec.prompts:
        why = "they share only the chat template"
    notes.append(
        f"{cached / len(good):.0f} prompt tokens of each came from the prefix cache: {why}"
    )
    return notes


def _prompt_origin_text(spec: BenchSpec, good: Sequence[RequestRecord], facts: ClientFacts) -> str:
    """Return where the prompts came from and how their length was set, as the end of a sentence."""
    if spec.prompts:
        origin = f", from {spec.prompts_name or 'a file'}"
        if spec.shared_prefix:
            return origin
        return f"{origin}, each with a random mark in front, so that no cache contains it"
    if spec.has_conversations:
        return f", from {spec.trace_name}, each with a mark of its conversation in front"
    if spec.trace_name:
        how = "by the server's tokenizer" if spec.prompt_words else "by the warm-up's usage"
        return f" ({spec.input_tokens} in the trace, {how}{_length_difference_note(spec, good)})"
    how = "not calibrated: no warm-up with usage"
    if spec.prompt_words:
        how = "by the server's tokenizer"
    elif facts.calibrated:
        how = "calibrated in the warm-up"
    return f" ({spec.input_tokens} requested, {how})"


def _schedule_notes(
    spec: BenchSpec, counted: Sequence[RequestRecord], facts: ClientFacts
) -> list[str]:
    waits_ms = [1000 * (r.start_s - r.due_s) for r in counted if r.due_s is not None]
    late = sum(wait > _LATE_START_MS for wait in waits_ms)
    if not late:
        return []
    why = "connecting took time"
    if facts.capped:
        why = f"{_busy_streams_text(spec)} busy {facts.capped} times"
    return [
        f"behind schedule: {late} of {len(waits_ms)} requests started more than {_LATE_START_MS:.0f} ms "
        "late"
        f" (worst {max(waits_ms):.0f} ms): {why}"
    ]

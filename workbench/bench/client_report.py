"""The report of one client process about its run, and the summary message of a run, which is made
from the reports of all client processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import chain
from operator import attrgetter
from typing import Any

from workbench.bench.client_cpu import CpuLog
from workbench.bench.records import OUTPUT_UNREAD, PARENT_ENDED, RequestRecord, select_successful
from workbench.bench.result_validity import ClientFacts
from workbench.bench.schedule import WarmupOutcome
from workbench.bench.steady_window import (
    Window,
    choose_rate_window,
    first_request_start_s,
    request_end_s,
)
from workbench.bench.summary import summarize
from workbench.bench.trace_load import BLOCK_TOKENS
from workbench.model.answer_text import Answer, TextReport, features_of_answers
from workbench.model.bench import BenchSpec
from workbench.model.json_records import to_json
from workbench.model.known_values import known_values, mean_or_none
from workbench.model.lazy_dataclass import dataclass

_ORPHANED_CLIENT_NOTES = dict.fromkeys(
    (PARENT_ENDED, OUTPUT_UNREAD), "its Workbench ended, or the link to it was lost"
)


@dataclass(frozen=True, slots=True)
class ClientReport:
    """The report of one client process about its run: how the run ended, and how accurate its times
    are. `ramp_end_s` is the start of the last stream, in seconds after the run began."""

    began_ns: int  # monotonic time of second 0 of the records
    began_unix: float
    ramp_end_s: float  # scheduled start of the last stream
    stopped: str | None  # why the run ended early
    gave_up: str | None  # why requests were not sent,
    not_sent: int  # and how many
    capped: int  # requests that were due while all streams were taken
    unsent: int  # requests that were due before the run's time was over, and never sent
    calibrated: bool
    words: int  # of a synthetic prompt
    dropped: tuple[str, ...]
    warmup: WarmupOutcome | None
    reads: int
    unstamped_reads: int
    late_reads: int
    latest_read_ns: int
    # readings of the client's CPU time: (monotonic time, CPU time) in nanoseconds
    cpu: tuple[tuple[int, int], ...]
    answers: tuple[Answer, ...] = ()  # a sample of them,
    answers_seen: int = 0  # and how many there were

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ClientReport:
        """Return the report from `data`, which `asdict` made and JSON carried."""
        warmup = data["warmup"] and WarmupOutcome(**data["warmup"])
        cpu = tuple(map(tuple, data["cpu"]))
        answers = tuple(Answer(**one) for one in data["answers"])
        made = {"warmup": warmup, "cpu": cpu, "answers": answers}
        return cls(**{**data, **made, "dropped": tuple(data["dropped"])})

    def cpu_pct(self, window: Window) -> float | None:
        """Return the CPU use of this client process during `window`, in percent of one core. None
        if too few readings were made."""
        begin_ns, end_ns = int(window.begin_s * 1e9), int(window.end_s * 1e9)
        return CpuLog(self.cpu).cpu_pct_between(self.began_ns + begin_ns, self.began_ns + end_ns)


def first_stop_reason(reports: Sequence[ClientReport]) -> str | None:
    """Return why the first of the client processes that ended early did so. None if none did."""
    return next(filter(None, (report.stopped for report in reports)), None)


def final_message(
    spec: BenchSpec,
    reports: Sequence[ClientReport],
    counted: Sequence[RequestRecord],
    warmups: Sequence[RequestRecord],
    stopped: str | None,
    partial_result_reasons: Collection[str],
) -> dict[str, Any]:
    """Return the message that ends a run: its summary, or of type "stopped" why it ended early
    (`stopped`). A run that ended early has a summary if its reason is in `partial_result_reasons`
    and a measured request has succeeded."""
    if stopped:
        is_kept = stopped in partial_result_reasons and any(r.ok for r in counted)
        if not is_kept:
            return {"type": "stopped", "reason": stopped}
    return summary_message(spec, reports, counted, warmups)


def summary_message(
    spec: BenchSpec,
    reports: Sequence[ClientReport],
    counted: Sequence[RequestRecord],
    warmups: Sequence[RequestRecord],
) -> dict[str, Any]:
    """Return the message that ends a run: a dict of type "summary" with the metrics and the Unix
    times of the run and its steady window. `reports` has one report per process of the load client.
    `counted` and `warmups` are the measured requests and the warm-up requests of all processes."""
    window = choose_rate_window(spec, counted, max(r.ramp_end_s for r in reports), len(reports))
    facts = _collect_client_facts(spec, reports, counted, warmups, window)
    began = reports[0].began_unix
    return {
        "type": "summary",
        "partial": first_stop_reason(reports) is not None,
        "summary": to_json(summarize(spec, counted, warmups, facts)),
        "t0_unix": began + first_request_start_s(counted),
        "t1_unix": began + max(map(request_end_s, counted), default=0.0),
        "window_t0_unix": began + window.begin_s,
        "window_t1_unix": began + window.end_s,
    }


def _collect_client_facts(
    spec: BenchSpec,
    reports: Sequence[ClientReport],
    counted: Sequence[RequestRecord],
    warmups: Sequence[RequestRecord],
    window: Window,
) -> ClientFacts:
    def sum_over_reports(name: str) -> int:
        return sum(map(attrgetter(name), reports))

    used_pct = known_values(report.cpu_pct(window) for report in reports)
    first_tokens = filter(None, (record.first_tokens for record in select_successful(warmups)))
    stopped = first_stop_reason(reports)
    partial = ""
    if stopped:
        partial = _ORPHANED_CLIENT_NOTES.get(stopped, "stopped by the user")
    return ClientFacts(
        notes=client_notes(spec, reports),
        dropped=tuple(dict.fromkeys(chain.from_iterable(r.dropped for r in reports))),
        client_cpu_pct=max(used_pct, default=None),  # the busiest process limits the load
        calibrated=any(r.calibrated for r in reports),
        prompt_words=_count_words_per_prompt(spec, reports),
        capped=sum_over_reports("capped"),
        unsent=sum_over_reports("unsent"),
        window=window,
        first_tokens=mean_or_none(list(first_tokens)),
        partial=partial,
        reads=sum_over_reports("reads"),
        unstamped_reads=sum_over_reports("unstamped_reads"),
        late_reads=sum_over_reports("late_reads"),
        latest_read_ms=max(r.latest_read_ns for r in reports) / 1e6,
        text=_analyze_answer_texts(spec, reports, counted),
    )


def _analyze_answer_texts(
    spec: BenchSpec, reports: Sequence[ClientReport], counted: Sequence[RequestRecord]
) -> TextReport | None:
    """Return the features of the answers' text; None for embeddings, which have no text."""
    if spec.endpoint == "embeddings":
        return None
    reasons = Counter(record.finish_reason or "none" for record in select_successful(counted))
    answers = list(chain.from_iterable(r.answers for r in reports))
    seen = sum(r.answers_seen for r in reports)
    load = features_of_answers(answers, dict(reasons.most_common()), seen)
    words = _count_words_per_prompt(spec, reports)
    if words is not None:
        # a word is at least one token, which a piece of real text need not be
        load = replace(load, prompt_words=spec.least_tokens_of_words(words))
    return TextReport(load)


def _count_words_per_prompt(spec: BenchSpec, reports: Sequence[ClientReport]) -> int | None:
    """Return the number of words of a synthetic prompt; for a trace, of a prompt of the mean
    length. None for prompts that Workbench did not make: those of a file or of conversations."""
    if spec.prompts or spec.has_conversations:
        return None
    words = reports[0].words
    if spec.trace_name:
        words = max(1, round(words * spec.input_tokens / BLOCK_TOKENS))
    return words


def client_notes(spec: BenchSpec, reports: Sequence[ClientReport]) -> tuple[str, ...]:
    """Return the notes on a run that only the load client can make: its processes, its warm-up, and
    requests that were not sent."""
    notes = []
    if len(reports) > 1:
        notes.append(f"{len(reports)} processes of the load client sent the requests")
    if warm := list(filter(None, (report.warmup for report in reports))):
        notes.append(WarmupOutcome.combine_outcomes(warm).outcome_sentence())
    not_sent: Counter[str] = Counter()
    for report in reports:
        if report.gave_up:
            not_sent[report.gave_up] += report.not_sent
    for why, left in not_sent.items():
        notes.append(f"{why}; {left} of {spec.requests} requests were not sent")
    return tuple(notes)

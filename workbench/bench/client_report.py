"""The report of one client process about its run, and the summary message of a run, which is made
from the reports of all client processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from workbench.bench.client_cpu import CpuLog
from workbench.bench.records import OUTPUT_UNREAD, PARENT_ENDED, RequestRecord
from workbench.bench.result_validity import ClientFacts
from workbench.bench.schedule import WarmupOutcome
from workbench.bench.steady_window import Window, record_end_s, window_of
from workbench.bench.summary import summarize
from workbench.bench.trace_load import BLOCK_TOKENS
from workbench.model.answer_text import Answer, TextReport, set_features
from workbench.model.bench import BenchSpec
from workbench.model.json_records import to_json
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
        warmup = data["warmup"] and WarmupOutcome(**data["warmup"])
        cpu = tuple((at, used) for at, used in data["cpu"])
        answers = tuple(Answer(**one) for one in data["answers"])
        made = {"warmup": warmup, "cpu": cpu, "answers": answers}
        return cls(**{**data, **made, "dropped": tuple(data["dropped"])})

    def cpu_pct(self, window: Window) -> float | None:
        """Return the CPU use of this client process during `window`, in percent of one core. None
        if too few readings were made."""
        log = CpuLog(self.cpu)
        return log.cpu_pct_between(
            *(self.began_ns + int(at * 1e9) for at in (window.begin_s, window.end_s))
        )


def summary_message(
    spec: BenchSpec,
    reports: Sequence[ClientReport],
    counted: Sequence[RequestRecord],
    warmups: Sequence[RequestRecord],
) -> dict[str, Any]:
    """Return the message that ends a run: a dict of type "summary" with the metrics and the Unix
    times of the run and its steady window. `reports` has one report per process of the load client.
    `counted` and `warmups` are the measured requests and the warm-up requests of all processes."""
    window = window_of(spec, counted, max(r.ramp_end_s for r in reports), len(reports))
    stopped = any(r.stopped for r in reports)
    facts = _client_facts(spec, reports, counted, warmups, window)
    began = reports[0].began_unix
    return {
        "type": "summary",
        "partial": stopped,
        "summary": to_json(summarize(spec, counted, warmups, facts)),
        "t0_unix": began + min((r.start_s for r in counted), default=0.0),
        "t1_unix": began + max(map(record_end_s, counted), default=0.0),
        "window_t0_unix": began + window.begin_s,
        "window_t1_unix": began + window.end_s,
    }


def _client_facts(
    spec: BenchSpec,
    reports: Sequence[ClientReport],
    counted: Sequence[RequestRecord],
    warmups: Sequence[RequestRecord],
    window: Window,
) -> ClientFacts:
    known = [r.first_tokens for r in warmups if r.ok and r.first_tokens]
    shares = [report.cpu_pct(window) for report in reports]
    used = [pct for pct in shares if pct is not None]
    return ClientFacts(
        notes=run_notes(spec, reports),
        dropped=tuple(dict.fromkeys(chain.from_iterable(r.dropped for r in reports))),
        client_cpu_pct=max(used, default=None),  # the busiest process limits the load
        calibrated=any(r.calibrated for r in reports),
        prompt_words=_words_per_prompt(spec, reports),
        capped=sum(r.capped for r in reports),
        unsent=sum(r.unsent for r in reports),
        window=window,
        first_tokens=sum(known) / len(known) if known else None,
        partial=next(
            (
                _ORPHANED_CLIENT_NOTES.get(r.stopped, "stopped by the user")
                for r in reports
                if r.stopped
            ),
            "",
        ),
        reads=sum(r.reads for r in reports),
        unstamped_reads=sum(r.unstamped_reads for r in reports),
        late_reads=sum(r.late_reads for r in reports),
        latest_read_ms=max(r.latest_read_ns for r in reports) / 1e6,
        text=_text_report(spec, reports, counted),
    )


def _text_report(
    spec: BenchSpec, reports: Sequence[ClientReport], counted: Sequence[RequestRecord]
) -> TextReport | None:
    """Return the features of the answers' text; None for embeddings, which have no text."""
    if spec.endpoint == "embeddings":
        return None
    reasons = Counter(r.finish_reason or "none" for r in counted if r.ok)
    answers = list(chain.from_iterable(r.answers for r in reports))
    seen = sum(r.answers_seen for r in reports)
    load = set_features(answers, dict(reasons.most_common()), seen)
    words = _words_per_prompt(spec, reports)
    # a word is at least one token, which a piece of real text need not be
    least = None if words is None else spec.least_text_tokens(words)
    return TextReport(replace(load, prompt_words=least))


def _words_per_prompt(spec: BenchSpec, reports: Sequence[ClientReport]) -> int | None:
    """Return the words of a synthetic prompt; for a trace, those of a prompt of the mean length. None
    if the prompts have a text of their own."""
    if spec.prompts or spec.has_conversations:
        return None
    words = reports[0].words
    return max(1, round(words * spec.input_tokens / BLOCK_TOKENS)) if spec.trace_name else words


def run_notes(spec: BenchSpec, reports: Sequence[ClientReport]) -> tuple[str, ...]:
    """Return the notes on a run that only the load client can make: its processes, its warm-up, and
    requests that were not sent."""
    notes = (
        [f"{len(reports)} processes of the load client sent the requests"]
        if len(reports) > 1
        else []
    )
    warm = [r.warmup for r in reports if r.warmup]
    if warm:
        notes.append(WarmupOutcome.of_all(warm).note_text())
    for why in dict.fromkeys(r.gave_up for r in reports if r.gave_up):
        left = sum(r.not_sent for r in reports if r.gave_up == why)
        notes.append(f"{why}; {left} of {spec.requests} requests were not sent")
    return tuple(notes)

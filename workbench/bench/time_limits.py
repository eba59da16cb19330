"""Time limits of a request, of the time without a byte from the server, and of a whole run.

A limit from the user applies unchanged. Otherwise there is no fixed time per request, because 500
tokens take 2 s on one server and three minutes on another. Instead, the time without a byte is
limited: separately before the first token (only while no other request receives tokens either) and
after it. A run may last half an hour, or up to four hours if its progress shows that it needs the
time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from workbench.bench import records
from workbench.bench.records import RequestFailure
from workbench.bench.trace_load import trace_load
from workbench.model.think_time import parse_think_time

if TYPE_CHECKING:
    from workbench.bench.exchange import Exchange
    from workbench.model.bench import BenchSpec

FIRST_TOKEN_TIMEOUT_S = 120.0
STALL_TIMEOUT_S = 60.0
RUN_TIMEOUT_S = 1800.0
MAX_RUN_TIMEOUT_S = 4 * 3600.0
_PREFILL_TOK_S = 50.0  # reached by the slowest machines in use
# most prompts that are processed before the first of them has its first token
_PREFILLED_TOGETHER = 16
# mean gaps of the same reply: a server of 1 token/s may pause longer than one of 100
_STALL_MEAN_GAPS = 100
_RUN_TIME_SLACK_FACTOR = 1.5  # factor on the expected time of a run
_ENDLESS_REPLY_FACTOR = 8  # chunks of a reply, as a multiple of the requested length,
ENDLESS_REPLY_CHUNKS = 1000  # and this many more
_CHARACTERS_PER_TOKEN = 4


def _longest_prompt_tokens(spec: BenchSpec) -> int:
    if spec.trace:
        return trace_load(spec.trace).most_input_tokens
    characters = (len(one) // _CHARACTERS_PER_TOKEN for one in spec.prompts)
    return max(characters, default=spec.input_tokens)


def _think_time_per_stream_s(spec: BenchSpec) -> float:
    """Return about how many seconds each stream pauses in a whole run, because its users think; 0
    without think time."""
    if not spec.think_time:
        return 0.0
    return parse_think_time(spec.think_time).mean_s * spec.requests / max(1, spec.concurrency)


class TimeLimits:
    """Time limits of one run. `heard_ns` is the monotonic time at which the last content of any
    request arrived."""

    def __init__(self, spec: BenchSpec) -> None:
        self.spec = spec
        self.heard_ns = 0
        planned_s = filter(None, (spec.seconds, spec.trace_s))
        lasts_s = min(planned_s, default=_think_time_per_stream_s(spec))
        self.deadline_s = spec.deadline_s or RUN_TIMEOUT_S + lasts_s
        prompt_tokens = _longest_prompt_tokens(spec)
        together = min(spec.concurrency, _PREFILLED_TOGETHER)
        self._least_stall_ns = int(
            1e9 * (STALL_TIMEOUT_S if spec.stall_s is None else spec.stall_s)
        )
        self._first_token_s = FIRST_TOKEN_TIMEOUT_S + prompt_tokens * together / _PREFILL_TOK_S

    def update_newest_content_time(self, running: Iterable[Exchange]) -> None:
        """Update `heard_ns`, the time of the newest content, from the requests in flight."""
        for exchange in running:
            if exchange.reply.stamps_ns:
                self.heard_ns = max(self.heard_ns, exchange.reply.stamps_ns[-1])

    def exceeded_limit_failure(self, exchange: Exchange, now_ns: int) -> RequestFailure | None:
        """Return the failure of a request in flight that has exceeded a time limit. None if the
        request may continue."""
        asked_s, chunks = self.spec.timeout_s, len(exchange.reply.stamps_ns)
        if asked_s is not None and now_ns - exchange.began_ns > asked_s * 1e9:
            return RequestFailure(
                records.TIMEOUT,
                f"the reply was not complete after {asked_s:g} s and {chunks} chunks",
            )
        if exchange.has_content_begun:
            if now_ns - exchange.last_byte_ns <= self._least_stall_ns:  # nearly always
                return None
            stall_s = self._stall_limit_s(exchange)
            if now_ns - exchange.last_byte_ns > stall_s * 1e9:
                return RequestFailure(
                    records.STALL,
                    f"the server sent no byte for {stall_s:g} s after {chunks} chunks",
                )
            return None
        limit_s = self._first_token_s
        if asked_s is None and now_ns - max(exchange.began_ns, self.heard_ns) > limit_s * 1e9:
            return RequestFailure(
                records.TIMEOUT,
                f"the request got no first token for {limit_s:g} s, and no other request got a "
                "token either",
            )
        return None

    def endless_reply_failure(self, chunks: int, asked_tokens: int) -> RequestFailure | None:
        """Return the failure of a reply with far more chunks than requested tokens, or None if its
        length is acceptable."""
        if chunks <= _ENDLESS_REPLY_FACTOR * asked_tokens + ENDLESS_REPLY_CHUNKS:
            return None
        return RequestFailure(
            records.LONG_ANSWER,
            f"{chunks} chunks arrived, although {asked_tokens} tokens were requested",
        )

    def _stall_limit_s(self, exchange: Exchange) -> float:
        if self.spec.stall_s is not None:
            return self.spec.stall_s
        stamps = exchange.reply.stamps_ns
        gap_s = (stamps[-1] - stamps[0]) / (len(stamps) - 1) / 1e9 if len(stamps) > 1 else 0.0
        return max(STALL_TIMEOUT_S, round(_STALL_MEAN_GAPS * gap_s))

    def is_run_over(self, elapsed_s: float, share_done: Callable[[], float]) -> bool:
        """Return whether the run must end now, `elapsed_s` seconds after its start. `share_done`
        returns the share of the run that is done, 0 to 1.

        If the user gave neither a deadline nor a duration, a run that makes progress may continue
        until the end that its pace so far predicts, with some slack, but at most MAX_RUN_TIMEOUT_S
        seconds.
        """
        if elapsed_s <= self.deadline_s:
            return False
        if self.spec.deadline_s is not None or self.spec.seconds is not None:
            return True
        share = share_done()
        if share > 0 and elapsed_s / share <= MAX_RUN_TIMEOUT_S:
            self.deadline_s = min(MAX_RUN_TIMEOUT_S, _RUN_TIME_SLACK_FACTOR * elapsed_s / share)
        return elapsed_s > self.deadline_s

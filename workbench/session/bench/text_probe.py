"""The probe of a server's text around a benchmark: it sends the prompts of model/answer_probe.py
before the warm-up and after the last request, so that it never runs in the measured window."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from workbench.bench.reply import Reply as StreamedReply
from workbench.bench.sse import SseDecoder, SseError
from workbench.bench.trace_load import BLOCK_TOKENS
from workbench.model import answer_verdict
from workbench.model.answer_probe import (
    CHARACTERS_PER_TOKEN,
    MAX_TOKENS,
    SHORT_TOKENS,
    TOOL_CALL,
    Ask,
    Probed,
    ProbePart,
    assess_probe,
    make_long_ask,
    make_short_asks,
    read_answer,
    request_body_of_ask,
    summarize_probe,
    why_weights_may_lack_language,
)
from workbench.model.answer_text import Answer, TextReport
from workbench.model.counts import count_of
from workbench.model.findings import Level
from workbench.model.known_values import sum_or_none

if TYPE_CHECKING:
    from workbench.model.answer_verdict import EarlierResult
    from workbench.model.bench import BenchSpec, BenchSummary
    from workbench.model.plan import LaunchPlan
    from workbench.server.small_requests import Reply
    from workbench.session.bench.answer_client import AnswerClient

PROBE_PART_S = 20.0  # for the part before the load, and for the part after it
_ASKS_ALONE_BEFORE, _ASKS_ALONE_AFTER, _LONG_ASKS = 2, 1, 2
_MAX_ASKS_TOGETHER = 128
_MIN_LONG_ASK_TOKENS = 128  # a short ask is as long
_REASONING_TOKENS = 256  # of an answer, if an engine hides the reasoning
_SECOND_TIME = 0.8
_RECOUNTED_ANSWERS_PER_LENGTH = 3  # answers of each length whose tokens are counted again
_MIN_RECOUNTED_TOKENS = 24
# Fields of the user's own body that would change what the probe measures.
_TEXT_CHANGING_BODY_FIELDS = (
    "model",
    "messages",
    "prompt",
    "max_tokens",
    "stream",
    "stream_options",
    "stop",
    "n",
)
_NO_OWN_FIELDS = (
    *_TEXT_CHANGING_BODY_FIELDS,
    "ignore_eos",
    "min_tokens",
    "temperature",
    "max_completion_tokens",
)

CountTokens = Callable[[Mapping[str, Any]], Awaitable[int | None]]


class SentCounts(NamedTuple):
    """The numbers of requests that were sent, and of their prompt and output tokens. A number of
    tokens is None if the server does not report it."""

    requests: int
    prompt_tokens: int | None
    output_tokens: int | None


class AbandonedRequests(NamedTuple):
    """Requests to which no answer came in time. The server may still work on them: `prompt_tokens`
    and `output_tokens` are the most that it may count for them."""

    requests: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0

    def with_request(self, body: Mapping[str, Any]) -> AbandonedRequests:
        tokens = body.get("max_tokens") or body.get("max_completion_tokens") or 0
        return AbandonedRequests(
            self.requests + 1,
            self.prompt_tokens + len(json.dumps(body, ensure_ascii=False)),
            self.output_tokens + tokens,
        )


def why_language_is_not_expected(spec: BenchSpec, plan: LaunchPlan | None) -> str:
    """Return why the text of a server's model need not be language; "" if it must be."""
    if spec.random_weights:
        return "its weights are random (--random-weights)"
    if plan is None:
        return ""
    return why_weights_may_lack_language(plan)


class TextProbe:
    """The probe of one benchmark. `send_prompts_before_load` and `send_prompts_after_load` send its
    prompts, and `add_text_assessment` says what follows. `client` sends the requests. `nonsense`
    says why the server's text need not be language; "" if it must be. `skipped` is the reason why
    there is no probe, "" if there is one."""

    def __init__(self, client: AnswerClient, spec: BenchSpec, nonsense: str = "") -> None:
        self._client, self._spec, self._nonsense = client, spec, nonsense
        self._probed: list[Probed] = []
        self._short: list[Probed] = []  # answers of SHORT_TOKENS tokens
        self._failures: list[str] = []
        self._sent: list[tuple[int | None, int | None]] = []  # prompt and output tokens
        self.given_up = AbandonedRequests()
        self._tokens = MAX_TOKENS
        self._long_tokens = 0
        self.skipped = _why_load_has_no_probe(spec)

    @property
    def sent_request_and_token_counts(self) -> SentCounts:
        """How many requests the probe has sent, and their tokens. A number of tokens is None if a
        reply did not report it."""
        prompt, output = map(itemgetter(0), self._sent), map(itemgetter(1), self._sent)
        return SentCounts(len(self._sent), sum_or_none(prompt), sum_or_none(output))

    async def send_prompts_before_load(
        self, spec: BenchSpec, count: CountTokens | None = None
    ) -> None:
        """Send the prompts that go before the load, and count the tokens of some answers again.
        `spec` is the load, with the length of its prompts. `count` counts the tokens of a prompt
        with the server's tokenizer; None if the server has none."""
        self._spec = spec
        if self.skipped:
            return
        until_s = time.monotonic() + PROBE_PART_S
        self._long_tokens = _long_prompt_length_tokens(spec)
        await self._lengthen_answers_if_reasoning_hidden(until_s)
        await self._send_short_and_long_asks(
            make_short_asks(_ASKS_ALONE_BEFORE), until_s, after=False
        )
        await self._recount_answer_tokens(count, until_s)

    async def send_prompts_after_load(self) -> None:
        """Send the prompts that follow the load. Send none if no ask before the load was answered,
        or if there is no probe."""
        if self.skipped or not self._probed:
            return
        asks = make_short_asks(_ASKS_ALONE_BEFORE + _ASKS_ALONE_AFTER)[_ASKS_ALONE_BEFORE:]
        await self._send_short_and_long_asks(asks, time.monotonic() + PROBE_PART_S, after=True)

    async def _lengthen_answers_if_reasoning_hidden(self, until_s: float) -> None:
        """Let the answers be longer if an engine shows no text before the reasoning has ended."""
        first = await self._send_ask(make_short_asks(1)[0], until_s - time.monotonic())
        if first is not None and first.hides_reasoning:
            self._tokens = _REASONING_TOKENS
            self._short.append(first)

    async def _send_short_and_long_asks(
        self, asks_sent_alone: Sequence[Ask], until_s: float, *, after: bool
    ) -> None:
        for ask in asks_sent_alone:
            await self._send_asks_together([ask], until_s, after)
        together = min(_MAX_ASKS_TOGETHER, self._spec.concurrency)
        if together > 1:
            await self._send_asks_together(
                make_short_asks(together, ProbePart.TOGETHER), until_s, after
            )
        if self._long_tokens:
            per_token = _synthetic_characters_per_token(self._spec)
            long = [make_long_ask(self._long_tokens, n, per_token) for n in range(_LONG_ASKS)]
            await self._send_asks_together(long, until_s, after)

    async def _send_asks_together(self, asks: Sequence[Ask], until_s: float, after: bool) -> None:
        """Send prompts at once, and keep the answers that come in time."""
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            self._failures += [f"the probe has {PROBE_PART_S:.0f} s"] * len(asks)
            return
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._send_ask(ask, left_s)) for ask in asks]
        answers = filter(None, [task.result() for task in tasks])
        self._probed += [replace(answer, after=after) for answer in answers]

    async def _send_ask(
        self, ask: Ask, remaining_s: float, tokens: int | None = None
    ) -> Probed | None:
        own = {k: v for k, v in self._spec.extra_body.items() if k not in _NO_OWN_FIELDS}
        asked = request_body_of_ask(ask, self._spec.model, self._spec.endpoint)
        body = own | asked | {"max_tokens": tokens or self._tokens}
        if self._spec.stream and ask.part is ProbePart.TOGETHER:  # as the load's answers come
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        reply, answer = await self._post_request(body, remaining_s, ask.prompt)
        if reply.status in (400, 422):  # a few servers accept none of these fields
            del body["temperature"]
            body.pop("stream_options", None)
            body["stream"] = False
            body["max_completion_tokens"] = body.pop("max_tokens")
            reply, answer = await self._post_request(body, remaining_s, ask.prompt)
        if answer is None or reply.status != 200:
            self._failures.append(reply.problem or f"HTTP status {reply.status}")
            return None
        return Probed(ask, answer, invalid_utf8=reply.invalid_utf8)

    async def _post_request(
        self, body: Mapping[str, Any], left_s: float, prompt: str = ""
    ) -> tuple[Reply, Answer | None]:
        reply = await self._client.post(body, max(0.1, left_s))
        if reply.late:
            self.given_up = self.given_up.with_request(body)
        answer = _parse_reply(reply, prompt)
        if answer is None:
            self._sent.append((None, None))
        else:
            self._sent.append((answer.prompt_tokens, answer.output_tokens))
        return reply, answer

    # ---- the tokens of the answers, counted again

    async def _recount_answer_tokens(self, count: CountTokens | None, until_s: float) -> None:
        """Count the tokens of some answers again with the server's tokenizer, or by the usage of a
        prompt that contains the answer."""
        to_recount = []
        for index, probed in enumerate(self._probed):
            tokens = probed.answer.output_tokens or 0
            if tokens >= _MIN_RECOUNTED_TOKENS and not probed.defect:
                to_recount.append(index)
        for index in to_recount[:_RECOUNTED_ANSWERS_PER_LENGTH]:
            if until_s <= time.monotonic():
                return
            self._probed[index] = await self._recount_tokens_of_probed(
                self._probed[index], count, until_s
            )
        if self._short:
            return
        if any(probed.recounted is not None for probed in self._probed):
            await self._send_and_recount_short_answers(count, until_s)

    async def _send_and_recount_short_answers(
        self, count: CountTokens | None, until_s: float
    ) -> None:
        """Ask for short answers, and count their tokens again. Tokens that the text does not show,
        such as end marks, are about as many in short answers as in long ones."""
        left_s = until_s - time.monotonic()
        asks = make_short_asks(_RECOUNTED_ANSWERS_PER_LENGTH)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._send_ask(ask, left_s, SHORT_TOKENS)) for ask in asks]
        for task in tasks:
            probed = task.result()
            if probed is None or until_s <= time.monotonic():
                continue
            if not probed.answer.is_empty:
                probed = await self._recount_tokens_of_probed(probed, count, until_s)
            self._short.append(probed)

    async def _recount_tokens_of_probed(
        self, probed: Probed, count: CountTokens | None, until_s: float
    ) -> Probed:
        left_s = until_s - time.monotonic()
        return replace(
            probed, recounted=await self._count_tokens_of(probed.answer.all_text, count, left_s)
        )

    async def _count_tokens_of(
        self, text: str, count: CountTokens | None, remaining_s: float
    ) -> int | None:
        if count is not None:
            tokens = await count({"prompt": text})
            if tokens is not None:
                return tokens
        counted = []
        for prompt in ("a", f"a {text}", f"a {text} {text}"):
            counted.append(await self._count_prompt_tokens(prompt, remaining_s))
        match counted:
            case [int(empty), int(once), int(twice)] if once > empty:
                tokens = once - empty
                # If twice the text is not about twice as long, the server cuts prompts or invents
                # usage.
                return tokens if twice - once >= _SECOND_TIME * tokens else None
        return None

    async def _count_prompt_tokens(self, text: str, remaining_s: float) -> int | None:
        body = request_body_of_ask(Ask(text, text), self._spec.model, self._spec.endpoint)
        reply, _ = await self._post_request(body | {"max_tokens": 1}, remaining_s)
        if reply.status != 200:
            return None
        answer = read_answer(reply.body)
        return answer.prompt_tokens if answer is not None else None

    # ---- what follows

    def add_text_assessment(
        self, summary: BenchSummary, earlier: EarlierResult | None = None
    ) -> BenchSummary:
        """Return the summary of the load with the report on its text. What is wrong with the text
        is added as a reason why the result is invalid, as a mark or as a note. A summary without a
        text is returned as it is."""
        if summary.text is None:
            return summary
        requests, prompt, output = self.sent_request_and_token_counts
        probe = replace(
            summarize_probe(self._probed, self._why_probe_is_incomplete()),
            requests=requests,
            prompt_tokens=prompt,
            output_tokens=output,
        )
        findings = answer_verdict.worst_text_finding_per_code(
            (
                *assess_probe(
                    self._probed,
                    model=self._spec.model,
                    asks_sent_at_once=min(_MAX_ASKS_TOGETHER, self._spec.concurrency),
                    long_tokens=self._long_tokens,
                    why_nonsense_is_expected=self._nonsense,
                    short_answers=self._short,
                ),
                *answer_verdict.findings_about_load(
                    summary.text.load,
                    _summarize_asked_load(self._spec, summary, hides=self._is_reasoning_hidden),
                    probe,
                    why_nonsense_is_expected=self._nonsense,
                    earlier=earlier,
                ),
            )
        )
        report = TextReport(summary.text.load, probe, findings)
        return add_text_report(summary, report)

    @property
    def _is_reasoning_hidden(self) -> bool:
        return any(one.hides_reasoning for one in (*self._probed, *self._short))

    def _why_probe_is_incomplete(self) -> str:
        if self.skipped or not self._failures:
            return self.skipped
        total = len(self._failures) + len(self._probed)
        asked = count_of(len(self._failures), "prompt")
        return f"{asked} of {total} got no answer: {self._failures[0]}"


def add_text_report(summary: BenchSummary, report: TextReport) -> BenchSummary:
    """Return the summary with this report on its text, and with the findings in words."""
    by_level: dict[str, list[str]] = {str(level): [] for level in Level}
    for finding in report.findings:
        text = finding.text
        if finding.excerpt and finding.level != Level.INFO:
            text += f"; it said {finding.excerpt}"
        by_level[finding.level].append(text)
    notes = [*summary.notes, *by_level[Level.HINT], *by_level[Level.INFO]]
    probe = report.probe
    if probe is not None and probe.skipped:
        extent = "in full" if probe.places else "at all"
        notes.append(f"the text was not probed {extent}: {probe.skipped}")
    return replace(
        summary,
        text=report,
        refused=(*summary.refused, *by_level[Level.ERROR]),
        marked=(*summary.marked, *by_level[Level.WARN]),
        notes=tuple(notes),
    )


def _summarize_asked_load(
    spec: BenchSpec, summary: BenchSummary, *, hides: bool
) -> answer_verdict.AskedLoad:
    ok = summary.requests_ok
    own = spec.prompts[:ok]
    prompt_tokens = None
    if summary.prompt_tokens and ok:
        prompt_tokens = summary.prompt_tokens / ok
    return answer_verdict.AskedLoad(
        model=spec.model,
        prompt_characters=fmean(map(len, own)) if own else None,
        prompt_tokens=prompt_tokens,
        ends=not spec.extra_body.get("ignore_eos", spec.ignore_eos),
        hides_reasoning=hides,
    )


def _parse_reply(reply: Reply, prompt: str = "") -> Answer | None:
    """Return the answer in a reply, whether it was streamed or not. None if it contains none."""
    if reply.body is not None or not reply.text.lstrip().startswith(("data:", ":", "event:")):
        return read_answer(reply.body, prompt)
    decoder, streamed = SseDecoder(), StreamedReply()
    try:
        events = [*decoder.feed(reply.text.encode()), *decoder.close()]
    except SseError:
        return None
    streamed.feed(events, 0)
    if streamed.error is not None:
        return None
    text, _, characters = streamed.text.beginning_end_and_length()
    reasoning, _, thought = streamed.reasoning.beginning_end_and_length()
    if streamed.stamps_ns and not text and not reasoning:
        text = TOOL_CALL
    return Answer(
        text=text,
        reasoning=reasoning,
        characters=characters or len(text),
        reasoning_characters=thought,
        output_tokens=streamed.output_tokens,
        prompt_tokens=streamed.prompt_tokens,
        finish_reason=streamed.finish_reason,
        model=streamed.model if isinstance(streamed.model, str) else None,
        prompt=prompt,
    )


def _why_load_has_no_probe(spec: BenchSpec) -> str:
    """Return why a load has no probe; "" if it has one."""
    if spec.command:
        return "the load is a command of your own"
    if spec.endpoint == "embeddings":
        return "embeddings are no text"
    if spec.endpoint == "completions":
        return "a base model, as behind /v1/completions, need not follow or end"
    return ""


def _long_prompt_length_tokens(spec: BenchSpec) -> int:
    """Return the length of the long prompts in tokens: that of the load's own prompts, but with
    room for the probe's answer. 0 if the short prompts are as long."""
    wanted = spec.input_tokens
    if spec.prompts:
        wanted = int(max(map(len, spec.prompts)) / CHARACTERS_PER_TOKEN)
    wanted -= max(0, MAX_TOKENS - spec.max_tokens)
    return wanted if wanted >= _MIN_LONG_ASK_TOKENS else 0


def _synthetic_characters_per_token(spec: BenchSpec) -> float:
    """Return the characters per token of the load's synthetic prompts; a usual value if their
    length is not known."""
    if not spec.prompt_words or spec.prompts:
        return CHARACTERS_PER_TOKEN
    characters = (3.1 if spec.has_real_text else 5.5) * spec.prompt_words
    tokens = BLOCK_TOKENS if spec.trace else max(1, spec.input_tokens)
    return min(CHARACTERS_PER_TOKEN, characters / tokens)

"""The probe of a server's text around a benchmark: it sends the prompts of model/answer_probe.py
before the warm-up and after the last request, so that it never runs in the measured window."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
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
    Place,
    Probed,
    judge_probe,
    long_ask,
    probe_outcome,
    read_answer,
    request_body,
    short_asks,
    weights_without_language,
)
from workbench.model.answer_text import Answer, TextReport
from workbench.model.counts import count_of
from workbench.model.findings import Level

if TYPE_CHECKING:
    from workbench.model.answer_verdict import Earlier
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


class AbandonedRequests(NamedTuple):
    """Requests to which no answer came in time. The server may still work on them: `prompt_tokens`
    and `output_tokens` are the most that it may count for them."""

    requests: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0

    def add_request(self, body: Mapping[str, Any]) -> AbandonedRequests:
        tokens = body.get("max_tokens") or body.get("max_completion_tokens") or 0
        return AbandonedRequests(
            self.requests + 1,
            self.prompt_tokens + len(json.dumps(body, ensure_ascii=False)),
            self.output_tokens + tokens,
        )


def why_nonsense_is_expected(spec: BenchSpec, plan: LaunchPlan | None) -> str:
    """Return why the text of a server's model need not be language; "" if it must be."""
    if spec.random_weights:
        return "its weights are random (--random-weights)"
    return weights_without_language(plan) if plan is not None else ""


class TextProbe:
    """The probe of one benchmark. `probe_before_load` and `probe_after_load` send its prompts, and
    `judge_text` says what follows. `client` sends the requests. `count` counts the tokens of a
    prompt with the server's tokenizer; None if that is not known. `skipped` is the reason why there
    is no probe, or why a part of it is missing."""

    def __init__(self, client: AnswerClient, spec: BenchSpec, nonsense: str = "") -> None:
        self._client, self._spec, self._nonsense = client, spec, nonsense
        self._probed: list[Probed] = []
        self._short: list[Probed] = []  # answers of SHORT_TOKENS tokens
        self._failures: list[str] = []
        self._sent: list[tuple[int | None, int | None]] = []  # prompt and output tokens
        self.given_up = AbandonedRequests()
        self._tokens = MAX_TOKENS
        self._long_tokens = 0
        self.skipped = _why_no_probe(spec)

    @property
    def sent_counts(self) -> tuple[int, int | None, int | None]:
        """The numbers of requests, prompt tokens and output tokens of the probe. A number of tokens
        is None if the server does not report it."""
        prompt, output = zip(*self._sent, strict=True) if self._sent else ((), ())
        return len(self._sent), _total_or_none(prompt), _total_or_none(output)

    async def probe_before_load(self, spec: BenchSpec, count: CountTokens | None = None) -> None:
        """Send the part before the load. `spec` is the load, with the length of its prompts."""
        self._spec = spec
        if self.skipped:
            return
        until = time.monotonic() + PROBE_PART_S
        self._long_tokens = _long_prompt_tokens(spec)
        await self._find_answer_length(until)
        await self._probe_one_part(short_asks(_ASKS_ALONE_BEFORE), until, after=False)
        await self._recount_tokens(count, until)

    async def probe_after_load(self) -> None:
        """Send the part after the load."""
        if self.skipped or not self._probed:
            return
        asks = short_asks(_ASKS_ALONE_BEFORE + _ASKS_ALONE_AFTER)[_ASKS_ALONE_BEFORE:]
        await self._probe_one_part(asks, time.monotonic() + PROBE_PART_S, after=True)

    async def _find_answer_length(self, until: float) -> None:
        """Let the answers be longer if an engine shows no text before the reasoning has ended."""
        first = await self._send_ask(short_asks(1)[0], until - time.monotonic())
        if first is not None and first.hides_reasoning:
            self._tokens = _REASONING_TOKENS
            self._short.append(first)

    async def _probe_one_part(self, alone: Sequence[Ask], until: float, *, after: bool) -> None:
        for ask in alone:
            await self._ask_together([ask], until, after)
        together = min(_MAX_ASKS_TOGETHER, self._spec.concurrency)
        if together > 1:
            await self._ask_together(short_asks(together, Place.TOGETHER), until, after)
        if self._long_tokens:
            per_token = _characters_per_token(self._spec)
            long = [long_ask(self._long_tokens, n, per_token) for n in range(_LONG_ASKS)]
            await self._ask_together(long, until, after)

    async def _ask_together(self, asks: Sequence[Ask], until: float, after: bool) -> None:
        """Send prompts at once, and keep the answers that come in time."""
        left_s = until - time.monotonic()
        if left_s <= 0:
            self._failures += [f"the probe has {PROBE_PART_S:.0f} s"] * len(asks)
            return
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._send_ask(ask, left_s)) for ask in asks]
        answered = [task.result() for task in tasks]
        self._probed += [replace(one, after=after) for one in answered if one is not None]

    async def _send_ask(self, ask: Ask, left_s: float, tokens: int | None = None) -> Probed | None:
        own = {k: v for k, v in self._spec.extra_body.items() if k not in _NO_OWN_FIELDS}
        asked = request_body(ask, self._spec.model, self._spec.endpoint)
        body = own | asked | {"max_tokens": tokens or self._tokens}
        if self._spec.stream and ask.place is Place.TOGETHER:  # as the load's answers come
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        reply, answer = await self._post_request(body, left_s, ask.prompt)
        if reply.status in (400, 422):  # a few servers accept none of these fields
            del body["temperature"]
            body.pop("stream_options", None)
            body["stream"] = False
            body["max_completion_tokens"] = body.pop("max_tokens")
            reply, answer = await self._post_request(body, left_s, ask.prompt)
        if answer is None or reply.status != 200:
            self._failures.append(reply.problem or f"HTTP status {reply.status}")
            return None
        return Probed(ask, answer, invalid_utf8=reply.invalid_utf8)

    async def _post_request(
        self, body: Mapping[str, Any], left_s: float, prompt: str = ""
    ) -> tuple[Reply, Answer | None]:
        reply = await self._client.post(body, max(0.1, left_s))
        if reply.late:
            self.given_up = self.given_up.add_request(body)
        answer = _answer_in(reply, prompt)
        self._sent.append((answer.prompt_tokens, answer.output_tokens) if answer else (None, None))
        return reply, answer

    # ---- the tokens of the answers, counted again

    async def _recount_tokens(self, count: CountTokens | None, until: float) -> None:
        """CountTokens the tokens of some answers with the server's tokenizer, or by the usage of a prompt
        that contains the answer."""
        long_enough = [
            place
            for place, one in enumerate(self._probed)
            if (one.answer.output_tokens or 0) >= _MIN_RECOUNTED_TOKENS and not one.defect
        ]
        for place in long_enough[:_RECOUNTED_ANSWERS_PER_LENGTH]:
            if until <= time.monotonic():
                return
            self._probed[place] = await self._recount_answer(self._probed[place], count, until)
        if any(one.recounted is not None for one in self._probed) and not self._short:
            await self._recount_short_answers(count, until)

    async def _recount_short_answers(self, count: CountTokens | None, until: float) -> None:
        """Ask for answers of a second length, and count their tokens again: hidden marks are about
        as many in short answers as in long ones."""
        left_s = until - time.monotonic()
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._send_ask(ask, left_s, SHORT_TOKENS))
                for ask in short_asks(_RECOUNTED_ANSWERS_PER_LENGTH)
            ]
        for one in [task.result() for task in tasks]:
            if one is None or until <= time.monotonic():
                continue
            if one.answer.is_empty:
                self._short.append(one)
            else:
                self._short.append(await self._recount_answer(one, count, until))

    async def _recount_answer(self, one: Probed, count: CountTokens | None, until: float) -> Probed:
        left_s = until - time.monotonic()
        return replace(
            one, recounted=await self._count_tokens_of(one.answer.all_text, count, left_s)
        )

    async def _count_tokens_of(
        self, text: str, count: CountTokens | None, left_s: float
    ) -> int | None:
        if count is not None and (tokens := await count({"prompt": text})) is not None:
            return tokens
        asked = ("a", f"a {text}", f"a {text} {text}")
        empty, once, twice = [await self._count_prompt_tokens(one, left_s) for one in asked]
        if empty is None or once is None or twice is None:
            return None
        # If twice the text is not about twice as long, the server cuts prompts or invents usage.
        tokens = once - empty
        if tokens <= 0:
            return None
        return tokens if twice - once >= _SECOND_TIME * tokens else None

    async def _count_prompt_tokens(self, text: str, left_s: float) -> int | None:
        body = request_body(Ask(text, text), self._spec.model, self._spec.endpoint)
        reply, _ = await self._post_request(body | {"max_tokens": 1}, left_s)
        read = read_answer(reply.body) if reply.status == 200 else None
        return read.prompt_tokens if read is not None else None

    # ---- what follows

    def judge_text(self, summary: BenchSummary, earlier: Earlier | None = None) -> BenchSummary:
        """Return the summary of the load with the report on its text, and with what is wrong with
        the text as reasons why the result is invalid, as marks, or as notes."""
        if summary.text is None:
            return summary
        requests, prompt, output = self.sent_counts
        probe = replace(
            probe_outcome(self._probed, self._why_incomplete()),
            requests=requests,
            prompt_tokens=prompt,
            output_tokens=output,
        )
        findings = answer_verdict.findings_to_store(
            (
                *judge_probe(
                    self._probed,
                    model=self._spec.model,
                    together=min(_MAX_ASKS_TOGETHER, self._spec.concurrency),
                    long_tokens=self._long_tokens,
                    nonsense_expected=self._nonsense,
                    short=self._short,
                ),
                *answer_verdict.load_findings(
                    summary.text.load,
                    _asked_of_load(self._spec, summary, hides=self._hides_reasoning),
                    probe,
                    nonsense_expected=self._nonsense,
                    earlier=earlier,
                ),
            )
        )
        report = TextReport(summary.text.load, probe, findings)
        return add_text_report(summary, report)

    @property
    def _hides_reasoning(self) -> bool:
        return any(one.hides_reasoning for one in (*self._probed, *self._short))

    def _why_incomplete(self) -> str:
        if self.skipped or not self._failures:
            return self.skipped
        total = len(self._failures) + len(self._probed)
        asked = count_of(len(self._failures), "prompt")
        return f"{asked} of {total} got no answer: {self._failures[0]}"


def add_text_report(summary: BenchSummary, report: TextReport) -> BenchSummary:
    """Return the summary with this report on its text, and with the findings in words."""
    by_level: dict[str, list[str]] = {str(level): [] for level in Level}
    for one in report.findings:
        shown = f"; it said {one.excerpt}" if one.excerpt and one.level != Level.INFO else ""
        by_level[one.level].append(f"{one.text}{shown}")
    skipped = report.probe.skipped if report.probe is not None else ""
    whole = "in full" if report.probe is not None and report.probe.places else "at all"
    notes = [f"the text was not probed {whole}: {skipped}"] if skipped else []
    return replace(
        summary,
        text=report,
        refused=(*summary.refused, *by_level[Level.ERROR]),
        marked=(*summary.marked, *by_level[Level.WARN]),
        notes=(*summary.notes, *by_level[Level.HINT], *by_level[Level.INFO], *notes),
    )


def _asked_of_load(spec: BenchSpec, summary: BenchSummary, *, hides: bool) -> answer_verdict.Asked:
    own = spec.prompts[: summary.requests_ok]
    ok = summary.requests_ok
    return answer_verdict.Asked(
        model=spec.model,
        prompt_characters=sum(map(len, own)) / len(own) if own else None,
        prompt_tokens=summary.prompt_tokens / ok if summary.prompt_tokens and ok else None,
        ends=not spec.extra_body.get("ignore_eos", spec.ignore_eos),
        hides_reasoning=hides,
    )


def _answer_in(reply: Reply, prompt: str = "") -> Answer | None:
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


def _why_no_probe(spec: BenchSpec) -> str:
    """Return why a load has no probe; "" if it has one."""
    if spec.command:
        return "the load is a command of your own"
    if spec.endpoint == "embeddings":
        return "embeddings are no text"
    if spec.endpoint == "completions":
        return "a base model, as behind /v1/completions, need not follow or end"
    return ""


def _long_prompt_tokens(spec: BenchSpec) -> int:
    """Return the length of the long prompts in tokens: that of the load's own prompts, but with
    room for the probe's answer. 0 if the short prompts are as long."""
    own = [int(len(one) / CHARACTERS_PER_TOKEN) for one in spec.prompts]
    wanted = max(own, default=spec.input_tokens)
    wanted -= max(0, MAX_TOKENS - spec.max_tokens)
    return wanted if wanted >= _MIN_LONG_ASK_TOKENS else 0


def _characters_per_token(spec: BenchSpec) -> float:
    """Return the characters per token of the load's synthetic prompts, if their length is known."""
    if not spec.prompt_words or spec.prompts:
        return CHARACTERS_PER_TOKEN
    characters = (3.1 if spec.has_real_text else 5.5) * spec.prompt_words
    tokens = BLOCK_TOKENS if spec.trace else max(1, spec.input_tokens)
    return min(CHARACTERS_PER_TOKEN, characters / tokens)


def _total_or_none(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None

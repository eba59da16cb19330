"""Asks a server the prompts of the probe, after its start or when the user asks, and judges what
comes back.

A server that returns tokens may return garbage: health, status 200 and usage say nothing about the
text. So the text is the proof: one prompt alone, then eight at once, because some kernels break
only in a batch. These answers are short. If the server is not slow, four longer ones follow at
once: words without spaces, few words, and garbage after a good beginning show only in these. An
embedding server is probed for vectors.

The first answer may take minutes, because the first forward pass compiles kernels. All that follows
has a time limit together. An answer that does not come in that time is not judged: a slow server,
or one that is busy with the requests of other people, is not a broken one. Neither is a server
whose context is too short for the prompts.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import math
import re
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from workbench.model import answer_probe
from workbench.model.answer_probe import Ask, Probed, ProbePart
from workbench.model.answer_text import answer_excerpt
from workbench.model.findings import Finding, Level
from workbench.model.lazy_dataclass import dataclass
from workbench.model.server_run import ServedText
from workbench.model.untrusted_text import as_list, as_table
from workbench.server.small_requests import AskPath as AskServer
from workbench.server.small_requests import Reply, error_message_of

PROMPTS_TOGETHER = 8
SHORT_ANSWER_TOKENS = 16  # of an answer: enough to see a loop, and quick on a slow host
LONGER_ANSWERS, LONGER_TOKENS = 4, answer_probe.MAX_TOKENS
MORE_LONGER_ANSWERS = 8  # longer answers, of a model that does not follow
LONGER_ANSWERS_S = 2.0  # that the longer answers may take, by the pace of the short ones
REASONING_TOKENS = 256  # if an engine shows no text before the reasoning has ended
OTHER_PROMPTS_TIMEOUT_S = 20.0  # for all requests after the first answer

CHAT, COMPLETIONS, EMBEDDINGS = "chat", "completions", "embeddings"
PATH_OF_INTERFACE = {
    CHAT: "/v1/chat/completions",
    COMPLETIONS: "/v1/completions",
    EMBEDDINGS: "/v1/embeddings",
}
_BUSY_STATUSES = (429, 503)  # too many requests, overloaded
_TOO_LONG_REASON = "the text is not judged: the server's context is too short for the prompts ({})"
VECTOR_CODE = "text.vector"
FAILED_TOGETHER_CODE = "text.failed-together"


@dataclass(frozen=True, slots=True)
class Probe:
    """The outcome of a probe: what the server answered, or `reason`, why it answered no request."""

    text: ServedText | None = None
    reason: str | None = None


async def probe_text(
    ask_server: AskServer,
    model: str,
    *,
    first_timeout_s: float,
    too_long_pattern: re.Pattern[str],
    why_nonsense_is_expected: str = "",
) -> Probe:
    """Ask the server for text, or for vectors if it generates none, and judge the answers: a chat
    completion is tried first, then a plain completion, then an embedding. `first_timeout_s` is the
    time limit of the first answer. `too_long_pattern` matches the server's refusal of a request
    that is longer than its context. `why_nonsense_is_expected` says why the text need not be
    language, "" if it must be. Never raises for what the server answers."""
    reasons = []
    for endpoint in PATH_OF_INTERFACE:
        asker = _Asker(ask_server, model, endpoint, too_long_pattern)
        reply, first = await asker.send_first_prompt(first_timeout_s)
        if first is not None:
            await asker.send_other_prompts(first)
            return Probe(asker.assess_answers(why_nonsense_is_expected))
        if asker.was_request_too_long(reply):
            return Probe(
                ServedText(endpoint, 0, unjudged=_TOO_LONG_REASON.format(_why_no_answer(reply)))
            )
        reasons.append(
            f"{PATH_OF_INTERFACE[endpoint]} returned no answer ({_why_no_answer(reply)})"
        )
        if _is_unavailable(reply):
            break  # another endpoint of the same server would not answer either
    return Probe(reason="; ".join(reasons))


@dataclass(frozen=True, slots=True)
class Vector:
    """The vector that an embedding server returned for one prompt."""

    ask: Ask
    numbers: tuple[float, ...]

    @property
    def defect(self) -> str:
        """What is wrong with the vector, as the end of a sentence; "" if nothing is."""
        if not self.numbers:
            return "has no numbers"
        if not all(map(math.isfinite, self.numbers)):
            return "contains numbers that are not finite"
        if any(self.numbers):
            return ""
        return "contains only zeros"

    @property
    def excerpt(self) -> str:
        shown = ", ".join(f"{number:.4g}" for number in self.numbers[:3])
        return f"[{shown}, …] ({len(self.numbers)} numbers)"


ProbeAnswer = Probed | Vector


class _Asker:
    """Sends the requests of one probe to one endpoint, and keeps the answers."""

    def __init__(
        self, ask_server: AskServer, model: str, endpoint: str, too_long: re.Pattern[str]
    ) -> None:
        self._ask_server, self._model, self._endpoint = ask_server, model, endpoint
        self._too_long = too_long
        self._tokens = SHORT_ANSWER_TOKENS
        alone, again, *others = answer_probe.make_short_asks(
            2 + PROMPTS_TOGETHER + LONGER_ANSWERS + MORE_LONGER_ANSWERS
        )
        self._alone, self._again = alone, again
        self._together = [
            replace(ask, part=ProbePart.TOGETHER) for ask in others[:PROMPTS_TOGETHER]
        ]
        longer = [replace(ask, part=ProbePart.LONGER) for ask in others[PROMPTS_TOGETHER:]]
        self._longer, self._more = longer[:LONGER_ANSWERS], longer[LONGER_ANSWERS:]
        self._answers: list[ProbeAnswer] = []
        self._failed: list[Reply] = []

    async def send_first_prompt(self, timeout_s: float) -> tuple[Reply, ProbeAnswer | None]:
        """Send the prompt that is sent alone. Return (reply, answer in it; None if it has none)."""
        return await self._send(self._alone, timeout_s)

    async def send_other_prompts(self, first: ProbeAnswer) -> None:
        """Send the other prompts, and keep `first`, the answer to the first prompt, and all that
        come in time."""
        alone = []
        if _may_end_within_reasoning(first):
            self._tokens = REASONING_TOKENS
            alone = [self._alone]
        else:
            self._answers.append(first)
            if first.defect:  # one odd answer may be chance
                alone = [self._again]
        try:
            async with asyncio.timeout(OTHER_PROMPTS_TIMEOUT_S):
                for ask in alone:
                    await self._send_and_store(ask)
                began = time.monotonic()
                await asyncio.gather(*map(self._send_and_store, self._together))
                if self._has_time_for_longer_answers(time.monotonic() - began):
                    self._tokens = LONGER_TOKENS
                    await asyncio.gather(*map(self._send_and_store, self._longer))
                    if self._most_answers_lack_code_word():
                        await asyncio.gather(*map(self._send_and_store, self._more))
        except TimeoutError:
            pass  # the answers that did not come are not judged

    def _has_time_for_longer_answers(self, short_s: float) -> bool:
        """Return whether longer answers would come within LONGER_ANSWERS_S, by the seconds
        `short_s` of the short ones. False if they would show nothing: for vectors, with hidden
        reasoning, after a failure, and if all answers have a defect."""
        if self._endpoint == EMBEDDINGS or self._tokens != SHORT_ANSWER_TOKENS:
            return False
        if self._failed or not self._answers:
            return False
        if short_s * LONGER_TOKENS / SHORT_ANSWER_TOKENS > LONGER_ANSWERS_S:
            return False
        return not all(one.defect for one in self._answers)

    def _most_answers_lack_code_word(self) -> bool:
        """Return whether most answers lack the code word that they were asked to repeat. False
        after a failed request."""
        lost = [one for one in self._received_answers if not one.repeats_code_word]
        return not self._failed and 2 * len(lost) > len(self._answers)

    async def _send_and_store(self, ask: Ask) -> None:
        reply, answered = await self._send(ask, OTHER_PROMPTS_TIMEOUT_S)
        if answered is not None:
            self._answers.append(answered)
        elif self._is_failure(reply):
            self._failed.append(reply)

    async def _send(self, ask: Ask, timeout_s: float) -> tuple[Reply, ProbeAnswer | None]:
        path = PATH_OF_INTERFACE[self._endpoint]
        reply = await self._ask_server(path, self._request_body(ask), timeout_s)
        if reply.status != 200:
            return reply, None
        if self._endpoint == EMBEDDINGS:
            numbers = _parse_vector(reply.body)
            return reply, None if numbers is None else Vector(ask, numbers)
        answer = answer_probe.read_answer(reply.body, ask.prompt)
        if answer is None:
            return reply, None
        return reply, Probed(ask, answer, invalid_utf8=reply.invalid_utf8)

    @property
    def _received_answers(self) -> list[Probed]:
        return [one for one in self._answers if isinstance(one, Probed)]

    def was_request_too_long(self, reply: Reply) -> bool:
        """Return whether the server refused a request because its context is too short for it."""
        if reply.status in (None, 200):
            return False
        return self._too_long.search(_why_no_answer(reply)) is not None

    def _is_failure(self, reply: Reply) -> bool:
        """Return whether a reply without an answer is a fault of the server."""
        return not _is_unavailable(reply) and not self.was_request_too_long(reply)

    def _request_body(self, ask: Ask) -> dict[str, Any]:
        if self._endpoint == EMBEDDINGS:
            return {"model": self._model, "input": ask.prompt}
        body = answer_probe.request_body_of_ask(ask, self._model, self._endpoint)
        return {**body, "max_tokens": self._tokens}

    def assess_answers(self, why_nonsense_is_expected: str) -> ServedText:
        """Return what the answers say about the server's text. `why_nonsense_is_expected` says why
        it need not be language, "" if it must be."""
        found = [*self._failure_findings(), *self._assess_text(why_nonsense_is_expected)]
        problem = next((one for one in found if one.is_error), None)
        notes = (one.text for one in found if not one.is_error)
        text = ServedText(
            self._endpoint,
            len(self._answers),
            excerpt=self._excerpt(),
            notes=tuple(notes),
            unjudged=self._why_not_fully_assessed(),
        )
        if problem is None:
            return text
        excerpt = problem.evidence or text.excerpt
        return replace(text, excerpt=excerpt, problem=problem.text, code=problem.code)

    def _assess_text(self, why_nonsense_is_expected: str) -> Sequence[Finding]:
        vectors = [one for one in self._answers if isinstance(one, Vector)]
        if vectors:
            return _vector_findings(vectors)
        return answer_probe.assess_probe(
            self._received_answers,
            model=self._model,
            asks_sent_at_once=PROMPTS_TOGETHER,
            why_nonsense_is_expected=why_nonsense_is_expected,
        )

    def _failure_findings(self) -> Iterator[Finding]:
        if self._failed:
            why = _why_no_answer(self._failed[0])
            text = (
                f"failures under load: {len(self._failed)} of {PROMPTS_TOGETHER} requests that were sent at "
                f"once failed, although one alone was answered ({why})"
            )
            yield Finding(Level.ERROR, FAILED_TOGETHER_CODE, text)

    def _excerpt(self) -> str:
        if not self._answers:
            return ""
        first = self._answers[0]
        return first.excerpt if isinstance(first, Vector) else answer_excerpt(first.answer)

    def _why_not_fully_assessed(self) -> str:
        if not self._answers:
            return f"the model gave no text within {REASONING_TOKENS} tokens and {OTHER_PROMPTS_TIMEOUT_S:.0f} s"
        came = sum(one.ask.part is ProbePart.TOGETHER for one in self._answers)
        missing = PROMPTS_TOGETHER - came - len(self._failed)
        if missing <= 0:
            return ""
        return (
            f"{missing} of {PROMPTS_TOGETHER} requests that were sent at once were refused or had no answer "
            f"within {OTHER_PROMPTS_TIMEOUT_S:.0f} s, so the text under load is not judged in full"
        )


def _is_unavailable(reply: Reply) -> bool:
    """Return whether the server did not answer, or is busy."""
    return reply.status is None or reply.status in _BUSY_STATUSES


def _may_end_within_reasoning(answered: ProbeAnswer) -> bool:
    """Return whether an answer is empty because it was cut: some engines show no text before the
    reasoning has ended."""
    if isinstance(answered, Vector):
        return False
    answer = answered.answer
    return answer.is_empty and answer.finish_reason == "length"


def _vector_findings(vectors: Sequence[Vector]) -> list[Finding]:
    broken = [one for one in vectors if one.defect]
    if broken:
        first = broken[0]
        text = f"broken vectors: {len(broken)} of {len(vectors)}; one {first.defect}"
        return [Finding(Level.ERROR, VECTOR_CODE, text, evidence=first.excerpt)]
    if len(vectors) > 1 and len({one.numbers for one in vectors}) == 1:
        text = f"equal vectors: {len(vectors)} different texts have the same one"
        return [Finding(Level.ERROR, VECTOR_CODE, text, evidence=vectors[0].excerpt)]
    return []


def _parse_vector(body: Any) -> tuple[float, ...] | None:
    """Return the vector in `body`, the JSON of /v1/embeddings: a list of numbers, or base64. A
    member that is no number becomes NaN. None if it has no vector."""
    entry = next(iter(as_list(as_table(body).get("data"))), None)
    vector = as_table(entry).get("embedding")
    if isinstance(vector, str):
        try:
            packed = base64.b64decode(vector, validate=True)
            return tuple(one for (one,) in struct.iter_unpack("<f", packed))
        except (binascii.Error, struct.error):
            return None
    if not isinstance(vector, list):
        return None
    return tuple(_to_float(one) for one in vector)


def _to_float(value: Any) -> float:
    if type(value) not in (int, float):  # a bool is an int
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _why_no_answer(reply: Reply) -> str:
    if reply.status is None:
        return reply.problem
    return f"{reply.status}: {error_message_of(reply.cleaned_json_or_short_text)}"

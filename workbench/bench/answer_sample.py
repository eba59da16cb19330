"""A sample of the answers of a run, evenly spread over it, for the examination of their text."""

from __future__ import annotations

from workbench.bench.records import RequestRecord
from workbench.bench.reply import Reply
from workbench.model.answer_text import Answer

MAX_SAMPLED_ANSWERS = 64  # of a run; their features take about 50 ms, after the last answer


class AnswerSample:
    """Keeps at most `limit` of the answers that it gets, evenly spread over them."""

    def __init__(self, limit: int = MAX_SAMPLED_ANSWERS) -> None:
        self.seen = 0
        self._limit, self._step = max(2, limit), 1
        self._kept: list[tuple[RequestRecord, Reply, str]] = []

    @property
    def is_next_answer_sampled(self) -> bool:
        """Whether the next answer is kept. If it is not, count it with `count_unsampled_answer` in
        place of `add_answer`."""
        return self.seen % self._step == 0

    def count_unsampled_answer(self) -> None:
        self.seen += 1

    def add_answer(self, record: RequestRecord, reply: Reply, prompt: str) -> None:
        """Count the answer to a request, and keep it if it is sampled. `prompt` identifies its
        prompt (`Answer.prompt`)."""
        if self.is_next_answer_sampled:
            self._kept.append((record, reply, prompt))
            if len(self._kept) > self._limit:
                del self._kept[1::2]
                self._step *= 2
        self.seen += 1

    def sampled_answers(self) -> tuple[Answer, ...]:
        """Return the sampled answers in the order in which they came."""
        return tuple(_answer_from_reply(*one) for one in self._kept)


def _answer_from_reply(record: RequestRecord, reply: Reply, prompt: str) -> Answer:
    text, end, characters = reply.text.beginning_end_and_length()
    reasoning, reasoning_end, reasoning_characters = reply.reasoning.beginning_end_and_length()
    return Answer(
        text=text,
        reasoning=reasoning,
        end=end if text else reasoning_end,
        characters=characters,
        reasoning_characters=reasoning_characters,
        output_tokens=record.output_tokens,
        prompt_tokens=record.prompt_tokens,
        finish_reason=record.finish_reason,
        model=reply.model if isinstance(reply.model, str) else None,
        prompt=prompt,
    )

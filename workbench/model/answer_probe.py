"""A probe of a server's text: a few fixed prompts, and what their answers say.

A benchmark's own prompts cannot prove that the text is right: with `ignore_eos` a healthy model has
to go on after its answer, and loops. The probe's prompts have an answer of their own length. Each
asks for a code word, which differs from prompt to prompt, and for a few sentences about something.
So an answer shows four things without knowledge of the model: whether it is language
(answer_text.py), whether it answers this prompt and not another one, whether the usage matches the
text, and, if the code word stands in front of a long text, whether the whole prompt was read.

`make_short_asks` and `make_long_ask` make the prompts, `request_body_of_ask` the body of a request
that is not streamed, `read_answer` reads the reply, and `assess_probe` compares the answers. A
caller sends the requests: alone, several at once, and at the length of its own prompts.

What a random or tiny model must not be blamed for, `assess_probe` cannot know: the caller passes
`why_nonsense_is_expected`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING, Any

from workbench.model.answer_text import PROMPT_CUT as PROMPT_CUT
from workbench.model.answer_text import USAGE as USAGE
from workbench.model.answer_text import (
    Answer,
    ProbeOutcome,
    ProbePartOutcome,
    answer_excerpt,
    characters_per_token,
    find_equal_answers,
    text_features,
)
from workbench.model.answer_usage import (
    TokenCounts,
    is_reported_usage_plausible,
    reported_tokens_per_real_token,
)
from workbench.model.answer_words import (
    are_nearly_equal,
    find_chat_template_mark,
    has_enough_letters,
    texts_begin_alike,
    why_spaces_are_missing,
    why_text_is_spelled_out,
    why_words_are_doubled,
    why_words_are_unordered,
    why_words_are_unrelated,
)
from workbench.model.findings import Finding, Level, error_if_certain
from workbench.model.lazy_dataclass import dataclass
from workbench.model.untrusted_text import NAME_CHARS, as_list, as_table, clean_text

if TYPE_CHECKING:
    from workbench.model.plan import LaunchPlan

MAX_TOKENS = 64  # of an answer
SHORT_TOKENS = 16  # of a short answer, to compare its usage with that of a long one
TEMPERATURE = 0.7  # at 0, even a healthy small model repeats itself

DEGENERATE = "text.degenerate"
EMPTY = "text.empty"
REASONING_ONLY = "text.reasoning-only"
OTHER_MODEL = "text.other-model"
MIXED_UP = "text.mixed-up"
NOT_FOLLOWED = "text.not-followed"
FINISH = "text.finish-reason"
ECHO = "text.echo"
TEMPLATE = "text.template"
DISORDER = "text.disorder"

TOOL_CALL = "(tool call)"  # the text of an answer that has only tool calls

_WORDS = (
    "maple copper lantern harbor velvet falcon pepper saddle marble tunnel ribbon walnut anchor "
    "candle meadow basket"
)
_TOPICS = (
    "how rivers shape valleys",
    "why bread rises",
    "what bees do in winter",
    "how a sail moves a boat",
    "why the sky is blue",
    "how letters were printed",
    "what a compass shows",
    "how glass is made",
)
CODE_WORDS = tuple(_WORDS.split())

# plain sentences with no code word in them; a tokenizer makes about one token of each word
_FILLER = (
    "The train left the station early in the morning, and nobody on the platform looked at the "
    "clock.",
    "A farmer counted his sheep twice and wrote the number into a small book.",
    "Rain had fallen for three days, so the path along the lake was soft and slow to walk.",
    "In the library, a student copied a long list of names from an old newspaper.",
    "The cook put the pan on the stove and waited until the butter was brown.",
    "Two children built a bridge of planks over the ditch behind their house.",
)
CHARACTERS_PER_TOKEN = 4.5  # of English, about

_RANDOM_WEIGHTS = "dummy"  # of the flag load-format, in vLLM and SGLang
_TINY_BYTES = 100e6  # of weights; such a model has not learned a language well
_LEAST_ANSWERS = 2  # one odd answer may be chance
_SOME, _MOST = 0.1, 0.5
_ECHO = "First repeat the code word, then"
_ECHOED = 60  # characters of a prompt: more than a model repeats that follows it
_BESIDE_ECHO = 0.25  # of an answer: marks such as "user" around the prompt
# Broken answers that are spread over all places; of language, one in 2,000 looks broken.
_LEAST_SPREAD, _SPREAD_SHARE = 3, 0.08
_CANDIDATES = 3  # answers that all others are compared with
_SURE_ANSWERS = 6  # right ones, before a model is believed to be able to answer
_BEGINNING = 60  # characters of an answer
_USAGE_LEAST = 24  # tokens of an answer whose usage is judged
# A tokenizer without letters of a script makes a token of each byte, up to four for a character.
_MOST_CHARACTERS_PER_TOKEN, _LEAST_BYTES_PER_TOKEN = 12.0, 0.4
_RELIABLE_LENGTH = 8_192  # tokens; beyond it, healthy models too forget what stood in front
_NAMED = 3  # models in a message
_TELLING_NAME = 4  # characters: a shorter name is part of many others
_KEPT_PROMPT = 0.6  # least share of a prompt's words that must be in the usage


class ProbePart(StrEnum):
    """A part of the probe: asks that were sent alone, several at once, for longer answers, or with
    a long prompt."""

    ALONE = "alone"
    TOGETHER = "together"
    LONGER = "longer"
    LONG = "long"


@dataclass(frozen=True, slots=True)
class Ask:
    """One prompt of the probe. `word` is the code word that the answer must contain. `count_words`
    is the least number of tokens that the prompt can have."""

    prompt: str
    word: str
    part: ProbePart = ProbePart.ALONE

    @property
    def count_words(self) -> int:
        return len(self.prompt.split())


def why_weights_may_lack_language(plan: LaunchPlan) -> str:
    """Return why the plan's weights need not produce language; "" if no reason is known."""
    if plan.flag("load-format") == _RANDOM_WEIGHTS:
        return "its weights are random (load-format dummy)"
    if plan.model_facts is None:
        return ""
    size = plan.model_facts.weight_bytes
    if size is not None and size < _TINY_BYTES:
        return f"its weights have only {size / 1e6:.0f} MB"
    return ""


def make_short_asks(count: int, part: ProbePart = ProbePart.ALONE) -> tuple[Ask, ...]:
    """Return `count` short asks of this part of the probe. The same count gives the same prompts.
    If there are more asks than code words, the words come again with another topic, so no two of
    the first 128 prompts are equal."""
    asks = []
    for i in range(count):
        word = CODE_WORDS[i % len(CODE_WORDS)]
        topic = _TOPICS[(i + i // len(CODE_WORDS)) % len(_TOPICS)]
        asks.append(Ask(f"The code word is {word}. {_instruction_about_topic(topic)}", word, part))
    return tuple(asks)


def make_long_ask(
    tokens: int, number: int = 0, characters_per_token: float = CHARACTERS_PER_TOKEN
) -> Ask:
    """Return an ask whose prompt has about `tokens` tokens: the code word, a long text, and the
    question. `number` selects the code word and the topic."""
    word = CODE_WORDS[-1 - number % len(CODE_WORDS)]
    front = f"Remember this: the code word is {word}. Here is a text that does not matter.\n"
    task = _instruction_about_topic(_TOPICS[number % len(_TOPICS)])
    question = f"\nThe text has ended. What was the code word at the very beginning? {task}"
    wanted = tokens * characters_per_token - len(front) - len(question)
    sentences: list[str] = []
    size = 0
    while size < wanted:
        sentences.append(_FILLER[(number + len(sentences)) % len(_FILLER)])
        size += len(sentences[-1]) + 1
    return Ask(f"{front}{' '.join(sentences)}{question}", word, ProbePart.LONG)


def _instruction_about_topic(topic: str) -> str:
    return f"{_ECHO} explain in two or three sentences {topic}."


def request_body_of_ask(ask: Ask, model: str, endpoint: str = "chat") -> dict[str, Any]:
    """Return the JSON body of a request for the answer to `ask`. `endpoint` is "chat" or
    "completions"."""
    if endpoint == "chat":
        prompt: dict[str, Any] = {"messages": [{"role": "user", "content": ask.prompt}]}
    else:
        prompt = {"prompt": f"Question: {ask.prompt}\nAnswer: The code word is"}
    return {
        "model": model,
        **prompt,
        "max_tokens": MAX_TOKENS,
        "temperature": TEMPERATURE,
        "stream": False,
    }


def read_answer(body: Any, prompt: str = "") -> Answer | None:
    """Return the answer in the body of a reply of /v1/chat/completions or /v1/completions that is
    not streamed. None if the body is no such reply. `prompt` becomes `Answer.prompt`."""
    choice = next(iter(as_list(as_table(body).get("choices"))), None)
    if not isinstance(choice, dict):
        return None
    message = choice.get("message")
    if not isinstance(message, dict):
        message = choice
    text = _first_text_field(message, "content", "text", "refusal")
    if not text and (message.get("tool_calls") or message.get("function_call")):
        text = TOOL_CALL
    usage = body.get("usage")
    return Answer(
        text=text,
        reasoning=_first_text_field(message, "reasoning_content", "reasoning"),
        output_tokens=_token_count(usage, "completion_tokens"),
        prompt_tokens=_token_count(usage, "prompt_tokens"),
        finish_reason=_clean_name_or_none(choice.get("finish_reason")),
        model=_clean_name_or_none(body.get("model")),
        prompt=prompt,
    )


def _first_text_field(message: Mapping[str, Any], *names: str) -> str:
    """Return the first of the fields `names` that is a text and not empty, else ""."""
    for name in names:
        text = message.get(name)
        if isinstance(text, str) and text:
            return text
    return ""


def _token_count(usage: Any, name: str) -> int | None:
    value = as_table(usage).get(name)
    if type(value) is not int or value < 0:
        return None
    return value


def _clean_name_or_none(value: Any) -> str | None:
    if not isinstance(value, str) or not value:
        return None
    return clean_text(value, NAME_CHARS)


# -- the judge -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Probed:
    """An ask and its answer. `recounted` is the number of tokens that the text of the answer has,
    by a tokenizer or by the usage of a prompt with this text; None if it was not counted. `after`
    says whether the ask was sent after the load of a benchmark, not before it, and `invalid_utf8`
    whether the reply had bytes that are not UTF-8."""

    ask: Ask
    answer: Answer
    recounted: int | None = None
    after: bool = False
    invalid_utf8: bool = False

    @property
    def repeats_code_word(self) -> bool:
        """Whether the answer contains the code word of its prompt."""
        return self.ask.word in self.answer.all_text.lower()

    @property
    def is_only_tool_call(self) -> bool:
        """Whether the answer is a tool call, although no tool was offered."""
        return self.answer.text == TOOL_CALL and not self.answer.reasoning

    @property
    def has_no_text(self) -> bool:
        """Whether the answer is empty, or only a tool call."""
        return self.answer.is_empty or self.is_only_tool_call

    @property
    def hides_reasoning(self) -> bool:
        """Whether tokens were made and none was shown until the answer was cut: the engine hides
        the reasoning."""
        answer = self.answer
        return answer.is_empty and answer.finish_reason == "length" and bool(answer.output_tokens)

    @property
    def has_enough_tokens_for_usage(self) -> bool:
        """Whether the usage of the answer can be judged."""
        return (self.answer.output_tokens or 0) >= _USAGE_LEAST

    @property
    def opening_text(self) -> str:
        """The first _BEGINNING characters of the answer in lower case. A model that follows the
        instruction repeats the code word there."""
        return self.answer.all_text[:_BEGINNING].lower()

    @property
    def defect(self) -> str:
        """What is wrong with this answer, as the end of a sentence that begins with "the answer";
        "" if nothing is."""
        if self.has_no_text:
            return "has no text"
        if self.invalid_utf8:
            return "has bytes that are not UTF-8"
        return _defect_of_text(self.answer.all_text)

    @property
    def repeats_instruction(self) -> bool:
        """Whether the answer repeats the instruction of its prompt."""
        return _normalize_words(_ECHO) in _normalize_words(self.answer.text)

    @property
    def is_echo(self) -> bool:
        """Whether the answer is hardly more than its own prompt, once or several times."""
        said, asked = _normalize_words(self.answer.text), _normalize_words(self.ask.prompt)
        if len(said) < _ECHOED:
            return False
        if asked[:_ECHOED] == said[:_ECHOED]:
            return True
        rest = said.replace(asked, "")
        last = next((n for n in range(len(asked), 0, -1) if rest.endswith(asked[:n])), 0)
        return len(rest) - last <= _BESIDE_ECHO * len(said)


def _normalize_words(text: str) -> str:
    return " ".join(text.lower().split())


@lru_cache(maxsize=1024)  # the judge asks for it several times, and it takes half a millisecond
def _defect_of_text(text: str) -> str:
    """Return what is wrong with the text of an answer, as `Probed.defect` says it; "" if nothing
    is."""
    defect = (
        text_features(text).defect
        or why_spaces_are_missing(text)
        or why_text_is_spelled_out(text)
        or why_words_are_doubled(text)
        or text_features(text[len(text) // 2 :]).defect_as_second_half
    )
    if not defect and not has_enough_letters(text):
        return "has no words"
    return defect


def summarize_probe(probed: Sequence[Probed], skipped: str = "") -> ProbeOutcome:
    """Return the summary of a probe's answers. `skipped` says why a part of the probe is missing;
    "" if none is."""
    by_part: dict[ProbePart, list[Probed]] = {part: [] for part in ProbePart}
    for one in probed:
        by_part[one.ask.part].append(one)
    outcomes = {
        part.value: _outcome_of_probe_part(answers) for part, answers in by_part.items() if answers
    }
    return ProbeOutcome(outcomes, characters_per_token([one.answer for one in probed]), skipped)


def _outcome_of_probe_part(probed: Sequence[Probed]) -> ProbePartOutcome:
    """Return the outcome for the answers of one part, at least one. A broken answer is shown, else
    the first one."""
    broken = [one for one in probed if one.defect]
    shown = broken[0] if broken else probed[0]
    remembered = sum(one.repeats_code_word for one in probed)
    return ProbePartOutcome(
        len(probed), len(broken), remembered, shown.defect, answer_excerpt(shown.answer)
    )


_Group = tuple[ProbePart, bool]


@dataclass(frozen=True, slots=True)
class _Answers:
    """The answers of a probe (`each`), the number of asks that were sent at once (`together`), the
    tokens of the long prompts, and why text without sense is expected. 0 and "" stand for what is
    not known."""

    each: Sequence[Probed]
    together: int
    long_tokens: int
    why_nonsense_is_expected: str

    def __len__(self) -> int:
        return len(self.each)

    @property
    def answers_to_short_prompts(self) -> list[Probed]:
        return [one for one in self.each if one.ask.part is not ProbePart.LONG]

    @property
    def answers_to_long_prompts(self) -> list[Probed]:
        return [one for one in self.each if one.ask.part is ProbePart.LONG]

    @property
    def answers_without_code_word(self) -> list[Probed]:
        return [one for one in self.each if not one.repeats_code_word]

    @property
    def broken_answers(self) -> list[Probed]:
        return [one for one in self.each if one.defect]

    @property
    def texts(self) -> list[Answer]:
        return [one.answer for one in self.each]

    @property
    def by_part_and_after_load(self) -> dict[_Group, list[Probed]]:
        """The answers by (part of the probe, whether they were asked for after the load)."""
        groups: dict[_Group, list[Probed]] = {}
        for one in self.each:
            groups.setdefault((one.ask.part, one.after), []).append(one)
        return groups

    @property
    def nonsense_expectation_clause(self) -> str:
        """The end of a message about a text without sense: that it is expected, and why. "" if the
        model's text should make sense."""
        if not self.why_nonsense_is_expected:
            return ""
        return f"; this is expected, because {self.why_nonsense_is_expected}"


def assess_probe(
    probed: Sequence[Probed],
    *,
    model: str = "",
    asks_sent_at_once: int = 0,
    long_tokens: int = 0,
    why_nonsense_is_expected: str = "",
    short_answers: Sequence[Probed] = (),
) -> tuple[Finding, ...]:
    """Return the findings about the answers of a probe. A finding with Level.ERROR means that the
    server's text is not the model's text; Level.WARN that it may not be.

    `model` is the name that was asked for; "" if any name is right. `asks_sent_at_once` is the
    number of asks that were sent at once, and `long_tokens` the length of the long prompts in
    tokens; 0 if it is unknown. `why_nonsense_is_expected` says why this model may write text
    without sense, such as "the weights are random"; "" if it may not. Such a text is then a note
    of Level.INFO. Usage and prompt length are judged all the same. `short_answers` are answers of
    SHORT_TOKENS tokens at most, whose usage is compared with that of the others."""
    if not probed:
        return ()
    answers = _Answers(probed, asks_sent_at_once, long_tokens, why_nonsense_is_expected)
    found: list[Finding] = next(filter(None, (find(answers) for find in _TEXT_CHECKS)), [])
    cut = _find_cut_prompts(probed)
    if not found and not cut:
        cut = _find_forgotten_code_words(answers)
    return (
        *found,
        *cut,
        *_find_wrong_usage(answers, short_answers),
        *_find_template_marks(probed),
        *_find_content_filtered_answers(probed),
        *_find_disordered_words(answers),
        *find_other_models(probed, model),
    )


def _find_empty_answers(answers: _Answers) -> list[Finding]:
    empty = [one for one in answers.each if one.has_no_text]
    if len(empty) < max(1, _MOST * len(answers)):
        return []
    excerpt = answer_excerpt(empty[0].answer)
    if tools := sum(one.is_only_tool_call for one in empty):
        text = f"only tool calls: {tools} of {len(answers)} answers, although no tool was offered"
        return [Finding(Level.ERROR, EMPTY, text, evidence=excerpt)]
    if answers.why_nonsense_is_expected and all(one.answer.total_character_count for one in empty):
        text = f"only spaces and line breaks{answers.nonsense_expectation_clause}"
        return [Finding(Level.INFO, EMPTY, text, evidence=excerpt)]
    text = f"no content: {len(empty)} of {len(answers)} answers have no text"
    if tokens := max(one.answer.output_tokens or 0 for one in empty):
        text += f", although usage says up to {tokens} tokens"
    return [Finding(Level.ERROR, EMPTY, text, evidence=excerpt)]


def _find_degenerate_answers(answers: _Answers) -> list[Finding]:
    level = Level.INFO if answers.why_nonsense_is_expected else Level.ERROR
    groups = answers.by_part_and_after_load
    failed = {group: here for group, here in groups.items() if _outcome_of_probe_part(here).failed}
    broken = [one for here in failed.values() for one in here if one.defect]
    everywhere = answers.broken_answers
    if not failed and len(everywhere) >= max(_LEAST_SPREAD, _SPREAD_SHARE * len(answers)):
        failed, broken = groups, everywhere
    if len(broken) >= min(_LEAST_ANSWERS, len(answers)):
        where = _where_text_is_broken(failed.keys(), answers)
        asked = sum(map(len, failed.values()))
        text = (
            f"degenerate output{where}: {len(broken)} of {asked} answers are broken; one "
            f"{broken[0].defect}{answers.nonsense_expectation_clause}"
        )
        return [Finding(level, DEGENERATE, text, evidence=answer_excerpt(broken[0].answer))]
    equal = find_equal_answers(answers.texts)
    if len(equal) >= max(_LEAST_ANSWERS, _MOST * len(answers)):
        text = f"degenerate output: {len(equal)} answers to different prompts are equal"
        text += answers.nonsense_expectation_clause
        return [Finding(level, DEGENERATE, text, evidence=answer_excerpt(equal[0]))]
    return []


# Each says when two answers are alike, and how many alike answers prove a fault: a weak model may
# say nearly the same to two or three prompts.
_LIKENESSES: tuple[tuple[Callable[[str, str, Sequence[str]], bool], int], ...] = (
    (are_nearly_equal, 4),
    (texts_begin_alike, 6),
)


def _find_nearly_equal_answers(answers: _Answers) -> list[Finding]:
    """Return a finding if most answers lack their code word and differ only in a word or a number.
    Answers with the right code word do not count: a weak model may say the same about
    everything."""
    if answers.why_nonsense_is_expected:
        return []
    lost = answers.answers_without_code_word
    for candidate, (are_alike, least) in product(lost[:_CANDIDATES], _LIKENESSES):
        said = candidate.answer.all_text
        near = [one for one in lost if are_alike(one.answer.all_text, said, CODE_WORDS)]
        if _count_prompts(near) < max(least, _MOST * _count_prompts(answers.each)):
            continue
        text = (
            f"degenerate output: {len(near)} answers to different prompts differ in a word or a"
            " number only"
        )
        return [Finding(Level.ERROR, DEGENERATE, text, evidence=answer_excerpt(near[0].answer))]
    return []


def _count_prompts(probed: Sequence[Probed]) -> int:
    return len({one.ask.prompt for one in probed})


def _where_text_is_broken(failed: Collection[_Group], answers: _Answers) -> str:
    """Return in which parts of the probe the text is broken, as a part of a sentence; "" if it is
    broken in all of them, before and after the load."""
    names = {
        ProbePart.ALONE: " with one request at a time",
        ProbePart.TOGETHER: f" with {answers.together or 'several'} requests at once",
        ProbePart.LONGER: " in longer answers",
        ProbePart.LONG: " with long prompts",
    }
    if answers.long_tokens:
        names[ProbePart.LONG] = f" with prompts of {answers.long_tokens:,} tokens"
    parts = {part for part, _ in failed}
    times = {is_after_load for _, is_after_load in failed}
    asked_parts = {part for part, _ in answers.by_part_and_after_load}
    asked_times = {is_after_load for _, is_after_load in answers.by_part_and_after_load}
    where = ""
    if parts != asked_parts:
        where = " and".join(names[part] for part in ProbePart if part in parts) + " only"
    if times == {True} and asked_times != {True}:
        where += " after the load"
    return where


def _find_unrelated_answers(answers: _Answers) -> list[Finding]:
    """Return a finding if the answers that lack their code word are, taken together, no language.
    Each of them may be too short to be judged alone."""
    if answers.why_nonsense_is_expected:
        return []
    lost = [one.answer for one in answers.answers_without_code_word]
    why = why_words_are_unrelated(lost)
    if not why:
        return []
    text = f"degenerate output: {len(lost)} of {len(answers)} answers are unrelated words; {why}"
    return [Finding(Level.ERROR, DEGENERATE, text, evidence=answer_excerpt(lost[0]))]


def _find_echoed_instructions(answers: _Answers) -> list[Finding]:
    """Return a finding if most answers repeat the instruction instead of following it."""
    short = answers.answers_to_short_prompts
    echoing = [one for one in short if one.repeats_instruction]
    if len(echoing) < max(_LEAST_ANSWERS, _MOST * len(short)):
        return []
    whole = sum(one.is_echo for one in echoing) >= _MOST * len(short)
    text = f"prompt echoed: {len(echoing)} of {len(short)} answers repeat their prompt"
    return [
        Finding(error_if_certain(whole), ECHO, text, evidence=answer_excerpt(echoing[0].answer))
    ]


def _find_template_marks(probed: Sequence[Probed]) -> list[Finding]:
    marked = [one for one in probed if find_chat_template_mark(one.answer)]
    if len(marked) < max(_LEAST_ANSWERS, _SOME * len(probed)):  # short answers end before it
        return []
    first = marked[0].answer
    mark = find_chat_template_mark(first)
    text = (
        f"marks of a chat template in the text: {len(marked)} of {len(probed)} answers, such as"
        f" {mark}: the template or the end mark is not the model's"
    )
    return [Finding(Level.WARN, TEMPLATE, text, evidence=answer_excerpt(first))]


def _find_content_filtered_answers(probed: Sequence[Probed]) -> list[Finding]:
    filtered = sum(one.answer.finish_reason == "content_filter" for one in probed)
    if filtered < _LEAST_ANSWERS:
        return []
    text = f"{filtered} of {len(probed)} answers were ended by a content filter"
    return [Finding(error_if_certain(filtered >= _SOME * len(probed)), FINISH, text)]


def _find_disordered_words(answers: _Answers) -> list[Finding]:
    if answers.why_nonsense_is_expected:
        return []
    why = why_words_are_unordered(answers.texts)
    if not why:
        return []
    text = f"words out of order: {why}"
    return [Finding(Level.WARN, DISORDER, text, evidence=answer_excerpt(answers.each[0].answer))]


def _find_mixed_up_answers(answers: _Answers) -> list[Finding]:
    asked = {one.ask.word for one in answers.each}
    mixed: list[tuple[Probed, str]] = []
    for one in answers.answers_without_code_word:
        opening = one.opening_text
        other = next((word for word in asked - {one.ask.word} if word in opening), "")
        if other:
            mixed.append((one, other))
    if len(mixed) < max(_LEAST_ANSWERS, _SOME * len(answers)):
        return []
    first, said = mixed[0]
    text = (
        f"answers mixed up: {len(mixed)} of {len(answers)} answers begin with the code word of"
        " another prompt and not with their own;"
        f" one was asked for {first.ask.word} and said {said}"
    )
    return [Finding(Level.ERROR, MIXED_UP, text, evidence=answer_excerpt(first.answer))]


def _find_unfollowed_instructions(answers: _Answers) -> list[Finding]:
    if answers.why_nonsense_is_expected:
        return []
    # A model that was still reasoning may repeat the code word later.
    short = [one for one in answers.answers_to_short_prompts if not one.answer.is_only_reasoning]
    if len(short) < _LEAST_ANSWERS or any(one.repeats_code_word for one in short):
        return []
    text = (
        f"none of {len(short)} answers contains the code word that it was asked to repeat: a weak "
        "model, a wrong chat"
        " template, or a broken engine"
    )
    return [Finding(Level.WARN, NOT_FOLLOWED, text, evidence=answer_excerpt(short[0].answer))]


def _find_forgotten_code_words(answers: _Answers) -> list[Finding]:
    """Return a finding if all answers to short prompts have their code word, and no answer to a
    long prompt has it: the beginning of the long prompts was not read."""
    if answers.why_nonsense_is_expected:
        return []
    short, long = answers.answers_to_short_prompts, answers.answers_to_long_prompts
    lost = answers.answers_without_code_word
    if lost != long or min(len(short), len(long)) < _LEAST_ANSWERS:
        return []
    sure = len(short) >= _SURE_ANSWERS and answers.long_tokens <= _RELIABLE_LENGTH
    text = (
        f"prompt cut: {len(long)} of {len(long)} answers do not know the code word at the "
        "beginning of a prompt of"
        f" {answers.long_tokens:,} tokens, while all {len(short)} short prompts were answered"
    )
    return [
        Finding(error_if_certain(sure), PROMPT_CUT, text, evidence=answer_excerpt(long[0].answer))
    ]


# The first one that finds something explains the text, so the others do not run.
_TEXT_CHECKS = (
    _find_empty_answers,
    _find_unrelated_answers,
    _find_degenerate_answers,
    _find_echoed_instructions,
    _find_mixed_up_answers,
    _find_nearly_equal_answers,
    _find_unfollowed_instructions,
)


def _find_cut_prompts(probed: Sequence[Probed]) -> list[Finding]:
    for one in probed:
        tokens = one.answer.prompt_tokens
        if tokens is not None and prompt_was_cut(one.ask.count_words, tokens):
            text = (
                f"prompt cut: usage says {tokens} prompt tokens for a prompt of "
                f"{one.ask.count_words:,} words"
            )
            return [Finding(Level.ERROR, PROMPT_CUT, text, evidence=answer_excerpt(one.answer))]
    return []


def prompt_was_cut(prompt_words: int, prompt_tokens: float) -> bool:
    """Return whether the server must have cut a prompt of `prompt_words` words, because its usage
    says only `prompt_tokens` tokens. A word is at least one token; few tokenizers join words, so
    some difference is allowed."""
    return prompt_tokens < _KEPT_PROMPT * prompt_words


def _find_wrong_usage(answers: _Answers, short: Sequence[Probed]) -> list[Finding]:
    counted = [one for one in answers.each if one.has_enough_tokens_for_usage and not one.defect]
    if answers.why_nonsense_is_expected or not counted:
        return []
    text = _why_usage_is_wrong(counted, short, (*answers.each, *short))
    if not text:
        return []
    return [Finding(Level.ERROR, USAGE, text, evidence=answer_excerpt(counted[0].answer))]


def _why_usage_is_wrong(
    counted: Sequence[Probed], short: Sequence[Probed], all_answers: Sequence[Probed]
) -> str:
    """Return a sentence if the usage of the answers `counted` is wrong; else "". Each of them has
    `has_enough_tokens_for_usage`. `short` are answers to compare their usage with, and
    `all_answers` tell whether the engine hides the reasoning."""
    hides_reasoning = any(one.hides_reasoning for one in all_answers)
    if text := _why_usage_differs_from_recount(counted, hides_reasoning):
        return text
    if not hides_reasoning:
        text = _why_usage_counts_too_much(counted, short)
    if text:
        return text
    usage = characters = size = 0
    for one in counted:
        usage += one.answer.output_tokens or 0
        characters += one.answer.total_character_count
        size += len(one.answer.all_text.encode("utf-8", "replace"))
    per_token = characters / usage
    too_many = not hides_reasoning and size < _LEAST_BYTES_PER_TOKEN * usage
    if not too_many and per_token <= _MOST_CHARACTERS_PER_TOKEN:
        return ""
    return (
        f"usage not credible: {usage} tokens for {characters} characters,"
        f" {per_token:.1f} characters per token"
    )


def _why_usage_counts_too_much(long: Sequence[Probed], short: Sequence[Probed]) -> str:
    """Return a sentence if the answers `long` and `short` show that usage counts more tokens than
    their texts have; else "". Answers with and without reasoning are compared separately, because
    the hidden tokens around them differ."""
    groups: dict[tuple[bool, bool], list[TokenCounts]] = {}
    for one in (*long, *short):
        answer, recounted = one.answer, one.recounted
        if recounted is None or not answer.output_tokens or one.defect or not one.repeats_code_word:
            continue
        reported = answer.output_tokens - (answer.finish_reason == "stop")  # without the end mark
        shape = bool(answer.reasoning.strip()), bool(answer.text.strip())
        groups.setdefault(shape, []).append(TokenCounts(reported, recounted))
    for counted in groups.values():
        factor = reported_tokens_per_real_token(counted)
        if factor is not None:
            return (
                f"usage not credible: by {len(counted)} answers of different lengths, it counts"
                f" {factor:.2f} tokens for each token of the text"
            )
    return ""


def _why_usage_differs_from_recount(counted: Sequence[Probed], hides_reasoning: bool) -> str:
    """Return a sentence if the usage of most recounted answers is not the number of tokens that
    their texts have, else "". If the engine hides the reasoning, a higher usage is right."""
    known, wrong, said_of_wrong, real_of_wrong = 0, 0, 0, 0
    for one in counted:
        said, real = one.answer.output_tokens or 0, one.recounted
        if real is None:
            continue
        known += 1
        is_hidden = hides_reasoning and said > real
        if not is_hidden and not is_reported_usage_plausible(said, real):
            wrong += 1
            said_of_wrong += said
            real_of_wrong += real
    if wrong < max(1, _MOST * known):
        return ""
    return (
        f"usage not credible: it says {said_of_wrong} tokens for {wrong} answers whose text has "
        f"{real_of_wrong}, counted again"
        f" ({said_of_wrong / max(1, real_of_wrong):.1f} times as many)"
    )


def find_other_models(probed: Iterable[Probed], model: str) -> list[Finding]:
    """Return a finding if replies report another model than `model`, the one that was asked for;
    [] if `model` is "". The level is Level.ERROR if the replies report several models, else
    Level.WARN."""
    names = dict.fromkeys(one.answer.model for one in probed if one.answer.model)
    others = [name for name in names if not may_be_same_model(model, name)]
    if not model or not others:
        return []
    if len(names) > 1:
        text = f"several models answered: {', '.join(list(names)[:_NAMED])}"
        return [Finding(Level.ERROR, OTHER_MODEL, text)]
    text = f"another model answered: {others[0]} instead of {model}"
    return [Finding(Level.WARN, OTHER_MODEL, text)]


def may_be_same_model(asked: str, reported: str) -> bool:
    """Return whether two names may be names of one model: one contains the other.

    Directories, file endings, letter case and punctuation do not count. So a path, a file, an alias
    with a date, or an organisation in front is no difference.
    """
    shorter, longer = sorted(map(_normalize_model_name, (asked, reported)), key=len)
    return shorter == longer or (len(shorter) >= _TELLING_NAME and shorter in longer)


def _normalize_model_name(name: str) -> str:
    last = name.rstrip("/").rsplit("/", 1)[-1].lower().removesuffix(".gguf")
    return "".join(filter(str.isalnum, last))

"""Quality: what two servers answered to the same texts, and whether the answers are the same.

Log probabilities are natural logarithms ("nats"). A *position* is one token of a text, scored by a
model that has seen the tokens before it. A is the server to compare with, and B the changed one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from workbench.model.lazy_dataclass import dataclass

Token = int | str  # the id, or the piece of an engine that gives no ids
TextKey = tuple[str, int, str]  # (lane, concurrency, name) of a scored text

# Lanes: how a log probability was obtained.
PREFILL = "prefill"  # of the prompt
DECODE = "decode"  # of one generated token after each growing prompt

KL, LN_PPL, SAME_TOP, FORKS = "kl", "ln_ppl", "same_top", "forks"
ANSWER_SCORE = "answer_score"  # how probable A finds the answers of B, beside its own

SAME, DIFFERS, NOT_DECIDED, BROKEN = "same", "differs", "not decided", "broken"
NOT_MEASURED = "quality not measured"
VERDICTS = (SAME, DIFFERS, NOT_DECIDED, BROKEN, NOT_MEASURED)

KL_MARGIN, LN_PPL_MARGIN = 0.001, 0.002  # nats per position; of ln perplexity, 0.2 %


@dataclass(frozen=True, slots=True)
class ScoredPosition:
    """One scored token of a text. `top` has the most probable tokens in falling order; the scored
    token need not be among them. `logprob` is None if the server names only the most probable
    tokens, and this one is not among them."""

    token: Token
    logprob: float | None
    top: tuple[tuple[Token, float], ...] = ()

    @property
    def log_probabilities(self) -> list[float]:
        """The log probabilities that the server named at this position."""
        values = [value for _, value in self.top]
        if self.logprob is not None:
            values.append(self.logprob)
        return values


@dataclass(frozen=True, slots=True)
class ScoredText:
    """One text with its scored positions. The first token of a text has no position. `asked` is the
    number of positions that were asked for, and `problem` says why the text cannot be used; "" if
    it can."""

    name: str
    kind: str
    positions: tuple[ScoredPosition, ...]
    lane: str = PREFILL
    concurrency: int = 1
    asked: int | None = None
    problem: str = ""

    @property
    def key(self) -> TextKey:
        return self.lane, self.concurrency, self.name

    @property
    def tokens(self) -> list[Token]:
        return [one.token for one in self.positions]


@dataclass(frozen=True, slots=True)
class GreedyAnswer:
    """One greedy answer to a text, under load. `gaps` has, for each token, how much more probable
    in nats the best token was than the second one; None for a token of which that is not known.
    `prompt` has the tokens after which it was written, by the tokenizer of its server."""

    name: str
    kind: str
    tokens: tuple[Token, ...]
    gaps: tuple[float | None, ...] = ()
    concurrency: int = 1
    problem: str = ""
    prompt: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class AnswerScore:
    """How probable A finds one answer that was written under load: the mean log probability of its
    first `tokens` tokens. `problem` says why the answer was not scored; "" if it was."""

    name: str
    logprob: float = 0.0
    tokens: int = 0
    lane: str = PREFILL
    problem: str = ""


@dataclass(frozen=True, slots=True)
class InstrumentProof:
    """Whether the log probabilities of a server can be used. `reason` says why not, and `defect`
    names the known defect of the engine, such as "vLLM #53488". `largest` is the largest difference
    between the two lanes in nats, and `noise` the one between two equal measurements."""

    side: str  # "A" or "B"
    lane: str
    usable: bool
    positions: int = 0
    largest: float | None = None
    noise: float | None = None
    reason: str = ""
    defect: str = ""

    @property
    def why_unusable(self) -> str:
        """Why the log probabilities cannot be used, with the known defect; "" if they can."""
        return f"{self.reason} ({self.defect})" if self.defect else self.reason


@dataclass(frozen=True, slots=True)
class Interval:
    """A measured value with its 95 % confidence interval. `low` and `high` are None if there are
    too few texts for an interval."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def bounds(self) -> tuple[float, float] | None:
        """(low, high); None if there is no interval."""
        if self.low is None or self.high is None:
            return None
        return self.low, self.high

    @property
    def negated(self) -> Interval:
        """The interval of the negative value, such as that of A - B for that of B - A."""
        if self.bounds is None:
            return Interval(-self.value)
        low, high = self.bounds
        return Interval(-self.value, -high, -low)


@dataclass(frozen=True, slots=True)
class QualityMeasure:
    """One measure of the difference between the answers of A and B.

    `floor` is the same measure between A and A: what this machine calls equal. It is None if it was
    not measured. `excess` is by how much B differs more than A does from itself. `verdict` is SAME,
    DIFFERS or NOT_DECIDED; "" for a measure without a margin.
    """

    name: str  # KL, LN_PPL, SAME_TOP, FORKS or ANSWER_SCORE
    value: Interval
    floor: Interval | None = None
    excess: Interval | None = None
    margin: float | None = None
    verdict: str = ""
    texts: int = 0  # the units of the interval
    lane: str = PREFILL
    concurrency: int = 1


@dataclass(frozen=True, slots=True)
class TextDifference:
    """The difference between the answers of A and B to one text, as means over its positions."""

    name: str
    kind: str
    positions: int
    kl: float
    ln_ppl: float
    same_top: float
    lane: str = PREFILL
    concurrency: int = 1

    @property
    def key(self) -> TextKey:
        return self.lane, self.concurrency, self.name


@dataclass(frozen=True, slots=True)
class WorstText:
    """The text whose answers differ most. `position` is that of the first token that differs, from
    0; None if none does. `before`, `a` and `b` are the text before it and what A and B say
    there."""

    name: str
    kind: str
    kl: float
    position: int | None = None
    a: str = ""
    b: str = ""
    before: str = ""


@dataclass(frozen=True, slots=True)
class ForkedAnswer:
    """The greedy answers of A and B to one text, which are equal up to token number `position`,
    from 0, and differ there. `before` is the end of what both wrote before it, and `a` and `b` are
    how each of them goes on."""

    name: str
    kind: str
    position: int
    before: str
    a: str
    b: str
    concurrency: int = 1


@dataclass(frozen=True, slots=True)
class ForkCount:
    """How often greedy answers of A and B part. `at_risk` is the number of tokens before and
    including the fork of each answer. `ties` are forks at tokens whose two best candidates differ
    by less than the noise between two equal measurements; they are not among `forks`."""

    forks: int
    ties: int
    at_risk: int
    answers: int
    per_1000: Interval
    concurrency: int = 1


@dataclass(frozen=True, slots=True)
class AnswerScores:
    """How probable A finds the answers of both: the mean log probability of a token in nats, of A's
    own answers and of those of B, as a mean over `answers` texts. `tokens` counts those of B."""

    a: float
    b: float
    answers: int
    tokens: int
    lane: str = PREFILL


@dataclass(frozen=True, slots=True)
class ScoredItem:
    """The scores of A and B in one item of the user's own measure. None if a side lacks the
    item."""

    name: str
    a: float | None
    b: float | None


@dataclass(frozen=True, slots=True)
class OwnMeasure:
    """The user's own measure: the scores that a command gave A and B, paired by item.

    `difference` is B - A. With `right_wrong`, each score is 0 or 1, `lost` counts the items that
    only A has right and `gained` those that only B has right. `verdict` is DIFFERS, or NOT_DECIDED
    if no difference was shown. `field` is the field of the score in the command's files.
    """

    field: str
    right_wrong: bool
    items: tuple[ScoredItem, ...]
    pairs: int
    mean_a: float
    mean_b: float
    difference: Interval
    p: float
    verdict: str
    lost: int = 0
    gained: int = 0
    only_a: int = 0
    only_b: int = 0
    command: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class QualityResult:
    """The comparison of the answers of B with those of A, as it is stored.

    `summary` is one clause for the user: "its answers are the same within 0.001 KLD". `more_texts`
    is the number of further texts that would probably decide; None if that is not known. `a` and
    `b` name what was compared, and `conditions_a` and `conditions_b` have what the answers depend
    on: engine, engine_version, model, flags and env.
    """

    a: str
    b: str
    verdict: str
    summary: str
    measures: tuple[QualityMeasure, ...] = ()
    forks: ForkCount | None = None
    forks_floor: ForkCount | None = None
    forked: ForkedAnswer | None = None  # the answers that part first
    answer_scores: AnswerScores | None = None
    texts: tuple[TextDifference, ...] = ()
    worst: WorstText | None = None
    proofs: tuple[InstrumentProof, ...] = ()
    text_set: str = ""
    text_version: str = ""
    positions: int = 0
    top_k: int = 0  # of the log probabilities, the same on both sides
    more_texts: int | None = None
    simulated: bool = False
    notes: tuple[str, ...] = ()  # what was left out and why, one sentence each
    conditions_a: Mapping[str, Any] = field(default_factory=dict)
    conditions_b: Mapping[str, Any] = field(default_factory=dict)
    id: int = 0  # in the store; 0: not stored
    unix_s: float = 0.0
    took_s: float | None = None
    own: OwnMeasure | None = None
    imported: str = ""  # the program whose file it comes from; "" if it was measured here


@dataclass(slots=True)
class QualityParts:
    """What was measured so far for a comparison of answers. It is stored with an experiment, so
    that a resumed one measures only what is missing.

    `floors` has further scorings of A, and `answers_again` its answers again. `scores_a`,
    `scores_again` and `scores_b` are how probable A finds the answers. `runs` names the
    server of each step that has ended (steps: session/quality/measuring.py). `conditions` has what
    the answers of "A" and "B" depend on, and `pieces` the texts of their tokens. `problems` says
    why the measurement ended early.
    """

    a: tuple[ScoredText, ...] = ()
    b: tuple[ScoredText, ...] = ()
    floors: tuple[tuple[ScoredText, ...], ...] = ()
    answers_a: tuple[GreedyAnswer, ...] = ()
    answers_again: tuple[GreedyAnswer, ...] = ()
    answers_b: tuple[GreedyAnswer, ...] = ()
    scores_a: tuple[AnswerScore, ...] = ()
    scores_again: tuple[AnswerScore, ...] = ()
    scores_b: tuple[AnswerScore, ...] = ()
    proofs: tuple[InstrumentProof, ...] = ()
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    conditions: dict[str, dict[str, Any]] = field(default_factory=dict)
    runs: dict[str, str] = field(default_factory=dict)
    pieces: dict[str, dict[int, str]] = field(default_factory=dict)
    text_version: str = ""
    took_s: float = 0.0
    simulated: bool = False

"""What all interfaces for log probabilities have in common: requests, and the gate for the numbers
of the reply. Whatever the server answers, a method returns tokens or raises ScoreError.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Protocol

from workbench.model.known_values import values_if_all_known
from workbench.model.lazy_dataclass import dataclass
from workbench.model.quality import ScoredPosition, Token
from workbench.model.untrusted_numbers import integer_or_none, why_number_is_impossible
from workbench.model.untrusted_text import clean_text
from workbench.quality.token_texts import format_token_text

TOP = 20  # most probable tokens of a position: what vLLM allows without a flag
REQUEST_S = 120.0  # the limit of a request, unless the server is known to be slow
_LEAST = -1e5  # vLLM gives -9999 for a probability of 0
BROKEN = "\N{REPLACEMENT CHARACTER}"  # in the text of a part of a character
_MASS_ERROR = 1e-3  # of the sum of some probabilities, from the rounding of the server
_MOST_SHOWN = 200


class ScoreError(Exception):
    """A server that cannot be scored, or not any longer. Its text is one sentence without a full
    stop."""


class UnusableText(ScoreError):
    """A text that this server cannot score; others it can."""


class ImpossibleScore(ScoreError):
    """Raised if a server returns log probabilities that cannot be right, such as one above 0."""


class Reply(Protocol):
    """The reply to a request. `status` is None if there was none, and `problem` says why."""

    @property
    def status(self) -> int | None: ...
    @property
    def body(self) -> Any: ...
    @property
    def text(self) -> str: ...
    @property
    def problem(self) -> str: ...


# sends a JSON body to a path with POST, within a number of seconds; never raises for the server
Send = Callable[[str, Mapping[str, Any], float], Awaitable[Reply]]


@dataclass(frozen=True, slots=True)
class Prompt:
    """The tokens of the beginning of a text, by the tokenizer of the server."""

    text: str
    ids: tuple[int, ...]

    def first_tokens(self, tokens: int) -> Prompt:
        """Return the prompt cut to its first `tokens` tokens."""
        return replace(self, ids=self.ids[:tokens])


class ScoringInterface(ABC):
    """One server, and the way to ask it for log probabilities. `send` makes the requests, and
    `model` is the name under which the server serves its model."""

    prefill: ClassVar[bool] = False  # scores a whole prompt in one request
    # the known defect that a proof may find, with the number of the issue
    defect: ClassVar[str] = ""

    def __init__(self, send: Send, model: str) -> None:
        self._send, self._model = send, model
        self.context_tokens: int | None = None  # the longest context, if the server names it
        self.pieces: dict[Token, str] = {}  # the texts of tokens that the server has named
        self.request_s = REQUEST_S

    @abstractmethod
    async def tokenize(self, text: str) -> Prompt:
        """Return a text with its tokens by the server's tokenizer. Raises UnusableText if the
        tokenizer does not give back the text."""

    @abstractmethod
    async def score_next(
        self, prompt: Prompt, position: int, slot: int = 0
    ) -> ScoredPosition | None:
        """Score token number `position` of the prompt after the tokens before it, in one request.
        None if the server cannot be asked for this token. `slot` is the number of the request among
        those in flight."""

    @abstractmethod
    async def generate_answer(
        self, prompt: Prompt, tokens: int, slot: int = 0
    ) -> tuple[ScoredPosition, ...]:
        """Return what the server writes after the prompt, at most `tokens` tokens."""

    async def score_whole_prompt(self, prompt: Prompt) -> tuple[ScoredPosition, ...]:
        """Score all tokens of the prompt but the first, in one request. Raises ScoreError if this
        interface cannot do that."""
        raise ScoreError("the server cannot score a prompt in one request")

    async def trim_for_generation(self, prompt: Prompt) -> Prompt:
        """Return the longest beginning of the prompt after which the server can write. By default
        the prompt as it is."""
        return prompt

    async def text_of_prompt(self, prompt: Prompt) -> str:
        """Return the prompt as text. Raises UnusableText unless the server names tokens by their
        text."""
        raise UnusableText("the server of A names tokens by their ids")

    def last_tokens(self, prompt: Prompt, tokens: int) -> Prompt:
        """Return a prompt cut to `tokens` tokens: its first, which may be a special token, and the
        last ones. A shorter prompt is returned as it is."""
        ids = prompt.ids
        if len(ids) <= tokens:
            return prompt
        return replace(prompt, ids=(ids[0], *ids[1 - tokens :]))

    def store_token_text(self, token: Token, text: Any) -> None:
        """Store the text of a token for display. Do nothing if `text` is no text, or if the token
        has one already."""
        if isinstance(text, str) and token not in self.pieces:
            self.pieces[token] = format_token_text(text)

    # ---- requests

    async def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request, and return the JSON object of its reply. Raises ScoreError if there is no
        reply, for a status other than 200, and for a body that is no JSON object."""
        reply = await self._send(path, body, self.request_s)
        if reply.status is None:
            raise ScoreError(f"the server gave no answer to {path}: {reply.problem}")
        if reply.status != 200:
            said = _error_text_in_reply(reply)
            raise ScoreError(f"the server answered {path} with HTTP status {reply.status}{said}")
        if not isinstance(reply.body, dict):
            raise ScoreError(f"the server's answer to {path} is not a JSON object")
        return reply.body

    async def request_token_ids(self, path: str, body: Mapping[str, Any]) -> tuple[int, ...]:
        """Return the token ids in the reply of the tokenizer's endpoint `path`, and keep the
        context length that it reports. Raises ScoreError if the reply has no token ids."""
        reply = await self.post(path, body)
        ids = reply.get("tokens")
        if not isinstance(ids, list) or not ids:
            raise ScoreError(f"the server's {path} returned no token ids")
        known = values_if_all_known(integer_or_none(one, 0, 2**31) for one in ids)
        if known is None:
            raise ScoreError(f"the server's {path} returned a token id that is not a number")
        limit = integer_or_none(reply.get("max_model_len"), 1, 2**31)
        if limit is not None:
            self.context_tokens = limit
        return tuple(known)

    def check_context_length(self, tokens: int, extra_tokens: int) -> None:
        """Raise ScoreError if the server's context is too short for a prompt and `extra_tokens`
        tokens."""
        limit = self.context_tokens
        if limit is not None and tokens + extra_tokens > limit:
            raise ScoreError(
                f"the context of the server has {limit} tokens, and {tokens + extra_tokens} are needed"
            )


def check_prompt_token_count(counted: Any, sent: int, extra: int = 0) -> None:
    """Raise ScoreError unless `counted`, the server's number of prompt tokens, is the number that
    was `sent`, or up to `extra` more, which the server added by itself."""
    number = integer_or_none(counted, 0, 2**31)
    if number is None:
        raise ScoreError("the server does not say how many tokens of the prompt it has read")
    if not sent <= number <= sent + extra:
        raise ScoreError(f"the server has read {number} prompt tokens, and {sent} were sent")


def parse_log_probability(value: Any) -> float:
    """Return a log probability of a reply. Raises ImpossibleScore if no probability has it."""
    why = why_number_is_impossible(value, _LEAST, 0.0)
    if not why:
        return float(value)
    if isinstance(value, float) and value > 0:
        raise ImpossibleScore(f"the server gave a log probability above 0 ({value:.6g})")
    raise ImpossibleScore(f"the server gave a log probability that is {why}")


def parse_token_id(value: Any) -> int:
    """Return a token id of a reply. Raises ScoreError if it is impossible."""
    found = integer_or_none(value, 0, 2**31)
    if found is None:
        raise ScoreError("the server named a token by something that is not a token id")
    return found


def top_tokens_most_probable_first(
    entries: Iterable[tuple[Token, float]],
) -> tuple[tuple[Token, float], ...]:
    """Return the TOP most probable of `entries`, pairs (token, log probability), the most probable
    first. Raises ImpossibleScore if their probabilities add up to more than 1."""
    found = sorted(entries, key=lambda entry: -entry[1])[:TOP]
    mass = sum(math.exp(logged) for _, logged in found)
    if mass > 1 + _MASS_ERROR:
        raise ImpossibleScore(
            f"the server gave probabilities of one position that add up to {mass:.4g}"
        )
    return tuple(found)


def require_list_of_length(value: Any, count: int, what: str) -> Sequence[Any]:
    """Return a list of a reply that must have `count` entries. Raises ScoreError, in which `what`
    names the entries, if it has not."""
    if not isinstance(value, list):
        raise ScoreError(f"the server's answer has no {what}")
    if len(value) != count:
        raise ScoreError(f"the server gave {len(value)} {what}, and {count} were asked for")
    return value


def require_first_choice(reply: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the first choice of an OpenAI-style reply. Raises ScoreError if there is none."""
    choices = reply.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise ScoreError("the server's answer has no choices")
    return choices[0]


def require_object(value: Any, what: str) -> Mapping[str, Any]:
    """Return an object of a reply. Raises ScoreError, in which `what` names it, if it is none."""
    if not isinstance(value, dict):
        raise ScoreError(f"the server's answer has no {what}")
    return value


def _error_text_in_reply(reply: Reply) -> str:
    content = reply.body if reply.body is not None else reply.text
    for name in ("error", "detail", "message"):
        if isinstance(content, dict) and content.get(name):
            content = content[name]
    words = " ".join(clean_text(str(content)).split())[:_MOST_SHOWN]
    return f": {words}" if words else ""

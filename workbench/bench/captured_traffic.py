"""Requests that went through a port, as rows of a trace without their text.

A row has the time of a request, the lengths of its prompt and answer, the numbers of the blocks of
its prompt, and the conversation that it continues. Equal beginnings of prompts get equal numbers.
Which beginnings are equal is known by hashes with a random key, which are only in the memory of
this process: neither text nor a hash of text leaves it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from workbench.bench.http1 import HttpError, make_body_decoder
from workbench.bench.trace_conversations import estimate_tokens
from workbench.model.known_values import known_values

CharactersAndTokens = tuple[int, int]  # of a text up to some position
BLOCK_TOKENS = 16  # of a number, as in vLLM's own prefix cache
MAX_REMEMBERED_PIECES = 1 << 20  # that are remembered: about 140 MB
_PIECE_CHARACTERS = 64  # characters of a prompt that have one hash
_DIGEST_BYTES = 8
# the fields of requests that limit the tokens of an answer
_ANSWER_LENGTH_FIELDS = (
    *("max_tokens", "max_completion_tokens", "max_output_tokens"),
    *("max_new_tokens", "n_predict"),
)
_MOST_TOKENS = 1_500_000  # of a prompt or an answer: a row must fit into a line
_FIRST_BLOCK_BITS = 40  # of the number of a piece's first block, below its place
_FIRST_BLOCK_MASK = (1 << _FIRST_BLOCK_BITS) - 1


class Usage(NamedTuple):
    """The tokens that an answer reports, None if it does not."""

    prompt: int | None = None
    answer: int | None = None
    cached: int | None = None


class CapturedPrompt(NamedTuple):
    """What a request asks: its prompt in pieces of text, the parts of a conversation in turn, and
    how many tokens the answer may have. The parts are empty for a prompt that is no
    conversation."""

    texts: list[str]
    said: list[str]
    most_tokens: int | None = None


class LeftOutError(Exception):
    """Raised for a request that gets no row. Its text is the reason, which follows a count: "3
    ended before the first token"."""


class CapturedRow(NamedTuple):
    """One line of a trace. `reused_tokens` counts the tokens of the blocks with which an earlier
    prompt began. `estimated` says that a length comes from characters."""

    at_ms: int
    prompt_tokens: int
    answer_tokens: int
    blocks: list[int]
    reused_tokens: int
    conversation: int | None
    delay_ms: int | None
    estimated: bool

    def trace_line(self) -> str:
        """Return the request as a JSON line of a trace file, with times in milliseconds."""
        fields: dict[str, Any] = {
            "timestamp": self.at_ms,
            "input_length": self.prompt_tokens,
            "output_length": self.answer_tokens,
            "hash_ids": self.blocks,
        }
        if self.conversation is not None:
            fields["session_id"] = str(self.conversation)
        if self.delay_ms is not None:
            fields["delay"] = self.delay_ms
        if self.estimated:
            fields["estimated"] = True
        return json.dumps(fields, separators=(",", ":")) + "\n"


class CapturedTraffic:
    """Makes rows of exchanges, and remembers the beginnings of their prompts."""

    def __init__(self) -> None:
        key = os.urandom(32)
        self._blocks = _PromptBlocks(key)
        self._turns = _ConversationTurns(key)
        self._characters = self._tokens = 0  # of the prompts whose tokens were reported

    def row_and_usage_of_exchange(
        self,
        path: str,
        request: bytes,
        answer: bytes,
        *,
        encoding: str = "",
        at_ms: float,
        end_ms: float,
    ) -> tuple[CapturedRow, Usage]:
        """Return the row of a request, and the tokens that its answer reports. Raises LeftOutError,
        with the reason, if the request gets no row."""
        asked = _read_prompt_of_request(path, request)
        answered = _decode_body_or_empty(answer, encoding)
        usage, characters = _parse_usage_and_text(answered)
        text = "".join(asked.texts)
        prompt_tokens = usage.prompt or self._estimate_tokens(text)
        answer_tokens = usage.answer
        if answer_tokens is None:
            estimated = estimate_tokens(characters) if characters else 0
            answer_tokens = min(known_values((estimated, asked.most_tokens)))
        if not answer_tokens:
            raise LeftOutError("ended before the first token")
        if max(prompt_tokens, answer_tokens) > _MOST_TOKENS:
            raise LeftOutError("that is too long for a trace")
        if usage.prompt:
            self._characters += len(text)
            self._tokens += usage.prompt
        conversation, delay_ms = self._turns.record_turn(asked.said, at_ms, end_ms)
        blocks, known_count = self._blocks.assign_block_numbers(text, prompt_tokens)
        row = CapturedRow(
            at_ms=round(at_ms),
            prompt_tokens=prompt_tokens,
            answer_tokens=answer_tokens,
            blocks=blocks,
            reused_tokens=BLOCK_TOKENS * known_count,
            conversation=conversation,
            delay_ms=delay_ms,
            estimated=None in (usage.prompt, usage.answer),
        )
        return row, usage

    def _estimate_tokens(self, text: str) -> int:
        """Return about how many tokens a prompt has, from its characters. The tokens per character
        are those of the prompts so far whose answers reported their tokens, or else a fixed
        number."""
        if not self._characters:
            return estimate_tokens(text)
        return max(1, round(len(text) * self._tokens / self._characters))


# ---- the blocks of a prompt


class NumberedBlocks(NamedTuple):
    """The numbers of the blocks of a prompt, of which the first `known_count` were known."""

    numbers: list[int]
    known_count: int


class _PromptBlocks:
    """Numbers the blocks of prompts. Two prompts have equal numbers up to the last block that lies
    in their common beginning.

    A prompt is cut into pieces of text. The tokens of a piece follow from its share of the
    characters, and stay those of the first prompt that had it."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        # by the hash of a prompt up to the end of a piece: the tokens up to there, and the number
        # of the first block that ends in it
        self._known: dict[int, int] = {}
        self._next = 0

    def assign_block_numbers(self, text: str, tokens: int) -> NumberedBlocks:
        """Return the numbers of the blocks of a prompt, and how many of them are known."""
        blocks: list[int] = []
        known: tuple[int, int] | None = None  # where the known beginning ends: characters, tokens
        reused = 0
        at = end_before = 0
        for end, name in self._piece_ends_and_prefix_hashes(text):
            found = self._known.pop(name, None)
            if known is None and found is not None and found >> _FIRST_BLOCK_BITS <= tokens:
                upto, first = found >> _FIRST_BLOCK_BITS, found & _FIRST_BLOCK_MASK
            else:
                if known is None:
                    known, reused = (end_before, at), len(blocks)
                upto = _tokens_up_to_character(end, known, (len(text), tokens))
                first = self._next
                self._next += upto // BLOCK_TOKENS - at // BLOCK_TOKENS
            many = upto // BLOCK_TOKENS - at // BLOCK_TOKENS
            blocks += range(first, first + many)
            self._known[name] = (upto << _FIRST_BLOCK_BITS) + first  # the newest one
            at, end_before = upto, end
        if known is None:
            reused = len(blocks)
        left = -(-tokens // BLOCK_TOKENS) - len(blocks)
        blocks += range(self._next, self._next + left)
        self._next += left
        self._discard_oldest_pieces()
        return NumberedBlocks(blocks, reused)

    def _piece_ends_and_prefix_hashes(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield (end, hash of the text up to there) for each whole piece of a prompt."""
        data = text.encode("utf-32-le", "surrogatepass")
        width = 4 * _PIECE_CHARACTERS
        running = hashlib.blake2b(key=self._key, digest_size=_DIGEST_BYTES)
        for end in range(width, len(data) + 1, width):
            running.update(data[end - width : end])
            yield end // 4, int.from_bytes(running.copy().digest(), "little")

    def _discard_oldest_pieces(self) -> None:
        """Discard the pieces that no prompt had for the longest time."""
        too_many = len(self._known) - MAX_REMEMBERED_PIECES
        if too_many > 0:
            oldest = iter(self._known)
            for name in [next(oldest) for _ in range(too_many)]:
                del self._known[name]


def _tokens_up_to_character(
    character: int, begin: CharactersAndTokens, end: CharactersAndTokens
) -> int:
    """Return the tokens up to a character between two positions of a text."""
    share = (character - begin[0]) / max(1, end[0] - begin[0])
    return begin[1] + int(share * (end[1] - begin[1]))


# ---- the turns of a conversation


class ConversationTurn(NamedTuple):
    """The number of the conversation that a request belongs to, and how many milliseconds after the
    answer before it the request came. Both are None for a prompt that is no conversation, and
    `delay_ms` is None for its first request."""

    conversation: int | None = None
    delay_ms: int | None = None


class _ConversationTurns:
    """Finds the request that a request continues: one whose messages it begins with, followed by an
    answer."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        # by the hash of all messages of a request: its conversation, and when its answer ended
        self._ended: dict[bytes, list[tuple[int, float]]] = {}
        self._next = 0

    def record_turn(self, messages: Sequence[str], at_ms: float, end_ms: float) -> ConversationTurn:
        """Return which turn of which conversation a request is, and store it for the next turn."""
        if not messages:
            return ConversationTurn()
        running = hashlib.blake2b(key=self._key, digest_size=16)
        hashes: list[bytes] = []  # of the messages up to each one
        for one in messages:
            running.update(f"{len(one)}:".encode() + one.encode("utf-8", "surrogatepass"))
            hashes.append(running.copy().digest())
        number, delay = self._find_continued_turn(hashes[:-1], at_ms)
        if number is None:
            number = self._next
            self._next += 1
        self._ended.setdefault(hashes[-1], []).append((number, end_ms))
        if len(self._ended) > MAX_REMEMBERED_PIECES:
            del self._ended[next(iter(self._ended))]
        return ConversationTurn(number, delay)

    def _find_continued_turn(self, hashes: Sequence[bytes], at_ms: float) -> ConversationTurn:
        for name in reversed(hashes):
            waiting = self._ended.get(name, [])
            ended = [one for one in waiting if one[1] <= at_ms]
            if ended:
                waiting.remove(ended[-1])
                if not waiting:
                    del self._ended[name]
                number, end_ms = ended[-1]
                return ConversationTurn(number, round(at_ms - end_ms))
        return ConversationTurn()


# ---- requests


def _read_prompt_of_request(path: str, request: bytes) -> CapturedPrompt:
    try:
        fields = json.loads(request)
    except (ValueError, RecursionError):
        raise LeftOutError("whose body is not JSON") from None
    if not isinstance(fields, dict):
        raise LeftOutError("whose body is not JSON")
    return PROMPT_READERS_BY_PATH[path](fields)._replace(most_tokens=_read_answer_limit(fields))


def _dict_field_or_empty(fields: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the JSON object of a field; an empty one if the field has none."""
    value = fields.get(name)
    return value if isinstance(value, dict) else {}


def _read_answer_limit(fields: dict[str, Any]) -> int | None:
    """Return how many tokens the answer to a request may have; None if the request does not say."""
    counts = []
    for place in (fields, _dict_field_or_empty(fields, "sampling_params")):
        counts += [_read_token_count(place, name) for name in _ANSWER_LENGTH_FIELDS]
    return min(filter(None, counts), default=None)


def _read_chat_prompt(fields: dict[str, Any]) -> CapturedPrompt:
    messages = _require_filled_list(fields.get("messages"), "without messages")
    return _join_conversation_prompt(fields, ("tools", "system"), messages)


def _require_filled_list(value: Any, why_left_out: str) -> list[Any]:
    """Return `value` if it is a list with entries. Raises LeftOutError, with this reason, if
    not."""
    if not isinstance(value, list) or not value:
        raise LeftOutError(why_left_out)
    return value


def _read_responses_api_prompt(fields: dict[str, Any]) -> CapturedPrompt:
    if fields.get("previous_response_id"):
        raise LeftOutError("that continue an answer which the server keeps")
    items = fields.get("input")
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    messages = _require_filled_list(items, "without an input")
    return _join_conversation_prompt(fields, ("tools", "instructions"), messages)


def _join_conversation_prompt(
    fields: dict[str, Any], leading_fields: Sequence[str], messages: list[Any]
) -> CapturedPrompt:
    """Return the prompt that consists of the fields `leading_fields`, which engines put before the
    messages, and of the messages. A leading field that is absent or empty is left out."""
    said = [_extract_text(fields[name]) for name in leading_fields if fields.get(name)]
    for message in messages:
        said.append(f"{_read_role(message)}\n{_extract_text(message)}\n")
    return CapturedPrompt(said, said)


def _read_role(message: Any) -> str:
    if not isinstance(message, dict):
        return ""
    return str(message.get("role", ""))


def _read_completion_prompt(fields: dict[str, Any]) -> CapturedPrompt:
    prompt = fields.get("prompt") or fields.get("text") or fields.get("input_ids")
    if not prompt:
        raise LeftOutError("without a prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        [prompt] = prompt
    if isinstance(prompt, str):
        return CapturedPrompt([prompt], [])
    if not isinstance(prompt, list):
        raise LeftOutError("whose prompt is neither text nor token ids")
    if not all(isinstance(one, int) for one in prompt):
        raise LeftOutError("with several prompts")
    # as many characters for each token as a token of text has, about
    return CapturedPrompt(["".join(map("{:04x}".format, prompt))], [])


def _extract_text(value: Any) -> str:
    """Return the text in a message. Pictures and other data stand for themselves by a hash, because
    their characters are no tokens."""
    if isinstance(value, str):
        if value.startswith("data:"):
            return hashlib.blake2b(
                value.encode("utf-8", "surrogatepass"), digest_size=16
            ).hexdigest()
        return value
    if isinstance(value, dict):
        return "".join(
            _extract_text(part) for name, part in value.items() if name not in ("role", "type")
        )
    if isinstance(value, list):
        return "".join(map(_extract_text, value))
    return "" if value is None else str(value)


PROMPT_READERS_BY_PATH: dict[str, Callable[[dict[str, Any]], CapturedPrompt]] = {
    "/v1/chat/completions": _read_chat_prompt,
    "/chat/completions": _read_chat_prompt,
    "/v1/completions": _read_completion_prompt,
    "/v1/messages": _read_chat_prompt,
    "/v1/responses": _read_responses_api_prompt,
    "/generate": _read_completion_prompt,
    "/completion": _read_completion_prompt,
    "/completions": _read_completion_prompt,
}


# ---- answers


def _decode_body_or_empty(answer: bytes, encoding: str) -> bytes:
    try:
        decode = make_body_decoder(encoding)
        return answer if decode is None else decode(answer, False)
    except HttpError:
        return b""


def _parse_usage_and_text(answer: bytes) -> tuple[Usage, str]:
    """Return the tokens that an answer reports, and its text. The text is "" if the answer reports
    its own tokens, because it is not needed then."""
    usage = Usage()
    for document in _parse_json_objects(answer, needed=(b'"usage"', *_TOKEN_COUNT_KEYS)):
        usage = _higher_usage_counts(usage, _parse_usage(document))
    if usage.answer is not None:
        return usage, ""
    return usage, "".join(map(_parse_answer_text, _parse_json_objects(answer)))


# counts of tokens outside of a usage: of SGLang's /generate, and of llama-server's /completion
_TOKEN_COUNT_KEYS = (b'"completion_tokens"', b'"tokens_predicted"')


def _parse_json_objects(
    answer: bytes, needed: Sequence[bytes] = (b"",)
) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of an answer that contain one of the `needed` texts."""
    for data in _split_json_texts(answer):
        if not any(name in data for name in needed):
            continue
        try:
            document = json.loads(data)
        except (ValueError, RecursionError):
            continue  # [DONE], or the rest of a stream that was cut
        if isinstance(document, dict):
            yield document


def _split_json_texts(answer: bytes) -> Sequence[bytes]:
    """Return the data of each event of a stream. An answer that is no stream is one text."""
    if not answer.lstrip().startswith((b"data:", b"event:", b":")):
        return [answer]
    lines = answer.split(b"\n")
    return [line.removeprefix(b"data:") for line in lines if line.startswith(b"data:")]


def _parse_usage(document: dict[str, Any]) -> Usage:
    for place in (
        document,
        _dict_field_or_empty(document, "message"),
        _dict_field_or_empty(document, "response"),
    ):
        usage = place.get("usage")
        if isinstance(usage, dict):
            return _parse_token_counts(usage)
    counts = document.get("meta_info")
    if isinstance(counts, dict):
        names = ("prompt_tokens", "completion_tokens", "cached_tokens")
        return Usage(*(_read_token_count(counts, name) for name in names))
    return Usage(
        _read_token_count(document, "tokens_evaluated"),
        _read_token_count(document, "tokens_predicted"),
    )


def _parse_token_counts(usage: dict[str, Any]) -> Usage:
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
    cached = None
    if isinstance(details, dict):
        cached = _read_token_count(details, "cached_tokens")
    read = _read_token_count(usage, "cache_read_input_tokens")
    created = _read_token_count(usage, "cache_creation_input_tokens")
    prompt = _first_token_count_in(usage, "prompt_tokens", "input_tokens")
    if prompt is not None:
        prompt += sum(known_values((read, created)))
    answer = _first_token_count_in(usage, "completion_tokens", "output_tokens")
    return Usage(prompt, answer, read if cached is None else cached)


def _first_token_count_in(fields: dict[str, Any], *names: str) -> int | None:
    counts = known_values(_read_token_count(fields, name) for name in names)
    return next(iter(counts), None)


def _read_token_count(fields: dict[str, Any], name: str) -> int | None:
    value = fields.get(name)
    if type(value) is not int or value < 0:  # a bool is an int, but no count
        return None
    return value


def _higher_usage_counts(one: Usage, other: Usage) -> Usage:
    """Return the higher of each count; None for a count that neither has. A stream counts up, and
    may report one count early."""
    pairs = zip(one, other, strict=True)
    return Usage(*(max(known_values(pair), default=None) for pair in pairs))


def _parse_answer_text(document: dict[str, Any]) -> str:
    """Return the text of the answer that one of its JSON objects has; "" if it has none."""
    choices = document.get("choices")
    if isinstance(choices, list):
        text = ""
        for one in choices:
            if isinstance(one, dict):
                text += _extract_text(one.get("delta") or one.get("message") or one.get("text"))
        return text
    for name in ("content", "delta", "text"):
        if document.get(name):
            return _extract_text(document[name])
    return ""

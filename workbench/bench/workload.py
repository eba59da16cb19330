"""The requests of a benchmark: synthetic prompts of a given length or the user's own prompts, in a
JSON body without fields that the engine rejects."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

try:
    # hashlib would load OpenSSL
    from _sha3 import shake_128  # type: ignore[import-not-found,unused-ignore]
except ImportError:  # a Python without its own hash functions
    from hashlib import shake_128

from workbench.bench.real_text import RealText
from workbench.bench.trace_load import BLOCK_TOKENS, trace_load
from workbench.bench.trace_text import PASSAGE_SEPARATOR, TraceText
from workbench.model.bench import BenchSpec

# Common English words: each is one token, with the space before it, in the BPE vocabularies in use.
_COMMON_WORDS = (
    "time year people way day man thing woman life child world school state family student group "
    "country problem hand "
    "part place case week company system program question work government number night point home "
    "water room mother "
    "area money story fact month lot right study book eye job word business issue side kind head "
    "house service friend "
    "father power hour game line end member law car city community name president team minute idea "
    "body information "
    "back parent face level office door health person art war history party result change morning "
    "reason research girl "
    "guy moment air teacher force education"
)
_VOCABULARY = tuple(_COMMON_WORDS.split())
# Each word has two or three bytes.
_WORD_OF_BYTE = tuple(_VOCABULARY[byte % len(_VOCABULARY)] for byte in range(256))
_TASK_PREFIX = "Continue this list of words: "
_TEXT_TASK_PREFIX = "Continue this text:\n\n"
_BLOCK_OFFSET_STEP = 0.41421356  # of the offsets of their excerpts; no multiple is near another
_TEXT_FIXED_TOKENS = 24  # of the digits, the task and a chat template, about
_USAGE_IN_CHUNKS_OPTION = "continuous_usage_stats"  # of stream_options; vLLM and SGLang know it
# Between the marks of two successive requests, about the golden ratio of their range, so that their
# first digits differ. It has no factor in common with 10**12, so no two marks of a run are equal.
_MARK_STEP = 618_033_988_751
_MOST_KEPT_BYTES = 4096  # of a body: more would take much memory for little
_PROMPT_PLACEHOLDER = "\0prompt\0"  # of the prompt in a body: no engine gets it
_encode_json = json.JSONEncoder(ensure_ascii=False).encode  # `json.dumps` would make one each time
_DROPPABLE_FIELDS = ("ignore_eos", "min_tokens", "temperature", "stream_options", "encoding_format")


def unique_prompt_mark(salt: str, request_name: str) -> str:
    """Return twelve digits that identify one request of one run. `request_name` is "r/INDEX" for a
    measured request and "w/INDEX" for a warm-up request.

    The digits stand at the front of the prompt, so that the prefix cache contains no part of it.
    The salt alone is not enough, because all prompts of a run would begin with it. Digits, unlike
    letters, take the same number of tokens in every prompt.
    """
    kind, _, number = request_name.partition("/")
    return f"{(_first_mark_number(salt, kind) + _MARK_STEP * int(number)) % 10**12:012d}"


@cache
def _first_mark_number(salt: str, kind: str) -> int:
    return random.Random(f"{salt}/{kind}").randrange(10**12)


def has_messages(prompt: str) -> bool:
    """Return whether an entry of `BenchSpec.prompts` is a list of messages and not a text."""
    return prompt.startswith(("[", '{"messages"'))


def split_prompt_and_answer_length(entry: Any) -> tuple[Any, int | None]:
    """Return (text or messages, requested answer length) of a decoded entry of `BenchSpec.prompts`.
    The length is None if the entry contains none."""
    if isinstance(entry, dict):
        return entry.get("messages", entry.get("prompt")), entry["max_tokens"]
    return entry, None


@cache
def make_real_text_once(texts: tuple[str, ...]) -> RealText:
    """Return the texts of `BenchSpec.texts` as a ring. Equal texts return the same ring."""
    return RealText(texts)


class Workload:
    """Makes the body of each request of a run. `words` is the number of words, or of pieces of real
    text, in a synthetic prompt. This number comes from the server's tokenizer
    (`spec.prompt_words`), otherwise from prompt lengths measured in the warm-up
    (`calibrate_words`). For a trace, it is the number of pieces for 512 tokens."""

    def __init__(self, spec: BenchSpec) -> None:
        self.spec = spec
        self.dropped: list[str] = []
        load = trace_load(spec.trace) if spec.trace else None
        self._trace = None if spec.has_conversations else load
        self._talks = load if spec.has_conversations else None
        self._load = load
        uncounted = max(1, spec.input_tokens) if self._trace is None else BLOCK_TOKENS
        self.words = spec.prompt_words or uncounted
        self.calibrated = False
        self._own: list[Any] = []
        self._own_lengths: list[int | None] = []
        for one in spec.prompts:
            prompt, length = split_prompt_and_answer_length(json.loads(one))
            self._own.append(prompt)
            self._own_lengths.append(length)
        # whether replies must have an exact length; the user's `extra_body` takes precedence
        wanted = spec.extra_body.get("ignore_eos", spec.ignore_eos)
        self._requires_exact_length = bool(wanted) and spec.endpoint != "embeddings"
        self._length_field = "max_tokens"
        self._asks_usage = False  # although the answer is no stream
        # bodies without their prompt, by what else may differ between two of them
        self._bodies: dict[tuple[object, ...], list[str]] = {}
        # bodies with an excerpt, around their mark, by all that differs between two of them
        self._around_marks: dict[tuple[object, ...], tuple[bytes, bytes]] = {}
        most = max(self.words, 4 * spec.input_tokens + 16)
        self._real = make_real_text_once(spec.texts) if spec.has_real_text else None
        # prompts that differ from others only in their mark
        self._has_excerpts = (
            self._real is not None and not load and not self._own and not spec.length_spread
        )
        self._trace_text: TraceText | None = None
        if self._trace is not None and self._real is not None:
            self._trace_text = TraceText(self._real, spec.passage_tokens)
        drawn = most if spec.shared_prefix and self._real is None else 0
        self._shared = _random_words(random.Random(spec.seed), drawn)

    def max_tokens(self, index: int, *, warmup: bool) -> int:
        """Return the token limit of request `index`. It varies within `spec.length_spread`, and
        depends only on the seed and the index, so that A and B of a comparison request equal
        lengths."""
        spec = self.spec
        if self._load is not None:
            return spec.max_tokens if warmup else self._load.output_tokens[index]
        if self._own and (length := self._own_lengths[index % len(self._own)]) is not None:
            return length
        if not spec.length_spread:
            return spec.max_tokens
        low, high = (
            max(1, round(spec.max_tokens * (1 + way * spec.length_spread))) for way in (-1, 1)
        )
        return random.Random(f"{spec.seed}/length/{_request_name(index, warmup)}").randint(
            low, high
        )

    def asked_tokens(self, index: int, *, warmup: bool) -> int | None:
        """Return the exact number of tokens that the reply to request `index` must have; None if
        the engine may end the reply earlier."""
        if not self._requires_exact_length or "ignore_eos" in self.dropped:
            return None
        return self.max_tokens(index, warmup=warmup)

    def synthetic_prompt(self, index: int, *, warmup: bool) -> str:
        """Return the synthetic prompt of request `index`. Its words depend only on the seed and the
        index, so that A and B of a comparison get equal words.

        Digits made from the salt (`unique_prompt_mark`) are at the front, so that no two prompts of
        any runs share a prefix. With `spec.shared_prefix`, the digits are at the end.
        """
        spec = self.spec
        if self._trace is not None:
            return self._trace_prompt(index, warmup)
        own = _request_name(index, warmup)
        mark = unique_prompt_mark(spec.salt, own)
        if self._real is not None:
            asked = _TEXT_TASK_PREFIX + self._real.excerpt(
                self._first_piece_of_request(index, warmup), self.words
            )
            return f"{asked} [{mark}]" if spec.shared_prefix else f"[{mark}] {asked}"
        if spec.shared_prefix:
            return f"{_TASK_PREFIX}{' '.join(self._shared[: self.words])} [{mark}]"
        chosen = shake_128(f"{spec.seed}/{own}".encode()).digest(self.words)
        return f"[{mark}] {_TASK_PREFIX}{' '.join([_WORD_OF_BYTE[byte] for byte in chosen])}"

    def _trace_prompt(self, index: int, warmup: bool) -> str:
        """Return the prompt of request `index` of the trace: one text for each of its blocks. The
        text of a block that is shorter in one prompt than in another is the beginning of the other,
        so prompts share as many tokens as their blocks say, and none with prompts of other runs."""
        assert self._trace is not None
        if warmup:
            return self._block_text("w", index, self._warmup_prompt_tokens(index), begins=True)
        blocks = self._trace.block_numbers_and_tokens(index)
        texts = [
            self._block_text("b", number, tokens, begins=not place)
            for place, (number, tokens) in enumerate(blocks)
        ]
        return PASSAGE_SEPARATOR.join(texts)

    def _block_text(self, kind: str, number: int, tokens: int, *, begins: bool) -> str:
        """Return the text of block `number` with about `tokens` tokens. `begins` says whether it
        begins a prompt."""
        assert self._trace_text is not None
        offset = _random_offset_fraction(self.spec.seed, kind) + _BLOCK_OFFSET_STEP * number
        mark = unique_prompt_mark(self.spec.salt, f"{kind}/{number}")
        return self._trace_text.block_text(mark, offset, tokens, begins=begins)

    def _warmup_prompt_tokens(self, index: int) -> int:
        """Return the length of the prompt of request `index` of a trace's warm-up: in turn the mean
        of the trace and a quarter of it, since two lengths tell the chat template from the text."""
        mean = self.spec.input_tokens
        return max(1, mean // 4) if index % 2 else mean

    def _first_piece_of_request(self, index: int, warmup: bool) -> int:
        """Return the first piece of the excerpt of request `index`."""
        assert self._real is not None
        spec = self.spec
        if spec.shared_prefix:
            return self._real.find_first_piece_of_excerpt(
                _random_offset_fraction(spec.seed, "shared"), 0
            )
        return self._real.find_first_piece_of_excerpt(
            _random_offset_fraction(spec.seed, "w" if warmup else "r"), index
        )

    def prompt_identity_without_mark(self, index: int) -> str:
        """Return a text that is equal for two requests whose prompts differ only in their mark."""
        if self._own:
            return f"{index % len(self._own)}"
        if self._talks is not None:
            return f"{index}"
        if self._trace is not None:
            return str(self._trace.block_numbers_and_tokens(index))
        if self._real is not None:
            return f"{self._first_piece_of_request(index, warmup=False)}"
        return "" if self.spec.shared_prefix else f"{index}"

    def prompt_fields(self, index: int, *, warmup: bool) -> dict[str, Any]:
        """Return the prompt of request `index` as part of its JSON body: {"prompt": text},
        {"input": text} or {"messages": [...]}."""
        return self.prompt_as_fields(self._prompt_of_request(index, warmup))

    def _prompt_of_request(self, index: int, warmup: bool) -> Any:
        """Return the prompt of request `index`: a text or messages. Of a conversation, all requests
        have one mark, so that each contains the one before."""
        if self._talks is not None and not warmup:
            mark = unique_prompt_mark(self.spec.salt, f"r/{self._talks.first_turn_index_of(index)}")
            return _put_mark_before_text(
                self._talks.messages_with_earlier_turns(index), f"[{mark}] "
            )
        if not self._own:
            return self.synthetic_prompt(index, warmup=warmup)
        asked = self._own[index % len(self._own)]
        if self.spec.shared_prefix:
            return asked
        return _put_mark_before_text(
            asked, f"[{unique_prompt_mark(self.spec.salt, _request_name(index, warmup))}] "
        )

    def prompt_as_fields(self, prompt: Any) -> dict[str, Any]:
        """Return `prompt`, a text or messages, as the fields of a JSON body that the endpoint takes
        it in: "prompt", "input" or "messages"."""
        if self.spec.endpoint == "completions":
            return {"prompt": prompt}
        if self.spec.endpoint == "embeddings":
            return {"input": prompt}
        if isinstance(prompt, str):
            prompt = [{"role": "user", "content": prompt}]
        return {"messages": prompt}

    def request_body(self, index: int, *, warmup: bool) -> bytes:
        """Return the JSON body of request `index`, encoded as UTF-8."""
        if not self._has_excerpts:
            return self._encode_request_body(index, warmup)
        # There are only some hundred excerpts. To put another mark into a body that was made before
        # takes a third of the time to make it.
        form = (
            self._first_piece_of_request(index, warmup),
            self.words,
            warmup,
            self._length_field,
            *self.dropped,
        )
        mark = unique_prompt_mark(self.spec.salt, _request_name(index, warmup)).encode()
        around = self._around_marks.get(form)
        if around is None:
            body = self._encode_request_body(index, warmup)
            before, _, after = body.partition(mark)
            if body.count(mark) != 1 or len(body) > _MOST_KEPT_BYTES:
                return body
            around = self._around_marks[form] = before, after
        return mark.join(around)

    def _encode_request_body(self, index: int, warmup: bool) -> bytes:
        length = self.max_tokens(index, warmup=warmup)
        asked = self._prompt_of_request(index, warmup)
        form = length, warmup, isinstance(asked, str), self._length_field, *self.dropped
        around = self._bodies.get(form)
        if around is None:
            place = _PROMPT_PLACEHOLDER if isinstance(asked, str) else [_PROMPT_PLACEHOLDER]
            whole = _encode_json(self._body_fields(place, length, warmup=warmup))
            around = whole.split(_encode_json(place))
            self._bodies[form] = around
        # the user's own fields may replace the prompt: then it has no place
        as_it_is = isinstance(asked, str) and not self._own and self._real is None
        quoted = f'"{asked}"' if as_it_is else _encode_json(asked)
        return quoted.join(around).encode("utf-8", "replace")

    def _body_fields(self, prompt: Any, length: int, *, warmup: bool) -> dict[str, Any]:
        spec = self.spec
        fields: dict[str, Any] = {"model": spec.model, **self.prompt_as_fields(prompt)}
        if spec.endpoint == "embeddings":
            fields["encoding_format"] = "base64"  # a quarter of the bytes of decimal numbers
        else:
            fields |= {
                self._length_field: length,
                "temperature": spec.temperature,
                "stream": spec.stream,
            }
        if spec.stream:
            fields["stream_options"] = {"include_usage": True} | self._chunk_usage_stream_option(
                warmup
            )
        elif self._asks_usage:
            fields["stream_options"] = {"include_usage": True}
        if self._requires_exact_length:
            fields |= {"ignore_eos": True, "min_tokens": length}
        fields |= spec.extra_body
        for name in self.dropped:
            fields.pop(name, None)
        return fields

    def _chunk_usage_stream_option(self, warmup: bool) -> dict[str, bool]:
        """Return the stream option that requests token usage in each chunk, or {} if it must not be
        requested.

        TPOT needs the number of tokens in the first chunk. The option is set in the warm-up only,
        so that it does not slow the measured requests. Without a warm-up, it is always set.
        """
        if _USAGE_IN_CHUNKS_OPTION in self.dropped:
            return {}
        if self.spec.warmup and not warmup:
            return {}
        return {_USAGE_IN_CHUNKS_OPTION: True}

    def request_usage_from_now_on(self) -> bool:
        """Request usage in answers that are not streamed, too, because one came without it.
        TabbyAPI needs that, and vLLM rejects it. Return False if nothing changes: the requests ask
        for usage already, or are streamed, or ask for embeddings."""
        if self.spec.stream or self._asks_usage or self.spec.endpoint == "embeddings":
            return False
        self._asks_usage = True
        self._bodies.clear()
        self._around_marks.clear()
        return True

    def drop_rejected_fields(self, status: int, message: str, sent: Mapping[str, Any]) -> bool:
        """React to an answer with status 400 or 422: leave out, from now on, the optional fields
        that its `message` names. `sent` is the parsed body of the request. Return whether the
        request should be sent again."""
        if status not in (400, 422):
            return False
        if "max_completion_tokens" in message and "max_tokens" in sent:
            self._length_field = "max_completion_tokens"
            return True
        named = [
            f
            for f in _DROPPABLE_FIELDS
            if f in sent and re.search(rf"(?<![a-z_]){f}(?![a-z_])", message)
        ]
        in_chunks = _USAGE_IN_CHUNKS_OPTION in (sent.get("stream_options") or ())
        if in_chunks and (
            _USAGE_IN_CHUNKS_OPTION in message or "stream_options" in named or not named
        ):
            named = [_USAGE_IN_CHUNKS_OPTION]
        elif self._asks_usage and not named and "stream_options" in sent:
            named = ["stream_options"]
        self.dropped += [f for f in named if f not in self.dropped]
        return bool(named)

    def calibrate_words(self, index_and_prompt_tokens: Sequence[tuple[int, int]]) -> None:
        """Adjust `words` so that prompts get the requested length. `index_and_prompt_tokens` has
        (number of a warm-up request, its tokens) as the server counted them, with the chat
        template, for prompts of the number of words so far.

        Nothing changes for the user's own prompts, or if the server's tokenizer already determined
        the length.
        """
        if self._own or self._talks is not None or self.spec.prompt_words:
            return
        wanted = self.spec.input_tokens
        if self._trace_text is not None:
            self._trace_text.fit_to_counted_lengths(
                [(self._warmup_prompt_tokens(i), tokens) for i, tokens in index_and_prompt_tokens]
            )
            self.words = max(1, round(BLOCK_TOKENS * self._trace_text.pieces_per_token))
            self.calibrated = True
            return
        prompt_tokens = round(
            sum(tokens for _, tokens in index_and_prompt_tokens) / len(index_and_prompt_tokens)
        )
        if self._real is None:
            per_word = sum(len(w) + 1 for w in _VOCABULARY) / len(_VOCABULARY)
            fixed = len(f"[{unique_prompt_mark(self.spec.salt, 'r/0')}] {_TASK_PREFIX}")
            characters = (fixed + per_word * self.words) * wanted / max(1, prompt_tokens)
            words = round((characters - fixed) / per_word)
        else:
            text_tokens = max(1, prompt_tokens - _TEXT_FIXED_TOKENS)
            words = round(self.words * (wanted - _TEXT_FIXED_TOKENS) / text_tokens)
        self.words = max(1, min(4 * wanted + 16, words))
        self.calibrated = True


def random_words_prompt(source: random.Random, words: int) -> str:
    """Return a synthetic prompt: a short instruction and `words` random words. The prompt has about
    `words` tokens."""
    return f"{_TASK_PREFIX}{' '.join(_random_words(source, words))}"


def _random_words(source: random.Random, count: int) -> list[str]:
    """Return `count` random words."""
    # a byte for each is enough, and `choices` takes four times as long
    return [_WORD_OF_BYTE[byte] for byte in source.randbytes(count)]


@cache
def _random_offset_fraction(seed: int, kind: str) -> float:
    return random.Random(f"{seed}/text/{kind}").random()


def _request_name(index: int, warmup: bool) -> str:
    return f"{'w' if warmup else 'r'}/{index}"


def _put_mark_before_text(prompt: Any, mark: str) -> Any:
    """Return the user's prompt (a text or messages) with `mark` in front of its text. In messages,
    the mark is in front of the text of the first one."""
    if isinstance(prompt, str):
        return mark + prompt
    first, *others = prompt
    content = first.get("content")
    if isinstance(content, list):  # parts: text, pictures
        return [{**first, "content": [{"type": "text", "text": mark}, *content]}, *others]
    return [{**first, "content": mark + (content or "")}, *others]

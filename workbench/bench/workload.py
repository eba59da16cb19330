"""What is asked: prompts of a given length or the person's own, and the JSON body, from which refused fields are
dropped."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping
from typing import Any

from workbench.model.bench import BenchSpec

# Common English words: with the space before them one token each in the BPE vocabularies in use.
_WORDS = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work government number night point home water room mother "
    "area money story fact month lot right study book eye job word business issue side kind head house service friend "
    "father power hour game line end member law car city community name president team minute idea body information "
    "back parent face level office door health person art war history party result change morning reason research girl "
    "guy moment air teacher force education"
)
_VOCABULARY = tuple(_WORDS.split())
_TASK = "Continue this list of words: "
_IN_CHUNKS = "continuous_usage_stats"  # of stream_options; vLLM and SGLang know it
_DROPPABLE = ("ignore_eos", "min_tokens", "temperature", "stream_options")


def request_mark(salt: str, own: str) -> str:
    """Twelve digits for one request (`own`: "r/12", "w/0") of one run. The salt itself at the front would be a prefix
    that all prompts of the run share; digits take the same number of tokens in every prompt, letters would not."""
    return f"{random.Random(f'{salt}/{own}').randrange(10**12):012d}"


def has_messages(prompt: str) -> bool:
    """Whether an entry of `BenchSpec.prompts` holds messages, not a text."""
    return prompt.startswith(("[", '{"messages"'))


def split(entry: Any) -> tuple[Any, int | None]:
    """An entry of `BenchSpec.prompts`, taken out of JSON: text or messages, and the length of its answer if given."""
    if isinstance(entry, dict):
        return entry.get("messages", entry.get("prompt")), entry["max_tokens"]
    return entry, None


class Workload:
    """Makes the body of each request. `words` of a synthetic prompt are as many as the server's tokenizer said
    (`spec.prompt_words`), else they follow the measured prompt length (`calibrate`)."""

    def __init__(self, spec: BenchSpec) -> None:
        self.spec = spec
        self.dropped: list[str] = []
        self.words = spec.prompt_words or max(1, spec.input_tokens)
        self.calibrated = False
        own = [split(json.loads(one)) for one in spec.prompts]
        self._own, self._own_lengths = [prompt for prompt, _ in own], [length for _, length in own]
        self._length_field = "max_tokens"
        most = max(self.words, 4 * spec.input_tokens + 16)
        self._shared = self._text(random.Random(spec.seed), most if spec.shared_prefix else 0)

    def max_tokens(self, index: int, *, warmup: bool) -> int:
        """The length that request `index` asks for: within `length_spread` of the spec's, from seed and index alone,
        so that A and B ask for the same."""
        spec = self.spec
        if self._own and (length := self._own_lengths[index % len(self._own)]) is not None:
            return length
        if not spec.length_spread:
            return spec.max_tokens
        low, high = (max(1, round(spec.max_tokens * (1 + way * spec.length_spread))) for way in (-1, 1))
        return random.Random(f"{spec.seed}/length/{_name(index, warmup)}").randint(low, high)

    def asked_tokens(self, index: int, *, warmup: bool) -> int | None:
        """The exact length that this reply must have, None where the engine may end earlier."""
        exact = self._exact and "ignore_eos" not in self.dropped
        return self.max_tokens(index, warmup=warmup) if exact else None

    @property
    def _exact(self) -> bool:
        """By what is sent: the user's own body fields stand over the spec."""
        return bool(self.spec.extra_body.get("ignore_eos", self.spec.ignore_eos))

    def prompt(self, index: int, *, warmup: bool) -> str:
        """A synthetic prompt. A mark made of the salt stands at the front, so that no two prompts share a prefix with
        each other or with another run's; with a shared prefix it stands at the end. The words depend on seed and index
        alone: A and B get the same."""
        spec = self.spec
        own = _name(index, warmup)
        mark = request_mark(spec.salt, own)
        if spec.shared_prefix:
            return f"{_TASK}{' '.join(self._shared[: self.words])} [{mark}]"
        words = self._text(random.Random(f"{spec.seed}/{own}"), self.words)
        return f"[{mark}] {_TASK}{' '.join(words)}"

    def fields(self, index: int, *, warmup: bool) -> dict[str, Any]:
        """`prompt` or `messages` of the request."""
        if self._own:
            asked = self._own[index % len(self._own)]
            if not self.spec.shared_prefix:
                asked = _marked(asked, f"[{request_mark(self.spec.salt, _name(index, warmup))}] ")
        else:
            asked = self.prompt(index, warmup=warmup)
        if self.spec.endpoint == "completions":
            return {"prompt": asked}
        return {"messages": [{"role": "user", "content": asked}] if isinstance(asked, str) else asked}

    def body(self, index: int, *, warmup: bool) -> bytes:
        spec = self.spec
        length = self.max_tokens(index, warmup=warmup)
        fields: dict[str, Any] = {"model": spec.model, **self.fields(index, warmup=warmup)}
        fields |= {self._length_field: length, "temperature": spec.temperature, "stream": spec.stream}
        if spec.stream:
            fields["stream_options"] = {"include_usage": True} | self._usage_in_chunks(warmup)
        if self._exact:
            fields |= {"ignore_eos": True, "min_tokens": length}
        fields |= spec.extra_body
        for name in self.dropped:
            fields.pop(name, None)
        return json.dumps(fields, ensure_ascii=False).encode("utf-8", "replace")

    def _usage_in_chunks(self, warmup: bool) -> dict[str, bool]:
        """Ask how many tokens the first chunk holds, which TPOT needs, of the warm-up: there it costs the counted
        requests nothing. Where there is none, of all."""
        wanted = (warmup or not self.spec.warmup) and _IN_CHUNKS not in self.dropped
        return {_IN_CHUNKS: True} if wanted else {}

    def drop_refused(self, status: int, said: str, sent: Mapping[str, Any]) -> bool:
        """After a 400 or 422 that names optional fields of `sent` (the parsed body): leave those out from now on.
        True when the request is worth sending again."""
        if status not in (400, 422):
            return False
        if "max_completion_tokens" in said and "max_tokens" in sent:
            self._length_field = "max_completion_tokens"
            return True
        named = [f for f in _DROPPABLE if f in sent and re.search(rf"(?<![a-z_]){f}(?![a-z_])", said)]
        in_chunks = _IN_CHUNKS in (sent.get("stream_options") or ())
        if in_chunks and (_IN_CHUNKS in said or "stream_options" in named or not named):
            named = [_IN_CHUNKS]
        self.dropped += [f for f in named if f not in self.dropped]
        return bool(named)

    def calibrate(self, prompt_tokens: int) -> None:
        """`prompt_tokens` is what the server counted for a prompt of the present length: sets `words` to match, at
        as many tokens per character as there were. (The chat template is taken for text: it is not known.) The
        person's own prompts, and a length by the server's tokenizer, stay as they are."""
        if self._own or self.spec.prompt_words:
            return
        wanted = self.spec.input_tokens
        per_word = sum(len(w) + 1 for w in _VOCABULARY) / len(_VOCABULARY)
        fixed = len(f"[{request_mark(self.spec.salt, '')}] {_TASK}")
        characters = (fixed + per_word * self.words) * wanted / max(1, prompt_tokens)
        self.words = max(1, min(4 * wanted + 16, round((characters - fixed) / per_word)))
        self.calibrated = True

    @staticmethod
    def _text(source: random.Random, count: int) -> list[str]:
        return source.choices(_VOCABULARY, k=count)


def _name(index: int, warmup: bool) -> str:
    return f"{'w' if warmup else 'r'}/{index}"


def _marked(asked: Any, mark: str) -> Any:
    """The person's prompt with `mark` in front of all its text: of the first message, where it is several."""
    if isinstance(asked, str):
        return mark + asked
    first, *others = asked
    content = first.get("content")
    if isinstance(content, list):  # parts: text, pictures
        return [{**first, "content": [{"type": "text", "text": mark}, *content]}, *others]
    return [{**first, "content": mark + (content or "")}, *others]

"""What is asked: prompts of about a given length, and the JSON body, from which refused fields are dropped."""

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
_DROPPABLE = ("ignore_eos", "min_tokens", "temperature", "stream_options")


def request_mark(salt: str, own: str) -> str:
    """Ten hexadecimal digits for one request (`own`: "r/12", "w/0") of one run. The salt itself at the front would be
    a prefix that all prompts of the run share."""
    return f"{random.Random(f'{salt}/{own}').getrandbits(40):010x}"


class Workload:
    """Makes the body of each request. `words` follows the measured prompt length (`calibrate`)."""

    def __init__(self, spec: BenchSpec) -> None:
        self.spec = spec
        self.dropped: list[str] = []
        self.words = max(1, spec.input_tokens)
        self.calibrated = False
        self._shared = self._text(random.Random(spec.seed), 4 * spec.input_tokens + 16)

    @property
    def asked_tokens(self) -> int | None:
        """The exact length that a reply must have, None where the engine may end earlier."""
        return self.spec.max_tokens if self.spec.ignore_eos and "ignore_eos" not in self.dropped else None

    def prompt(self, index: int, *, warmup: bool) -> str:
        """A mark made of the salt stands at the front, so that no two prompts share a prefix with each other or with
        another run's; with a shared prefix it stands at the end. The words depend on seed and index alone: A and B
        get the same."""
        spec = self.spec
        own = f"{'w' if warmup else 'r'}/{index}"
        mark = request_mark(spec.salt, own)
        if spec.shared_prefix:
            return f"{_TASK}{' '.join(self._shared[: self.words])} [{mark}]"
        words = self._text(random.Random(f"{spec.seed}/{own}"), self.words)
        return f"[{mark}] {_TASK}{' '.join(words)}"

    def body(self, index: int, *, warmup: bool) -> bytes:
        spec = self.spec
        text = self.prompt(index, warmup=warmup)
        fields: dict[str, Any] = {"model": spec.model}
        if spec.endpoint == "completions":
            fields["prompt"] = text
        else:
            fields["messages"] = [{"role": "user", "content": text}]
        fields |= {"max_tokens": spec.max_tokens, "temperature": spec.temperature, "stream": True}
        fields["stream_options"] = {"include_usage": True}
        if spec.ignore_eos:
            fields |= {"ignore_eos": True, "min_tokens": spec.max_tokens}
        fields |= spec.extra_body
        for name in self.dropped:
            fields.pop(name, None)
        return json.dumps(fields, ensure_ascii=False).encode()

    def drop_refused(self, status: int, said: str, sent: Mapping[str, Any]) -> bool:
        """After a 400 or 422 that names optional fields of `sent` (the parsed body): leave those out from now on.
        True when the request is worth sending again."""
        if status not in (400, 422):
            return False
        named = [f for f in _DROPPABLE if f in sent and re.search(rf"(?<![a-z_]){f}(?![a-z_])", said)]
        self.dropped += [f for f in named if f not in self.dropped]
        return bool(named)

    def calibrate(self, prompt_tokens: int) -> None:
        """`prompt_tokens` is what the server counted for a prompt of the present length: sets `words` to match, at
        as many tokens per character as there were. (The chat template is taken for text: it is not known.)"""
        wanted = self.spec.input_tokens
        per_word = sum(len(w) + 1 for w in _VOCABULARY) / len(_VOCABULARY)
        fixed = len(f"[{request_mark(self.spec.salt, '')}] {_TASK}")
        characters = (fixed + per_word * self.words) * wanted / max(1, prompt_tokens)
        self.words = max(1, min(4 * wanted + 16, round((characters - fixed) / per_word)))
        self.calibrated = True

    @staticmethod
    def _text(source: random.Random, count: int) -> list[str]:
        return source.choices(_VOCABULARY, k=count)

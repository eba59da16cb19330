"""llama-server: one token in each request, after a prompt that grows on one slot.

It gives no log probabilities of a prompt (ggml-org/llama.cpp#27174). A bias forces the wanted
token, whose log probability is that before the bias. If this token is not a complete character, the
answer has no probabilities at all; then a printable token is forced, and the wanted one is looked
for among the most probable ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from workbench.model.quality import ScoredPosition, Token
from workbench.model.untrusted_text import as_list
from workbench.quality.lanes.base import (
    TOP,
    Prompt,
    ScoreError,
    ScoringInterface,
    check_prompt_token_count,
    parse_log_probability,
    parse_token_id,
    require_list_of_length,
    require_object,
    top_tokens_most_probable_first,
)

_PRINTABLE = "a"
_BIAS = 1000.0


class LlamaServerInterface(ScoringInterface):
    """A llama-server."""

    defect = "if it speculates, this is ggml-org/llama.cpp#27972: all log probabilities are 0"
    _printable: int | None = None

    async def tokenize(self, text: str) -> Prompt:
        body = {"content": text, "add_special": True, "parse_special": False}
        return Prompt(text, await self.request_token_ids("/tokenize", body))

    async def score_next(self, prompt: Prompt, position: int, slot: int = 0) -> ScoredPosition:
        wanted = prompt.ids[position]
        reply = await self._request_completion(prompt.ids[:position], 1, slot, forced_token=wanted)
        entries = reply.get("completion_probabilities")
        if entries:
            [entry] = require_list_of_length(entries, 1, "positions")
            scored = self._parse_scored_position(entry)
            if scored.token != wanted:
                raise ScoreError(
                    "the server does not score a token that a bias forces (logit_bias)"
                )
            return scored
        if self._printable is None:
            body = {"content": _PRINTABLE, "add_special": False}
            self._printable = (await self.request_token_ids("/tokenize", body))[-1]
        reply = await self._request_completion(
            prompt.ids[:position], 1, slot, forced_token=self._printable
        )
        [entry] = require_list_of_length(reply.get("completion_probabilities"), 1, "positions")
        top = self._parse_scored_position(entry).top
        return ScoredPosition(wanted, dict(top).get(wanted), top)

    async def generate_answer(
        self, prompt: Prompt, tokens: int, slot: int = 0
    ) -> tuple[ScoredPosition, ...]:
        reply = await self._request_completion(prompt.ids, tokens, slot)
        made = reply.get("tokens")
        listed = require_list_of_length(made, len(as_list(made)), "tokens of the answer")
        ids = [parse_token_id(one) for one in listed]
        entries = reply.get("completion_probabilities") or []
        scored = [
            self._parse_scored_position(entry) for entry in entries if isinstance(entry, dict)
        ]
        return _align_scores_to_tokens(ids, scored)

    async def _request_completion(
        self, ids: tuple[int, ...], tokens: int, slot: int, forced_token: int | None = None
    ) -> Mapping[str, Any]:
        body: dict[str, Any] = {
            "prompt": list(ids),
            "n_predict": tokens,
            "n_probs": TOP,
            "temperature": -1,  # greedy, with the probabilities of the softmax
            "cache_prompt": True,
            "id_slot": slot,
            "return_tokens": True,
        }
        if forced_token is not None:
            body["logit_bias"] = [[forced_token, _BIAS]]
        reply = await self.post("/completion", body)
        check_prompt_token_count(reply.get("tokens_evaluated"), len(ids))
        if reply.get("truncated") is True:
            raise ScoreError("the server has cut the prompt, because its context is too short")
        return reply

    def _parse_scored_position(self, entry: Any) -> ScoredPosition:
        token, value = self._parse_id_and_logprob(entry)
        tops = require_object(entry, "log probabilities").get("top_logprobs")
        found = map(self._parse_id_and_logprob, as_list(tops))
        return ScoredPosition(token, value, top_tokens_most_probable_first(found))

    def _parse_id_and_logprob(self, entry: Any) -> tuple[int, float]:
        """Return the id and the log probability of a token."""
        one = require_object(entry, "log probabilities")
        value, token = parse_log_probability(one.get("logprob")), parse_token_id(one.get("id"))
        self.store_token_text(token, one.get("token"))
        return token, value


def _align_scores_to_tokens(
    ids: list[int], scored: list[ScoredPosition]
) -> tuple[ScoredPosition, ...]:
    """Return the tokens of an answer with their scores, None where a token has none. The server
    leaves out the scores of tokens that are not a complete character, so entry i need not be that
    of token i. Raises ScoreError if it scored tokens that are not in the answer."""
    by_id: dict[Token, list[ScoredPosition]] = {}
    for one in scored:
        by_id.setdefault(one.token, []).append(one)
    if not by_id.keys() <= set(ids):
        raise ScoreError("the server scored tokens that are not in its answer")
    counts: Counter[Token] = Counter(ids)
    # With fewer scores than tokens of one id, it is not known to which of them they belong.
    whole = {token for token, found in by_id.items() if len(found) == counts[token]}
    waiting = {token: iter(by_id[token]) for token in whole}
    return tuple(
        next(waiting[token]) if token in waiting else ScoredPosition(token, None) for token in ids
    )

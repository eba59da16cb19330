"""Replies with log probabilities. The tokens of such an answer come from the simulated language
model, always the most probable one, and each engine gives them in the form of its own interface.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from workbench.sim.language_model import LanguageModel, Predicted, count_user_turns, text_of_tokens
from workbench.sim.reply_text import COMPLETION
from workbench.sim.scheduler import Sequence as RequestSequence

if TYPE_CHECKING:
    from workbench.sim.http_server import Request
    from workbench.sim.openai_api import Api


class ScoredReply:
    """The reply to one request for log probabilities, after the prompt `ids`. `make_body`
    makes the body from this object when all `length` tokens are there. With `stale_prompts`, the
    distributions of prompt tokens are those of the token before, and with `zeros` each log
    probability of an answer is 0.0, as real engines give them with speculation."""

    def __init__(
        self,
        api: Api,
        request: Request,
        ids: Sequence[int],
        length: int,
        make_body: Callable[[ScoredReply], dict[str, Any]],
    ) -> None:
        self.ids = list(ids)
        self.id = api.make_reply_id(COMPLETION)
        self.served = api.launch.served[0]
        self.stale_prompts, self.zeros = api.stale_prompts, api.zero_log_probabilities
        self.sequence = RequestSequence(
            [str(one) for one in ids], length, self._send_reply_when_finished
        )
        self._api, self._request, self._body_of = api, request, make_body
        self._model: LanguageModel = api.language_model
        self._turns = (
            count_user_turns(text_of_tokens(self.ids)) if self._model.damage.second_turn else 1
        )

    def predict_prompt_token(self, position: int, top: int) -> Predicted:
        """Return the distribution of token number `position` of the prompt, from 1 on, with the
        `top` most probable tokens there."""
        context = self.ids[: position - 1] if self.stale_prompts else self.ids[:position]
        return self._predict(context, self.ids[position], top)

    def generate_token_ids(self) -> list[int]:
        """Return the token ids of the answer, as many as were generated."""
        made: list[int] = []
        while len(made) < self.sequence.generated:
            made.append(self._predict([*self.ids, *made], 0, 1).top[0][0])
        return made

    def predict_answer_token(
        self, answer_ids: Sequence[int], position: int, top: int, scored_token: int | None = None
    ) -> Predicted:
        """Return the distribution of token number `position` of the answer `answer_ids`.
        `scored_token` is the one whose log probability is wanted, by default that of the answer."""
        wanted = answer_ids[position] if scored_token is None else scored_token
        found = self._predict([*self.ids, *answer_ids[:position]], wanted, top)
        if self.zeros:
            return Predicted(0.0, tuple((one, 0.0) for one, _ in found.top))
        return found

    def predict_answer_tokens(self, answer_ids: Sequence[int], top: int) -> list[Predicted]:
        """Return the distribution of each token of the answer `answer_ids`."""
        return [
            self.predict_answer_token(answer_ids, place, top) for place in range(len(answer_ids))
        ]

    def make_usage_object(self) -> dict[str, Any]:
        """Return the numbers of tokens as OpenAI-style replies have them."""
        prompt, made = len(self.ids), self.sequence.generated
        return {
            "prompt_tokens": prompt,
            "completion_tokens": made,
            "total_tokens": prompt + made,
            "prompt_tokens_details": {"cached_tokens": self.sequence.cached},
            "owned_by": "simulated",
        }

    def _predict(self, context: Sequence[int], token: int, top: int) -> Predicted:
        together = self.sequence.most_together
        return self._model.predict(context, token, top, batch_size=together, turn_count=self._turns)

    def _send_reply_when_finished(self, tokens: int, finished: bool) -> None:
        if not finished:
            return
        self._request.reply(200, self._body_of(self))
        self._api.engine.log_finished_request(self._api, self.id, self.sequence)

"""Counts the tokens of prompts with the server's own tokenizer, before a benchmark begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from workbench.model.untrusted_text import as_table

if TYPE_CHECKING:
    from workbench.engines.base import Engine
    from workbench.server.small_requests import AskPath

TIMEOUT_S = 10.0


class Tokenizer:
    """Counts tokens with the tokenizer endpoint of the server that `ask` sends requests to.
    `problem` is the reason why the last count failed. `max_model_len` is the server's context
    length in tokens, None until the server has reported it."""

    def __init__(self, ask: AskPath, engine: Engine, model: str) -> None:
        self._ask, self._engine, self._model = ask, engine, model
        self.problem: str | None = None
        self.max_model_len: int | None = None
        self._template_tokens: int | None = None  # of the chat template, without the message

    async def count_tokens(self, prompt_fields: Mapping[str, Any]) -> int | None:
        """Return the number of tokens of a request's prompt, with special tokens and the chat
        template. `prompt_fields` is {"prompt": text}, {"input": text} or {"messages": [...]}. None
        if the server does not count them; `self.problem` then says why. Never raises."""
        engine = self._engine
        if engine.tokenize_path is None:
            self.problem = f"{engine.title} has no tokenizer endpoint"
            return None
        if "messages" in prompt_fields and engine.template_path is not None:
            written = await self._post_json(
                engine.template_path, {"messages": prompt_fields["messages"]}
            )
            text = as_table(written).get("prompt")
            if not isinstance(text, str):
                self.problem = self.problem or (
                    f"the server's {engine.template_path} returned no prompt"
                )
                return None
            prompt_fields = {"prompt": text}
        if "input" in prompt_fields:  # of an embedding
            prompt_fields = {"prompt": prompt_fields["input"]}
        body = engine.tokenize_request_body(self._model, prompt_fields)
        if body is None and "messages" in prompt_fields:
            return await self._count_message_tokens(prompt_fields["messages"])
        if body is None:
            self.problem = (
                f"{engine.title}'s tokenizer endpoint accepts no messages, so the "
                "chat template is unknown"
            )
            return None
        answer = await self._post_json(engine.tokenize_path, body)
        if answer is None:
            return None
        return self._parse_token_count(answer)

    async def _count_message_tokens(self, messages: Sequence[Mapping[str, str]]) -> int | None:
        """Return the number of tokens of chat messages for an engine that only counts texts: those
        of the texts, and those of the chat template, which one request reports. None if the server
        counts one of the two not; `self.problem` then says why."""
        if self._template_tokens is None:
            sample = [{"role": "user", "content": "one"}]
            asked = {"model": self._model, "messages": sample, "max_tokens": 1}
            reply = await self._post_json("/v1/chat/completions", asked) or {}
            prompt_tokens = as_table(reply.get("usage")).get("prompt_tokens")
            of_text = await self.count_tokens({"prompt": "one"})
            if not isinstance(prompt_tokens, int) or of_text is None:
                self.problem = self.problem or "the server reports no tokens of its chat template"
                return None
            self._template_tokens = max(0, prompt_tokens - of_text)
        text = await self.count_tokens({"prompt": "\n".join(one["content"] for one in messages)})
        if text is None:
            return None
        return text + self._template_tokens

    def _parse_token_count(self, reply_body: Mapping[str, Any]) -> int | None:
        limit, tokens = reply_body.get("max_model_len"), reply_body.get("tokens")
        if isinstance(limit, int) and limit > 0:
            self.max_model_len = limit
        counts = [
            reply_body[name]
            for name in ("count", "length")
            if isinstance(reply_body.get(name), int)
        ]
        if isinstance(tokens, list):
            counts.append(len(tokens))
        found = next(iter(counts), 0)
        if found:
            return found
        self.problem = f"the server's {self._engine.tokenize_path} returned no token count"
        return None

    async def _post_json(self, path: str, body: Mapping[str, Any]) -> dict[str, Any] | None:
        """Send `body` to `path`, and return the JSON object of the answer; None without one, and
        `self.problem` then says why."""
        reply = await self._ask(path, body, TIMEOUT_S)
        if reply.status is None:
            self.problem = f"the server's {path} cannot be read: {reply.problem}"
            return None
        if reply.status != 200:
            self.problem = f"the server's {path} answers HTTP status {reply.status}"
            return None
        # as it came: its text goes back to the server, line ends and all, and is never shown
        if not isinstance(reply.body, dict):
            self.problem = f"the answer of the server's {path} is not a JSON object"
            return None
        return reply.body

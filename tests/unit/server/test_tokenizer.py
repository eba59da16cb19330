"""The tokens of a prompt, counted by the server's own tokenizer."""

from __future__ import annotations

import asyncio
import json

import httpx

from workbench import engines
from workbench.server.small_requests import make_asker
from workbench.server.tokenizer import Tokenizer

TEMPLATE_TOKENS = 11
BOS = 1


def sglang(asked: list[str]) -> httpx.MockTransport:
    """Return a server that, like SGLang, counts the tokens of a text but not those of messages. One
    word is one token."""

    def answer(request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        asked.append(request.url.path)
        if request.url.path == "/tokenize":
            return httpx.Response(200, json={"count": len(body["prompt"].split()) + BOS})
        words = sum(len(message["content"].split()) for message in body["messages"])
        assert body["max_tokens"] == 1
        return httpx.Response(200, json={"usage": {"prompt_tokens": words + BOS + TEMPLATE_TOKENS}})

    return httpx.MockTransport(answer)


def test_the_chat_template_is_counted_once_where_only_texts_can_be_counted() -> None:
    asked: list[str] = []

    async def count(*texts: str) -> list[int | None]:
        async with httpx.AsyncClient(transport=sglang(asked), base_url="http://sglang") as http:
            tokenizer = Tokenizer(make_asker(http), engines.get_engine("sglang"), "m")
            return [
                await tokenizer.count_tokens({"messages": [{"role": "user", "content": text}]})
                for text in texts
            ]

    counts = asyncio.run(count("one two three", "one " * 96))
    assert counts == [3 + BOS + TEMPLATE_TOKENS, 96 + BOS + TEMPLATE_TOKENS]
    assert asked.count("/v1/chat/completions") == 1


def test_a_server_without_usage_says_why_messages_are_not_counted() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        body = {"count": 2} if request.url.path == "/tokenize" else {"choices": []}
        return httpx.Response(200, json=body)

    async def count() -> tuple[int | None, str | None]:
        transport = httpx.MockTransport(answer)
        async with httpx.AsyncClient(transport=transport, base_url="http://sglang") as http:
            tokenizer = Tokenizer(make_asker(http), engines.get_engine("sglang"), "m")
            message = {"role": "user", "content": "one"}
            return await tokenizer.count_tokens({"messages": [message]}), tokenizer.problem

    assert asyncio.run(count()) == (None, "the server reports no tokens of its chat template")


def test_the_text_of_a_chat_template_is_counted_as_the_server_wrote_it() -> None:
    said = "one\n\ntwo " * 4_000

    def answer(request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        if request.url.path == "/apply-template":
            text = body["messages"][0]["content"]
            return httpx.Response(200, json={"prompt": f"<|user|>\n{text}"})
        return httpx.Response(200, json={"tokens": [*body["content"]]})

    async def count() -> int | None:
        transport = httpx.MockTransport(answer)
        async with httpx.AsyncClient(transport=transport, base_url="http://llama") as http:
            tokenizer = Tokenizer(make_asker(http), engines.get_engine("llamacpp"), "m")
            return await tokenizer.count_tokens({"messages": [{"role": "user", "content": said}]})

    assert asyncio.run(count()) == len("<|user|>\n") + len(said)

"""Checks whether a server is ready, by three requests in this order: its health, the names of its
models, and one token.

Only the token proves that the server is ready. Engines report health and list models before they
have compiled their kernels, and vLLM's /health does not notice a worker that hangs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workbench.model.untrusted_text import clean, clean_json

if TYPE_CHECKING:
    import httpx

    from workbench.engines.base import Engine

CONNECT_S = 5.0
_KEY_REQUIRED = (401, 403)
ASKED_BY = {"asked_by": "workbench"}  # engines ignore a query that they do not know
ANSWER_S = 10.0  # for health and models; vLLM answers them from its API process, also under load


@dataclass(frozen=True, slots=True)
class Answer:
    """The outcome of a readiness check. `health` and `token` say whether these two requests
    succeeded, and `model` is the name of a model that the server listed, or None. `reason`
    describes the first request that failed, or is None if all succeeded."""

    health: bool = False
    model: str | None = None
    token: bool = False
    reason: str | None = None
    # the server answered 401 or 403: it is alive and requires an API key that is unknown
    needs_key: bool = False

    @property
    def ready(self) -> bool:
        return self.health and self.model is not None and self.token


def client(base_url: str, api_key: str | None = None) -> httpx.AsyncClient:
    """Return an HTTP client for health checks and other small requests. The client opens a new
    connection for each request, because llama.cpp closes idle connections after 5 s. It marks each
    request with the query ASKED_BY, by which the requests of Workbench are known in access logs."""
    import httpx

    from workbench.server.bounded_http import BoundedClient

    headers = {"Connection": "close"}
    if api_key:
        headers["Authorization"] = f"Bearer {api_key}"
    timeout = httpx.Timeout(ANSWER_S, connect=CONNECT_S)
    verify = base_url.startswith("https:")  # loading the CA certificates takes 0.06 s
    return BoundedClient(
        base_url=base_url, headers=headers, params=ASKED_BY, timeout=timeout, verify=verify
    )


async def answers(http: httpx.AsyncClient, path: str, timeout_s: float | None = None) -> str | None:
    """Request `path`, the path of an engine's health or another page that tells whether it is
    alive. Return None if the server answers with status 200 or requires an API key, otherwise the
    reason."""
    status, body = await _ask(http, "GET", path, timeout_s=timeout_s)
    if status in (200, *_KEY_REQUIRED):
        return None
    problem = body if status is None else f"answers {status} {_short(body)}".strip()
    return f"{path}: {problem}"


async def check(http: httpx.AsyncClient, engine: Engine, *, token_timeout_s: float) -> Answer:
    """Request the server's health, its list of models and one token, in this order, until a request
    fails. Return the outcome. `token_timeout_s` is the time limit for the token. Never raises,
    whatever the server answers."""
    if (reason := await answers(http, engine.health_path)) is not None:
        return Answer(reason=reason)
    status, body = await _ask(http, "GET", engine.models_path)
    if status in _KEY_REQUIRED:
        return Answer(
            health=True,
            needs_key=True,
            reason=f"{engine.models_path} requires an API key ({status})",
        )
    model = _model_name(body) if status == 200 else None
    if model is None:
        return Answer(health=True, reason=f"{engine.models_path} names no model ({status or body})")
    reason = await _token(http, model, token_timeout_s)
    return Answer(health=True, model=model, token=reason is None, reason=reason)


async def models(
    http: httpx.AsyncClient, path: str, timeout_s: float
) -> tuple[int | None, list[str]]:
    """Request the model list at `path`. Return (HTTP status, names of the models). The status is
    None if there was no HTTP answer."""
    status, body = await _ask(http, "GET", path, timeout_s=timeout_s)
    data = body.get("data") if status == 200 and isinstance(body, dict) else None
    rows = data if isinstance(data, list) else []
    return status, [
        row["id"] for row in rows if isinstance(row, dict) and isinstance(row.get("id"), str)
    ]


async def _token(http: httpx.AsyncClient, model: str, timeout_s: float) -> str | None:
    """Request one token from the server, or an embedding if the model generates no text. Return
    None if the server returned it, otherwise the reason. A plain completion is tried before a chat
    completion, because it needs no chat template."""
    asked: tuple[tuple[str, Mapping[str, Any]], ...] = (
        ("/v1/completions", {"prompt": "Hello"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello"}]}),
        ("/v1/embeddings", {"input": "Hello"}),
    )
    reasons = []
    for path, prompt in asked:
        options = {} if "input" in prompt else {"max_tokens": 1, "temperature": 0, "stream": False}
        body = {"model": model, **prompt, **options}
        status, answer = await _ask(http, "POST", path, body, timeout_s)
        if status == 200 and _has_token(answer):
            return None
        detail = f"{status}: {_short(answer)}" if status else answer
        reasons.append(f"{path} returned no token ({detail})")
        # the other endpoint helps only if this one is not supported
        if status not in (400, 404, 405, 422, 501):
            break
    return "; ".join(reasons)


async def _ask(
    http: httpx.AsyncClient,
    method: str,
    path: str,
    body: Mapping[str, Any] | None = None,
    timeout_s: float | None = None,
) -> tuple[int | None, Any]:
    """Make one request. Return (HTTP status, decoded JSON or text), or (None, reason) if there was
    no HTTP answer."""
    import httpx

    timeout_s = timeout_s or ANSWER_S
    try:
        timeout = httpx.Timeout(timeout_s, connect=CONNECT_S)
        response = await http.request(method, path, json=body, timeout=timeout)
    except httpx.TimeoutException:
        return None, f"the server did not answer within {timeout_s:.0f} s"
    except httpx.HTTPError as error:
        return None, clean(str(error)) or type(error).__name__
    try:
        return response.status_code, clean_json(response.content)
    except ValueError:
        return response.status_code, _short(response.text)


def _model_name(body: Any) -> str | None:
    data = body.get("data") if isinstance(body, dict) else None
    first = data[0] if isinstance(data, list) and data else None
    name = first.get("id") if isinstance(first, dict) else None
    return name if isinstance(name, str) and name else None


def _has_token(body: Any) -> bool:
    """Return whether `body`, the answer to a request for one token, contains a token or an
    embedding. If the server reports a token count, only that count matters, because the text of a
    token may be empty (half a character, an end mark)."""
    if not isinstance(body, dict):
        return False
    data = body.get("data")
    if isinstance(data, list) and data:
        return isinstance(data[0], dict) and bool(data[0].get("embedding"))
    if not body.get("choices"):
        return False
    usage = body.get("usage")
    if isinstance(usage, dict) and isinstance(usage.get("completion_tokens"), int):
        return bool(usage["completion_tokens"] >= 1)
    choice = body["choices"][0]
    text = (
        choice.get("text") or (choice.get("message") or {}).get("content")
        if isinstance(choice, dict)
        else None
    )
    return bool(text)


def _short(body: Any) -> str:
    if isinstance(body, dict):
        error = body.get("error")
        body = (
            error.get("message", error)
            if isinstance(error, dict)
            else error or body.get("detail") or body
        )
    text = " ".join(clean(str(body)).split())
    return text if len(text) <= 200 else text[:200] + " …"

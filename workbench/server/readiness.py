"""Checks whether a server is ready: its health, the names of its models, and the answers to a few
prompts, in this order.

Only an answer proves that the server is ready. Engines report health and list models before they
have compiled their kernels, and vLLM's /health does not notice a worker that hangs. Only the text
of the answers shows whether the model works (text_probe.py).
"""

from __future__ import annotations

import asyncio
import importlib
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from workbench.model.lazy_dataclass import dataclass
from workbench.model.untrusted_text import as_list, as_table
from workbench.server.kept_connection import KeepAliveConnection
from workbench.server.small_requests import (
    AskPath,
    GetPath,
    error_message_of,
    make_get_without_body,
)

if TYPE_CHECKING:
    from workbench.engines.base import Engine
    from workbench.model.server_run import ServedText

_KEY_REQUIRED_STATUSES = (401, 403)
ASKED_BY_QUERY = {"asked_by": "workbench"}  # engines ignore a query that they do not know
ANSWER_TIMEOUT_S = (
    10.0  # for health and models; vLLM answers them from its API process, also under load
)


@dataclass(frozen=True, slots=True)
class ReadinessResult:
    """The outcome of a readiness check. `health` says whether the server's health is good. `model`
    is the name of a model that it listed, None without one. `text` is what it answered to prompts,
    None if it answered none. `reason` is why the first request that failed did, None if none
    did."""

    health: bool = False
    model: str | None = None
    text: ServedText | None = None
    reason: str | None = None
    # the server answered 401 or 403: it is alive and requires an API key that is unknown
    needs_key: bool = False

    @property
    def is_ready(self) -> bool:
        """Whether all requests succeeded and the server has answered a prompt."""
        return self.health and self.model is not None and self.text is not None


def make_request_connection(base_url: str, api_key: str | None = None) -> KeepAliveConnection:
    """Return a connection for health checks and other small requests. Each request has the query
    ASKED_BY_QUERY, by which the requests of Workbench are known in access logs."""
    return KeepAliveConnection(base_url, urlencode(ASKED_BY_QUERY), api_key)


async def find_readiness_problem(
    get: GetPath, path: str, timeout_s: float = ANSWER_TIMEOUT_S
) -> str | None:
    """Request `path`, that of an engine's health or of another page that shows that it lives.
    Return why the server is not ready; None if it answers with status 200 or requires an API
    key."""
    reply = await get(path, timeout_s)
    if reply.status in (200, *_KEY_REQUIRED_STATUSES):
        return None
    if reply.status is None:
        return f"{path}: {reply.problem}"
    return f"{path}: answers {reply.status} {error_message_of(reply.cleaned_json_or_short_text)}".rstrip()


async def check_readiness(
    ask: AskPath, engine: Engine, *, first_timeout_s: float, why_nonsense_is_expected: str = ""
) -> ReadinessResult:
    """Request the server's health, its list of models, then answers to a few prompts, until a
    request fails, and return the outcome. `first_timeout_s` is the time limit for the first answer
    to a prompt. `why_nonsense_is_expected` says why the text need not be language, "" if it must
    be. Never raises for what the server answers."""
    if (
        reason := await find_readiness_problem(make_get_without_body(ask), engine.health_path)
    ) is not None:
        return ReadinessResult(reason=reason)
    listed = await ask(engine.models_path, None, ANSWER_TIMEOUT_S)
    if listed.status in _KEY_REQUIRED_STATUSES:
        return ReadinessResult(
            health=True,
            needs_key=True,
            reason=f"{engine.models_path} requires an API key ({listed.status})",
        )
    model = _first_model_name(listed.cleaned_json_or_short_text) if listed.status == 200 else None
    if model is None:
        why = listed.status or listed.problem
        return ReadinessResult(health=True, reason=f"{engine.models_path} names no model ({why})")
    # a screen that starts no server needs nothing that judges text
    await asyncio.to_thread(importlib.import_module, "workbench.server.text_probe")
    from workbench.server import text_probe

    probed = await text_probe.probe_text(
        ask,
        model,
        first_timeout_s=first_timeout_s,
        too_long_pattern=engine.too_long_answer,
        why_nonsense_is_expected=why_nonsense_is_expected,
    )
    return ReadinessResult(health=True, model=model, text=probed.text, reason=probed.reason)


async def read_status_and_model_names(
    get: GetPath, path: str, timeout_s: float
) -> tuple[int | None, list[str]]:
    """Request the list of models at `path`. Return (HTTP status, names of the models). The status
    is None if there was no HTTP answer, and there are no names unless it is 200."""
    reply = await get(path, timeout_s)
    names = _listed_names(reply.cleaned_json_or_short_text) if reply.status == 200 else []
    return reply.status, [name for name in names if isinstance(name, str)]


def _first_model_name(body: Any) -> str | None:
    name = next(iter(_listed_names(body)), None)
    return name if isinstance(name, str) and name else None


def _listed_names(body: Any) -> list[Any]:
    """Return what a model list has in the place of each model's name."""
    return [as_table(row).get("id") for row in as_list(as_table(body).get("data"))]

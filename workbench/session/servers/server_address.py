"""Servers that others started: parsing their URL, and asking which model they serve."""

from __future__ import annotations

import os
import re
from contextlib import closing
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from workbench.model.api_key import api_key_from_variable
from workbench.model.errors import BenchError, InputError
from workbench.model.lazy_dataclass import dataclass
from workbench.model.loopback import is_loopback
from workbench.model.untrusted_text import clean_json
from workbench.server.kept_connection import KeepAliveConnection
from workbench.server.small_requests import Reply, make_reply

_ASK_TIMEOUT_S = 10.0
# of a server that loads its model, or of a gateway without its server
_NOT_READY_STATUSES = (502, 503, 504)
# Paths below the base URL that users may have copied.
_ENDPOINT_PATH = re.compile(r"(/v1(/chat/completions|/completions|/models)?)?/*$")


if TYPE_CHECKING:
    from workbench.model.bench import BenchSpec


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """The parts of the base URL of a server."""

    base: str  # without /v1 and what follows it; its scheme is in lower case
    hostname: str
    port: int
    loopback: bool


@dataclass(frozen=True, slots=True)
class ServedModels:
    """The first model that the server's /v1/models lists. `model` is None if the answer names no
    model; `problem` then says why, such as "HTTP 404"."""

    model: str | None
    simulated: bool = False
    problem: str = ""


def parse_server_url(url: str) -> ServerAddress:
    """Parse the base URL of a server. Raises InputError if `url` is not a base URL."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise InputError(
            f"{url!r} is not a base URL: {error}", next_step="for example http://127.0.0.1:8000"
        ) from None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise InputError(
            f"{url!r} is not a base URL", next_step="for example http://127.0.0.1:8000"
        )
    if parts.username is not None or parts.password is not None:
        raise InputError(
            "the URL contains a user name or password, which Workbench does not use",
            next_step="put the API key into an environment variable and give --api-key-env NAME",
        )
    base = _ENDPOINT_PATH.sub("", parts.geturl())  # a scheme has no case: HTTPS is https
    return ServerAddress(
        base,
        parts.hostname,
        port or (443 if parts.scheme == "https" else 80),
        is_loopback(parts.hostname),
    )


async def read_served_models(base: str, spec: BenchSpec) -> ServedModels:
    """Return which model the server at `base` names, using the API key and the certificates of
    `spec`. Raises BenchError if the server does not answer, is not ready or rejects the key."""
    key_env = spec.api_key_env
    key = api_key_from_variable(key_env, os.environ) if key_env else None
    if urlsplit(base).scheme == "https":
        answer = await _request_models_over_tls(base, spec, key)
    else:
        with closing(KeepAliveConnection(base, api_key=key)) as kept:
            answer = await kept.get("/v1/models", _ASK_TIMEOUT_S)
    if answer.status is None:
        raise BenchError(
            f"{base} does not answer: {answer.problem}",
            next_step="check that the server is running and the port is right",
        )
    if answer.status in (401, 403):
        if key_env:
            said = (
                f"{base} does not accept the key in the variable {key_env} (HTTP {answer.status})"
            )
            raise BenchError(said, next_step="ask the server's operator for a valid key")
        raise BenchError(
            f"{base} requires an API key",
            next_step="put the key into an environment variable and give --api-key-env NAME",
        )
    if answer.status in _NOT_READY_STATUSES:
        raise BenchError(
            f"{base} is not ready: it answers with HTTP {answer.status}",
            next_step="wait until the server has loaded its model",
        )
    if answer.status // 100 != 2:
        return ServedModels(None, problem=f"HTTP {answer.status}")
    try:
        first = clean_json(answer.text)["data"][0]
        name = first["id"]
        if not isinstance(name, str) or not name.strip():
            raise TypeError("the name of a model is not a string")
        return ServedModels(name, simulated=first.get("owned_by") == "simulated")
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return ServedModels(None, problem="the answer is not a list of models, or is empty")


async def _request_models_over_tls(base: str, spec: BenchSpec, key: str | None) -> Reply:
    """Request the list of models of the https server at `base`. A connection that fails is a
    `problem` of the reply. Raises BenchError for a certificate that is not trusted."""
    import httpx

    from workbench.bench import tls
    from workbench.server.bounded_http import BoundedClient

    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        async with BoundedClient(timeout=_ASK_TIMEOUT_S, verify=tls.tls_context(spec)) as http:
            answer = await http.get(f"{base}/v1/models", headers=headers)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        if distrust := tls.certificate_problem(error):
            raise BenchError(
                f"the certificate of {base} is not trusted: {distrust}",
                next_step=tls.CERTIFICATE_ADVICE,
            ) from None
        return Reply(None, problem=str(error) or type(error).__name__)
    return make_reply(answer.status_code, answer.content)

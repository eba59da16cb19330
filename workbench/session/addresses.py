"""Servers that others started, known by a URL: what the address says, and what answers there."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass
from urllib.parse import urlsplit

from workbench.model.errors import BenchError, InputError

_ASK_S = 10.0


@dataclass(frozen=True, slots=True)
class Address:
    base: str  # without a trailing /v1
    hostname: str
    port: int
    loopback: bool


@dataclass(frozen=True, slots=True)
class Served:
    """The first model that /v1/models names; None with the `problem` where it names none."""

    model: str | None
    simulated: bool = False
    problem: str = ""


def parse(url: str) -> Address:
    """Raises InputError for what is no base URL."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise InputError(f"{url!r} is not a base URL: {error}", next_step="for example http://127.0.0.1:8000") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise InputError(f"{url!r} is not a base URL", next_step="for example http://127.0.0.1:8000")
    if parts.username is not None or parts.password is not None:
        raise InputError("the URL holds a name or password", next_step="give the key's variable: --api-key-env NAME")
    base = url.rstrip("/").removesuffix("/v1")
    return Address(base, parts.hostname, port or (443 if parts.scheme == "https" else 80), _loopback(parts.hostname))


def _loopback(hostname: str) -> bool:
    try:
        return ipaddress.ip_address(hostname).is_loopback
    except ValueError:
        return hostname.lower() == "localhost"


async def ask(base: str, key_env: str | None) -> Served:
    """What is served at `base`. BenchError when nothing answers there."""
    import httpx

    if key_env is not None and key_env not in os.environ:
        raise InputError(f"there is no environment variable {key_env}", next_step=f"export {key_env}=… first")
    headers = {"Authorization": f"Bearer {os.environ[key_env]}"} if key_env else {}
    try:
        verify = base.startswith("https:")  # certificates of all the world take 0.06 s to load
        async with httpx.AsyncClient(timeout=_ASK_S, trust_env=False, verify=verify) as http:
            answer = await http.get(f"{base}/v1/models", headers=headers)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        why = str(error) or type(error).__name__
        raise BenchError(
            f"{base} does not answer: {why}", next_step="is the server running, and is the port right?"
        ) from None
    if answer.status_code in (401, 403):
        raise BenchError(f"{base} asks for a key", next_step="name the variable that holds it: --api-key-env NAME")
    try:
        first = answer.raise_for_status().json()["data"][0]
        return Served(str(first["id"]), simulated=first.get("owned_by") == "simulated")
    except (httpx.HTTPError, ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        return Served(None, problem=str(error).splitlines()[0] if str(error) else type(error).__name__)

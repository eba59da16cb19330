"""Small HTTP requests to a server, which never raise, whatever the server answers."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from workbench.model.lazy_dataclass import dataclass
from workbench.model.untrusted_text import clean_data, clean_text

if TYPE_CHECKING:
    import httpx

CONNECT_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Reply:
    """The reply to one request. `status` is None if there was no HTTP answer, and `problem` says
    why. `text` is the body as it came, and `body` its decoded JSON, not cleaned, None if it is no
    JSON. `invalid_utf8` says that its bytes are not UTF-8. `late` says that no answer came in time:
    the server may still work on the request."""

    status: int | None
    body: Any = None
    text: str = ""
    invalid_utf8: bool = False
    problem: str = ""
    late: bool = False

    @property
    def cleaned_json_or_short_text(self) -> Any:
        """The cleaned JSON; if the reply is no JSON, its text as one line, cut to 200
        characters."""
        return error_message_of(self.text) if self.body is None else clean_data(self.body)


# requests a path within a number of seconds; never raises for what the server does
GetPath = Callable[[str, float], Awaitable[Reply]]
# the same with a body before the seconds, which is sent as JSON; None requests the path only
AskPath = Callable[[str, Mapping[str, Any] | None, float], Awaitable[Reply]]


def make_get_without_body(ask: AskPath, query: str = "") -> GetPath:
    """Return a function that requests a path through `ask`, with `query` unless that is ""."""
    end = f"?{query}" if query else ""
    return lambda path, timeout_s: ask(path + end, None, timeout_s)


def make_asker(http: httpx.AsyncClient) -> AskPath:
    """Return a function that makes requests through `http`."""
    return lambda path, body, timeout_s: _request_with_httpx(http, path, body, timeout_s)


async def _request_with_httpx(
    http: httpx.AsyncClient, path: str, body: Mapping[str, Any] | None, timeout_s: float
) -> Reply:
    import httpx

    method = "GET" if body is None else "POST"
    try:
        timeout = httpx.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S)
        response = await http.request(method, path, json=body, timeout=timeout)
    except httpx.TimeoutException:
        return make_timeout_reply(timeout_s)
    except httpx.HTTPError as error:
        return Reply(None, problem=clean_text(str(error)) or type(error).__name__)
    return make_reply(response.status_code, response.content)


def make_timeout_reply(timeout_s: float) -> Reply:
    """Return the reply for a request without a complete answer within `timeout_s`."""
    return Reply(None, problem=f"the server did not answer within {timeout_s:.0f} s", late=True)


def make_reply(status: int, data: bytes) -> Reply:
    """Return the reply with the HTTP status `status` and the body `data`."""
    text = data.decode("utf-8", "replace")
    invalid_utf8 = text.encode() != data
    try:
        return Reply(status, json.loads(text), text, invalid_utf8)
    except (ValueError, RecursionError):
        return Reply(status, None, text, invalid_utf8)


def error_message_of(content: Any) -> str:
    """Return the message in `content`, the JSON or the text of an error reply, as one line, cut to
    200 characters."""
    if isinstance(content, dict):
        content = content.get("error") or content.get("detail") or content
    if isinstance(content, dict):
        content = content.get("message", content)
    text = " ".join(clean_text(str(content)).split())
    return text if len(text) <= 200 else text[:200] + " …"

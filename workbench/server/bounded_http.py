"""An HTTP client for servers that may misbehave. A response must arrive completely within a time
limit, must not be too large, and must not be compressed.

httpx alone applies its time limit to each read, so a server that sends one byte per second would
never cause a timeout.
"""

from __future__ import annotations

import asyncio
import sys
from importlib.util import find_spec
from typing import Any

import httpx

MAX_ANSWER_BYTES = 16 * 1024 * 1024  # of one answer; a metrics page of vLLM has 100 KB
_DEFAULT_TIMEOUT_S = 10.0

# httpcore imports sniffio several times for each request. If it is not installed, Python would
# search all directories for it each time, which took a third of the time of a request.
if "sniffio" not in sys.modules and find_spec("sniffio") is None:
    sys.modules["sniffio"] = None  # type: ignore[assignment]


class BoundedClient(httpx.AsyncClient):
    """An httpx client for small requests such as health checks. The response to a request must be
    complete within the sum of its read timeout and its connect timeout.

    Raises httpx.ReadTimeout if a response takes longer, and httpx.DecodingError if a response is
    larger than 16 MiB or compressed.
    """

    def __init__(self, **options: Any) -> None:
        # trust_env off: a proxy in the environment must not be used for the servers that are
        # measured.
        super().__init__(trust_env=False, **options)
        self.headers["Accept-Encoding"] = "identity"

    async def send(self, request: httpx.Request, **options: Any) -> httpx.Response:
        limits: dict[str, float | None] = request.extensions.get("timeout", {})
        limit_s = (limits.get("read") or _DEFAULT_TIMEOUT_S) + (limits.get("connect") or 0.0)
        try:
            async with asyncio.timeout(limit_s):
                response = await super().send(request, **{**options, "stream": True})
                try:
                    body = await _read_bounded_body(response)
                finally:
                    await response.aclose()
        except TimeoutError:
            raise httpx.ReadTimeout(
                f"the server gave no complete answer within {limit_s:.0f} s", request=request
            ) from None
        answer = httpx.Response(
            response.status_code, headers=response.headers, content=body, request=request
        )
        # a server may name any codec of Python, such as hex, which is none of text
        answer.encoding = "utf-8"
        return answer


async def _read_bounded_body(response: httpx.Response) -> bytes:
    if response.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise httpx.DecodingError(
            "the server's answer is compressed, although Workbench requested it uncompressed",
            request=response.request,
        )
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > MAX_ANSWER_BYTES:
            raise httpx.DecodingError(
                f"the server's answer is larger than {MAX_ANSWER_BYTES >> 20} MiB",
                request=response.request,
            )
    return bytes(body)

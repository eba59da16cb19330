"""Sends alerts to an address on the web, in the background: a POST request with JSON each."""

from __future__ import annotations

import asyncio
import importlib
import json
import time
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any

from workbench.model.secrets import mask_text, seen_secrets
from workbench.model.untrusted_text import clean_text

if TYPE_CHECKING:
    import httpx

TIMEOUT_S = 5.0  # of one request, with its connection
RETRY_S = 2.0  # between the two attempts
MAX_WAITING_ALERTS = 20
_TOO_MANY_REQUESTS_STATUS = 429
_MAX_REASON_CHARACTERS = 200


class Webhook:
    """Sends documents to `url`, one after the other, each with one retry. A redirect is not
    followed, because it could take the token to another place. `problem` says why the last document
    could not be sent; "" if it was sent. `spawn` runs a coroutine in the background."""

    def __init__(
        self, url: str, token: str, spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
    ) -> None:
        self._url, self._token, self._spawn = url, token, spawn
        self._waiting: deque[Mapping[str, Any]] = deque()
        self._task: asyncio.Task[None] | None = None
        self.problem = ""
        self.problem_unix_s = 0.0
        self.sent, self.dropped = 0, 0

    @property
    def waiting(self) -> int:
        """The number of documents that are not sent yet."""
        return len(self._waiting)

    def send(self, document: Mapping[str, Any]) -> None:
        """Send a document soon. If too many wait, the oldest one that is not under way is dropped."""
        if len(self._waiting) >= MAX_WAITING_ALERTS:
            del self._waiting[1]
            self.dropped += 1
        self._waiting.append(document)
        if self._task is None or self._task.done():
            self._task = self._spawn(self._send_queued_documents())

    async def _send_queued_documents(self) -> None:
        """Send what waits. The HTTP client is loaded and built in a thread: both take a tenth of a
        second."""
        await asyncio.to_thread(importlib.import_module, "httpx")
        try:
            client = await asyncio.to_thread(_http_client)
        except Exception as error:  # the variables of a proxy or of certificates cannot be used
            self._waiting.clear()
            self._note_outcome(f"the HTTP client cannot be made: {_error_text(error)}")
            return
        async with client:
            while self._waiting:
                problem = await self._send_document(client, self._waiting[0])
                self._waiting.popleft()
                self._note_outcome(problem)

    def _note_outcome(self, problem: str) -> None:
        """Keep what became of the last document."""
        self.problem = problem
        if problem:
            self.problem_unix_s = time.time()
        else:
            self.sent += 1

    async def _send_document(self, client: httpx.AsyncClient, document: Mapping[str, Any]) -> str:
        """Send a document, and once more if the first attempt may have failed by chance. Return why
        it could not be sent; "" if it was."""
        problem, may_work_later = await self._try_to_send(client, document)
        if problem and may_work_later:
            await asyncio.sleep(RETRY_S)
            problem, _ = await self._try_to_send(client, document)
        return problem

    async def _try_to_send(
        self, client: httpx.AsyncClient, document: Mapping[str, Any]
    ) -> tuple[str, bool]:
        """Return (why a document could not be sent, whether it may work later). The answer's text is
        not read: it may have no end."""
        import httpx

        headers = {"Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        body = json.dumps(document).encode()
        try:
            async with asyncio.timeout(TIMEOUT_S):
                # the token comes before a name and password in the address, which httpx would send
                auth = httpx.Auth() if self._token else None
                request = client.stream("POST", self._url, content=body, headers=headers, auth=auth)
                async with request as response:
                    return _judge_status(response.status_code)
        except (TimeoutError, httpx.TimeoutException):
            return f"no answer within {TIMEOUT_S:g} s", True
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
            return _error_text(error), True


def _http_client() -> httpx.AsyncClient:
    import httpx

    return httpx.AsyncClient(timeout=TIMEOUT_S, follow_redirects=False)


def _judge_status(status: int) -> tuple[str, bool]:
    """Return (what is wrong with the status of an answer, whether it may be another one later)."""
    if 200 <= status < 300:
        return "", False
    if 300 <= status < 400:
        return f"the answer is a redirect ({status}), which is not followed", False
    return (
        f"the answer has the status {status}",
        status >= 500 or status == _TOO_MANY_REQUESTS_STATUS,
    )


def _error_text(error: Exception) -> str:
    text = mask_text(clean_text(str(error), _MAX_REASON_CHARACTERS), seen_secrets())
    return text or type(error).__name__

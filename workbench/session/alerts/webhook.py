"""Sends alerts to an address on the web, in the background: a POST request with JSON each."""

from __future__ import annotations

import asyncio
import importlib
import json
import time
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from workbench.model.secrets import mask_text, remembered_secrets
from workbench.model.untrusted_text import clean_text

if TYPE_CHECKING:
    import httpx

TIMEOUT_S = 5.0  # of one request, with its connection
RETRY_S = 2.0  # between the two attempts
MAX_WAITING_ALERTS = 20
_TOO_MANY_REQUESTS_STATUS = 429
_MAX_REASON_CHARACTERS = 200


class SendOutcome(NamedTuple):
    """What became of one attempt to send a document. `problem` says why it could not be sent; "" if
    it was. `may_work_later` says whether another attempt may succeed."""

    problem: str
    may_work_later: bool = False


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
    def unsent_count(self) -> int:
        """The number of documents that are not sent yet."""
        return len(self._waiting)

    def send(self, document: Mapping[str, Any]) -> None:
        """Send a document in the background, after those that wait. If too many wait, drop the
        oldest one that is not being sent."""
        if len(self._waiting) >= MAX_WAITING_ALERTS:
            del self._waiting[1]
            self.dropped += 1
        self._waiting.append(document)
        if self._task is None or self._task.done():
            self._task = self._spawn(self._send_queued_documents())

    async def _send_queued_documents(self) -> None:
        """Send the documents that wait, until none does. The HTTP client is loaded and built in a
        thread: both take a tenth of a second."""
        await asyncio.to_thread(importlib.import_module, "httpx")
        try:
            client = await asyncio.to_thread(_http_client)
        except Exception as error:  # the variables of a proxy or of certificates cannot be used
            self._waiting.clear()
            self._record_send_outcome(f"the HTTP client cannot be made: {_error_text(error)}")
            return
        async with client:
            while self._waiting:
                problem = await self._send_and_return_problem(client, self._waiting[0])
                self._waiting.popleft()
                self._record_send_outcome(problem)

    def _record_send_outcome(self, problem: str) -> None:
        """Record what became of the last document. `problem` says why it could not be sent; "" if
        it was sent."""
        self.problem = problem
        if problem:
            self.problem_unix_s = time.time()
        else:
            self.sent += 1

    async def _send_and_return_problem(
        self, client: httpx.AsyncClient, document: Mapping[str, Any]
    ) -> str:
        """Send a document, and once more if the first attempt may have failed by chance. Return why
        it could not be sent; "" if it was."""
        outcome = await self._send_once(client, document)
        if outcome.may_work_later:
            await asyncio.sleep(RETRY_S)
            outcome = await self._send_once(client, document)
        return outcome.problem

    async def _send_once(
        self, client: httpx.AsyncClient, document: Mapping[str, Any]
    ) -> SendOutcome:
        """Send a document, and return what became of it. The answer's text is not read: it may have
        no end."""
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
                    return _outcome_of_status(response.status_code)
        except (TimeoutError, httpx.TimeoutException):
            return SendOutcome(f"no answer within {TIMEOUT_S:g} s", may_work_later=True)
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
            return SendOutcome(_error_text(error), may_work_later=True)


def _http_client() -> httpx.AsyncClient:
    import httpx

    return httpx.AsyncClient(timeout=TIMEOUT_S, follow_redirects=False)


def _outcome_of_status(status: int) -> SendOutcome:
    """Return what the HTTP status of an answer says about the attempt."""
    if 200 <= status < 300:
        return SendOutcome("")
    if 300 <= status < 400:
        return SendOutcome(f"the answer is a redirect ({status}), which is not followed")
    may_work_later = status >= 500 or status == _TOO_MANY_REQUESTS_STATUS
    return SendOutcome(f"the answer has the status {status}", may_work_later)


def _error_text(error: Exception) -> str:
    text = mask_text(clean_text(str(error), _MAX_REASON_CHARACTERS), remembered_secrets())
    return text or type(error).__name__

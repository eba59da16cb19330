"""Tests of readiness: health, the model's name and real answers, in this order, against a real
HTTP server."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from support.scripted_server import ScriptedServer

from workbench import engines
from workbench.server import readiness, text_probe
from workbench.server.readiness import ReadinessResult

MODELS = {"object": "list", "data": [{"id": "tiny", "object": "model"}]}
TEXT = {"choices": [{"text": "The code word is maple."}], "usage": {"completion_tokens": 6}}
CHAT_TEXT = {"choices": [{"message": {"content": "The code word is maple."}}]}
GOOD: dict[str, tuple[int, Any]] = {
    "/health": (200, ""),
    "/v1/models": (200, MODELS),
    "/v1/completions": (200, TEXT),
    "/v1/chat/completions": (200, CHAT_TEXT),
}


class Server:
    """An HTTP server with a set answer for each path, which keeps the requests."""

    def __init__(self) -> None:
        self.replies: dict[str, tuple[int, Any]] = dict(GOOD)
        self.asked: list[tuple[str, dict[str, Any], str | None]] = []
        self.queries: list[str] = []
        self.hang = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def _reply(self) -> None:
                length = int(self.headers.get("content-length", 0))
                body = json.loads(self.rfile.read(length)) if length else {}
                path, _, query = self.path.partition("?")
                outer.asked.append((path, body, self.headers.get("authorization")))
                outer.queries.append(query)
                status, answer = outer.replies.get(path, (404, {"error": "no such path"}))
                if status == 0:
                    outer.hang.wait(20)
                    return
                data = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = _reply

            def log_message(self, *args: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, args=(0.05,), daemon=True).start()

    def ask(self, api_key: str | None = None, first_timeout_s: float = 5.0) -> ReadinessResult:
        async def go() -> ReadinessResult:
            with closing(readiness.make_request_connection(self.url, api_key)) as connection:
                return await readiness.check_readiness(
                    connection.ask, engines.get_engine("vllm"), first_timeout_s=first_timeout_s
                )

        return asyncio.run(go())


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.hang.set()
    server.http.shutdown()
    server.http.server_close()


def test_ready_is_health_and_model_and_answers(server: Server) -> None:
    answer = server.ask()
    assert answer.is_ready
    assert (answer.model, answer.reason) == ("tiny", None)
    first = ["/health", "/v1/models", "/v1/chat/completions"]
    assert [path for path, _, _ in server.asked][:3] == first
    body = server.asked[2][1]
    assert (body["model"], body["max_tokens"]) == ("tiny", text_probe.SHORT_ANSWER_TOKENS)


def test_a_server_becomes_ready_without_httpx(server: Server) -> None:
    """It takes 5 MiB of the screen's memory."""
    code = (
        "import asyncio, sys; from workbench import engines; from workbench.server import readiness, "
        "supervisor; connection = readiness.make_request_connection(sys.argv[1]); "
        "answer = asyncio.run(readiness.check_readiness(connection.ask, engines.get_engine('vllm'), "
        "first_timeout_s=20)); print(answer.is_ready, 'httpx' in sys.modules, 'ssl' in sys.modules)"
    )
    # as the program does it, where asyncio does not load ssl
    hidden = (
        "import sys; import workbench.__main__ as m; sys.meta_path.insert(0, m._WithoutOpenSsl());"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"{hidden} {code}", server.url],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["True", "False", "False"]


def test_each_request_says_in_the_access_log_that_workbench_asks(server: Server) -> None:
    assert server.ask().is_ready
    assert set(server.queries) == {"asked_by=workbench"}


def test_a_server_that_asks_for_a_key_is_alive(server: Server) -> None:
    async def asked(status: int) -> str | None:
        server.replies["/v1/models"] = (status, {"error": "Unauthorized"})
        with closing(readiness.make_request_connection(server.url)) as connection:
            return await readiness.find_readiness_problem(
                connection.get, engines.get_engine("sglang").alive_path
            )

    assert asyncio.run(asked(401)) is None
    assert asyncio.run(asked(500)) == "/v1/models: answers 500 Unauthorized"


def test_no_engine_is_made_to_generate_while_it_is_watched() -> None:
    """Only SGLang's /health generates, in every version whose catalog Workbench has."""
    paths = {name: engines.get_engine(name).alive_path for name in engines.engine_names()}
    assert paths.pop("sglang") == "/v1/models"
    assert set(paths.values()) == {"/health"}


@pytest.mark.parametrize(
    ("path", "reply", "reason"),
    [
        (
            "/health",
            (503, {"error": {"message": "Loading model"}}),
            "/health: answers 503 Loading model",
        ),
        ("/v1/models", (200, {"data": []}), "/v1/models names no model"),
        ("/v1/models", (200, "not json"), "/v1/models names no model"),
        (
            "/v1/chat/completions",
            (503, {"error": {"message": "Loading model"}}),
            "/v1/chat/completions returned no answer (503: Loading model)",
        ),
    ],
)
def test_the_first_unanswered_question_is_named(
    server: Server, path: str, reply: tuple[int, Any], reason: str
) -> None:
    server.replies[path] = reply
    answer = server.ask()
    assert not answer.is_ready
    assert answer.reason is not None
    assert reason in answer.reason
    assert server.asked[-1][0] == path


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ((500, {"error": {"message": "EngineDead"}}), "(500: EngineDead)"),
        ((200, {"choices": []}), "(200: {'choices': []})"),
        ((200, "no JSON"), "(200: no JSON)"),
    ],
)
def test_a_server_without_an_answer_is_not_ready(
    server: Server, reply: tuple[int, Any], reason: str
) -> None:
    for path in ("/v1/completions", "/v1/chat/completions"):
        server.replies[path] = reply
    answer = server.ask()
    assert not answer.is_ready and answer.reason is not None
    assert f"/v1/chat/completions returned no answer {reason}" in answer.reason
    assert f"/v1/completions returned no answer {reason}" in answer.reason


@pytest.mark.parametrize("status", [400, 404, 500])
def test_an_engine_without_a_chat_template_gets_a_plain_request(
    server: Server, status: int
) -> None:
    server.replies["/v1/chat/completions"] = (status, {"error": {"message": "no chat template"}})
    answer = server.ask()
    assert answer.is_ready and answer.text is not None
    assert answer.text.endpoint == "completions"


def test_an_answer_that_never_comes_is_not_ready(server: Server) -> None:
    server.replies["/v1/chat/completions"] = (0, "")
    answer = server.ask(first_timeout_s=0.3)
    assert (answer.health, answer.model, answer.text) == (True, "tiny", None)
    assert "no complete answer within 0.3 s" in (answer.reason or "")


def test_a_server_that_requires_a_key_gets_it(server: Server) -> None:
    server.replies["/v1/models"] = (401, {"error": "Unauthorized"})
    answer = server.ask()
    assert (answer.is_ready, answer.needs_key) == (False, True)
    server.replies["/v1/models"] = GOOD["/v1/models"]
    server.ask(api_key="geheim")
    assert server.asked[-1][2] == "Bearer geheim"


def test_a_port_without_listener_is_not_ready() -> None:
    async def go() -> ReadinessResult:
        with closing(readiness.make_request_connection("http://127.0.0.1:9")) as connection:
            return await readiness.check_readiness(
                connection.ask, engines.get_engine("vllm"), first_timeout_s=1
            )

    answer = asyncio.run(go())
    assert answer.health is False
    assert answer.reason is not None


def _without_end(piece: bytes) -> Iterator[bytes]:
    """Write bytes without end, a few at a time, so that no single read takes long."""
    while True:
        yield piece
        time.sleep(0.05)


OK = b"HTTP/1.1 200 OK\r\n"
WITHOUT_END = {
    "a body byte by byte": lambda: itertools.chain((OK + b"\r\n",), _without_end(b" ")),
    "headers without end": lambda: itertools.chain((OK,), _without_end(b"X: y\r\n")),
    "a body without end": lambda: itertools.chain((OK + b"\r\n",), itertools.repeat(b"[" * 65536)),
}


def _asked(steps: Callable[[], Iterable[bytes | str]]) -> tuple[int | None, list[str]]:
    async def go(url: str) -> tuple[int | None, list[str]]:
        with closing(readiness.make_request_connection(url)) as connection:
            return await readiness.read_status_and_model_names(connection.get, "/v1/models", 0.3)

    with ScriptedServer(lambda *_: steps()) as scripted:
        return asyncio.run(asyncio.wait_for(go(scripted.url), 20))


@pytest.mark.ci_cases(1)
@pytest.mark.slow  # the time limit of a connection is on top
@pytest.mark.parametrize("answer", WITHOUT_END)
def test_an_answer_without_end_is_left(answer: str) -> None:
    assert _asked(WITHOUT_END[answer]) == (None, [])


def test_brackets_without_end_and_a_compressed_answer_are_no_models() -> None:
    deep = b"[" * 200_000
    head = b"%bContent-Length: %d\r\n%b\r\n"
    assert _asked(lambda: [head % (OK, len(deep), b"") + deep]) == (200, [])
    packed = gzip.compress(b" " * 50_000_000)
    assert _asked(lambda: [head % (OK, len(packed), b"Content-Encoding: gzip\r\n") + packed]) == (
        None,
        [],
    )

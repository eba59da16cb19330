"""`bench --url`: keys, certificates and addresses, with a real server at the other end."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.certificates import certificate
from support.scripted_server import Request, ScriptedServer, chat_events, chunked, openai, plain

Cli = Callable[..., Any]
SMALL = ("--requests", "4", "--concurrency", "2", "--max-tokens", "3", "--warmup", "0")


@pytest.fixture(autouse=True)
def without_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    from workbench.session import meter

    monkeypatch.setattr(meter, "IDLE_S", 0.0)


def whole(*_: object) -> list[bytes | str]:
    time.sleep(0.02)
    return [chunked(chat_events(3))]


def asks_for_a_key(request: Request, n: int) -> list[bytes | str]:
    if request.headers.get("authorization") != "Bearer right-42":
        return [plain("401 Unauthorized", {"error": "no"})]
    return list(openai(whole)(request, n))


# -- keys ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("sekrit-42\n", "has a line end in it"),
        ("sekrit\r\n42", "has a line end in it"),
        ("sekrit-ä-42", "has characters beyond ASCII"),
        ("sekrit-\udce4-42", "has characters beyond ASCII"),
        ("sekrit 42", "has a space or a control character in it"),
        ("sekrit-\x1b[31m-42", "has a space or a control character in it"),
        ("", "is empty"),
    ],
)
@pytest.mark.parametrize("document", [False, True])
def test_a_key_that_no_header_can_carry_is_rejected_unshown(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, key: str, said: str, document: bool
) -> None:
    monkeypatch.setenv("K", key)
    with ScriptedServer(openai(whole)) as server:
        ran = cli("bench", "--url", server.url, "--api-key-env", "K", *SMALL, *(["--json"] if document else []))
        assert not server.requests
    assert ran.code == 2 and f"the API key in the variable K {said}" in ran.err
    assert "sekrit" not in ran.out + ran.err and "running" not in ran.err


def test_a_key_is_asked_for_and_a_wrong_one_is_called_that(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WRONG", "wrong-42")
    monkeypatch.setenv("RIGHT", "right-42")
    with ScriptedServer(asks_for_a_key) as server:
        none = cli("bench", "--url", server.url, *SMALL)
        wrong = cli("bench", "--url", server.url, "--api-key-env", "WRONG", *SMALL)
        right = cli("bench", "--url", server.url, "--api-key-env", "RIGHT", *SMALL)
    assert none.code == 1 and "asks for a key" in none.err and "--api-key-env NAME" in none.err
    assert wrong.code == 1 and "does not accept the key in the variable WRONG (HTTP 401)" in wrong.err
    assert "wrong-42" not in wrong.out + wrong.err and "name the variable" not in wrong.err
    assert right.code == 0 and "4 ok" in right.out


# -- certificates ----------------------------------------------------------------------------------------------------


def test_a_self_signed_certificate(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pem = certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    with ScriptedServer(openai(whole), tls=context) as server:
        distrusted = cli("bench", "--url", server.url, *SMALL)
        by_file = cli("bench", "--url", server.url, "--cacert", str(pem), *SMALL)
        insecure = cli("bench", "--url", server.url, "--insecure", *SMALL)
        monkeypatch.setenv("SSL_CERT_FILE", str(pem))
        by_variable = cli("bench", "--url", server.url, *SMALL)
    assert distrusted.code == 1 and "the certificate of https://" in distrusted.err
    assert "--cacert FILE" in distrusted.err and "port" not in distrusted.err
    assert [ran.code for ran in (by_file, insecure, by_variable)] == [0, 0, 0]
    assert "certificate was not checked" in insecure.out and "certificate" not in by_file.out + by_variable.out


# -- addresses -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["", "/", "/v1", "/v1/", "/v1/chat/completions", "/v1/completions", "/v1/models"])
def test_an_address_as_clients_are_told_to_use_it(cli: Cli, path: str) -> None:
    with ScriptedServer(openai(whole)) as server:
        ran = cli("bench", "--url", server.url + path, *SMALL, "--json")
        posts = {r.line.split()[1] for r in server.requests if r.line.startswith("POST ")}
    assert ran.code == 0 and posts == {"/v1/chat/completions"}


def test_a_server_that_lists_no_model(cli: Cli) -> None:
    with ScriptedServer(lambda request, n: [plain("200 OK", {"object": "list", "data": []})]) as server:
        ran = cli("bench", "--url", server.url, *SMALL)
    assert ran.code == 1 and "/v1/models named no model: it is not a list of models, or an empty one" in ran.err

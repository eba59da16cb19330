"""`bench --url`: keys, certificates and addresses, against real servers."""

from __future__ import annotations

import json
import signal
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.certificates import certificate
from support.command_line import CommandLine
from support.procs import eventually
from support.scripted_server import (
    SILENCE,
    Request,
    ScriptedServer,
    chat_events,
    chunked,
    load_requests,
    openai,
    plain,
)

from workbench.cli.bench import make_unresponsive_server_reporter
from workbench.model.bench import BenchProgress
from workbench.session.session import Session
from workbench.session.state import BenchState

Cli = Callable[..., Any]
SMALL = ("--requests", "4", "--concurrency", "2", "--max-tokens", "3", "--warmup", "0")


@pytest.fixture(autouse=True)
def without_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workbench.session.bench.gpu_meter.IDLE_BEFORE_RUN_S", 0.0)


def whole(*_: object) -> list[bytes | str]:
    time.sleep(0.02)
    return [chunked(chat_events(3))]


def asks_for_a_key(request: Request, n: int) -> list[bytes | str]:
    if request.headers.get("authorization") != "Bearer right-42":
        return [plain("401 Unauthorized", {"error": "no"})]
    return list(openai(whole)(request, n))


# -- keys ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("sekrit-42\n", "contains a line end"),
        ("sekrit\r\n42", "contains a line end"),
        ("sekrit-ä-42", "contains characters beyond ASCII"),
        ("sekrit-\udce4-42", "contains characters beyond ASCII"),
        ("sekrit 42", "contains a space or a control character"),
        ("sekrit-\x1b[31m-42", "contains a space or a control character"),
        ("", "is empty"),
    ],
)
@pytest.mark.parametrize("document", [False, True])
def test_an_api_key_that_a_header_cannot_contain_is_rejected_and_not_shown(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, key: str, said: str, document: bool
) -> None:
    monkeypatch.setenv("K", key)
    with ScriptedServer(openai(whole)) as server:
        ran = cli(
            "bench",
            "--url",
            server.url,
            "--api-key-env",
            "K",
            *SMALL,
            *(["--json"] if document else []),
        )
        assert not server.requests
    assert ran.code == 2 and f"the API key in the variable K {said}" in ran.err
    assert "sekrit" not in ran.out + ran.err and "running" not in ran.err


def test_a_missing_and_a_wrong_api_key_are_reported(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WRONG", "wrong-42")
    monkeypatch.setenv("RIGHT", "right-42")
    with ScriptedServer(asks_for_a_key) as server:
        none = cli("bench", "--url", server.url, *SMALL)
        wrong = cli("bench", "--url", server.url, "--api-key-env", "WRONG", *SMALL)
        right = cli("bench", "--url", server.url, "--api-key-env", "RIGHT", *SMALL)
    assert none.code == 1 and "requires an API key" in none.err and "--api-key-env NAME" in none.err
    assert (
        wrong.code == 1
        and ("does not accept the key in the variable WRONG (HTTP 401)") in wrong.err
    )
    assert "wrong-42" not in wrong.out + wrong.err and "name the variable" not in wrong.err
    assert right.code == 0 and "4 ok" in right.out


# -- certificates ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_self_signed_certificate(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    assert (
        "certificate was not checked" in insecure.out
        and "certificate" not in by_file.out + by_variable.out
    )


def test_cacert_and_insecure_exclude_each_other(cli: Cli) -> None:
    both = cli("bench", "--url", "https://127.0.0.1:1", "--cacert", "ca.pem", "--insecure")
    assert both.code == 2 and "--insecure: not allowed with argument --cacert" in both.err


# -- addresses -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["", "/", "/v1", "/v1/", "/v1/chat/completions", "/v1/completions", "/v1/models"]
)
def test_every_usual_form_of_a_base_url_works(cli: Cli, path: str) -> None:
    with ScriptedServer(openai(whole)) as server:
        ran = cli("bench", "--url", server.url + path, *SMALL, "--json")
        posts = {r.line.split()[1] for r in server.requests if r.line.startswith("POST ")}
    assert ran.code == 0 and posts == {"/v1/chat/completions"}


@pytest.mark.parametrize(
    "data", [[], [{"id": None}], [{"id": float("nan")}], [{"id": 7}], [{"id": " "}], [["id"]], "x"]
)
def test_a_server_that_lists_no_model(cli: Cli, data: object) -> None:
    with ScriptedServer(
        lambda request, n: [plain("200 OK", {"object": "list", "data": data})]
    ) as server:
        ran = cli("bench", "--url", server.url, *SMALL)
    assert (
        ran.code == 1
        and ("/v1/models named no model: the answer is not a list of models, or is empty")
        in ran.err
    )


# -- stopping --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.ci_cases(1)
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)]
)
def test_a_benchmark_that_is_stopped_keeps_what_it_measured(
    tmp_path: Path, clean_environment: None, number: signal.Signals, code: int
) -> None:
    """Stop a real process with a real signal while the server is silent."""
    with ScriptedServer(openai(lambda request, n: [SILENCE] if n >= 6 else whole())) as server:
        command = CommandLine(tmp_path)
        process = command.spawn(
            "bench", "--url", server.url, *("--requests", "20", "--concurrency", "2"), *SMALL[4:]
        )
        with process:
            eventually(
                lambda: load_requests(server) == 8,
                "eight requests",
                60,
            )
            process.send_signal(number)
            out, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    document = json.loads(out)
    assert (document["requests_ok"], document["requests_failed"]) == (6, 0)
    assert document["refused"][0] == "partial result: stopped by the user after 6 of 20 requests"
    assert command("results", "list").document["results"][0]["id"] == document["id"]


@pytest.mark.slow
def test_a_benchmark_that_is_stopped_before_anything_was_measured_stores_nothing(
    tmp_path: Path, clean_environment: None
) -> None:
    with ScriptedServer(openai(lambda request, n: [SILENCE])) as server:
        command = CommandLine(tmp_path)
        with command.spawn("bench", "--url", server.url, *SMALL) as process:
            eventually(
                lambda: load_requests(server) == 2,
                "two requests",
                60,
            )
            process.send_signal(signal.SIGINT)
            out, _ = process.communicate(timeout=60)
    assert process.returncode == 130 and json.loads(out)["error"] == "interrupted"
    assert command("results", "list").document["results"] == []


# -- a command of the user's own -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("--concurrency", "8", "--", "true"),
            "--concurrency: your own command makes its own requests",
        ),
        (("--rate", "3", "--no-stream", "--", "true"), "--rate, --stream: your own command"),
        (("--requests", "3", "--command", "true"), "--requests: your own command"),
        (("--",), "no benchmark command is given after --"),
    ],
)
def test_load_options_beside_an_own_command_are_rejected(
    cli: Cli, words: tuple[str, ...], said: str
) -> None:
    ran = cli("bench", "--url", "http://127.0.0.1:1", *words)
    assert ran.code == 2 and said in ran.err


def test_a_silent_server_is_reported_at_growing_intervals(
    capsys: pytest.CaptureFixture[str],
) -> None:
    tell, session = make_unresponsive_server_reporter(), Session.of_host()
    for silent_s in (0, 5, 9.9, 10, 12, 19, 20, 39, 41, 60, 0, 11, 12):
        progress = BenchProgress(0, 0, 8, 2, 0, 0.0, silent_s, "measuring", float(silent_s))
        session.core.update(bench=BenchState(running=True, progress=progress))
        tell(session.state, frozenset({"bench"}))
    told = capsys.readouterr().err.splitlines()
    assert [line.split(" for ")[1] for line in told] == [
        f"{n} s, 2 requests waiting" for n in (10, 20, 41, 11)
    ]
    assert told[0].startswith("measuring: no byte from the server")

"""Tests of https: the certificate is checked, and the results equal those of http."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest
from certificates import certificate
from scripted_server import FIN, ScriptedServer, Step, chat_events, chunked

from workbench.bench import records
from workbench.bench.client import Client
from workbench.bench.connection import resolve_endpoint
from workbench.bench.records import RequestRecord
from workbench.model.bench import BenchSpec
from workbench.model.errors import InputError

LONG = chunked(chat_events(2000))


@pytest.fixture
def pem(tmp_path: Path) -> Path:
    return certificate(tmp_path)


def bench(pem: Path, steps: list[Step], **fields: Any) -> list[RequestRecord]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    with ScriptedServer(lambda request, n: steps, tls=context) as server:
        spec = BenchSpec(
            server.url,
            "m",
            **{"concurrency": 2, "requests": 6, "warmup": 0, "max_tokens": 2000, **fields},
        )
        client = Client(spec, resolve_endpoint(spec), None, lambda r: None)
        client.run()
        assert server.connections == 2 or not all(r.ok for r in client.counted)
    return client.counted


def test_whole_replies(pem: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(pem))
    counted = bench(pem, [LONG[:100], LONG[100:9000], LONG[9000:]])
    assert [(r.error, r.output_tokens, r.chunks) for r in counted] == [(None, 2000, 2000)] * 6


def test_a_connection_that_ends_early(pem: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(pem))
    assert {r.error for r in bench(pem, [LONG[:9000], FIN])} == {records.TRUNCATED}


def test_an_unknown_certificate_is_rejected(pem: Path) -> None:
    counted = bench(pem, [LONG])
    assert {r.error for r in counted} == {records.CONNECT_FAILED}
    assert "certificate" in str(counted[0].detail).lower()


@pytest.mark.parametrize("by", ["ca_file", "insecure"])
def test_a_certificate_of_the_users_choice(pem: Path, by: str) -> None:
    given = {"ca_file": str(pem)} if by == "ca_file" else {"insecure": True}
    counted = bench(pem, [LONG], **given)
    assert [(r.error, r.output_tokens) for r in counted] == [(None, 2000)] * 6


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_a_file_without_a_certificate_is_an_input_error(
    tmp_path: Path, content: str | None
) -> None:
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError, match=r"--cacert .*ca\.pem: "):
        resolve_endpoint(BenchSpec("https://127.0.0.1:1", "m", ca_file=str(path)))


@pytest.mark.slow
def test_plain_http_behind_an_https_url_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedServer(lambda request, n: [LONG]) as server:
        url = server.url.replace("http:", "https:")
        spec = BenchSpec(url, "m", concurrency=1, requests=1, warmup=0, timeout_s=1.0)
        client = Client(spec, resolve_endpoint(spec), None, lambda r: None)
        client.run()
    assert client.counted[0].error in (records.CONNECT_FAILED, records.TIMEOUT)

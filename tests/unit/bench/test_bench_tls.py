"""https: the certificate is checked, and the figures are those of http."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from pathlib import Path
from typing import Any

import pytest
from scripted_server import FIN, ScriptedServer, Step, chat_events, chunked

from workbench.bench import records
from workbench.bench.client import Client
from workbench.bench.connection import resolve
from workbench.bench.records import RequestRecord
from workbench.model.bench import BenchSpec

LONG = chunked(chat_events(2000))


def certificate(directory: Path) -> Path:
    """A self-signed certificate for 127.0.0.1, with its key, in one file."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .sign(key, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    path = directory / "certificate.pem"
    path.write_bytes(pem + made.public_bytes(serialization.Encoding.PEM))
    return path


@pytest.fixture
def pem(tmp_path: Path) -> Path:
    return certificate(tmp_path)


def bench(pem: Path, steps: list[Step], **fields: Any) -> list[RequestRecord]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    with ScriptedServer(lambda request, n: steps, tls=context) as server:
        spec = BenchSpec(
            server.url, "m", **{"concurrency": 2, "requests": 6, "warmup": 0, "max_tokens": 2000, **fields}
        )
        client = Client(spec, resolve(server.url, "chat"), None, lambda r: None)
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


def test_an_unknown_certificate_is_refused(pem: Path) -> None:
    counted = bench(pem, [LONG])
    assert {r.error for r in counted} == {records.CONNECT}
    assert "certificate" in str(counted[0].detail).lower()


@pytest.mark.slow
def test_plain_http_behind_an_https_url_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedServer(lambda request, n: [LONG]) as server:
        url = server.url.replace("http:", "https:")
        spec = BenchSpec(url, "m", concurrency=1, requests=1, warmup=0, timeout_s=1.0)
        client = Client(spec, resolve(url, "chat"), None, lambda r: None)
        client.run()
    assert client.counted[0].error in (records.CONNECT, records.TIMEOUT)

"""The command's asyncio and its hashes load no OpenSSL. TLS works as before: httpx brings its own."""

from __future__ import annotations

import hashlib
import hmac
import http.server
import ssl
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support.certificates import certificate

BEGIN = (
    "import sys; from workbench.__main__ import _WithoutOpenSsl; sys.meta_path.insert(0, "
    "_WithoutOpenSsl())\n"
)
REQUEST = """
import asyncio
assert "ssl" not in sys.modules
import httpx, ssl
async def ask():
    async with httpx.AsyncClient(verify=ssl.create_default_context(cafile=sys.argv[1])) as client:
        return (await client.get(sys.argv[2])).text
print(asyncio.run(ask()))
"""


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "5")
        self.end_headers()
        self.wfile.write(b"heard")

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_httpx_speaks_tls_although_asyncio_cannot(tmp_path: Path) -> None:
    path = certificate(tmp_path)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        argv = [
            sys.executable,
            "-c",
            BEGIN + REQUEST,
            str(path),
            f"https://127.0.0.1:{server.server_port}/",
        ]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    finally:
        server.shutdown()
        server.server_close()
    assert done.stdout.strip() == "heard", done.stderr


def test_asyncssh_is_imported_as_before() -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"{BEGIN}import asyncssh"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


HASHES = """
import hashlib, hmac
assert "_hashlib" not in sys.modules
names = ("md5", "sha1", "sha224", "sha256", "sha384", "sha512", "sha3_256", "blake2b")
print(*(hashlib.new(name, b"a name").hexdigest() for name in names))
print(hmac.new(b"key", b"a name", hashlib.sha256).hexdigest(), hmac.digest(b"k", b"n", "sha1").hex())
"""


def test_hashes_are_the_same_without_openssl() -> None:
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + HASHES], capture_output=True, text=True, timeout=60
    )
    names = ("md5", "sha1", "sha224", "sha256", "sha384", "sha512", "sha3_256", "blake2b")
    wanted = [hashlib.new(name, b"a name").hexdigest() for name in names]
    keyed = hmac.new(b"key", b"a name", hashlib.sha256).hexdigest()
    assert done.stdout.split() == [*wanted, keyed, hmac.digest(b"k", b"n", "sha1").hex()], (
        done.stderr
    )


@pytest.mark.parametrize("why", ["missing", "FIPS"])
def test_a_python_that_needs_the_hashes_of_openssl_keeps_them(why: str) -> None:
    """Some distributions build Python without hashes of its own, and FIPS mode forbids those."""
    begin = {
        "missing": "import sys; sys.modules['_md5'] = None\n",
        "FIPS": (
            "import builtins, io; opened = builtins.open\n"
            "builtins.open = lambda path, *rest: "
            "io.StringIO('1') if 'fips' in str(path) else opened(path, *rest)\n"
        ),
    }[why]
    code = (
        f"{begin}{BEGIN}import hashlib; print(hashlib.sha256(b'').name, '_hashlib' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["sha256", "True"], done.stderr

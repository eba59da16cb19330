"""The command's asyncio loads no OpenSSL, and TLS works as before: httpx brings its own."""

from __future__ import annotations

import http.server
import ssl
import subprocess
import sys
import threading
from pathlib import Path

from support.certificates import certificate

BEGIN = (
    "import sys; from workbench.__main__ import _AsyncioWithoutSsl; sys.meta_path.insert(0, "
    "_AsyncioWithoutSsl)\n"
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

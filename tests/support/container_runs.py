"""Stand-ins and plans for tests of servers as containers.

`install(directory)` puts a `podman` and a `docker` there that record the words and the environment
of `run`, and tell of a container that has ended. `registry(…)` is a registry of images that can
refuse, hang or send slowly.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

DIGEST = "sha256:" + "ab" * 32
ID = "cd" * 32
_RECORDER = """#!/bin/sh
case $1-$2 in
    image-inspect) echo "sha256:1234 linux/$(uname -m | sed 's/x86_64/amd64/; s/aarch64/arm64/') {digest}" ;;
    container-inspect) echo "exited {code} false 0 0" ;;
    logs-*) printf 'a line of the container\\n' ;;
    ps-*) ;;
    run-*)
        printf '%s\\0' "$@" >"{directory}/words"; env -0 >"{directory}/environ"
        echo {id} >"$3"
        ;;
esac
"""


def install(directory: Path, code: int = 0) -> Path:
    """Install the stand-ins, whose container has exited with `code`. Return the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in ("podman", "docker"):
        file = directory / name
        file.write_text(
            _RECORDER.format(digest=f"repo@{DIGEST}", directory=directory, code=code, id=ID)
        )
        file.chmod(0o755)
    return directory


def recorded(directory: Path) -> tuple[list[str], dict[str, str]]:
    """Return the words and the environment of the last `run`."""
    words = (directory / "words").read_bytes().decode("utf-8", "surrogateescape").split("\0")[:-1]
    environ = (
        (directory / "environ").read_bytes().decode("utf-8", "surrogateescape").split("\0")[:-1]
    )
    return words, dict(pair.partition("=")[::2] for pair in environ)


@dataclass
class Registry:
    """A registry of images on this machine. `status` refuses every manifest with that HTTP code;
    while `gate` is not set, the second half of each blob is not sent."""

    port: int = 0
    status: int = 200
    blobs: dict[str, bytes] = field(default_factory=dict)
    # "name:tag" or digest: (media type, bytes)
    manifests: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    gate: threading.Event = field(default_factory=threading.Event)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def add(
        self,
        name: str,
        tag: str,
        layers: list[bytes],
        machine: str = "amd64",
        *,
        index: bool = False,
    ) -> str:
        """Add an image with these layers (tar files). Return its digest. With `index`, the tag
        names a list that has the image for `machine` only."""
        zipped = [gzip.compress(layer, 0) for layer in layers]
        config = {
            "architecture": machine,
            "os": "linux",
            "config": {"Env": ["PATH=/usr/bin:/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer) for layer in layers]},
        }
        base = "application/vnd.oci.image"
        manifest = {
            "schemaVersion": 2,
            "mediaType": f"{base}.manifest.v1+json",
            "config": self._blob(f"{base}.config.v1+json", json.dumps(config).encode()),
            "layers": [self._blob(f"{base}.layer.v1.tar+gzip", data) for data in zipped],
        }
        digest = self._manifest(name, tag, manifest)
        if index:
            about = {
                "mediaType": manifest["mediaType"],
                "digest": digest,
                "size": len(self.manifests[f"{name}:{digest}"][1]),
                "platform": {"architecture": machine, "os": "linux"},
            }
            listed = {
                "schemaVersion": 2,
                "mediaType": f"{base}.index.v1+json",
                "manifests": [about],
            }
            digest = self._manifest(name, tag, listed)
        return digest

    def _manifest(self, name: str, tag: str, document: dict[str, object]) -> str:
        data = json.dumps(document).encode()
        digest = _digest(data)
        self.manifests[f"{name}:{tag}"] = self.manifests[f"{name}:{digest}"] = (
            str(document["mediaType"]),
            data,
        )
        return digest

    def _blob(self, kind: str, data: bytes) -> dict[str, object]:
        digest = _digest(data)
        self.blobs[digest] = data
        return {"mediaType": kind, "digest": digest, "size": len(data)}


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def usr_image(**files: bytes) -> bytes:
    """Return the layer of an image whose programs are links into /usr, which is mounted from this
    machine."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name in ("usr", "tmp", "proc", "dev", "sys", "etc", "run", "root"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            tar.addfile(entry)
        for name in ("bin", "sbin", "lib", "lib64"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, f"usr/{name}"
            tar.addfile(entry)
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # a client that has seen enough


@contextlib.contextmanager
def registry(directory: Path) -> Iterator[tuple[Registry, Path]]:
    """Run a registry. Yield it, and a configuration file with which podman speaks plain HTTP to it
    (CONTAINERS_REGISTRIES_CONF)."""
    it = Registry()
    it.gate.set()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            pass

        def _answer(self, body: bytes = b"", status: int = 200, **headers: str) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            if self.command != "HEAD":
                half = len(body) // 2
                self.wfile.write(body[:half])
                self.wfile.flush()
                if half > 1000:
                    it.gate.wait(60)
                self.wfile.write(body[half:])

        def do_GET(self) -> None:
            _, _, rest = self.path.partition("/v2/")
            if "/manifests/" in rest:
                name, _, reference = rest.partition("/manifests/")
                kind, data = it.manifests.get(f"{name}:{reference}", ("", b""))
                if it.status != 200 or not kind:
                    code = "UNAUTHORIZED" if it.status == 401 else "MANIFEST_UNKNOWN"
                    error = {"errors": [{"code": code, "message": code.lower().replace("_", " ")}]}
                    self._answer(json.dumps(error).encode(), it.status if it.status != 200 else 404)
                else:
                    self._answer(data, Content_Type=kind, Docker_Content_Digest=_digest(data))
            elif "/blobs/" in rest:
                self._answer(
                    it.blobs[rest.rpartition("/")[2]], Content_Type="application/octet-stream"
                )
            else:
                self._answer(b"{}", Docker_Distribution_Api_Version="registry/2.0")

        do_HEAD = do_GET

    server = _Server(("127.0.0.1", 0), Handler)
    it.port = server.server_address[1]
    conf = directory / "registries.conf"
    conf.write_text(f'[[registry]]\nlocation = "{it.address}"\ninsecure = true\n')
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield it, conf
    finally:
        it.gate.set()
        server.shutdown()
        server.server_close()

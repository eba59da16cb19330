"""Bodies that a server or proxy compresses although nothing but plain ones is asked for."""

from __future__ import annotations

from collections.abc import Callable

from workbench.bench.http1 import HttpError

Decode = Callable[[bytes, bool], bytes]  # (bytes of the body, whether these are the last) -> what they stand for
_WINDOWS = {"gzip": 31, "x-gzip": 31, "deflate": 15}


def decoder(encoding: str) -> Decode | None:
    """Of a Content-Encoding; None where there is none. Raises HttpError for one that the standard library cannot
    read."""
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return None
    if name not in _WINDOWS:
        raise HttpError(f"Content-Encoding {name[:40]!r}, though identity was asked for")
    import zlib

    inflate = zlib.decompressobj(_WINDOWS[name])

    def decode(data: bytes, last: bool) -> bytes:
        try:
            plain = inflate.decompress(data)
        except zlib.error as error:
            raise HttpError(f"the body is not {name}: {error}") from None
        if last and not inflate.eof:
            raise HttpError(f"the {name} data ended early", truncated=True)
        return plain

    return decode

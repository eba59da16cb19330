"""The `workbench` command. Textual reads its settings at import, so their defaults are set
first."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from types import ModuleType

# Textual draws at most this many frames per second. 40 answer a key in time.
_DEFAULTS = {
    "TEXTUAL_FPS": "20" if "SSH_CONNECTION" in os.environ else "40",
    "TEXTUAL_ANIMATIONS": "none",
    "TEXTUAL_SMOOTH_SCROLL": "0",
}


class _WithoutOpenSsl:
    """A finder that hides the module ssl from asyncio, and the hashes of OpenSSL from hashlib and
    hmac, which have their own. OpenSSL takes 1 to 4 MB and 10 ms. asyncio needs it only for TLS of
    its own, which nobody here uses: httpx, asyncssh and the load client bring theirs. Workbench
    hashes only names and small files."""

    def __init__(self) -> None:
        self._hidden = "_hashlib" if _has_own_hashes() else ""

    def find_spec(self, name: str, path: object = None, target: ModuleType | None = None) -> None:
        if name == self._hidden:
            raise ModuleNotFoundError("hidden from hashlib", name=name)
        asyncio = sys.modules.get("asyncio") if name == "ssl" else None
        if asyncio is not None and getattr(asyncio.__spec__, "_initializing", False):
            raise ModuleNotFoundError("hidden from asyncio", name=name)


def _has_own_hashes() -> bool:
    """Return whether Python has its own hashes and may use them. Some distributions build it
    without; in FIPS mode, only those of OpenSSL are allowed."""
    names = ("_md5", "_sha1", "_sha3", "_blake2")
    newer = sys.version_info >= (3, 12)
    try:
        for name in (*names, "_sha2") if newer else (*names, "_sha256", "_sha512"):
            __import__(name)
        with open("/proc/sys/crypto/fips_enabled") as file:  # noqa: PTH123  (pathlib is slow)
            return file.read().strip() != "1"
    except ImportError:
        return False
    except OSError:  # a kernel without FIPS
        return True


def main() -> int:
    from workbench.cli.end_signals import install_termination_signal_handlers

    install_termination_signal_handlers()
    try:
        return _configure_and_run_cli()
    except KeyboardInterrupt:  # while modules load; cli/run.py takes a later one
        os.write(2, b"workbench: interrupted\n")
        return 130


def _configure_and_run_cli() -> int:
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    # httpx would import its own command line, which Workbench never uses, and that takes 0.1 s.
    sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]
    sys.meta_path.insert(0, _WithoutOpenSsl())
    # While modules load there is no garbage, but looking for it takes a tenth of the time to the
    # first frame. cli/run.py enables the collection before a command runs, and the screen does
    # after its first frame.
    gc.disable()
    # Nor is there at the end anything that a search would free sooner than the end of the process
    # does. After a run of a million tokens the search took 0.2 s. The last handler to run.
    atexit.register(gc.freeze)
    from workbench.cli import main as run
    from workbench.cli.streams import configure_standard_streams

    configure_standard_streams()
    return run()


if __name__ == "__main__":
    sys.exit(main())

"""The `workbench` command. Textual reads its settings at import, so their defaults are set first."""

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


class _AsyncioWithoutSsl:
    """A finder that hides the module ssl from asyncio, and from nothing else. OpenSSL takes 1 MB
    and 10 ms, and asyncio needs it only for TLS of its own, which nobody here uses: httpx, asyncssh
    and the load client bring theirs."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: ModuleType | None = None) -> None:
        asyncio = sys.modules.get("asyncio") if name == "ssl" else None
        if asyncio is not None and getattr(asyncio.__spec__, "_initializing", False):
            raise ModuleNotFoundError("hidden from asyncio", name=name)


def main() -> int:
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    # httpx would import its own command line, which Workbench never uses, and that takes 0.1 s.
    sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]
    sys.meta_path.insert(0, _AsyncioWithoutSsl)
    # While modules load there is no garbage, but looking for it takes a tenth of the time to the
    # first frame. cli/run.py enables the collection before a command runs, and the screen does
    # after its first frame.
    gc.disable()
    # Nor is there at the end anything that a search would free sooner than the end of the process
    # does. After a run of a million tokens the search took 0.2 s. The last handler to run.
    atexit.register(gc.freeze)
    from workbench.cli import main as run
    from workbench.cli.streams import prepare

    prepare()
    return run()


if __name__ == "__main__":
    sys.exit(main())

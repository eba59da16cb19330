"""The `workbench` command. Textual reads its settings at import, so their defaults are set first."""

from __future__ import annotations

import gc
import os
import sys

# A frame waits up to a period: 40 per second answers a key in time, and figures do not pass through frames (compat.py).
_DEFAULTS = {
    "TEXTUAL_FPS": "20" if "SSH_CONNECTION" in os.environ else "40",
    "TEXTUAL_ANIMATIONS": "none",
    "TEXTUAL_SMOOTH_SCROLL": "0",
}


def main() -> int:
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    # httpx loads its own command line where rich and click are installed: 0.1 s for what nobody here calls.
    sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]
    # Collecting garbage while modules load finds none and costs a tenth of the time to the first frame. The command
    # line switches it on again before a command works; the screen does when it stands.
    gc.disable()
    from workbench.cli import main as run
    from workbench.cli.streams import prepare

    prepare()
    return run()


if __name__ == "__main__":
    sys.exit(main())

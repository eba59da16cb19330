"""Where the traceback of a defect goes: a file, never the screen."""

from __future__ import annotations

import time
import traceback


def keep_traceback(error: BaseException) -> str | None:
    """Write the traceback below the state directory; returns its path, or None where that fails."""
    from workbench.store.paths import state_dir

    try:
        folder = state_dir() / "crashes"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = folder / time.strftime("%Y%m%d-%H%M%S.txt")
        path.write_text("".join(traceback.format_exception(error)))
        return str(path)
    except OSError:
        return None

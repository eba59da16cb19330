"""Files with the tracebacks of unexpected exceptions. They contain no values of variables and no
secrets."""

from __future__ import annotations

import os
import time
import traceback

from workbench.model.secrets import is_secret_name, mask_text, remembered_secrets
from workbench.model.untrusted_text import clean_text
from workbench.store.paths import state_dir

_MOST_CHARS = 1_000_000
# so that a defect that recurs each second is written once
_kept: dict[tuple[object, ...], str | None] = {}


def store_traceback_file(error: BaseException) -> str | None:
    """Write the traceback of an exception, with secrets masked, to a file in the state directory.
    Return the file's path, or None if the file cannot be written. A second exception of the same
    type with the same traceback is not written again."""
    where = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    key = (type(error), *where)
    if key not in _kept:
        _kept[key] = _write_crash_file(error)
    return _kept[key]


def _write_crash_file(error: BaseException) -> str | None:
    text = _mask_secrets(
        clean_text("".join(traceback.format_exception(error)), _MOST_CHARS, lines=True)
    )
    try:
        folder = state_dir() / "crashes"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{len(_kept)}.txt"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
        return str(path)
    except OSError:
        return None


def internal_error_message_and_details(error: BaseException) -> tuple[str, str]:
    """Return (message about an unexpected exception, sentence that names the file with its
    traceback). Secrets are masked in both."""
    kept = store_traceback_file(error)
    details = (
        f"please report it with the file {kept}"
        if kept
        else "please report this line; no traceback file could be written"
    )
    return _mask_secrets(f"a defect in Workbench: {type(error).__name__}: {error}"), details


def _mask_secrets(text: str) -> str:
    own = (
        value.strip()
        for name, value in os.environ.items()
        if is_secret_name(name) and len(value) > 3
    )
    return mask_text(text, (*remembered_secrets(), *own))

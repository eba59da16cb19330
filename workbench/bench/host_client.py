"""The program that runs the load client on the server's host. It runs the worker, and stores the
result in a file until Workbench has received it.

If the link to Workbench is lost, the client ends its run, and the file has the metrics of the
requests measured so far. argv[1] is a JSON object with "name", the name of the file in Workbench's
state directory. Input and output are those of `worker`, with two additions: the first output line
has the process id, the Unix time and the file's path, and after the summary the program waits for
the line "received".
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from workbench.bench import worker
from workbench.bench.client_process import WorkerOutput
from workbench.bench.records import ENDED_BY_SIGNAL, OUTPUT_UNREAD, PARENT_ENDED

RECEIPT_TIMEOUT_S = 30.0  # to wait for the line "received"
_OLD_RESULT_S = 86_400.0  # a result that nobody has fetched for so long is removed


def main() -> None:
    path = _prepare_result_path(str(json.loads(sys.argv[1])["name"]))
    output = WorkerOutput(1)
    output.write_line(
        {"type": "client", "pid": os.getpid(), "unix_s": time.time(), "path": str(path)}
    )

    finished = False

    def store_summary(message: dict[str, Any]) -> None:
        nonlocal finished
        if finished := message["type"] == "summary":
            message["sent_unix_s"] = time.time()
            with suppress(OSError):  # a full disk: then the link has to hold
                _write_result_file(path, message)

    worker.run_benchmark_request(
        output, store_summary, partial_result_reasons={ENDED_BY_SIGNAL, PARENT_ENDED, OUTPUT_UNREAD}
    )
    if finished and _wait_for_receipt():
        with suppress(OSError):
            path.unlink()


def _prepare_result_path(name: str) -> Path:
    """Return the path of the result file called `name`. Create its directory, and remove old result
    files from it."""
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    if not state.is_absolute():
        state = Path.home() / ".local" / "state"
    folder = state / "workbench" / "bench"
    with suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for old in folder.iterdir():
            if old.stat().st_mtime < time.time() - _OLD_RESULT_S:
                old.unlink()
    return folder / name


def _write_result_file(path: Path, message: dict[str, Any]) -> None:
    new = path.with_name(f"{path.name}.new")
    try:
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(json.dumps(message).encode())
        new.replace(path)
    except OSError:
        new.unlink()
        raise


def _wait_for_receipt() -> bool:
    """Wait up to RECEIPT_TIMEOUT_S seconds for the line "received" on stdin. Return whether it
    came."""
    said, until = b"", time.monotonic() + RECEIPT_TIMEOUT_S
    while b"received" not in said:
        if not select.select([0], [], [], max(0.0, until - time.monotonic()))[0]:
            return False
        with suppress(OSError):
            data = os.read(0, 4096)
            if data:
                said += data
                continue
        return False
    return True

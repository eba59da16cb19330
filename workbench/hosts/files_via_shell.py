"""Files and state directory of a host on which one can only run commands."""

from __future__ import annotations

from workbench.hosts import shell_scripts
from workbench.hosts.base import Completed, FileError, Host, state_dir_missing

_READ_ERRORS = {3: "no such file", 4: "is a directory", 5: "permission denied"}
TIMEOUT_S = 120.0  # a slow link, a large file, the fsync of a busy disk


async def state_dir(host: Host) -> str:
    done = await host.run(shell_scripts.sh(shell_scripts.STATE_DIR))
    path = done.out.strip()
    if done.returncode != 0 or not path.startswith("/"):
        raise state_dir_missing(host.name, _last(done))
    return path


async def read(host: Host, path: str, offset: int, limit: int | None) -> bytes:
    last = "" if limit is None else str(limit)
    done = await host.run(shell_scripts.sh(shell_scripts.READ_FILE, path, str(offset), last), timeout_s=TIMEOUT_S)
    if done.returncode != 0:
        raise _error(host, "read", path, _READ_ERRORS.get(done.returncode) or _last(done))
    return done.stdout


async def write(host: Host, path: str, data: bytes, mode: int) -> None:
    command = shell_scripts.sh(shell_scripts.WRITE_FILE, path, f"{mode:o}", str(len(data)))
    done = await host.run(command, input=data, timeout_s=TIMEOUT_S)
    if done.returncode != 0:
        raise _error(host, "write", path, _last(done))


def _error(host: Host, what: str, path: str, reason: str) -> FileError:
    step = "free some space there" if "no space left" in reason.lower() else None
    return FileError(f"cannot {what} {path}: {reason}", host=host.name, next_step=step)


def _last(done: Completed) -> str:
    said = done.err.strip().splitlines()
    return said[-1] if said else f"exit code {done.returncode}"

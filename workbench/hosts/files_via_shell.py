"""Reads and writes files of a host with shell commands, for hosts that offer no other access to
their files."""

from __future__ import annotations

from workbench.hosts import shell_scripts
from workbench.hosts.base import FileError, Host, state_dir_error

_READ_ERRORS = {3: "no such file", 4: "is a directory", 5: "permission denied"}
TIMEOUT_S = 120.0  # a slow link, a large file, the fsync of a busy disk


async def state_dir_via_shell(host: Host) -> str:
    """Return the absolute path of Workbench's state directory on the host. It is created if it is
    missing. Raises FileError if it cannot be created."""
    done = await host.run(shell_scripts.shell_argv(shell_scripts.STATE_DIR))
    path = done.out.strip()
    if done.returncode != 0 or not path.startswith("/"):
        raise state_dir_error(host.name, done.problem)
    return path


async def read_file_via_shell(host: Host, path: str, offset: int, limit: int | None) -> bytes:
    """Return the bytes of the file `path` from position `offset` on: all of them, or at most
    `limit` if it is not None. Raises FileError if the file cannot be read."""
    last = "" if limit is None else str(limit)
    done = await host.run(
        shell_scripts.shell_argv(shell_scripts.READ_FILE, path, str(offset), last),
        timeout_s=TIMEOUT_S,
    )
    if done.returncode != 0:
        raise _file_error(host, "read", path, _READ_ERRORS.get(done.returncode) or done.problem)
    return done.stdout


async def write_file_via_shell(host: Host, path: str, data: bytes, mode: int) -> None:
    """Write `data` to the file `path` atomically, with the permissions `mode`, and create missing
    parent directories. Raises FileError if the file cannot be written."""
    command = shell_scripts.shell_argv(shell_scripts.WRITE_FILE, path, f"{mode:o}", str(len(data)))
    done = await host.run(command, input=data, timeout_s=TIMEOUT_S)
    if done.returncode != 0:
        raise _file_error(host, "write", path, done.problem)


def _file_error(host: Host, operation: str, path: str, reason: str) -> FileError:
    step = "free some space on the host" if "no space left" in reason.lower() else None
    return FileError(f"cannot {operation} {path}: {reason}", host=host.name, next_step=step)

"""The limit of open files (RLIMIT_NOFILE) that a server needs, as shell lines and as the option of
a container."""

from __future__ import annotations

# Only root may raise the hard limit.
_RAISE = """if [ "$(ulimit -Sn)" != unlimited ] && [ "$(ulimit -Sn)" -lt {files} ]; then
    ulimit -Sn {files} 2>/dev/null || ulimit -Sn "$(ulimit -Hn)"
fi"""


def open_files_shell_lines(files: int) -> str:
    """Return shell lines that raise the soft limit of open files to `files`, or to the hard limit
    if that is lower. A soft limit that is higher stays."""
    return _RAISE.format(files=files)


def open_files_shell_prefix(files: int) -> str:
    """Return shell code to put in front of a command on one line: it raises the soft limit of open
    files to `files`, or to the hard limit if that is lower."""
    return f'ulimit -Sn {files} || ulimit -Sn "$(ulimit -Hn)"; '


def open_files_option(files: int) -> str:
    """Return the value of the option --ulimit of docker and podman."""
    return f"nofile={files}:{files}"

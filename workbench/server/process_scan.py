"""Finds the processes of this machine whose command lines look like an inference engine, by reading
/proc.

Workbench uses this module itself and sends it to hosts, so it uses only the standard library and
Python 3.8.
"""

# ruff: noqa: PTH115, PTH123, PTH208
# (pathlib is slow to import, and this runs on every host)

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_PROCESSES = 64  # processes examined
CMDLINE_MAX_BYTES = 65536
# A shell may become an engine (exec), so that a command line is read more than once.
_MAX_READS = 8
# A process id that is used again, or a late exec, must not hide an engine for ever.
_FORGET_AFTER_S = 300.0
_SYSTEMCTL_TIMEOUT_S = 5.0
_CONTAINER_PATTERNS = (
    ("docker", re.compile(r"docker[-/]([0-9a-f]{12})[0-9a-f]{52}")),
    ("podman", re.compile(r"libpod-([0-9a-f]{12})[0-9a-f]{52}")),
)


class ProcessScan:
    """Finds the engine processes of this machine, whose command lines match the regular expression
    `pattern`. Each call of `scan` reads only what is new since the one before: the command lines of
    new processes, and everything else only of engines."""

    def __init__(self, pattern: str) -> None:
        self._pattern: re.Pattern[str] = re.compile(pattern)
        # For each process that is no engine, how often its command line was read.
        self._others: dict[int, int] = {}
        self._engines: dict[tuple[int, str], dict[str, Any]] = {}
        self._listening: dict[str, int] = {}
        self._forget_at_s = 0.0

    def scan(self) -> dict[str, Any]:
        """Return {"processes": [...], "listening": {inode of a socket: port}}. Each process has
        "pid", "uid", "own" (a Workbench started it), "argv", "inodes" (of its sockets), "log" (the
        file of its output), "unit" and "scope" (of systemd, or its container)."""
        now = time.monotonic()
        if now >= self._forget_at_s:
            self._others.clear()
            self._forget_at_s = now + _FORGET_AFTER_S
        pids = {int(name) for name in os.listdir("/proc") if name.isdecimal()}
        self._others = {pid: count for pid, count in self._others.items() if pid in pids}
        self._engines = {
            key: one for key, one in self._engines.items() if _is_still_running(key, pids)
        }
        known = {pid for pid, _ in self._engines}
        for pid in sorted(pids - known):
            if self._others.get(pid, 0) < _MAX_READS:
                self._read_new_process(pid)
        listening = _listening_sockets() if self._engines else {}
        if listening != self._listening:
            self._listening = listening
            for process in self._engines.values():
                process["inodes"] = _socket_inodes(process["pid"])
        return {"processes": list(self._engines.values()), "listening": listening}

    def _read_new_process(self, pid: int) -> None:
        argv = _argv_of_process(pid)
        if not self._pattern.search(" ".join(argv)):
            self._others[pid] = self._others.get(pid, 0) + 1
            return
        if len(self._engines) >= MAX_PROCESSES:
            return
        started = _start_time(pid)
        if started is None:
            return
        group = _read_file_start(f"/proc/{pid}/cgroup")
        scope, unit = _scope_and_unit_of_process(pid, group)
        self._others.pop(pid, None)
        self._engines[pid, started] = {
            "pid": pid,
            "uid": _uid_of_process(pid),
            "own": "WORKBENCH_RUN=" in _read_file_start(f"/proc/{pid}/environ"),
            "argv": argv,
            "inodes": _socket_inodes(pid),
            "log": _output_file_of(pid),
            "scope": scope,
            "unit": unit,
        }


def _read_file_start(path: str, max_bytes: int = 1 << 20) -> str:
    """Return the first `max_bytes` of a file as text; "" if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(max_bytes).decode("utf-8", "replace")
    except OSError:
        return ""


def _argv_of_process(pid: int) -> list[str]:
    text = _read_file_start(f"/proc/{pid}/cmdline", CMDLINE_MAX_BYTES)
    if not text:
        return []
    return text.rstrip("\0").split("\0")


def _start_time(pid: int) -> str | None:
    """Return the start time of a process in clock ticks since boot, as text; None if it has
    ended."""
    words = _read_file_start(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return words[19] if len(words) > 19 and words[0] not in "ZX" else None


def _is_still_running(key: tuple[int, str], pids: set[int]) -> bool:
    pid, started = key
    return pid in pids and _start_time(pid) == started


def _uid_of_process(pid: int) -> int | None:
    try:
        return os.stat(f"/proc/{pid}").st_uid  # noqa: PTH116
    except OSError:
        return None


def _output_file_of(pid: int) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/fd/1")
    except OSError:
        return None


def _socket_inodes(pid: int) -> list[str]:
    """Return the inodes of the sockets of a process; [] if it belongs to another user."""
    directory = f"/proc/{pid}/fd"
    inodes = []
    try:
        names = os.listdir(directory)
    except OSError:
        return []
    for name in names:
        try:
            target = os.readlink(directory + "/" + name)
        except OSError:
            continue
        if target.startswith("socket:["):
            inodes.append(target[8:-1])
    return inodes


def _listening_sockets() -> dict[str, int]:
    """Return {inode of a socket: port} of all TCP sockets on which this machine listens."""
    ports = {}
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in _read_file_start(path, 1 << 26).splitlines():
            words = line.split()
            if len(words) > 9 and words[3] == "0A":
                ports[words[9]] = int(words[1].rpartition(":")[2], 16)
    return ports


def _scope_and_unit_of_process(pid: int, group: str) -> tuple[str, str | None]:
    """Return (scope, name) of the systemd unit whose main process `pid` is, otherwise (kind, id) of
    its container, otherwise ("system", None). `group` is the text of its cgroup file."""
    for line in group.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers in ("", "name=systemd") and path.endswith(".service"):
            scope = "user" if "/user@" in path else "system"
            name = path.rpartition("/")[2]
            if _main_pid(scope, name) == pid:
                return scope, name
    for kind, pattern in _CONTAINER_PATTERNS:
        found = pattern.search(group)
        if found:
            return kind, found.group(1)
    return "system", None


def _main_pid(scope: str, unit: str) -> int | None:
    """Return the id of the main process of a systemd unit, 0 if it has none; None if systemd does
    not say. `scope`, "user" or "system", says whose unit it is."""
    environment = dict(os.environ)
    environment.setdefault("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}")
    argv = ["systemctl", "--" + scope, "show", "--property=MainPID", "--", unit]
    try:
        done = subprocess.run(
            argv, env=environment, capture_output=True, timeout=_SYSTEMCTL_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    value = done.stdout.decode("utf-8", "replace").strip().partition("=")[2]
    if not value.isdecimal():
        return None
    return int(value)


def main() -> None:
    """Print what one scan finds, as a line of JSON."""
    orders = json.loads(sys.argv[1])
    print(json.dumps(ProcessScan(orders["pattern"]).scan()))  # noqa: T201

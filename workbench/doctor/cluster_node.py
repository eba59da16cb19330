"""The program that `workbench cluster check` runs on each node of a cluster. It reads questions
from stdin, one JSON object per line, and writes one JSON object per line as the answer. It exits at
the end of stdin. Questions and answers are:

{"ask": "look", "names": [...], "ports": [...], "engines": R}   what is on the node, see the function `examine_node`
{"ask": "clock"}                                     {"unix_s"}, the time of the node's clock
{"ask": "listen", "address": A}                      {"port"}, on which the node then accepts connections
{"ask": "connect", "address": A, "port": P}          {"ms"}, the time of one TCP connection

If a question cannot be answered, the answer is {"error": reason}.
"""

# ruff: noqa: PTH123, PTH208, PTH116, UP031
# (pathlib is slow to import, and this runs on every node)

from __future__ import annotations

import json
import os
import re
import resource
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

CONNECT_S = 3.0
MOST = 64  # of each kind of thing that is listed
RAY = re.compile(r"/raylet\b|/gcs_server\b|^ray::")
# Names of segments in /dev/shm that Python, NCCL, torch, vLLM, SGLang and Ray leave there when they
# are killed.
SEGMENT = re.compile(r"^(psm_|nccl-|torch_|sem\.mp-|vllm|sgl|plasma|ray)")


def main() -> None:
    for line in sys.stdin:
        try:
            question = json.loads(line)
            answer = ANSWERS[question.pop("ask")](**question)
        except OSError as error:
            answer = {"error": error.strerror or str(error)}
        except (ValueError, KeyError, TypeError) as error:
            answer = {"error": "%s: %s" % (type(error).__name__, error)}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def read_unix_time() -> dict[str, Any]:
    return {"unix_s": time.time()}


def listen_on_free_port(address: str) -> dict[str, Any]:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family)
    listener.bind((address, 0))
    listener.listen(16)
    threading.Thread(target=_accept_and_close_connections, args=(listener,), daemon=True).start()
    return {"port": listener.getsockname()[1]}


def _accept_and_close_connections(listener: socket.socket) -> None:
    while True:
        listener.accept()[0].close()


def measure_connect_time(address: str, port: int) -> dict[str, Any]:
    began = time.monotonic()
    try:
        socket.create_connection((address, port), CONNECT_S).close()
    except socket.timeout:  # noqa: UP041 - not the same before Python 3.10
        return {"error": "no answer within %g s" % CONNECT_S}
    return {"ms": round(1000 * (time.monotonic() - began), 3)}


def examine_node(names: list[str], ports: list[int], engines: str) -> dict[str, Any]:
    """Return, as a dict, what is on this node: the addresses to which each of `names` and its own
    host name resolves, which of `ports` are in use, the sizes of its memory in bytes, the limit on
    locked memory in bytes (None: no limit), the processes of engines and of Ray, and the unused
    shared memory segments. `engines` is a regular expression for the command lines of engines."""
    processes = _processes_by_kind(re.compile(engines))
    return {
        "hostname": socket.gethostname(),
        "names": {name: _resolve_addresses(name) for name in [*names, socket.gethostname()]},
        "taken": [port for port in ports if _port_is_taken(port)],
        "memory": _memory_sizes_bytes(),
        "memlock_bytes": _soft_resource_limit(resource.RLIMIT_MEMLOCK),
        "engines": processes["engine"][:MOST],
        "ray": processes["ray"][:MOST],
        "segments": []
        if os.environ.get("WORKBENCH_SIM_STATE")
        else _unmapped_shared_memory_segments(),
    }


def _resolve_addresses(name: str) -> list[str]:
    try:
        return sorted(
            {str(found[4][0]) for found in socket.getaddrinfo(name, None, proto=socket.IPPROTO_TCP)}
        )
    except OSError:
        return []


def _port_is_taken(port: int) -> bool:
    """Return whether a program of this node listens on the port, on any address."""
    wanted = ":%04X" % port
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in _read_text_or_empty(table).splitlines()[1:]:
            words = line.split()
            if len(words) > 3 and words[1].endswith(wanted) and words[3] == "0A":
                return True
    return False


def _memory_sizes_bytes() -> dict[str, int]:
    """Return MemTotal, MemAvailable, SwapTotal and SwapFree from /proc/meminfo, in bytes. Missing
    ones are left out."""
    sizes = r"(?m)^(MemTotal|MemAvailable|SwapTotal|SwapFree):\s+(\d+)\s"
    return {
        name: 1024 * int(kib)
        for name, kib in re.findall(sizes, _read_text_or_empty("/proc/meminfo"))
    }


def _soft_resource_limit(kind: int) -> int | None:
    soft = resource.getrlimit(kind)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def _processes_by_kind(engines: re.Pattern[str]) -> dict[str, list[dict[str, Any]]]:
    """Return the processes of engines (under "engine") and of Ray (under "ray") as dicts: pid,
    kind, name, uid, age_s, and run, which says whether Workbench started the process. Command lines
    are left out, because they may contain secrets."""
    found: dict[str, list[dict[str, Any]]] = {"engine": [], "ray": []}
    up = float((_read_text_or_empty("/proc/uptime") or "0").split()[0])
    tick = os.sysconf("SC_CLK_TCK")
    simulated = os.environ.get("WORKBENCH_SIM_STATE")
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        command = _read_text_or_empty("/proc/%s/cmdline" % pid).replace("\0", " ").strip()
        of_ray = RAY.search(command)
        match = of_ray or engines.search(command)
        kind = "ray" if of_ray else "engine"
        stat = _read_text_or_empty("/proc/%s/stat" % pid).rpartition(") ")[2].split()
        if match is None or int(pid) == os.getpid() or len(stat) < 20 or stat[0] in "ZX":
            continue
        try:
            uid = os.stat("/proc/%s" % pid).st_uid
        except OSError:  # it has ended meanwhile
            continue
        environ = _read_text_or_empty("/proc/%s/environ" % pid)
        if simulated and "\0WORKBENCH_SIM_STATE=%s\0" % simulated not in "\0%s\0" % environ:
            continue  # of the machine below
        run = re.search(r"(?:^|\0)WORKBENCH_RUN=(\w+)", environ)
        name = _read_text_or_empty("/proc/%s/comm" % pid).strip()
        found[kind].append(
            {
                "pid": int(pid),
                "kind": kind,
                "name": name or match.group(),
                "uid": uid,
                "age_s": round(up - int(stat[19]) / tick),
                "run": bool(run),
            }
        )
    return found


def _unmapped_shared_memory_segments() -> list[dict[str, Any]]:
    """Return the shared memory segments of engines that no process has mapped, each as {"name":
    file name, "bytes": size}. Segments of other users are left out unless this user is root."""
    try:
        entries = [entry for entry in os.scandir("/dev/shm") if SEGMENT.match(entry.name)][:MOST]
    except OSError:
        return []
    pids = filter(str.isdecimal, os.listdir("/proc"))
    mapped = "".join(_read_text_or_empty("/proc/%s/maps" % pid) for pid in pids)
    found = []
    for entry in entries:
        if "/dev/shm/" + entry.name not in mapped and entry.is_file(follow_symlinks=False):
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            if os.geteuid() in (0, status.st_uid):  # who maps those of others cannot be read
                found.append({"name": entry.name, "bytes": 512 * status.st_blocks})
    return found


def _read_text_or_empty(path: str) -> str:
    """Return the content of a file, "" if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


ANSWERS: dict[str, Callable[..., dict[str, Any]]] = {
    "look": examine_node,
    "clock": read_unix_time,
    "listen": listen_on_free_port,
    "connect": measure_connect_time,
}

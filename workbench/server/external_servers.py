"""Finds the servers on a host that Workbench did not start, by the command lines in /proc, and asks
each server for the names of its models.

No process gets a signal, and only processes that look like an inference engine get HTTP requests.
"""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from workbench.engines import registry
from workbench.engines.base import Engine
from workbench.hosts.base import Forward, Host
from workbench.model.errors import HostError
from workbench.model.secrets import mask_argv
from workbench.model.server_run import EngineMetrics
from workbench.model.untrusted_text import clean
from workbench.server import metrics, readiness

if TYPE_CHECKING:
    import httpx

ASK_S = 3.0
MOST = 64  # processes examined
# Parts of the command lines of servers that Workbench finds but does not start; valid for both grep
# -E and re.
_OTHERS = r"ollama|lmdeploy|trtllm|text-generation|mlc_llm|koboldcpp|aphrodite"
# Prints "proc PID UID OWN", then the words of its command line as "arg …", its sockets as "inode
# N", its unit of systemd as "unit SCOPE NAME" if it is the main process of the unit, its container
# as "unit docker ID" or "unit podman ID", the file of its output as "log …"; finally "listen INODE
# PORT" for each listening socket of the host. OWN is 1 for a process that a Workbench started. grep
# reads all command lines at once.
_LOOK = r"""
[ -n "${XDG_RUNTIME_DIR-}" ] || export XDG_RUNTIME_DIR="/run/user/$(id -u)"
for file in $(grep -alE "$1" /proc/[0-9]*/cmdline 2>/dev/null | head -n "$2"); do
    dir=${file%/cmdline}
    own=0
    grep -aqs 'WORKBENCH_RUN=' "$dir/environ" && own=1
    echo "proc ${dir#/proc/} $(stat -c %u "$dir" 2>/dev/null) $own"
    tr '\0\n' '\n ' <"$dir/cmdline" 2>/dev/null | head -c 65536 | sed 's/^/arg /'
    ls -l "$dir/fd" 2>/dev/null | sed -n 's/.*socket:\[\([0-9]*\)\]$/inode \1/p'
    groups=$(sed -n 's/^0:://p; s/^[0-9]*:name=systemd://p' "$dir/cgroup" 2>/dev/null)
    group=$(printf '%s\n' "$groups" | sed -n '/\.service$/{p;q;}')
    if [ -n "$group" ] && command -v systemctl >/dev/null 2>&1; then
        scope=system
        case $group in */user@*.service/*) scope=user ;; esac
        main=$(systemctl "--$scope" show --property=MainPID -- "${group##*/}" 2>/dev/null)
        [ "$main" = "MainPID=${dir#/proc/}" ] && echo "unit $scope ${group##*/}"
    fi
    id='\([0-9a-f]\{12\}\)[0-9a-f]\{52\}.*'
    sed -n "s|.*docker[-/]$id|unit docker \1|p; s|.*libpod-$id|unit podman \1|p" "$dir/cgroup" 2>/dev/null | head -n 1
    log=$(readlink "$dir/fd/1" 2>/dev/null) && echo "log $log"
done
cat /proc/net/tcp /proc/net/tcp6 2>/dev/null |
    awk '$4 == "0A" { print "listen", $10, substr($2, length($2) - 3) }'
exit 0
"""


@dataclass(frozen=True, slots=True)
class FoundServer:
    """A server that Workbench did not start and that answered /v1/models. Secrets in `argv` are
    masked."""

    pid: int
    port: int
    engine: str  # "" for an engine that Workbench does not start
    argv: tuple[str, ...]
    uid: int | None = None
    models: tuple[str, ...] = ()
    output: str | None = None  # where its standard output goes: a file, or None
    note: str = ""  # its answer if it named no models
    unit: str | None = None  # of systemd, whose main process it is, or its container; None: neither
    # what runs the unit: the service manager of the "system" or the "user", "docker" or "podman"
    scope: str = "system"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def command(self) -> str:
        return shlex.join(self.argv)

    @property
    def adopt(self) -> str | None:
        """The `workbench adopt` command line with which Workbench follows this server; None if it
        runs neither as a systemd unit nor in a container."""
        options = "".join(f" --run-option {option}" for option in self.run_options)
        return (
            (f"workbench adopt {shlex.quote(f'{self.run_as}:{self.unit}')}{options}")
            if self.unit
            else None
        )

    @property
    def run_as(self) -> str:
        return self.scope if self.scope in ("docker", "podman") else "systemd"

    @property
    def run_options(self) -> tuple[str, ...]:
        return (f"scope={self.scope}",) if self.run_as == "systemd" else ()

    @property
    def unit_text(self) -> str:
        return (
            f"{self.unit}, of the {self.scope}'s systemd"
            if self.run_as == "systemd"
            else f"{self.unit} of {self.scope}"
        )

    @property
    def bench(self) -> str:
        """The `workbench bench` command line that benchmarks this server."""
        return f"workbench bench --url {self.url}"


@dataclass(slots=True)
class _Seen:
    pid: int
    uid: int | None
    own: bool
    argv: list[str] = field(default_factory=list)
    inodes: set[str] = field(default_factory=set)
    log: str | None = None
    unit: str | None = None
    scope: str = "system"


async def find(host: Host, known_ports: Iterable[int] = ()) -> tuple[FoundServer, ...]:
    """Return the servers of `host` that were not started by Workbench, sorted by port.
    `known_ports` are the ports of Workbench's own runs, which are skipped. Raises HostError if the
    host cannot be queried."""
    patterns = "|".join([registry.server_patterns(), _OTHERS])
    done = await host.run(["sh", "-c", _LOOK, "sh", patterns, str(MOST)], check=True)
    processes, listening = _parse(done.out)
    known = set(known_ports)
    candidates: dict[int, FoundServer] = {}
    for seen in processes:
        if seen.own or not seen.argv:
            continue
        ports = {listening[i] for i in seen.inodes if i in listening} or _named_port(
            seen, set(listening.values())
        )
        for port in sorted(ports - known):
            candidates.setdefault(port, _server(seen, port))
    answers = await asyncio.gather(*(_asked(host, one) for one in candidates.values()))
    return tuple(sorted((a for a in answers if a is not None), key=lambda a: a.port))


def _parse(text: str) -> tuple[list[_Seen], Mapping[str, int]]:
    processes: list[_Seen] = []
    listening: dict[str, int] = {}
    for line in text.split("\n"):
        kind, _, rest = line.partition(" ")
        words = rest.split()
        if kind == "proc" and len(words) == 3 and words[0].isdecimal():
            processes.append(
                _Seen(
                    int(words[0]), int(words[1]) if words[1].isdecimal() else None, words[2] == "1"
                )
            )
        elif kind == "listen" and len(words) == 2:
            listening[words[0]] = int(words[1], 16)
        elif processes and kind == "arg":
            processes[-1].argv.append(clean(rest))
        elif processes and kind == "inode":
            processes[-1].inodes.add(rest)
        elif processes and kind == "unit" and len(words) == 2 and processes[-1].unit is None:
            processes[-1].scope, processes[-1].unit = words[0], clean(words[1])
        elif processes and kind == "log":
            processes[-1].log = (
                clean(rest) if rest.startswith("/") and not rest.startswith("/dev/") else None
            )
    return processes, listening


def _engines() -> list[Engine]:
    return sorted(map(registry.get, registry.names()), key=lambda engine: -engine.process_priority)


def _named_port(seen: _Seen, open_ports: set[int]) -> set[int]:
    """Return the port that the process's command line gives, as a set of one. Return an empty set
    if it is not one of `open_ports`, the ports on which any process listens. Needed for processes
    of other users, whose sockets cannot be read."""
    found = re.search(r"--port[ =](\d{1,5})\b", " ".join(seen.argv))
    return {int(found[1])} & open_ports if found and not seen.inodes else set()


def _server(seen: _Seen, port: int) -> FoundServer:
    line = " ".join(seen.argv)
    engine = next(
        (engine.name for engine in _engines() if re.search(engine.process_pattern, line)), ""
    )
    argv = mask_argv(seen.argv)
    return FoundServer(
        seen.pid, port, engine, argv, seen.uid, output=seen.log, unit=seen.unit, scope=seen.scope
    )


async def _asked(host: Host, server: FoundServer) -> FoundServer | None:
    """Return `server` with the names of the models that it serves. None if its port does not answer
    /v1/models: some ports that an engine opens do not speak HTTP."""
    forward = None
    try:
        forward = await host.forward(server.port)
        async with readiness.client(forward.url) as http:
            status, models = await readiness.models(http, "/v1/models", ASK_S)
    except HostError:
        return None
    finally:
        if forward is not None:
            await forward.close()
    if status is None:
        return None
    if status == 404:
        return None
    note = ""
    if status in (401, 403):
        note = "the server requires an API key"
    elif not models:
        note = f"/v1/models answers {status}"
    return replace(server, models=tuple(models), note=note)


class ExternalMetrics:
    """Reads the metrics page of a server that Workbench did not start. All readings use the same
    forwarded port."""

    def __init__(self, host: Host, server: FoundServer) -> None:
        self._host, self.server = host, server
        self._forward: Forward | None = None
        self._http: httpx.AsyncClient | None = None

    async def read(self, timeout_s: float) -> EngineMetrics:
        """Return the present counters of the engine. Never raises: a value that cannot be read is
        None, and the field `absent` has the reason."""
        if not self.server.engine:
            return metrics.no_metrics(
                f"Workbench does not know the metrics of the server at {self.server.url}"
            )
        try:
            if self._http is None:
                self._forward = await self._host.forward(self.server.port)
                self._http = readiness.client(self._forward.url)
        except HostError as error:
            return metrics.no_metrics(error.message)
        return await metrics.fetch(self._http, registry.get(self.server.engine), timeout_s)

    async def close(self) -> None:
        http, forward, self._http, self._forward = self._http, self._forward, None, None
        if http is not None:
            await http.aclose()
        if forward is not None:
            await forward.close()

"""Finds the servers on a host that Workbench did not start, by the command lines in /proc, and asks
each server for the names of its models.

No process gets a signal, and only processes that look like an inference engine get HTTP requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from typing import TYPE_CHECKING

from workbench.engines import registry
from workbench.hosts.base import Forward, Host
from workbench.hosts.python_programs import PythonProgram
from workbench.model.errors import HostError
from workbench.model.lazy_dataclass import dataclass
from workbench.model.secrets import mask_argv
from workbench.model.untrusted_numbers import integer_or_none
from workbench.model.untrusted_text import as_list, as_table, clean_text
from workbench.server.process_scan import ProcessScan

if TYPE_CHECKING:
    from workbench.model.server_run import EngineMetrics, ServerStatus
    from workbench.server.kept_connection import KeepAliveConnection

ASK_TIMEOUT_S = 3.0
# Parts of the command lines of servers that Workbench finds but does not start.
_OTHER_ENGINES_PATTERN = r"ollama|lmdeploy|trtllm|text-generation|mlc_llm|koboldcpp|aphrodite"
_SCAN_PROGRAM = PythonProgram("search for servers", ("server.process_scan",))
# A port that did not answer is asked again after this time, and then after twice the time, ...
_ASK_AGAIN_AFTER_S = 15.0
_ASK_AGAIN_MAX_S = 240.0


@dataclass(frozen=True, slots=True)
class FoundServer:
    """A server that Workbench did not start, and that answered a request for /v1/models. Secrets in
    `argv` are masked."""

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
    def adopt_command(self) -> str | None:
        """The `workbench adopt` command line with which Workbench follows this server; None if it
        runs neither as a systemd unit nor in a container."""
        if not self.unit:
            return None
        options = "".join(f" --run-option {option}" for option in self.launcher_options_to_adopt)
        return f"workbench adopt {shlex.quote(f'{self.launcher_name}:{self.unit}')}{options}"

    @property
    def launcher_name(self) -> str:
        """The launcher that runs the unit, as the option --as names it."""
        return self.scope if self.scope in ("docker", "podman") else "systemd"

    @property
    def launcher_options_to_adopt(self) -> tuple[str, ...]:
        """The values of --run-option with which `workbench adopt` finds the unit; () for a
        container."""
        return (f"scope={self.scope}",) if self.launcher_name == "systemd" else ()

    @property
    def unit_text(self) -> str:
        """The unit or container, and what runs it, for the user."""
        if self.launcher_name == "systemd":
            return f"{self.unit}, of the {self.scope}'s systemd"
        return f"{self.unit} of {self.scope}"

    @property
    def bench_command(self) -> str:
        """The `workbench bench` command line that benchmarks this server."""
        return f"workbench bench --url {self.url}"


_SHELL_NAMES = ("sh", "bash", "dash", "ash", "busybox", "zsh")
MAX_ID = 2**32 - 1  # of a process or a user
_UNIT_SCOPES = ("system", "user", "docker", "podman")


@dataclass(slots=True)
class _SeenProcess:
    pid: int
    uid: int | None
    own: bool
    argv: list[str] = field(default_factory=list)
    inodes: set[str] = field(default_factory=set)
    log: str | None = None
    unit: str | None = None
    scope: str = "system"


class ExternalServers:
    """The servers of one host that Workbench did not start.

    On this machine, `find` reads only what is new since the call before. It asks a port once, and
    again only if the port has not answered, or if processes or ports have changed.
    """

    def __init__(self, host: Host) -> None:
        self.host = host
        self._scan = ProcessScan(_server_command_pattern()) if host.is_local else None
        self._answers: dict[FoundServer, FoundServer | None] = {}
        self._ask_at_s: dict[FoundServer, float] = {}
        self._pause_s: dict[FoundServer, float] = {}

    async def find(self, own_run_ports: Iterable[int] = ()) -> tuple[FoundServer, ...]:
        """Return the servers that answer, sorted by port. Those on `own_run_ports`, the ports of
        Workbench's own runs, are skipped. Raises HostError if the host cannot be searched."""
        processes, listening = _parse_processes_and_ports(await self._read_raw_process_scan())
        candidates = _find_candidates(processes, listening, set(own_run_ports))
        for table in (self._answers, self._ask_at_s, self._pause_s):
            for gone in table.keys() - set(candidates):
                del table[gone]
        due = [one for one in candidates if self._is_due_for_probe(one)]
        answers = await asyncio.gather(*map(partial(_with_served_models, self.host), due))
        for one, answer in zip(due, answers, strict=True):
            self._answers[one] = answer
            pause_s = self._pause_s.get(one, _ASK_AGAIN_AFTER_S / 2)
            self._pause_s[one] = min(2 * pause_s, _ASK_AGAIN_MAX_S)
            self._ask_at_s[one] = time.monotonic() + self._pause_s[one]
        found = filter(None, self._answers.values())
        return tuple(sorted(found, key=lambda server: server.port))

    def _is_due_for_probe(self, candidate: FoundServer) -> bool:
        answer = self._answers.get(candidate)
        if answer is not None and answer.models:
            return False
        return time.monotonic() >= self._ask_at_s.get(candidate, 0.0)

    async def _read_raw_process_scan(self) -> object:
        if self._scan is not None:
            return await asyncio.to_thread(self._scan.scan)
        done = await _SCAN_PROGRAM.run(self.host, {"pattern": _server_command_pattern()})
        if done.returncode != 0:
            raise HostError(
                f"the processes cannot be searched for servers: {done.problem}",
                host=self.host.name,
                next_step="install python3 on the host",
            )
        try:
            return json.loads(done.out)
        except (ValueError, RecursionError):
            raise HostError(
                "the search for servers gave an invalid answer", host=self.host.name
            ) from None


def ports_of_live_servers(servers: Iterable[ServerStatus]) -> Sequence[int]:
    """Return the ports of those of `servers` that are alive and have one."""
    return [server.port for server in servers if server.alive and server.port is not None]


async def find_external_servers(
    host: Host, own_run_ports: Iterable[int] = ()
) -> tuple[FoundServer, ...]:
    """Search `host` once, and return the servers that Workbench did not start. Those on
    `own_run_ports` are skipped. Raises HostError if the host cannot be searched."""
    return await ExternalServers(host).find(own_run_ports)


def _server_command_pattern() -> str:
    return "|".join([registry.join_engine_process_patterns(), _OTHER_ENGINES_PATTERN])


def _find_candidates(
    processes: list[_SeenProcess], listening: Mapping[str, int], own_run_ports: set[int]
) -> list[FoundServer]:
    """Return a server, not asked yet, for each port on which one of `processes` listens, without
    `own_run_ports`. `listening` has the port of each listening socket by its inode."""
    candidates: dict[int, FoundServer] = {}
    open_ports = set(listening.values())
    for seen in sorted(
        processes, key=_is_shell
    ):  # a keeper of another Workbench names the port too
        if seen.own or not seen.argv:
            continue
        ports = {listening[i] for i in seen.inodes if i in listening}
        if not seen.inodes:
            ports = _open_ports_in_arguments(seen, open_ports)
        for port in sorted(ports - own_run_ports):
            candidates.setdefault(port, _make_server(seen, port))
    return list(candidates.values())


def _is_shell(seen: _SeenProcess) -> bool:
    """Return whether the process is a shell that runs a script from its command line."""
    if not seen.argv:
        return False
    program = seen.argv[0].rpartition("/")[2]
    return program in _SHELL_NAMES and "-c" in seen.argv[:4]


def _parse_processes_and_ports(found: object) -> tuple[list[_SeenProcess], Mapping[str, int]]:
    """Return (processes, {inode of a listening socket: port}) in `found`, the result of a scan.
    What has another form, as on a host that lies, is left out."""
    document = as_table(found)
    rows = as_list(document.get("processes"))
    processes = [_parse_process_row(row) for row in rows if isinstance(row, dict)]
    listening: dict[str, int] = {}
    for inode, port in as_table(document.get("listening")).items():
        if (number := integer_or_none(port, 1, 65_535)) is not None:
            listening[inode] = number
    return list(filter(None, processes)), listening


def _parse_process_row(row: Mapping[str, object]) -> _SeenProcess | None:
    pid, uid = (integer_or_none(row.get(name), 0, MAX_ID) for name in ("pid", "uid"))
    argv, inodes = row.get("argv"), row.get("inodes")
    if not isinstance(argv, list) or not isinstance(inodes, list):
        return None
    if pid is None:
        return None
    log, unit, scope = str(row.get("log")), row.get("unit"), row.get("scope")
    to_file = log.startswith("/") and not log.startswith("/dev/")
    return _SeenProcess(
        pid,
        uid,
        row.get("own") is True,
        [clean_text(word) for word in argv if isinstance(word, str)],
        {inode for inode in inodes if isinstance(inode, str)},
        clean_text(log) if to_file else None,
        clean_text(unit) if isinstance(unit, str) else None,
        scope if scope in _UNIT_SCOPES else "system",
    )


def _open_ports_in_arguments(seen: _SeenProcess, open_ports: set[int]) -> set[int]:
    """Return the port on the command line of a process whose sockets cannot be read, as those of
    other users, in a set. The set is empty if it is none of `open_ports`, the ports on which any
    process listens."""
    found = re.search(r"--port[ =](\d{1,5})\b", " ".join(seen.argv))
    return {int(found[1])} & open_ports if found else set()


def _make_server(seen: _SeenProcess, port: int) -> FoundServer:
    line = " ".join(seen.argv)
    engine = registry.recognize_engine_of_process(line)
    argv = mask_argv(seen.argv)
    return FoundServer(
        seen.pid, port, engine, argv, seen.uid, output=seen.log, unit=seen.unit, scope=seen.scope
    )


async def _with_served_models(host: Host, server: FoundServer) -> FoundServer | None:
    """Return `server` with the names of the models that it serves, or with a note why there are
    none. None if its port does not answer /v1/models: some ports of an engine do not speak HTTP."""
    from workbench.server import readiness  # not before a server is found

    forward = None
    try:
        forward = await host.forward(server.port)
        with contextlib.closing(readiness.make_request_connection(forward.url)) as connection:
            status, models = await readiness.read_status_and_model_names(
                connection.get, "/v1/models", ASK_TIMEOUT_S
            )
    except HostError:
        return None
    finally:
        if forward is not None:
            await forward.close()
    if status in (None, 404):
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
        self._kept: KeepAliveConnection | None = None

    async def read(self, timeout_s: float) -> EngineMetrics:
        """Return the present counters of the engine. Never raises: a value that cannot be read is
        None, and the field `absent` has the reason."""
        from workbench.server import metrics, readiness

        if not self.server.engine:
            return metrics.metrics_without_values(
                f"Workbench does not know the metrics of the server at {self.server.url}"
            )
        try:
            if self._kept is None:
                self._forward = await self._host.forward(self.server.port)
                self._kept = readiness.make_request_connection(self._forward.url)
        except HostError as error:
            return metrics.metrics_without_values(error.message)
        return await metrics.fetch_metrics(
            self._kept.get, registry.get_engine(self.server.engine), timeout_s
        )

    async def close(self) -> None:
        kept, forward, self._kept, self._forward = self._kept, self._forward, None, None
        if kept is not None:
            kept.close()
        if forward is not None:
            await forward.close()

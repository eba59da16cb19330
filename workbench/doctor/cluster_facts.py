"""Reads the properties of each node of a cluster for `workbench cluster check`, and tries a
connection from each node to each other node."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import field
from itertools import permutations
from typing import TYPE_CHECKING, Any, NamedTuple

from workbench.doctor.examination import Examination, TimedParts, examine
from workbench.engines import registry
from workbench.hosts.base import CommandNotFound, Host, HostFacts, Stream
from workbench.hosts.python_programs import TOO_OLD, PythonProgram
from workbench.model.errors import HostError, WorkbenchError
from workbench.model.findings import Finding, Level
from workbench.model.lazy_dataclass import dataclass
from workbench.model.node_network import NodeAddress, NodeNetwork
from workbench.model.untrusted_numbers import number_for_field
from workbench.model.untrusted_text import clean_json

if TYPE_CHECKING:
    from workbench.server.model_fingerprint import ModelFingerprint

NODE_PROGRAM = PythonProgram("check of a cluster node", ("doctor.cluster_node",))
ANSWER_S = 15.0
CLOCK_ASKS = 5
_NO_PYTHON = "it has no python3 from 3.8 on, which looks at names, ports, processes and the clock"


@dataclass(frozen=True, slots=True)
class NodeReport:
    """What was read about one node. `place` is the node's address in the network between the nodes.
    `look` has what the program cluster_node.py found on the node. If that program gave no answer,
    `look` is empty and `unlooked` has the reason. `clock_ahead_s` is the node's clock minus this
    machine's clock, in seconds, known to ± `clock_error_s`. `problem` is the reason why the node
    could not be reached, None if it was reached."""

    place: NodeAddress
    network: NodeNetwork = field(default_factory=NodeNetwork)
    seen: Examination = field(default_factory=lambda: Examination(HostFacts("", "")))
    look: Mapping[str, Any] = field(default_factory=dict)
    clock_ahead_s: float | None = None
    clock_error_s: float = 0.0
    model: ModelFingerprint | None = None
    problem: str | None = None
    unlooked: str | None = None
    parts: tuple[Finding, ...] = ()  # what could not be examined

    @property
    def name(self) -> str:
        return self.place.host

    @property
    def has_unified_memory(self) -> bool:
        return any(gpu.unified_memory for gpu in self.seen.gpus)

    @property
    def available_memory_bytes(self) -> int | None:
        found = self.seen.host_sample.memory_available_bytes
        if found is None:
            found = self.look.get("memory", {}).get("MemAvailable")
        return found if isinstance(found, int) else None


@dataclass(frozen=True, slots=True)
class Connection:
    """An attempt to connect from one node to the address of another. `ms` is the time that it took.
    If it failed, `problem` is the reason."""

    source: str
    target: str
    address: str
    ms: float | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class ClusterReport:
    """The reports about all nodes of a cluster, and what a plan needs there. `need_bytes` is the
    memory that the plan takes on each GPU. `engine`, `model` and `need_bytes` are None without a
    plan. `reserve_bytes` of memory must stay free on a node with unified memory."""

    nodes: tuple[NodeReport, ...]
    connections: tuple[Connection, ...] = ()
    engine: str | None = None
    model: str | None = None
    need_bytes: int | None = None
    reserve_bytes: int = 0

    @property
    def reached_nodes(self) -> tuple[NodeReport, ...]:
        return tuple(node for node in self.nodes if node.problem is None)


class ClockOffset(NamedTuple):
    """The difference between a node's clock and this machine's clock: `ahead_s` is the node's clock
    minus this machine's, and `error_s` the error of this difference."""

    ahead_s: float
    error_s: float


class NodeProgram:
    """The program cluster_node.py, running on a node. All methods but `close` raise HostError if an
    answer reports an error or does not come in time."""

    def __init__(self, host: Host, stream: Stream) -> None:
        self._host, self._stream = host, stream
        self._lines = stream.lines()

    async def request_answer(self, request: str, **fields: Any) -> dict[str, Any]:
        """Send the question `request`, such as "clock", with further `fields` to the program, and
        return its answer."""
        await self._stream.write(json.dumps({"ask": request, **fields}).encode() + b"\n")
        try:
            async with asyncio.timeout(ANSWER_S):
                async for line in self._lines:
                    if line.startswith(b"{"):
                        answer = clean_json(line)
                        if "error" in answer:
                            raise HostError(str(answer["error"]), host=self._host.name)
                        return dict(answer)
        except TimeoutError:
            raise HostError(
                f"the check program on {self._host.name} gave no answer within {ANSWER_S:g} s",
                host=self._host.name,
            ) from None
        if await self._stream.wait() == TOO_OLD:
            raise HostError(_NO_PYTHON, host=self._host.name)
        said = (await self._stream.stderr_tail()).splitlines()[-1:] or ["it ended"]
        raise HostError(said[0], host=self._host.name)

    async def measure_clock_offset(self) -> ClockOffset:
        """Compare the node's clock with this machine's clock several times, and return the
        difference with the smallest error."""
        found = []
        for _ in range(CLOCK_ASKS):
            began_s, began_unix_s = time.monotonic(), time.time()
            theirs = self._number_from_answer("unix_s", await self.request_answer("clock"))
            half_s = (time.monotonic() - began_s) / 2
            found.append((half_s, theirs - (began_unix_s + half_s)))
        error_s, ahead_s = min(found)
        return ClockOffset(ahead_s, error_s)

    def _number_from_answer(self, field: str, answer: Mapping[str, Any]) -> float:
        number = number_for_field(field, answer.get(field))
        if number is None:
            raise HostError(f"the program's {field} is no number", host=self._host.name)
        return number

    async def listen_on_node(self, address: str) -> int:
        """Let the node listen on a free port of its address `address`, and return the port."""
        return int(
            self._number_from_answer("port", await self.request_answer("listen", address=address))
        )

    async def measure_connect_time_ms(self, address: str, port: int) -> float:
        """Let the node connect to `address` and `port`, and return how long that took in
        milliseconds."""
        return self._number_from_answer(
            "ms", await self.request_answer("connect", address=address, port=port)
        )

    async def close(self) -> None:
        await self._stream.close()


@dataclass(frozen=True, slots=True)
class NodeToCheck:
    """A node, and what is to be read there. `ports` are the ports that the plan's server would use.
    `executables` has, by engine, the path of the program that the user has chosen for this engine.
    `model` computes the fingerprint of the plan's model files."""

    host: Host
    place: NodeAddress
    network: NodeNetwork
    executables: Mapping[str, str] = field(default_factory=dict)
    ports: tuple[int, ...] = ()
    model: Callable[[], Awaitable[ModelFingerprint]] | None = None


async def gather_reports(nodes: Sequence[NodeToCheck]) -> tuple[list[NodeReport], list[Connection]]:
    """Examine the nodes at the same time. Return (a report for each node, the attempts of each node
    to connect to each other node). The report of a node that cannot be reached has a `problem`."""
    names = [node.place.host for node in nodes]
    programs = dict(
        zip(names, await asyncio.gather(*map(_start_program_or_reason, nodes)), strict=True)
    )
    try:
        reports = await asyncio.gather(
            *(_report_on_node(node, programs[node.place.host], nodes) for node in nodes)
        )
        return list(reports), await _connect_all_pairs(nodes, programs)
    finally:
        await asyncio.gather(*(p.close() for p in programs.values() if isinstance(p, NodeProgram)))


async def _start_program_or_reason(node: NodeToCheck) -> NodeProgram | str:
    """Start the program cluster_node.py on a node and return it. If it cannot be started, return
    the reason."""
    try:
        return NodeProgram(node.host, await NODE_PROGRAM.stream(node.host, {}))
    except CommandNotFound:
        return _NO_PYTHON
    except HostError as error:
        return error.message


async def _report_on_node(
    node: NodeToCheck, program: NodeProgram | str, nodes: Sequence[NodeToCheck]
) -> NodeReport:
    parts = TimedParts()
    report: dict[str, Any] = {}
    try:
        await node.host.connect()
        report["seen"], report["model"] = await asyncio.gather(
            examine(node.host, node.executables, parts),
            _return_none() if node.model is None else node.model(),
        )
    except WorkbenchError as error:
        return NodeReport(node.place, node.network, problem=error.message)
    if isinstance(program, str):
        return NodeReport(
            node.place, node.network, **report, parts=tuple(parts.problems), unlooked=program
        )
    try:
        others = [other.place.host.rpartition("@")[2] for other in nodes if other is not node]
        engines = registry.join_server_and_worker_patterns()
        report["look"] = await program.request_answer(
            "look", names=others, ports=list(node.ports), engines=engines
        )
        offset = await program.measure_clock_offset()
        report.update(clock_ahead_s=offset.ahead_s, clock_error_s=offset.error_s)
    except HostError as error:
        report["unlooked"] = error.message
    except (ValueError, KeyError, TypeError) as error:
        report["unlooked"] = f"an invalid answer: {error}"
    return NodeReport(node.place, node.network, **report, parts=tuple(parts.problems))


async def _return_none() -> None:
    return None


async def _connect_all_pairs(
    nodes: Sequence[NodeToCheck], programs: Mapping[str, NodeProgram | str]
) -> list[Connection]:
    """Let each node listen at its address, and let each other node connect there. Return the
    attempts, with their time or their problem. A pair is left out if the program does not run on
    one of its nodes, or if the address of the second is unknown."""

    async def listening_port_or_problem(node: NodeToCheck) -> int | str | None:
        program = programs[node.place.host]
        if isinstance(program, str) or node.place.address is None:
            return None
        try:
            return await program.listen_on_node(node.place.address)
        except HostError as error:
            return error.message

    doors = await asyncio.gather(*map(listening_port_or_problem, nodes))
    found = []
    for (source, _), (target, door) in permutations(zip(nodes, doors, strict=True), 2):
        program, address = programs[source.place.host], target.place.address
        if isinstance(program, str) or address is None or door is None:
            continue
        made = Connection(source.place.host, target.place.host, address)
        if isinstance(door, str):
            found.append(
                _connection_with_problem(made, f"{target.place.host} cannot listen there: {door}")
            )
            continue
        try:
            found.append(
                Connection(
                    made.source,
                    made.target,
                    address,
                    await program.measure_connect_time_ms(address, door),
                )
            )
        except HostError as error:
            found.append(_connection_with_problem(made, error.message))
    return found


def _connection_with_problem(attempt: Connection, problem: str) -> Connection:
    return Connection(attempt.source, attempt.target, attempt.address, problem=problem)


def unreached_node_finding(node: NodeReport) -> Finding:
    """Return the finding for a node that cannot be reached."""
    text = f"{node.name} cannot be reached: {node.problem}"
    return Finding(Level.ERROR, "cluster.unreached", text, fix=f"workbench hosts check {node.name}")

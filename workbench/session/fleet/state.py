"""The state of a fleet as one frozen value. A fleet is several hosts on one screen."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import field
from operator import attrgetter
from typing import TYPE_CHECKING

from workbench.model.gpu import DriverStatus
from workbench.model.gpu_readings import HIGHEST, LOWEST, MEAN, TOTAL
from workbench.model.lazy_dataclass import dataclass
from workbench.model.server_run import ServerState
from workbench.model.timeline import QUIET_REASONS

if TYPE_CHECKING:
    from workbench.model.gpu import GpuSample, Telemetry
    from workbench.model.setting_records import Alteration

BUSY_PCT = 10.0  # a GPU with a higher utilization counts as busy
STALE_READING_S = 4.0  # an older reading is not the host's present state
FOUND_STATE = "found"
TRAIL_S = 120  # seconds of a host that are kept for its graphs

Trail = tuple[float | None, ...]  # one value per second, the newest last


@dataclass(frozen=True, slots=True)
class FleetServer:
    """A server of a host, with the newest values of its engine's metrics. `state` is that of its
    run, or FOUND_STATE for a server that Workbench did not start, as it is shown. `problem` says
    why the metrics cannot be read, None if they can."""

    name: str  # run id, or the URL of a server that Workbench did not start
    engine: str
    model: str
    port: int | None
    state: str
    text: str = ""  # the phase of a start, or the reason of a failure
    values: Mapping[str, float] = field(default_factory=dict)
    problem: str | None = None

    @property
    def can_answer(self) -> bool:
        """Whether the server can answer requests: its run is READY or READY?, or Workbench did not
        start it."""
        return self.state in (ServerState.READY, FOUND_STATE) or self.is_ready_with_suspect_text

    @property
    def is_ready_with_suspect_text(self) -> bool:
        """Whether the server is READY?: it answers, and its text does not look like an answer."""
        return self.state == f"{ServerState.READY}?"

    @property
    def awaits_second_metrics_reading(self) -> bool:
        """Whether the server's metrics can be read but have not been read twice yet."""
        if self.values or self.problem:
            return False
        return self.can_answer

    @property
    def tok_s(self) -> float | None:
        """The tokens per second that the server generates; None if not known."""
        return self.values.get("generation_tok_s")


@dataclass(frozen=True, slots=True)
class FleetHost:
    """One host of a fleet. `age_s` is the age of `telemetry` when the state was made; None without
    a reading. `problem` says why the host or its GPUs cannot be read. `servers_read` is False until
    the host was searched for servers."""

    name: str
    label: str = ""
    # "connected", "lost", "down" (never reached), or "refused": only the user can help
    link: str = "connecting"
    problem: str | None = None
    telemetry: Telemetry | None = None
    age_s: float | None = None
    servers: tuple[FleetServer, ...] = ()
    altered: tuple[Alteration, ...] = ()
    simulated: bool = False
    latency_ms: float | None = None
    servers_read: bool = True
    alerts: tuple[str, ...] = ()  # what the alerts say that are active
    util_trail: Trail = ()
    power_trail: Trail = ()
    tok_trail: Trail = ()

    @property
    def current_alerts(self) -> tuple[str, ...]:
        """What the active alerts say; () while the readings are old."""
        return self.alerts if self.is_live else ()

    @property
    def is_live(self) -> bool:
        """Whether the host is connected and its newest reading is not stale."""
        if self.link != "connected" or self.age_s is None:
            return False
        return self.age_s <= STALE_READING_S

    @property
    def gpus(self) -> Sequence[GpuSample]:
        """The newest readings of the GPUs, however old."""
        return self.telemetry.gpus if self.telemetry is not None else ()

    @property
    def state(self) -> str:
        """The state of the link if the host is not connected, else "live", "stale", "waiting" or
        "no GPUs"."""
        if self.link != "connected":
            return self.link
        if self.telemetry is None:
            return "no GPUs" if self.problem else "waiting"
        if not self.is_live:
            return "stale"
        has_gpus = self.telemetry.driver.status is DriverStatus.OK and self.gpus
        return "live" if has_gpus else "no GPUs"

    @property
    def util_pct(self) -> float | None:
        """The mean utilization of the GPUs in %; None if no GPU reports its utilization."""
        return self.aggregate_gpu_readings("gpu_util_pct", MEAN)

    @property
    def power_w(self) -> float | None:
        """The power in watts of all GPUs that report it, added up; None if none reports it."""
        return self.aggregate_gpu_readings("power_w", TOTAL)

    def aggregate_gpu_readings(self, field: str, aggregate: str) -> float | None:
        """Return one value of the readings `field` of all GPUs: MEAN, TOTAL, HIGHEST or LOWEST.
        None if no GPU reports this reading."""
        known = _drop_none_values(map(attrgetter(field), self.gpus))
        return _COMBINE_FUNCTIONS[aggregate](known) if known else None

    @property
    def memory_pct(self) -> float | None:
        """The used share of the GPU memory in %; None if no GPU reports its memory."""
        used_bytes = total_bytes = 0
        for gpu in self.gpus:
            gpu_bytes = self._total_bytes(gpu)
            if gpu.memory_used_bytes is not None and gpu_bytes:
                used_bytes += gpu.memory_used_bytes
                total_bytes += gpu_bytes
        return 100.0 * used_bytes / total_bytes if total_bytes else None

    def _total_bytes(self, gpu: GpuSample) -> int | None:
        if gpu.memory_total_bytes or self.telemetry is None:
            return gpu.memory_total_bytes
        info = self.telemetry.info(gpu.index)
        return info.memory_total_bytes if info is not None else None

    @property
    def busy_gpu_count(self) -> int:
        """The number of GPUs with a utilization above BUSY_PCT."""
        return sum(map(_is_busy, self.gpus))

    @property
    def tok_s(self) -> float | None:
        """The generated tokens per second of all servers; None if no server reports them."""
        known = _drop_none_values(server.tok_s for server in self.servers)
        return sum(known) if known else None

    @property
    def throttle_reasons(self) -> Mapping[str, tuple[int, ...]]:
        """The reasons that lower the clocks of GPUs now, each with the indices of its GPUs."""
        found: dict[str, tuple[int, ...]] = {}
        for gpu in self.gpus:
            if not gpu.has_readings:
                continue
            for reason in gpu.event_reasons:
                if reason not in QUIET_REASONS:
                    found[reason] = (*found.get(reason, ()), gpu.index)
        return found

    @property
    def ready_server_count(self) -> int:
        """The number of servers that can answer requests."""
        return sum(server.can_answer for server in self.servers)


@dataclass(frozen=True, slots=True)
class FleetTotals:
    """Sums over the hosts that are connected and whose readings are not stale. `power_unknown` is
    the number of GPUs that do not report their power, `servers_unknown` the number of hosts that
    were not searched for servers yet, and `tok_unknown` that number plus the number of servers
    that do not report their token rate."""

    hosts: int = 0
    live: int = 0
    gpus: int = 0
    busy: int = 0
    power_w: float = 0.0
    power_unknown: int = 0
    tok_s: float = 0.0
    tok_unknown: int = 0
    servers: int = 0  # that generate tokens
    servers_unknown: int = 0


@dataclass(frozen=True, slots=True)
class FleetState:
    """Everything that the screen of a fleet draws."""

    hosts: tuple[FleetHost, ...] = ()

    @property
    def simulated(self) -> bool:
        return any(host.simulated for host in self.hosts)


def fleet_totals(hosts: Sequence[FleetHost]) -> FleetTotals:
    """Return the sums over those of the hosts that are live: numbers of GPUs and servers, power,
    and token rate. A GPU or a server that several hosts show counts once: a machine may have two
    names, and a container shows the GPUs of its machine."""
    live = [host for host in hosts if host.is_live]
    gpus_by_key: dict[Hashable, GpuSample] = {}
    servers_by_key: dict[Hashable, FleetServer] = {}
    for host in live:
        for gpu in host.gpus:
            gpus_by_key.setdefault(_gpu_key(host, gpu), gpu)
        for server in host.servers:
            servers_by_key.setdefault(_server_key(host, server), server)
    gpus, servers = gpus_by_key.values(), servers_by_key.values()
    ready = [server for server in servers if server.can_answer]
    servers_unknown = sum(not host.servers_read for host in live)
    powers_w = [gpu.power_w for gpu in gpus]
    return FleetTotals(
        hosts=len(hosts),
        live=len(live),
        gpus=len(gpus),
        busy=sum(map(_is_busy, gpus)),
        power_w=math.fsum(_drop_none_values(powers_w)),
        power_unknown=powers_w.count(None),
        tok_s=math.fsum(_drop_none_values(server.tok_s for server in servers)),
        tok_unknown=sum(server.tok_s is None for server in ready) + servers_unknown,
        servers=len(ready),
        servers_unknown=servers_unknown,
    )


def _drop_none_values(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _is_busy(gpu: GpuSample) -> bool:
    return (gpu.gpu_util_pct or 0.0) > BUSY_PCT


def _gpu_key(host: FleetHost, gpu: GpuSample) -> Hashable:
    """Return a value that is equal only for the same GPU: its UUID, or else the host and the index.
    Simulated hosts are different machines, although their GPUs have the same UUIDs."""
    if gpu.uuid and not host.simulated:
        return gpu.uuid
    return host.name, gpu.index


def _server_key(host: FleetHost, server: FleetServer) -> Hashable:
    """Return a value that is equal only for the same server: its run id, or else its URL with the
    GPUs of its host. Such a URL has the host's own loopback address, so the GPUs say which machine
    it is."""
    if server.state != FOUND_STATE:
        return server.name
    return frozenset(_gpu_key(host, gpu) for gpu in host.gpus) or host.name, server.name


_COMBINE_FUNCTIONS: Mapping[str, Callable[[Sequence[float]], float]] = {
    MEAN: lambda values: sum(values) / len(values),
    TOTAL: sum,
    HIGHEST: max,
    LOWEST: min,
}

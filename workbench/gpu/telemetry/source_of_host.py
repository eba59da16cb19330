"""Opens the telemetry of a host. The telemetry of a cluster contains the GPUs of all its nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from workbench.gpu.telemetry.source import TelemetrySource
from workbench.hosts.base import Host
from workbench.model.gpu import Telemetry


def create_telemetry_source(
    host: Host,
    interval_s: float = 1.0,
    on_telemetry: Callable[[Telemetry], None] | None = None,
    *,
    agent_options: Mapping[str, float] | None = None,
    keep_history: bool = True,
) -> TelemetrySource:
    """Return the telemetry of a host, not yet started. For a cluster, the telemetry contains the
    GPUs of all nodes. The options are passed to TelemetrySource."""
    if host.kind == "cluster":  # its modules are not loaded before the first frame of other hosts
        from workbench.gpu.telemetry.cluster_source import ClusterTelemetry
        from workbench.hosts.cluster import ClusterHost

        assert isinstance(host, ClusterHost)
        return ClusterTelemetry(
            host, interval_s, on_telemetry, agent_options=agent_options, keep=keep_history
        )
    return TelemetrySource(
        host, interval_s, on_telemetry, agent_options=agent_options, keep=keep_history
    )


async def read_telemetry_once(host: Host, timeout_s: float = 20.0) -> Telemetry:
    """Start the telemetry of a host, return its first reading, and end it. If the driver hangs, the
    reading has only the driver's state. Raises HostError if nothing arrives within `timeout_s`."""
    source = create_telemetry_source(host)
    await source.start()
    try:
        return await source.wait_for_first_reading(timeout_s)
    finally:
        await source.close()

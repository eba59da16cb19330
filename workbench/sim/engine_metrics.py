"""The values that a simulated engine reports at /metrics. Each engine has its own names for
them."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence

from workbench.sim.launch_options import LaunchOptions
from workbench.sim.scheduler import Replica

BUCKETS = {
    "ttft_s": (
        0.001,
        0.005,
        0.01,
        0.02,
        0.04,
        0.06,
        0.08,
        0.1,
        0.25,
        0.5,
        0.75,
        1,
        2.5,
        5,
        7.5,
        10,
        20,
        40,
        80,
        160,
    ),
    "itl_s": (
        0.01,
        0.025,
        0.05,
        0.075,
        0.1,
        0.15,
        0.2,
        0.3,
        0.4,
        0.5,
        0.75,
        1,
        2.5,
        5,
        7.5,
        10,
        20,
        40,
        80,
    ),
    "tpot_s": (
        0.01,
        0.025,
        0.05,
        0.075,
        0.1,
        0.15,
        0.2,
        0.3,
        0.4,
        0.5,
        0.75,
        1,
        2.5,
        5,
        7.5,
        10,
        20,
        40,
        80,
    ),
    "e2e_s": (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960),
    "queue_s": (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960),
}


class Histogram:
    """A Prometheus histogram whose buckets have fixed upper bounds."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add_values(self, values: Iterable[float]) -> None:
        for value in values:
            self.counts[bisect_left(self.bounds, value)] += 1
            self.total += value

    def metric_lines(self, name: str, labels: str) -> list[str]:
        """Return the lines of /metrics for this histogram."""
        joined = f"{labels}," if labels else ""
        out, running = [f"# TYPE {name} histogram"], 0
        for bound, count in zip([*map(float, self.bounds), "+Inf"], self.counts):  # noqa: B905 (Python 3.9)
            running += count
            out.append(f'{name}_bucket{{{joined}le="{bound}"}} {float(running)}')
        out.append(f"{name}_count{{{labels}}} {float(running)}")
        out.append(f"{name}_sum{{{labels}}} {self.total}")
        return out


class Metrics:
    """The metrics that the server has collected since its start. Each replica of the model has its
    own set of histograms. `throughput` is in output tokens per second, over all replicas."""

    def __init__(self, launch: LaunchOptions, replicas: Sequence[Replica], kv_tokens: int) -> None:
        self.launch = launch
        self.replicas = replicas
        self.kv_tokens = kv_tokens
        self.histograms = [
            {name: Histogram(bounds) for name, bounds in BUCKETS.items()} for _ in replicas
        ]
        self._last = (time.monotonic(), 0)
        self.throughput = 0.0

    def update_from_replicas(self) -> None:
        """Move the values that the replicas of the model have measured into the histograms, and
        update `throughput`. Call this every second, so that the replicas' lists of values stay
        short."""
        for replica, histograms in zip(self.replicas, self.histograms):  # noqa: B905
            for name, values in replica.counters.pop_latencies_s().items():
                histograms[name].add_values(values)
        now, total = time.monotonic(), sum(r.counters.generated_tokens for r in self.replicas)
        if now - self._last[0] >= 1.0:
            self.throughput = (total - self._last[1]) / (now - self._last[0])
            self._last = (now, total)

    def render_metrics_page(self) -> bytes:
        """Return the body of the reply to GET /metrics."""
        self.update_from_replicas()
        return ("\n".join(self.launch.engine.metric_lines(self)) + "\n").encode()


def metric_sample_lines(values: Mapping[str, float], kind: str, labels: str = "") -> list[str]:
    """Return the lines of /metrics for all metrics of one kind ("gauge" or "counter"). `values`
    maps metric names to values."""
    out = []
    for name, value in values.items():
        sample = f"{name}{{{labels}}} {float(value)}" if labels else f"{name} {value:g}"
        out += [f"# TYPE {name} {kind}", sample]
    return out

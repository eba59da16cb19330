"""The table of benchmark metrics: for each metric its titles, its unit and the direction that is
better.

Reports, the command line, the screen and comparisons take titles and units from this table. To add
a metric, add a field to BenchSummary, the code that measures it, and an entry here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workbench.model.bench import BenchSummary

PARTS = ("mean", "p50", "p90", "p95", "p99", "min", "max")  # of a latency's distribution
RUN, LATENCY, ENERGY = "run", "latency", "energy"


@dataclass(frozen=True, slots=True)
class SummaryMetric:
    """One metric; `name` is its field of BenchSummary. A metric of the group LATENCY is a
    distribution, whose values have names such as "ttft_ms.p50"."""

    name: str
    title: str  # in the list of one result's metrics
    unit: str
    group: str = RUN
    higher_is_better: bool | None = None  # None: runs are not compared by this metric
    # listed only if it was measured; the others are listed as n/a with the reason
    optional: bool = False
    compared: str = ""  # title in comparisons; "": `title`
    short: str = ""  # title with unit for narrow tables; "": `title` and `unit`


_ENTRIES = (
    SummaryMetric("output_tok_s", "output", "tok/s", RUN, True, short="tok/s"),
    SummaryMetric("whole_run_tok_s", "output, whole run", "tok/s", RUN, True, True),
    SummaryMetric("request_s", "request rate", "1/s", RUN, True, short="requests/s"),
    SummaryMetric(
        "prompt_tok_s", "prompt token rate", "tok/s", RUN, True, True, short="prompt tok/s"
    ),
    SummaryMetric("slo_pct", "requests that kept the SLO", "%", RUN, True, True, short="SLO %"),
    SummaryMetric("goodput_request_s", "goodput", "requests/s", RUN, True, True),
    SummaryMetric("goodput_tok_s", "goodput, output", "tok/s", RUN, True, True),
    SummaryMetric("per_stream_tok_s", "per stream", "tok/s", RUN, True, short="tok/s a stream"),
    SummaryMetric("tokens_per_chunk", "tokens per chunk", ""),
    SummaryMetric("output_tokens", "output tokens", ""),
    SummaryMetric("prompt_tokens", "prompt tokens", ""),
    SummaryMetric("cached_tokens", "of these from the prefix cache", ""),
    SummaryMetric("duration_s", "duration", "s", RUN, False),
    SummaryMetric("window_s", "steady window", "s", optional=True),
    SummaryMetric("in_flight_mean", "streams in flight, mean", "", optional=True),
    SummaryMetric("in_flight_nominal", "streams in flight, requested", "", optional=True),
    SummaryMetric("client_cpu_pct", "CPU load of the client", "% of a core"),
    SummaryMetric("command_exit", "exit code of the command", "", optional=True),
    SummaryMetric("ttft_ms", "TTFT", "ms", LATENCY, False),
    SummaryMetric("itl_ms", "ITL", "ms", LATENCY, False),
    SummaryMetric("tpot_ms", "TPOT", "ms", LATENCY, False),
    SummaryMetric("e2e_ms", "end to end", "ms", LATENCY, False),
    SummaryMetric("queue_ms", "wait for a stream", "ms", LATENCY, optional=True),
    SummaryMetric("ttft_from_schedule_ms", "TTFT from the schedule", "ms", LATENCY, False, True),
    SummaryMetric(
        "e2e_from_schedule_ms", "end to end from the schedule", "ms", LATENCY, False, True
    ),
    SummaryMetric(
        "power_w",
        "mean power, all GPUs of the server",
        "W",
        ENERGY,
        False,
        False,
        "power",
        "power W",
    ),
    SummaryMetric("idle_power_w", "idle power", "W", ENERGY, optional=True),
    SummaryMetric("energy_j", "energy", "J", ENERGY),
    SummaryMetric(
        "tok_per_joule",
        "output tokens per joule",
        "tok/J",
        ENERGY,
        True,
        False,
        "tokens per joule",
        "tok/J",
    ),
    SummaryMetric(
        "net_tok_per_joule",
        "output tokens per joule, without idle power",
        "tok/J",
        ENERGY,
        True,
        True,
        "tokens per joule, net",
    ),
    SummaryMetric("energy_per_request_j", "energy per request", "J", ENERGY, False, True),
)
METRICS = {entry.name: entry for entry in _ENTRIES}


def metrics_of(group: str) -> Iterable[SummaryMetric]:
    """Return the metrics of the group RUN, LATENCY or ENERGY, in the order of display."""
    return (entry for entry in _ENTRIES if entry.group == group)


def value_of(summary: BenchSummary, name: str) -> float | None:
    """Return a metric's value by its name, "output_tok_s" or, for a part of a latency,
    "ttft_ms.p50". None if it was not measured."""
    base, _, part = name.partition(".")
    value: float | None = summary.latency(base, part) if part else getattr(summary, base)
    return value


def metric_title(name: str) -> str:
    """Return a metric's title in comparisons, for example "TTFT p50" for "ttft_ms.p50". A name that
    the table lacks is returned with spaces for underscores."""
    base, _, part = name.partition(".")
    entry = METRICS.get(base)
    title = (entry.compared or entry.title) if entry else base.replace("_", " ")
    return f"{title} {part}".rstrip()


def short_title(name: str, unit: str = "") -> str:
    """Return a metric's title with its unit for narrow tables, for example "tok/s" or "TTFT p50
    ms". `unit` is used only for a name that the table lacks."""
    base, _, part = name.partition(".")
    entry = METRICS.get(base)
    if entry is None:
        return name if not unit or unit in name else f"{name} {unit}"
    return entry.short or " ".join(filter(None, (entry.title, part, entry.unit)))

"""The table of benchmark metrics: for each metric its titles, its unit, its decimals, its
importance and the direction that is better.

Reports, the command line, the screen and comparisons take all this from the table. To add a metric,
add a field to BenchSummary, the code that measures it, and an entry here. The readings of the GPUs
and the counters of the engine during a run have tables of their own, in the same form.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from workbench.model.distribution import COMPARED_PERCENTILES, PERCENTILES, distribution_part_title
from workbench.model.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from workbench.model.bench import BenchSummary

PARTS = ("mean", *PERCENTILES, "min", "max")  # of a latency's distribution
COMPARED_PARTS = tuple(each.name for each in COMPARED_PERCENTILES)
RUN, LATENCY, ENERGY, GPU, ENGINE = "run", "latency", "energy", "gpu", "engine"


@dataclass(frozen=True, slots=True)
class SummaryMetric:
    """One metric; `name` is its field of BenchSummary. A metric of the group LATENCY is a
    distribution, whose values have names such as "ttft_ms.p50". The names of the groups GPU and
    ENGINE are fields of GpuDuring and EngineDuring."""

    name: str
    title: str  # in the list of one result's metrics
    unit: str
    group: str = RUN
    higher_is_better: bool | None = None  # None: runs are not compared by this metric
    # listed only if it was measured; the others are listed as n/a with the reason
    optional: bool = False
    compared: str = ""  # title in comparisons; "": `title`
    short: str = ""  # title with unit for narrow tables; "": `title` and `unit`
    decimals: int | None = None  # None: three significant digits
    # place among the metrics that narrow tables show: 1 comes first; 0: they do not show it
    importance: int = 0
    key_parts: tuple[str, ...] = ()  # of a latency: the parts that narrow tables show


_ENTRIES = (
    SummaryMetric("output_tok_s", "output", "tok/s", RUN, True, short="tok/s", importance=1),
    SummaryMetric("whole_run_tok_s", "output, whole run", "tok/s", RUN, True, True),
    SummaryMetric("request_s", "request rate", "1/s", RUN, True, short="requests/s"),
    SummaryMetric(
        "prompt_tok_s", "prompt token rate", "tok/s", RUN, True, True, short="prompt tok/s"
    ),
    SummaryMetric(
        "slo_pct", "requests that kept the SLO", "%", RUN, True, True, short="SLO %", decimals=1
    ),
    SummaryMetric("goodput_request_s", "goodput", "requests/s", RUN, True, True),
    SummaryMetric("goodput_tok_s", "goodput, output", "tok/s", RUN, True, True),
    SummaryMetric("users", "users within the SLO", "", RUN, True, True, short="users"),
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
    SummaryMetric("ttft_ms", "TTFT", "ms", LATENCY, False, importance=3, key_parts=COMPARED_PARTS),
    SummaryMetric("itl_ms", "ITL", "ms", LATENCY, False, importance=4, key_parts=("mean",)),
    SummaryMetric("tpot_ms", "TPOT", "ms", LATENCY, False, importance=5, key_parts=("mean",)),
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
        importance=6,
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
        importance=2,
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
GPU_READINGS = (
    SummaryMetric("sm_mhz", "SM clock, mean", "MHz", GPU, short="SM MHz", decimals=0),
    SummaryMetric("sm_mhz_min", "SM clock, lowest", "MHz", GPU, decimals=0),
    SummaryMetric("sm_mhz_max", "SM clock, highest", "MHz", GPU, decimals=0),
    SummaryMetric("sm_mhz_sd", "SM clock, standard deviation", "MHz", GPU),
    SummaryMetric("memory_mhz", "memory clock, mean", "MHz", GPU, decimals=0),
    SummaryMetric("temperature_c", "temperature, highest", "°C", GPU, short="°C", decimals=0),
    SummaryMetric("gpu_util_pct", "utilization, mean", "%", GPU, decimals=1),
)
ENGINE_COUNTERS = (
    SummaryMetric("requests_finished", "requests finished, with warm-up", "", ENGINE),
    SummaryMetric("prompt_tokens", "prompt tokens", "", ENGINE),
    SummaryMetric("generation_tokens", "generated tokens", "", ENGINE),
    SummaryMetric("running_mean", "running, mean", "", ENGINE),
    SummaryMetric("running_max", "running, highest", "", ENGINE),
    SummaryMetric("waiting_mean", "waiting, mean", "", ENGINE),
    SummaryMetric("waiting_max", "waiting, highest", "", ENGINE),
    SummaryMetric("kv_use_max_pct", "KV cache in use, highest", "%", ENGINE, decimals=1),
    SummaryMetric("prefix_hit_pct", "prefix cache hits", "%", ENGINE, decimals=1),
    SummaryMetric("preemptions", "preemptions", "", ENGINE),
    SummaryMetric("spec_accepted_pct", "draft tokens accepted", "%", ENGINE, decimals=1),
)
OF_SWEEPS = (  # computed for the points of a sweep
    SummaryMetric(
        "limit_pct", "output, of the hardware's limit", "%", short="% of limit", decimals=0
    ),
)
_ALL = {e.name: e for e in (*ENGINE_COUNTERS, *GPU_READINGS, *OF_SWEEPS, *_ENTRIES)}


def metrics_of_group(group: str) -> Iterable[SummaryMetric]:
    """Return the metrics of the group RUN, LATENCY or ENERGY, in the order of display."""
    return (entry for entry in _ENTRIES if entry.group == group)


def decimals_of_metric(name: str) -> int | None:
    """Return with how many decimals a metric is shown; None for three significant digits, and for a
    name that the tables lack."""
    entry = _ALL.get(name.partition(".")[0])
    if entry is None:
        return None
    return entry.decimals


def names_of_narrow_table_metrics() -> list[str]:
    """Return the names of the values that narrow tables show, the most important first, such as
    "output_tok_s" and "ttft_ms.p50"."""
    names = []
    for entry in sorted(_ENTRIES, key=lambda entry: entry.importance):
        if entry.importance:
            names += [f"{entry.name}.{part}" for part in entry.key_parts] or [entry.name]
    return names


def spread_metric_names() -> list[str]:
    """Return the names of the values whose scatter over several runs of one benchmark is shown:
    each compared metric that is always listed, and of each latency its first key part, or p50."""
    names = []
    for entry in _ENTRIES:
        if entry.higher_is_better is None or entry.optional:
            continue
        name = entry.name
        if entry.group == LATENCY:
            name += f".{(*entry.key_parts, 'p50')[0]}"
        names.append(name)
    return names


def names_of_deciding_metrics() -> list[str]:
    """Return the names of the metrics that the screen offers as the one that decides an experiment:
    those of narrow tables, but of each latency only the first key part, because few requests are
    enough to measure it."""
    names: dict[str, str] = {}
    for name in names_of_narrow_table_metrics():
        names.setdefault(name.partition(".")[0], name)
    return [*names.values()]


def metric_value(summary: BenchSummary, name: str) -> float | None:
    """Return a metric's value by its name, "output_tok_s" or, for a part of a latency,
    "ttft_ms.p50". None if it was not measured."""
    base, _, part = name.partition(".")
    value: float | None = summary.latency_ms(base, part) if part else getattr(summary, base)
    return value


def metric_title(name: str) -> str:
    """Return a metric's title in comparisons, for example "TTFT p50" for "ttft_ms.p50". A name that
    the table lacks is returned with spaces for underscores."""
    base, _, part = name.partition(".")
    title = base.replace("_", " ")
    if base in _ALL:
        title = _ALL[base].compared or _ALL[base].title
    return f"{title} {distribution_part_title(part)}".rstrip()


def narrow_table_title(name: str, unit: str = "") -> str:
    """Return a metric's title with its unit for narrow tables, for example "tok/s" or "TTFT p50
    ms". `unit` is used only for a name that the table lacks."""
    base, _, part = name.partition(".")
    entry = _ALL.get(base)
    if entry is None:
        return name if unit in name else f"{name} {unit}"
    return entry.short or " ".join(
        filter(None, (entry.title, distribution_part_title(part), entry.unit))
    )

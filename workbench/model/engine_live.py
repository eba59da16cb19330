"""The live metrics of an engine: values that the screen updates every second, without a
benchmark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from workbench.model.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class LiveMetric:
    """A live metric. `field` is its name in the host's history and in JSON. `counters` are the
    fields of EngineMetrics from which it is computed: one field for a gauge or a rate, (numerator,
    denominator) for a share."""

    field: str
    title: str
    unit: str
    counters: tuple[str, ...]


GAUGES = (
    LiveMetric("running", "requests running", "", ("running",)),
    LiveMetric("waiting", "requests waiting", "", ("waiting",)),
    LiveMetric("kv_use_pct", "KV cache use", "%", ("kv_use_pct",)),
)
RATES = (
    LiveMetric("generation_tok_s", "generated tokens", "tok/s", ("live_generation_tokens",)),
    LiveMetric("prompt_tok_s", "prompt tokens", "tok/s", ("live_prompt_tokens",)),
    LiveMetric("preemptions_s", "preemptions", "1/s", ("preemptions",)),
)
SHARES = (
    LiveMetric(
        "prefix_hit_pct", "prefix cache hits", "%", ("prefix_hit_tokens", "prefix_query_tokens")
    ),
    LiveMetric(
        "spec_accepted_pct",
        "accepted draft tokens",
        "%",
        ("spec_accepted_tokens", "spec_draft_tokens"),
    ),
)
LIVE_METRICS = (*RATES, *GAUGES, *SHARES)


@dataclass(frozen=True, slots=True)
class EngineView:
    """The server whose engine is observed, and the newest value of each of its live metrics.

    If a metric is missing in `values`, `absent` has the reason. A share, such as prefix cache hits,
    is also missing while its denominator is 0. `problem` is the reason why no metric can be read;
    None if metrics can be read.
    """

    server: str  # run id, or the URL of a server that Workbench did not start
    title: str  # "vLLM :8000"
    values: Mapping[str, float] = field(default_factory=dict)
    absent: Mapping[str, str] = field(default_factory=dict)
    problem: str | None = None

"""A benchmark: its workload, its results, and the conditions of the measurement.

TTFT is the time to the first token, ITL the gap between content chunks, TPOT the time per output
token after the first chunk, E2E the time of a whole request. The steady window is the part of a run
in which all streams are in flight (bench/steady_window.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any, TypeAlias

from workbench.model.answer_text import TextFinding, TextReport, describe_text_fault
from workbench.model.distribution import PERCENTILES
from workbench.model.distribution import Distribution as Distribution
from workbench.model.lazy_dataclass import dataclass
from workbench.model.load_spec import BenchSpec as BenchSpec
from workbench.model.plan import ModelFacts
from workbench.model.slo import LimitAttained

ResultId: TypeAlias = int  # the number by which a stored result is called

# Above it the client's own pace may be what is measured. Below it, what went wrong shows by itself:
# streams that were idle, requests that started late, and times that are not exact.
BUSY_CLIENT_PCT = 95.0
# share of failed requests above which the measured load is not the requested one
FAILED_SHARE = 0.01

# a field of stored requests: of how many it is the one that was kept
KEPT_ONE_OF = "kept_one_of"


@dataclass(frozen=True, slots=True)
class EngineDuring:
    """The engine's own counters over one run, warm-up included, summed over all data-parallel
    replicas. A counter that the engine does not report is None, and `absent` gives the reason by
    field name. `disagreements` lists the counts in which the engine and the load generator differ.
    """

    requests_finished: int | None = None
    prompt_tokens: int | None = None
    generation_tokens: int | None = None
    running_mean: float | None = None
    running_max: int | None = None
    waiting_mean: float | None = None
    waiting_max: int | None = None
    in_flight_median: float | None = None  # requests that run or wait
    kv_use_max_pct: float | None = None
    prefix_hit_pct: float | None = None
    prefix_hit_tokens: int | None = None
    preemptions: int | None = None
    spec_accepted_pct: float | None = None  # of the draft tokens
    samples: int = 0
    disagreements: tuple[str, ...] = ()
    absent: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PcieDuring:
    """What crossed the PCIe link of the GPU with the index `gpu` during the measured window of a
    run, in MB/s. The GPU received at the mean rate `rx_mb_s` and sent at `tx_mb_s`; `rx_peak_mb_s`
    and `tx_peak_mb_s` are the highest of the readings. `link_mb_s` is the nominal bandwidth of the
    link in one direction. A value that is not known is None."""

    gpu: int
    rx_mb_s: float | None = None
    tx_mb_s: float | None = None
    rx_peak_mb_s: float | None = None
    tx_peak_mb_s: float | None = None
    link_mb_s: float | None = None


@dataclass(frozen=True, slots=True)
class GpuDuring:
    """Readings of the server's GPUs during the measured window of a run, for each GPU and in total.
    A value that was not read is None, and `absent` gives the reason by field name."""

    power_w: float | None  # mean over time, sum over the server's GPUs
    energy_j: float | None
    sm_mhz: float | None  # mean over GPUs and samples
    memory_mhz: float | None
    temperature_c: float | None  # highest
    gpu_util_pct: float | None
    # name -> share of samples 0..1
    event_reasons: Mapping[str, float] = field(default_factory=dict)
    samples: int = 0
    absent: Mapping[str, str] = field(default_factory=dict)
    gpus: tuple[int, ...] = ()  # indices of the server's GPUs, in the order of the tuples below
    power_w_each: tuple[float | None, ...] = ()
    energy_j_each: tuple[float | None, ...] = ()
    energy_counter_j: float | None = None  # of all GPUs, by the driver's counters
    energy_integrated_j: float | None = None  # of all GPUs, by integrating the power readings
    # of all samples of all GPUs; None in results of earlier versions
    sm_mhz_min: float | None = None
    sm_mhz_max: float | None = None
    sm_mhz_sd: float | None = None  # standard deviation over samples, mean over GPUs
    # of the GPUs whose driver counts the bytes of the link; () in results of earlier versions
    pcie: tuple[PcieDuring, ...] = ()


WITHHELD = "withheld, because "  # begins the reason of a metric that could not be timed well enough


@dataclass(frozen=True, slots=True)
class BenchSummary:
    """The metrics of one run. A metric that was not measured is None, and `absent` gives the reason
    by field name."""

    requests_ok: int
    requests_failed: int
    # by kind: "connect", "reset", "timeout", "http 503", "short", "malformed", …
    errors: Mapping[str, int]
    # of successful requests, by the server's usage; None if it reported none
    prompt_tokens: int | None
    output_tokens: int | None
    cached_tokens: int | None
    duration_s: float | None  # None: an import whose file does not contain it
    output_tok_s: float | None
    request_s: float | None  # requests per second
    ttft_ms: Distribution | None
    itl_ms: Distribution | None  # gaps between content chunks
    # (last - first) / (tokens - tokens in the first chunk), per request
    tpot_ms: Distribution | None
    e2e_ms: Distribution | None
    tokens_per_chunk: float | None
    per_stream_tok_s: float | None
    power_w: float | None
    energy_j: float | None
    tok_per_joule: float | None
    gpu: GpuDuring | None = None
    client_cpu_pct: float | None = None
    absent: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    # successful requests of the warm-up; the engine's own counters include them
    warmup_requests: int = 0
    warmup_prompt_tokens: int | None = None
    warmup_output_tokens: int | None = None
    # of an embedding run: prompt tokens per second over the window
    prompt_tok_s: float | None = None
    # "steady" or "whole run": the part to which `output_tok_s`, `request_s`, power apply
    window: str = "whole run"
    window_s: float | None = None  # length of the window
    whole_run_tok_s: float | None = None
    window_output_tokens: float | None = None  # in the window, chunk by chunk
    # in the window; requests at its edges count by their share of time inside
    window_requests: float | None = None
    queue_ms: Distribution | None = None  # open loop: from the scheduled time to the socket write
    ttft_from_schedule_ms: Distribution | None = None  # open loop: includes the wait in the client
    e2e_from_schedule_ms: Distribution | None = None
    in_flight_mean: float | None = None  # measured streams in flight, mean over the window
    in_flight_nominal: float | None = None
    # why the result is invalid: the client was the limit, the cache answered, …
    refused: tuple[str, ...] = ()
    # why the valid result says less than it seems to: too short, its halves disagree, …
    marked: tuple[str, ...] = ()
    idle_power_w: float | None = None
    net_tok_per_joule: float | None = None  # idle power subtracted
    energy_per_request_j: float | None = None
    engine: EngineDuring | None = None
    command_exit: int | None = None  # of a workload that is the user's own command
    command_output: tuple[str, ...] = ()  # the last lines of that command
    # Parts of a distribution that an imported file does not contain completely: "ttft_ms" ->
    # {"mean": 210, "p99": 890}
    partial: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    text: TextReport | None = None  # what the answers said; None: nobody looked
    # of an SLO: each limit, and the requests that kept all of them, in percent of all and per
    # second
    slo: tuple[LimitAttained, ...] = ()
    slo_pct: float | None = None
    goodput_request_s: float | None = None
    goodput_tok_s: float | None = None
    users: float | None = None  # of a search: how many keep the SLO (bench/user_estimate.py)
    # standard error of `output_tok_s` within the run; two runs differ by more (bench/steadiness.py)
    rate_error_pct: float | None = None
    # by field: by how many milliseconds each statistic of a reported latency may be too high
    unsure_ms: Mapping[str, float] = field(default_factory=dict)

    @property
    def text_error(self) -> TextFinding | None:
        """Why the text of the result is no answer, or its usage cannot be true. None if nothing is
        wrong with it, or if nobody looked."""
        findings = self.text.findings if self.text is not None else ()
        return next((one for one in findings if one.level == "error"), None)

    def withheld_reason(self, metric: str) -> str:
        """Return why the field `metric` has no value, if it was withheld because the load client
        could not time it well enough: "its mean is between …". "" if it was not withheld."""
        reason = self.absent.get(metric, "")
        return reason.removeprefix(WITHHELD) if reason.startswith(WITHHELD) else ""

    def latency_ms(self, metric: str, statistic: str) -> float | None:
        """Return one statistic of a latency in milliseconds, for example `latency_ms("ttft_ms",
        "p50")`. None if it is unknown, or if there are too few requests for it. `metric` is a field
        with a Distribution, `statistic` a field of Distribution such as "mean" or "p99"."""
        measured = getattr(self, metric)
        if measured is not None:
            value: float | None = getattr(measured, statistic)
            return value
        needed = PERCENTILES[statistic].least_values if statistic in PERCENTILES else 0
        if metric != "itl_ms" and self.requests_ok < needed:  # gaps are more than requests
            return None
        return self.partial.get(metric, {}).get(statistic)


def upgrade_summary(stored: BenchSummary) -> BenchSummary:
    """Return a summary that was read from a file, with None as the duration of an import without
    one, for which earlier versions stored 0. Any other summary is returned as it is."""
    if stored.duration_s != 0 or not stored.requests_ok:
        return stored
    reason = {"duration_s": "the imported file has no duration"}
    return replace(stored, duration_s=None, absent={**stored.absent, **reason})


@dataclass(frozen=True, slots=True)
class BenchProgress:
    """The state of a run that is in progress: finished requests, requests in flight, tokens so far,
    and the phase."""

    done: int
    failed: int
    total: int
    in_flight: int
    output_tokens: int
    output_tok_s: float
    elapsed_s: float
    phase: str = "measuring"  # "connecting", "warming up", "measuring", "done"
    silent_s: float = 0.0  # since the server's last byte, while requests are in flight
    line: str = ""  # last output line of a workload that is the user's own command
    streaming: int = 0  # requests in flight whose first token has arrived


@dataclass(frozen=True, slots=True)
class Conditions:
    """Everything that a result depends on, stored with the result. Two results are comparable only
    if their conditions agree."""

    host: str
    engine: str | None
    engine_version: str | None
    model: str
    argv: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)  # secrets masked
    flags: Mapping[str, Any] = field(default_factory=dict)
    preset_id: str | None = None
    run_id: str | None = None
    driver_version: str | None = None
    cuda_version: str | None = None
    gpus: tuple[Mapping[str, Any], ...] = ()  # name, uuid, power limit, locks, clocks max
    gpu_settings: Mapping[str, Any] = field(default_factory=dict)
    # "gpu0.gpu_clocks" -> InForce, of changed settings
    in_force: Mapping[str, str] = field(default_factory=dict)
    # Where the load client ran: "local" (server and client on one machine, or a URL), "host" (a
    # remote server's host), "tunnel" (here, through the link to that host).
    client: str = "local"
    workbench_version: str = ""
    simulated: bool = False
    ceiling_tok_s: float | None = None  # limit of one stream by the memory bandwidth
    # which bandwidth that is: nominal, or at the memory clock under load; without a limit, why
    ceiling_basis: str = ""
    ceiling_total_tok_s: float | None = None  # limit of all streams together
    ceiling_total_bound: str = "memory"  # what sets that limit: "memory" or "compute"
    quantization: str = ""  # of the model's weights, as far as it is known
    server_started_unix_s: float | None = None
    # of the model's files on the host: names, sizes, first and last 64 KiB of each
    model_digest: str | None = None
    model_bytes: str = ""  # how sure the digest is, or why there is none
    imported: str | None = None  # the tool that measured this, if not Workbench: "vllm bench serve"
    # `in_force` in words: requested, measured, and why
    findings: Mapping[str, str] = field(default_factory=dict)
    address: str = ""  # base URL of a server that Workbench did not start, as seen from its host
    model_facts: ModelFacts | None = None  # sizes of the weights that were served; None if unknown
    image: str | None = None  # of the server's container, with its digest; None: no container
    # what ran the server on its host: a word of `start --as`; None: not known
    run_as: str | None = None
    # fields of the spec in an imported file; the other fields are meaningless
    known_workload: tuple[str, ...] = ()
    server_text: str = (
        ""  # why the text of the READY server was no answer; "": it was one, or unknown
    )
    nodes: tuple[str, ...] = ()  # of a cluster: each host with its rank, "spark-01 (rank 0)"

    def knows_workload_field(self, name: str) -> bool:
        """Return whether the field `name` of BenchSpec is known: the file of an imported result may
        lack it."""
        return not self.known_workload or name in self.known_workload


# in which a search for results looks; host, engine and model have columns of their own
SEARCHED_CONDITIONS = (
    *(
        "engine_version",
        "argv",
        "flags",
        "env",
        "preset_id",
        "run_id",
        "driver_version",
        "gpus",
        "gpu_settings",
    ),
    *("imported", "model_digest"),
)


@dataclass(frozen=True, slots=True)
class BenchResult:
    """A stored benchmark: workload, conditions and metrics, with the user's note and tags."""

    id: int
    unix_s: float
    spec: BenchSpec
    conditions: Conditions
    summary: BenchSummary
    note: str = ""
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MetricChange:
    """The change of one metric from A to B: one line of a comparison.

    `verdict` is one of:
      "better", "worse", "no difference shown": several runs of each side give an interval;
      "hint only": the change looks better or worse, but may be chance, because the metric was not
          chosen before the experiment, the runs are not comparable, or the experiment is not
          finished;
      "single pair": one run of each side gives no interval, so no verdict is possible;
      "withheld": a latency that the load client could not time well enough has no value;
      "not measured": a value is missing for another reason.
    """

    metric: str
    unit: str
    a: float | None
    b: float | None
    change_pct: float | None
    interval_pct: float | None  # half width of the change's interval; None for a single pair
    higher_is_better: bool
    verdict: str
    # raw (A, B) in order, if runs were made in pairs
    pairs: tuple[tuple[float | None, float | None], ...] = ()


def format_half_width(interval_pct: float, digits: int = 1) -> str:
    """Return the half width of a confidence interval as text, for example "0.9" for ± 0.9 %.
    `interval_pct` is the half width in percent. The text is ">999" if the runs scatter too much for
    a useful number."""
    return ">999" if interval_pct > 999 else f"{interval_pct:.{digits}f}"


@dataclass(frozen=True, slots=True)
class ArmText:
    """What one side of a comparison answered: an excerpt, and why it is no answer (`problem`, ""
    if it is one). `code` is that of the finding with this problem; "" if there is none, and in
    older results."""

    excerpt: str
    problem: str = ""
    characters_per_token: float | None = None
    code: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The comparison of result B with result A: differences of the configuration, then the change
    of each metric."""

    a: int
    b: int
    differences: tuple[Mapping[str, Any], ...]  # {"kind", "name", "a", "b"}, configuration first
    metrics: tuple[MetricChange, ...]
    warnings: tuple[str, ...]  # why the two are not comparable
    like_for_like: bool
    simulated: bool
    runs_a: int = 1
    runs_b: int = 1
    notes: tuple[str, ...] = ()  # what the metrics can and cannot show
    # the second of two twins (B) against the first (A), with one configuration
    machine: MetricChange | None = None
    text_a: ArmText | None = None  # None: nobody looked at the text
    text_b: ArmText | None = None
    content: str = ""  # what the content of the load means for the difference; "": nothing
    # the settings that differ and change what a model answers: "kv-cache-dtype", "engine version"
    answer_changes: tuple[str, ...] = ()
    # whether B answers the same as A: "quality not measured", or what was measured; "" without
    # `answer_changes`
    quality: str = ""
    quality_verdict: str = ""  # a verdict of model/quality.py; "" if it was not measured
    quality_id: int | None = None  # of the stored comparison of answers

    @property
    def sides_and_texts(self) -> tuple[tuple[str, ArmText | None], ...]:
        """(name of the side, what it answered) for A and B. The second is None if nobody looked."""
        return ("A", self.text_a), ("B", self.text_b)

    @property
    def broken_answer_clause(self) -> str:
        """A clause that says whose text is no answer: "the text of B is not an answer: "!!!!"". If
        neither is one, only A's. "" if both are answers, or if that is unknown."""
        for side, text in self.sides_and_texts:
            if text is not None and text.problem:
                return describe_text_fault(
                    text.code, f"the {{}} of {side}", text.excerpt or text.problem
                )
        return ""

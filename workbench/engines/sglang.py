"""SGLang, started as `sglang serve --model-path MODEL`, or as a Python module before 0.5.5. The
patterns for log lines and the metric names are checked against a real run of 0.5.23.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from workbench.engines.base import Engine, MemoryUse, PythonParser, is_python_interpreter
from workbench.engines.catalog import parse_version_numbers
from workbench.engines.kv_size import SWA_SHARE, KvStorageRule
from workbench.engines.plan_context import PlanContext
from workbench.engines.reported_settings import SGLANG
from workbench.engines.speculation import drafted_by_sglang
from workbench.engines.tunable_flags import BATCH, KERNEL, KV, PREFILL, TunableFlag
from workbench.model.flags import FlagValue
from workbench.model.plan import LaunchPlan

_FIRST_WITH_SERVE = (0, 5, 5)
_INIT_PORT = 20000


class Sglang(Engine):
    name = "sglang"
    title = "SGLang"
    general_preset = "sglang-any"
    executables = ("sglang",)
    launch = ("sglang", "serve")
    start_words = (("sglang", "serve"), ("python", "-m", "sglang.launch_server"))
    shared_names: ClassVar[Mapping[str, str]] = {
        "tensor-parallel": "tensor-parallel-size",
        "pipeline-parallel": "pipeline-parallel-size",
        "data-parallel": "data-parallel-size",
        "gpu-memory-utilization": "mem-fraction-static",
        "max-model-len": "context-length",
        "max-num-seqs": "max-running-requests",
        "chunked-prefill": "chunked-prefill-size",
        "kv-cache": "kv-cache-dtype",
    }
    image = "lmsysorg/sglang"
    sparkrun_runtime = "sglang"
    default_port = 30000
    model_flags = ("model-path",)
    packages = ("sglang",)
    parser = PythonParser(
        ("argparse:ArgumentParser",), ("sglang.srt.server_args:ServerArgs.add_cli_args",)
    )
    env_prefix = "SGLANG_"
    uses_hub = True
    host_address_env = "SGLANG_HOST_IP"
    # /health generates one token, unless SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION is false. This
    # path exists in all versions from 0.5.2 to 0.5.23 and is answered without the scheduler.
    alive_path = "/v1/models"
    metrics_flag = "enable-metrics"
    concurrency_flag = "max-running-requests"
    tokenize_path = "/tokenize"
    score_interface = "generate"
    accepts_flag_prefixes = True
    compiles_at_first_start = True
    tunable_flags = (
        TunableFlag("attention-backend", ("flashinfer", "triton"), KERNEL),
        # SGLang asserts it at the start: attention_registry.py, create_flashattention_v3_backend
        TunableFlag("attention-backend", ("fa3",), KERNEL, capabilities=(8, 9)),
        TunableFlag("kv-cache-dtype", ("fp8_e4m3",), KV),
        TunableFlag("chunked-prefill-size", BATCH, PREFILL, grows=True),
        TunableFlag(
            "num-continuous-decode-steps", ("2", "4"), "fewer returns to the scheduler on the CPU"
        ),
        TunableFlag(
            "schedule-policy",
            ("lpm",),
            "requests with a common beginning run together",
            of_prefixes=True,
        ),
    )
    memory = MemoryUse(
        share_flag="mem-fraction-static",
        default_share=0.88,
        chooses_share=True,
        reserve_gib=0.0,  # activations are outside the share
        length_flag="context-length",
        starts_with_short_cache=True,
    )
    eager_flag = "disable-cuda-graph"
    pcie_all_reduce_env = "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE"
    answers = SGLANG
    config_logs = (re.compile(r"server_args=(?:ServerArgs\()?(.*)"),)
    config_paths = ("/server_info", "/get_server_info")  # the second up to 0.5.3
    part_ended_logs = (
        re.compile(
            r"Subprocess (?P<part>\w+) \(pid=(?P<pid>\d+)\) crashed with exit code (?P<code>-?\d+)"
        ),
        re.compile(r"(?P<part>Rank \d+ scheduler) is dead"),  # up to 0.5.9, while it starts
    )
    version_log = re.compile(r"sglang[ =v:]+(?P<version>\d+\.\d+\.\d\S*)", re.IGNORECASE)
    log_words = ("sglang", "sgl_kernel", "sgl-kernel")
    log_prefix = r"\[\d{4}-\d\d-\d\d\ \d\d:\d\d:\d\d[^\]]*\]\s*"  # "[2026-11-20 23:41:58 TP0] "
    shortened_log = re.compile(
        r"\[\d{4}-\d\d-\d\d (?P<time>\d\d:\d\d:\d\d)(?P<who>[^\]]*)\] "
        r"(?:(?P<level>[A-Z]{4,8}):? +)?"
    )
    speed_log = re.compile(
        r"Decode batch.{0,20}?#running-req: (?P<running>\d+), .{0,120}?token usage: (?P<used>[\d.]+), "
        r".{0,200}?gen throughput \(token/s\): (?P<gen>[\d.]+), #queue-req: (?P<waiting>\d+)"
    )
    ready_words = ("fired up and ready to roll",)
    phases = (
        (
            re.compile(
                r"(?:checkpoint|loading) shards:\s+(?P<pct>\d+)% "
                r"Completed"
            ),
            "loading weights {pct} %",
        ),
        (re.compile(r"Load weight begin"), "loading weights"),
        (
            re.compile(
                r"Load weight end\. elapsed=(?P<seconds>[\d.]+) "
                r"s"
            ),
            "weights loaded in {seconds} s",
        ),
        (
            re.compile(
                r"KV Cache is allocated\..*#tokens: "
                r"(?P<tokens>\d+)"
            ),
            "KV cache of {tokens} tokens",
        ),
        (re.compile(r"Capture .*graph begin|Capturing batches"), "capturing CUDA graphs"),
        (re.compile(r"Capture .*graph end"), "CUDA graphs captured"),
        (re.compile(r"Uvicorn running on"), "warming up"),
        (re.compile(r"Init (?:parallel|torch distributed) begin"), "starting the workers"),
        (re.compile(r"server_args="), "importing"),
    )
    metrics: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "running": ("sglang:num_running_reqs",),
        "waiting": ("sglang:num_queue_reqs",),
        "kv_usage": ("sglang:token_usage",),
        "prefix_hits": ("sglang:cached_tokens_total",),
        "prompt_tokens": ("sglang:prompt_tokens_total",),
        "generation_tokens": ("sglang:generation_tokens_total",),  # counted when a request ends
        "generation_tok_s": ("sglang:gen_throughput",),
        "requests": ("sglang:num_requests_total",),
        "ttft_s": ("sglang:time_to_first_token_seconds",),
        "itl_s": ("sglang:inter_token_latency_seconds",),
        "tpot_s": ("sglang:request_time_per_output_token_seconds",),
        "e2e_s": ("sglang:e2e_request_latency_seconds",),
        "queue_s": ("sglang:queue_time_seconds",),
        "kv_tokens": ("sglang:max_total_num_tokens",),
    }  # no "preemptions": sglang:num_retracted_reqs goes back to 0 at each log line, so it is no counter
    # counted at each log line, every 40 steps
    live_metrics: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "prompt_tokens": (
            'sglang:realtime_tokens_total{mode="prefill_compute"}',
            'sglang:realtime_tokens_total{mode="prefill_cache"}',
        ),
        "generation_tokens": (  # the first token of a request comes from its prefill
            'sglang:realtime_tokens_total{mode="decode"}',
            "sglang:time_to_first_token_seconds_count",
        ),
    }

    def tokenize_request_body(
        self, model: str, request: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        if "prompt" not in request:  # the endpoint does not accept messages
            return None
        return {"model": model, "prompt": request["prompt"]}

    def flags_of_rank(
        self, plan: LaunchPlan, rank: int, count: int, head: str
    ) -> Mapping[str, FlagValue] | None:
        address = f"[{head}]:{_INIT_PORT}" if ":" in head else f"{head}:{_INIT_PORT}"
        return {"nnodes": count, "node-rank": rank, "dist-init-addr": address}

    def drafted_tokens_per_step(
        self, flags: Mapping[str, Any], version: str | None = None
    ) -> int | None:
        return drafted_by_sglang(flags)

    def replicas_per_node(self, context: PlanContext) -> int:
        # attention is replicated inside the tensor-parallel group
        if context.is_switched_on("enable-dp-attention"):
            return 1
        return context.flag_count_or_one("data-parallel-size")

    def kv_storage_rule(self, context: PlanContext) -> KvStorageRule:
        if context.is_switched_on("disable-hybrid-swa-memory"):
            return KvStorageRule()
        return KvStorageRule(
            "share", share=context.positive_flag_number("swa-full-tokens-ratio", SWA_SHARE)
        )

    def first_command_words(self, plan: LaunchPlan) -> tuple[str, ...]:
        """Return the first words of the command, in the form that the installed version accepts.

        The command `sglang serve` exists since 0.5.5 (the entry points of the wheels of 0.5.4 and
        0.5.5). Before 0.5.5, and if the executable is a Python interpreter, the server is started
        as the module `sglang.launch_server`.
        """
        words = plan.executable
        last = words[-1] if words else ""
        if last == "serve" or "launch_server" in last:
            return words
        before_serve = (
            plan.engine_version is not None
            and parse_version_numbers(plan.engine_version) < _FIRST_WITH_SERVE
        )
        if before_serve and not words:
            words = ("python",)
        if is_python_interpreter(words):
            return (*words, "-m", "sglang.launch_server")
        return (*words, "serve") if words else self.launch

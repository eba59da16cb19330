"""Simulated vLLM, with the log texts and reply formats of versions 0.32 and 0.33."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from workbench.model.untrusted_text import as_list, as_table
from workbench.sim import launch_options, model_sizes
from workbench.sim.engine_metrics import Metrics, metric_sample_lines
from workbench.sim.engines.base import SimulatedEngine
from workbench.sim.flag_parser import ArgumentsRejected, Catalog
from workbench.sim.language_model import text_of_tokens
from workbench.sim.launch_options import (
    LaunchOptions,
    flag_values_or_default,
    float_flag,
    int_flag,
    text_flag,
)
from workbench.sim.memory_fit import CONTEXT_GIB, GIB, GRAPHS_GIB, Failure, Fit, GpuMemory
from workbench.sim.openai_api import bad_request, int_field, require_prompt_ids
from workbench.sim.startup import (
    StartupPhase,
    reason_against_custom_all_reduce,
    shard_shares_and_progress,
    start_duration_s,
)

if TYPE_CHECKING:
    from workbench.sim.engine_log import EngineLog
    from workbench.sim.engine_process import EngineServer
    from workbench.sim.http_server import Request
    from workbench.sim.openai_api import Api, ApiError
    from workbench.sim.scored_reply import ScoredReply

_HISTOGRAMS = {
    "ttft_s": "vllm:time_to_first_token_seconds",
    "itl_s": "vllm:inter_token_latency_seconds",
    "tpot_s": "vllm:request_time_per_output_token_seconds",
    "e2e_s": "vllm:e2e_request_latency_seconds",
    "queue_s": "vllm:request_queue_time_seconds",
}
_WARNING = {"level": "WARNING"}
_MOST_LOGPROBS = 20  # --max-logprobs


class SimulatedVllm(SimulatedEngine):
    """A simulated vLLM: an API server process, and a worker process "VLLM::EngineCore" that
    survives if the server is killed."""

    name = "vllm"
    program = "vllm serve"
    default_port = 8000
    graphs_gib = GRAPHS_GIB
    worker_name = "VLLM::EngineCore"
    worker_manner = "orphan"
    binds_first = True
    checks_model = True
    rejects_long_requests = True
    finish_on_content = True
    dotted_fields = True

    def version_text(self, words: Sequence[str], version: str) -> str | None:
        return version if words[:1] in (["--version"], ["-v"]) else None

    def select_flag_arguments(self, arguments: list[str]) -> list[str]:
        return launch_options.arguments_after_serve(self, arguments)

    def normalize_option(self, option: str) -> str:
        return option.replace("_", "-") if option.startswith("--") else option

    def negated_options(self, flag: Mapping[str, Any]) -> set[str]:
        known = super().negated_options(flag)
        return known | {f"--no-{flag['name']}"} if known else known

    def flag_missing_from_catalog(self, option: str) -> dict[str, Any] | None:
        if not re.fullmatch(r"-O\d", option):
            return None
        return {"name": "optimization-level", "kind": "bool"}

    def rejection_error(self, why: str) -> ArgumentsRejected:
        # an unknown argument is rejected by the outer parser
        program = "vllm" if why.startswith("unrecognized") else self.program
        return ArgumentsRejected(
            f"usage: {self.program} [-h] [options]\n{program}: error: {why}", 2
        )

    def parse_launch(
        self, catalog: Catalog, flags: dict[str, Any], positional: list[str]
    ) -> LaunchOptions:
        if len(positional) > 1:
            raise self.rejection_error("unrecognized arguments: " + " ".join(positional[1:]))
        name = positional[0] if positional else text_flag(flags, "model", "Qwen/Qwen3-0.6B")
        length = flags.get("max-model-len")
        compilation = as_table(flags.get("compilation-config"))
        no_graphs = str(compilation.get("cudagraph_mode", "")).lower() == "none"
        dp = int_flag(flags, "data-parallel-size", 1)
        servers = int_flag(flags, "api-server-count", dp)
        max_len = None
        if length is not None:
            max_len = -1 if length in ("auto", -1) else int(length)
        unknown = sorted(n for n in os.environ if n.startswith("VLLM_") and n not in catalog.env)
        return launch_options.options_from_flags(
            catalog,
            flags,
            model_sizes.describe_model(
                name,
                quantization=text_flag(flags, "quantization"),
                dtype=text_flag(flags, "dtype", "auto"),
                kv_fp8=text_flag(flags, "kv-cache-dtype", "auto").startswith("fp8"),
            ),
            served=flag_values_or_default(flags.get("served-model-name"), name),
            tp=int_flag(flags, "tensor-parallel-size", 1),
            pp=int_flag(flags, "pipeline-parallel-size", 1),
            dp=dp,
            eager=bool(flags.get("enforce-eager"))
            or no_graphs
            or flags.get("optimization-level") == "0",
            custom_all_reduce=not flags.get("disable-custom-all-reduce"),
            max_len=max_len,
            max_sequences=int_flag(flags, "max-num-seqs", 256),
            batched_tokens=int_flag(flags, "max-num-batched-tokens", 8192),
            memory_share=float_flag(flags, "gpu-memory-utilization", 0.92),
            prefix_cache=flags.get("enable-prefix-caching") is not False,
            stats_log=servers == 1 and not flags.get("disable-log-stats"),
            api_key=launch_options.api_key_flag(flags, "VLLM_API_KEY"),
            **({"headless": True} if flags.get("headless") else {}),
            embeds=flags.get("runner") == "pooling"
            or "embed" in (flags.get("convert"), flags.get("task")),
            warnings=tuple(f"Unknown vLLM environment variable detected: {n}" for n in unknown),
        )

    # -- memory ------------------------------------------------------------------------------------

    def missing_model_failure(self, path: str) -> Failure:
        return Failure(
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig",
            f"  Value error, Invalid repository ID or local directory specified: '{path}'. Provide "
            "a valid Hugging "
            "Face repository ID, or a local directory with a config.json. [type=value_error, "
            "input_type=ArgsKwargs]",
        )

    def too_few_gpus_failure(self, needed: int, have: int) -> Failure:
        return Failure(
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for ParallelConfig",
            f"  Value error, World size ({needed}) is larger than the number of available GPUs "
            f"({have}) in this node. "
            "If this is intentional, use more nodes or another executor backend. "
            "[type=value_error, "
            "input_type=ArgsKwargs]",
        )

    def kv_cache_bytes(self, launch: LaunchOptions, memory: GpuMemory) -> float:
        share, context = launch.memory_share, CONTEXT_GIB * GIB
        free = memory.free + context
        if free < memory.budget:
            raise Failure(
                "ValueError: Free memory on device cuda:0 "
                f"({free / GIB:.2f}/{memory.total / GIB:.2f} GiB) on startup "
                f"is less than desired GPU memory utilization ({share}, "
                f"{share * memory.total / GIB:.2f} GiB). "
                "Decrease GPU memory utilization or reduce GPU memory used by other processes.",
            )
        if memory.weights > memory.free:
            raise self.out_of_memory_failure(memory.weights, memory)
        cache = memory.budget - context - memory.weights - memory.working
        if cache <= 0:
            raise Failure(
                "ValueError: No available memory for the cache blocks. Try increasing "
                "`gpu_memory_utilization` when "
                "initializing the engine.",
            )
        return cache

    def require_context_fits_cache(
        self, max_len: int, kv_cache_bytes: float, memory: GpuMemory
    ) -> None:
        tokens = int(kv_cache_bytes / memory.per_token)
        if tokens < max_len:
            raise Failure(
                "ValueError: To serve at least one request with the model's max seq len "
                f"({max_len}), "
                f"({max_len * memory.per_token / GIB:.2f} GiB KV cache is needed, which is larger "
                "than the available "
                f"KV cache memory ({kv_cache_bytes / GIB:.2f} GiB). Based on the available memory, the "
                "estimated maximum model "
                f"length is {tokens // 16 * 16}. Try increasing `gpu_memory_utilization` or "
                "decreasing `max_model_len` "
                "when initializing the engine.",
            )

    # -- log ---------------------------------------------------------------------------------------

    def log_line(
        self, log: EngineLog, text: str, *, source: str, process: str, pid: int, level: str
    ) -> str:
        who = f"({process or 'APIServer'} pid={pid or os.getpid()})"
        return f"{who} {level} {time.strftime('%m-%d %H:%M:%S')} [{source}] {text}"

    def access_line(self, uvicorn_text: str) -> str | None:
        return uvicorn_text

    def lines_before_loading(self, launch: LaunchOptions) -> Iterator[StartupPhase]:
        source = {"source": "api_utils.py:347"}
        yield StartupPhase(0.0, f"  █▄█▀ █     █     █     █  version {launch.version}", source)
        yield StartupPhase(0.0, f"   ▀▀  ▀▀▀▀▀ ▀▀▀▀▀ ▀     ▀  model   {launch.model.id}", source)
        given = {k.replace("-", "_"): v for k, v in launch.flags.items() if k != "api-key"}
        arguments = {"model_tag": launch.model.id, **given}
        yield StartupPhase(0.0, f"non-default args: {arguments}", {"source": "api_utils.py:286"})
        for text in launch.warnings:
            yield StartupPhase(0.0, text, {"source": "envs.py:2231", **_WARNING})

    def lines_while_loading(
        self, launch: LaunchOptions, fit: Fit, workers: list[int], address: str
    ) -> Iterator[StartupPhase]:
        model = launch.model
        yield StartupPhase(
            0.12, f"Resolved architecture: {model.architecture}", {"source": "model.py:733"}
        )
        yield StartupPhase(0.0, f"Using max model len {fit.max_len}", {"source": "model.py:2152"})
        if launch.eager:
            text = "Enforce eager set, disabling torch.compile, CUDAGraphs, and JIT kernel warmup."
            for line in (text, "Cudagraph is disabled under eager mode"):
                yield StartupPhase(0.0, line, {"source": "vllm.py:1127", **_WARNING})
        config = (
            f"Initializing a V1 LLM engine (v{launch.version}) with config: model='{model.id}', "
            f"max_seq_len={fit.max_len}, tensor_parallel_size={launch.tp}, "
            f"data_parallel_size={launch.dp}, "
            f"quantization={model.quantization}, enforce_eager={launch.eager}, device_config=cuda "
            "(SIMULATED)"
        )
        for share, text, source, level in self._shares_and_core_startup_lines(launch, fit, config):
            if source:
                fields = {
                    "process": "EngineCore",
                    "pid": workers[0],
                    "source": source,
                    "level": level,
                }
                yield StartupPhase(share, text, fields)
            else:
                yield StartupPhase(share, text, raw=True)
        if not launch.stats_log:
            text = (
                "AsyncLLM created with api_server_count more than 1; disabling stats logging "
                "to avoid incomplete "
            )
            yield StartupPhase(0.0, f"{text}stats.", {"source": "loggers.py:1387", **_WARNING})
        yield StartupPhase(0.05, f"Starting vLLM server on {address}", {"source": "entry.py:140"})
        yield StartupPhase(0.02, f"INFO:     Started server process [{os.getpid()}]", raw=True)
        yield StartupPhase(0.0, "INFO:     Waiting for application startup.", raw=True)

    def _shares_and_core_startup_lines(
        self, launch: LaunchOptions, fit: Fit, config: str
    ) -> Iterator[tuple[float, str, str, str]]:
        """Yield (share, text, source, level) for each log line of the worker during the start.
        `share` is the part of the start's duration, 0 to 1, that passes before the line. `source`
        is the file and line of vLLM's code; "" for a line without the engine's prefix."""
        model, whole_s = launch.model, start_duration_s(launch)
        yield 0.08, config, "core.py:133", "INFO"
        if launch.tp > 1:
            yield 0.0, "vLLM is using nccl==2.28.9", "pynccl.py:111", "INFO"
        if why := reason_against_custom_all_reduce(launch, fit):
            text = f"Custom allreduce is disabled because {why}. To silence this warning, specify "
            yield (
                0.0,
                f"{text}disable_custom_all_reduce=True.",
                "custom_all_reduce.py:271",
                "WARNING",
            )
        yield 0.04, f"Starting to load model {model.id}...", "gpu_model_runner.py:4102", "INFO"
        for share, progress in shard_shares_and_progress(model.weight_bytes, 0.3):
            yield share, f"Loading safetensors checkpoint shards: {progress}", "", ""
        yield (
            0.0,
            (f"Loading weights took {whole_s * 0.3:.2f} seconds"),
            "default_loader.py:501",
            "INFO",
        )
        text = (
            f"Model loading took {fit.weight_bytes / GIB:.2f} GiB memory and "
            f"{whole_s * 0.32:.6f} seconds"
        )
        yield 0.02, text, "gpu_model_runner.py:4189", "INFO"
        if not launch.eager:
            yield (
                0.1,
                (f"Dynamo bytecode transform time: {whole_s * 0.1:.2f} s"),
                "backends.py:642",
                "INFO",
            )
            yield (
                0.08,
                (f"torch.compile took {whole_s * 0.18:.2f} s in total"),
                "monitor.py:34",
                "INFO",
            )
        yield (
            0.04,
            (f"Available KV cache memory: {fit.kv_bytes / GIB:.2f} GiB"),
            "gpu_worker.py:391",
            "INFO",
        )
        text = (
            f"GPU KV cache size: {fit.kv_tokens:,} tokens, Maximum concurrency for "
            f"{fit.max_len:,} tokens per "
        )
        yield (
            0.0,
            (f"{text}request: {fit.kv_tokens / fit.max_len:.2f}x"),
            "kv_cache_utils.py:2327",
            "INFO",
        )
        if not launch.eager:
            for percent in (0, 33, 67, 100):
                yield (
                    0.03,
                    (f"Capturing CUDA graphs (mixed prefill-decode, PIECEWISE): {percent:3d}%"),
                    "",
                    "",
                )
            text = (
                f"Graph capturing finished in {round(whole_s * 0.12)} secs, took {GRAPHS_GIB} GiB"
            )
            yield 0.02, text, "gpu_model_runner.py:5033", "INFO"
        text = f"init engine (profile, create kv cache, warmup model) took {whole_s * 0.5:.2f} s"
        yield 0.02, text, "core.py:402", "INFO"

    def ready_line(self, address: str) -> StartupPhase:
        return StartupPhase(0.0, "INFO:     Application startup complete.", raw=True)

    def fails_in_worker(self, failure: Failure) -> bool:
        return "validation error" not in failure.lines[0]

    def log_failure(self, log: EngineLog, failure: Failure, workers: list[int]) -> None:
        if not workers:
            for line in failure.lines:
                log.write_raw_line(line)
            return
        for line in (*failure.lines, "EngineCore failed to start."):
            log.write_line(
                line, process="EngineCore", pid=workers[0], source="core.py:1231", level="ERROR"
            )
        log.write_raw_line("RuntimeError: Engine core initialization failed. See root cause above.")

    def log_port_in_use(self, log: EngineLog, host: str, port: int, error: OSError) -> None:
        log.write_raw_line("Traceback (most recent call last):\n    sock.bind(addr)")
        log.write_raw_line(f"OSError: [Errno {error.errno}] {error.strerror}")

    def log_stop(self, log: EngineLog) -> None:
        log.write_line("[shutdown] API server: shutdown triggered", source="launcher.py:254")

    def log_throughput_statistics(
        self,
        server: EngineServer,
        token_counts_before: Sequence[tuple[int, int]],
        seconds: float,
        busy: bool,
    ) -> None:
        if not (server.plan.stats_log and busy):
            return
        for i, replica in enumerate(server.replicas):
            counters = replica.counters
            prompt = counters.prompt_tokens - token_counts_before[i][0]
            made = counters.generated_tokens - token_counts_before[i][1]
            hit = 100 * counters.cached_tokens / max(1, counters.prompt_tokens)
            server.log.write_line(
                f"Engine {i:03d}: Avg prompt throughput: {prompt / seconds:.1f} tokens/s, Avg "
                "generation "
                f"throughput: {made / seconds:.1f} tokens/s, Running: {len(replica.running)} reqs, "
                f"Waiting: {len(replica.waiting)} reqs, GPU KV cache usage: "
                f"{100 * replica.used_kv_tokens / replica.kv_tokens:.1f}%, Prefix cache hit rate: "
                f"{hit:.1f}%",
                source="loggers.py:335",
            )

    # -- log probabilities
    # ---------------------------------------------------------------------------

    speculation_defect = "stale_prompts"

    def uses_defective_speculation(self, launch: LaunchOptions) -> bool:
        config = as_table(launch.flags.get("speculative-config"))
        return "mtp" in str(config.get("method", "")).lower()

    def asks_for_log_probabilities(self, body: Mapping[str, Any]) -> bool:
        if body.get("prompt_logprobs") is None:
            return super().asks_for_log_probabilities(body)
        if body.get("stream"):
            raise bad_request("`prompt_logprobs` are not available when `stream=True`.")
        return True

    def reply_with_log_probabilities(
        self, api: Api, request: Request, body: Mapping[str, Any]
    ) -> None:
        of_prompt, of_answer = body.get("prompt_logprobs"), body.get("logprobs")
        for asked in (of_prompt, of_answer):
            if isinstance(asked, int) and not 0 <= asked <= _MOST_LOGPROBS:
                raise bad_request(
                    f"Requested sample logprobs of {asked}, which is greater than max allowed: "
                    f"{_MOST_LOGPROBS}"
                )
        if body.get("logprob_token_ids") and of_answer is None:
            raise bad_request("`logprob_token_ids` requires `logprobs`.")

        def make_completion_body(reply: ScoredReply) -> dict[str, Any]:
            made = reply.generate_token_ids()
            choice: dict[str, Any] = {
                "index": 0,
                "text": text_of_tokens(made),
                "logprobs": None,
                "finish_reason": "length",
            }
            if of_answer is not None:
                choice["logprobs"] = _answer_logprobs(reply, made, body)
            if of_prompt is not None:
                tokens = range(1, len(reply.ids))
                choice["prompt_logprobs"] = [
                    None,
                    *(_prompt_token_entry(reply, place, of_prompt) for place in tokens),
                ]
            if body.get("return_token_ids"):
                choice |= {"prompt_token_ids": reply.ids, "token_ids": made}
            head = {"id": reply.id, "object": "text_completion", "model": reply.served}
            return {**head, "choices": [choice], "usage": reply.make_usage_object()}

        api.reply_with_log_probabilities(
            request,
            require_prompt_ids(body.get("prompt")),
            body.get("max_tokens") or 16,
            make_completion_body,
        )

    # -- API ---------------------------------------------------------------------------------------

    def extra_routes(self, api: Api) -> dict[tuple[str, str], Callable[[Request], None]]:
        version = {"version": api.launch.version, "simulated": True}
        return {
            ("GET", "/version"): lambda r: r.reply(200, version),
            ("GET", "/load"): lambda r: r.reply(
                200, {"server_load": sum(p.unfinished_request_count for p in api.replicas)}
            ),
            ("GET", "/ping"): lambda r: r.reply(200),
        }

    def error_body(self, error: ApiError) -> dict[str, Any]:
        return {"error": "Unauthorized"} if error.status == 401 else super().error_body(error)

    def metric_lines(self, metrics: Metrics) -> list[str]:
        out = []
        launch, tokens = metrics.launch, metrics.kv_tokens
        cache = f'block_size="16",num_gpu_blocks="{tokens // 16}",kv_cache_size_tokens="{tokens}"'
        for i, (replica, histograms) in enumerate(zip(metrics.replicas, metrics.histograms)):  # noqa: B905
            labels = f'engine="{i}",model_name="{launch.served[0]}"'
            counters = replica.counters
            gauges = {
                "vllm:num_requests_running": len(replica.running),
                "vllm:num_requests_waiting": len(replica.waiting),
                "vllm:kv_cache_usage_perc": replica.used_kv_tokens / tokens,
            }
            totals = {
                "vllm:prefix_cache_queries_total": counters.prompt_tokens,
                "vllm:prefix_cache_hits_total": counters.cached_tokens,
                "vllm:num_preemptions_total": 0,
                "vllm:prompt_tokens_total": counters.prompt_tokens,
                "vllm:generation_tokens_total": counters.generated_tokens,
            }
            success = {"vllm:request_success_total": counters.finished}
            out += metric_sample_lines(gauges, "gauge", labels) + metric_sample_lines(
                totals, "counter", labels
            )
            out += metric_sample_lines(success, "counter", f'{labels},finished_reason="length"')
            for key, metric in _HISTOGRAMS.items():
                out += histograms[key].metric_lines(metric, labels)
            share = launch.memory_share
            out.append(
                f'vllm:cache_config_info{{{cache},engine="{i}",gpu_memory_utilization="{share}"}} '
                "1.0"
            )
        return out


def _prompt_token_entry(reply: ScoredReply, position: int, top: int) -> dict[str, Any]:
    """Return what the API says of token number `position` of the prompt: log probability, rank and
    text of the `top` most probable tokens there, and of the token itself, by token id."""
    found = reply.predict_prompt_token(position, top)
    entries = dict(found.top)
    entries.setdefault(reply.ids[position], found.log_probability)
    return {
        str(token): {"logprob": logged, "rank": rank, "decoded_token": text_of_tokens([token])}
        for rank, (token, logged) in enumerate(entries.items(), start=1)
    }


def _answer_logprobs(
    reply: ScoredReply, answer_ids: Sequence[int], body: Mapping[str, Any]
) -> dict[str, list[Any]]:
    """Return the object "logprobs" of an answer with the tokens `answer_ids`, as the request `body`
    asks for it."""
    as_ids = body.get("return_tokens_as_token_ids")

    def token_label(token: int) -> str:
        return f"token_id:{token}" if as_ids else text_of_tokens([token])

    tops = []
    for place, token in enumerate(answer_ids):
        found = reply.predict_answer_token(answer_ids, place, int_field(body, "logprobs"))
        entries = {token: found.log_probability, **dict(found.top)}
        for wanted in as_list(body.get("logprob_token_ids")):
            one = reply.predict_answer_token(answer_ids, place, 0, wanted)
            entries[wanted] = one.log_probability
        tops.append({token_label(one): logged for one, logged in entries.items()})
    return {
        "text_offset": [],
        "tokens": list(map(token_label, answer_ids)),
        "token_logprobs": [top[token_label(token)] for top, token in zip(tops, answer_ids)],  # noqa: B905
        "top_logprobs": tops,
    }


ENGINE = SimulatedVllm()

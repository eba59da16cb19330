"""Simulated SGLang, with the log texts and reply formats of version 0.5.23."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from workbench.model.untrusted_text import as_list, as_table
from workbench.sim import launch_options, model_sizes
from workbench.sim.engine_metrics import Metrics, metric_sample_lines
from workbench.sim.engines.base import SimulatedEngine
from workbench.sim.flag_parser import Catalog
from workbench.sim.language_model import text_of_tokens
from workbench.sim.launch_options import (
    LaunchOptions,
    flag_values_or_default,
    float_flag,
    int_flag,
    text_flag,
)
from workbench.sim.memory_fit import GIB, GRAPHS_GIB, Failure, Fit, GpuMemory
from workbench.sim.openai_api import int_field, parse_json_body, require_prompt_ids
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
    from workbench.sim.scheduler import Replica
    from workbench.sim.scheduler import Sequence as RequestSequence
    from workbench.sim.scored_reply import ScoredReply

_HISTOGRAMS = {
    "ttft_s": "sglang:time_to_first_token_seconds",
    "itl_s": "sglang:inter_token_latency_seconds",
    "e2e_s": "sglang:e2e_request_latency_seconds",
    "queue_s": "sglang:queue_time_seconds",
}


class SimulatedSglang(SimulatedEngine):
    """A simulated SGLang: a server process that listens while the model loads, and a worker
    process. The worker's name is "sglang::schedul", because Linux cuts names after 15 characters.
    """

    name = "sglang"
    program = "sglang serve"
    default_port = 30000
    graphs_gib = GRAPHS_GIB
    worker_name = "sglang::schedul"
    listens_while_loading = True
    rejects_long_requests = True
    tokenizes_messages = False
    accepts_prefixes = True

    def version_text(self, words: Sequence[str], version: str) -> str | None:
        return f"sglang version: {version}" if words[:1] in (["version"], ["--version"]) else None

    def select_flag_arguments(self, arguments: list[str]) -> list[str]:
        return launch_options.arguments_after_serve(self, arguments)

    def parse_launch(
        self, catalog: Catalog, flags: dict[str, Any], positional: list[str]
    ) -> LaunchOptions:
        if positional:
            raise self.rejection_error("unrecognized arguments: " + " ".join(positional))
        name = flags.get("model-path")
        if not name:
            raise self.rejection_error("the following arguments are required: --model-path/--model")
        chunk = int_flag(flags, "chunked-prefill-size", 8192)
        return launch_options.options_from_flags(
            catalog,
            flags,
            model_sizes.describe_model(
                str(name),
                quantization=text_flag(flags, "quantization"),
                dtype=text_flag(flags, "dtype", "auto"),
                kv_fp8=text_flag(flags, "kv-cache-dtype").startswith("fp8"),
            ),
            served=flag_values_or_default(flags.get("served-model-name"), str(name)),
            tp=int_flag(flags, "tensor-parallel-size", 1),
            pp=int_flag(flags, "pipeline-parallel-size", 1),
            dp=int_flag(flags, "data-parallel-size", 1),
            eager=bool(flags.get("disable-cuda-graph")),
            custom_all_reduce=not flags.get("disable-custom-all-reduce"),
            max_len=flags.get("context-length"),
            max_sequences=int_flag(flags, "max-running-requests", 256),
            batched_tokens=chunk if chunk > 0 else 1 << 20,
            memory_share=float_flag(flags, "mem-fraction-static", 0.88),
            kv_tokens=int_flag(flags, "max-total-tokens"),
            prefix_cache=not flags.get("disable-radix-cache"),
            metrics=bool(flags.get("enable-metrics")),
            api_key=flags.get("api-key"),
        )

    # -- memory ------------------------------------------------------------------------------------

    def missing_model_failure(self, path: str) -> Failure:
        return Failure(
            f"OSError: Can't load the configuration of '{path}': it is neither a directory with a "
            "config.json nor a "
            "model identifier on the hub",
        )

    def requested_kv_cache_bytes(self, launch: LaunchOptions, memory: GpuMemory) -> float:
        room = min(memory.budget, memory.free) - memory.weights
        if launch.memory_share > 0.95:
            room -= memory.working
        return min(room, launch.kv_tokens * memory.per_token) if launch.kv_tokens else room

    # -- log ---------------------------------------------------------------------------------------

    def log_line(
        self, log: EngineLog, text: str, *, source: str, process: str, pid: int, level: str
    ) -> str:
        rank = f" {process}" if process and log.ranks else ""
        return f"[{time.strftime('%Y-%m-%d %H:%M:%S')}{rank}] {text}"

    def access_line(self, uvicorn_text: str) -> str | None:
        return f"[{time.strftime('%Y-%m-%d %H:%M:%S')}] {uvicorn_text}"

    def lines_before_loading(self, launch: LaunchOptions) -> Iterator[StartupPhase]:
        given = _server_arguments(launch)
        yield StartupPhase(0.0, f"server_args={given}")

    def lines_while_loading(
        self, launch: LaunchOptions, fit: Fit, workers: list[int], address: str
    ) -> Iterator[StartupPhase]:
        for share, text, raw in self._shares_and_startup_lines(launch, fit):
            yield StartupPhase(share, text, {} if raw else {"process": "TP0"}, raw=raw)
        yield StartupPhase(0.02, f"INFO:     Uvicorn running on {address} (Press CTRL+C to quit)")
        yield StartupPhase(0.1, 'INFO:     127.0.0.1:0 - "GET /model_info HTTP/1.1" 200 OK')

    def _shares_and_startup_lines(
        self, launch: LaunchOptions, fit: Fit
    ) -> Iterator[tuple[float, str, bool]]:
        """Yield (share, text, raw) for each log line of the first rank (process of one GPU).
        `share` is the part of the start's duration, 0 to 1, that passes before the line. `raw` is
        True for a line without the engine's prefix."""
        model = launch.model
        yield 0.15, "Init torch distributed begin.", False
        yield (
            0.0,
            (f"Init torch distributed ends. elapsed=0.41 s, mem usage={0.09 * launch.tp:.2f} GB"),
            False,
        )
        if why := reason_against_custom_all_reduce(launch, fit):
            yield 0.0, f"Custom allreduce is disabled because {why}.", False
        yield 0.02, f"Load weight begin. avail mem={fit.used_bytes / 1e9:.2f} GB", False
        for share, progress in shard_shares_and_progress(model.weight_bytes, 0.35):
            yield share, f"Multi-thread loading shards: {progress}", True
        left = (fit.used_bytes - fit.weight_bytes) / 1e9
        text = (
            f"Load weight end. elapsed={start_duration_s(launch) * 0.35:.2f} s, "
            f"type={model.architecture}, "
        )
        yield (
            0.0,
            (f"{text}avail mem={left:.2f} GB, mem usage={fit.weight_bytes / 1e9:.2f} GB."),
            False,
        )
        half = fit.kv_bytes / 2 / GIB
        text = (
            f"KV Cache is allocated. dtype: torch.bfloat16, #tokens: {fit.kv_tokens}, K size: "
            f"{half:.2f} GB, "
        )
        yield 0.05, f"{text}V size: {half:.2f} GB", False
        if not launch.eager:
            yield (
                0.05,
                ("Capture decode CUDA graph begin. This can take up to several minutes."),
                False,
            )
            yield 0.2, "Capture decode CUDA graph end. elapsed=3.12 s, mem usage=0.31 GB", False
        text = (
            f"max_total_num_tokens={fit.kv_tokens}, chunked_prefill_size={launch.batched_tokens}, "
        )
        text += (
            f"max_prefill_tokens=16384, max_running_requests={launch.max_sequences}, "
            f"context_len={fit.max_len}"
        )
        yield 0.05, text, False

    def ready_line(self, address: str) -> StartupPhase:
        return StartupPhase(0.0, "The server is fired up and ready to roll!")

    def log_failure(self, log: EngineLog, failure: Failure, workers: list[int]) -> None:
        log.write_line(
            "Scheduler hit an exception: Traceback (most recent call last):", process="TP0"
        )
        for line in failure.lines:
            log.write_raw_line(line)
        log.write_line("Received sigquit from a child process. It usually means the child failed.")

    def log_port_in_use(self, log: EngineLog, host: str, port: int, error: OSError) -> None:
        text = (
            f"error while attempting to bind on address ('{host}', {port}): address already in use"
        )
        log.write_raw_line(f"ERROR:    [Errno {error.errno}] {text}")

    def enable_step_logging(self, server: EngineServer, replica: Replica) -> None:
        plan, log = server.plan, server.log
        rank = f"TP0 DP{server.replicas.index(replica)}" if plan.dp > 1 else "TP0"
        interval = int_flag(plan.flags, "decode-log-interval", 40)

        def log_prefill_batch(fresh: list[RequestSequence], tokens: int) -> None:
            cached = sum(s.cached for s in fresh)
            usage = replica.used_kv_tokens / replica.kv_tokens
            log.write_line(
                f"Prefill batch, #new-seq: {len(fresh)}, #new-token: {tokens}, #cached-token: "
                f"{cached}, token usage: "
                f"{usage:.2f}, #running-req: {len(replica.running) - len(fresh)}, #queue-req: "
                f"{len(replica.waiting)}",
                process=rank,
            )

        def log_decode_batch() -> None:
            if replica.counters.steps % interval:
                return
            used = replica.used_kv_tokens
            log.write_line(
                f"Decode batch, #running-req: {len(replica.running)}, #token: {used}, token usage: "
                f"{used / replica.kv_tokens:.2f}, cuda graph: {not plan.eager}, gen throughput "
                "(token/s): "
                f"{server.metrics.throughput / len(server.replicas):.2f}, #queue-req: "
                f"{len(replica.waiting)}",
                process=rank,
            )

        replica.on_prefill, replica.on_step = log_prefill_batch, log_decode_batch

    # -- API ---------------------------------------------------------------------------------------

    def extra_routes(self, api: Api) -> dict[tuple[str, str], Callable[[Request], None]]:
        model = api.launch.model.id
        info = {"model_path": model, "tokenizer_path": model, "is_generation": True}
        server = {**_server_arguments(api.launch), **info, "version": api.launch.version}
        routes: dict[tuple[str, str], Callable[[Request], None]] = {
            ("POST", "/generate"): lambda r: _reply_generation(api, r)
        }
        for prefix in ("/", "/get_"):
            routes["GET", f"{prefix}model_info"] = lambda r: r.reply(200, info)
            routes["GET", f"{prefix}server_info"] = lambda r: r.reply(200, server)
        return routes

    def error_body(self, error: ApiError) -> dict[str, Any]:
        fields = {
            "message": str(error),
            "type": error.kind,
            "param": error.param,
            "code": error.status,
        }
        return {"object": "error", **fields}

    def metric_lines(self, metrics: Metrics) -> list[str]:
        out = []
        several = len(metrics.replicas) > 1
        for i, (replica, histograms) in enumerate(zip(metrics.replicas, metrics.histograms)):  # noqa: B905
            labels = f'engine_type="unified",model_name="{metrics.launch.served[0]}",moe_ep_rank="0",pp_rank="0"'
            labels += f',tp_rank="0",dp_rank="{i}"' if several else ',tp_rank="0"'
            counters, used = replica.counters, replica.used_kv_tokens
            gauges = {
                "sglang:max_total_num_tokens": metrics.kv_tokens,
                "sglang:num_running_reqs": len(replica.running),
                "sglang:num_queue_reqs": len(replica.waiting),
                "sglang:gen_throughput": metrics.throughput / len(metrics.replicas)
                if replica.running
                else 0.0,
                "sglang:token_usage": used / metrics.kv_tokens,
                "sglang:num_used_tokens": used,
                "sglang:cache_hit_rate": counters.cached_tokens / max(1, counters.prompt_tokens),
                "sglang:num_retracted_reqs": 0,
            }
            totals = {
                "sglang:prompt_tokens_total": counters.finished_prompt_tokens,
                "sglang:generation_tokens_total": counters.finished_tokens,
                "sglang:num_requests_total": counters.finished,
            }
            cached = {"sglang:cached_tokens_total": counters.finished_cached_tokens}
            live = {
                "prefill_compute": counters.prompt_tokens - counters.cached_tokens,
                "prefill_cache": counters.cached_tokens,
                "decode": counters.generated_tokens - counters.first_tokens,
            }
            out += metric_sample_lines(gauges, "gauge", labels) + metric_sample_lines(
                totals, "counter", labels
            )
            out += metric_sample_lines(cached, "counter", f'{labels},cache_source="device"')
            for mode, count in live.items():
                out += metric_sample_lines(
                    {"sglang:realtime_tokens_total": count}, "counter", f'mode="{mode}",{labels}'
                )
            for key, metric in _HISTOGRAMS.items():
                out += histograms[key].metric_lines(metric, labels)
        return out


def _server_arguments(launch: LaunchOptions) -> dict[str, Any]:
    """Return the flags as SGLang names its own arguments, without a key."""
    return {
        flag.replace("-", "_"): value
        for flag, value in launch.flags.items()
        if "api-key" not in flag
    }


def _reply_generation(api: Api, request: Request) -> None:
    """Answer a request to SGLang's own endpoint."""
    body = parse_json_body(request)
    sampling = as_table(body.get("sampling_params"))
    given = body.get("input_ids")
    ids = require_prompt_ids(body.get("text") if given is None else given)
    scores, start = bool(body.get("return_logprob")), int_field(body, "logprob_start_len")
    top, wanted = int_field(body, "top_logprobs_num"), as_list(body.get("token_ids_logprob"))
    with_text = bool(body.get("return_text_in_logprobs"))

    def logprob_triple(token: int, logged: float | None) -> list[Any]:
        """Return [log probability, token id, text of the token or None]."""
        return [logged, token, text_of_tokens([token]) if with_text else None]

    def logprob_triples(top: Sequence[tuple[int, float]]) -> list[list[Any]]:
        return [logprob_triple(token, logged) for token, logged in top]

    def make_generation_body(reply: ScoredReply) -> dict[str, Any]:
        made = reply.generate_token_ids()
        usage = reply.make_usage_object()
        meta: dict[str, Any] = {
            "id": reply.id,
            "finish_reason": {"type": "length", "length": len(made)},
            "prompt_tokens": usage["prompt_tokens"],
            "completion_tokens": usage["completion_tokens"],
            "cached_tokens": reply.sequence.cached,
        }
        if scores:
            found = reply.predict_answer_tokens(made, top)
            meta["output_token_logprobs"] = [
                logprob_triple(token, one.log_probability)
                for one, token in zip(found, made)  # noqa: B905
            ]
            meta["output_top_logprobs"] = [logprob_triples(one.top) for one in found]
            meta["output_token_ids_logprobs"] = [
                [
                    logprob_triple(
                        one, reply.predict_answer_token(made, place, 0, one).log_probability
                    )
                    for one in wanted
                ]
                for place in range(len(made))
            ]
        if scores and start >= 0:
            prompt = [reply.predict_prompt_token(place, top) for place in range(1, len(ids))]
            predicted = zip(prompt, ids[1:])  # noqa: B905
            meta["input_token_logprobs"] = [
                logprob_triple(ids[0], None),
                *(logprob_triple(token, one.log_probability) for one, token in predicted),
            ]
            meta["input_top_logprobs"] = [None, *(logprob_triples(one.top) for one in prompt)]
        return {"text": text_of_tokens(made), "output_ids": made, "meta_info": meta}

    api.reply_with_log_probabilities(
        request, ids, max(1, int(sampling.get("max_new_tokens", 128))), make_generation_body
    )


ENGINE = SimulatedSglang()

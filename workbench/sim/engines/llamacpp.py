"""Simulated llama.cpp, with the log texts and reply formats of llama-server b11434."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from workbench.model.untrusted_text import as_list
from workbench.sim import launch_options, model_sizes
from workbench.sim.engine_metrics import Metrics, metric_sample_lines
from workbench.sim.engines.base import SimulatedEngine
from workbench.sim.flag_parser import ArgumentsRejected, Catalog
from workbench.sim.language_model import text_of_tokens
from workbench.sim.launch_options import (
    LaunchOptions,
    flag_values_or_default,
    int_flag,
    text_flag,
)
from workbench.sim.memory_fit import Failure, Fit, GpuMemory
from workbench.sim.openai_api import int_field, parse_json_body, require_prompt_ids
from workbench.sim.startup import StartupPhase

if TYPE_CHECKING:
    from workbench.sim.driver_state import SimState
    from workbench.sim.engine_log import EngineLog
    from workbench.sim.http_server import Request
    from workbench.sim.openai_api import Api
    from workbench.sim.scheduler import Sequence as RequestSequence
    from workbench.sim.scored_reply import ScoredReply

_CONTEXT_TOKENS = 32768  # without --ctx-size, at most
_FORCING_BIAS = 100  # of a token in logit_bias: no other token can then be chosen


class SimulatedLlamacpp(SimulatedEngine):
    """A simulated llama-server: one process that splits a model over all visible GPUs."""

    name = "llamacpp"
    program = "llama-server"
    default_port = 8080
    bandwidth_share = 0.97
    connection_limits = (100, 5.0)
    tokenize_field = "content"

    def version_text(self, words: Sequence[str], version: str) -> str | None:
        if "--version" not in words:
            return None
        return f"version: {version.lstrip('b')} (simulated)\nbuilt by Workbench's simulation"

    def reject_unknown_argument(self, argument: str) -> None:
        raise self.rejection_error(f"invalid argument: {argument}")

    def rejection_error(self, why: str) -> ArgumentsRejected:
        return ArgumentsRejected(f"error: {why}", 1)

    def missing_value_error(
        self, option: str, title: str, takes_several: bool
    ) -> ArgumentsRejected:
        return self.rejection_error(f'expected value for argument "{option}"')

    def invalid_value_error(self, title: str, kind: str, text: str) -> ArgumentsRejected:
        return self.rejection_error(f'error while handling argument "{title}": stoi')

    def parse_launch(
        self, catalog: Catalog, flags: dict[str, Any], positional: list[str]
    ) -> LaunchOptions:
        if positional:
            raise self.rejection_error(f"invalid argument: {positional[0]}")
        name = flags.get("model") or flags.get("hf-repo") or os.environ.get("LLAMA_ARG_MODEL")
        if not name:
            raise self.rejection_error("--model or --hf-repo is needed")
        # a GGUF file whose name has no quantization is simulated as the usual Q4_K_M
        quant = model_sizes.quantization_named_in_id(str(name))
        model = model_sizes.describe_model(str(name) if quant else f"{name}-Q4_K_M")
        slots = int_flag(flags, "parallel", -1)
        context = int_flag(flags, "ctx-size") or min(model.max_len, _CONTEXT_TOKENS)
        return launch_options.options_from_flags(
            catalog,
            flags,
            model,
            served=flag_values_or_default(flags.get("alias"), str(name)),
            max_len=context,
            max_sequences=slots if slots > 0 else 4,
            batched_tokens=int_flag(flags, "batch-size", 2048),
            memory_share=0.97,
            kv_tokens=context,
            metrics=bool(flags.get("metrics")),
            api_key=launch_options.api_key_flag(flags, "LLAMA_API_KEY"),
            on_gpu=flags.get("n-gpu-layers") not in (0, "0"),
        )

    # -- memory ------------------------------------------------------------------------------------

    def model_path(self, launch: LaunchOptions) -> str | None:
        return text_flag(launch.flags, "model") or None

    def missing_model_failure(self, path: str) -> Failure:
        return Failure(
            f"gguf_init_from_file: failed to open GGUF file '{path}' (No such file or directory)",
            "llama_model_load: error loading model: llama_model_loader: failed to load model from "
            f"{path}",
            f"srv    load_model: failed to load model, '{path}'",
            "srv  llama_server: exiting due to model loading error",
        )

    def gpus_per_replica(
        self, launch: LaunchOptions, state: SimState, gpus: tuple[int, ...]
    ) -> int:
        return len(gpus)

    def out_of_memory_failure(self, wanted: float, memory: GpuMemory) -> Failure:
        return Failure(
            f"ggml_backend_cuda_buffer_type_alloc_buffer: allocating {wanted / (1 << 20):.2f} MiB "
            "on device 0: "
            "cudaMalloc failed: out of memory",
            "llama_model_load: error loading model: unable to allocate CUDA0 buffer",
            "srv  llama_server: exiting due to model loading error",
        )

    # -- log ---------------------------------------------------------------------------------------

    def log_line(
        self, log: EngineLog, text: str, *, source: str, process: str, pid: int, level: str
    ) -> str:
        seconds, micros = divmod(int((time.monotonic() - log.started) * 1e6), 10**6)
        elapsed = f"{seconds // 60}.{seconds % 60:02d}.{micros // 1000:03d}.{micros % 1000:03d}"
        return f"{elapsed} {level[0]} {text}"

    def lines_before_loading(self, launch: LaunchOptions) -> Iterator[StartupPhase]:
        yield StartupPhase(0.0, "srv  llama_server: initializing ...")
        yield StartupPhase(0.0, f"cmn  common_param: build_info: {launch.version}")
        yield StartupPhase(0.05, f"srv    load_model: loading model '{launch.model.id}'")

    def lines_while_loading(
        self, launch: LaunchOptions, fit: Fit, workers: list[int], address: str
    ) -> Iterator[StartupPhase]:
        layers, slots = launch.model.layers + 1, launch.max_sequences
        yield StartupPhase(
            0.3, f"load_tensors: offloaded {layers if launch.on_gpu else 0}/{layers} layers to GPU"
        )
        text = (
            f"srv    load_model: initializing, n_slots = {slots}, n_ctx_slot = "
            f"{fit.max_len // slots}, "
        )
        yield StartupPhase(0.5, f"{text}kv_unified = 'false'")
        yield StartupPhase(
            0.05, "cmn  common_init: warming up the model with an empty run - please wait ..."
        )
        yield StartupPhase(0.1, "srv  llama_server: model loaded")

    def ready_line(self, address: str) -> StartupPhase:
        return StartupPhase(0.0, f"srv  llama_server: listening on {address}")

    def log_port_in_use(self, log: EngineLog, host: str, port: int, error: OSError) -> None:
        log.write_line(
            f"srv         start: couldn't bind HTTP server socket, hostname: {host}, port: {port}",
            level="E",
        )
        log.write_line("srv  llama_server: exiting due to HTTP server error", level="E")

    def log_stop(self, log: EngineLog) -> None:
        """Write nothing, because llama-server logs no line when it is stopped."""

    # -- log probabilities
    # ---------------------------------------------------------------------------

    speculation_defect = "zeros"
    cache_type_flags = ("cache-type-k", "cache-type-v")

    def uses_defective_speculation(self, launch: LaunchOptions) -> bool:
        return bool(launch.flags.get("spec-draft-model") or launch.flags.get("spec-draft-hf"))

    def asks_for_log_probabilities(self, body: Mapping[str, Any]) -> bool:
        """Return False: /v1/completions has none of the prompt, and Workbench uses /completion."""
        return False

    # -- API ---------------------------------------------------------------------------------------

    def extra_routes(self, api: Api) -> dict[tuple[str, str], Callable[[Request], None]]:
        slots = api.launch.max_sequences
        props = {"total_slots": slots, "model_path": api.launch.model.id, "build_info": "simulated"}

        def reply_slot_states(request: Request) -> None:
            decoded = [sequence.generated for sequence in api.replicas[0].running]
            idle = [{"id": i, "is_processing": False} for i in range(len(decoded), slots)]
            busy = [
                {"id": i, "is_processing": True, "next_token": [{"n_decoded": count}]}
                for i, count in enumerate(decoded)
            ]
            request.reply(200, [*busy, *idle])

        return {
            ("POST", "/completion"): lambda r: _reply_completion(api, r),
            ("GET", "/props"): lambda r: r.reply(200, props),
            ("GET", "/slots"): reply_slot_states,
            ("POST", "/apply-template"): lambda r: r.reply(
                200, {"prompt": f"<s>{api.chat_messages_text(r)}<assistant>"}
            ),
        }

    def health_body(self, ready: bool) -> Any:
        if ready:
            return {"status": "ok"}
        return {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}

    def token_count_body(self, ids: list[int], max_len: int) -> dict[str, Any]:
        return {"tokens": ids}

    def extra_reply_fields(self, sequence: RequestSequence) -> dict[str, Any]:
        prompt_s, decode_s, fresh = (
            sequence.prefill_s,
            sequence.decode_s,
            len(sequence.prompt) - sequence.cached,
        )
        return {
            "timings": {
                "cache_n": sequence.cached,
                "prompt_n": fresh,
                "prompt_ms": prompt_s * 1000,
                "prompt_per_second": fresh / max(prompt_s, 1e-9),
                "predicted_n": sequence.generated,
                "predicted_ms": decode_s * 1000,
                "predicted_per_second": sequence.generated / max(decode_s, 1e-9),
            }
        }

    def log_finished_request(self, api: Api, reply_id: str, sequence: RequestSequence) -> None:
        fresh = len(sequence.prompt) - sequence.cached
        lines = (
            ("prompt eval", sequence.prefill_s, fresh),
            ("       eval", sequence.decode_s, sequence.generated),
        )
        for kind, seconds, count in lines:
            each, rate = seconds * 1000 / max(1, count), count / max(seconds, 1e-9)
            api.log.write_line(
                f"slot print_timing: id  0 | task {api.count} | {kind} time = "
                f"{seconds * 1000:10.2f} ms / "
                f"{count:5d} tokens ({each:8.2f} ms per token, {rate:8.2f} tokens per second)"
            )

    def metric_lines(self, metrics: Metrics) -> list[str]:
        replica = metrics.replicas[0]
        counters = replica.counters
        computed = counters.prompt_tokens - counters.cached_tokens
        totals = {
            "llamacpp:prompt_tokens_total": computed,
            "llamacpp:prompt_tokens_cached_total": counters.cached_tokens,
            "llamacpp:prompt_seconds_total": counters.prefill_s,
            "llamacpp:tokens_predicted_total": counters.finished_tokens,
            "llamacpp:tokens_predicted_seconds_total": counters.decode_s,
            "llamacpp:n_decode_total": counters.steps,
        }
        gauges = {
            "llamacpp:prompt_tokens_seconds": computed / counters.prefill_s
            if counters.prefill_s
            else 0,
            "llamacpp:predicted_tokens_seconds": metrics.throughput if replica.running else 0,
            "llamacpp:requests_processing": len(replica.running),
            "llamacpp:requests_deferred": len(replica.waiting),
            "llamacpp:n_busy_slots_per_decode": counters.busy_sequence_steps
            / max(1, counters.steps),
        }
        return metric_sample_lines(totals, "counter") + metric_sample_lines(gauges, "gauge")


def _reply_completion(api: Api, request: Request) -> None:
    """Answer a request to llama-server's own endpoint."""
    body = parse_json_body(request)
    top = int_field(body, "n_probs")
    biases = as_list(body.get("logit_bias"))
    forced = next((token for token, bias in biases if bias >= _FORCING_BIAS), None)

    def logprob_entry(token: int, logged: float) -> dict[str, Any]:
        piece = text_of_tokens([token])
        return {"id": token, "token": piece, "bytes": [*piece.encode()], "logprob": logged}

    def make_completion_body(reply: ScoredReply) -> dict[str, Any]:
        made = reply.generate_token_ids()
        if forced is not None:  # the log probabilities are those before the bias
            made = [forced] * len(made)
        found = reply.predict_answer_tokens(made, top)
        answer: dict[str, Any] = {
            "content": text_of_tokens(made),
            "tokens": made if body.get("return_tokens") else [],
            "model": reply.served,
            "tokens_predicted": len(made),
            "tokens_evaluated": len(reply.ids),
            "stop": True,
            "stop_type": "limit",
            **api.engine.extra_reply_fields(reply.sequence),
        }
        if top:
            answer["completion_probabilities"] = [
                {
                    **logprob_entry(token, one.log_probability),
                    "top_logprobs": [logprob_entry(each, logged) for each, logged in one.top],
                }
                for token, one in zip(made, found)  # noqa: B905
            ]
        return answer

    limit = int_field(body, "n_predict", 128)
    api.reply_with_log_probabilities(
        request, require_prompt_ids(body.get("prompt")), limit, make_completion_body
    )


ENGINE = SimulatedLlamacpp()

"""Simulated TabbyAPI with ExLlamaV3, with the log texts and reply formats of its source code of
2026-08-13."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.model.untrusted_text import as_table
from workbench.sim import driver_state, launch_options, model_sizes
from workbench.sim.engines.base import SimulatedEngine
from workbench.sim.flag_parser import Catalog, parse_config_flags
from workbench.sim.language_model import pieces_of, text_of_tokens, token_ids_of
from workbench.sim.launch_options import LaunchOptions, int_flag, text_flag
from workbench.sim.memory_fit import Fit
from workbench.sim.openai_api import (
    bad_request,
    int_field,
    parse_json_body,
    require_prompt_ids,
)
from workbench.sim.startup import StartupPhase

if TYPE_CHECKING:
    from workbench.sim.driver_state import SimState
    from workbench.sim.engine_log import EngineLog
    from workbench.sim.http_server import Request
    from workbench.sim.openai_api import Api, ApiReply
    from workbench.sim.scheduler import Sequence as RequestSequence
    from workbench.sim.scored_reply import ScoredReply

_KEY_FILE = "api_tokens.yml"
_FILLED_SHARE = 0.96  # of a GPU's memory before autosplit goes on to the next GPU
_CONTEXT_TOKENS = 32768  # without max-seq-len, at most


class SimulatedTabbyapi(SimulatedEngine):
    """A simulated TabbyAPI: one process whose working directory is its source directory. Requests
    need an API key unless the flag disable-auth is set."""

    name = "tabbyapi"
    program = "main.py"
    default_port = 5000
    default_config = "config.yml"
    bandwidth_share = 1.03
    port_attempts = 10
    tokenize_path, tokenize_field = "/v1/token/encode", "text"

    def parse_launch(
        self, catalog: Catalog, flags: dict[str, Any], positional: list[str]
    ) -> LaunchOptions:
        if positional:
            raise self.rejection_error("unrecognized arguments: " + " ".join(positional))
        name = text_flag(flags, "model-name", "none")
        # a directory without a quantization in its name is simulated as a 4-bit EXL3 checkpoint
        quant = model_sizes.quantization_named_in_id(name) or (
            "" if "bpw" in name.lower() else "awq"
        )
        cache = text_flag(flags, "cache-mode", "FP16")
        model = model_sizes.describe_model(name, quantization=quant, kv_fp8=cache.upper() != "FP16")
        length = int_flag(flags, "max-seq-len") or min(model.max_len, _CONTEXT_TOKENS)
        return launch_options.options_from_flags(
            catalog,
            flags,
            model,
            served=(name,),
            tp=_count_visible_gpus() if flags.get("tensor-parallel") else 1,
            max_len=length,
            max_sequences=int_flag(flags, "max-batch-size", 16),
            batched_tokens=int_flag(flags, "chunk-size", 2048),
            memory_share=0.98,
            kv_tokens=int_flag(flags, "cache-size") or length,
            metrics=False,
            api_key=None if flags.get("disable-auth") else _stored_api_key(),
        )

    # -- memory ------------------------------------------------------------------------------------

    def model_path(self, launch: LaunchOptions) -> str | None:
        name, directory = launch.model.id, text_flag(launch.flags, "model-dir")
        if directory.startswith("/"):
            return f"{directory.rstrip('/')}/{name}"
        return name if name.startswith("/") else None

    def gpus_per_replica(
        self, launch: LaunchOptions, state: SimState, gpus: tuple[int, ...]
    ) -> int:
        if launch.tp > 1:
            return super().gpus_per_replica(launch, state, gpus)
        need = launch.model.weight_bytes + launch.kv_tokens * launch.model.kv_bytes_per_token
        room = state.profile.gpu.memory_bytes * _FILLED_SHARE
        return next(
            (count for count in range(1, len(gpus) + 1) if need <= count * room), max(1, len(gpus))
        )

    # -- log ---------------------------------------------------------------------------------------

    def log_line(
        self, log: EngineLog, text: str, *, source: str, process: str, pid: int, level: str
    ) -> str:
        return f"{level + ':':<10}{text}"

    def lines_while_loading(
        self, launch: LaunchOptions, fit: Fit, workers: list[int], address: str
    ) -> Iterator[StartupPhase]:
        model = launch.model
        yield StartupPhase(0.1, f"tabbyAPI {launch.version} with ExLlamaV3 (SIMULATED)")
        yield StartupPhase(0.05, f"Loading model: {model.id}")
        yield StartupPhase(
            0.0, "Loading with tensor parallel" if launch.tp > 1 else "Loading with autosplit"
        )
        for done in range(10, 101, 10):
            text = f"Loading model modules {done}% {model.layers * done // 100}/{model.layers}"
            yield StartupPhase(0.07, text, raw=True)
        yield StartupPhase(0.05, "Model successfully loaded.")
        yield StartupPhase(0.02, f"Developer documentation: {address}/redoc")
        yield StartupPhase(0.0, f"Chat completions: {address}/v1/chat/completions")
        yield StartupPhase(0.0, f"Started server process [{os.getpid()}]")
        yield StartupPhase(0.0, "Waiting for application startup.")
        yield StartupPhase(0.0, "Application startup complete.")

    def ready_line(self, address: str) -> StartupPhase:
        return StartupPhase(0.0, f"Uvicorn running on {address} (Press CTRL+C to quit)")

    def log_port_in_use(self, log: EngineLog, host: str, port: int, error: OSError) -> None:
        log.write_line(
            f"Port {port} is currently in use. Switching to {port + 1}.", level="WARNING"
        )

    # -- log probabilities
    # ---------------------------------------------------------------------------

    cache_type_flags = ("cache-mode",)
    usage_unasked = False  # since April 2026

    def reply_with_log_probabilities(
        self, api: Api, request: Request, body: Mapping[str, Any]
    ) -> None:
        prompt, top = body.get("prompt"), int_field(body, "logprobs")
        if not isinstance(prompt, str):
            raise bad_request("prompt: Input should be a valid string", "prompt")

        def make_completion_body(reply: ScoredReply) -> dict[str, Any]:
            made = reply.generate_token_ids()
            found = reply.predict_answer_tokens(made, top)
            scores = {
                "text_offset": [],
                "tokens": pieces_of(made),
                "token_logprobs": [one.log_probability for one in found],
                "top_logprobs": [
                    {text_of_tokens([token]): logged for token, logged in one.top} for one in found
                ],
            }
            choice = {
                "index": 0,
                "text": text_of_tokens(made),
                "logprobs": scores,
                "finish_reason": "length",
            }
            head = {"id": reply.id, "object": "text_completion", "model": reply.served}
            asked = as_table(body.get("stream_options")).get("include_usage")
            told = asked or self.usage_unasked
            return {
                **head,
                "choices": [choice],
                "usage": reply.make_usage_object() if told else None,
            }

        api.reply_with_log_probabilities(
            request, token_ids_of(prompt), body.get("max_tokens") or 150, make_completion_body
        )

    # -- API ---------------------------------------------------------------------------------------

    def extra_routes(self, api: Api) -> dict[tuple[str, str], Callable[[Request], None]]:
        return {
            ("POST", "/v1/token/decode"): lambda r: r.reply(
                200, {"text": text_of_tokens(require_prompt_ids(parse_json_body(r).get("tokens")))}
            )
        }

    def health_body(self, ready: bool) -> Any:
        return {"status": "healthy", "issues": []} if ready else b""

    def token_count_body(self, ids: list[int], max_len: int) -> dict[str, Any]:
        return {"tokens": ids, "length": len(ids)}

    def extra_usage_fields(self, sequence: RequestSequence) -> dict[str, Any]:
        prompt_s, decode_s = sequence.prefill_s, sequence.decode_s
        return {
            "prompt_time": prompt_s,
            "completion_time": decode_s,
            "total_time": prompt_s + decode_s,
            "prompt_tokens_per_sec": len(sequence.prompt) / max(prompt_s, 1e-9),
            "completion_tokens_per_sec": sequence.generated / max(decode_s, 1e-9),
        }

    def stream_end_events_text(self, reply: ApiReply, sequence: RequestSequence) -> str:
        """Return the end of a streamed reply: one event with finish_reason and usage, and
        [DONE]."""
        usage = {"usage": reply.make_usage_object(sequence)} if reply.usage_chunk else {}
        return reply.finish_event_text(usage) + "data: [DONE]\n\n"

    def log_finished_request(self, api: Api, reply_id: str, sequence: RequestSequence) -> None:
        prompt_s, decode_s = sequence.prefill_s, sequence.decode_s
        fresh, made = len(sequence.prompt) - sequence.cached, sequence.generated
        api.log.write_line(
            f"Metrics (ID: {reply_id}): {made} tokens generated in {prompt_s + decode_s:.2f} "
            "seconds "
            f"(Queue: {sequence.admitted - sequence.arrived:.2f} s, Process: {sequence.cached} "
            "cached tokens and "
            f"{fresh} new tokens at {fresh / max(prompt_s, 1e-9):.2f} T/s, "
            f"Generate: {made / max(decode_s, 1e-9):.2f} T/s, Context: {len(sequence.prompt)} "
            "tokens)"
        )


def _count_visible_gpus() -> int:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return max(1, len([v for v in visible.split(",") if v.strip()]))
    return driver_state.sim_state_from_environment().profile.count


def _stored_api_key() -> str:
    path = Path(_KEY_FILE)
    if path.is_file():
        return str(parse_config_flags(path.read_text(encoding="utf-8")).get("api-key"))
    import secrets

    key, admin = secrets.token_hex(16), secrets.token_hex(16)
    path.write_text(f"api_key: {key}\nadmin_key: {admin}\n", encoding="utf-8")
    path.chmod(0o600)
    return key


ENGINE = SimulatedTabbyapi()

"""What a simulated engine says while it loads: its phases, in its own words, over a few seconds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from workbench.sim.engine_log import EngineLog
from workbench.sim.launch_options import Launch
from workbench.sim.memory_fit import GIB, GRAPHS_GIB, Failure, Fit

START_S = 2.0  # of a small model; large ones take up to three times as long
LARGEST_START_S = 6.0


@dataclass(frozen=True)
class StartupPhase:
    """`share` of the whole start passes before the line is written; `fields` go to EngineLog.line."""

    share: float
    text: str
    fields: tuple[tuple[str, Any], ...] = ()
    raw: bool = False


def start_seconds(launch: Launch) -> float:
    """Seconds from the first line to ready; WORKBENCH_SIM_START_S sets it."""
    asked = os.environ.get("WORKBENCH_SIM_START_S")
    if asked:
        return float(asked)
    seconds = min(LARGEST_START_S, START_S + launch.model.weight_bytes / 30e9)
    return seconds * (0.6 if launch.eager else 1.0)


def banner(log: EngineLog, launch: Launch, profile: str) -> None:
    """The first line of every simulated engine."""
    log.line(
        f"SIMULATED engine ({launch.engine} {launch.version} on simulated host {profile}): no model is loaded, no GPU "
        "is used, the text is filler; speed follows a roofline model",
        level="WARNING",
    )
    if launch.model.guessed:
        size = launch.model.parameters / 1e9
        log.line(f"SIMULATED engine: {launch.model.id} is not a known model; taken as {size:g}B", level="WARNING")


def phases(launch: Launch, fit: Fit, children: list[int], address: str) -> Iterator[StartupPhase]:
    """All lines between the banner and ready, with what share of the start goes by before each."""
    build = {"vllm": _vllm, "sglang": _sglang, "tabbyapi": _tabbyapi, "llamacpp": _llamacpp}[launch.engine]
    return build(launch, fit, children, address)


def before_placing(launch: Launch) -> Iterator[StartupPhase]:
    """What is said before the model and the memory are looked at."""
    if launch.engine == "vllm":
        source = (("source", "api_utils.py:347"),)
        yield StartupPhase(0.0, f"  █▄█▀ █     █     █     █  version {launch.version}", source)
        yield StartupPhase(0.0, f"   ▀▀  ▀▀▀▀▀ ▀▀▀▀▀ ▀     ▀  model   {launch.model.id}", source)
        given = {k.replace("-", "_"): v for k, v in launch.flags.items() if k != "api-key"}
        arguments = {"model_tag": launch.model.id, **given}
        yield StartupPhase(0.0, f"non-default args: {arguments}", (("source", "api_utils.py:286"),))
        for text in launch.warnings:
            yield StartupPhase(0.0, text, (("source", "envs.py:2231"), ("level", "WARNING")))
    elif launch.engine == "sglang":
        given = {k.replace("-", "_"): v for k, v in launch.flags.items() if "api-key" not in k}
        yield StartupPhase(0.0, f"server_args={given}")
    elif launch.engine == "llamacpp":
        yield StartupPhase(0.0, "srv  llama_server: initializing ...")
        yield StartupPhase(0.0, f"cmn  common_param: build_info: {launch.version}")
        yield StartupPhase(0.05, f"srv    load_model: loading model '{launch.model.id}'")


def failed(log: EngineLog, launch: Launch, failure: Failure, children: list[int]) -> None:
    """The last words of an engine that cannot start."""
    if launch.engine == "vllm":
        lines = [*failure.lines, "EngineCore failed to start."] if children else failure.lines
        for line in lines:
            if children:
                log.line(line, process="EngineCore", pid=children[0], source="core.py:1231", level="ERROR")
            else:
                log.raw(line)
        if children:
            log.raw("RuntimeError: Engine core initialization failed. See root cause above.")
    elif launch.engine == "sglang":
        log.line("Scheduler hit an exception: Traceback (most recent call last):", process="TP0")
        for line in failure.lines:
            log.raw(line)
        log.line("Received sigquit from a child process. It usually means the child failed.")
    else:
        for line in failure.lines:
            log.line(line, level="ERROR")


def _no_custom_all_reduce(launch: Launch, fit: Fit) -> str | None:
    """Why the engine falls back to NCCL between its GPUs; None where it does not, or was told to."""
    if launch.tp == 1 or not launch.custom_all_reduce:
        return None
    if launch.tp > 2:
        return "it's not supported on more than two PCIe-only GPUs"
    return None if fit.peer_access else "your platform lacks GPU P2P capability or P2P test failed"


def _core(children: list[int], share: float, text: str, source: str, level: str = "INFO") -> StartupPhase:
    """A line of vLLM's engine process."""
    fields = (("process", "EngineCore"), ("pid", children[0]), ("source", source), ("level", level))
    return StartupPhase(share, text, fields)


def _vllm(launch: Launch, fit: Fit, children: list[int], address: str) -> Iterator[StartupPhase]:
    model = launch.model
    yield StartupPhase(0.12, f"Resolved architecture: {model.architecture}", (("source", "model.py:733"),))
    yield StartupPhase(0.0, f"Using max model len {fit.max_len}", (("source", "model.py:2152"),))
    if launch.eager:
        warning = (("source", "vllm.py:1127"), ("level", "WARNING"))
        yield StartupPhase(
            0.0, "Enforce eager set, disabling torch.compile, CUDAGraphs, and JIT kernel warmup.", warning
        )
        yield StartupPhase(0.0, "Cudagraph is disabled under eager mode", warning)
    config = (
        f"Initializing a V1 LLM engine (v{launch.version}) with config: model='{model.id}', max_seq_len={fit.max_len}, "
        f"tensor_parallel_size={launch.tp}, data_parallel_size={launch.dp}, quantization={model.quantization}, "
        f"enforce_eager={launch.eager}, device_config=cuda (SIMULATED)"
    )
    yield _core(children, 0.08, config, "core.py:133")
    if launch.tp > 1:
        yield _core(children, 0.0, "vLLM is using nccl==2.28.9", "pynccl.py:111")
        why = _no_custom_all_reduce(launch, fit)
        if why:
            text = f"Custom allreduce is disabled because {why}. To silence this warning, specify "
            text += "disable_custom_all_reduce=True."
            yield _core(children, 0.0, text, "custom_all_reduce.py:271", "WARNING")
    yield from _vllm_model(launch, fit, children)
    if not launch.stats_log:
        text = "AsyncLLM created with api_server_count more than 1; disabling stats logging to avoid incomplete stats."
        yield StartupPhase(0.0, text, (("source", "loggers.py:1387"), ("level", "WARNING")))
    yield StartupPhase(0.05, f"Starting vLLM server on {address}", (("source", "entry.py:140"),))
    yield StartupPhase(0.02, f"INFO:     Started server process [{os.getpid()}]", raw=True)
    yield StartupPhase(0.0, "INFO:     Waiting for application startup.", raw=True)


def _vllm_model(launch: Launch, fit: Fit, children: list[int]) -> Iterator[StartupPhase]:
    """Weights, compilation, KV cache, graphs."""
    model, whole_s = launch.model, start_seconds(launch)
    yield _core(children, 0.04, f"Starting to load model {model.id}...", "gpu_model_runner.py:4102")
    shards = max(1, min(8, round(model.weight_bytes / 5e9)))
    for done in range(1, shards + 1):
        percent = 100 * done // shards
        text = f"Loading safetensors checkpoint shards: {percent:3d}% Completed | {done}/{shards}"
        yield StartupPhase(0.3 / shards, text, raw=True)
    weights = fit.weight_bytes / GIB
    yield _core(children, 0.0, f"Loading weights took {whole_s * 0.3:.2f} seconds", "default_loader.py:501")
    text = f"Model loading took {weights:.2f} GiB memory and {whole_s * 0.32:.6f} seconds"
    yield _core(children, 0.02, text, "gpu_model_runner.py:4189")
    if not launch.eager:
        text = f"Dynamo bytecode transform time: {whole_s * 0.1:.2f} s"
        yield _core(children, 0.1, text, "backends.py:642")
        yield _core(children, 0.08, f"torch.compile took {whole_s * 0.18:.2f} s in total", "monitor.py:34")
    yield _core(children, 0.04, f"Available KV cache memory: {fit.kv_bytes / GIB:.2f} GiB", "gpu_worker.py:391")
    text = f"GPU KV cache size: {fit.kv_tokens:,} tokens, Maximum concurrency for {fit.max_len:,} tokens per request: "
    yield _core(children, 0.0, f"{text}{fit.kv_tokens / fit.max_len:.2f}x", "kv_cache_utils.py:2327")
    if not launch.eager:
        for percent in (0, 33, 67, 100):
            text = f"Capturing CUDA graphs (mixed prefill-decode, PIECEWISE): {percent:3d}%"
            yield StartupPhase(0.03, text, raw=True)
        text = f"Graph capturing finished in {round(whole_s * 0.12)} secs, took {GRAPHS_GIB} GiB"
        yield _core(children, 0.02, text, "gpu_model_runner.py:5033")
    text = f"init engine (profile, create kv cache, warmup model) took {whole_s * 0.5:.2f} s"
    yield _core(children, 0.02, text, "core.py:402")


def _sglang(launch: Launch, fit: Fit, children: list[int], address: str) -> Iterator[StartupPhase]:
    rank = (("process", "TP0"),)
    model = launch.model
    yield StartupPhase(0.15, "Init torch distributed begin.", rank)
    yield StartupPhase(0.0, f"Init torch distributed ends. elapsed=0.41 s, mem usage={0.09 * launch.tp:.2f} GB", rank)
    why = _no_custom_all_reduce(launch, fit)
    if why:
        yield StartupPhase(0.0, f"Custom allreduce is disabled because {why}.", rank)
    yield StartupPhase(0.02, "Load weight begin. avail mem=" + f"{fit.used_bytes / 1e9:.2f} GB", rank)
    shards = max(1, min(8, round(model.weight_bytes / 5e9)))
    for done in range(1, shards + 1):
        text = f"Multi-thread loading shards: {100 * done // shards:3d}% Completed | {done}/{shards}"
        yield StartupPhase(0.35 / shards, text, raw=True)
    left = (fit.used_bytes - fit.weight_bytes) / 1e9
    text = f"Load weight end. elapsed={start_seconds(launch) * 0.35:.2f} s, type={model.architecture}, "
    yield StartupPhase(0.0, f"{text}avail mem={left:.2f} GB, mem usage={fit.weight_bytes / 1e9:.2f} GB.", rank)
    half = fit.kv_bytes / 2 / GIB
    text = f"KV Cache is allocated. dtype: torch.bfloat16, #tokens: {fit.kv_tokens}, K size: {half:.2f} GB, "
    yield StartupPhase(0.05, f"{text}V size: {half:.2f} GB", rank)
    if not launch.eager:
        yield StartupPhase(0.05, "Capture decode CUDA graph begin. This can take up to several minutes.", rank)
        yield StartupPhase(0.2, "Capture decode CUDA graph end. elapsed=3.12 s, mem usage=0.31 GB", rank)
    text = f"max_total_num_tokens={fit.kv_tokens}, chunked_prefill_size={launch.batched_tokens}, "
    text += f"max_prefill_tokens=16384, max_running_requests={launch.max_sequences}, context_len={fit.max_len}"
    yield StartupPhase(0.05, text, rank)
    yield StartupPhase(0.02, f"INFO:     Uvicorn running on {address} (Press CTRL+C to quit)")
    yield StartupPhase(0.1, 'INFO:     127.0.0.1:0 - "GET /model_info HTTP/1.1" 200 OK')


def _tabbyapi(launch: Launch, fit: Fit, children: list[int], address: str) -> Iterator[StartupPhase]:
    model = launch.model
    yield StartupPhase(0.1, f"tabbyAPI {launch.version} with ExLlamaV3 (SIMULATED)")
    yield StartupPhase(0.05, f"Loading model: {model.id}")
    text = "Loading with tensor parallel" if launch.tp > 1 else "Loading with autosplit"
    yield StartupPhase(0.0, text)
    for done in range(10, 101, 10):
        yield StartupPhase(0.07, f"Loading model modules {done}% {model.layers * done // 100}/{model.layers}", raw=True)
    yield StartupPhase(0.05, "Model successfully loaded.")
    yield StartupPhase(0.02, f"Developer documentation: {address}/redoc")
    yield StartupPhase(0.0, f"Chat completions: {address}/v1/chat/completions")
    yield StartupPhase(0.0, f"Started server process [{os.getpid()}]")
    yield StartupPhase(0.0, "Waiting for application startup.")
    yield StartupPhase(0.0, "Application startup complete.")


def _llamacpp(launch: Launch, fit: Fit, children: list[int], address: str) -> Iterator[StartupPhase]:
    layers = launch.model.layers + 1
    on_gpu = layers if launch.on_gpu else 0
    yield StartupPhase(0.3, f"load_tensors: offloaded {on_gpu}/{layers} layers to GPU")
    slots = launch.max_sequences
    text = (
        f"srv    load_model: initializing, n_slots = {slots}, n_ctx_slot = {fit.max_len // slots}, kv_unified = 'false'"
    )
    yield StartupPhase(0.5, text)
    yield StartupPhase(0.05, "cmn  common_init: warming up the model with an empty run - please wait ...")
    yield StartupPhase(0.1, "srv  llama_server: model loaded")


READY = {
    "vllm": "INFO:     Application startup complete.",
    "sglang": "The server is fired up and ready to roll!",
    "tabbyapi": "Uvicorn running on {address} (Press CTRL+C to quit)",
    "llamacpp": "srv  llama_server: listening on {address}",
}

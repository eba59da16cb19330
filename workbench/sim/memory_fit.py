"""Whether a simulated engine fits its GPUs, and how much its KV cache holds; refusals in the engines' own words."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from workbench.sim import models
from workbench.sim.driver_state import SimState
from workbench.sim.launch_options import Launch

GIB = float(1 << 30)
MODELS_ROOT = "/simulated/"  # any model path below it exists on a simulated host, as does one that names a known model
CONTEXT_GIB = 0.45  # CUDA context and libraries
GRAPHS_GIB = 0.35


class Failure(Exception):
    """The engine cannot start: its last log lines, the decisive one first in `lines`, and its exit status."""

    def __init__(self, *lines: str, code: int = 1) -> None:
        super().__init__(lines[0])
        self.lines = lines
        self.code = code


@dataclass(frozen=True)
class Fit:
    """Where the engine runs. `replicas` are the GPU indices of each data-parallel replica; bytes are per GPU."""

    replicas: tuple[tuple[int, ...], ...]
    weight_bytes: float
    kv_bytes: float
    used_bytes: float
    kv_tokens: int  # of one replica
    max_len: int
    peer_access: bool = True  # the GPUs reach each other's memory


def visible_gpus(state: SimState) -> tuple[int, ...]:
    """Indices that CUDA_VISIBLE_DEVICES leaves, by number or UUID; all of them where it is not set."""
    words = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = state.profile.count
    if words is None:
        return tuple(range(count))
    known = {**{str(i): i for i in range(count)}, **{state.profile.uuid(i): i for i in range(count)}}
    found: list[int] = []
    for word in words.split(","):
        if word.strip() not in known:  # CUDA stops at the first one that it does not know
            break
        found.append(known[word.strip()])
    return tuple(found)


def place(launch: Launch, state: SimState) -> Fit:
    """Checks model path, GPUs and memory as the engine would while it loads. Raises Failure."""
    _check_path(launch)
    gpus = visible_gpus(state)
    per_replica = launch.tp * launch.pp
    if launch.engine in ("llamacpp", "tabbyapi") and launch.tp == 1:
        per_replica = len(gpus) if launch.engine == "llamacpp" else _enough(launch, state, gpus)
    needed = per_replica * launch.dp
    if needed > len(gpus) or not gpus:
        raise _too_few(launch, needed, len(gpus))
    replicas = tuple(tuple(gpus[r * per_replica : (r + 1) * per_replica]) for r in range(launch.dp))
    fits = [_memory(launch, state, replica) for replica in replicas]
    smallest = min(fits, key=lambda f: f.kv_tokens)
    return replace(smallest, replicas=replicas, peer_access=state.profile.interconnect.custom_us is not None)


def _check_path(launch: Launch) -> None:
    name = launch.model.id
    directory = str(launch.flags.get("model-dir") or "")
    if launch.engine == "tabbyapi":
        if directory.startswith("/"):
            name = f"{directory.rstrip('/')}/{name}"
        elif not name.startswith("/"):
            return
    is_path = name.startswith(("/", "./", "../", "~"))
    if launch.engine == "llamacpp":
        name = str(launch.flags.get("model") or "")
        is_path = bool(name)
    known = not models.describe(Path(name).name).guessed
    if not is_path or known or name.startswith(MODELS_ROOT) or Path(name).expanduser().exists():
        return
    if launch.engine == "vllm":
        raise Failure(
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig",
            f"  Value error, Invalid repository ID or local directory specified: '{name}'. Provide a valid Hugging "
            "Face repository ID, or a local directory with a config.json. [type=value_error, input_type=ArgsKwargs]",
        )
    if launch.engine == "sglang":
        raise Failure(
            f"OSError: Can't load the configuration of '{name}': it is neither a directory with a config.json nor a "
            "model identifier on the hub",
        )
    if launch.engine == "llamacpp":
        raise Failure(
            f"gguf_init_from_file: failed to open GGUF file '{name}' (No such file or directory)",
            f"llama_model_load: error loading model: llama_model_loader: failed to load model from {name}",
            f"srv    load_model: failed to load model, '{name}'",
            "srv  llama_server: exiting due to model loading error",
        )
    raise Failure(f"FileNotFoundError: Model path {name} does not exist.")


def _too_few(launch: Launch, needed: int, have: int) -> Failure:
    if launch.engine == "vllm":
        return Failure(
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for ParallelConfig",
            f"  Value error, World size ({needed}) is larger than the number of available GPUs ({have}) in this node. "
            "If this is intentional, use more nodes or another executor backend. [type=value_error, "
            "input_type=ArgsKwargs]",
        )
    return Failure("torch.AcceleratorError: CUDA error: invalid device ordinal")


def _enough(launch: Launch, state: SimState, gpus: tuple[int, ...]) -> int:
    """TabbyAPI fills one GPU after the other: how many it takes."""
    need = launch.model.weight_bytes + (launch.kv_tokens or 0) * launch.model.kv_bytes_per_token
    for count in range(1, len(gpus) + 1):
        if need <= count * state.profile.gpu.memory_bytes * 0.96:
            return count
    return max(1, len(gpus))


def _memory(launch: Launch, state: SimState, gpus: tuple[int, ...]) -> Fit:
    gpu, model = state.profile.gpu, launch.model
    total = float(gpu.memory_bytes)
    free = min(total - gpu.reserved_mib * (1 << 20) - state.memory_used(i) for i in gpus) - CONTEXT_GIB * GIB
    weights = model.weight_bytes / len(gpus) * 1.01
    working = (0.4 + launch.batched_tokens * model.hidden * 24 / GIB) * GIB
    if not launch.eager and launch.engine in ("vllm", "sglang"):
        working += GRAPHS_GIB * GIB
    budget = launch.memory_share * total
    per_token = model.kv_bytes_per_token / len(gpus)
    if launch.engine == "vllm":
        if free + CONTEXT_GIB * GIB < budget:
            raise _share_taken(launch, free + CONTEXT_GIB * GIB, total)
        if weights > free:
            raise _out_of_memory(weights - free, total, free)
        kv = budget - CONTEXT_GIB * GIB - weights - working
        if kv <= 0:
            raise Failure(
                "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
                "initializing the engine.",
            )
    else:
        if weights > free:
            raise _out_of_memory_of(launch, weights, total, free)
        kv = min(budget, free) - weights - (working if launch.engine == "sglang" and launch.memory_share > 0.95 else 0)
        if launch.kv_tokens:
            kv = min(kv, launch.kv_tokens * per_token) if launch.engine == "sglang" else launch.kv_tokens * per_token
        if kv <= 0:
            raise Failure("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.")
        if weights + kv > free:
            raise _out_of_memory_of(launch, weights + kv, total, free)
    kv_tokens = int(kv / per_token)
    max_len = model.max_len if launch.max_len is None else launch.max_len
    if max_len == -1:
        max_len = min(model.max_len, kv_tokens)
    if launch.engine == "vllm" and kv_tokens < max_len:
        raise _kv_too_small(max_len, per_token, kv, kv_tokens)
    return Fit((gpus,), weights, kv, weights + kv + working + CONTEXT_GIB * GIB, kv_tokens, max_len)


def _share_taken(launch: Launch, free: float, total: float) -> Failure:
    share = launch.memory_share
    return Failure(
        f"ValueError: Free memory on device cuda:0 ({free / GIB:.2f}/{total / GIB:.2f} GiB) on startup is less than "
        f"desired GPU memory utilization ({share}, {share * total / GIB:.2f} GiB). Decrease GPU memory utilization or "
        "reduce GPU memory used by other processes.",
    )


def _kv_too_small(max_len: int, per_token: float, kv: float, kv_tokens: int) -> Failure:
    return Failure(
        f"ValueError: To serve at least one request with the model's max seq len ({max_len}), "
        f"({max_len * per_token / GIB:.2f} GiB KV cache is needed, which is larger than the available KV cache memory "
        f"({kv / GIB:.2f} GiB). Based on the available memory, the estimated maximum model length is "
        f"{kv_tokens // 16 * 16}. Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when "
        "initializing the engine.",
    )


def _out_of_memory(more: float, total: float, free: float) -> Failure:
    return Failure(
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {max(more, 64 << 20) / GIB:.2f} GiB. GPU 0 has "
        f"a total capacity of {total / GIB:.2f} GiB of which {max(0.0, free) % (256 << 20) / (1 << 20):.2f} MiB is "
        "free.",
    )


def _out_of_memory_of(launch: Launch, wanted: float, total: float, free: float) -> Failure:
    if launch.engine == "llamacpp":
        return Failure(
            f"ggml_backend_cuda_buffer_type_alloc_buffer: allocating {wanted / (1 << 20):.2f} MiB on device 0: "
            "cudaMalloc failed: out of memory",
            "llama_model_load: error loading model: unable to allocate CUDA0 buffer",
            "srv  llama_server: exiting due to model loading error",
        )
    return _out_of_memory(wanted - free, total, free)

"""The memory of a simulated server: on which GPUs the model is placed, and how many tokens the KV
cache has room for. A server that does not fit fails as the real engine would.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.model.lazy_dataclass import dataclass
from workbench.sim import model_sizes

if TYPE_CHECKING:
    from workbench.sim.driver_state import SimState
    from workbench.sim.launch_options import LaunchOptions

GIB = float(1 << 30)
# Every model path below these exists on a simulated host, and so does every path with a known name.
# The presets' examples are below the second.
MODEL_ROOTS = ("/simulated/", "/srv/models/")
CONTEXT_GIB = 0.45  # CUDA context and libraries
GRAPHS_GIB = 0.35


class Failure(Exception):
    """The error of an engine that cannot start. `lines` are the last lines of its log, with the
    reason first. `code` is the exit status."""

    def __init__(self, *lines: str, code: int = 1) -> None:
        super().__init__(lines[0])
        self.lines = lines
        self.code = code


@dataclass(frozen=True)
class Fit:
    """The GPUs and the memory use of a server. `replicas` has the GPU indices of each data-parallel
    replica. All bytes are per GPU."""

    replicas: tuple[tuple[int, ...], ...]
    weight_bytes: float
    kv_bytes: float
    used_bytes: float
    kv_tokens: int  # of one replica
    max_len: int
    peer_access: bool = True  # the GPUs reach each other's memory


@dataclass(frozen=True)
class GpuMemory:
    """The memory of one GPU while an engine loads its model, in bytes. `per_token` is the KV cache
    of one token."""

    total: float
    free: float
    budget: float  # that the engine may use
    weights: float
    working: float  # activations and graphs
    per_token: float


def visible_gpus(state: SimState) -> tuple[int, ...]:
    """Return the indices of the GPUs that CUDA_VISIBLE_DEVICES names, by number or UUID. All GPUs
    are visible if this variable is not set."""
    words = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = state.profile.count
    if words is None:
        return tuple(range(count))
    known: dict[str, int] = {}
    for i in range(count):
        known.update(dict.fromkeys((str(i), state.profile.uuid(i)), i))
    found: list[int] = []
    for word in map(str.strip, words.split(",")):
        if word not in known:  # CUDA stops at the first unknown one
            break
        found.append(known[word])
    return tuple(found)


def fit_server_on_gpus(launch: LaunchOptions, state: SimState) -> Fit:
    """Return the GPUs and the KV cache of a server. Raises Failure if the model path, the GPUs or
    the memory would make the real engine fail.
    """
    path = launch.engine.model_path(launch)
    if path is not None and not _path_exists(path):
        raise launch.engine.missing_model_failure(path)
    gpus = visible_gpus(state)
    per_replica = launch.engine.gpus_per_replica(launch, state, gpus)
    needed = per_replica * launch.dp
    if needed > len(gpus) or not gpus:
        raise launch.engine.too_few_gpus_failure(needed, len(gpus))
    replicas = tuple(tuple(gpus[r * per_replica : (r + 1) * per_replica]) for r in range(launch.dp))
    fits = [_fit_on_gpus(launch, state, replica) for replica in replicas]
    smallest = min(fits, key=lambda f: f.kv_tokens)
    return replace(
        smallest, replicas=replicas, peer_access=state.profile.interconnect.custom_us is not None
    )


def _path_exists(path: str) -> bool:
    known = not model_sizes.describe_model(Path(path).name).guessed
    return known or path.startswith(MODEL_ROOTS) or Path(path).expanduser().exists()


def _fit_on_gpus(launch: LaunchOptions, state: SimState, gpus: tuple[int, ...]) -> Fit:
    gpu, model, engine = state.profile.gpu, launch.model, launch.engine
    context, total = CONTEXT_GIB * GIB, float(gpu.memory_bytes)
    working = (0.4 + launch.batched_tokens * model.hidden * 24 / GIB) * GIB
    if not launch.eager:
        working += engine.graphs_gib * GIB
    memory = GpuMemory(
        total=total,
        free=min(total - gpu.reserved_mib * (1 << 20) - state.engine_memory_bytes(i) for i in gpus)
        - context,
        budget=launch.memory_share * total,
        weights=model.weight_bytes / (len(gpus) * launch.nodes) * 1.01,
        working=working,
        per_token=model.kv_bytes_per_token / (len(gpus) * launch.nodes),
    )
    cache = engine.kv_cache_bytes(launch, memory)
    kv_tokens = int(cache / memory.per_token)
    max_len = model.max_len if launch.max_len is None else launch.max_len
    if max_len == -1:
        max_len = min(model.max_len, kv_tokens)
    engine.require_context_fits_cache(max_len, cache, memory)
    used = memory.weights + cache + working + context
    return Fit((gpus,), memory.weights, cache, used, kv_tokens, max_len)

"""The time of one step of a simulated engine: a roofline with the costs that tuning changes. Pure
functions.

    step = max(memory, compute) + 0.25 min(memory, compute), or launching if that takes longer
    (eager mode)
           + all-reduces of tensor parallelism + scheduling

memory     bytes of the shard and of the KV cache over effective bandwidth at the present memory clock; a low SM clock
           stretches it (physics.memory_slowdown_factor)
compute    2 FLOP per active parameter and token over the reachable tensor throughput at the present SM clock
launching  eager mode launches each layer's kernels from Python; graphs replay them
all-reduce two per layer and one more, each with a latency and bytes over the link; the engine's own
kernel runs only if
           peers access each other's memory, and never on more than two PCIe GPUs

Calibrated with public measurements: 123B AWQ on one RTX PRO 6000 22.7-24 tok/s; 70B BF16 on two
GB10 3.17; a 2B model with TP=4 in eager mode on four PCIe GPUs 51.5 steps/s with 8 requests (about
19 ms, against 0.6 ms of memory traffic).
"""

from __future__ import annotations

from workbench.model.lazy_dataclass import dataclass
from workbench.sim import model_sizes, physics
from workbench.sim.model_sizes import SimulatedModel
from workbench.sim.profiles import GpuModel, Interconnect

STEP_BASE_S = 0.0004  # scheduler, sampling, output
STEP_PER_SEQUENCE_S = 0.0001  # the same, per running request
GRAPH_LAYER_S = 4e-6  # launch cost that remains with graphs
EAGER_LAYER_S = 0.0003  # about fifteen kernels from Python
TENSOR_REACH = 0.6  # share of the dense peak in a real prefill
# 70B NVFP4 on one GB10: 4.0-4.2 tok/s, while the bandwidth allows 6.7
FORMAT_REACH = {"nvfp4": 0.76}


@dataclass(frozen=True)
class ModelReplica:
    """A replica of a model that is split over `tp` GPUs (tensor parallelism)."""

    gpu: GpuModel
    link: Interconnect
    model: SimulatedModel
    tp: int = 1
    eager: bool = False
    custom_all_reduce: bool = True
    bandwidth_share: float = 1.0  # of the bandwidth that the best engine reaches

    @property
    def custom_all_reduce_us(self) -> float | None:
        """The latency of an all-reduce by the engine's own kernel, in microseconds; None if NCCL
        does it."""
        if not self.custom_all_reduce or self.tp != 2:
            return None
        return self.link.custom_us


@dataclass(frozen=True)
class EngineStep:
    """The duration of one step in seconds, and the time for memory traffic and for computing in
    it."""

    total_s: float
    memory_s: float
    compute_s: float

    @property
    def activity(self) -> physics.GpuActivity:
        """The activity that the driver reports while an engine runs steps of this kind without a
        pause."""
        return physics.GpuActivity(
            1.0,
            min(1.0, self.memory_s / self.total_s),
            min(1.0, self.compute_s / self.total_s),
            0.0,
        )


def compute_engine_step(
    serving: ModelReplica,
    *,
    sm_mhz: float,
    memory_mhz: float,
    sequences: int,
    context_tokens: int,
    prefill_tokens: int = 0,
) -> EngineStep:
    """Return the duration of one step in which `sequences` requests decode. `context_tokens` is the
    sum of their contexts, `prefill_tokens` the prompt tokens that the step computes.
    """
    gpu, model = serving.gpu, serving.model
    tokens = sequences + prefill_tokens
    clock = memory_mhz / gpu.memory_max_mhz if memory_mhz else 1.0
    reach = serving.bandwidth_share * FORMAT_REACH.get(model.quantization, 1.0)
    bandwidth = gpu.bandwidth_gbs * 1e9 * clock * gpu.efficiency * reach
    read = _weight_bytes_read(model, tokens) + context_tokens * model.kv_bytes_per_token
    memory = read / serving.tp / bandwidth * physics.memory_slowdown_factor(sm_mhz, gpu)
    compute = 2.0 * model.active * tokens / serving.tp / _flops_at_clock(gpu, model, sm_mhz)
    device = max(memory, compute) + 0.25 * min(memory, compute)
    if serving.eager:
        device = max(device, model.layers * EAGER_LAYER_S)
    else:
        device += model.layers * GRAPH_LAYER_S
    total = (
        device + _communication_s(serving, tokens) + STEP_BASE_S + STEP_PER_SEQUENCE_S * sequences
    )
    return EngineStep(total, memory, compute)


def _weight_bytes_read(model: SimulatedModel, tokens: int) -> float:
    """Return the bytes of weights that a step reads. In a mixture of experts, a step with more
    tokens reads more experts.
    """
    if tokens <= 1 or model.active >= model.parameters:
        return model.bytes_per_token
    share = model.active / model.parameters
    touched = 1.0 - (1.0 - share) ** tokens
    return model.bytes_per_token + (model.weight_bytes - model.bytes_per_token) * (
        touched - share
    ) / (1.0 - share)


def _flops_at_clock(gpu: GpuModel, model: SimulatedModel, sm_mhz: float) -> float:
    peak = {"fp8": gpu.tflops_fp8, "fp4": gpu.tflops_fp4}.get(
        model_sizes.COMPUTE.get(model.quantization, "")
    )
    return (peak or gpu.tflops_bf16) * 1e12 * TENSOR_REACH * sm_mhz / gpu.sm_compute_mhz


def _communication_s(serving: ModelReplica, tokens: int) -> float:
    if serving.tp == 1:
        return 0.0
    link, model, custom_us = serving.link, serving.model, serving.custom_all_reduce_us
    if custom_us is not None:
        latency_us = custom_us * (1.5 if serving.eager else 1.0)
    else:
        latency_us = link.nccl_eager_us if serving.eager else link.nccl_us
    moved = 2.0 * (serving.tp - 1) / serving.tp * tokens * model.hidden * 2.0
    return (2 * model.layers + 1) * (latency_us * 1e-6 + moved / (link.link_gbs * 1e9))

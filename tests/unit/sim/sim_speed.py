"""Speeds of the simulation."""

from __future__ import annotations

from workbench.sim import step_time
from workbench.sim.step_time import ModelReplica


def single_stream_tok_s(one: ModelReplica, *, context_tokens: int = 256) -> float:
    """Return the tokens per second of one request with nothing locked and no power limit reached."""
    sm_mhz, memory_mhz = one.gpu.sm_compute_mhz, one.gpu.memory_compute_mhz
    step = step_time.compute_engine_step(
        one, sm_mhz=sm_mhz, memory_mhz=memory_mhz, sequences=1, context_tokens=context_tokens
    )
    return 1.0 / step.total_s

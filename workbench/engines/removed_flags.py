"""Flags and variables that engines had once, or that were never there but stand in write-ups.

vLLM: read from the argument parsers and envs.py of the wheels 0.7.3 to 0.33.0; "since" is the first version checked
that refuses or ignores. SGLang: its 0.5.15 and 0.5.23 parsers.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Former:
    """`since`: first version that no longer takes it ("" where not known); `until`: first one that takes it again."""

    what: str
    fix: str
    since: str = ""
    until: str = ""


_SPECULATIVE = "speculative decoding moved into one JSON flag"
_SPECULATIVE_FIX = "set speculative-config.model and .num_speculative_tokens (since 0.22 also spec-model, spec-tokens)"
_SPLIT = "ambiguous since it was split in two"
_V0 = "belonged to the old V0 engine"

FLAGS: dict[str, dict[str, Former]] = {
    "vllm": {
        "speculative-model": Former(_SPECULATIVE, _SPECULATIVE_FIX, since="0.8.3"),
        "num-speculative-tokens": Former(_SPECULATIVE, _SPECULATIVE_FIX, since="0.8.3"),
        "disable-log-requests": Former(
            "requests are not logged by default since 0.10.1; 0.17 to 0.32 refuse the flag", "unset it", "0.17", "0.33"
        ),
        "guided-decoding-backend": Former("renamed", "set structured-outputs-config.backend"),
        "enable-reasoning": Former("no longer needed", "set reasoning-parser alone"),
        "task": Former("replaced", "set runner, and convert where needed"),
        "cuda-graph-sizes": Former("renamed", "set cudagraph-capture-sizes"),
        "max-seq-len-to-capture": Former(_V0, "set max-cudagraph-capture-size, which counts sequences"),
        "num-scheduler-steps": Former(_V0, "unset it; async-scheduling is on by default"),
        "use-v2-block-manager": Former(_V0, "unset it"),
        "swap-space": Former(_V0 + "; preempted sequences are computed again", "unset it"),
        "preemption-mode": Former(_V0, "unset it"),
        "worker-use-ray": Former("replaced", "set distributed-executor-backend to ray"),
        "rope-scaling": Former("moved", "set hf-overrides"),
        "rope-theta": Former("moved", "set hf-overrides"),
        "device": Former("the platform is detected", "unset it"),
    },
    "sglang": {
        "cuda-graph-max-bs": Former(_SPLIT, "set cuda-graph-max-bs-decode (or -prefill)", since="0.5.23"),
        "cuda-graph-bs": Former(_SPLIT, "set cuda-graph-bs-decode (or -prefill)", since="0.5.23"),
        "disable-log-requests": Former("a vLLM flag; requests are not logged by default", "unset it"),
        "enable-ep-moe": Former("replaced", "set expert-parallel-size", since="0.5.23"),
        "enable-flashinfer-mla": Former("replaced", "set attention-backend to flashinfer", since="0.5.23"),
        "pp": Former("an ambiguous abbreviation", "set pipeline-parallel-size"),
    },
    "llamacpp": {
        "no-mmap": Former("gone in b11434", "see load-mode"),
        "mlock": Former("gone in b11434", "see load-mode"),
    },
}

_NOT_VLLM = "no version of vLLM has read it"
_BACKEND_FIX = "unset it and set attention-backend (since 0.13)"

ENV: dict[str, dict[str, Former]] = {
    "vllm": {
        "VLLM_BLOCK_SIZE": Former(_NOT_VLLM, "unset it and set block-size"),
        "VLLM_KV_CACHE_DTYPE": Former(_NOT_VLLM, "unset it and set kv-cache-dtype"),
        "VLLM_NUM_GPUS": Former(_NOT_VLLM, "unset it and set tensor-parallel-size"),
        "VLLM_ATTENTION_BACKEND": Former("ignored since 0.15", _BACKEND_FIX, since="0.15"),
        "VLLM_FLASH_ATTN_VERSION": Former("ignored since 0.15", "set attention-config.flash_attn_version", "0.15"),
        "VLLM_USE_V1": Former("V1 is the only engine since 0.11.1", "unset it", since="0.11.1"),
        "VLLM_USE_FLASHINFER_MOE_FP8": Former("gone after 0.22", "unset it and set moe-backend", since="0.23"),
        "VLLM_USE_FLASHINFER_MOE_FP4": Former("gone after 0.22", "unset it and set moe-backend", since="0.23"),
        "VLLM_NVFP4_GEMM_BACKEND": Former("gone after 0.22", "unset it and set linear-backend", since="0.23"),
        "VLLM_USE_TRITON_FLASH_ATTN": Former("no longer read", "unset it and set attention-backend"),
    },
}

# For every engine: variables of the libraries below it.
COMMON_ENV: dict[str, Former] = {
    "TRITON_KERNEL_CACHE_SIZE": Former("neither Triton nor PyTorch reads it", "unset it; TRITON_CACHE_DIR is real"),
}

"""Which settings of an engine change what a model answers: the one declaration of it.

A change of one of them can make a server faster and its answers worse, so a verdict about speed
says whether quality was measured. A setting that only moves work, such as the number of sequences,
is not listed, although greedy answers depend on the batch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from workbench.model.bench import Conditions
from workbench.model.lazy_dataclass import dataclass
from workbench.model.plan import LaunchPlan
from workbench.model.quality import NOT_MEASURED, QualityResult


@dataclass(frozen=True, slots=True)
class AnswerSettings:
    """The settings of one engine that change its answers: patterns for whole names of flags, by
    what they set."""

    flags: Mapping[str, str]

    def kind_of_flag(self, flag: str) -> str:
        """Return what a flag sets, such as "KV cache type"; "" if it changes no answer."""
        name = flag.replace("_", "-")
        for what, pattern in self.flags.items():
            if re.fullmatch(pattern, name):
                return what
        return ""


# The names are those of the flag catalogs (workbench/engines/catalogs/).
_ENGINES = {
    "vllm": AnswerSettings(
        {
            "quantization": "quantization|quantization-config|dtype|allow-deprecated-quantization",
            "KV cache type": "kv-cache-dtype.*|calculate-kv-scales|kv-sharing-fast-prefill"
            "|mamba-(ssm-)?cache-dtype",
            "attention backend": "attention-(backend|config)|disable-cascade-attn|mamba-backend"
            "|(gdn|kda)-(prefill|decode)-backend|sparse-indexer-topk-backend|mm-encoder-attn-.*",
            "kernels": "moe-backend|linear-backend|kernel-config|monokernel|all2all-backend"
            "|enable-flashinfer-autotune",
            "speculation": "speculative-config|spec-(method|model|tokens)",
            "graphs": "enforce-eager|compilation-config|optimization-level|cudagraph-capture-sizes"
            "|max-cudagraph-capture-size",
            "parallelism": "(tensor|pipeline)-parallel-size|enable-expert-parallel"
            "|(decode|prefill)-context-parallel-size|disable-custom-all-reduce",
            "model": "model|revision|code-revision|tokenizer|tokenizer-(mode|revision)|hf-overrides"
            "|model-class-overrides|override-generation-config|lora-.*|default-mm-loras"
            "|logits-processors|model-impl|load-format",
        }
    ),
    "sglang": AnswerSettings(
        {
            "quantization": "quantization|quantization-param-path|dtype|modelopt-quant"
            "|quantize-and-serve|rl-quant-profile|torchao-config",
            "KV cache type": "kv-cache-dtype|mamba-ssm-dtype|qsa-indexer-dtype"
            "|prefill-kv-cache-dequant-dtype",
            "attention backend": "((decode|prefill|mm)-)?attention-backend|dsa-.*-backend"
            "|dsv4-.*|linear-attn-.*backend|mamba-backend|enable-lean-attention"
            "|triton-attention-.*|flashinfer-mla-disable-ragged|sampling-backend",
            "kernels": "(fp8|fp4|bf16)-gemm-backend|moe-(runner|a2a)-backend|monokernel-backend"
            "|enable-w4a4-.*|flashinfer-mxfp4-moe-precision|deepep-dispatcher-output-dtype"
            "|enable-.*megakernel|enable-fused-.*|enable-quant-communications"
            "|disable-flashinfer-autotune|disable-shared-experts-fusion"
            "|enforce-shared-experts-fusion|lora-backend",
            "speculation": "speculative-.*|decoupled-spec-role",
            "graphs": "disable-.*cuda-graph.*|cuda-graph-.*|enable-torch-compile",
            "parallelism": "(tensor|pipeline|expert)-parallel-size|enable-dp-attention"
            "|attention-(data|context)-parallel-size|disable-custom-all-reduce"
            "|enable-.*allreduce-fusion|enable-deterministic-inference",
            "model": "model-path|revision|tokenizer-(path|mode)|json-model-override-args"
            "|lora-paths|model-impl|load-format|chat-template",
        }
    ),
    "llamacpp": AnswerSettings(
        {
            "KV cache type": "cache-type-[kv]|spec-draft-type-[kv]",
            "attention backend": "flash-attn",
            "kernels": "override-tensor|cpu-moe|n-cpu-moe|n-gpu-layers|backend-sampling|device",
            "speculation": r"spec-(?!draft-(threads|cpu|prio|poll)).*|draft-max|draft-n-min|model-draft",
            "parallelism": "split-mode|tensor-split",
            "model": "model|hf-repo|hf-file|override-kv|lora|lora-scaled|control-vector.*"
            "|rope-.*|yarn-.*|logit-bias|chat-template|jinja|grp-attn-.*",
        }
    ),
    "tabbyapi": AnswerSettings(
        {
            "KV cache type": "cache-mode|draft-cache-mode",
            "kernels": "backend|cpu-moe-offload-layers",
            "speculation": "draft-.*|dynamic-draft",
            "parallelism": "tensor-parallel|tensor-parallel-backend|gpu-split.*",
            "model": "model-name|model-dir|rope-(scale|alpha)|lora-dir|loras|override-preset"
            "|prompt-template",
        }
    ),
}
# of all engines: which files the tokenizer is from; the model itself is a field of its own
_TOKENIZER = re.compile(
    r"(code-)?revision|tokenizer(-(mode|revision|path))?|hf-(overrides|repo|file)|model-dir|override-kv"
)
_VARIABLE_NAME = re.compile(
    r"ATTN|ATTENTION|MOE|GEMM|QUANT|FP8|FP4|MARLIN|CUTLASS|FLASHINFER|TRITON|TF32|MATMUL"
    r"|DETERMINISTIC|BATCH_INVARIANT|CUDA_GRAPH|CUDAGRAPH|CUBLAS|GGML_CUDA|TORCH_COMPILE|SPEC_"
)
_SETTING = "flag "


def kind_of_answer_flag(engine: str | None, flag: str) -> str:
    """Return what a flag of an engine sets that changes the answers, such as "KV cache type". ""
    for a flag that changes none, and for an engine that Workbench does not know."""
    if engine not in _ENGINES:
        return ""
    return _ENGINES[engine].kind_of_flag(flag)


def collect_tokenizer_flag_texts(flags: Mapping[str, Any]) -> dict[str, str]:
    """Return those flags, with their values as text, that decide which tokenizer a server has."""
    return {
        name: _canonical_value_text(value)
        for name, value in flags.items()
        if _TOKENIZER.fullmatch(name.replace("_", "-"))
    }


def collect_answer_settings(conditions: Conditions) -> dict[str, Any]:
    """Return what the answers of a server depend on, as far as it is known, by name. Two servers
    with equal settings answer the same. Absent values are left out."""
    engine = conditions.engine
    found: dict[str, Any] = {
        "engine": engine,
        "engine version": conditions.engine_version,
        "model": conditions.model,
        "model files": conditions.model_digest,
        "image": conditions.image,
    }
    if conditions.flags:
        for name, value in conditions.flags.items():
            if kind_of_answer_flag(engine, name):
                found[f"{_SETTING}{name}"] = _canonical_value_text(value)
        found["program"] = next(iter(conditions.argv), None)
    else:
        found["command"] = " ".join(conditions.argv)
        # A server that nothing is known about may have any flags.
        if not conditions.argv and not conditions.imported:
            found["address"] = conditions.address
    found |= {f"env {n}": v for n, v in conditions.env.items() if _VARIABLE_NAME.search(n)}
    return {name: value for name, value in found.items() if value not in (None, "")}


def list_plan_changes_affecting_answers(a: LaunchPlan, b: LaunchPlan) -> tuple[str, ...]:
    """Return the names of the settings that differ between two plans and may change the answers of
    their servers."""
    return list_changed_answer_settings(_collect_plan_settings(a), _collect_plan_settings(b))


def _collect_plan_settings(plan: LaunchPlan) -> dict[str, Any]:
    return collect_answer_settings(
        Conditions(
            host="",
            engine=plan.engine,
            engine_version=plan.engine_version,
            model=plan.model,
            env=plan.env_texts,
            flags=plan.flag_values,
            image=plan.image,
        )
    )


def _canonical_value_text(value: Any) -> str:
    """Return the value of a flag as a text that is the same before and after it was stored."""
    if isinstance(value, str):
        return value
    return json.dumps(value, sort_keys=True, default=str)


# Facts that a result may lack: absent on one side says nothing.
_MODEL_FLAGS = (f"{_SETTING}model", f"{_SETTING}model-path", f"{_SETTING}hf-file")
_BOTH_KNOWN = ("engine", "engine version", "model", "model files", "program", "command", "address")


def list_changed_answer_settings(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the settings in which the answers of two servers may differ, from the
    `collect_answer_settings` of both: flags such as "kv-cache-dtype", then variables, then facts
    such as "engine version"."""
    changed = [name for name in {**b, **a} if _is_setting_changed(name, a.get(name), b.get(name))]
    if a.get("model files") and a.get("model files") == b.get("model files"):
        changed = [name for name in changed if name not in _MODEL_FLAGS]  # one file at two places
    # the other settings say nothing more
    if larger := [name for name in ("engine", "model") if name in changed]:
        return tuple(larger)
    flags, rest = [], []
    for name in changed:
        if name.startswith(_SETTING):
            flags.append(name.removeprefix(_SETTING))
        else:
            rest.append(name)
    return (*flags, *rest)


def _is_setting_changed(name: str, x: Any, y: Any) -> bool:
    if name in _BOTH_KNOWN and None in (x, y):
        return False
    if name == "engine version":  # a log gives the release, the installed package also its build
        (one, its_build, _), (other, build, _) = (str(v).partition("+") for v in (x, y))
        same_release = one == other and bool(its_build) != bool(build)
        return x != y and not same_release
    return bool(x != y)


def _has_equal_settings(side: Mapping[str, Any], settings: Mapping[str, Any]) -> bool:
    """Return whether the server of one side of a comparison had these settings. False if its
    settings are not known."""
    return bool(side) and not list_changed_answer_settings(side, settings)


def find_quality_comparison(
    a: Mapping[str, Any],
    b: Mapping[str, Any],
    comparisons: Iterable[QualityResult],
    *,
    simulated: bool,
) -> QualityResult | None:
    """Return a comparison of a server with the settings `a` as side A and one with the settings `b`
    as side B, as `collect_answer_settings` returns them. None if there is none. Own comparisons
    come before imported ones. Comparisons that measured nothing do not count, and simulated ones
    only if `simulated` is True."""
    for one in sorted(comparisons, key=lambda one: bool(one.imported)):  # own measurements first
        sides = ((one.conditions_a, a), (one.conditions_b, b))
        alike = all(_has_equal_settings(side, settings) for side, settings in sides)
        if alike and one.verdict != NOT_MEASURED and one.simulated == simulated:
            return one
    return None


_IDENTIFYING = frozenset(("program", "command", "address"))


def find_sides_in_quality_comparisons(
    conditions: Conditions, comparisons: Iterable[QualityResult]
) -> tuple[tuple[str, QualityResult], ...]:
    """Return the comparisons in which a server with these conditions was one side, as pairs (side,
    comparison). The side is "A" or "B", and "B" if it was both. Comparisons that measured nothing
    do not count. () for a server of which neither the program nor the command nor the address is
    known."""
    settings = collect_answer_settings(conditions)
    if _IDENTIFYING.isdisjoint(settings):
        return ()
    found = []
    for one in comparisons:
        if one.verdict == NOT_MEASURED or one.simulated != conditions.simulated:
            continue
        sides = (("B", one.conditions_b), ("A", one.conditions_a))
        alike = [side for side, its in sides if _has_equal_settings(its, settings)]
        if alike:
            found.append((alike[0], one))
    return tuple(found)

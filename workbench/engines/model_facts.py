"""Figures of the model that a plan runs: the preset's for its own model, else those read from the host, else none.

A figure is never carried over to another model, checkpoint or quantization: speed limits and memory estimates made from
it would be wrong where people tune.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from workbench.model.plan import LaunchPlan, ModelFacts

if TYPE_CHECKING:
    from workbench.model.preset import Preset

_GIGA = 1e9
_SAME_SIZE = 0.03  # two counts of the same weights differ by less: file headers, rounding in a preset
_AT_LOAD = ("quantization", "torchao-config", "hf-overrides", "json-model-override-args", "dtype")
_16_BIT = ("auto", "half", "float16", "bfloat16")
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")

Found = Mapping[tuple[str, ...], ModelFacts]


def of_preset(preset: Preset, model_id: str, flags: Mapping[str, Any]) -> ModelFacts:
    """Return the preset's figures in counts and bytes, for `model_id` started with the preset's own `flags`."""

    def giga(value: float | None) -> float | None:
        return None if value is None else value * _GIGA

    model = preset.model
    return ModelFacts(
        id=model_id,
        parameters=giga(model.parameters_b),
        quantization=model.quantization,
        bytes_per_token=giga(model.bytes_per_token_gb),
        weight_bytes=giga(model.weight_gb),
        kv_bytes_per_token=model.kv_bytes_per_token,
        layers=model.layers,
        flags={name: value for name, value in flags.items() if name in (*_AT_LOAD, "revision")},
        source=f"preset {preset.id}",
    )


def model_key(plan: LaunchPlan) -> tuple[str, ...]:
    """Return what decides which files a plan loads."""
    return (plan.model, *(str(plan.flag(name) or "") for name in ("revision", "model-dir")))


def is_path(model: str) -> bool:
    """Return whether a model is meant as a file or directory and not as a hub id ("org/name")."""
    return model.startswith(("/", "./", "../", "~")) or model.endswith(".gguf")


def needs_look(plan: LaunchPlan, found: Found) -> bool:
    """Return whether the host can tell more of the plan's model than is known by now."""
    return bool(plan.model) and model_key(plan) not in found and (is_path(plan.model) or not _preset_holds(plan))


def facts_of(plan: LaunchPlan, found: Found) -> ModelFacts | None:
    """Return the figures that hold for the plan as it is; `found` has those read from the host, by `model_key`.

    Figures that are dropped leave their reason in `missing`.
    """
    if plan.model_facts is None:
        return None
    read = found.get(model_key(plan))
    facts = plan.model_facts
    if not _preset_holds(plan) or (read and read.weight_bytes and not _same_weights(facts, read)):
        nothing = f"the preset's figures are for {facts.id}" if facts.weight_bytes else "the preset has none"
        reason = read.missing if read else "the model's files were not looked at yet"
        facts = read if read and read.weight_bytes else ModelFacts(plan.model, missing=f"{nothing}, and {reason}")
    return _as_loaded(plan, facts)


def _preset_holds(plan: LaunchPlan) -> bool:
    """Whether the preset's figures are for the plan's model: the same hub id, or a path that ends in the same name."""
    facts = plan.model_facts
    if facts is None or not facts.weight_bytes or facts.flags.get("revision") != plan.flag("revision"):
        return False
    ours, theirs = plan.model.rstrip("/").lower(), facts.id.rstrip("/").lower()
    if is_path(ours) or is_path(theirs):
        return ours.rpartition("/")[2] == theirs.rpartition("/")[2]
    return ours == theirs


def _same_weights(facts: ModelFacts, read: ModelFacts) -> bool:
    return bool(
        facts.weight_bytes
        and read.weight_bytes
        and abs(facts.weight_bytes - read.weight_bytes) <= _SAME_SIZE * read.weight_bytes
    )


def _as_loaded(plan: LaunchPlan, facts: ModelFacts) -> ModelFacts:
    """Without the sizes of weights that the engine converts while it loads them."""
    for name in _AT_LOAD:
        now, then = _plain(plan.flag(name)), _plain(facts.flags.get(name))
        own = (facts.quantization or "").lower()
        if now == then or (now and not then and now in own):  # the checkpoint's own format, said again
            continue
        what = f"{name} {plan.flag(name)}" if now else f"no {name}"
        reason = f"{what}: the weights in memory are not those that the figures of {facts.source or facts.id} are for"
        return replace(facts, weight_bytes=None, bytes_per_token=None, quantization=None, missing=reason)
    return facts


def _plain(value: Any) -> str:
    text = str(value or "").lower()
    return "" if text in _16_BIT else text.removesuffix("_marlin")


def from_config(model: str, config: Mapping[str, Any], weight_bytes: int, *, head: bool, source: str) -> ModelFacts:
    """Return the figures of a checkpoint in Hugging Face format.

    `head`: it stores an output matrix of its own, so that the input embedding is looked up and not read for each token.
    What the configuration does not tell stays None.
    """
    text = next((c for k in ("text_config", "llm_config") if isinstance(c := config.get(k), Mapping)), config)
    word = str(config.get("torch_dtype") or config.get("dtype") or text.get("torch_dtype") or text.get("dtype") or "")
    quantization = config.get("quantization_config") or text.get("quantization_config")
    method = quantization.get("quant_method") if isinstance(quantization, Mapping) else None
    facts = ModelFacts(
        model,
        quantization=str(method or word) or None,
        weight_bytes=float(weight_bytes),
        kv_bytes_per_token=_kv_bytes(text),
        layers=_count(text, "num_hidden_layers"),
        source=source,
    )
    vocabulary, hidden = _count(text, "vocab_size"), _count(text, "hidden_size")
    if any((_count(text, name) or 0) > 1 for name in _EXPERTS):
        return replace(facts, missing="of a mixture of experts it is not known how many bytes one token reads")
    if any(isinstance(config.get(name), Mapping) for name in ("vision_config", "audio_config")):
        return replace(facts, missing="of a multimodal model it is not known how many bytes one token reads")
    if vocabulary is None or hidden is None:
        return replace(facts, missing="its config.json names no vocabulary or hidden size")
    embedding = vocabulary * hidden * (4 if word == "float32" else 2) if head else 0
    if embedding >= weight_bytes:
        return replace(facts, missing="its config.json and its weight files do not belong together")
    return replace(facts, bytes_per_token=float(weight_bytes - embedding))


def _kv_bytes(text: Mapping[str, Any]) -> float | None:
    """Bytes of KV cache per token in 16 bit; None where not every layer keeps every token."""
    layers, heads = _count(text, "num_hidden_layers"), _count(text, "num_attention_heads")
    kinds = text.get("layer_types") or ()
    windowed = text.get("sliding_window") and text.get("use_sliding_window") is not False
    if layers is None or windowed or any(kind != "full_attention" for kind in kinds):
        return None
    if (rank := _count(text, "kv_lora_rank")) is not None:
        return float((rank + (_count(text, "qk_rope_head_dim") or 0)) * layers * 2)
    hidden = _count(text, "hidden_size")
    size = _count(text, "head_dim") or (hidden // heads if hidden and heads else None)
    kv_heads = _count(text, "num_key_value_heads") or heads
    return float(2 * layers * kv_heads * size * 2) if kv_heads and size else None


def _count(config: Mapping[str, Any], name: str) -> int | None:
    value = config.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**40 else None

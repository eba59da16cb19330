"""The sizes of the model that a plan runs, such as the bytes of its weights. They are the preset's
sizes if the plan runs the preset's own model, otherwise those read from the model's files on the
host, otherwise unknown.

Sizes are never used for another model, checkpoint or quantization, because speed limits and memory
estimates computed from them would be wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from workbench.engines.gguf import config_from_metadata
from workbench.engines.kv_size import kv_bytes_per_token
from workbench.engines.model_config import (
    parse_model_shape,
    read_total_and_active_experts,
    select_language_model_config,
)
from workbench.engines.weight_bits import (
    BITS,
    bits_per_weight_from_config,
    normalize_quantization,
    weight_bytes_in_memory,
    weight_bytes_read_per_token,
)
from workbench.engines.weight_files import Tensor, sum_weights_by_part
from workbench.model.model_shape import ModelShape, WeightParts
from workbench.model.plan import LaunchPlan, ModelFacts
from workbench.model.untrusted_text import as_table

if TYPE_CHECKING:
    from workbench.model.preset import Preset

_GIGA = 1e9
_DENSE = 0.9  # a token of a dense model reads at least this share of the weights
# sizes of the same weights differ by less, because of file headers and rounding in a preset
_SAME_SIZE = 0.03
_AT_LOAD = ("quantization", "torchao-config", "hf-overrides", "json-model-override-args", "dtype")
_16_BIT = ("auto", "half", "float16", "bfloat16")
# values of `quantization` for a 16-bit checkpoint
_QUANTIZED_AT_LOAD = {"fp8": "FP8", "mxfp4": "MXFP4"}
_EXPERTS_UNKNOWN = "the bytes that one token reads are unknown for a mixture of experts"
_NOT_READ = ModelFacts("", missing="the model's files have not been read yet")

ReadModelFacts = Mapping[tuple[str, ...], ModelFacts]


def model_facts_from_preset(preset: Preset, model_id: str, flags: Mapping[str, Any]) -> ModelFacts:
    """Return the model sizes that the preset states. They are valid for the model `model_id`
    started with `flags`, the preset's own flags. If the preset does not state the bytes of the
    weights, they are computed from its number of parameters and its quantization. A size that is
    still unknown is None."""

    def from_billions(value: float | None) -> float | None:
        return None if value is None else value * _GIGA

    model = preset.model
    bits = _bits_per_weight_of_quantization(model.quantization)
    weights, source = from_billions(model.weight_gb), f"preset {preset.id}"
    if weights is None and model.parameters_b and bits:
        weights = model.parameters_b * _GIGA * bits / 8
        source += f", at least {bits:.3g} bits for each of {model.parameters_b:g}e9 parameters"
    return ModelFacts(
        id=model_id,
        parameters=from_billions(model.parameters_b),
        quantization=model.quantization,
        bytes_per_token=from_billions(model.bytes_per_token_gb),
        weight_bytes=weights,
        kv_bytes_per_token=model.kv_bytes_per_token,
        layers=model.layers,
        flags={name: value for name, value in flags.items() if name in (*_AT_LOAD, "revision")},
        source=source,
    )


def _bits_per_weight_of_quantization(quantization: str | None) -> float | None:
    """Return the bits per weight of a quantization as a preset names it, None if it is unknown. A
    name with "int4" of no known method counts as AWQ. AWQ and GPTQ with "int8" are unknown: their
    usual 4 bits would be wrong."""
    text = (quantization or "").lower()
    name = normalize_quantization(quantization)
    if name is None and "int4" in text:
        name = "AWQ"
    if name in ("AWQ", "GPTQ") and "int8" in text:
        return None
    if name is None:
        return None
    return BITS.get(name)


def model_files_key(plan: LaunchPlan) -> tuple[str, ...]:
    """Return the values of the plan that decide which model files it loads: the model, its
    revision, and the directory of local models."""
    return (plan.model, *(str(plan.flag(name) or "") for name in ("revision", "model-dir")))


def is_model_path(model: str) -> bool:
    """Return whether `model` is a path: it begins with /, ./, ../ or ~, or ends with .gguf. Any
    other text is a hub id ("org/name")."""
    return model.startswith(("/", "./", "../", "~")) or model.endswith(".gguf")


def must_read_model_files(plan: LaunchPlan, read_facts: ReadModelFacts) -> bool:
    """Return whether the files of the plan's model must be read on the host. That is so if they
    have not been read yet, and if the model is a path or the preset's sizes are not valid for it.
    False for a plan without a model. `read_facts` has the sizes that were already read from files,
    by the result of `model_files_key`."""
    return (
        bool(plan.model)
        and model_files_key(plan) not in read_facts
        and (is_model_path(plan.model) or not _are_preset_sizes_valid(plan))
    )


def choose_model_facts(plan: LaunchPlan, read_facts: ReadModelFacts) -> ModelFacts | None:
    """Return the sizes that are valid for the plan's model. None if the plan was not made from a
    preset. `read_facts` has the sizes that were read from files on the host, by the result of
    `model_files_key`.

    If the sizes are unknown, the field `missing` of the result gives the reason.
    """
    facts, read = plan.model_facts, read_facts.get(model_files_key(plan), _NOT_READ)
    if facts is None:
        return None
    preset_bytes = 0.0
    if _are_preset_sizes_valid(plan):
        preset_bytes = facts.weight_bytes or 0.0
    if read.weight_bytes:
        if not _are_sizes_nearly_equal(preset_bytes, read.weight_bytes):
            facts = read
    elif not preset_bytes:
        nothing = "the preset has no sizes"
        if facts.weight_bytes:
            nothing = f"the preset's sizes are for {facts.id}"
        facts = ModelFacts(plan.model, missing=f"{nothing}, and {read.missing}")
    return _adjust_sizes_to_load_flags(plan, facts)


def _are_preset_sizes_valid(plan: LaunchPlan) -> bool:
    """Return whether the preset's sizes are valid for the plan's model. Both must have the same
    revision and the same hub id; if one of them is a path, only the last part of the names must be
    the same. False if the preset has no sizes."""
    facts = plan.model_facts
    if (
        facts is None
        or not facts.weight_bytes
        or facts.flags.get("revision") != plan.flag("revision")
    ):
        return False
    planned, sized = plan.model.rstrip("/").lower(), facts.id.rstrip("/").lower()
    if is_model_path(planned) or is_model_path(sized):
        return planned.rpartition("/")[2] == sized.rpartition("/")[2]
    return planned == sized


def _are_sizes_nearly_equal(stated_bytes: float, read_bytes: float) -> bool:
    return abs(stated_bytes - read_bytes) <= _SAME_SIZE * read_bytes


def _adjust_sizes_to_load_flags(plan: LaunchPlan, facts: ModelFacts) -> ModelFacts:
    """Return the sizes that the weights have in memory with the plan's flags. If a flag quantizes a
    16-bit checkpoint to FP8 or MXFP4, the result has the sizes after that. If a flag converts the
    weights in another way, the sizes of the weights are None, and `missing` has the reason.
    Otherwise return `facts` unchanged."""
    for name in _AT_LOAD:
        now = _normalize_flag_value(plan.flag(name))
        then = _normalize_flag_value(facts.flags.get(name))
        own = (facts.quantization or "").lower()
        # the checkpoint's own format, set explicitly
        if now == then or (now and not then and now in own):
            continue
        if name == "quantization" and (converted := _facts_quantized_at_load(facts, now)):
            facts = converted
            continue
        flag = f"{name} {plan.flag(name)}" if now else f"no {name}"
        reason = f"{flag}: the sizes of {facts.source or facts.id} are for other weights in memory"
        return replace(
            facts, weight_bytes=None, bytes_per_token=None, quantization=None, missing=reason
        )
    return facts


def estimate_weight_parts(facts: ModelFacts) -> WeightParts | None:
    """Return how many weights each part of the model has; None if that is unknown.

    A preset gives only the number of parameters, the bytes of all weights and the bytes read per
    token. For a dense model the parts follow from these: the bytes that a token does not read are
    the embedding, and the output matrix has the same size.
    """
    if facts.known_shape.parts is not None:
        return facts.known_shape.parts
    held, read = facts.weight_bytes or 0.0, facts.bytes_per_token or 0.0
    if not facts.parameters or not _DENSE * held <= read <= held:
        return None
    embedding = (held - read) / 2
    return WeightParts(
        dense=max(0.0, facts.parameters - 2 * embedding), head=embedding, embedding=embedding
    )


def _facts_quantized_at_load(facts: ModelFacts, quantization: str) -> ModelFacts | None:
    """Return the sizes of a 16-bit checkpoint after the engine has quantized it while loading. None
    if the engine cannot quantize to `quantization` at load, if the checkpoint is not 16-bit, or if
    the parts of the model are unknown."""
    kind, parts = _QUANTIZED_AT_LOAD.get(quantization), estimate_weight_parts(facts)
    if kind is None or parts is None or normalize_quantization(facts.quantization) != "BF16":
        return None
    return replace(
        facts,
        quantization=kind,
        weight_bytes=weight_bytes_in_memory(parts, BITS[kind]),
        bytes_per_token=weight_bytes_read_per_token(parts, BITS[kind]),
        source=f"{facts.source}, quantized to {kind} at load",
    )


def _normalize_flag_value(value: Any) -> str:
    text = str(value or "").lower()
    return "" if text in _16_BIT else text.removesuffix("_marlin")


def model_facts_from_config(
    model: str,
    config: Mapping[str, Any],
    weight_bytes: int,
    *,
    has_separate_head: bool,
    source: str,
    tensors: Sequence[Tensor] = (),
) -> ModelFacts:
    """Return the sizes of a checkpoint in Hugging Face format, given its config.json and the bytes
    of its weights. A size that cannot be derived is None.

    `tensors` are the tensors of all its weight files. `has_separate_head` is needed only without
    them: it is True if the output matrix is stored separately from the embedding."""
    word = str(_read_first_field(config, "torch_dtype", "dtype"))
    quantization = as_table(_read_first_field(config, "quantization_config"))
    shape = parse_model_shape(config)
    facts = ModelFacts(
        model,
        quantization=str(quantization.get("quant_method") or word) or None,
        weight_bytes=float(weight_bytes),
        kv_bytes_per_token=kv_bytes_per_token(shape.kv),
        layers=shape.layers,
        shape=shape,
        source=source,
    )
    experts = read_total_and_active_experts(select_language_model_config(config))
    bits = bits_per_weight_from_config(quantization)
    if sized := _add_sizes_of_tensors(facts, shape, tensors, bits, experts):
        return sized
    if experts != (1, 1):
        return replace(facts, missing=_EXPERTS_UNKNOWN)
    if any(isinstance(config.get(name), Mapping) for name in ("vision_config", "audio_config")):
        return replace(
            facts, missing="the bytes that one token reads are unknown for a multimodal model"
        )
    if shape.vocabulary is None or shape.hidden is None:
        return replace(facts, missing="its config.json has no vocabulary or hidden size")
    value_bytes = 4 if word == "float32" else 2
    embedding = shape.vocabulary * shape.hidden * value_bytes if has_separate_head else 0
    if embedding >= weight_bytes:
        return replace(facts, missing="its config.json and its weight files do not belong together")
    return replace(facts, bytes_per_token=float(weight_bytes - embedding))


def _read_first_field(config: Mapping[str, Any], *names: str) -> Any:
    """Return the value of the first of the fields `names` that a config.json sets: first those for
    the whole model, then those for its language model. "" if no field has a value, or if all values
    are empty."""
    for part in (config, select_language_model_config(config)):
        for name in names:
            if value := part.get(name):
                return value
    return ""


def _add_sizes_of_tensors(
    facts: ModelFacts,
    shape: ModelShape,
    tensors: Sequence[Tensor],
    packed_bits: float,
    experts: tuple[int, int] | None,
) -> ModelFacts | None:
    """Return `facts` with the bytes per token and the weights of each part, computed from the
    tensors of all weight files. `packed_bits` is the bits per weight in tensors that pack several
    weights into one number. `experts` is (number of experts, number that a token uses). None
    without tensors, or if there are experts and `experts` is None."""
    share = experts[1] / experts[0] if experts else None
    found = sum_weights_by_part(
        tensors, packed_bits=packed_bits, expert_share=share, layers=shape.layers
    )
    if found is None:
        return None
    shape = replace(shape, parts=found.parts)
    return replace(facts, bytes_per_token=found.token_bytes, shape=shape)


def model_facts_from_config_without_files(
    model: str, config: Mapping[str, Any], *, source: str
) -> ModelFacts:
    """Return the sizes that a config.json implies, without the weight files. They are computed from
    the sizes of the layers, and `missing` has the reason if that is not possible.
    """
    shape = parse_model_shape(config)
    quantization = as_table(_read_first_field(config, "quantization_config"))
    if shape.parts is None:
        return ModelFacts(
            model, missing="its config.json does not tell the sizes of its layers", source=source
        )
    bits = bits_per_weight_from_config(quantization)
    return ModelFacts(
        model,
        quantization=str(quantization.get("quant_method") or "bfloat16"),
        weight_bytes=weight_bytes_in_memory(shape.parts, bits),
        bytes_per_token=weight_bytes_read_per_token(shape.parts, bits),
        kv_bytes_per_token=kv_bytes_per_token(shape.kv),
        layers=shape.layers,
        shape=shape,
        source=source,
    )


def model_facts_from_gguf(
    model: str, metadata: Mapping[str, Any], tensors: Sequence[Tensor], *, source: str
) -> ModelFacts:
    """Return the sizes of a model in GGUF format, given the metadata and the tensors of all its
    files. If the bytes that one token reads are unknown, `missing` has the reason."""
    config = config_from_metadata(metadata)
    shape = parse_model_shape(config)
    facts = ModelFacts(
        model,
        quantization="GGUF",
        weight_bytes=float(sum(t.bytes for t in tensors)),
        kv_bytes_per_token=kv_bytes_per_token(shape.kv),
        layers=shape.layers,
        shape=shape,
        source=source,
    )
    sized = _add_sizes_of_tensors(facts, shape, tensors, 16, read_total_and_active_experts(config))
    return sized or replace(facts, missing=_EXPERTS_UNKNOWN)

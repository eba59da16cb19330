"""Speculative decoding: how many tokens a step drafts by the flags of each engine, and how many it
yields. `Engine.drafted_tokens_per_step` says what the numbers mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workbench.engines.catalog import (
    find_nearest_catalog_version,
    load_catalog,
    parse_version_numbers,
)
from workbench.model.untrusted_text import as_table

UNKNOWN_DRAFTS = "the flags do not say how many tokens speculation drafts in a step"
# vLLM has three short forms of keys of speculative-config (vllm/engine/arg_utils.py,
# create_speculative_config, 0.33).
_VLLM_SHORT_FORMS = ("spec-method", "spec-model", "spec-tokens")
# What SGLang makes of its flags: arg_groups/speculative_hook.py. A step of these algorithms drafts
# speculative-num-steps tokens in a row.
_SGLANG_IN_STEPS = frozenset(("EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "FROZEN_KV_MTP"))
# The draft tokens of these include the last token of the text itself.
_SGLANG_IN_WINDOWS = frozenset(("DFLASH", "DSPARK", "NGRAM"))
_SGLANG_NGRAM_WINDOW = 12
# Which flag of llama-server limits the drafts of a type: tools/server/README.md. The others share
# that of the types draft-*.
_LLAMACPP_DEPTHS = {
    "ngram-mod": "spec-ngram-mod-n-max",
    "ngram-simple": "spec-ngram-simple-size-m",
    "ngram-map-k": "spec-ngram-map-k-size-m",
    "ngram-map-k4v": "spec-ngram-map-k4v-size-m",
}
_LLAMACPP_DRAFT_MODELS = ("spec-draft-model", "spec-draft-hf")


def tokens_per_step(drafted: int | None, accepted_pct: float | None) -> float | None:
    """Return the tokens that a step produces per stream: the accepted ones of the `drafted` tokens,
    and one token of the model itself. None if `drafted` is None.

    `accepted_pct` is the measured percentage of accepted draft tokens. If it is None, all draft
    tokens count as accepted, because the result serves as an upper limit.
    """
    if drafted is None:
        return None
    if accepted_pct is None:
        accepted_pct = 100.0
    return 1 + drafted * accepted_pct / 100


def drafted_by_vllm(flags: Mapping[str, Any]) -> int | None:
    """Return the number of tokens that a step of a vLLM server drafts; 0 without speculation. None
    if the draft model decides, or if the number depends on the batch size."""
    given = flags.get("speculative-config")
    if given is None and not any(flags.get(name) for name in _VLLM_SHORT_FORMS):
        return 0
    config = {key.replace("-", "_"): value for key, value in as_table(given).items()}
    if "num_speculative_tokens_per_batch_size" in config:
        return None
    number = config.get("num_speculative_tokens", flags.get("spec-tokens"))
    return _positive_or_none(number)


def drafted_by_sglang(flags: Mapping[str, Any]) -> int | None:
    """Return the number of tokens that a step of an SGLang server drafts; 0 without speculation.
    None if the flags leave it to the model or to the load."""
    algorithm = str(flags.get("speculative-algorithm") or "").upper()
    if not algorithm:
        return 0
    if flags.get("speculative-adaptive"):
        return None
    if algorithm in _SGLANG_IN_STEPS:
        return _positive_or_none(flags.get("speculative-num-steps"))
    if algorithm == "DSPARK" and flags.get("speculative-dspark-block-size"):
        return _positive_or_none(flags.get("speculative-dspark-block-size"))
    if algorithm not in _SGLANG_IN_WINDOWS:
        return None
    window = flags.get("speculative-num-draft-tokens")
    if window is None:
        window = {
            "DFLASH": flags.get("speculative-dflash-block-size"),
            "NGRAM": _SGLANG_NGRAM_WINDOW,
        }.get(algorithm)
    window = _positive_or_none(window)
    return window and window - 1


def drafted_by_llamacpp(flags: Mapping[str, Any], version: str | None) -> int | None:
    """Return the number of tokens that a step of a llama-server drafts at most; 0 without
    speculation. None if the flags do not tell one number. `version` is the installed version, whose
    default counts."""
    types = [name.strip() for name in str(flags.get("spec-type") or "").split(",")]
    types = [name for name in types if name not in ("", "none")]
    drafts_by_model = any(flags.get(name) for name in _LLAMACPP_DRAFT_MODELS)
    if flags.get("spec-default"):
        return None
    if not types and not drafts_by_model:
        return 0
    # The first type that finds a draft counts, so several types have no common number.
    if len(types) > 1 or "ngram-cache" in types:
        return None
    if flags.get("draft-max") is not None:  # the name in builds before llama.cpp#22397
        return _positive_or_none(flags["draft-max"])
    depth = _LLAMACPP_DEPTHS.get(types[0] if types else "", "spec-draft-n-max")
    if flags.get(depth) is not None:
        return _positive_or_none(flags[depth])
    return _positive_or_none(_default_of_llamacpp(depth, version))


def _default_of_llamacpp(flag: str, version: str | None) -> Any:
    """Return the default of a flag of llama-server. None if the catalog lacks the flag, or if
    `version` is unknown or older than the catalog, because its default may have been another
    one."""
    catalog = load_catalog("llamacpp", find_nearest_catalog_version("llamacpp", version))
    if parse_version_numbers(version) < parse_version_numbers(catalog.version):
        return None
    spec = catalog.flags.get(flag)
    return spec and spec.default


def drafted_by_tabbyapi(flags: Mapping[str, Any]) -> int | None:
    """Return the number of tokens that a step of a TabbyAPI server drafts; 0 without speculation.
    None without draft-num-tokens, because TabbyAPI then decides."""
    mode = str(flags.get("draft-mode") or "model")
    if mode == "disabled" or (mode == "model" and not flags.get("draft-model-name")):
        return 0
    return _positive_or_none(flags.get("draft-num-tokens"))


def _positive_or_none(number: Any) -> int | None:
    if type(number) is int and number > 0:
        return number
    return None

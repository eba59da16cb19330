"""How many tokens a step drafts, by the flags of each engine: a number, none, or not known."""

from __future__ import annotations

from typing import Any

import pytest

from workbench.engines.catalog import list_catalog_versions
from workbench.engines.registry import engine_names, get_engine
from workbench.engines.speculation import tokens_per_step

MTP = {"method": "mtp", "num_speculative_tokens": 3}
BY_BATCH = {**MTP, "num_speculative_tokens_per_batch_size": [[1, 4, 3]]}
EAGLE = {"speculative-algorithm": "EAGLE"}
DFLASH = {"speculative-algorithm": "DFLASH"}
NGRAM = {"speculative-algorithm": "NGRAM"}
MODEL = {"spec-draft-model": "small.gguf"}
TODAY = list_catalog_versions("llamacpp")[-1]


@pytest.mark.parametrize(
    ("engine", "flags", "drafted"),
    [
        ("vllm", {"max-num-seqs": 8}, 0),
        ("vllm", {"speculative-config": MTP}, 3),
        ("vllm", {"speculative-config": {"method": "mtp", "num-speculative-tokens": 2}}, 2),
        ("vllm", {"speculative-config": {"method": "suffix"}}, None),
        ("vllm", {"speculative-config": BY_BATCH}, None),
        ("vllm", {"spec-method": "mtp", "spec-tokens": 4}, 4),
        ("vllm", {"speculative-config": {"method": "mtp"}, "spec-tokens": 4}, 4),
        ("vllm", {"spec-method": "mtp"}, None),
        ("vllm", {"spec-model": "org/drafter"}, None),
        ("sglang", {"speculative-num-steps": 4}, 0),
        ("sglang", {**EAGLE, "speculative-num-steps": 4}, 4),
        ("sglang", {**EAGLE, "speculative-num-steps": 2, "speculative-adaptive": True}, None),
        ("sglang", EAGLE, None),
        ("sglang", {"speculative-algorithm": "nextn"}, None),
        ("sglang", {**DFLASH, "speculative-num-draft-tokens": 8}, 7),
        ("sglang", {**DFLASH, "speculative-dflash-block-size": 8}, 7),
        ("sglang", DFLASH, None),
        ("sglang", NGRAM, 11),
        ("sglang", {"speculative-algorithm": "DSPARK", "speculative-dspark-block-size": 5}, 5),
        ("sglang", {"speculative-algorithm": "own-plugin", "speculative-num-steps": 3}, None),
        ("tabbyapi", {"draft-num-tokens": 5}, 0),
        ("tabbyapi", {"draft-model-name": "small", "draft-num-tokens": 5}, 5),
        ("tabbyapi", {"draft-model-name": "small"}, None),
        ("tabbyapi", {"draft-mode": "disabled", "draft-model-name": "small"}, 0),
        ("tabbyapi", {"draft-mode": "mtp"}, None),
        ("llamacpp", {"spec-draft-n-max": 8}, 0),
        ("llamacpp", {**MODEL, "spec-draft-n-max": 8}, 8),
        ("llamacpp", {"spec-type": "draft-mtp", "spec-draft-n-max": 2}, 2),
        ("llamacpp", {"spec-type": "none"}, 0),
        ("llamacpp", {**MODEL, "draft-max": 12}, 12),
        ("llamacpp", MODEL, None),
        ("llamacpp", {"spec-type": "ngram-mod,draft-mtp", "spec-draft-n-max": 2}, None),
        ("llamacpp", {"spec-type": "ngram-simple", "spec-ngram-simple-size-m": 9}, 9),
        ("llamacpp", {"spec-type": "ngram-cache"}, None),
        ("llamacpp", {"spec-default": True}, None),
    ],
)
def test_each_form_of_the_flags_has_its_number(
    engine: str, flags: dict[str, Any], drafted: int | None
) -> None:
    """Short forms and defaults counted as no speculation."""
    assert get_engine(engine).drafted_tokens_per_step(flags) == drafted


@pytest.mark.parametrize("engine", engine_names())
def test_a_server_without_flags_drafts_nothing(engine: str) -> None:
    """A server that counted as one with speculation would have no speed limit."""
    assert get_engine(engine).drafted_tokens_per_step({}) == 0


def test_a_default_of_llamacpp_counts_only_for_versions_that_have_it() -> None:
    assert get_engine("llamacpp").drafted_tokens_per_step(MODEL, TODAY) == 3
    assert get_engine("llamacpp").drafted_tokens_per_step({"spec-type": "ngram-mod"}, TODAY) == 64
    assert get_engine("llamacpp").drafted_tokens_per_step(MODEL, "b4000") is None


def test_a_step_yields_its_accepted_drafts_and_one_token() -> None:
    assert tokens_per_step(4, 50.0) == 3.0
    assert tokens_per_step(4, None) == 5.0
    assert tokens_per_step(0, None) == 1.0
    assert tokens_per_step(None, 50.0) is None

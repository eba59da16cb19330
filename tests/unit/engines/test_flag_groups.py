"""Tests of the groups and the help of the launch flags in the packaged catalogs."""

from __future__ import annotations

import json

import pytest

from workbench.engines import catalog, registry
from workbench.engines.catalog_files import DIRECTORY
from workbench.engines.flag_groups import flag_group_names, rank_among_most_used_flags
from workbench.model.flags import FlagSpec

CATALOGS = [
    (engine, version)
    for engine in registry.engine_names()
    for version in catalog.list_catalog_versions(engine)
]
# vLLM 0.33.0 was published without descriptions of these, and no documentation of it was found.
NOT_DESCRIBED = {"monokernel", "reasoning-effort-map", "sleep-mode-backend", "watchdog-config"}


def flags(engine: str, version: str) -> list[FlagSpec]:
    return list(catalog.load_catalog(engine, version).flags.values())


@pytest.mark.parametrize(("engine", "version"), CATALOGS)
def test_each_flag_has_a_group_and_a_sentence(engine: str, version: str) -> None:
    for flag in flags(engine, version):
        assert flag.area in flag_group_names(), flag.name
        assert flag.help.endswith(".") and 10 < len(flag.help) <= 160, (flag.name, flag.help)


@pytest.mark.parametrize(("engine", "version"), CATALOGS)
def test_a_flag_without_documentation_says_so(engine: str, version: str) -> None:
    silent = {
        flag.name
        for flag in flags(engine, version)
        if flag.help == f"No description in {engine} {version}."
    }
    assert silent == (NOT_DESCRIBED if (engine, version) == ("vllm", "0.33.0") else set())


@pytest.mark.parametrize("engine", registry.engine_names())
def test_the_data_names_only_flags_that_exist(engine: str) -> None:
    known = {
        flag.name
        for version in catalog.list_catalog_versions(engine)
        for flag in flags(engine, version)
    }
    texts = json.loads((DIRECTORY / "help.json").read_text())[engine]
    table = json.loads((DIRECTORY / "groups.json").read_text())[engine]
    assert set(texts) <= known
    assert set(table["most used"]) <= known
    assert {group for group, _ in table["patterns"]} | set(table["own"].values()) <= set(
        flag_group_names()
    )


@pytest.mark.parametrize("engine", registry.engine_names())
def test_the_most_used_flags_are_few(engine: str) -> None:
    assert (
        10
        <= sum(
            flag.most_used > 0 for flag in flags(engine, catalog.list_catalog_versions(engine)[-1])
        )
        <= 20
    )


@pytest.mark.parametrize(
    ("engine", "flag", "group"),
    [
        ("vllm", "max-num-seqs", "batching"),
        ("vllm", "tensor-parallel-size", "parallelism"),
        ("vllm", "ssl-keyfile", "network"),
        ("vllm", "kv-cache-dtype", "quantization"),
        ("sglang", "mem-fraction-static", "memory"),
        ("sglang", "attention-backend", "attention and kernels"),
        ("llamacpp", "spec-draft-model", "speculative decoding"),
        ("tabbyapi", "cache-mode", "memory"),
        ("vllm", "a-flag-of-tomorrow", "process and debugging"),
    ],
)
def test_group_of_a_flag(engine: str, flag: str, group: str) -> None:
    from workbench.engines.flag_groups import group_name_of_flag

    newest = catalog.load_catalog(engine, catalog.list_catalog_versions(engine)[-1]).flags
    assert group_name_of_flag(engine, flag, newest[flag].group if flag in newest else "") == group


def test_the_place_of_a_flag_that_few_people_set() -> None:
    assert rank_among_most_used_flags("vllm", "model") == 1
    assert rank_among_most_used_flags("vllm", "ssl-keyfile") == 0

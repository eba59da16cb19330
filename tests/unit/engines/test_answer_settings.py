"""Which settings change what a model answers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from workbench.engines import catalog
from workbench.engines.answer_settings import (
    collect_answer_settings,
    find_quality_comparison,
    kind_of_answer_flag,
    list_changed_answer_settings,
    list_plan_changes_affecting_answers,
)
from workbench.model.bench import Conditions
from workbench.model.flags import FlagSetting
from workbench.model.plan import LaunchPlan
from workbench.model.quality import DIFFERS, NOT_MEASURED, QualityResult

BASE = Conditions(
    host="box",
    engine="vllm",
    engine_version="0.33.0",
    model="org/model",
    argv=("/opt/vllm/bin/vllm", "serve"),
    flags={"model": "org/model", "max-num-seqs": 64, "kv-cache-dtype": "auto"},
    env={"CUDA_VISIBLE_DEVICES": "0"},
)


def changed(**fields: object) -> tuple[str, ...]:
    other = replace(BASE, **fields)  # type: ignore[arg-type]
    return list_changed_answer_settings(
        collect_answer_settings(BASE), collect_answer_settings(other)
    )


def with_flags(**flags: object) -> dict[str, object]:
    return {**BASE.flags, **{name.replace("_", "-"): value for name, value in flags.items()}}


@pytest.mark.parametrize(
    ("engine", "flag", "sets"),
    [
        ("vllm", "kv-cache-dtype", "KV cache type"),
        ("vllm", "kv_cache_dtype", "KV cache type"),
        ("vllm", "speculative-config", "speculation"),
        ("vllm", "enforce-eager", "graphs"),
        ("vllm", "tensor-parallel-size", "parallelism"),
        ("sglang", "attention-backend", "attention backend"),
        ("sglang", "moe-runner-backend", "kernels"),
        ("llamacpp", "cache-type-k", "KV cache type"),
        ("llamacpp", "spec-draft-n-max", "speculation"),
        ("tabbyapi", "cache-mode", "KV cache type"),
        ("vllm", "max-num-seqs", ""),
        ("vllm", "port", ""),
        ("llamacpp", "spec-draft-threads", ""),
        ("llamacpp", "parallel", ""),
        ("other", "quantization", ""),
        (None, "quantization", ""),
    ],
)
def test_what_a_flag_sets(engine: str | None, flag: str, sets: str) -> None:
    assert kind_of_answer_flag(engine, flag) == sets


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llamacpp", "tabbyapi"])
def test_each_engine_has_flags_of_each_kind_in_its_catalog(engine: str) -> None:
    newest = catalog.list_catalog_versions(engine)[-1]
    found = {
        kind_of_answer_flag(engine, name) for name in catalog.load_catalog(engine, newest).flags
    }
    assert {"KV cache type", "speculation", "parallelism", "model"} <= found


def test_a_setting_that_moves_work_changes_no_answer() -> None:
    assert changed(flags=with_flags(max_num_seqs=128)) == ()
    assert changed(host="other", gpu_settings={"power_limit": 300}) == ()
    assert changed(env={"CUDA_VISIBLE_DEVICES": "1"}) == ()


def test_what_changes_the_answers_is_named() -> None:
    assert changed(flags=with_flags(kv_cache_dtype="fp8")) == ("kv-cache-dtype",)
    assert changed(flags=with_flags(quantization="fp8")) == ("quantization",)
    assert changed(engine_version="0.34.0") == ("engine version",)
    assert changed(env={"VLLM_ATTENTION_BACKEND": "FLASHINFER"}) == ("env VLLM_ATTENTION_BACKEND",)
    assert changed(model="org/other", flags=with_flags(model="org/other")) == ("model",)
    assert changed(argv=("/opt/new/bin/vllm", "serve")) == ("program",)


def test_a_build_of_the_same_release_is_no_change() -> None:
    assert changed(engine_version="0.33.0+cpu") == ()
    assert changed(engine_version=None) == ()


def test_one_file_at_two_places_is_one_model() -> None:
    here = replace(BASE, model_digest="abc")
    there = replace(here, flags=with_flags(model="/models/model"))
    assert (
        list_changed_answer_settings(collect_answer_settings(here), collect_answer_settings(there))
        == ()
    )
    other = replace(there, model_digest="def")
    assert list_changed_answer_settings(
        collect_answer_settings(here), collect_answer_settings(other)
    ) == ("model", "model files")


def test_servers_of_which_nothing_is_known_may_differ() -> None:
    a = Conditions(host="box", engine="vllm", engine_version=None, model="m", address="http://a:1")
    b = replace(a, address="http://b:1")
    assert (
        list_changed_answer_settings(collect_answer_settings(a), collect_answer_settings(a)) == ()
    )
    assert list_changed_answer_settings(collect_answer_settings(a), collect_answer_settings(b)) == (
        "address",
    )


def test_flags_that_were_stored_are_equal_to_those_before() -> None:
    a = replace(BASE, flags=with_flags(cudagraph_capture_sizes=(1, 2)))
    b = replace(BASE, flags=with_flags(cudagraph_capture_sizes=[1, 2]))
    assert (
        list_changed_answer_settings(collect_answer_settings(a), collect_answer_settings(b)) == ()
    )


def test_a_measured_comparison_is_found_by_its_settings() -> None:
    a = collect_answer_settings(BASE)
    b = collect_answer_settings(replace(BASE, flags=with_flags(kv_cache_dtype="fp8")))
    known = QualityResult("A", "B", DIFFERS, "its answers differ", conditions_a=a, conditions_b=b)
    assert find_quality_comparison(a, b, [known], simulated=False) is known
    assert find_quality_comparison(b, a, [known], simulated=False) is None
    assert find_quality_comparison(a, b, [known], simulated=True) is None
    foreign = replace(known, imported="Workbench 0.1")
    assert find_quality_comparison(a, b, [foreign, known], simulated=False) is known
    assert find_quality_comparison(a, b, [foreign], simulated=False) is foreign
    unknown = replace(known, conditions_a={}, conditions_b={})
    unmeasured = replace(known, verdict=NOT_MEASURED)
    assert find_quality_comparison(a, b, [unknown, unmeasured], simulated=False) is None


def test_two_plans_differ_in_answers_before_anything_is_started() -> None:
    plan = LaunchPlan("vllm", "org/model", flags=(FlagSetting("max-num-seqs", 64),))
    assert list_plan_changes_affecting_answers(plan, plan.with_flag("max-num-seqs", 8)) == ()
    assert list_plan_changes_affecting_answers(plan, plan.with_flag("kv-cache-dtype", "fp8")) == (
        "kv-cache-dtype",
    )
    newer = replace(plan, engine_version="0.34.0")
    assert list_plan_changes_affecting_answers(replace(plan, engine_version="0.33.0"), newer) == (
        "engine version",
    )
    assert list_plan_changes_affecting_answers(plan, replace(plan, model="org/other")) == ("model",)

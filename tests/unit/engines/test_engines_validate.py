"""Each finding with its cause, level and fix; valid plans have no findings."""

from __future__ import annotations

from typing import Any

import pytest

from workbench import engines
from workbench.engines import catalog
from workbench.model.findings import Finding, Level
from workbench.model.flags import FlagSetting, Origin
from workbench.model.gpu import GpuInfo
from workbench.model.plan import LaunchPlan, ModelFacts, Node

NEWEST = {name: engines.get_engine(name).catalog().version for name in engines.engine_names()}


def gpus(
    count: int, name: str = "NVIDIA GeForce RTX 5060 Ti", gib: int = 16, **kw: Any
) -> tuple[GpuInfo, ...]:
    return tuple(
        GpuInfo(i, f"GPU-{i}", name, memory_total_bytes=gib << 30, **kw) for i in range(count)
    )


def check_all(
    engine: str = "vllm",
    flags: dict[str, Any] | None = None,
    env: dict[str, str] | None = None,
    installed: str | None = "newest",
    cards: tuple[GpuInfo, ...] = (),
    **plan: Any,
) -> tuple[Finding, ...]:
    """Return the findings of a plan, by default with the newest catalog's version installed."""
    installed = NEWEST[engine] if installed == "newest" else installed
    if engine == "tabbyapi":
        plan.setdefault("workdir", "/opt/tabby")
    made = LaunchPlan(
        engine,
        plan.pop("model", "org/model"),
        flags=tuple(FlagSetting(n, v) for n, v in (flags or {}).items()),
        env=tuple(FlagSetting(n, v) for n, v in (env or {}).items()),
        **plan,
    )
    return engines.validate_plan(
        made, engines.get_engine(engine).catalog(installed), installed, cards
    )


def check(*args: Any, **kw: Any) -> tuple[Finding, ...]:
    """Return the findings of `check_all` without the one about a server that has no key."""
    return tuple(f for f in check_all(*args, **kw) if f.code != "bind.local")


def test_a_server_without_a_key_is_open_to_every_user_of_the_host() -> None:
    for host in ({}, {"host": "127.0.0.1"}, {"host": "localhost"}, {"host": "::1"}):
        finding = only(check_all(flags=host), "bind.local")
        assert finding.level is Level.HINT and "every user of the host" in finding.text
    for kept in ({"host": "/run/me.sock"}, {"host": "0.0.0.0"}, {"api-key": ["x"]}):
        assert "bind.local" not in {f.code for f in check_all(flags=kept)}
    assert "bind.local" not in {f.code for f in check_all(env={"VLLM_API_KEY": "x"})}
    assert "bind.local" not in {f.code for f in check_all("tabbyapi")}


def only(found: tuple[Finding, ...], code: str) -> Finding:
    hits = [f for f in found if f.code == code]
    assert len(hits) == 1, [f.code for f in found]
    return hits[0]


SOUND: dict[str, dict[str, Any]] = {
    "vllm": {"max-num-seqs": 512, "kv-cache-dtype": "fp8", "max-model-len": 8192},
    "sglang": {
        "mem-fraction-static": 0.88,
        "chunked-prefill-size": 8192,
        "attention-backend": "triton",
        "enable-metrics": True,
    },
    "tabbyapi": {
        "max-seq-len": 8192,
        "cache-size": 8192,
        "cache-mode": "4,4",
        "disable-auth": True,
    },
    "llamacpp": {"ctx-size": 8192, "n-gpu-layers": "all", "flash-attn": "on", "metrics": True},
}


@pytest.mark.parametrize("engine", engines.engine_names())
def test_sound_plans_have_no_findings(engine: str) -> None:
    assert check(engine, SOUND[engine]) == ()


@pytest.mark.parametrize(
    ("engine", "flags", "code", "fix"),
    [
        ("vllm", {"max-num-seq": 3}, "flag.unknown", "max-num-seqs"),
        ("vllm", {"speculative-model": "m"}, "flag.removed", "speculative-config"),
        ("vllm", {"num-speculative-tokens": 5}, "flag.removed", "speculative-config"),
        ("vllm", {"dtype": "float8"}, "flag.choice", "kv-cache-dtype"),
        ("vllm", {"scheduling-policy": "fcfss"}, "flag.choice", "fcfs"),
        ("vllm", {"max-num-seqs": "many"}, "flag.type", None),
        ("vllm", {"max-num-seqs": True}, "flag.type", None),
        ("vllm", {"max-num-seqs": 1.5}, "flag.type", None),
        ("vllm", {"max-num-seqs": 0}, "flag.range", None),
        ("vllm", {"port": 70000}, "flag.range", None),
        ("vllm", {"gpu-memory-utilization": 1.5}, "flag.range", "0.92"),
        ("vllm", {"gpu-memory-utilization": float("nan")}, "flag.range", None),
        ("vllm", {"max-num-seqs": [1, 2]}, "flag.repeated", None),
        ("vllm", {"speculative-config": '{"model": '}, "flag.json", None),
        ("vllm", {"speculative-config": {"modle": "m"}}, "flag.json-key", "model"),
        ("vllm", {"served-model-name": ["a", "-b"]}, "flag.dash", None),
        ("vllm", {"max-num-batched-tokens": 100, "max-num-seqs": 256}, "scheduler.tokens", "256"),
        ("sglang", {"cuda-graph-max-bs": 8}, "flag.removed", "cuda-graph-max-bs-decode"),
        ("sglang", {"disable-log-requests": True}, "flag.removed", "unset"),
        ("sglang", {"mem-fraction-static": 88}, "flag.range", None),
        ("tabbyapi", {"cache-size": 1000}, "flag.range", None),
        ("tabbyapi", {"draft-mode": "magic"}, "flag.choice", "ngram"),
        ("llamacpp", {"n-gpu-layers": "some"}, "flag.type", None),
        ("llamacpp", {"cache-type-k": "q3_0"}, "flag.choice", None),
    ],
)
def test_an_error_is_a_plan_that_the_engine_rejects(
    engine: str, flags: dict[str, Any], code: str, fix: str | None
) -> None:
    finding = only(check(engine, flags), code)
    assert finding.level == Level.ERROR
    assert finding.flag in flags
    assert fix is None or fix in (finding.fix or "")


@pytest.mark.parametrize(
    "flags", [{"brand-new": 1}, {"scheduling-policy": "brand-new"}, {"speculative-model": "m"}]
)
def test_flags_that_another_version_may_have_are_warnings(flags: dict[str, Any]) -> None:
    for installed in (None, "0.40.0", "0.8.2"):
        found = [f for f in check(flags=flags, installed=installed) if f.flag in flags]
        assert [f.level for f in found] == [Level.WARN]
    # no version has taken it
    assert check(flags={"dtype": "float8"}, installed=None)[0].level == Level.ERROR


def test_disable_log_requests_by_version() -> None:
    flags = {"disable-log-requests": True}
    assert only(check(flags=flags, installed="0.32.0"), "flag.removed").level == Level.ERROR
    assert not [f for f in check(flags=flags, installed="0.33.0") if f.level == Level.ERROR]


@pytest.mark.parametrize(
    ("flags", "code", "level"),
    [
        ({"enforce-eager": True}, "speed.eager", Level.HINT),
        ({"async-scheduling": True}, "flag.default", Level.HINT),
        ({"disable-cascade-attn": True}, "flag.deprecated", Level.HINT),
        ({"data-parallel-size": 2}, "log.no-stats", Level.INFO),
        ({"headless": False}, "flag.no-negation", Level.INFO),
        ({"distributed-executor-backend": "ray"}, "parallel.ray", Level.HINT),
        ({"host": "0.0.0.0"}, "bind.open", Level.WARN),
        ({"api-key": "abc"}, "secret.argv", Level.WARN),
        ({"log-level": "info"}, "flag.choice", Level.WARN),
    ],
)
def test_hints_are_not_errors(flags: dict[str, Any], code: str, level: Level) -> None:
    found = check(flags=flags)
    assert only(found, code).level == level
    assert not [f for f in found if f.level == Level.ERROR]


def test_rules_report_nothing_without_a_cause() -> None:
    quiet = [
        check(flags={"enforce-eager": False}),
        check(flags={"data-parallel-size": 2, "api-server-count": 1}),
        check(flags={"host": "0.0.0.0"}, env={"VLLM_API_KEY": "x"}),
        check(flags={"host": "::1"}),
        check(flags={"host": "localhost"}),
        check(flags={"async-scheduling": True}, installed="0.13.0"),
    ]
    spoken = {f.code for found in quiet for f in found} - {"version.catalog", "flag.default"}
    assert spoken == set()
    assert "bind.open" not in {
        f.code for f in check("tabbyapi", {"host": "0.0.0.0"})
    }  # it has keys unless told otherwise
    assert (
        only(check("tabbyapi", {"host": "0.0.0.0", "disable-auth": True}), "bind.open").level
        == Level.WARN
    )


@pytest.mark.parametrize(
    ("engine", "env", "code", "fix"),
    [
        ("vllm", {"VLLM_BLOCK_SIZE": "16"}, "env.removed", "block-size"),
        ("vllm", {"VLLM_ATTENTION_BACKEND": "FLASHINFER"}, "env.removed", "attention-backend"),
        ("vllm", {"VLLM_LOG_STATS_INTERVL": "2"}, "env.unknown", "VLLM_LOG_STATS_INTERVAL"),
        ("vllm", {"VLLM_LOG_STATS_INTERVAL": "often"}, "env.value", None),
        ("vllm", {"VLLM_WORKER_MULTIPROC_METHOD": "thread"}, "env.value", None),
        ("vllm", {"TRITON_KERNEL_CACHE_SIZE": "1"}, "env.removed", "TRITON_CACHE_DIR"),
        ("llamacpp", {"LLAMA_ARG_CTXSIZE": "1"}, "env.unknown", "LLAMA_ARG_CTX_SIZE"),
        ("llamacpp", {"LLAMA_ARG_CTX_SIZE": "big"}, "env.value", None),
        ("tabbyapi", {"TABBY_MODEL_CACHE_SIZ": "1"}, "env.unknown", "TABBY_MODEL_CACHE_SIZE"),
    ],
)
def test_variables(engine: str, env: dict[str, str], code: str, fix: str | None) -> None:
    finding = only(check(engine, {"metrics": True} if engine == "llamacpp" else {}, env), code)
    assert finding.level == Level.WARN and finding.flag in env
    assert fix is None or fix in (finding.fix or "")


def test_variables_that_are_fine() -> None:
    assert (
        check(
            env={
                "VLLM_LOG_STATS_INTERVAL": "2",
                "HF_HOME": "/x",
                "CUDA_VISIBLE_DEVICES": "0",
                "NCCL_DEBUG": "INFO",
            }
        )
        == ()
    )
    old = check(env={"VLLM_ATTENTION_BACKEND": "FLASHINFER"}, installed="0.14.0")
    assert "env.removed" not in {f.code for f in old}  # 0.14 still reads it
    assert only(check(env={"1BAD": "x"}), "env.name").level == Level.ERROR
    strict = check(flags={"fail-on-environ-validation": True}, env={"VLLM_NO_SUCH": "1"})
    assert only(strict, "env.unknown").level == Level.ERROR


def test_allocator_settings() -> None:
    both = {"PYTORCH_ALLOC_CONF": "expandable_segments:True,max_split_size_mb:512"}
    assert only(check(env=both), "allocator.split-size").level == Level.HINT
    with_connector = check(flags={"kv-transfer-config": {"kv_connector": "x"}}, env=both)
    assert only(with_connector, "allocator.kv-connector").level == Level.ERROR
    assert check(env={"PYTORCH_ALLOC_CONF": "max_split_size_mb:512"}) == ()


def test_a_fraction_of_a_replica_is_no_number_of_replicas() -> None:
    """The rule about idle GPUs divided by the needed GPUs, which were 0."""
    found = check(flags={"data-parallel-size-local": 0.5}, cards=gpus(2))
    assert "data-parallel-size-local" in {f.flag for f in found if f.level is Level.ERROR}


def test_needed_gpus_are_compared_with_visible_ones() -> None:
    flags = {"tensor-parallel-size": 2, "data-parallel-size": 2}
    assert only(check(flags=flags, cards=gpus(2)), "gpus.too-few").level == Level.ERROR
    assert "gpus.too-few" not in {f.code for f in check(flags=flags, cards=gpus(4))}
    hidden = check(flags=flags, cards=gpus(4), env={"CUDA_VISIBLE_DEVICES": "0,1,2"})
    assert "3 visible" in only(hidden, "gpus.too-few").text
    assert only(check(cards=gpus(4)), "gpus.idle").level == Level.INFO
    two_nodes = {"tensor-parallel-size": 2, "nnodes": 2}
    assert "gpus.too-few" not in {f.code for f in check(flags=two_nodes, cards=gpus(1))}
    by_ray = {"tensor-parallel-size": 8, "distributed-executor-backend": "ray"}
    assert "gpus.too-few" not in {f.code for f in check(flags=by_ray, cards=gpus(1))}
    attention = {"tensor-parallel-size": 4, "data-parallel-size": 4, "enable-dp-attention": True}
    assert "gpus.too-few" not in {f.code for f in check("sglang", attention, cards=gpus(4))}


def test_custom_all_reduce_on_cards_without_nvlink() -> None:
    flags = {"tensor-parallel-size": 4}
    assert only(check(flags=flags, cards=gpus(4)), "parallel.all-reduce").level == Level.INFO
    for quiet in (
        check(flags=flags, cards=gpus(4, "NVIDIA H100 80GB HBM3")),
        check(flags={"tensor-parallel-size": 2}, cards=gpus(2)),
        check(flags={**flags, "disable-custom-all-reduce": True}, cards=gpus(4)),
    ):
        assert "parallel.all-reduce" not in {f.code for f in quiet}


def test_unified_memory() -> None:
    spark = gpus(1, "NVIDIA GB10", 121, unified_memory=True)
    assert only(check(cards=spark), "memory.unified").level == Level.WARN  # the default is 0.92
    assert "memory.unified" not in {
        f.code for f in check(flags={"gpu-memory-utilization": 0.8}, cards=spark)
    }
    assert "memory.unified" not in {f.code for f in check(cards=gpus(1))}


def test_versions() -> None:
    assert only(check(installed="0.34.1"), "version.catalog").level == Level.INFO
    assert check(installed="0.33.1") == ()
    assert (
        only(check(installed="0.34.0", engine_versions=">=0.14,<0.34"), "version.range").level
        == Level.WARN
    )
    assert "version.range" not in {f.code for f in check(engine_versions=">=0.14,<0.34")}


def test_metrics_switched_off() -> None:
    assert only(check("sglang"), "metrics.off").fix == "set enable-metrics"
    assert only(check("llamacpp"), "metrics.off").flag == "metrics"


def test_tabbyapi_needs_its_directory() -> None:
    assert only(check("tabbyapi", workdir=None), "workdir.missing").level == Level.ERROR
    assert (
        check("tabbyapi", workdir=None, executable=("/opt/t/venv/bin/python", "/opt/t/main.py"))
        == ()
    )
    assert only(check("tabbyapi", {"backend": "exllamav2"}), "flag.removed").flag == "backend"


def test_model_variables_and_nodes() -> None:
    assert only(check(model=""), "model.missing").level == Level.ERROR
    assert only(check(model="${models}/x"), "variable.missing").level == Level.ERROR
    node = Node("worker", 1, {"node-rnk": 1}, {"VLLM_BLOCK_SIZE": "1"})
    found = check(nodes=(node,))
    assert "node-rank" in (only(found, "flag.unknown").fix or "") and only(found, "env.removed")


def test_the_same_flag_twice() -> None:
    plan = LaunchPlan(
        "vllm", "m", flags=(FlagSetting("max-num-seqs", 1), FlagSetting("max-num-seqs", 2))
    )
    found = engines.validate_plan(plan, engines.get_engine("vllm").catalog(), "0.33.0")
    assert only(found, "flag.repeated").level == Level.WARN


def test_a_key_in_a_preset() -> None:
    plan = LaunchPlan(
        "vllm", "m", env=(FlagSetting("VLLM_API_KEY", "abc", Origin.PRESET),), preset_id="x"
    )
    found = engines.validate_plan(plan, engines.get_engine("vllm").catalog(), "0.33.0")
    assert only(found, "secret.preset").level == Level.HINT
    assert all("abc" not in f.text + (f.fix or "") for f in found)


def test_findings_are_sorted_by_severity_without_duplicates() -> None:
    found = check(
        flags={"enforce-eager": True, "host": "0.0.0.0", "max-num-seqs": "x"}, cards=gpus(4)
    )
    order = list(Level)
    assert [order.index(f.level) for f in found] == sorted(order.index(f.level) for f in found)
    assert len(set(found)) == len(found)


def test_validation_includes_the_memory_estimate() -> None:
    big = ModelFacts("m", weight_bytes=141e9)
    assert only(check(cards=gpus(1), model_facts=big), "memory.too-large").level == Level.WARN
    small = ModelFacts("m", weight_bytes=4e9, kv_bytes_per_token=114688)
    assert only(check(cards=gpus(1), model_facts=small), "memory.estimate").level == Level.INFO


def test_fp8_for_the_cache_becomes_the_word_of_the_engine() -> None:
    found = only(check("sglang", {"kv-cache-dtype": "fp8"}), "flag.choice")
    assert (found.fix, [c.value for c in found.changes]) == (
        "did you mean fp8_e4m3?",
        ["fp8_e4m3"],
    )
    assert "flag.choice" not in {f.code for f in check("vllm", {"kv-cache-dtype": "fp8"})}
    for engine, word in (("sglang", "fp8_e4m3"), ("vllm", "fp8")):
        dtype = only(check(engine, {"dtype": "float8"}), "flag.choice")
        assert f"kv-cache-dtype to {word} for the cache" in (dtype.fix or "")
        assert "flag.choice" not in {f.code for f in check(engine, {"kv-cache-dtype": word})}


def test_no_number_format_is_taken_for_another() -> None:
    found = only(check("sglang", {"kv-cache-dtype": "mxfp4"}), "flag.choice")
    assert "did you mean" not in (found.fix or "")
    assert [change.value for change in found.changes] == [None]


def test_a_value_that_no_known_version_has_is_named_before_the_start() -> None:
    """vLLM 0.33 lists no values of these flags, so the engine alone refused them."""
    for name, word in (
        ("kv-cache-dtype", "nonsense"),
        ("quantization", "fq8"),
        ("quantization", ""),
    ):
        found = only(check("vllm", {name: word}), "flag.word")
        assert (found.level, found.flag) == (Level.WARN if word else Level.ERROR, name)
        assert f"{name} is {word!r}" in found.text and "one of" in (found.fix or "")
        assert ("a newer engine" in found.text) is bool(word)
    # whatever the version, no engine has an empty choice
    empty = only(check("sglang", {"kv-cache-dtype": ""}, installed="9.9"), "flag.choice")
    assert empty.level is Level.ERROR
    spelled = only(check("vllm", {"kv-cache-dtype": "FP8-E4M3"}), "flag.word")
    assert [change.value for change in spelled.changes] == ["fp8_e4m3"]
    for known in ("fp8", "nvfp4", "turboquant_k8v4", "auto"):
        assert "flag.word" not in {f.code for f in check("vllm", {"kv-cache-dtype": known})}
    for known in ("fp8", "compressed-tensors", "torchao", "mxfp8"):
        assert "flag.word" not in {f.code for f in check("vllm", {"quantization": known})}
    # a flag of which only the well-known values are listed
    assert "flag.word" not in {f.code for f in check("vllm", {"load-format": "fastsafetensors"})}


def test_each_version_of_vllm_has_its_own_methods_of_quantization() -> None:
    """One list stood for all versions, partly from memory; these are those of the three sources
    (vllm/model_executor/layers/quantization/__init__.py)."""
    of_old, of_new = (
        {*catalog.load_catalog("vllm", version).flags["quantization"].words}
        for version in ("0.11.0", "0.32.0")
    )
    assert (len(of_old), len(of_new)) == (28, 30)
    assert {"gguf", "bitsandbytes", "auto-round", "rtn", "petit_nvfp4"} <= of_old - of_new
    assert {"online", "nvfp4_per_token", "mxfp8", "humming"} <= of_new - of_old


@pytest.mark.parametrize("version", catalog.list_catalog_versions("vllm"))
def test_the_values_of_a_listing_version_are_known(version: str) -> None:
    for spec in catalog.load_catalog("vllm", version).flags.values():
        if spec.words_are_all:
            assert {*spec.choices} <= {*spec.words}, spec.name

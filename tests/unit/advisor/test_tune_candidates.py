"""The candidates of a tune, and the reasons against what it leaves out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from workbench import engines
from workbench.advisor.candidates import (
    TuneLoad,
    gpu_setting_choices,
    list_candidates_and_left_out,
    needs_at_least_same_memory,
)
from workbench.engines.plan_context import PlanContext
from workbench.model.errors import InputError
from workbench.model.findings import Finding, Level, PlanChange
from workbench.model.gpu import GpuInfo
from workbench.model.host_cores import HostCores
from workbench.model.plan import LaunchPlan
from workbench.model.settings import GpuSettings
from workbench.model.tune import (
    LeftOut,
    TuneCandidate,
    TuneLimits,
    find_goal,
    gpu_settings_of_candidate,
    parse_tune_limits,
    plan_assignments_of_candidate,
)


def found(
    engine: str,
    work: TuneLoad,
    findings: tuple[Finding, ...] = (),
    gpus: int = 1,
    gpu: str = "RTX",
    capability: str | None = None,
    installed: str | None = None,
    cores: HostCores | None = None,
    **flags: object,
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the candidates and what is left out, each with its reason."""
    kind = engines.get_engine(engine)
    plan = LaunchPlan(engine=engine, model="org/model")
    for name, value in flags.items():
        plan = plan.with_flag(name.replace("_", "-"), value)  # type: ignore[arg-type]
    one = GpuInfo(index=0, uuid="GPU-0", name=gpu, compute_capability=capability)
    infos = tuple(replace(one, index=n, uuid=f"GPU-{n}") for n in range(gpus))
    context = PlanContext(plan, kind.catalog(None), kind, infos, installed, cores=cores)
    each = list(list_candidates_and_left_out(context, findings, work))
    candidates = {" ".join(c.sets): c.reason for c in each if isinstance(c, TuneCandidate)}
    return candidates, {c.words: c.reason for c in each if isinstance(c, LeftOut)}


def test_eager_mode_is_the_first_that_is_tried_to_change() -> None:
    candidates, _ = found("vllm", TuneLoad(4, 512), enforce_eager=True)
    assert next(iter(candidates)) == "enforce-eager=false"
    assert "enforce-eager=false" not in found("vllm", TuneLoad(4, 512))[0]


def test_a_limit_below_the_load_is_raised_and_one_above_is_left() -> None:
    candidates, _ = found("vllm", TuneLoad(16, 512), max_num_seqs=4)
    assert "12 of them wait" in candidates["max-num-seqs=16"] and "max-num-seqs=8" in candidates
    _, left_out = found("vllm", TuneLoad(16, 512), max_num_seqs=64)
    assert "which 64 allows already" in left_out["a higher max-num-seqs"]


def test_a_limit_that_lets_requests_wait_is_tried_before_speculation() -> None:
    """With starts for one candidate only, a tune tried speculation and found nothing better."""
    names = list(found("vllm", TuneLoad(8, 512), max_num_seqs=2)[0])
    speculation = next(n for n, name in enumerate(names) if name.startswith("speculative-config"))
    assert names.index("max-num-seqs=8") < speculation


def test_a_step_that_holds_all_prompts_needs_no_larger_one() -> None:
    _, left_out = found("vllm", TuneLoad(2, 256))
    assert "256 prompt tokens" in left_out["max-num-batched-tokens=16384"]
    candidates, _ = found("vllm", TuneLoad(64, 64 * 1024))
    assert "max-num-batched-tokens=16384" in candidates


def test_a_step_of_llamacpp_grows_together_with_the_batch_that_caps_it() -> None:
    """llama.cpp takes min(batch-size, ubatch-size): a tune measured three values that were one."""
    work = TuneLoad(64, 64 * 1024)
    small, _ = found("llamacpp", work, batch_size=64, ubatch_size=32)
    assert "batch-size=1024 ubatch-size=1024" in small and "ubatch-size=1024" not in small
    assert "ubatch-size=1024" in found("llamacpp", work)[0]


def test_speculation_needs_compute_that_a_full_batch_does_not_leave() -> None:
    alone = found("vllm", TuneLoad(1, 128))[0]
    reasons = [alone[name] for name in alone if name.startswith("speculative-config")]
    assert reasons[0].endswith("1 request at a time leaves room")
    candidates, left_out = found("vllm", TuneLoad(64, 128))
    assert not any(name.startswith("speculative-config") for name in candidates)
    assert "64 requests" in left_out["other speculation (speculative-config)"]


def test_two_gpus_offer_replicas_and_a_split_and_one_neither() -> None:
    assert {"data-parallel-size=2", "tensor-parallel-size=2"} <= found(
        "vllm", TuneLoad(8, 512), gpus=2
    )[0].keys()
    assert not any("parallel" in name for name in found("vllm", TuneLoad(8, 512))[0])


def test_replicas_use_all_gpus_if_there_are_requests_for_them() -> None:
    four = found("vllm", TuneLoad(8, 512), gpus=4)[0]
    assert {"data-parallel-size=4", "data-parallel-size=2"} <= four.keys()
    assert "data-parallel-size=4" not in found("vllm", TuneLoad(3, 512), gpus=4)[0]
    candidates, left_out = found("vllm", TuneLoad(1, 512), gpus=2)
    assert "1 request at a time" in left_out["data-parallel-size"]
    assert not any(name.startswith("data-parallel") for name in candidates)


def test_what_a_finding_proposes_for_speed_is_tried() -> None:
    changes = (PlanChange("tensor-parallel-size", None), PlanChange("data-parallel-size", 2))
    finding = Finding(
        Level.WARN, "dp-before-tp", "it fits one", changes=changes, expected_gain="+30 %"
    )
    candidates, _ = found("vllm", TuneLoad(8, 512), (finding,))
    assert candidates["tensor-parallel-size=1 data-parallel-size=2"] == "it fits one"
    _, left_out = found("vllm", TuneLoad(1, 64), (finding,))
    assert "1 request at a time" in left_out["tensor-parallel-size=1 data-parallel-size=2"]
    harmless = replace(finding, expected_gain=None)
    assert "it fits one" not in found("vllm", TuneLoad(8, 512), (harmless,))[0].values()


@pytest.mark.parametrize("engine", engines.engine_names())
def test_every_engine_has_candidates_and_no_memory_clock_is_locked(engine: str) -> None:
    candidates, left_out = found(engine, TuneLoad(8, 8 * 8192))
    assert len(candidates) >= 3 and "memory clocks" in left_out
    assert not any("clock" in name for name in candidates)


def test_a_failed_start_excludes_what_needs_more_memory() -> None:
    assert needs_at_least_same_memory(("max-num-seqs=512",), ("max-num-seqs=1024",), "vllm")
    assert not needs_at_least_same_memory(("max-num-seqs=512",), ("max-num-seqs=256",), "vllm")
    assert not needs_at_least_same_memory(("kv-cache-dtype=fp8",), ("kv-cache-dtype=auto",), "vllm")


def test_limits_are_read_in_both_orders() -> None:
    limits = parse_tune_limits("ttft@p95<=500, tpot<=40@p95, power<=400, temp<=83, kld<=0.001")
    assert limits == TuneLimits("ttft<=500@p95, tpot<=40@p95", 400.0, 83.0, 0.001)
    assert parse_tune_limits("") == TuneLimits() and parse_tune_limits("KLD <= 1e-3").kld == 0.001
    for wrong in ("kld<=0", "kld<=much", "kld>=1", "kld<=11"):
        with pytest.raises(InputError, match="is not a limit on KLD"):
            parse_tune_limits(wrong)
    with pytest.raises(InputError, match="no goal smiles"):
        find_goal("smiles")


def gpu_words(goal: str, limits: str = "", gpus: int = 1, **fields: object) -> list[str]:
    known = {"power_min_w": 150.0, "power_default_w": 600.0, "sm_max_mhz": 3090, **fields}
    infos = [GpuInfo(index=n, uuid=f"GPU-{n}", name="RTX", **known) for n in range(gpus)]  # type: ignore[arg-type]
    found = gpu_setting_choices(infos, goal, parse_tune_limits(limits))
    return [" ".join(c.sets) if isinstance(c, TuneCandidate) else f"- {c.words}" for c in found]


def test_gpu_settings_are_tried_where_power_counts_and_never_memory_clocks() -> None:
    of_power = ["gpu.power-limit=400", "gpu.power-limit=300", "gpu.gpu-clocks=210-2310"]
    assert gpu_words("tok_j") == of_power
    assert gpu_words("tok_s") == ["- power limit, GPU clocks"]
    assert "gpu.power-limit=250" in gpu_words("tok_s", "power<=500", gpus=2)
    assert gpu_words("tok_s", "temp<=80") == of_power
    assert gpu_words("tok_j", power_min_w=None)[0] == "- power limit"
    assert gpu_words("tok_j", power_min_w=350.0)[:2] == [of_power[0], of_power[2]]


def test_a_candidate_has_flags_of_the_plan_and_settings_of_the_gpus() -> None:
    sets = ("max-num-seqs=8", "gpu.power-limit=400")
    assert plan_assignments_of_candidate(sets) == ("max-num-seqs=8",)
    assert gpu_settings_of_candidate(sets) == GpuSettings(power_limit_w=400.0)
    assert not gpu_settings_of_candidate(("max-num-seqs=8",))


def test_a_kernel_that_the_gpu_cannot_run_is_left_out() -> None:
    for capability, may in (("9.0", True), ("8.6", True), ("12.0", False), ("10.0", False)):
        candidates, left_out = found("sglang", TuneLoad(8, 512), capability=capability)
        assert ("attention-backend=fa3" in candidates) == may
        assert may or f"this has {capability}" in left_out["attention-backend=fa3"]


def test_an_order_by_common_beginnings_needs_prompts_that_have_some() -> None:
    assert "schedule-policy=lpm" not in found("sglang", TuneLoad(8, 512))[0]
    assert "schedule-policy=lpm" in found("sglang", TuneLoad(8, None))[0]


def test_a_model_on_one_card_is_split_only_for_latency_or_over_nvlink() -> None:
    split, a_card = "tensor-parallel-size=2", "NVIDIA GeForce RTX 5060 Ti"
    candidates, left_out = found("vllm", TuneLoad(8, 512), gpus=2, gpu=a_card)
    assert split not in candidates and "no NVLink" in left_out[split]
    assert split in found("vllm", TuneLoad(8, 512, for_latency=True), gpus=2, gpu=a_card)[0]
    assert split in found("vllm", TuneLoad(1, 64), gpus=2, gpu=a_card)[0]
    assert split in found("vllm", TuneLoad(8, 512), gpus=2, gpu="NVIDIA H200")[0]


def test_what_acts_on_gpus_is_left_out_on_a_build_for_the_cpu() -> None:
    """A tune of vLLM on the CPU started three attention backends of GPUs, which all failed."""
    of_cpu = found("vllm", TuneLoad(8, 512), installed="0.32.0+cpu", enforce_eager=True)
    candidates, left_out = of_cpu
    names = " ".join(candidates)
    assert not any(word in names for word in ("attention-backend", "kv-cache-dtype", "fp8"))
    why = "it acts on GPUs, and vLLM 0.32.0+cpu computes on the CPU"
    assert left_out["kv-cache-dtype=fp8"] == why == left_out["quantization=fp8"]
    assert candidates["enforce-eager=false"].startswith("torch.compile")
    on_gpu, _ = found("vllm", TuneLoad(8, 512), installed="0.32.0", enforce_eager=True)
    assert "kv-cache-dtype=fp8" in on_gpu and "CUDA graphs" in on_gpu["enforce-eager=false"]


def test_a_search_for_users_is_offered_what_more_requests_than_its_first_load_need() -> None:
    """It began with one user, and was told that one request needs no higher limit."""
    candidates, left_out = found("vllm", TuneLoad(None, 128), max_num_seqs=4, gpus=2)
    assert "more than 4 users wait" in candidates["max-num-seqs=16"]
    assert {"max-num-seqs=8", "max-num-batched-tokens=8192", "data-parallel-size=2"} <= (
        candidates.keys()
    )
    assert "enable-prefix-caching" in left_out
    assert any(name.startswith("speculative-config") for name in candidates)


def test_more_slots_of_llamacpp_keep_the_context_of_each() -> None:
    """With `parallel=8` alone, a real server of 1,024 tokens refused a prompt of 300 tokens, and cut the
    answer to one of 230."""
    load = TuneLoad(8, 1024)
    assert "ctx-size=8192 parallel=8" in found("llamacpp", load, ctx_size=1024, parallel=1)[0]
    assert "ctx-size=4096 parallel=8" in found("llamacpp", load, ctx_size=1024, parallel=2)[0]
    shared = found("llamacpp", load, ctx_size=1024, parallel=1, kv_unified=True)[0]
    assert "parallel=8" in shared
    assert "kv-unified=true parallel=8" in found("llamacpp", load, parallel=2)[0]


def test_the_four_slots_that_llamacpp_opens_by_itself_are_raised_for_a_larger_load() -> None:
    """A tune said that the default allows 8 requests at a time."""
    candidates, _ = found("llamacpp", TuneLoad(8, 1024), ctx_size=4096)
    assert "4 of them wait" in candidates["kv-unified=true parallel=8"]
    _, left_out = found("llamacpp", TuneLoad(4, 512), ctx_size=4096)
    assert "which 4 allows already" in left_out["a higher parallel"]


def test_threads_are_tried_where_the_cpu_computes_layers() -> None:
    """A tune on a CPU left one thread of two cores as it was."""
    host, load = HostCores(cpus=32, cores=16), TuneLoad(8, 1024)
    of_cpu, _ = found("llamacpp", load, gpus=0, cores=host, threads=1)
    assert {"threads=16", "threads=8"} <= of_cpu.keys()
    assert "threads=16" in found("llamacpp", load, cores=host, threads=1, n_gpu_layers=10)[0]
    of_default, left_out = found("llamacpp", load, gpus=0, cores=host)
    assert "threads=8" in of_default and "threads=16" not in of_default
    assert "16 cores has a thread" in left_out["more threads"]
    each_cpu = found("llamacpp", load, gpus=0, cores=host, threads=-1)[0]
    assert each_cpu["threads=16"].endswith("now 32")
    assert "compute all layers" in found("llamacpp", load, cores=host, threads=1)[1]["threads"]
    assert "not known" in found("llamacpp", load, gpus=0, threads=1)[1]["threads"]
    one_core = found("llamacpp", load, gpus=0, cores=HostCores(1, 1), threads=1)[0]
    assert not any(name.startswith("threads") for name in one_core)


def test_llamacpp_speculates_without_a_draft_model_for_few_requests() -> None:
    candidates, _ = found("llamacpp", TuneLoad(8, 1024))
    assert candidates["spec-type=ngram-simple"].endswith("8 requests at a time leave room")
    many, left_out = found("llamacpp", TuneLoad(64, 8192))
    assert not any(name.startswith("spec-type") for name in many)
    assert "64 requests" in left_out["spec-type=ngram-simple,ngram-mod"]
    _, of_plan = found("llamacpp", TuneLoad(8, 1024), spec_type="draft-mtp")
    assert "draft-mtp" in of_plan["spec-type=ngram-simple,ngram-mod"]


def test_the_short_form_of_speculation_is_tried_in_other_depths_only() -> None:
    """An n-gram proposal beside it is a second method, which vLLM refuses."""
    candidates, _ = found("vllm", TuneLoad(4, 512), spec_method="mtp", spec_tokens=2)
    assert "spec-tokens=4" in candidates and "spec-tokens=2" not in candidates
    assert not any(name.startswith("speculative-config") for name in candidates)


def test_continuous_batching_is_tried_where_there_is_a_batch() -> None:
    load = TuneLoad(8, 1024)
    several, _ = found("llamacpp", load, parallel=8, cont_batching=False)
    assert "cont-batching=true" in several
    alone, left_out = found("llamacpp", load, ctx_size=512, parallel=1, cont_batching=False)
    assert "no batch" in left_out["cont-batching=true"]
    assert "mlock" in left_out["load-mode"]
    assert "ctx-size=4096 parallel=8 cont-batching=true" in alone
    assert "cont-batching=true" not in found("llamacpp", load, parallel=8)[0]


def test_both_halves_of_a_kv_cache_of_llamacpp_get_one_type() -> None:
    """Keys alone take a slow path, which a rule warns of, so that no KV type was ever tried."""
    pair = "cache-type-k=q8_0 cache-type-v=q8_0"
    assert f"{pair} flash-attn=on" in found("llamacpp", TuneLoad(8, 1024), flash_attn="off")[0]
    assert pair in found("llamacpp", TuneLoad(8, 1024), flash_attn="on")[0]


def test_the_default_step_of_llamacpp_is_tried_where_the_plan_has_another() -> None:
    small, _ = found("llamacpp", TuneLoad(64, 64 * 1024), batch_size=64, ubatch_size=64)
    assert {"batch-size=512 ubatch-size=512", "batch-size=2048"} <= small.keys()
    assert "ubatch-size=512" not in found("llamacpp", TuneLoad(64, 64 * 1024))[0]


def test_numa_is_tried_where_the_cpus_of_several_nodes_compute() -> None:
    load, two = TuneLoad(8, 1024), HostCores(cpus=128, cores=64, numa_nodes=2)
    assert "numa=distribute" in found("llamacpp", load, gpus=0, cores=two)[0]
    assert "NUMA" in found("llamacpp", load, cores=two)[1]["numa=distribute"]
    one = HostCores(cpus=128, cores=64)
    assert "numa=distribute" not in found("llamacpp", load, gpus=0, cores=one)[0]

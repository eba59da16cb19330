"""The candidates of a tune, and the reasons against what it leaves out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from workbench import engines
from workbench.advisor.candidates import Work, choices, gpu_choices, needs_more
from workbench.engines.plan_context import Situation
from workbench.model.errors import InputError
from workbench.model.findings import Finding, Level, PlanChange
from workbench.model.gpu import GpuInfo
from workbench.model.plan import LaunchPlan
from workbench.model.settings import GpuSettings
from workbench.model.tune import (
    LeftOut,
    TuneCandidate,
    TuneLimits,
    flags_of,
    goal_called,
    gpu_settings_of,
    parse_limits,
)


def found(
    engine: str, work: Work, findings: tuple[Finding, ...] = (), gpus: int = 1, **flags: object
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the candidates and what is left out, each with its reason."""
    kind = engines.get(engine)
    plan = LaunchPlan(engine=engine, model="org/model")
    for name, value in flags.items():
        plan = plan.with_flag(name.replace("_", "-"), value)  # type: ignore[arg-type]
    infos = tuple(GpuInfo(index=n, uuid=f"GPU-{n}", name="RTX") for n in range(gpus))
    here = Situation(plan, kind.catalog(None), kind, infos)
    each = list(choices(here, findings, work))
    candidates = {" ".join(c.sets): c.reason for c in each if isinstance(c, TuneCandidate)}
    return candidates, {c.words: c.reason for c in each if isinstance(c, LeftOut)}


def test_eager_mode_is_the_first_that_is_tried_to_change() -> None:
    candidates, _ = found("vllm", Work(4, 512), enforce_eager=True)
    assert next(iter(candidates)) == "enforce-eager=false"
    assert "enforce-eager=false" not in found("vllm", Work(4, 512))[0]


def test_a_limit_below_the_load_is_raised_and_one_above_is_left() -> None:
    candidates, _ = found("vllm", Work(16, 512), max_num_seqs=4)
    assert "12 of them wait" in candidates["max-num-seqs=16"] and "max-num-seqs=8" in candidates
    _, left_out = found("vllm", Work(16, 512), max_num_seqs=64)
    assert "which 64 allows already" in left_out["a higher max-num-seqs"]


def test_a_limit_that_lets_requests_wait_is_tried_before_speculation() -> None:
    """With starts for one candidate only, a tune tried speculation and found nothing better."""
    names = list(found("vllm", Work(8, 512), max_num_seqs=2)[0])
    speculation = next(n for n, name in enumerate(names) if name.startswith("speculative-config"))
    assert names.index("max-num-seqs=8") < speculation


def test_a_step_that_holds_all_prompts_needs_no_larger_one() -> None:
    _, left_out = found("vllm", Work(2, 256))
    assert "256 tokens" in left_out["max-num-batched-tokens=16384"]
    candidates, _ = found("vllm", Work(64, 64 * 1024))
    assert "max-num-batched-tokens=16384" in candidates


def test_speculation_needs_compute_that_a_full_batch_does_not_leave() -> None:
    assert any(name.startswith("speculative-config") for name in found("vllm", Work(1, 128))[0])
    candidates, left_out = found("vllm", Work(64, 128))
    assert not any(name.startswith("speculative-config") for name in candidates)
    assert "64 requests" in left_out["other speculation (speculative-config)"]


def test_two_gpus_offer_replicas_and_a_split_and_one_neither() -> None:
    assert {"data-parallel-size=2", "tensor-parallel-size=2"} <= found(
        "vllm", Work(8, 512), gpus=2
    )[0].keys()
    assert not any("parallel" in name for name in found("vllm", Work(8, 512))[0])


def test_replicas_use_all_gpus_if_there_are_requests_for_them() -> None:
    four = found("vllm", Work(8, 512), gpus=4)[0]
    assert {"data-parallel-size=4", "data-parallel-size=2"} <= four.keys()
    assert "data-parallel-size=4" not in found("vllm", Work(3, 512), gpus=4)[0]
    candidates, left_out = found("vllm", Work(1, 512), gpus=2)
    assert "1 request at a time" in left_out["data-parallel-size"]
    assert not any(name.startswith("data-parallel") for name in candidates)


def test_what_a_finding_proposes_for_speed_is_tried() -> None:
    changes = (PlanChange("tensor-parallel-size", None), PlanChange("data-parallel-size", 2))
    finding = Finding(
        Level.WARN, "dp-before-tp", "it fits one", changes=changes, expected_gain="+30 %"
    )
    candidates, _ = found("vllm", Work(8, 512), (finding,))
    assert candidates["tensor-parallel-size=1 data-parallel-size=2"] == "it fits one"
    harmless = replace(finding, expected_gain=None)
    assert "it fits one" not in found("vllm", Work(8, 512), (harmless,))[0].values()


@pytest.mark.parametrize("engine", engines.names())
def test_every_engine_has_candidates_and_no_memory_clock_is_locked(engine: str) -> None:
    candidates, left_out = found(engine, Work(8, 8 * 8192))
    assert len(candidates) >= 3 and "memory clocks" in left_out
    assert not any("clock" in name for name in candidates)


def test_a_failed_start_excludes_what_needs_more_memory() -> None:
    assert needs_more(("max-num-seqs=512",), ("max-num-seqs=1024",), "vllm")
    assert not needs_more(("max-num-seqs=512",), ("max-num-seqs=256",), "vllm")
    assert not needs_more(("kv-cache-dtype=fp8",), ("kv-cache-dtype=auto",), "vllm")


def test_limits_are_read_in_both_orders() -> None:
    limits = parse_limits("ttft@p95<=500, tpot<=40@p95, power<=400, temp<=83, kld<=0.001")
    assert limits == TuneLimits("ttft<=500@p95, tpot<=40@p95", 400.0, 83.0, 0.001)
    assert parse_limits("") == TuneLimits() and parse_limits("KLD <= 1e-3").kld == 0.001
    for wrong in ("kld<=0", "kld<=much", "kld>=1", "kld<=11"):
        with pytest.raises(InputError, match="is not a limit on KLD"):
            parse_limits(wrong)
    with pytest.raises(InputError, match="no goal users"):
        goal_called("users")


def gpu_words(goal: str, limits: str = "", gpus: int = 1, **fields: object) -> list[str]:
    known = {"power_min_w": 150.0, "power_default_w": 600.0, "sm_max_mhz": 3090, **fields}
    infos = [GpuInfo(index=n, uuid=f"GPU-{n}", name="RTX", **known) for n in range(gpus)]  # type: ignore[arg-type]
    found = gpu_choices(infos, goal, parse_limits(limits))
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
    assert flags_of(sets) == ("max-num-seqs=8",)
    assert gpu_settings_of(sets) == GpuSettings(power_limit_w=400.0)
    assert not gpu_settings_of(("max-num-seqs=8",))

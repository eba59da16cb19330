"""What a tune from the baselines of the five write-ups tries, and what their corrections forbid. Whole
tunes: tests/benchmarks/bench_tune_documents.py."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from support.forbidden_changes import forbidden

from workbench.engines import plan_from_preset
from workbench.engines.plan_context import PlanContext
from workbench.model.bench import BenchSpec
from workbench.model.gpu import GpuInfo
from workbench.model.tune import TuneCandidate, parse_tune_limits
from workbench.session.plans.plan_editor import PlanEditor
from workbench.session.series.tune_plan import select_candidates_and_left_out
from workbench.sim import profiles
from workbench.store.presets import PresetLibrary

MISTRAL = "/srv/models/Mistral-Large-Instruct-2411-AWQ"
VALUES = {"head_ip": "192.168.100.1"}
REPLICAS = "tensor-parallel-size=1 data-parallel-size={}"


@dataclass(frozen=True)
class Baseline:
    """A preset on its simulated host, and what leads from it to the write-up's best."""

    profile: str
    preset: str
    streams: int
    tries: tuple[str, ...] = ()
    never: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.preset}-{self.streams}"


BASELINES = (
    Baseline(
        "four-pcie", "vllm-qwen3-vl-2b-tp4-eager", 8, ("enforce-eager=false", REPLICAS.format(4))
    ),
    Baseline("rtx-pro-6000", "sglang-mistral-large-awq-baseline", 1, never=("fa3", "lpm")),
    Baseline(
        "rtx-5060ti-x2",
        "vllm-container-920-fp8-2x-5060ti",
        16,
        ("max-num-seqs=16", REPLICAS.format(2)),
    ),
    Baseline("rtx-5060ti-x2", "vllm-container-920-fp8-2x-5060ti", 1, never=("data-parallel",)),
    Baseline("rtx-5060ti-x2", "vllm-qwen2.5-7b-awq-2x-5060ti", 16, never=("quantization",)),
    Baseline(
        "rtx-5060ti-x2",
        "vllm-llama-3.2-3b-fp8-5060ti",
        16,
        ("data-parallel-size=2",),
        never=("tensor-parallel",),
    ),
    Baseline("gb10-x2", "vllm-llama-3.3-70b-2x-spark-ray", 1, ("quantization=fp8",)),
)


@pytest.mark.parametrize(
    ("case", "goal"), [*((one, "tok_s") for one in BASELINES), (BASELINES[1], "tok_j")], ids=str
)
def test_the_way_to_the_best_is_tried_and_nothing_that_a_correction_forbids(
    case: Baseline, goal: str
) -> None:
    context, candidates = candidates_of(case, goal)
    words = [" ".join(one.sets) for one in candidates]
    assert forbidden(context, case.streams, goal, candidates) == []
    assert {*case.tries} <= {*words}
    assert [word for word in words if any(name in word for name in case.never)] == []


def test_a_forbidden_change_is_seen() -> None:
    """The test above would pass with a table that forbids nothing."""
    context, _ = candidates_of(BASELINES[-2], "tok_s")
    wrong = ("tensor-parallel-size=2", "dtype=float8", "speculative-model=a", "gpu.power-limit=400")
    found = forbidden(context, 16, "tok_s", [TuneCandidate((one,), "") for one in wrong])
    assert [line.partition(":")[0] for line in found[:3]] == list(wrong[:3])
    assert "speculative-model is no flag" in " ".join(found) and wrong[3] in found[-1]


def candidates_of(case: Baseline, goal: str) -> tuple[PlanContext, list[TuneCandidate]]:
    profile = profiles.get_profile(case.profile)
    gpu = profile.gpu
    info = GpuInfo(
        index=0,
        uuid="GPU-0",
        name=gpu.name,
        compute_capability=".".join(map(str, gpu.compute_capability)),
        sm_max_mhz=gpu.sm_max_mhz,
        power_min_w=gpu.power_min_w,
        power_default_w=gpu.power_default_w,
        power_max_w=gpu.power_max_w,
        memory_total_bytes=gpu.memory_bytes,
        unified_memory=gpu.unified_memory,
    )
    gpus = tuple(replace(info, index=n, uuid=f"GPU-{n}") for n in range(profile.count))
    preset = PresetLibrary().get(case.preset)
    needed = {name: VALUES[name] for name in preset.variables if name in VALUES}
    model = {"model": MISTRAL} if "mistral" in case.preset else {}
    editor = PlanEditor(plan_from_preset(preset, {**needed, **model}))
    editor.host_context = replace(editor.host_context, gpus=gpus)
    load = BenchSpec("", "", concurrency=case.streams, input_tokens=256, max_tokens=128)
    candidates, _ = select_candidates_and_left_out(editor, load, goal, parse_tune_limits(""))
    context = PlanContext(editor.effective_plan, editor.catalog, editor.engine, gpus)
    return context, candidates

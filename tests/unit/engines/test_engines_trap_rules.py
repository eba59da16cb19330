"""Each rule about a published trap fires on a plan that steps into it, and is silent on a neighbour
that does not."""

from __future__ import annotations

from typing import Any

import pytest

from workbench import engines
from workbench.engines.plan_context import PlanContext
from workbench.engines.trap_rules import RULES
from workbench.model.findings import Finding
from workbench.model.flags import FlagSetting
from workbench.model.gpu import GpuInfo
from workbench.model.plan import LaunchPlan, ModelFacts

GB10 = GpuInfo(0, "GPU-0", "NVIDIA GB10", unified_memory=True, compute_capability="12.1")
PRO = GpuInfo(
    0, "GPU-0", "NVIDIA RTX PRO 6000 Blackwell Workstation Edition", compute_capability="12.0"
)
H100 = GpuInfo(0, "GPU-0", "NVIDIA H100 80GB HBM3", compute_capability="9.0")
MTP = {"method": "mtp", "num_speculative_tokens": 2}
FUSED = {"pass_config": {"fuse_gemm_comms": True}}


def here(
    engine: str = "vllm",
    model: str = "org/model",
    gpu: GpuInfo = PRO,
    installed: str | None = None,
    layers: int | None = None,
    env: dict[str, str] | None = None,
    **flags: Any,
) -> PlanContext:
    """Return a plan with these flags; underscores in the names of flags stand for dashes."""
    found = engines.get_engine(engine)
    settings = tuple(FlagSetting(name.replace("_", "-"), value) for name, value in flags.items())
    variables = tuple(FlagSetting(name, value) for name, value in (env or {}).items())
    facts = ModelFacts(model, layers=layers)
    plan = LaunchPlan(engine, model, facts, settings, variables)
    return PlanContext(plan, found.catalog(), found, (gpu,), installed)


def lcpp(**options: Any) -> PlanContext:
    return here("llamacpp", **options)


def drafts(count: int, **options: Any) -> PlanContext:
    return here(speculative_config={"method": "x", "num_speculative_tokens": count}, **options)


def qwen(version: str = "0.27.1", model: str = "unsloth/Qwen3.8-27B-NVFP4", **flags: Any) -> Any:
    return here(model=model, installed=version, **{"speculative_config": MTP, **flags})


CASES: dict[str, tuple[list[PlanContext], list[PlanContext]]] = {
    "spec.depth": (
        [drafts(8), drafts(15), here(spec_method="mtp", spec_tokens=8)],
        [drafts(7), here(), here(spec_method="mtp"), lcpp(spec_type="ngram-mod")],
    ),
    "spec.full-graphs": (
        [qwen(), qwen(compilation_config={"cudagraph_mode": "FULL"})],
        [
            qwen("0.28.0"),
            qwen("0.26.2"),
            qwen(model="org/Qwen3.6-27B"),
            qwen(enforce_eager=True),
            qwen(compilation_config={"cudagraph_mode": "PIECEWISE"}),
            qwen(speculative_config={**MTP, "num_speculative_tokens_per_batch_size": [[1, 4, 3]]}),
            qwen(speculative_config={"method": "ngram", "num_speculative_tokens": 2}),
        ],
    ),
    "spec.unified-memory": (
        [
            drafts(1, gpu=GB10),
            drafts(15, gpu=GB10, max_num_seqs=32),
            here(gpu=GB10, spec_method="mtp"),
        ],
        [
            drafts(15, gpu=GB10, max_num_seqs=4),
            drafts(15, gpu=PRO, max_num_seqs=32),
            here(gpu=GB10, max_num_seqs=256),
        ],
    ),
    "spec.indexer": (
        [
            drafts(1, model="deepseek-ai/DeepSeek-V3.2"),
            drafts(1, model="zai-org/GLM-5.2-FP8"),
            here(model="deepseek-ai/DeepSeek-V3.2", spec_method="mtp"),
        ],
        [drafts(1, model="deepseek-ai/DeepSeek-V3.1"), here(model="deepseek-ai/DeepSeek-V3.2")],
    ),
    "kv.quant-pair": (
        [
            lcpp(cache_type_k="q8_0", cache_type_v="q4_0"),
            lcpp(cache_type_k="q8_0"),
        ],
        [
            lcpp(cache_type_k="q8_0", cache_type_v="q8_0"),
            lcpp(cache_type_k="f16", cache_type_v="bf16"),
            lcpp(),
            here(),
        ],
    ),
    "kv.flash-attn": ([lcpp(flash_attn="off")], [lcpp(flash_attn="auto"), lcpp()]),
    "gpus.partly": (
        [lcpp(layers=32, n_gpu_layers=20), lcpp(layers=32, n_gpu_layers=0)],
        [
            lcpp(layers=32, n_gpu_layers=99),
            lcpp(layers=32, n_gpu_layers=32),
            lcpp(layers=32),
            lcpp(n_gpu_layers=20),
            lcpp(layers=32, n_gpu_layers=-1),
        ],
    ),
    "context.slots": (
        [lcpp(ctx_size=131072, parallel=4)],
        [
            lcpp(ctx_size=131072, parallel=1),
            lcpp(ctx_size=131072),
            lcpp(parallel=4),
            lcpp(ctx_size=131072, parallel=4, kv_unified=True),
        ],
    ),
    "tools.template": ([lcpp(jinja=False)], [lcpp(jinja=True), lcpp()]),
    "tools.parser": (
        [here(tool_call_parser="hermes")],
        [here(tool_call_parser="hermes", enable_auto_tool_choice=True), here()],
    ),
    "quality.experts": (
        [
            here(hf_overrides={"num_experts_per_tok": 16}),
            here("sglang", json_model_override_args='{"num_experts_per_tok": 16}'),
            lcpp(override_kv="qwen3moe.expert_used_count=int:16"),
        ],
        [
            here(hf_overrides={"architectures": ["X"]}),
            lcpp(override_kv="tokenizer.ggml.add_bos_token=bool:false"),
        ],
    ),
    "context.stretched": (
        [lcpp(rope_scaling="yarn"), here(hf_overrides={"rope_parameters": {"factor": 4}})],
        [lcpp(rope_scaling="none"), here(hf_overrides={"architectures": ["X"]}), here()],
    ),
    "nccl.gid-index": (
        [here(env={"NCCL_IB_GID_INDEX": "3"}, nnodes=2)],
        [here(env={"NCCL_IB_GID_INDEX": "3"}), here(nnodes=2)],
    ),
    "flag.fuse-gemm-comms": (
        [here(compilation_config=FUSED), here(compilation_config=FUSED, gpu=H100, nnodes=2)],
        [
            here(compilation_config=FUSED, gpu=H100),
            here(compilation_config={"pass_config": {"fuse_gemm_comms": False}}),
            here(compilation_config="odd"),
        ],
    ),
    "reasoning.client": (
        [lcpp(reasoning="off"), lcpp(reasoning_budget=0)],
        [lcpp(reasoning="auto"), lcpp(reasoning_budget=-1), lcpp()],
    ),
}


def found(situation: PlanContext) -> dict[str, Finding]:
    return {finding.code: finding for rule in RULES for finding in rule(situation)}


@pytest.mark.parametrize("code", CASES)
def test_a_plan_that_steps_into_a_trap_is_told_and_a_neighbour_is_not(code: str) -> None:
    fires, silent = CASES[code]
    for situation in fires:
        finding = found(situation)[code]
        assert finding.fix and finding.evidence and "trap" in str(finding.source), code
    for situation in silent:
        assert code not in found(situation), situation.plan


def test_the_change_of_a_finding_ends_it() -> None:
    for code, (fires, _) in CASES.items():
        for situation in fires:
            for change in found(situation)[code].changes:
                plan = situation.plan
                if change.env:
                    continue
                plan = (
                    plan.without_flag(change.name)
                    if change.value is None
                    else plan.with_flag(change.name, change.value)
                )
                after = PlanContext(
                    plan,
                    situation.catalog,
                    situation.engine,
                    situation.gpus,
                    situation.installed,
                )
                assert code not in found(after), (code, change)

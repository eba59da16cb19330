"""The original commands of the five write-ups, with exactly the findings that they should have on
their hardware."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from workbench import engines
from workbench.model.errors import InputError
from workbench.model.findings import Finding, Level
from workbench.model.flags import FlagSetting
from workbench.model.gpu import GpuInfo
from workbench.model.gpu_allotment import Allotment
from workbench.model.plan import LaunchPlan, ModelFacts
from workbench.server.engine_probe import InstalledEngine
from workbench.session.plans.plan_editor import HostContext, PlanEditor

QWEN_2B = ModelFacts(
    "Qwen/Qwen3-VL-2B-Instruct", 2.1e9, "BF16", 4.3e9, 4.3e9, 114_688, 28, source="preset x"
)
LLAMA_3B = ModelFacts(
    "meta-llama/Llama-3.2-3B-Instruct",
    3.2e9,
    "BF16",
    6.4e9,
    6.4e9,
    114_688,
    28,
    flags={"quantization": "fp8"},
    source="preset x",
)
QWEN_7B_AWQ = ModelFacts(
    "Qwen/Qwen2.5-7B-Instruct-AWQ", 7.6e9, "AWQ", 4.5e9, 5.6e9, 57_344, 28, source="preset x"
)
LLAMA_70B = ModelFacts(
    "meta-llama/Llama-3.3-70B-Instruct",
    70.6e9,
    "BF16",
    139e9,
    141e9,
    327_680,
    80,
    source="preset x",
)
MISTRAL = ModelFacts(
    "/m/Mistral-Large-Instruct-2411-AWQ",
    123e9,
    "AWQ",
    64.1e9,
    65.6e9,
    360_448,
    88,
    source="preset x",
)
A100, TI, SPARK, PRO = (
    ("NVIDIA A100-PCIE-40GB", 40),
    ("NVIDIA GeForce RTX 5060 Ti", 16),
    ("NVIDIA GB10", 121),
    ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 96),
)
OPEN = {"host": "0.0.0.0", "port": 8004}


@dataclass(frozen=True)
class Case:
    """A command of a document: its installed engine, hardware, model and options, and the codes of
    its findings."""

    name: str
    engine: str
    version: str
    card: tuple[str, int]
    gpus: int
    facts: ModelFacts
    flags: dict[str, Any]
    expected: set[str]
    env: dict[str, str] = field(default_factory=dict)
    executable: tuple[str, ...] = ("/opt/env/bin/vf-vllm",)
    twice: tuple[str, Any] | None = None  # a flag that the command gives a second time
    job: str | None = None


ALWAYS = {"warn bind.open"}  # 0.0.0.0 without a key
GUIDE = ("vllm", "0.11.0", A100, 4, QWEN_2B)
PROPOSAL = ("vllm", "0.10.2", TI, 2, LLAMA_3B)
MODULE = ("/opt/vllm/bin/python", "-m", "vllm.entrypoints.openai.api_server")
SPARKS = ("vllm", "0.11.0", SPARK, 1, LLAMA_70B)
CASES: tuple[Case, ...] = (
    Case(
        "guide: current",
        *GUIDE,
        {
            **OPEN,
            "tensor-parallel-size": 4,
            "data-parallel-size": 1,
            "enforce-eager": True,
            "disable-log-requests": True,
        },
        {
            "hint flag.deprecated disable-log-requests",
            "hint speed.eager",
            "info flag.default data-parallel-size",
            "info flag.default disable-log-requests",
            "info memory.estimate",
            "info parallel.all-reduce",
            "warn cmd.vf-vllm",
            "warn dp-before-tp",
        },
    ),
    Case(
        "guide: data parallel",
        *GUIDE,
        {
            **OPEN,
            "tensor-parallel-size": 1,
            "data-parallel-size": 4,
            "max-num-seqs": 512,
            "gpu-memory-utilization": 0.95,
        },
        {"info flag.default tensor-parallel-size", "info memory.estimate", "warn cmd.vf-vllm"},
    ),
    Case(
        "guide: hybrid",
        *GUIDE,
        {
            **OPEN,
            "tensor-parallel-size": 2,
            "data-parallel-size": 2,
            "max-num-seqs": 1024,
            "gpu-memory-utilization": 0.95,
        },
        {"info memory.estimate", "warn cmd.vf-vllm", "warn dp-before-tp"},
    ),
    Case(
        "guide: recommended",
        *GUIDE,
        {
            **OPEN,
            "data-parallel-size": 4,
            "max-num-seqs": 512,
            "max-num-batched-tokens": 8192,
            "gpu-memory-utilization": 0.95,
        },
        {"info memory.estimate", "warn cmd.vf-vllm"},
    ),
    Case(
        "guide: async",
        *GUIDE,
        {**OPEN, "data-parallel-size": 4, "async-scheduling": True},
        {"info memory.estimate", "warn cmd.vf-vllm"},
    ),
    Case(
        "guide: speculative",
        *GUIDE,
        {
            **OPEN,
            "data-parallel-size": 4,
            "speculative-model": "org/draft",
            "num-speculative-tokens": 5,
        },
        {
            "error flag.removed num-speculative-tokens",
            "error flag.removed speculative-model",
            "info memory.estimate",
            "warn cmd.vf-vllm",
        },
    ),
    Case(
        "guide: awq",
        *GUIDE,
        {**OPEN, "data-parallel-size": 4, "quantization": "awq"},
        {"hint model.facts", "warn cmd.vf-vllm", "warn quant.checkpoint"},
    ),
    Case(
        "guide: out of memory",
        *GUIDE,
        {**OPEN, "data-parallel-size": 4, "max-num-seqs": 256, "gpu-memory-utilization": 0.85},
        {"info memory.estimate", "warn cmd.vf-vllm"},
    ),
    Case(
        "guide: PBS",
        *GUIDE,
        {**OPEN, "data-parallel-size": 4},
        {"info memory.estimate", "warn cmd.vf-vllm", "warn hpc.respect-allocation"},
        {"CUDA_VISIBLE_DEVICES": "0,1,2,3"},
        job="PBS 42",
    ),
    Case(
        "proposal: unit and container 920",
        *PROPOSAL,
        {
            **OPEN,
            "served-model-name": ["a"],
            "quantization": "fp8",
            "kv-cache-dtype": "fp8",
            "max-model-len": 8192,
            "gpu-memory-utilization": 0.9,
            "tensor-parallel-size": 2,
            "trust-remote-code": True,
            "dtype": "float8",
            "max-num-batched-tokens": 8192,
            "max-num-seqs": 1,
        },
        {
            "error flag.choice dtype",
            "hint model.facts",
            "info flag.default gpu-memory-utilization",
            "warn batch.first",
            "warn env.removed VLLM_BLOCK_SIZE",
            "warn env.removed VLLM_KV_CACHE_DTYPE",
            "warn env.removed VLLM_NUM_GPUS",
            "warn flag.repeated served-model-name",
            "warn risk.remote-code",
        },
        {"VLLM_BLOCK_SIZE": "16", "VLLM_KV_CACHE_DTYPE": "fp8", "VLLM_NUM_GPUS": "2"},
        MODULE,
        ("served-model-name", ["b"]),
    ),
    Case(
        "proposal: test of 921",
        *PROPOSAL,
        {
            **OPEN,
            "quantization": "fp8",
            "kv-cache-dtype": "fp8",
            "max-model-len": 2048,
            "tensor-parallel-size": 2,
        },
        {"info memory.estimate", "warn dp-before-tp"},
        executable=MODULE,
    ),
    Case(
        "proposal: fp8 in place of AWQ",
        "vllm",
        "0.10.2",
        TI,
        2,
        QWEN_7B_AWQ,
        {**OPEN, "quantization": "fp8"},
        {"hint model.facts", "info gpus.idle", "warn quant.checkpoint"},
        executable=MODULE,
    ),
    Case(
        "sparks: BF16 over two nodes",
        *SPARKS,
        {
            **OPEN,
            "tensor-parallel-size": 2,
            "distributed-executor-backend": "ray",
            "gpu-memory-utilization": 0.9,
        },
        {
            "hint parallel.ray-cluster",
            "hint quant.first",
            "info flag.default gpu-memory-utilization",
            "info memory.estimate",
            "warn memory.unified",
        },
        executable=(),
    ),
    Case(
        "sparks: pipeline",
        *SPARKS,
        {
            **OPEN,
            "pipeline-parallel-size": 2,
            "distributed-executor-backend": "ray",
            "gpu-memory-utilization": 0.9,
        },
        {
            "hint parallel.ray-cluster",
            "hint pp.batch1",
            "hint quant.first",
            "info flag.default gpu-memory-utilization",
            "info memory.estimate",
            "warn memory.unified",
        },
        executable=(),
    ),
    Case(
        "plan: optimized start script",
        "sglang",
        "0.5.2",
        PRO,
        1,
        MISTRAL,
        {
            **OPEN,
            "tp": 1,
            "attention-backend": "triton",
            "served-model-name": "mistral",
            "mem-fraction-static": 0.92,
            "chunked-prefill-size": 16384,
            "max-running-requests": 8,
            "schedule-policy": "fcfs",
            "log-level": "info",
            "log-requests": True,
        },
        {
            "hint allocator.split-size",
            "hint env.noop CUDA_DEVICE_MAX_CONNECTIONS",
            "hint env.noop CUDA_LAUNCH_BLOCKING",
            "hint metrics.off",
            "info flag.default log-level",
            "info flag.default schedule-policy",
            "info flag.default tensor-parallel-size",
            "info memory.estimate",
            "warn env.removed TRITON_KERNEL_CACHE_SIZE",
        },
        {
            "CUDA_VISIBLE_DEVICES": "0",
            "CUDA_LAUNCH_BLOCKING": "0",
            "CUDA_DEVICE_MAX_CONNECTIONS": "32",
            "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True,max_split_size_mb:512",
            "TRITON_CACHE_DIR": "/tmp/triton_cache",
            "TRITON_KERNEL_CACHE_SIZE": "10000",
        },
        ("/home/u/env/bin/python", "-m", "sglang.launch_server"),
    ),
)


def planned(case: Case) -> LaunchPlan:
    catalog = engines.get_engine(case.engine).catalog(case.version)
    plan = LaunchPlan(
        case.engine,
        case.facts.id,
        case.facts,
        executable=case.executable,
        engine_version=case.version,
    )
    for name, value in case.flags.items():
        plan = engines.set_flag(plan, catalog, name, value)
    plan = replace(plan, env=tuple(FlagSetting(name, value) for name, value in case.env.items()))
    if case.twice:
        plan = replace(plan, flags=(*plan.flags, FlagSetting(*case.twice)))
    return plan


def cards(case: Case) -> tuple[GpuInfo, ...]:
    name, gib = case.card
    return tuple(
        GpuInfo(i, f"GPU-{i}", name, memory_total_bytes=gib << 30, unified_memory=name == SPARK[0])
        for i in range(case.gpus)
    )


def editor_of(case: Case) -> PlanEditor:
    editor = PlanEditor(planned(case))
    found = InstalledEngine(case.engine, "/x", case.version, allotment=Allotment(case.job))
    editor.host_context = HostContext(cards(case), case.version, case.engine, found=found)
    return editor


def findings(case: Case) -> tuple[Finding, ...]:
    return editor_of(case).findings()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_document_s_command_has_exactly_its_findings(case: Case) -> None:
    found = findings(case)
    assert {
        f"{f.level} {f.code}" + (f" {f.flag}" if f.code.startswith(("flag.", "env.")) else "")
        for f in found
    } == case.expected | ALWAYS
    for finding in found:
        if finding.level in (Level.ERROR, Level.WARN):
            assert finding.fix, finding


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_each_fix_removes_its_finding_is_undone_in_one_step_and_is_the_printed_options(
    case: Case,
) -> None:
    for finding in findings(case):
        editor = editor_of(case)
        if not finding.changes:
            with pytest.raises(InputError):
                editor.apply_fix_and_return_changes(finding)
            continue
        editor.apply_fix_and_return_changes(finding)
        left = {(f.code, f.flag) for f in editor.findings() if f.code == finding.code}
        assert (finding.code, finding.flag) not in left, finding
        fixed = editor.plan
        editor.undo()
        assert editor.plan == planned(case)
        options: dict[str, list[str]] = {"--set": [], "--unset": [], "--env": []}
        for change in finding.changes:
            option, assignment = shlex.split(change.option_text)
            options[option].append(assignment)
        editor.apply_assignments(options["--set"], options["--unset"], options["--env"])
        assert (set(map(str, editor.plan.flags)), editor.plan.env) == (
            set(map(str, fixed.flags)),
            fixed.env,
        ), finding


def test_a_secret_in_a_fix_is_masked_and_still_applied() -> None:
    editor = PlanEditor(LaunchPlan("vllm", "org/model", flags=(FlagSetting("api-kye", "s3cret"),)))
    shown = next(f for f in editor.view().findings if f.code == "flag.unknown")
    assert "s3cret" not in repr(editor.view().findings)
    editor.apply_fix_and_return_changes(shown)
    assert editor.plan.flag("api-key") == "s3cret"

"""Where Workbench states what is right, for each of the 82 wrong statements of the five write-ups.

A row names the statement, the places where a person would act on it, and the figures or words that
must stand there:

- `claim WRITE-UP: LINES`: the claim on the page of every preset of that write-up (`presets show`,
  `i`);
- `flag PRESET: FLAG`: what the editor of the flag says while that preset is loaded;
- `finding PRESET [CHANGE]: CODE`: a finding about the plan, after a change NAME=VALUE of a flag or
  a variable;
- `log ENGINE: LINE`: the explanation of that line of the engine's log;
- `advice SETUP: CODE`: the advisor's finding beside the result of that set-up;
- `word TERM`: the glossary, which `?` shows.

The first part of a statement's number is its write-up, in the order of `WRITE_UPS`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from tests.unit.advisor import advised
from workbench import engines
from workbench.advisor.advisor import list_advice_findings
from workbench.model.gpu import GpuInfo
from workbench.server.log_patterns import explain_line
from workbench.store import glossary
from workbench.store.preset_documents import read_source_document, source_document_names
from workbench.store.preset_text import preset_sections, texts_about_flag
from workbench.store.presets import PresetLibrary

ESXI, PLAN, SPARK, TI, GUIDE = WRITE_UPS = (
    "esxi-vm-performance-analysis",
    "blackwell-optimization-plan",
    "dgx-spark-vllm-diagnosis",
    "rtx-5060ti-fp8-proposal",
    "vllm-server-optimization-guide",
)
STATEMENTS = (14, 12, 18, 17, 21)  # wrong ones of each write-up
TUNED, CLOCKS = "sglang-mistral-large-awq-optimized", "rtx-pro-6000-clock-power-profile"
RAY, PP = "vllm-llama-3.3-70b-2x-spark-ray", "vllm-llama-3.3-70b-pp2-2x-spark"
CONTAINER, TWO_CARDS = "vllm-container-920-fp8-2x-5060ti", "vllm-llama-3.2-3b-fp8-2x-5060ti"
DP4, TP4 = "vllm-qwen3-vl-2b-dp4", "vllm-qwen3-vl-2b-tp4-eager"

Row = tuple[str, str, tuple[str, ...]]
ROWS: tuple[Row, ...] = (
    ("0-1", f"claim {ESXI}: 1", ("GB202", "sm_120", "1792 GB/s", "8 TB/s")),
    (
        "0-2",
        f"claim {ESXI}: 33, 79-82",
        ("2779 MHz", "511 W", "Nothing in the readings points to the hypervisor"),
    ),
    ("0-2", "advice passed_through: env.guest", ("no sign of the hypervisor",)),
    ("0-3", f"claim {ESXI}: 29-30, 53-54", ("highest values of the clock table", "13365 MHz")),
    (
        "0-3",
        "advice passed_through: clock.max-is-not-sustained",
        ("not one that the card sustains", "2790 of 3090 MHz"),
    ),
    ("0-4", f"claim {ESXI}: 36-39, 65", ("64.1 GB", "27.96", "26.69", "81 % and 85 %")),
    ("0-4", "advice passed_through: roofline.near-ceiling", ("memory-bound", "22.7 of 26.69")),
    ("0-5", f"claim {ESXI}: 40, 55, 82", ("550 W on the same machine", "483 to 522 W")),
    ("0-5", "advice passed_through: power.not-binding", ("503 of 600 W",)),
    ("0-6", f"claim {ESXI}: 13, 62-63", ("not AWQ", "other bits per weight")),
    ("0-7", f"claim {ESXI}: 69-77, 104", ("KV capacity, prefill chunks and concurrency", "0-2 %")),
    ("0-7", "advice passed_through: knob.scope", ("mem-fraction-static", "chunked-prefill-size")),
    (
        "0-7",
        f"flag {TUNED}: mem-fraction-static",
        ("do not change the decoding of a single stream",),
    ),
    (
        "0-7",
        f"flag {TUNED}: chunked-prefill-size",
        ("do not change the decoding of a single stream",),
    ),
    (
        "0-7",
        f"flag {TUNED}: max-running-requests",
        ("do not change the decoding of a single stream",),
    ),
    ("0-8", f"claim {ESXI}: 92", ("0 is the default", "no effect")),
    ("0-8", f"flag {TUNED}: CUDA_LAUNCH_BLOCKING", ("no effect",)),
    (
        "0-8",
        f"finding {TUNED}: env.noop",
        ("CUDA_LAUNCH_BLOCKING=0 has no effect: 0 is the default",),
    ),
    ("0-9", f"claim {ESXI}: 116", ("161 to 215 %", "less than 1 %", "tcgen05", "TMEM")),
    ("0-10", f"claim {ESXI}: 122", ("250 to 322 %",)),
    ("0-11", f"claim {ESXI}: 142, 160", ("4.8 % at most",)),
    ("0-11", "advice passed_through: promise.bound-by-clock", ("+4.8 %",)),
    ("0-12", f"claim {ESXI}: 170-175", ("0.0264", "66 %", "sum of rated powers")),
    ("0-13", f"claim {ESXI}: 178", ("27.96", "0.056 tok/J", "400 W")),
    ("0-14", f"claim {ESXI}: 56", ("at least one kernel running",)),
    ("0-14", "advice passed_through: util.definition", ("at least one kernel",)),
    ("0-14", "word utilization", ("at least one program ran", "100 % does not mean")),
    (
        "1-1",
        f"claim {PLAN}: 1, 342",
        ("RTX PRO 6000 Workstation Edition", "600 W is its default and its maximum"),
    ),
    ("1-2", f"claim {PLAN}: 5, 300, 307, 329, 375", ("107 to 125 %", "112 to 131 %")),
    (
        "1-3",
        f"claim {PLAN}: 15, 45, 79-82",
        ("450 W and 2661 MHz", "4.9 %", "counts the two gains twice"),
    ),
    ("1-3", "advice passed_through: clock.single-stream-flat", ("not limited by the SM clock",)),
    ("1-4", f"claim {PLAN}: 38-39", ("13365 MHz without a lock", "Expect no change")),
    ("1-5", f"claim {PLAN}: 79-80, 327", ("More watts for the same tok/s are a loss", "tok/J")),
    ("1-5", "advice passed_through: clock.single-stream-flat", ("at equal tok/s are a loss",)),
    ("1-6", f"claim {PLAN}: 358", ("The default is 600 W", "before the change")),
    ("1-7", f"claim {PLAN}: 151-157", ("many streams", "Triton does not read the second")),
    ("1-7", f"flag {TUNED}: CUDA_DEVICE_MAX_CONNECTIONS", ("only for many streams",)),
    ("1-7", f"finding {TUNED}: env.noop", ("CUDA_DEVICE_MAX_CONNECTIONS=32 has no effect",)),
    ("1-7", f"finding {TUNED} TRITON_KERNEL_CACHE_SIZE=10000: env.removed", ("TRITON_CACHE_DIR",)),
    ("1-8", f"claim {PLAN}: 192-200", ("76 characters", "five of the ten", "invalid JSON")),
    ("1-9", f"claim {PLAN}: 247-280", ("prefix cache", "no warm-up and no spread", "1-5 %")),
    ("1-10", f"claim {PLAN}: 287-307, 382, 400", ("24-43 %", "26-51 %", "+20 to +59 %")),
    ("1-11", f"claim {PLAN}: 214-226", ("no cpufreq", "on the host")),
    ("1-11", "advice passed_through: env.guest", ("no CPU governor and no C-states",)),
    ("1-12", f"claim {PLAN}: 336", ("Lower the power limit",)),
    (
        "2-1",
        f"claim {SPARK}: 7, 12, 27",
        ("139 GB", "3.93", "81 %", "220 GB/s per node", "memory-bound"),
    ),
    (
        "2-1",
        "advice two_sparks: roofline.near-ceiling",
        ("memory-bound", "3.17 of 3.93", "220 GB/s per GPU"),
    ),
    ("2-2", f"claim {SPARK}: 16-23", ("even if the kernel waits for the network", "140 W")),
    ("2-2", "advice two_sparks: util-vs-power", ("memory-bound load", "40 of 140 W")),
    ("2-2", "word utilization", ("100 % does not mean",)),
    (
        "2-3",
        f"claim {SPARK}: 42-44, 123-142",
        ("2-byte RDMA write", "41 µs for 8 KiB", "105-127 µs for 64 KiB"),
    ),
    ("2-4", f"claim {SPARK}: 142, 144", ("160-640 µs",)),
    (
        "2-5",
        f"claim {SPARK}: 142, 144",
        ("factor of about 500", "7-10 ms of 315 ms", "255 ms are memory reads"),
    ),
    ("2-5", "advice two_sparks: comm.latency", ("2.1 to 3.1 %", "not the limit")),
    ("2-6", f"claim {SPARK}: 256-258", ("0.08 %",)),
    ("2-7", f"claim {SPARK}: 127-140", ("That is a pipeline", "160 per token")),
    ("2-7", f"flag {RAY}: tensor-parallel-size", ("That is a pipeline", "at the same time")),
    ("2-8", f"claim {SPARK}: 43", ("no backward pass",)),
    ("2-9", f"claim {SPARK}: 44, 82, 90, 116, 250", ("Ethernet", "RoCE", "NET/Socket")),
    ("2-9", "log vllm: spark-1:71:71 [0] NCCL INFO NET/Socket : Using [0]enp1s0f1np1", ("TCP",)),
    ("2-10", f"claim {SPARK}: 57, 61-62", ("121.7 GiB", "70.6 GB", "40.6 GB", "4.0-4.2 tok/s")),
    ("2-11", f"claim {SPARK}: 81", ("too little is left for the system", "0.8")),
    ("2-11", f"flag {RAY}: gpu-memory-utilization", ("can freeze", "0.8")),
    (
        "2-11",
        f"finding {RAY}-0.90: memory.unified",
        ("shares its memory with the system", "0.8 or less"),
    ),
    ("2-12", f"claim {SPARK}: 100, 217", ("cannot exceed 3.93",)),
    ("2-13", f"claim {SPARK}: 101-102, 152, 165", ("15.7", "31.4", "62.8", "2.5-4.7x")),
    (
        "2-13",
        "advice two_sparks: batch.ceiling",
        ("4 streams 15.72", "8 streams 31.44", "16 streams 62.88"),
    ),
    ("2-14", f"claim {SPARK}: 171, 216", ("18.2", "34.0", "54.9", "20.5", "38.65")),
    ("2-15", f"claim {SPARK}: 174-181", ("1.96 tok/s", "any number of stages", "1.08x", "2.09x")),
    ("2-15", f"flag {PP}: pipeline-parallel-size", ("1.96 tok/s",)),
    ("2-15", f"finding {PP}: pp.batch1", ("one request gets no faster",)),
    ("2-16", f"claim {SPARK}: 112", ("total of many requests", "does not make one stream faster")),
    ("2-16", f"finding {PP}: pp.batch1", ("stages help with many requests",)),
    (
        "2-17",
        f"claim {SPARK}: 241-246",
        ("No measurement", "81 % are memory reads", "2-3 % communication"),
    ),
    ("2-18", f"claim {SPARK}: 219-225", ("only for BF16", "two to four times fewer bytes")),
    ("2-18", "advice two_sparks: quant.first", ("two to four times fewer bytes",)),
    ("3-1", f"claim {TI}: 13, 52, 88", ("at most 2x for decoding",)),
    (
        "3-2",
        f"claim {TI}: 20, 34, 77, 167",
        ("1.6-1.7x", "7.62 instead of 4.48 GB", "59 instead of 100 tok/s"),
    ),
    ("3-2", f"flag {TWO_CARDS}: quantization", ("1.6-1.7x the bytes of 4-bit AWQ",)),
    ("3-3", f"claim {TI}: 19, 52", ("defines no such percentage",)),
    ("3-4", f"claim {TI}: 30, 45", ("no sm_120 code", "no fallback", "python of that environment")),
    ("3-5", f"claim {TI}: 64-68", ("PAM", "literal $PATH", "systemd units never read the file")),
    ("3-6", f"claim {TI}: 75-84, 181", ("August 2024", "0.3.1")),
    ("3-6", "log vllm: RuntimeError: FlashInfer requires sm75+", ("FlashInfer",)),
    ("3-7", f"claim {TI}: 92-103", ("torch 2.8.0", "Install only vLLM")),
    ("3-8", f"claim {TI}: 114-116", ("Unknown vLLM environment variable", "--block-size")),
    ("3-8", f"finding {TWO_CARDS} VLLM_BLOCK_SIZE=16: env.removed", ("block-size",)),
    ("3-8", f"finding {TWO_CARDS} VLLM_KV_CACHE_DTYPE=fp8: env.removed", ("kv-cache-dtype",)),
    ("3-8", f"finding {TWO_CARDS} VLLM_NUM_GPUS=2: env.removed", ("tensor-parallel-size",)),
    (
        "3-9",
        f"claim {TI}: 130",
        ("auto, half, float16, bfloat16, float or float32", "--quantization fp8"),
    ),
    ("3-9", f"finding {TWO_CARDS} dtype=float8: flag.choice", ("float8", "quantization to fp8")),
    ("3-10", f"claim {TI}: 135", ("prevents batching",)),
    ("3-10", f"flag {CONTAINER}: max-num-seqs", ("prevents batching",)),
    ("3-10", f"finding {CONTAINER}: batch.first", ("one request at a time",)),
    ("3-11", f"claim {TI}: 117, 143", ("The last one is used without a message",)),
    ("3-12", f"claim {TI}: 142", ("two replicas", "twice the total", "above 14 GB")),
    (
        "3-12",
        f"flag {TWO_CARDS}: tensor-parallel-size",
        ("Both fit on one 16 GB card", "--data-parallel-size 2"),
    ),
    ("3-12", f"finding {TWO_CARDS}: dp-before-tp", ("the model fits one GPU", "run 2 replicas")),
    ("3-13", f"claim {TI}: 154, 162", ("linked clones", "snapshot")),
    ("3-14", f"claim {TI}: 158", ("system's Python", "virtual environment")),
    ("3-15", f"claim {TI}: 171", ("fails for a healthy server", "Ten seconds")),
    ("3-16", f"claim {TI}: 183", ("is a directory", "torch==VERSION.devYYYYMMDD")),
    ("3-17", f"claim {TI}: 206", ("no kernel image is available",)),
    (
        "3-17",
        "log vllm: RuntimeError: CUDA error: no kernel image is available for execution on the "
        "device",
        ("torch",),
    ),
    ("4-1", f"claim {GUIDE}: 60-63", ("28 layers", "57", "19.4 ms", "10-20 µs")),
    ("4-1", "advice four_cards: comm.latency", ("57 all-reduces", "2.9 to 5.9 %")),
    ("4-1", f"flag {TP4}: tensor-parallel-size", ("makes 57", "19.4 ms")),
    ("4-2", f"claim {GUIDE}: 42-47", ("the number has no source", "2.8 %")),
    ("4-2", "advice four_cards: launch.bound", ("3 % of its limit", "launches or synchronization")),
    ("4-3", f"claim {GUIDE}: 73-79", ("several hundred kernels", "5-20 µs")),
    ("4-3", "advice four_cards: eager.cost", ("hundreds of kernels",)),
    ("4-3", f"flag {TP4}: enforce-eager", ("several hundred kernels",)),
    ("4-4", f"claim {GUIDE}: 83-84", ("55 %",)),
    ("4-4", f"flag {TP4}: enforce-eager", ("55 %",)),
    ("4-4", f"finding {TP4}: speed.eager", ("decodes slower",)),
    ("4-5", f"claim {GUIDE}: 30, 93-98", ("eight short requests", "does not reduce the speed")),
    ("4-6", f"claim {GUIDE}: 27, 145, 310", ("72 % prefix-cache hits", "TTFT at a known length")),
    ("4-7", f"claim {GUIDE}: 139, 146-147", ("1.94x", "latency")),
    ("4-7", f"flag {DP4}: data-parallel-size", ("1.94x",)),
    ("4-8", f"claim {GUIDE}: 8, 107, 311, 318-325", ("78-120x",)),
    ("4-9", f"claim {GUIDE}: 279", ("from 256 to 512", "2048 in total")),
    ("4-9", f"flag {DP4}: max-num-seqs", ("2048 in total",)),
    ("4-10", f"claim {GUIDE}: 280", ("Nothing was measured",)),
    ("4-10", f"flag {DP4}: max-num-batched-tokens", ("Nothing was measured",)),
    ("4-11", f"claim {GUIDE}: 168", ("2 GB per GPU, 4 GB per replica",)),
    ("4-12", f"claim {GUIDE}: 98, 298, 312", ("tok/s is a speed", "19.4 ms")),
    ("4-13", f"claim {GUIDE}: 373-376, 537", ("a quarter of the total", "Add up the engines")),
    ("4-13", f"finding {DP4}: log.no-stats", ("/metrics",)),
    ("4-14", f"claim {GUIDE}: 335-366", ("one run of 100 examples", "load generator")),
    ("4-15", f"claim {GUIDE}: 127, 154", ("2026-07-08", "vllm serve")),
    ("4-16", f"claim {GUIDE}: 397-398", ("removed in vLLM 0.8.3", "--speculative-config")),
    ("4-16", f"finding {DP4} speculative-model=x: flag.removed", ("speculative-config",)),
    ("4-17", f"claim {GUIDE}: 404-411", ("needs a checkpoint with AWQ weights", "1.6 %")),
    ("4-17", f"flag {DP4}-fp8: quantization", ("needs a checkpoint with AWQ weights",)),
    ("4-17", f"finding {DP4} quantization=awq: quant.checkpoint", ("needs a checkpoint in AWQ",)),
    ("4-18", f"claim {GUIDE}: 429-433", ("one 96 GB card", "smallest TP that fits")),
    ("4-18", f"flag {TP4}: tensor-parallel-size", ("smallest TP that fits",)),
    ("4-18", f"finding {TP4}: dp-before-tp", ("the model fits one GPU", "run 4 replicas")),
    ("4-19", f"claim {GUIDE}: 220, 460", ("wait and preemptions",)),
    ("4-19", f"flag {DP4}: max-num-seqs", ("wait and preemptions",)),
    ("4-20", f"claim {GUIDE}: 520", ("other users", "Keep the assigned value")),
    ("4-21", f"claim {GUIDE}: 523", ("other jobs", "VLLM::EngineCore", "process group")),
)


def test_every_wrong_statement_has_a_place() -> None:
    every = [
        f"{write_up}-{n}" for write_up, count in enumerate(STATEMENTS) for n in range(1, count + 1)
    ]
    assert list(dict.fromkeys(number for number, _, _ in ROWS)) == every and len(every) == 82
    assert set(source_document_names()) == set(WRITE_UPS)


@pytest.mark.parametrize(
    "number, place, figures",
    ROWS,
    ids=[f"{n} {p.split()[0]} {i}" for i, (n, p, _) in enumerate(ROWS)],
)
def test_what_is_right_stands_where_a_person_would_act(
    number: str, place: str, figures: tuple[str, ...]
) -> None:
    kind, _, where = place.partition(" ")
    text = PLACES[kind](where)
    assert [figure for figure in figures if figure not in text] == [], text or f"nothing at {place}"


@pytest.mark.parametrize("write_up", WRITE_UPS)
def test_the_claims_of_a_write_up_stand_on_the_page_of_each_of_its_presets(write_up: str) -> None:
    presets = [library().get(entry.id) for entry in library().list()]
    having = [
        preset for preset in presets if write_up in (preset.provenance.document, *preset.documents)
    ]
    assert len(having) >= 4
    for preset in having:
        page = "\n".join(line.text for section in preset_sections(preset) for line in section.lines)
        assert all(claim.correct in page for claim in read_source_document(write_up).claims), (
            preset.id
        )


@cache
def library() -> PresetLibrary:
    return PresetLibrary()


def claim(where: str) -> str:
    write_up, _, lines = where.partition(": ")
    found = [c for c in read_source_document(write_up).claims if c.lines == lines]
    assert all(c.verdict != "true" for c in found)
    return "\n".join(f"{c.text}\n{c.correct}" for c in found)


def flag(where: str) -> str:
    preset_id, _, name = where.partition(": ")
    return "\n".join(texts_about_flag(library().get(preset_id), name))


def finding(where: str) -> str:
    """Return the findings with the code in `where`, about a plan on GPUs of the preset's kind."""
    before, _, code = where.partition(": ")
    preset_id, _, change = before.partition(" ")
    preset = library().get(preset_id)
    plan = engines.plan_from_preset(
        preset, {n: v.default or v.example or "" for n, v in preset.variables.items()}
    )
    name, _, value = change.partition("=")
    if name:
        plan = plan.with_env(name, value) if name.isupper() else plan.with_flag(name, value)
    gpu = (preset.hardware.gpu_names or ["NVIDIA A100-PCIE-40GB"])[0]
    gpus = [
        GpuInfo(
            i,
            f"GPU-{i}",
            gpu,
            memory_total_bytes=40 * 2**30,
            unified_memory=preset.hardware.unified_memory,
        )
        for i in range(preset.hardware.count)
    ]
    found = engines.validate_plan(plan, engines.get_engine(plan.engine).catalog(), gpus=gpus)
    return "\n".join(f"{f.text} {f.fix or ''}" for f in found if f.code == code)


def log(where: str) -> str:
    engine, _, line = where.partition(": ")
    found = explain_line(line, engine)
    return f"{found.text} {found.fix or ''}" if found else ""


def advice(where: str) -> str:
    setup, _, code = where.partition(": ")
    found = [f for f in list_advice_findings(getattr(advised, setup)()) if f.code == code]
    return "\n".join(f"{f.text} {f.evidence or ''} {f.fix or ''}" for f in found)


def word(where: str) -> str:
    return "\n".join(term.means for term in glossary.find_terms(where))


PLACES: dict[str, Callable[[str], str]] = {
    "claim": claim,
    "flag": flag,
    "finding": finding,
    "log": log,
    "advice": advice,
    "word": word,
}

"""Where Workbench states the correct reading for each rule that the corrections of the five
write-ups name.

A place is a finding of the advisor, of a plan, of the doctor, a trap of a GPU setting, a pattern of
the log, a claim of a write-up with its correction, or a test of what Workbench does by itself. The
last test names the rules that only a claim states.
"""

from __future__ import annotations

import json
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.unit.advisor.test_advisor_rules import CASES

ROOT = Path(__file__).resolve().parents[3]
ESXI, CLOCKS, SPARK = (
    "esxi-vm-performance-analysis",
    "blackwell-optimization-plan",
    "dgx-spark-vllm-diagnosis",
)
TI, GUIDE = "rtx-5060ti-fp8-proposal", "vllm-server-optimization-guide"

ADVISOR, PLAN, DOCTOR, TRAP, LOG, CLAIM, TEST = (
    "advisor",
    "plan",
    "doctor",
    "trap",
    "log",
    "claim",
    "test",
)

PLACES: dict[str, tuple[tuple[str, str], ...]] = {
    "hw.identity": ((ADVISOR, "hw.identity"), (CLAIM, f"{ESXI} 1"), (CLAIM, f"{CLOCKS} 1, 342")),
    "clock.max-is-not-sustained": (
        (ADVISOR, "clock.max-is-not-sustained"),
        (TRAP, "clock.max-is-not-sustained"),
        (CLAIM, f"{ESXI} 29-30, 53-54"),
    ),
    "roofline.near-ceiling": ((ADVISOR, "roofline.near-ceiling"), (CLAIM, f"{SPARK} 7, 12, 27")),
    "power.not-binding": ((ADVISOR, "power.not-binding"), (TRAP, "power.not-binding")),
    "bench.same-bytes": (
        (
            TEST,
            "tests/unit/bench/test_bench_compare.py::test_not_like_for_like",
        ),
        (CLAIM, f"{ESXI} 13, 62-63"),
    ),
    "knob.scope": ((ADVISOR, "knob.scope"), (CLAIM, f"{ESXI} 69-77, 104"), (CLAIM, f"{GUIDE} 279")),
    "env.noop": ((CLAIM, f"{ESXI} 92"), (CLAIM, f"{CLOCKS} 151-157")),
    "promise.above-roofline": (
        (ADVISOR, "promise.above-roofline"),
        (CLAIM, f"{CLOCKS} 5, 300, 307, 329, 375"),
    ),
    "promise.bound-by-clock": ((ADVISOR, "promise.bound-by-clock"), (CLAIM, f"{ESXI} 142, 160")),
    "energy.scope": ((ADVISOR, "energy.scope"), (CLAIM, f"{ESXI} 170-175")),
    "util.definition": ((ADVISOR, "util.definition"), (CLAIM, f"{ESXI} 56")),
    "clock.single-stream-flat": (
        (ADVISOR, "clock.single-stream-flat"),
        (CLAIM, f"{CLOCKS} 15, 45, 79-82"),
    ),
    "lock.noop": (
        (ADVISOR, "lock.noop"),
        (TRAP, "memory.lock-is-where-it-runs"),
        (CLAIM, f"{CLOCKS} 38-39"),
    ),
    "metric.power-not-goal": (
        (ADVISOR, "clock.single-stream-flat"),
        (CLAIM, f"{CLOCKS} 79-80, 327"),
    ),
    "reset.restore-recorded": (
        (TEST, "tests/unit/gpu/test_gpu_control.py::test_apply_reads_back_and_revert_restores"),
        (CLAIM, f"{CLOCKS} 358"),
    ),
    "script.validate-http": (
        (TEST, "tests/unit/bench/test_bench_reply.py::test_faults_that_make_a_request_fail"),
        (CLAIM, f"{CLOCKS} 192-200"),
    ),
    "bench.protocol": (
        (ADVISOR, "bench.protocol"),
        (CLAIM, f"{CLOCKS} 247-280"),
        (CLAIM, f"{GUIDE} 335-366"),
    ),
    "promise.sum": ((ADVISOR, "promise.sum"), (CLAIM, f"{CLOCKS} 287-307, 382, 400")),
    "env.guest": (
        (ADVISOR, "env.guest"),
        (DOCTOR, "host.passthrough"),
        (CLAIM, f"{CLOCKS} 214-226"),
    ),
    "thermal.remedy": ((ADVISOR, "thermal.remedy"), (CLAIM, f"{CLOCKS} 336")),
    "util-vs-power": ((ADVISOR, "util-vs-power"), (CLAIM, f"{SPARK} 16-23")),
    "comm.latency": (
        (ADVISOR, "comm.latency"),
        (CLAIM, f"{SPARK} 42-44, 123-142"),
        (CLAIM, f"{GUIDE} 60-63"),
    ),
    "arith": (
        (ADVISOR, "comm.latency"),
        (CLAIM, f"{SPARK} 142, 144"),
        (CLAIM, f"{GUIDE} 139, 146-147"),
    ),
    "concept.tp-pp": ((ADVISOR, "pp.batch1"), (CLAIM, f"{SPARK} 127-140")),
    "net.roce": (
        (LOG, "nccl-rdma"),
        (LOG, "nccl-socket"),
        (CLAIM, f"{SPARK} 44, 82, 90, 116, 250"),
    ),
    "quant.first": ((ADVISOR, "quant.first"), (CLAIM, f"{SPARK} 219-225")),
    "uma.reserve": ((ADVISOR, "uma.reserve"), (PLAN, "memory.unified"), (CLAIM, f"{SPARK} 81")),
    "batch.ceiling": ((ADVISOR, "batch.ceiling"), (CLAIM, f"{SPARK} 101-102, 152, 165")),
    "pp.batch1": ((ADVISOR, "pp.batch1"), (CLAIM, f"{SPARK} 174-181")),
    "claim.no-evidence": (
        (CLAIM, f"{SPARK} 241-246"),
        (CLAIM, f"{GUIDE} 42-47"),
        (CLAIM, f"{GUIDE} 280"),
    ),
    "quant.bytes": (
        (ADVISOR, "quant.bytes"),
        (CLAIM, f"{TI} 20, 34, 77, 167"),
        (CLAIM, f"{GUIDE} 404-411"),
    ),
    "stack.verify": ((DOCTOR, "stack.torch-arch"), (CLAIM, f"{TI} 30, 45"), (CLAIM, f"{TI} 158")),
    "env.file-semantics": ((DOCTOR, "env.file-semantics"), (CLAIM, f"{TI} 64-68")),
    "stack.pins": (
        (DOCTOR, "stack.pins"),
        (DOCTOR, "stack.flashinfer-arch"),
        (CLAIM, f"{TI} 92-103"),
    ),
    "env.unknown": ((PLAN, "env.unknown"), (LOG, "unknown-env"), (CLAIM, f"{TI} 114-116")),
    "flag.validate": ((PLAN, "flag.choice"), (PLAN, "flag.removed"), (CLAIM, f"{TI} 130")),
    "batch.first": ((ADVISOR, "batch.first"), (CLAIM, f"{TI} 135")),
    "flag.duplicate": ((PLAN, "flag.repeated"), (CLAIM, f"{TI} 117, 143")),
    "dp-before-tp": ((ADVISOR, "dp-before-tp"), (CLAIM, f"{TI} 142"), (CLAIM, f"{GUIDE} 429-433")),
    "danger.confirm": ((CLAIM, f"{TI} 154, 162"),),
    "script.readiness": (
        (
            TEST,
            "tests/unit/server/test_server_readiness.py::test_ready_is_health_and_model_and_answers",
        ),
        (CLAIM, f"{TI} 171"),
    ),
    "logs.patterns": ((LOG, "no-kernel-image"), (LOG, "unsupported-arch"), (CLAIM, f"{TI} 206")),
    "eager.cost": (
        (ADVISOR, "eager.cost"),
        (PLAN, "speed.eager"),
        (LOG, "eager"),
        (CLAIM, f"{GUIDE} 83-84"),
    ),
    "kv.load-not-waste": (
        (ADVISOR, "kv.load-not-waste"),
        (CLAIM, f"{GUIDE} 30, 93-98"),
        (CLAIM, f"{GUIDE} 220, 460"),
    ),
    "metric.prompt-throughput": (
        (ADVISOR, "metric.prompt-throughput"),
        (CLAIM, f"{GUIDE} 27, 145, 310"),
    ),
    "metric.units": ((CLAIM, f"{GUIDE} 98, 298, 312"),),
    "dp.sum-engines": (
        (ADVISOR, "dp.sum-engines"),
        (PLAN, "log.no-stats"),
        (CLAIM, f"{GUIDE} 373-376, 537"),
    ),
    "cmd.vf-vllm": ((CLAIM, f"{GUIDE} 127, 154"),),
    "hpc.respect-allocation": ((CLAIM, f"{GUIDE} 520"),),
    "proc.own-only": (
        (
            TEST,
            "tests/unit/hosts/test_hosts_processes.py::test_a_session_with_another_leader_is_not_the_runs",
        ),
        (CLAIM, f"{GUIDE} 523"),
    ),
}


def codes_in(folder: str) -> str:
    return "\n".join(path.read_text() for path in sorted((ROOT / folder).rglob("*.py")))


@cache
def known(kind: str) -> Any:
    match kind:
        case "advisor":
            return set(CASES)
        case "plan":
            return set(re.findall(r'"([\w.-]+)"', codes_in("workbench/engines")))
        case "doctor":
            return set(re.findall(r'"([\w.-]+)"', codes_in("workbench/doctor")))
        case "trap":
            rows = json.loads((ROOT / "workbench/gpu/settings/setting_traps.json").read_text())[
                "traps"
            ]
            return {row["id"] for row in rows}
        case "log":
            return set(
                re.findall(
                    r'"id": "([\w.-]+)"', (ROOT / "workbench/engines/log_patterns.json").read_text()
                )
            )
    documents = (ROOT / "presets" / "documents").glob("*.toml")
    return {
        f"{path.stem} {claim['lines']}": claim
        for path in documents
        for claim in tomllib.loads(path.read_text())["claims"]
    }


@pytest.mark.parametrize("rule", PLACES)
def test_each_rule_of_the_write_ups_has_its_places(rule: str) -> None:
    for kind, reference in PLACES[rule]:
        if kind == TEST:
            path, _, name = reference.partition("::")
            assert f"def {name}(" in (ROOT / path).read_text(), reference
        else:
            assert reference in known(kind), f"{kind} {reference}"
        if kind == CLAIM:
            claim = known(kind)[reference]
            assert claim["correct"] and claim["verdict"], reference


def test_all_fifty_rules_are_in_the_table() -> None:
    assert len(PLACES) == 50
    assert [
        rule for rule, places in PLACES.items() if all(kind == CLAIM for kind, _ in places)
    ] == [
        "env.noop",
        "claim.no-evidence",
        "danger.confirm",
        "metric.units",
        "cmd.vf-vllm",
        "hpc.respect-allocation",
    ]

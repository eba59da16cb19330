"""Whatever a result contains, the advisor returns findings with texts, and never an infinite or
negative gain."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st
from support import made_results

from workbench.advisor.advisor import list_advice_findings
from workbench.advisor.facts import Facts, facts_from_result
from workbench.model.bench import BenchSummary, EngineDuring, GpuDuring, PcieDuring
from workbench.model.plan import ModelFacts

NUMBERS = st.none() | st.floats(-1e18, 1e18) | st.sampled_from([0.0, 1e-300, 1.0, 27.96, 1e300])
COUNTS = st.none() | st.integers(-(10**30), 10**30)
WORDS = st.text(max_size=12)
VALUES = NUMBERS | COUNTS | WORDS | st.booleans() | st.lists(st.integers(), max_size=2)
NAMES = st.sampled_from(
    [
        *(
            "NVIDIA GB10",
            "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
            "NVIDIA GeForce RTX 5060 Ti",
            "",
        ),
        *("NVIDIA A100-PCIE-40GB", "unheard of"),
    ]
)
FLAGS = st.dictionaries(
    st.sampled_from(
        [
            *(
                "tensor-parallel-size",
                "pipeline-parallel-size",
                "data-parallel-size",
                "enforce-eager",
                "max-num-seqs",
            ),
            *(
                "gpu-memory-utilization",
                "disable-cuda-graph",
                "speculative-config",
                "nnodes",
                "parallel",
            ),
        ]
    ),
    VALUES,
)


def of(kind: type, **known: Any) -> st.SearchStrategy[Any]:
    """Return instances of a record of numbers, all of whose optional numbers are arbitrary."""
    numbers = {
        f.name: NUMBERS if "float" in str(f.type) else COUNTS
        for f in fields(kind)
        if "| None" in str(f.type)
    }
    return st.builds(
        kind, **{**{n: s for n, s in numbers.items() if "Distribution" not in n}, **known}
    )


GPU = of(
    GpuDuring,
    gpus=st.just((0, 1)),
    power_w_each=st.tuples(NUMBERS, NUMBERS),
    energy_j_each=st.just(()),
    pcie=st.lists(of(PcieDuring, gpu=st.integers(0, 3)), max_size=2).map(tuple),
    event_reasons=st.dictionaries(
        st.sampled_from(["SW power cap", "HW thermal slowdown", "odd"]), st.floats(0, 1)
    ),
)
CARD = st.fixed_dictionaries(
    {"index": st.integers(0, 3), "name": NAMES},
    optional=dict.fromkeys(
        ("memory_total_bytes", "sm_max_mhz", "memory_max_mhz", "power_max_w", "virtualization"),
        VALUES,
    ),
)
SIZES = of(ModelFacts, id=WORDS, quantization=st.none() | WORDS, missing=st.none() | WORDS)


@given(
    st.sampled_from(["vllm", "sglang", "llamacpp", "tabbyapi", "unheard of", None]),
    FLAGS,
    st.lists(CARD, max_size=9),
    st.none() | SIZES,
    st.dictionaries(st.sampled_from(["gpu0.power_limit_w", "gpu1.power_limit_w"]), VALUES),
    NUMBERS,
    st.tuples(NUMBERS, NUMBERS, NUMBERS, st.none() | GPU, st.none() | of(EngineDuring)),
    st.integers(1, 1000),
    st.none() | st.floats(1e-6, 1e9),
)
@example(
    "vllm",
    {"tensor-parallel-size": 1e300},
    [],
    None,
    {},
    1.0,
    (1.0, None, None, None, None),
    1,
    None,
)
def test_no_result_breaks_the_advisor(
    engine: str | None,
    flags: dict[str, Any],
    cards: list[dict[str, Any]],
    sizes: ModelFacts | None,
    settings: dict[str, Any],
    ceiling: float | None,
    measured: tuple[Any, ...],
    streams: int,
    expected: float | None,
) -> None:
    made = made_results.result(engine=engine, flags=flags, gpus=tuple(cards), model_facts=sizes)
    conditions = replace(made.conditions, gpu_settings=settings, ceiling_tok_s=ceiling)
    per_stream, output, client, gpu, during = measured
    summary: BenchSummary = replace(
        made.summary,
        per_stream_tok_s=per_stream,
        output_tok_s=output,
        client_cpu_pct=client,
        gpu=gpu,
        engine=during,
    )
    spec = replace(made.spec, concurrency=streams)
    result = replace(made, conditions=conditions, summary=summary, spec=spec)
    found = list_advice_findings(
        facts_from_result(result, Facts(before=result, expected_tok_s=expected))
    )
    for finding in found:
        assert finding.code and finding.text
        assert "inf" not in (finding.expected_gain or "") and "-" not in (
            finding.expected_gain or ""
        )

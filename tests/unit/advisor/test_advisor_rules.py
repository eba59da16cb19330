"""Each rule of the advisor fires on the facts that it is about, and is silent on facts that are
normal or missing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support import made_results

from tests.unit.advisor.advised import (
    A100,
    GB10,
    LLAMA_70B,
    MISTRAL_AWQ,
    PRO_6000,
    QWEN_7B_AWQ,
    QWEN_7B_FP8,
    TI,
    during,
    engine_side,
    facts,
    four_cards,
    gpus,
    load,
    passed_through,
    served,
    summary,
    two_sparks,
)
from workbench.advisor.advisor import RULES, list_advice_findings
from workbench.advisor.facts import Facts
from workbench.model.bench import PcieDuring
from workbench.model.findings import Finding, Level, PlanChange
from workbench.model.model_shape import ModelShape, WeightParts
from workbench.model.server_run import EngineMetrics
from workbench.model.slo import LimitAttained

PP2 = served(pipeline_parallel_size=2)
ONE_SEQ = served(max_num_seqs=1)
EARLIER = made_results.result(3)
FAST = replace(
    EARLIER,
    summary=replace(
        EARLIER.summary, output_tok_s=25.0, gpu=during(sm_mhz=2790.0, temperature_c=60.0)
    ),
)
SLOW = summary(20.0, gpu=during(sm_mhz=2300.0, temperature_c=84.0))
QWEN_ON_TI = facts(8, sizes=QWEN_7B_FP8, ceiling_tok_s=59.0, summary=summary(45.0))
CAPPED = {"event_reasons": {"SW power cap": 0.8}}
HOT = {"event_reasons": {"SW thermal slowdown": 0.3}, "temperature_c": 90.0}
FREE = 4.0 * 2**30
HALF = {"limit_w": 600.0, "power_w": 270.0}
CARD = {"limit_w": 400.0, "power_w": 399.0, "power_max_w": 600.0}

LIMITS = (
    LimitAttained("ttft<=500@p95", 95.0, 91.0),
    LimitAttained("tpot<=40@p95", 95.0, 99.0),
)

# code -> (facts on which the rule fires, facts on which it does not)


def over_link(**rates: float) -> Facts:
    """Return a run over a PCIe link of generation 4 with 8 lanes, as in club-3090 #931."""
    known = {"rx_mb_s": 0.0, "tx_mb_s": 0.0, "rx_peak_mb_s": 0.0, "tx_peak_mb_s": 0.0, **rates}
    gpu = during(pcie=(PcieDuring(0, link_mb_s=15752.0, **known),))
    return facts(summary=summary(10.0, gpu=gpu))


CASES: dict[str, tuple[Facts, Facts]] = {
    "result.refused": (facts(refused=("the client was busy",)), facts(summary=summary(10.0))),
    "spec.few-accepted": (
        facts(summary=engine_side(spec_accepted_pct=14.7)),
        facts(summary=engine_side(spec_accepted_pct=50.8)),
    ),
    "queue.limit": (
        facts(
            16,
            plan_context=served(max_num_seqs=8),
            summary=engine_side(waiting_mean=8.0, running_max=8, kv_use_max_pct=12.0),
        ),
        facts(
            16,
            plan_context=served(max_num_seqs=8),
            summary=engine_side(waiting_mean=0.0, running_max=8),
        ),
    ),
    "batch.first": (
        facts(16, plan_context=ONE_SEQ, summary=engine_side(waiting_mean=15.0, running_max=1)),
        facts(1, plan_context=ONE_SEQ, summary=engine_side(waiting_mean=0.0, running_max=1)),
    ),
    "queue.waiting": (
        facts(64, summary=engine_side(waiting_mean=20.0, running_max=40, kv_use_max_pct=99.0)),
        facts(64, summary=engine_side(waiting_mean=1.5, running_max=40, kv_use_max_pct=99.0)),
    ),
    "kv.preemptions": (
        facts(now=EngineMetrics(preemptions=7)),
        facts(now=EngineMetrics(preemptions=0)),
    ),
    "kv.load-not-waste": (
        facts(8, summary=engine_side(kv_use_max_pct=1.6, waiting_max=0)),
        facts(8, summary=engine_side(kv_use_max_pct=1.6, waiting_max=3)),
    ),
    "kv.full-not-leak": (
        facts(8, summary=engine_side(kv_use_max_pct=96.4, preemptions=0, waiting_max=0)),
        facts(8, summary=engine_side(kv_use_max_pct=96.4, preemptions=3, waiting_max=0)),
    ),
    "metric.prompt-throughput": (
        facts(now=EngineMetrics(prefix_hit_tokens=72, prefix_query_tokens=100)),
        facts(now=EngineMetrics(prefix_hit_tokens=0, prefix_query_tokens=100)),
    ),
    "slo.binding": (
        facts(spec=load(slo=LIMITS[0].limit), summary=summary(10.0, slo=LIMITS, slo_pct=91.0)),
        facts(summary=summary(10.0)),
    ),
    "client.bound": (facts(client_cpu_pct=97.0, refused=("busy",)), facts(client_cpu_pct=20.0)),
    "bench.protocol": (
        facts(spec=load(warmup=0), summary=summary(10.0)),
        facts(spec=load(warmup=8), summary=summary(10.0)),
    ),
    "uma.reserve": (
        facts(gpus=gpus(GB10), plan_context=served(), memory_available_bytes=FREE),
        facts(gpus=gpus(PRO_6000), plan_context=served(), memory_available_bytes=FREE),
    ),
    "roofline.near-ceiling": (two_sparks(), four_cards()),
    "roofline.above-ceiling": (
        facts(ceiling_tok_s=54.9, summary=summary(59.0)),
        facts(
            ceiling_tok_s=54.9,
            summary=summary(59.0),
            plan_context=served(speculative_config='{"method": "mtp"}'),
        ),
    ),
    "promise.above-roofline": (
        passed_through(expected_tok_s=45.0),
        passed_through(expected_tok_s=24.0),
    ),
    "promise.possible": (passed_through(expected_tok_s=24.0), passed_through()),
    "promise.unknown": (facts(expected_tok_s=24.0), facts()),
    "quant.first": (two_sparks(), passed_through()),
    "quant.bytes": (QWEN_ON_TI, replace(QWEN_ON_TI, sizes=QWEN_7B_AWQ)),
    "batch.ceiling": (two_sparks(), two_sparks(streams=8)),
    "eager.cost": (four_cards(), four_cards(plan_context=served(tensor_parallel_size=4))),
    "launch.bound": (four_cards(), two_sparks()),
    "dp-before-tp": (four_cards(), two_sparks(streams=4)),
    "pp.batch1": (facts(plan_context=PP2), facts(8, plan_context=PP2)),
    "comm.latency": (two_sparks(), passed_through()),
    "knob.scope": (passed_through(), passed_through(streams=8)),
    "power.unequal-caps": (
        facts(
            gpus=(
                *gpus(A100, 4, limit_w=250.0, power_w=248.0),
                *gpus(A100, 4, limit_w=200.0, power_w=199.0),
            ),
            summary=summary(1.0),
        ),
        facts(gpus=gpus(A100, 8, limit_w=250.0, power_w=248.0), summary=summary(1.0)),
    ),
    "power.binding": (
        facts(gpus=gpus(PRO_6000, 1, **CARD), summary=summary(1.0, gpu=during(**CAPPED))),
        passed_through(),
    ),
    "roofline.between": (two_sparks(summary=summary(1.8)), two_sparks()),
    "util.waits": (
        facts(gpus=gpus(PRO_6000, 1, **HALF), summary=summary(10.0, gpu=during(gpu_util_pct=60.0))),
        facts(
            None,
            gpus=gpus(PRO_6000, 1, **HALF),
            summary=summary(10.0, gpu=during(gpu_util_pct=60.0)),
        ),
    ),
    "power.near": (
        facts(gpus=gpus(PRO_6000, 1, **{**CARD, "power_w": 380.0}), summary=summary(1.0)),
        passed_through(),
    ),
    "power.not-binding": (
        passed_through(),
        facts(gpus=gpus(PRO_6000, 1, **CARD), summary=summary(1.0)),
    ),
    "clock.single-stream-flat": (passed_through(), passed_through(streams=8)),
    "thermal.remedy": (facts(summary=summary(1.0, gpu=during(**HOT))), passed_through()),
    "clock.max-is-not-sustained": (
        passed_through(),
        four_cards(gpus=gpus(A100, 4, sm_max_mhz=1410)),
    ),
    "promise.bound-by-clock": (
        passed_through(),
        four_cards(gpus=gpus(A100, 4, memory_max_mhz=1215)),
    ),
    "env.guest": (passed_through(), facts(gpus=gpus(PRO_6000, virtualization="none"))),
    "lock.noop": (
        facts(in_force={"gpu0.gpu_clocks": "no effect"}),
        facts(in_force={"gpu0.gpu_clocks": "yes"}),
    ),
    "util-vs-power": (two_sparks(), passed_through()),
    "util.definition": (passed_through(), two_sparks()),
    "gb10.hidden-cap": (
        facts(gpus=gpus(GB10), summary=summary(1.0, gpu=during(sm_mhz=720.0, gpu_util_pct=96.0))),
        facts(gpus=gpus(GB10), summary=summary(1.0, gpu=during(sm_mhz=2405.0, gpu_util_pct=96.0))),
    ),
    "pcie.bound": (over_link(rx_mb_s=7643.0), over_link(rx_mb_s=6600.0)),
    "pcie.shared": (over_link(tx_mb_s=2700.0), over_link(tx_mb_s=2600.0)),
    "pcie.not-bound": (
        over_link(rx_mb_s=171.0, rx_peak_mb_s=6600.0),
        over_link(rx_mb_s=171.0, rx_peak_mb_s=6800.0),
    ),
    "clock.drift": (
        facts(summary=SLOW, before=FAST),
        facts(summary=replace(SLOW, output_tok_s=24.9), before=FAST),
    ),
    "hw.identity": (
        facts(gpus=gpus(TI), preset_id="spark", preset_gpus=(GB10,)),
        facts(gpus=gpus(GB10), preset_id="spark", preset_gpus=(GB10,)),
    ),
    "energy.scope": (
        two_sparks(gpus=gpus(GB10, 1, power_w=40.0), summary=summary(3.17, tok_per_joule=0.08)),
        two_sparks(summary=summary(3.17, tok_per_joule=0.04)),
    ),
    "dp.sum-engines": (
        facts(plan_context=served(data_parallel_size=4)),
        facts(plan_context=served(data_parallel_size=1)),
    ),
    "facts.missing": (facts(summary=summary(10.0)), facts(plan_context=served())),
    "promise.sum": (
        two_sparks(plan_context=served(tensor_parallel_size=2, enforce_eager=True)),
        two_sparks(),
    ),
}


FROM = " (transferred from gpt-oss-120b on one GB10, from 26 to 59 tok/s)"


def by_code(given: Facts) -> dict[str, Finding]:
    return {finding.code: finding for finding in list_advice_findings(given)}


@pytest.mark.parametrize("code", CASES)
def test_a_rule_fires_on_its_facts_and_on_no_others(code: str) -> None:
    fires, silent = CASES[code]
    found = by_code(fires).get(code)
    assert found is not None
    assert found.text and (found.fix or found.level is Level.INFO)
    assert code not in by_code(silent)


def test_every_rule_is_in_the_table() -> None:
    """Each function in RULES gives at least one of the codes in the table, so none is untested."""
    every = [fires for fires, _ in CASES.values()]
    assert not [rule.__name__ for rule in RULES if not any(list(rule(given)) for given in every)]
    assert {one.finding.code for rule in RULES for given in every for one in rule(given)} <= set(
        CASES
    )


def test_without_facts_only_what_is_missing_is_said() -> None:
    assert [finding.code for finding in list_advice_findings(Facts())] == ["facts.missing"]


def test_a_server_that_workbench_started_is_not_told_to_be_started_by_it() -> None:
    known = by_code(facts(plan_context=served(), summary=summary(10.0)))["facts.missing"]
    assert "the server's flags" not in known.text and not known.fix
    assert by_code(Facts())["facts.missing"].fix


def test_a_withheld_limit_has_its_reason() -> None:
    withheld = facts(ceiling_missing="nobody knows the drafts", summary=summary(10.0))
    assert "(nobody knows the drafts)" in by_code(withheld)["facts.missing"].text


def test_two_sparks_are_memory_bound_and_need_fewer_bytes() -> None:
    """The document calls the set-up compute-bound, blames synchronization and calls all settings
    optimal."""
    found = list_advice_findings(two_sparks())
    assert [f.code for f in found[:3]] == ["quant.first", "roofline.near-ceiling", "batch.ceiling"]
    here = {f.code: f for f in found}
    assert here["quant.first"].expected_gain == "up to +100 % tok/s"
    assert here["quant.first"].changes == (PlanChange("quantization", "fp8"),)
    near = here["roofline.near-ceiling"]
    assert (
        "81 %" in near.text
        and near.evidence == "3.17 of 3.93 tok/s per stream; 139.0 GB per token, 220 GB/s per GPU"
    )
    assert near.fix is not None and "at most +24 %" in near.fix
    assert (
        here["batch.ceiling"].evidence
        == "limits of the total: 4 streams 15.72, 8 streams 31.44, 16 streams 62.88 tok/s"
    )
    assert ("161 all-reduces per token take about 6.6 to 9.7 ms of 315 ms (2.1 to 3.1 %)") in here[
        "comm.latency"
    ].text
    assert "29 %" in here["util-vs-power"].text and "memory-bound" in here["util-vs-power"].text


def test_no_more_streams_are_proposed_than_the_server_takes() -> None:
    eight, one = (
        by_code(two_sparks(plan_context=served(max_num_seqs=n)))["batch.ceiling"] for n in (8, 1)
    )
    assert (eight.fix or "").endswith("--concurrency 1,4,8") and "16 streams" not in (
        eight.evidence or ""
    )
    assert "raise max-num-seqs (1), and measure it" in (one.fix or "") and "16 streams" in (
        one.evidence or ""
    )
    experts = ModelShape(parts=WeightParts(dense=2e9, experts=100e9, expert_share=0.05, head=1e9))
    sizes = replace(LLAMA_70B, bytes_per_token=16e9, quantization="bfloat16", shape=experts)
    found = by_code(two_sparks(sizes=sizes))["batch.ceiling"]
    assert "4 streams 5.836" in (found.evidence or "")  # each stream reads experts of its own


def test_the_guest_has_no_software_gap_and_can_save_power() -> None:
    """The document looks for the limit in the hypervisor, in kernels and in clocks, and promises 45
    to 90 tok/s."""
    found = list_advice_findings(passed_through(expected_tok_s=45.0))
    here = {f.code: f for f in found}
    assert found[0].code == "promise.above-roofline" and "169 %" in found[0].text
    assert here["clock.single-stream-flat"].settings == ("power-limit=400",)
    assert here["clock.single-stream-flat"].expected_gain == "about +24 % tok/J"
    assert "at most +4.8 %" in here["promise.bound-by-clock"].text
    assert "normal clock of this card" in here["promise.bound-by-clock"].text
    assert "GPU0 503 of 600 W" in here["power.not-binding"].text
    assert "mem-fraction-static (KV cache size)" in here["knob.scope"].text
    assert "quant.first" not in here and "eager.cost" not in here


def test_four_cards_are_held_by_launches_not_by_memory() -> None:
    """The document calls a KV cache of 1.6 % waste and computes 96 to 384 ms of communication in a
    step of 19 ms."""
    found = list_advice_findings(four_cards())
    assert [f.code for f in found[:3]] == ["eager.cost", "launch.bound", "dp-before-tp"]
    here = {f.code: f for f in found}
    assert here["eager.cost"].expected_gain == f"up to +127 % tok/s{FROM}"
    assert here["eager.cost"].changes == (PlanChange("enforce-eager", None),)
    assert here["dp-before-tp"].changes == (
        PlanChange("tensor-parallel-size", 1),
        PlanChange("data-parallel-size", 4),
    )
    assert "57 all-reduces per token take about 0.6 to 1.1 ms of 19 ms" in here["comm.latency"].text


def test_a_gain_never_passes_the_ceiling() -> None:
    eager = served(sizes=MISTRAL_AWQ, enforce_eager=True)
    assert (
        by_code(passed_through(plan_context=eager))["eager.cost"].expected_gain
        == f"up to +18 % tok/s{FROM}"
    )


def test_eight_cards_with_different_caps_are_named_by_their_limits() -> None:
    cards = [
        replace(g, index=i)
        for i, g in enumerate((*gpus(A100, 4, limit_w=250.0), *gpus(A100, 4, limit_w=200.0)))
    ]
    powers = [249.0, 249.0, 180.0, 180.0, 199.0, 199.0, 199.0, 199.0]
    cards = [replace(g, power_w=w, power_max_w=250.0) for g, w in zip(cards, powers, strict=True)]
    here = by_code(facts(8, gpus=tuple(cards), summary=summary(10.0)))
    assert "GPU4-7 200 W, GPU0-3 250 W" in here["power.unequal-caps"].text
    assert here["power.unequal-caps"].level is Level.WARN
    assert "GPU0-1 249 of 250 W, GPU4-7 199 of 200 W" in here["power.binding"].text


@pytest.mark.parametrize("percent", range(5, 101, 5))
def test_there_is_advice_at_any_fraction_of_a_limit(percent: int) -> None:
    """Of the memory bandwidth, and of the power limit."""
    speed = by_code(two_sparks(summary=summary(3.93 * percent / 100)))
    assert len({"launch.bound", "roofline.between", "roofline.near-ceiling"} & {*speed}) == 1
    card = gpus(PRO_6000, 1, limit_w=600.0, power_w=6.0 * percent, power_max_w=600.0)
    power = by_code(facts(gpus=card, summary=summary(1.0, gpu=during(gpu_util_pct=float(percent)))))
    assert len({"power.binding", "power.near", "power.not-binding"} & {*power}) == 1
    assert len({"util.waits", "util-vs-power", "util.definition"} & {*power}) == 1


def test_half_of_the_bandwidth_names_the_time_that_reading_does_not_take() -> None:
    found = by_code(two_sparks(summary=summary(1.965)))
    assert ("of 508.9 ms per token reading takes 254.5 ms, and 254.5 ms go elsewhere") in found[
        "roofline.between"
    ].text
    assert found["quant.first"].expected_gain == "up to +33 % tok/s" and "batch.ceiling" in found


def test_a_refused_result_gives_no_advice_on_speed() -> None:
    found = list_advice_findings(
        replace(two_sparks(), summary=None, refused=("the client was busy",))
    )
    assert found[0].code == "result.refused"
    assert not {"roofline.near-ceiling", "quant.first", "batch.ceiling"} & {f.code for f in found}


def test_small_memory_is_not_offered_replicas() -> None:
    big = replace(LLAMA_70B, weight_bytes=141.1e9)
    assert "dp-before-tp" not in by_code(four_cards(sizes=big))


def test_settings_without_effect_are_named_by_their_labels() -> None:
    (found,) = [
        a
        for a in list_advice_findings(facts(in_force={"gpu0.gpu_clocks": "no effect"}))
        if a.code == "lock.noop"
    ]
    assert found.text.endswith("under load: GPU0 GPU clocks")


def test_each_replica_takes_as_many_requests_as_its_flag_says() -> None:
    """Eight running requests fill two replicas of four, and not two replicas of eight."""
    waits = engine_side(waiting_mean=8.0, running_max=8, kv_use_max_pct=12.0)
    full = facts(16, plan_context=served(max_num_seqs=4, data_parallel_size=2), summary=waits)
    half_full = facts(16, plan_context=served(max_num_seqs=8, data_parallel_size=2), summary=waits)
    assert "queue.limit" in by_code(full)
    assert "queue.limit" not in by_code(half_full)


def test_the_limit_that_binds_is_named_with_the_goodput() -> None:
    made = summary(10.0, slo=LIMITS, slo_pct=91.0, goodput_request_s=9.1, request_s=10.0)
    broken = facts(spec=load(slo="ttft<=500@p95, tpot<=40@p95"), summary=made)
    found = next(each for each in list_advice_findings(broken) if each.code == "slo.binding")
    assert found.level is Level.WARN and found.evidence == "goodput 9.1 of 10 requests/s"
    assert found.text == ("the limit ttft<=500@p95 is not held: 91.0 % of the requests kept it")
    assert found.fix is not None and "--slo 'ttft<=500@p95, tpot<=40@p95'" in found.fix
    held = replace(made, slo=LIMITS[1:], slo_pct=99.0)
    found = next(
        x for x in list_advice_findings(replace(broken, summary=held)) if x.code == "slo.binding"
    )
    assert found.level is Level.INFO and "tpot<=40@p95 binds and is held" in found.text

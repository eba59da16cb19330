"""The advice on stored results: of this version, of the first one, of other tools, rejected ones,
and own commands."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import made_results

from tests.unit.advisor.advised import A100, QWEN_2B, during, summary
from workbench.advisor.advisor import list_advice_findings
from workbench.advisor.facts import facts_from_result
from workbench.engines.answer_settings import collect_answer_settings
from workbench.model.bench import BenchResult
from workbench.model.errors import InputError
from workbench.model.experiment import Arm, Experiment, ExperimentSpec
from workbench.model.findings import PlanChange
from workbench.model.flags import FlagSetting
from workbench.model.plan import LaunchPlan
from workbench.model.series_state import SeriesState
from workbench.session.results.advice import (
    AdvisedResult,
    arms_of_finding,
    can_test_finding,
    experiment_options_of,
    make_advised_change,
)
from workbench.session.session import Session
from workbench.store import paths
from workbench.store.quality_db import QualityDb

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
EAGER: dict[str, Any] = {"tensor-parallel-size": 4, "enforce-eager": True}


def kept(session: Session, result: BenchResult) -> int:
    return session.results.db.add(result.spec, result.conditions, result.summary)


def eager_on_four_cards(**conditions: Any) -> BenchResult:
    gpus = tuple({"index": i, "name": A100, "memory_total_bytes": 42.9e9} for i in range(4))
    made = made_results.result(
        flags=EAGER, model_facts=QWEN_2B, ceiling_tok_s=1808.0, gpus=gpus, **conditions
    )
    measured = summary(51.5, gpu=during(gpu_util_pct=95.0))
    return replace(made, summary=measured, spec=replace(made.spec, concurrency=8))


async def advised(result: BenchResult) -> AdvisedResult:
    session = Session.of_host()
    return await session.advisor.advise_on_result(kept(session, result))


@pytest.mark.anyio
async def test_a_stored_result_has_its_sizes_and_gpus() -> None:
    found = await advised(eager_on_four_cards())
    assert [f.code for f in found.findings[:3]] == ["eager.cost", "launch.bound", "dp-before-tp"]
    assert found.result is not None and found.result.conditions.model_facts == QWEN_2B


@pytest.mark.anyio
@pytest.mark.parametrize("verdict", ["differs", "broken"])
async def test_a_change_that_is_known_to_change_the_answers_is_not_recommended(
    verdict: str,
) -> None:
    session = Session.of_host()
    result = eager_on_four_cards()
    number = kept(session, result)
    graphs = {name: value for name, value in EAGER.items() if name != "enforce-eager"}
    measured = replace(
        made_results.quality(),
        simulated=False,
        verdict=verdict,
        conditions_a=collect_answer_settings(result.conditions),
        conditions_b=collect_answer_settings(replace(result.conditions, flags=graphs)),
    )
    stored = QualityDb(session.results.db.path).add(measured)
    found = (await session.advisor.advise_on_result(number)).findings
    assert found[0].code != "eager.cost"
    (finding,) = [one for one in found if one.code == "eager.cost"]
    assert finding.text.startswith(
        "not recommended: with this change, its answers differ: KLD >= 0.035 ± 0.003 "
        f"(comparison of answers {stored.id}). "
    )
    assert finding.expected_gain is None
    assert not can_test_finding(finding)


@pytest.mark.anyio
async def test_a_change_with_the_same_answers_is_recommended() -> None:
    session = Session.of_host()
    result = eager_on_four_cards()
    number = kept(session, result)
    graphs = {name: value for name, value in EAGER.items() if name != "enforce-eager"}
    measured = replace(
        made_results.quality(),
        simulated=False,
        verdict="same",
        conditions_a=collect_answer_settings(result.conditions),
        conditions_b=collect_answer_settings(replace(result.conditions, flags=graphs)),
    )
    QualityDb(session.results.db.path).add(measured)
    found = (await session.advisor.advise_on_result(number)).findings
    assert found[0].code == "eager.cost"
    assert can_test_finding(found[0])


@pytest.mark.anyio
async def test_the_verdict_of_an_experiment_stays_with_its_finding() -> None:
    session = Session.of_host()
    first = kept(session, eager_on_four_cards())
    finding = next(
        f
        for f in (await session.advisor.advise_on_result(first)).findings
        if f.code == "eager.cost"
    )
    spec = ExperimentSpec(Arm(), Arm(unsets=("enforce-eager",)), {})
    tests = make_advised_change(finding, session.results.db.get(first))
    done = Experiment(
        0, 1.0, "box", spec, state=SeriesState.DONE, measured="+85.2 % ± 2.1", advice=tests
    )
    number = session.experiments.db.add(done).id
    again = await session.advisor.advise_on_result(kept(session, eager_on_four_cards()))
    assert again.verdicts["eager.cost"] == (
        "expected up to +127 % tok/s (transferred from gpt-oss-120b on one GB10, from 26 to 59 "
        f"tok/s), measured +85.2 % ± 2.1 (experiment {number})",
    )
    other = await session.advisor.advise_on_result(
        kept(session, eager_on_four_cards(model="org/other"))
    )
    assert "eager.cost" not in other.verdicts


@pytest.mark.anyio
async def test_a_result_without_output_tokens_says_nothing_about_its_run() -> None:
    """An own command that had sent nothing was the newest result, so the GPU seemed to be idle."""
    session = Session.of_host()
    measured = eager_on_four_cards(run_id="r1")
    number = kept(session, measured)
    empty = replace(measured.summary, output_tokens=0, output_tok_s=None)
    kept(session, replace(measured, summary=empty))
    kept(session, replace(measured, summary=replace(measured.summary, refused=("the text",))))
    found = session.advisor._find_newest_result("r1")
    assert found is not None and found.id == number


@pytest.mark.anyio
async def test_an_earlier_result_of_the_same_configuration_shows_drift() -> None:
    session = Session.of_host()
    base = eager_on_four_cards()
    kept(session, replace(base, summary=summary(60.0, gpu=during(sm_mhz=1410.0))))
    kept(
        session,
        replace(
            base,
            summary=summary(70.0, gpu=during(sm_mhz=1500.0)),
            spec=replace(base.spec, concurrency=9),
        ),
    )
    late = kept(session, replace(base, summary=summary(51.5, gpu=during(sm_mhz=1200.0))))
    found = {f.code: f for f in (await session.advisor.advise_on_result(late)).findings}
    assert "14.2 % slower than in result #1" in found["clock.drift"].text


@pytest.mark.anyio
async def test_results_of_the_first_version_are_advised_on() -> None:
    path = paths.results_db()
    path.parent.mkdir(parents=True)
    with sqlite3.connect(path) as db:
        db.executescript((FIXTURES / "results" / "first-version.sql").read_text())
    session = Session.of_host()
    for result in session.results.db.list(None):
        found = (await session.advisor.advise_on_result(result.id)).findings
        assert found and all(f.code and f.text for f in found)


@pytest.mark.anyio
@pytest.mark.parametrize("file", ["aiperf-0.13.json", "llama-benchy-0.4.json", "vllm-0.32.json"])
async def test_an_imported_result_names_what_is_missing(file: str) -> None:
    session = Session.of_host()
    for result, _ in await session.results.import_results(FIXTURES / "imports" / file):
        codes = [f.code for f in (await session.advisor.advise_on_result(result.id)).findings]
        assert "facts.missing" in codes and "bench.protocol" in codes
        assert not {
            "eager.cost",
            "roofline.near-ceiling",
            "dp-before-tp",
            "power.not-binding",
        } & set(codes)


@pytest.mark.anyio
async def test_a_rejected_result_and_an_own_command_give_no_speed_advice() -> None:
    base = eager_on_four_cards()
    rejected = await advised(
        replace(base, summary=replace(base.summary, refused=("the client was busy",)))
    )
    assert rejected.findings[0].code == "result.refused"
    assert "launch.bound" not in {f.code for f in rejected.findings}
    own = await advised(
        replace(base, spec=replace(base.spec, command=("vf-eval",)), summary=summary(None))
    )
    codes = {f.code for f in own.findings}
    assert "launch.bound" not in codes and "bench.protocol" in codes


@pytest.mark.anyio
@pytest.mark.parametrize(
    "conditions",
    [
        {"gpus": ({"index": "0", "name": None, "memory_total_bytes": "much"}, {})},
        {"flags": {"tensor-parallel-size": "four", "max-num-seqs": [1], "enforce-eager": "yes"}},
        {"engine": "unheard-of", "engine_version": "∞"},
        {"engine_version": "x" * 999, "gpu_settings": {"gpu0.power_limit_w": "high"}},
        {"flags": {"tensor-parallel-size": 10**30}, "ceiling_tok_s": 0.0},
        {"ceiling_tok_s": -1.0, "in_force": {"": ""}},
    ],
)
async def test_odd_conditions_are_no_facts(conditions: dict[str, Any]) -> None:
    assert (await advised(made_results.result(**conditions))).findings


def test_arms_turn_the_plan_under_edit_into_the_result_and_its_fix() -> None:
    made = eager_on_four_cards(preset_id="vllm-qwen", env={})
    plan = LaunchPlan(
        "vllm",
        "org/tiny",
        flags=(FlagSetting("max-num-seqs", 64), FlagSetting("api-key", "sesame")),
    )
    findings = {f.code: f for f in list_advice_findings(facts_from_result(made))}
    a, b = arms_of_finding(findings["eager.cost"], made, plan)
    assert a == Arm(("tensor-parallel-size=4", "enforce-eager=true"), ("max-num-seqs", "api-key"))
    assert b == Arm(("tensor-parallel-size=4",), ("max-num-seqs", "api-key", "enforce-eager"))
    a, b = arms_of_finding(findings["dp-before-tp"], made, plan)
    assert b.sets == ("enforce-eager=true", "tensor-parallel-size=1", "data-parallel-size=4")
    assert can_test_finding(findings["eager.cost"]) and not can_test_finding(
        findings["launch.bound"]
    )
    unset = replace(
        findings["eager.cost"], changes=(PlanChange("CUDA_VISIBLE_DEVICES", None, env=True),)
    )
    limited = replace(made, conditions=replace(made.conditions, env={"CUDA_VISIBLE_DEVICES": "0"}))
    a, b = arms_of_finding(unset, limited, plan)
    assert a.envs == ("CUDA_VISIBLE_DEVICES=0",) and b.envs == (), "an empty value hides all GPUs"
    a, b = arms_of_finding(unset, limited, plan.with_env("CUDA_VISIBLE_DEVICES", "0"))
    assert (a.envs, b.envs) == ((), ()) and b.unsets[-1] == "CUDA_VISIBLE_DEVICES" not in a.unsets
    with pytest.raises(InputError, match="not that of result #7") as refused:
        arms_of_finding(findings["eager.cost"], made, replace(plan, model="org/other"))
    assert refused.value.next_step is not None and "vllm-qwen" in refused.value.next_step
    assert experiment_options_of(findings["eager.cost"], made)["bench"]["concurrency"] == 8
    assert experiment_options_of(findings["eager.cost"], made)["metric"] == "output_tok_s"
    assert "content" not in experiment_options_of(findings["eager.cost"], made)["bench"]
    real = replace(made, spec=replace(made.spec, content="text"))
    assert experiment_options_of(findings["eager.cost"], real)["bench"]["content"] == "text"
    for own in ({"prompts_name": "mine.jsonl (2 prompts)"}, {"trace_name": "t.csv (9 requests)"}):
        with pytest.raises(InputError, match="which results do not contain"):
            experiment_options_of(
                findings["eager.cost"], replace(made, spec=replace(made.spec, **own))
            )

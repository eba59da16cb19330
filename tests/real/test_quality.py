"""The two instruments of a comparison of answers on real vLLM and SGLang."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

import engine_cache
import httpx
import pytest
import test_sglang
import test_vllm
from support.serving import supervised

from workbench import engines
from workbench.model.plan import LaunchPlan
from workbench.model.quality import GreedyAnswer
from workbench.quality import texts
from workbench.quality.instrument import Instrument
from workbench.quality.lanes import interface_class
from workbench.quality.statistics import text_difference
from workbench.server.small_requests import make_asker
from workbench.server.supervisor import ServerEvent, Supervisor

pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(900)]
READY_S = 400.0
FEW = tuple(text for text in texts.shipped_text_set().texts if not text.is_long)[:4]
TOGETHER = 4
ROUNDING = 0.05  # nats; bfloat16 was measured at 0.004 to 0.036
PLANS = {"vllm": test_vllm.plan, "sglang": test_sglang.plan}


async def scored_answers(
    server: Instrument, answers: Sequence[GreedyAnswer]
) -> tuple[float, float]:
    """Return the mean log probability that the server gives answers after their own prompts, and
    answers that were exchanged among the prompts."""
    exchanged = [
        replace(one, tokens=other.tokens)
        for one, other in zip(answers, (*answers[1:], answers[0]), strict=True)
    ]
    means = []
    for several in (answers, exchanged):
        scored = await server.score_answers(FEW, several)
        assert not scored.problem
        assert [one.problem for one in scored.scores] == [""] * len(FEW)
        assert all(one.tokens and one.lane == server.lane for one in scored.scores)
        means.append(fmean(one.logprob for one in scored.scores))
    return means[0], means[1]


@pytest.mark.parametrize("name", PLANS)
def test_both_instruments_agree_with_themselves(name: str) -> None:
    plan: LaunchPlan = PLANS[name]()
    engine = engines.get_engine(name)

    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        run = (await supervisor.start(plan, engine.command(plan), engine)).run_id
        status = await supervisor.wait_ready(run, READY_S)
        assert status.url is not None, (status.reason, supervisor.log(run).lines()[-20:])
        async with httpx.AsyncClient(base_url=status.url) as http:
            assert engine.score_interface is not None
            server = Instrument(interface_class(engine.score_interface)(make_asker(http), "tiny"))
            proof = await server.check_scores_agree(FEW, "A")
            assert proof.usable, proof.reason
            assert proof.largest is not None and proof.largest < ROUNDING
            first, again = [await server.score_texts(FEW) for _ in range(2)]
            assert not first.problem and not again.problem
            kls = [
                text_difference(one, other, 20).kl
                for one, other in zip(first.texts, again.texts, strict=True)
            ]
            assert max(kls) < 1e-3
            written = await server.write_answers(FEW, concurrency=TOGETHER)
            assert not written.problem
            assert all(one.tokens for one in written.answers) and len(written.answers) == len(FEW)
            assert all(gap is not None for one in written.answers for gap in one.gaps)
            own, foreign = await scored_answers(server, written.answers)
            assert foreign < own <= 0.0  # greedy: each token is the likeliest after its prompt
            print(f"{name}: ln probability of own answers {own:.3g}, of exchanged {foreign:.3g}")
            print(f"{name}: both ways within {proof.largest:.2g}, A against A {max(kls):.2g}")

    assert engine_cache.MODEL.exists()
    supervised(scenario)

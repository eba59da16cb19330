"""The page about the answers of A and B: what it shows, and a comparison that it starts and stops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from support import made_results as made
from support.real_screen import RealScreen, on_free_port, shown

from workbench.model.quality import (
    NOT_MEASURED,
    ForkCount,
    InstrumentProof,
    Interval,
    QualityMeasure,
)
from workbench.quality import texts
from workbench.session.state import QualityView
from workbench.store import paths
from workbench.store.quality_db import QualityDb
from workbench.store.results_db import ResultsDb
from workbench.tui.pages.quality import quality_comparison_rows, running_comparison_rows

FORKS = ForkCount(12, 1, 1000, 32, Interval(12.0, 6.2, 21.0), 8)
WHOLE = replace(
    made.quality(),
    measures=tuple(
        QualityMeasure(
            name=name,
            value=Interval(0.03512, 0.03211, 0.03834),
            floor=Interval(0.00021, 0.00011, 0.00034),
            margin=0.001,
            verdict="differs",
            texts=32,
            lane=lane,
            concurrency=concurrency,
        )
        for lane, concurrency, names in (
            ("prefill", 1, ("kl", "ln_ppl", "same_top")),
            ("greedy", 8, ("forks",)),
        )
        for name in names
    ),
    forks=FORKS,
    proofs=(InstrumentProof("B", "prefill", False, reason="it contradicts itself" * 4),),
    notes=("A left out 2 texts (prose-a, prose-b): the context is too short " * 2,),
)


@pytest.mark.parametrize("width", [76, 78, 116, 118])
def test_the_verdict_comes_first_and_no_word_is_cut(width: int) -> None:
    lines = ["".join(text for text, _ in row) for row in quality_comparison_rows(WHOLE, width)]
    assert lines[0] == "its answers differ: KLD >= 0.035 ± 0.003"
    assert "SIMULATED" in lines[2]
    assert max(map(len, lines)) <= width
    assert "…" not in "\n".join(lines)
    said = " ".join(" ".join(lines).split())
    for text in (
        "0.03512 (0.03211 to 0.03834)",
        "0.00021 (0.00011 to 0.00034)",
        "By greedy, 8 at a time, 32 texts",
        "A, token 13 “ the”",
        "B, token 13 “ a”",
        "B, token 7 “ a a a a a a a”",
        "B differs in kv-cache-dtype auto > fp8",
        "Each text",
    ):
        assert text in said, said


def test_a_running_comparison_shows_what_was_done_and_how_far_it_is() -> None:
    view = QualityView(
        "run-1", "run-2", said=("A: starting",), step="A: texts scored", done=3, total=34
    )
    text = "\n".join("".join(part for part, _ in row) for row in running_comparison_rows(view, 60))
    assert "A  run-1" in text and "B  run-2" in text
    assert "ok A: starting" in text and "~ A: texts scored 3/34" in text
    stopping = running_comparison_rows(replace(view, stopping=True), 60)
    assert any("stopping" in part for row in stopping for part, _ in row)


@pytest.fixture
def two_results(clean_environment: None) -> None:
    """Store two results of a simulated host, and two comparisons of answers, none of them theirs."""
    db = ResultsDb(paths.results_db())
    for model in ("org/one", "org/two"):
        one = made.result(model=model, simulated=True, host="sim:four-pcie")
        db.add(one.spec, one.conditions, one.summary, (), unix_s=one.unix_s)
    QualityDb(db.path).add(WHOLE)
    broken = replace(WHOLE, verdict="broken", summary="its answers are broken")
    QualityDb(db.path).add(replace(broken, imported="Workbench 0.1.0"))


@pytest.mark.slow
def test_the_page_opens_for_two_results_and_lists_earlier_comparisons(two_results: None) -> None:
    async def scenario(s: RealScreen) -> None:
        await s.until(lambda: len(s.state.results) == 2)
        await s.press("Q")
        await s.until("Answers of A and B", "A #1 vs B #2", "quality not measured", "m Measure")
        await s.press("o")
        text = await s.until("Comparisons of answers", "1 ", "broken")
        assert "differs       SIMULATED llama-8b > " in text
        assert "broken        imported SIMULATED llama-8b > " in text
        await s.press("enter")
        await s.until("its answers", "SIMULATED", "B against A")

    shown(scenario, size=(80, 24))


@pytest.mark.slow
def test_without_results_the_page_says_what_to_do() -> None:
    async def scenario(s: RealScreen) -> None:
        await s.until(lambda: s.state.presets_read)
        await s.press("Q")
        text = await s.until("Answers of A and B", "Press b to run a benchmark")
        assert "m Measure" not in text

    shown(scenario, size=(80, 24))


def test_compare_does_not_deny_what_is_being_measured(drive: Callable[..., Any]) -> None:
    """It said "quality not measured" for the minutes in which it was measured."""
    changed = replace(made.comparison(), quality=NOT_MEASURED, answer_changes=("kv-cache-dtype",))

    async def scenario(d: Any) -> None:
        def said(**state: Any) -> str:
            d.session.push(**state)
            pane.show(d.session.state)
            rows = pane.all_rows(100, 30)
            return "\n".join("".join(text for text, _ in row) for row in rows)

        pane = d.pane("compare")
        assert "Press b to run a benchmark" in said(results=(), comparison=None, experiment=None)
        under_way = said(quality=QualityView("A", "B"))
        assert "A comparison of answers is under way" in under_way and "Press b" not in under_way
        d.session.push(quality=None)
        settings = "(A and B differ in kv-cache-dtype)"
        assert f"quality not measured {settings}" in said(comparison=changed, experiment=None)
        assert f"quality is being measured {settings}" in said(quality=QualityView("A", "B"))
        running = replace(made.experiment(), state="running", comparison=changed)
        pane.of_experiment = True
        assert f"quality not measured yet {settings}" in said(experiment=running, quality=None)
        ended = replace(running, state="done")
        assert f"quality not measured {settings}" in said(experiment=ended)

    drive(scenario)


@pytest.fixture
def quick(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKBENCH_SIM_SPEEDUP", "200")
    few = replace(texts.shipped_text_set(), texts=texts.shipped_text_set().texts[:2])
    monkeypatch.setattr("workbench.quality.texts.shipped_text_set", lambda: few)
    on_free_port()


@pytest.mark.slow
@pytest.mark.long
def test_the_servers_of_two_results_are_compared_and_a_stop_restores_them(quick: None) -> None:
    """The run of A has ended, because the run of B took its place."""

    async def scenario(s: RealScreen) -> None:
        await s.serve()
        await s.session.bench.benchmark_selected_run(
            concurrency=2, requests=4, max_tokens=8, warmup=1
        )
        s.session.plans.set_flag("kv-cache-dtype", "fp8")
        await s.session.bench.restart_and_compare_results(quality=False)
        await s.press("Q")
        await s.until("A #1 vs B #2", "quality not measured")
        await s.press("m")
        await s.until("Compare the answers of A and B", "kv-cache-dtype=fp8", "2 texts of the set")
        assert "is stopped meanwhile" in s.text
        await s.press("y")
        await s.until("K Stop", "comparison of answers")
        await s.press("K")
        await s.until("stopped: nothing was stored", seconds=60)
        assert not await s.session.results.list_quality_results()
        await s.until("READY vllm")
        await s.press("m")
        await s.until("Compare the answers of A and B")
        await s.press("y")
        await s.until("its answers", "B differs in", "kv-cache-dtype", seconds=90)
        (found,) = await s.session.results.list_quality_results()
        assert found.conditions_b["flag kv-cache-dtype"] == "fp8"
        await s.until(lambda: s.state.comparison.quality_id == found.id)
        await s.until("READY vllm")

    shown(scenario, size=(120, 40))

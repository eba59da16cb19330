"""The list of results as a history: what each change did, and the series as single rows."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from support import made_results as made
from support.real_screen import RealScreen, real_screen

from workbench.model.setting_records import Alteration
from workbench.session.bench.row import BenchRow, SeriesView
from workbench.session.results.series_rows import series_by_result_id
from workbench.store import paths
from workbench.store.experiments import ExperimentsDb
from workbench.store.sweeps import SweepStore
from workbench.tui.formats import alteration_text, altered_setting_texts
from workbench.tui.panes.result_groups import SeriesRow, group_results
from workbench.tui.panes.results import _shorten_label
from workbench.tui.widgets.comparison import comparison_rows, speed_verdict_and_role

NOT_MEASURED = "no verdict: the speed was not measured on both sides"
VERDICT = "B is slower by 49.2 % ± 0.1 (output tok/s, 3 pairs)"


def of_experiment(row: BenchRow) -> BenchRow:
    return replace(row, series=SeriesView("A/B", 1, VERDICT))


ROWS = (
    of_experiment(made.bench_row(6, "A/B 1 B", 700.0, tags=("experiment 1 B",))),
    of_experiment(made.bench_row(5, "A/B 1 A", 1400.0, tags=("experiment 1 A",))),
    made.bench_row(4, "max-num-seqs=9", 2800.0, refused=("the client was the limit",)),
    made.bench_row(3, "power limit 170 W", 1402.4),
    made.bench_row(2, "enforce-eager=off", 1409.0),
    made.bench_row(1, "vllm-qwen3-vl-2b", 421.0),
)


def shown(scenario: Any, rows: Sequence[BenchRow], size: tuple[int, int], **state: Any) -> None:
    async def go() -> None:
        async with real_screen(size=size) as screen:
            await screen.until(lambda: screen.state.presets_read)
            await screen.press("4")
            screen.session.core.update(results=tuple(rows), **state)
            await screen.until("power limit 170 W")
            await scenario(screen)

    asyncio.run(go())


def alteration(gpu: int = 0, **fields: Any) -> Alteration:
    first = Alteration(gpu, f"GPU-{gpu}", "power_limit_w", 250.0, 170.0, 1e9)
    return replace(first, **fields)


def line(screen: RealScreen, text: str) -> str:
    return next(one for one in screen.text.splitlines() if text in one)


@pytest.mark.slow
@pytest.mark.parametrize(
    "size", [(80, 24), pytest.param((120, 40), marks=pytest.mark.long)], ids=["80x24", "120x40"]
)
def test_each_change_shows_what_it_did_and_what_all_did(
    clean_environment: None, size: tuple[int, int]
) -> None:
    async def scenario(s: RealScreen) -> None:
        assert "vs A" in line(s, "vs prev")
        power = line(s, "power limit 170 W").split()
        assert "-0.5%" in power and "+233%" in power
        eager = line(s, "enforce-eager=off")
        assert eager.count("+235%") == 2
        rejected = line(s, "x rejected")
        assert "the client was" in rejected and "2,800" not in rejected
        assert f"> A/B 1 {VERDICT[:20]}" in s.text and "(2 runs)" in s.text
        assert "A/B 1 A" not in s.text
        await s.press("enter")
        await s.until("A/B 1 B", "v A/B 1")
        await s.press("enter")
        await s.until(lambda: "A/B 1 A" not in s.text)

    shown(scenario, ROWS, size, mark_a=1)


def test_a_series_stands_in_the_place_of_its_newest_run() -> None:
    items = group_results(ROWS, ())
    assert [i.name if isinstance(i, SeriesRow) else i.id for i in items] == ["A/B 1", 4, 3, 2, 1]
    first = items[0]
    assert isinstance(first, SeriesRow) and [run.id for run in first.runs] == [6, 5]
    opened = group_results(ROWS, {"A/B 1"})
    assert [i.id for i in opened if not isinstance(i, SeriesRow)] == [6, 5, 4, 3, 2, 1]


def test_the_runs_of_experiments_and_sweeps_are_found_with_their_verdict(
    clean_environment: None,
) -> None:
    stored = ExperimentsDb(paths.results_db()).add(made.experiment())
    SweepStore(paths.sweeps_dir()).add(made.sweep({"c=1": 1.0}))
    rows = [
        made.bench_row(9, "run", 1.0, tags=(f"experiment {stored.id} A",)),
        made.bench_row(8, "run", 1.0, tags=("experiment 99 B",)),
        made.bench_row(7, "run", 1.0),
        made.bench_row(6, "run", 1.0),
    ]
    found = series_by_result_id(rows)
    assert found[9].said == "B is faster by 3.2 % ± 0.9"
    assert found[8] == SeriesView("A/B", 99, "")  # its record is lost, its runs are not
    assert (found[7].kind, found[7].said) == ("sweep", "concurrency: little is gained beyond")
    assert 6 not in found


def test_a_list_without_series_reads_no_record_of_one(clean_environment: None) -> None:
    assert series_by_result_id([made.bench_row(1, "run", 1.0)]) == {}
    assert not paths.results_db().exists()


@pytest.mark.parametrize(
    ("change_pct", "interval_pct", "verdict", "said"),
    [
        (
            234.9,
            None,
            "single pair",
            "B is 3.3 times as fast as A (one pair: not proven, X tests it)",
        ),
        (
            -60.0,
            None,
            "single pair",
            "A is 2.5 times as fast as B (one pair: not proven, X tests it)",
        ),
        (-0.5, None, "single pair", "B is slower by 0.5 % (one pair: not proven, X tests it)"),
        (3.2, 0.9, "better", "B is faster by 3.2 % ± 0.9"),
        (3.2, 4.9, "no difference shown", "no difference in speed is shown: +3.2 % ± 4.9"),
        (3.2, 0.9, "hint only", "a hint, no proof: B is faster by 3.2 % ± 0.9"),
        (None, None, "not measured", NOT_MEASURED),
    ],
)
def test_the_verdict_is_a_sentence_that_claims_no_more_than_was_measured(
    change_pct: float | None, interval_pct: float | None, verdict: str, said: str
) -> None:
    whole = made.comparison()
    first = replace(
        whole.metrics[0], change_pct=change_pct, interval_pct=interval_pct, verdict=verdict
    )
    alike = replace(whole, metrics=(first, *whole.metrics[1:]), like_for_like=True)
    assert speed_verdict_and_role(alike)[0] == said
    unlike = speed_verdict_and_role(replace(alike, like_for_like=False))[0]
    proves_nothing = "but the runs are not like for like: this proves nothing"
    assert unlike.endswith(proves_nothing) or unlike == said == NOT_MEASURED


@pytest.mark.parametrize("width", [60, 78, 118])
def test_the_changed_flag_does_not_read_as_the_reason_of_unlike_runs(width: int) -> None:
    whole = made.comparison()
    one = [{"name": "max-num-seqs", "a": 256, "b": 512}]
    unlike = replace(whole, differences=one, like_for_like=False)
    rows = ["".join(text for text, _ in row) for row in comparison_rows(unlike, width)]
    assert rows[0].endswith("  ! not like for like, see below")
    assert all(len(row) <= width for row in rows[:2])
    assert any("max-num-seqs 256 → 512" in row for row in rows[:2])


@pytest.mark.parametrize("width", [48, 58, 118])
def test_a_narrow_pane_says_whole_that_runs_are_not_like_for_like(width: int) -> None:
    """On 100 and 120 columns the number of differences took the room of the warning."""
    two = [{"kind": "flag", "name": name, "a": 1, "b": 2} for name in ("max-num-seqs", "tp")]
    unlike = replace(made.comparison(), a=1041, b=1042, differences=two, like_for_like=False)
    head, *_ = ["".join(text for text, _ in row) for row in comparison_rows(unlike, width)]
    assert head.startswith("A #1041 vs B #1042  ")
    assert "  ! not like for like" in head and len(head) <= width
    assert ("2 differences" in head) == head.endswith(", see below") == (width == 118)


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        (60, "enforce-eager=off power limit 170 W"),
        (22, "enforce-eager=off +1"),
        (17, "enforce-eage… +1"),
    ],
)
def test_a_label_of_several_changes_says_so_where_it_is_cut(cells: int, said: str) -> None:
    changes = ("enforce-eager=off", "power limit 170 W")
    row = replace(made.bench_row(2, " ".join(changes), 1.0), changes=changes)
    assert _shorten_label(row, row.label, cells) == said
    assert _shorten_label(replace(row, changes=()), row.label, cells) == row.label


def test_the_value_of_a_change_stays_where_its_name_is_cut() -> None:
    name = "max-running-requests=4"
    row = replace(made.bench_row(2, name, 1.0), changes=(name,))
    assert _shorten_label(row, name, 18).endswith("=4")


def test_the_verdict_names_chance_and_several_changes() -> None:
    whole = made.comparison()
    metric = replace(whole.metrics[0], change_pct=1.9, interval_pct=None, verdict="single pair")
    eager = {"kind": "flag", "name": "enforce-eager", "a": True, "b": False}
    limits = [
        {"kind": "gpu setting", "name": f"gpu{n}.power_limit_w", "a": 250.0, "b": 170.0}
        for n in range(4)
    ]
    one = replace(whole, metrics=(metric,), like_for_like=True, differences=(eager,))
    assert speed_verdict_and_role(one, 2.4)[0] == (
        "B is faster by 1.9 %, but two such runs may differ by 3 % by chance (X tests it)"
    )
    both = replace(one, differences=(eager, *limits))
    assert speed_verdict_and_role(both)[0].startswith(
        "both changes together: B is faster by 1.9 % (one pair"
    )
    other_load = {"kind": "workload", "name": "concurrency", "a": 8, "b": 16}
    assert speed_verdict_and_role(replace(one, differences=(eager, other_load)))[0].startswith(
        "B is faster"
    )


def test_an_altered_setting_shows_its_value_before_or_that_nobody_knows_it() -> None:
    lock = alteration(setting="gpu_clocks", before="unknown", now="1200,1200")
    assert alteration_text(lock) == "GPU clocks unknown → 1200 MHz"
    assert alteration_text(alteration()) == "power limit 250 → 170 W"
    several = [alteration(n) for n in (0, 1, 3)]
    assert altered_setting_texts(several, 4) == ["GPU0,1,3 power limit 250 → 170 W"]
    assert altered_setting_texts([*several, alteration(2)], 4) == ["power limit 250 → 170 W"]
    of_bob = replace(alteration(2), by="bob")
    assert altered_setting_texts([of_bob], 4) == ["GPU2 power limit 250 → 170 W, set by bob"]

"""What a tune shows, on the screen and in `tune show`: the race, the final, and the plan before it."""

from __future__ import annotations

from dataclasses import replace

from support.fake_canned import canned_experiment, canned_tune, tune_spec

from workbench.model.series_state import SeriesState
from workbench.model.sweep import PointState
from workbench.model.tune import TuneCost
from workbench.model.tune_standings import (
    format_entry_for_people,
    limit_broken_by_start,
    log_gains_of_remaining_entries,
    rank_configurations,
)
from workbench.report.blocks import Alert
from workbench.report.formats.terminal import block_lines
from workbench.report.tune_blocks import (
    race_table,
    tune_blocks,
    tune_outcome_blocks,
    tune_plan_blocks,
)


def states(**fields: object) -> dict[str, str]:
    return {row[0]: row[-1] for row in race_table(replace(canned_tune(**fields))).rows}  # type: ignore[arg-type]


def test_the_race_says_where_each_configuration_stands() -> None:
    running = states()
    assert list(running)[:2] == ["start preset", "max-num-seqs=64"]
    assert running["max-num-seqs=64"] == "leads, measuring"
    assert running["speculative-config={ngram,3,4}"] == "out, too far behind for chance"
    assert running["kv-cache-dtype=fp8"].startswith("breaks a limit: ttft<=500@p95")
    assert running["attention-backend=FLASHINFER"].startswith("not started")
    assert states(over=True)["max-num-seqs=64"] == "proven in the final"


def test_a_finished_tune_shows_its_pairs_and_is_not_resumed_for_a_candidate_that_failed() -> None:
    over = canned_tune(over=True)
    assert (
        any(point.state == PointState.FAILED for point in over.points) and not over.can_be_resumed
    )
    lines = block_lines(tune_blocks(over, canned_experiment()))
    text = "\n".join(lines)
    assert lines[0].strip().startswith("+15.4 % (at least +13.7 %)")
    assert "3 of 3 pairs (experiment 7)" in text and "wrote the preset tuned-5" in text
    assert "goal output tok/s, limits ttft<=500@p95, power<=400, temp<=83\n" in text
    assert "block 1: max-num-seqs=64: place 1 with +27.7 %" in text
    assert "Final" in "\n".join(block_lines(tune_blocks(over))), "the experiment was deleted"
    stopped = replace(over, state=SeriesState.STOPPED, error="cancelled", knee_text="")
    assert stopped.can_be_resumed
    assert tune_outcome_blocks(stopped) == [Alert("warning", "The tune is stopped", ("cancelled",))]


def test_what_was_started_twice_and_did_not_gain_says_so() -> None:
    tune = canned_tune(over=True)
    slow = replace(tune.points[-1], tok_s=2300.0)
    first = replace(tune.points[1], tok_s=2440.0)
    points = (tune.points[0], first, *tune.points[2:-1], slow)
    tune = replace(tune, points=points, experiment_id=None, confirmed=None, notes=())
    rows = {row[0]: row[-1] for row in race_table(tune).rows}
    assert rows["max-num-seqs=64"] == "not better than the start preset"


def test_a_start_preset_that_breaks_a_limit_says_so_in_the_race() -> None:
    tune = canned_tune()
    broken = replace(tune.points[0], error="breaks a limit: power 450 W, above 400 W")
    tune = replace(tune, points=(broken, *tune.points[1:]))
    assert limit_broken_by_start(tune) == "power 450 W, above 400 W"
    assert race_table(tune).rows[0][-1] == "breaks a limit: power 450 W, above 400 W"
    assert log_gains_of_remaining_entries(tune) == {
        ("max-num-seqs=64",): rank_configurations(tune)[1].gain
    }


def test_the_reason_of_a_failed_tune_stands_once_not_with_each_candidate() -> None:
    why = "the start preset could not be measured: its text is not an answer"
    tune = canned_tune()
    skipped = [replace(p, state=PointState.SKIPPED, error=why, tok_s=None) for p in tune.points[1:]]
    tune = replace(tune, state=SeriesState.FAILED, error=why, points=(tune.points[0], *skipped))
    assert {row[-1] for row in race_table(tune).rows[1:]} == {"not tried"}
    assert "\n".join(block_lines(tune_blocks(tune))).count("its text is not an answer") == 1


def test_the_plan_groups_what_is_left_out_and_says_what_a_tune_takes() -> None:
    cost = TuneCost(18, 5, "128 requests", 5400.0, 0.62)
    text = "\n".join(block_lines(tune_plan_blocks(tune_spec(), cost, simulated=True)))
    assert "SIMULATED" in text and "about 90 min" in text and "at most 0.62 kWh" in text
    assert "ttft<=500@p95, power<=400, temp<=83" in text
    assert "async-scheduling=true, performance-mode=throughput: no room in 24 starts" in text
    unknown = TuneCost(18, 5, "128 requests")
    assert "known after the first run" in "\n".join(
        block_lines(tune_plan_blocks(tune_spec(), unknown, simulated=False))
    )


def test_a_json_value_is_shown_by_its_values() -> None:
    assert format_entry_for_people(('speculative-config={"method":"ngram","n":3}', "a=1")) == (
        "speculative-config={ngram,3} a=1"
    )
    assert (
        format_entry_for_people(("a={broken",)) == "a={broken"
        and format_entry_for_people(()) == "start"
    )

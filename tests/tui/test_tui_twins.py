"""Twins on the screen: the field of the form, and the page of an experiment on twins."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.simulated_runs import TWINS, Noise, SimulatedRuns

from workbench.bench import experiment as design
from workbench.model.errors import InputError
from workbench.model.experiment import Arm, Experiment, ExperimentSpec
from workbench.tui.cells import row_width
from workbench.tui.modals.experiment_form import parse_experiment_form
from workbench.tui.widgets.experiment import (
    begun_and_planned_runs,
    experiment_design_text,
    experiment_rows,
)

VALUES = {"a": "", "b": "max-num-seqs=512", "pairs": "4", "until": "", "metric": "tok/s", "minutes": "",
          "temperature": "", "twin": ""}  # fmt: skip


def test_the_form_has_a_twin() -> None:
    assert "twin" not in parse_experiment_form(VALUES).options
    assert parse_experiment_form({**VALUES, "twin": " gpu-box-2 "}).options["twin"] == "gpu-box-2"
    for pairs in ("3", "2"):
        with pytest.raises(InputError, match="4, 6 or 8 pairs"):
            parse_experiment_form({**VALUES, "twin": "gpu-box-2", "pairs": pairs})


def test_a_twin_is_measured_beside_the_present_host(
    drive: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(d: Any) -> None:
        wanted = parse_experiment_form({**VALUES, "twin": "gpu-box-2"})
        options = d.app.main.controllers.experiments._experiment_run_options(wanted)
        assert (
            options["twins"] == (d.session.state.host.name, "gpu-box-2") and "twin" not in options
        )

    drive(scenario)


def made(pairs: int, **changes: Any) -> Experiment:
    spec = ExperimentSpec(Arm(), Arm(sets=("knob=B",)), {}, pairs=4, order_seed=3, twins=TWINS)
    runs = SimulatedRuns(0.05, 1, Noise(0, 0, 0, 0, machine=-0.03))
    one, results = Experiment(1, 0.0, "one", spec, restarts=True), {}
    while one.completed_pairs < pairs:
        run = design.next_run_to_make(one)
        result = runs.result(
            run,
            runs.speed(run.arm, len(runs.results)),
            design.workload_seed_of_pair(spec, run.pair),
        )
        results[result.id] = result
        done = replace(run, state="done", value=result.summary.output_tok_s, result_id=result.id)
        one = design.add_or_replace_run(one, done)
    return design.evaluate_experiment(replace(one, **changes), results)


@pytest.mark.parametrize("width", [76, 116, 196])
def test_the_page_has_the_machine_and_the_hosts_of_the_runs(width: int) -> None:
    one = made(4, state="done")
    rows = experiment_rows(one, width)
    text = "\n".join("".join(part for part, _ in row) for row in rows)
    assert "two is slower than one by 3.0 %" in " ".join(text.split())
    assert "machine" in text and "-3.0 %" in text and text.count(" swap ") == 2
    hosts = next(
        line
        for line in text.splitlines()
        if line.startswith("host   ") and "1" in line and "A" not in line
    )
    assert set(hosts.split()[1:]) == {"1", "2"}
    assert all(row_width(row) <= width for row in rows)


def test_runs_to_come_have_their_hosts_and_the_design_says_it() -> None:
    one = made(1, state="running")
    assert {run.host for run in begun_and_planned_runs(one)} == set(TWINS) and len(
        begun_and_planned_runs(one)
    ) == 8
    assert "host 1 one and host 2 two, swapped in half of them" in experiment_design_text(one)
    assert "so far" in one.verdict or "no claim" in one.verdict

"""What a screen says about a benchmark that a killed Workbench has left."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, replace

import pytest
from support.fake_host import FakeHost
from support.made_results import result

from workbench.bench.records import BenchOutcome
from workbench.bench.workers import KeptResult
from workbench.model.experiment import Arm, Experiment, ExperimentSpec
from workbench.model.json_records import to_json
from workbench.model.series_state import SeriesState
from workbench.model.sweep import Sweep
from workbench.session.bench.bench import _kind_and_id_of_running_series
from workbench.session.bench.unfinished_benchmarks import (
    outcome_as_client_message,
    store_detached_results,
)
from workbench.session.session import Session
from workbench.session.state import SessionState
from workbench.store import paths, unfinished_benchmarks
from workbench.store.results_db import ResultsDb
from workbench.store.unfinished_benchmarks import BenchmarkNote

EXPERIMENT = Experiment(3, 1.0, "box", ExperimentSpec(Arm(), Arm(), {}))
SWEEP = Sweep(4, 1.0, "box", "concurrency", "concurrency", "", ())
TUNE = replace(SWEEP, id=5, kind="tune")
ENDED = replace(TUNE, state=SeriesState.DONE)
MADE = result()
OUTCOME = BenchOutcome(replace(MADE.spec, salt="5ca1ab1e"), MADE.summary, t0_unix=1.0, t1_unix=9.0)
ABOUT = {
    "run_id": None,
    "address": MADE.spec.url,
    "server_host": "box",
    "gpus_known": False,
    "simulated": False,
    "client": "host",
    "kept": asdict(KeptResult("/nowhere")),
    "spec": to_json(MADE.spec),
}


@pytest.mark.parametrize(
    ("series", "said"),
    [
        ({}, "press b to measure again"),
        ({"experiment": EXPERIMENT}, "press X, then R to resume experiment 3"),
        ({"sweep": SWEEP}, "press S, then R to resume sweep 4"),
        ({"sweep": TUNE, "experiment": EXPERIMENT}, "press N, then R to resume tune 5"),
        ({"sweep": ENDED}, "press b to measure again"),
    ],
)
def test_a_cut_off_benchmark_of_a_series_is_resumed_with_it(
    series: dict[str, object], said: str
) -> None:
    """After a killed experiment, b measured once more what the experiment would measure again."""
    session = Session(FakeHost())
    under_way = _kind_and_id_of_running_series(SessionState(session.state.host, **series))  # type: ignore[arg-type]
    kept = {"path": "/none", "pid": 0}
    about = {
        "run_id": "r",
        "client": "local",
        "kept": kept,
        "series": list(under_way) if under_way else None,
    }
    asyncio.run(store_detached_results(session, [BenchmarkNote("none", about, alive=False)]))
    notice = session.state.notice
    assert notice is not None and "was cut off" in notice.text and notice.next_step == said


def next_screen() -> Session:
    """Return the next session of a user whose Workbench was killed before it removed its note."""
    session = Session.of_host()
    name = unfinished_benchmarks.new_note_name()
    about = {**ABOUT, "host": session.host.name}
    with unfinished_benchmarks.store_running_benchmark_note(name, about):
        note = unfinished_benchmarks._note_path(name)
        text = note.read_text()
    note.write_text(text)
    unfinished_benchmarks.store_final_message(name, outcome_as_client_message(OUTCOME))
    asyncio.run(
        store_detached_results(
            session, unfinished_benchmarks.find_benchmark_notes(session.host.name)
        )
    )
    assert not unfinished_benchmarks.find_benchmark_notes(session.host.name)
    return session


def test_the_outcome_of_a_load_that_has_ended_is_kept_once() -> None:
    """A kill between the end of a load and its stored result lost it, and the next screen said that no
    request had been measured."""
    notice = next_screen().state.notice
    (kept,) = ResultsDb(paths.results_db()).list()
    assert kept.summary.output_tok_s == MADE.summary.output_tok_s
    assert kept.unix_s == OUTCOME.t1_unix, "the time of its recovery is not that of the measurement"
    assert "after the load" in kept.summary.refused[-1]
    assert notice is not None and f"result {kept.id}" in notice.text
    assert notice.next_step == "press b to measure again"

    # killed between the storing of the result and the end of the note
    assert next_screen().state.notice is None
    assert len(ResultsDb(paths.results_db()).list()) == 1

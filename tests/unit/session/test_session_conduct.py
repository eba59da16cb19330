"""An experiment carried out: repeats, ends, interruptions; the interval holds the truth. On
simulated_runs.py."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from support.simulated_runs import REALISTIC, Noise, SimulatedRuns

from workbench.bench import experiment as design
from workbench.model.answer_text import SetFeatures, TextFinding, TextReport
from workbench.model.bench import BenchResult, BenchSummary
from workbench.model.errors import BenchError, HostError, WorkbenchError
from workbench.model.experiment import (
    INTERRUPTED,
    Arm,
    ArmTarget,
    Experiment,
    ExperimentRun,
    ExperimentSpec,
)
from workbench.model.quality import QualityResult
from workbench.session.series.conduct import SeriesStopped
from workbench.session.series.experiment_run import (
    AnswerComparison,
    ExperimentConduct,
    StartFailedError,
)

QUIET = Noise(0, 0, 0, 0)


class Carried:
    """One experiment carried out, with all that was kept and told on the way."""

    def __init__(
        self,
        runs: SimulatedRuns,
        experiment: Experiment | None = None,
        answers: AnswerComparison | None = None,
        **options: Any,
    ) -> None:
        self.kept: list[Experiment] = []
        self.told: list[Experiment] = []
        options.setdefault("throw_away", False)
        spec = design.check_experiment_spec(
            ExperimentSpec(Arm(), Arm(sets=("knob=B",)), {}, **options)
        )
        self.runs = runs
        self.conduct = ExperimentConduct(
            experiment or Experiment(1, 0.0, "sim", spec, restarts=runs.restarts),
            runs,
            save=self._save,
            show_experiment=self.told.append,
            results=runs.results,
            answers=answers,
        )

    async def _save(self, experiment: Experiment) -> None:
        self.kept.append(experiment)

    def ended(self) -> Experiment:
        return asyncio.run(self.conduct.carry_out_experiment())


def test_order_servers_and_seeds() -> None:
    runs = SimulatedRuns(0.1, 1, QUIET)
    one = Carried(runs).ended()
    assert [r.conditions.flags["knob"] for r in runs.results] == list("ABBAAB")
    assert [r.spec.seed for r in runs.results] == [0, 0, 1, 1, 2, 2]
    assert runs.starts == 6 and len({r.run_id for r in one.runs}) == 6, (
        "each run has a server of its own"
    )
    assert one.state == "done" and one.verdict == (
        "B is faster by 10.0 % ± 0.2 (output tok/s, 3 pairs)"
    )
    assert (one.phase, one.left_s, one.server, one.error) == ("", None, None, None)
    assert runs.started_run_id is None


URL = ArmTarget("http://box:8000", url="http://box:8000")


@pytest.mark.parametrize("kind", ["connect refused", "reset", "http 503"])
@pytest.mark.parametrize("discarded", [True, False])
def test_a_server_at_a_url_that_is_away_at_first_is_asked_again(kind: str, discarded: bool) -> None:
    """A restart in the first run of an arm ended the experiment."""
    one = first_failed(kind, URL, throw_away=discarded)
    assert one.state == "done", one.error
    (failed,) = [run for run in one.runs if run.state == "failed"]
    assert kind in str(failed.error) and one.completed_pairs == 3


@pytest.mark.parametrize(("kind", "target"), [("connect refused", None), ("http 400", URL)])
def test_a_server_that_answers_no_request_is_not_asked_again(
    kind: str, target: ArmTarget | None
) -> None:
    one = first_failed(kind, target)
    assert one.state == "failed" and len(one.runs) == 1 and kind in str(one.error)
    assert ("workbench logs run-1" in str(one.error)) == (target is None)


def first_failed(kind: str, target: ArmTarget | None, **options: Any) -> Experiment:
    """Return an experiment on `target` in whose first run each request failed in this way."""

    def gone(run: ExperimentRun, summary: BenchSummary) -> BenchSummary:
        if run.place:
            return summary
        errors, why = {kind: 24}, (f"24 of 24 requests failed at the server (24 x {kind})",)
        return replace(summary, requests_ok=0, requests_failed=24, errors=errors, refused=why)

    runs = SimulatedRuns(0.0, 1, QUIET, restarts=False)
    runs.spoil = gone
    arm = Arm(target=target)
    spec = design.check_experiment_spec(ExperimentSpec(arm, arm, {}, **options))
    return Carried(runs, Experiment(1, 0.0, "sim", spec, restarts=False)).ended()


def test_one_server_where_no_restart_is_needed() -> None:
    runs = SimulatedRuns(0.0, 1, restarts=False)
    one = Carried(runs, pairs=4).ended()
    assert runs.starts == 1 and one.completed_pairs == 4


def test_progress_is_told_and_every_run_kept() -> None:
    carried = Carried(SimulatedRuns(0.05, 1))
    carried.ended()
    assert [e.completed_pairs for e in carried.kept if e.runs and e.runs[-1].state == "done"][
        -1
    ] == 3
    kept = [sum(r.state == "done" for r in e.runs) for e in carried.kept]
    assert set(kept) >= {1, 2, 3, 4, 5, 6} and kept == sorted(kept)
    phases = [e.phase for e in carried.told]
    assert "pair 2, B: starting" in phases and "pair 2, B: measuring" in phases
    assert {r.state for e in carried.told for r in e.runs} == {"starting", "measuring", "done"}
    widths = [e.comparison.metrics[0].interval_pct for e in carried.told if e.comparison]
    assert widths[0] is None and widths[-1] is not None, "the interval comes with the second pair"
    left = [e.left_s for e in carried.told if e.left_s is not None]
    assert left and left[-1] <= left[0]


def spoiled(places: Sequence[int], **figures: Any) -> SimulatedRuns:
    runs = SimulatedRuns(0.1, 1, QUIET)

    def spoil(run: ExperimentRun, summary: BenchSummary) -> BenchSummary:
        return replace(summary, **figures) if run.place in places else summary

    runs.spoil = spoil
    return runs


@pytest.mark.parametrize(
    "figures",
    [{"requests_failed": 3, "errors": {"reset": 3}}, {"refused": ("the client was the limit",)}],
)
def test_a_run_that_may_not_be_used_is_made_again_with_its_partner(figures: dict[str, Any]) -> None:
    one = Carried(spoiled([3], **figures)).ended()
    assert [(r.arm, r.state) for r in one.runs] == [
        ("A", "done"),
        ("B", "done"),
        ("B", "dropped"),
        ("A", "failed"),
        ("B", "done"),
        ("A", "done"),
        ("A", "done"),
        ("B", "done"),
    ]
    assert one.state == "done" and one.verdict.startswith("B is faster by 10.0 %")
    assert one.runs[3].result_id is not None, "the result is kept, and says why it was not used"
    assert one.comparison is not None and (one.comparison.runs_a, one.comparison.like_for_like) == (
        3,
        True,
    )


def test_a_pair_that_fails_again_and_again_ends_it() -> None:
    one = Carried(spoiled(range(2, 99), refused=("hot",))).ended()
    assert one.state == "failed" and one.error is not None and "pair 2 failed 3 times" in one.error
    assert one.completed_pairs == 1 and sum(r.state == "failed" for r in one.runs) == 3
    assert one.verdict == "no claim: 1 pair cannot be distinguished from the noise between runs"


def test_an_arm_that_answers_no_request_is_not_tried_again() -> None:
    none = {"requests_ok": 0, "requests_failed": 128, "errors": {"http 400": 128}}
    one = Carried(spoiled([1], **none)).ended()
    assert one.state == "failed" and len(one.runs) == 2
    assert (
        one.error
        == "B: 128 of 128 requests failed (128 http 400) (look for the cause in the server's log: "
        "workbench logs run-2)"
    )
    later = Carried(spoiled([2], **none)).ended()
    assert later.state == "done", "an arm that has answered before is"


def test_an_arm_whose_text_is_no_answer_ends_the_experiment_at_once() -> None:
    garbage = TextFinding("error", "text.degenerate", "degenerate output: all", '"!!!!"')
    figures = {"text": TextReport(SetFeatures(), None, (garbage,)), "refused": (garbage.text,)}
    one = Carried(spoiled([3], **figures)).ended()
    assert (one.state, len(one.runs), one.completed_pairs) == ("failed", 4, 1)
    assert one.error is not None
    assert one.error.startswith('A: its text is not an answer: "!!!!" (degenerate output: all); ')
    assert "tok/s of it say nothing" in one.error
    assert one.runs[3].result_id is not None, "the result is kept"


class Failing(SimulatedRuns):
    """`error` comes at the `at`-th start of `arm`, counted from 0, and at all later ones with
    `always`."""

    def __init__(
        self, error: BaseException, arm: str, at: int, where: str = "ready", always: bool = True
    ) -> None:
        super().__init__(0.1, 1, QUIET)
        self.error, self.where, self.always = error, where, always
        self.left = {arm: at}
        self.gave_back = False

    def _perhaps(self, arm: str, where: str) -> None:
        if arm in self.left and where == self.where:
            self.left[arm] -= 1
            if self.left[arm] == -1 or (self.always and self.left[arm] < 0):
                raise self.error

    async def await_server_and_apply_settings(
        self, arm: str, run_id: str, tell: Callable[[str], None]
    ) -> None:
        self._perhaps(arm, "ready")

    async def run_benchmark(self, arm: str, run: ExperimentRun, seed: int) -> BenchResult:
        self._perhaps(arm, "measure")
        return await super().run_benchmark(arm, run, seed)

    async def restore_host_and_report(self, experiment: Experiment) -> Sequence[str]:
        self.gave_back = True
        return await super().restore_host_and_report(experiment)


def test_an_arm_that_never_starts_ends_it_at_once_and_keeps_the_other() -> None:
    runs = Failing(StartFailedError("the server did not start: no such backend"), "B", 0)
    one = Carried(runs).ended()
    assert one.state == "failed" and one.error == "B: the server did not start: no such backend"
    assert [(r.arm, r.state) for r in one.runs] == [("A", "dropped"), ("B", "failed")]
    assert one.runs[0].result_id == 1 and runs.gave_back


def test_a_start_that_fails_once_after_others_is_tried_again() -> None:
    one = Carried(Failing(StartFailedError("out of memory"), "B", 1, always=False)).ended()
    assert one.state == "done" and [r.error for r in one.runs if r.state == "failed"] == [
        "out of memory"
    ]


@pytest.mark.parametrize(
    ("error", "state", "said"),
    [
        (HostError("the link was lost"), "stopped", "the link was lost"),
        (SeriesStopped("the benchmark was cancelled"), "stopped", "the benchmark was cancelled"),
        (asyncio.CancelledError(), "stopped", INTERRUPTED),
        (WorkbenchError("no right to set clocks"), "failed", "no right to set clocks"),
        (
            BenchError("the worker died"),
            "failed",
            "pair 2 failed 3 times; last error, in arm B: the worker died",
        ),
    ],
)
def test_however_it_ends_everything_is_given_back_and_kept(
    error: BaseException, state: str, said: str
) -> None:
    runs = Failing(error, "B", 1, "measure")
    carried = Carried(runs)
    one = carried.ended()
    assert (
        (one.state, one.error) == (state, said) and runs.gave_back and runs.started_run_id is None
    )
    assert carried.kept[-1] == one and one.completed_pairs == 1
    assert not {r.state for r in one.runs} & {"planned", "starting", "measuring"}
    assert one.verdict.startswith("no claim")


def test_a_defect_gives_back_too() -> None:
    runs = Failing(ZeroDivisionError(), "B", 0, "measure")
    with pytest.raises(ZeroDivisionError):
        Carried(runs).ended()
    assert runs.gave_back


def test_a_server_is_named_on_disk_before_its_process_starts() -> None:
    """A kill between the two left a server that nobody ended."""
    at_launch: list[str | None] = []

    class Noting(SimulatedRuns):
        async def start_or_reuse_server(
            self, arm: str, note_run_id: Callable[[str], Awaitable[None]]
        ) -> str:
            async def noted(run_id: str) -> None:
                await note_run_id(run_id)
                at_launch.append(carried.kept[-1].server)

            return await super().start_or_reuse_server(arm, noted)

    carried = Carried(Noting(0.1, 1, QUIET))
    carried.ended()
    assert at_launch == [f"run-{n}" for n in range(1, 7)]


def test_an_interrupted_one_goes_on_where_it_ended() -> None:
    """The same pairs as one that was not interrupted, and the half pair made again."""
    first = Failing(asyncio.CancelledError(), "A", 1, "measure", always=False)  # run 3 of A B B A
    stopped = Carried(first).ended()
    assert [r.state for r in stopped.runs] == ["done", "done", "done", "failed"]
    second = SimulatedRuns(0.1, 1, QUIET)
    second.results = list(first.results)
    one = Carried(second, design.prepare_experiment_to_resume(stopped)).ended()
    assert [(r.pair, r.arm) for r in one.runs if r.state == "done"] == [
        (0, "A"),
        (0, "B"),
        (1, "B"),
        (1, "A"),
        (2, "A"),
        (2, "B"),
    ]
    assert one.state == "done" and one.verdict.startswith("B is faster by 10.0 %")


def test_more_pairs_of_a_finished_one() -> None:
    runs = SimulatedRuns(0.1, 1)
    one = Carried(runs).ended()
    more = design.prepare_experiment_to_resume(
        replace(one, spec=replace(one.spec, pairs=5), extensions=1)
    )
    again = Carried(runs, more).ended()
    assert again.completed_pairs == 5 and len(again.runs) == 10 and again.state == "done"


def test_until_the_interval_is_narrow() -> None:
    one = Carried(SimulatedRuns(0.03, 5), until_pct=1.5, pairs=16).ended()
    width = one.comparison.metrics[0].interval_pct if one.comparison else None
    assert width is not None and width <= 1.5 and 4 <= one.completed_pairs <= 16
    assert "within ± 1.5 %" in one.note
    capped = Carried(SimulatedRuns(0.03, 5), until_pct=0.01, pairs=5).ended()
    assert (
        capped.state == "done"
        and ("± 0.01 % was not reached within 5 pairs, the maximum") in capped.note
    )


def test_no_pair_is_begun_that_the_time_does_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("workbench.session.series.experiment_run.time.monotonic", lambda: now[0])

    class Slow(SimulatedRuns):
        async def run_benchmark(self, arm: str, run: ExperimentRun, seed: int) -> BenchResult:
            now[0] += 60.0
            return await super().run_benchmark(arm, run, seed)

    runs = Slow(0.1, 1)
    one = Carried(runs, pairs=8, max_minutes=5.0).ended()
    assert (one.state, one.completed_pairs) == ("stopped", 2)
    assert one.error is not None and one.error.startswith(
        "the limit of 5 min was reached after 2 of 8 pairs (resume"
    )
    assert one.verdict.startswith("no claim: the experiment was not finished; so far +"), (
        "and no interval was bought"
    )
    again = Carried(
        runs,
        design.prepare_experiment_to_resume(replace(one, spec=replace(one.spec, max_minutes=None))),
    ).ended()
    assert (
        again.state,
        again.completed_pairs,
        again.extensions,
        design.confidence_level(again),
    ) == (
        "done",
        8,
        0,
        0.95,
    )
    short = Carried(Slow(0.1, 1), pairs=8, max_minutes=3.0).ended()
    assert (short.state, short.completed_pairs) == ("stopped", 1)


def test_the_first_run_is_discarded_and_of_each_arm_that_compiles_one() -> None:
    runs = SimulatedRuns(0.1, 1, replace(QUIET, cold=0.05))
    carried = Carried(runs, throw_away=None)
    one = carried.ended()
    assert [(r.pair, r.arm, r.state) for r in one.runs][:3] == [
        (-1, "A", "discarded"),
        (0, "A", "done"),
        (0, "B", "done"),
    ]
    assert one.completed_pairs == 3 and one.verdict.startswith("B is faster by 10.0 % ± 0.2"), (
        "the cold run is not in it"
    )
    assert one.comparison is not None and one.comparison.runs_a == 3
    assert any(n.startswith("the discarded first run is -4.9 %") for n in one.comparison.notes)
    assert "discarded run, A: measuring" in [e.phase for e in carried.told]

    class Compiling(SimulatedRuns):
        async def must_compile_first(self, arm: str) -> bool:
            return True

    both = Compiling(0.1, 1, QUIET)
    assert [r.arm for r in Carried(both, throw_away=None).ended().discarded_runs] == [
        "A",
        "B",
    ] and both.starts == 8
    always = SimulatedRuns(0.1, 1, QUIET)
    assert [r.arm for r in Carried(always, throw_away=True).ended().discarded_runs] == [
        "A",
        "B",
    ] and always.starts == 8
    never = Compiling(0.1, 1, QUIET)
    assert Carried(never, throw_away=False).ended().discarded_runs == () and never.starts == 6


def test_a_discarded_run_may_be_refused_but_must_serve_and_measure() -> None:
    refused = Carried(spoiled([0], refused=("cold",)), throw_away=None).ended()
    assert refused.state == "done" and refused.discarded_runs[0].error == "invalid result: cold"
    none = {"requests_ok": 0, "requests_failed": 128, "errors": {"http 400": 128}}
    dead = Carried(spoiled([0], **none), throw_away=None).ended()
    assert (
        dead.state == "failed"
        and len(dead.runs) == 1
        and dead.error is not None
        and dead.error.startswith("A: 128 of")
    )
    absent = {"tok_per_joule": None, "absent": {"tok_per_joule": "shorter than 2 s"}}
    short = Carried(spoiled(range(9), **absent), throw_away=None, metric="tok_per_joule").ended()
    assert short.state == "failed" and len(short.runs) == 1, "the next ones would have none either"
    assert short.error is not None and short.error.startswith(
        "A: tok_per_joule was not measured: shorter than 2 s"
    )


def test_an_arm_whose_discarded_first_start_fails_is_named_with_its_run() -> None:
    class Compiling(Failing):
        async def must_compile_first(self, arm: str) -> bool:
            return True

    one = Carried(Compiling(StartFailedError("no kernel image"), "B", 0), throw_away=None).ended()
    assert one.state == "failed" and one.error == "B: no kernel image"
    assert [(r.arm, r.state, r.error) for r in one.runs] == [
        ("A", "discarded", None),
        ("B", "failed", "no kernel image"),
    ]


def test_a_resumed_one_begins_with_a_discarded_run_again() -> None:
    first = Failing(asyncio.CancelledError(), "A", 2, "measure", always=False)
    stopped = Carried(first, throw_away=None).ended()
    second = SimulatedRuns(0.1, 1, QUIET)
    second.results = list(first.results)
    one = Carried(second, design.prepare_experiment_to_resume(stopped)).ended()
    assert one.state == "done" and len(one.discarded_runs) == 2 and one.completed_pairs == 3


def test_a_command_that_did_not_end_is_named() -> None:
    error = HostError(
        "did not end within 30 s and was killed", command="nvidia-smi -q", next_step="try it there"
    )
    one = Carried(Failing(error, "B", 0, "measure")).ended()
    assert one.error == (
        "did not end within 30 s and was killed; command: nvidia-smi -q (try it there)"
    )


def test_start_temperatures_are_matched_or_told() -> None:
    class Warm(SimulatedRuns):
        asked: list[tuple[float | None, float]]

        async def wait_then_read_temperature_c(
            self, target_c: float | None, within_c: float, tell: Any
        ) -> float | None:
            self.asked = [*getattr(self, "asked", []), (target_c, within_c)]
            return 40.0 if len(self.asked) != 3 else 52.0

    runs = Warm(0.1, 1, QUIET)
    one = Carried(runs, match_temperature_c=3.0).ended()
    assert runs.asked == [(None, 3.0), *[(40.0, 3.0)] * 5]
    assert one.note == "run 3 (B) began at 52 °C, the first run at 40 °C"
    assert [r.start_temperature_c for r in one.runs] == [40, 40, 52, 40, 40, 40]


# -- the interval holds the truth (the whole table: tests/benchmarks/bench_experiments.py) ---------


def many(
    experiments: int, effect: float, noise: Noise = REALISTIC, **options: Any
) -> tuple[float, float]:
    """Shares of experiments whose interval holds the truth, and that show a difference."""

    async def all_of_them() -> tuple[int, int]:
        held = shown = 0
        for seed in range(experiments):
            one = await Carried(
                SimulatedRuns(effect, seed, noise), **options
            ).conduct.carry_out_experiment()
            assert one.comparison is not None
            change = one.comparison.metrics[0]
            assert change.change_pct is not None and change.interval_pct is not None
            held += abs(change.change_pct - 100 * effect) <= change.interval_pct
            shown += change.verdict in ("better", "worse")
        return held, shown

    held, shown = asyncio.run(all_of_them())
    return held / experiments, shown / experiments


def test_realistic_experiments_hold_the_truth_and_raise_few_false_alarms() -> None:
    """By the whole way; more of them: tests/unit/bench/test_bench_coverage.py. Within 3 standard
    errors of 95 %."""
    held, shown = many(80, 0.0, pairs=3)
    assert held >= 0.87 and shown <= 0.13
    held, shown = many(40, 0.03, pairs=5)
    assert held >= 0.84 and shown >= 0.95


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("effect", [0.0, 0.01, 0.03, 0.10])
@pytest.mark.parametrize(
    "options",
    [{"pairs": 3}, {"pairs": 5}, {"pairs": 8}, {"pairs": 16, "until_pct": 2.0}],
    ids=["3", "5", "8", "until"],
)
def test_coverage_of_every_design(options: dict[str, Any], effect: float) -> None:
    """What the issue asks for: 93 to 97 % hold the truth, at most 6 % false alarms (1,500 each:
    ±0.6 %)."""
    held, shown = many(1500, effect, **options)
    assert 0.93 <= held <= 0.97, held
    if effect == 0.0:
        assert shown <= 0.06, shown


class Answers:
    """A comparison of answers that is measured on three servers: two of A and one of B."""

    def __init__(self, runs: SimulatedRuns, summary: str, verdict: str) -> None:
        self._runs, self._result = runs, QualityResult("A", "B", verdict, summary, id=7)
        self.on: list[tuple[str, str]] = []  # arm, and the server that ran then
        self.ended: bool | None = None

    async def measure_missing_answers(
        self, run: ExperimentRun, tell: Callable[[str], None]
    ) -> QualityResult | None:
        if [arm for arm, _ in self.on].count(run.arm) == {"A": 2, "B": 1}[run.arm]:
            return None
        assert self._runs.started_run_id == run.run_id, "its server still runs"
        tell("answers: A: 1 of 2 texts scored")
        self.on.append((run.arm, run.run_id or ""))
        return self._result if len(self.on) == 3 else None

    async def finish_comparison(self, *, experiment_done: bool) -> QualityResult | None:
        self.ended = experiment_done
        return None if len(self.on) == 3 or not experiment_done else self._result

    def estimated_remaining_s(self) -> float:
        return 1000.0 * (3 - len(self.on))


def test_the_answers_are_compared_on_servers_that_run_anyway() -> None:
    runs = SimulatedRuns(0.1, 1, QUIET)
    answers = Answers(runs, "its answers are the same within 0.001 KLD", "same")
    carried = Carried(runs, answers=answers)
    one = carried.ended()
    assert answers.on == [("A", "run-1"), ("B", "run-2"), ("A", "run-4")] and runs.starts == 6
    assert one.verdict == (
        "B is faster by 10.0 % ± 0.2 (output tok/s, 3 pairs); its answers are the same within "
        "0.001 KLD"
    )
    assert one.quality_id == 7 and answers.ended is True
    phases = [e.phase for e in carried.told]
    assert "pair 1, A: answers: A: 1 of 2 texts scored" in phases
    done = [sum(run.state == "done" for run in e.runs) for e in carried.kept if e.quality_id]
    assert done[0] == 4, "it is stored as soon as nothing is missing"
    left = {e.completed_pairs: e.left_s for e in carried.told if e.left_s}
    assert left[1] > 1000 > left[2], "the answers that are missing are part of the time left"


def test_an_instrument_that_is_not_usable_does_not_end_the_experiment() -> None:
    runs = SimulatedRuns(0.1, 1, QUIET)
    reason = "quality not measured: A: the engine is not known"
    one = Carried(runs, answers=Answers(runs, reason, "quality not measured"), pairs=1).ended()
    assert one.state == "done" and one.quality_id == 7
    assert one.comparison is not None
    assert (one.comparison.quality, one.comparison.quality_verdict) == (
        reason,
        "quality not measured",
    )


def test_answers_of_an_interrupted_experiment_are_not_judged_yet() -> None:
    runs = Failing(HostError("the link is gone"), "B", 0)
    answers = Answers(runs, "its answers differ", "differs")
    one = Carried(runs, answers=answers).ended()
    assert one.state == "stopped" and answers.ended is False and one.quality_id is None

"""Tunes whose servers are a table: who leads, what the limits and the time limit do, and what the final
may say."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from support.fake_host import FakeHost
from support.made_results import result

from workbench.bench.tune_race import RaceSize
from workbench.model.bench import BenchResult, BenchSpec, Distribution, GpuDuring
from workbench.model.errors import BenchError, HostError, InputError, SettingsError
from workbench.model.experiment import Arm, Experiment, ExperimentRun, ExperimentSpec, RunState
from workbench.model.findings import Finding, Level
from workbench.model.gpu import GpuInfo
from workbench.model.plan import LaunchPlan
from workbench.model.quality import KL, SAME, Interval, QualityMeasure, QualityResult
from workbench.model.series_state import SeriesState
from workbench.model.server_run import ServerState
from workbench.model.setting_records import Alteration, SettingsReport
from workbench.model.settings import ClockRange, GpuSettings
from workbench.model.slo import LimitAttained
from workbench.model.sweep import PointState, Sweep, SweepPoint, SweepSpec, planned_again_for_resume
from workbench.model.tune import TUNE, TuneCandidate, TuneLimits, TuneSpec, parse_tune_limits
from workbench.model.tune_standings import Entry, format_point_label, rank_configurations
from workbench.report.tune_blocks import race_table
from workbench.session.plans.plan_editor import PlanEditor
from workbench.session.series.conduct import carry_out_series
from workbench.session.series.sweep_progress import SweepProgress
from workbench.session.series.sweeps import remaining_tune_minutes
from workbench.session.series.tune import Tune
from workbench.session.series.tune_plan import (
    _check_goal_and_limits,
    _is_proposal_for_other_change,
    combination_or_problem_text,
)
from workbench.session.session import Session

EIGHT, FOUR, ASYNC = "max-num-seqs=8", "max-num-seqs=4", "async-scheduling=true"
SLO = "ttft<=60@p95"


@pytest.fixture(autouse=True)
def same_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the order of the final, and with it the noise of its runs, be the same in each run."""
    monkeypatch.setattr(random, "SystemRandom", lambda: random.Random(1))


class Server:
    """What one server measures. `noise_pct` is how far its runs differ, and `final_tok_s` what it
    gives in the final, if it only looked fast in the race; `refused` says why its runs there are
    invalid."""

    def __init__(
        self,
        tok_s: float = 100.0,
        ttft_ms: float | None = 50.0,
        power_w: float | None = 300.0,
        temperature_c: float = 60.0,
        noise_pct: float = 0.2,
        final_tok_s: float | None = None,
        refused: tuple[str, ...] = (),
        goodput: float | None = None,
        users: float | None = None,
    ) -> None:
        self.final_tok_s, self.refused = final_tok_s or tok_s, refused
        self.goodput, self.users = goodput, users
        self.tok_s, self.ttft_ms, self.noise_pct = tok_s, ttft_ms, noise_pct
        self.power_w, self.temperature_c = power_w, temperature_c

    def result(self, seed: int, number: int) -> BenchResult:
        plain = result(1)
        swing = 1 + self.noise_pct / 100 * random.Random(f"{seed} {number}").gauss(0, 1)
        tok_s = self.tok_s if seed < 1000 else self.final_tok_s  # the seeds of the final
        kept = 0.0 if self.ttft_ms is None or self.ttft_ms > 60 else 100.0
        ttft = None if self.ttft_ms is None else self.ttft_ms / swing
        assert plain.summary.ttft_ms is not None
        spread: Distribution | None = replace(plain.summary.ttft_ms, p50=ttft) if ttft else None
        summary = replace(
            plain.summary,
            output_tok_s=tok_s * swing,
            ttft_ms=spread,
            power_w=self.power_w,
            tok_per_joule=tok_s * swing / self.power_w if self.power_w else None,
            users=self.users and self.users * swing,
            goodput_request_s=self.goodput and self.goodput * swing,
            slo=(LimitAttained(SLO, 95.0, kept if self.ttft_ms else None),),
            gpu=GpuDuring(self.power_w, None, 2400, 13000, self.temperature_c, 97),
            requests_failed=0,
            errors={},
            refused=self.refused if seed >= 1000 else (),
            absent={} if self.power_w else {"tok_per_joule": "the run was too short"},
        )
        return replace(plain, spec=replace(plain.spec, seed=seed), summary=summary)


class ColdServer(Server):
    """A server whose first run of a race is slower by a factor: cold, or disturbed by a neighbour."""

    def __init__(self, tok_s: float, *, slower: float) -> None:
        super().__init__(tok_s)
        self.warm_tok_s, self.slower, self.runs = tok_s, slower, 0

    def result(self, seed: int, number: int) -> BenchResult:
        self.runs += 1
        self.tok_s = self.warm_tok_s / self.slower if self.runs == 1 else self.warm_tok_s
        return super().result(seed, number)


class Raced:
    """A tune on servers that `servers` describes by their changes. `ends_after` is the number of
    starts after which the time limit is reached."""

    def __init__(
        self,
        servers: Mapping[Entry, Server],
        *,
        goal: str = "tok_s",
        limits: str = "",
        seconds_left: Sequence[float] = (),
        klds: Mapping[Entry, tuple[float, float]] | None = None,
        starts: int = 30,
        runs: int = 2,
    ) -> None:
        self.klds, self.compared = klds or {}, list[tuple[Entry, int]]()
        self.session = Session(FakeHost())
        self.servers, self.started, self.runs = servers, list[Entry](), 0
        self.runs_each = runs
        self.named: list[str | None] = []  # by the file of the tune, when a process was started
        self.saved: list[tuple[Entry, Sequence[str]]] = []
        entries: list[Entry] = [(), *(entry for entry in servers if len(entry) == 1)]
        plan = LaunchPlan(engine="vllm", model="org/model").with_flag("max-num-seqs", 2)
        self.base = PlanEditor(plan, "base")
        candidates = tuple(TuneCandidate(entry, "why") for entry in entries[1:])
        kept: TuneLimits = parse_tune_limits(limits)
        self.spec = TuneSpec(goal, starts, candidates, limits=kept)
        points = tuple(SweepPoint(format_point_label(1, entry), None) for entry in entries)
        first = Sweep(0, 1.0, "here", TUNE, "tune", "", points)
        first = replace(first, spec=SweepSpec((), runs=runs, pairs=5, tune=self.spec))
        store = self.session.sweeps.sweep_store
        self.progress = SweepProgress(
            self.session.core, self.session.results, store, store.add(first), asyncio.Event()
        )
        parts = self.session.sweeps._parts
        parts.servers.check_start_on_host = self._nothing  # type: ignore[method-assign,assignment]
        parts.servers.require_startable_plan = lambda *_: None  # type: ignore[method-assign,assignment]
        parts.servers.launch_unchecked_plan = self._launch  # type: ignore[method-assign,assignment]
        parts.servers.wait_ready = self._ready  # type: ignore[method-assign,assignment]
        parts.servers.stop_run_quietly = self._nothing  # type: ignore[method-assign,assignment]
        parts.bench.benchmark_run = self._bench  # type: ignore[method-assign,assignment]
        self.stored = parts.experiments.get
        parts.experiments.get = self._get  # type: ignore[method-assign]
        parts.results.list_quality_results = self._quality  # type: ignore[method-assign,assignment]
        self.limit_w = 600.0  # in force
        parts.telemetry.get_recent_reading = self._reading  # type: ignore[method-assign,assignment]
        parts.gpu.guard.start_heartbeats = lambda: None  # type: ignore[method-assign]
        parts.gpu.alterations.read_altered_settings = self._nothing  # type: ignore[method-assign,assignment]
        parts.gpu.apply_settings = self._apply  # type: ignore[method-assign,assignment]
        parts.gpu.revert_settings = self._revert  # type: ignore[method-assign,assignment]
        parts.experiments.run_experiment = self._compare  # type: ignore[method-assign,assignment]
        if seconds_left:
            left = iter(seconds_left)
            limit = self.progress.limit
            limit.has_time_for = lambda needs_s: next(left, 0.0) > 0  # type: ignore[method-assign]

    async def _nothing(self, *_: Any) -> None:
        return None

    async def _launch(
        self, editor: PlanEditor, note_run_id: Callable[[str], Awaitable[None]]
    ) -> Any:
        await note_run_id(f"run-{len(self.started) + 1}")
        self.named.append(self.session.sweeps.sweep_store.get(self.progress.sweep.id).starting)
        values = {flag.name: flag.value for flag in editor.effective_plan.flags}
        words = {f"{name}={_text(value)}" for name, value in values.items()}
        found = [entry for entry in self.servers if set(entry) <= words]
        self.started.append(max(found, key=len, default=()))
        return type("Status", (), {"run_id": f"run-{len(self.started)}"})

    async def _reading(self) -> Any:
        return SimpleNamespace(infos=(GpuInfo(index=0, uuid="GPU-0", name="RTX"),))

    async def _apply(self, settings: GpuSettings, gpu: int) -> SettingsReport:
        self.limit_w = settings["power_limit_w"]
        return SettingsReport((), ())

    async def _revert(self, gpu: int, *, settings: Collection[str]) -> SettingsReport:
        assert settings == {"power_limit_w"}
        self.limit_w = 600.0
        return SettingsReport((), ())

    async def _ready(self, run_id: str) -> Any:
        return type("Status", (), {"state": ServerState.READY})

    async def _bench(self, run_id: str, *, seed: int, **_: Any) -> int:
        capped: Entry = () if self.limit_w == 600 else (f"gpu.power-limit={self.limit_w:g}",)
        return self.measured((*self.started[-1], *capped), seed)

    def measured(self, entry: Entry, seed: int) -> int:
        self.runs += 1
        one = self.servers[entry].result(seed, self.runs)
        return self.session.results.db.add(one.spec, one.conditions, one.summary)

    async def _compare(
        self, a: Arm, b: Arm, *, on_experiment_stored: Any, seed: int, **options: Any
    ) -> Experiment:
        options.pop("quality_texts", None)
        spec = ExperimentSpec(a, b, {}, seed=seed, **options)
        self.progress.change_sweep(experiment_id=None)  # the one before had other pairs
        experiment = await self.session.experiments.run_sweep_experiment(
            spec,
            Bed(self, (*b.sets, *(f"gpu.{word}" for word in b.gpu.command_line_words))),
            self.progress,
        )
        self.compared.append((b.sets, spec.pairs))
        return await self._with_answers(experiment)

    async def resume(self, number: int, **_: Any) -> Experiment:
        spec = (await self.stored(number)).spec
        return await self._compare(
            spec.a,
            spec.b,
            on_experiment_stored=None,
            seed=spec.seed,
            pairs=spec.pairs,
            metric=spec.metric,
        )

    async def _get(self, number: int) -> Experiment:
        return await self._with_answers(await self.stored(number))

    async def _with_answers(self, experiment: Experiment) -> Experiment:
        """Return the experiment with the comparison of its answers, if they were compared."""
        compared, sets = experiment.comparison, experiment.spec.b.sets
        if compared is None or sets not in self.klds:
            return experiment
        number = 1 + list(self.klds).index(sets)
        compared = replace(compared, answer_changes=("a flag",), quality_id=number)
        return replace(experiment, comparison=compared)

    async def _quality(self) -> Sequence[QualityResult]:
        return [
            QualityResult("A", "B", SAME, "", (QualityMeasure(KL, Interval(v, v, high)),), id=n)
            for n, (v, high) in enumerate(self.klds.values(), start=1)
        ]

    def tune(self) -> Tune:
        combine = partial(combination_or_problem_text, self.base)
        entries = [one.sets for one in self.spec.candidates]
        found = [combine(entry) for entry in ((), *entries)]
        count = len(entries)
        return Tune(
            self.session.sweeps._parts,
            self.progress,
            [one for one in found if not isinstance(one, str)],
            {},
            None,
            runs=self.runs_each,
            pairs=5,
            quality=False,
            spec=self.spec,
            size=RaceSize(count, min(2, count), 5),
            combine=combine,
            save_preset=self._save,
        )

    async def _save(self, found: Any, number: str, evidence: Sequence[str]) -> tuple[str, str]:
        self.saved.append((found.sets, evidence))
        return f"tuned-{number}", "/presets/tuned.toml"

    def ended(self) -> Sweep:
        ending = asyncio.run(carry_out_series(self.tune()))
        if ending.cause is not None:
            raise ending.cause
        return self.progress.sweep


def _text(value: object) -> str:
    return "true" if value is True else str(value)


class Bed:
    """The servers of the final (TestBed)."""

    started_run_id: str | None = None

    def __init__(self, raced: Raced, best: Entry) -> None:
        self.raced, self.entries = raced, {"A": (), "B": best}

    async def must_compile_first(self, arm: str) -> bool:
        return False

    async def start_or_reuse_server(self, arm: str, note_run_id: object) -> str:
        return arm

    async def await_server_and_apply_settings(self, arm: str, run_id: str, tell: Any) -> None:
        return

    async def stop_server_and_revert_settings(self) -> None:
        return

    async def wait_then_read_temperature_c(
        self, target_c: float | None, within_c: float, tell: Any
    ) -> float | None:
        return None

    async def read_start_s_and_settings(
        self, arm: str, run_id: str
    ) -> tuple[float | None, Mapping[str, str]]:
        return None, {}

    async def run_benchmark(self, arm: str, run: ExperimentRun, seed: int) -> BenchResult:
        number = self.raced.measured(self.entries[arm], seed)
        return await self.raced.session.results.get(number)

    async def restore_host_and_report(self, experiment: Experiment) -> Sequence[str]:
        return ()


def test_the_best_is_proven_and_the_log_says_why_the_others_left() -> None:
    raced = Raced({(): Server(), (EIGHT,): Server(130), (FOUR,): Server(115), (ASYNC,): Server(70)})
    found = raced.ended()
    assert re.match(
        r"\+(29|30)\.\d % \(at least \+(29|30)\.\d %\) output tok/s with", found.knee_text
    )
    assert raced.saved[0][0] == (EIGHT,) and found.confirmed is True
    log = "\n".join(found.notes)
    assert f"1: {EIGHT}: place 1 with" in log and f"{EIGHT}: leads the race" in log
    assert f"1: {ASYNC}: place 3 with -" in log
    assert f"1: {FOUR}: place 2 with +1" in log and "too far behind for chance" in log
    assert [one.entry for one in rank_configurations(found)][:2] == [(), (EIGHT,)]
    # before its process, the file names the server: a killed tune would take it for one of the user
    assert raced.named == [f"run-{n}" for n in range(1, len(raced.started) + 1)]
    assert (found.server, found.starting) == (None, None)


def test_one_slow_run_takes_no_candidate_out_of_the_race() -> None:
    fast = ColdServer(130, slower=4.0)
    raced = Raced({(): Server(), (EIGHT,): fast, (FOUR,): Server(115), (ASYNC,): Server(110)})
    sweep = raced.ended()
    assert raced.saved[0][0] == (EIGHT,), sweep.notes
    assert any("so one more decides" in note for note in sweep.notes)
    point = next(one for one in sweep.points if one.label == format_point_label(1, (EIGHT,)))
    assert point.tok_s == pytest.approx(130, rel=0.02) and len(point.result_ids) == 2


def test_a_slow_first_run_of_the_start_preset_makes_no_winner() -> None:
    start = ColdServer(100, slower=4.0)
    raced = Raced({(): start, (EIGHT,): Server(100), (FOUR,): Server(99)})
    sweep = raced.ended()
    assert not raced.saved and sweep.points[0].tok_s == pytest.approx(100, rel=0.02)


def test_a_server_that_ends_before_the_deciding_run_is_out_with_the_reason() -> None:
    raced = Raced({(): Server(), (EIGHT,): ColdServer(130, slower=4.0), (FOUR,): Server(115)})
    bench = raced.session.sweeps._parts.bench

    async def measure(run_id: str, *, seed: int, **rest: Any) -> int:
        if raced.started[-1] == (EIGHT,) and raced.servers[(EIGHT,)].runs == 2:  # type: ignore[attr-defined]
            raise BenchError("the server has ended")
        return await raced._bench(run_id, seed=seed, **rest)

    bench.benchmark_run = measure  # type: ignore[method-assign,assignment]
    sweep = raced.ended()
    assert any("out, the server has ended" in note for note in sweep.notes), sweep.notes
    assert raced.saved[0][0] == (FOUR,)


def test_a_final_without_a_verdict_fails_the_tune_and_is_carried_out_when_it_resumes() -> None:
    """It ended as "nothing better found", which no run had shown, and could not be resumed."""
    raced = Raced({(): Server(), (EIGHT,): Server(130, refused=("the cache answered",))})
    with pytest.raises(BenchError, match=f"the final of {EIGHT} failed.*the cache answered"):
        raced.ended()
    raced.servers = {(): Server(), (EIGHT,): Server(130)}
    raced.session.sweeps._parts.experiments.resume = raced.resume  # type: ignore[method-assign,assignment]
    assert raced.ended().confirmed is True and len(raced.started) == 4


def test_a_loser_is_not_said_to_go_on() -> None:
    raced = Raced({(): Server(), (EIGHT,): Server(101), (ASYNC,): Server(98)})
    log = "\n".join(raced.ended().notes)
    assert f"1: {ASYNC}: place 2 with -" in log and "behind, but by no more than chance" in log
    assert log.count("; goes on") == 1


def test_candidates_that_are_far_behind_are_not_started_again() -> None:
    raced = Raced({(): Server(), (EIGHT,): Server(70), (ASYNC,): Server(60)})
    found = raced.ended()
    assert len(raced.started) == 3 and "no candidate was better" in found.knee_text


def test_a_start_preset_that_breaks_a_limit_is_said_and_the_best_that_holds_is_found() -> None:
    """The one that holds is slower: the start preset is fast because it breaks the limit."""
    raced = Raced(
        {
            (): Server(150, ttft_ms=90),
            (EIGHT,): Server(100, ttft_ms=50),
            (FOUR,): Server(80, ttft_ms=40),
            (ASYNC,): Server(160, ttft_ms=95),
        },
        limits="ttft@p95<=60",
    )
    found = raced.ended()
    assert "the start preset itself breaks a limit (ttft<=60@p95: 0.0 %" in "\n".join(found.notes)
    assert found.knee_text.startswith(f"{EIGHT} keeps the limits with -33."), found.knee_text
    assert "the start preset breaks a limit" in found.knee_text and raced.saved[0][0] == (EIGHT,)
    assert found.confirmed is True


def test_goodput_takes_its_limits_from_the_tune() -> None:
    """It said that there are no limits, beside those of --slo."""
    load = BenchSpec("http://127.0.0.1:1", "m", slo="e2e<=500@p95")
    with pytest.raises(InputError, match="--subject-to has none"):
        _check_goal_and_limits("goodput", parse_tune_limits(""), load)


def test_goodput_is_a_goal_for_which_a_broken_limit_excludes_nothing() -> None:
    """The start preset is faster, but fewer of its requests keep the limit."""
    raced = Raced(
        {
            (): Server(150, ttft_ms=90, goodput=2.0),
            (EIGHT,): Server(100, ttft_ms=70, goodput=3.0),
            (FOUR,): Server(160, ttft_ms=95, goodput=0.0),
        },
        goal="goodput",
        limits="ttft@p95<=60",
    )
    found = raced.ended()
    assert re.match(r"\+\d\d\.\d % \(at least .* goodput with max-num-seqs=8", found.knee_text)
    assert raced.saved[0][0] == (EIGHT,)
    assert "out, goodput is 0: no request kept the limits" in "\n".join(found.notes)


def test_users_are_a_goal_and_each_search_begins_where_the_start_preset_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begins: list[int | None] = []

    async def search(bench: Any, results: Any, shape: Mapping[str, Any]) -> int:
        begins.append(shape.get("concurrency"))
        return int(await bench(**shape))

    monkeypatch.setattr("workbench.session.series.tune.measure_user_capacity", search)
    slow = {"ttft_ms": 90.0}  # the limit says what counts, and excludes nothing
    raced = Raced(
        {(): Server(users=20.0, **slow), (EIGHT,): Server(users=26.0, **slow)},
        goal="users",
        limits="ttft@p95<=60",
    )
    found = raced.ended()
    assert re.match(r"\+\d\d\.\d % \(at least .* users with max-num-seqs=8", found.knee_text)
    assert begins[0] is None and set(begins[2:]) == {20}


def test_no_search_is_repeated_before_it_is_known_how_much_searches_differ(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def search(bench: Any, results: Any, shape: Mapping[str, Any]) -> int:
        return int(await bench(**shape))

    monkeypatch.setattr("workbench.session.series.tune.measure_user_capacity", search)
    slow = {"ttft_ms": 90.0, "noise_pct": 10.0}
    found = Raced(
        {(): Server(users=20.0, **slow), (EIGHT,): Server(users=26.0, **slow)},
        goal="users",
        limits="ttft@p95<=60",
    ).ended()
    assert not any("one more decides" in note for note in found.notes if note.startswith("1: "))


def test_a_limit_that_all_break_finds_nothing_and_names_no_gain() -> None:
    slow = {(): Server(100, ttft_ms=90), (EIGHT,): Server(150, ttft_ms=90)}
    found = Raced(slow, limits="ttft@p95<=60").ended()
    assert found.knee_text.startswith("nothing better found: no candidate could be measured within")
    assert "would have been found" not in found.knee_text


@pytest.mark.parametrize(
    ("limits", "fast", "said"),
    [
        ("power<=400", Server(200, power_w=450), "breaks a limit: power 450 W, above 400 W"),
        (
            "temp<=83",
            Server(200, temperature_c=90),
            "breaks a limit: temperature 90 °C, above 83 °C",
        ),
        (
            "ttft@p95<=60",
            Server(200, ttft_ms=90),
            "breaks a limit: ttft<=60@p95: 0.0 % of the requests kept it",
        ),
        (
            "power<=400",
            Server(200, power_w=None),
            "was not shown to keep a limit: the power was not measured",
        ),
    ],
)
def test_what_breaks_a_limit_is_out_whatever_its_speed(
    limits: str, fast: Server, said: str
) -> None:
    raced = Raced({(): Server(), (EIGHT,): fast, (FOUR,): Server(110)}, limits=limits)
    found = raced.ended()
    assert f"1: {EIGHT}: out, {said}" in found.notes
    assert raced.saved[0][0] == (FOUR,) and f"with {FOUR}" in found.knee_text


def test_a_tune_of_tokens_per_joule_prefers_the_thrifty_one() -> None:
    servers = {(): Server(), (EIGHT,): Server(120, power_w=500), (FOUR,): Server(95, power_w=200)}
    raced = Raced(servers, goal="tok_j")
    found = raced.ended()
    assert raced.saved[0][0] == (FOUR,) and "tok/J with" in found.knee_text
    assert re.match(r"\+4[23]\.", found.knee_text)


def test_a_tune_of_the_ttft_finds_the_shorter_one_and_says_it_as_less() -> None:
    servers = {(): Server(), (EIGHT,): Server(90, ttft_ms=25), (FOUR,): Server(120, ttft_ms=60)}
    raced = Raced(servers, goal="ttft")
    found = raced.ended()
    assert raced.saved[0][0] == (EIGHT,)
    assert re.match(r"-(49|50)\.", found.knee_text) and "(at least -4" in found.knee_text


def test_the_noise_of_a_latency_is_that_of_its_percentile() -> None:
    quiet = Raced({(): Server(), (EIGHT,): Server(ttft_ms=49.9)}, goal="ttft").ended()
    assert "and runs by 0." in quiet.knee_text


def test_a_start_preset_without_the_goals_value_ends_the_tune_with_the_reason() -> None:
    servers = {(): Server(power_w=None), (EIGHT,): Server()}
    raced = Raced(servers, goal="tok_j")
    with pytest.raises(BenchError, match=r"tok/J was not measured \(the run was too short\)"):
        raced.ended()
    assert len(raced.started) == 1
    again = planned_again_for_resume(replace(raced.progress.sweep, state=SeriesState.FAILED))
    assert again.points[0].state == PointState.PLANNED, "without it, nothing can be compared"


def test_what_would_have_been_found_names_the_noise_that_was_measured() -> None:
    quiet = Raced({(): Server(), (EIGHT,): Server(101, final_tok_s=99.7)}).ended()
    said = r"was not shown to be better in the final; an improvement of [0-9.]+ % or more"
    assert re.search(said, quiet.knee_text)
    assert "% (measured in this tune) and runs by 0." in quiet.knee_text
    noisy = Raced({(): Server(noise_pct=5), (EIGHT,): Server(90, noise_pct=5)}).ended()
    assert "servers differ by 1.5 % (assumed) and runs by" in noisy.knee_text
    assert noisy.knee_text.endswith("(measured in this tune)")


def test_what_the_time_limit_cuts_off_keeps_what_one_start_has_shown() -> None:
    """A gain of 30 % was lost when the time ended in the second block, before its turn."""
    servers = {(): Server(), (EIGHT,): Server(130), (ASYNC,): Server(104)}
    # always: the start, one candidate; asked: one more, the second block, its first candidate
    raced = Raced(servers, seconds_left=(1, 1, 0, 1, 1))
    found = raced.ended()
    assert [p.state for p in found.points] == [*["done"] * 4, *["skipped"] * 2]
    assert re.match(r"\+(29|30)\.", found.knee_text) and raced.saved[0][0] == (EIGHT,)
    assert any(note.startswith("not tried, the time that is left") for note in found.notes)


def test_the_race_says_why_each_left_also_without_a_second_block() -> None:
    """On a real llama.cpp, a candidate with +41 % stood beside the final without a word."""
    servers = {(): Server(), (EIGHT,): Server(130), (ASYNC,): Server(104)}
    found = Raced(servers, seconds_left=(1, 0, 1)).ended()  # no time for the second block
    assert {point.label[:1] for point in found.points} == {"1"}
    states = {row[0]: row[-1] for row in race_table(found).rows}
    assert states[ASYNC] == f"out, {EIGHT} is ahead"


FP8 = "kv-cache-dtype=fp8"


def test_a_leader_whose_answers_differ_is_out_and_the_next_one_leads() -> None:
    both = (FP8, EIGHT)
    servers = {(): Server(), (FP8,): Server(140), (EIGHT,): Server(133), both: Server(135)}
    raced = Raced(servers, limits="kld<=0.001", klds={(FP8,): (0.004, 0.005)})
    found = raced.ended()
    assert raced.compared == [((FP8,), 1), ((EIGHT,), 5)], "one that changes no answer is not asked"
    assert raced.saved[0][0] == (EIGHT,)
    log = "\n".join(found.notes)
    assert f"{FP8}: out, breaks a limit: KLD >= 0.004 (interval up to 0.005), limit 0.001" in log
    out = [one.entry for one in rank_configurations(found) if one.newest_point.error]
    assert out == [both, (FP8,)] or out == [(FP8,), both], "what joins it is out with it"


def test_answers_that_keep_the_limit_are_compared_once_and_judged_again_in_the_final() -> None:
    servers = {(): Server(), (FP8,): Server(140)}
    raced = Raced(servers, limits="kld<=0.001", klds={(FP8,): (0.0002, 0.0009)})
    found = raced.ended()
    assert raced.compared == [((FP8,), 1), ((FP8,), 5)] and raced.saved[0][0] == (FP8,)
    assert f"{FP8}: its answers keep the limit on KLD" in found.notes


def test_without_a_start_to_spare_only_the_final_compares_answers() -> None:
    servers = {(): Server(), (FP8,): Server(140)}
    raced = Raced(servers, limits="kld<=0.001", klds={(FP8,): (0.0, 0.002)}, starts=14)
    found = raced.ended()
    assert raced.compared == [((FP8,), 5)] and not raced.saved
    said = (
        f"nothing better found: in the final, {FP8} breaks a limit: KLD >= 0 (interval up to 0.002)"
    )
    assert found.knee_text.startswith(said)


def test_answers_that_were_not_compared_keep_no_limit() -> None:
    servers = {(): Server(), (FP8,): Server(140)}
    raced = Raced(servers, limits="kld<=0.001", klds={(FP8,): (0.0, 0.0)})

    async def nothing() -> Sequence[QualityResult]:
        return ()

    raced.session.sweeps._parts.results.list_quality_results = nothing  # type: ignore[method-assign,assignment]
    found = raced.ended()
    assert f"{FP8}: out, was not shown to keep a limit: the KLD was not measured" in found.notes
    assert "no candidate could be measured within the limits" in found.knee_text


CAPPED = "gpu.power-limit=400"


def test_a_power_limit_is_set_for_its_runs_only_and_wins_by_tokens_per_joule() -> None:
    servers = {(): Server(), (CAPPED,): Server(98, power_w=200), (EIGHT,): Server(103)}
    servers[(EIGHT, CAPPED)] = servers[(CAPPED, EIGHT)] = Server(98, power_w=210)
    raced = Raced(servers, goal="tok_j")
    found = raced.ended()
    assert raced.saved[0][0] == (CAPPED,) and re.match(r"\+4[67]\.", found.knee_text)
    assert raced.limit_w == 600.0


def test_a_power_limit_that_cannot_be_set_is_out_and_nothing_stays_set() -> None:
    raced = Raced({(): Server(), (CAPPED,): Server(98, power_w=200)}, goal="tok_j")

    async def refused(settings: GpuSettings, gpu: int) -> SettingsReport:
        await raced._apply(settings, gpu)
        raise SettingsError("the driver did not like it")

    raced.session.sweeps._parts.gpu.apply_settings = refused  # type: ignore[method-assign,assignment]
    found = raced.ended()
    assert f"1: {CAPPED}: out, not started: the driver did not like it" in found.notes
    assert raced.limit_w == 600.0 and "no candidate could be measured" in found.knee_text


def test_a_setting_that_is_altered_already_ends_the_tune_before_a_server_starts() -> None:
    raced = Raced({(): Server(), (CAPPED,): Server()}, goal="tok_j")
    on = Alteration(0, "GPU-0", "power_limit_w", 600.0, 500.0, 0.0)
    raced.session.core.update(alterations=(on,))
    with pytest.raises(SettingsError, match="still on"):
        raced.ended()
    assert not raced.started


def test_what_a_killed_final_left_set_does_not_end_the_tune() -> None:
    """The final is an experiment, which reverts what it left on when it goes on."""
    raced = Raced({(): Server(), (CAPPED,): Server(98, power_w=200)}, goal="tok_j")
    on = Alteration(0, "GPU-0", "power_limit_w", 600.0, 400.0, 0.0, owner_state="dead")
    raced.session.core.update(alterations=(on,))
    raced.progress.change_sweep(experiment_id=1)
    asyncio.run(raced.tune()._check_no_altered_settings())


def test_what_a_killed_tune_left_set_is_reverted_and_what_a_person_set_is_not() -> None:
    raced = Raced({(): Server(), (CAPPED,): Server(98, power_w=200)}, goal="tok_j")
    raced.limit_w = 400.0
    asyncio.run(raced.tune()._check_no_altered_settings())
    assert raced.limit_w == 400.0, "the tune did not set it"
    raced.progress.change_sweep(start={"settings": ["power_limit_w"]})
    asyncio.run(raced.tune()._check_no_altered_settings())
    assert raced.limit_w == 600.0 and raced.progress.sweep.start is None


def test_the_preset_of_a_winner_has_its_gpu_settings_and_its_evidence() -> None:
    session = Session(FakeHost())
    session.plans.edit_plan(LaunchPlan(engine="vllm", model="org/model"), "base")
    wanted = GpuSettings(power_limit_w=400.0, gpu_clocks=ClockRange(210, 2310))
    evidence = ("Tune 1 on box: +47 % (at least +45 %) tok/J.",)
    saving = session.plans.write_tuned_preset_file(
        session.plans.editor, "x-tune-1", "X", evidence, wanted
    )
    asyncio.run(saving)
    preset = session.presets.get("x-tune-1")
    (entry,) = preset.gpu_settings
    assert (entry.gpu, entry.settings, entry.reason) == ("all", wanted, evidence[0])
    assert tuple(preset.caveats) == evidence


def test_a_proposal_about_another_flag_excludes_no_candidate() -> None:
    """On two Sparks, 8-bit weights were excluded because the model then fits one GPU."""
    fits = Finding(Level.WARN, "dp-before-tp", "it fits one", flag="tensor-parallel-size")
    proposal = replace(fits, expected_gain="+30 %")
    assert _is_proposal_for_other_change(proposal, ("quantization=fp8",))
    assert not _is_proposal_for_other_change(proposal, ("tensor-parallel-size=2",)), (
        "it is about this change"
    )
    assert not _is_proposal_for_other_change(fits, ("quantization=fp8",))


def test_a_start_that_was_interrupted_in_the_final_stands_beside_those_that_count() -> None:
    raced = Raced({(): Server(), (EIGHT,): Server(130)})
    found = raced.ended()
    assert found.experiment_id is not None
    final = asyncio.run(raced.stored(found.experiment_id))
    assert raced.tune()._tune_cost_text(final).startswith("14 starts,")
    cut_off = replace(final.runs[0], state=RunState.FAILED, error="interrupted")
    said = raced.tune()._tune_cost_text(replace(final, runs=(*final.runs, cut_off)))
    assert said.startswith("14 starts (1 more start in pairs that were made again),")


@pytest.mark.parametrize(("candidate", "seconds"), [("kv-cache-dtype=fp8", 90.0), (EIGHT, 0.0)])
def test_time_is_kept_to_compare_the_answers_in_the_final(candidate: str, seconds: float) -> None:
    raced = Raced({(): Server(), (candidate,): Server(130)})
    earlier = QualityResult(
        "A", "B", SAME, "", (), conditions_a={"model": "org/model"}, took_s=90.0
    )
    other = replace(earlier, conditions_a={"model": "org/other"}, took_s=7.0)

    async def compared() -> Sequence[QualityResult]:
        return [other, earlier]

    raced.session.sweeps._parts.results.list_quality_results = compared  # type: ignore[method-assign,assignment]
    tune = raced.tune()
    tune.quality = True
    asyncio.run(tune._update_answer_comparison_duration())
    assert tune._final_duration_s == seconds


def test_a_host_that_is_lost_while_a_setting_is_made_is_not_blamed_on_the_candidate() -> None:
    """A cut link gave "no telemetry within 20 s", and the candidate was out for good."""
    capped = "gpu.power-limit=400"
    raced = Raced({(): Server(), (capped,): Server(power_w=200.0)}, goal="tok_j")

    async def lost(settings: GpuSettings, gpu: int) -> SettingsReport:
        raise HostError("no telemetry within 20 s: no connection")

    raced.session.sweeps._parts.gpu.apply_settings = lost  # type: ignore[method-assign,assignment]
    with pytest.raises(HostError, match="no connection"):
        raced.ended()
    sweep = raced.progress.sweep
    assert all(point.state != PointState.FAILED for point in sweep.points)
    assert planned_again_for_resume(sweep).points[1].state == PointState.PLANNED


def test_one_run_a_server_measures_how_servers_differ_with_their_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A final whose pairs were 107 % wide said that 4 % would have been found, with assumed noise."""

    async def search(bench: Any, results: Any, shape: Mapping[str, Any]) -> int:
        return int(await bench(**shape))

    monkeypatch.setattr("workbench.session.series.tune.measure_user_capacity", search)
    equal = Server(users=20.0, noise_pct=20.0, ttft_ms=40.0)
    servers = {(): equal, (EIGHT,): equal}
    raced = Raced(servers, goal="users", limits="ttft@p95<=60", runs=1)
    said = raced.ended().knee_text
    assert "nothing better found" in said and "assumed" not in said, said
    assert "(measured in this tune), with the noise of their runs" in said
    assert "improvement of 50 % of one candidate would not have been found in 70 %" in said


def test_a_resumed_tune_keeps_what_is_left_of_its_time_limit() -> None:
    """A tune of 30 minutes that was killed twice went on without a limit, and into the next hour."""
    raced = Raced({(): Server(), (EIGHT,): Server(130)})
    asked = raced.progress.sweep
    assert asked.spec is not None
    half = replace(asked, spec=replace(asked.spec, max_minutes=30.0), worked_s=600.0)
    assert remaining_tune_minutes(half) == pytest.approx(20.0)
    assert remaining_tune_minutes(replace(half, experiment_id=7)) is None, (
        "a final goes on to its end"
    )
    assert remaining_tune_minutes(asked) is None
    with pytest.raises(InputError, match="has worked for its 30 minutes"):
        remaining_tune_minutes(replace(half, worked_s=1800.0))


def test_a_tune_stores_how_long_it_has_worked_and_plans_with_it_when_it_is_resumed() -> None:
    """The first start after a kill was made although the rest was needed for the final."""
    raced = Raced({(): Server(), (EIGHT,): Server(130)})
    raced.ended()
    store = raced.session.sweeps.sweep_store
    first = store.get(raced.progress.sweep.id)
    assert first.worked_s > 0
    longer = replace(first, worked_s=4000.0)
    parts = raced.session.core, raced.session.results, store
    raced.progress = SweepProgress(*parts, longer, asyncio.Event())
    done = sum(point.state == PointState.DONE for point in longer.points)
    assert raced.tune()._start_duration_s == pytest.approx(4000.0 / done)

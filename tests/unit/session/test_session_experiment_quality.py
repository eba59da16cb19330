"""The answers of A and B, compared beside the runs of an experiment: which step is measured on which
server, what is kept, and what a server that cannot be measured leaves."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from workbench.gpu.measurement_lock import IfHeld
from workbench.model.errors import BenchError, HostError, InputError
from workbench.model.experiment import WARM_UP, Arm, ExperimentRun, ExperimentSpec, RunState
from workbench.model.quality import QualityResult, ScoredPosition
from workbench.quality.instrument import Instrument, Progress
from workbench.quality.lanes.base import Prompt, ScoreError, ScoringInterface
from workbench.quality.texts import Text, TextSet
from workbench.session.quality import experiment_answers
from workbench.session.quality.experiment_answers import ExperimentQuality
from workbench.session.quality.measuring import QualityOptions
from workbench.store.quality_db import QualityDb

TEXTS = TextSet(
    "own", "1", tuple(Text(f"t{i}", "prose", f"text {i} of some words") for i in range(26))
)
SPEC = ExperimentSpec(Arm(), Arm(sets=("kv-cache-dtype=fp8", "api-key=sk-secret")), {}, pairs=2)
TOKENS = 40


class Flat(ScoringInterface):
    """A server that prefers each token by `gap` nats to all others, which are equal."""

    prefill: ClassVar[bool] = True

    def __init__(self, gap: float, failing: bool) -> None:
        self._gap, self._failing, self.context_tokens = gap, failing, None
        self.pieces = {token: f" w{token}" for token in range(TOKENS)}

    async def tokenize(self, text: str) -> Prompt:
        return Prompt(text, tuple(range(TOKENS)))

    async def score_whole_prompt(self, prompt: Prompt) -> tuple[ScoredPosition, ...]:
        return tuple(self._position(one) for one in prompt.ids[1:])

    async def score_next(self, prompt: Prompt, place: int, slot: int = 0) -> ScoredPosition:
        return self._position(prompt.ids[place])

    async def generate_answer(
        self, prompt: Prompt, tokens: int, slot: int = 0
    ) -> tuple[ScoredPosition, ...]:
        if self._failing:
            raise ScoreError("the server gave no answer")
        return tuple(self._position(one) for one in range(8))

    def _position(self, token: int) -> ScoredPosition:
        rest = -math.log(19 + math.exp(self._gap))
        others = tuple((100 + one, rest) for one in range(19))
        return ScoredPosition(token, self._gap + rest, ((token, self._gap + rest), *others))


class Server:
    """A server of an experiment, by its run id."""

    def __init__(self, run_id: str, gap: float, *, failing: bool = False) -> None:
        self.title, self.simulated = f"run {run_id}", True
        self.conditions = {"engine": "vllm", "gap": str(gap)}
        self._interface = Flat(gap, failing)
        self.busy = ""

    def make_instrument(self, on_progress: Progress) -> Instrument:
        return Instrument(self._interface, on_progress)

    async def start_counting_requests(self) -> None: ...

    async def describe_other_clients_requests(self) -> str:
        return ""

    async def check_no_other_clients(self) -> None:
        if self.busy:
            raise InputError(self.busy)

    async def describe_other_clients_now(self) -> str:
        return self.busy


class Bed:
    """The servers of an experiment, and which of them were asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, standing: str | None = None) -> None:
        self.servers: dict[str, Server] = {}
        self.asked: list[str] = []
        self.lock = SimpleNamespace(if_held=IfHeld.REFUSE)
        session = SimpleNamespace(measurement_lock=self.lock)
        side = SimpleNamespace(
            measured_run_id_or_url=standing, session=session, open_benchmark_load=self._load
        )
        self.sides: Any = {"A": side, "B": side}

        @asynccontextmanager
        async def scored(run_id: str) -> AsyncIterator[Server]:
            if run_id not in self.servers:
                raise BenchError(f"the engine of {run_id} is not known")
            yield self.servers[run_id]

        monkeypatch.setattr(experiment_answers, "open_scored_server", scored)

    @asynccontextmanager
    async def _load(self, run_id: str) -> AsyncIterator[str]:
        self.asked.append(run_id)
        yield run_id

    def comparison(
        self, db: QualityDb, texts: TextSet = TEXTS, pairs: int = 2
    ) -> ExperimentQuality:
        options = QualityOptions(
            texts, restart=self.sides["A"].measured_run_id_or_url is None and pairs > 1
        )
        spec = replace(SPEC, pairs=pairs)
        return ExperimentQuality(1, spec, self.sides, options, db, db.parts_so_far(1))


def runs(order: str) -> Sequence[ExperimentRun]:
    """Return runs of these arms, each on a server of its own, the first one discarded."""
    return [
        ExperimentRun(n, (n + 1) // 2 - 1 if n else WARM_UP, arm, RunState.DONE, run_id=f"{arm}{n}")
        for n, arm in enumerate(order)
    ]


@pytest.fixture
def db(tmp_path: Path) -> QualityDb:
    return QualityDb(tmp_path / "results.sqlite3")


@pytest.fixture
def bed(monkeypatch: pytest.MonkeyPatch) -> Bed:
    bed = Bed(monkeypatch)
    for n in range(6):
        bed.servers[f"A{n}"], bed.servers[f"B{n}"] = Server(f"A{n}", 3.0), Server(f"B{n}", 2.5)
    return bed


async def carried(
    comparison: ExperimentQuality, order: Sequence[ExperimentRun]
) -> tuple[list[str], QualityResult | None]:
    """Return what was told, and the comparison that was stored."""
    told: list[str] = []
    found = None
    for run in order:
        found = await comparison.measure_missing_answers(run, told.append) or found
    return told, found


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("order", "asked"),
    [
        ("ABAAB", ["A0", "B1", "A2", "A2"]),
        ("BABBA", ["B0", "A1", "A1", "A4"]),
        ("AABBA", ["A0", "A1", "B2", "A4"]),
    ],
)
async def test_each_step_is_measured_once_on_a_server_that_runs(
    bed: Bed, db: QualityDb, order: str, asked: list[str]
) -> None:
    comparison = bed.comparison(db)
    told, found = await carried(comparison, runs(order))
    assert bed.asked == asked
    assert found is not None and found.verdict == "differs" and found.simulated
    assert found == db.get(found.id) and db.parts_so_far(1) is None
    assert (found.conditions_a["gap"], found.conditions_b["gap"]) == ("3.0", "2.5")
    assert "sk-secret" not in found.b and "kv-cache-dtype=fp8" in found.b
    assert found.a == "the base as it is", "the page had an empty line for A"
    assert found.answer_scores is not None and found.answer_scores.answers == 26
    assert "answers: A: 25 of 26 texts scored" in told
    assert (
        await comparison.finish_comparison(experiment_done=True) is None
        and comparison.estimated_remaining_s() == 0
    )


@pytest.mark.anyio
async def test_what_was_measured_before_an_interruption_is_not_measured_again(
    bed: Bed, db: QualityDb
) -> None:
    first = bed.comparison(db)
    await carried(first, runs("AB")[:1])
    assert (
        await first.finish_comparison(experiment_done=False) is None
        and db.newest_comparisons() == ()
    )
    again = runs("ABAB")[1:]
    _, found = await carried(bed.comparison(db), again)
    assert bed.asked == ["A0", "B1", "A2", "A2"]
    assert found is not None and found.verdict == "differs"
    assert found.worst is not None and found.worst.kl > 0.01


@pytest.mark.anyio
async def test_other_texts_after_an_interruption_are_measured_from_the_beginning(
    bed: Bed, db: QualityDb
) -> None:
    await carried(bed.comparison(db), runs("A"))
    _, found = await carried(bed.comparison(db, replace(TEXTS, version="2")), runs("ABA"))
    assert bed.asked == ["A0", "A0", "B1", "A2", "A2"]
    assert found is not None and found.text_version == "2"


@pytest.mark.anyio
async def test_a_stopped_experiment_keeps_the_verdict_about_both_sides(
    bed: Bed, db: QualityDb
) -> None:
    comparison = bed.comparison(db)
    await carried(comparison, runs("AB"))
    found = await comparison.finish_comparison(experiment_done=False)
    assert found is not None and found.verdict == "differs"
    assert found.answer_scores is None
    said = "A did not score the answers of B: no server of A ran any more after B had written them"
    assert said in found.notes


@pytest.mark.anyio
async def test_a_server_that_cannot_score_answers_any_more_is_not_asked_again(
    bed: Bed, db: QualityDb
) -> None:
    class Gone(Server):
        async def start_counting_requests(self) -> None:
            raise BenchError("it went away")

    comparison = bed.comparison(db)
    await carried(comparison, runs("AAB"))
    bed.servers["A0"] = Gone("A0", 3.0)
    _, found = await carried(comparison, runs("AA"))
    assert bed.asked == ["A0", "A1", "B2", "A0"]
    assert found is not None and found.verdict == "differs"
    assert "A did not score the answers of B: it went away" in found.notes


@pytest.mark.anyio
async def test_a_server_that_cannot_be_measured_is_a_reason_and_no_error(
    bed: Bed, db: QualityDb
) -> None:
    del bed.servers["B1"]
    comparison = bed.comparison(db)
    _, found = await carried(comparison, runs("ABAB"))
    assert found is None and bed.asked == ["A0", "B1"], "nothing more is tried"
    ended = await comparison.finish_comparison(experiment_done=True)
    assert ended is not None and ended.verdict == "quality not measured"
    assert ended.summary == "quality not measured: B: the engine of B1 is not known"


@pytest.mark.anyio
async def test_a_server_that_fails_in_the_middle_is_tried_again_by_a_resumed_experiment(
    bed: Bed, db: QualityDb
) -> None:
    bed.servers["A0"] = Server("A0", 3.0, failing=True)
    comparison = bed.comparison(db)
    await carried(comparison, runs("A"))
    assert await comparison.finish_comparison(experiment_done=False) is None
    _, found = await carried(bed.comparison(db), runs("ABABA")[1:])
    assert bed.asked == ["A0", "B1", "A2", "A2", "A4"]
    assert found is not None and found.verdict == "differs"


@pytest.mark.anyio
async def test_a_lost_link_goes_on_to_the_experiment(bed: Bed, db: QualityDb) -> None:
    class Lost(Server):
        async def start_counting_requests(self) -> None:
            raise HostError("the link is gone")

    bed.servers["A0"] = Lost("A0", 3.0)
    with pytest.raises(HostError):
        await carried(bed.comparison(db), runs("A"))


@pytest.mark.anyio
async def test_servers_that_stand_are_measured_as_they_are_and_alone(
    monkeypatch: pytest.MonkeyPatch, db: QualityDb
) -> None:
    bed = Bed(monkeypatch, standing="http://box")
    bed.servers = {"a": Server("a", 3.0), "b": Server("b", 3.0)}
    order = [
        ExperimentRun(n, 0, arm, RunState.DONE, run_id=arm.lower()) for n, arm in enumerate("ABAB")
    ]
    _, found = await carried(bed.comparison(db), order)
    assert found is not None and found.verdict == "same" and bed.asked == ["a", "b", "a"]

    bed.servers["b"].busy = "http://box serves others (it has 1 request)"
    busy = bed.comparison(db)
    await carried(busy, order)
    ended = await busy.finish_comparison(experiment_done=True)
    assert ended is not None
    assert ended.summary == f"quality not measured: B: {bed.servers['b'].busy}"

    bed.lock.if_held = IfHeld.BESIDE
    _, found = await carried(bed.comparison(db), order)
    assert found is not None and found.verdict == "same"
    assert bed.servers["b"].busy in found.notes, (
        "with --anyway it is measured, and the result says so"
    )

"""bisect, resume and show."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.serving import free_port

from workbench.bench.metric_changes import NO_DIFFERENCE, WORSE
from workbench.engines.preset_trust import list_untrusted_parts
from workbench.model.bench import Comparison, MetricChange
from workbench.model.bisection import (
    Bisection,
    BisectStep,
    last_good_and_first_bad_index,
    next_version_to_test,
)
from workbench.model.errors import WorkbenchError
from workbench.model.experiment import Experiment, ExperimentSpec
from workbench.model.plan import LaunchPlan
from workbench.model.series_state import SeriesState
from workbench.session.series.bisect import Bisector
from workbench.session.series.night_watch import candidate_plan, trust_image_of_candidate
from workbench.sim import engine_server
from workbench.store import paths
from workbench.store.bisections import BisectionStore
from workbench.store.trusted_presets import trusted_digests

Cli = Callable[..., Any]
PRO = ("--simulate", "rtx-pro-6000")


def bisection(count: int, **changes: Any) -> Bisection:
    versions = tuple(f"venv:/opt/{number}" for number in range(count))
    return replace(Bisection(1, 0.0, "local", "vllm-any", versions), **changes)


@given(st.integers(2, 200), st.data())
def test_the_first_bad_version_is_found_in_few_experiments(count: int, data: st.DataObject) -> None:
    first_bad = data.draw(st.integers(1, count - 1))
    found, measured = bisection(count), []
    while (version := next_version_to_test(found)) is not None:
        measured.append(version)
        step = BisectStep(version, 1, 1.0, 0.1, bad=version >= first_bad)
        found = replace(found, steps=(*found.steps, step))
    assert last_good_and_first_bad_index(found) == (first_bad - 1, first_bad)
    assert len(measured) == len(set(measured)) <= 1 + math.ceil(math.log2(max(1, count - 1)))


def test_nothing_is_searched_without_a_loss() -> None:
    equal = bisection(9, steps=(BisectStep(8, 1, 0.0, 1.0, bad=False),))
    assert next_version_to_test(equal) is None


class Measured:
    """Experiments whose B is slower by what `losses` says of its version."""

    def __init__(self, losses: Sequence[float], fail_at: int = 0) -> None:
        self.losses, self.fail_at = losses, fail_at
        self.stored: dict[int, Experiment] = {}
        self.resumed: list[int] = []

    async def run_experiment(
        self, a: Any, b: Any, *, on_experiment_stored: Any, pairs: int, **_: Any
    ) -> Experiment:
        number = len(self.stored) + 1
        await on_experiment_stored(number)
        loss = self.losses[int(b.target.name.rpartition("/")[2])]
        verdict = WORSE if loss > 1.0 else NO_DIFFERENCE
        pct = -loss
        change = MetricChange("output_tok_s", "tok/s", 100.0, 100.0 + pct, pct, 1.0, True, verdict)
        comparison = Comparison(1, 2, (), (change,), (), True, False)
        spec = ExperimentSpec(a, b, {}, pairs=pairs)
        done = Experiment(number, 0.0, "local", spec, state=SeriesState.DONE, comparison=comparison)
        self.stored[number] = done
        if number == self.fail_at:
            self.stored[number] = replace(
                done, state=SeriesState.STOPPED, error="the link was lost"
            )
        return self.stored[number]

    async def get(self, number: int) -> Experiment:
        return self.stored[number]

    async def resume(self, number: int) -> Experiment:
        self.resumed.append(number)
        self.stored[number] = replace(self.stored[number], state=SeriesState.DONE, error=None)
        return self.stored[number]


def bisector(store: BisectionStore, found: Bisection, measured: Measured) -> Bisector:
    presets = SimpleNamespace(make_plan=lambda *_: LaunchPlan("vllm", "org/m"))
    session: Any = SimpleNamespace(experiments=measured, presets=presets)
    return Bisector(found, session, store, lambda _: None)


@pytest.fixture
def store(clean_environment: None) -> BisectionStore:
    return BisectionStore(paths.bisections_dir())


def test_a_bisection_names_the_first_bad_version_and_its_loss(
    cli: Cli, store: BisectionStore
) -> None:
    found = store.add(bisection(6))
    measured = Measured([0.0, 0.3, -0.2, 5.0, 5.2, 4.9])
    ended = asyncio.run(bisector(store, found, measured).carry_out_bisection())
    assert ended.verdict.startswith("venv:/opt/3 is the first bad version, venv:/opt/2 the last")
    assert "-5.0 % ± 1.0" in ended.verdict and "not certain" not in ended.verdict
    shown = cli("bisect", "show", "1")
    assert shown.code == 0 and "first bad version" in shown.out and "good, by you" in shown.out
    ran = cli("bisect", "resume", "1", "--yes")
    assert ran.code == 2 and "is done" in ran.err


def test_a_version_near_half_of_the_loss_is_called_uncertain(store: BisectionStore) -> None:
    found = store.add(bisection(3))
    ended = asyncio.run(bisector(store, found, Measured([0.0, 2.9, 5.0])).carry_out_bisection())
    assert "not certain about venv:/opt/1" in ended.verdict


def test_without_a_loss_there_is_nothing_to_search(store: BisectionStore) -> None:
    found = store.add(bisection(9))
    measured = Measured([0.0] * 9)
    ended = asyncio.run(bisector(store, found, measured).carry_out_bisection())
    assert "nothing to search" in ended.verdict and len(measured.stored) == 1


@pytest.mark.parametrize("fail_at", [1, 2, 3])
def test_a_bisection_that_ended_early_goes_on_with_its_experiments(
    cli: Cli, store: BisectionStore, fail_at: int
) -> None:
    found = store.add(bisection(6))
    measured = Measured([0.0, 0.3, -0.2, 5.0, 5.2, 4.9], fail_at)
    with pytest.raises(WorkbenchError, match="link was lost"):
        asyncio.run(bisector(store, found, measured).carry_out_bisection())
    shown = cli("bisect", "show", "1").out
    assert "link was lost" in shown and "workbench bisect resume 1" in shown
    ended = asyncio.run(bisector(store, store.get(1), measured).carry_out_bisection())
    assert ended.state == SeriesState.DONE and ended.error is None
    assert ended.verdict.startswith("venv:/opt/3 is the first bad version")
    assert measured.resumed == [fail_at] and len(measured.stored) == len(ended.steps)


def test_a_killed_bisection_is_stopped_and_a_damaged_one_is_named(
    cli: Cli, store: BisectionStore
) -> None:
    store.add(bisection(3))
    assert store.get(1).state == SeriesState.STOPPED
    for text in ("", "{", "[]", "[" * 100_000, '{"id": NaN}'):
        (store.directory / "1.json").write_text(text)
        ran = cli("bisect", "show", "1")
        assert ran.code == 1 and "1.json" in ran.err, (text[:20], ran)
    ran = cli("bisect", "show", "7")
    assert ran.code == 2 and "there is no bisection 7" in ran.err


@pytest.mark.parametrize(
    ("versions", "said"),
    [
        (("venv:/a",), "needs 2 to"),
        (("venv:/a", "venv:/a"), "different versions"),
        (("venv:/a", "image:b"), "cannot be mixed"),
        (("venv:/a", "newest"), "is no candidate"),
        (("image:a", "image:b"), "starts no container"),
        (("venv:/a", "venv:/b", "--pairs", "1"), "1 pairs show nothing"),
        (("venv:/a", "venv:/b", "--set", "api-key=x"), "is a secret"),
        (("venv:/a", "venv:/b"), "nobody can be asked"),
    ],
)
def test_what_cannot_be_bisected_is_refused(
    cli: Cli, store: BisectionStore, versions: Sequence[str], said: str
) -> None:
    ran = cli(*PRO, "bisect", "vllm-any", "--var", "model=org/m", *versions)
    assert ran.code == 2 and said in ran.err, ran
    assert not list(store.directory.glob("[0-9]*.json"))


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(600)
def test_three_programs_are_bisected(
    cli: Cli, store: BisectionStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The last two run eagerly, which costs the simulated engine most of its speed."""
    monkeypatch.setenv("WORKBENCH_SIM_SPEEDUP", "4")
    simulated = Path(engine_server.__file__).with_name("bin") / "vllm"
    versions = []
    for name, words in (("a", ""), ("b", "--enforce-eager"), ("c", "--enforce-eager")):
        program = tmp_path / name / "bin" / "vllm"
        program.parent.mkdir(parents=True)
        program.write_text(f'#!/bin/sh\nexec {simulated} "$@" {words}\n')
        program.chmod(0o755)
        versions.append(f"venv:{tmp_path / name}")
    options = ("--var", "model=Qwen/Qwen3-0.6B", "--set", f"port={free_port()}")
    size = ("--requests", "8", "--pairs", "3", "--yes")
    ran = cli(*PRO, "bisect", "vllm-any", *versions, *options, *size)
    assert ran.code == 0 and f"{versions[1]} is the first bad version" in ran.out, ran
    assert "SIMULATED" in ran.out and len(store.get(1).steps) == 2


def test_the_images_that_a_person_names_are_trusted_and_nothing_else(
    clean_environment: None,
) -> None:
    """A bisection over images of one's own ended with "start it with --trust", which it has not."""
    own = LaunchPlan("vllm", "org/m", run_as="podman", image="stub:a", stranger=True)
    own = replace(own, run_options={"mount": ["/secret:/secret:ro"]})
    candidate = candidate_plan(own, "image:stub:b")
    before = {part.code for part in list_untrusted_parts(candidate, trusted_digests())}
    trust_image_of_candidate(candidate)
    after = {part.code for part in list_untrusted_parts(candidate, trusted_digests())}
    assert before - after == {"preset.unusual-image"} and after

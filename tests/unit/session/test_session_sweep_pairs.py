"""A GPU sweep compares the value that it names with the start in an experiment of its own, and claims
no more than that shows."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from support.fake_host import FakeHost
from support.made_results import result, sweep

from workbench.bench.runner import BenchCancelled
from workbench.model.errors import InputError, SettingsError
from workbench.model.setting_records import SettingsReport
from workbench.model.settings import GpuSettings
from workbench.model.sweep import PointState, Sweep, SweepPoint
from workbench.session.gpu.previous_settings import PreviousValues
from workbench.session.series.gpu_sweep import GpuSweep
from workbench.session.series.gpu_sweep_plan import parse_swept_values
from workbench.session.series.sweep_parts import SweepTarget
from workbench.session.series.sweep_progress import SweepProgress
from workbench.session.session import Session

START_W = 600.0
BEST = "400 W"
# watts, tok/s and tok/J: 400 W is the most thrifty of those that lose little speed
MEASURED = ((600.0, 100.0, 1.0), (500.0, 100.0, 1.1), (400.0, 99.0, 1.2), (300.0, 60.0, 1.3))


class Compared:
    """A sweep whose points are measured, with a value of `gain` times the start's tok/J; the start's
    own pairs differ by 1 %. `stops_at`: the run before which the person stops the sweep."""

    def __init__(
        self, gain: float, refused: tuple[str, ...] = (), stops_at: int | None = None
    ) -> None:
        self.session = Session(FakeHost())
        self.gain, self.refused, self.stops_at = gain, refused, stops_at
        self.limit_w = 0.0
        self.made: list[tuple[float, int]] = []  # the power limit and the seed of each run
        self.session.gpu.apply_settings_by_gpu = self._apply  # type: ignore[method-assign]
        self.session.bench.benchmark_target = self._bench  # type: ignore[method-assign]
        store = self.session.sweeps.sweep_store
        points = tuple(
            SweepPoint(f"{watts:g} W", watts, PointState.DONE, (), tok_s, thrift)
            for watts, tok_s, thrift in MEASURED
        )
        made = store.add(replace(sweep(kind="power_limit_w"), points=points))
        self.progress = SweepProgress(
            self.session.core, self.session.results, store, made, asyncio.Event()
        )

    async def _apply(self, wanted: dict[str, GpuSettings], **_: Any) -> SettingsReport:
        self.limit_w = wanted["0"]["power_limit_w"]
        return SettingsReport((), ())

    async def _bench(self, run_id: str | None, url: str | None, **fields: Any) -> int:
        plain, seed = result(1), fields["seed"]
        thrift = (1 + 0.01 * (seed % 2)) * (self.gain if self.limit_w == 400.0 else 1.0)
        self.made.append((self.limit_w, seed))
        if len(self.made) == self.stops_at:
            self.progress.stop.set()
        clean: dict[str, Any] = {"requests_failed": 0, "errors": {}, "refused": self.refused}
        summary = replace(plain.summary, tok_per_joule=thrift, **clean)
        return self.session.results.db.add(
            replace(plain.spec, seed=seed), plain.conditions, summary
        )

    def ended(self) -> Sweep:
        asyncio.run(self._sweep().finish_series())
        return self.progress.sweep

    def _sweep(self) -> GpuSweep:
        return GpuSweep(
            self.session.sweeps._parts,
            self.progress,
            "power_limit_w",
            parse_swept_values("power_limit_w", [f"{watts:g}" for watts, *_ in MEASURED]),
            {0: PreviousValues(GpuSettings(power_limit_w=START_W))},
            SweepTarget("run"),
            {},
            settle_s=0,
            pairs=4,
        )


def test_a_value_that_saves_in_every_pair_is_confirmed() -> None:
    compared = Compared(1.2)
    found = compared.ended()
    assert found.confirmed is True
    said = f"{BEST} against the previous value: B gives more per joule by 20"
    assert found.notes[-1].startswith(said) and "tok/s" in found.notes[-1]
    runs = [(watts, seed) for seed in range(4) for watts in (400.0, START_W)]
    assert sorted(compared.made) == sorted(runs)
    firsts = {compared.made[2 * pair][0] for pair in range(4)}
    assert firsts == {400.0, START_W}, "either comes first in some pair"


def test_a_value_that_does_not_is_not() -> None:
    found = Compared(1.0).ended()
    assert found.confirmed is False and "no difference that 4 pairs can show" in found.notes[-1]


def test_a_run_that_refuses_itself_confirms_nothing() -> None:
    changed = "settings changed during the run: GPU0 power limit 300 -> 220 W"
    compared = Compared(1.2, (changed,))
    found = compared.ended()
    assert found.confirmed is None and "settings changed during the run" in found.notes[-1]
    assert len(compared.made) == 3, "a pair is tried three times"


def test_a_stopped_comparison_is_resumed_by_its_sweep_only() -> None:
    compared = Compared(1.2, stops_at=4)
    with pytest.raises(BenchCancelled):
        compared.ended()
    number = compared.progress.sweep.experiment_id
    assert number is not None
    with pytest.raises(InputError, match="belongs to sweep 1"):
        asyncio.run(compared.session.experiments.resume(number))
    compared.progress.stop.clear()
    found = compared.ended()
    assert (found.experiment_id, found.confirmed) == (number, True)
    assert len(compared.made) == 8, "two pairs were kept"


def test_a_value_that_cannot_be_set_is_not_compared() -> None:
    compared = Compared(1.2)

    async def refused(wanted: Any, **_: Any) -> SettingsReport:
        raise SettingsError("the driver did not like it")

    compared.session.gpu.apply_settings_by_gpu = refused  # type: ignore[method-assign]
    found = compared.ended()
    assert found.confirmed is None and "the driver did not like it" in found.notes[-1]

"""A tune: candidates race in two blocks, then the best one meets the start preset in pairs of fresh
starts. Only these pairs say what was gained (bench/tune_race.py)."""

from __future__ import annotations

import math
import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from workbench.advisor.candidates import needs_more
from workbench.bench import tune_race
from workbench.bench.metric_changes import BETTER
from workbench.bench.tune_race import START, Block, Entry, Noise
from workbench.model import tune
from workbench.model.counts import count_of
from workbench.model.errors import PresetError, WorkbenchError
from workbench.model.experiment import RunState
from workbench.model.lazy_dataclass import dataclass
from workbench.model.series_state import SeriesState
from workbench.model.sweep import PointState, SweepPoint
from workbench.session.series.conduct import EndedEarly
from workbench.session.series.confirmation import confirm
from workbench.session.series.flag_sweep import Combination, FlagSweep

if TYPE_CHECKING:
    from workbench.bench.tune_race import RaceSize
    from workbench.model.bench import BenchResult
    from workbench.model.experiment import Experiment
    from workbench.model.tune import Goal, TuneSpec

_NOT_TRIED = "not tried"
_UNMEASURED = "was not measured"
_OF_FINAL = 1000  # first seed of the final: its loads are none of the race
_LISTED = 24  # results that the preset names

# Returns the combination of an entry, or why no server can be started with it.
Combine = Callable[[Sequence[str]], "Combination | str"]
# Stores a plan with its title and evidence as a preset, and returns its id and its path.
SavePreset = Callable[[Combination, str, Sequence[str]], Awaitable[tuple[str, str]]]


def label_of(block: int, entry: Entry) -> str:
    """Return the label of a point: its block, and what the server changes."""
    return f"{block}: {shlex.join(entry) if entry else tune.START}"


def entry_of(label: str) -> tuple[int, Entry]:
    """Return the block and the changes that a label of a point names."""
    block, _, words = label.partition(": ")
    return int(block), () if words == tune.START else tuple(shlex.split(words))


@dataclass
class Tune(FlagSweep):
    """Carries out a tune. The entries of its race are the assignments that a server adds to the
    start preset."""

    spec: TuneSpec | None = None
    size: RaceSize | None = None
    combine: Combine | None = None
    save_preset: SavePreset | None = None
    began_anew: bool = True  # not resumed

    # ---- the race

    async def prepare(self) -> None:
        self._log_left_out()
        await super().prepare()
        # answers are compared in the final, if the best one changes them
        self.progress.change(quality="")

    def next_run(self) -> int | None:
        while (run := self.progress.next_value) is not None:
            if self._out_of_time(run):
                self._skip_for_time()
                break
            if (why := self._known_to_fail(run)) is None:
                return run
            self.progress.point(run, state=PointState.FAILED, error=why)
        if self._block_now == 1 and not self._time_is_up:
            self._begin_second_block()
            return self.progress.next_value
        return None

    def check_go_on(self, run: int) -> None:
        self.progress.check_stop()

    async def make(self, run: int) -> None:
        await super().make(run)
        point = self.progress.sweep.points[run]
        if point.state == PointState.DONE:
            results = [await self.parts.results.get(result) for result in point.result_ids]
            if (broken := self._broken_limit(results)) is not None:
                self.progress.point(run, error=f"infeasible: {broken}")
            if self._value(self.progress.sweep.points[run]) is None:
                why = f"{self._goal.title} {_UNMEASURED}"
                self.progress.point(run, state=PointState.FAILED, error=why)
            await self.progress.save()
        self._log(run)
        await self.progress.save()

    def _log(self, run: int) -> None:
        """Note why a point is out of the race, if it is. Raises EndedEarly if the start preset cannot
        be measured, because then there is nothing to compare with."""
        point = self.progress.sweep.points[run]
        block, entry = entry_of(point.label)
        if not point.error:
            return None
        if entry:
            return self.progress.note(f"{point.label}: out, {point.error}")
        if block == 1 and (point.state == PointState.FAILED or _UNMEASURED in point.error):
            raise EndedEarly(
                f"the start preset could not be measured: {point.error}. Longer runs (--requests, "
                "--seconds) measure more"
            )
        return self.progress.note(f"{point.label}: the start preset itself is {point.error}")

    def load_of(self, run: int) -> Mapping[str, Any]:
        """Return the load of a point. All servers of a block get the same."""
        block, _ = entry_of(self.progress.sweep.points[run].label)
        return {**self.bench, "seed": int(self.bench.get("seed") or 0) + block}

    @property
    def _goal(self) -> Goal:
        return tune.goal_called(self._spec.goal)

    @property
    def _spec(self) -> TuneSpec:
        assert self.spec is not None
        return self.spec

    @property
    def _size(self) -> RaceSize:
        assert self.size is not None
        return self.size

    @property
    def _block_now(self) -> int:
        return max(entry_of(point.label)[0] for point in self.progress.sweep.points)

    def _value(self, point: SweepPoint) -> float | None:
        """Return the logarithm of what the goal measures; more is better. None without a value."""
        value = getattr(point, self._goal.field)
        if value is None or value <= 0:
            return None
        return -math.log(value) if self._goal.less_is_better else math.log(value)

    def _blocks(self) -> list[Block]:
        """Return what the blocks measured so far. Of the candidates, only those that kept the
        limits are in it; the start preset always is, because the others are compared with it."""
        blocks: list[dict[Entry, float]] = [{} for _ in range(self._block_now)]
        for point in self.progress.sweep.points:
            block, entry = entry_of(point.label)
            value = self._value(point) if point.state == PointState.DONE else None
            if value is not None and (not point.error or entry == START):
                blocks[block - 1][entry] = value
        return list(blocks)

    def _known_to_fail(self, run: int) -> str | None:
        """Return why a server needs no start to know that it would fail; None if it may work."""
        _, entry = entry_of(self.progress.sweep.points[run].label)
        engine = self.combinations[0].editor.plan.engine
        for point in self.progress.sweep.points:
            failed = entry_of(point.label)[1]
            real = point.state == PointState.FAILED and "not started" in (point.error or "")
            if real and failed and needs_more(failed, entry, engine):
                return (
                    f"{_NOT_TRIED}: {shlex.join(failed)} did not start, and this needs more memory"
                )
        return None

    def _begin_second_block(self) -> None:
        found = tune_race.gains(self._blocks())
        if not found:
            self.progress.note("no candidate could be measured within the limits")
            return
        chosen = tune_race.second_block(found, self._size.kept, self._may_join)
        for place, entry in enumerate(sorted(found, key=lambda one: -found[one]), 1):
            goes_on = "goes on" if entry in chosen else f"out, not among the best {len(chosen)}"
            self.progress.note(
                f"1: {shlex.join(entry)}: place {place} with {_percent(found[entry])} against the "
                f"start preset in one start; {goes_on}"
            )
        for entry in chosen:
            if entry not in found:
                self.progress.note(f"2: {shlex.join(entry)}: joined, because each gained alone")
        entries = (START, *chosen)
        self.combinations = [*self.combinations, *map(self._combination, entries)]
        points = tuple(SweepPoint(label_of(2, entry), None) for entry in entries)
        self.progress.add_points(points)

    def _combination(self, entry: Entry) -> Combination:
        assert self.combine is not None
        found = self.combine(entry)
        if isinstance(found, str):
            raise WorkbenchError(found)
        return found

    def _may_join(self, entry: Entry) -> bool:
        """Return whether a server can have all of these changes: no flag twice, and no new error."""
        names = [word.partition("=")[0] for word in entry]
        if len(set(names)) < len(names):
            return False
        assert self.combine is not None
        return not isinstance(self.combine(entry), str)

    # ---- limits and time

    def _broken_limit(self, results: Sequence[BenchResult]) -> str | None:
        """Return the first limit that one of the results does not keep; None if all do."""
        limits = self._spec.limits
        for result in results:
            summary = result.summary
            for each in summary.slo if limits.slo else ():
                if each.margin_pct is None:
                    return f"{each.limit} {_UNMEASURED}"
                if each.margin_pct < 0:
                    return f"{each.limit}: {each.kept_pct:.1f} % of the requests kept it"
            hottest = summary.gpu.temperature_c if summary.gpu else None
            of_gpus = (
                ("power", "W", summary.power_w, limits.power_w),
                ("temperature", "°C", hottest, limits.temperature_c),
            )
            for name, unit, value, most in of_gpus:
                if most is None:
                    continue
                if value is None:
                    return f"the {name} {_UNMEASURED}"
                if value > most:
                    return f"{name} {value:.0f} {unit}, above {most:g} {unit}"
        return None

    @property
    def _final_s(self) -> float:
        return 2 * self._size.pairs * self.progress.value_s

    def _out_of_time(self, run: int) -> bool:
        """Return whether the time limit has no room for another start of the race before the final.
        The start preset and one candidate are always measured."""
        in_first = entry_of(self.progress.sweep.points[run].label)[0] == 1
        if in_first and run < 2:
            return False
        return not self.progress.limit.leaves(self.progress.value_s + self._final_s)

    @property
    def _time_is_up(self) -> bool:
        block = (1 + self._size.kept) * self.progress.value_s
        return not self.progress.limit.leaves(block + self._final_s)

    def _skip_for_time(self) -> None:
        for index, point in enumerate(self.progress.sweep.points):
            if point.state == PointState.PLANNED:
                why = "the time that is left is needed for the final"
                self.progress.point(index, state=PointState.SKIPPED, error=why)
                self.progress.note(f"{point.label}: {_NOT_TRIED}, {why}")

    # ---- the final

    def experiment_options(self) -> dict[str, Any]:
        options = super().experiment_options()
        seed = int(self.bench.get("seed") or 0) + _OF_FINAL
        # the race has warmed the machine up, and compiled both servers
        return {**options, "metric": self._goal.metric, "seed": seed, "throw_away": False}

    async def conclude(self) -> None:
        blocks = self._blocks()
        best = tune_race.leader(blocks)
        if best is None and not tune_race.gains(blocks):
            return self._found_nothing("no candidate could be measured within the limits")
        if best is None:
            return self._found_nothing("no candidate was better than the start preset in the race")
        gain = tune_race.gains(blocks)[best]
        name = shlex.join(best)
        self.progress.note(
            f"{name}: leads the race with {_percent(gain)}, and meets the start preset in the final"
        )
        await self.progress.save()
        self.progress.check_time(0.0)
        self.progress.check_stop()
        await confirm(self.progress, name, "the start preset", self.experiment(best))
        number = self.progress.sweep.experiment_id
        if number is None:
            return self._found_nothing(f"{name} could not be compared in pairs")
        return await self._judge(name, best, await self.parts.experiments.get(number))

    async def _judge(self, name: str, best: Entry, experiment: Experiment) -> None:
        change = experiment.comparison.metrics[0] if experiment.comparison else None
        if experiment.state != SeriesState.DONE or change is None:
            return self._found_nothing(f"the final of {name} failed: {experiment.error}")
        results = [
            await self.parts.results.get(run.result_id)
            for run in experiment.runs
            if run.arm == "B" and run.state == RunState.DONE and run.result_id is not None
        ]
        if (broken := self._broken_limit(results)) is not None:
            return self._found_nothing(f"{name} is infeasible in the final: {broken}")
        comparison = experiment.comparison
        refused = comparison is not None and (
            comparison.broken_text or not comparison.like_for_like
        )
        if refused or change.verdict != BETTER:
            return self._found_nothing(f"{name} was not shown to be better in the final")
        assert change.change_pct is not None and change.interval_pct is not None
        sign = -1 if self._goal.less_is_better else 1
        size = abs(change.change_pct)
        least = size - change.interval_pct
        text = (
            f"{_signed(sign * size)} % (at least {_signed(sign * least)} %) {self._goal.title} with "
            f"{name}"
        )
        if comparison is not None and comparison.quality:
            text += f"; {comparison.quality}"
        text += f"; {self._cost(experiment)}"
        self.progress.change(knee_text=text)
        return await self._write_preset(best, text, experiment)

    def _found_nothing(self, why: str) -> None:
        said = f"nothing better found: {why}"
        size = self._raced()
        findable = tune_race.findable_pct(size, Noise()) if size is not None else None
        if findable is not None:
            said += (
                f"; an improvement of {findable:g} % or more of one candidate would have been found "
                f"in {100 * tune_race.FOUND_SHARE:.0f} % of such tunes, if servers differ by "
                f"{Noise().server_pct:g} % and runs by {Noise().run_pct:g} %"
            )
        self.progress.change(knee_text=said, confirmed=self.progress.sweep.confirmed)

    def _raced(self) -> RaceSize | None:
        """Return the size of the race as it was: only candidates that were measured within the
        limits count. None if it was none, or if the start preset does not keep the limits."""
        first = [p for p in self.progress.sweep.points if entry_of(p.label)[0] == 1]
        kept = [entry_of(p.label)[1] for p in first if p.state == PointState.DONE and not p.error]
        count = len(kept) - 1
        if START not in kept or count < 1:
            return None
        return replace(
            self._size, candidates=count, kept=min(self._size.kept, tune_race.kept_of(count))
        )

    def _cost(self, experiment: Experiment) -> str:
        raced = [p for p in self.progress.sweep.points if p.state != PointState.SKIPPED]
        starts = sum(not (p.error or "").startswith(_NOT_TRIED) for p in raced)
        starts += len(experiment.runs)
        said = count_of(starts, "start")
        if not self.began_anew:
            return said
        minutes = self.progress.elapsed_s / 60
        return f"{said}, {minutes:.0f} min" if minutes >= 2 else f"{said}, {60 * minutes:.0f} s"

    async def _write_preset(self, best: Entry, text: str, experiment: Experiment) -> None:
        ids = [
            run.result_id
            for run in experiment.runs
            if run.state == RunState.DONE and run.result_id is not None
        ]
        simulated = "SIMULATED: " if self.progress.sweep.simulated else ""
        number = self.progress.sweep.id
        evidence = (
            f"{simulated}Tune {number} on {self.progress.sweep.host}: {text}.",
            f"Evidence: experiment {experiment.id}, results "
            f"{', '.join(f'#{each}' for each in ids[:_LISTED])}; `workbench tune show {number}`.",
        )
        assert self.save_preset is not None
        try:
            name, path = await self.save_preset(self._combination(best), str(number), evidence)
        except (PresetError, OSError) as error:
            said = error.message if isinstance(error, WorkbenchError) else str(error)
            self.progress.note(f"the preset could not be written: {said}")
            return
        self.progress.note(f"wrote the preset {name} ({path}): `workbench presets apply {name}`")

    def _log_left_out(self) -> None:
        for one in self._spec.left_out:
            self.progress.note(f"left out: {one.words}: {one.reason}")


def _percent(log_ratio: float) -> str:
    return f"{100 * math.expm1(log_ratio):+.1f} %"


def _signed(percent: float) -> str:
    return f"{percent:+.1f}"

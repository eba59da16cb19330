"""One night of watches: each preset's pinned version against its candidate in an experiment, a
second experiment if a loss is likely, and the judgement over all presets
(workbench/bench/watch_rule.py)."""

from __future__ import annotations

import asyncio
import math
import re
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, replace
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from workbench.bench import experiment as design
from workbench.bench import watch_rule
from workbench.engines import find_engine, set_executable
from workbench.engines.preset_trust import find_foreign_image
from workbench.model.errors import InputError, WorkbenchError
from workbench.model.experiment import INTERRUPTED, Arm, ArmTarget, Experiment
from workbench.model.quality import BROKEN, DIFFERS
from workbench.model.run_options import OPTIONS, starts_container_image
from workbench.model.secrets import mask_secrets_of_plan
from workbench.model.series_state import SeriesState
from workbench.model.untrusted_numbers import parse_whole_number
from workbench.model.watch import (
    ALARM,
    ANSWERS,
    FAILED,
    MEMORY,
    QUIET,
    SPEED,
    START,
    UNFINISHED,
    Loss,
    Night,
    NightEntry,
    Watch,
)
from workbench.report.format_values import NA
from workbench.store.trusted_presets import trust_digests

if TYPE_CHECKING:
    from workbench.model.experiment import ExperimentRun
    from workbench.model.plan import LaunchPlan
    from workbench.session.servers.arm_targets import BasePlans
    from workbench.session.session import Session
    from workbench.store.watches import WatchStore

OpenSession = Callable[[Watch], AbstractAsyncContextManager["Session"]]
_KV_TOKENS_SETTINGS = ("KV cache, tokens",)
_WORSE_ANSWER_VERDICTS = (DIFFERS, BROKEN)
_IMAGE_FIELD, _VENV_FIELD = "image:", "venv:"
_CANDIDATE = re.compile(rf"{_IMAGE_FIELD}\S+|{_VENV_FIELD}/\S*")


def validated_candidate(candidate: str) -> str:
    """Return `candidate`. Raises InputError unless it is "image:NAME" or "venv:/PATH"."""
    if not _CANDIDATE.fullmatch(candidate):
        raise InputError(
            f"{candidate!r} is no candidate",
            next_step="give image:NAME:TAG for a preset that starts a container, or venv:/PATH of "
            "another environment with the engine",
        )
    return candidate


def candidate_plan(plan: LaunchPlan, candidate: str) -> LaunchPlan:
    """Return the plan of a preset with the candidate in place of the pinned version. Raises
    InputError if the preset cannot start this kind of candidate."""
    validated_candidate(candidate)
    if candidate.startswith(_VENV_FIELD):
        engine = find_engine(plan.engine)
        words = list(plan.executable or (engine.launch if engine is not None else ()))
        if not words:
            raise InputError(
                f"the program of the engine {plan.engine} is not known",
                next_step="give the preset an executable",
            )
        program = words[0].rpartition("/")[2]
        environment = candidate.removeprefix(_VENV_FIELD).rstrip("/")
        words[0] = f"{environment}/bin/{program}"
        return set_executable(plan, shlex.join(words))
    image = plan.image or plan.run_options.get("image")
    if not starts_container_image(plan.run_as) or not image:
        launchers = " or ".join(map(repr, filter(starts_container_image, OPTIONS)))
        raise InputError(
            "the preset starts no container, so its image cannot be replaced",
            next_step=f"watch a preset with run_as = {launchers} and an image, or give venv:/PATH",
        )
    options = dict(plan.run_options)
    options.pop("image", None)
    return replace(plan, image=candidate.removeprefix(_IMAGE_FIELD), run_options=options)


def plan_of_preset_with_variables(
    session: Session, preset: str, variables: Sequence[str]
) -> LaunchPlan:
    """Return the plan of a preset with its variables filled in. `variables` has words of the form
    name=value. Raises WorkbenchError if the preset or a value is missing."""
    return session.presets.make_plan(preset, dict(word.split("=", 1) for word in variables))


def trust_image_of_candidate(candidate: LaunchPlan) -> None:
    """Trust the image of a candidate, which a person has named on the command line. The trust is
    stored, so it holds at night too. What the preset itself runs besides its engine stays
    untrusted."""
    trust_digests(part.digest for part in find_foreign_image(candidate))


def pinned_and_candidate_arms(plan: LaunchPlan, watch: Watch) -> tuple[Arm, Arm, BasePlans]:
    """Return (arm A with the pinned version, arm B with the candidate, the plans that they start by
    "A" and "B")."""
    other = candidate_plan(plan, watch.candidate)
    names = (watch.preset, f"{watch.preset} with {watch.candidate}")
    return arms_of_plans(names, (plan, other), watch.sets)


def arms_of_plans(
    names: tuple[str, str], plans: tuple[LaunchPlan, LaunchPlan], sets: tuple[str, ...]
) -> tuple[Arm, Arm, BasePlans]:
    """Return (arm A, arm B, the plans that they start by "A" and "B"). `sets` are assignments of
    launch flags for both arms."""
    arms = []
    for name, plan in zip(names, plans, strict=True):
        target = ArmTarget(name, plan=asdict(mask_secrets_of_plan(plan)), preset_id=plan.preset_id)
        arms.append(Arm(sets=sets, target=target))
    return arms[0], arms[1], {"A": plans[0], "B": plans[1]}


class NightRun:
    """Carries out a night and stores it after each step. `opened` connects to the host of a watch,
    and `report_line` is called with a line on each step."""

    def __init__(
        self,
        night: Night,
        store: WatchStore,
        opened: OpenSession,
        report_line: Callable[[str], None],
    ) -> None:
        self.night = night
        self._store, self._opened, self._report_line = store, opened, report_line
        self._pairs: dict[int, tuple[_LossesByMeasure, _LossesByMeasure]] = {}
        self._began = time.monotonic() - night.took_s

    async def run_night_experiments(self) -> Night:
        """Measure what the night still lacks, judge its losses, and return it. A watch that fails
        is stored as failed with the reason, and the others go on."""
        for place, entry in enumerate(self.night.entries):
            if entry.state == FAILED:
                continue
            try:
                async with self._opened(entry.watch) as session:
                    await self._run_experiments_of_watch(place, session)
            except WorkbenchError as error:
                why = error.message
                if error.next_step:
                    why += f" ({error.next_step})"
                self._report_line(f"{entry.watch.watch_name}: {why}")
                self._store_changed_entry(place, state=FAILED, error=why)
        self._judge_losses_of_night()
        self.night = replace(self.night, done=True)
        return self._save_night()

    def _store_changed_entry(self, entry_index: int, **entry_fields: Any) -> NightEntry:
        entries = list(self.night.entries)
        entries[entry_index] = replace(entries[entry_index], **entry_fields)
        self.night = replace(self.night, entries=tuple(entries))
        self._save_night()
        return entries[entry_index]

    def _save_night(self) -> Night:
        self.night = replace(self.night, took_s=time.monotonic() - self._began)
        return self._store.save(self.night)

    async def _run_experiments_of_watch(self, entry_index: int, session: Session) -> None:
        watch = self.night.entries[entry_index].watch
        self._report_line(
            f"{watch.watch_name}: pinned against candidate, {watch_rule.FIRST_PAIRS} pairs"
        )
        first = await self._run_experiment(entry_index, session, "first_id", watch_rule.FIRST_PAIRS)
        losses = compute_log_losses_by_measure(first)
        has_room = first.completed_pairs < watch_rule.MOST_FIRST_PAIRS
        if has_room and watch_rule.needs_more_pairs(losses):
            self._report_line(
                f"{watch.watch_name}: not decided, {watch_rule.MOST_FIRST_PAIRS} pairs"
            )
            first = await self._extend_experiment(session, first)
            losses = compute_log_losses_by_measure(first)
        second, again = None, dict[str, Sequence[float]]()
        if watch_rule.needs_second_experiment(losses) or _are_candidate_answers_worse(first):
            self._report_line(
                f"{watch.watch_name}: a loss is likely, {watch_rule.SECOND_PAIRS} fresh pairs"
            )
            second = await self._run_experiment(
                entry_index, session, "second_id", watch_rule.SECOND_PAIRS
            )
            again = compute_log_losses_by_measure(second)
        self._pairs[entry_index] = losses, again
        self._store_changed_entry(entry_index, **_entry_fields_from_experiments(first, second))

    async def _run_experiment(
        self, entry_index: int, session: Session, id_field: str, pairs: int
    ) -> Experiment:
        """Carry out an experiment of a watch in `pairs` pairs, and return it as done. If this night
        has begun it, go on with it: the field `id_field` of the watch's entry has its id."""
        entry = self.night.entries[entry_index]
        begun: int | None = getattr(entry, id_field)
        if begun is not None:
            return await load_or_resume_experiment(session, begun)
        watch = entry.watch
        plan = await asyncio.to_thread(
            plan_of_preset_with_variables, session, watch.preset, watch.variables
        )
        a, b, bases = pinned_and_candidate_arms(plan, watch)
        bench = {}
        if watch.requests is not None:
            bench["requests"] = watch.requests

        async def record_experiment_id(number: int) -> None:
            self._store_changed_entry(entry_index, **{id_field: number})

        ended = await session.experiments.run_experiment(
            a,
            b,
            bases=bases,
            on_experiment_stored=record_experiment_id,
            pairs=pairs,
            bench=bench,
            quality=watch.quality,
        )
        return require_finished(ended)

    async def _extend_experiment(self, session: Session, first: Experiment) -> Experiment:
        more = watch_rule.MOST_FIRST_PAIRS
        return require_finished(await session.experiments.resume(first.id, pairs=more))

    def _judge_losses_of_night(self) -> None:
        places = sorted(self._pairs)
        judged = watch_rule.detect_losses_of_night([self._pairs[place] for place in places])
        for place, losses in zip(places, judged, strict=True):
            entry = self.night.entries[place]
            # the loss in the answers always has an alarm
            of_answers = [loss for loss in entry.losses if loss.measure == ANSWERS]
            found = (*losses, *of_answers)
            state = ALARM if of_answers or any(loss.alarm for loss in losses) else QUIET
            self._store_changed_entry(place, losses=found, state=state)


_LossesByMeasure = Mapping[str, Sequence[float]]


def compute_log_losses_by_measure(experiment: Experiment) -> dict[str, Sequence[float]]:
    """Return, by measure, the natural logarithm of the ratio by which B is worse than A in each
    pair; below 0 if B is better. A measure that a run lacks is left out."""
    pairs = design.list_complete_pairs(experiment)
    found: dict[str, Sequence[float]] = {}
    for measure, read, sign in _MEASURES:
        losses = []
        for a, b in pairs:
            value_a, value_b = read(a), read(b)
            if value_a and value_b:
                losses.append(sign * math.log(value_b / value_a))
        if losses and len(losses) == len(pairs):
            found[measure] = losses
    return found


def _kv_cache_capacity_tokens(run: ExperimentRun) -> float | None:
    """Return the size of the KV cache in tokens; None unless the engine reports it as a whole
    number."""
    for name in _KV_TOKENS_SETTINGS:
        if name in run.chosen:
            return parse_whole_number(run.chosen[name].replace(",", ""))
    return None


# of each measure: how it is read, and 1 if less is better, otherwise -1
_MEASURES: tuple[tuple[str, Callable[[ExperimentRun], float | None], int], ...] = (
    (SPEED, attrgetter("value"), -1),
    (START, attrgetter("ready_after_s"), 1),
    (MEMORY, _kv_cache_capacity_tokens, -1),
)


async def load_or_resume_experiment(session: Session, experiment_id: int) -> Experiment:
    """Return a stored experiment as done, resumed if necessary. Raises what `require_finished`
    raises."""
    stored = await session.experiments.get(experiment_id)
    if stored.state == SeriesState.DONE:
        return stored
    return require_finished(await session.experiments.resume(experiment_id))


def require_finished(experiment: Experiment) -> Experiment:
    """Return an experiment that is done. Raises WorkbenchError if it failed or its link was lost,
    and CancelledError if the user has stopped it."""
    if experiment.state == SeriesState.STOPPED and experiment.error == INTERRUPTED:
        raise asyncio.CancelledError  # by the user, whom the experiment has heard already
    if experiment.state != SeriesState.DONE:
        raise WorkbenchError(
            f"experiment {experiment.id} {experiment.state}: {experiment.error}",
            next_step=f"`workbench experiment show {experiment.id}` shows its runs",
        )
    return experiment


def _are_candidate_answers_worse(experiment: Experiment) -> bool:
    compared = experiment.comparison
    return compared is not None and compared.quality_verdict in _WORSE_ANSWER_VERDICTS


def _entry_fields_from_experiments(first: Experiment, second: Experiment | None) -> dict[str, Any]:
    """Return those fields of a night's entry that follow from the experiments of its watch alone.
    `second` is None if no second experiment was made."""
    facts: dict[str, Any] = {
        "state": UNFINISHED,
        "verdict": first.verdict,
        "quality": "",
        "pinned_version": _reported_version(first, "A"),
        "version": _reported_version(first, "B"),
        "pinned_speed": None,
        "speed": None,
        "chosen": changed_setting_names_and_values(first),
        "losses": (),
        "simulated": first.simulated,
    }
    if first.comparison is not None:
        facts["quality"] = first.comparison.quality
    if first.change_of_deciding_metric is not None:
        facts["pinned_speed"] = first.change_of_deciding_metric.a
        facts["speed"] = first.change_of_deciding_metric.b
    if (
        second is not None
        and _are_candidate_answers_worse(first)
        and _are_candidate_answers_worse(second)
    ):
        loss = Loss(ANSWERS, 0.0, first.completed_pairs, repeated=True, alarm=True)
        facts["losses"] = (loss,)
    return facts


def _reported_version(experiment: Experiment, arm: str) -> str:
    """Return the engine's version in the first run of an arm that reports it; "" if none does."""
    for run in experiment.runs:
        if run.arm == arm and "version" in run.chosen:
            return run.chosen["version"]
    return ""


def changed_setting_names_and_values(experiment: Experiment) -> tuple[tuple[str, str, str], ...]:
    """Return the settings that differ between the engines of A and B in every run, as triples
    (name, value of A, value of B). A value that an engine does not report is NA."""
    pairs = design.list_complete_pairs(experiment)
    runs = list(chain.from_iterable(pairs))
    found = []
    for name in dict.fromkeys(chain.from_iterable(run.chosen for run in runs)):
        a = [run.chosen.get(name, "") for run in runs if run.arm == "A"]
        b = [run.chosen.get(name, "") for run in runs if run.arm == "B"]
        if set(a).isdisjoint(b):
            found.append((name, a[0] or NA, b[0] or NA))
    return tuple(found)

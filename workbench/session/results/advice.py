"""Advice on a result or on a running server: findings, what earlier experiments about them showed,
and the experiment that tests a finding."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

from workbench import engines
from workbench.advisor.advice import THRIFT
from workbench.advisor.advisor import advise
from workbench.advisor.facts import Facts, GpuFacts, facts_of_result
from workbench.advisor.known_answers import drop_changes_with_worse_answers
from workbench.advisor.verdicts import verdicts_on
from workbench.engines.flag_values import format_value
from workbench.engines.plan_context import Situation
from workbench.model.errors import InputError, WorkbenchError
from workbench.model.experiment import AdvisedChange, Arm
from workbench.model.lazy_dataclass import dataclass
from workbench.model.load_spec import REPEATED
from workbench.model.secrets import MASK
from workbench.model.settings import GpuSettings, parse_word
from workbench.session.bench.spec import WORDS_CONTENT
from workbench.session.conditions import gpus_of_plan
from workbench.store.quality_db import QualityDb

if TYPE_CHECKING:
    from workbench.model.bench import BenchResult
    from workbench.model.experiment import Experiment
    from workbench.model.findings import Finding, PlanChange
    from workbench.model.plan import LaunchPlan
    from workbench.session.history.telemetry_watch import TelemetryWatch
    from workbench.session.plans.presets import Presets
    from workbench.session.results.results import Results
    from workbench.session.series.experiments import Experiments
    from workbench.session.servers.servers import Servers

# newest results among which an earlier one of the same configuration is looked for
_MAX_NEWEST_RESULTS = 200
_FIELDS_NOT_REPEATED = ("profile", "prompts", "trace", "command")
_FLAGS_NOT_CONFIGURATION = ("host", "port")


@dataclass(frozen=True, slots=True)
class AdvisedResult:
    """Advice on the stored result `result`, or on the server run `run_id` if `result` is None.
    `verdicts` has, by the code of a finding, texts on what earlier experiments about that finding
    measured."""

    findings: tuple[Finding, ...]
    result: BenchResult | None = None
    run_id: str | None = None
    verdicts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


class Advisor:
    """Advises on stored results and on running servers."""

    def __init__(
        self,
        presets: Presets,
        servers: Servers,
        telemetry: TelemetryWatch,
        results: Results,
        experiments: Experiments,
    ) -> None:
        self._presets, self._servers, self._telemetry = presets, servers, telemetry
        self._results, self._experiments = results, experiments

    async def advise_on_result(
        self, result_id: int, expected_tok_s: float | None = None
    ) -> AdvisedResult:
        """Return the advice on a stored result. `expected_tok_s` is a published or promised speed
        of one stream in tokens per second, with which the advice compares the result."""
        return await asyncio.to_thread(
            self._advise_with_experiments, result_id, Facts(expected_tok_s=expected_tok_s)
        )

    def _advise_with_experiments(self, result_id: int, beside: Facts) -> AdvisedResult:
        result = self._results.db.get(result_id)
        names = self._presets.gpu_names(result.conditions.preset_id)
        facts = facts_of_result(
            result, replace(beside, before=self._earlier_result_of(result), preset_gpus=names)
        )
        known = QualityDb(self._results.db.path).newest_comparisons()
        found = drop_changes_with_worse_answers(advise(facts), result.conditions, known)
        experiments: Sequence[Experiment] = self._experiments.db.list()
        said = {finding.code: verdicts_on(finding, result, experiments) for finding in found}
        verdicts = {code: verdict for code, verdict in said.items() if verdict}
        return AdvisedResult(found, result, result.conditions.run_id, verdicts)

    def _earlier_result_of(self, result: BenchResult) -> BenchResult | None:
        """Return the newest valid result before `result` that has the same configuration and load;
        None if there is none."""
        for page in self._results.db.pages(
            _MAX_NEWEST_RESULTS, host=result.conditions.host, before=result.id
        ):
            for other in page.results:
                if not other.summary.refused and _have_same_load(other, result):
                    return other
        return None

    async def advise_on_run(
        self, run_id: str, expected_tok_s: float | None = None
    ) -> AdvisedResult:
        """Return the advice on a run, from its newest valid result and from the present counters,
        memory and log of its server. `expected_tok_s` is a published or promised speed of one
        stream in tokens per second, with which the advice compares the run."""
        status = self._servers.supervisor.status(run_id)
        telemetry, now = None, None
        with suppress(WorkbenchError):  # a host without a GPU
            telemetry = await self._telemetry.reading()
        with suppress(WorkbenchError):  # a server that has ended has no counters
            now = await self._servers.supervisor.metrics(run_id)
        free = telemetry.host.memory_available_bytes if telemetry else None
        present = Facts(
            now=now, memory_available_bytes=free, log=status.findings, expected_tok_s=expected_tok_s
        )
        result = await asyncio.to_thread(self._newest_result_of, run_id)
        if result is not None:
            return replace(
                await asyncio.to_thread(self._advise_with_experiments, result.id, present),
                run_id=run_id,
            )
        plan = self._servers.supervisor.record(run_id).plan
        engine = engines.find_engine(plan.engine)
        here = Situation(plan, engine.catalog(plan.engine_version), engine) if engine else None
        infos = telemetry.infos if telemetry else ()
        used = gpus_of_plan(plan, infos)
        gpus = tuple(
            GpuFacts(i.index, i.name, i.memory_total_bytes, virtualization=i.virtualization)
            for i in infos
            if i.index in used
        )
        names = self._presets.gpu_names(plan.preset_id)
        known = replace(
            present,
            here=here,
            sizes=plan.model_facts,
            gpus=gpus,
            preset_id=plan.preset_id,
            preset_gpus=names,
        )
        return AdvisedResult(advise(known), run_id=run_id)

    def _newest_result_of(self, run_id: str) -> BenchResult | None:
        found = (r for r in self._results.db.list(None, run_id) if r.conditions.run_id == run_id)
        # a command of the user may have sent nothing, and an idle GPU says nothing about the plan
        return next((r for r in found if not r.summary.refused and r.summary.output_tokens), None)


def _have_same_load(a: BenchResult, b: BenchResult) -> bool:
    x, y = a.conditions, b.conditions
    same = (x.engine, x.model, x.flags, x.env, x.gpu_settings) == (
        y.engine,
        y.model,
        y.flags,
        y.env,
        y.gpu_settings,
    )
    return same and all(
        getattr(a.spec, name) == getattr(b.spec, name) for name in REPEATED if name != "profile"
    )


# ---- the experiment that tests a finding


def can_test_finding(finding: Finding) -> bool:
    """Return whether an experiment can apply the fix of a finding. The finding must contain changes
    of the plan or values of GPU settings, not only a text."""
    return bool(finding.changes or finding.settings)


def arms_of_finding(
    finding: Finding, result: BenchResult, plan: LaunchPlan | None
) -> tuple[Arm, Arm]:
    """Return the two arms of the experiment that tests `finding`, as changes of `plan`, the plan
    under edit. Arm A has the configuration of `result`; arm B has that configuration with the
    changes that `finding` proposes. Raises InputError if `plan` is None or has another engine or
    model than `result`."""
    made = result.conditions
    if plan is None or (plan.engine, plan.model) != (made.engine, made.model):
        where = (
            f"preset {made.preset_id}"
            if made.preset_id
            else ("a preset with that engine and model")
        )
        raise InputError(
            f"the plan under edit is not that of result #{result.id} ({made.engine}, {made.model})",
            next_step=f"press p and load {where}, then test the finding again",
        )
    sets, unsets = _assignments_to_reach({f.name: f.value for f in plan.flags}, made.flags)
    envs, _ = _assignments_to_reach({e.name: str(e.value) for e in plan.env}, made.env)
    a = Arm(sets, unsets, envs)
    b = a
    for change in finding.changes:
        b = _arm_with_change(b, change, plan)
    gpu = {key: value for word in finding.settings for key, value in parse_word(word).items()}
    return a, replace(b, gpu=GpuSettings(gpu))


def _assignments_to_reach(
    now: Mapping[str, Any], wanted: Mapping[str, Any]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return (assignments NAME=VALUE, names to unset) that turn the flags or environment variables
    `now`, by name, into `wanted`. Masked secrets are not changed."""
    names = [
        n
        for n in {**now, **wanted}
        if n not in _FLAGS_NOT_CONFIGURATION and MASK not in (now.get(n), wanted.get(n))
    ]
    sets = tuple(
        f"{n}={format_value(wanted[n])}" for n in names if n in wanted and now.get(n) != wanted[n]
    )
    return sets, tuple(n for n in names if n not in wanted)


def _arm_with_change(arm: Arm, change: PlanChange, plan: LaunchPlan) -> Arm:
    name, value = change.name, change.value
    kept = tuple(
        word for word in (arm.envs if change.env else arm.sets) if word.partition("=")[0] != name
    )
    unsets = tuple(n for n in arm.unsets if n != name)
    if change.env and value is None:  # a variable that the plan does not set needs no removal
        return replace(
            arm,
            envs=kept,
            unsets=(*unsets, name) if any(e.name == name for e in plan.env) else unsets,
        )
    if change.env:
        return replace(arm, envs=(*kept, f"{name}={value}"), unsets=unsets)
    if value is None:
        return replace(arm, sets=kept, unsets=(*unsets, name))
    return replace(arm, sets=(*kept, f"{name}={format_value(value)}"), unsets=unsets)


def advised_change(finding: Finding, result: BenchResult) -> AdvisedChange:
    """Return what is stored about `finding`, a piece of advice on `result`, with the experiment
    that tests it."""
    return AdvisedChange(
        finding.code, finding.text, finding.expected_gain, result.id, result.conditions.model
    )


def experiment_options_of(finding: Finding, result: BenchResult) -> dict[str, Any]:
    """Return the fields of ExperimentSpec for the experiment that tests `finding`: "metric", which
    decides the verdict, and "bench", the load of `result` as fields of BenchSpec. Raises InputError
    for a load whose prompts or trace the result does not contain."""
    spec = result.spec
    if spec.prompts_name or spec.trace_name:
        raise InputError(
            f"the load of result #{result.id} was {spec.prompts_name or spec.trace_text}, which "
            "results do not contain, so it cannot be repeated",
            next_step="run `workbench experiment` with these changes and --prompts or --trace",
        )
    shape = {name: getattr(spec, name) for name in REPEATED if name not in _FIELDS_NOT_REPEATED}
    if spec.content == WORDS_CONTENT:
        del shape["content"]  # the effect of the change may be another one on real text
    thrifty = bool(finding.settings) or (finding.expected_gain or "").endswith(THRIFT)
    return {
        "metric": "tok_per_joule" if thrifty else "output_tok_s",
        "bench": {n: value for n, value in shape.items() if value not in (None, (), {}, "")},
    }

"""Advice on a result or on a running server: findings, what earlier experiments about them showed,
and the experiment that tests a finding."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from workbench import engines
from workbench.advisor.advice import THRIFT
from workbench.advisor.advisor import list_advice_findings
from workbench.advisor.facts import Facts, GpuFacts, facts_from_result
from workbench.advisor.known_answers import withdraw_changes_with_worse_answers
from workbench.advisor.verdicts import list_verdicts_on_finding
from workbench.engines.flag_values import format_flag_value
from workbench.engines.plan_context import PlanContext
from workbench.model.errors import InputError, WorkbenchError
from workbench.model.experiment import AdvisedChange, Arm
from workbench.model.lazy_dataclass import dataclass
from workbench.model.load_spec import REPEATED
from workbench.model.secrets import MASK
from workbench.model.settings import GpuSettings, parse_setting_argument
from workbench.session.bench.spec import WORDS_CONTENT, repeated_fields_with_value
from workbench.session.conditions import gpu_indices_of_plan
from workbench.store.quality_db import QualityDb

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workbench.model.bench import BenchResult
    from workbench.model.experiment import Experiment
    from workbench.model.findings import Finding, PlanChange
    from workbench.model.gpu import GpuInfo
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

    def _advise_with_experiments(self, result_id: int, extra_facts: Facts) -> AdvisedResult:
        result = self._results.db.get(result_id)
        names = self._presets.required_gpu_names(result.conditions.preset_id)
        facts = facts_from_result(
            result,
            replace(extra_facts, before=self._find_earlier_result(result), preset_gpus=names),
        )
        known = QualityDb(self._results.db.path).newest_comparisons()
        found = withdraw_changes_with_worse_answers(
            list_advice_findings(facts), result.conditions, known
        )
        experiments: Sequence[Experiment] = self._experiments.db.list()
        verdicts = {}
        for finding in found:
            if texts := list_verdicts_on_finding(finding, result, experiments):
                verdicts[finding.code] = texts
        return AdvisedResult(found, result, result.conditions.run_id, verdicts)

    def _find_earlier_result(self, result: BenchResult) -> BenchResult | None:
        """Return the newest valid result before `result` that has the same configuration and load;
        None if there is none."""
        for page in self._results.db.pages(
            _MAX_NEWEST_RESULTS, host=result.conditions.host, before_id=result.id
        ):
            for other in page.results:
                if not other.summary.refused and _have_same_configuration_and_load(other, result):
                    return other
        return None

    async def advise_on_run(
        self, run_id: str, expected_tok_s: float | None = None
    ) -> AdvisedResult:
        """Return the advice on a run, from its newest valid result and from the present counters,
        memory and log of its server. `expected_tok_s` is a published or promised speed of one
        stream in tokens per second, with which the advice compares the run."""
        status, plan = self._servers.supervisor.status(run_id), self._plan_of_run(run_id)
        facts = Facts(log=status.findings, expected_tok_s=expected_tok_s)
        gpus: list[GpuFacts] = []
        with suppress(WorkbenchError):  # a host without a GPU
            telemetry = await self._telemetry.get_recent_reading()
            facts = replace(facts, memory_available_bytes=telemetry.host.memory_available_bytes)
            gpus = _facts_of_gpus(plan, telemetry.infos)
        with suppress(WorkbenchError):  # a server that has ended has no counters
            facts = replace(facts, now=await self._servers.supervisor.metrics(run_id))
        result = await asyncio.to_thread(self._find_newest_result, run_id)
        if result is not None:
            advised = await asyncio.to_thread(self._advise_with_experiments, result.id, facts)
            return replace(advised, run_id=run_id)
        engine = engines.find_engine(plan.engine)
        if engine is not None:
            catalog = engine.catalog(plan.engine_version)
            facts = replace(facts, plan_context=PlanContext(plan, catalog, engine))
        known = replace(
            facts,
            sizes=plan.model_facts,
            gpus=tuple(gpus),
            preset_id=plan.preset_id,
            preset_gpus=self._presets.required_gpu_names(plan.preset_id),
        )
        return AdvisedResult(list_advice_findings(known), run_id=run_id)

    def _plan_of_run(self, run_id: str) -> LaunchPlan:
        return self._servers.supervisor.record(run_id).plan

    def _find_newest_result(self, run_id: str) -> BenchResult | None:
        """Return the newest result of a run from which advice can be given; None if there is
        none."""
        for result in self._results.db.list(None, run_id):
            # a command of the user may have sent nothing, and an idle GPU says nothing about the
            # plan
            if result.summary.refused or not result.summary.output_tokens:
                continue
            if result.conditions.run_id == run_id:
                return result
        return None


def _facts_of_gpus(plan: LaunchPlan, infos: Sequence[GpuInfo]) -> list[GpuFacts]:
    """Return the facts about those GPUs that the plan uses."""
    used, found = gpu_indices_of_plan(plan, infos), []
    for info in infos:
        if info.index in used:
            facts = GpuFacts(info.index, info.name, info.memory_total_bytes)
            found.append(replace(facts, virtualization=info.virtualization))
    return found


_CONFIGURATION = attrgetter("engine", "model", "flags", "env", "gpu_settings")  # of conditions
_LOAD = attrgetter(*(name for name in REPEATED if name != "profile"))  # of a spec


def _have_same_configuration_and_load(a: BenchResult, b: BenchResult) -> bool:
    if _CONFIGURATION(a.conditions) != _CONFIGURATION(b.conditions):
        return False
    return bool(_LOAD(a.spec) == _LOAD(b.spec))


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
        where = "a preset with that engine and model"
        if made.preset_id:
            where = f"preset {made.preset_id}"
        raise InputError(
            f"the plan under edit is not that of result #{result.id} ({made.engine}, {made.model})",
            next_step=f"press p and load {where}, then test the finding again",
        )
    sets, unsets = _sets_and_unsets_to_reach(plan.flag_values, made.flags)
    envs, _ = _sets_and_unsets_to_reach(plan.env_texts, made.env)
    a = Arm(sets, unsets, envs)
    b = a
    for change in finding.changes:
        b = _arm_with_change(b, change, plan)
    gpu: dict[str, Any] = {}
    for word in finding.settings:
        gpu |= parse_setting_argument(word)
    return a, replace(b, gpu=GpuSettings(gpu))


def _sets_and_unsets_to_reach(
    now: Mapping[str, Any], wanted: Mapping[str, Any]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return (assignments NAME=VALUE, names to unset) that turn the flags or environment variables
    `now`, by name, into `wanted`. Masked secrets are not changed."""
    sets, unsets = [], []
    for name in {**now, **wanted}:
        if name in _FLAGS_NOT_CONFIGURATION or MASK in (now.get(name), wanted.get(name)):
            continue
        if name not in wanted:
            unsets.append(name)
        elif now.get(name) != wanted[name]:
            sets.append(f"{name}={format_flag_value(wanted[name])}")
    return tuple(sets), tuple(unsets)


def _arm_with_change(arm: Arm, change: PlanChange, plan: LaunchPlan) -> Arm:
    name, value = change.name, change.value
    words = arm.envs if change.env else arm.sets
    kept = tuple(word for word in words if word.partition("=")[0] != name)
    unsets = [unset for unset in arm.unsets if unset != name]
    if value is None:
        # a variable that the plan does not set needs no removal
        if not change.env or name in [variable.name for variable in plan.env]:
            unsets.append(name)
    elif change.env:
        kept = (*kept, f"{name}={value}")
    else:
        kept = (*kept, f"{name}={format_flag_value(value)}")
    arm = replace(arm, unsets=tuple(unsets))
    return replace(arm, envs=kept) if change.env else replace(arm, sets=kept)


def make_advised_change(finding: Finding, result: BenchResult) -> AdvisedChange:
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
    if spec.text_source_name:
        raise InputError(
            f"the load of result #{result.id} was {spec.prompts_name or spec.trace_and_speed_text}, which "
            "results do not contain, so it cannot be repeated",
            next_step="run `workbench experiment` with these changes and --prompts or --trace",
        )
    shape = repeated_fields_with_value(spec, left_out=_FIELDS_NOT_REPEATED)
    if spec.content == WORDS_CONTENT:
        shape.pop("content")  # the effect of the change may be another one on real text
    metric = "output_tok_s"
    if finding.settings or (finding.expected_gain or "").endswith(THRIFT):
        metric = "tok_per_joule"
    return {"metric": metric, "bench": shape}

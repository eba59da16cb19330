"""Reports on results, on an experiment or on a sweep."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from workbench.bench.compare import compare
from workbench.model.errors import InputError
from workbench.model.known_values import known_values
from workbench.report.content import Layout, Report, comparisons_by_result_id
from workbench.report.registry import find_output_format
from workbench.store.quality_db import QualityDb

if TYPE_CHECKING:
    from workbench.session.results.results import Results
    from workbench.session.series.experiments import Experiments
    from workbench.session.series.sweeps import Sweeps


class Reports:
    def __init__(self, results: Results, experiments: Experiments, sweeps: Sweeps) -> None:
        self._results, self._experiments, self._sweeps = results, experiments, sweeps

    async def report_text(
        self,
        output_format: str,
        result_groups: Sequence[Sequence[int]] = (),
        *,
        experiment_id: int | None = None,
        sweep_id: int | None = None,
        with_requests: bool = False,
    ) -> str:
        """Return a report, in the format `output_format`, on groups of results, on an experiment or
        on a sweep. Two groups are compared, the first as A. With `with_requests`, the report lists
        every request. Raises InputError unless exactly one of the three is given."""
        chosen = find_output_format(output_format)
        report = await self._collect_report(result_groups, experiment_id, sweep_id, with_requests)
        return await asyncio.to_thread(chosen.render, report)

    async def proof_text(
        self,
        output_format: str,
        result_groups: Sequence[Sequence[int]] = (),
        *,
        experiment_id: int | None = None,
    ) -> str:
        """Return the proof of an experiment or of two groups of results, as "html" or "json".
        Raises InputError if the results prove nothing (proofs.py)."""
        from workbench.report.proof_document import json_text
        from workbench.session.results import proofs

        report = await self._collect_report(result_groups, experiment_id, None, False)
        document = await asyncio.to_thread(proofs.make_proof, report)
        return await asyncio.to_thread(
            proofs.render_proof_page if output_format == "html" else json_text, document
        )

    async def _collect_report(
        self,
        groups: Sequence[Sequence[int]],
        experiment_id: int | None,
        sweep_id: int | None,
        with_requests: bool,
    ) -> Report:
        given = [bool(groups), experiment_id is not None, sweep_id is not None]
        if given.count(True) != 1:
            raise InputError(
                "a report needs either results, one experiment or one sweep",
                next_step="give ids of results, or one of --experiment and --sweep",
            )
        experiment, sweep = None, None
        if experiment_id is not None:
            experiment = await self._experiments.get(experiment_id)
        if sweep_id is not None:
            sweep = await asyncio.to_thread(self._sweeps.sweep_store.get, sweep_id)
        ids: Sequence[int | None] = [number for group in groups for number in group]
        if experiment is not None:
            ids = [run.result_id for run in experiment.runs]
        elif sweep is not None:
            ids = [number for point in sweep.points for number in point.result_ids]
        results, samples = [], {}
        for number in dict.fromkeys(known_values(ids)):
            try:
                results.append(await self._results.get(number))
            except InputError:
                if groups:
                    raise
                continue  # a result of the experiment or sweep was deleted
            samples[number] = await asyncio.to_thread(self._results.db.samples, number)
        compared, known = None, await self._results.list_quality_results()
        if len(groups) == 2 and len(results) == len(ids):
            compared = compare(results[: len(groups[0])], results[len(groups[0]) :], quality=known)
        series = experiment.comparison if experiment is not None else compared
        quality = None
        if series is not None and series.quality_id:
            quality = await asyncio.to_thread(
                QualityDb(self._results.db.path).get, series.quality_id
            )
        layout = Layout.REQUESTS if with_requests else Layout.REPORT
        return Report(
            results=tuple(results),
            samples=samples,
            comparison=compared,
            experiment=experiment,
            sweep=sweep,
            quality=quality,
            answers=comparisons_by_result_id(results, known),
            layout=layout,
            groups=tuple(tuple(group) for group in groups),
        )

"""Stored results: searched, noted, tagged, taken in from other tools, reported."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.model.errors import InputError
from workbench.session.conditions import rows_of
from workbench.session.experiments import Experimenting
from workbench.session.measuring import SHOWN_RESULTS, ceiling_view

if TYPE_CHECKING:
    from workbench.model.bench import BenchResult
    from workbench.report.content import Report
    from workbench.report.imports import ImportOptions


class Histories(Experimenting):
    # ---- what is seen

    _seen_results: object = None  # the database as it was when the results were read last

    async def look_elsewhere(self) -> None:
        """Notice results that another Workbench has stored, too."""
        if self.results_db.stamp() != self._seen_results:
            await self.read_results()
        await super().look_elsewhere()

    async def read_results(self) -> None:
        """This host's newest results and the imported ones into the state, narrowed by the search that was asked for,
        and where the newest single-stream one lies."""
        search = self.state.results_search
        self._seen_results = self.results_db.stamp()  # before it is read: what comes meanwhile is seen next time
        found = await asyncio.to_thread(self._shown_results, search)
        newest = found if not search else await asyncio.to_thread(self._shown_results, "")
        self.update(results=rows_of(found), ceiling=ceiling_view(newest))

    def _shown_results(self, search: str) -> Sequence[BenchResult]:
        return self.results_db.list(SHOWN_RESULTS, search, host=self.host.name)

    async def find_results(self, search: str) -> None:
        self.update(results_search=" ".join(search.split()))
        await self.read_results()

    async def note_result(self, result_id: int, note: str) -> None:
        await asyncio.to_thread(self.results_db.note, result_id, note)
        await self.read_results()

    async def tag_result(self, result_id: int, tags: Sequence[str]) -> None:
        """Exactly these from now on."""
        await asyncio.to_thread(self.results_db.tag, result_id, [checked_tag(tag) for tag in tags])
        await self.read_results()

    # ---- other tools

    async def import_results(
        self, path: str | Path, options: ImportOptions | None = None, *, tags: Sequence[str] = ()
    ) -> Sequence[tuple[BenchResult, bool]]:
        """The results of a file, stored; False beside those that were there already. All of the file or nothing."""
        from workbench.report.imports import read

        checked = [checked_tag(tag) for tag in tags]
        found = await asyncio.to_thread(read, Path(path).expanduser(), options)
        stored = []
        for one in found:
            known = await asyncio.to_thread(self.results_db.with_uid, one.uid)
            add = self.results_db.add
            result_id = (
                known
                if known is not None
                else await asyncio.to_thread(
                    add,
                    one.spec,
                    one.conditions,
                    one.summary,
                    one.samples,
                    unix_s=one.unix_s,
                    uid=one.uid,
                    note=one.note,
                    tags=(*one.tags, *checked),
                )
            )
            stored.append((await self.result(result_id), known is None))
        await self.read_results()
        return stored

    # ---- reports

    async def report(
        self,
        form: str,
        groups: Sequence[Sequence[int]] = (),
        *,
        experiment_id: int | None = None,
        sweep_id: int | None = None,
        requests: bool = False,
    ) -> str:
        """The text of a report on groups of results (two are compared, the first as A), an experiment or a sweep."""
        from workbench.report.registry import output_format

        chosen = output_format(form)
        report = await self._report_on(groups, experiment_id, sweep_id, requests)
        return await asyncio.to_thread(chosen.render, report)

    async def _report_on(
        self, groups: Sequence[Sequence[int]], experiment_id: int | None, sweep_id: int | None, requests: bool
    ) -> Report:
        from workbench.bench.compare import compare
        from workbench.report.content import Layout, Report

        if sum(bool(given) for given in (groups, experiment_id is not None, sweep_id is not None)) != 1:
            raise InputError(
                "a report is on results, on one experiment or on one sweep", next_step="give ids, or one of the two"
            )
        experiment = await self.experiment_called(experiment_id) if experiment_id is not None else None
        sweep = await asyncio.to_thread(self.sweeps.get, sweep_id) if sweep_id is not None else None
        ids: Sequence[int | None] = [number for group in groups for number in group]
        if experiment is not None:
            ids = [run.result_id for run in experiment.runs]
        elif sweep is not None:
            ids = [number for point in sweep.points for number in point.result_ids]
        wanted = dict.fromkeys(number for number in ids if number is not None)
        results, samples = [], {}
        for number in wanted:
            try:
                results.append(await self.result(number))
            except InputError:
                if groups:
                    raise
                continue  # of an experiment or a sweep a result may have been deleted since: the rest stands
            samples[number] = await asyncio.to_thread(self.results_db.samples, number)
        compared = None
        if len(groups) == 2 and len(results) == len(ids):
            cut = len(groups[0])
            compared = compare(results[:cut], results[cut:])
        layout = Layout.REQUESTS if requests else Layout.REPORT
        return Report(tuple(results), samples, compared, experiment, sweep, layout)


def checked_tag(tag: str) -> str:
    """A tag is one word. Raises InputError."""
    if not tag or tag != "".join(tag.split()) or tag[0] in "+-" or len(tag) > 40:
        raise InputError(f"{tag!r} is no tag", next_step="one word, at most 40 letters, that begins with no + or -")
    return tag

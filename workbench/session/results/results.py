"""Stored results: listed, searched, annotated, compared, exported, and imported from other
tools."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from workbench.model.errors import InputError, StoreError, error_reason
from workbench.model.findings import Level
from workbench.session.bench.result_rows import rows_of_results
from workbench.session.results.series_rows import series_by_result_id
from workbench.store import paths

if TYPE_CHECKING:
    from workbench.model.bench import BenchResult, Comparison, ResultId
    from workbench.model.findings import Finding
    from workbench.model.quality import QualityResult
    from workbench.report.imports import ImportOptions
    from workbench.session.bench.row import BenchRow
    from workbench.session.history.timeline import Timeline
    from workbench.session.results.timelines import ResultTimelines
    from workbench.session.state import SessionState
    from workbench.session.state_holder import StateHolder
    from workbench.store.quality_db import QualityDb
    from workbench.store.results_db import ResultsDb

MAX_KEPT_SAMPLES = 2000  # as in config_schema.py
_TAG = re.compile(r"[^\s+-]\S{0,39}")
MAX_SHOWN_RESULTS = 100  # newest results in the state, until older ones are asked for


def _max_results_with_requests() -> int:
    """Return how many results keep their requests. Without a config.toml its schema is not loaded,
    which takes 0.1 s."""
    if not paths.config_file().exists():
        return MAX_KEPT_SAMPLES
    from workbench.store.config import ConfigStore

    return int(ConfigStore().config.results.keep_samples)


def _becomes_b_under_cursor(state: SessionState, row: BenchRow) -> bool:
    """Return whether the result under the cursor becomes B of the comparison with A."""
    if state.b_chosen or row.id == state.mark_a:
        return False
    if row.refused or row.imported or row.series is not None:
        return False
    shown = state.comparison
    return shown is None or (shown.a, shown.b) != (state.mark_a, row.id)


class ImportedResult(NamedTuple):
    """A result of another tool. `is_new` is False if the result was stored before."""

    result: BenchResult
    is_new: bool


class Results:
    """The database of results. The newest results of this host are shown in the session's state.
    Before the first result is stored, what reads results is not loaded, which takes 0.7 MiB."""

    def __init__(self, core: StateHolder, timeline: Timeline) -> None:
        self._core, self._timeline = core, timeline
        self._seen: object = None  # the stamp when the results were read last
        self._shown = MAX_SHOWN_RESULTS
        # of the newest valid result: its id, the findings
        self._advice: tuple[int, tuple[Finding, ...]] = (0, ())
        self.has_older = False  # whether there are results older than those in the state

    @cached_property
    def db(self) -> ResultsDb:
        from workbench.store.results_db import ResultsDb

        return ResultsDb(paths.results_db())

    @property
    def _quality_db(self) -> QualityDb:
        """The stored comparisons of answers."""
        from workbench.store.quality_db import QualityDb

        return QualityDb(self.db.path)

    @cached_property
    def timelines(self) -> ResultTimelines:
        """The stored readings of GPUs and engine from a little before each benchmark to a little
        after."""
        from workbench.session.results.timelines import ResultTimelines

        return ResultTimelines(self._core, self._timeline, self.db)

    async def refresh_result_rows(self) -> None:
        """Read the newest results that match the search into the session's state: results of this
        host, and imported ones."""
        search = self._core.state.results_search
        # first: results that are stored meanwhile are seen at the next look
        self._seen = self._database_version()
        shown = self._shown
        # one more, to know whether there are older
        found = await asyncio.to_thread(self._newest_results, search, shown + 1)
        rows = rows_of_results(found)[:shown]
        self.has_older = len(found) > shown
        for result in found:
            if not result.summary.refused and not result.conditions.imported:
                rows = await self._add_advice(rows, result)
                break
        series = await asyncio.to_thread(series_by_result_id, rows)
        if series:
            rows = tuple(replace(row, series=series.get(row.id)) for row in rows)
        self._core.update(results=rows, results_read=True)

    async def _add_advice(
        self, rows: Sequence[BenchRow], newest: BenchResult
    ) -> tuple[BenchRow, ...]:
        """Return `rows`, with advice on the result `newest` added to the row of that result."""
        number, findings = self._advice
        if number != newest.id:
            findings = await asyncio.to_thread(_advise_on_stored_result, newest)
            self._advice = (newest.id, findings)
        return tuple(replace(row, advice=findings) if row.id == newest.id else row for row in rows)

    def _newest_results(self, search: str, limit: int) -> Sequence[BenchResult]:
        if not paths.has_results():
            return ()
        return self.db.list(limit, search, host=self._core.host.name)

    async def show_older_results(self) -> None:
        """Show twice as many results in the session's state, if there are older ones."""
        if self.has_older:
            self._shown = 2 * len(self._core.state.results)
            await self.refresh_result_rows()

    async def refresh_if_database_changed(self) -> None:
        """Refresh the results in the session's state if another Workbench has changed the database,
        or the sweeps to which results belong."""
        if self._database_version() != self._seen:
            await self.refresh_result_rows()

    def _database_version(self) -> object:
        """Return a value that changes with every write to the database, and with every stored
        sweep."""
        sweeps: int | None = None
        with suppress(OSError):
            sweeps = paths.sweeps_dir().stat().st_mtime_ns
        stored = self.db.change_stamp() if paths.has_results() else None
        return stored, sweeps

    async def show_matching_results(self, search: str) -> None:
        """Show only those results in the session's state that contain every word of `search`; ""
        shows all."""
        self._core.update(results_search=" ".join(search.split()))
        self._shown = MAX_SHOWN_RESULTS
        await self.refresh_result_rows()

    async def get(self, result_id: int) -> BenchResult:
        return await asyncio.to_thread(self.db.get, result_id)

    async def get_all(self, result_ids: Iterable[int]) -> list[BenchResult]:
        return [await self.get(result_id) for result_id in result_ids]

    async def delete(self, result_id: int) -> None:
        """Delete a stored result with its timeline. Its marks and a comparison with it are removed
        from the screen."""
        timeline = self.timelines.path_of_timeline(result_id)
        await asyncio.to_thread(self.db.delete, result_id)
        timeline.unlink(missing_ok=True)
        state = self._core.state
        gone: dict[str, Any] = {}
        if state.mark_a == result_id:
            gone["mark_a"] = None
        if state.mark_b == result_id:
            gone |= {"mark_b": None, "b_chosen": False}
        if state.comparison is not None and result_id in (state.comparison.a, state.comparison.b):
            gone["comparison"] = None
        self._core.update(**gone)
        await self.refresh_result_rows()

    async def add_result(self, *parts: Any, unix_s: float | None = None) -> ResultId:
        """Store a result and return its id; the arguments are those of `ResultsDb.add`. Then delete
        the requests of the oldest results beyond the setting `keep_samples`."""
        result_id = await asyncio.to_thread(self.db.add, *parts, unix_s=unix_s)
        with suppress(StoreError):  # this result is stored; the next one prunes again
            await asyncio.to_thread(
                lambda: self.db.delete_older_samples(_max_results_with_requests())
            )
        return result_id

    async def set_result_note(self, result_id: int, note: str) -> None:
        """Replace the note of a result."""
        await asyncio.to_thread(self.db.set_note, result_id, note)
        await self.refresh_result_rows()

    async def set_result_tags(self, result_id: int, tags: Sequence[str]) -> None:
        """Replace the tags of a result. Raises InputError for an invalid tag."""
        await asyncio.to_thread(self.db.set_tags, result_id, list(map(validated_tag, tags)))
        await self.refresh_result_rows()

    def toggle_comparison_mark(self, result_id: int, mark: str) -> None:
        """Mark a result as `mark`, "A" or "B", of the next comparison. A result that has the mark
        already loses it; B then follows the cursor of the list again. Raises InputError for another
        mark."""
        name = {"A": "mark_a", "B": "mark_b"}.get(mark.upper())
        if name is None:
            raise InputError(
                f"{mark!r} is not a mark for results", next_step="give the mark A or B"
            )
        state = self._core.state
        marked = getattr(state, name) == result_id
        if name == "mark_a":
            self._core.update(mark_a=None if marked else result_id)
        elif marked and state.b_chosen:
            # B follows the cursor again, which is on this result
            self._core.update(mark_b=result_id if state.mark_a else None, b_chosen=False)
        else:
            self._core.update(mark_b=result_id, b_chosen=True)

    async def compare_result_under_cursor(self, result_id: int) -> None:
        """Let B be the result under the cursor of the list, and compare A with it, unless the user
        has marked B. A rejected result, an imported one and a run of a series are not compared."""
        state = self._core.state
        row = next((row for row in state.results if row.id == result_id), None)
        a = state.mark_a
        if a is None or row is None or not _becomes_b_under_cursor(state, row):
            return
        comparison = await self._compare_stored_results(a, result_id)
        now = self._core.state
        if (now.mark_a, now.mark_b, now.b_chosen) == (a, state.mark_b, False):
            self._core.update(mark_b=result_id, comparison=comparison)

    async def compare(self, a: int | None = None, b: int | None = None) -> Comparison:
        """Compare two results, show the comparison in the session's state, and return it. A missing
        id is that of the marked result, or else that of one of the newest results; A is then the
        older."""
        first, second = self.resolve_result_pair(
            a or self._core.state.mark_a, b or self._core.state.mark_b
        )
        comparison = await self._compare_stored_results(first, second)
        self._core.update(comparison=comparison)
        return comparison

    async def _compare_stored_results(self, a: int, b: int) -> Comparison:
        from workbench.bench.compare import compare

        return compare(
            await self.get(a), await self.get(b), quality=await self.list_quality_results()
        )

    async def list_quality_results(self) -> tuple[QualityResult, ...]:
        """Return the newest comparisons of answers, newest first."""
        return await asyncio.to_thread(self._quality_db.newest_comparisons)

    async def find_comparison_of_answers(self, a: int, b: int) -> QualityResult | None:
        """Return the newest comparison of the answers of the servers behind two results; None if
        there is none."""
        from workbench.engines.answer_settings import (
            collect_answer_settings,
            find_quality_comparison,
        )

        x, y = [(await self.get(number)).conditions for number in (a, b)]
        return find_quality_comparison(
            collect_answer_settings(x),
            collect_answer_settings(y),
            await self.list_quality_results(),
            simulated=x.simulated,
        )

    def resolve_result_pair(self, a: int | None, b: int | None) -> tuple[ResultId, ResultId]:
        """Return the ids of the two results to compare. An id that is None is replaced by the
        newest valid result other than the given one. Raises InputError if there are too few
        results."""
        given = {a, b} - {None}
        rows = (row for row in self._core.state.results if row.is_valid_own)
        others = [row.id for row in rows if row.id not in given]
        if len(others) + len(given) < 2:
            raise InputError(
                "a comparison needs two valid results",
                next_step="press b to run a benchmark, or choose two results in the Bench pane: a "
                "marks A, B marks B",
            )
        newest = iter(others)
        if b is None:
            b = next(newest)
        if a is None:
            a = next(newest)
        return a, b

    async def export_result(self, result_id: int, output_format: str) -> str:
        """Write a result as workbench-result-ID.FORM into the current directory, a simulated one as
        workbench-result-ID-simulated.FORM. Return the path. Raises InputError if the file exists or
        cannot be written."""
        from workbench.report.content import Report
        from workbench.report.registry import find_output_format

        chosen = find_output_format(output_format)
        result, known = await self.get(result_id), await self.list_quality_results()
        samples: Sequence[Mapping[str, Any]] = ()
        if chosen.with_requests:
            samples = await asyncio.to_thread(self.db.samples, result_id)
        simulated = "-simulated" if result.conditions.simulated else ""
        path = Path.cwd() / f"workbench-result-{result_id}{simulated}{chosen.suffixes[0]}"
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(chosen.render(Report.from_result(result, samples, known)))
        except OSError as error:
            raise InputError(
                f"the result could not be written to {path}: {error_reason(error)}",
                next_step="move an older file away, or export in another format",
            ) from None
        return str(path)

    async def import_results(
        self, path: str | Path, options: ImportOptions | None = None, *, tags: Sequence[str] = ()
    ) -> Sequence[ImportedResult]:
        """Store the results in a file of another tool, and return them. Nothing is stored if the
        file or a tag is not valid. A result that was stored before is not stored again."""
        from workbench.report.imports import read_results  # needed for nothing else

        checked = list(map(validated_tag, tags))
        stored = []
        for one in await asyncio.to_thread(read_results, Path(path).expanduser(), options):
            result_id = known = await asyncio.to_thread(self.db.id_of_uid, one.uid)
            if result_id is None:
                result_id = await asyncio.to_thread(
                    self.db.add,
                    one.spec,
                    one.conditions,
                    one.summary,
                    one.samples,
                    unix_s=one.unix_s,
                    uid=one.uid,
                    note=one.note,
                    tags=(*one.tags, *checked),
                )
            for compared in one.quality:
                await asyncio.to_thread(self._quality_db.add_new, compared)
            stored.append(ImportedResult(await self.get(result_id), is_new=known is None))
        await self.refresh_result_rows()
        return stored


def _advise_on_stored_result(result: BenchResult) -> tuple[Finding, ...]:
    from workbench.advisor.advisor import list_advice_findings  # loads a flag catalog
    from workbench.advisor.facts import facts_from_result

    found = list_advice_findings(facts_from_result(result))
    return tuple(f for f in found if f.level is not Level.INFO) or found


def validated_tag(tag: str) -> str:
    """Return `tag`. Raises InputError unless `tag` is one word of at most 40 characters that does
    not begin with + or -."""
    if not _TAG.fullmatch(tag):
        raise InputError(
            f"{tag!r} is not a valid tag",
            next_step="give one word of at most 40 characters that does not begin with + or -",
        )
    return tag

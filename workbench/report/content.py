"""The content of a report, independent of the output format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from enum import Enum
from typing import Any, TypeVar

from workbench.engines.answer_settings import find_sides_in_quality_comparisons
from workbench.model.bench import BenchResult, Comparison
from workbench.model.experiment import Experiment
from workbench.model.json_records import from_json, to_json
from workbench.model.lazy_dataclass import dataclass
from workbench.model.quality import QualityResult
from workbench.model.secrets import mask_data
from workbench.model.sweep import Sweep

Samples = Mapping[int, Sequence[Mapping[str, Any]]]  # raw requests by result id
Answers = tuple[tuple[str, QualityResult], ...]  # (side, comparison), the newest first
Record = TypeVar("Record")


class Layout(Enum):
    """The arrangement of a data format (JSON or CSV). REPORT writes a list of results. RESULT
    writes one result alone: as one JSON object, or as CSV rows of name and value. REQUESTS writes a
    CSV row for each request. Documents for human readers ignore the layout."""

    REPORT = "report"
    RESULT = "result"
    REQUESTS = "requests"


@dataclass(frozen=True, slots=True)
class Report:
    """The content of a report: some results, and the comparison, experiment or sweep that they
    belong to, if any. By the id of the result, `samples` has the records of its requests, and
    `answers` the comparisons of answers in which its configuration was one side."""

    results: tuple[BenchResult, ...] = ()
    samples: Samples = field(default_factory=dict)
    comparison: Comparison | None = None
    experiment: Experiment | None = None
    sweep: Sweep | None = None
    quality: QualityResult | None = None  # of the answers of A and B
    answers: Mapping[int, Answers] = field(default_factory=dict)
    layout: Layout = Layout.REPORT
    groups: tuple[tuple[int, ...], ...] = ()  # ids of the results, if groups were asked for

    @classmethod
    def from_result(
        cls,
        result: BenchResult,
        samples: Sequence[Mapping[str, Any]] = (),
        comparisons: Sequence[QualityResult] = (),
    ) -> Report:
        """Return the report for the export of one result. `samples` are the records of its
        requests. Of `comparisons`, which are comparisons of answers, the report has those in which
        the configuration of the result was one side."""
        return cls(
            (result,),
            {result.id: samples},
            answers=comparisons_by_result_id((result,), comparisons),
            layout=Layout.RESULT,
        )

    @property
    def simulated(self) -> bool:
        flags = [result.conditions.simulated for result in self.results]
        flags += [series.simulated for series in (self.experiment, self.sweep) if series]
        return any(flags)

    def with_masked_secrets(self) -> Report:
        """Return a copy of the report in which secrets, such as API keys, are masked."""
        return replace(
            self,
            results=tuple(map(_mask_secrets_of_record, self.results)),
            comparison=_mask_secrets_of_record(self.comparison),
            experiment=_mask_secrets_of_record(self.experiment),
            sweep=_mask_secrets_of_record(self.sweep),
            quality=_mask_secrets_of_record(self.quality),
            answers={
                number: tuple((side, _mask_secrets_of_record(one)) for side, one in found)
                for number, found in self.answers.items()
            },
        )


def comparisons_by_result_id(
    results: Sequence[BenchResult], comparisons: Sequence[QualityResult]
) -> dict[int, Answers]:
    """Return, by the id of the result, the comparisons of answers in which its configuration was
    one side. Results without such a comparison are left out."""
    found = {
        result.id: find_sides_in_quality_comparisons(result.conditions, comparisons)
        for result in results
    }
    return {number: answers for number, answers in found.items() if answers}


def _mask_secrets_of_record(record: Record) -> Record:
    """Return a record with its secrets masked; None as it is."""
    if record is None:
        return record
    return from_json(type(record), mask_data(to_json(record)))

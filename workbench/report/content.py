"""The content of a report, independent of the output format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, TypeVar

from workbench.model.bench import BenchResult, Comparison
from workbench.model.experiment import Experiment
from workbench.model.json_records import from_json, to_json
from workbench.model.quality import QualityResult
from workbench.model.secrets import mask_data
from workbench.model.sweep import Sweep

Samples = Mapping[int, Sequence[Mapping[str, Any]]]  # raw requests by result id
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
    belong to, if any. `samples` are the records of single requests, by the id of the result.
    """

    results: tuple[BenchResult, ...] = ()
    samples: Samples = field(default_factory=dict)
    comparison: Comparison | None = None
    experiment: Experiment | None = None
    sweep: Sweep | None = None
    quality: QualityResult | None = None  # of the answers of A and B
    layout: Layout = Layout.REPORT

    @classmethod
    def of_result(cls, result: BenchResult, samples: Sequence[Mapping[str, Any]] = ()) -> Report:
        """Return the report for the export of one result. `samples` are the records of the result's
        requests."""
        return cls((result,), {result.id: samples}, layout=Layout.RESULT)

    @property
    def simulated(self) -> bool:
        series = (self.experiment, self.sweep)
        return any(r.conditions.simulated for r in self.results) or any(
            s is not None and s.simulated for s in series
        )

    def masked(self) -> Report:
        """Return a copy of the report in which secrets, such as API keys, are masked."""
        return replace(
            self,
            results=tuple(_masked(result) for result in self.results),
            comparison=self.comparison and _masked(self.comparison),
            experiment=self.experiment and _masked(self.experiment),
            sweep=self.sweep and _masked(self.sweep),
            quality=self.quality and _masked(self.quality),
        )


def _masked(record: Record) -> Record:
    return from_json(type(record), mask_data(to_json(record)))

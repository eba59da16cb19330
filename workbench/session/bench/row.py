"""A row of the list of results, with the highest speed that the hardware allows. The row has a file
of its own, because importing the file of the session's state takes longer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.model.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from workbench.model.findings import Finding


@dataclass(frozen=True, slots=True)
class CeilingView:
    """The measured speed of a result (`measured_tok_s`, None if the result has none) and the
    highest speed that the hardware allows (`tok_s`), in tokens per second. Both are of so many
    `streams` together."""

    tok_s: float
    measured_tok_s: float | None
    basis: str
    result_id: int
    streams: int = 1


@dataclass(frozen=True, slots=True)
class SeriesView:
    """The experiment or the sweep to which a result belongs: what it is ("A/B" or "sweep"), its
    number, and what it has found (`said`)."""

    kind: str
    number: int
    said: str

    @property
    def name(self) -> str:
        """The kind and the number, such as "sweep 3"."""
        return f"{self.kind} {self.number}"


@dataclass(frozen=True, slots=True)
class BenchRow:
    """One row of the list of results."""

    id: int
    unix_s: float
    label: str  # what differs from the baseline or the run before, e.g. "max-num-seqs=512"
    model: str
    engine: str
    concurrency: int
    output_tok_s: float | None
    ttft_p50_ms: float | None
    ttft_p90_ms: float | None
    itl_mean_ms: float | None
    power_w: float | None
    tok_per_joule: float | None
    requests_ok: int
    requests_failed: int
    simulated: bool
    preset_id: str | None = None
    note: str = ""
    tags: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()  # why the result is invalid
    imported: bool = False  # measured by another tool
    series: SeriesView | None = None  # the experiment or the sweep to which it belongs
    ttft_unsure_ms: float = 0.0  # by how much the TTFT may be too high
    ttft_absent: str = ""  # why there is no TTFT, although others of the result are known
    changes: tuple[str, ...] = ()  # the differences that the label names, each by itself
    rate_error_pct: float | None = None  # standard error of the tok/s within the run
    power_absent: str = ""  # why power and energy are not known
    ceiling: CeilingView | None = None
    # the most important first; only in the row of the newest valid result
    advice: tuple[Finding, ...] = ()

    @property
    def is_valid_own(self) -> bool:
        """Whether Workbench measured the result and it is valid."""
        return not (self.imported or self.refused)

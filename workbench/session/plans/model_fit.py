"""A table of the quantizations, numbers of GPUs and context lengths with which a model fits on the
host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from workbench.engines.fit_table import CONTEXTS, FitRow, GpuGroup, group_equal_gpus, make_fit_rows
from workbench.engines.memory_estimate import GIB
from workbench.model.counts import format_four_digits, gpus_text
from workbench.model.lazy_dataclass import dataclass
from workbench.model.plan import ModelFacts
from workbench.report.blocks import SIMULATED, Alert, Block, Heading, Table, TextBlock

if TYPE_CHECKING:
    from workbench.model.gpu import Telemetry
    from workbench.model.plan import LaunchPlan

_DRIVER_USE_GIB = 0.5  # less is the driver's own


@dataclass(frozen=True, slots=True)
class FitReport:
    """A table for one model: which quantizations, numbers of GPUs and context lengths fit into the
    memory of the host's GPUs. `missing` is the reason if there is no table."""

    model: str
    engine: str
    source: str  # of the model's sizes
    contexts: tuple[int, ...]
    groups: tuple[tuple[GpuGroup, tuple[FitRow, ...]], ...] = ()
    missing: str | None = None
    simulated: bool = False

    def as_json(self) -> Mapping[str, Any]:
        return {
            "model": self.model,
            "engine": self.engine,
            "source": self.source,
            "contexts": self.contexts,
            "missing": self.missing,
            "simulated": self.simulated,
            "groups": [_group_as_json(group, rows) for group, rows in self.groups],
        }


def _group_as_json(group: GpuGroup, rows: Sequence[FitRow]) -> Mapping[str, Any]:
    return {
        "gpus": [gpu.index for gpu in group.gpus],
        "name": group.gpus[0].name,
        "memory_gib": group.total_gib,
        "free_gib": [free / GIB for free in group.free_bytes],
        "rows": list(map(asdict, rows)),
    }


def fit_report_of_plan(
    plan: LaunchPlan, telemetry: Telemetry | None, contexts: Sequence[int] = ()
) -> FitReport:
    """Return a table of the quantizations, numbers of GPUs and context lengths with which the
    plan's model fits into the GPU memory that is free now. If there is no table, `missing` of the
    report says why: for example, without `telemetry` the GPUs are not known. `contexts` are context
    lengths in tokens; () stands for the usual ones, up to the longest that the model supports."""
    facts = plan.model_facts or ModelFacts(plan.model)
    lengths = tuple(sorted(set(contexts or _default_contexts(facts))))
    report = FitReport(plan.model, plan.engine, facts.source or "no sizes", lengths)
    groups = []
    if telemetry is not None:
        report = replace(report, simulated=telemetry.simulated)
        groups = group_equal_gpus(telemetry.infos, _used_bytes_by_gpu(telemetry))
    if not facts.weight_bytes:
        missing = facts.missing or "the size of the weights is unknown"
        return replace(report, missing=missing)
    if not groups:
        return replace(report, missing="the memory of this host's GPUs is unknown")
    rows = tuple((group, tuple(make_fit_rows(plan, group, lengths))) for group in groups)
    return replace(report, groups=rows)


def _default_contexts(facts: ModelFacts) -> Sequence[int]:
    """Return the usual context lengths below the longest that the model supports, then that one. If
    it is unknown or longer than all usual ones, return the usual ones."""
    longest = facts.known_shape.max_length
    if not longest or longest > CONTEXTS[-1]:
        return CONTEXTS
    return [*(tokens for tokens in CONTEXTS if tokens < longest), longest]


def _used_bytes_by_gpu(telemetry: Telemetry) -> dict[int, int]:
    """Return the bytes of GPU memory that are in use, by GPU index; 0 if a GPU does not report
    them. Of memory that a GPU shares with the CPU, all counts as in use that the operating system
    does not report as available."""
    used = {sample.index: sample.memory_used_bytes or 0 for sample in telemetry.gpus}
    available = telemetry.host.memory_available_bytes
    if available is None:
        return used
    for gpu in telemetry.infos:
        if gpu.unified_memory and gpu.memory_total_bytes:
            used[gpu.index] = max(used.get(gpu.index, 0), gpu.memory_total_bytes - available)
    return used


_FIT_LEGEND = (
    "Below a context length: sequences of that length at once, in one replica.",
    "GiB each: weights per GPU. -: does not fit. ?: unknown. *: other files.",
    "limit: tok/s of one stream, by nominal memory bandwidth.",
    "prefill: tok/s of prompts, by computing.",
)


def fit_report_blocks(report: FitReport) -> list[Block]:
    """Return the report as blocks: for each kind of GPU the table of what fits, then what its
    columns mean. Without a table, return the reason."""
    blocks: list[Block] = [SIMULATED] if report.simulated else []
    blocks.append(TextBlock(f"{report.model}  ({report.source})", lead=True))
    if report.missing:
        return [*blocks, TextBlock(f"no answer: {report.missing}")]
    for group, rows in report.groups:
        blocks.append(Heading(_group_line(group)))
        if not rows:
            blocks.append(TextBlock("no estimate for this plan on these GPUs"))
            continue
        blocks.append(_fit_table(rows, report.contexts))
        used = group.total_gib - min(group.free_bytes) / GIB
        if used >= _DRIVER_USE_GIB and not any(row.fits for row in rows):
            stop = "Stop what uses them (x stops the server of this screen)"
            listed = "`workbench servers` lists all servers. Then look again."
            blocks.append(Alert("warning", f"next: {used:.1f} GiB are in use", (stop, listed)))
    return [*blocks, Heading("Columns"), *map(TextBlock, _FIT_LEGEND)]


def _group_line(group: GpuGroup) -> str:
    indexes = gpus_text(gpu.index for gpu in group.gpus)
    least_gib, most_gib = min(group.free_bytes) / GIB, max(group.free_bytes) / GIB
    free = f"{least_gib:.1f}"
    if most_gib - least_gib >= _DRIVER_USE_GIB:
        free = f"{least_gib:.1f} to {most_gib:.1f}"
    return f"{indexes}  {group.gpus[0].name}, {group.total_gib:.1f} GiB, {free} GiB free now"


def _fit_table(rows: Sequence[FitRow], contexts: Sequence[int]) -> Table:
    lengths = (f"{length:,}" for length in contexts)
    head = ("weights", "GPUs", "GiB each", *lengths, "limit", "prefill")
    return Table(
        head=head,
        rows=tuple(_fit_cells(row, contexts) for row in rows),
        numeric=frozenset(range(1, len(head))),
        marks=tuple("" if row.fits else "dim" for row in rows),
        importance=(0, 0, 2, *(0,) * len(contexts), 1, 3),
    )


def _fit_cells(row: FitRow, contexts: Sequence[int]) -> tuple[str, ...]:
    name = row.weights if row.in_files else f"{row.weights} *"
    size = (name, str(len(row.gpus)), f"{row.weights_gib:.1f}")
    if not row.fits:
        return (*size, *("-",) * len(contexts), "", "")
    sequences = (_sequences_text(row.sequences.get(length)) for length in contexts)
    limits = (
        _text_or_millions(one, format_four_digits(one)) if one else "?"
        for one in (row.limit_tok_s, row.prefill_tok_s)
    )
    return (*size, *sequences, *limits)


def _sequences_text(sequences: int | None) -> str:
    if sequences is None:
        return "?"
    return _text_or_millions(sequences, f"{sequences:,}") if sequences else "-"


def _text_or_millions(value: float, text: str) -> str:
    """Return `text`, the digits of `value`, or from 1,000,000 on the value in millions, such as
    "12 M"."""
    return text if value < 1e6 else f"{value / 1e6:,.0f} M"

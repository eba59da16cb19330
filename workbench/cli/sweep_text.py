"""A sweep as terminal text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workbench.model.sweep import Sweep, SweepPoint

# Title, width, value of a point, format.
_COLUMNS = (
    ("tok/s", 10, lambda p: p.tok_s, ",.1f"),
    ("tok/J", 8, lambda p: p.tok_per_joule, ".3f"),
    ("W", 7, lambda p: p.power_w, ".0f"),
    ("SM MHz", 7, lambda p: p.sm_mhz, ".0f"),
    ("°C", 5, lambda p: p.temperature_c, ".0f"),
    ("TTFT p50", 9, lambda p: p.ttft_p50_ms, ",.1f"),
    ("p99 ms", 9, lambda p: p.ttft_p99_ms, ",.1f"),
    ("ITL ms", 7, lambda p: p.itl_mean_ms, ".2f"),
)


def sweep_lines(sweep: Sweep) -> Sequence[str]:
    """Return the table of points (`>` marks the knee), then the knee, notes, error and the command to resume."""
    host = f"  on {sweep.host}" if sweep.host else ""
    simulated = "  SIMULATED" if sweep.simulated else ""
    width = max(5, *(len(p.label) for p in sweep.points)) if sweep.points else 5
    lines = [f"sweep {sweep.id}: {sweep.name}{host}  {sweep.state}{simulated}"]
    lines.append("  " + " " * width + "".join(f" {title:>{size}}" for title, size, *_ in _COLUMNS))
    for index, point in enumerate(sweep.points):
        mark = ">" if index == sweep.knee else " "
        lines.append(f"{mark} {point.label:<{width}}" + "".join(_cell(point, c) for c in _COLUMNS) + _remark(point))
    if sweep.knee_text:
        lines.append(f"knee: {sweep.knee_text}")
    lines += [f"note: {text}" for text in sweep.notes]
    if sweep.error:
        lines.append(f"error: {sweep.error}")
    if (command := resume_command(sweep)) is not None:
        lines.append(f"to resume it: {command}")
    return lines


def resume_command(sweep: Sweep) -> str | None:
    """Return the command that resumes a sweep which ended early, or None if the sweep cannot be resumed."""
    if not sweep.resumable or sweep.state == "done":
        return None
    return f"workbench {'' if sweep.kind == 'flag' else 'gpu '}sweep resume {sweep.id}"


def _cell(point: SweepPoint, column: tuple[str, int, Any, str]) -> str:
    _, size, value_of, shape = column
    value = value_of(point)
    return f" {'-' if value is None else format(value, shape):>{size}}"


def _remark(point: SweepPoint) -> str:
    if point.state == "done":
        return f"  in force: {point.in_force}" if point.in_force else ""
    state = "FAILED" if point.state == "failed" else point.state
    return f"  {state}: {point.error}" if point.error else f"  {state}"

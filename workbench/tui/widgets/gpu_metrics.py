"""The metrics of a GPU on the main screen: the value, its text, and the fixed scale of its
graph."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from workbench.model.known_values import known_values
from workbench.model.lazy_dataclass import dataclass
from workbench.model.pcie_link import pcie_link_mb_s
from workbench.tui.formats import (
    GIB,
    NA,
    enclose_nonempty_text,
    gib_text,
    path_end_text,
    short_gpu_name,
)
from workbench.tui.widgets.graph import mean_value

if TYPE_CHECKING:
    from workbench.model.gpu import GpuInfo, GpuSample
    from workbench.model.timeline import History
    from workbench.session.state import SessionState
    from workbench.tui.widgets.time_axis import Window

TEMPERATURE_FLOOR_C = 20.0  # room temperature: the graph starts here
UNKNOWN_LINK_MB_S = 31_504.0  # generation 4 with 16 lanes
UNKNOWN_TOP_W = 600.0
UNIFIED_TOP_W = 150.0  # of cards that share the memory of the host; a GB10 reports no limit


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric of a GPU. `field` is its field in GpuSample and in the history, and `unit` follows
    its value. `floor` and `top` are the ends of its graph's scale, which never change for a GPU.
    `lines` are fields with limits, which are drawn as lines across the graph. `setting` is the
    beginning of the names of the GPU settings that change these limits. `own_text` makes the text
    of a metric whose present value has more than a number and the unit."""

    label: str
    field: str
    unit: str
    top: Callable[[GpuInfo | None], float]
    own_text: Callable[[float, GpuSample, GpuInfo | None], str] | None = None
    floor: float = 0.0
    lines: tuple[str, ...] = ()
    setting: str = ""

    def value(self, sample: GpuSample) -> float | None:
        value: float | None = getattr(sample, self.field)
        return value

    def is_reported_by_any(self, samples: Sequence[GpuSample]) -> bool:
        """Return whether at least one of these GPUs reports the metric."""
        return any(self.value(sample) is not None for sample in samples)

    def text(self, sample: GpuSample, info: GpuInfo | None) -> str:
        """Return the present value as text; "n/a" if the GPU does not report it."""
        value = self.value(sample)
        if value is None or self.own_text is None:
            return self.format_value(value)
        return self.own_text(value, sample, info)

    def format_value(self, value: float | None) -> str:
        """Return a value from the history as text with its unit; "n/a" for None."""
        if value is None:
            return NA
        if self.field == "memory_used_bytes":
            return f"{gib_text(value)}{self.unit}"
        return f"{value:.0f}{self.unit}"


def power_limit_or_max_w(sample: GpuSample, info: GpuInfo | None) -> float | None:
    """Return the power limit in force, or else the highest one that the GPU allows, in watts; None
    if neither is known."""
    if sample.limit_w or info is None:
        return sample.limit_w
    return info.power_max_w


def memory_size_bytes(sample: GpuSample | None, info: GpuInfo | None) -> int | None:
    """Return the size of the GPU's memory; None if it is not known."""
    for known in (sample, info):
        if known is not None and known.memory_total_bytes:
            return known.memory_total_bytes
    return None


def _power_text(power_w: float, sample: GpuSample, info: GpuInfo | None) -> str:
    limit = power_limit_or_max_w(sample, info)
    if not limit:
        return f"{power_w:.0f}W"
    return f"{power_w:.0f}/{limit:.0f}W"


def _memory_text(used_bytes: float, sample: GpuSample, info: GpuInfo | None) -> str:
    used = gib_text(used_bytes, digits=int(used_bytes < 100 * GIB))
    total = memory_size_bytes(sample, info)
    if not total:
        return f"{used}G"
    return f"{used}/{total / GIB:.0f}G"


def _pcie_text(rate_mb_s: float, sample: GpuSample, info: GpuInfo | None) -> str:
    if rate_mb_s < 100:
        return f"{rate_mb_s:.0f}M/s"
    return f"{rate_mb_s / 1000:.1f}G/s"


def _pcie_scale_top_mb_s(info: GpuInfo | None) -> float:
    generation, lanes = 4, 16
    if info is not None:
        generation = info.pcie_gen_max or generation
        lanes = info.pcie_width_max or lanes
    return pcie_link_mb_s(generation, lanes) or UNKNOWN_LINK_MB_S


def _power_scale_top_w(info: GpuInfo | None) -> float:
    if info is None:
        return UNKNOWN_TOP_W
    usual_w = UNKNOWN_TOP_W
    if info.unified_memory:
        usual_w = UNIFIED_TOP_W
    return info.power_max_w or info.power_default_w or usual_w


def _scale_top_from_field(field: str, default_top: float) -> Callable[[GpuInfo | None], float]:
    """Return the function for a scale up to `field` of GpuInfo, or up to `default_top` if the GPU
    does not report it."""
    return lambda info: float(getattr(info, field, None) or default_top)


def _percent_scale_top(info: GpuInfo | None) -> float:
    return 100.0


UTIL = Metric("util", "gpu_util_pct", "%", _percent_scale_top)
POWER = Metric(
    "power",
    "power_w",
    "W",
    _power_scale_top_w,
    _power_text,
    lines=("limit_w",),
    setting="power_limit",
)
SM = Metric(
    "sm",
    "sm_mhz",
    "MHz",
    _scale_top_from_field("sm_max_mhz", 3000),
    lines=("sm_lock_max_mhz", "sm_lock_min_mhz"),
    setting="gpu_clocks",
)
VRAM = Metric(
    "vram",
    "memory_used_bytes",
    "G",
    _scale_top_from_field("memory_total_bytes", 80 * GIB),
    _memory_text,
)
TEMPERATURE = Metric(
    "temp",
    "temperature_c",
    "C",
    _scale_top_from_field("temperature_slowdown_c", 95),
    floor=TEMPERATURE_FLOOR_C,
)
MEM_CLOCK = Metric(
    "mem",
    "memory_mhz",
    "MHz",
    _scale_top_from_field("memory_max_mhz", 14000),
    setting="memory_clocks",
)
PCIE = Metric("pcie", "pcie_rx_mb_s", "M/s", _pcie_scale_top_mb_s, _pcie_text)
FAN = Metric("fan", "fan_pct", "%", _percent_scale_top)

FIRST = (UTIL, POWER, SM)  # always drawn
# where there is room: the first ones that the host reports
SECOND = (VRAM, TEMPERATURE, MEM_CLOCK, PCIE, FAN)


def is_scale_top_reported(metric: Metric, info: GpuInfo | None) -> bool:
    """Return whether the driver reports the limit that is the top of the metric's scale. Return
    True for a metric other than power and SM clock."""
    if metric not in (POWER, SM):
        return True
    if info is None:
        return False
    if metric is SM:
        return bool(info.sm_max_mhz)
    return bool(info.power_max_w or info.power_default_w)


def gpu_title(sample: GpuSample, info: GpuInfo | None) -> str:
    """Return the title of a GPU, such as "GPU0 RTX PRO 6000 96G", with "unified" if the GPU shares
    the memory of the host."""
    return f"{gpu_name(sample, info)} {gpu_model_title(info, sample)}".strip()


def gpu_name(sample: GpuSample, info: GpuInfo | None, max_cells: int = 80) -> str:
    """Return the name of a GPU, such as "GPU0", or "spark-02 GPU1" in a cluster. If the name is
    longer than `max_cells` cells, return only the end of the node's name, because the names of
    nodes differ there."""
    own = f"GPU{sample.index}"
    if info is None or not info.node:
        return own
    if len(info.node) + len(own) + 1 <= max_cells:
        return f"{info.node} {own}"
    return path_end_text(shorten_node_name(info.node, max_cells), max_cells)


def shorten_node_name(node: str, max_cells: int) -> str:
    """Return the name of a cluster's node. If it has more than `max_cells` cells, return only the
    part that follows its machine or user: "spark-01" of "nvidia@spark-01", "pct:101" of
    "proxmox/pct:101"."""
    if len(node) <= max_cells:
        return node
    return re.split("[@/]", node)[-1]


def gpu_model_title(info: GpuInfo | None, sample: GpuSample | None = None) -> str:
    """Return the short name of a GPU with its memory, such as "RTX PRO 6000 96G"; "" if the
    properties of the GPU are not known."""
    if info is None:
        return ""
    name, total = short_gpu_name(info.name), memory_size_bytes(sample, info)
    if total and not name.endswith("GB"):
        name += f" {total / GIB:.0f}G"
    if info.unified_memory:
        name += " unified"
    return name


def replace_means_at_limit_changes(
    values: Sequence[float | None], next_value: float | None
) -> list[float | None]:
    """Return the values of a limit in successive cells. A limit changes in steps, so the mean of a
    cell in which it changed is a value that it never had: the value after the change replaces it.
    `next_value` is the value that follows the last cell, None if it is not known."""
    found = list(values)
    distinct = {next_value, *values} - {None}
    if len(distinct) <= 1:
        return found  # the limit has not changed
    following = (*values[1:], next_value)
    for index, (last, value, later) in enumerate(
        zip((None, *values), values, following, strict=False)
    ):
        if last is None or value is None or later is None:
            continue
        if last < value < later or later < value < last:
            found[index] = later
    return found


def sample_at_cursor(history: History, window: Window, sample: GpuSample) -> GpuSample:
    """Return a GpuSample for the GPU of `sample` with values of the past. They are the means over
    the seconds of the graph's cell at the time cursor, but the limit is one that was in force."""
    from workbench.model.gpu import GpuSample

    at_s = window.cursor_middle_s

    def mean(field: str) -> float | None:
        return history.cell_means((sample.index, field), at_s, window.cell_s, 1)[0]

    whole = {}
    for metric in (*FIRST, *SECOND):
        value = mean(metric.field)
        if value is not None and metric not in (POWER, PCIE):
            value = round(value)
        whole[metric.field] = value
    key, end_s = (sample.index, "limit_w"), at_s + 0.5 * window.cell_s - 1.0
    # of the cells before, at and after the cursor
    limits = history.cell_means(key, at_s + window.cell_s, window.cell_s, 3)
    following = limits[2]
    if following is None:
        following = history.value_at(key, end_s)
    limit_w = replace_means_at_limit_changes(limits[:2], following)[1]
    return GpuSample(sample.index, sample.uuid, power_limit_enforced_w=limit_w, **whole)  # type: ignore[arg-type]


def group_label_value_and_note(
    metric: Metric, values: Sequence[float | None], graph_rows: int
) -> tuple[str, str, str]:
    """Return (label, value, note) as texts beside the graph of several GPUs: the highest, the mean
    and the lowest of their `values`. If the graph is one row high, the texts have only
    lowest-highest, and if it is two rows high, no mean. The value is "n/a" if none is known."""
    known = known_values(values)
    if not known:
        return metric.label, NA, ""
    low, high = metric.format_value(min(known)), metric.format_value(max(known))
    mean = metric.format_value(mean_value(known))
    if graph_rows == 1:
        return metric.label, f"{low.removesuffix(metric.unit)}-{high}", ""
    named = ((metric.label, high), ("mean", mean), ("min", low))
    top, middle, bottom = (f"{word}{value:>{12 - len(word)}}" for word, value in named)
    if graph_rows == 2:
        return top, bottom, ""
    return top, middle, bottom


def value_range_and_note(
    metric: Metric, samples: Sequence[GpuSample], info: GpuInfo | None
) -> tuple[str, str]:
    """Return (value, note) as texts behind the graph of several GPUs over the whole width. The
    value is one number if all GPUs have the same, else the lowest and the highest; "n/a" if none is
    known. The note is the limit, such as "of 600W"; "" without one."""
    values = [metric.value(s) for s in samples]
    known = known_values(values)
    if not known:
        return NA, ""
    low, high = metric.format_value(min(known)), metric.format_value(max(known))
    note = ""
    if metric is not UTIL and is_scale_top_reported(metric, info):
        note = f"of {metric.format_value(metric.top(info))}"
    if low == high:
        if metric is UTIL and len(known) > 1:
            note = "all alike"
        return metric.text(samples[0], info), note
    limit = power_limit_or_max_w(samples[0], info)
    if metric is POWER and limit is not None:
        note = f"of {limit:.0f}W"
    unit = "" if metric is SM else metric.unit  # the note has it
    return f"{low.removesuffix(metric.unit)}-{high.removesuffix(metric.unit)}{unit}", note


def other_node_warning(state: SessionState) -> str:
    """Return a warning that the selected server runs on another node than the GPUs on the screen;
    "" if it does not."""
    server = state.server_with_process
    if server is None:
        return ""
    gpus = f"; these are the GPUs of {state.host.name}"
    return enclose_nonempty_text("the server runs on node ", server.node, gpus)

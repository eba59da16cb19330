"""The metrics of a GPU on the main screen: the value, its text, and the fixed scale of its graph."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from workbench.model.lazy_dataclass import dataclass
from workbench.model.pcie_link import link_mb_s
from workbench.tui.formats import GIB, NA, short_gpu_name
from workbench.tui.glyphs import G

if TYPE_CHECKING:
    from workbench.model.gpu import GpuInfo, GpuSample
    from workbench.model.timeline import History
    from workbench.session.state import SessionState
    from workbench.tui.widgets.time_axis import Window

TEMPERATURE_FLOOR_C = 20.0  # room temperature: the graph starts here
UNKNOWN_LINK_MB_S = 31_504.0  # generation 4 with 16 lanes
UNKNOWN_TOP_W, UNIFIED_TOP_W = 600.0, 150.0  # of cards that report no limit; a GB10 does not


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric of a GPU. `field` is its field in GpuSample and in the history, and `unit` follows
    its value. `floor` and `top` are the ends of its graph's scale, which never change for a GPU.
    `lines` are fields with limits, which are drawn as lines across the graph. `setting` is the
    beginning of the names of the GPU settings that change these limits."""

    label: str
    field: str
    unit: str
    text: Callable[[GpuSample, GpuInfo | None], str]
    top: Callable[[GpuInfo | None], float]
    floor: float = 0.0
    lines: tuple[str, ...] = ()
    setting: str = ""

    def value(self, sample: GpuSample) -> float | None:
        value: float | None = getattr(sample, self.field)
        return value

    def figure(self, value: float | None) -> str:
        """Return a value from the history as text with its unit; "n/a" for None."""
        if value is None:
            return NA
        return (
            f"{value / GIB:.1f}{self.unit}"
            if self.field == "memory_used_bytes"
            else f"{value:.0f}{self.unit}"
        )


def limit_w(s: GpuSample, i: GpuInfo | None) -> float | None:
    return s.limit_w or (i.power_max_w if i else None)


def total_bytes(s: GpuSample | None, i: GpuInfo | None) -> int | None:
    return (s.memory_total_bytes if s else None) or (i.memory_total_bytes if i else None)


def _power_text(s: GpuSample, i: GpuInfo | None) -> str:
    if s.power_w is None:
        return NA
    limit = limit_w(s, i)
    return f"{s.power_w:.0f}/{limit:.0f}W" if limit else f"{s.power_w:.0f}W"


def _memory_text(s: GpuSample, i: GpuInfo | None) -> str:
    if s.memory_used_bytes is None:
        return NA
    total = total_bytes(s, i)
    used = s.memory_used_bytes / GIB
    text = f"{used:.1f}" if used < 100 else f"{used:.0f}"
    return f"{text}/{total / GIB:.0f}G" if total else f"{text}G"


def _pcie_text(s: GpuSample, i: GpuInfo | None) -> str:
    rate = s.pcie_rx_mb_s
    if rate is None:
        return NA
    return f"{rate / 1000:.1f}G/s" if rate >= 100 else f"{rate:.0f}M/s"


def _pcie_top(i: GpuInfo | None) -> float:
    gen, lanes = (i.pcie_gen_max if i else None) or 4, (i.pcie_width_max if i else None) or 16
    return link_mb_s(gen, lanes) or UNKNOWN_LINK_MB_S


def _power_top(i: GpuInfo | None) -> float:
    if i is None:
        return UNKNOWN_TOP_W
    return (
        i.power_max_w or i.power_default_w or (UNIFIED_TOP_W if i.unified_memory else UNKNOWN_TOP_W)
    )


def _number_reader(field: str, unit: str) -> Callable[[GpuSample, GpuInfo | None], str]:
    def text(s: GpuSample, i: GpuInfo | None) -> str:
        value = getattr(s, field)
        return NA if value is None else f"{value:.0f}{unit}"

    return text


UTIL = Metric("util", "gpu_util_pct", "%", _number_reader("gpu_util_pct", "%"), lambda i: 100.0)
POWER = Metric(
    "power", "power_w", "W", _power_text, _power_top, lines=("limit_w",), setting="power_limit"
)
SM = Metric(
    "sm",
    "sm_mhz",
    "MHz",
    _number_reader("sm_mhz", "MHz"),
    lambda i: float((i.sm_max_mhz if i else None) or 3000),
    lines=("sm_lock_max_mhz", "sm_lock_min_mhz"),
    setting="gpu_clocks",
)
VRAM = Metric(
    "vram",
    "memory_used_bytes",
    "G",
    _memory_text,
    lambda i: float((i.memory_total_bytes if i else None) or 80 * GIB),
)
TEMPERATURE = Metric(
    "temp",
    "temperature_c",
    "C",
    _number_reader("temperature_c", "C"),
    lambda i: (i.temperature_slowdown_c if i else None) or 95.0,
    TEMPERATURE_FLOOR_C,
)
MEM_CLOCK = Metric(
    "mem",
    "memory_mhz",
    "MHz",
    _number_reader("memory_mhz", "MHz"),
    lambda i: float((i.memory_max_mhz if i else None) or 14000),
    setting="memory_clocks",
)
PCIE = Metric("pcie", "pcie_rx_mb_s", "M/s", _pcie_text, _pcie_top)
FAN = Metric("fan", "fan_pct", "%", _number_reader("fan_pct", "%"), lambda i: 100.0)

FIRST = (UTIL, POWER, SM)  # always drawn
# where there is room: the first ones that the host reports
SECOND = (VRAM, TEMPERATURE, MEM_CLOCK, PCIE, FAN)


def is_top_known(metric: Metric, info: GpuInfo | None) -> bool:
    """Return whether the top of the metric's scale is a limit that the driver reports."""
    if metric is POWER:
        return bool(info and (info.power_max_w or info.power_default_w))
    return metric is not SM or bool(info and info.sm_max_mhz)


def gpu_title(sample: GpuSample, info: GpuInfo | None) -> str:
    """Return the title of a GPU, such as "GPU0 RTX PRO 6000 96G", with "unified" if the GPU shares
    the memory of the host."""
    return f"{gpu_name(sample, info)} {card_title(info, sample)}".strip()


def gpu_name(sample: GpuSample, info: GpuInfo | None, room: int = 80) -> str:
    """Return the name of a GPU, such as "GPU0", or "spark-02 GPU1" in a cluster. If the name is
    longer than `room` cells, return only the end of the node's name, because the names of nodes
    differ there."""
    own = f"GPU{sample.index}"
    if info is None or not info.node:
        return own
    if len(info.node) + len(own) + 1 <= room:
        return f"{info.node} {own}"
    node = node_name(info.node, room)
    return node if len(node) <= room else f"{G.more}{node[1 - room :]}"


def node_name(node: str, room: int) -> str:
    """Return the name of a cluster's node. If it has more than `room` cells, return only the part
    that follows its machine or user: "spark-01" of "nvidia@spark-01", "pct:101" of
    "proxmox/pct:101"."""
    return node if len(node) <= room else re.split("[@/]", node)[-1]


def card_title(info: GpuInfo | None, sample: GpuSample | None = None) -> str:
    """Return the short name of a GPU with its memory, such as "RTX PRO 6000 96G"; "" if the
    properties of the GPU are not known."""
    if info is None:
        return ""
    name, total = short_gpu_name(info.name), total_bytes(sample, info)
    size = f" {total / GIB:.0f}G" if total and not name.endswith("GB") else ""
    return f"{name}{size}{' unified' if info.unified_memory else ''}"


def step_values(values: Sequence[float | None], after: float | None) -> list[float | None]:
    """Return the values of a limit in successive cells. A limit changes in steps, so the mean of a
    cell in which it changed is a value that it never had: the value after the change replaces it.
    `after` is the value that follows the last cell, None if it is not known."""
    found = list(values)
    distinct = {after, *values} - {None}
    if len(distinct) <= 1:
        return found  # the limit has not changed
    following = (*values[1:], after)
    for index, (last, value, later) in enumerate(
        zip((None, *values), values, following, strict=False)
    ):
        if last is None or value is None or later is None:
            continue
        if min(last, later) < value < max(last, later):
            found[index] = later
    return found


def past_sample(history: History, window: Window, sample: GpuSample) -> GpuSample:
    """Return a GpuSample for the GPU of `sample` with values of the past. They are the means over
    the seconds of the graph's cell at the time cursor, but the limit is one that was in force."""
    from workbench.model.gpu import GpuSample

    at_s = ((window.cursor or 0) + 0.5) * window.cell_s

    def mean(field: str) -> float | None:
        return history.cells((sample.index, field), at_s, window.cell_s, 1)[0]

    whole = {}
    for metric in (*FIRST, *SECOND):
        value = mean(metric.field)
        if value is not None and metric not in (POWER, PCIE):
            value = round(value)
        whole[metric.field] = value
    key, end_s = (sample.index, "limit_w"), at_s + 0.5 * window.cell_s - 1.0
    around = history.cells(key, at_s + window.cell_s, window.cell_s, 3)
    following = around[2] if around[2] is not None else history.value_at(key, end_s)
    limit_w = step_values(around[:2], following)[1]
    return GpuSample(sample.index, sample.uuid, power_limit_enforced_w=limit_w, **whole)  # type: ignore[arg-type]


def group_text(metric: Metric, values: Sequence[float | None], rows: int) -> tuple[str, str, str]:
    """Return (label, value, note) as texts beside the graph of several GPUs: the highest, the mean
    and the lowest of their `values`. If the graph is one row high, the texts have only
    lowest-highest, and if it is two rows high, no mean."""
    known = [v for v in values if v is not None]
    if not known:
        return metric.label, NA, ""
    low, mean, high = (metric.figure(v) for v in (min(known), sum(known) / len(known), max(known)))
    if rows == 1:
        return metric.label, f"{low.removesuffix(metric.unit)}-{high}", ""
    texts = [
        f"{word}{value:>{12 - len(word)}}"
        for word, value in ((metric.label, high), ("mean", mean), ("min", low))
    ]
    return (texts[0], texts[2], "") if rows == 2 else (texts[0], texts[1], texts[2])


def stacked_text(
    metric: Metric, samples: Sequence[GpuSample], info: GpuInfo | None
) -> tuple[str, str]:
    """Return (value, note) as texts behind the graph of several GPUs over the whole width: one
    value if all have the same, else the lowest and the highest."""
    values = [metric.value(s) for s in samples]
    known = [v for v in values if v is not None]
    if not known:
        return NA, ""
    low, high = metric.figure(min(known)), metric.figure(max(known))
    note = ""
    if metric is not UTIL and is_top_known(metric, info):
        note = f"of {metric.figure(metric.top(info))}"
    if low == high:
        alike = metric is UTIL and len(known) > 1
        return metric.text(samples[0], info), "all alike" if alike else note
    limit = limit_w(samples[0], info) if metric is POWER else None
    if limit is not None:
        note = f"of {limit:.0f}W"
    unit = "" if metric is SM else metric.unit  # the note has it
    return f"{low.removesuffix(metric.unit)}-{high.removesuffix(metric.unit)}{unit}", note


def other_node_warning(state: SessionState) -> str:
    """Return a warning that the selected server runs on another node than the GPUs on the screen;
    "" if it does not."""
    server = state.server
    if server is None or server.node is None or not server.alive:
        return ""
    return f"the server runs on node {server.node}; these are the GPUs of {state.host.name}"

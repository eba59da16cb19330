"""Equal GPUs that have come to work differently, so that one graph would hide it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from workbench.model.known_values import known_values
from workbench.model.timeline import History
from workbench.tui.widgets.gpu_metrics import FIRST
from workbench.tui.widgets.strip_layout import Group

if TYPE_CHECKING:
    from workbench.model.gpu import GpuInfo

APART = 0.10  # of the scale of a metric, from which two GPUs are not alike
TOGETHER = 0.05  # below which GPUs that were not alike are alike again
LOOKED_AT_S = 10  # whose mean is compared: one second says little
EVERY_S = 5.0  # between two looks
KEPT_S = 60.0  # for which a division stays: graphs that come and go cannot be read
MOST_PARTS = 3

ScaleFractions = Mapping[int, Sequence[float | None]]  # of the scale of each metric, by GPU


class UnlikeGpus:
    """How the equal GPUs of each group are divided into parts that are alike."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._parts: dict[Group, tuple[Group, ...]] = {}
        self._until_s: dict[Group, float] = {}  # for which the parts stay

    def split_group_if_unlike(
        self, group: Group, info: GpuInfo | None, now_s: float
    ) -> tuple[Group, ...]:
        """Return the parts of a group of equal GPUs, one part while all are alike."""
        if len(group) == 1:
            return (group,)
        kept = self._parts.get(group, (group,))
        left_s = self._until_s.get(group, 0.0) - now_s
        if 0.0 < left_s <= KEPT_S:  # else the clock was set back
            return kept
        shares = {index: self._recent_mean_scale_fractions(index, info, now_s) for index in group}
        parts = _split_into_alike_groups(group, shares)
        if len(parts) == 1 and len(kept) > 1 and not _are_gpus_alike(group, shares, TOGETHER):
            parts = kept
        stays_s = KEPT_S if len(parts) > 1 else EVERY_S
        self._parts[group], self._until_s[group] = parts, now_s + stays_s
        return parts

    def _recent_mean_scale_fractions(
        self, gpu_index: int, info: GpuInfo | None, now_s: float
    ) -> list[float | None]:
        """Return the mean of each metric of FIRST over the last seconds, as a fraction of its
        scale; None for a metric with few readings."""
        shares: list[float | None] = []
        for metric in FIRST:
            cells = self._history.cell_means((gpu_index, metric.field), now_s, 1, LOOKED_AT_S)
            known = known_values(cells)
            share = None
            if len(known) >= LOOKED_AT_S // 2:
                share = sum(known) / len(known) / max(metric.top(info), 1e-9)
            shares.append(share)
        return shares


def _are_gpus_alike(
    indexes: Sequence[int], fractions_by_gpu: ScaleFractions, max_difference: float
) -> bool:
    """Return whether no metric differs between these GPUs by more than `max_difference` of its
    scale. A GPU that does not report a metric does not count for it."""
    for values in zip(*(fractions_by_gpu[index] for index in indexes), strict=True):
        known = known_values(values)
        if known and max(known) - min(known) > max_difference:
            return False
    return True


def _split_into_alike_groups(group: Group, fractions_by_gpu: ScaleFractions) -> tuple[Group, ...]:
    """Return the GPUs in at most MOST_PARTS parts: each GPU is in the first part with which it is
    alike, and the last part has all others."""
    parts: list[list[int]] = []
    for index in group:
        part = next(
            (one for one in parts if _are_gpus_alike([*one, index], fractions_by_gpu, APART)), None
        )
        if part is not None:
            part.append(index)
        elif len(parts) < MOST_PARTS:
            parts.append([index])
        else:
            parts[-1].append(index)
    return tuple(tuple(sorted(part)) for part in parts)

"""Equal GPUs that come to work differently have graphs of their own, or are named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.fake_canned import NOW
from support.fake_session import FakeSession

from workbench.model.gpu import GpuSample
from workbench.model.timeline import History
from workbench.tui.widgets.graph import Graph, draw_graph
from workbench.tui.widgets.unlike_gpus import KEPT_S, UnlikeGpus


class OneSlow(FakeSession):
    """A session whose last GPU has a low clock."""

    def sample(self, index: int, tick: int) -> GpuSample:
        same = super().sample(0, tick)
        slow = index == self.gpu_count - 1
        return replace(
            super().sample(index, tick),
            gpu_util_pct=same.gpu_util_pct,
            power_w=same.power_w,
            sm_mhz=800 if slow else 2000,
        )


def used(utils: list[float], at_s: float, history: History | None = None) -> History:
    history = history or History()
    for second in range(12):
        for index, util in enumerate(utils):
            history.add((index, "gpu_util_pct"), at_s - second, util)
    return history


def test_gpus_are_apart_from_ten_percent_and_stay_so_for_a_while() -> None:
    group = (0, 1, 2, 3)
    history = used([95.0, 90.0, 94.0, 92.0], NOW)
    unlike = UnlikeGpus(history)
    assert unlike.split_group_if_unlike(group, None, NOW) == (group,)
    at_s = NOW + 30
    used([95.0, 90.0, 40.0, 92.0], at_s, history)
    apart = ((0, 1, 3), (2,))
    assert unlike.split_group_if_unlike(group, None, at_s) == apart
    used([95.0] * 4, at_s + 20, history)
    # graphs that come and go are not read
    assert unlike.split_group_if_unlike(group, None, at_s + 20) == apart
    used([95.0, 93.0, 88.0, 95.0], at_s + KEPT_S + 1, history)
    assert unlike.split_group_if_unlike(group, None, at_s + KEPT_S + 1) == apart  # 7 % is neither
    later_s = at_s + 2 * KEPT_S + 2
    used([95.0, 93.0, 93.0, 95.0], later_s, history)
    assert unlike.split_group_if_unlike(group, None, later_s) == (group,)


def test_many_unlike_gpus_have_at_most_three_parts() -> None:
    history = used([n * 97 % 101 for n in range(16)], NOW)
    parts = UnlikeGpus(history).split_group_if_unlike(tuple(range(16)), None, NOW)
    assert len(parts) == 3 and sorted(i for part in parts for i in part) == list(range(16))


@pytest.mark.parametrize(
    ("gpus", "size", "names"),
    [(4, (120, 40), ("GPU0-2", "GPU3")), (16, (120, 40), ("GPU0-14", "GPU15"))],
)
def test_an_unlike_gpu_has_graphs_of_its_own(
    drive: Any, gpus: int, size: tuple[int, int], names: tuple[str, str]
) -> None:
    async def scenario(d: Any) -> None:
        strip = d.app.main.strip
        await d.until(lambda: len(strip.arranged.groups) == 2)
        shown = [d.row(n) for n in range(2, 2 + 6)]
        assert shown[0].startswith(names[0]) and shown[3].startswith(names[1] + " "), shown
        assert strip.arranged.stacked and "2000" in shown[2] and "800" in shown[5]
        await d.press("F", "F")  # the user's choice
        await d.until(lambda: len(strip.arranged.groups) == 1)

    drive(scenario, session=OneSlow(gpus), size=size)


def test_an_unlike_gpu_is_named_where_it_has_no_room(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        await d.until(lambda: "GPU3 differs F unfolds" in d.row(1))
        assert d.app.main.strip.size.height == 5

    drive(scenario, session=OneSlow(4), size=(80, 24))


def test_a_graph_is_brighter_where_its_values_are_higher() -> None:
    values: list[float | None] = [5.0, 5.0, 30.0, 30.0, 90.0, 90.0, None, None]
    (row,) = draw_graph(Graph("util", "", values, 100.0, role="util", per_cell=2), 1)
    cells = [role for text, role in row for _ in text]
    assert cells[:3] == ["util low", "util low", "util high"]
    higher = draw_graph(Graph("util", "", values, 100.0, role="util", per_cell=2), 3)
    assert [role for rows in higher for _, role in rows] == ["util high", "util", "util low"]
    stale = draw_graph(Graph("util", "", values, 100.0, role="dim", per_cell=2), 1)
    assert stale[0][0][1] == "dim"

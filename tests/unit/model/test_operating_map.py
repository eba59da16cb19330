"""The operating map of a search for users or a sweep of the concurrency."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support import made_results

from workbench.model.engine_live import EngineView
from workbench.model.operating_map import operating_map_from_sweep, point_of_live_server
from workbench.model.sweep import Sweep, SweepPoint, SweepSpec
from workbench.report import plots

LEVELS = {16: "holds", 8: "holds", 32: "fails", 24: "open", 64: "fails"}


def search() -> Sweep:
    points = tuple(
        SweepPoint(
            f"{users} users",
            float(users),
            "done",  # type: ignore[arg-type]
            tok_s=100.0 * users**0.5,
            tok_per_joule=2.0,
            slo_verdict=verdict,
            gpus=2,
        )
        for users, verdict in LEVELS.items()
    )
    spec = SweepSpec(("8", "64"), run_id="r1")
    return replace(made_results.sweep(), kind="users", points=points, knee=0, spec=spec)


def test_the_map_has_all_levels_and_the_two_between_which_the_slo_ends() -> None:
    found = operating_map_from_sweep(search())
    assert found is not None and found.gpus == 2
    assert [point.users for point in found.points] == [8, 16, 24, 32, 64]
    assert found.holds is not None and found.fails is not None
    assert (found.holds.users, found.fails.users) == (16, 32)
    assert (found.holds.user_tok_s, found.holds.gpu_tok_s) == (25.0, 200.0)


def test_the_reports_of_a_search_and_of_a_concurrency_sweep_have_the_map() -> None:
    over_users = [
        plot for plot in plots.sweep_plots(search()) if plot.caption.startswith("Operating")
    ]
    assert [plot.caption.split(" over ")[0] for plot in over_users] == [
        "Operating map: tokens per second of a GPU",
        "Operating map: tokens per joule",
    ]
    assert all("holds 16 users" in plot.svg and "fails 32 users" in plot.svg for plot in over_users)
    made = made_results.sweep()
    streams = replace(made, points=tuple(replace(point, gpus=1) for point in made.points))
    captions = [plot.caption for plot in plots.sweep_plots(streams)]
    assert "of a stream, from 1 stream (right) to 256 streams" in captions[0]


@pytest.mark.parametrize(
    "other",
    [
        replace(search(), kind="power_limit_w"),
        replace(search(), points=(replace(search().points[0], gpus=None),)),
        replace(
            search(), points=tuple(replace(p, gpus=n) for n, p in enumerate(search().points, 1))
        ),
        replace(search(), points=()),
    ],
)
def test_without_users_or_gpus_there_is_no_map(other: Sweep) -> None:
    assert operating_map_from_sweep(other) is None
    assert not any(plot.caption.startswith("Operating") for plot in plots.sweep_plots(other))


def test_the_server_of_the_search_is_on_its_map_while_it_answers() -> None:
    values = {"running": 10.0, "generation_tok_s": 500.0}
    now = point_of_live_server(search(), EngineView("r1", "vLLM :8000", values), 2)
    assert now is not None and (now.user_tok_s, now.gpu_tok_s) == (50.0, 250.0)
    assert point_of_live_server(search(), EngineView("r2", "vLLM :8001", values), 2) is None
    assert (
        point_of_live_server(search(), EngineView("r1", "", {**values, "running": 0.0}), 2) is None
    )
    assert point_of_live_server(search(), None, 2) is None

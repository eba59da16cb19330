"""The operating map of a server: what a user gets against what a GPU gives, for each number of
users that a search or a sweep measured."""

from __future__ import annotations

from operator import attrgetter

from workbench.model.engine_live import EngineView
from workbench.model.lazy_dataclass import dataclass
from workbench.model.sweep import PointState, Sweep


@dataclass(frozen=True, slots=True)
class MapPoint:
    """A server with `users` requests in flight: how many output tokens a second each user gets, and
    how many each GPU gives. `slo_verdict` is that of a search for users; None in a sweep."""

    users: float
    user_tok_s: float
    gpu_tok_s: float
    tok_per_joule: float | None = None
    slo_verdict: str | None = None


@dataclass(frozen=True, slots=True)
class OperatingMap:
    """The measured points by the number of users. `holds` is the highest level that keeps the SLO,
    and `fails` the lowest one that does not; None if there is none."""

    points: tuple[MapPoint, ...]
    gpus: int
    holds: MapPoint | None = None
    fails: MapPoint | None = None

    @property
    def limit_user_tok_s(self) -> float | None:
        """The tokens per second of a user halfway between `holds` and `fails`; None without
        both."""
        if self.holds is None or self.fails is None:
            return None
        return (self.holds.user_tok_s + self.fails.user_tok_s) / 2


def operating_map_from_sweep(sweep: Sweep) -> OperatingMap | None:
    """Return the operating map of a search for users or a sweep of the concurrency. None if the
    sweep is neither, if no point was measured, or if the number of GPUs is not known or differs
    between points."""
    done = [p for p in sweep.points if p.state == PointState.DONE and p.tok_s and p.x]
    counts = {p.gpus for p in done}
    gpus = next(iter(counts), None)
    if not sweep.sweep_kind.counts or len(counts) != 1 or not gpus:
        return None
    by_label = {}
    for p in done:
        if p.x and p.tok_s:
            by_label[p.label] = MapPoint(
                users=p.x,
                user_tok_s=p.tok_s / p.x,
                gpu_tok_s=p.tok_s / gpus,
                tok_per_joule=p.tok_per_joule,
                slo_verdict=p.slo_verdict,
            )
    points = sorted(by_label.values(), key=attrgetter("users"))
    holds = None
    if sweep.searched_result_name == "capacity" and sweep.knee is not None:
        holds = by_label.get(sweep.points[sweep.knee].label)
    fails = next((point for point in points if point.slo_verdict == "fails"), None)
    return OperatingMap(tuple(points), gpus, holds, fails)


def point_of_live_server(sweep: Sweep, view: EngineView | None, gpus: int) -> MapPoint | None:
    """Return where the server of the sweep is on its map now. None if it has no request in flight,
    or if another server is observed."""
    spec = sweep.spec
    if view is None or spec is None or view.server not in (spec.run_id, spec.url):
        return None
    running, tok_s = view.values.get("running"), view.values.get("generation_tok_s")
    if not running or not tok_s:
        return None
    return MapPoint(users=running, user_tok_s=tok_s / running, gpu_tok_s=tok_s / gpus)

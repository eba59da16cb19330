"""Tests of the events of queueing and preemption: named when they begin and when they end, and no
flood."""

from __future__ import annotations

from collections.abc import Iterable

from workbench.model.server_run import EngineMetrics
from workbench.model.timeline import Event, EventKind
from workbench.session.servers.engine_episodes import EngineEpisodes

T0 = 1_800_000_000.0


def told(readings: Iterable[EngineMetrics], limit: tuple[str, int] | None = None) -> list[Event]:
    episodes = EngineEpisodes(limit)
    return [event for read in readings for event in episodes.episode_events_of_reading(read)]


def queue(waiting: Iterable[int], running: int = 16, **more: float) -> list[EngineMetrics]:
    return [
        EngineMetrics(unix_s=T0 + second, running=running, waiting=count, **more)  # type: ignore[arg-type]
        for second, count in enumerate(waiting)
    ]


def test_queueing_is_named_with_its_cause_and_its_end() -> None:
    begin, end = told(queue([0, 2, 5, 8, 8, 12, 3, *[0] * 12]), ("max-num-seqs", 16))
    assert (begin.kind, begin.unix_s) == (EventKind.QUEUEING, T0 + 1)
    assert begin.text == "8 requests wait: max-num-seqs 16 reached"
    assert (end.kind, end.unix_s) == (EventKind.QUEUEING, T0 + 16)
    assert end.text == "queueing ended after 5 s, with up to 12 requests waiting"


def test_a_queue_below_the_limit_is_named_with_the_figures_alone() -> None:
    (event,) = told(queue([1] * 5, running=7, kv_use_pct=97.6), ("max-num-seqs", 16))
    assert event.text == "1 request waits, 7 run, KV cache 98 % used"
    (event,) = told(queue([3] * 5))
    assert event.text == "3 requests wait, 16 run"


def test_a_short_wait_is_no_event() -> None:
    assert told(queue([4, 4, 0, 4, 4, 0, 4, 0])) == []


def test_a_queue_that_comes_and_goes_is_one_episode() -> None:
    assert len(told(queue([5, 5, 5, 5, 0, 0] * 50))) == 1


def test_preemption_is_named_when_it_begins_and_when_it_ends() -> None:
    counts = [7, 7, 10, 10, 12, *[12] * 12]
    readings = [
        EngineMetrics(unix_s=T0 + second, preemptions=count, kv_use_pct=99.0)
        for second, count in enumerate(counts)
    ]
    begin, end = told(readings)
    assert (begin.kind, begin.text) == (
        EventKind.PREEMPTION,
        "3 requests preempted: KV cache 99 % used",
    )
    assert end.text == "preemption ended after 2 s: 5 requests preempted"


def test_a_restarted_engine_has_preempted_nothing() -> None:
    readings = [EngineMetrics(unix_s=T0 + s, preemptions=c) for s, c in enumerate((50, 0, None, 0))]
    assert told(readings) == []

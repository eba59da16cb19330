"""Sweeps without a server: values, levels, grids, what is kept of them, and when they end early."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.fake_host import FakeHost
from support.made_results import sweep

from workbench.bench.runner import BenchCancelled
from workbench.hosts.base import HostUnreachable
from workbench.model.bench import BenchResult, BenchSpec, BenchSummary, Conditions
from workbench.model.errors import BenchError, InputError, StoreError
from workbench.model.plan import LaunchPlan
from workbench.model.server_run import ServerState, ServerStatus
from workbench.model.settings import ClockRange
from workbench.model.sweep import PointState, Sweep, SweepPoint
from workbench.session.plans.plan_editor import PlanEditor
from workbench.session.series.concurrency_sweep import validated_levels
from workbench.session.series.flag_sweep import best_point_index, metric_that_ranks_points
from workbench.session.series.flag_sweep_plan import list_combinations
from workbench.session.series.gpu_sweep import GpuSweep
from workbench.session.series.gpu_sweep_plan import parse_swept_values
from workbench.session.series.sweep_parts import (
    UNKNOWN_VERSION_TEXT,
    check_same_conditions,
    check_time_limit_minutes,
    conditions_of_plan,
    do_known_conditions_differ,
)
from workbench.session.session import Session
from workbench.session.uninterrupted import finish_despite_cancellation
from workbench.store.sweeps import SweepStore

# -- what was typed


def test_values_of_a_power_limit_and_of_clocks() -> None:
    watts = parse_swept_values("power_limit_w", ["600", "350.5", " 300 W "])
    assert [(v.label, v.x, v.wanted["power_limit_w"]) for v in watts] == [
        ("600 W", 600.0, 600.0),
        ("350.5 W", 350.5, 350.5),
        ("300 W", 300.0, 300.0),
    ]
    clocks = parse_swept_values("gpu_clocks", ["1500", "210-2400"])
    assert [(v.label, v.x, v.wanted["gpu_clocks"]) for v in clocks] == [
        ("1500 MHz", 1500.0, ClockRange(1500, 1500)),
        ("210-2400 MHz", 2400.0, ClockRange(210, 2400)),
    ]


@pytest.mark.parametrize("minutes", [float("nan"), float("inf"), 0.0, -1.0])
def test_a_time_limit_that_no_sweep_can_have(minutes: float) -> None:
    with pytest.raises(InputError, match="a time limit of"):
        check_time_limit_minutes(minutes)
    check_time_limit_minutes(None)
    check_time_limit_minutes(0.5)
    session = Session.of_host()
    for work in (
        session.sweeps.run_concurrency_sweep([1, 2], url="http://127.0.0.1:9", max_minutes=minutes),
        session.sweeps.run_flag_sweep({"max-num-seqs": ["1", "2"]}, max_minutes=minutes),
    ):
        with pytest.raises(InputError, match="a time limit of"):
            asyncio.run(work)


@pytest.mark.parametrize(
    ("setting", "texts"),
    [
        ("power_limit_w", ["300", "much"]),
        ("power_limit_w", ["300", "-5"]),
        ("power_limit_w", ["nan", "300"]),
        ("power_limit_w", ["300"]),
        ("power_limit_w", ["300", "300.0"]),
        ("gpu_clocks", ["1500", "2400-210"]),
        ("gpu_clocks", ["1500", "x"]),
        ("fan", ["1", "2"]),
        ("power_limit_w", []),
    ],
)
def test_values_that_are_none(setting: str, texts: list[str]) -> None:
    with pytest.raises(InputError):
        parse_swept_values(setting, texts)


def test_levels_rise_and_are_there_once() -> None:
    assert validated_levels([8, 1, 8, 2]) == (1, 2, 8)
    for wrong in ([], [0, 1], [1, 1_000_000]):
        with pytest.raises(InputError):
            validated_levels(wrong)


# -- kept


def sweep_of(*states: str, state: str = "running") -> Sweep:
    points = tuple(SweepPoint(f"{i}", float(i), s) for i, s in enumerate(states))
    return Sweep(0, 1.0, "here", "power_limit_w", "power limit", "W", points, state)


def test_what_is_kept_comes_back_whole(tmp_path: Path) -> None:
    store = SweepStore(tmp_path / "sweeps")
    first = store.add(sweep_of("planned"))
    done = replace(
        first,
        state="done",
        knee=0,
        knee_text="0: why",
        notes=("a", "b"),
        points=(
            SweepPoint(
                "0",
                0.0,
                "done",
                (3, 4),
                1.5,
                0.2,
                300.0,
                2100.0,
                61.0,
                40.0,
                50.0,
                12.0,
                80.0,
                "yes",
            ),
        ),
    )
    store.save(done)
    assert store.get(first.id) == done
    assert [s.id for s in (store.add(sweep_of()), *store.list())] == [2, 2, 1]
    with pytest.raises(InputError, match="no sweep 9"):
        store.get(9)


def test_a_sweep_whose_process_died_was_stopped_and_keeps_its_points(tmp_path: Path) -> None:
    store = SweepStore(tmp_path)
    mine = store.add(sweep_of("done", "measuring", "planned"))
    with store.hold_lock(mine.id):
        assert store.get(mine.id).state == "running"
        with (
            pytest.raises(InputError, match="another Workbench is running"),
            store.lock_and_read(mine.id),
        ):
            pass
    path = tmp_path / f"{mine.id}.json"
    data = json.loads(path.read_text())
    data["from a newer version"] = {}
    path.write_text(json.dumps(data))
    found = store.get(mine.id)
    assert (found.state, [p.state for p in found.points]) == (
        "stopped",
        ["done", "skipped", "skipped"],
    )
    assert found.error and found.points[2].error


def test_a_damaged_file_is_told_and_does_not_hide_the_others(tmp_path: Path) -> None:
    store = SweepStore(tmp_path)
    store.add(sweep_of("done"))
    (tmp_path / "2.json").write_text("{")
    assert [s.id for s in store.list()] == [1] and store.add(sweep_of()).id == 3
    with pytest.raises(StoreError, match="sweep 2"):
        store.get(2)


def test_no_place_to_keep_it_means_that_nothing_begins(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be written"):
        SweepStore(tmp_path / "file" / "sweeps").add(sweep_of())


# -- levels, with a scripted server


class Levels(Session):
    """Answers of a server at each level: tok/s, (tok/s, failed requests), [tok/s, why refused], or
    an error. `recovers`: what was refused once is not a second time."""

    def __init__(self, answers: dict[int, Any], recovers: bool = False) -> None:
        super().__init__(FakeHost())
        ready = ServerStatus("run", "vllm", ServerState.READY, "here", engine_version="1")
        self.servers.supervisor.status = lambda run_id: ready  # type: ignore[method-assign]
        self.servers.selected_or_ready_run_id = self._selected_or_ready_run  # type: ignore[method-assign]
        self.servers.ready_run_id = self._selected_or_ready_run  # type: ignore[method-assign]
        self.servers.supervisor.runs = self._no_runs  # type: ignore[method-assign,assignment]
        self.bench.benchmark_target = self._bench  # type: ignore[method-assign]
        self.results.get = self._result  # type: ignore[method-assign]
        self.recovers = recovers
        self.answers = answers
        self.asked: list[dict[str, Any]] = []
        self.stored: list[BenchResult] = []

    async def _selected_or_ready_run(self, run_id: str | None = None) -> str:
        return "run"

    async def _no_runs(self) -> list[ServerStatus]:
        return []

    async def _bench(self, run_id: str | None, url: str | None, **fields: Any) -> int:
        self.asked.append(fields)
        answer = self.answers[fields["concurrency"]]
        if isinstance(answer, Exception):
            raise answer
        tok_s, failed = answer if isinstance(answer, tuple) else (answer, 0)
        if isinstance(answer, list):
            tok_s = answer[0]
            refused = tuple(answer[1:])
            self.answers[fields["concurrency"]] = answer[0] if self.recovers else answer
        else:
            refused = ()
        asked = fields["requests"]
        summary = BenchSummary(
            asked - failed,
            failed,
            {"http 503": failed} if failed else {},
            1,
            1,
            0,
            1.0,
            tok_s,
            1.0,
            None,
            None,
            None,
            None,
            None,
            None,
            None,
            None,
            None,
            refused=refused,
        )
        spec = BenchSpec("http://x", "m", fields["concurrency"])
        self.stored.append(
            BenchResult(
                len(self.stored) + 1, 0.0, spec, Conditions("here", "vllm", "1", "m"), summary
            )
        )
        return len(self.stored)

    async def _result(self, result_id: int) -> BenchResult:
        return self.stored[result_id - 1]


def levels(session: Levels, given: list[int], **options: Any) -> Sweep:
    return asyncio.run(session.sweeps.run_concurrency_sweep(given, **options))


def states(sweep: Sweep) -> list[str]:
    return [p.state for p in sweep.points]


def test_levels_are_measured_in_order_with_requests_that_grow_and_the_knee_is_named() -> None:
    session = Levels({1: 100.0, 4: 380.0, 16: 900.0, 64: 950.0})
    sweep = levels(session, [64, 4, 1, 16])
    assert states(sweep) == ["done"] * 4 and sweep.state == "done"
    assert [(f["concurrency"], f["requests"], f["warmup"]) for f in session.asked] == [
        (1, 16, 1),
        (4, 32, 4),
        (16, 128, 16),
        (64, 512, 64),
    ]
    assert sweep.knee == 2 and sweep.knee_text.startswith("c=16: the lowest latency")
    assert [p.result_ids for p in sweep.points] == [(1,), (2,), (3,), (4,)]
    assert session.sweeps.sweep_store.get(sweep.id) == sweep == session.state.sweep


def test_given_requests_are_kept_but_never_fewer_than_the_streams() -> None:
    session = Levels({1: 1.0, 8: 2.0})
    levels(session, [1, 8], requests=4, warmup=0)
    assert [(f["requests"], f["warmup"]) for f in session.asked] == [(4, 0), (8, 0)]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((300.0, 9), "9 of 128 requests failed (9 http 503)"),
        (BenchError("the server is gone"), "the server is gone"),
    ],
)
def test_a_level_that_fails_ends_it_and_the_rest_says_why(answer: Any, said: str) -> None:
    session = Levels({1: 100.0, 4: 300.0, 16: answer, 64: 900.0})
    sweep = levels(session, [1, 4, 16, 64])
    assert states(sweep) == ["done", "done", "failed", "skipped"] and sweep.state == "done"
    assert sweep.points[2].error == said and said in str(sweep.points[3].error)
    assert len(session.asked) == 3 and any("ended early" in n for n in sweep.notes)
    assert sweep.knee is None  # two levels are no curve


def test_one_failed_request_of_many_is_told_and_does_not_end_it() -> None:
    sweep = levels(Levels({1: 1.0, 16: (2.0, 1)}), [1, 16])
    assert states(sweep) == ["done", "done"] and "c=16: 1 request failed" in sweep.notes


@pytest.mark.parametrize("recovers", [True, False])
def test_figures_that_may_not_be_used_are_measured_once_more_and_do_not_end_it(
    recovers: bool,
) -> None:
    session = Levels({1: 1.0, 2: [2.0, "the client was the limit"], 4: 4.0}, recovers)
    sweep = levels(session, [1, 2, 4])
    assert (
        states(sweep) == ["done", "done" if recovers else "failed", "done"]
        and len(session.asked) == 4
    )
    assert any("c=2: measured again (the client was the limit)" in n for n in sweep.notes)
    assert sweep.points[1].error == (
        None if recovers else "the result is invalid: the client was the limit"
    )


def test_a_level_that_would_not_end_in_time_is_not_begun() -> None:
    # 16 requests of 128 tokens at 10 tok/s: more than 3 minutes
    session = Levels({1: 10.0, 4: 10.0, 16: 10.0})
    sweep = levels(session, [1, 4, 16], max_minutes=2.0)
    assert states(sweep) == ["done", "skipped", "skipped"] and len(session.asked) == 1
    assert "limit of 2 min leaves" in str(sweep.points[1].error) and (
        "c=4 would take about"
    ) in str(sweep.points[1].error)


def test_a_resumed_sweep_measures_only_the_levels_that_are_missing() -> None:
    session = Levels({1: 10.0, 4: 10.0, 16: 10.0})
    stopped = levels(session, [1, 4, 16], max_minutes=2.0)
    assert stopped.state == "stopped" and stopped.can_be_resumed
    session.answers = {4: 30.0, 16: 90.0}
    ended = asyncio.run(session.sweeps.resume(stopped.id))
    assert (states(ended), ended.state) == (["done"] * 3, "done")
    assert [fields["concurrency"] for fields in session.asked] == [1, 4, 16]
    with pytest.raises(InputError, match="is finished"):
        asyncio.run(session.sweeps.resume(stopped.id))


def test_a_sweep_whose_prompts_file_has_changed_is_not_resumed(tmp_path: Path) -> None:
    prompts = tmp_path / "own.jsonl"
    prompts.write_text('{"prompt": "Describe a lighthouse."}\n')
    session = Levels({1: 10.0, 4: 10.0})
    own: dict[str, Any] = {"prompts_file": str(prompts)}
    stopped = levels(session, [1, 4], max_minutes=1.0, **own)
    assert stopped.state == "stopped" and stopped.can_be_resumed
    parts, editor = session.sweeps._parts, PlanEditor(LaunchPlan("vllm", "org/tiny"), "tiny")
    of_plan = asyncio.run(conditions_of_plan(parts, editor, own))
    assert of_plan["prompts file"] == stopped.spec.measured["prompts file"]  # type: ignore[union-attr]
    prompts.write_text('{"prompt": "Describe a harbour."}\n')
    with pytest.raises(InputError, match=r"with prompts file own.jsonl .* is own.jsonl .* now"):
        asyncio.run(session.sweeps.resume(stopped.id))


def test_a_lost_link_stops_a_sweep_and_blames_no_level() -> None:
    session = Levels({1: 5.0, 2: HostUnreachable("the link is cut", host="here"), 4: 9.0})
    stopped = levels(session, [1, 2, 4])
    assert (states(stopped), stopped.state) == (["done", "skipped", "skipped"], "stopped")
    assert "the link is cut" in str(stopped.error) and stopped.can_be_resumed


def test_nothing_measured_is_a_failed_sweep() -> None:
    sweep = levels(Levels({1: BenchError("refused"), 2: 1.0}), [1, 2])
    assert sweep.state == "failed" and sweep.error and "refused" in sweep.error


@pytest.mark.parametrize("how", ["cancel_sweep", "cancel_bench"])
def test_a_cancelled_sweep_keeps_what_it_has(how: str) -> None:
    session = Levels({1: 5.0, 2: BenchCancelled("cancelled"), 4: 9.0})
    if how == "cancel_sweep":
        session.answers[2] = 6.0
        take = session.results.get

        async def cancel_then(result_id: int) -> BenchResult:
            assert session.sweeps._stop is not None
            if result_id == 2:
                session.sweeps._stop.set()
            return await take(result_id)

        session.results.get = cancel_then  # type: ignore[method-assign]
    sweep = levels(session, [1, 2, 4])
    assert (
        sweep.state == "stopped"
        and sweep.points[0].state == "done"
        and sweep.points[2].state == "skipped"
    )
    assert session.sweeps.sweep_store.get(sweep.id).state == "stopped"


def test_one_sweep_at_a_time() -> None:
    session = Levels({1: 1.0, 2: 2.0})

    async def go() -> None:
        first = asyncio.create_task(session.sweeps.run_concurrency_sweep([1, 2]))
        await asyncio.sleep(0)
        while not session.sweeps._one.locked():
            await asyncio.sleep(0.001)
        with pytest.raises(BenchError, match="another sweep is running"):
            await session.sweeps.run_concurrency_sweep([1])
        assert (await first).state == "done"

    asyncio.run(go())


def test_a_full_disk_does_not_end_a_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Levels({1: 1.0, 2: 2.0})

    def full(sweep: Sweep) -> None:
        raise StoreError("no space left")

    added = session.sweeps.sweep_store.add(sweep_of())
    monkeypatch.setattr(
        session.sweeps.sweep_store, "add", lambda sweep: replace(sweep, id=added.id)
    )
    monkeypatch.setattr(session.sweeps.sweep_store, "save", full)
    sweep = levels(session, [1, 2])
    assert states(sweep) == ["done", "done"] and session.state.notice is not None
    # told once
    assert "no space left" in session.state.notice.text and session.state.notice.number == 1


# -- what must not be interrupted


@pytest.mark.parametrize("times", [1, 3])
def test_giving_back_is_not_cut_short_by_a_cancellation(times: int) -> None:
    done = []

    async def restore_host() -> None:
        for step in range(5):
            await asyncio.sleep(0)
            done.append(step)

    async def go() -> None:
        task = asyncio.create_task(finish_despite_cancellation(restore_host()))
        for _ in range(times):
            await asyncio.sleep(0)
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert done == [0, 1, 2, 3, 4]

    asyncio.run(go())


def test_what_giving_back_raises_comes_through() -> None:
    async def fails() -> None:
        raise StoreError("broken")

    with pytest.raises(StoreError, match="broken"):
        asyncio.run(finish_despite_cancellation(fails()))


def test_a_secret_is_no_flag_to_sweep() -> None:
    editor = PlanEditor(LaunchPlan("vllm", "org/tiny"), "tiny")
    with pytest.raises(InputError, match="api-key is a secret"):
        list_combinations(editor, {"api-key": ["k1", "k2"]})


def measured(name: str, tok_s: float, goodput: float | None = None) -> SweepPoint:
    return SweepPoint(name, None, PointState.DONE, tok_s=tok_s, goodput_request_s=goodput)


def test_a_load_with_limits_ranks_the_values_of_a_flag_by_goodput() -> None:
    points = (measured("now", 900.0, 4.0), measured("a", 1200.0, 1.0), measured("b", 950.0, 6.0))
    assert metric_that_ranks_points(points) == "goodput_request_s"
    assert best_point_index(points, "goodput_request_s") == 2
    assert best_point_index(points, "output_tok_s") == 1


def test_without_a_goodput_of_every_value_the_speed_ranks_them() -> None:
    unknown = (measured("now", 900.0, 4.0), measured("a", 1200.0))
    assert metric_that_ranks_points(unknown) == "output_tok_s"
    none_kept = (measured("now", 900.0, 0.0), measured("a", 1200.0, 0.0))
    assert metric_that_ranks_points(none_kept) == "output_tok_s"
    equal = (measured("now", 900.0, 4.0), measured("a", 1200.0, 4.0))
    assert best_point_index(equal, "goodput_request_s") is None  # the current value is not worse
    failed = replace(measured("now", 900.0), state=PointState.FAILED)
    assert best_point_index((failed, measured("a", 1200.0)), "output_tok_s") is None


@pytest.mark.parametrize(
    ("before", "present", "differ"),
    [
        ("vllm 0.33.0", "vllm 0.33.0", False),
        ("vllm 0.33.0", "vllm 0.32.0", True),
        (f"vllm {UNKNOWN_VERSION_TEXT}", "vllm 0.33.0", False),
        ("vllm 0.33.0", f"vllm {UNKNOWN_VERSION_TEXT}", False),
        (f"vllm {UNKNOWN_VERSION_TEXT}", "sglang 0.5.6", True),
        (f"vllm {UNKNOWN_VERSION_TEXT}", f"vllm {UNKNOWN_VERSION_TEXT}", False),
    ],
)
def test_an_unknown_version_does_not_differ_from_a_known_one(
    before: str, present: str, differ: bool
) -> None:
    """A tune that began on a busy host, which did not tell the version in time, was never resumed."""
    assert do_known_conditions_differ(before, present) is differ


def test_gpus_that_a_busy_host_does_not_show_are_not_called_others() -> None:
    """A tune was to be begun anew, because the GPUs were not read within 20 s at its resume."""
    stored, measured = sweep(), {"engine": "vllm 0.33.0", "GPU GPU-0": "H100", "driver": "595"}
    spec: Any = SimpleNamespace(measured=measured)
    parts: Any = SimpleNamespace(core=SimpleNamespace(host=SimpleNamespace(name="box")))
    with pytest.raises(BenchError, match="cannot be resumed now: the GPUs cannot be read"):
        check_same_conditions(parts, stored, spec, {"engine": "vllm 0.33.0"})
    with pytest.raises(InputError, match="GPU GPU-0 is not known now") as gone:
        check_same_conditions(parts, stored, spec, {"engine": "vllm 0.33.0", "driver": "595"})
    assert "start a new sweep" in (gone.value.next_step or "")
    check_same_conditions(parts, stored, spec, measured)


def test_a_sweep_notes_in_words_that_a_value_was_not_settled() -> None:
    """A renaming once put the name of a function into this note."""
    notes: list[str] = []

    async def name_unsteady_reading() -> str:
        return "the temperature still rises"

    async def measure_nothing(*_: object) -> list[BenchResult]:
        return []

    async def accept(_: str) -> None:
        return None

    points = [SimpleNamespace(error="")]
    gpu_sweep: Any = SimpleNamespace(
        progress=SimpleNamespace(
            change_point=lambda *_, **__: None,
            add_note=notes.append,
            measure_point=measure_nothing,
            sweep=SimpleNamespace(points=points),
        ),
        wait_and_name_unsteady_reading=name_unsteady_reading,
        benchmark_server=None,
        settle_s=30.0,
        runs=1,
        _end_sweep_unless_server_ready=accept,
    )
    value: Any = SimpleNamespace(label="400 W")
    asyncio.run(GpuSweep._measure_value(gpu_sweep, 0, value))
    assert notes == ["400 W: not settled after 30 s (the temperature still rises)"]

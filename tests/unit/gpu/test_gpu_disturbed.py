"""What changes on a GPU while it is measured is named; what is the same throughout is not."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from test_gpu_proof import told

from workbench.gpu.settings.disturbance import (
    DisturbanceWatch,
    add_setters_to_reasons,
    lock_change_texts,
)
from workbench.gpu.settings.register_client import LockChange
from workbench.model.gpu import GpuProcess, Telemetry
from workbench.model.setting_records import Alteration
from workbench.model.settings import ClockRange


def reading(
    limit_w: float | None = 300.0, *pids: int, kind: str = "compute", **fields: object
) -> Telemetry:
    programs = tuple(GpuProcess(pid, 1, f"p{pid}", kind) for pid in pids)
    whole = told()
    given = {"power_limit_w": limit_w, "processes": programs, **fields}
    sample = replace(whole.gpus[0], **given)  # type: ignore[arg-type]
    return replace(whole, gpus=(sample,))


def watched(
    *readings: Telemetry, gpus: tuple[int, ...] = (0,), ours: frozenset[int] = frozenset()
) -> tuple[str, ...]:
    watch = DisturbanceWatch(gpus)
    for one in readings:
        watch.record_telemetry(one)
    return watch.describe_changes_during_run(ours)


def test_a_limit_that_changes_in_the_middle_is_named_also_when_it_is_back_at_the_end() -> None:
    assert watched(reading(), reading(220.0)) == (
        "settings changed during the run: GPU0 power limit 300 -> 220 W",
    )
    assert watched(reading(), reading(220.0), reading()) == (
        "settings changed during the run: GPU0 power limit 300 -> 220 -> 300 W",
    )
    assert watched(reading(), reading(persistence=False)) == (
        "settings changed during the run: GPU0 persistence mode on -> off",
    )


def test_another_gpu_a_silent_driver_and_a_window_are_no_change() -> None:
    assert watched(reading(), reading(220.0, 7), gpus=(1,)) == ()
    assert watched(reading(300.0, 1), reading(None, processes=None), reading(300.0, 1)) == ()
    assert watched(reading(), reading(300.0, 7, kind="graphics")) == ()


def test_programs_that_come_or_leave_are_named_but_for_the_servers_own() -> None:
    assert watched(reading(300.0, 1), reading(300.0, 1, 7)) == (
        "other programs started on the GPU during the run: p7 (7) on GPU0",
    )
    assert watched(reading(300.0, 1, 7), reading(300.0, 1)) == (
        "programs on the GPU ended during the run: p7 (7) on GPU0",
    )
    assert watched(reading(300.0, 1), reading(300.0, 1, 7), ours=frozenset([7])) == ()


def test_programs_that_were_there_all_the_time_are_named_beside_the_servers() -> None:
    watch = DisturbanceWatch((0,))
    for _ in range(3):
        watch.record_telemetry(reading(300.0, 1, 7, 8))
    (said,) = watch.describe_other_programs(frozenset([1]))
    assert said == (
        "other programs used the GPU during the whole run: p7 (7) on GPU0, p8 (8) on GPU0"
    )
    assert watch.describe_other_programs(frozenset([1, 7, 8])) == ()
    assert watch.describe_other_programs(frozenset([99])) == (), (
        "a container's own numbers tell nothing"
    )


@given(st.lists(st.sampled_from([200.0, 300.0, 300.00004, None]), max_size=12))
def test_a_limit_is_named_where_and_only_where_it_was_not_the_same(
    limits: list[float | None],
) -> None:
    known = {f"{w:g}" for w in limits if w is not None}
    assert bool(watched(*map(reading, limits))) == (len(known) > 1)


def test_locks_are_held_against_the_journal() -> None:
    lock = Alteration(0, "GPU-0", "gpu_clocks", "default", ClockRange(2000, 2400), 0.0)
    assert lock_change_texts([], [lock], (0,)) == (
        "settings changed during the run: GPU0 GPU clocks none -> 2000-2400 MHz",
    )
    assert lock_change_texts([lock], [lock], (0,)) == lock_change_texts([], [lock], (1,)) == ()


def test_the_reason_names_the_users_who_changed_settings() -> None:
    refused = ("failed requests", "settings changed during the run: GPU0 power limit 300 -> 220 W")
    ada = Alteration(0, "GPU-0", "power_limit_w", 300.0, 220.0, 0.0, by="ada")
    assert add_setters_to_reasons(refused, [ada], (0,)) == (
        refused[0],
        f"{refused[1]} (GPU0 power limit set by ada)",
    )
    assert (
        add_setters_to_reasons(refused, [ada], (1,))
        == add_setters_to_reasons(refused, [], (0,))
        == refused
    )


def test_a_lock_that_came_and_went_within_the_run_is_named() -> None:
    bob = LockChange(0, "gpu_clocks", "bob", 7.0)
    said = ("settings changed during the run: GPU0 GPU clocks set and reverted by bob",)
    assert lock_change_texts((), (), [0], {bob, bob._replace(unix_s=8.0)}) == said
    assert lock_change_texts((), (), [1], {bob}) == ()

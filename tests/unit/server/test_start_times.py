"""How long each phase of a start took, and what differs from the start before."""

from __future__ import annotations

import pytest
from support.fake_runs import Make, ready
from support.serving import supervised

from workbench.model.server_run import ServerState, ServerStatus
from workbench.server.start_times import (
    FIRST_PHASE,
    PhaseClock,
    format_start_duration,
    phase_without_numbers,
)
from workbench.server.supervisor import ServerEvent, Supervisor


def run(
    number: int, ready_after_s: float | None, *phases: tuple[str, float], model: str = "m"
) -> ServerStatus:
    return ServerStatus(
        run_id=f"20261129-0{number}0000-vllm-aaaa",
        engine="vllm",
        state=ServerState.READY,
        host="local",
        model=model,
        ready_after_s=ready_after_s,
        phases=phases,
    )


@pytest.mark.parametrize(
    ("phase", "name"),
    [
        ("loading weights 40 %", "loading weights"),
        ("loading weights", "loading weights"),
        ("KV cache of 12,000 tokens", "KV cache"),
        ("engine ready after 3.2 s", "engine ready"),
        ("12 of 33 layers on the GPU", "layers on the GPU"),
        ("making 4 slots", "making slots"),
        ("capturing CUDA graphs 33 %", "capturing CUDA graphs"),
    ],
)
def test_a_phase_has_one_name_whatever_its_numbers(phase: str, name: str) -> None:
    assert phase_without_numbers(phase) == name


def test_the_clock_gives_each_phase_its_seconds() -> None:
    clock = PhaseClock([(FIRST_PHASE, 100.0)])
    for at_s, phase in (
        (100.5, None),
        (104.0, "loading weights 0 %"),
        (120.0, "loading weights 90 %"),
        (124.0, "compiling"),
        (125.0, "loading weights 100 %"),  # of a second rank
    ):
        clock.record_phase(phase, at_s)
    assert clock.phase_durations(150.0) == (
        (FIRST_PHASE, 4.0),
        ("loading weights", 20.0),
        ("compiling", 26.0),
    )


def test_a_start_that_took_longer_names_the_phase() -> None:
    before = run(1, 55.0, ("loading weights", 20.0), ("compiling", 30.0))
    now = run(2, 95.0, ("loading weights", 60.0), ("compiling", 31.0))
    other = run(3, 300.0, model="other")
    assert format_start_duration(now, [now, before, other]) == (
        " in 95.0 s (loading weights 60 s, compiling 31 s), 40 s longer than the start before: "
        "loading weights 60 s instead of 20 s"
    )
    faster = run(4, 55.0, ("loading weights", 20.0), ("compiling", 30.0))
    assert format_start_duration(faster, [faster, now]).endswith(
        "40 s less than the start before: loading weights 20 s instead of 60 s"
    )
    # a start of today is not the one before a start of yesterday
    assert "than the start before" not in format_start_duration(before, [now, before])
    assert format_start_duration(run(4, 58.0), [before]) == " in 58.0 s"  # nearly as long
    assert (
        format_start_duration(run(4, 95.0), [before])
        == " in 95.0 s, 40 s longer than the start before"
    )
    assert format_start_duration(run(4, None), [before]) == ""


@pytest.mark.slow
def test_a_real_start_keeps_its_phases_for_every_later_workbench(make: Make) -> None:
    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        now = await ready(supervisor, make())
        # a busy machine may read the lines of several phases at once, and keeps the first only
        assert now.phases[0][0] == FIRST_PHASE
        assert sum(s for _, s in now.phases) == pytest.approx(now.ready_after_s, abs=0.5)
        later = Supervisor(supervisor.host)
        try:
            (found,) = await later.runs()
            assert found.phases == now.phases
        finally:
            await later.close()

    supervised(scenario)

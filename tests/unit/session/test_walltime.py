"""Warnings before the walltime of a job is over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from workbench.model.server_run import ServerState, ServerStatus
from workbench.session.servers import walltime
from workbench.session.servers.walltime import WalltimeWarnings

RUN = ServerStatus(
    "r",
    "vllm",
    ServerState.READY,
    "h",
    port=8000,
    alive=True,
    run_as="slurm",
    handle="7",
    ends_unix_s=1600.3,
)


class Core:
    def __init__(self) -> None:
        self.said: list[str] = []

    def notify(self, level: object, text: str, next_step: str) -> None:
        self.said.append(text)


def warned(
    now_unix_s: float, change: Callable[[WalltimeWarnings], object] = lambda warnings: None
) -> list[str]:
    async def scenario() -> list[str]:
        core: Any = Core()
        warnings = WalltimeWarnings(core, lambda run_id: now_unix_s)
        warnings.schedule_warnings(RUN)
        warnings.schedule_warnings(replace(RUN, ends_unix_s=1602.0))  # the same end
        change(warnings)
        await asyncio.sleep(0.6)
        warnings.close()
        return list(core.said)

    return asyncio.run(scenario())


def test_one_warning_when_ten_minutes_are_left() -> None:
    (text,) = warned(1000.0)
    assert text == "vllm :8000 ends in 10 min, when the walltime of slurm job 7 is over"


@pytest.mark.parametrize(("now_unix_s", "texts"), [(500.0, 0), (1200.0, 1), (1590.0, 1)])
def test_a_late_look_warns_once(now_unix_s: float, texts: int) -> None:
    assert len(warned(now_unix_s)) == texts


@pytest.mark.slow
def test_more_time_or_an_end_takes_the_warning_back() -> None:
    assert (
        warned(
            1000.0, lambda warnings: warnings.schedule_warnings(replace(RUN, ends_unix_s=9000.0))
        )
        == []
    )
    assert (
        warned(
            1000.0,
            lambda warnings: warnings.schedule_warnings(
                replace(RUN, alive=False, ends_unix_s=None)
            ),
        )
        == []
    )
    assert walltime.WARN_BEFORE_END_S == (600.0, 120.0)

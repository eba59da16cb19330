"""Servers for these tests: the fake engine under a Supervisor that looks more often than usual."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import fake_engine
from support.fake_runs import VLLM, Made, Make
from support.serving import free_port
from support.userland import userland

from workbench.model.flags import FlagSetting
from workbench.model.plan import LaunchPlan
from workbench.server import supervisor as module

__all__ = ["userland"]


@pytest.fixture(autouse=True)
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look more often than usual."""
    for name in (
        "_BUSY_INTERVAL_S",
        "_TALKING_INTERVAL_S",
        "_STARTING_INTERVAL_S",
        "_READY_INTERVAL_S",
        "_LOST_INTERVAL_S",
        "_STARTING_ASK_INTERVAL_S",
    ):
        monkeypatch.setattr(module, name, 0.1)


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Return a plan and its command for the fake engine, which behaves as the words say."""
    launcher = fake_engine.install(tmp_path / "bin")

    def plan(behaviour: str = "", port: int | None = None, **env: str) -> Made:
        settings = tuple(FlagSetting(k, v) for k, v in {"FAKE_ENGINE": behaviour, **env}.items())
        flags = (FlagSetting("port", port or free_port()),)
        made = LaunchPlan(
            "vllm", "org/model", flags=flags, env=settings, executable=(str(launcher),)
        )
        return made, VLLM.command(made)

    return plan

"""The time left of a start is estimated from the newest start of the same engine and model."""

from __future__ import annotations

import time

import pytest

from workbench.model.server_run import ServerState, ServerStatus
from workbench.session.state import HostView, SessionState
from workbench.tui.widgets.progress import describe_server_start


def server(name: str, state: ServerState, ready_after_s: float | None) -> ServerStatus:
    return ServerStatus(
        name,
        "vllm",
        state,
        "here",
        model="some/model",
        ready_after_s=ready_after_s,
        started_unix_s=time.time() - 3600 if ready_after_s is None else None,
    )


def test_the_newest_start_estimates_the_time_left() -> None:
    starting = server("third", ServerState.STARTING, None)
    # the state lists the newest server first
    servers = (
        starting,
        server("second", ServerState.STOPPED, 36_000.0),
        server("first", ServerState.STOPPED, 60.0),
    )
    work = describe_server_start(starting, SessionState(HostView("here"), servers=servers))
    assert work.fraction == pytest.approx(0.1, abs=0.05)
    assert "left" in work.left and "longer than" not in work.left

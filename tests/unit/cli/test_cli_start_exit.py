"""The exit code of `start --wait` says whether the server is READY."""

from __future__ import annotations

import argparse

import pytest

from workbench.cli.servers import _report_start_outcome
from workbench.model.server_run import ServerState, ServerStatus


@pytest.mark.parametrize(
    ("state", "waited", "code", "said"),
    [
        (ServerState.READY, True, 0, "ready"),
        (ServerState.FAILED, True, 1, "failed"),
        (ServerState.STOPPED, True, 1, "was stopped before it was READY"),
        (ServerState.STARTING, False, 0, ""),
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_a_server_that_never_was_ready_is_no_success(
    state: ServerState,
    waited: bool,
    code: int,
    said: str,
    as_json: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    status = ServerStatus("run", "vllm", state, "here", engine_version="1")
    arguments = argparse.Namespace(wait=waited, json=as_json)
    assert _report_start_outcome(status, arguments) == code
    assert code == 0 or said in capsys.readouterr().err

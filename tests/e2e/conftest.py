"""Commands run in this process, on hosts whose servers are ended after each test."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from workbench.cli import main
from workbench.session.session import Session


@dataclass(frozen=True)
class Ran:
    """What one command did."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """stdout as the one JSON document that it must be."""
        return json.loads(self.out)


Cli = Callable[..., Ran]


async def _stop_all(profile: str | None) -> None:
    session = Session.of_host(None, profile)
    try:
        await session.link.connect()
        for status in await session.servers.supervisor.runs():
            await session.servers.supervisor.stop(status.run_id, grace_s=2)
    finally:
        await session.close()


@pytest.fixture
def servers_end(clean_environment: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Simulated engines are quick and always alike; none outlives the test."""
    monkeypatch.setenv("WORKBENCH_SIM_START_S", "0.2")
    monkeypatch.setenv("WORKBENCH_SIM_NOISE", "0")
    yield
    state = Path(os.environ["XDG_STATE_HOME"]) / "workbench"
    if (state / "runs").is_dir():
        asyncio.run(_stop_all(None))
    for folder in state.glob("sim/*/runs"):
        asyncio.run(_stop_all(folder.parent.name))


@pytest.fixture
def cli(servers_end: None, capsys: pytest.CaptureFixture[str]) -> Cli:
    def run(*argv: str) -> Ran:
        capsys.readouterr()
        try:
            code = main(list(argv))
        except SystemExit as leaving:  # --help and --version
            code = int(leaving.code or 0)
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err and "a defect in Workbench" not in out + err, out + err
        return Ran(code, out, err)

    return run

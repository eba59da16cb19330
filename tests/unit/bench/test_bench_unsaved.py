"""A benchmark whose result cannot be stored: its samples are kept and the user is informed."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from truth_server import TruthProcess

from workbench.model.errors import StoreError
from workbench.session.session import Session
from workbench.store import paths
from workbench.store.results_db import ResultsDb

SHAPE: dict[str, Any] = {
    "model": "m",
    "concurrency": 2,
    "requests": 8,
    "warmup": 2,
    "max_tokens": 4,
}


def with_server(
    scenario: Callable[[Session, str], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workbench.session.bench.gpu_meter.IDLE_BEFORE_RUN_S", 0.0)

    async def go(url: str) -> None:
        session = Session.of_host()
        session.results.db = ResultsDb(paths.results_db(), busy_s=0.1)
        try:
            await session.link.connect()
            await asyncio.wait_for(scenario(session, url), 60)
        finally:
            await session.close()

    with TruthProcess("--ttft-ms", "0", "--itl-ms", "0") as server:
        asyncio.run(go(server.url))


def test_a_database_that_is_held_while_a_benchmark_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(session: Session, url: str) -> None:
        first = await session.bench.benchmark_url(url, **SHAPE)
        other = sqlite3.connect(paths.results_db(), isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreError, match=r"locked.*The result is stored in") as caught:
            await session.bench.benchmark_url(url, **SHAPE)
        assert "another program is using the database" in str(caught.value.next_step)
        assert not session.state.bench.running and "is stored in" in str(session.state.bench.error)
        (waiting,) = session.results.db.find_unsaved_files()
        assert str(waiting) in caught.value.message
        kept = json.loads(waiting.read_text())
        assert len(kept["requests"]) == 8 and kept["summary"]["output_tokens"] == 32
        other.execute("ROLLBACK")
        other.close()
        third = await session.bench.benchmark_url(url, **SHAPE)  # takes in what waited
        ids = [r.id for r in session.results.db.list()]
        assert (
            len(ids) == 3
            and {first, third} < set(ids)
            and session.results.db.find_unsaved_files() == ()
        )
        assert all(len(session.results.db.samples(i)) == 8 for i in ids)

    with_server(scenario, monkeypatch)


def test_a_place_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither the database nor a file beside it can be written: the file goes to the directory for
    temporary files."""
    import tempfile

    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    paths.results_db().parent.parent.mkdir(parents=True, exist_ok=True)
    paths.results_db().parent.write_text("a file in the directory's place")

    async def scenario(session: Session, url: str) -> None:
        with pytest.raises(StoreError, match="The result is stored in") as caught:
            await session.bench.benchmark_url(url, **SHAPE)
        (kept,) = (tmp_path / "tmp").glob("unsaved-result-*.json")
        assert str(kept) in caught.value.message and (f"workbench results import {kept}") in str(
            caught.value.next_step
        )
        assert len(json.loads(kept.read_text())["requests"]) == 8
        paths.results_db().parent.unlink()
        ((taken_in, new),) = await session.results.import_results(kept)
        assert (
            new
            and taken_in.summary.output_tokens == 32
            and len(session.results.db.samples(taken_in.id)) == 8
        )

    with_server(scenario, monkeypatch)

"""A search, a sweep or a tune that a signal ends says its number, what it found and its way back."""

from __future__ import annotations

import asyncio

import pytest

from workbench.cli.run import run
from workbench.cli.sweeps import report_resume_command_if_cancelled
from workbench.model.series_state import SeriesState
from workbench.model.sweep import FLAGS, USERS, PointState, Sweep, SweepKind, SweepPoint, SweepSpec
from workbench.model.tune import TUNE
from workbench.session.session import Session
from workbench.store import paths
from workbench.store.sweeps import SweepStore

POINTS = (SweepPoint("1", 1.0, PointState.DONE), SweepPoint("2", 2.0))
SPEC = SweepSpec(("1", "2"))


@pytest.mark.parametrize(
    ("kind", "found", "said"),
    [
        (USERS, "holds 32 users (attainment >= 97.4 %)", "capacity resume 3"),
        (FLAGS, "", "sweep resume 3"),
        (SweepKind(TUNE, "tune"), "", "tune resume 3"),
    ],
)
def test_a_stopped_sweep_says_its_number_and_its_way_back(
    kind: SweepKind, found: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It said "interrupted", and nothing else."""
    sweep = Sweep(
        *(3, 1.0, "here", kind.name, "load", "", POINTS, SeriesState.STOPPED),
        knee_text=found,
        spec=SPEC,
        kind_facts=kind,
    )

    async def stopped() -> None:
        session = Session.of_host()
        session.core.update(sweep=sweep)
        async with report_resume_command_if_cancelled(session):
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(stopped())
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("sweep 3 (load) was stopped; so far: ")
    assert (found or "1 of 2 ") in first
    assert second == f"to resume it: workbench --host here {said}"


@pytest.mark.parametrize("words", [("tune", "show"), ("capacity", "show"), ("tune", "resume")])
def test_a_sweep_of_another_kind_is_named_with_what_it_varies(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """It said "sweep 1 is not a tune but of the max-num-seqs"."""
    sweep = Sweep(
        *(1, 1.0, "here", "flag", "max-num-seqs", "", POINTS, SeriesState.DONE),
        spec=SPEC,
        kind_facts=FLAGS,
    )
    number = SweepStore(paths.sweeps_dir()).add(sweep).id
    assert run([*words, str(number)]) == 2
    said = capsys.readouterr().err
    assert f"sweep {number} (max-num-seqs) is not a " in said

"""Tests of experiments in the results database."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from support.simulated_runs import result_of

from workbench.model.errors import InputError, StoreError
from workbench.model.experiment import Arm, Experiment, ExperimentRun, ExperimentSpec
from workbench.model.settings import ClockRange, GpuSettings
from workbench.store.experiments import ExperimentsDb
from workbench.store.results_db import ResultsDb

ARM = Arm(
    ("max-num-seqs=8",),
    ("enforce-eager",),
    ("A=1",),
    GpuSettings(persistence=True, power_limit_w=400.0, gpu_clocks=ClockRange(210, 2400)),
)
SPEC = ExperimentSpec(
    a=Arm(),
    b=ARM,
    plan={"engine": "vllm", "model": "m"},
    preset_id="vllm-any",
    bench={"requests": 8, "command": ("a", "b")},
    pairs=5,
    until_pct=2.0,
    metric="tok_per_joule",
    max_minutes=30.0,
    match_temperature_c=3.0,
    seed=7,
    throw_away=True,
)
RUNS = (
    ExperimentRun(0, 0, "A", "done", 4, 10.5, 31.0, None, "run-1", 41.0),
    ExperimentRun(1, 0, "B", "failed"),
)
WHOLE = Experiment(
    0,
    1.5,
    "box",
    SPEC,
    RUNS,
    "stopped",
    None,
    "no claim",
    4.2,
    True,
    None,
    True,
    "a\nb",
    "lost",
    "",
    1,
    "run-1",
    settings_on=True,
)


@pytest.fixture
def db(tmp_path: Path) -> ExperimentsDb:
    return ExperimentsDb(tmp_path / "results.sqlite3")


def test_a_stored_experiment_is_read_back_the_same(db: ExperimentsDb) -> None:
    one = db.add(WHOLE)
    assert one == replace(WHOLE, id=1) and db.get(1) == one
    changed = replace(one, state="done", runs=RUNS[:1])
    db.save(changed)
    assert db.add(WHOLE).id == 2
    assert db.list() == (replace(WHOLE, id=2), changed)


def test_reading_creates_no_file_and_waits_for_no_writer(tmp_path: Path) -> None:
    """Listing or showing experiments once took the writers' lock and created the file."""
    db = ExperimentsDb(tmp_path / "data" / "results.sqlite3", busy_s=0.0)
    assert db.list() == () and ResultsDb(db.path).list() == ()
    with pytest.raises(InputError):
        db.get(1)
    assert not db.path.parent.exists()
    db.add(WHOLE)
    with contextlib.closing(sqlite3.connect(db.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert [one.id for one in db.list()] == [1] and db.get(1).id == 1
        with pytest.raises(StoreError):
            db.add(WHOLE)
    with pytest.raises(StoreError, match="readonly"):
        db._database.read(lambda open_one: open_one.execute("DELETE FROM experiments"))


def test_the_stamp_changes_with_every_write_and_only_then(db: ExperimentsDb) -> None:
    results = ResultsDb(db.path)
    stamps = [results.change_stamp()]
    for _ in range(3):
        db.add(WHOLE)
        stamps.append(results.change_stamp())
        db.list()
        assert results.change_stamp() == stamps[-1]
    assert len(set(stamps)) == len(stamps)


def test_experiments_and_results_share_a_database_in_any_order(tmp_path: Path) -> None:
    for first in (True, False):
        path = tmp_path / f"{first}.sqlite3"
        results, experiments = ResultsDb(path), ExperimentsDb(path)
        result = result_of(1, "A", 1.0)
        if first:
            experiments.add(WHOLE)
        results.add(result.spec, result.conditions, result.summary)
        assert experiments.add(WHOLE).id == 1 + first
        assert len(results.list()) == 1 and len(experiments.list()) == 1 + first


def test_unknown_damaged_and_newer_experiments_give_clear_errors(db: ExperimentsDb) -> None:
    assert db.list() == ()
    for call in (lambda: db.get(9), lambda: db.save(replace(WHOLE, id=9))):
        with pytest.raises(InputError, match="there is no experiment 9"):
            call()
    for _ in range(3):
        db.add(WHOLE)
    with sqlite3.connect(db.path) as raw:
        raw.execute("UPDATE experiments SET data = '{}' WHERE id = 1")
        raw.execute("UPDATE experiments SET format = 99 WHERE id = 2")
    raw.close()
    with pytest.raises(StoreError, match="experiment 1 in the database is damaged"):
        db.get(1)
    with pytest.raises(StoreError, match="newer Workbench"):
        db.get(2)
    assert [e.id for e in db.list()] == [3]


def test_fields_of_a_later_version_are_dropped(db: ExperimentsDb) -> None:
    db.add(WHOLE)
    with sqlite3.connect(db.path) as raw:
        data = json.loads(raw.execute("SELECT data FROM experiments").fetchone()[0])
        data["new"] = data["spec"]["new"] = data["spec"]["b"]["gpu"]["new"] = data["runs"][0][
            "new"
        ] = 1
        raw.execute("UPDATE experiments SET data = ?", (json.dumps(data),))
    raw.close()
    assert db.get(1) == replace(WHOLE, id=1)


def test_secrets_are_not_stored(db: ExperimentsDb) -> None:
    token = "hf_" + "a" * 30
    plan = {"engine": "vllm", "env": [{"name": "HF_TOKEN", "value": token}]}
    db.add(replace(WHOLE, spec=replace(SPEC, plan=plan, a=Arm(envs=(f"HF_TOKEN={token}",)))))
    assert token.encode() not in db.path.read_bytes()


def test_only_one_workbench_can_run_an_experiment(db: ExperimentsDb) -> None:
    one = db.add(replace(WHOLE, state="running", error=None))
    with db.hold_lock(one.id):
        assert db.get(1).state == "running"
        with pytest.raises(InputError, match="another Workbench is running"), db.hold_lock(one.id):
            pass
        with db.hold_lock(2):
            pass
    left = db.get(1)
    assert left.state == "stopped" and left.error == "Workbench ended while it ran"


def test_the_lock_of_a_killed_workbench_is_released(db: ExperimentsDb) -> None:
    one = db.add(replace(WHOLE, state="running", error=None))
    script = (
        "from workbench.store.experiments import ExperimentsDb as D; from pathlib import Path; "
        "import sys\n"
        f"with D(Path({str(db.path)!r})).hold_lock({one.id}): print(1, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=-1, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == b"1\n"
        assert db.get(1).state == "running"
        other.kill()
        other.wait()
    assert db.get(1).state == "stopped"


def test_a_file_that_is_not_a_database_gives_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "results.sqlite3").write_bytes(b"this is no database, " * 400)
    with pytest.raises(StoreError):
        ExperimentsDb(tmp_path / "results.sqlite3").list()

"""Records on disk that older versions wrote are read back whole.

fixtures/records was written by the last version that converted records by hand, on the simulated
host "four-pcie".
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from dataclasses import asdict
from pathlib import Path
from typing import Any

from workbench.model.bench import BenchResult
from workbench.model.flags import Origin
from workbench.model.json_records import from_json
from workbench.model.settings import GpuSettings
from workbench.server.run_directory import decode_ready, decode_record
from workbench.store.experiments import ExperimentsDb
from workbench.store.sweeps import SweepStore

RECORDS = Path(__file__).parents[2] / "fixtures" / "records"
# Of records, since the fixtures were written; p99 of few values is no longer kept.
REMOVED_FIELDS = {"preset_status", "ttft_p99_ms", "p99"}


def document(name: str) -> Any:
    return json.loads((RECORDS / name).read_text("utf-8"))


def assert_contains(record: Any, data: Any) -> None:
    """Assert that everything in `data` is in the record, except fields that were removed."""
    wanted = without_removed(data)
    assert common(json.loads(json.dumps(asdict(record))), wanted) == wanted


def common(found: Any, wanted: Any) -> Any:
    """Return `found` without the fields of its objects that `wanted` lacks: those that were added
    since."""
    if isinstance(found, list) and isinstance(wanted, list) and len(found) == len(wanted):
        return [common(a, b) for a, b in zip(found, wanted, strict=True)]
    if isinstance(found, dict) and isinstance(wanted, dict):
        return {
            name: common(value, wanted[name]) for name, value in found.items() if name in wanted
        }
    return found


def without_removed(data: Any) -> Any:
    if isinstance(data, list):
        return [without_removed(value) for value in data]
    if isinstance(data, dict):
        return {
            name: without_removed(value)
            for name, value in data.items()
            if name not in REMOVED_FIELDS
        }
    return data


def test_an_older_result_is_read_back_whole() -> None:
    row = document("result.json")
    result = from_json(BenchResult, row)
    assert_contains(result.spec, row["spec"])
    assert_contains(result.conditions, row["conditions"])
    assert_contains(result.summary, row["summary"])
    assert result.summary.ttft_ms is not None and result.summary.engine is not None
    assert isinstance(result.conditions.argv, tuple) and result.conditions.simulated


def test_an_older_experiment_is_read_back_whole(tmp_path: Path) -> None:
    row = document("experiment.json")
    db = ExperimentsDb(tmp_path / "results.sqlite3")
    with sqlite3.connect(db.path) as raw:
        raw.execute("CREATE TABLE experiments (id INTEGER PRIMARY KEY, unix_s, host, format, data)")
        values = (
            row["data"]["unix_s"],
            row["data"]["host"],
            row["format"],
            json.dumps(row["data"]),
        )
        raw.execute("INSERT INTO experiments VALUES (1, ?, ?, ?, ?)", values)
    raw.close()
    experiment = db.get(1)
    assert (experiment.spec.metric, experiment.spec.pairs) == (
        "output_tok_s",
        2,
    ) and experiment.runs
    assert isinstance(experiment.spec.b.gpu, GpuSettings) and experiment.spec.b.gpu
    for arm in ("a", "b"):  # null and false meant a setting that was left alone
        given = row["data"]["spec"][arm]["gpu"]
        row["data"]["spec"][arm]["gpu"] = {
            key: value for key, value in given.items() if value not in (None, False)
        }
    assert_contains(experiment, {**row["data"], "id": 1})


def test_an_older_sweep_is_read_back_whole(tmp_path: Path) -> None:
    shutil.copy(RECORDS / "sweep.json", tmp_path / "1.json")
    sweep = SweepStore(tmp_path).get(1)
    assert_contains(sweep, document("sweep.json"))
    assert (
        sweep.spec is not None and isinstance(sweep.spec.values, tuple) and len(sweep.points) == 3
    )
    assert all(isinstance(point.result_ids, tuple) for point in sweep.points)


def test_an_older_run_directory_is_read_back_whole() -> None:
    body = document("plan.json")
    record = decode_record(body["run_id"], (RECORDS / "plan.json").read_bytes())
    assert (
        record.problem is None
        and record.plan.engine == "vllm"
        and record.plan.model_facts is not None
    )
    assert all(
        isinstance(setting.origin, Origin) for setting in (*record.plan.flags, *record.plan.env)
    )
    del body["format"], body["plan"]["preset_status"]  # not read any more
    assert_contains(record, body)
    ready = decode_ready((RECORDS / "ready.json").read_bytes())
    assert ready is not None
    assert_contains(ready, document("ready.json"))

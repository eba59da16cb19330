"""A preset that is named by the path of its file, which is not in the library."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from workbench.model.errors import PresetError
from workbench.model.json_records import from_json, to_json
from workbench.model.plan import LaunchPlan
from workbench.model.secrets import mask_secrets_of_plan
from workbench.model.sweep import SweepSpec
from workbench.session.session import Session

PRESET = """\
schema = 1
id = "of-a-file"
title = "A preset of a file"
summary = "It is in no directory of presets."
[hardware]
count = 1
[engine]
name = "vllm"
[model]
id = "Qwen/Qwen3-0.6B"
[benchmark]
concurrency = [3]
requests = 21
[[gpu_settings]]
gpu = "all"
power_limit_w = 400
reason = "quiet"
[provenance]
document = "none"
status = "untested"
"""


def test_its_benchmark_and_gpu_settings_count_as_those_of_the_library(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(PRESET)
    session = Session.of_host()
    with pytest.raises(PresetError, match="no preset"):
        session.presets.get("of-a-file")
    plan = session.presets.make_plan(str(file))
    session.plans.edit_plan(plan, "of-a-file")
    assert plan.stranger
    assert len(session.plans.preset_gpu_settings()) == 1
    load = session.server_load.make_spec(plan.preset_id, {})
    assert (load.concurrency, load.requests) == (3, 21)
    assert session.presets.library.read_document("of-a-file")["title"] == "A preset of a file"


def test_another_process_knows_the_preset_of_a_run_by_its_plan(tmp_path: Path) -> None:
    """It measured with the default load, and did not say so."""
    file = tmp_path / "mine.toml"
    file.write_text(PRESET)
    plan = Session.of_host().presets.make_plan(str(file))
    stored = from_json(LaunchPlan, json.loads(json.dumps(to_json(plan))))
    later = Session.of_host()
    assert "no preset" in later.server_load.why_preset_is_unreadable(plan.preset_id)
    later.presets.register_preset_file(stored)
    assert later.server_load.make_spec(stored.preset_id, {}).requests == 21
    assert later.server_load.why_preset_is_unreadable(plan.preset_id) == ""
    file.unlink()
    assert "mine.toml" in later.server_load.why_preset_is_unreadable(plan.preset_id)


def test_a_resumed_tune_takes_its_load_and_its_parent_from_the_file(tmp_path: Path) -> None:
    """Another process took the default load and the general preset of the engine."""
    file = tmp_path / "mine.toml"
    file.write_text(PRESET)
    first = Session.of_host()
    plan = first.presets.make_plan(str(file))
    path = first.presets.path_of_preset(plan.preset_id)
    assert path == str(file) and first.presets.path_of_preset("vllm-any") is None
    stored = asdict(mask_secrets_of_plan(plan))
    spec = SweepSpec((), plan=stored, preset_id=plan.preset_id, preset_file=path)
    later = Session.of_host()
    resumed = later.sweeps._tunes._plan_of_stored_sweep(spec)
    assert later.plans._parent_document(resumed)["title"] == "A preset of a file"
    assert later.server_load.make_spec(resumed.preset_id, {}).requests == 21
    file.unlink()
    with pytest.raises(PresetError, match=r"mine\.toml"):
        Session.of_host().sweeps._tunes._plan_of_stored_sweep(spec)

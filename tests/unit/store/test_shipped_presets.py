"""Tests of every file in presets/: it is valid, names its source, and its limits agree with the
roofline."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest
import tomlkit

from workbench import engines
from workbench.engines.catalog import list_catalog_versions, version_satisfies
from workbench.engines.roofline import compute_speed_limits
from workbench.model.findings import Level
from workbench.model.preset import Preset
from workbench.store.paths import shipped_presets_dir
from workbench.store.preset_check import check_file, check_text
from workbench.store.presets import PresetLibrary

FILES = sorted(shipped_presets_dir().glob("*.toml"))
IDS = [f.stem for f in FILES]
DOCUMENTS = {
    "esxi-vm-performance-analysis": 6,  # how many of its claims matter most, and must be answered
    "blackwell-optimization-plan": 5,
    "dgx-spark-vllm-diagnosis": 9,
    "rtx-5060ti-fp8-proposal": 9,
    "vllm-server-optimization-guide": 5,
}


@pytest.fixture(scope="module")
def library() -> PresetLibrary:
    return PresetLibrary([Path("no-such-directory"), shipped_presets_dir()])


def values(preset: Preset) -> dict[str, str]:
    return {n: v.default or v.example or "" for n, v in preset.variables.items()}


@pytest.mark.parametrize("file", FILES, ids=IDS)
def test_every_shipped_preset_has_no_findings(file: Path) -> None:
    assert check_file(file).findings == ()


@pytest.mark.parametrize("preset_id", IDS)
def test_schema_round_trip(library: PresetLibrary, preset_id: str) -> None:
    preset = library.get(preset_id)
    plain = json.loads(preset.model_dump_json(by_alias=True, exclude_none=True))
    again = check_text(tomlkit.dumps(plain)).preset
    assert again == preset
    assert plain["schema"] == 1


@pytest.mark.parametrize("preset_id", IDS)
def test_every_shipped_preset_gives_a_plan_without_errors(
    library: PresetLibrary, preset_id: str
) -> None:
    preset = library.get(preset_id)
    plan = engines.plan_from_preset(preset, variables=values(preset))
    engine = engines.get_engine(plan.engine)
    for version in [
        v
        for v in list_catalog_versions(engine.name)
        if version_satisfies(v, preset.engine.versions)
    ]:
        found = engines.validate_plan(plan, engine.catalog(version))
        assert [f for f in found if f.level is Level.ERROR] == [], version
        assert [f for f in found if f.code.startswith(("flag.unknown", "env.unknown"))] == [], (
            version
        )
    assert [s.name for s in plan.flags] == list(preset.flags), (
        "flags stand under their canonical names"
    )
    argv = engine.command(plan).argv
    assert argv and not any("${" in a for a in argv)


@pytest.mark.parametrize("preset_id", IDS)
def test_every_shipped_preset_names_its_source(library: PresetLibrary, preset_id: str) -> None:
    preset = library.get(preset_id)
    text = (shipped_presets_dir() / f"{preset_id}.toml").read_text()
    assert not re.search(r"/home/|/root|/tmp|/opt/vllm|ivan|phoenix", text), (
        "paths of the authors' machines"
    )
    assert preset.caveats and len(preset.summary) > 60
    document = preset.provenance.document
    if document not in DOCUMENTS:
        if not document.startswith("none"):  # of others: it says so, and carries their figures
            assert preset.references and preset.provenance.status == "untested"
        return
    assert document in preset.documents
    important = [c for c in preset.claims if c.impact == "high" and c.document in (None, document)]
    assert len(important) >= DOCUMENTS[document]
    assert all(c.lines and c.correct and c.basis for c in preset.claims)
    assert len({c.text for c in preset.claims}) == len(preset.claims)
    assert preset.references and all(r.source and r.conditions for r in preset.references)
    decodes = preset.benchmark.endpoint != "embeddings" and preset.engine.name != "tabbyapi"
    assert not decodes or preset.model.bytes_per_token_gb


def test_every_document_and_every_engine_has_its_presets(library: PresetLibrary) -> None:
    presets = [library.get(i) for i in IDS]
    assert {p.provenance.document for p in presets} >= set(DOCUMENTS)
    assert len(presets) > 60
    generic = {p.engine.name for p in presets if p.provenance.document.startswith("none")}
    assert generic == set(engines.engine_names())
    assert {p.id for p in presets if p.gpu_settings} >= {"rtx-pro-6000-clock-power-profile"}
    assert any(p.nodes for p in presets)


def test_baselines_exist_and_run_the_same_engine_or_model(library: PresetLibrary) -> None:
    assert library.findings() == ()
    for preset_id in IDS:
        preset = library.get(preset_id)
        if preset.baseline:
            base = library.get(preset.baseline)
            assert base.engine.name == preset.engine.name
            assert base.benchmark == preset.benchmark, "measured the same way"


@pytest.mark.parametrize("preset_id", IDS)
def test_ceilings_follow_from_the_model_and_the_hardware(
    library: PresetLibrary, preset_id: str
) -> None:
    """The limit that a reference names for this preset's own model equals the roofline on the
    preset's GPUs."""
    preset = library.get(preset_id)
    facts = engines.plan_from_preset(preset, variables=values(preset)).model_facts
    gpus = list(preset.hardware.gpu_names[:1]) * preset.hardware.count
    tp = preset.flags.get("tensor-parallel-size", 1)
    limit = compute_speed_limits(facts, gpus, tp=tp).tok_s_per_stream
    named = [r for r in preset.references if r.ceiling and "stream" in r.metric]
    own = [r for r in named if r.source == preset.provenance.document]
    if not own or ("spark" in preset_id and tp == 1):
        pytest.skip("no ceiling named by its own document for its own model")
    for reference in own:
        assert limit == pytest.approx(reference.ceiling, abs=0.01)


def test_the_order_of_fields_puts_what_is_read_first_at_the_top() -> None:
    for file in FILES:
        keys = list(tomllib.loads(file.read_text()))
        assert keys[:4] == ["schema", "id", "title", "summary"]
        assert keys[-1] == "provenance"

"""Tests of the preset library: listing, getting, saving, and presets made from a plan."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from workbench import engines
from workbench.model.errors import PresetError
from workbench.model.findings import Level
from workbench.model.flags import Origin
from workbench.model.plan import LaunchPlan
from workbench.store import paths, preset_list_cache
from workbench.store import presets as presets_module
from workbench.store.preset_check import check_file
from workbench.store.preset_edit import document_from_plan
from workbench.store.presets import PresetLibrary

Dirs = tuple[Path, Path]


def put(directory: Path, preset_id: str, text: str, **changes: str) -> Path:
    text = text.replace('id = "mine"', f'id = "{preset_id}"')
    for old, new in changes.items():
        text = text.replace(old, new)
    path = directory / f"{preset_id}.toml"
    path.write_text(text)
    return path


def test_without_directories_the_library_is_empty(tmp_path: Path) -> None:
    library = PresetLibrary([tmp_path / "a", tmp_path / "b"])
    assert library.list() == () and library.findings() == ()


def test_the_default_library_has_the_shipped_presets() -> None:
    library = PresetLibrary()
    assert library.own_dir == paths.own_presets_dir()
    entries = {e.id: e for e in library.list()}
    spark = entries["vllm-llama-3.3-70b-2x-spark"]
    assert (spark.engine, spark.gpu_count, spark.nodes, spark.origin) == ("vllm", 2, 2, "shipped")
    assert (
        spark.hardware == "2x GB10, dgx spark"
        and spark.model == "meta-llama/Llama-3.3-70B-Instruct"
    )
    assert entries["sglang-mistral-large-awq-baseline"].model == "Mistral-Large-Instruct-2411-AWQ"
    assert set(spark.as_json()) >= {"id", "title", "engine", "hardware", "status", "error"}


def test_invalid_files_are_listed_with_their_error_and_hide_nothing(
    dirs: Dirs, minimal: str
) -> None:
    own, shipped = dirs
    put(shipped, "good", minimal)
    (own / "good.toml").write_text("id = \n")
    (own / "odd.toml").write_bytes(b"\xff\xfe")
    (own / "empty.toml").write_text("")
    (own / "list.toml").write_text('id = ["x"]\ntitle = 3\nengine = 4\n')
    os.mkfifo(own / "pipe.toml")
    (own / "broken-link.toml").symlink_to(own / "nowhere")
    (own / "directory.toml").mkdir()
    (own / "notes.txt").write_text("not a preset")
    (own / ".hidden.toml").write_text("x")
    library = PresetLibrary(dirs)
    entries = library.list()
    assert [(e.id, e.origin) for e in entries if e.error is None] == [("good", "shipped")]
    broken = {e.id: e.error for e in entries if e.error}
    assert set(broken) == {"good", "odd", "empty", "list", "pipe", "broken-link", "directory"}
    assert (
        broken["good"] is not None
        and broken["good"].code == "preset.bad-toml"
        and broken["good"].line == 1
    )
    assert library.get("good").title == "Mine"
    with pytest.raises(PresetError, match="not UTF-8"):
        library.get("odd")
    codes = {error.code for error in broken.values() if error is not None}
    assert codes >= {"preset.bad-toml", "preset.not-a-file", "preset.unreadable"}


def test_the_users_own_preset_replaces_a_shipped_one_with_a_finding(
    dirs: Dirs, minimal: str
) -> None:
    own, shipped = dirs
    theirs = put(shipped, "same", minimal)
    put(own, "same", minimal.replace("max-num-seqs = 16", "max-num-seqs = 99"))
    library = PresetLibrary(dirs)
    (entry,) = library.list()
    assert entry.origin == "own" and entry.hides == str(theirs)
    assert library.get("same").flags["max-num-seqs"] == 99
    (finding,) = library.findings()
    assert (
        finding.code == "preset.duplicate-id"
        and finding.level is Level.INFO
        and str(theirs) in finding.text
    )


def test_two_files_with_one_id_in_one_directory_are_reported(dirs: Dirs, minimal: str) -> None:
    own, _ = dirs
    (own / "a.toml").write_text(minimal)
    (own / "b.toml").write_text(minimal)
    good, second = PresetLibrary(dirs).list()
    assert good.path.endswith("a.toml") and good.error is None
    assert second.error is not None and second.error.code == "preset.duplicate-id"


def test_an_unknown_id_gets_the_nearest_ids_as_suggestions(dirs: Dirs, minimal: str) -> None:
    put(dirs[1], "vllm-any", minimal)
    with pytest.raises(PresetError, match='no preset "vlm-any"') as caught:
        PresetLibrary(dirs).get("vlm-any")
    assert "vllm-any" in str(caught.value.next_step) and caught.value.exit_code == 2


def test_get_rejects_presets_with_errors(dirs: Dirs, minimal: str) -> None:
    path = put(dirs[1], "bad", minimal.replace("max-num-seqs = 16", 'x = "$(id)"'))
    with pytest.raises(PresetError) as caught:
        PresetLibrary(dirs).get("bad")
    assert f"{path}:" in caught.value.message and "looks like a command" in caught.value.message
    assert caught.value.findings and caught.value.next_step


def test_changed_files_are_read_again(dirs: Dirs, minimal: str) -> None:
    library = PresetLibrary(dirs)
    path = put(dirs[0], "mine", minimal)
    assert library.get("mine").title == "Mine" and library.list()[0].title == "Mine"
    path.write_text(minimal.replace('"Mine"', '"Changed"'))
    assert library.get("mine").title == "Changed" and library.list()[0].title == "Changed"
    path.unlink()
    assert library.list() == ()


def test_a_missing_baseline_is_reported(dirs: Dirs, minimal: str) -> None:
    put(dirs[0], "mine", 'baseline = "mien-0"\n' + minimal)
    put(dirs[0], "mine-0", minimal)
    (finding,) = PresetLibrary(dirs).findings()
    assert finding.code == "preset.baseline" and finding.fix == 'did you mean "mine-0"?'


def test_listing_needs_no_pydantic() -> None:
    code = (
        "import sys; from workbench.store.presets import PresetLibrary as L; assert L().list(); "
        "print([m for m in ('pydantic', 'tomlkit', 'asyncssh', 'httpx') if m in sys.modules])"
    )
    root = Path(paths.__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=True
    )
    assert done.stdout.strip() == "[]"


# Saving


def test_save_and_read_back(dirs: Dirs, minimal: str) -> None:
    put(dirs[1], "mine", minimal)
    library = PresetLibrary(dirs)
    path = library.save({**library.read_document("mine"), "title": "New"}, "new-one")
    assert path == dirs[0] / "new-one.toml" and check_file(path).findings == ()
    saved = library.get("new-one")
    assert saved.title == "New" and saved.flags == library.get("mine").flags
    assert [p.name for p in dirs[0].iterdir()] == ["new-one.toml"]


def test_saving_over_a_file_keeps_its_comments(dirs: Dirs, minimal: str) -> None:
    put(dirs[0], "mine", minimal)
    library = PresetLibrary(dirs)
    document = library.read_document("mine")
    document["flags"] = {"max-num-seqs": 32, "enforce-eager": True}
    document["caveats"] = ["new"]
    with pytest.raises(PresetError, match="exists"):
        library.save(document, "mine")
    path = library.save(document, "mine", replace_existing=True)
    text = path.read_text()
    assert (
        "# A comment that must survive." in text
        and ("# which one") in text
        and "# enough here" in text
    )
    preset = library.get("mine")
    assert preset.flags == {"max-num-seqs": 32, "enforce-eager": True} and preset.caveats == ["new"]
    # a boolean is already in the file
    library.save({**document, "title": "again"}, "mine", replace_existing=True)
    assert library.get("mine").title == "again" and library.get("mine").flags == preset.flags


@pytest.mark.parametrize(
    "preset_id", ["../evil", "a/b", "", "x", "UPPER", ".hidden", "a" * 65, "a\n"]
)
def test_an_id_cannot_lead_out_of_the_directory(dirs: Dirs, minimal: str, preset_id: str) -> None:
    put(dirs[1], "mine", minimal)
    library = PresetLibrary(dirs)
    with pytest.raises(PresetError, match="is not a valid preset id"):
        library.save(library.read_document("mine"), preset_id)
    assert list(dirs[0].iterdir()) == []


def test_an_invalid_preset_is_not_saved(dirs: Dirs, minimal: str) -> None:
    put(dirs[1], "mine", minimal)
    library = PresetLibrary(dirs)
    with pytest.raises(PresetError, match="looks like a command"):
        library.save({**library.read_document("mine"), "flags": {"x": "$(id)"}}, "other")
    with pytest.raises(PresetError, match="provenance"):
        library.save(
            {k: v for k, v in library.read_document("mine").items() if k != "provenance"}, "other"
        )
    assert list(dirs[0].iterdir()) == []


@pytest.mark.slow
def test_every_shipped_preset_can_be_saved_as_the_users_own(tmp_path: Path) -> None:
    library = PresetLibrary([tmp_path, paths.shipped_presets_dir()])
    for entry in library.list():
        library.save({**library.read_document(entry.id), "title": "Copy"}, f"{entry.id[:55]}-copy")
        copy, original = library.get(f"{entry.id[:55]}-copy"), library.get(entry.id)
        assert copy.model_dump(exclude={"id", "title"}) == original.model_dump(
            exclude={"id", "title"}
        )
    assert len(library.list()) == 2 * len(list(tmp_path.glob("*.toml")))


# From a plan


def test_a_preset_from_an_edited_plan(dirs: Dirs) -> None:
    library = PresetLibrary([dirs[0], paths.shipped_presets_dir()])
    parent_id = "vllm-llama-3.3-70b-2x-spark"
    addresses = {"head_ip": "10.0.0.1", "worker_ip": "10.0.0.2"}
    plan = engines.plan_from_preset(library.get(parent_id), variables=addresses)
    plan = (
        plan.with_flag("max-model-len", 4096)
        .without_flag("gpu-memory-utilization")
        .with_env("NCCL_DEBUG", "INFO")
    )
    plan = plan.with_flag("max-num-seqs", 4).with_flag("seed", 0, Origin.DEFAULT)
    document = document_from_plan(
        plan, library.read_document(parent_id), preset_id="spark-short", title="Short context"
    )
    library.save(document, "spark-short")
    preset, parent = library.get("spark-short"), library.get(parent_id)
    assert preset.flags == {
        **{k: v for k, v in parent.flags.items() if k != "gpu-memory-utilization"},
        "max-model-len": 4096,
        "max-num-seqs": 4,
    }
    assert preset.flags["master-addr"] == "${head_ip}", "the variable stays a variable"
    assert preset.env == {**parent.env, "NCCL_DEBUG": "INFO"}
    assert (
        preset.nodes == parent.nodes
        and preset.variables == parent.variables
        and preset.model == parent.model
    )
    assert preset.baseline == parent_id and preset.references == []
    assert preset.claims == parent.claims, "the claims of the write-up hold for the copy too"
    assert (
        preset.provenance.status == "untested"
        and preset.provenance.document == parent.provenance.document
    )
    note = preset.provenance.note or ""
    assert (
        "max-model-len 8192 → 4096" in note
        and ("without gpu-memory-utilization") in note
        and "env" not in note
    )
    again = engines.plan_from_preset(preset, variables=addresses)
    assert [f.name for f in again.flags] == [
        f.name for f in plan.flags if f.origin is not Origin.DEFAULT
    ]


def test_a_preset_from_a_plan_keeps_fields_that_it_does_not_know() -> None:
    parent = {
        "id": "parent",
        "engine": {"name": "vllm", "versions": ">=0.14", "new": "kept"},
        "model": {"id": "org/tiny", "new": "kept"},
        "provenance": {
            "document": "guide.md",
            "status": "measured",
            "date": "2025-10",
            "note": "old",
            "new": "kept",
        },
    }
    document = document_from_plan(
        LaunchPlan("vllm", "org/tiny"), parent, preset_id="mine", title="Mine"
    )
    assert [document[name]["new"] for name in ("engine", "model", "provenance")] == ["kept"] * 3
    assert (
        document["provenance"]["date"] == "2025-10" and document["engine"]["versions"] == ">=0.14"
    )
    assert (document["provenance"]["status"], document["provenance"]["note"]) == (
        "untested",
        "Made from parent.",
    )
    other = document_from_plan(
        LaunchPlan("sglang", "org/tiny"), parent, preset_id="mine", title="Mine"
    )
    assert other["engine"].get("versions") is None and "new" not in other["engine"]


def test_a_plan_with_another_model_drops_the_parents_model_facts_and_variable(dirs: Dirs) -> None:
    library = PresetLibrary([dirs[0], paths.shipped_presets_dir()])
    plan = engines.plan_from_preset(library.get("vllm-qwen3-vl-2b-dp4"))
    plan = engines.apply_assignments(
        plan, engines.get_engine("vllm").catalog(), sets=["model=Qwen/Qwen3-0.6B"]
    )
    document = document_from_plan(
        plan, library.read_document("vllm-qwen3-vl-2b-dp4"), preset_id="other-model", title="Other"
    )
    library.save(document, "other-model")
    preset = library.get("other-model")
    assert preset.model.id == "Qwen/Qwen3-0.6B" and preset.model.bytes_per_token_gb is None
    assert preset.variables == {}


def test_the_list_of_many_presets_is_kept_on_disk(
    dirs: Dirs, minimal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second process reads only files that changed. A damaged list is written again."""
    own, _ = dirs
    for number in range(60):
        put(own, f"p{number}", minimal)
    (own / "bad.toml").write_text("id = \n")
    parsed: list[str] = []
    parse = presets_module.parse_preset_text
    monkeypatch.setattr(
        presets_module,
        "parse_preset_text",
        lambda text, file: parsed.append(Path(file).stem) or parse(text, file),
    )

    def listed() -> set[str]:
        parsed.clear()
        assert len(PresetLibrary(dirs).list()) == 61
        return set(parsed)

    assert len(listed()) == 61 and listed() == {"bad"}
    put(own, "p7", minimal, Mine="Changed")
    assert listed() == {"bad", "p7"} and listed() == {"bad"}
    assert {e.title for e in PresetLibrary(dirs).list() if e.id == "p7"} == {"Changed"}
    whole = paths.preset_list_file().read_bytes()
    for damaged in (
        b"",
        whole[:-9],
        whole.replace(b"Mine", b"Mime"),
        whole.replace(b"format 1", b"format 0"),
        b"\xff\n{}",
    ):
        paths.preset_list_file().write_bytes(damaged)
        assert len(listed()) == 61 and paths.preset_list_file().read_bytes() == whole
    paths.preset_list_file().unlink()
    paths.preset_list_file().mkdir()  # cannot be written
    assert len(listed()) == 61


def _forge(change: Callable[[Any], Any]) -> None:
    """Replace the kept list by another one whose checksum is right."""
    body = json.dumps(
        change(json.loads(paths.preset_list_file().read_bytes().partition(b"\n")[2]))
    ).encode()
    paths.preset_list_file().write_bytes(preset_list_cache._cache_first_line(body) + b"\n" + body)


def _deep(path: Path) -> None:
    body = b"[" * 100_000
    path.write_bytes(preset_list_cache._cache_first_line(body) + b"\n" + body)


HOSTILE_LISTS: dict[str, Callable[[Path], Any]] = {
    "an unknown field": lambda path: _forge(
        lambda list_: {k: [v[0], {**v[1], "x": 1}] for k, v in list_.items()}
    ),
    "no fields": lambda path: _forge(lambda list_: {k: [v[0], []] for k, v in list_.items()}),
    "no entries": lambda path: _forge(lambda list_: [1, 2]),
    "numbers": lambda path: _forge(lambda list_: dict.fromkeys(list_, 5)),
    "too deep": _deep,
    "another path": lambda path: _forge(
        lambda list_: {
            k: [v[0], {**v[1], "path": "/etc/passwd", "origin": "shipped"}]
            for k, v in list_.items()
        }
    ),
    "a FIFO": lambda path: (path.unlink(), os.mkfifo(path)),
    "a link to a FIFO": lambda path: (
        path.unlink(),
        os.mkfifo(path.with_name("pipe")),
        path.symlink_to("pipe"),
    ),
    "a link to itself": lambda path: (path.unlink(), path.symlink_to(path)),
}


@pytest.mark.parametrize("replaced", HOSTILE_LISTS.values(), ids=HOSTILE_LISTS)
def test_a_replaced_list_changes_nothing(
    dirs: Dirs, minimal: str, replaced: Callable[[Path], Any]
) -> None:
    for number in range(60):
        put(dirs[0], f"p{number}", minimal)
    whole = PresetLibrary(dirs).list()
    replaced(paths.preset_list_file())
    assert PresetLibrary(dirs).list() == whole
    pipe = paths.preset_list_file().with_name("pipe")
    assert not pipe.exists() or stat.S_ISFIFO(pipe.stat().st_mode), (
        "what a link leads to is replaced only if it is a file"
    )


def test_a_change_is_seen_also_if_the_time_of_modification_is_set_back(
    dirs: Dirs, minimal: str
) -> None:
    library = PresetLibrary(dirs)
    path = put(dirs[0], "mine", minimal)
    assert library.get("mine").title == library.list()[0].title == "Mine"
    before = path.stat()
    with path.open("r+") as file:
        file.write(minimal.replace('"Mine"', '"Mime"'))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    assert library.get("mine").title == library.list()[0].title == "Mime"

"""The copies of models on a host: found, judged, hashed."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.model_cache import COMMIT, in_directory, in_hub, model_files

from workbench.hosts.local import LocalHost
from workbench.model.errors import InputError
from workbench.model.model_copy import (
    DIRECTORY,
    FILE,
    HUB,
    ModelCopy,
    ModelFile,
    list_copy_differences,
    shared_files_without_hashes,
    size_text,
)
from workbench.server import model_inventory
from workbench.server.model_inventory import SearchPlaces
from workbench.server.model_shipment import plan_shipment


def found(hub: Path, *paths: Path | str, model: str = "") -> dict[str, ModelCopy]:
    places = SearchPlaces({"HF_HUB_CACHE": str(hub)}, tuple(map(str, paths)))
    return {
        copy.path: copy
        for copy in asyncio.run(model_inventory.find_copies(LocalHost(), places, model))
    }


def only(copies: dict[str, ModelCopy]) -> ModelCopy:
    (copy,) = copies.values()
    return copy


def test_models_are_found_in_the_hub_and_in_directories(tmp_path: Path) -> None:
    hub, models = tmp_path / "my hub", tmp_path / "models; touch x"
    snapshot = in_hub(hub)
    plain = in_directory(models / "org" / "plain $(x)")
    (models / "one.gguf").write_bytes(b"GGUF")
    for part in (1, 2):
        (models / f"split-{part:05}-of-00002.gguf").write_bytes(b"GGUF" * part)
    copies = found(hub, models, snapshot / "nowhere")
    assert {(c.kind, c.model, c.path) for c in copies.values()} == {
        (HUB, "org/tiny", str(snapshot)),
        (DIRECTORY, "org/plain $(x)", str(plain)),
        (FILE, "one.gguf", str(models / "one.gguf")),
        (FILE, "split-00001-of-00002.gguf", str(models / "split-00001-of-00002.gguf")),
    }
    assert all(copy.is_complete for copy in copies.values())
    hubs = copies[str(snapshot)]
    assert (hubs.revision, hubs.refs, len(hubs.files)) == (COMMIT, ("main",), 5)
    assert (
        hubs.size_bytes == sum(map(len, model_files().values()))
        and hubs.digest_without_weights is None
    )
    assert not (tmp_path / "x").exists() and not Path("x").exists()


@pytest.mark.parametrize("name", ["org/tiny", "tiny", COMMIT, "PATH"])
def test_one_model_is_found_by_id_path_or_last_part(tmp_path: Path, name: str) -> None:
    hub = tmp_path / "hub"
    snapshot = in_hub(hub)
    in_hub(hub, "org/other")
    here = in_directory(tmp_path / "models" / "tiny")
    wanted = str(here) if name == "PATH" else name
    copies = found(hub, tmp_path / "models", model=wanted)
    paths = {
        "org/tiny": {str(snapshot), str(here)},
        COMMIT: {str(snapshot), str(snapshot).replace("tiny", "other")},
    }
    assert set(copies) == paths.get(name, {str(here)})
    assert all(copy.digest_without_weights for copy in copies.values())


def problems(copy: ModelCopy) -> str:
    assert not copy.is_complete
    return "; ".join(copy.problems)


def test_a_partial_copy_says_what_is_missing(tmp_path: Path) -> None:
    hub = tmp_path / "hub"
    snapshot = in_hub(hub)
    shard = snapshot / "model-00002-of-00002.safetensors"
    blob = shard.resolve()
    blob.rename(blob.with_name(f"{blob.name}.incomplete"))
    assert problems(only(found(hub))) == (
        "a download is unfinished (300 kB so far); 1 of 2 weight files missing: "
        "model-00002-of-00002.safetensors"
    )
    shard.unlink()
    assert "1 of 2 weight files missing" in problems(only(found(hub)))


def test_a_copy_without_weights_config_or_parts_is_partial(tmp_path: Path) -> None:
    plain = in_directory(tmp_path / "plain")
    (plain / "config.json").unlink()
    assert problems(only(found(tmp_path, plain))) == "no config.json"
    split = tmp_path / "split-00001-of-00003.gguf"
    split.write_bytes(b"GGUF")
    assert problems(only(found(tmp_path, split))) == "1 of 3 parts of a GGUF file"
    (tmp_path / "split-2-of-00003.gguf").write_bytes(b"GGUF")  # llama.cpp does not load this name
    assert problems(only(found(tmp_path, split))) == "1 of 3 parts of a GGUF file"
    none = tmp_path / "none-00001-of-00000.gguf"
    none.write_bytes(b"GGUF")
    assert only(found(tmp_path, none)).is_complete
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "config.json").write_text("{}")
    assert problems(only(found(tmp_path, empty))) == "no weight files"


def test_a_file_that_was_cut_off_is_found_by_its_header(tmp_path: Path) -> None:
    plain = in_directory(tmp_path / "plain", shards=1)
    copy = only(found(tmp_path, plain))
    whole = asyncio.run(model_inventory.add_full_file_sizes(LocalHost(), copy))
    assert whole.is_complete and whole.files[1].whole_bytes == whole.files[1].size_bytes
    shard = plain / "model-00001-of-00001.safetensors"
    shard.write_bytes(shard.read_bytes()[:1000])
    cut = asyncio.run(
        model_inventory.add_full_file_sizes(LocalHost(), only(found(tmp_path, plain)))
    )
    assert "cut off: model-00001-of-00001.safetensors" in problems(cut)
    assert "the weights have 1 kB of the 300 kB that the index names" in problems(cut)


def spoil(file: Path) -> None:
    """Change the last bit of a file."""
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    os.utime(file, (1, 1))


def hashed(copy: ModelCopy) -> tuple[ModelCopy, Sequence[int]]:
    seen: list[int] = []
    result = asyncio.run(
        model_inventory.add_hashes(LocalHost(), copy, lambda done, total: seen.append(done))
    )
    return result, seen


def test_hashes_are_computed_once_for_a_file_that_does_not_change(tmp_path: Path) -> None:
    plain = in_directory(tmp_path / "a b\\n c")
    copy, seen = hashed(only(found(tmp_path, plain)))
    files = model_files()
    assert {f.name: f.sha256 for f in copy.files} == {
        n: hashlib.sha256(d).hexdigest() for n, d in files.items()
    }
    assert seen[-1] == copy.size_bytes and len(seen) == len(files)
    kept = tmp_path / "xdg-state" / "workbench" / "model-hashes"
    before = kept.read_text()
    assert hashed(only(found(tmp_path, plain)))[0] == copy and kept.read_text() == before
    shard = plain / "model-00001-of-00002.safetensors"
    spoil(shard)
    changed, _ = hashed(only(found(tmp_path, plain)))
    assert list_copy_differences(copy, changed) == [
        "other bytes on local: model-00001-of-00002.safetensors"
    ]


def test_a_damaged_blob_of_the_hub_is_named(tmp_path: Path) -> None:
    snapshot = in_hub(tmp_path)
    copy, _ = hashed(only(found(tmp_path, model="org/tiny")))
    assert copy.is_complete
    blob = (snapshot / "model-00001-of-00002.safetensors").resolve()
    spoil(blob)
    copy, _ = hashed(only(found(tmp_path, model="org/tiny")))
    assert problems(copy) == (
        "damaged, because the hash is not the hub's: model-00001-of-00002.safetensors"
    )


def test_two_copies_are_compared_by_names_sizes_and_hashes(tmp_path: Path) -> None:
    one, two = in_directory(tmp_path / "1" / "tiny"), in_directory(tmp_path / "2" / "tiny", seed=7)
    (two / "more.txt").write_text("x")
    (two / "original" / "tokenizer.model").unlink()
    a, b = (only(found(tmp_path, path, model=str(path))) for path in (one, two))
    weights = [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    assert list(list_copy_differences(a, b))[:2] == [
        "not on local: original/tokenizer.model",
        "only on local: more.txt",
    ]
    assert shared_files_without_hashes(a, b) == []  # small test files are all hashed
    assert list_copy_differences(a, b)[2] == f"other bytes on local: {', '.join(weights)}"


def test_sizes_are_written_in_the_units_of_the_hub() -> None:
    assert [size_text(n) for n in (0, 999, 1e6, 1.5e9, 141e9, 2.5e12)] == [
        *("0 B", "999 B", "1 MB", "1.5 GB", "141 GB", "2.5 TB"),
    ]


def test_no_name_leads_out_of_the_model(tmp_path: Path) -> None:
    """The names of files, links and refs are chosen by whoever can write on the source."""
    snapshot = in_hub(tmp_path, "org/m")
    (snapshot / "a\nfile=2 1 ..").mkdir()
    (snapshot / "a\nfile=2 1 .." / "written").write_text("22")
    copy = only(found(tmp_path, model="org/m"))
    assert "../written" in [file.name for file in copy.files]
    with pytest.raises(InputError, match="control characters"):
        plan_shipment(copy, "/target")


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/etc/x", "", ".", "a//b"])
@pytest.mark.parametrize("kind", [HUB, DIRECTORY, FILE])
def test_a_copy_stays_in_its_directory(kind: str, name: str) -> None:
    path = "/hub/models--o--m/snapshots/abc"
    for files, refs in (((ModelFile(name, 1),), ()), ((ModelFile("x", 1, blob="b"),), (name,))):
        if kind == HUB or not refs:
            with pytest.raises(InputError, match="lead out"):
                plan_shipment(ModelCopy("h", "o/m", kind, path, files, "abc", refs), "/target")
    if kind == HUB and "/" not in name:
        with pytest.raises(InputError, match="lead out"):
            plan_shipment(
                ModelCopy("h", "o/m", kind, path, (ModelFile("x", 1, blob=name),), "abc"), "/target"
            )


def linked_out(tmp_path: Path, kind: str) -> tuple[Path, str]:
    """Make a model with a link to a file outside. Return the path of the model and the name of the
    link."""
    secret = tmp_path / "secret"
    secret.write_text("a key")
    if kind == HUB:
        model = in_hub(tmp_path / "hub", "org/m")
        (model / "config.json").unlink()
        (model / "config.json").symlink_to(secret)
        return model, "config.json"
    if kind == FILE:
        model = tmp_path / "models" / "m.gguf"
        model.parent.mkdir()
        model.symlink_to(secret)
        return model, str(model)
    model = in_directory(tmp_path / "models" / "m")
    (model / "more").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "a b").write_text("another key")
    return model, "more/a b"


@pytest.mark.parametrize("kind", [HUB, DIRECTORY, FILE])
def test_links_that_lead_out_of_the_model_are_named_and_not_followed_unasked(
    tmp_path: Path, kind: str
) -> None:
    path, link = linked_out(tmp_path, kind)
    copy = found(tmp_path / "hub", path.parent, model="org/m" if kind == HUB else str(path))[
        str(path)
    ]
    assert copy.kind == kind and copy.outside == (link,) and copy.is_complete
    with pytest.raises(InputError, match="links that lead out of it") as refused:
        plan_shipment(copy, "/target")
    assert link in refused.value.message and "--follow-links" in str(refused.value.next_step)
    sizes = plan_shipment(copy, "/target", follow_links=True).sizes
    name = f"snapshots/{COMMIT}/{link}" if kind == HUB else link.rpartition("/models/")[2]
    assert sizes[name] == len((path.parent / link if kind == FILE else path / link).read_bytes())


def test_links_within_the_model_and_to_the_whole_model_are_its_own(tmp_path: Path) -> None:
    """A cache or a directory on another disk is often reached through a link."""
    in_hub(tmp_path / "disk" / "hub", "org/m")
    real = in_directory(tmp_path / "disk" / "m")
    (real / "also.json").symlink_to("config.json")
    (tmp_path / "hub").symlink_to(tmp_path / "disk" / "hub")
    (tmp_path / "linked").symlink_to(real)
    for model in ("org/m", str(tmp_path / "linked")):
        copy = (
            only(found(tmp_path / "hub", model=model))
            if model == "org/m"
            else found(tmp_path, model=model)[model]
        )
        shipment = plan_shipment(copy, "/target")
        assert copy.is_complete and copy.outside == () and shipment.sizes
        if model != "org/m":
            assert (
                shipment.links == {"also.json": "config.json"} and "also.json" not in shipment.sizes
            )


def test_sizes_that_are_no_numbers_are_left_out(tmp_path: Path) -> None:
    """An index may name any number of bytes."""
    snapshot = in_hub(tmp_path, "org/m")
    index = snapshot / "model.safetensors.index.json"
    index.unlink()
    index.write_text('{"metadata":{"total_size":' + "9" * 5000 + "}}")
    assert only(found(tmp_path)).expected_bytes is None

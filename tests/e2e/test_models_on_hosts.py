"""Copies of models between two hosts, each behind a real sshd: by rsync, through this machine, cut
off and resumed."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.container_programs import ContainerPrograms
from support.model_cache import COMMIT, in_directory, in_hub, model_files
from support.sshd import Sshd, sshd

from workbench.model.errors import HostError, InputError
from workbench.server import model_transfer
from workbench.session.hosts.models import CopyReport, Progress
from workbench.session.session import Session

MODEL = "org/tiny"


class Pair:
    """Two hosts, "left" and "right", that hosts.toml names."""

    def __init__(self, directory: Path, left: Sshd, right: Sshd) -> None:
        self.left, self.right = left, right
        self.home = directory / "user"
        (self.home / ".ssh").mkdir(parents=True)
        (self.home / ".ssh" / "config").write_text(left.stanza("left") + right.stanza("right"))
        self.hubs = {name: directory / name / "hf" / "hub" for name in ("left", "right")}
        self.models = {name: directory / name / "my models" for name in ("left", "right")}
        self.file = directory / "xdg-config" / "workbench" / "hosts.toml"
        self.file.parent.mkdir(parents=True)
        self.file.write_text("".join(map(self._entry, ("left", "right"))))

    def _entry(self, name: str) -> str:
        env = (
            f'env = {{ HF_HOME = "{self.hubs[name].parent}", HF_TOKEN = "hf_secretsecretsecret" }}'
        )
        return f'[hosts.{name}]\nmodels = ["{self.models[name]}"]\n{env}\n'

    def copy(
        self, *hosts: str, model: str = MODEL, on_progress: Progress | None = None, **how: Any
    ) -> CopyReport:
        """Copy the model from the first of `hosts` to the second, by default from left to right."""
        source, target = hosts or ("left", "right")

        async def work() -> CopyReport:
            session = Session.of_host()
            try:
                told = {"on_progress": on_progress} if on_progress else {}
                return await session.models.copy_to_host(model, source, target, **told, **how)
            finally:
                await session.close()

        return asyncio.run(work())

    def runs(self, *words: str, code: int = 0) -> tuple[str, str]:
        done = subprocess.run(
            [sys.executable, "-m", "workbench", *words],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        assert (
            "Traceback" not in done.stdout + done.stderr
            and "hf_secret" not in done.stdout + done.stderr
        )
        return done.stdout, done.stderr


def rsync_only(directory: Path, config: Path) -> dict[str, str]:
    """Return the environment of a host whose `ssh` uses the configuration `config`."""
    programs = directory / "programs"
    programs.mkdir(parents=True)
    ssh = programs / "ssh"
    ssh.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {config} "$@"\n')
    ssh.chmod(0o755)
    return {"PATH": f"{programs}:{directory}/stand-ins:{os.environ['PATH']}"}


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    config = tmp_path / "between"
    environment = rsync_only(tmp_path, config)
    with (
        sshd(tmp_path / "sshd-left", environment=environment) as left,
        sshd(tmp_path / "sshd-right") as right,
    ):
        yield Pair(tmp_path, left, right)


def reachable(pair: Pair) -> None:
    """Let left log in on right."""
    options = pair.right.stanza("127.0.0.1")
    (pair.home.parent / "between").write_text(options)


def content(directory: Path) -> dict[str, bytes]:
    return {
        str(f.relative_to(directory)): f.read_bytes() for f in directory.rglob("*") if f.is_file()
    }


def check_hub(pair: Pair) -> None:
    """The copy is what the hub's own program would have made."""
    folder = pair.hubs["right"] / "models--org--tiny"
    snapshot = folder / "snapshots" / COMMIT
    assert content(snapshot) == model_files() and (folder / "refs" / "main").read_text() == COMMIT
    shard = snapshot / "model-00001-of-00002.safetensors"
    assert os.readlink(shard) == f"../../blobs/{hashlib.sha256(shard.read_bytes()).hexdigest()}"
    assert os.readlink(snapshot / "original" / "tokenizer.model").startswith("../../../blobs/")
    assert {path.name for path in folder.iterdir()} == {"blobs", "refs", "snapshots"}


def test_a_model_of_the_hub_goes_through_this_machine(pair: Pair) -> None:
    in_hub(pair.hubs["left"])
    seen: list[tuple[int, int]] = []
    report = pair.copy(on_progress=lambda done, total, text: seen.append((done, total)))
    check_hub(pair)
    total = sum(map(len, model_files().values()))
    assert (report.way, report.sent_bytes) == ("through this machine", total) and seen[-1] == (
        total,
        total,
    )
    again = pair.copy()
    assert (again.way, again.sent_bytes, len(again.present)) == ("", 0, 5)


@pytest.mark.skipif(shutil.which("rsync") is None, reason="needs rsync (apt-get install rsync)")
@pytest.mark.parametrize("hosts", [("left", "right"), ("right", "left")])
def test_rsync_runs_on_the_host_that_reaches_the_other(pair: Pair, hosts: tuple[str, str]) -> None:
    reachable(pair)
    source, target = hosts
    tricky = "a model; touch here $(x) 'quoted' ünïcode"
    in_directory(pair.models[source] / tricky)
    seen: list[tuple[int, int]] = []
    report = pair.copy(
        *hosts, model=tricky, on_progress=lambda done, total, text: seen.append((done, total))
    )
    assert report.way.startswith("by rsync on left, ") and not report.notes
    assert seen[-1] == (report.sent_bytes, report.sent_bytes)
    assert content(pair.models[target] / tricky) == model_files()
    assert not list(pair.left.state_home.rglob("r*-*")) and not list(
        pair.right.state_home.rglob("r*-*")
    )


@pytest.mark.skipif(shutil.which("rsync") is None, reason="needs rsync (apt-get install rsync)")
def test_rsync_goes_on_with_what_is_staged_and_mends_what_is_wrong(pair: Pair) -> None:
    reachable(pair)
    in_directory(pair.models["left"] / "tiny")
    staging = pair.models["right"] / "tiny" / ".workbench-copy"
    staging.mkdir(parents=True)
    whole = model_files()["model-00001-of-00002.safetensors"]
    (staging / "model-00001-of-00002.safetensors").write_bytes(whole[:100_000])
    (staging / "model-00002-of-00002.safetensors").write_bytes(b"?" * 100_000)  # of another model
    report = pair.copy(model="tiny")
    assert "rsync" in report.way and content(pair.models["right"] / "tiny") == model_files()


@pytest.mark.parametrize("way", ["rsync", "this machine"])
@pytest.mark.parametrize("name", ["config.json", "original/tokenizer.model", "original"])
def test_a_link_that_is_made_during_the_copy_is_not_followed(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, name: str
) -> None:
    """Whoever can write in the model's directory could have any file of the user copied, of the
    size that was listed: a file, or one below a directory, becomes a link after the model was
    listed and before it is read."""
    if way == "rsync":
        if shutil.which("rsync") is None:
            pytest.skip("needs rsync (apt-get install rsync)")
        reachable(pair)
    model, secret = in_directory(pair.models["left"] / "tiny"), tmp_path / "secret"
    (model / name).rename(secret)
    shutil.copytree(secret, model / name) if secret.is_dir() else shutil.copy(secret, model / name)
    for file in [secret] if secret.is_file() else list(secret.iterdir()):
        file.write_bytes(b"S" * file.stat().st_size)
    find_rsync_way = model_transfer.find_rsync_way

    async def then_make_the_link(*hosts: Any) -> Any:
        found = await find_rsync_way(*hosts)
        assert (found is not None) == (way == "rsync")
        (model / name).rename(tmp_path / "moved")
        (model / name).symlink_to(secret)
        return found

    monkeypatch.setattr(model_transfer, "find_rsync_way", then_make_the_link)
    with pytest.raises(HostError, match=r"arrived incomplete|has become a link that leads out of"):
        pair.copy(model="tiny")
    assert not [
        text for text in content(pair.models["right"]).values() if text and set(text) == {ord("S")}
    ]


@pytest.mark.parametrize("way", ["rsync", "this machine"])
def test_links_within_a_model_and_names_with_signs_of_patterns_arrive(pair: Pair, way: str) -> None:
    if way == "rsync":
        if shutil.which("rsync") is None:
            pytest.skip("needs rsync (apt-get install rsync)")
        reachable(pair)
    model, there = in_directory(pair.models["left"] / "tiny"), pair.models["right"] / "tiny"
    for name in ("[a]*?\\b.txt", "- f", "# g", "d*/[h", "d*/i\\j"):
        (model / name).parent.mkdir(exist_ok=True)
        (model / name).write_text(name)
    (model / "d*" / "also.json").symlink_to("../config.json")
    (model / "more").symlink_to("original")
    report = pair.copy(model="tiny")
    assert way in report.way
    assert content(there) == {
        **content(model),
        "more/tokenizer.model": (model / "more/tokenizer.model").read_bytes(),
    }
    assert os.readlink(there / "d*" / "also.json") == "../config.json"
    assert os.readlink(there / "more" / "tokenizer.model") == "../original/tokenizer.model"


def test_an_address_at_which_another_machine_answers_is_not_used(pair: Pair) -> None:
    (pair.home.parent / "between").write_text(pair.left.stanza("127.0.0.1"))  # leads back to left
    in_hub(pair.hubs["left"])
    assert pair.copy().way == "through this machine"
    check_hub(pair)


@pytest.mark.slow
def test_a_copy_goes_on_after_the_link_was_cut(pair: Pair) -> None:
    in_hub(pair.hubs["left"], size=6_000_000)
    cuts: list[int] = []

    def cut(done: int, total: int, text: str) -> None:
        if done > (len(cuts) + 1) * total // 4 and len(cuts) < 2:
            cuts.append(done)
            server = (pair.left, pair.right)[len(cuts) % 2]
            server.cut()
            threading.Timer(0.3, server.restore).start()

    report = pair.copy(on_progress=cut)
    snapshot = pair.hubs["right"] / "models--org--tiny" / "snapshots" / COMMIT
    assert content(snapshot) == model_files(size=6_000_000)
    assert len(cuts) == 2 and len(report.notes) == 2 and "the link was cut" in report.notes[0]


def test_a_staged_part_is_used_only_if_it_has_the_same_bytes(pair: Pair) -> None:
    in_directory(pair.models["left"] / "tiny")
    staging = pair.models["right"] / "tiny" / ".workbench-copy"
    staging.mkdir(parents=True)
    whole = model_files()["model-00001-of-00002.safetensors"]
    (staging / "model-00001-of-00002.safetensors").write_bytes(whole[:100_000])
    (staging / "model-00002-of-00002.safetensors").write_bytes(b"?" * 100_000)
    report = pair.copy(model="tiny")
    assert content(pair.models["right"] / "tiny") == model_files()
    # what was missing at the start
    assert report.sent_bytes == sum(map(len, model_files().values())) - 200_000


def test_a_different_file_is_never_overwritten_unasked(pair: Pair) -> None:
    in_directory(pair.models["left"] / "tiny")
    there = in_directory(pair.models["right"] / "tiny", seed=5)
    before = content(there)
    with pytest.raises(
        InputError, match=r"right has different files at .*my models/tiny: model-00001"
    ):
        pair.copy(model="tiny")
    assert content(there) == before
    report = pair.copy(model="tiny", replace_different=True)
    assert content(there) == model_files() and "config.json" in report.present


def test_one_changed_byte_in_the_middle_stops_the_copy(pair: Pair) -> None:
    for name in ("left", "right"):
        in_directory(pair.models[name] / "tiny")
    damaged = pair.models["right"] / "tiny" / "model-00001-of-00002.safetensors"
    there = bytearray(damaged.read_bytes())
    there[150_000] ^= 1
    damaged.write_bytes(bytes(there))
    with pytest.raises(InputError, match=r"right has different files .*model-00001-of-00002"):
        pair.copy(model="tiny")
    assert damaged.read_bytes() == bytes(there)
    pair.copy(model="tiny", replace_different=True)
    assert content(pair.models["right"] / "tiny") == model_files()


@pytest.mark.parametrize("name", ["two\nlines.json", "a\rb.bin", "tab\there.txt"])
def test_a_name_with_a_control_character_is_refused_before_anything_is_sent(
    pair: Pair, name: str
) -> None:
    in_directory(pair.models["left"] / "tiny")
    (pair.models["left"] / "tiny" / name).write_text("x")
    with pytest.raises(InputError, match="control characters, such as a newline"):
        pair.copy(model="tiny")
    assert not (pair.models["right"] / "tiny").exists()


def test_a_full_disk_is_told_before_the_copy(pair: Pair, tmp_path: Path) -> None:
    df = tmp_path / "programs" / "df"  # left has this directory on its PATH
    df.write_text("#!/bin/sh\necho head\necho /dev/x 9 9 1000000 9% /\n")
    df.chmod(0o755)
    in_directory(pair.models["right"] / "tiny")
    with pytest.raises(
        HostError, match=r"needs 600 kB more at .*; the disk has 1\.02 GB free"
    ) as refused:
        pair.copy("right", "left", model="tiny")
    assert "--to-dir" in str(refused.value.next_step) and not pair.models["left"].exists()


def test_a_partial_copy_is_not_copied(pair: Pair) -> None:
    snapshot = in_hub(pair.hubs["left"])
    (snapshot / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(InputError, match="1 of 2 weight files missing"):
        pair.copy()
    with pytest.raises(InputError, match="no files of it were found"):
        pair.copy("right", "left")
    with pytest.raises(InputError, match="two hosts of the copy are the same"):
        pair.copy("left", "left")


@pytest.mark.long
@pytest.mark.slow
def test_the_commands_list_check_and_copy(pair: Pair) -> None:
    in_hub(pair.hubs["left"])
    out, _ = pair.runs("models", "list", "--all-hosts")
    assert (
        f"left: {MODEL}  600 kB, 5 files  complete  commit {COMMIT[:12]}" in out
        and "right: no models" in out
    )
    out, _ = pair.runs("models", "check", MODEL, "--on", "left", "--on", "right", code=1)
    assert f"right: no files of {MODEL}" in out
    out, _ = pair.runs("models", "copy", MODEL, "--from", "left", "--to", "right")
    assert "through this machine" in out
    out, _ = pair.runs("models", "check", MODEL, "--on", "left", "--on", "right", "--hash")
    assert "all copies are the same" in out
    assert (
        "did you mean left?"
        in pair.runs("models", "copy", MODEL, "--from", "lleft", "--to", "right", code=1)[1]
    )
    blob = next(
        b
        for b in (pair.hubs["right"] / "models--org--tiny" / "blobs").iterdir()
        if b.stat().st_size > 99999
    )
    data = bytearray(blob.read_bytes())
    data[-1] ^= 1
    blob.write_bytes(data)
    out, _ = pair.runs(
        "--json", "models", "check", MODEL, "--on", "left", "--on", "right", "--hash", code=1
    )
    found = json.loads(out)
    assert not found["ok"] and "other bytes on right" in found["differences"][0]
    assert "damaged" in found["hosts"][1]["copies"][0]["problems"][0]


@pytest.mark.long
@pytest.mark.slow
def test_a_container_of_hosts_toml_is_checked_and_gives_its_models(
    pair: Pair, tmp_path: Path
) -> None:
    programs = ContainerPrograms(tmp_path, "lxc-attach", "lxc-info")
    programs.put("web", "RUNNING")
    hub = tmp_path / "lxc hub"
    entry = (
        f'[hosts.lxc]\nssh = "left"\ncontainer = "lxc:web"\nenv = {{ HF_HUB_CACHE = "{hub}" }}\n'
    )
    pair.file.write_text(pair.file.read_text() + entry)
    in_hub(hub)
    found = json.loads(pair.runs("--json", "hosts", "check", "lxc")[0])["hosts"][0]
    assert found["ok"] and found["name"] == "lxc", found
    assert pair.copy("lxc", "right").way == "through this machine"
    check_hub(pair)
    out, _ = pair.runs("models", "check", MODEL, "--on", "lxc", "--on", "right")
    assert "all copies are the same" in out
    programs.put("web", "STOPPED")
    assert "the container is stopped" in pair.runs("hosts", "check", "lxc", code=1)[0]


HF = """#!/bin/sh
[ "$HF_TOKEN" = hf_secretsecretsecret ] || { echo "no token" >&2; exit 1; }
echo "$@" >>HERE/calls
printf 'Fetching: 10%%\\rFetching: 50%%\\r' >&2
case $2 in
    org/secret) echo "huggingface_hub.errors.GatedRepoError: 401 Client Error." >&2; exit 1 ;;
    org/none) echo "RepositoryNotFoundError: 404 Client Error" >&2; exit 1 ;;
    org/far) echo "ConnectError: [Errno -3] Temporary failure in name resolution" >&2; exit 1 ;;
esac
cp -r HERE/from/. "$HF_HOME" && echo "$HF_HOME/hub/models--org--tiny/snapshots/x"
"""


@pytest.mark.slow
@pytest.mark.long
def test_a_download_is_the_hosts_own(pair: Pair, tmp_path: Path) -> None:
    _, err = pair.runs("--host", "right", "models", "download", MODEL, code=1)
    if not shutil.which("hf"):
        assert (
            "no program of the Hugging Face hub (hf, huggingface-cli) is installed" in err
            and "models copy MODEL --from HOST" in err
        )
    in_hub(tmp_path / "from" / "hub")
    pair.hubs["left"].parent.mkdir(parents=True)
    program = tmp_path / "programs" / "hf"
    program.write_text(HF.replace("HERE", str(tmp_path)))
    program.chmod(0o755)
    out, err = pair.runs("--host", "left", "models", "download", MODEL, "--revision", "main")
    assert f"left: {MODEL}" in out and "complete" in out
    assert (tmp_path / "calls").read_text() == f"download {MODEL} --revision=main\n"
    for model, why in (
        ("secret", "refuses access"),
        ("none", "no such model"),
        ("far", "does not reach the hub"),
    ):
        assert why in pair.runs("--host", "left", "models", "download", f"org/{model}", code=1)[1]
    assert (
        "is not the id of a model"
        in pair.runs("--host", "left", "models", "download", "--", "-x/y", code=2)[1]
    )

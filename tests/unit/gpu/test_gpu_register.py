"""The host's register: what anybody may put there, and what of it is read."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from workbench.gpu.settings import claims, owners, register
from workbench.gpu.settings.register_client import parse_register

BOOT = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
ROOT = Path(__file__).parents[3]
UUID = "GPU-00000000-0000-4000-8000-000000000000"


def entry(**changes: Any) -> dict[str, Any]:
    made = {
        "gpu_uuid": UUID,
        "gpu_index": 0,
        "setting": "power_limit_w",
        "before": 600.0,
        "now": 450.0,
        "since_unix_s": 1.0,
        "boot_id": BOOT,
        "owner": owners.identity_of_this_process(),
        "state": "applied",
    }
    return {**made, **changes}


def told(directory: Path, journal: str = "b") -> list[Any]:
    """What another journal sees."""
    found, _ = claims.parse_foreign_claims_and_own_entries(
        register.read_register(str(directory), BOOT), os.geteuid(), journal
    )
    return [claim.now for claim in found]


def test_each_publish_replaces_what_that_journal_said(tmp_path: Path) -> None:
    where = register.find_or_create_register_directory(str(tmp_path / "register"))
    assert Path(where).stat().st_mode & 0o7777 == 0o1777
    register.publish_entries(where, "a", BOOT, [entry()])
    register.publish_entries(where, "a", BOOT, [entry(now=400.0)])
    register.publish_entries(where, "c", BOOT, [entry(now=300.0)])
    assert told(Path(where)) == [400.0, 300.0] and told(Path(where), "a") == [300.0]
    assert {path.stat().st_mode & 0o777 for path in Path(where).iterdir()} == {0o644}
    register.publish_entries(where, "a", BOOT, [])
    assert told(Path(where)) == [300.0] and len(list(Path(where).iterdir())) == 2


class FullRegister:
    """A register whose disk has room for `files` files, by patches of os.write."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch, files: int) -> None:
        self.directory, self.files, self.write = directory, files, os.write
        monkeypatch.setattr(os, "write", self.write_if_room)

    def write_if_room(self, handle: int, data: bytes) -> int:
        if len(list(self.directory.iterdir())) > self.files:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self.write(handle, data)


def test_on_a_full_disk_no_claim_stays_that_is_no_longer_true(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = register.find_or_create_register_directory(str(tmp_path / "register"))
    register.publish_entries(where, "a", BOOT, [entry()])
    FullRegister(Path(where), monkeypatch, files=1)
    register.publish_entries(where, "a", BOOT, [entry(now=400.0)])
    assert told(Path(where)) == [400.0]
    register.publish_entries(where, "a", BOOT, [])
    assert told(Path(where)) == []
    FullRegister(Path(where), monkeypatch, files=0)
    with pytest.raises(OSError, match="No space left"):
        register.publish_entries(where, "a", BOOT, [entry()])
    assert list(Path(where).iterdir()) == []


def test_the_changes_of_others_are_read_although_none_can_be_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a value that another user has set would be taken for nobody's."""
    where = register.find_or_create_register_directory(str(tmp_path / "register"))
    monkeypatch.setenv("WORKBENCH_GPU_REGISTER", where)
    register.publish_entries(where, "another", BOOT, [entry()])
    FullRegister(Path(where), monkeypatch, files=1)
    found = parse_register(
        json.dumps(register.publish_entries_and_read_register("/mine", [entry(now=400.0)]))
    )
    assert [claim.now for claim in found.others] == [450.0]
    assert found.problem is None and "No space left" in (found.unpublished or "")
    found = parse_register(json.dumps(register.publish_entries_and_read_register("/mine", None)))
    assert found.unpublished is None


def test_what_came_and_went_between_two_looks_is_told(tmp_path: Path) -> None:
    where = register.find_or_create_register_directory(str(tmp_path / "register"))

    def changes() -> list[Any]:
        return [
            (c["gpu_index"], c["setting"])
            for one in register.read_register(where, BOOT)
            for c in one["changes"]
        ]

    register.publish_entries(where, "a", BOOT, [entry()])
    assert changes() == [(0, "power_limit_w")]
    register.publish_entries(where, "a", BOOT, [entry(state="kept")])
    assert changes() == [(0, "power_limit_w")], "nothing was set"
    register.publish_entries(
        where,
        "a",
        BOOT,
        [entry(), entry(setting="gpu_clocks", before="default", now="1,2", gpu_index=3)],
    )
    register.publish_entries(where, "a", BOOT, [])
    came_and_went = [(0, "power_limit_w"), (3, "gpu_clocks")]
    assert told(Path(where)) == [] and changes() == [
        (0, "power_limit_w"),
        (3, "gpu_clocks"),
        *came_and_went,
    ]
    for _ in range(register.CHANGES_KEPT):
        register.publish_entries(where, "a", BOOT, [entry()])
        register.publish_entries(where, "a", BOOT, [])
    assert len(changes()) == register.CHANGES_KEPT


def text(**changes: Any) -> str:
    return json.dumps(
        {"journal": "x", "boot_id": BOOT, "made_ns": 1, "entries": [entry(now=1.0)], **changes}
    )


def linked(path: Path) -> None:
    (path.parent / "elsewhere").write_text(text())
    path.symlink_to(path.parent / "elsewhere")


def hard_linked(path: Path) -> None:
    (path.parent / "elsewhere").write_text(text())
    path.hardlink_to(path.parent / "elsewhere")


def a_socket(path: Path) -> None:
    where = os.getcwd()
    os.chdir(path.parent)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)
    os.chdir(where)


HOSTILE: dict[str, Callable[[Path], Any]] = {
    "a FIFO": os.mkfifo,
    "a link": linked,
    "a link to a FIFO": lambda p: (os.mkfifo(p.parent / "pipe"), p.symlink_to("pipe")),
    "a hard link": hard_linked,
    "a directory": Path.mkdir,
    "a socket": a_socket,
    "huge": lambda p: (p.touch(), os.truncate(p, 3 << 30)),
    "not whole": lambda p: p.write_text(text()[:-9]),
    "deep": lambda p: p.write_text("[" * 100_000),
    "no object": lambda p: p.write_text("[1]"),
    "bytes": lambda p: p.write_bytes(b"\xff\xfe\x00"),
    "of another boot": lambda p: p.write_text(text(boot_id="another")),
    "entries that are none": lambda p: p.write_text(text(entries={"a": 1})),
    "a command": lambda p: p.write_text(text(entries=[entry(before="600; touch /pwned")])),
    "no number": lambda p: p.write_text(text(entries=[entry(now=float("nan"))])),
    "an option": lambda p: p.write_text(text(entries=[entry(gpu_uuid="--help")])),
    "an escape": lambda p: p.write_text(text(entries=[entry(state="\x1b]52;c;x\x07")])),
    "a change of no setting": lambda p: p.write_text(
        text(changes=[{"setting": "x", "gpu_index": 0, "unix_s": 1}])
    ),
    "a flood of changes": lambda p: p.write_text(text(changes=[{}] * 100)),
    "a change of no shape": lambda p: p.write_text(text(changes=[7])),
    "a value under it": lambda p: p.write_text(text(entries=[entry(over=["1,2"])])),
    "a time": lambda p: p.write_text(text(entries=[entry(set_unix_s="now")])),
    "a time before all time": lambda p: p.write_text(text(entries=[entry(since_unix_s=-1e15)])),
    "a time no float can hold": lambda p: p.write_text(text(entries=[entry(since_unix_s=10**400)])),
    "an energy no float can hold": lambda p: p.write_text(text(entries=[entry(energy_j=10**400)])),
    "a GPU that fills the screen": lambda p: p.write_text(
        text(entries=[entry(gpu_index=10**3000)])
    ),
}


@pytest.mark.parametrize("make", HOSTILE.values(), ids=HOSTILE)
def test_what_no_workbench_writes_is_passed_over_at_once(
    tmp_path: Path, make: Callable[[Path], Any]
) -> None:
    make(tmp_path / f"{register.PREFIX}0.evil.json")
    register.publish_entries(str(tmp_path), "a", BOOT, [entry()])
    assert told(tmp_path) == [450.0]


def test_a_flood_of_one_user_hides_nobody(tmp_path: Path) -> None:
    register.publish_entries(str(tmp_path), "a", BOOT, [entry()])
    mine = next(tmp_path.iterdir())
    for number in range(500):
        (tmp_path / f"{register.PREFIX}0.{number}.json").write_text(
            text(journal=f"j{number}", entries=[])
        )
    if os.geteuid() == 0:
        for path in tmp_path.iterdir():
            if path != mine:
                os.chown(path, 65534, 65534)
        assert told(tmp_path) == [450.0]
    assert len(register.read_register(str(tmp_path), BOOT)) <= register.MOST_FILES + 1


def test_of_a_flood_of_claims_little_is_read_and_less_is_shown(tmp_path: Path) -> None:
    """30 files of 300 claims, and one of 600; the newest counts."""
    from workbench.cli.gpu_text import list_changes_by_other_processes
    from workbench.gpu.settings import claims
    from workbench.gpu.settings.alterations import alteration_of_claim
    from workbench.session.state import HostView, SessionState

    for number in range(30):
        many = [entry(now=100.0 + number, gpu_index=index) for index in range(300)]
        said = text(journal=f"j{number}", entries=many, made_ns=number)
        (tmp_path / f"{register.PREFIX}0.{number}.json").write_text(said)
    (tmp_path / f"{register.PREFIX}0.x.json").write_text(
        text(journal="jx", entries=[entry()] * 600, made_ns=99)
    )
    found, _ = claims.parse_foreign_claims_and_own_entries(
        register.read_register(str(tmp_path), BOOT), -1, ""
    )
    assert {c.now for c in found} == {128.0, 129.0}
    lines = list(
        list_changes_by_other_processes(
            SessionState(host=HostView("here"), others=tuple(map(alteration_of_claim, found)))
        )
    )
    assert len(lines) == 9 and "and 592 more" in lines[-1]


def test_a_reader_always_finds_one_whole_claim(tmp_path: Path) -> None:
    """While another journal changes what it says, as fast as it can."""
    register.publish_entries(str(tmp_path), "a", BOOT, [entry()])
    stop = threading.Event()

    def change() -> None:
        while not stop.is_set():
            register.publish_entries(str(tmp_path), "a", BOOT, [entry(now=400.0)])

    work = threading.Thread(target=change)
    work.start()
    try:
        for _ in range(200):
            assert told(tmp_path) in ([450.0], [400.0])
    finally:
        stop.set()
        work.join()


@pytest.mark.parametrize(
    ("owner", "changing"),
    [({}, True), ({"start": "1"}, False), ({"pid": 4194304}, False), ({"machine": "far"}, True)],
    ids=["runs", "another process", "is gone", "elsewhere, just now"],
)
def test_who_is_at_work_on_a_setting(tmp_path: Path, owner: dict[str, Any], changing: bool) -> None:
    made = entry(state="pending", owner={**owners.identity_of_this_process(), **owner})
    register.publish_entries(str(tmp_path), "a", BOOT, [made])
    ((found,),) = [one["entries"] for one in register.read_register(str(tmp_path), BOOT)]
    assert found["changing"] is changing


def test_nobody_is_at_work_for_ever_or_with_a_process_of_another(tmp_path: Path) -> None:
    register.publish_entries(str(tmp_path), "a", BOOT, [entry(state="pending")])
    (path,) = tmp_path.iterdir()
    found = list(path.stat())
    later = os.stat_result([*found[:9], found[9] - int(register.LEASE_S) - 2])
    other = os.stat_result([*found[:4], found[4] + 4000, *found[5:]])
    made = entry(state="pending")
    assert register._is_setting_being_changed(made, os.stat_result(found))
    assert not register._is_setting_being_changed(
        made, later
    ) and not register._is_setting_being_changed(made, other)
    assert not register._is_setting_being_changed(
        entry(state="pending", owner={**made["owner"], "pid": 1 << 22, "start": ""}), other
    )


@pytest.mark.parametrize("value", [1e300, -1.0, float("nan"), True, "1", 10**400])
@pytest.mark.parametrize("name", ["since_unix_s", "set_unix_s", "energy_j", "gpu_index"])
def test_a_file_with_an_impossible_number_is_not_read(
    tmp_path: Path, name: str, value: object
) -> None:
    register.publish_entries(str(tmp_path), "a", BOOT, [entry(**{name: value})])
    found = register.read_register(str(tmp_path), BOOT)
    assert found == []


def test_a_register_in_which_others_can_change_files_is_not_used(tmp_path: Path) -> None:
    assert register.find_or_create_register_directory(str(tmp_path / "new")) == str(
        tmp_path / "new"
    )
    tmp_path.chmod(0o777)
    with pytest.raises(PermissionError):
        register.find_or_create_register_directory(str(tmp_path))
    tmp_path.chmod(0o1777)
    assert register.find_or_create_register_directory(str(tmp_path)) == str(tmp_path)
    if os.geteuid() == 0:
        os.chown(tmp_path, 1234, -1)
        with pytest.raises(PermissionError):
            register.find_or_create_register_directory(str(tmp_path))


def test_no_claim_is_of_the_future(tmp_path: Path) -> None:
    """Which would make it newer than all others, and no date that can be shown."""
    register.publish_entries(
        str(tmp_path), "a", BOOT, [entry(since_unix_s=2e9, set_unix_s=time.time() + 1e6)]
    )
    ((found,),) = [one["entries"] for one in register.read_register(str(tmp_path), BOOT)]
    assert max(found["since_unix_s"], found["set_unix_s"]) <= time.time()


def test_every_user_of_a_host_takes_the_same_place() -> None:
    place = os.lstat(register.find_or_create_register_directory())
    assert place.st_uid == 0 and place.st_mode & 0o1777 == 0o1777


def test_files_that_come_meanwhile_make_nobody_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each reading of 20,000 files of a neighbour takes long; another one follows only if a file
    that was listed is gone, since a newer one has then replaced it."""
    register.publish_entries(str(tmp_path), "a", BOOT, [entry()])
    looks: list[int] = []
    listed = os.listdir

    def comes(directory: str) -> list[str]:
        looks.append(1)
        (tmp_path / f"{register.PREFIX}{len(looks)}.json").write_text("x")
        return listed(directory)

    with monkeypatch.context() as patch:
        patch.setattr(os, "listdir", comes)
        assert told(tmp_path) == [450.0]
    assert len(looks) == 2, "one list to read, one to compare"


def test_files_that_go_meanwhile_delay_a_reader_for_a_moment_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register.publish_entries(str(tmp_path), "a", BOOT, [entry()])
    looks: list[int] = []
    listed = os.listdir

    def goes(directory: str) -> list[str]:
        looks.append(1)
        return [*listed(directory), f"{register.PREFIX}{len(looks)}.json"]

    with monkeypatch.context() as patch:
        patch.setattr(os, "listdir", goes)
        patch.setattr(register, "WRITE_RETRIES_S", 0.0)
        assert told(tmp_path) == [450.0]
    assert len(looks) == 2


def test_the_name_of_a_journal_is_its_hash_and_loads_no_openssl_nor_typing() -> None:
    """The guard names its journal each second, for days. Other versions use the same name."""
    program = (
        "import sys\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        "from workbench.gpu.guard import start\n"
        "from workbench.gpu.settings import register\n"
        "print(register.register_file_name('/home/ada/gpu/'), *sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program], capture_output=True, check=True, text=True
    )
    name, *modules = done.stdout.split()
    assert name == hashlib.sha256(b"/home/ada/gpu").hexdigest()[:16]
    assert "workbench.gpu.guard.start" in modules and not {"_hashlib", "typing"} & set(modules)

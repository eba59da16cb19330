"""The journal's client: a host without python3 gives the answers that the program on a host gives,
and a failure of the program is told in a sentence."""

from __future__ import annotations

import asyncio
import json
import os
import platform
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.fake_host import FakeHost
from support.guarded import Bare, guarded

from workbench.gpu.settings import journal, journal_client, revert
from workbench.gpu.settings.journal_client import ShellJournal
from workbench.gpu.settings.journal_file import LEASE_S, MOST_BYTES, JournalFile
from workbench.gpu.settings.journal_program import JournalProgram
from workbench.hosts.base import Host
from workbench.hosts.local import LocalHost
from workbench.hosts.python_programs import ASKED, TOO_OLD
from workbench.model.errors import HostError
from workbench.model.settings import GpuSettings

JOURNAL = {"version": 2, "entries": [], "log": [{"what": "set"}], "later": 1}
OWNER = "another-boot:7:1:ada@far"
SAVE = {"journal": JOURNAL, "owner": "b:1:1:me@here", "aside": False, "unlocks": False}


def leave(root: Path) -> None:
    """Leave the directory empty."""


def write(text: str) -> Callable[[Path], None]:
    def prepare(root: Path) -> None:
        (root / "journal.json").write_text(text)

    return prepare


def make_fifo(root: Path) -> None:
    os.mkfifo(root / "journal.json")


def lock(age_s: float) -> Callable[[Path], None]:
    def prepare(root: Path) -> None:
        link = root / "journal.json.lock"
        link.symlink_to(OWNER)
        made = link.lstat().st_mtime - age_s
        os.utime(link, (made, made), follow_symlinks=False)

    return prepare


def link_journal(root: Path) -> None:
    (root / "there").write_text(json.dumps(JOURNAL))
    (root / "journal.json").symlink_to("there")


def lock_by_directory(root: Path) -> None:
    (root / "journal.json.lock").symlink_to(".")


def block(root: Path) -> None:
    (root / "journal.json.lock").write_text("no link")


@pytest.mark.parametrize(
    ("prepare", "do", "more"),
    [
        (leave, "read", {"log": True}),
        (write(json.dumps(JOURNAL, indent=1)), "read", {"log": True}),
        (write('{"version": 2, "entr'), "read", {"log": True}),
        (write(""), "read", {"log": True}),
        (write(" " * (MOST_BYTES + 1)), "read", {"log": True}),
        (make_fifo, "read", {"log": True}),
        (link_journal, "read", {"log": True}),
        (leave, "lock", {"owner": "b:1:1:me@here", "dead": []}),
        (lock(1.0), "lock", {"owner": "b:1:1:me@here", "dead": []}),
        (block, "lock", {"owner": "b:1:1:me@here", "dead": []}),
        (lock_by_directory, "lock", {"owner": "b:1:1:me@here", "dead": []}),
        (leave, "save", SAVE),
        (lock(1.0), "save", SAVE),
        (lock(1.0), "save", {**SAVE, "owner": OWNER, "unlocks": True}),
        (leave, "holder", {}),
        (lock(1.0), "holder", {}),
        (lock(LEASE_S + 60), "holder", {}),
        (lock(-LEASE_S - 60), "holder", {}),
    ],
)
def test_a_host_without_python3_gives_the_answers_of_the_program(
    tmp_path: Path, prepare: Callable[[Path], None], do: str, more: dict[str, Any]
) -> None:
    roots = [tmp_path / name for name in ("program", "shell")]
    for root in roots:
        root.mkdir(mode=0o700)
        prepare(root)

    async def main() -> None:
        by_program = await journal_client.request_journal_operation(
            LocalHost(), str(roots[0]), do, **more
        )
        by_shell = await ShellJournal(LocalHost(), str(roots[1])).run_operation(do, more)
        assert {**by_program, "register": ""} == {**by_shell, "register": ""}
        left = [{path.name.partition(".bad")[0] for path in root.iterdir()} for root in roots]
        assert left[0] == left[1]

    asyncio.run(main())


@pytest.mark.parametrize("free", [0, 10**6])
def test_a_journal_is_read_with_whether_its_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int
) -> None:
    room = SimpleNamespace(f_bavail=free, f_bfree=free, f_frsize=4096)
    monkeypatch.setattr("os.fstatvfs", lambda _: room)
    answer = JournalProgram(str(tmp_path)).answer_request({"do": "read", "log": False})
    assert answer.get("full", False) is (free == 0)


def test_a_damaged_journal_stays_in_its_place_if_no_new_one_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: JournalFile, journal: Any) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / "journal.json").write_text("{")
    (tmp_path / "journal.json.lock").symlink_to(OWNER)
    asked = {"do": "save", **SAVE, "owner": OWNER, "aside": True}
    monkeypatch.setenv("WORKBENCH_GPU_REGISTER", str(tmp_path / "register"))
    with monkeypatch.context() as full:
        full.setattr(JournalFile, "write", fail)
        assert JournalProgram(str(tmp_path)).answer_request(asked)["errno"] == 28
    assert (tmp_path / "journal.json").read_text() == "{"
    assert "register" in JournalProgram(str(tmp_path)).answer_request(asked)
    assert (tmp_path / "journal.json.damaged").read_text() == "{"
    assert json.loads((tmp_path / "journal.json").read_text())["later"] == 1


@pytest.mark.slow
def test_the_journal_is_locked_written_and_read_without_python3(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    link = tmp_path / "workbench" / "gpu" / "journal.json.lock"

    async def main() -> None:
        async with journal.locked_journal(Bare()) as held:
            assert os.readlink(link) == journal.owner_token()
            await held.save(held.journal.with_log_line("first").with_log_line("second"))
        assert not link.is_symlink()
        whole = await journal.read_journal(Bare())
        short = await journal.read_journal(Bare(), with_log=False)
        assert [line["what"] for line in whole.log] == ["first", "second"] and short.log == ()
        assert "no python3" in (whole.register.problem or "")
        link.symlink_to(f"{whole.boot_id}:4194304:1:ada@{platform.node()}")
        async with journal.locked_journal(Bare()) as held:
            assert held.journal.log == whole.log

    asyncio.run(main())


# the last one: a wrapper that loses the exit status of python3, so the sources were never sent
@pytest.mark.parametrize("said", ["", "3", "[]", "NaN", '{"a"', ASKED.decode()])
def test_a_program_that_answers_nothing_usable_is_named(said: str) -> None:
    host = FakeHost(lambda call: f"{said}\n")
    with pytest.raises(HostError, match="journal of GPU settings failed") as error:
        asyncio.run(journal.read_journal(host))
    assert error.value.next_step


def test_an_old_python3_counts_as_none() -> None:
    asked: list[str] = []

    def answer(call: Any) -> Any:
        asked.append(call.argv[0])
        return TOO_OLD if len(asked) == 1 else 3

    host: Host = FakeHost(answer)
    found = asyncio.run(journal.read_journal(host))
    assert found.entries == () and asked[1:] == ["sh"]
    assert "no python3" in (found.register.problem or "")


def test_an_unlock_with_the_last_save_takes_one_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    started: list[bytes] = []

    class Counting(LocalHost):
        async def run(self, argv: Any, **rest: Any) -> Any:
            started.append(rest["input"].rpartition(b'{"do": ')[2].split(b",")[0])
            return await super().run(argv, **rest)

    async def main() -> None:
        async with journal.locked_journal(Counting()) as held:
            await held.save(held.journal.with_log_line("first"))
            await held.save(held.journal.with_log_line("second"), unlock=True)
            assert not (tmp_path / "workbench" / "gpu" / "journal.json.lock").is_symlink()
        async with journal.locked_journal(Counting()) as held:
            assert [line["what"] for line in held.journal.log] == ["first", "second"]

    asyncio.run(main())
    assert started == [b'"lock"', b'"save"', b'"save"', b'"lock"', b'"unlock"']


class Breaking(LocalHost):
    """A host whose python3 ends before it runs anything, once it `is_broken`."""

    kind, is_local, is_broken = "ssh", False, False

    async def run(self, argv: Any, **rest: Any) -> Any:
        return await super().run(self._with_python3(argv), **rest)

    async def stream(self, argv: Any, **rest: Any) -> Any:
        return await super().stream(self._with_python3(argv), **rest)

    def _with_python3(self, argv: Any) -> Any:
        if argv[0] != "python3" or not self.is_broken:
            return argv
        return ["sh", "-c", "echo 'Fatal Python error: init_fs_encoding' >&2; exit 1"]


@pytest.mark.parametrize("starts", [False, True])
def test_a_python3_that_does_not_start_counts_as_none(starts: bool) -> None:
    asked: list[str] = []

    def answer(call: Any) -> Any:
        program = "sh" if call.argv[0] == "sh" else "python3"
        asked.append(program)
        if program == "python3":
            return "" if starts and call.argv[-1] == "" else 1
        return 3

    host: Host = FakeHost(answer)
    if starts:
        with pytest.raises(HostError, match="journal of GPU settings failed"):
            asyncio.run(journal.read_journal(host))
        assert asked == ["python3", "python3"]
    else:
        found = asyncio.run(journal.read_journal(host))
        assert asked == ["python3", "python3", "sh"] and found.entries == ()
        assert "python3 of this host does not start" in (found.register.problem or "")


@pytest.mark.long
@pytest.mark.slow
def test_settings_are_reverted_although_python3_does_not_start_any_more(tmp_path: Path) -> None:
    inner = Breaking()
    with guarded(tmp_path / "host", inner=inner) as there:

        async def work() -> None:
            await there.host.connect()
            assert (await there.change(GpuSettings(power_limit_w=450.0))).ok
            there.kill_guard()
            inner.is_broken = True
            found = await journal.read_journal(there.host)
            assert "python3 of this host does not start" in (found.register.problem or "")
            assert (await revert.revert_settings(there.host)).ok

        asyncio.run(work())
        assert there.in_force() == (None, None) or there.in_force()[0] == 600.0
        assert there.altered == []


def test_a_journal_of_this_machine_is_read_without_a_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each command that looks at GPU settings took 0.05 s of CPU time more, and each start of a screen."""
    (tmp_path / "journal.json").write_text(json.dumps(JOURNAL))
    monkeypatch.delattr(LocalHost, "_spawn")
    opened = len(os.listdir("/proc/self/fd"))
    read = journal_client.request_journal_operation(LocalHost(), str(tmp_path), "read", log=False)
    answer = asyncio.run(read)
    assert json.loads(answer["text"]) == {**JOURNAL, "log": []}
    assert answer["boot_id"] and "directory" in json.loads(answer["register"])
    assert len(os.listdir("/proc/self/fd")) == opened

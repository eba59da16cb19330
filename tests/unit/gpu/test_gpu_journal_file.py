"""The journal on its host: who may remove a lock, and what a killed writer leaves."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from workbench.gpu.settings import journal_file
from workbench.gpu.settings.journal_file import JournalFile

DEAD = "another-boot:7:1:ada@far"


def test_a_lock_made_meanwhile_is_not_removed_with_a_dead_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two programs find a dead lock. While one is about to remove it, the other removes it and
    locks the journal."""
    slow, quick = JournalFile(str(tmp_path), owner="slow"), JournalFile(str(tmp_path), owner="q")
    link = tmp_path / "journal.json.lock"
    link.symlink_to(DEAD)
    read, at_once = os.readlink, threading.Event()

    def take_over() -> None:
        quick.release_lock(DEAD)
        quick.try_to_lock(())
        at_once.set()

    other = threading.Thread(target=take_over)

    def read_and_wait(path: Any, *, dir_fd: int | None = None) -> str:
        found = read(path, dir_fd=dir_fd)
        if threading.current_thread() is not other and not other.ident:
            other.start()
            at_once.wait(0.2)
        return found

    monkeypatch.setattr(os, "readlink", read_and_wait)
    slow.release_lock(DEAD)
    other.join()
    assert read(link) == "q" and not slow.try_to_lock(())


def test_a_program_that_is_stopped_while_it_removes_a_lock_delays_nobody_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_file, "REMOVED_WITHIN_S", 0.02)
    stopped, file = JournalFile(str(tmp_path)), JournalFile(str(tmp_path), owner="one")
    assert file.try_to_lock(())
    with stopped._exclusive_lock_removal():
        file.release_lock()
    assert file.lock_owner() == ""


def test_what_a_killed_writer_left_is_removed_by_the_next_one(tmp_path: Path) -> None:
    killed, running = tmp_path / ".new.journal.4194304", tmp_path / f".new.journal.{os.getppid()}"
    for path in (killed, running, tmp_path / ".new.journal.x"):
        path.write_text("{")
    JournalFile(str(tmp_path)).write({"version": 2, "entries": [], "log": []})
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"journal.json", running.name, ".new.journal.x"}

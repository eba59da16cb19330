"""The guard on a full disk, after a restart of the host, beside what it does not understand; and
what it leaves."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.guarded import WITHIN_S, GuardedHost, guarded, run
from support.procs import alive, eventually

from workbench.cli.gpu_text import guard_lines
from workbench.gpu.guard import client
from workbench.gpu.guard import files as guard_files
from workbench.gpu.settings import alterations
from workbench.gpu.settings.journal import read_journal
from workbench.gpu.settings.journal_file import LOG_LINES
from workbench.model.settings import GpuSettings

ON, OFF = (450.0, (1000, 2000)), (None, None)


@pytest.fixture
def box(tmp_path: Path) -> Iterator[GuardedHost]:
    with guarded(tmp_path / "host") as made:
        yield made


@pytest.fixture
def small(tmp_path: Path) -> Iterator[GuardedHost]:
    """Its journal lies on a disk of 64 KiB."""
    disk = tmp_path / "host" / "gpu"
    disk.mkdir(parents=True)
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k,mode=0700", "tmpfs", disk],
        check=False,
        capture_output=True,
    ).returncode:
        pytest.skip("no disk can be mounted here")
    try:
        with guarded(tmp_path / "host") as made:
            yield made
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


@pytest.mark.slow
def test_on_a_full_disk_it_gives_back_and_writes_it_down_later(small: GuardedHost) -> None:
    run(small.change(heartbeat_s=1.0))
    before = small.journal.read_text()
    ballast = small.gpu / "ballast"
    with pytest.raises(OSError, match="No space left"), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 1024)
    eventually(lambda: small.in_force() == OFF, "the settings of before", 1.0 + WITHIN_S)
    # within a page that the log had already
    eventually(lambda: "reverted GPU0" in small.log, "what was read back")
    assert small.journal.read_text() == before and alive(small.pid)
    assert run(read_journal(small.host)).disk_full
    small.sim.change_setting(0, limit_w=321.0)  # by somebody else, who wrote nothing down
    assert [path.name for path in small.gpu.glob(".new*")] == []
    ballast.unlink()
    eventually(lambda: small.altered == [], "the journal to be brought up to date", 20)
    small.ended()
    assert small.in_force()[0] == 321.0, (
        "what is reverted is not set again, however often the journal is tried"
    )
    assert run(small.look()).view.problem is None
    assert not run(read_journal(small.host)).disk_full


@pytest.mark.slow
def test_a_trial_that_is_over_and_could_not_be_reverted_promises_no_revert(
    box: GuardedHost,
) -> None:
    """It said "reverts in 0 s", again and again."""
    run(box.change(trial_s=0.5))
    box.sim.set_faults(lost=[0])
    failed = "was not reverted (not confirmed within 0.5 s)"
    eventually(lambda: failed in str(box.state["problem"]), "the failure of the revert", 10)
    view = run(box.look()).view
    lines = "\n".join(guard_lines(view))
    assert view.trial_left_s is None and "reverts in" not in lines
    assert failed in lines
    box.sim.set_faults(lost=None)
    box.given_back(15)


@pytest.mark.long
def test_a_gpu_that_cannot_be_given_back_does_not_hold_up_another(tmp_path: Path) -> None:
    """It is tried again more and more seldom; another one is not made to wait for that."""
    with guarded(tmp_path / "host", "four-pcie") as box:
        # by hand, before Workbench: heat reverts what was raised
        box.sim.change_setting(1, limit_w=180.0)
        run(box.change(GpuSettings(power_limit_w=200.0), "1"))
        run(box.change(GpuSettings(power_limit_w=200.0), "0", trial_s=1.0))
        box.sim.set_faults(lost=[0])
        # the next one in 4 s
        eventually(lambda: box.log.count("reverting: GPU0") == 3, "three attempts", 20)
        box.sim.set_faults(lost=[0], celsius={"1": 99})
        eventually(lambda: box.in_force(1)[0] == 180.0, "the other one", 3)
        assert len(box.altered) >= 1, "GPU 0's"


@pytest.mark.slow
def test_a_guard_that_is_asked_to_make_way_stays_until_another_is_there(box: GuardedHost) -> None:
    """Whoever asked may have been killed since."""
    run(box.change(heartbeat_s=600.0))
    (box.gpu / "guard" / "leave").touch()
    eventually(lambda: "this guard continues" in box.log, "the guard to go on", WITHIN_S)
    assert alive(box.pid) and not (box.gpu / "guard" / "leave").exists()
    os.kill(box.pid, signal.SIGTERM)
    box.given_back(WITHIN_S)
    box.ended()


@pytest.mark.slow
def test_a_flood_of_heartbeats_and_a_fifo_hold_up_no_look(box: GuardedHost) -> None:
    run(box.change(heartbeat_s=600.0))
    for number in range(20_000):
        path = box.gpu / "guard" / "beats" / f"flood-{number}"
        path.touch()
        os.utime(path, (1.0, 1.0))
    os.mkfifo(box.gpu / "guard" / "told")

    async def looked() -> client.GuardStatus:
        async with asyncio.timeout(10):
            await client.mark_guard_action_seen(box.host, 1.0)
            return await box.beat()

    seen = run(looked())
    assert (
        seen.view.heartbeat_age_s is not None
        and seen.view.heartbeat_age_s < 10
        and seen.seen_action == "1.0"
    )


@pytest.mark.slow
def test_settings_of_another_boot_are_gone_with_it(box: GuardedHost) -> None:
    run(box.change(heartbeat_s=1.0))
    text = box.journal.read_text().replace(
        Path("/proc/sys/kernel/random/boot_id").read_text().strip(), "a-boot-before"
    )
    box.journal.write_text(text)
    box.ended()
    assert (
        box.in_force() == ON
        and box.journal.read_text() == text
        and ("nothing is left to watch") in box.log
    )
    assert run(alterations.read_alterations(box.host)) == ()


def test_its_files_stay_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # back after it: the guard's files begin where it is
    (tmp_path / "gpu").mkdir()
    files = guard_files.GuardFiles(str(tmp_path / "gpu"))
    files.create_guard_files()
    monkeypatch.setattr(guard_files, "LOG_BYTES", 20_000)
    for turn in range(1200):
        files.append_to_log(
            f"GPU{turn} power_limit_w: FAILED: a reason of some length that is written down "
            "each time"
        )
    logs = sorted((tmp_path / "gpu" / "guard").glob("log*"))
    assert [path.name for path in logs] == ["log", "log.1"]
    assert sum(path.stat().st_size for path in logs) < 2 * guard_files.LOG_BYTES + 1000
    assert "GPU1199 " in logs[0].read_text() or "GPU1199 " in logs[1].read_text()
    files.save({"version": 1, "entries": [], "log": [{"n": n} for n in range(5000)]})
    kept = json.loads((tmp_path / "gpu" / "journal.json").read_text())["log"]
    assert len(kept) == LOG_LINES and kept[-1] == {"n": 4999}

"""An earlier version of Workbench, from the history of the repository, on the same host: its guard
makes way for the present one, and neither loses the other's previous values."""

from __future__ import annotations

import json
import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.older_workbench import NEW_FIELDS, OLD_GUARD, OlderWorkbench
from support.procs import alive, eventually

from workbench.sim import profiles
from workbench.sim.driver_state import SimState

PRO = "rtx-pro-6000"
ON_HOST = ("--simulate", PRO, "gpu")


def gpu_directory() -> Path:
    return Path(os.environ["XDG_STATE_HOME"], "workbench/sim", PRO, "gpu")


def driver() -> SimState:
    return SimState(str(gpu_directory().parent / "driver"), profiles.get_profile(PRO))


def guard_pid() -> int:
    return int((gpu_directory() / "guard/pid").read_text().split()[0])


def guard_state() -> dict[str, Any]:
    return dict(json.loads((gpu_directory() / "guard/state.json").read_text()))


def log() -> str:
    return (gpu_directory() / "guard/log").read_text()


@pytest.fixture(autouse=True)
def guards_end(servers_end: None) -> Iterator[None]:
    yield
    if (gpu_directory() / "guard/pid").exists() and alive(guard_pid()):
        os.kill(guard_pid(), signal.SIGKILL)


@pytest.mark.slow
def test_the_guard_of_an_earlier_version_makes_way(cli: Any, tmp_path: Path) -> None:
    older = OlderWorkbench(NEW_FIELDS, tmp_path / "older")
    done = older(*ON_HOST, "set", "--lock-gpu-clocks", "1000,2000", "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    old = guard_pid()
    assert alive(old) and "version" not in guard_state()
    said = cli(*ON_HOST, "status").out
    assert f"process {old} does NOT GUARD" in said and "earlier Workbench" in said
    assert "reverts only settings that heat" not in said  # the present version's own rules

    ran = cli(*ON_HOST, "set", "--power-limit", "400", "--trial", "2", "--yes", "--json")
    assert ran.code == 0 and ran.document["guard"]["guarding"], ran.out
    assert guard_pid() != old
    eventually(lambda: not alive(old), "the earlier guard to end")
    driver().change_setting(0, limit_w=200.0)  # an administrator
    eventually(lambda: "did not revert" in (guard_state()["did"] or ""), "the end of the trial", 15)
    assert driver().settings()[0].limit_w == 200.0
    assert cli(*ON_HOST, "revert", "--foreign", "keep").code == 0
    assert driver().settings()[0].gpu_lock_mhz is None


@pytest.mark.long
@pytest.mark.slow
def test_an_earlier_guard_that_does_not_make_way_is_named(cli: Any, tmp_path: Path) -> None:
    """A guard of that version makes way to nobody if it is root; one that is stopped cannot."""
    older = OlderWorkbench(OLD_GUARD, tmp_path / "older")
    assert older(*ON_HOST, "set", "--lock-gpu-clocks", "1000,2000", "--yes").returncode == 0
    if os.geteuid() != 0:
        os.kill(guard_pid(), signal.SIGSTOP)
    old = guard_pid()
    ran = cli(*ON_HOST, "set", "--power-limit", "400", "--trial", "5", "--yes", "--json")
    assert ran.code != 0 and "a trial needs a guard" in ran.document["error"]
    assert driver().settings()[0].limit_w is None
    ran = cli(*ON_HOST, "set", "--power-limit", "400", "--yes", "--json")
    assert ran.code == 0 and not ran.document["guard"]["guarding"]
    assert f"process {old} does NOT GUARD" in cli(*ON_HOST, "status").out
    os.kill(old, signal.SIGCONT)


@pytest.mark.long
@pytest.mark.slow
def test_an_earlier_version_does_not_read_the_journal_and_nothing_is_lost(
    cli: Any, tmp_path: Path
) -> None:
    older = OlderWorkbench(NEW_FIELDS, tmp_path / "older")
    assert older(*ON_HOST, "set", "--power-limit", "450", "--yes").returncode == 0
    assert cli(*ON_HOST, "set", "--gpu-clocks", "1000-2000", "--yes").code == 0
    before = (gpu_directory() / "journal.json").read_bytes()
    ran = older(*ON_HOST, "set", "--power-limit", "300", "--yes")
    assert ran.returncode != 0 and "newer Workbench" in ran.stderr
    assert (gpu_directory() / "journal.json").read_bytes() == before
    assert cli(*ON_HOST, "revert").code == 0
    setting = driver().settings()[0]
    assert setting.gpu_lock_mhz is None and setting.limit_w in (None, 600.0)


@pytest.mark.slow
@pytest.mark.long
def test_a_later_version_is_named_and_its_unknown_fields_are_passed_on(cli: Any) -> None:
    assert cli(*ON_HOST, "set", "--power-limit", "450", "--yes").code == 0
    path = gpu_directory() / "journal.json"
    data = json.loads(path.read_text())
    data["entries"][0]["measured_with"] = {"a": [1, 2]}
    data["signature"] = "x"
    path.write_text(json.dumps(data))
    assert cli(*ON_HOST, "set", "--gpu-clocks", "1000-2000", "--yes").code == 0
    kept = json.loads(path.read_text())
    assert kept["signature"] == "x"
    assert kept["entries"][0]["measured_with"] == {"a": [1, 2]}

    path.write_text(json.dumps({**kept, "version": kept["version"] + 1}))
    for words in (("status",), ("revert",), ("set", "--power-limit", "300", "--yes")):
        ran = cli(*ON_HOST, *words)
        assert "written by a newer Workbench (format" in ran.err and "mv " not in ran.err
    path.unlink()  # the copy in the register is of this version
    assert cli(*ON_HOST, "revert").code == 0
    assert driver().settings()[0].gpu_lock_mhz is None


@pytest.mark.long
@pytest.mark.slow
def test_a_guard_that_fails_in_each_round_is_not_called_guarding(
    cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli(*ON_HOST, "set", "--power-limit", "450", "--yes").code == 0
    monkeypatch.setattr("workbench.gpu.guard.client.STALLED_AFTER_S", 6.5)
    assert cli(*ON_HOST, "status", "--json").document["guard"]["guarding"]
    resource.prlimit(guard_pid(), resource.RLIMIT_AS, (1, 1))
    eventually(lambda: "a defect in the guard" in log(), "the guard to fail")

    def said() -> str:
        return str(cli(*ON_HOST, "status").out)

    eventually(lambda: "has completed no round for" in said(), "the status to say so", 20)
    assert f"process {guard_pid()} does NOT GUARD the settings" in said()

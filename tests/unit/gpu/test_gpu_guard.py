"""The guard process: when it gives settings back, when it leaves them alone, and what becomes of
it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.guarded import FAST, WANTED, WITHIN_S, Bare, GuardedHost, guarded, run
from support.procs import alive, eventually, state_of

from workbench.cli.gpu_text import guard_lines
from workbench.gpu.guard import client
from workbench.gpu.guard.client import NO_PYTHON
from workbench.gpu.settings import (
    alterations,
    apply,
    clock_contrasts,
    current_values,
    journal,
    owners,
    plan,
    proof_files,
    revert,
    rights,
)
from workbench.gpu.telemetry.source_of_host import read_telemetry_once
from workbench.hosts.base import HostUnreachable
from workbench.hosts.local import LocalHost
from workbench.model import setting_commands
from workbench.model.errors import SettingsError
from workbench.model.setting_records import Alteration
from workbench.model.settings import ClockRange, GpuSettings

ON = (450.0, (1000, 2000))
OFF = (None, None)


@pytest.fixture
def box(tmp_path: Path) -> Iterator[GuardedHost]:
    with guarded(tmp_path / "host") as made:
        yield made


def log_lines(box: GuardedHost, what: str) -> list[dict[str, Any]]:
    return [
        line for line in json.loads(box.journal.read_text())["log"] if line["what"].startswith(what)
    ]


@pytest.mark.slow
def test_silence_gives_back_and_is_told(box: GuardedHost) -> None:
    report = run(box.change(heartbeat_s=3.0))
    assert (
        report.ok
        and report.guard is not None
        and report.guard.running
        and report.guard.heartbeat_s == 3.0
    )
    assert box.in_force() == ON
    box.given_back(3.0 + WITHIN_S)
    box.ended()
    assert {line["setting"] for line in log_lines(box, "guard reverted: no heartbeat for 3 s")} == {
        "power_limit_w",
        "gpu_clocks",
    }
    view = run(box.look()).view
    assert not view.running and view.problem is None
    assert view.did == "reverted GPU0 GPU clocks, GPU0 power limit: no heartbeat for 3 s"
    assert abs((view.did_unix_s or 0) - time.time()) < 30
    assert "reverting: " in box.log and "ending" in box.log


@pytest.mark.long
@pytest.mark.slow
def test_a_heartbeat_holds_whatever_its_clock_says(box: GuardedHost) -> None:
    run(box.change(heartbeat_s=3.0))
    beat = box.gpu / "guard" / "beats" / client.own_heartbeat_file_name()
    began = time.monotonic()
    for turn in range(16):  # times that jump back and forth: it only matters that they change
        beat.touch()
        os.utime(beat, (turn, 2_000_000_000 if turn % 2 else turn))
        box.stays(0.2, lambda: box.in_force() == ON)
    assert time.monotonic() - began > 3
    assert run(box.look()).owners == (client.own_heartbeat_file_name(),)
    box.given_back(3.0 + WITHIN_S)


@pytest.mark.slow
def test_a_trial_runs_out_unless_confirmed(box: GuardedHost) -> None:
    report = run(box.change(trial_s=1.2))
    assert (
        report.guard is not None
        and report.guard.trial_left_s is not None
        and report.guard.trial_left_s < 2.3  # the trial and one round of the guard
    )
    box.given_back(1.2 + WITHIN_S)
    box.ended()
    with pytest.raises(SettingsError, match="no trial of GPU settings runs") as late:
        run(client.confirm_setting_trials(box.host))
    assert "not confirmed within 1.2 s" in (late.value.next_step or "")

    run(box.change(trial_s=20.0))  # a busy machine may take long to come to the confirmation
    assert len(box.state["trials"]) == 1
    view = run(client.confirm_setting_trials(box.host))
    assert view.running and view.trial_left_s is None and view.heartbeat_s is None
    assert not box.state["trials"] and "trial_s" not in box.journal.read_text()
    box.stays(0.5, lambda: box.in_force() == ON)
    assert len(log_lines(box, "confirm")) == 2


@pytest.mark.slow
@pytest.mark.long
def test_a_trial_over_settings_of_before_goes_back_to_those(box: GuardedHost) -> None:
    async def work() -> None:
        await box.change(GpuSettings(power_limit_w=500.0))
        pid = box.pid
        await box.change(GpuSettings(power_limit_w=400.0), trial_s=1.0)
        assert box.pid == pid, "one guard for both"

    run(work())
    assert box.in_force()[0] == 400.0
    eventually(
        lambda: box.in_force()[0] == 500.0 and box.altered == [("power_limit_w", 500.0)],
        "the trial's end",
        6,
    )
    assert alive(box.pid)
    run(revert.revert_settings(box.host))
    assert box.in_force() == OFF and box.altered == []
    box.ended()


@pytest.mark.slow
def test_at_its_limit_what_heats_a_gpu_is_reverted_and_nothing_that_cools_it(
    tmp_path: Path,
) -> None:
    with guarded(tmp_path / "host", "four-pcie") as box:
        for gpu in range(2):
            box.sim.change_setting(gpu, limit_w=200.0)  # by hand, before Workbench
        raised = GpuSettings(power_limit_w=230.0, gpu_clocks=ClockRange(600, 1200))
        for gpu in ("0", "1"):
            run(box.change(raised, gpu))
        box.sim.set_faults(celsius={"1": 70})
        box.stays(0.6, lambda: box.in_force(1) == (230.0, (600, 1200)))
        limit = box.profile.gpu.slowdown_c + 2  # the simulated driver's own threshold
        box.sim.set_faults(celsius={"1": limit})
        eventually(lambda: box.in_force(1)[0] == 200.0, "GPU1's limit to be reverted", WITHIN_S)
        eventually(lambda: len(box.altered) == 3, "the journal")
        why = f"GPU1 reached {limit:.0f} °C, its limit is {limit:g} °C"
        assert (
            why in box.log
            and run(box.look()).view.temperature_limits_c[box.profile.uuid(0)] == limit
        )
        box.stays(0.6, lambda: box.in_force(1)[1] == (600, 1200))
        note = f"GPU1 GPU clocks kept, because a revert could make the GPU hotter: {why}"
        assert run(box.look()).view.note == note and "GPU1 GPU clocks kept" in "\n".join(
            guard_lines(run(box.look()).view)
        )
        assert box.in_force(0) == (230.0, (600, 1200)) and alive(box.pid)
        box.sim.set_faults(celsius={"1": limit - 20})
        eventually(
            lambda: run(box.look()).view.note is None, "the note to end with its cause", WITHIN_S
        )


class CutLink(LocalHost):
    """This machine, whose link is lost once `sets_left` commands have set something."""

    sets_left = 1

    def check_link(self) -> None:
        if self.sets_left <= 0:
            raise HostUnreachable("the link is lost")

    async def run(self, argv: Any, **rest: Any) -> Any:
        self.check_link()
        done = await super().run(argv, **rest)
        self.sets_left -= "nvidia-smi" in argv[0]
        return done

    async def stream(self, argv: Any, **rest: Any) -> Any:
        self.check_link()
        return await super().stream(argv, **rest)


@pytest.mark.slow
def test_a_change_whose_link_is_lost_in_its_middle_goes_back_to_the_value_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change that no Workbench watches over afterwards kept what it had set."""
    monkeypatch.setattr(
        current_values, "read_telemetry_once", partial(read_telemetry_once, timeout_s=1.0)
    )
    with guarded(tmp_path / "host") as box:
        run(box.change(GpuSettings(power_limit_w=500.0), options={**FAST, "unfinished_s": 0.5}))
        far = GuardedHost(tmp_path / "host", inner=CutLink())
        assert not run(far.change(WANTED)).ok
        eventually(lambda: box.in_force() == (500.0, None), "the revert", WITHIN_S)
        eventually(lambda: box.altered == [("power_limit_w", 500.0)], "the journal")
        assert "no heartbeat for 0.5 s, and the change was cut off" in box.log


@pytest.mark.parametrize(
    ("setting", "now", "back", "heats"),
    [
        ("power_limit_w", 600.0, 450.0, True),
        ("power_limit_w", 450.0, 600.0, False),
        ("gpu_clocks", "1000,2000", "default", False),
        # a floor, without a ceiling that the default has not
        ("gpu_clocks", "2900,3090", "default", True),
        ("gpu_clocks", "2900,3000", "unknown", False),
        ("gpu_clocks", "default", "1000,2000", True),
        ("gpu_clocks", "default", "0,3090", False),  # a lock that leaves the GPU all its clocks
        ("gpu_clocks", "1000,2000", "500,1500", True),
        ("gpu_clocks", "210,2000", "2000,2000", False),
        ("gpu_clocks", "1000,2000", "1000,2000", False),
        ("gpu_clocks", "2900,3300", "2900,3090", False),  # the GPU runs at 3090 MHz at most
        ("power_limit_w", 450.0, 450.0, False),
        ("power_limit_w", 450.0 + setting_commands.WATTS_EQUAL, 450.0, False),
        ("persistence", True, False, False),
    ],
)
def test_what_lets_a_gpu_run_hotter(setting: str, now: object, back: object, heats: bool) -> None:
    assert setting_commands.value_allows_more_heat(setting, now, back, 3090.0) is heats
    if back in ("default", "unknown"):
        assert not setting_commands.value_allows_more_heat(setting, now, back, None), (
            "where the highest clock is not known, no lock is lifted"
        )


@pytest.mark.slow
def test_where_the_driver_tells_no_threshold_85_degrees_are_the_limit(box: GuardedHost) -> None:
    box.sim.change_setting(0, limit_w=400.0)
    box.sim.set_faults(missing=["nvmlDeviceGetTemperatureThreshold"], celsius={"0": 84})
    run(box.change(GpuSettings(power_limit_w=450.0)))
    box.stays(0.6, lambda: box.in_force()[0] == 450.0)
    assert run(box.look()).view.temperature_limits_c == {box.profile.uuid(0): 85.0}
    box.sim.set_faults(celsius={"0": 85})
    eventually(
        lambda: box.in_force()[0] == 400.0 and not box.altered, "the limit of before", WITHIN_S
    )


@pytest.mark.long
@pytest.mark.slow
def test_what_is_kept_is_left_alone(box: GuardedHost) -> None:
    run(box.change(heartbeat_s=1.0))
    view = run(client.mark_all_settings_kept(box.host))
    assert not view.running
    box.ended()
    assert box.in_force() == ON
    found = run(alterations.read_alterations(box.host))
    assert [a.state for a in found] == ["kept", "kept"] and len(log_lines(box, "keep")) == 2
    # a change on top, whose owner falls silent, goes back to what was kept
    run(box.change(GpuSettings(power_limit_w=300.0), heartbeat_s=0.5))
    eventually(lambda: box.in_force() == ON, "what was kept", 0.5 + WITHIN_S)
    box.ended()
    assert {a.state for a in run(alterations.read_alterations(box.host))} == {"kept"}
    assert run(revert.revert_settings(box.host)).ok and box.in_force() == OFF


@pytest.mark.slow
def test_a_failed_revert_is_tried_again(box: GuardedHost) -> None:
    run(box.change(heartbeat_s=0.5))
    box.sim.set_faults(no_permission=True)
    eventually(lambda: "trying again" in box.log, "the first attempt", 0.5 + WITHIN_S)
    assert box.in_force() == ON and len(box.altered) == 2
    view = run(box.look()).view
    assert (
        view.running
        and view.problem is not None
        and ("By hand: sudo nvidia-smi -i") in view.problem
    )
    box.sim.set_faults(no_permission=None)
    box.given_back(10)
    box.ended()
    view = run(box.look()).view
    assert "reverted" in (view.did or "") and view.problem is None, "a warning ends with its cause"
    assert {line["ok"] for line in log_lines(box, "guard reverted")} == {True}
    assert {line["ok"] for line in log_lines(box, "guard could not revert")} == {False}


@pytest.mark.ci_cases(1)
@pytest.mark.slow
@pytest.mark.parametrize("damage", ["truncated", "newer", "gone"])
def test_a_broken_journal_is_left_as_it_is_and_the_settings_are_given_back(
    box: GuardedHost, damage: str
) -> None:
    run(box.change(heartbeat_s=1.0))
    whole = box.journal.read_text()
    text = {
        "truncated": whole[: len(whole) // 2],
        "newer": whole.replace('"version": 2', '"version": 7', 1),
        "gone": "",
    }
    if damage == "gone":
        box.journal.unlink()
    else:
        box.journal.write_text(text[damage])
    eventually(lambda: box.in_force() == OFF, "the settings of before", 1.0 + WITHIN_S)
    box.ended()
    assert (box.journal.read_text() if box.journal.exists() else "") == text[damage]
    assert "the guard uses its earlier contents" in box.log


@pytest.mark.slow
def test_a_lock_is_respected_while_its_owner_lives_and_broken_when_silent(box: GuardedHost) -> None:
    run(box.change(heartbeat_s=0.6))
    link = Path(f"{box.journal}.lock")
    # init lives, with another start time: set below
    other = owners.owner_token().replace(f":{os.getpid()}:", ":1:")
    start = Path("/proc/1/stat").read_text().rpartition(")")[2].split()[19]
    link.symlink_to(":".join([*other.split(":")[:2], start, *other.split(":")[3:]]))
    box.stays(1.5, lambda: box.in_force() == ON)
    link.unlink()
    box.given_back(WITHIN_S)

    run(box.change(heartbeat_s=0.6))
    # we: alive, but silent, as a process that is stopped in the middle of a plan
    link.symlink_to(owners.owner_token())
    box.given_back(0.6 + WITHIN_S)
    eventually(lambda: not link.is_symlink(), "the lock to be let go")


@pytest.mark.long
@pytest.mark.slow
def test_it_stands_alone_and_outlives_a_hangup(box: GuardedHost) -> None:
    run(box.change(heartbeat_s=1.5))
    words = Path(f"/proc/{box.pid}/stat").read_text().rpartition(") ")[2].split()
    assert (
        int(words[1]) != os.getpid()
        and int(words[3]) != os.getsid(0)
        and os.getsid(box.pid) != os.getpid()
    )
    assert os.readlink(f"/proc/{box.pid}/fd/0") == "/dev/null"
    os.kill(box.pid, signal.SIGHUP)
    box.given_back(1.5 + WITHIN_S)


@pytest.mark.ci_cases(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("terms", "left"), [({"heartbeat_s": 60.0}, OFF), ({"trial_s": 60.0}, OFF), ({}, ON)]
)
def test_told_to_end_it_gives_back_what_waits(
    box: GuardedHost, terms: dict[str, float], left: object
) -> None:
    """SIGTERM: a logout that ends all. What was to stay until `gpu revert` stays, and the next
    start says so."""
    run(box.change(**terms))
    os.kill(box.pid, signal.SIGTERM)
    box.ended()
    assert box.in_force() == left and bool(run(alterations.read_alterations(box.host))) == (
        left == ON
    )
    view = run(box.look()).view
    assert not view.running and (
        left == ON or (view.did or "").endswith("the guard was asked to end")
    )
    unwatched = "nothing reverts them if a GPU becomes too hot"
    assert (unwatched in box.log, unwatched in (view.problem or "")) == ((left == ON),) * 2


@pytest.mark.slow
def test_killed_it_is_missed_and_the_next_one_goes_on(box: GuardedHost) -> None:
    run(box.change(trial_s=2.5))
    pid, deadline = box.pid, next(iter(box.state["trials"].values()))
    box.kill_guard()
    view = run(box.look()).view
    assert not view.running and view.problem == (
        f"the guard (process {pid}) was killed: nothing guards the settings"
    )
    assert run(alterations.read_alterations(box.host)), "the next start reports"

    async def again() -> None:
        async with journal.locked_journal(box.host) as held:
            terms = client.GuardTerms(await rights.read_rights(box.host))
            assert (await client.start_guard(box.host, terms, held.journal, **FAST)).running

    run(again())
    assert box.pid != pid and next(iter(box.state["trials"].values())) == deadline, (
        "the trial does not begin anew"
    )
    box.given_back(2.5 + WITHIN_S)


def test_stopped_it_is_missed(box: GuardedHost) -> None:
    run(box.change(heartbeat_s=30.0))
    os.kill(box.pid, signal.SIGSTOP)
    eventually(lambda: state_of(box.pid) == "T", "SIGSTOP")
    try:
        view = run(box.look()).view
        assert view.problem is not None and f"kill -CONT {box.pid}" in view.problem
    finally:
        os.kill(box.pid, signal.SIGCONT)


@pytest.mark.slow
def test_there_is_one_however_many_ask(box: GuardedHost) -> None:
    run(box.change(heartbeat_s=20.0))

    async def ask() -> list[Any]:
        terms = client.GuardTerms(await rights.read_rights(box.host))
        now = await journal.read_journal(box.host)
        starts = (client.start_guard(box.host, terms, now, **FAST) for _ in range(4))
        return await asyncio.gather(*starts)

    assert {view.pid for view in run(ask())} == {box.pid}


@pytest.mark.slow
def test_without_python3_a_change_is_made_and_told_as_unguarded(tmp_path: Path) -> None:
    with guarded(tmp_path / "host", inner=Bare()) as box:
        report = run(box.change(needed=False))
        assert report.ok and box.in_force() == ON
        assert (
            report.guard is not None
            and not report.guard.running
            and report.guard.problem == NO_PYTHON
        )


@pytest.mark.slow
def test_its_sources_are_all_that_another_machine_needs(tmp_path: Path) -> None:
    class Far(LocalHost):
        kind, is_local = "ssh", False

    with guarded(tmp_path / "host", inner=Far()) as box:
        run(box.change(WANTED, trial_s=1.0))
        assert (
            str(Path(client.__file__).parent).encode()
            not in Path(f"/proc/{box.pid}/cmdline").read_bytes()
        )
        box.given_back(1.0 + WITHIN_S)


@pytest.mark.slow
def test_the_governor_is_given_back(box: GuardedHost) -> None:
    async def change() -> None:
        from workbench.gpu.guard.client import GuardTerms, start_guard

        mine = await rights.read_rights(box.host)
        cores = await current_values.read_core_settings(box.host)
        commands = plan.plan_commands(
            {"all": GpuSettings(governor="powersave")},
            await read_telemetry_once(box.host),
            mine,
            cores,
        )
        terms = GuardTerms(mine, None, 1.0)
        report = await apply.apply_commands(
            box.host,
            commands,
            rights=mine,
            guard=lambda journal: start_guard(box.host, terms, journal, **FAST),
            watch=terms.guard_instructions_for,
        )
        assert report.ok and {o.read_back for o in report.outcomes} == {"powersave"}

    def governors() -> set[str]:
        files = Path(box.host.driver_state).glob(
            "sys/devices/system/cpu/cpu*/cpufreq/scaling_governor"
        )
        return {file.read_text().strip() for file in files}

    run(change())
    eventually(
        lambda: governors() == {"performance"} and box.altered == [],
        "the governor of before",
        1.0 + WITHIN_S,
    )


DEEP = "[" * 10_000 + "]" * 10_000
ODD = {
    "deep": DEEP,
    "deep inside": f'{{"running": true, "limits_c": {DEEP}}}',
    "NaN": '{"running": true, "pid": NaN, "since_unix_s": NaN, "did": "x", "did_unix_s": NaN, '
    '"limits_c": {"g": NaN},'
    ' "trials": {"a": NaN}, "trials_until_unix_s": {"a": NaN}, "heartbeats": {"a": NaN}}',
    "huge": '{"running": true, "pid": N, "since_unix_s": N, "did": "x", "did_unix_s": N, '
    '"limits_c": {"g": N},'
    ' "trials": {"a": N}, "trials_until_unix_s": {"a": N}, "heartbeats": {"a": '
    "N}}".replace("N", "1" + "0" * 400),
    "too huge": f'{{"pid": 1{"0" * 5000}}}',
}


@pytest.mark.parametrize("text", ODD.values(), ids=ODD)
def test_odd_json_in_the_guards_state_stops_no_status(box: GuardedHost, text: str) -> None:
    (box.gpu / "guard").mkdir(parents=True)
    (box.gpu / "guard" / "state.json").write_text(text)
    for name in (proof_files.CLOCKS_FILE, proof_files.FINDINGS_FILE):
        (box.gpu.parent / name).write_text(text)
    one = Alteration("GPU-x", 0, "power_limit_w", 1.0, 2.0, 1.0)
    assert (
        run(proof_files.read_measured_clocks(box.host)) == clock_contrasts.ContrastEvidence()
        and run(proof_files.read_effect_texts(box.host, [one])) == ()
    )
    assert all(
        isinstance(line, str)
        for line in guard_lines(run(box.look()).view, include_last_action=True)
    )


@pytest.mark.ci_cases(1)
@pytest.mark.slow
@pytest.mark.parametrize("what", ["journal.json", "guard/state.json"])
@pytest.mark.parametrize("text", ODD.values(), ids=ODD)
def test_odd_json_stops_no_revert(box: GuardedHost, what: str, text: str) -> None:
    run(box.change(heartbeat_s=1.0))
    (box.gpu / what).write_text(text)
    eventually(lambda: box.in_force() == OFF, "the settings of before", 1.0 + WITHIN_S)
    box.ended()

"""Plans and their undoing on simulated drivers that fail in the ways of real ones; the CPUs'
governors."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from workbench.gpu.settings import (
    alterations,
    apply,
    current_values,
    plan,
    revert,
    rights,
    standstill,
)
from workbench.gpu.settings.owners import (
    DEAD,
    ELSEWHERE,
    THIS,
    identity_of_this_process,
    owner_process_state,
)
from workbench.gpu.telemetry.source_of_host import read_telemetry_once
from workbench.hosts.local import LocalHost
from workbench.model.errors import InputError, SettingsError
from workbench.model.gpu import Telemetry
from workbench.model.interrupted import Interrupted
from workbench.model.setting_records import InForce, SettingCommand, SettingsReport
from workbench.model.settings import ClockRange, GpuSettings
from workbench.sim import profiles
from workbench.sim.driver_state import SimState
from workbench.sim.simulated_host import SimulatedHost


class Bench:
    """A simulated host whose driver can be made to fail, and whose settings are looked up behind
    its back. `driver` is the driver of another user's bench, to share it."""

    def __init__(
        self, directory: Path, profile: str = "four-pcie", driver: str | None = None
    ) -> None:
        self.directory, self.profile = directory, profile
        self.host = SimulatedHost(LocalHost(), profile, str(directory), driver)
        self.reading: Telemetry | None = None
        self.state = SimState(self.host.driver_state, profiles.get_profile(profile))

    async def commands(self, settings: GpuSettings, gpu: str = "0") -> Sequence[SettingCommand]:
        # for the limits, which do not change
        self.reading = self.reading or await read_telemetry_once(self.host)
        cores = await current_values.read_core_settings(self.host)
        return plan.plan_commands(
            {gpu: settings}, self.reading, await rights.read_rights(self.host), cores
        )

    async def set(self, settings: GpuSettings, gpu: str = "0") -> SettingsReport:
        return await apply.apply_commands(self.host, await self.commands(settings, gpu))

    @property
    def journal(self) -> Any:
        return json.loads((self.directory / "gpu" / "journal.json").read_text())

    def brief(self) -> list[tuple[Any, ...]]:
        return [
            (e["gpu_index"], e["setting"], e["before"], e["now"], e["state"])
            for e in self.journal["entries"]
        ]

    def power(self) -> list[float | None]:
        return [
            s.limit_w
            for s in SimState(self.host.driver_state, profiles.get_profile(self.profile)).settings()
        ]

    def cores(self) -> list[Path]:
        return sorted(
            Path(self.host.driver_state).glob("sys/devices/system/cpu/*/cpufreq/scaling_governor")
        )

    def governors(self) -> list[str]:
        return [path.read_text().strip() for path in self.cores()]

    def idle_states(self) -> list[Path]:
        return sorted(
            Path(self.host.driver_state).glob("sys/devices/system/cpu/*/cpuidle/*/disable")
        )

    def disabled(self) -> str:
        """Return the 4 x 4 idle states as they are: "1" for one that is off."""
        return "".join(path.read_text().strip() for path in self.idle_states())


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "four")


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(60):
            await work()

    asyncio.run(main())


@pytest.mark.slow
def test_a_gpu_lost_between_two_settings_takes_the_others_back(bench: Bench) -> None:
    async def work() -> None:
        commands = await bench.commands(
            GpuSettings(power_limit_w=200.0, gpu_clocks=ClockRange(1005, 1005)), "all"
        )
        bench.state.set_faults(lost_after={"limit_w": 2})
        report = await apply.apply_commands(bench.host, commands)
        assert not report.ok and not any(o.ok for o in report.outcomes)
        lost = [o for o in report.outcomes if o.command.gpu_index == 2]
        assert "By hand" in lost[0].message and "not run" in lost[1].message
        given = {(o.command.gpu_index, o.command.setting): o.ok for o in report.rolled_back}
        assert given == {
            (0, "gpu_clocks"): True,
            (0, "power_limit_w"): True,
            (1, "gpu_clocks"): True,
            (1, "power_limit_w"): True,
            (2, "power_limit_w"): False,
        }
        assert bench.power()[:2] == [None, None] and bench.power()[3] is None  # None: the default
        assert bench.brief() == [(2, "power_limit_w", 250.0, 200.0, "pending")]
        bench.state.set_faults(lost=None)  # reset, with what it was told last
        back = await revert.revert_settings(bench.host)
        assert back.ok and bench.brief() == [] and bench.power() == [None] * 4

    run(work)


@pytest.mark.parametrize(
    ("faults", "words", "unchanged"),
    [
        ({"no_permission": True}, "Insufficient Permissions", True),
        ({"codes": {"nvmlDeviceSetPowerManagementLimit": 3}}, "Treating as warning", True),
        (
            {"ignored": ["limit_w"]},
            "reported success, but the driver reports 250 W, not 200 W",
            True,
        ),
    ],
)
def test_setters_that_do_not_do_it(
    bench: Bench, faults: dict[str, Any], words: str, unchanged: bool
) -> None:
    async def work() -> None:
        commands = await bench.commands(GpuSettings(power_limit_w=200.0))
        bench.state.set_faults(**faults)
        report = await apply.apply_commands(bench.host, commands)
        assert not report.ok and words in report.outcomes[0].message and report.rolled_back == ()
        assert bench.brief() == [] and (bench.power() == [None] * 4) is unchanged

    run(work)


def test_a_lock_refused_after_a_limit_gives_the_limit_back(bench: Bench) -> None:
    async def work() -> None:
        bench.state.set_faults(codes={"nvmlDeviceSetMemoryLockedClocks": 4})
        wanted = GpuSettings(
            power_limit_w=200.0, memory_clocks=ClockRange(1215, 1215), governor="powersave"
        )
        report = await bench.set(wanted)
        assert [(o.command.setting, o.ok) for o in report.rolled_back] == [
            ("power_limit_w", True),
            ("governor", True),
        ]
        assert (
            bench.power() == [None] * 4
            and set(bench.governors()) == {"performance"}
            and bench.brief() == []
        )

    run(work)


# ---- governors


@pytest.mark.slow
def test_governors_are_set_read_back_and_given_back(bench: Bench) -> None:
    async def work() -> None:
        report = await bench.set(GpuSettings(governor="powersave"), "all")
        (outcome,) = report.outcomes
        assert (outcome.ok, outcome.before, outcome.read_back, outcome.in_force) == (
            True,
            "performance",
            "powersave",
            InForce.YES,
        )
        assert set(bench.governors()) == {"powersave"}
        assert bench.brief() == [(-1, "governor", "performance", "powersave", "applied")]
        assert (await alterations.read_alterations(bench.host))[0].gpu_uuid == "host"
        with pytest.raises(InputError):
            await revert.revert_settings(bench.host, 9)
        assert (
            await revert.revert_settings(bench.host, 0)
        ).outcomes == ()  # the host's is no GPU's
        assert (await revert.revert_settings(bench.host, "host")).ok and set(bench.governors()) == {
            "performance"
        }
        assert bench.brief() == []

    run(work)


@pytest.mark.slow
def test_cores_that_differed_differ_again(bench: Bench) -> None:
    async def work() -> None:
        await bench.commands(GpuSettings(governor="powersave"), "all")  # makes the host
        bench.cores()[1].write_text("schedutil\n")
        await bench.set(GpuSettings(governor="powersave"), "all")
        assert bench.brief()[0][2] == "performance=0,2-3 schedutil=1"
        report = await revert.revert_settings(bench.host)
        assert [o.ok for o in report.outcomes] == [True, True]
        assert bench.governors() == ["performance", "schedutil", "performance", "performance"]

    run(work)


def test_a_core_that_will_not_keeps_the_others_as_they_were(bench: Bench) -> None:
    async def work() -> None:
        commands = await bench.commands(GpuSettings(governor="powersave"), "all")
        stubborn = bench.cores()[2]
        stubborn.unlink()
        # tells something and takes no write, root's neither
        stubborn.symlink_to("/proc/sys/kernel/ostype")
        report = await apply.apply_commands(bench.host, commands)
        assert not report.ok and "tee" in report.outcomes[0].message
        assert "By hand: echo powersave | sudo tee" in report.outcomes[0].message
        assert all(o.ok for o in report.rolled_back) and len(report.rolled_back) == 2
        assert (
            bench.governors() == ["performance", "performance", "Linux", "performance"]
            and bench.brief() == []
        )

    run(work)


def test_a_guest_has_no_governor(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "guest", "rtx-pro-6000-passthrough")

    async def work() -> None:
        with pytest.raises(InputError, match="the CPU governor cannot be set: no cpufreq"):
            await bench.set(GpuSettings(governor="performance"), "all")
        reading = await read_telemetry_once(bench.host)
        assert (
            reading.host.cpu_governor is None
            and "no cpufreq" in reading.host.absent["cpu_governor"]
        )

    run(work)


# ---- C-states

OFF = GpuSettings(c_states="off")


@pytest.mark.slow
def test_c_states_are_set_read_back_and_given_back_as_they_were(bench: Bench) -> None:
    async def work() -> None:
        await bench.commands(OFF, "all")  # makes the host
        bench.idle_states()[6].write_text("1\n")  # off already: state 2 of core 1
        (outcome,) = (await bench.set(OFF, "all")).outcomes
        before = "off:2=1 on=0,2-3"
        assert (outcome.ok, outcome.before, outcome.read_back, outcome.in_force) == (
            True,
            before,
            "off",
            InForce.YES,
        )
        assert bench.disabled() == "1" * 16 and bench.brief() == [
            (-1, "c_states", before, "off", "applied")
        ]
        assert (await read_telemetry_once(bench.host)).host.cpu_c_states == "off"
        back = await revert.revert_settings(bench.host, "host")
        assert back.ok and bench.disabled() == "0000001000000000" and bench.brief() == []

    run(work)


@pytest.mark.slow
def test_c_states_of_someone_else_stay_until_the_user_decides(bench: Bench) -> None:
    async def work() -> None:
        await bench.set(OFF, "all")
        for path in bench.idle_states():
            # as `cpupower idle-set -E -d 3`
            path.write_text("1\n" if "state3" in str(path) else "0\n")
        (left,) = (await revert.revert_settings(bench.host)).outcomes
        assert (
            left.foreign
            and ("set to off by Workbench, now off:3: changed by someone else") in left.message
        )
        assert bench.disabled() == "0001" * 4 and len(bench.brief()) == 1
        assert (
            await revert.revert_settings(bench.host, foreign="original")
        ).ok and bench.disabled() == "0" * 16

    run(work)


@pytest.mark.slow
def test_c_states_that_cannot_be_written_take_the_others_back(bench: Bench) -> None:
    async def work() -> None:
        commands = await bench.commands(
            GpuSettings(governor="powersave", c_states="off", power_limit_w=200.0)
        )
        stubborn = bench.idle_states()[9]
        stubborn.unlink()
        # is 0 and takes no write, root's neither
        stubborn.symlink_to("/sys/devices/system/cpu/cpu0/topology/core_id")
        report = await apply.apply_commands(bench.host, commands)
        assert not report.ok and all(o.ok for o in report.rolled_back)
        failed = next(o for o in report.outcomes if o.command.setting == "c_states")
        assert "By hand: echo 1 | sudo tee" in failed.message
        assert (
            set(bench.governors()) == {"performance"}
            and bench.power() == [None] * 4
            and bench.brief() == []
        )
        stubborn.unlink()
        stubborn.write_text("0\n")
        assert bench.disabled() == "0" * 16

    run(work)


@pytest.mark.slow
def test_c_states_that_cannot_be_read_are_not_changed(bench: Bench) -> None:
    async def work() -> None:
        await bench.commands(GpuSettings())  # makes the host
        for path in bench.idle_states():
            path.unlink()
            path.symlink_to("/proc/self/mem")  # opens, and every read fails
        with pytest.raises(
            InputError, match="CPU C-states cannot be set: no cpuidle that can be read here"
        ):
            await bench.set(OFF, "all")
        reading = await read_telemetry_once(bench.host)
        assert (
            reading.host.cpu_c_states is None
            and "no cpuidle" in reading.host.absent["cpu_c_states"]
        )

    run(work)


@pytest.mark.long
@pytest.mark.slow
def test_two_users_of_the_c_states_restore_what_was_before_both(
    bench: Bench, tmp_path: Path
) -> None:
    async def work() -> None:
        other = Bench(tmp_path / "other", driver=bench.host.driver_state)
        await bench.commands(OFF, "all")  # makes the host
        bench.idle_states()[6].write_text("1\n")
        assert (await bench.set(OFF, "all")).ok and (await other.set(OFF, "all")).ok
        # not "off": that is the first user's
        assert other.brief()[0][2:4] == ("off:2=1 on=0,2-3", "off")
        (left,) = (await revert.revert_settings(bench.host)).outcomes
        assert left.ok and "left alone" in left.message and bench.disabled() == "1" * 16
        (entry,) = bench.brief()
        assert str(entry[-1]).startswith("left to ")
        back = await revert.revert_settings(other.host, foreign="original")
        assert back.ok and bench.disabled() == "0000001000000000" and other.brief() == []

    run(work)


@pytest.mark.slow
def test_a_value_that_another_sets_after_the_look_is_not_replaced(
    bench: Bench, tmp_path: Path
) -> None:
    """It was replaced, although the user had chosen to keep what others set."""

    async def work() -> None:
        other = Bench(tmp_path / "other", driver=bench.host.driver_state)
        commands = await bench.commands(GpuSettings(power_limit_w=170.0))
        assert (await other.set(GpuSettings(power_limit_w=200.0))).ok
        with pytest.raises(SettingsError, match=r"200 W, set by .*nothing was changed"):
            await apply.apply_commands(bench.host, commands, seen=())
        assert bench.power()[0] == 200.0
        assert not (bench.directory / "gpu" / "journal.json").exists()
        seen = {(c.gpu_uuid, c.setting) for c in commands}
        assert (await apply.apply_commands(bench.host, commands, seen=seen)).ok
        assert bench.power()[0] == 170.0

    run(work)


@pytest.mark.slow
def test_a_value_that_was_left_and_is_set_again_is_ours_again(bench: Bench, tmp_path: Path) -> None:
    """It was still "left to" the other user, who was not told of it."""

    async def work() -> None:
        other = Bench(tmp_path / "other", driver=bench.host.driver_state)
        assert (await bench.set(OFF, "all")).ok and (await other.set(OFF, "all")).ok
        await revert.revert_settings(bench.host)
        assert (await revert.revert_settings(bench.host, foreign="ours")).ok
        (entry,) = bench.brief()
        assert entry[-1] == "applied"

    run(work)


# ---- what is known of before, and of owners


def test_supported_clocks_are_read_once_and_checked(bench: Bench) -> None:
    async def work() -> None:
        info = (await read_telemetry_once(bench.host)).infos[0]
        assert info.supported_memory_mhz and info.supported_sm_mhz == tuple(
            sorted(info.supported_sm_mhz)
        )
        assert info.supported_sm_mhz[-1] == info.sm_max_mhz
        with pytest.raises(InputError, match="no memory clock of 1000 MHz; nearest"):
            await bench.commands(GpuSettings(memory_clocks=ClockRange(1000, 1000)))

    run(work)


@pytest.mark.slow
def test_before_is_known_by_the_journal_or_the_default_or_not_at_all(bench: Bench) -> None:
    async def work() -> None:
        foreign = (await bench.set(GpuSettings(gpu_clocks=ClockRange(1005, 1005)))).outcomes[0]
        assert (foreign.before, foreign.before_known) == ("unknown", "unknown")
        assert "the previous lock is unknown" in foreign.message
        ours = (await bench.set(GpuSettings(gpu_clocks=ClockRange(900, 1005)))).outcomes[0]
        assert (ours.before, ours.before_known) == (ClockRange(1005, 1005), "journal")
        await revert.revert_settings(bench.host)
        reset = (await bench.set(GpuSettings(gpu_clocks=ClockRange(900, 1005)))).outcomes[0]
        assert (reset.before, reset.before_known) == ("default", "default")

    run(work)


@pytest.mark.long
@pytest.mark.slow
def test_a_clock_that_jumps_back_changes_nothing_of_it(bench: Bench) -> None:
    async def work() -> None:
        await bench.set(GpuSettings(power_limit_w=200.0))
        data = bench.journal
        for entry in data["entries"]:
            entry["since_unix_s"] += 86400 * 365  # written while the clock was a year ahead
        for line in data["log"]:
            line["unix_s"] += 86400 * 365
        (bench.directory / "gpu" / "journal.json").write_text(json.dumps(data))
        records, _ = await alterations.read_journal_records_and_log(bench.host)
        assert [r.why_lost for r in records] == [None]
        assert (await revert.revert_settings(bench.host)).ok and bench.power() == [None] * 4

    run(work)


@pytest.mark.slow
def test_what_a_restart_took_away_is_told_until_it_is_written_down(bench: Bench) -> None:
    async def work() -> None:
        await bench.set(GpuSettings(power_limit_w=200.0))
        text = bench.journal
        text["entries"][0]["energy_j"] = 1000.0  # a simulated driver has only just been loaded
        (bench.directory / "gpu" / "journal.json").write_text(json.dumps(text))
        uuid = text["entries"][0]["gpu_uuid"]
        before, energy = {uuid: 900.0}, {uuid: 400.0}
        assert [
            r.why_lost for r in (await alterations.read_journal_records_and_log(bench.host))[0]
        ] == [None]
        assert [
            r.why_lost
            for r in (await alterations.read_journal_records_and_log(bench.host, before))[0]
        ] == [None], "a reading of before it"
        assert [
            r.why_lost
            for r in (await alterations.read_journal_records_and_log(bench.host, energy))[0]
        ] == ["the driver was reloaded"]
        gone, _ = await alterations.read_journal_records_and_log(bench.host, energy)
        await alterations.drop_entries_of_lost_settings(bench.host, gone)
        assert bench.brief() == [] and bench.journal["log"][-1]["what"] == (
            "gone: the driver was reloaded"
        )

    run(work)


def test_the_state_of_an_owner() -> None:
    here = identity_of_this_process()
    assert owner_process_state(here) == THIS
    # another process has its number now
    assert owner_process_state({**here, "pid": os.getppid(), "start": "0"}) == DEAD
    assert owner_process_state({**here, "pid": 2**22, "start": "1"}) == DEAD
    assert owner_process_state({**here, "boot_id": "another"}) == DEAD
    assert (
        owner_process_state({**here, "machine": "far"}) == ELSEWHERE
        and owner_process_state({}) == ELSEWHERE
    )


def test_an_owner_of_which_only_the_exit_status_is_left_is_dead() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    start = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert owner_process_state({**identity_of_this_process(), "pid": pid, "start": start}) == DEAD
    os.waitpid(pid, 0)


@pytest.mark.slow
def test_a_journal_of_a_newer_workbench_is_never_written_over(bench: Bench) -> None:
    async def work() -> None:
        await bench.set(GpuSettings(power_limit_w=200.0))
        path = bench.directory / "gpu" / "journal.json"
        text = path.read_text().replace('"version": 2', '"version": 7')
        path.write_text(text)
        with pytest.raises(SettingsError, match="nothing was changed"):
            await bench.set(GpuSettings(power_limit_w=220.0))
        with pytest.raises(SettingsError):
            await alterations.read_journal_records_and_log(bench.host)
        assert path.read_text() == text and bench.power()[0] == 200.0
        assert not (bench.directory / "gpu" / "journal.json.lock").is_symlink()

    run(work)


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["deleted", "truncated", "empty"])
def test_a_journal_that_is_lost_is_made_anew_from_the_register(bench: Bench, damage: str) -> None:
    async def work() -> None:
        await bench.set(GpuSettings(power_limit_w=200.0))
        path = bench.directory / "gpu" / "journal.json"
        text = path.read_text()[:-40] if damage == "truncated" else ""
        path.unlink() if damage == "deleted" else path.write_text(text)
        (altered,) = await alterations.read_alterations(bench.host)  # and looking changes nothing
        assert (altered.before, altered.now) == (250.0, 200.0)
        assert not path.exists() if damage == "deleted" else path.read_text() == text
        report = await revert.revert_settings(bench.host)
        assert report.ok and [o.read_back for o in report.outcomes] == [250.0]
        assert report.recovery is not None and report.recovery.is_written
        assert "GPU0 power limit 200 W, before 250 W" in report.recovery.text
        assert (f"{path}.damaged" in report.recovery.text) == (damage != "deleted")
        aside = path.with_name("journal.json.damaged")
        assert not aside.exists() if damage == "deleted" else aside.read_text() == text
        _, log = await alterations.read_journal_records_and_log(bench.host)
        assert (
            "recovered from the host's register" in log[0]["what"]
            and await alterations.read_alterations(bench.host) == ()
        )

    run(work)


class Interrupting(LocalHost):
    """This machine, which cancels `task` when it runs the command number `at` that sets something."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.left = at
        self.task: asyncio.Task[SettingsReport] | None = None

    async def run(self, argv: Sequence[str], **rest: Any) -> Any:
        if "nvidia-smi" in argv[0]:
            self.left -= 1
            if self.left == 0 and self.task is not None:
                self.task.cancel()
        return await super().run(argv, **rest)


@pytest.mark.parametrize(
    ("at", "left", "limit_w"),
    [
        (1, "the GPU settings that it had changed are reverted", None),
        (2, "the GPU settings were all applied already; `workbench gpu revert` restores", 200.0),
    ],
)
def test_an_interrupted_change_is_made_whole_or_reverted(
    tmp_path: Path, at: int, left: str, limit_w: float | None
) -> None:
    bench, inner = Bench(tmp_path), Interrupting(at)

    async def work() -> None:
        wanted = GpuSettings(power_limit_w=200.0, gpu_clocks=ClockRange(600, 1200))
        commands = await bench.commands(wanted)
        bench.host = SimulatedHost(inner, "four-pcie", str(tmp_path))
        inner.task = asyncio.create_task(apply.apply_commands(bench.host, commands))
        with pytest.raises(Interrupted) as cut:
            await inner.task
        assert cut.value.left.startswith(left)

    asyncio.run(work())
    assert bench.power()[0] == limit_w
    left_settings = {"power_limit_w", "gpu_clocks"} if limit_w else set()
    assert {entry[1] for entry in bench.brief()} == left_settings


class ClockSetAhead:
    """A clock that a test sets ahead."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ahead_s = 0.0
        real = standstill.time.monotonic
        monkeypatch.setattr(
            standstill, "time", type("Time", (), {"monotonic": lambda: real() + self.ahead_s})
        )


class StandsStill(LocalHost):
    """This machine, whose first command that sets something takes `for_s` while nothing looks."""

    def __init__(self, clock: ClockSetAhead, for_s: float) -> None:
        super().__init__()
        self._clock, self._for_s = clock, for_s

    async def run(self, argv: Sequence[str], **rest: Any) -> Any:
        done = await super().run(argv, **rest)
        if "nvidia-smi" in argv[0]:
            self._clock.ahead_s += self._for_s
            self._for_s = 0.0
        return done


@pytest.mark.parametrize(("for_s", "goes_on"), [(40.0, False), (10.0, True)])
def test_a_thawed_change_sets_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, for_s: float, goes_on: bool
) -> None:
    bench, clock = Bench(tmp_path), ClockSetAhead(monkeypatch)

    async def work() -> None:
        wanted = GpuSettings(power_limit_w=200.0, gpu_clocks=ClockRange(600, 1200))
        commands = await bench.commands(wanted)
        bench.host = SimulatedHost(StandsStill(clock, for_s), "four-pcie", str(tmp_path))
        if goes_on:
            assert (await apply.apply_commands(bench.host, commands)).ok
            return
        with pytest.raises(SettingsError, match=r"stood still for \d\d s"):
            await apply.apply_commands(bench.host, commands)

    asyncio.run(work())
    states = {setting: state for _, setting, _, _, state in bench.brief()}
    state = "applied" if goes_on else "pending"  # the guard takes a pending change back
    assert states == {"power_limit_w": state, "gpu_clocks": state}

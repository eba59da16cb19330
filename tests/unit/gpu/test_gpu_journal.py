"""The journal of settings: what a restart takes away, what cannot be read or written, and who else
holds it."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from settings_bench import UUID, Bench, Box, FullDisk, run

from workbench.gpu.settings import alterations, apply, journal, plan, register, revert
from workbench.gpu.telemetry.source_of_host import read_telemetry_once
from workbench.model.errors import SettingsError
from workbench.model.settings import ClockRange, GpuSettings


def test_after_a_restart_the_settings_are_gone(bench: Bench) -> None:
    async def work() -> None:
        await bench.set(GpuSettings(power_limit_w=450.0))
        data = json.loads(bench.path.read_text())
        data["entries"][0]["boot_id"] = "another boot"
        bench.path.write_text(json.dumps(data))
        assert await alterations.read_alterations(bench.host) == ()
        report = await revert.revert_settings(bench.host)
        assert report.outcomes == () and len(bench.smi.setters) == 1
        left = json.loads(bench.path.read_text())
        assert left["entries"] == [] and left["log"][-1]["what"] == "gone: the host was restarted"

    run(work)


def test_after_a_driver_reload_they_are_gone_too(bench: Bench) -> None:
    async def work() -> None:
        await bench.set(GpuSettings(power_limit_w=450.0))
        bench.driver.set("field.83 * 1000")  # counts from the driver's load
        assert (await revert.revert_settings(bench.host)).outcomes == () and bench.entries() == []

    run(work)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"version": 1, "entries": [{"gpu_uu', "is incomplete"),
        ("", "is incomplete"),
        ('{"version": 9, "entries": [], "log": []}', "written by a newer Workbench (format 9"),
        ("[1, 2]", "is not a journal"),
        ('{"version": 1, "entries": [{"x": 1}], "log": []}', "is damaged"),
    ],
)
def test_a_journal_that_cannot_be_read_stops_everything(
    bench: Bench, text: str, words: str
) -> None:
    bench.path.parent.mkdir(parents=True)
    bench.path.write_text(text)

    async def work() -> None:
        for attempt in (
            bench.set(GpuSettings(power_limit_w=450.0)),
            revert.revert_settings(bench.host),
        ):
            with pytest.raises(SettingsError) as error:
                await attempt
            assert words in str(error.value) and "nothing was changed" in str(error.value)
        with pytest.raises(SettingsError):
            await alterations.read_alterations(bench.host)
        assert bench.smi.setters == [] and bench.path.read_text() == text

    run(work)


def test_a_full_disk_changes_nothing(bench: Bench) -> None:
    """And so does a file where the journal's directory must be, which refuses root too."""

    async def work() -> None:
        bench.host = FullDisk(0)
        with pytest.raises(SettingsError, match=r"No space left on device.*nothing was changed"):
            await bench.set(GpuSettings(power_limit_w=450.0))
        assert bench.smi.setters == []
        bench.host = Box()
        bench.path.parent.rmdir()
        bench.path.parent.write_text("in the way")
        with pytest.raises(SettingsError, match="nothing was changed"):
            await bench.set(GpuSettings(power_limit_w=450.0))
        assert bench.smi.setters == []

    run(work)


@pytest.mark.slow
def test_a_journal_that_fails_after_the_change_still_reports(bench: Bench) -> None:
    async def work() -> None:
        bench.host = FullDisk(1)
        report = await bench.set(GpuSettings(power_limit_w=450.0))
        assert report.ok and "still has the previous values" in report.outcomes[0].message
        assert bench.brief() == [("power_limit_w", 600.0, 450.0, "pending")]
        bench.host = Box()
        assert (await revert.revert_settings(bench.host)).ok

    run(work)


def test_without_rights_nothing_is_touched(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        reading = await read_telemetry_once(bench.host)
        none = apply.Rights(
            "/usr/bin/nvidia-smi", refusal="needs root", by_sudoers=True, user="ada"
        )
        commands = plan.plan_commands({"0": GpuSettings(power_limit_w=450.0)}, reading, none)
        report = await apply.apply_commands(bench.host, commands)
        assert not report.ok and "workbench gpu sudoers" in report.outcomes[0].message
        assert bench.smi.setters == [] and not bench.path.exists()

    run(work)


def test_a_value_that_cannot_be_read_before_is_not_changed(bench: Bench) -> None:
    async def work() -> None:
        reading = await read_telemetry_once(bench.host)
        commands = plan.plan_commands(
            {"0": GpuSettings(power_limit_w=450.0)}, reading, apply.Rights()
        )
        bench.driver.set("nvmlDeviceGetPowerManagementLimit 0 !4")
        with pytest.raises(
            SettingsError,
            match=r"power limit is unknown \(no permission\); "
            r"nothing was changed",
        ):
            await apply.apply_commands(bench.host, commands)
        bench.driver.set("lost 0 15")
        with pytest.raises(SettingsError, match="nothing was changed"):
            await apply.apply_commands(bench.host, commands)
        assert bench.smi.setters == []

    run(work)


def test_nvidia_smi_that_went_away(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        reading = await read_telemetry_once(bench.host)
        commands = plan.plan_commands(
            {"0": GpuSettings(gpu_clocks=ClockRange(1, 2))}, reading, apply.Rights()
        )
        (bench.smi.here / "nvidia-smi").unlink()
        if shutil.which("nvidia-smi"):
            pytest.skip("this machine has an nvidia-smi of its own")
        report = await apply.apply_commands(bench.host, commands)
        assert (
            not report.ok and "nvidia-smi" in report.outcomes[0].message and bench.entries() == []
        )

    run(work)


@pytest.mark.slow
def test_two_workbenches_wait_for_one_another(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        monkeypatch.setattr(journal, "WAIT_S", 60)
        await asyncio.gather(
            bench.set(GpuSettings(power_limit_w=450.0)),
            bench.set(GpuSettings(power_limit_w=400.0), "1"),
        )
        assert {(e["gpu_index"], e["before"]) for e in bench.entries()} == {(0, 600.0), (1, 600.0)}
        monkeypatch.setattr(journal, "WAIT_S", 0.2)
        async with journal.locked_journal(bench.host):
            with pytest.raises(
                SettingsError,
                match=f"another Workbench .*process {os.getpid()}.*nothing was changed",
            ):
                await revert.revert_settings(bench.host)
        assert (await revert.revert_settings(bench.host)).ok

    run(work)


class Broken(Box):
    """This machine, where another Workbench takes the journal's lock away before the save with the
    number `at`, changes a setting of another GPU, and ends."""

    def __init__(self, path: Path, at: int) -> None:
        super().__init__()
        self.path, self.left = path, at

    async def run(self, argv: Any, **rest: Any) -> Any:
        if b'{"do": "save"' in (rest.get("input") or b""):
            if self.left == 0:
                self.take_over()
            self.left -= 1
        return await super().run(argv, **rest)

    def take_over(self) -> None:
        Path(f"{self.path}.lock").unlink()
        found = json.loads(self.path.read_text()) if self.path.exists() else dict(EMPTY)
        entry = {**found["entries"][0], "gpu_uuid": UUID[:-1] + "1"} if found["entries"] else None
        found["entries"] += [entry] if entry else []
        found["log"] += [{"what": "by the other"}]
        self.path.write_text(json.dumps(found))


EMPTY = {"version": 2, "entries": [], "log": []}


def test_a_workbench_that_has_lost_its_lock_changes_nothing(bench: Bench) -> None:
    async def work() -> None:
        bench.host = Broken(bench.path, 0)
        with pytest.raises(SettingsError, match=r"lost its lock.*nothing was changed") as error:
            await bench.set(GpuSettings(power_limit_w=450.0))
        assert error.value.next_step and "repeat the command" in error.value.next_step
        assert bench.smi.setters == []
        assert json.loads(bench.path.read_text())["log"] == [{"what": "by the other"}]

    run(work)


@pytest.mark.parametrize("reverts", [False, True])
def test_what_another_workbench_wrote_after_the_lock_was_lost_stays(
    bench: Bench, reverts: bool
) -> None:
    """A Workbench that was stopped for more than ten minutes goes on with its change."""

    async def work() -> None:
        if reverts:
            await bench.set(GpuSettings(power_limit_w=450.0))
        bench.host = Broken(bench.path, 0 if reverts else 1)
        change = (
            revert.revert_settings(bench.host)
            if reverts
            else bench.set(GpuSettings(power_limit_w=450))
        )
        assert (await change).ok
        found = {e["gpu_uuid"][-1]: (e["before"], e["now"]) for e in bench.entries()}
        own = {} if reverts else {"0": (600.0, 450.0)}
        assert found == {**own, "1": (600.0, 450.0)}
        log = [line["what"] for line in json.loads(bench.path.read_text())["log"]]
        assert log[-2:] == ["by the other", "revert" if reverts else "set"]
        assert not Path(f"{bench.path}.lock").is_symlink()

    run(work)


class GuardMeanwhile(Broken):
    """This machine, whose guard takes a change for one that was cut off, and reverts it, before the
    change is saved as applied."""

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench.path, 1)
        self.driver = bench.driver
        self.before = json.loads(self.path.read_text()) if self.path.exists() else EMPTY

    def take_over(self) -> None:
        Path(f"{self.path}.lock").unlink()
        entries = self.before["entries"]
        milliwatts = 1000 * round(entries[0]["now"] if entries else 600.0)
        self.driver.set(
            f"nvmlDeviceGetPowerManagementLimit 0 {milliwatts}",
            f"nvmlDeviceGetEnforcedPowerLimit 0 {milliwatts}",
        )
        self.path.write_text(json.dumps(self.before))


def test_a_change_that_the_guard_has_reverted_meanwhile_is_not_called_in_force(
    bench: Bench,
) -> None:
    """A starved screen said "read back and in force" of what the guard had reverted."""

    async def work() -> None:
        bench.host = GuardMeanwhile(bench)
        report = await bench.set(GpuSettings(power_limit_w=450.0))
        (outcome,) = report.outcomes
        assert not report.ok and "then reverted" in outcome.message
        assert bench.entries() == []

    run(work)


def test_the_first_value_is_not_lost_if_the_guard_has_reverted_a_second_change(
    bench: Bench,
) -> None:
    async def work() -> None:
        await bench.set(GpuSettings(power_limit_w=450.0))
        bench.host = GuardMeanwhile(bench)
        assert not (await bench.set(GpuSettings(power_limit_w=400.0))).ok
        assert bench.brief() == [("power_limit_w", 600.0, 450.0, "applied")]

    run(work)


def test_what_is_kept_of_a_damaged_journal_is_told_although_the_disk_is_full(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "WORKBENCH_GPU_REGISTER",
        register.find_or_create_register_directory(str(tmp_path / "register")),
    )

    async def work() -> None:
        await bench.set(GpuSettings(power_limit_w=450.0))
        bench.path.write_text("{")
        bench.host = FullDisk(0)
        report = await revert.revert_settings(bench.host)
        assert report.ok and report.recovery is not None and not report.recovery.is_written
        assert "the next change or revert makes the journal anew" in report.recovery.text
        assert "could not be updated" in report.outcomes[0].message
        assert bench.path.read_text() == "{"

    run(work)


class Flickering(Box):
    """This machine, whose register cannot be read after every second save."""

    saves = 0

    async def run(self, argv: Any, **rest: Any) -> Any:
        done = await super().run(argv, **rest)
        if b'{"do": "save"' in (rest.get("input") or b""):
            self.saves += 1
            if self.saves % 2:
                answer = json.loads(done.stdout)
                answer["register"] = '{"problem": "it comes and goes"}'
                return replace(done, stdout=json.dumps(answer).encode())
        return done


def test_claims_that_come_and_go_end_a_change(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`gpu set` waited without end for two equal looks, and kept the journal locked."""
    where = register.find_or_create_register_directory(str(tmp_path / "register"))
    monkeypatch.setenv("WORKBENCH_GPU_REGISTER", where)
    monkeypatch.setattr(journal, "WAIT_S", 0.2)

    async def work() -> None:
        await bench.set(GpuSettings(power_limit_w=450.0))
        setters, claim = len(bench.smi.setters), bench.entries()
        await revert.revert_settings(bench.host)
        register.publish_entries(where, "another", claim[0]["boot_id"], claim)
        bench.host = Flickering()
        with pytest.raises(SettingsError, match=r"not the same at two looks.*nothing was changed"):
            await bench.set(GpuSettings(power_limit_w=400.0))
        assert len(bench.smi.setters) == setters + 1 and bench.entries() == []
        assert not Path(f"{bench.path}.lock").is_symlink()

    run(work)


@pytest.mark.slow
def test_a_lock_that_a_lost_link_left_is_our_own(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Had it to wait for the end of this very process, nothing could be reverted before Workbench
    is left."""
    link = Path(f"{bench.path}.lock")
    link.parent.mkdir(parents=True)
    link.symlink_to(journal.owner_token())
    monkeypatch.setattr(journal, "WAIT_S", 0.2)

    async def work() -> None:
        assert (await bench.set(GpuSettings(power_limit_w=450.0))).ok
        assert not link.is_symlink()

    run(work)


@pytest.mark.parametrize(
    "owner",
    [
        "dead",
        "reused pid",
        "old and elsewhere",
        "new and elsewhere",
        "from a clock that was ahead",
        "of another container here",
    ],
)
def test_the_lock_of_a_dead_owner_is_broken(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, owner: str
) -> None:
    monkeypatch.setattr(journal, "WAIT_S", 0.2)
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    token = {
        "dead": f"{boot}:4194304:1:ada@{platform.node()}",
        "reused pid": f"{boot}:{os.getpid()}:1:ada@{platform.node()}",
        "old and elsewhere": "another-boot:1:1:ada@far",
        "from a clock that was ahead": "another-boot:1:1:ada@far",
        "new and elsewhere": "another-boot:1:1:ada@far",
        "of another container here": f"{boot}:{os.getpid()}:1:ada@far",
    }[owner]
    link = Path(f"{bench.path}.lock")
    link.parent.mkdir(parents=True)
    link.symlink_to(token)
    if owner == "old and elsewhere":
        os.utime(link, (1, 1), follow_symlinks=False)
    if owner == "from a clock that was ahead":
        os.utime(link, (9e9, 9e9), follow_symlinks=False)

    async def work() -> None:
        if owner in ("new and elsewhere", "of another container here"):
            with pytest.raises(SettingsError, match="ada@far, process"):
                await bench.set(GpuSettings(power_limit_w=450.0))
            assert bench.smi.setters == []
        else:
            assert (await bench.set(GpuSettings(power_limit_w=450.0))).ok
            assert not link.is_symlink()

    run(work)


def test_a_look_at_the_settings_sends_no_log(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is most of the file: 50 KB on a host with a history."""
    sent: list[int] = []

    class Counting(Box):
        async def run(self, *words: Any, **options: Any) -> Any:
            done = await super().run(*words, **options)
            sent.append(len(done.stdout))
            return done

    async def work() -> None:
        await bench.set(GpuSettings(power_limit_w=450.0))
        async with journal.locked_journal(bench.host) as held:
            state = held.journal
            for number in range(250):
                state = state.with_log_line("x" * 200, now=number)
            await held.save(state)
        whole = await journal.read_journal(bench.host)
        bench.host = Counting()
        short = await journal.read_journal(bench.host, with_log=False)
        assert short.entries == whole.entries != () and len(whole.log) == 200
        assert short.log == () and sum(sent) < 8_000 < len(bench.path.read_bytes()) / 5
        bench.host = Box()
        assert (await revert.revert_settings(bench.host)).ok

    run(work)

"""Apply, read back, journal and revert, with a fake nvidia-smi whose state the simulated NVML
library reads."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from settings_bench import UUID, Bench, run

from workbench.gpu.settings import alterations, apply, journal, revert
from workbench.gpu.settings import command_runner as running
from workbench.hosts.base import HostUnreachable
from workbench.model.errors import InputError, SettingsError
from workbench.model.setting_records import GuardView, InForce
from workbench.model.settings import DEFAULT, ClockRange, GpuSettings, value_to_store


def test_apply_reads_back_and_revert_restores(bench: Bench) -> None:
    bench.driver.set(
        "nvmlDeviceGetPowerManagementLimit 0 580000", "nvmlDeviceGetPersistenceMode 0 0"
    )  # not the default

    async def work() -> None:
        wanted = GpuSettings(
            persistence=True,
            power_limit_w=450.0,
            gpu_clocks=ClockRange(1000, 2000),
            memory_clocks=ClockRange(14001, 14001),
        )
        report = await bench.set(wanted)
        assert report.ok and report.journal == str(bench.path) and not report.dry_run
        assert [
            (o.command.setting, o.before, o.requested, o.read_back, o.in_force)
            for o in report.outcomes
        ] == [
            ("persistence", False, True, True, InForce.YES),
            ("power_limit_w", 580.0, 450.0, 450.0, InForce.YES),
            ("gpu_clocks", "unknown", ClockRange(1000, 2000), None, InForce.NOT_CHECKED),
            ("memory_clocks", "unknown", ClockRange(14001, 14001), None, InForce.NOT_CHECKED),
        ]
        assert "cannot be read back" in report.outcomes[2].message
        altered = await alterations.read_alterations(bench.host)
        assert [(a.setting, value_to_store(a.before), value_to_store(a.now)) for a in altered] == [
            (e["setting"], e["before"], e["now"]) for e in bench.entries()
        ]
        assert {a.state for a in altered} == {"applied"} and altered[0].since_unix_s > 1.6e9
        bench.smi.here.joinpath("calls").unlink()
        back = await revert.revert_settings(bench.host)
        assert back.ok and [o.command.setting for o in back.outcomes] == [
            "gpu_clocks",
            "memory_clocks",
            "power_limit_w",
            "persistence",
        ]
        assert bench.smi.setters == [
            "--reset-gpu-clocks",
            "--reset-memory-clocks",
            "-pl 580",
            "-pm 0",
        ]
        assert "is unknown" in back.outcomes[0].message and back.outcomes[2].read_back == 580.0
        assert await alterations.read_alterations(bench.host) == () and bench.entries() == []
        again = await revert.revert_settings(bench.host)
        assert again.ok and again.outcomes == () and len(bench.smi.setters) == 4

    run(work)


def test_the_previous_values_are_on_disk_before_the_first_change(bench: Bench) -> None:
    async def work() -> None:
        await bench.set(GpuSettings(power_limit_w=450.0, gpu_clocks=ClockRange(1000, 2000)))
        seen = json.loads(bench.smi.journal_at_first_change)["entries"]
        assert [(e["setting"], e["before"], e["state"]) for e in seen] == [
            ("power_limit_w", 600.0, "pending"),
            ("gpu_clocks", "unknown", "pending"),
        ]
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        assert (
            seen[0]["gpu_uuid"] == UUID
            and seen[0]["boot_id"] == boot
            and seen[0]["driver"] == "580.95.05"
        )
        assert (
            seen[0]["owner"]["pid"] == os.getpid()
            and seen[0]["who"]
            and seen[0]["energy_j"] == 5000.0
        )
        assert oct(bench.path.stat().st_mode & 0o777) == "0o600"

    run(work)


@pytest.mark.slow
def test_a_second_change_keeps_the_first_value_and_a_way_back_to_it_is_no_alteration(
    bench: Bench,
) -> None:
    async def work() -> None:
        await bench.set(GpuSettings(power_limit_w=450.0))
        second = await bench.set(GpuSettings(power_limit_w=400.0))
        assert second.outcomes[0].before == 450.0
        assert bench.brief() == [("power_limit_w", 600.0, 400.0, "applied")]
        await bench.set(GpuSettings(power_limit_w=600.0))
        assert bench.entries() == []

    run(work)


@pytest.mark.slow
def test_what_a_lock_was_before_is_known_after_our_own(bench: Bench) -> None:
    async def work() -> None:
        first = await bench.set(GpuSettings(gpu_clocks=ClockRange(1000, 2000)))
        second = await bench.set(GpuSettings(gpu_clocks=ClockRange(500, 1500)))
        assert (first.outcomes[0].before, second.outcomes[0].before) == (
            "unknown",
            ClockRange(1000, 2000),
        )
        assert bench.brief() == [("gpu_clocks", "unknown", "500,1500", "applied")]
        reset = await bench.set(GpuSettings(gpu_clocks=DEFAULT))
        assert reset.ok and bench.entries() == []
        third = await bench.set(GpuSettings(gpu_clocks=ClockRange(1000, 2000)))
        assert (
            third.outcomes[0].before == "default"
            and bench.entries()[0]["before_known"] == "default"
        )

    run(work)


def test_dry_run_changes_and_writes_nothing(bench: Bench) -> None:
    async def work() -> None:
        report = await bench.set(GpuSettings(power_limit_w=450.0), "all", dry_run=True)
        assert (
            report.dry_run and report.ok and [o.before for o in report.outcomes] == [600.0, 600.0]
        )
        assert bench.smi.setters == [] and not bench.path.exists()
        assert (await apply.apply_commands(bench.host, ())).outcomes == ()

    run(work)


@pytest.mark.slow
def test_success_that_changes_nothing_is_a_failure(bench: Bench) -> None:
    bench.smi.mode("no-effect")

    async def work() -> None:
        report = await bench.set(GpuSettings(power_limit_w=450.0))
        (outcome,) = report.outcomes
        assert (
            not report.ok and outcome.in_force is InForce.NO_EFFECT and outcome.read_back == 600.0
        )
        assert "reported success, but the driver reports 600 W, not 450 W" in outcome.message
        assert bench.entries() == []  # nothing to give back

    run(work)


@pytest.mark.parametrize(
    ("mode", "words"),
    [("warn", "Treating as warning"), ("refuse", "does not have permission"), ("lost", "")],
)
def test_a_refusal_stops_the_rest_and_tells_the_command(
    bench: Bench, mode: str, words: str
) -> None:
    bench.smi.mode(mode)

    async def work() -> None:
        report = await bench.set(
            GpuSettings(power_limit_w=450.0, gpu_clocks=ClockRange(1000, 2000))
        )
        assert not report.ok
        first, second = report.outcomes
        if mode == "lost":  # between the two
            assert first.read_back is None and not second.ok and "GPU is lost" in second.message
            assert not first.ok and "its rollback failed as well" in first.message
            lock, back = report.rolled_back  # it may have been lost after the lock was made
            assert (
                not lock.ok
                and (f"By hand: sudo nvidia-smi -i {UUID} --reset-gpu-clocks") in lock.message
            )
            assert not back.ok and f"By hand: sudo nvidia-smi -i {UUID} -pl 600" in back.message
            assert bench.brief() == [
                ("power_limit_w", 600.0, 450.0, "pending"),
                ("gpu_clocks", "unknown", "1000,2000", "pending"),
            ]
            return
        assert (
            not first.ok
            and words in first.message
            and (f"sudo nvidia-smi -i {UUID} -pl 450") in first.message
        )
        assert not second.ok and "not run" in second.message
        assert len(bench.smi.setters) == 1 and bench.entries() == []

    run(work)


def test_a_value_that_is_there_already_needs_no_guard(bench: Bench) -> None:
    """It said that a guard guards the settings, although nothing had changed and none ran."""

    async def guard(_: journal.Journal) -> GuardView:
        return GuardView(True, pid=7)

    async def work() -> None:
        commands = await bench.commands(GpuSettings(power_limit_w=600.0, persistence=True))
        report = await apply.apply_commands(bench.host, commands, guard=guard)
        assert report.ok and report.guard is None and bench.entries() == []
        assert all("it had this value already" in one.message for one in report.outcomes)

    run(work)


@pytest.mark.parametrize("mode", ["warn", "refuse"])
def test_a_refusal_for_a_vgpu_names_the_hypervisor(bench: Bench, mode: str) -> None:
    """Only the doctor said that the limits of a vGPU belong to its hypervisor."""
    bench.driver.set("virtualization * 2")
    bench.smi.mode(mode)

    async def work() -> None:
        report = await bench.set(GpuSettings(gpu_clocks=ClockRange(1000, 2000)))
        (found,) = report.outcomes
        assert not found.ok and "belong to the hypervisor" in found.message
        assert "sudo nvidia-smi" not in found.message  # which would be refused as well
        (persistence,) = (await bench.set(GpuSettings(persistence=False))).outcomes
        assert "hypervisor" not in persistence.message
        bench.driver.set("nvmlDeviceGetPowerManagementLimit * !3")
        with pytest.raises(SettingsError, match="power limit is unknown") as caught:
            await bench.set(GpuSettings(power_limit_w=450.0))
        assert "hypervisor" in str(caught.value.next_step)

    run(work)


@pytest.mark.slow
def test_a_plan_that_fails_leaves_the_one_before_as_it_was(bench: Bench) -> None:
    async def work() -> None:
        await bench.set(GpuSettings(power_limit_w=450.0))
        bench.smi.mode("refuse")
        report = await bench.set(GpuSettings(power_limit_w=300.0, gpu_clocks=ClockRange(1, 2)))
        # the first of the two was refused already
        assert not report.ok and report.rolled_back == ()
        assert bench.brief() == [("power_limit_w", 600.0, 450.0, "applied")]

    run(work)


@pytest.mark.slow
def test_what_was_done_before_a_failure_is_given_back(bench: Bench) -> None:
    """To what it was before this plan, which is another plan's value here; the journal is as after
    that one."""

    async def work() -> None:
        await bench.set(GpuSettings(power_limit_w=450.0))
        program = bench.smi.here / "nvidia-smi"
        program.write_text(
            program.read_text().replace(
                'if mode == "hang"', 'if "--lock-gpu" in line: sys.exit(8)\nif mode == "hang"'
            )
        )
        wanted = GpuSettings(
            power_limit_w=300.0,
            gpu_clocks=ClockRange(1000, 2000),
            memory_clocks=ClockRange(14001, 14001),
        )
        report = await bench.set(wanted)
        power, sm, memory = report.outcomes
        assert not report.ok and [power.ok, sm.ok, memory.ok] == [False, False, False]
        assert power.message.startswith(
            "done, but a later command of the plan failed: it was rolled back"
        )
        assert "nvidia-smi ended with 8" in sm.message and "not run" in memory.message
        (back,) = report.rolled_back
        assert back.ok and (back.command.setting, back.before, back.requested) == (
            "power_limit_w",
            300.0,
            450.0,
        )
        assert back.read_back == 450.0 and back.in_force is InForce.YES
        assert bench.smi.setters[-1] == "-pl 450"
        assert bench.brief() == [("power_limit_w", 600.0, 450.0, "applied")]
        log = [
            (line["what"], line["setting"], line["now"], line["ok"])
            for line in json.loads(bench.path.read_text())["log"]
        ]
        assert log[-4:] == [
            ("set", "power_limit_w", 300.0, True),
            ("set", "gpu_clocks", "1000,2000", False),
            ("set", "memory_clocks", "14001,14001", False),
            ("roll back", "power_limit_w", 450.0, True),
        ]
        assert (await revert.revert_settings(bench.host)).ok and bench.entries() == []

    run(work)


@pytest.mark.slow
def test_a_setting_that_does_nothing_takes_its_plan_back_with_it(bench: Bench) -> None:
    bench.driver.set("nvmlDeviceGetPersistenceMode * 0")
    program = bench.smi.here / "nvidia-smi"
    program.write_text(
        program.read_text().replace(
            'elif change[0] == "-pm":',
            'elif change[0] == "-pm" and calls == 1:\n    pass\nelif change[0] == "-pm":',
        )
    )

    async def work() -> None:
        report = await bench.set(GpuSettings(persistence=True, power_limit_w=450.0))
        first, second = report.outcomes
        assert (
            first.in_force is InForce.NO_EFFECT
            and not second.ok
            and "rolled back" in second.message
        )
        assert [(o.command.setting, o.ok, o.read_back) for o in report.rolled_back] == [
            ("power_limit_w", True, 600.0)
        ]
        assert bench.entries() == []

    run(work)


@pytest.mark.slow
def test_the_guard_is_started_between_the_journal_and_the_first_command(bench: Bench) -> None:
    seen: list[object] = []

    async def guard(_: journal.Journal) -> GuardView:
        seen.append((bench.brief(), bench.smi.setters, Path(f"{bench.path}.lock").is_symlink()))
        return GuardView(True, pid=7)

    async def broken(_: journal.Journal) -> GuardView:
        raise SettingsError("python3 is not there", next_step="install it")

    async def work() -> None:
        commands = await bench.commands(GpuSettings(power_limit_w=450.0))
        with pytest.raises(
            SettingsError,
            match=r"no guard could be started \(python3 is not there\); nothing was "
            r"changed",
        ):
            await apply.apply_commands(bench.host, commands, guard=broken)
        assert (
            bench.smi.setters == []
            and bench.entries() == []
            and not Path(f"{bench.path}.lock").is_symlink()
        )
        report = await apply.apply_commands(
            bench.host, commands, guard=guard, watch=lambda entry, _: {"heartbeat_s": 30.0}
        )
        assert report.ok and report.guard == GuardView(True, pid=7)
        assert seen == [([("power_limit_w", 600.0, 450.0, "pending")], [], True)]

    run(work)


@pytest.mark.slow
def test_a_hanging_nvidia_smi_may_have_done_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "COMMAND_TIMEOUT_S", 0.3)
    bench.smi.mode("hang")

    async def work() -> None:
        report = await bench.set(GpuSettings(gpu_clocks=ClockRange(1000, 2000)))
        assert "did not end within" in report.outcomes[0].message
        # it may have been done, and giving it back hangs as well
        assert not report.rolled_back[0].ok
        assert bench.brief() == [("gpu_clocks", "unknown", "1000,2000", "pending")]
        await bench.set(GpuSettings(memory_clocks=ClockRange(14001, 14001)))
        calls = len(bench.smi.setters)
        told = [o.message for o in (await revert.revert_settings(bench.host)).outcomes]
        assert len(bench.smi.setters) == calls + 1  # it is not waited for twice
        assert (
            "did not end within" in told[0] and ("not tried: nvidia-smi does not answer") in told[1]
        )
        bench.smi.mode("ok")
        assert (await revert.revert_settings(bench.host)).ok and bench.entries() == []

    run(work)


def test_a_lower_limit_elsewhere_is_told(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.driver.set("nvmlDeviceGetPersistenceMode * 0")
    program = bench.smi.here / "nvidia-smi"
    program.write_text(
        program.read_text().replace("index, float(change[1]) * 1000)", "index, 300000)")
    )

    async def work() -> None:
        report = await bench.set(GpuSettings(power_limit_w=450.0))
        (outcome,) = report.outcomes
        assert (
            outcome.ok
            and outcome.in_force is InForce.CAPPED
            and ("enforces 300 W") in outcome.message
        )
        assert "persistence mode is off" in outcome.message

    run(work)


@pytest.mark.slow
def test_a_failed_revert_stays_in_the_journal_with_its_command(bench: Bench) -> None:
    async def work() -> None:
        await bench.set(GpuSettings(power_limit_w=450.0, gpu_clocks=ClockRange(1000, 2000)))
        bench.smi.mode("refuse")
        report = await revert.revert_settings(bench.host)
        assert not report.ok and len(report.outcomes) == 2  # it tried both
        assert all("stays in the journal" in o.message for o in report.outcomes)
        assert f"sudo nvidia-smi -i {UUID} -pl 600" in report.outcomes[1].message
        assert len(bench.entries()) == 2
        bench.smi.mode("no-effect")
        silent = await revert.revert_settings(bench.host)
        assert (
            silent.outcomes[1].in_force is InForce.NO_EFFECT
            and bench.entries()[0]["setting"] == "power_limit_w"
        )
        bench.smi.mode("ok")
        assert (await revert.revert_settings(bench.host)).ok and bench.entries() == []

    run(work)


@pytest.mark.slow
def test_revert_of_one_gpu(bench: Bench) -> None:
    async def work() -> None:
        await bench.set(GpuSettings(power_limit_w=450.0), "all")
        report = await revert.revert_settings(bench.host, 1)
        assert [o.command.gpu_index for o in report.outcomes] == [1]
        assert [e["gpu_index"] for e in bench.entries()] == [0]
        with pytest.raises(InputError, match="no GPU 9"):
            await revert.revert_settings(bench.host, 9)
        assert (await revert.revert_settings(bench.host, UUID)).ok and bench.entries() == []

    run(work)


def test_a_link_that_is_lost_when_the_guard_starts_ends_the_change(bench: Bench) -> None:
    """No command could be sent either. The entry stays: what became of it is read when the link is
    back."""

    async def lost(_: journal.Journal) -> GuardView:
        raise HostUnreachable("no connection")

    async def work() -> None:
        commands = await bench.commands(GpuSettings(power_limit_w=450.0))
        with pytest.raises(HostUnreachable):
            await apply.apply_commands(bench.host, commands, guard=lost)
        assert bench.smi.setters == []
        assert bench.brief() == [("power_limit_w", 600.0, 450.0, "pending")]

    run(work)

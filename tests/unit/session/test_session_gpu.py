"""GPU settings as the session sees them: a preset's, who uses the GPUs, whose settings are on."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.procs import alive

from workbench.gpu.remote_programs import AGENT_PROGRAM, JOURNAL_PROGRAM
from workbench.gpu.settings.owners import identity_of_this_process
from workbench.gpu.settings.proof import Proof
from workbench.hosts import detached_process
from workbench.hosts.local import LocalHost
from workbench.model.errors import InputError
from workbench.model.setting_records import InForce
from workbench.model.settings import ClockRange, GpuSettings
from workbench.session.session import Session
from workbench.sim import profiles
from workbench.sim.driver_state import SimState
from workbench.tui.formats import running_setting_change_text
from workbench.tui.widgets.status_bar import StatusBar

PRO = "rtx-pro-6000"
TITLES = (AGENT_PROGRAM.title, JOURNAL_PROGRAM.title)
POWER = GpuSettings(power_limit_w=400.0)


def on(scenario: Callable[[Session], Awaitable[None]], profile: str = PRO) -> None:
    async def go() -> None:
        session = Session.of_host(None, profile)
        try:
            await session.link.connect()
            await asyncio.wait_for(scenario(session), 60)
        finally:
            await session.close()

    asyncio.run(go())


def driver(profile: str = PRO) -> SimState:
    return SimState(
        f"{os.environ['XDG_STATE_HOME']}/workbench/sim/{profile}/driver",
        profiles.get_profile(profile),
    )


def journal() -> Path:
    return Path(os.environ["XDG_STATE_HOME"], "workbench", "sim", PRO, "gpu", "journal.json")


def rewrite(**changes: Any) -> None:
    """Change fields of every journalled entry; those of its owner as owner_NAME."""
    data = json.loads(journal().read_text())
    for entry in data["entries"]:
        for name, value in changes.items():
            if name.startswith("owner_"):
                entry["owner"][name.removeprefix("owner_")] = value
            else:
                entry[name] = value
    journal().write_text(json.dumps(data))


def test_a_presets_settings_are_told_and_never_applied_by_loading(clean_environment: None) -> None:
    async def scenario(session: Session) -> None:
        assert not session.plans.preset_gpu_settings()  # none is loaded
        await session.plans.load_preset("rtx-pro-6000-power-400w")
        ((selector, settings, reason),) = session.plans.preset_gpu_settings()
        assert (selector, settings) == (
            "0",
            GpuSettings(persistence=True, power_limit_w=400.0),
        ) and reason
        (other,) = session.plans.preset_gpu_settings("rtx-pro-6000-clock-power-profile")
        assert (other[1]["gpu_clocks"], other[1]["memory_clocks"]) == (
            ClockRange(2500, 2800),
            ClockRange(13365, 13365),
        )
        assert session.plans.preset_gpu_settings("vllm-any") == []
        assert driver().settings()[0].limit_w is None and not journal().exists()

    on(scenario)


@pytest.mark.slow
def test_a_plan_for_several_gpus_is_one(clean_environment: None) -> None:
    async def scenario(session: Session) -> None:
        wanted = {"0": GpuSettings(power_limit_w=200.0), "2": GpuSettings(power_limit_w=220.0)}
        assert [c.gpu_index for c in await session.gpu.plan_changes_by_gpu(wanted)] == [0, 2]
        assert (await session.gpu.apply_settings_by_gpu(wanted)).ok
        assert [s.limit_w for s in driver("four-pcie").settings()] == [200.0, None, 220.0, None]
        with pytest.raises(InputError):
            await session.gpu.apply_settings_by_gpu(
                {"0": GpuSettings(power_limit_w=210.0), "9": GpuSettings(power_limit_w=210.0)}
            )
        assert driver("four-pcie").settings()[0].limit_w == 200.0
        assert (await session.gpu.revert_settings()).ok

    on(scenario, "four-pcie")


def test_a_plan_is_made_and_marked_with_one_reading_and_one_look_at_the_journal(
    clean_environment: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []
    spawn = LocalHost._spawn

    async def counted(self: LocalHost, argv: Sequence[str], *rest: Any, **more: Any) -> Any:
        started.extend(title for title in TITLES if f"# workbench {title}\n" in " ".join(argv))
        return await spawn(self, argv, *rest, **more)

    async def scenario(session: Session) -> None:
        monkeypatch.setattr(
            "workbench.session.history.telemetry_watch._SINGLE_READING_VALID_S", 60.0
        )
        monkeypatch.setattr(LocalHost, "_spawn", counted)
        commands = await session.gpu.plan_setting_commands(POWER, 0)
        await session.gpu.add_notes_about_other_setters(commands)
        # for a measurement of others, before the question
        assert session.gpu.alterations.register_dir is not None
        assert started == ["telemetry agent", "journal of GPU settings"]

    on(scenario)


def test_who_uses_the_gpus_and_which_of_them_are_ours(clean_environment: None) -> None:
    async def scenario(session: Session) -> None:
        run_dir = f"{await session.host.state_dir()}/runs/20261121-000000-vllm-0000"
        await session.host.run(["mkdir", "-p", os.path.dirname(run_dir)])
        ours = await detached_process.start_detached(session.host, run_dir, ["sleep", "600"])
        other = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
        try:
            for pid in (ours.pid, other.pid):
                driver().publish_load(
                    pid, {0: {"memory_bytes": 1 << 30, "busy": 0.0, "memory": 0.0, "compute": 0.0}}
                )
            found = {
                pid: (gpu, is_ours)
                for gpu, pid, name, is_ours in await session.gpu.gpu_processes()
                if name
            }
            assert found == {ours.pid: (0, True), other.pid: (0, False)}
        finally:
            other.communicate(timeout=10)
            await detached_process.stop_run(session.host, run_dir, grace_s=1)
        assert not alive(ours.pid)

    on(scenario)


@pytest.mark.slow
def test_settings_of_a_dead_workbench_are_offered_back_and_of_a_living_one_named(
    clean_environment: None,
) -> None:
    async def scenario(session: Session) -> None:
        await session.gpu.apply_settings(POWER)
        await session.gpu.alterations.read_altered_settings()
        assert session.state.offers == () and session.state.alterations[0].owner_state == "this"
        rewrite(owner_pid=2**22)
        await session.gpu.alterations.read_altered_settings()
        assert session.state.offers == (
            "GPU settings that an earlier Workbench made are still on: press r to revert them",
        )
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as living:
            start = Path(f"/proc/{living.pid}/stat").read_text().rpartition(")")[2].split()[19]
            rewrite(owner_pid=living.pid, owner_start=start, who="ada@box")
            await session.gpu.alterations.read_altered_settings()
            assert session.state.offers == (
                f"GPU settings are altered by ada@box, process {living.pid} (another running "
                "Workbench)",
            )
            report = await session.gpu.revert_settings()
            whose = f"made by ada@box, process {living.pid}, which still runs"
            assert report.ok and whose in report.outcomes[0].message
            assert living.stdin is not None
            living.stdin.close()
        await session.gpu.apply_settings(POWER)
        rewrite(owner_machine="far")
        await session.gpu.alterations.read_altered_settings()
        assert "on another machine" in session.state.offers[0]
        dead = {f"owner_{name}": value for name, value in identity_of_this_process().items()} | {
            "owner_pid": 2**22
        }
        rewrite(**dead, state="kept")
        await session.gpu.alterations.read_altered_settings()
        # on, and nobody is asked about it
        assert session.state.offers == () and len(session.state.alterations) == 1
        assert (await session.gpu.revert_settings()).ok and driver().settings()[0].limit_w is None

    on(scenario)


def test_after_a_restart_it_is_told_once_that_the_settings_are_gone(
    clean_environment: None,
) -> None:
    async def scenario(session: Session) -> None:
        seen: list[bool] = []  # of each state on the way: whether the change or its outcome shows
        end = session.subscribe(
            lambda state, _: seen.append(
                bool(running_setting_change_text(state) or state.alterations)
            )
        )
        await session.gpu.apply_settings(POWER)
        end()
        assert seen and all(seen)
        rewrite(boot_id="an earlier one")
        await session.gpu.alterations.read_altered_settings()
        notice = session.state.notice
        assert (
            notice is not None
            and "have been reset, because the host was restarted: GPU0 power limit 400 W"
            in notice.text
        )
        assert session.state.alterations == () and session.state.offers == ()
        await session.gpu.alterations.read_altered_settings()
        assert session.state.notice is notice
        data = json.loads(journal().read_text())
        assert data["entries"] == [] and data["log"][-1]["what"] == "gone: the host was restarted"

    on(scenario)


@pytest.mark.slow
@pytest.mark.long
def test_a_finding_stands_until_the_settings_change_whichever_workbench_looks(
    clean_environment: None,
) -> None:
    """Proven by one session, on the row in the next; gone with another change; a file of a stranger
    says nothing."""
    path = journal().parent / "findings.json"
    no_effect = Proof(
        0,
        "power_limit_w",
        InForce.NO_EFFECT,
        "power ▲ no effect",
        "asked 400 W, observed 600 W",
        20,
    )

    async def proven(session: Session) -> None:
        assert (await session.gpu.apply_settings(POWER, 0)).ok
        await session.gpu.gpu_evidence.show_proofs_on_gpus([no_effect])
        assert session.state.gpu_findings == ((0, no_effect.short),)
        await session.gpu.guard.leave_settings_on_unguarded()

    async def next_one(session: Session) -> None:
        await session.gpu.alterations.read_altered_settings()
        assert session.state.gpu_findings == ((0, no_effect.short),)

    async def after_a_change(session: Session) -> None:
        assert (await session.gpu.apply_settings(GpuSettings(power_limit_w=450.0), 0)).ok
        await session.gpu.guard.leave_settings_on_unguarded()

    async def nothing(session: Session) -> None:
        await session.gpu.alterations.read_altered_settings()
        assert session.state.alterations and session.state.gpu_findings == ()

    on(proven)
    on(next_one)
    kept = path.read_text()
    ((uuid, one),) = json.loads(kept).items()
    others = [
        {**one, "short": short} for short in (["power \x1b[2J"], ["p" * 99], [7], "power", None)
    ]
    for strange in (
        "{",
        "[]",
        json.dumps({uuid: 1}),
        *(json.dumps({uuid: other}) for other in others),
    ):
        path.write_text(strange)
        on(nothing)
    path.write_text(kept)
    on(after_a_change)
    on(nothing)


@pytest.mark.long
@pytest.mark.slow
def test_settings_of_a_preset_that_are_not_applied_are_told_until_they_are(
    clean_environment: None,
) -> None:
    """In the state that the status line and the plan are drawn from."""

    async def scenario(session: Session) -> None:
        await session.telemetry.start()
        await session.plans.load_preset("rtx-pro-6000-power-400w")

        async def until(told: bool) -> None:
            while bool(session.state.unapplied) is not told:
                await asyncio.sleep(0.02)

        await until(told=True)
        assert session.state.unapplied[0] == "GPU0 power limit 400 W (now 600 W)"
        assert session.state.plan is not None
        (found,) = [f for f in session.state.plan.findings if f.code == "gpu.not-applied"]
        assert "are not applied: GPU0 power limit 400 W (now 600 W)" in found.text
        assert found.fix is not None and found.fix.endswith(
            "run: workbench presets apply rtx-pro-6000-power-400w"
        )
        said = "".join(
            text for row in StatusBar().status_part_rows(session.state) for text, _ in row
        )
        assert "settings of the preset: not applied (A)" in said
        ((_, settings, _),) = session.plans.preset_gpu_settings()
        assert (await session.gpu.apply_settings(settings, 0)).ok
        await until(told=False)
        assert not [f for f in session.state.plan.findings if f.code == "gpu.not-applied"]
        assert (await session.gpu.revert_settings()).ok
        await until(told=True)
        await session.plans.load_preset("vllm-any")
        await until(told=False)

    on(scenario)

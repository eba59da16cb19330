"""What a session says about a change of several GPUs that was cut off before its commands."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from workbench.cli.gpu_text import format_local_time, list_changes_by_other_processes
from workbench.hosts.local import LocalHost
from workbench.model.gpu import DriverInfo, GpuSample, HostSample, Telemetry
from workbench.model.setting_records import (
    Alteration,
    Drift,
    SettingCommand,
    SettingOutcome,
    SettingsReport,
)
from workbench.session.gpu import alterations
from workbench.session.gpu.alterations import GpuAlterations
from workbench.session.gpu.control import GpuControl
from workbench.session.state import HostView, SessionState
from workbench.session.state_holder import StateHolder
from workbench.tui.widgets.status_bar import StatusBar

BEGUN = "a change to 200 W was begun, now 250 W"
DRIFT = tuple(Drift(n, f"GPU-{n}", "power_limit_w", 250.0, BEGUN) for n in range(4))


def cut_off(gpu: int) -> Alteration:
    return Alteration(gpu, f"GPU-{gpu}", "power_limit_w", 250.0, 200.0, 1.0, state="pending")


def made_one(gpu: int) -> Alteration:
    return replace(cut_off(gpu), state="applied")


async def _nothing(*_: object, **_options: object) -> None:
    return None


def test_one_message_names_all_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """There was one message for each GPU, of which a person saw that about the last one."""
    monkeypatch.setattr(alterations, "find_drifts", lambda *_: DRIFT)
    monkeypatch.setattr(alterations.journal, "is_journal_locked", _nothing)
    monkeypatch.setattr(GpuAlterations, "read_altered_settings", _nothing)

    async def scenario() -> str:
        core, telemetry = StateHolder(LocalHost()), SimpleNamespace(on_reading=[])
        GpuAlterations(core, telemetry)  # type: ignore[arg-type]
        core.update(alterations=tuple(map(cut_off, range(4))))
        (compare,) = telemetry.on_reading
        compare(None)
        while not core.state.drift:
            await asyncio.sleep(0)
            compare(None)
        assert core.state.notice is not None
        return core.state.notice.text

    assert asyncio.run(scenario()).endswith(f": GPU0-3 power limit: {BEGUN}")


@pytest.mark.parametrize(("gpus", "said"), [(4, "GPU change was cut off"), (3, "by someone else")])
def test_the_status_bar_blames_nobody_for_a_change_that_was_cut_off(gpus: int, said: str) -> None:
    bar = StatusBar()
    cut = tuple(map(cut_off, range(gpus)))
    bar.state = SessionState(HostView("box", link="connected"), alterations=cut, drift=DRIFT)
    assert said in "".join(text for row in bar.rows(120, 1) for text, _ in row)


def test_the_status_bar_does_not_call_a_change_made_before_its_outcome_is_known() -> None:
    """It said "GPU altered" for seconds, until two readings had shown the earlier value."""
    bar, cut = StatusBar(), tuple(map(cut_off, range(4)))
    for made, said in (
        (cut, "change begun, not known whether applied"),
        ((made_one(0), *cut[1:]), "GPU altered"),
    ):
        bar.state = SessionState(HostView("box", link="connected"), alterations=made)
        text = "".join(text for row in bar.rows(120, 1) for text, _ in row)
        assert f"{said}: " in text and "power limit 250 → 200 W" in text


def test_what_another_user_has_only_begun_is_not_called_altered() -> None:
    begun, made = (replace(one, by="bob") for one in (cut_off(0), made_one(1)))
    state = SessionState(HostView("box"), others=(begun, made))
    first, second = list_changes_by_other_processes(state)
    assert first.startswith("begun, not known whether applied by bob: GPU0 power limit")
    assert second.startswith("altered by bob: GPU1 power limit")


@pytest.mark.parametrize(
    ("power_limit_w", "end"), [(190.0, "; it is 190 W now"), (200.0, ""), (None, "")]
)
def test_a_claim_that_is_out_of_date_says_what_the_value_is_now(
    power_limit_w: float | None, end: str
) -> None:
    """Somebody without Workbench had set 190 W since."""
    sample = GpuSample(0, "GPU-0", power_limit_w=power_limit_w)
    telemetry = Telemetry(1.0, 1.0, DriverInfo(), HostSample(), (), (sample,))
    made = replace(made_one(0), by="bob")
    state = SessionState(HostView("box"), others=(made,), telemetry=telemetry)
    (line,) = list_changes_by_other_processes(state)
    since = format_local_time(made.since_unix_s)
    assert line == f"altered by bob: GPU0 power limit 250 W -> 200 W, since {since}{end}"


@pytest.mark.parametrize(
    ("states", "offer"),
    [
        (("pending",), alterations.CUT_CHANGE_OFFER),
        (("pending", "applied"), alterations.REVERT_OFFER),
    ],
)
def test_a_setting_is_called_on_only_if_it_was_made(states: tuple[str, ...], offer: str) -> None:
    def record(state: str) -> Any:
        entry = SimpleNamespace(state=state, owner={}, who="root@box")
        return SimpleNamespace(why_lost=None, owner="dead", entry=entry)

    assert alterations.revert_offer_texts([record(state) for state in states]) == (offer,)


def test_a_revert_that_needs_no_command_is_recorded_in_words() -> None:
    """The activity had empty commands: "$", then "ok"."""
    core = StateHolder(LocalHost())
    left = SettingCommand(0, "GPU-0", "power_limit_w", ())
    control = SimpleNamespace(
        _core=core,
        alterations=SimpleNamespace(read_altered_settings=_nothing),
        _telemetry=SimpleNamespace(refresh_gpu_readings=_nothing),
    )
    report = SettingsReport((SettingOutcome(left, ok=True),))
    asyncio.run(GpuControl._record_change_report(control, report))  # type: ignore[arg-type]
    (done,) = core.state.activity
    assert done.command == "# GPU0 power limit: no command was needed"

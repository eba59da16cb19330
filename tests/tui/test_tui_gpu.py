"""GPU settings by keys: the form, the processes on the GPUs, rights and passwords, trial, guard,
proof, leaving."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from typing import Any

import pytest
from support.fake_canned import guard
from support.fake_session import FakeSession

from workbench.model.errors import InputError, SettingsError
from workbench.model.setting_records import (
    InForce,
    Recovery,
    SettingCommand,
    SettingOutcome,
    SettingsReport,
)
from workbench.model.settings import DEFAULT, ClockRange, GpuSettings
from workbench.session.state import APPLYING_SETTINGS, QualityView
from workbench.tui.modals.gpu_confirm import (
    setting_command_rows,
    setting_note_rows,
    settings_report_rows,
)
from workbench.tui.modals.gpu_settings import parse_settings_form, settings_suggestion_from_entries

EMPTY = {
    "gpu": "all",
    "power-limit": "",
    "gpu-clocks": "",
    "memory-clocks": "",
    "persistence": "",
    "governor": "",
    "c-states": "",
    "trial": "",
}


def names(session: FakeSession) -> list[str]:
    return [c[0] for c in session.calls if c[0] != "open"]


def test_the_commands_are_shown_before_they_run(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        await d.press("g", *"500", "enter")
        await d.until(lambda: "nvidia-smi -i GPU-0000 -pl 500" in d.text)
        assert "GPU0  RTX PRO 6000" in d.text
        assert (
            "991 python3 train.py: not started by Workbench"
        ) in d.text and "Other programs use these" in d.text
        assert not d.session.called("apply_gpu")
        await d.press("enter")
        await d.until(lambda: d.session.called("apply_gpu"))
        assert d.session.called("apply_gpu")[0][1:] == (
            GpuSettings(power_limit_w=500.0),
            None,
            None,
            None,
        )
        await d.until(lambda: "GPU altered" in d.row(0))
        await d.press("r", "enter")
        await d.until(lambda: d.session.called("revert_gpu"))
        await d.until(lambda: "GPU altered" not in d.row(0))

    drive(scenario, stage="ready")


def test_the_footer_has_no_keys_that_would_be_typed_into_a_form(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        assert "q Quit" in d.row(-1)
        await d.press("g")
        await d.until(lambda: "power limit" in d.text and d.row(-1) == "")
        await d.press("escape")
        await d.until(lambda: "q Quit" in d.row(-1))

    drive(scenario, stage="ready")


@pytest.mark.parametrize(
    ("typed", "wrong"),
    [
        ({"power-limit": "lots"}, "power limit: 'lots' is not valid, expected watts"),
        ({"gpu": "4"}, "GPU: expected “all” or a number 0..3"),
        ({"gpu-clocks": "3000,210"}, "expected a range whose minimum is not above its maximum"),
        ({"persistence": "yes"}, "expected on or off"),
        ({"power-limit": "400", "trial": "-1"}, "trial: expected a number above 0, got “-1”"),
        ({"trial": "60"}, "no setting is given"),
    ],
)
def test_an_invalid_field_is_named(typed: dict[str, str], wrong: str) -> None:
    with pytest.raises(InputError, match=re.escape(wrong)):
        parse_settings_form({**EMPTY, **typed}, 4)


def test_all_fields_become_settings() -> None:
    typed = {
        "gpu": "2",
        "power-limit": "450 W",
        "gpu-clocks": "210-1755",
        "memory-clocks": "reset",
        "persistence": "on",
        "governor": "performance",
        "c-states": "off",
        "trial": "60s",
    }
    wanted = parse_settings_form({**EMPTY, **typed}, 4)
    assert wanted.settings == GpuSettings(
        persistence=True,
        power_limit_w=450.0,
        gpu_clocks=ClockRange(210, 1755),
        memory_clocks=DEFAULT,
        governor="performance",
        c_states="off",
    )
    assert (wanted.gpu, wanted.trial_s) == (2, 60.0)


def test_the_preset_fills_the_form_and_applies_nothing(drive: Any) -> None:
    session = FakeSession(4)
    less_heat = GpuSettings(power_limit_w=450, gpu_clocks=ClockRange(3000, 3090))
    session.carried = (
        ("0", GpuSettings(persistence=True), "other"),
        ("all", less_heat, "less heat"),
    )

    async def scenario(d: Any) -> None:
        await d.session.plans.load_preset("qwen3-vl-2b-dp4")
        await d.press("g")
        assert "Filled in from qwen3-vl-2b-dp4: less heat" in d.text
        assert re.search(r"power limit W +450 +600 W +300\.\.600 W", d.text), d.text
        assert "3000-3090" in d.text and not d.session.called("plan_gpu")
        await d.press("ctrl+l", "enter")
        assert "no setting is given" in d.text
        await d.press("escape")
        assert names(d.session) == ["load_preset"]

    drive(scenario, session=session)


def test_a_suggestion_is_as_one_would_type_it() -> None:
    found = settings_suggestion_from_entries(
        [("1", GpuSettings(gpu_clocks=DEFAULT, memory_clocks=ClockRange(9, 9)), "why")], "p"
    )
    assert found is not None and found.values["gpu"] == "1"
    assert (
        found.values["gpu-clocks"],
        found.values["memory-clocks"],
        found.values["power-limit"],
    ) == (
        "reset",
        "9",
        "",
    )
    assert settings_suggestion_from_entries([], "p") is None


def test_now_allowed_and_before_follow_the_gpu_that_is_chosen(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        telemetry = d.session.telemetry()
        gpus = tuple(replace(s, power_limit_w=300.0 + 100 * s.index) for s in telemetry.gpus)
        d.session.push(telemetry=replace(telemetry, gpus=gpus, t_s=telemetry.t_s + 1))
        await d.press("g")
        assert "300-400 W" in d.text
        await d.press("1")
        assert "400 W" in d.text and "300-400 W" not in d.text

    drive(scenario, gpus=2)


def test_without_the_right_cancel_is_chosen_and_the_line_for_sudoers_is_shown(drive: Any) -> None:
    session = FakeSession()
    session.right = (
        "needs root; this line allows it: me ALL=(root) NOPASSWD: "
        "/usr/bin/nvidia-smi -i GPU-0000 -pl 500"
    )

    async def scenario(d: Any) -> None:
        await d.press("g", *"500", "enter")
        await d.until(lambda: "NOPASSWD: /usr/bin/nvidia-smi" in d.text)
        await d.press("enter")
        assert not d.session.called("apply_gpu") and d.app.screen is d.app.main

    drive(scenario, session=session)


@pytest.mark.slow
def test_a_password_is_dots_goes_to_the_session_and_stays_nowhere(drive: Any) -> None:
    session = FakeSession()
    session.right = "needs root"
    session.state = replace(session.state, host=replace(session.state.host, sudo_password=True))

    async def scenario(d: Any) -> None:
        await d.press("g", *"500", "enter")
        await d.until(lambda: "sudo password" in d.text)
        await d.press(*"s3cret")
        assert "s3cret" not in d.text and "••••••" in d.text
        modal = d.app.screen
        await d.press("enter")
        await d.until(lambda: d.session.called("apply_gpu"))
        assert d.session.called("apply_gpu")[0][4] == "s3cret" and modal.field.value == ""
        await d.press("r")
        await d.until(lambda: "Revert GPU settings" in d.text)
        await d.press(*"s3cret", "enter")
        await d.until(lambda: d.session.called("revert_gpu"))
        assert d.session.called("revert_gpu")[0][2] == "s3cret"

    drive(scenario, session=session)


def test_a_page_lists_failed_reverted_and_unchecked_settings(drive: Any) -> None:
    def outcome(setting: str, ok: bool, message: str = "", **more: Any) -> SettingOutcome:
        command = SettingCommand(0, "GPU-0000", setting, ("nvidia-smi",))
        return SettingOutcome(command, ok, message=message, **more)

    async def scenario(d: Any) -> None:
        kept = outcome(
            "gpu_clocks",
            True,
            before="unknown (someone else's lock)",
            requested=ClockRange(3000, 3090),
            in_force=InForce.NOT_CHECKED,
        )
        failed = outcome(
            "power_limit_w", False, "not supported", before=600.0, requested=900.0, read_back=600.0
        )
        report = SettingsReport((kept, failed), "journal.json", rolled_back=(kept,), guard=guard())
        d.app.main.controllers.gpu.show_settings_report("GPU settings", report)
        await d.pilot.pause()
        said = (
            "? not checked",
            "x failed",
            "not supported",
            "3000-3090 MHz",
            "unknown (someone",
            "Reverted, because",
        )
        for words in (
            *said,
            "press V to put load on the GPU",
            "reverts the settings if Workbench is silent for 60 s",
            "journal.json",
        ):
            assert words in d.text, words

    drive(scenario, stage="ready")


def test_a_page_says_what_was_kept_of_a_damaged_journal() -> None:
    recovery = Recovery("the journal was damaged (x)", ("GPU1 kept",), "there.damaged", True)
    rows = settings_report_rows(SettingsReport(recovery=recovery), 60)
    text = " ".join(part[0].strip() for row in rows for part in row)
    assert "which has 1 setting (GPU1 kept); the damaged file is there.damaged" in text


@pytest.mark.slow
def test_a_trial_counts_down_and_is_kept_with_one_key(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        await d.press("g", *"500", *["down"] * 6, "6", "0", "enter")
        await d.until(lambda: "On trial for 60 s" in d.text)
        await d.press("enter")
        await d.until(lambda: d.session.called("apply_gpu"))
        assert d.session.called("apply_gpu")[0][3] == 60.0
        await d.until(lambda: re.search(r"▲ GPU trial (1m00s|5\d s) \(T keeps", d.row(0)))
        await d.press("T")
        await d.until(lambda: d.session.called("confirm_gpu"))
        await d.until(lambda: "GPU altered" in d.row(0) and "trial" not in d.row(0))
        await d.press("T")
        assert "no GPU setting is on trial" in d.text

    drive(scenario, stage="ready")


def test_a_missing_guard_and_the_guards_last_action_are_shown(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        d.session.push(guard=guard(running=False, problem="python3 is not on the host"))
        await d.until(lambda: "! no guard" in d.row(0))
        await d.press("6")
        assert "! no guard: python3 is not on the host" in d.text
        d.session.push(
            guard=guard(
                running=True, problem="temperatures are not watched", note="GPU0 power_limit_w kept"
            )
        )
        await d.until(lambda: "! guard: a problem" in d.row(0))
        assert "no guard" not in d.text and "! guard: temperatures are not watched" in d.text
        assert "! guard: GPU0 power_limit_w kept" in d.text
        d.session.push(
            guard=guard(running=False, did="reverted: no heartbeat for 60 s", did_unix_s=1.0)
        )
        # the session's notice is told once
        await d.until(lambda: d.text.count("reverted: no heartbeat for 60 s") == 1)

    drive(scenario, stage="altered")


def test_verify_counts_the_seconds_and_shows_the_findings(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        await d.press("V")
        await d.until(lambda: "What the load showed" in d.text)
        assert "▲ GPU0 SM lock: no effect: requested 3000-3090 MHz, observed 2790 MHz" in d.text
        assert d.session.called("verify_gpu") == [("verify_gpu", 8.0)]
        await d.press("r")
        await d.until(lambda: d.session.called("revert_gpu"))

    drive(scenario, stage="altered")


def test_a_page_of_proof_loses_its_keys_with_the_settings(drive: Any) -> None:
    """The page still offered r and V after its settings were reverted."""

    async def scenario(d: Any) -> None:
        await d.press("V")
        await d.until(lambda: " esc Close  r Revert  V Again" in d.text)
        d.session.push(alterations=(), guard=None)
        await d.until(
            lambda: " esc Close" in d.text and "r Revert" not in d.text and "V Again" not in d.text
        )
        await d.press("r")
        assert "What the load showed" in d.text and not d.session.called("revert_gpu")

    drive(scenario, stage="altered")


def test_a_failed_verify_stops_counting(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        d.session.fail["verify_gpu"] = SettingsError("the server died")
        await d.press("V")
        await d.until(lambda: "the server died" in d.text)
        d.app.main.services.remove_expired_message()
        assert "checking under load" not in d.text

    drive(scenario, stage="altered")


def test_there_is_nothing_to_verify_without_a_change_or_a_server(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        await d.press("V")
        assert "there is nothing to check" in d.text and not d.session.called("verify_gpu")

    drive(scenario, stage="ready")


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("r", "nothing is reverted yet"),
        ("T", "nothing is kept yet"),
        ("V", "nothing is checked yet"),
        ("L", "nothing is left on yet"),
    ],
)
@pytest.mark.ci_cases(1)
def test_a_key_during_a_change_does_not_say_that_nothing_is_altered(
    drive: Any, key: str, said: str
) -> None:
    """`r` said so while a power limit was being set, and the limit stayed."""

    async def scenario(d: Any) -> None:
        d.session.push(busy=("applying GPU settings",))
        await d.press("6", key)
        await d.until(lambda: f"{said}: Workbench is applying GPU settings" in d.text)
        assert f"press {key} again when that has ended" in d.text
        d.session.push(busy=())
        await d.press(key)
        await d.until(lambda: "no GPU setting is" in d.text)

    drive(scenario, stage="ready")


def test_a_change_is_under_way_from_the_consent_on(drive: Any) -> None:
    """Before the first command, the rights are looked up."""
    ends = asyncio.Event()

    class Slow(FakeSession):
        async def apply_gpu(self, *values: Any, dry_run: bool = False, **more: Any) -> Any:
            if dry_run:
                return await super().apply_gpu(*values, dry_run=dry_run, **more)
            self.push(busy=(APPLYING_SETTINGS,))
            await ends.wait()
            report = await super().apply_gpu(*values, **more)
            self.push(busy=())
            return report

    async def scenario(d: Any) -> None:
        await d.press("g", *"500", "enter")
        await d.until(lambda: "nvidia-smi -i GPU-0000 -pl 500" in d.text)
        await d.press("enter", "r")
        await d.until(lambda: "nothing is reverted yet" in d.text)
        ends.set()
        await d.until(lambda: "GPU altered" in d.row(0))
        await d.press("r")
        await d.until(lambda: d.session.called("revert_gpu"))

    drive(scenario, stage="ready", session=Slow())


def test_leaving_on_is_deliberate(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        await d.press("6", "L", "enter")
        assert not d.session.called("keep_gpu")
        await d.press("L", "y")
        await d.until(lambda: d.session.called("keep_gpu"))

    drive(scenario, stage="altered")


def test_quitting_leaves_servers_and_reverts_gpus(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        await d.press("q")
        assert "[leave running]" in d.text and "[revert]" in d.text
        await d.press("enter")
        await d.until(lambda: not d.app.is_running)
        assert "revert_gpu" in names(d.session) and not {"stop", "keep_gpu"} & set(names(d.session))

    drive(scenario, stage="altered")


def test_quitting_can_stop_the_server_and_leave_the_gpus_as_they_are(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        await d.press("q", "right", "down", "right", "enter")
        await d.until(lambda: not d.app.is_running)
        assert {"stop", "keep_gpu"} <= set(names(d.session)) and "revert_gpu" not in names(
            d.session
        )

    drive(scenario, stage="altered")


def test_an_error_while_leaving_settings_on_keeps_the_screen_open(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        d.session.fail["keep_gpu"] = SettingsError("the guard does not answer")
        await d.press("q", "right", "enter")
        await d.until(lambda: "the guard does not answer" in d.text)
        assert d.app.is_running

    drive(scenario, stage="altered")


def test_a_change_during_an_own_measurement_warns_and_cancel_is_chosen(drive: Any) -> None:
    """Only the revert, and only a benchmark, warned: a power limit in the middle of a comparison of
    answers changed the GPUs with one enter."""

    async def scenario(d: Any) -> None:
        d.session.push(quality=QualityView("A", "B"))
        await d.press("g", *"500", "enter")
        await d.until(lambda: "A running comparison of answers is disturbed" in d.text)
        await d.press("enter")
        await d.until(lambda: len(d.app.screen_stack) == 1)
        assert not d.session.called("apply_gpu")

    drive(scenario, stage="ready")


def test_revert_is_one_key(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        await d.press("r")
        await d.until(lambda: d.session.called("revert_gpu"))
        await d.until(lambda: "Reverted: GPU0: " in d.text)

    drive(scenario, stage="altered")


def test_revert_asks_about_a_setting_that_another_user_has_set_since(drive: Any) -> None:
    """It left the setting alone and said to press r, which did the same."""

    class Replaced(FakeSession):
        async def revert_gpu(self, *_: Any, foreign: str | None = None, **given: Any) -> Any:
            self.calls.append(("revert_gpu", foreign))
            command = SettingCommand(0, "GPU-0000", "power_limit_w", ())
            said = "left alone: it is 180 W, set by bob with Workbench; its revert sets 250 W"
            left = SettingOutcome(command, True, message=said, left_to="" if foreign else "bob")
            return SettingsReport((left,), "journal.json")

    async def scenario(d: Any) -> None:
        await d.press("r")
        await d.until(lambda: "Someone else has changed these settings" in d.text)
        assert "set by bob" in d.text
        await d.press("down", "enter")
        await d.until(lambda: d.session.called("revert_gpu")[-1][-1] == "ours")

    drive(scenario, stage="altered", session=Replaced())


def test_settings_can_be_changed_when_the_processes_are_not_known(drive: Any) -> None:
    class Poor(FakeSession):
        async def gpu_processes(self) -> Any:
            raise SettingsError("cannot list the processes of the GPUs")

    async def scenario(d: Any) -> None:
        await d.press("g", *"500", "enter")
        await d.until(lambda: "the processes on these GPUs are not known" in d.text)
        await d.press("enter")
        await d.until(lambda: d.session.called("apply_gpu"))

    drive(scenario, stage="ready", session=Poor())


def test_a_missing_right_is_shown_once() -> None:
    right = "needs root (ada is not, and sudo asks for a password); the file allows it"
    command = SettingCommand(
        0, "GPU-a", "power_limit_w", ("sudo", "-n", "/usr/bin/nvidia-smi"), right, 400.0
    )
    planned = [
        SettingOutcome(
            command, False, 600.0, 400.0, None, InForce.NOT_CHECKED, f"{right}; it is volatile"
        )
    ]
    rows = [
        *setting_command_rows([command], 200, has_sudo_password=True),
        *setting_note_rows(planned, 200),
    ]
    text = "\n".join("".join(part for part, _ in row) for row in rows)
    assert (
        text.count("needs root") == 1
        and text.count("the file allows it") == 1
        and "it is volatile" in text
    )

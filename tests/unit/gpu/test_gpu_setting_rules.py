"""The small numbers in the rules of GPU settings: what counts as equal, as capped and as lost."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from workbench.gpu.settings import current_values
from workbench.gpu.settings.apply import _new_journal_entry
from workbench.gpu.settings.command_runner import CommandRun
from workbench.gpu.settings.current_values import CoreSettings, CurrentValues
from workbench.gpu.settings.journal import Journal
from workbench.gpu.settings.outcomes import (
    command_surely_changed_nothing,
    outcome_of_change,
    outcome_of_revert_command,
)
from workbench.gpu.telemetry.agent_messages import AgentMessageDecoder
from workbench.hosts.base import Host
from workbench.hosts.local import LocalHost
from workbench.model import setting_commands
from workbench.model.gpu import GpuInfo, GpuSample, HostSample, Telemetry
from workbench.model.setting_commands import RELOADED, WATTS_EQUAL
from workbench.model.setting_records import InForce, SettingCommand, SettingOutcome
from workbench.model.settings import HOST, HOST_INDEX

GPU = "GPU-00000000-0000-4000-8000-000000000000"
LIMIT_W = 450.0


def values(enforced_w: float | None) -> CurrentValues:
    sample = GpuSample(0, GPU, power_limit_w=LIMIT_W, power_limit_enforced_w=enforced_w)
    info = GpuInfo(0, GPU, "RTX")
    reading = Telemetry(1.0, 1.0, AgentMessageDecoder().driver, HostSample(), (info,), (sample,))
    return CurrentValues(reading, CoreSettings())


@pytest.mark.parametrize(
    ("enforced_w", "in_force"),
    [
        (None, InForce.YES),
        (LIMIT_W, InForce.YES),
        (LIMIT_W - WATTS_EQUAL / 2, InForce.YES),  # drivers round a power limit
        (LIMIT_W - WATTS_EQUAL, InForce.YES),
        (LIMIT_W - 2 * WATTS_EQUAL, InForce.CAPPED),
        (LIMIT_W + 100, InForce.YES),
    ],
)
def test_a_limit_that_the_driver_rounds_is_not_capped(
    enforced_w: float | None, in_force: InForce
) -> None:
    command = SettingCommand(0, GPU, "power_limit_w", (), value=LIMIT_W)
    now = values(enforced_w)
    found = outcome_of_change(command, (600.0, "read"), CommandRun(None), now, now)
    assert (found.ok, found.in_force) == (True, in_force)


@pytest.mark.parametrize(
    ("energy_j", "why"),
    [
        (1000.0, None),
        (999.0, None),  # a counter that goes back a little, as some drivers' do
        (500.0, None),
        (499.0, RELOADED),
        (0.0, RELOADED),
        (None, None),
    ],
)
def test_an_energy_counter_below_half_shows_a_reload(
    energy_j: float | None, why: str | None
) -> None:
    entry = {"boot_id": "b", "energy_j": 1000.0}
    assert setting_commands.why_setting_has_no_effect(entry, "b", energy_j) == why
    assert (
        setting_commands.why_setting_has_no_effect(entry, "c", energy_j) == "the host was restarted"
    )
    # the number of the driver's load decides where it is known
    assert (
        setting_commands.why_setting_has_no_effect(
            {**entry, "driver_start": "7"}, "b", energy_j, "7"
        )
        is None
    )
    assert (
        setting_commands.why_setting_has_no_effect({**entry, "driver_start": "7"}, "b", 1000.0, "9")
        == RELOADED
    )
    # an older Workbench did not note it, or it cannot be read now
    assert setting_commands.why_setting_has_no_effect(entry, "b", energy_j, "7") == why
    assert (
        setting_commands.why_setting_has_no_effect({**entry, "driver_start": "7"}, "b", energy_j)
        == why
    )


@pytest.mark.parametrize("text", ["nan", "inf", "-1", "1e999", "9" * 400, "1_0", "[N/A]", ""])
def test_an_impossible_answer_about_a_power_limit_is_none(text: str) -> None:
    """The guard and the settings read nvidia-smi's answer with this."""
    limit = setting_commands.SETTINGS["power_limit_w"]
    assert limit.parse_answer(text) is None
    assert limit.parse_answer(" 450.50 ") == 450.5


@pytest.mark.parametrize(
    ("ran", "read_back", "unchanged"),
    [
        (CommandRun("refused"), 400.0, True),
        (CommandRun(), 350.0, False),  # neither the old value nor the one that was asked for
        (CommandRun("refused"), None, False),
        (CommandRun("no answer", unsure=True), 400.0, False),
        (None, None, True),
    ],
)
def test_only_a_command_that_surely_changed_nothing_is_not_rolled_back(
    ran: CommandRun | None, read_back: float | None, unchanged: bool
) -> None:
    command = SettingCommand(0, GPU, "power_limit_w", ("nvidia-smi",), value=300.0)
    outcome = SettingOutcome(command, False, 400.0, 300.0, read_back)
    assert command_surely_changed_nothing(outcome, ran) is unchanged


def test_a_reload_of_the_driver_concerns_the_settings_of_gpus_only() -> None:
    state = Journal("boot", driver_start="7")
    limit = SettingCommand(0, GPU, "power_limit_w", ("nvidia-smi",), value=300.0)
    governor = SettingCommand(HOST_INDEX, HOST, "governor", ("tee",), value="performance")
    assert _new_journal_entry(limit, (LIMIT_W, "read"), state, values(None)).driver_start == "7"
    assert (
        _new_journal_entry(governor, ("powersave", "read"), state, values(None)).driver_start
        is None
    )


def test_a_revert_whose_values_cannot_be_read_says_how_to_do_it_by_hand() -> None:
    limit = SettingCommand(0, GPU, "power_limit_w", ("nvidia-smi",), value=LIMIT_W)
    entry = _new_journal_entry(limit, (LIMIT_W, "read"), Journal("boot"), values(None))
    said = outcome_of_revert_command(
        entry, limit, CommandRun("the link is lost", unsure=True), None
    )
    assert not said.ok and said.in_force is InForce.NOT_CHECKED
    assert "By hand: " in said.message and "450" in said.message


def test_a_revert_that_could_not_be_read_back_is_not_said_to_have_no_effect() -> None:
    """A link that fell silent after the command: "no effect, the driver reports nothing"."""
    limit = SettingCommand(0, GPU, "power_limit_w", ("nvidia-smi",), value=LIMIT_W)
    entry = _new_journal_entry(limit, (LIMIT_W, "read"), Journal("boot"), values(None))
    said = outcome_of_revert_command(entry, limit, CommandRun(None), None)
    assert not said.ok and said.in_force is InForce.NOT_CHECKED
    assert "cannot be read back now" in said.message and "driver reports" not in said.message
    assert "it stays in the journal" in said.message


@pytest.mark.parametrize(("empty", "read_w"), [(0, LIMIT_W), (1, LIMIT_W), (2, None)])
def test_a_driver_that_did_not_answer_after_a_change_is_asked_once_more(
    monkeypatch: pytest.MonkeyPatch, empty: int, read_w: float | None
) -> None:
    """A busy host read nothing back, and the final of a tune failed: "the driver reports nothing"."""
    whole = values(None).telemetry
    readings = [replace(whole, infos=(), gpus=())] * empty + [whole]

    async def read_telemetry_once(host: Host) -> Telemetry:
        return readings.pop(0)

    monkeypatch.setattr(current_values, "read_telemetry_once", read_telemetry_once)
    found = asyncio.run(current_values.read_values_after_change(LocalHost(), {"power_limit_w"}))
    assert found is not None and found.value(GPU, "power_limit_w") == read_w

"""The table of settings: every entry has its texts, its option and its part in the programs sent to
hosts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.cli.parser import parse_command_line
from workbench.gpu import remote_programs
from workbench.gpu.settings import claims
from workbench.gpu.settings.alterations import find_drifts
from workbench.hosts.python_programs import PythonProgram
from workbench.model import setting_commands
from workbench.model.errors import InputError
from workbench.model.gpu import DriverInfo, GpuInfo, GpuSample, HostSample, Telemetry
from workbench.model.preset import GpuSettingsEntry
from workbench.model.setting_records import Alteration
from workbench.model.settings import (
    DEFAULT,
    GPU_CLOCKS,
    HOST,
    HOST_INDEX,
    LOCKS,
    POWER_LIMIT,
    SETTINGS,
    UNKNOWN,
    ClockRange,
    GpuSettings,
    Setting,
    parse_setting_argument,
    parse_stored_value,
    setting_of,
    value_to_store,
)
from workbench.tui.modals.gpu_settings import parse_settings_form as parse_form

VALUES: dict[str, tuple[Any, ...]] = {
    "power_limit_w": (250.0, 412.5),
    "gpu_clocks": (ClockRange(210, 2400), ClockRange(1500, 1500), DEFAULT, UNKNOWN),
    "memory_clocks": (ClockRange(405, 14001), DEFAULT, UNKNOWN),
    "persistence": (True, False),
    "governor": ("performance",),
    "c_states": ("off", "on"),
}
CARD = GpuInfo(0, "GPU-a", "X", power_min_w=300.0, power_max_w=600.0)
each = pytest.mark.parametrize("setting", SETTINGS, ids=[s.name for s in SETTINGS])
LIVE = Telemetry(
    0.0, 0.0, DriverInfo(), HostSample(), (GpuInfo(0, "GPU-a", "X"),), (GpuSample(0, "GPU-a"),)
)


def test_both_tables_have_the_same_settings() -> None:
    assert {s.key for s in SETTINGS} == set(setting_commands.SETTINGS) == set(VALUES)
    assert {s.key for s in LOCKS} == set(setting_commands.LOCKS)


@each
def test_both_tables_agree_about_a_setting(setting: Setting) -> None:
    sent = setting_commands.SETTINGS[setting.key]
    assert sent.label == setting.label and sent.readable == (setting.reading is not None)
    for value in (*VALUES[setting.key], setting.parse(setting.example)):
        kept = value_to_store(value)
        assert json.loads(json.dumps(kept)) == kept and setting.from_stored(kept) == value
        assert sent.is_valid(kept), "a journal with this value is one that Workbench wrote"
        assert sent.format(kept) == sent.format(value) == setting.format(value)
        assert (
            sent.values_equal(kept, kept)
            and sent.values_equal(value, kept)
            and sent.values_equal(value, value)
        )
        assert setting_commands.value_to_restore(value) == (DEFAULT if value == UNKNOWN else value)
        if value != UNKNOWN:
            steps = [
                setting_commands.commands_to_set_value("GPU-a", setting.key, v, cores={0: 2})
                for v in (kept, value)
            ]
            assert [s.argv for s in steps[0]] == [s.argv for s in steps[1]] and steps[0][0].argv


@each
def test_a_value_is_typed_as_it_is_shown(setting: Setting) -> None:
    for value in VALUES[setting.key]:
        if value != UNKNOWN:
            assert setting.parse(setting.input_text(value)) == value
            assert setting.parse(setting.format(value)) == value


@each
def test_one_name_for_the_option_the_word_the_form_and_the_key(setting: Setting) -> None:
    assert setting.key.startswith(setting.name.replace("-", "_"))
    assert setting.name.replace("-", " ") in setting.label.lower().replace("-", " ")
    value = VALUES[setting.key][0]
    text = setting.input_text(value)
    assert (
        getattr(parse_command_line(["gpu", "set", f"--{setting.name}", text]), setting.key) == text
    )
    assert parse_setting_argument(f"{setting.name}={text}") == GpuSettings({setting.key: value})
    form = parse_form({setting.name: text}, 1)
    assert not isinstance(form, str) and form.settings == GpuSettings({setting.key: value})
    data = {
        setting.preset_field: [value.min_mhz, value.max_mhz]
        if isinstance(value, ClockRange)
        else value
    }
    assert GpuSettingsEntry.model_validate(data).settings == GpuSettings({setting.key: value})


@pytest.mark.parametrize("text", ["210,2400", "210-2400", " 210 - 2400 MHz", "210, 2400 mhz"])
def test_every_spelling_of_a_range_is_one_value(text: str) -> None:
    assert GPU_CLOCKS.parse(text) == ClockRange(210, 2400)


@pytest.mark.parametrize("text", ["", "2400-210", "1-2-3", "-5", "1e3", "999999", "²", "MHz"])
def test_other_texts_are_no_range(text: str) -> None:
    with pytest.raises(InputError, match="GPU clocks: ") as error:
        GPU_CLOCKS.parse(text)
    assert error.value.next_step


@given(st.text(max_size=12))
def test_a_power_limit_is_a_number_above_0_or_an_error(text: str) -> None:
    try:
        assert 0 < POWER_LIMIT.parse(text) < POWER_LIMIT.most
    except InputError as error:
        assert error.message.startswith("power limit: ")


def test_a_number_can_be_reset_if_its_entry_names_an_option_for_that() -> None:
    resettable = replace(POWER_LIMIT, reset_name="reset-power-limit")
    assert resettable.parse(" Reset ") == resettable.from_stored("default") == DEFAULT
    assert resettable.input_text(DEFAULT) == "reset" and resettable.parse("400 W") == 400.0
    assert (resettable.allowed_values_text([CARD]), POWER_LIMIT.allowed_values_text([CARD])) == (
        "300..600 W, reset",
        "300..600 W",
    )
    for reject in (POWER_LIMIT.parse, POWER_LIMIT.from_stored):
        with pytest.raises((InputError, TypeError)):
            reject("default")


def test_settings_of_older_experiments_are_read() -> None:
    older = {
        "persistence": None,
        "power_limit_w": 400.0,
        "gpu_clocks": {"min_mhz": 210, "max_mhz": 2400},
        "memory_clocks": None,
        "reset_gpu_clocks": False,
        "reset_memory_clocks": True,
        "fan": 3,
    }
    found = GpuSettings.from_json(older)
    assert found == {
        "power_limit_w": 400.0,
        "gpu_clocks": ClockRange(210, 2400),
        "memory_clocks": DEFAULT,
    }


def test_governors_that_differ_are_drift_and_not_a_defect() -> None:
    """The agent counts governors that differ between cores."""
    one = Alteration(HOST_INDEX, HOST, "governor", "powersave", "performance", 0.0)
    mixed = HostSample(cpu_governor="mixed: powersave 30, performance 2")
    (drift,) = find_drifts(
        [one], [], Telemetry(0.0, 0.0, DriverInfo(), mixed, LIVE.infos, LIVE.gpus)
    )
    assert "now mixed: powersave 30, performance 2" in drift.text


def test_claims_compare_typed_and_stored_values() -> None:
    for key, values in VALUES.items():
        entry = {"gpu_uuid": "GPU-a", "setting": key, "since_unix_s": 1.0, "state": "applied"}
        for value in values:
            for form in (value, value_to_store(value)):
                way = claims.decide_revert({**entry, "before": form, "now": values[0]}, value, [])
                assert value_to_store(way.value) in (
                    value_to_store(value),
                    value_to_store(values[0]),
                )
                assert parse_stored_value(key, value_to_store(form)) == value and setting_of(
                    key
                ).format(value)


@pytest.mark.parametrize(
    "program", [p for p in vars(remote_programs).values() if isinstance(p, PythonProgram)]
)
def test_the_modules_of_every_program_exist(program: PythonProgram) -> None:
    here = Path(remote_programs.__file__).parents[1]
    assert all((here / f"{module.replace('.', '/')}.py").is_file() for module in program.modules)
    assert len(program.stdin_frame(False)) > 1000


def test_limits_of_different_gpus_without_a_common_value_are_no_range() -> None:
    one, other = (
        GpuInfo(index=n, uuid=f"GPU-{n}", name="x", power_min_w=low, power_max_w=high)
        for n, (low, high) in enumerate(((200.0, 300.0), (100.0, 180.0)))
    )
    assert POWER_LIMIT.allowed_values_text((one, other)) == "no common value: choose one GPU"
    assert POWER_LIMIT.allowed_values_text((one,)) == "200..300 W"

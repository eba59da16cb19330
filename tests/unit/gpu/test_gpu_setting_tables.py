"""The two tables of GPU settings agree: the session's, and the smaller one that is sent to the host."""

from __future__ import annotations

import pytest

from workbench.gpu.settings import remote_settings
from workbench.model.settings import SETTINGS, Setting, stored


def test_both_tables_have_the_same_settings() -> None:
    assert {setting.key for setting in SETTINGS} == set(remote_settings.SETTINGS)


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_both_tables_treat_a_value_alike(setting: Setting) -> None:
    remote, value = remote_settings.SETTINGS[setting.key], setting.parse(setting.example)
    assert remote.readable == (setting.reading is not None)
    assert remote.valid(stored(value)) and remote.equal(stored(value), value)
    assert remote.format(stored(value)) == setting.format(value) == remote.format(value)
    assert setting.from_stored(stored(value)) == value

"""A journal that somebody else wrote: what becomes a word of a command, and what does not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.gpu.settings import journal
from workbench.model import setting_commands
from workbench.model.errors import SettingsError
from workbench.model.settings import ClockRange

UUID = "GPU-00000000-0000-4000-8000-000000000000"


def entry(**changes: Any) -> dict[str, Any]:
    made = {
        "gpu_uuid": UUID,
        "gpu_index": 0,
        "gpu_name": "x",
        "setting": "power_limit_w",
        "before": 600.0,
        "before_known": "read",
        "now": 450.0,
        "since_unix_s": 1.0,
        "boot_id": "boot-1",
        "driver": None,
        "who": "ada@box",
        "owner": {"machine": "box", "boot_id": "boot-1", "pid": 7, "start": "1"},
    }
    return {**made, **changes}


HOSTILE: dict[str, dict[str, Any]] = {
    "setting": {"setting": "--gom=0"},
    "uuid is an option": {"gpu_uuid": "--help"},
    "uuid is a path": {"gpu_uuid": "../../etc"},
    "words in watts": {"before": "600; touch /pwned"},
    "no number": {"before": float("nan")},
    "true watts": {"before": True},
    "clocks in other digits": {"setting": "gpu_clocks", "before": "\uff11,\uff12"},
    "clocks": {"setting": "gpu_clocks", "before": "0,0 --gpu-reset"},
    "governor is a path": {"gpu_uuid": "host", "setting": "governor", "before": "../../x"},
    "cores are paths": {
        "gpu_uuid": "host",
        "setting": "governor",
        "before": "powersave=0/../../../../etc",
    },
    "endless cores": {
        "gpu_uuid": "host",
        "setting": "governor",
        "before": "powersave=0-99999999999",
    },
    "governor of a gpu": {"setting": "governor", "before": "powersave"},
    "owner is a path": {"owner": {"boot_id": "../../../etc", "pid": 1, "start": "1"}},
    "back": {
        "watch": {
            "heartbeat_s": 0.3,
            "back": {"now": "1 2", "state": "kept", "watch": {}, "owner": {}},
        }
    },
    "back without end": {"watch": {"heartbeat_s": 0.3, "back": {"now": 500.0, "state": "kept"}}},
    "seconds": {"watch": {"heartbeat_s": "0.3"}},
    "trial": {"watch": {"trial": ["a"], "trial_s": 0.1}},
    "index": {"gpu_index": "0"},
}


@pytest.mark.parametrize("changes", HOSTILE.values(), ids=HOSTILE)
def test_what_no_workbench_writes_is_damage(changes: dict[str, Any]) -> None:
    assert setting_commands.describe_invalid_part_of_entry(
        entry()
    ) is None and setting_commands.describe_invalid_part_of_entry(entry(**changes))
    text = json.dumps({"version": 1, "entries": [entry(), entry(**changes)], "log": []})
    with pytest.raises(
        SettingsError,
        match=r"contains a value that Workbench cannot have written.*nothing was "
        r"changed",
    ):
        journal.parse_journal(text, "boot-1")


BACK = {"now": 500.0, "state": "kept", "watch": {}, "owner": {"pid": 7}, "who": "ada@box"}


@pytest.mark.parametrize(
    "changes",
    [
        {"gpu_uuid": "MIG-00000000-0000-4000-8000-000000000000"},
        {"setting": "persistence", "before": False, "now": True},
        {"setting": "gpu_clocks", "before": "unknown", "now": str(ClockRange(1000, 2000))},
        {"setting": "memory_clocks", "before": "default", "now": str(ClockRange(14001, 14001))},
        {
            "setting": "governor",
            "gpu_uuid": "host",
            "gpu_index": -1,
            "before": "performance=0,2-3 schedutil=1",
            "now": "powersave",
        },
        {"watch": {"heartbeat_s": None}},
        {"watch": {"heartbeat_s": 30, "trial": "ab12", "trial_s": 60.0, "back": BACK}},
        {"watch": {"heartbeat_s": 30, "back": {**BACK, "watch": {"heartbeat_s": 5, "back": BACK}}}},
        {"owner": {"machine": "box", "boot_id": "", "pid": 7, "start": ""}},
    ],
)
def test_what_workbench_writes_is_not(changes: dict[str, Any]) -> None:
    text = json.dumps({"version": 1, "entries": [entry(**changes)], "log": []})
    assert (
        setting_commands.describe_invalid_part_of_entry(entry(**changes)) is None
        and len(journal.parse_journal(text, "boot-1").entries) == 1
    )


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
)
FIELDS = st.sampled_from(
    ["gpu_uuid", "gpu_index", "setting", "before", "now", "boot_id", "owner", "watch"]
)


@given(
    st.dictionaries(
        FIELDS,
        ANY | st.sampled_from([*setting_commands.SETTINGS, "default", "host", "1,2"]),
        max_size=4,
    )
)
def test_whatever_it_holds_commands_are_of_one_form(changes: dict[str, Any]) -> None:
    """And it is an answer, not an exception."""
    made = entry(**changes)
    if setting_commands.describe_invalid_part_of_entry(made) is None:
        for value in (made["before"], made["now"]):
            for step in setting_commands.commands_to_set_value(
                made["gpu_uuid"],
                made["setting"],
                setting_commands.value_to_restore(value),
                cores=(0, 1),
            ):
                words = " ".join(step.argv)
                assert (
                    words.isascii()
                    and all(c.isalnum() or c in " -_./=," for c in words)
                    and ".." not in words
                ), words
                assert step.stdin is None or step.stdin.strip().replace("_", "").isalpha()


@given(ANY)
def test_any_entry_is_judged(made: Any) -> None:
    assert setting_commands.describe_invalid_part_of_entry(made) is not None

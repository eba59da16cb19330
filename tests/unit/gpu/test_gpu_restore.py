"""The table of settings that is sent to hosts: commands, texts, and when a setting is reverted."""

from __future__ import annotations

import ast
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.model import core_values, named_tuple, setting_commands, untrusted_numbers

# What a host's loader has loaded before these modules, as {name: source}.
SENT_BEFORE = {
    f"workbench.model.{module.__name__.rpartition('.')[2]}": Path(module.__file__ or "").read_text()
    for module in (core_values, named_tuple, untrusted_numbers)
}
ALONE = """
import sys, types
package = sys.modules["workbench"] = types.ModuleType("workbench")
model = sys.modules["workbench.model"] = types.ModuleType("workbench.model")
for name, source in {sources!r}.items():
    module = sys.modules[name] = types.ModuleType(name)
    exec(source, module.__dict__)
    setattr(model, name.rpartition(".")[2], module)
exec(sys.argv[1], {{"__name__": "alone"}})
"""
NAMES = st.sampled_from(["performance", "powersave", "schedutil", "conservative"])


@pytest.mark.parametrize("module", [core_values, setting_commands])
def test_it_needs_nothing_but_an_old_python(module: ModuleType) -> None:
    source = Path(module.__file__ or "").read_text()
    tree = ast.parse(source, feature_version=(3, 8))
    assert not [n for n in ast.walk(tree) if isinstance(n, ast.Match)]
    alone = subprocess.run(
        [sys.executable, "-I", "-S", "-c", ALONE.format(sources=SENT_BEFORE), source],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert alone.returncode == 0, alone.stderr


@pytest.mark.parametrize(
    ("setting", "before", "typed"),
    [
        ("persistence", False, "sudo nvidia-smi -i GPU-a -pm 0"),
        ("power_limit_w", 450.25, "sudo nvidia-smi -i GPU-a -pl 450.25"),
        ("gpu_clocks", "1000,2000", "sudo nvidia-smi -i GPU-a --lock-gpu-clocks=1000,2000"),
        ("gpu_clocks", "default", "sudo nvidia-smi -i GPU-a --reset-gpu-clocks"),
        ("memory_clocks", "unknown", "sudo nvidia-smi -i GPU-a --reset-memory-clocks"),
        (
            "governor",
            "powersave",
            "echo powersave | sudo tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor",
        ),
    ],
)
def test_the_command_by_hand(setting: str, before: object, typed: str) -> None:
    assert setting_commands.shell_command_to_set("GPU-a", setting, before) == typed


def test_by_hand_the_cores_that_differed_differ_again(tmp_path: Path) -> None:
    """The text is for a shell: there it does what it says, sudo aside."""
    for cpu in range(3):
        (tmp_path / f"a b/devices/system/cpu/cpu{cpu}/cpufreq").mkdir(parents=True)
    for before in ("performance=0,2 powersave=1", "schedutil"):
        line = setting_commands.shell_command_to_set(
            "host", "governor", before, str(tmp_path / "a b")
        ).replace("sudo ", "")
        subprocess.run(["sh", "-c", line], check=True, stdout=subprocess.DEVNULL, timeout=30)
        files = sorted((tmp_path / "a b").rglob("scaling_governor"))
        now = {int(f.parent.parent.name[3:]): f.read_text().strip() for f in files}
        assert core_values.format_core_values(now) == before and len(now) == 3


@given(st.dictionaries(st.integers(0, 300), NAMES, min_size=1, max_size=40))
def test_governors_as_a_value_and_back(by_core: dict[int, str]) -> None:
    value = core_values.format_core_values(by_core)
    assert value is not None and setting_commands.value_equals("governor", value, value)
    made = setting_commands.commands_to_set_value(
        "host", "governor", value, cores=dict.fromkeys(by_core, 0)
    )
    written = {}
    for step in made:
        assert step.argv[0] == "tee" and step.stdin is not None
        for file in step.argv[1:]:
            written[int(file.split("/cpu/cpu")[1].split("/")[0])] = step.stdin.strip()
        # each part holds when the whole does
        assert setting_commands.value_equals("governor", value, step.value)
    assert written == by_core
    changed = {**by_core, min(by_core): "userspace"}
    assert not setting_commands.value_equals(
        "governor", core_values.format_core_values(changed), value
    )


@pytest.mark.parametrize(
    ("told", "value", "same"),
    [
        ("powersave", "powersave", True),
        ("powersave", "powersave=0-3", True),
        ("performance=0-1 powersave=2-3", "performance", False),
        ("performance=0-1 powersave=2-3", "performance=0-1", True),
        ("performance=0 powersave=2", "performance=0-1 powersave=2", True),  # core 1 is offline now
        (None, "powersave", False),
    ],
)
def test_when_governors_are_equal(told: str | None, value: str, same: bool) -> None:
    assert setting_commands.value_equals("governor", told, value) is same


def test_equal_values_of_gpus() -> None:
    assert setting_commands.value_equals(
        "power_limit_w", 449.8, 450
    ) and not setting_commands.value_equals("power_limit_w", 449.4, 450.0)
    assert setting_commands.value_equals(
        "persistence", True, True
    ) and not setting_commands.value_equals("persistence", 1, True)
    assert not setting_commands.value_equals("persistence", None, False)


@pytest.mark.parametrize(
    ("code", "said", "program", "why"),
    [
        (0, "All done.", "nvidia-smi", None),
        (
            0,
            "Changing … is not supported for GPU: 1.\nTreating as warning and moving on.\nAll "
            "done.",
            "nvidia-smi",
            "Changing … is not supported for GPU: 1. Treating as warning and moving on. All done.",
        ),
        (0, "Persistence mode is already Enabled for GPU 1.", "nvidia-smi", None),
        (15, "", "nvidia-smi", "nvidia-smi ended with 15"),
        (1, "tee: /sys/x: Invalid argument", "tee", "tee: /sys/x: Invalid argument"),
        (0, "failed is a word that tee may print", "tee", None),
    ],
)
def test_what_says_that_it_failed(code: int, said: str, program: str, why: str | None) -> None:
    assert setting_commands.why_command_failed(code, said, program) == why


@pytest.mark.parametrize(
    ("setting", "before", "told", "failed", "ok", "words"),
    [
        ("power_limit_w", 600.0, 600.0, None, True, "as it was before"),
        # it was done all the same
        ("power_limit_w", 600.0, 600.0, "the link was lost", True, "as it was before"),
        ("power_limit_w", 600.0, 450.0, None, False, "the driver reports 450 W, not 600 W"),
        ("power_limit_w", 600.0, None, None, False, "cannot be read back now"),
        ("gpu_clocks", "unknown", None, None, True, "the previous lock is unknown"),
        ("gpu_clocks", "1000,2000", None, None, True, "locked again as before"),
        ("gpu_clocks", "1000,2000", None, "GPU is lost", False, "GPU is lost"),
        ("persistence", True, False, None, False, "nvidia-persistenced"),
        (
            "governor",
            "powersave",
            "performance",
            None,
            False,
            "the cores report performance, not powersave",
        ),
    ],
)
def test_when_a_setting_is_back(
    setting: str, before: object, told: object, failed: str | None, ok: bool, words: str
) -> None:
    done, message = setting_commands.was_restored_and_message(setting, before, told, failed)
    assert done is ok and words in message


def test_the_order_of_giving_back() -> None:
    settings = [
        "governor",
        "persistence",
        "something new",
        "power_limit_w",
        "memory_clocks",
        "gpu_clocks",
    ]
    assert sorted(settings, key=setting_commands.revert_position) == [
        "gpu_clocks",
        "memory_clocks",
        "power_limit_w",
        "persistence",
        "governor",
        "something new",
    ]


def test_settings_that_a_restart_took_away() -> None:
    entry = {"boot_id": "b1", "energy_j": 500.0}
    assert (
        setting_commands.why_setting_has_no_effect(entry, "b1", 600.0) is None
        and setting_commands.why_setting_has_no_effect(entry, "b1") is None
    )
    assert (
        setting_commands.why_setting_has_no_effect(entry, "b2", 600.0) == "the host was restarted"
    )
    assert setting_commands.why_setting_has_no_effect(entry, "b1", 3.0) == "the driver was reloaded"
    assert (
        setting_commands.why_setting_has_no_effect({"boot_id": "b1", "energy_j": None}, "b1", 3.0)
        is None
    )


def test_words_for_a_shell_stay_words() -> None:
    assert (
        shlex.split(setting_commands.shell_command_to_set("GPU-a; rm -rf /", "persistence", True))[
            3
        ]
        == "GPU-a; rm -rf /"
    )
    assert shlex.split(setting_commands.shell_command_to_set("host", "governor", "a;b"))[1] == "a;b"


C_STATES = st.sampled_from(["on", "off", "off:0", "off:1-2", "off:0,2-3"])


@given(
    st.dictionaries(
        st.integers(0, 40), st.tuples(C_STATES, st.integers(1, 5)), min_size=1, max_size=8
    )
)
def test_c_states_as_a_value_and_back(by_core: dict[int, tuple[str, int]]) -> None:
    """The commands of a revert write into each file what it held, whatever the cores had."""
    held = {
        cpu: [core_values.is_idle_state_off(value, n) for n in range(states)]
        for cpu, (value, states) in by_core.items()
    }
    read = {
        cpu: core_values.format_core_c_states([f"{off:d}\n" for off in states])
        for cpu, states in held.items()
    }
    value = core_values.format_core_values({cpu: states or "" for cpu, states in read.items()})
    assert value is not None and setting_commands.SETTINGS["c_states"].is_valid(value)
    written: dict[str, str] = {}
    for step in setting_commands.commands_to_set_value(
        "host", "c_states", value, cores={cpu: len(held[cpu]) for cpu in held}
    ):
        assert step.argv[0] == "tee" and step.stdin is not None and step.value == value
        written |= dict.fromkeys(step.argv[1:], step.stdin)
    root = "/sys/devices/system/cpu"
    assert written == {
        f"{root}/cpu{cpu}/cpuidle/state{n}/disable": f"{off:d}\n"
        for cpu, of in held.items()
        for n, off in enumerate(of)
    }


@pytest.mark.parametrize(
    ("found", "cut"),
    [
        ("on=1-3 off=0", True),
        ("off=0-1 off:0-1=2 on=3", True),
        ("off:0=0 on=1", True),
        ("off:0,2=0 on=1-3", True),  # the files are written in any order
        ("off", False),
        ("off:1=0 off:2=1", True),
    ],
)
def test_when_a_change_of_c_states_was_interrupted(found: str, cut: bool) -> None:
    assert setting_commands.was_core_change_interrupted("c_states", found, "off", "on") is cut
    # these are off in both
    assert not setting_commands.was_core_change_interrupted(
        "c_states", "off=0 on=1", "off", "off:1-3"
    )


def test_the_last_value_of_a_core_that_is_named_twice_counts() -> None:
    assert setting_commands.was_core_change_interrupted(
        "c_states", "on=0 off=0-1", "off", "off:1-3"
    )
    assert not setting_commands.was_core_change_interrupted(
        "c_states", "off=0-1 on=0", "off", "off:1-3"
    )


def test_c_states_by_hand(tmp_path: Path) -> None:
    files = [
        tmp_path / f"devices/system/cpu/cpu{cpu}/cpuidle/state{n}/disable"
        for cpu in (0, 1)
        for n in range(3)
    ]
    for file in files:
        file.parent.mkdir(parents=True)
    for before, held in (
        ("off", "111111"),
        ("on", "000000"),
        ("off:1-2", "011011"),
        ("off:0=1 on=0", "000100"),
    ):
        line = setting_commands.shell_command_to_set(
            "host", "c_states", before, str(tmp_path)
        ).replace("sudo ", "")
        for file in files:
            file.write_text("x\n")
        subprocess.run(["sh", "-c", line], check=True, stdout=subprocess.DEVNULL, timeout=30)
        assert "".join(file.read_text().strip() for file in files) == held

"""The files of many CPU cores as one word of a shell."""

from __future__ import annotations

import subprocess
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.model.setting_commands import C_STATE_FILES, GOVERNOR_FILES
from workbench.model.setting_records import SettingCommand, join_paths_in_braces

NUMBERS = st.sets(st.integers(0, 40), min_size=1, max_size=6).map(sorted)


@given(NUMBERS, NUMBERS)
def test_a_word_is_made_only_if_it_stands_for_all_files(
    cores: list[int], states: list[int]
) -> None:
    files = [
        C_STATE_FILES.format(root="/a b", cpu=cpu, state=state)
        for cpu, state in product(cores, states)
    ]
    word = join_paths_in_braces(files)
    assert (word is None) == (len(files) < 3)
    assert join_paths_in_braces(files[1:] or files) is None or len(cores) == 1 or len(states) == 1
    if word is not None and len(files) < 9:
        said = subprocess.run(
            ["bash", "-c", f"printf '%s\\n' {word}"], capture_output=True, text=True, check=True
        )
        assert said.stdout.splitlines() == files


@pytest.mark.parametrize(
    ("cores", "shown"),
    [
        (
            (0, 1),
            "cpu0/cpufreq/scaling_governor /sys/devices/system/cpu/cpu1/cpufreq/scaling_governor",
        ),
        (range(4), "cpu{0..3}/cpufreq/scaling_governor"),
        ((0, 2, 3), "cpu{0,2,3}/cpufreq/scaling_governor"),
    ],
)
def test_a_command_for_many_cores_is_short(cores: range, shown: str) -> None:
    files = [GOVERNOR_FILES.format(root="/sys", cpu=cpu) for cpu in cores]
    one = SettingCommand(
        -1, "host", "governor", ("sudo", "-n", "/usr/bin/tee", *files), stdin="powersave\n"
    )
    assert one.shell_line == (
        f"echo powersave | sudo -n /usr/bin/tee /sys/devices/system/cpu/{shown}"
    )


def test_the_files_of_cores_are_one_word_beside_a_file_of_another_form() -> None:
    files = [GOVERNOR_FILES.format(root="/sys", cpu=cpu) for cpu in range(4)]
    argv = ("tee", "/srv/cpu/other", *files)
    command = SettingCommand(-1, "host", "cpu_governor", argv, stdin="performance\n")
    word = join_paths_in_braces(files)
    assert command.shell_line == f"echo performance | tee /srv/cpu/other {word}"

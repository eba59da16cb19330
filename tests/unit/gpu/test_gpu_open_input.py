"""Whatever is typed, whatever nvidia-smi, sudo or a kernel prints: a setting, a refusal in words,
or nothing."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from workbench.gpu.settings.current_values import CoreSettings, read_core_settings
from workbench.gpu.settings.plan import plan_commands
from workbench.gpu.settings.rights import Rights, sudo_permission_for
from workbench.gpu.settings.sudoers import sudoers_text
from workbench.hosts.local import LocalHost
from workbench.model.errors import InputError
from workbench.model.gpu import DriverInfo, GpuInfo, GpuSample, HostSample, Telemetry
from workbench.model.setting_commands import FAILED, SETTINGS, why_command_failed
from workbench.model.settings import DEFAULT, GPU_CLOCKS, ClockRange, GpuSettings
from workbench.session.series.gpu_sweep_plan import parse_swept_values

INFO = GpuInfo(
    0,
    "GPU-a",
    "RTX PRO 6000",
    sm_max_mhz=3090,
    memory_max_mhz=14001,
    power_min_w=150.0,
    power_max_w=600.0,
)
HOST = Telemetry(0.0, 0.0, DriverInfo(), HostSample(), (INFO,), (GpuSample(0, "GPU-a"),))
numbers = st.from_regex(r"[ +-]?[0-9\u0660-\u0669\u00b2]{1,30}", fullmatch=True)
ranges = st.tuples(numbers, st.sampled_from([",", "-", ", ", ""]), numbers | st.just("")).map(
    "".join
)


@given(st.text(max_size=20) | ranges)
@example("9" * 5000)
def test_any_text_is_a_range_of_clocks_or_is_refused(text: str) -> None:
    try:
        found = GPU_CLOCKS.parse(text)
    except InputError as error:
        assert error.message.startswith("GPU clocks: ") and error.next_step
    else:
        assert found == DEFAULT or (
            isinstance(found, ClockRange) and 0 <= found.min_mhz <= found.max_mhz
        )


@given(
    st.sampled_from(["power_limit_w", "gpu_clocks", "memory_clocks", "persistence"]),
    st.lists(st.text(max_size=12) | ranges | st.just("9" * 5000), max_size=4),
)
def test_any_words_are_values_of_a_sweep_or_are_refused(setting: str, texts: list[str]) -> None:
    try:
        found = parse_swept_values(setting, texts)
    except InputError as error:
        assert error.message and error.next_step
        return
    assert len(found) == len(texts) >= 2 and len({v.label for v in found}) == len(found)
    for value in found:
        one = value.wanted[setting]
        assert (
            one.min_mhz <= one.max_mhz == value.x
            if isinstance(one, ClockRange)
            else 0 < one == value.x
        )


@given(st.text(max_size=30))
def test_no_governor_but_those_of_the_cores_becomes_a_command(name: str) -> None:
    cores = CoreSettings({0: "powersave"}, ("performance", "powersave"))
    try:
        (one,) = plan_commands({"all": GpuSettings(governor=name)}, HOST, Rights(), cores)
    except InputError as error:
        assert name not in cores.available and "no governor" in error.message
    else:
        assert name in cores.available and one.stdin == f"{name}\n"


SAYS = (
    "Treating as warning and moving on.",
    "Insufficient Permissions",
    "Terminating early due to previous errors.",
    "Unable to determine the device handle",
    "No devices were found",
    "is not supported for GPU",
)


@given(st.text(), st.sampled_from(SAYS), st.text(), st.booleans(), st.integers(-1, 255))
def test_what_nvidia_smi_says_decides_whatever_its_exit_status(
    before: str, phrase: str, after: str, upper: bool, code: int
) -> None:
    said = f"{before} {phrase.upper() if upper else phrase} {after}"
    # a status other than 0 alone is a failure too
    assert why_command_failed(code, said) and why_command_failed(code or 1, before)
    quiet = " ".join(before.split())
    assert why_command_failed(0, before) == (quiet if FAILED.search(quiet) else None)


@given(st.text())
def test_any_listing_of_sudo_can_be_read(rules: str) -> None:
    assert sudo_permission_for(rules, ("/usr/bin/nvidia-smi", "-pm", "1")) in ("free", "asks", "")


digits = st.integers(100, 9999)
wanted = st.one_of(
    st.tuples(st.just("persistence"), st.booleans()),
    st.tuples(st.just("power_limit_w"), st.floats(10, 9999)),
    st.tuples(
        st.sampled_from(["gpu_clocks", "memory_clocks"]),
        st.just("default") | st.tuples(st.just(0) | digits, digits).map(lambda t: f"{t[0]},{t[1]}"),
    ),
)
more = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), min_size=1)


@given(st.uuids(), wanted, st.lists(more, min_size=1, max_size=3), st.uuids())
def test_the_file_for_sudoers_allows_every_change_of_its_gpus_and_nothing_else(
    uuid: object, one: tuple[str, object], options: list[str], other: object
) -> None:
    file = sudoers_text("ada", "/usr/bin/nvidia-smi", "/usr/bin/tee", [f"GPU-{uuid}"])
    # as `sudo -l` prints the rule
    listed = "    (root) " + file.partition("(root) ")[2].replace("\\\n", "")
    rules = [
        line.strip() for line in file.partition("NOPASSWD: ")[2].replace("\\\n", "").split(", ")
    ]
    assert len(rules) == len(set(rules)) > 20, "each command stands there once"
    change = SETTINGS[one[0]].argv(one[1])
    assert (
        sudo_permission_for(listed, ("/usr/bin/nvidia-smi", "-i", f"GPU-{uuid}", *change)) == "free"
    )
    assert (
        sudo_permission_for(listed, ("/usr/bin/nvidia-smi", "-i", f"GPU-{uuid}", *change, *options))
        == ""
    )
    if other != uuid:
        assert (
            sudo_permission_for(listed, ("/usr/bin/nvidia-smi", "-i", f"GPU-{other}", *change))
            == ""
        )


def test_cores_whose_governor_cannot_be_read_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An offline core: its file is there and holds nothing, or cannot be read at all."""
    for cpu, governor in enumerate(("powersave\n", "\n", "", None)):
        cpufreq = tmp_path / "devices" / "system" / "cpu" / f"cpu{cpu}" / "cpufreq"
        cpufreq.mkdir(parents=True)
        if governor is not None:
            (cpufreq / "scaling_governor").write_text(governor)
        (cpufreq / "scaling_available_governors").write_text(
            "performance powersave\n" if cpu != 1 else ""
        )
    monkeypatch.setenv("WORKBENCH_SIM_SYSFS", os.fspath(tmp_path))
    found = asyncio.run(read_core_settings(LocalHost()))
    assert found.governors == {0: "powersave"} and found.available == ("performance", "powersave")

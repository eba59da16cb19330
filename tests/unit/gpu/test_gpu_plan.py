"""Settings become commands, or are refused before anything is touched."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.gpu.settings.current_values import CORES_NOT_READ, CoreSettings
from workbench.gpu.settings.plan import plan_commands, select_gpus
from workbench.gpu.settings.rights import Rights
from workbench.model.errors import InputError, SettingsError
from workbench.model.gpu import (
    DriverInfo,
    DriverStatus,
    GpuInfo,
    GpuSample,
    GpuState,
    HostSample,
    Telemetry,
)
from workbench.model.settings import DEFAULT, ClockRange, GpuSettings

ROOT = Rights("/usr/bin/nvidia-smi")
INFO = GpuInfo(
    0,
    "GPU-a",
    "RTX PRO 6000",
    sm_max_mhz=3090,
    memory_max_mhz=14001,
    power_min_w=150.0,
    power_max_w=600.0,
)
GB10 = GpuInfo(
    2,
    "GPU-c",
    "NVIDIA GB10",
    sm_max_mhz=3003,
    unified_memory=True,
    absent={"power_max_w": "not supported", "memory_max_mhz": "not supported"},
)
HOST = Telemetry(
    0.0,
    0.0,
    DriverInfo(),
    HostSample(),
    (INFO, replace(INFO, index=1, uuid="GPU-b"), GB10),
    (GpuSample(0, "GPU-a"), GpuSample(1, "GPU-b"), GpuSample(2, "GPU-c")),
)


def argvs(settings: GpuSettings, selector: str = "0", rights: Rights = ROOT) -> list[str]:
    return [shlex.join(c.argv) for c in plan_commands({selector: settings}, HOST, rights)]


def test_one_command_per_change_by_uuid_persistence_first() -> None:
    wanted = GpuSettings(
        persistence=True,
        power_limit_w=450.0,
        gpu_clocks=ClockRange(1000, 2700),
        memory_clocks=ClockRange(14001, 14001),
    )
    assert argvs(wanted) == [
        "nvidia-smi -i GPU-a -pm 1",
        "nvidia-smi -i GPU-a -pl 450",
        "nvidia-smi -i GPU-a --lock-gpu-clocks=1000,2700",
        "nvidia-smi -i GPU-a --lock-memory-clocks=14001,14001",
    ]
    assert argvs(
        GpuSettings(persistence=False, gpu_clocks=DEFAULT, memory_clocks=DEFAULT), "GPU-B"
    ) == [
        "nvidia-smi -i GPU-b --reset-gpu-clocks",
        "nvidia-smi -i GPU-b --reset-memory-clocks",
        "nvidia-smi -i GPU-b -pm 0",
    ]
    assert argvs(GpuSettings(power_limit_w=450.25)) == ["nvidia-smi -i GPU-a -pl 450.25"]
    assert argvs(GpuSettings(persistence=True), "all") == [
        f"nvidia-smi -i GPU-{c} -pm 1" for c in "abc"
    ]
    assert argvs(GpuSettings(gpu_clocks=ClockRange(0, 2200)), "2") == [
        "nvidia-smi -i GPU-c --lock-gpu-clocks=0,2200"
    ]
    assert argvs(GpuSettings()) == []


@pytest.mark.parametrize(
    ("selector", "settings", "words"),
    [
        ("0", GpuSettings(power_limit_w=700), "700 W is outside its limits, 150 to 600 W"),
        ("0", GpuSettings(power_limit_w=0), "150 to 600 W"),
        ("0", GpuSettings(power_limit_w=149.9999), "149.9999 W is outside"),
        ("0", GpuSettings(power_limit_w=float("nan")), "150 to 600 W"),
        (
            "0",
            GpuSettings(gpu_clocks=ClockRange(3000, 3200)),
            "3200 MHz is above its highest SM clock, 3090",
        ),
        ("0", GpuSettings(gpu_clocks=ClockRange(2000, 1000)), "MIN not above MAX"),
        ("0", GpuSettings(gpu_clocks=ClockRange(-5, 1000)), "not a range of clocks"),
        (
            "0",
            GpuSettings(memory_clocks=ClockRange(14001, 15000)),
            "15000 MHz is above its highest memory clock",
        ),
        (
            "7",
            GpuSettings(persistence=True),
            "no GPU 7 on this host; its GPUs: 0 (RTX PRO 6000, GPU-a)",
        ),
        (
            "GPU-of-another-host",
            GpuSettings(persistence=True),
            "no GPU GPU-of-another-host on this host",
        ),
        ("2", GpuSettings(power_limit_w=100), "no power limit that can be set (not supported)"),
        ("2", GpuSettings(memory_clocks=ClockRange(1, 2)), "its memory is the host's"),
        ("2", GpuSettings(memory_clocks=DEFAULT), "no memory clock that can be set"),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    selector: str, settings: GpuSettings, words: str
) -> None:
    with pytest.raises(InputError) as refused:
        plan_commands({selector: settings}, HOST, ROOT)
    assert words in str(refused.value)


def test_one_bad_gpu_refuses_the_whole_plan() -> None:
    with pytest.raises(InputError):
        plan_commands({"all": GpuSettings(power_limit_w=300)}, HOST, ROOT)  # GB10 has none
    with pytest.raises(InputError, match="two different values for the power limit"):
        plan_commands(
            {"0": GpuSettings(power_limit_w=300), "GPU-a": GpuSettings(power_limit_w=400)},
            HOST,
            ROOT,
        )


def test_a_lost_gpu_and_a_missing_driver() -> None:
    lost = replace(HOST, gpus=(GpuSample(0, "GPU-a", GpuState.LOST, "GPU is lost"), *HOST.gpus[1:]))
    with pytest.raises(SettingsError, match="GPU is lost; no setting of this GPU can be changed"):
        plan_commands({"0": GpuSettings(persistence=True)}, lost, ROOT)
    gone = replace(HOST, driver=DriverInfo(DriverStatus.NO_DRIVER, "not loaded"), infos=(), gpus=())
    with pytest.raises(SettingsError, match="not loaded"):
        plan_commands({"all": GpuSettings(persistence=True)}, gone, ROOT)


@given(st.floats(allow_nan=True), st.integers(-10, 5000), st.integers(-10, 5000))
def test_nothing_outside_the_limits_ever_becomes_a_command(
    watts: float, low: int, high: int
) -> None:
    try:
        commands = plan_commands(
            {"0": GpuSettings(power_limit_w=watts, gpu_clocks=ClockRange(low, high))}, HOST, ROOT
        )
    except InputError:
        assert not (150 <= watts <= 600 and 0 <= low <= high <= 3090)
        return
    assert 150 <= watts <= 600 and 0 <= low <= high <= 3090
    assert float(commands[0].argv[-1]) == pytest.approx(watts, abs=0.006)
    assert commands[1].argv[-1] == f"--lock-gpu-clocks={low},{high}"


def test_select_all_by_default_order() -> None:
    assert [i.index for i in select_gpus("all", HOST)] == [0, 1, 2] and select_gpus("1", HOST)[
        0
    ].uuid == "GPU-b"


CORES = CoreSettings(dict.fromkeys(range(4), "powersave"), ("performance", "powersave"))
FILE = "/sys/devices/system/cpu/cpu{}/cpufreq/scaling_governor"


def test_the_governor_of_all_cores_is_one_command_of_the_host() -> None:
    (one,) = plan_commands({"all": GpuSettings(governor="performance")}, HOST, ROOT, CORES)
    assert (
        one.argv == ("tee", *(FILE.format(cpu) for cpu in range(4)))
        and one.stdin == "performance\n"
    )
    assert (one.gpu_index, one.gpu_uuid, one.setting, one.value) == (
        -1,
        "host",
        "governor",
        "performance",
    )
    assert (
        one.shell_line.startswith("echo performance | tee /sys/devices/system/cpu/cpu{0..3}/")
        and one.gpu_or_host_name == "host"
    )
    both = plan_commands(
        {
            "0": GpuSettings(power_limit_w=300, governor="performance"),
            "1": GpuSettings(governor="performance"),
        },
        HOST,
        ROOT,
        CORES,
    )
    assert [c.setting for c in both] == ["governor", "power_limit_w"]  # given twice alike: once


@pytest.mark.parametrize(
    ("cores", "wanted", "words"),
    [
        (CORES, "turbo", "no governor 'turbo'"),
        (CoreSettings(why="in this virtual machine (kvm)"), "performance", "virtual machine (kvm)"),
        (CORES_NOT_READ, "performance", "no cpufreq was read"),
    ],
)
def test_a_governor_that_cannot_be(cores: CoreSettings, wanted: str, words: str) -> None:
    with pytest.raises(InputError) as refused:
        plan_commands({"all": GpuSettings(governor=wanted)}, HOST, ROOT, cores)
    assert words in str(refused.value)


IDLE = CoreSettings(c_states={0: "on", 1: "off:2"}, idle_states={0: 3, 1: 2})
IDLE_FILE = "/sys/devices/system/cpu/cpu{}/cpuidle/state{}/disable"


def test_the_c_states_of_all_cores_are_one_command_of_the_host() -> None:
    files = tuple(
        IDLE_FILE.format(cpu, state) for cpu, states in ((0, 3), (1, 2)) for state in range(states)
    )
    for wanted, text in (("off", "1\n"), ("on", "0\n")):
        (one,) = plan_commands({"all": GpuSettings(c_states=wanted)}, HOST, ROOT, IDLE)
        assert (one.argv, one.stdin, one.setting, one.value) == (
            ("tee", *files),
            text,
            "c_states",
            wanted,
        )
    with pytest.raises(
        InputError,
        match=r"the CPU C-states cannot be set: no cpuidle in this "
        r"virtual machine \(kvm\)",
    ):
        plan_commands(
            {"all": GpuSettings(c_states="off")},
            HOST,
            ROOT,
            CoreSettings(why="in this virtual machine (kvm)"),
        )


def test_the_governor_needs_no_gpu_but_a_named_one_must_be_there() -> None:
    none = replace(
        HOST, driver=DriverInfo(DriverStatus.NO_LIBRARY, "no driver here"), infos=(), gpus=()
    )
    assert len(plan_commands({"all": GpuSettings(governor="performance")}, none, ROOT, CORES)) == 1
    with pytest.raises(SettingsError, match="no driver here"):
        plan_commands({"0": GpuSettings(governor="performance")}, none, ROOT, CORES)
    with pytest.raises(InputError, match="no GPU 9"):
        plan_commands({"9": GpuSettings(governor="performance")}, HOST, ROOT, CORES)


# An RTX PRO 6000 as its driver lists it: SM clocks 7 or 8 MHz apart, five memory clocks.
LISTED = replace(
    INFO,
    supported_sm_mhz=tuple(sorted({round(3090 - i * 7.5) for i in range(389)})),
    supported_memory_mhz=(405, 810, 7001, 13365, 14001),
)
LISTING = replace(HOST, infos=(LISTED, *HOST.infos[1:]))


@pytest.mark.parametrize(
    ("settings", "note"),
    [
        (GpuSettings(gpu_clocks=ClockRange(2400, 3090)), ""),
        (
            GpuSettings(gpu_clocks=ClockRange(3000, 3090)),
            "the highest clock of a card's table is not one that it sust",
        ),
        (
            GpuSettings(gpu_clocks=ClockRange(1001, 1001)),
            "nvidia-smi takes the closest SM clock: 998 MHz for 1001",
        ),
        (
            GpuSettings(gpu_clocks=ClockRange(0, 2205)),
            "nvidia-smi takes the closest SM clock: 180 MHz for 0",
        ),
        (GpuSettings(memory_clocks=ClockRange(13365, 13365)), ""),
        (GpuSettings(memory_clocks=ClockRange(405, 14001)), ""),
        (GpuSettings(memory_clocks=ClockRange(13360, 14001)), "13365 MHz for 13360"),
    ],
)
def test_what_nvidia_smi_will_make_of_a_clock_is_said(settings: GpuSettings, note: str) -> None:
    (one,) = plan_commands({"0": settings}, LISTING, ROOT)
    assert note in one.note and bool(note) == bool(one.note)
    asked = settings.get("gpu_clocks") or settings.get("memory_clocks")
    assert one.value == asked  # as asked: it is nvidia-smi that rounds


WORKSTATION = "NVIDIA RTX PRO 6000 Blackwell Workstation Edition"


@pytest.mark.parametrize(
    ("name", "mhz", "notes"),
    [
        (
            WORKSTATION,
            14001,
            ("13365 MHz is the normal memory clock of this card", "on GB202 a memory lock"),
        ),
        (
            WORKSTATION,
            13365,
            ("13365 MHz is where this card's memory runs under compute", "on GB202 a memory lock"),
        ),
        (WORKSTATION, 7001, ("on GB202 a memory lock can cost performance",)),
        ("NVIDIA GeForce RTX 5060 Ti", 7001, ()),
    ],
)
def test_what_is_known_of_a_memory_lock_is_said_before_it_is_set(
    name: str, mhz: int, notes: tuple[str, ...]
) -> None:
    named = replace(LISTING, infos=(replace(LISTED, name=name), *HOST.infos[1:]))
    (one,) = plan_commands({"0": GpuSettings(memory_clocks=ClockRange(mhz, mhz))}, named, ROOT)
    assert all(text in one.note for text in notes) and bool(one.note) == bool(notes)
    assert ("13365" in one.note) == (len(notes) == 2)


@pytest.mark.parametrize(
    "wanted", [GpuSettings(power_limit_w=100), GpuSettings(memory_clocks=ClockRange(1, 2))]
)
def test_a_gb10_says_what_it_has_instead(wanted: GpuSettings) -> None:
    with pytest.raises(InputError) as refused:
        plan_commands({"2": wanted}, HOST, ROOT)
    assert refused.value.next_step == (
        "GB10 has no power limit and no memory lock; its SM clock can be locked"
    )


@given(st.text(max_size=12) | st.from_regex(r"[\u00b2\u0660-\u0669 -]?[0-9]{1,30}", fullmatch=True))
def test_any_text_names_a_gpu_that_is_there_or_is_refused(selector: str) -> None:
    try:
        found = select_gpus(selector, HOST)
    except InputError as error:
        assert "its GPUs: 0 (RTX PRO 6000, GPU-a)" in error.message
    else:
        assert selector == "all" or int(selector) in (i.index for i in found)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            GpuSettings(memory_clocks=ClockRange(12000, 12000)),
            "clock of 12000 MHz; nearest: 7001 MHz and 13365",
        ),
        (GpuSettings(memory_clocks=ClockRange(405, 13000)), "no memory clock of 13000 MHz"),
        (
            GpuSettings(memory_clocks=ClockRange(300, 300)),
            "no memory clock of 300 MHz; nearest: 405 MHz",
        ),
        (GpuSettings(gpu_clocks=ClockRange(100, 100)), "no SM clock of 100 MHz; nearest: 180 MHz"),
        (GpuSettings(gpu_clocks=ClockRange(0, 50)), "no SM clock of 50 MHz"),
    ],
)
def test_a_clock_that_the_card_does_not_have(settings: GpuSettings, words: str) -> None:
    with pytest.raises(InputError) as refused:
        plan_commands({"0": settings}, LISTING, ROOT)
    assert words in str(refused.value)

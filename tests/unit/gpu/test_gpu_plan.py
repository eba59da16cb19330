"""Settings become commands, or are refused before anything is touched; and who may run them."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.gpu.plan import plan, select
from workbench.gpu.rights import Rights, rights_on
from workbench.hosts.base import CommandNotFound, Completed, HostFacts
from workbench.hosts.local import LocalHost
from workbench.model.errors import InputError, SettingsError
from workbench.model.gpu import DriverInfo, DriverStatus, GpuInfo, GpuSample, GpuState, HostSample, Telemetry
from workbench.model.settings import ClockRange, GpuSettings

ROOT = Rights("/usr/bin/nvidia-smi")
INFO = GpuInfo(0, "GPU-a", "RTX PRO 6000", sm_max_mhz=3090, memory_max_mhz=14001, power_min_w=150.0, power_max_w=600.0)
GB10 = GpuInfo(
    2, "GPU-c", "NVIDIA GB10", sm_max_mhz=3003, unified_memory=True,
    absent={"power_max_w": "not supported", "memory_max_mhz": "not supported"},
)  # fmt: skip
HOST = Telemetry(
    0.0,
    0.0,
    DriverInfo(),
    HostSample(),
    (INFO, replace(INFO, index=1, uuid="GPU-b"), GB10),
    (GpuSample(0, "GPU-a"), GpuSample(1, "GPU-b"), GpuSample(2, "GPU-c")),
)


def argvs(settings: GpuSettings, selector: str = "0", rights: Rights = ROOT) -> list[str]:
    return [shlex.join(c.argv) for c in plan({selector: settings}, HOST, rights)]


def test_one_command_per_change_by_uuid_persistence_first() -> None:
    wanted = GpuSettings(True, 450.0, ClockRange(1000, 2700), ClockRange(14001, 14001))
    assert argvs(wanted) == [
        "nvidia-smi -i GPU-a -pm 1",
        "nvidia-smi -i GPU-a -pl 450",
        "nvidia-smi -i GPU-a --lock-gpu-clocks=1000,2700",
        "nvidia-smi -i GPU-a --lock-memory-clocks=14001,14001",
    ]
    assert argvs(GpuSettings(persistence=False, reset_gpu_clocks=True, reset_memory_clocks=True), "GPU-B") == [
        "nvidia-smi -i GPU-b --reset-gpu-clocks",
        "nvidia-smi -i GPU-b --reset-memory-clocks",
        "nvidia-smi -i GPU-b -pm 0",
    ]
    assert argvs(GpuSettings(power_limit_w=450.25)) == ["nvidia-smi -i GPU-a -pl 450.25"]
    assert argvs(GpuSettings(persistence=True), "all") == [f"nvidia-smi -i GPU-{c} -pm 1" for c in "abc"]
    assert argvs(GpuSettings(gpu_clocks=ClockRange(0, 2200)), "2") == ["nvidia-smi -i GPU-c --lock-gpu-clocks=0,2200"]
    assert argvs(GpuSettings()) == []


@pytest.mark.parametrize(
    ("selector", "settings", "words"),
    [
        ("0", GpuSettings(power_limit_w=700), "700 W is outside what it allows, 150 to 600 W"),
        ("0", GpuSettings(power_limit_w=0), "150 to 600 W"),
        ("0", GpuSettings(power_limit_w=float("nan")), "150 to 600 W"),
        ("0", GpuSettings(gpu_clocks=ClockRange(3000, 3200)), "3200 MHz is above its highest SM clock, 3090"),
        ("0", GpuSettings(gpu_clocks=ClockRange(2000, 1000)), "MIN not above MAX"),
        ("0", GpuSettings(gpu_clocks=ClockRange(-5, 1000)), "no range of clocks"),
        ("0", GpuSettings(memory_clocks=ClockRange(14001, 15000)), "15000 MHz is above its highest memory clock"),
        ("0", GpuSettings(gpu_clocks=ClockRange(1, 2), reset_gpu_clocks=True), "locked and reset at once"),
        ("0", GpuSettings(memory_clocks=ClockRange(1, 2), reset_memory_clocks=True), "locked and reset at once"),
        ("7", GpuSettings(persistence=True), "no GPU 7 on this host; it has 0 (RTX PRO 6000, GPU-a)"),
        ("GPU-of-another-host", GpuSettings(persistence=True), "no GPU GPU-of-another-host on this host"),
        ("2", GpuSettings(power_limit_w=100), "no power limit that can be set (not supported)"),
        ("2", GpuSettings(memory_clocks=ClockRange(1, 2)), "its memory is the host's"),
        ("2", GpuSettings(reset_memory_clocks=True), "no memory clock that can be set"),
    ],
)
def test_what_cannot_be_is_refused_by_name(selector: str, settings: GpuSettings, words: str) -> None:
    with pytest.raises(InputError) as refused:
        plan({selector: settings}, HOST, ROOT)
    assert words in str(refused.value)


def test_one_bad_gpu_refuses_the_whole_plan() -> None:
    with pytest.raises(InputError):
        plan({"all": GpuSettings(power_limit_w=300)}, HOST, ROOT)  # GB10 has none
    with pytest.raises(InputError, match="asked for twice"):
        plan({"0": GpuSettings(power_limit_w=300), "GPU-a": GpuSettings(power_limit_w=400)}, HOST, ROOT)


def test_a_lost_gpu_and_a_missing_driver() -> None:
    lost = replace(HOST, gpus=(GpuSample(0, "GPU-a", GpuState.LOST, "GPU is lost"), *HOST.gpus[1:]))
    with pytest.raises(InputError, match="GPU is lost; nothing can be set"):
        plan({"0": GpuSettings(persistence=True)}, lost, ROOT)
    gone = replace(HOST, driver=DriverInfo(DriverStatus.NO_DRIVER, "not loaded"), infos=(), gpus=())
    with pytest.raises(SettingsError, match="not loaded"):
        plan({"all": GpuSettings(persistence=True)}, gone, ROOT)


@given(st.floats(allow_nan=True), st.integers(-10, 5000), st.integers(-10, 5000))
def test_nothing_outside_the_limits_ever_becomes_a_command(watts: float, low: int, high: int) -> None:
    try:
        commands = plan({"0": GpuSettings(power_limit_w=watts, gpu_clocks=ClockRange(low, high))}, HOST, ROOT)
    except InputError:
        assert not (150 <= watts <= 600 and 0 <= low <= high <= 3090)
        return
    assert 150 <= watts <= 600 and 0 <= low <= high <= 3090
    assert float(commands[0].argv[-1]) == pytest.approx(watts, abs=0.006)
    assert commands[1].argv[-1] == f"--lock-gpu-clocks={low},{high}"


def test_select_all_by_default_order() -> None:
    assert [i.index for i in select("all", HOST)] == [0, 1, 2] and select("1", HOST)[0].uuid == "GPU-b"


class Facts(LocalHost):
    """A host that says of itself what a test wants."""

    def __init__(self, answers: dict[str, Completed | Exception] | None = None, **facts: Any) -> None:
        super().__init__("box")
        base: dict[str, Any] = {"user": "ada", "uid": 1000, "nvidia_smi": "/usr/bin/nvidia-smi"}
        self._facts = HostFacts("box", "local", **{**base, **facts})
        self._answers = answers or {}
        self.ran: list[str] = []

    async def facts(self) -> HostFacts:
        return self._facts

    async def run(self, argv: Sequence[str], **_: Any) -> Completed:
        self.ran.append(shlex.join(argv))
        answer = self._answers[argv[0]]
        if isinstance(answer, Exception):
            raise answer
        return answer


def done(code: int, out: str = "") -> Completed:
    return Completed((), code, out.encode(), b"")


def rights(host: Facts) -> Rights:
    return asyncio.run(rights_on(host))


def test_root_runs_it_plainly() -> None:
    host = Facts({"grep": done(0, "CapEff:\t000001ffffffffff\n")}, uid=0, initial_user_namespace=True)
    found = rights(host)
    assert found.refusal is None and found.argv("GPU-a", "-pm", "1") == ("nvidia-smi", "-i", "GPU-a", "-pm", "1")


def test_root_of_an_unprivileged_container_is_told_so() -> None:
    found = rights(Facts(uid=0, initial_user_namespace=False))
    assert found.refusal is not None and "unprivileged container" in found.refusal and "NO_PERMISSION" in found.refusal


def test_root_without_the_capability() -> None:
    host = Facts({"grep": done(0, "CapEff:\t00000000a80425fb\n")}, uid=0, initial_user_namespace=True)
    assert "CAP_SYS_ADMIN" in (rights(host).refusal or "")


def test_sudo_that_asks_nothing() -> None:
    host = Facts({"sudo": done(0)})
    argv = rights(host).argv("GPU-a", "-pl", "450")
    assert argv == ("sudo", "-n", "/usr/bin/nvidia-smi", "-i", "GPU-a", "-pl", "450")
    assert host.ran == ["sudo -n -l /usr/bin/nvidia-smi -i 0 -pm 1"]  # listed, not run


@pytest.mark.parametrize("answer", [done(1), CommandNotFound("sudo: no such executable")])
def test_no_rights_names_the_sudoers_line_of_each_command(answer: Completed | Exception) -> None:
    found = rights(Facts({"sudo": answer}))
    commands = plan({"0": GpuSettings(power_limit_w=450, gpu_clocks=ClockRange(1, 2))}, HOST, found)
    assert commands[0].right is not None and commands[1].right is not None
    assert commands[0].right.endswith("ada ALL=(root) NOPASSWD: /usr/bin/nvidia-smi -i GPU-a -pl 450")
    assert commands[1].right.endswith("/usr/bin/nvidia-smi -i GPU-a --lock-gpu-clocks\\=1\\,2")  # sudoers(5) escapes
    assert "needs root on box" in commands[0].right


def test_without_nvidia_smi() -> None:
    assert "not on this host's PATH" in (rights(Facts(nvidia_smi=None)).refusal or "")


def test_a_simulated_host_needs_no_rights() -> None:
    assert rights(Facts(simulated="gb10")).refusal is None

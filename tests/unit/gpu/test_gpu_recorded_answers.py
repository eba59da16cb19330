"""What the drivers of a GB10, an RTX PRO 6000, an RTX 5060 Ti and an A100 with MIG answered, read by the
real agent: each value, each reason for a missing one, and what the checks and the alerts make of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from nvml_child import Child, Driver

from workbench.advisor.alert_rules import OF_GPU, LiveFacts
from workbench.doctor import cap_checks, facts_text
from workbench.doctor.examination import Examination
from workbench.gpu.telemetry.agent_messages import AgentMessageDecoder
from workbench.gpu.telemetry.plausible_readings import PLACEHOLDER
from workbench.hosts.base import HostFacts
from workbench.model.gpu import Telemetry
from workbench.session.history.timeline_events import EventSource
from workbench.session.state import HostView, SessionState
from workbench.tui.widgets.gpu_metrics import FIRST, SECOND

ANSWERS = Path(__file__).resolve().parents[2] / "fixtures" / "driver_answers"
GB10, PRO_6000, TI, A100 = range(4)
CARDS = ("gb10", "rtx-pro-6000", "rtx-5060ti", "a100-mig")


def answers_of(card: str, index: int) -> Iterator[str]:
    for line in (ANSWERS / f"{card}.txt").read_text().splitlines():
        key, _, value = line.partition("  # ")[0].partition(" ")
        yield f"{key} {index} {value}"


def instances_of(index: int) -> Iterator[str]:
    """The parts of 1g.5gb: their memory is that of NVIDIA's MIG user guide."""
    for number in range(7):
        part = 10 * (index + 1) + number
        yield f"name {part} NVIDIA A100-SXM4-40GB MIG 1g.5gb"
        yield f"uuid {part} MIG-{number}"
        yield f"memory.total {part} {4864 << 20}"
        yield f"memory.used {part} {12 << 20}"


@pytest.fixture(scope="module")
def readings(stub_library: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Telemetry]:
    """One machine with the four cards, in the order of CARDS, read until the rates are known."""
    place = tmp_path_factory.mktemp("recorded")
    driver = Driver(place / "nvml.script", place / "nvml.log")
    driver.lines = ["gpus * 4", "events * 1", "field.185 * 100000", "field.83 * 1000"]
    driver.lines += instances_of(A100)
    for index, card in enumerate(CARDS):
        driver.lines += answers_of(card, index)
    driver.write()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORKBENCH_NVML_LIBRARY", str(stub_library))
        patch.setenv("NVML_STUB_SCRIPT", str(driver.script))
        child, decoder, found = Child(slow_s=0.1), AgentMessageDecoder(), list[Telemetry]()
    try:
        for document in child.documents():
            telemetry = decoder.decode_message(document)
            if telemetry is None or not telemetry.infos or not telemetry.gpus:
                continue
            found.append(telemetry)
            if telemetry.gpus[PRO_6000].pcie_replays_per_min is not None:
                break
    finally:
        child.close()
    return found


@pytest.fixture
def reading(readings: list[Telemetry]) -> Telemetry:
    return readings[-1]


def test_recorded_answers_become_readings_or_reasons(reading: Telemetry) -> None:
    gb10, pro, ti, a100 = reading.gpus
    assert dict(gb10.absent) == {
        **dict.fromkeys(("memory_mhz", "power_limit_w", "power_limit_enforced_w"), "not supported"),
        **dict.fromkeys(("pcie_rx_mb_s", "pcie_tx_mb_s", "fan_pct"), "not supported"),
        **dict.fromkeys(("pcie_replays_per_min", "pcie_replay_count"), "not supported"),
        **dict.fromkeys(("pcie_gen", "pcie_width"), PLACEHOLDER),
        **dict.fromkeys(("memory_util_pct", "memory_temperature_c"), PLACEHOLDER),
    }
    assert gb10.memory_used_bytes == 69_564 << 20 and gb10.sm_mhz == 507
    assert dict(pro.absent) == {"memory_temperature_c": "not supported"}
    assert (pro.power_w, pro.temperature_margin_c, pro.pcie_replay_count) == (503.0, 22, 52311)
    assert pro.event_reasons == ("SW thermal slowdown",) and pro.pcie_rx_mb_s == 0.0
    assert dict(ti.absent) == {
        **dict.fromkeys(("pcie_rx_mb_s", "pcie_tx_mb_s"), "not supported"),
        "memory_temperature_c": "not supported",
    }
    assert (ti.power_w, ti.fan_pct, ti.pcie_gen, ti.pcie_width) == (9.16, 0, 1, 8)
    assert dict(a100.absent) == {
        **dict.fromkeys(("gpu_util_pct", "memory_util_pct"), "not reported while MIG is on"),
        **dict.fromkeys(("pcie_rx_mb_s", "pcie_tx_mb_s"), "not supported"),
        **dict.fromkeys(("memory_temperature_c", "fan_pct"), "not supported"),
        "temperature_margin_c": "not supported",
    }
    assert set(a100.instance_used_bytes.values()) == {12 << 20}


def test_recorded_answers_become_properties_or_reasons(reading: Telemetry) -> None:
    gb10, pro, ti, a100 = reading.infos
    assert gb10.unified_memory and gb10.ecc is None and gb10.compute_capability == "12.1"
    assert dict(gb10.absent) == {
        **dict.fromkeys(("memory_max_mhz", "power_default_w"), "not supported"),
        **dict.fromkeys(("power_min_w", "power_max_w", "ecc"), "not supported"),
        **dict.fromkeys(("pcie_gen_max", "pcie_width_max"), PLACEHOLDER),
        "memory_reserved_bytes": "unified memory",
    }
    assert pro.absent == {} and pro.virtualization == "passthrough" and pro.ecc is True
    assert pro.temperature_slowdown_c == 70 + 22 + 2
    assert dict(ti.absent) == dict.fromkeys(("ecc", "temperature_slowdown_c"), "not supported")
    assert (ti.power_min_w, ti.power_max_w) == (150.0, 180.0)
    assert a100.mig_text == "MIG 7x 1g.5gb" and a100.temperature_slowdown_c == 93.0


def test_recorded_answers_drive_the_checks_and_the_alerts(readings: list[Telemetry]) -> None:
    reading = readings[-1]
    seen = Examination(
        HostFacts("box", "local"),
        gpus=reading.infos,
        samples=reading.gpus,
        host_sample=reading.host,
    )
    of_gpus = (
        cap_checks.check_slowed_clocks,
        cap_checks.check_unexplained_low_clock,
        cap_checks.check_pcie_replays,
    )
    found = {finding.code: finding.text for check in of_gpus for finding in check(seen)}
    assert found == {
        "gpu.slowed": "GPU 1 runs slower now: SW thermal slowdown (503 of 600 W, 70 °C, 22 °C below "
        "its highest)",
        "gb10.hidden-cap": "GPU 0 works at 507 MHz, and the driver names no reason: GB10 can stay at "
        "500 to 850 MHz after power trouble",
        "gpu.pcie-replays": "the PCIe link of GPU 1 has sent 52,311 packets again since the driver "
        "was loaded",
    }
    facts = LiveFacts(reading, {})
    measured = {
        name: [rule(*pair, facts) for pair in zip(reading.infos, reading.gpus, strict=True)]
        for name, rule in OF_GPU.items()
    }
    assert measured["heat-slowdown"] == [0.0, 1.0, 0.0, 0.0]
    assert measured["hidden-clock-cap"] == [1.0, 0.0, None, None]
    assert measured["gpu-error"] == [0, 0, 0, 0], "told once"
    assert [sample.xid for sample in readings[0].gpus] == [0, 79, 0, 0]
    assert measured["pcie-errors"] == [None, 0.0, 0.0, 0.0]
    assert measured["gpu-memory"][GB10] is None, "the host's memory"
    assert measured["temperature"][TI] is None, "no limit is known"
    shown = [text for label, text in facts_text.labels_and_fact_texts(seen) if label == "not read"]
    assert {
        "GPU0: ECC, PCIe replays, PCIe replays per minute, PCIe rx, PCIe tx, default power limit, "
        "enforced power limit, fan, highest memory clock, highest power limit, lowest power limit, "
        "memory clock, requested power limit (not supported)",
        "GPU0: PCIe generation, PCIe lanes, highest PCIe generation, memory temperature, memory "
        f"util, most PCIe lanes ({PLACEHOLDER})",
        "GPU3: memory util, utilization (not reported while MIG is on)",
    } <= set(shown)


def test_a_gb10_whose_reasons_are_unknown_is_not_called_capped(reading: Telemetry) -> None:
    """The driver that named no reason and the driver that was not heard are two things."""
    unheard = replace(reading.gpus[GB10], absent={"event_reasons": "no permission"})
    info = reading.infos[GB10]
    seen = Examination(HostFacts("box", "local"), gpus=(info,), samples=(unheard,))
    assert not list(cap_checks.check_unexplained_low_clock(seen))
    assert OF_GPU["hidden-clock-cap"](info, unheard, LiveFacts(reading, {})) is None


def test_recorded_answers_are_what_the_strip_and_the_time_axis_show(reading: Telemetry) -> None:
    pairs = list(zip(reading.gpus, reading.infos, strict=True))
    shown = {one.label: [one.text(*pair) for pair in pairs] for one in (*FIRST, *SECOND)}
    assert shown["util"] == ["96%", "97%", "0%", "n/a"]
    assert shown["fan"] == ["n/a", "40%", "0%", "n/a"]
    assert shown["pcie"] == ["n/a", "0M/s", "n/a", "n/a"]
    assert shown["mem"][GB10] == "n/a" and shown["power"][PRO_6000] == "503/600W"
    assert shown["vram"][TI] == "0.0/16G" and shown["vram"][A100] == "9.8/40G"
    events = EventSource(SessionState(HostView("box")))
    calm = [replace(gpu, event_reasons=()) for gpu in reading.gpus]
    assert not list(events.events_in_reading(replace(reading, gpus=tuple(calm)), reading.unix_s))
    (mark,) = events.events_in_reading(reading, reading.unix_s + 1)
    assert mark.text == "GPU1 throttled: SW thermal slowdown"

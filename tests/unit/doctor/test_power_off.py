"""What was recorded before a host went off: a finding after a loss of power, and none after an
orderly end of the recording or of the host."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from workbench.doctor import power_off
from workbench.doctor.power_off import ShutdownFacts, WtmpEntry
from workbench.hosts.boot import read_boot_id
from workbench.hosts.local import LocalHost
from workbench.model.gpu import GpuInfo
from workbench.model.timeline import ENGINE, Event, EventKind
from workbench.session.session import Session
from workbench.sim.simulated_host import SimulatedHost
from workbench.store import history_files, recording
from workbench.store.history_files import LoadedHistory
from workbench.store.recording import CellWriter, Header

OLD, NEW = "0a" * 16, "0b" * 16
LAST_S = 1_764_000_180
INFO = GpuInfo(0, "GPU-0", "NVIDIA GB10")


def recorded(
    folder: Path,
    host: str = "box",
    last_s: int = LAST_S,
    *,
    in_order: bool = False,
    boot: str = OLD,
    name: str = "1-1-a",
) -> None:
    """Write what a Workbench leaves that recorded three minutes of one GPU until `last_s`. The
    power is 90 W, and 140 W in the last 6 s."""
    folder.mkdir(parents=True, exist_ok=True)
    first_s = last_s - 180
    for step_s in history_files.STEPS_S:
        cells = CellWriter(step_s)
        lines = [
            Header(host, False, step_s, first_s).line(),
            recording.format_boot_line(first_s, boot),
        ]
        if step_s == 10:
            ran = Event(first_s, EventKind.SERVER_READY, "vllm READY (run r1)")
            gone = Event(first_s, EventKind.SERVER_START, "sglang m starts (run r0)")
            ended = Event(first_s + 5, EventKind.SERVER_END, "sglang crashed (run r0)")
            lines += [recording.format_gpu_infos(first_s, [INFO])]
            lines += [recording.format_event(event) for event in (gone, ran, ended)]
        for second in range(first_s, last_s):
            values = {
                (0, "power_w"): 140.0 if second >= last_s - 6 else 90.0,
                (0, "sm_mhz"): 2405.0,
                (0, "temperature_c"): 83.0,
                (ENGINE, "generation_tok_s"): 31.0,
            }
            lines += cells.add_reading(range(second, second + 1), values)
        lines += cells.finish_open_cells()
        lines += [recording.format_end_line(last_s)] if in_order else []
        (folder / f"{name}.1.{step_s}s.jsonl").write_text("".join(lines))


def kept_in(folder: Path, now: float = LAST_S + 60.0) -> LoadedHistory:
    return history_files.load_history(folder, "box", now)


def test_the_last_minute_is_told_with_what_ran_and_a_remedy(tmp_path: Path) -> None:
    recorded(tmp_path)
    end = kept_in(tmp_path).find_unclean_previous_boot_end(NEW)
    assert end is not None
    found = power_off.assess_end_of_boot(end, [INFO], ShutdownFacts(journal_last_s=LAST_S - 3.0))
    assert found is not None and found.code == "host.power-off"
    assert "went off without a shutdown" in found.text
    assert "In its last 60 s: GPU 0 (NVIDIA GB10) 95 W (at most 140), 2405 MHz, 83 °C" in found.text
    assert "the server 31 tok/s. What ran: vllm READY (run r1)" in found.text
    assert "sglang" not in found.text
    assert found.settings == ("gpu-clocks=0-2000",) and found.source
    other = power_off.assess_end_of_boot(end, [], ShutdownFacts(journal_last_s=LAST_S - 3.0))
    assert other is not None and not other.settings and "power supply" in (other.fix or "")


def test_an_hour_later_the_means_of_10_s_are_left(tmp_path: Path) -> None:
    recorded(tmp_path)
    (tmp_path / "1-1-a.1.1s.jsonl").unlink()
    end = kept_in(tmp_path, LAST_S + 30_000.0).find_unclean_previous_boot_end(NEW)
    assert end is not None and len(end.last_minute_cells) == 6


@pytest.mark.parametrize(
    ("facts", "claim"),
    [
        (ShutdownFacts(wtmp=(WtmpEntry(LAST_S + 90.0, True),)), "without a shutdown"),
        (ShutdownFacts(started_s=LAST_S + 90.0), "cannot be read"),
        # a clock of the host that is an hour ahead
        (ShutdownFacts(ahead_s=3600.0, journal_last_s=LAST_S + 3598.0), "without a shutdown"),
        (ShutdownFacts(ahead_s=3600.0, journal_last_s=LAST_S + 3900.0), None),
        (ShutdownFacts(in_order=True, journal_last_s=LAST_S + 1.0), None),
        (
            ShutdownFacts(wtmp=(WtmpEntry(LAST_S + 4.0, False), WtmpEntry(LAST_S + 90.0, True))),
            None,
        ),
        (ShutdownFacts(wtmp=(WtmpEntry(LAST_S - 900.0, False),), started_s=LAST_S + 9000.0), None),
        (ShutdownFacts(started_s=LAST_S + 9000.0), None),
        (ShutdownFacts(), None),
    ],
)
def test_no_more_is_claimed_than_the_host_says(
    facts: ShutdownFacts, claim: str | None, tmp_path: Path
) -> None:
    recorded(tmp_path)
    end = kept_in(tmp_path).find_unclean_previous_boot_end(NEW)
    assert end is not None
    found = power_off.assess_end_of_boot(end, [], facts)
    assert (found is None) == (claim is None)
    assert found is None or (claim or "") in found.text


def test_an_orderly_end_of_the_recording_and_the_same_boot_claim_nothing(tmp_path: Path) -> None:
    recorded(tmp_path / "ended", in_order=True)
    assert kept_in(tmp_path / "ended").find_unclean_previous_boot_end(NEW) is None
    recorded(tmp_path / "cut")
    assert kept_in(tmp_path / "cut").find_unclean_previous_boot_end(OLD) is None
    assert kept_in(tmp_path / "nothing").find_unclean_previous_boot_end(NEW) is None
    # the screen that was closed last decides
    recorded(tmp_path / "cut", last_s=LAST_S + 300, in_order=True, name="2-2-b")
    assert kept_in(tmp_path / "cut", LAST_S + 900.0).find_unclean_previous_boot_end(NEW) is None


@pytest.mark.parametrize(
    ("line", "in_order", "trouble"),
    [
        ("systemd-journald[312]: Journal stopped", True, None),
        ("systemd[1]: Reached target reboot.target - System Reboot.", True, None),
        ("kernel: NVRM: Xid (PCI:000f:01:00): 79, GPU has fallen off the bus.", False, "Xid"),
        ("vllm[77]: loading weights", False, None),
    ],
)
def test_the_journal_says_how_a_boot_ended(line: str, in_order: bool, trouble: str | None) -> None:
    said = f"now={LAST_S}\nstarted={LAST_S}\njournal={LAST_S}.25 box {line}\nwtmp=\x1b\njournal=x\n"
    facts = power_off.parse_shutdown_facts(said, float(LAST_S))
    assert facts.journal_last_s == LAST_S + 0.25 and facts.in_order is in_order
    assert (trouble or "") in (facts.trouble or "") and (facts.trouble is None) is (trouble is None)


def test_starts_and_shutdowns_are_read_from_wtmp() -> None:
    at = datetime.fromtimestamp(LAST_S, UTC).isoformat()
    said = f"now={LAST_S}\nwtmp=reboot   system boot  6.17 {at} - still running\nwtmp=shutdown x\n"
    assert power_off.parse_shutdown_facts(said, LAST_S).wtmp == ((float(LAST_S), True),)


def simulated(tmp_path: Path) -> SimulatedHost:
    host = SimulatedHost(LocalHost(), "gb10", str(tmp_path / "state"))
    driver = Path(host.driver_state)
    driver.mkdir(parents=True, exist_ok=True)
    (driver / "boot_id").write_text(f"{NEW}\n")
    return host


def test_a_host_is_asked_only_if_a_recording_was_cut_off(tmp_path: Path) -> None:
    async def work() -> None:
        host = simulated(tmp_path)
        await host.connect()
        assert await read_boot_id(host) == NEW
        now = int(time.time())  # the host's clock is this machine's
        said = f"journal={now - 101} box kernel: NVRM: Xid (PCI:000f:01:00): 79\n"
        (Path(host.driver_state) / "before_boot").write_text(said)
        recorded(tmp_path / "new", last_s=now - 100)
        recorded(tmp_path / "h")
        kept = kept_in(tmp_path / "new", now)
        found = await power_off.read_last_power_off_finding(host, kept, NEW)
        assert found is not None and "NVRM: Xid" in found.text
        assert await power_off.read_last_power_off_finding(host, kept, OLD) is None
        # this machine has no journal of such a boot, and its own start was long ago
        assert (
            await power_off.read_last_power_off_finding(LocalHost(), kept_in(tmp_path / "h"), NEW)
            is None
        )

    asyncio.run(work())


def test_the_first_screen_after_it_says_so_and_the_next_one_does_not() -> None:
    async def work() -> None:
        session = Session.of_host(None, "gb10")
        now = int(time.time())
        folder = history_files.history_directory(session.host.name, simulated=True)
        try:
            await session.link.connect()
            driver = Path(session.host.driver_state)  # type: ignore[attr-defined]
            (driver / "boot_id").write_text(NEW)
            (driver / "before_boot").write_text(f"journal={now - 90} box kernel: x\n")
            recorded(folder, session.host.name, now - 90)
            kept = session._start_keeping_history()
            kept.load_stored_history()
            await session.telemetry.start()
            await eventually(lambda: session.state.notice is not None, "the notice")
            assert session.state.notice is not None
            assert "went off without a shutdown" in session.state.notice.text
            assert "H shows" in session.state.notice.text
            number = session.state.notice.number
            files = folder.glob
            await eventually(
                lambda: [one for one in files("*.1s.jsonl") if NEW in one.read_text()],
                "the boot in the own recording",
            )
            again = history_files.load_history(folder, session.host.name, time.time())
            assert again.find_unclean_previous_boot_end(NEW) is not None
            await kept._report_power_off(again)
            assert session.state.notice.number == number
        finally:
            await session.close()
        ended = history_files.load_history(folder, session.host.name, time.time())
        assert {one.boot_id: one.in_order for one in ended.boots} == {OLD: False, NEW: True}

    asyncio.run(work())


async def eventually(condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, f"waited for {what}"
        await asyncio.sleep(0.02)

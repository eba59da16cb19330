"""A fleet on real agents of simulated hosts: state, totals, hosts that hang, are gone, or do not
exist."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.serving import eventually, free_port

from workbench.hosts.local import LocalHost
from workbench.model.alerts import alert_limits_by_rule
from workbench.model.errors import InputError
from workbench.model.gpu import DriverInfo, GpuSample, GpuState, HostSample, Telemetry
from workbench.model.settings import GpuSettings, parse_setting_argument
from workbench.session.fleet.fleet import Fleet
from workbench.session.fleet.member import FleetMember
from workbench.session.fleet.state import FleetHost, FleetState, fleet_totals
from workbench.session.session import Session
from workbench.tui.fleet.columns import NUMBERS, altered_and_alert_signs
from workbench.tui.fleet.table import host_notes_row

TWO = ("sim:four-pcie@a", "sim:four-pcie@b")


def read(names: tuple[str, ...], scenario: Callable[[Fleet], Awaitable[None]]) -> None:
    async def main() -> None:
        fleet = Fleet(names)
        await fleet.open()
        try:
            await scenario(fleet)
        finally:
            await fleet.close()

    asyncio.run(main())


def host(fleet: Fleet, name: str) -> FleetHost:
    return next(one for one in fleet.state.hosts if one.name == name)


def agents_of(name: str) -> list[psutil.Process]:
    """Return the telemetry agents of a simulated host."""
    wanted = f"/sim/{name.removeprefix('sim:')}/"
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if (
                wanted in process.environ().get("WORKBENCH_SIM_STATE", "") + "/"
                and "python" in process.name()
            ):
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_a_host_of_the_fleet_shows_the_alerts_that_are_active() -> None:
    """Only the screen of one host had them."""
    member = FleetMember("box", "", lambda _: LocalHost(), limits=alert_limits_by_rule({}))
    member._link = "connected"
    for state, said in (("lost", ("GPU1 can no longer be read",)), ("live", ())):
        gpus = (GpuSample(0, "GPU-0"), GpuSample(1, "GPU-1", state=GpuState(state)))
        member._store_reading(Telemetry(1.0, 1.0, DriverInfo(), HostSample(), (), gpus))
        view = member.make_fleet_host()
        assert [text.partition(":")[0] for text in view.alerts] == list(said)
        assert altered_and_alert_signs(view)[1][0] == ("A" if said else " ")
        assert all(text in str(host_notes_row(view)) for text in said)


@pytest.mark.slow
def test_one_reading_has_every_host_with_gpus_of_its_own() -> None:
    async def scenario(fleet: Fleet) -> None:
        state = await fleet.read_once(20.0)
        assert [(h.name, h.state, len(h.gpus), h.simulated) for h in state.hosts] == [
            (n, "live", 4, True) for n in TWO
        ]
        sums = fleet_totals(state.hosts)
        assert (sums.hosts, sums.live, sums.gpus, sums.busy, sums.servers) == (2, 2, 8, 0, 0)
        assert sums.power_w == pytest.approx(
            sum(g.power_w or 0.0 for h in state.hosts for g in h.gpus)
        )
        assert state.simulated

    read(TWO, scenario)
    folders = Path(os.environ["XDG_STATE_HOME"], "workbench", "sim")
    assert {folder.name for folder in folders.iterdir()} == {"four-pcie@a", "four-pcie@b"}


@pytest.mark.slow
@pytest.mark.long
def test_a_stopped_agent_makes_its_host_old_and_no_other() -> None:
    async def scenario(fleet: Fleet) -> None:
        await eventually(lambda: all(h.is_live for h in fleet.state.hosts), 20.0, "both hosts live")
        agents = agents_of(TWO[0])
        assert agents
        for agent in agents:
            agent.send_signal(signal.SIGSTOP)
        try:
            await eventually(
                lambda: host(fleet, TWO[0]).state == "stale", 20.0, "the age of the reading"
            )
            assert host(fleet, TWO[1]).is_live and fleet_totals(fleet.state.hosts).live == 1
            assert (host(fleet, TWO[0]).age_s or 0) > 4.0
        finally:
            for agent in agents:
                agent.send_signal(signal.SIGCONT)
        await eventually(lambda: host(fleet, TWO[0]).is_live, 20.0, "the host by itself again")

    read(TWO, scenario)


@pytest.mark.slow
def test_a_killed_agent_is_started_again() -> None:
    async def scenario(fleet: Fleet) -> None:
        await eventually(lambda: host(fleet, TWO[0]).is_live, 20.0, "the first reading")
        before = {agent.pid for agent in agents_of(TWO[0])}
        for agent in agents_of(TWO[0]):
            agent.kill()
        await eventually(
            lambda: (
                host(fleet, TWO[0]).is_live and bool({a.pid for a in agents_of(TWO[0])} - before)
            ),
            20.0,
            "a new agent",
        )

    read(TWO, scenario)


@pytest.mark.slow
def test_a_host_that_does_not_exist_says_why_and_costs_the_other_nothing() -> None:
    async def scenario(fleet: Fleet) -> None:
        state = await fleet.read_once(30.0)
        lost, live = state.hosts
        assert (lost.state, lost.telemetry) == ("down", None) and lost.problem
        assert live.is_live

    read(("no-such-host.invalid", TWO[0]), scenario)


def test_an_unknown_profile_is_refused_with_the_known_ones() -> None:
    async def scenario(fleet: Fleet) -> None:
        (found,) = (await fleet.read_once(20.0)).hosts
        assert found.state == "refused" and ("no simulated host is called 'nothing'") in (
            found.problem or ""
        )

    read(("sim:nothing",), scenario)


@pytest.mark.long
@pytest.mark.slow
def test_a_server_has_its_state_and_its_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server is started by another session while the fleet is read."""

    async def scenario(fleet: Fleet) -> None:
        session = Session.of_host(TWO[0])
        await session.link.connect()
        try:
            await session.plans.load_preset("vllm-qwen3-vl-2b-tp4-eager")
            session.plans.set_flag("port", str(free_port()))
            run_id = await session.servers.start()
            await eventually(lambda: bool(host(fleet, TWO[0]).servers), 30.0, "the run")
            assert host(fleet, TWO[0]).servers[0].name == run_id
            await eventually(lambda: host(fleet, TWO[0]).tok_s is not None, 30.0, "its token rate")
            await eventually(lambda: host(fleet, TWO[0]).ready_server_count == 1, 30.0, "READY")
            assert host(fleet, TWO[0]).tok_s == 0.0 and not host(fleet, TWO[1]).servers
            await session.servers.stop(run_id)
            await eventually(lambda: not host(fleet, TWO[0]).servers, 30.0, "its end")
        finally:
            await session.close()

    monkeypatch.setenv("WORKBENCH_SIM_START_S", "0.2")
    read(TWO, scenario)


@pytest.mark.long
@pytest.mark.slow
def test_altered_settings_are_seen() -> None:
    async def scenario(fleet: Fleet) -> None:
        session = Session.of_host(TWO[0])
        await session.link.connect()
        try:
            await session.gpu.apply_settings(
                GpuSettings(parse_setting_argument("power-limit=150")), 0
            )
            await eventually(lambda: bool(host(fleet, TWO[0]).altered), 30.0, "the altered setting")
            assert [a.gpu_index for a in host(fleet, TWO[0]).altered] == [0]
            await session.gpu.revert_settings()
            await eventually(lambda: not host(fleet, TWO[0]).altered, 30.0, "the revert")
        finally:
            await session.close()

    read(TWO, scenario)


@pytest.mark.parametrize("count", [0, 17])
def test_a_fleet_has_one_to_sixteen_hosts(count: int) -> None:
    with pytest.raises(InputError, match=f"a fleet has 1 to 16 hosts, got {count}"):
        Fleet([f"sim:gb10@{n}" for n in range(count)])


@pytest.mark.slow
def test_the_state_is_made_once_a_second_however_many_hosts() -> None:
    states: list[FleetState] = []

    async def scenario(fleet: Fleet) -> None:
        loop = asyncio.get_running_loop()
        times: list[float] = []
        fleet.subscribe(lambda state: (states.append(state), times.append(loop.time()))[0])
        await eventually(lambda: len(states) >= 4, 20.0, "four states")
        assert all(b - a > 0.5 for a, b in itertools.pairwise(times))

    read(TWO, scenario)


def made(**fields: Any) -> FleetHost:
    return FleetHost("box", link="connected", **fields)


def test_a_host_without_values_has_none_and_never_zero() -> None:
    empty = made()
    columns = [column.value(empty) for column in NUMBERS]
    assert columns == [None] * len(NUMBERS) and empty.util_pct is None and empty.power_w is None
    assert empty.state == "waiting" and made(problem="no driver").state == "no GPUs"

"""The screen of a fleet on states made here: the table at three sizes, the filter, the order, keys
in one packet."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from rich.cells import cell_len
from support.grid import check, grid

from workbench.model.gpu import DriverInfo, GpuInfo, GpuSample, HostSample, Telemetry
from workbench.model.setting_records import Alteration
from workbench.session.fleet.fleet import Fleet
from workbench.session.fleet.state import FleetHost, FleetServer, FleetState, fleet_totals
from workbench.tui.fleet.app import FleetApp
from workbench.tui.fleet.bars import TotalsBar
from workbench.tui.fleet.columns import (
    ORDERS,
    host_matches_filter,
    host_server_texts,
    number_column_texts,
    sort_hosts,
)
from workbench.tui.fleet.screen import FleetScreen, FleetView
from workbench.tui.fleet.table import FleetTable
from workbench.tui.formats import NA

GIB = 2**30


def gpus(count: int, util: float = 50.0, watts: float = 300.0, **fields: Any) -> Telemetry:
    infos = tuple(
        GpuInfo(n, f"GPU-{n}", "NVIDIA RTX PRO 6000 Blackwell Server "
        "Edition", power_max_w=600.0, sm_max_mhz=2430,
                memory_total_bytes=96 * GIB)
        for n in range(count)
    )  # fmt: skip
    samples = tuple(
        GpuSample(n, f"GPU-{n}", sm_mhz=1755, power_w=watts, gpu_util_pct=util, memory_used_bytes=48 * GIB,
                  memory_total_bytes=96 * GIB, temperature_c=60.0 + n, **fields)
        for n in range(count)
    )  # fmt: skip
    return Telemetry(1.0, 1.0, DriverInfo(driver_version="610.43"), HostSample(), infos, samples)


def of_machine(machine: str, telemetry: Telemetry) -> Telemetry:
    """Return `telemetry` with the UUIDs of the GPUs of one machine."""
    infos = [replace(info, uuid=f"{info.uuid}-{machine}") for info in telemetry.infos]
    samples = [replace(gpu, uuid=f"{gpu.uuid}-{machine}") for gpu in telemetry.gpus]
    return replace(telemetry, infos=tuple(infos), gpus=tuple(samples))


def box(name: str, telemetry: Telemetry | None = None, **fields: Any) -> FleetHost:
    machine = fields.pop("machine", name)
    telemetry = of_machine(machine, telemetry) if telemetry else None
    given = {
        "link": "connected",
        "age_s": 0.4 if telemetry else None,
        "telemetry": telemetry,
        **fields,
    }
    return FleetHost(name, **given)


SERVER = FleetServer(
    "run-1", "vllm", "Qwen/Qwen3-32B", 8000, "ready", values={"generation_tok_s": 1234.0}
)
ALTERED = Alteration(0, "GPU-0", "power_limit_w", 600.0, 400.0, 1.0)
FLEET = FleetState(
    (
        box("gpu-box-1", gpus(8, 99.0, 590.0, event_reasons=("SW thermal "
        "slowdown",)), servers=(SERVER,),
            util_trail=(10.0, 50.0, 99.0), power_trail=(900.0, 2400.0, 4720.0), tok_trail=(0.0, 600.0, 1234.0)),
        box("gpu-box-2", gpus(8, 3.0, 95.0), altered=(ALTERED,), label="lab"),
        box("old-box", gpus(4), age_s=14.0, problem="no reading for 14 s"),
        box("gone-box", link="lost", problem="closed by the other side"),
        box("new-box", link="connecting"),
        box("closed-box", link="refused", problem="the host accepted none of your keys"),
    )
)  # fmt: skip


def test_a_host_that_was_not_searched_for_servers_is_not_called_empty() -> None:
    """For the first two seconds, a host with a READY server had "no server" and 0 tok/s."""
    new, empty = box("new", gpus(1), servers_read=False), box("empty", gpus(1))
    assert [host_server_texts(host, 20)[0][0] for host in (new, empty)] == [NA, "no server"]
    assert [number_column_texts(host, 80)[-1][0].strip() for host in (new, empty)] == [NA, "-"]
    assert fleet_totals([new, empty]).tok_unknown == 1 and fleet_totals([empty]).tok_unknown == 0


def totals_text(*hosts: FleetHost) -> str:
    bar = TotalsBar()
    bar.hosts = hosts
    return "".join(text for text, _ in bar.rows(120, 1)[0])


def test_the_totals_count_no_servers_of_hosts_that_were_not_searched() -> None:
    new, empty = box("new", gpus(1), servers_read=False), box("empty", gpus(1))
    assert "  ≥0 servers ready" in totals_text(new, empty)
    assert "  0 servers ready" in totals_text(empty)
    nothing_known = totals_text(box("new-box", link="connecting"))
    assert "0/1 host live" in nothing_known
    assert "ready" not in nothing_known and " W" not in nothing_known


class OneState(Fleet):
    """A fleet with a state that a test sets."""

    def __init__(self, state: FleetState = FLEET) -> None:
        super().__init__([host.name for host in state.hosts])
        self.state = state
        self.tried: list[str] = []

    def retry_login(self, name: str, ask: Any = None) -> None:
        self.tried.append(name)


def shown(
    scenario: Callable[[FleetApp, Any], Awaitable[None]],
    size: tuple[int, int] = (120, 40),
    state: FleetState = FLEET,
    view: FleetView | None = None,
) -> FleetApp:
    async def main() -> FleetApp:
        app = FleetApp(OneState(state), view or FleetView())
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            await scenario(app, pilot)
        return app

    return asyncio.run(main())


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)], ids=str)
def test_the_fleet_looks_as_it_is_kept(size: tuple[int, int]) -> None:
    async def scenario(app: FleetApp, pilot: Any) -> None:
        check(f"fleet-{size[0]}x{size[1]}", grid(app))

    shown(scenario, size)


def test_sixteen_hosts_with_eight_gpus_fit_at_80x24() -> None:
    hosts = tuple(box(f"gpu-box-{n:02d}", gpus(8), servers=(SERVER,)) for n in range(16))

    async def scenario(app: FleetApp, pilot: Any) -> None:
        text = grid(app)
        assert all(host.name in text for host in hosts)
        assert "16/16 hosts live" in text and "128/128 GPUs busy" in text and "38,400 W" in text

    shown(scenario, (80, 24), FleetState(hosts))


def test_totals_are_of_live_hosts_and_say_what_is_not_known() -> None:
    sums = fleet_totals(FLEET.hosts)
    assert (sums.hosts, sums.live, sums.gpus, sums.busy, sums.servers) == (6, 2, 16, 8, 1)
    assert (sums.power_w, sums.power_unknown, sums.tok_s) == (8 * 590.0 + 8 * 95.0, 0, 1234.0)
    quiet = replace(FLEET.hosts[0], servers=(replace(SERVER, values={}),))
    assert (fleet_totals([quiet]).tok_s, fleet_totals([quiet]).tok_unknown) == (0.0, 1)


def test_totals_count_the_gpus_and_servers_of_one_machine_once() -> None:
    """A machine has two names, and its container shows the same GPUs."""
    found = FleetServer("http://127.0.0.1:8001", "vllm", "m", 8001, "found")
    pve = box("pve", gpus(2, watts=10.0), machine="m", servers=(SERVER, found))
    again = box("pve2", gpus(2, watts=10.0), machine="m", servers=(SERVER, found))
    container = box("llm", gpus(1, watts=10.0), machine="m")
    other = box("other", gpus(2, watts=10.0), servers=(found,))
    sums = fleet_totals([pve, again, container, other])
    assert (sums.gpus, sums.power_w, sums.busy, sums.servers) == (4, 40.0, 4, 3)
    assert sums.tok_s == 1234.0
    simulated = [replace(host, simulated=True) for host in (pve, again)]
    assert fleet_totals(simulated).gpus == 4


def names(app: FleetApp) -> list[str]:
    assert isinstance(app.screen, FleetScreen)
    return [host.name for host in app.screen.table.hosts]


@pytest.mark.slow
def test_keys_in_one_packet_act_in_their_order() -> None:
    """The letters after / are of the filter, also q and s; enter keeps the filter, a second enter
    opens the host."""

    async def scenario(app: FleetApp, pilot: Any) -> None:
        await pilot.press("slash", *"gpu", "space", *"thermal", "enter")
        assert names(app) == ["gpu-box-1"] and "filter: gpu thermal" in grid(app)
        await pilot.press("escape")
        assert len(names(app)) == 6
        await pilot.press("slash", *"qs", "escape", "down", "enter")
        await pilot.pause()

    assert shown(scenario).opened == "gpu-box-2"


def test_the_cursor_stays_on_its_host_when_the_order_changes() -> None:
    async def scenario(app: FleetApp, pilot: Any) -> None:
        await pilot.press("down")  # gpu-box-2
        await pilot.press("s", "s")  # state, then util
        assert app.view.order == "util" and app.view.host == "gpu-box-2"
        assert names(app)[:3] == ["gpu-box-1", "old-box", "gpu-box-2"]
        await pilot.press("S")
        assert names(app)[:3] == ["gpu-box-2", "old-box", "gpu-box-1"], (
            "hosts without a number stay last"
        )
        await pilot.press("home", "pagedown", "end")
        assert app.view.host == names(app)[-1]

    shown(scenario)


def test_the_worst_state_is_first() -> None:
    found = [host.name for host in sort_hosts(FLEET.hosts, "state", False)]
    assert found[:2] == ["gone-box", "closed-box"] and found[-2:] == ["gpu-box-1", "gpu-box-2"]
    assert set(ORDERS) >= {"host", "state", "power", "tok/s"}


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("lab", ["gpu-box-2"]),
        ("altered", ["gpu-box-2"]),
        ("THROTTLED busy", ["gpu-box-1"]),
        ("qwen3 :8000", ["gpu-box-1"]),
        ("lost", ["gone-box"]),
        ("rtx box-2", ["gpu-box-2"]),
        ("nothing like this", []),
        ("", [host.name for host in FLEET.hosts]),
    ],
)
def test_the_filter_finds_hosts_by_their_words(words: str, found: list[str]) -> None:
    assert [host.name for host in FLEET.hosts if host_matches_filter(host, words)] == found


def test_no_host_left_by_the_filter_says_so_and_enter_does_nothing() -> None:
    async def scenario(app: FleetApp, pilot: Any) -> None:
        await pilot.press("slash", *"zzz", "enter", "enter", "R", "down")
        assert "no host matches the filter" in grid(app) and app.is_running

    assert shown(scenario).opened is None


def test_retry_is_of_the_host_under_the_cursor() -> None:
    async def scenario(app: FleetApp, pilot: Any) -> None:
        await pilot.press("end", "R")
        assert isinstance(app.fleet, OneState) and app.fleet.tried == ["closed-box"]
        assert "the host accepted none of your keys" in grid(app)

    shown(scenario)


def test_the_keys_are_listed_and_q_leaves() -> None:
    async def scenario(app: FleetApp, pilot: Any) -> None:
        await pilot.press("question_mark")
        await pilot.pause()
        assert "open the host under the cursor" in grid(app)
        await pilot.press("escape", "q")
        await pilot.pause()

    app = shown(scenario)
    assert app.opened is None and app.return_code == 0


def test_names_from_outside_cannot_move_the_table() -> None:
    wide = box("ホスト" * 12, gpus(2))
    hosts = FleetState((wide, box("b", gpus(12), label="x" * 200)))

    async def scenario(app: FleetApp, pilot: Any) -> None:
        rows = [row for row in grid(app).splitlines() if "● live" in row]
        assert len({cell_len(row.partition("● live")[0]) for row in rows}) == 1 and len(rows) == 2

    for size in ((80, 24), (79, 23), (200, 60)):
        shown(scenario, size, hosts)


def test_every_width_has_a_table() -> None:
    """At 48 columns a graph without a cell was an IndexError."""
    table = FleetTable()
    table.show([box("one", gpus(8)), box("two")], 0)
    for width in range(1, 130):
        assert len(table.rows(width, 20)) > 2

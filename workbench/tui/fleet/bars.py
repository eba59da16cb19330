"""The rows around the fleet's table: the totals above it, the text about the host under the cursor,
and the keys below it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from workbench.model.counts import count_of
from workbench.session.fleet.state import fleet_totals
from workbench.tui.bindings import FLEET_KEYS
from workbench.tui.cells import Painted, Row, Run, join_rows, justify_row, paragraph_rows, row_width
from workbench.tui.fleet.table import host_notes_row, label_and_gpus_title
from workbench.tui.formats import number_text
from workbench.tui.glyphs import G

if TYPE_CHECKING:
    from workbench.session.fleet.state import FleetHost

SIGNS = (
    f"a cell per GPU is as high as its utilization  {G.alert} altered settings  A alert  "
    "! clocks lowered, or not read  "
    "x out of reach or lost  grey: an old reading"
)


class TotalsBar(Painted):
    """The first row of the fleet's screen: the totals of the hosts that match the filter, such as
    live hosts, busy GPUs, power and token rate."""

    GROUND = "bar"

    def __init__(self) -> None:
        super().__init__(id="status")
        self.hosts: Sequence[FleetHost] = ()
        self.simulated = False

    def show(self, hosts: Sequence[FleetHost], is_simulated: bool) -> None:
        self.hosts, self.simulated = hosts, is_simulated
        self.repaint()

    def rows(self, width: int, height: int) -> Sequence[Row]:
        sums = fleet_totals(self.hosts)
        power, rate = f"{sums.power_w:,.0f} W", f"{number_text(sums.tok_s, 0)} tok/s"
        if sums.power_unknown:
            power = G.at_least + power
        if sums.tok_unknown:
            rate = G.at_least + rate
        servers = f"{count_of(sums.servers, 'server')} ready"
        if sums.servers_unknown:
            servers = G.at_least + servers
        live_role = "good"
        if sums.live < sums.hosts:
            live_role = "warnb"
        parts: list[Row] = [
            (
                (" fleet  ", "strong"),
                (f"{sums.live}/{count_of(sums.hosts, 'host')} live", live_role),
            ),
            ((f"{sums.busy}/{count_of(sums.gpus, 'GPU')} busy", "text"),),
            ((power, "strong"),),
            ((rate, "strong"),),
            ((servers, "text"),),
        ]
        if not sums.live:  # nothing is known yet: 0 W would be untrue
            parts = parts[:1]
        tail: Row = ()
        if self.simulated:
            tail = ((" SIMULATED ", "reverse"),)
        gap: Run = ("  ", "text")
        if row_width((*join_rows(parts, gap), *tail)) > width:
            parts = parts[:-1]
        return [justify_row(join_rows(parts, gap), tail, width)]


class HostDetails(Painted):
    """Two rows about the host under the cursor: its GPUs, driver and latency, then its problems,
    altered settings and throttled GPUs."""

    def __init__(self) -> None:
        super().__init__(id="command")
        self.host: FleetHost | None = None

    def show(self, host: FleetHost | None) -> None:
        self.host = host
        self.repaint()

    def rows(self, width: int, height: int) -> Sequence[Row]:
        host = self.host
        if host is None:
            return []
        facts = [label_and_gpus_title(host)]
        if host.telemetry is not None and host.telemetry.driver.driver_version:
            facts.append(f"driver {host.telemetry.driver.driver_version}")
        if host.latency_ms is not None:
            facts.append(f"{host.latency_ms:.0f} ms away")
        if host.simulated:
            facts.append("simulated")
        first: Row = ((host.name, "strong"), ("  " + "  ".join(filter(None, facts)), "text"))
        notes = host_notes_row(host)[1:]
        if host.telemetry is None and host.problem:
            return [first, *paragraph_rows(host.problem, width, "bad")]
        if not notes and host.is_live:
            notes = (("nothing is altered or throttled", "dim"),)
        return [first, notes]


class FleetFooter(Painted):
    """The last row of the fleet's screen: its keys or, while the user types a filter, the text of
    the filter."""

    GROUND = "bar"

    def __init__(self) -> None:
        super().__init__(id="footer")
        self.filter_text, self.is_typing = "", False

    def show(self, filter_text: str, is_typing: bool) -> None:
        self.filter_text, self.is_typing = filter_text, is_typing
        self.repaint()

    def rows(self, width: int, height: int) -> Sequence[Row]:
        if self.is_typing:
            entry: Row = ((" / ", "key"), (self.filter_text, "strong"), (" ", "select"))
            keys: Row = (
                (" enter", "key"),
                (" keep ", "text"),
                (" esc", "key"),
                (" remove ", "text"),
            )
            return [justify_row(entry, keys, width)]
        keys_row: list[Run] = []
        for key in sorted((k for k in FLEET_KEYS if k.footer), key=lambda k: k.footer):
            keys_row += [(f" {key.name_on_keyboard}", "key"), (f" {key.label} ", "text")]
        tail: Row = ()
        if self.filter_text:
            tail = (
                (f"  filter: {self.filter_text} ", "warnb"),
                (" esc", "key"),
                (" remove ", "text"),
            )
        if row_width(tail) >= width:
            return [tail]
        return [justify_row(tuple(keys_row), tail, width)]

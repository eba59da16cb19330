"""The keys of hosts: choose another host, examine it, connect again, and trust the key of a host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.model.counts import count_of
from workbench.tui.cells import Row, paragraph
from workbench.tui.controllers.base import Controller
from workbench.tui.glyphs import G
from workbench.tui.modals.ask import Confirm, running_rows
from workbench.tui.modals.base import PickModal
from workbench.tui.pages.base import Page
from workbench.tui.pages.doctor import doctor_rows

if TYPE_CHECKING:
    from workbench.session.doctor import HostReport

DEMO_PROFILE = "four-pcie"


def _about(name: str, now: str) -> str:
    simulated = "  simulated: needs no GPU" if name.startswith("sim:") else ""
    return simulated + ("  (now)" if name == now else "")


class HostController(Controller):
    async def pick(self) -> None:
        names = self.try_now(self.session.known_hosts) or ()
        now = self.state.host.name
        items = [(n, n + _about(n, now), "text") for n in names]

        async def chosen(name: str | None) -> None:
            if name and name != now:
                await self.switch(name)

        await self.app.push_screen(PickModal("Work on another host", items, chosen=now, filter=True), chosen)

    async def demo(self) -> None:
        """Work on four simulated GPUs, to try Workbench without any."""
        if self.state.simulated:
            self.say(f"{self.state.host.name} is simulated already; h works on another host")
        else:
            await self.switch(f"sim:{DEMO_PROFILE}")

    async def switch(self, name: str) -> None:
        """Leave this host and work on the host with this name. Ask first if leaving ends a measurement or reverts GPU
        settings."""
        now = self.state.host.name

        def text(width: int) -> list[Row]:
            rows = running_rows(self.state, width)
            if any(a.state != "kept" and not a.by for a in self.state.alterations):
                about = f"{G.alert} GPU settings of {now} are altered: the guard reverts them when Workbench has left."
                rows += paragraph(f"{about} L in pane 6 leaves them in force.", width, "warn")
            return rows

        def decided(yes: bool | None) -> None:
            if yes:
                self.say(f"leaving {now} …")
                self.attempt(self.session.switch_host(name))

        if text(80):
            await self.app.push_screen(Confirm(f"Leave {now}", text, yes=f"work on {name}", no="stay"), decided)
        else:
            decided(True)

    def examine(self) -> None:
        """Open the page of what the host lacks, and examine the host for it. The page's key examines the host again."""
        from workbench.session.doctor import examine

        name = self.state.host.name
        found: list[HostReport] = []
        page = Page(f"Doctor: {name}", lambda width: doctor_rows(found, width), lambda: {"R": ("examine again", look)})

        def show(report: HostReport) -> None:
            found[:] = [report]
            page.title = f"Doctor: {name}, {count_of(len(report.findings), 'finding')}"
            page.draw()

        def look() -> None:
            found.clear()
            page.draw()
            self.attempt(examine(self.session), show, failed=page.leave, only="doctor")

        self.services.pages.open(page)
        look()

    def try_again(self) -> None:
        self.attempt(self.session.try_again())

    async def ask_host_key(self) -> None:
        """Show the fingerprint of an unknown host key, and connect if the user confirms that it is right."""
        host = self.state.host

        def decided(yes: bool | None) -> None:
            if yes:
                self.attempt(self.session.accept_host_key())

        box = Confirm(
            f"Unknown host key of {host.name}",
            lambda w: paragraph(host.message or "", w),
            yes="the fingerprint is right: connect",
            no="do not connect",
        )
        await self.app.push_screen(box, decided)

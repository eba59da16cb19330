"""The keys of hosts: choose another host, examine it, connect again, and trust the key of a host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType

from workbench.model.counts import count_of
from workbench.tui.cells import Row, cut, pad, paragraph
from workbench.tui.controllers.base import Controller
from workbench.tui.glyphs import G
from workbench.tui.modals.ask import Confirm, running_rows
from workbench.tui.modals.base import Choice, PickModal
from workbench.tui.modals.form import Field, Form, Values
from workbench.tui.pages.base import Page
from workbench.tui.pages.doctor import doctor_rows

if TYPE_CHECKING:
    from workbench.session.doctor import HostReport
    from workbench.session.host_names import KnownHost

DEMO_PROFILE = "four-pcie"


NAME_CELLS, LABEL_CELLS = 28, 30
FIELDS = (
    Field("name", "name", hint="the host's name in commands"),
    Field("ssh", "ssh", hint="alias, HOST or USER@HOST; empty: as name"),
    Field("container", "container", hint="podman:NAME, pct:ID …; empty: none"),
    Field("label", "label", hint="any text"),
)


def _about(host: KnownHost, now: str, cells: int) -> str:
    simulated = "simulated: needs no GPU" if host.name.startswith("sim:") else ""
    parts = (cut(host.label, LABEL_CELLS), host.way, simulated, host.source, "(now)" if host.name == now else "")
    return f"{pad(host.name, cells)} {'  '.join(filter(None, parts))}"


class HostList(PickModal):
    """The list of hosts. Its outcome is the name of a host, or `ADD`."""

    ADD = "\n"  # no host has this name
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+n", "add", show=False, priority=True)]

    def __init__(self, items: Sequence[Choice], chosen: str) -> None:
        super().__init__("Work on another host", items, chosen=chosen, filter=True)
        self.keys += "   ctrl+n add a host"

    def action_add(self) -> None:
        self.dismiss(self.ADD)


class HostController(Controller):
    async def pick(self, chosen: str = "") -> None:
        """Open the list of hosts, with the cursor on `chosen`, by default the present host."""
        now = self.state.host.name
        known = self.try_now(self.session.hosts.known) or ()
        cells = min(NAME_CELLS, max((len(host.name) for host in known), default=0))
        items = [(host.name, _about(host, now, cells), "text") for host in known]

        async def taken(name: str | None) -> None:
            if name == HostList.ADD:
                await self.add()
            elif name and name != now:
                await self.switch(name)

        await self.app.push_screen(HostList(items, chosen or now).add_class("-wide"), taken)

    async def add(self) -> None:
        """Ask for a host, write it to hosts.toml, and open the list of hosts again."""

        async def submit(values: Values) -> None:
            self.session.hosts.add(values["name"], values["ssh"], values["container"], values["label"])

        async def added(values: Values | None) -> None:
            if values is not None:
                await self.pick(values["name"])

        form = Form("Add a host to hosts.toml", FIELDS, submit=submit, accept="add", label_cells=11, wide=True)
        await self.app.push_screen(form, added)

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

"""Hosts: working on another one, connecting again, and trusting a host's key."""

from __future__ import annotations

from workbench.tui.cells import paragraph
from workbench.tui.controllers.base import Controller
from workbench.tui.modals.ask import Confirm
from workbench.tui.modals.base import PickModal


class HostController(Controller):
    async def pick(self) -> None:
        names = self.try_now(self.session.known_hosts) or ()
        now = self.state.host.name
        items = [(n, n + ("  (now)" if n == now else ""), "text") for n in names]

        def chosen(name: str | None) -> None:
            if name and name != now:
                self.switch(name)

        await self.app.push_screen(PickModal("Work on another host", items, chosen=now, filter=True), chosen)

    def switch(self, name: str) -> None:
        self.attempt(self.session.switch_host(name))

    def try_again(self) -> None:
        self.attempt(self.session.try_again())

    async def ask_host_key(self) -> None:
        """Ask whether the fingerprint in the host's message is right, and connect if it is."""
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

"""The key that opens the fleet, a screen with all hosts, over the main screen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.tui.controllers.base import Controller, import_module_in_thread

if TYPE_CHECKING:
    from workbench.tui.fleet.screen import FleetView


class FleetController(Controller):
    view: FleetView | None = None  # the next fleet has the same filter and order

    async def open_fleet(self) -> None:
        """Open the screen with all hosts over the main screen: this host and the hosts of
        hosts.toml or, without that file, of the ssh configuration. If the user opens a host there,
        switch Workbench to that host."""
        for module in ("workbench.session.fleet.fleet", "workbench.tui.fleet.over_main"):
            await import_module_in_thread(module)
        from workbench.session.fleet.fleet import MAX_HOSTS, Fleet, fleet_host_names_and_labels
        from workbench.tui.fleet.over_main import FleetOverMain
        from workbench.tui.fleet.screen import FleetView

        now = self.state.host
        names, labels = fleet_host_names_and_labels()
        own = () if now.kind == "cluster" else (now.name,)  # a cluster's nodes are hosts
        names = tuple(dict.fromkeys((*own, *names)))
        if len(names) > MAX_HOSTS:
            self.show_message(
                f"{len(names)} hosts are known; the fleet shows only the first {MAX_HOSTS}"
            )
        self.view = self.view or FleetView()
        self.view.host = now.name

        async def switch_to_chosen_host(name: str | None) -> None:
            if name is not None and name != self.state.host.name:
                await self.controllers.hosts.switch_host(name)

        def close_fleet(name: str | None) -> None:
            screen.dismiss(name)

        screen = FleetOverMain(Fleet(names[:MAX_HOSTS], labels), self.view, close_fleet)
        await self.app.push_screen(screen, switch_to_chosen_host)

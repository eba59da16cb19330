"""The screen of the fleet over the main screen of a host."""

from __future__ import annotations

from workbench.tui.fleet.screen import FleetScreen


class FleetOverMain(FleetScreen):
    """The screen of the fleet over the main screen. The hosts are read only while it is shown."""

    leaves_by_escape = True

    async def on_mount(self) -> None:
        await self.fleet.open()

    async def on_unmount(self) -> None:
        await self.fleet.close()

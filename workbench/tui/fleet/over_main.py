"""The screen of the fleet over the main screen of a host."""

from __future__ import annotations

from workbench.tui.fleet.screen import FleetScreen


class FleetOverMain(FleetScreen):
    """The screen of the fleet, opened over the main screen of a host. It reads telemetry of the
    hosts only while it is open."""

    leaves_by_escape = True

    async def on_mount(self) -> None:
        await self.fleet.open()

    async def on_unmount(self) -> None:
        await self.fleet.close()

"""The keys of the page about the check of a host or cluster, and the keys that start and stop a
cluster's server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from workbench.model.errors import HostError
from workbench.model.findings import Level
from workbench.model.server_run import living_servers_sentence
from workbench.session.hosts.names import CLUSTER_PREFIX
from workbench.tui.bindings import CHECK_KEYS
from workbench.tui.cells import Row, paragraph_rows
from workbench.tui.controllers.base import Controller, import_module_in_thread
from workbench.tui.formats import duration_text
from workbench.tui.modals.ask import Confirm
from workbench.tui.modals.base import PickModal
from workbench.tui.pages.base import Page
from workbench.tui.pages.doctor import examination_rows

if TYPE_CHECKING:
    from workbench.model.server_run import ServerStatus
    from workbench.session.hosts.check import HostCheck
    from workbench.session.servers.cluster_servers import ClusterSnapshot
    from workbench.tui.controllers import Controllers

HOST_LIMIT_S, CLUSTER_LIMIT_S = 30.0, 90.0


class CheckController(Controller):
    def __init__(self, controllers: Controllers) -> None:
        super().__init__(controllers)
        self.name = ""  # of the host or cluster of the page
        self.found: list[
            HostCheck | ClusterSnapshot
        ] = []  # the newest one; none while the check runs
        self._page: Page | None = None
        self._began_s = 0.0

    def open_check_page(self, target_name: str) -> None:
        """Open the page with the check of the host or cluster `target_name`, and start this
        check."""
        self.name = target_name
        self._page = Page(f"Check of {target_name}", self._make_check_rows, kind="check")
        of_cluster = target_name.startswith(CLUSTER_PREFIX)
        keys = [key for key in CHECK_KEYS if of_cluster or key.key not in ("s", "x")]
        self._page.replace_keys(keys, self.controllers)
        self.services.pages.open(self._page)
        self.run_check()

    def _make_check_rows(self, width: int) -> list[Row]:
        if self.found:
            return examination_rows(self.found, width)
        limit_s = HOST_LIMIT_S
        if self.name.startswith(CLUSTER_PREFIX):
            limit_s = CLUSTER_LIMIT_S
        text = (
            f"checking {self.name}: {duration_text(time.monotonic() - self._began_s)}, at most "
            f"{duration_text(limit_s)}"
        )
        return paragraph_rows(text, width, "dim")

    def run_check(self) -> None:
        """Check the host or cluster that the check page shows, and add the findings to the page
        when the check ends."""
        page, name = self._page, self.name
        if page is None:
            self.show_message(
                "no page with a check is open",
                next_step="press h, then ctrl+t to check the host under the cursor",
            )
            return
        self.found.clear()
        self._began_s = time.monotonic()
        page.title = f"Check of {name}"
        page.draw()

        def show_findings(found: HostCheck | ClusterSnapshot) -> None:
            from workbench.session.servers.cluster_servers import finding_counts_text

            outcome = state = finding_counts_text(found.findings)
            servers = getattr(found, "servers", None)
            if servers is not None:
                state = living_servers_sentence(servers)
                outcome = f"{state}; {outcome}"
            self.controllers.hosts.last_state_texts[name] = state
            if page is self._page:
                self.found[:] = [found]
                page.title = f"Check of {name}: {outcome}"
                page.draw()

        self.run_in_background(
            self._check_host_or_cluster(name),
            show_findings,
            on_error=page.close_page,
            exclusive_group="check",
        )

    async def _check_host_or_cluster(self, name: str) -> HostCheck | ClusterSnapshot:
        """Check the host or cluster `name`, and return what was found. A host is checked over a new
        connection. Raise HostError if the check of a cluster takes longer than CLUSTER_LIMIT_S
        seconds."""
        await import_module_in_thread("workbench.session.servers.cluster_servers")
        if name.startswith(CLUSTER_PREFIX):
            from workbench.session.servers import cluster_servers

            try:
                async with asyncio.timeout(CLUSTER_LIMIT_S):
                    session = await self.session.hosts.get_session(name)
                    return await cluster_servers.examine_cluster_and_servers(
                        session, session.plans.current
                    )
            except TimeoutError:
                text = f"the check did not end within {CLUSTER_LIMIT_S:g} s"
                step = f"workbench cluster check {name.removeprefix(CLUSTER_PREFIX)}"
                raise HostError(text, host=name, next_step=step) from None
        await import_module_in_thread("workbench.session.hosts.check")
        from workbench.session.hosts.check import check_all_hosts
        from workbench.session.session import Session

        return (
            await check_all_hosts([name], Session.of_host, self.session.link.ask, HOST_LIMIT_S)
        )[0]

    async def switch_to_checked_host(self) -> None:
        """Switch Workbench to the host or cluster that the check page shows. If Workbench works on
        it already, only close the page."""
        if self.name not in ("", self.state.host.name):
            await self.controllers.hosts.switch_host(self.name)
        else:
            self.services.pages.close_all()

    # ---- the server of a cluster

    async def start_server(self) -> None:
        """Switch Workbench to the cluster that the check page shows, and open the page from which
        the user can start the planned server there."""
        self.services.pages.close_all()
        if self.name == self.state.host.name:
            await self.controllers.servers.start_server()
        elif self.state.plan is None:
            self.show_message(
                f"there is no plan to start on {self.name}", next_step="press p to load a preset"
            )
        else:
            await self.controllers.hosts.switch_host(
                self.name, lambda: self.run_in_background(self._start_server_on_cluster(self.name))
            )

    async def _start_server_on_cluster(self, name: str) -> None:
        """Wait until Workbench is connected to the cluster `name`, search the cluster for servers
        and the engine, and open the page from which the user starts the server. Do nothing if the
        connection fails or the user has switched to another host."""
        changed = asyncio.Event()
        unsubscribe = self.session.subscribe(lambda state, fields: changed.set())
        try:
            while self.state.host.link == "connecting":
                changed.clear()
                await changed.wait()
        finally:
            unsubscribe()
        host = self.state.host
        if (host.name, host.link) != (name, "connected"):  # the screen says why
            return
        await asyncio.gather(
            self.session.servers.list_runs_and_select_one(), self.session.plans.locate_engine()
        )
        await self.controllers.servers.start_server()

    def stop_server(self) -> None:
        """Ask for consent, and stop the server of the cluster that the check page shows, on all its
        nodes. If several servers are running, ask first which one to stop."""
        if not self.found:
            self.show_message("the check is not finished")
            return
        servers: Sequence[ServerStatus] = getattr(self.found[0], "servers", ())
        if not servers:
            self.show_message(f"no server runs on {self.name}")
        elif len(servers) == 1:
            self._ask_to_stop_server(servers[0])
        else:
            runs = {status.run_id: status for status in servers}
            items = [
                (s.run_id, f"{s.run_id}  {s.state_word}  {s.engine}  {s.model}", "text")
                for s in servers
            ]

            def ask_to_stop_chosen(run_id: str | None) -> None:
                if run_id in runs:
                    self._ask_to_stop_server(runs[run_id])

            self.app.push_screen(
                PickModal(f"Stop a server of {self.name}", items), ask_to_stop_chosen
            )

    def _ask_to_stop_server(self, server: ServerStatus) -> None:
        name = self.name

        def make_question_rows(width: int) -> list[Row]:
            about = (
                f"{server.run_id}: {server.engine} {server.model}, {server.state_word}, on {name}"
            )
            ranks = ", ".join(f"{rank.label} on {rank.host}" for rank in server.ranks)
            return [*paragraph_rows(about, width), *paragraph_rows(ranks, width, "dim")]

        def stop_if_confirmed(yes: bool | None) -> None:
            if yes:
                self.show_message(f"stopping {server.run_id} on {name} …")
                self.run_in_background(
                    self._stop_run_and_return_status(name, server.run_id), self._report_stop_outcome
                )

        self.app.push_screen(
            Confirm("Stop the server", make_question_rows, yes="stop it", no="leave it running"),
            stop_if_confirmed,
        )

    async def _stop_run_and_return_status(self, name: str, run_id: str) -> ServerStatus:
        session = await self.session.hosts.get_session(name)
        await session.servers.stop(run_id)
        return session.servers.supervisor.status(run_id)

    def _report_stop_outcome(self, status: ServerStatus) -> None:
        if status.may_still_be_running:
            text = (
                f"{status.run_id} is {status.state}: "
                f"{status.reason or 'processes of it still live'}"
            )
            self.show_message(
                text, Level.ERROR, "press x to try the stop again, or o to see the server's log"
            )
        else:
            self.show_message(f"{status.run_id} is {status.state}")
        if self._page is not None and self._page.frame is not None:
            self.run_check()

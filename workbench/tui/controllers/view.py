"""The keys for moving between panes, for the activity page, and for leaving."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress

from workbench.model.findings import Level
from workbench.model.watch import Night
from workbench.report.watch_night import night_blocks, verdict_items
from workbench.store import paths
from workbench.store.watches import WatchStore
from workbench.tui.block_rows import block_rows
from workbench.tui.cells import Row, paragraph_rows
from workbench.tui.controllers.base import Controller
from workbench.tui.interfaces import Themed
from workbench.tui.modals.ask import Quit
from workbench.tui.modals.gpu_confirm import ConfirmSettings
from workbench.tui.pages.base import Page
from workbench.tui.pages.changes_while_away import changes_since_leaving_rows
from workbench.tui.pages.texts import activity_rows
from workbench.tui.panes.search import Search

BENCH_END_S = 10.0  # for a benchmark to store what it has measured, when the user leaves


class ViewController(Controller):
    def activate_next_pane(self, step: int) -> None:
        self.services.panes.activate_next_pane(step)

    def toggle_pane_zoom(self) -> None:
        panes = self.services.panes
        if self.services.pages.visible_page is not None:  # it has all the room there is
            return
        panes.zoomed = not panes.zoomed
        panes.activate_pane(panes.active)

    async def close_topmost(self) -> None:
        """Close the first of these that is open: the search input, the message, the view of an
        earlier time, the zoomed pane, the GPUs pane. An open page handles the escape key itself."""
        panes = self.services.panes
        if self.services.screen.query(Search):
            await self.controllers.search.close_search_input()
        elif self.services.notice_bar.display:
            self.services.clear_message()
        elif panes.strip.shows_past:
            panes.strip.move_to_now()
        elif panes.zoomed:
            self.toggle_pane_zoom()
        elif not panes.current_pane.AREA and not panes.single:
            panes.activate_pane("launch")

    # pages
    def open_activity(self) -> None:
        def open_activity_page(_: object) -> None:
            host = self.state.host.name
            done = tuple(a for a in self.state.activity if a.host == host)
            gpus = len(self.state.gpus)

            def make_activity_rows(width: int) -> list[Row]:
                since = changes_since_leaving_rows(self.state.changes_while_away, gpus, width)
                return [*since, *activity_rows(done, width)]

            self.services.drop_postponed_notice()
            self.services.pages.open(Page(f"Done to {host}, newest first", make_activity_rows))

        self.run_in_background(self.session.screen_memory.load_activity_log(), open_activity_page)

    def open_newest_watch_night(self) -> None:
        """Open the page of the newest night of the watches, with the nights before it."""

        def open_night_page(nights: Sequence[Night]) -> None:
            if not nights:
                return self.show_message(
                    "no night of a watch yet",
                    Level.INFO,
                    "workbench watch add, then workbench watch run",
                )
            newest, *earlier = nights
            blocks = [*night_blocks(newest, earlier), verdict_items(newest)]
            when = time.strftime("%Y-%m-%d %H:%M", time.localtime(newest.unix_s))
            title = f"Night {newest.id} of the watches, {when}"
            return self.services.pages.open(
                Page(title, lambda width: block_rows(blocks, width), kind="nights")
            )

        store = WatchStore(paths.watches_dir())
        self.run_in_background(asyncio.to_thread(store.nights), open_night_page)

    def save_picture(self) -> None:
        try:
            path = self.app.save_screenshot(path=".")
        except OSError as error:
            self.show_message(f"cannot write the picture of the screen: {error}", Level.ERROR)
        else:
            self.show_message(f"picture written: {path}")

    def switch_and_store_theme(self, name: str) -> None:
        """Draw with the theme `name` from now on, and save the choice in config.toml."""
        from workbench.store.config import ConfigStore

        if isinstance(self.app, Themed):
            self.app.switch_theme(name)
        self.run_or_show_error(lambda: ConfigStore().set(("ui", "theme"), name))

    # leaving
    async def quit(self) -> None:
        """Leave at once if nothing is running and no GPU setting is altered. Otherwise ask which
        servers to stop and whether to revert the settings."""
        state = self.state
        server, title = state.live_server, None
        if server is not None:
            title = server.title
        works = state.bench.running or state.running_series or state.host.model_work is not None
        if server is None and not state.alterations and not works:
            self.app.exit(0)
            return

        def leave_as_chosen(choice: dict[str, bool] | None) -> None:
            if choice is None:
                return
            if state.alterations and not choice["keep"] and state.host.sudo_password:
                self._ask_password_and_leave(choice["stop"])
            else:
                self.run_in_background(
                    self.end_application(stop_server=choice["stop"], retain_settings=choice["keep"])
                )

        await self.app.push_screen(Quit(state, title), leave_as_chosen)

    def _ask_password_and_leave(self, stop_server: bool) -> None:
        def leave_if_confirmed(answer: dict[str, str] | None) -> None:
            if answer is not None:
                ending = self.end_application(
                    stop_server=stop_server,
                    retain_settings=False,
                    password=answer.get("password"),
                )
                self.run_in_background(ending)

        text = "sudo on this host asks for a password before the settings can be reverted."
        self.app.push_screen(
            ConfirmSettings(
                "Revert and leave",
                lambda w: paragraph_rows(text, w),
                yes_text="revert and leave",
                asks_password=True,
            ),
            leave_if_confirmed,
        )

    async def end_application(
        self, *, stop_server: bool, retain_settings: bool, password: str | None = None
    ) -> None:
        """End the application after cancelling the benchmark and, if `stop_server` is true,
        stopping the server. Leave the GPU settings altered if `retain_settings` is true, otherwise
        revert them with sudo's `password`. If a setting cannot be reverted, show the report and do
        not end."""
        if self.state.bench.running:
            self.show_message("ending the benchmark …")
            with suppress(TimeoutError):
                await asyncio.wait_for(self.session.bench.cancel(), BENCH_END_S)
        if stop_server:
            self.show_message("stopping the server …")
            await self.session.servers.stop()
        if self.state.alterations and retain_settings:
            self.show_message("leaving the GPU settings on …")
            await self.session.gpu.guard.leave_settings_on_unguarded()
        elif self.state.alterations:
            self.show_message("reverting GPU settings …")
            report = await self.session.gpu.revert_settings(password=password)
            if not report.ok:
                self.controllers.gpu.show_settings_report(
                    "Not every GPU setting could be reverted", report
                )
                return
        self.app.exit(0)

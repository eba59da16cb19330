"""The main screen: its rows and panes, which parts draw which fields of the state, and the methods
that its keys run."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.reactive import Reactive
from textual.screen import Screen
from textual.timer import Timer
from textual.widget import Widget

from workbench.model.findings import Level
from workbench.model.server_run import ServerState
from workbench.session.session import Session
from workbench.session.state import SessionState
from workbench.tui.bindings import (
    ACTING,
    FIRST_KEYS_FIELDS,
    ON_PAGES,
    REPLAY_KEYS,
    TIME_KEYS,
    make_textual_bindings,
    suggest_next_keys,
)
from workbench.tui.bridge import LOG, TELEMETRY, Bridge
from workbench.tui.controllers import Controllers
from workbench.tui.pages.frame import PageFrame
from workbench.tui.pane_layout import HEIGHTS, WIDTHS, PaneLayout
from workbench.tui.panes import KEYS, PANES, SCREEN
from workbench.tui.panes.base import Pane
from workbench.tui.panes.log import LogPane
from workbench.tui.services import Services
from workbench.tui.widgets.bars import CommandBar, Footer, NoticeBar, TabRow
from workbench.tui.widgets.gpu_strip import GpuStrip
from workbench.tui.widgets.progress import ProgressRows
from workbench.tui.widgets.status_bar import StatusBar

if TYPE_CHECKING:
    from workbench.session.changes_while_away import ChangesSinceLastScreen
    from workbench.tui.alert_signals import AlertSignals

REST_S = 0.2  # without a move, after which the cursor of the Bench pane rests


class MainScreen(Screen[None]):
    BINDINGS: ClassVar[list[BindingType]] = make_textual_bindings(SCREEN)
    HORIZONTAL_BREAKPOINTS = WIDTHS
    VERTICAL_BREAKPOINTS = HEIGHTS

    # Textual draws the whole screen again when the focus moves. Whatever shows the focus draws
    # itself.
    focused: Reactive[Widget | None] = Reactive(None, repaint=False)

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session
        self.status_bar = StatusBar()
        self.strip = GpuStrip(session.timeline.history, session.state)
        self.tabs = TabRow([pane.TITLE for pane in PANES])
        self.command_bar, self.notice_bar, self.footer = CommandBar(session), NoticeBar(), Footer()
        self.progress = ProgressRows()
        pages = PageFrame(self.footer, lambda: self.panes.show_visible_page_or_panes())
        self.panes = PaneLayout(
            self, [pane(session) for pane in PANES], pages, self.tabs, self.strip
        )
        self.services = Services(
            self, session, self.panes, self.notice_bar, self.status_bar, self.progress
        )
        self.controllers = Controllers(self.services)
        self.bridge = Bridge(session, self)
        self._signals: AlertSignals | None = None  # since the first alert
        self._rests: Timer | None = None  # until the cursor of the Bench pane rests
        self._mounted = asyncio.Event()  # set when the screen can take keys
        self._host_message = ""  # the last one that was shown
        self._host_name = session.state.host.name
        self._server_state: tuple[str | None, ServerState | None] = (None, None)

    def compose(self) -> ComposeResult:
        width, height = self.app.size
        for limits, size in ((WIDTHS, width), (HEIGHTS, height)):
            # Textual does this with the first resize, after it has laid out and drawn everything
            # once for nothing. Here there are no widgets yet whose styles would be computed again.
            self.add_class([name for limit, name in limits if size >= limit][-1], update=False)
        yield self.status_bar
        yield self.strip
        yield self.tabs
        yield from self.panes.compose()
        yield self.notice_bar
        yield self.command_bar
        yield self.progress
        yield self.footer

    async def on_mount(self) -> None:
        self.notice_bar.display = False
        if self.session.state.plan:
            self.panes.active = "launch"
        if self._is_replay:
            self.panes.active = "gpu"  # the other panes are about what can be run
            self._update_footer_keys()
        self.panes.arrange_panes()
        self.set_focus(self.panes.current_pane)
        self.draw_changes(self.session.state, frozenset(SessionState.__dataclass_fields__))
        self.bridge.start()
        self.services.run_in_background(self.session.open())
        self._mounted.set()

    def on_screen_suspend(self) -> None:
        self.footer.set_keys_hidden(True)

    def on_screen_resume(self) -> None:
        self.footer.set_keys_hidden(False)

    def on_unmount(self) -> None:
        self.bridge.stop()
        if self._signals is not None:
            self._signals.restore_window_title()

    # keys
    @property
    def is_busy(self) -> bool:
        return self.services.is_busy

    async def wait_until_page_opened(self) -> None:
        """Wait until the screen and the open page, if any, are mounted and receive keys."""
        await self._mounted.wait()
        await self.panes.pages.wait_until_mounted()
        page = self.panes.pages.visible_page
        if self.is_current and page not in (None, self.focused):
            self.set_focus(page)

    async def action_do(self, key: str) -> None:
        """Run the controller method of a key. `key` is the id of the key, such as "screen s"."""
        if key in ACTING and self._is_replay:
            text = (
                f"{KEYS[key].name_on_keyboard} needs a host: this is a recording, on which nothing runs "
                "and nothing changes"
            )
            self.services.show_message(
                text, Level.WARN, "press q to leave, then open the host with `workbench HOST`"
            )
            return
        if key not in ON_PAGES and self.panes.pages.visible_page is not None:
            text = f"{KEYS[key].name_on_keyboard} does not work on a page: {KEYS[key].help}"
            self.services.show_message(
                text, next_step=f"press esc to close the page, then {KEYS[key].name_on_keyboard}"
            )
            return
        running = KEYS[key].run(self.controllers)
        if running is not None:
            await running

    # layout
    def on_resize(self, event: events.Resize) -> None:
        self.panes.arrange_panes()

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        self.panes.activate_focused_pane(event.widget)

    def on_pane_title_changed(self, event: Pane.TitleChanged) -> None:
        self.panes.refresh_titles()

    def on_results_selected(self) -> None:
        """Let the Compare pane follow the cursor once it rests: a key that is held down passes many
        results."""
        if self._rests is not None:
            self._rests.stop()
        self._rests = self.set_timer(REST_S, self.controllers.results.compare_with_selected_result)

    def on_results_older_wanted(self) -> None:
        self.services.run_in_background(
            self.session.results.show_older_results(), exclusive_group="older results"
        )

    def on_gpu_strip_view_changed(self, event: GpuStrip.ViewChanged) -> None:
        self.panes.arrange_panes()
        self.strip.repaint()
        self._update_footer_keys()

    def _update_footer_keys(self) -> None:
        """Show at the beginning of the footer the keys of a replay, or the keys for going back in
        time. Otherwise show the keys for the most likely next steps."""
        if self._is_replay:
            self.footer.show_likely_next_keys((*REPLAY_KEYS, *TIME_KEYS))
        elif self.strip.shows_past:
            self.footer.show_likely_next_keys(TIME_KEYS)
        else:
            self.footer.show_likely_next_keys(suggest_next_keys(self.session.state))

    @property
    def _is_replay(self) -> bool:
        return self.session.state.host.replay is not None

    # drawing
    @property
    def is_log_visible(self) -> bool:
        return self.panes.is_pane_shown(self.panes.pane_of_type(LogPane)) and self.is_current

    def draw_changes(self, state: SessionState, changed_fields: frozenset[str]) -> None:
        """Draw all parts of the screen that show one of the fields `changed_fields` of `state`."""
        if changed_fields != LOG:
            self.status_bar.show(state)
        if changed_fields & self.progress.FIELDS:
            self.progress.show(state)
        if changed_fields & self.strip.FIELDS:
            self.strip.show(state)
            self.panes.arrange_panes()
        if changed_fields & self.command_bar.FIELDS:
            self.command_bar.show(state)
        for pane in self.panes.panes:
            is_drawn = pane.DRAWN_WHEN_HIDDEN or self.panes.is_pane_shown(pane)
            if is_drawn and changed_fields & pane.FIELDS:
                pane.show(state)
        if changed_fields & {"experiment", "sweep", "bench"}:
            self._draw_open_page(state)
        if changed_fields & {"servers", "run_id"}:
            self._show_first_error_on_failure(state)
        if "notice" in changed_fields:
            self.services.show_new_notice(state.notice)
        if "alerts" in changed_fields and (state.alerts or self._signals is not None):
            self._signal_new_alerts(state)
        if (
            "changes_while_away" in changed_fields
            and state.changes_while_away
            and state.changes_while_away.has_changes
        ):
            self._report_changes_since_left(state, state.changes_while_away)
        if "host" in changed_fields:
            self._handle_host_change(state)
        if changed_fields & FIRST_KEYS_FIELDS:
            self._update_footer_keys()
        if "offers" in changed_fields and state.offers:
            self.services.show_message("; ".join(state.offers), Level.WARN)
        if changed_fields != LOG and not changed_fields <= TELEMETRY:
            self.panes.refresh_titles()

    def draw_elapsed_times(self, state: SessionState, readings_already_drawn: bool = False) -> None:
        """Draw elapsed times and ages, once a second. If `readings_already_drawn` is true, the
        status bar and the GPU readings have just been drawn, and are not drawn again."""
        if not readings_already_drawn:
            self.draw_changes(state, TELEMETRY)
        self.progress.show(state)
        self._draw_open_page(state)
        self.services.remove_expired_message()

    def _draw_open_page(self, state: SessionState) -> None:
        """Draw the state on the open page."""
        if self.panes.pages.visible_page is not None:
            self.panes.pages.visible_page.show(state)

    def _report_changes_since_left(
        self, state: SessionState, since: ChangesSinceLastScreen
    ) -> None:
        from workbench.tui.pages.changes_while_away import (
            changes_since_leaving_text,
        )  # seldom needed

        self.services.show_message_after_others(changes_since_leaving_text(since, len(state.gpus)))

    def _handle_host_change(self, state: SessionState) -> None:
        """Close what is about the previous host if another host is shown. If the host cannot be
        reached, show a message with the reason, but only once for each reason; if its SSH key is
        unknown, ask about that instead."""
        message = state.host.message
        if state.host.link == "connecting":  # a new attempt: its outcome is shown again
            self._host_message = ""
        if state.host.name != self._host_name:  # the message is about the host before
            self._host_name = state.host.name
            self.services.clear_message()
            self._close_pages_and_questions()
        if state.host.link != "failed" or not message or message == self._host_message:
            return
        self._host_message = message
        if state.host.unknown_key:
            self.call_later(self.controllers.hosts.ask_about_host_key)
        else:
            self.services.show_message(
                f"{state.host.name}: {message}",
                Level.ERROR,
                "press R to connect again, or h to work on another host",
            )

    def _close_pages_and_questions(self) -> None:
        """Close all pages and, without an answer, all questions, because they are about the
        previous host, and a yes would act on the new one. A login question stays open."""
        from workbench.tui.modals.login import Login

        self.panes.pages.close_all()
        for box in reversed(self.app.screen_stack[1:]):
            if isinstance(box, Login):  # of the new host
                return
            box.dismiss(None)

    def _signal_new_alerts(self, state: SessionState) -> None:
        """Let the terminal ring for new alerts."""
        if self._signals is None:
            from workbench.tui.alert_signals import AlertSignals  # not for the first frame

            self._signals = AlertSignals(self)
        self._signals.signal_new_alerts(state.alerts)

    def _show_first_error_on_failure(self, state: SessionState) -> None:
        """Move the Log pane to the first error if the state of the shown server has become FAILED
        or CRASHED."""
        server = state.server
        before, self._server_state = (
            self._server_state,
            (state.run_id, server.state if server else None),
        )
        if server is None or before == self._server_state or before[0] != state.run_id:
            return
        if server.state in (ServerState.FAILED, ServerState.CRASHED):
            self.panes.pane_of_type(LogPane).show_first_error()

"""The main screen: where things stand at each size, which pane is shown, and who draws which part of the state."""

from __future__ import annotations

import time
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Container, Horizontal
from textual.screen import Screen
from textual.widget import Widget

from workbench.model.findings import Level
from workbench.model.server_run import ServerState
from workbench.session.api import SessionApi
from workbench.session.state import Notice, SessionState
from workbench.tui.actions.bench import BenchActions
from workbench.tui.actions.experiments import ExperimentActions
from workbench.tui.actions.gpu import GpuActions
from workbench.tui.actions.launch import LaunchActions
from workbench.tui.actions.server import ServerActions
from workbench.tui.actions.sweeps import SweepActions
from workbench.tui.actions.view import ViewActions
from workbench.tui.bindings import bindings_for, hint
from workbench.tui.bridge import LOG, TELEMETRY, Bridge
from workbench.tui.glyphs import G
from workbench.tui.widgets.bars import CommandBar, Footer, NoticeBar, TabRow
from workbench.tui.widgets.compare import Compare
from workbench.tui.widgets.flags import Flags, engine_title
from workbench.tui.widgets.gpu_pane import GpuPane
from workbench.tui.widgets.gpu_strip import GpuStrip
from workbench.tui.widgets.log_pane import LogPane
from workbench.tui.widgets.pane import Pane
from workbench.tui.widgets.presets import Presets
from workbench.tui.widgets.results import Results
from workbench.tui.widgets.status_bar import StatusBar

NARROW_COLUMNS, ROOMY_COLUMNS, WIDE_COLUMNS, LOW_ROWS, TALL_ROWS = 100, 118, 160, 34, 50
NOTICE_S = {Level.WARN: 20.0, Level.ERROR: None}  # goes by itself after this; an error stays until esc
INFO_S = 8.0


class MainScreen(
    LaunchActions, ServerActions, BenchActions, SweepActions, ExperimentActions, GpuActions, ViewActions, Screen[None]
):
    ORDERED_KEYS = True
    BINDINGS: ClassVar[list[BindingType]] = bindings_for("")
    HORIZONTAL_BREAKPOINTS = [  # noqa: RUF012
        (0, "-narrow"),
        (NARROW_COLUMNS, "-normal"),
        (ROOMY_COLUMNS, "-roomy"),
        (WIDE_COLUMNS, "-wide"),
    ]
    VERTICAL_BREAKPOINTS = [  # noqa: RUF012
        (0, "-low"),
        (LOW_ROWS, "-high"),
        (TALL_ROWS, "-tall"),
    ]

    def __init__(self, session: SessionApi) -> None:
        super().__init__()
        self.session = session
        self.status_bar, self.strip, self.tabs = StatusBar(), GpuStrip(session.history), TabRow()
        self.presets, self.flags = Presets(), Flags(session.flag_rows)
        self.log_pane, self.results = LogPane(session.log), Results()
        self.compare, self.gpu_pane = Compare(), GpuPane()
        self.panes = {
            1: Pane(1, "Presets", self.presets),
            2: Pane(2, "Launch", self.flags),
            3: Pane(3, "Log", self.log_pane),
            4: Pane(4, "Bench", self.results),
            5: Pane(5, "Compare", self.compare),
            6: Pane(6, "GPUs", self.gpu_pane),
        }
        self.command_bar, self.notice_bar, self.footer = CommandBar(), NoticeBar(), Footer()
        self.bridge = Bridge(session, self)
        self.active, self.zoomed = 1, False
        self.single = False
        self._asked = ""
        self._on_host = self.session.state.host.name
        self._shape: tuple[object, ...] = ()
        self._notice_number, self._notice_until = 0, 0.0
        self._server_state: tuple[str | None, ServerState | None] = (None, None)

    def compose(self) -> ComposeResult:
        width, height = self.app.size
        for limits, size in ((self.HORIZONTAL_BREAKPOINTS, width), (self.VERTICAL_BREAKPOINTS, height)):
            # Textual does this with the first resize, when all has been laid out and drawn once for nothing. Here there
            # are no widgets yet whose styles would be made anew.
            self.add_class([name for limit, name in limits if size >= limit][-1], update=False)
        yield self.status_bar
        yield self.strip
        yield self.tabs
        with Container(id="work"):
            yield Horizontal(self.panes[1], self.panes[2], self.panes[3], id="middle")
            yield Horizontal(self.panes[4], self.panes[5], id="bottom")
            yield self.panes[6]
        yield self.notice_bar
        yield self.command_bar
        yield self.footer

    async def on_mount(self) -> None:
        self.notice_bar.display = False
        self.active = 2 if self.session.state.plan else 1
        self.lay_out()
        self.set_focus(self.panes[self.active].focus_target())
        self.show(self.session.state, frozenset(SessionState.__dataclass_fields__))
        self.bridge.start()
        self.attempt(self.session.open())

    def on_unmount(self) -> None:
        self.bridge.stop()

    # layout
    def on_resize(self, event: events.Resize) -> None:
        self.lay_out()

    def lay_out(self) -> None:
        """Sets which panes are shown and how high the GPU strip is; nothing when neither changed."""
        width, height = self.app.size
        self.single = width < NARROW_COLUMNS or height < LOW_ROWS
        strip = self.strip.wanted_height(width, self.single)
        shape = (
            width,
            height,
            self.single,
            self.zoomed,
            self.active if self.single or self.zoomed else self.active == 6,
            strip,
        )
        if shape == self._shape:
            return
        self._shape = shape
        with self.app.batch_update():
            self.set_class(self.single, "-single")
            self.strip.styles.height = strip
            alone = self.single or self.zoomed or self.active == 6
            for number, pane in self.panes.items():
                pane.display = number == self.active if alone else number != 6
            self.query_one("#middle").display = not alone or self.active in (1, 2, 3)
            self.query_one("#bottom").display = not alone or self.active in (4, 5)
            self.set_class(alone, "-alone")
            self.tabs.display = self.single
        self.refresh_titles()

    @property
    def log_visible(self) -> bool:
        return bool(self.panes[3].display) and self.is_current

    def go(self, number: int) -> None:
        """Show and focus a pane."""
        self.active = number
        self.lay_out()
        state = self.session.state
        if number == 6:  # these two are not kept up to date while nobody sees them
            self.gpu_pane.show(state)
        elif number == 3:
            self.log_pane.show(state)
        self.set_focus(self.panes[number].focus_target())
        self.refresh_titles()

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        widget: Widget | None = event.widget
        while widget is not None and not isinstance(widget, Pane):
            widget = widget.parent if isinstance(widget.parent, Widget) else None
        if isinstance(widget, Pane) and widget.number != self.active and widget.display:
            self.active = widget.number
            self.lay_out()
        self.refresh_titles()

    # drawing
    def show(self, state: SessionState, changed: frozenset[str]) -> None:
        """Draw what changed."""
        if changed <= TELEMETRY:
            self._show_telemetry(state)
            return
        if changed & (TELEMETRY | {"alterations", "drift", "others", "others_problem", "gpu_findings", "guard"}):
            self._show_telemetry(state)
        else:
            self.status_bar.show(state)
        if changed & {"presets", "presets_problem", "presets_read", "plan"}:
            self.presets.show(state)
        if "plan" in changed:
            self.flags.show(state)
            self.command_bar.show(state)
        if changed & (LOG | {"servers", "run_id", "plan"}):
            self.log_pane.show(state)
        if changed & {"results", "bench", "results_search", "mark_a", "mark_b", "ceiling", "servers", "run_id"}:
            self.results.show(state)
        if changed & {"comparison", "experiment", "results", "mark_a", "mark_b"}:
            self.compare.show(state)
        if changed & {"experiment", "sweep", "bench"}:
            self.series_changed(state)
        if changed & {"servers", "run_id"}:
            self._server_changed(state)
        if "notice" in changed:
            self._take_notice(state.notice)
        if "host" in changed:
            self._host_changed(state)
        if "offers" in changed and state.offers:
            self.say("; ".join(state.offers), Level.WARN)
        if changed != LOG:
            self.refresh_titles()

    def _show_telemetry(self, state: SessionState) -> None:
        self.status_bar.show(state)
        self.strip.show(state)
        if self.panes[6].display:
            self.gpu_pane.show(state)
        self.lay_out()

    def tick(self, state: SessionState, drawn: bool = False) -> None:
        """Once a second: elapsed times and ages, unless just `drawn`; what is left; a message that has been read. It
        has not been while a page lay over it."""
        if drawn:
            self.status_bar.show(state)  # it counts down with the page
        else:
            self._show_telemetry(state)
        self.series_changed(state)
        self.count()
        if self._notice_until and time.monotonic() > self._notice_until and self.app.screen is self:
            self.hush()

    def _host_changed(self, state: SessionState) -> None:
        """An unknown key is asked about once per message; other reasons for no connection stand as a message."""
        message = state.host.message
        self._asked = "" if state.host.link == "connecting" else self._asked  # asked for anew: told anew
        if state.host.name != self._on_host:  # what was said is of the host before
            self._on_host = state.host.name
            self.hush()
        if state.host.link != "failed" or not message or message == self._asked:
            return
        self._asked = message
        if state.host.unknown_key:
            self.call_later(self.ask_host_key)
        else:
            self.say(f"{state.host.name}: {message}", Level.ERROR, "R connects again, h works on another host")

    def _server_changed(self, state: SessionState) -> None:
        """READY rings the bell; a failure brings the log to its first error."""
        server = state.server
        before, self._server_state = self._server_state, (state.run_id, server.state if server else None)
        if server is None or before == self._server_state or before[0] != state.run_id:
            return
        if server.state is ServerState.READY and before[1] is ServerState.STARTING:
            self.app.bell()
        if server.state in (ServerState.FAILED, ServerState.CRASHED):
            self.app.bell()
            self.log_pane.hit = None
            self.log_pane.next_error()

    def refresh_titles(self) -> None:
        """Border texts: what a pane is about, and its keys while it has the focus."""
        state = self.session.state
        focus = {n: self.active == n for n in self.panes}
        here = {
            1: hint("presets", "load", "find", "preset_detail"),
            2: hint("launch", "edit", "toggle_all", "add_env"),
            3: hint("log", "follow", "next_error", "find"),
            4: hint("results", "detail", "mark_a", "mark_b", "note", "filter"),
            5: hint("compare", "compare", "experiment_page" if state.experiment else "plot", "experiments"),
            6: hint("gpu", "gpu", "revert", "verify", "leave_on"),
        }
        if self.flags.lit:  # a search is open: letters go into it
            here[2] = "enter edit  esc back"
        if self.presets.lit:
            here[1] = "enter load  esc back"
        if self.results.lit:
            here[4] = "enter done  esc all results"
        plan = state.plan
        engine = engine_title(plan) if plan else ""
        details = {
            1: (self.presets.query_text and f"/{self.presets.query_text}") or str(len(state.presets) or ""),
            2: f"/{self.flags.query_text}" if self.flags.query_text else engine,
            3: self._log_title(state),
            4: f"/{state.results_search}" if state.results_search else str(len(state.results) or ""),
            5: self.compare.title,
            6: "",
        }
        for number, pane in self.panes.items():
            pane.title(details[number], here[number] if focus[number] and not self.single else "")
        if self.single:
            badges = {4: str(len(state.results))} if state.results else {}
            if state.server is not None and state.server.state is ServerState.READY:
                badges[3] = G.on
            self.tabs.show(self.active, badges)

    def _log_title(self, state: SessionState) -> str:
        server = state.server
        if server is None:
            return ""
        held = "" if self.log_pane.follow else "  PAUSED"
        return f"{server.engine} {server.run_id[-4:]}{held}"

    # messages
    def tell(self, notice: Notice) -> None:
        self.notice_bar.show(notice, self.app.size.width)
        told = getattr(self.app.screen, "told", None)  # a page that stays open shows it too
        if told is not None:
            told(notice)
        seconds = NOTICE_S.get(notice.level, INFO_S)
        self._notice_until = time.monotonic() + seconds if seconds else 0.0

    def _take_notice(self, notice: Notice | None) -> None:
        """News of the session. That the link is back must not take away what became of an action."""
        if notice is None or notice.number == self._notice_number:
            return
        self._notice_number = notice.number
        standing = self.notice_bar.notice
        if standing is None or notice.level is not Level.INFO or standing.level is Level.INFO:
            self.tell(notice)

    def hush(self) -> None:
        self._notice_until = 0.0
        self.notice_bar.show(None, self.app.size.width)

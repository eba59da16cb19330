"""The screen of a fleet: its keys, the filter, and the order of the hosts."""

from __future__ import annotations

import contextvars
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen

from workbench.model.lazy_dataclass import dataclass
from workbench.session.fleet.fleet import Fleet
from workbench.session.fleet.state import FleetHost, FleetState
from workbench.tui.bindings import FLEET_KEYS, make_textual_bindings
from workbench.tui.cells import Row, pad_text, paragraph_rows, rows_beside_label, stack_paragraphs
from workbench.tui.fleet.bars import SIGNS, FleetFooter, HostDetails, TotalsBar
from workbench.tui.fleet.columns import ORDERS, host_matches_filter, sort_hosts
from workbench.tui.fleet.table import FleetTable
from workbench.tui.modals.base import Modal, TextBody
from workbench.tui.textual_private import count_waiting_frames
from workbench.tui.widgets.entry import typed_character
from workbench.tui.widgets.pick_list import CURSOR_BINDINGS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.widget import Widget

KEYS = {key.id: key for key in FLEET_KEYS}
MOST_FRAMES_WAITING = 2


@dataclass(slots=True)
class FleetView:
    """The user's choices in the fleet: the host under the cursor, the order and the filter. They
    are remembered while the user works on a host."""

    host: str | None = None
    order: str = "host"
    reverse: bool = False
    words: str = ""


class _FleetKeys(Modal[None]):
    """The page with the keys and the signs of the fleet."""

    def make_widgets(self) -> Sequence[Widget]:
        return (TextBody(_key_rows),)


def _key_rows(width: int) -> list[Row]:
    rows: list[Row] = []
    for key in FLEET_KEYS:
        rows += rows_beside_label(
            pad_text(key.name_on_keyboard, 9), "key", paragraph_rows(key.help, width - 9)
        )
    rows += rows_beside_label(
        pad_text("up down", 9),
        "key",
        paragraph_rows("choose a host; also j k, page up and down, home, end", width - 9),
    )
    return [
        *rows,
        (),
        *stack_paragraphs(SIGNS.split("  "), width, "dim"),
    ]


class FleetScreen(Screen[str]):
    BINDINGS: ClassVar[list[BindingType]] = [
        *make_textual_bindings(FLEET_KEYS),
        *CURSOR_BINDINGS,
        Binding("f1", "do('fleet question_mark')", show=False),
        Binding("ctrl+c", "do('fleet q')", show=False),
    ]
    is_busy = False  # no key is dropped (interfaces.OrderedKeys)
    leaves_by_escape = False  # there is a screen below

    def __init__(
        self, fleet: Fleet, view: FleetView, leave_fleet: Callable[[str | None], None]
    ) -> None:
        super().__init__()
        self.fleet, self.view, self._leave_fleet = fleet, view, leave_fleet
        self.totals, self.table = TotalsBar(), FleetTable()
        self.about, self.footer = HostDetails(), FleetFooter()
        self.typing = False
        self._hosts: list[FleetHost] = []
        self._unsubscribe: Callable[[], None] = lambda: None

    def compose(self) -> ComposeResult:
        yield self.totals
        yield self.table
        yield self.about
        yield self.footer

    async def on_mount(self) -> None:
        context = contextvars.copy_context()  # repaints need that of the application
        self._unsubscribe = self.fleet.subscribe(
            lambda state: context.run(self._draw_unless_terminal_lags, state)
        )
        self.show(self.fleet.state)

    async def on_unmount(self) -> None:
        self._unsubscribe()

    # ---- drawing

    def _draw_unless_terminal_lags(self, state: FleetState) -> None:
        """Draw the state, unless the terminal is slow and earlier frames still wait to be sent."""
        if not (self.is_mounted and self.app.is_running):
            return
        if count_waiting_frames(self.app) <= MOST_FRAMES_WAITING:
            self.show(state)

    def show(self, state: FleetState) -> None:
        view = self.view
        self._hosts = sort_hosts(
            [h for h in state.hosts if host_matches_filter(h, view.words)], view.order, view.reverse
        )
        index = self._cursor_index
        chosen = next(iter(self._hosts[index:]), None)
        if chosen is not None and view.host is None:
            view.host = chosen.name
        self.totals.show(self._hosts, state.simulated)
        self.table.order, self.table.reverse = view.order, view.reverse
        self.table.set_column_widths(state.hosts)
        self.table.show(self._hosts, index)
        self.about.show(chosen)
        self.footer.show(view.words, self.typing)

    @property
    def _cursor_index(self) -> int:
        """Return the index of the host under the cursor among the shown hosts; 0 if that host is
        not shown."""
        return next((n for n, host in enumerate(self._hosts) if host.name == self.view.host), 0)

    def _redraw(self) -> None:
        self.show(self.fleet.state)

    # ---- keys

    def try_handling_key(self, event: events.Key) -> bool:
        """Handle a key while the user types the filter, and return True. Return False for a key
        that has its usual meaning, such as an arrow key."""
        if not self.typing:
            return False
        if event.key == "enter":
            self.typing = False
        elif event.key == "escape":
            self.typing, self.view.words = False, ""
        elif event.key == "backspace":
            self.view.words = self.view.words[:-1]
        elif character := typed_character(event):
            self.view.words += character
        else:
            return event.key not in ("up", "down", "pageup", "pagedown", "home", "end", "f1")
        self._redraw()
        return True

    async def action_do(self, key: str) -> None:
        """Run the method of a key. `key` is the id of the key, such as "fleet enter". Ignore ids of
        keys that the application handles itself."""
        if key not in KEYS:
            return
        running: Awaitable[None] | None = KEYS[key].run(self)
        if running is not None:
            await running

    def action_move(self, by: int) -> None:
        if self._hosts:
            self.view.host = self._hosts[
                max(0, min(self._cursor_index + by, len(self._hosts) - 1))
            ].name
            self._redraw()

    def action_page(self, by: int) -> None:
        self.action_move(by * self.table.count_fitting_hosts(self.table.content_size.height))

    def open_host(self) -> None:
        if self._hosts:
            self._leave_fleet(self._hosts[self._cursor_index].name)

    def start_filter_input(self) -> None:
        self.typing = True
        self._redraw()

    def sort_by_next_column(self) -> None:
        self.view.order = ORDERS[(ORDERS.index(self.view.order) + 1) % len(ORDERS)]
        self.view.reverse = False
        self._redraw()

    def reverse_order(self) -> None:
        self.view.reverse = not self.view.reverse
        self._redraw()

    def retry_login(self) -> None:
        """Connect again to the host under the cursor. The SSH login may ask the user questions."""
        if self._hosts:
            self.fleet.retry_login(
                self._hosts[self._cursor_index].name, getattr(self.app, "ask_login", None)
            )

    async def show_keys(self) -> None:
        await self.app.push_screen(_FleetKeys("Keys of the fleet"))

    def remove_filter_or_close(self) -> None:
        """Remove the filter of the hosts. If there is no filter, close this screen, but only if
        another screen is below it."""
        if self.leaves_by_escape and not self.view.words:
            self.close_fleet()
        else:
            self.view.words = ""
            self._redraw()

    def close_fleet(self) -> None:
        self._leave_fleet(None)

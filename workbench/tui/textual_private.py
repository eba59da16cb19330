"""All code that uses private names of Textual 8.2.8, with quiet_driver.py. Each use has a test in
tests/tui/test_tui_compat.py."""

from __future__ import annotations

import select
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from textual import events
from textual._compositor import ChopsUpdate, CompositorUpdate, LayoutUpdate
from textual.app import App
from textual.cache import FIFOCache
from textual.strip import Strip

from workbench.tui.ansi_text import render_row_pieces
from workbench.tui.shown_frame import Cells, RowPiece, ShownFrame

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.segment import Segment
    from textual.driver import Driver
    from textual.geometry import Region
    from textual.screen import Screen
    from textual.widget import Widget


def count_waiting_frames(app: App[Any]) -> int:
    """Return the number of frames that wait to be written to the terminal. Return 0 if Textual has
    no queue of frames, as in tests and on Windows.

    The queue has room for 30 frames. When it is full, writing a frame blocks the whole event loop.
    """
    writer = getattr(getattr(app, "_driver", None), "_writer_thread", None)
    queue = getattr(writer, "_queue", None)
    return int(queue.qsize()) if queue is not None else 0


def make_strip_caches_on_demand() -> None:
    """Let a Strip make each of its seven caches when it first uses it. Textual makes all of them
    with the Strip. A settled screen keeps 1,700 Strips, most of which use none: 1.4 MiB."""
    if hasattr(Strip, "__getattr__"):
        return
    made = Strip([])
    parts = {name: getattr(made, name) for name in Strip.__slots__}
    sizes = {name: p._maxsize for name, p in parts.items() if isinstance(p, FIFOCache)}

    def init_without_caches(
        self: Strip, segments: Iterable[Segment], cell_length: int | None = None
    ) -> None:
        self._segments = list(segments)
        self._cell_length = cell_length
        self._render_cache = self._link_ids = self._cell_count = None

    def make_cache(self: Strip, name: str) -> FIFOCache[Any, Any]:  # called for what is not set yet
        if name not in sizes:
            raise AttributeError(name)
        cache: FIFOCache[Any, Any] = FIFOCache(sizes[name])
        setattr(self, name, cache)
        return cache

    Strip.__init__ = init_without_caches  # type: ignore[method-assign]
    Strip.__getattr__ = make_cache  # type: ignore[attr-defined]


class TerminalApp(App[int]):
    """An application that does not print Textual's traceback when an exception ends it, because
    that traceback shows every local variable. `defect` is the exception; None if there was none.

    When the whole screen is drawn again, it sends only the cells that changed."""

    defect: Exception | None = None

    def __init__(self) -> None:
        make_strip_caches_on_demand()
        super().__init__()
        self._shown = ShownFrame()
        self._gathered: list[RowPiece] | None = None  # cells of one drawing that are sent together

    def get_driver_class(self) -> type[Driver]:
        """Return the driver of this platform, on Linux and macOS one that does not wake up while
        no key is pressed."""
        found = super().get_driver_class()
        if found.__name__ != "LinuxDriver":  # Windows, or what TEXTUAL_DRIVER names
            return found
        from workbench.tui.quiet_driver import QuietDriver

        return QuietDriver

    async def on_event(self, event: events.Event) -> None:
        """Draw the whole screen after the terminal was resized or taken over again: it may show
        anything then."""
        if isinstance(event, events.Resize):
            self._shown.invalidate()
        await super().on_event(event)

    def _display(self, screen: Screen[Any], renderable: RenderableType | None) -> None:
        if not (self._batch_count or self.is_headless or renderable is None):
            renderable = self._drop_unchanged_cells(renderable)
            moved = self.cursor_position != self._previous_cursor_position
            if isinstance(renderable, _Cells) and not renderable.pieces and not moved:
                return
        super()._display(screen, renderable)

    def _drop_unchanged_cells(self, renderable: RenderableType) -> RenderableType:
        """Return the part of an update that differs from what the terminal shows. Return an update
        of an unknown kind unchanged."""
        shown = self._shown
        if isinstance(renderable, _Cells):
            shown.record_sent_pieces(renderable.pieces)
            return renderable
        if isinstance(renderable, ChopsUpdate):
            return _Cells(shown.replace_row_pieces(_row_pieces_of_update(renderable)))  # type: ignore[return-value]
        if isinstance(renderable, LayoutUpdate) and renderable.region.offset == (0, 0):
            rows = [Strip.join(pieces) for pieces in renderable.strips]
            changed = shown.replace_rows(rows)
            if changed is None:
                changed = [(0, y, row) for y, row in enumerate(rows)]
            return _Cells(changed)  # type: ignore[return-value]
        shown.invalidate()
        return renderable

    @contextmanager
    def batch_terminal_writes(self) -> Iterator[None]:
        """Send the cells of all widgets that are drawn in this block together. Each write to the
        terminal wakes a thread and moves the cursor back."""
        if self._gathered is not None:
            yield
            return
        self._gathered = []
        try:
            yield
        finally:
            pieces, self._gathered = self._gathered, None
            if pieces:
                self._display(self.screen, _Cells(pieces))  # type: ignore[arg-type]

    def send_row_pieces(self, pieces: list[RowPiece]) -> None:
        """Send cells to the terminal: at the end of the block of `batch_terminal_writes`, else
        now."""
        if self._gathered is not None:
            self._gathered += pieces
        else:
            self._display(self.screen, _Cells(pieces))  # type: ignore[arg-type]

    def _handle_exception(self, error: Exception) -> None:
        self.defect = self.defect or error
        super()._handle_exception(error)
        self._exit_renderables.clear()  # errors with a text of their own add it here

    def _fatal_error(self) -> None:
        self._close_messages_no_wait()


def watch_terminal_hangup(app: App[Any], on_hangup: Callable[[], None]) -> None:
    """Call `on_hangup`, from a new thread, when the terminal hangs up.

    A process without a controlling terminal gets no SIGHUP. Without this function, Textual's input
    thread would read the end of file in a busy loop, and its full queue of frames would block the
    event loop for ever.
    """
    driver = getattr(app, "_driver", None)
    descriptor, ended = getattr(driver, "fileno", None), getattr(driver, "exit_event", None)
    if descriptor is None or ended is None:  # tests, Windows
        return
    poll = select.poll()
    poll.register(descriptor, 0)  # hang-ups and errors are always reported

    def wait_for_hangup() -> None:
        if not any(event & (select.POLLHUP | select.POLLERR) for _, event in poll.poll()):
            return
        ended.set()  # otherwise the thread that reads keys would spin
        on_hangup()
        queue = getattr(getattr(driver, "_writer_thread", None), "_queue", None)
        while queue is not None:  # no other thread takes frames any more
            if queue.get() is None:
                queue.put(None)
                return

    threading.Thread(target=wait_for_hangup, name="terminal-gone", daemon=True).start()


def write_control_sequence(app: App[Any], text: str) -> None:
    """Write a control sequence to the terminal, between two frames. Do nothing without one."""
    driver = app._driver
    if text and driver is not None and not app.is_headless:
        driver.write(text)


def is_app_exiting(app: App[Any]) -> bool:
    """Return whether the application is ending; its widgets may be removed already."""
    return app._exit


async def run_bound_action(app: App[Any], key: str, *, priority: bool = False) -> bool:
    """Run the action bound to `key` for the focused widget now, before Textual passes the key event
    on to the parents of the widget. Return whether an action ran."""
    return bool(await app._check_bindings(key, priority=priority))


class _Cells(CompositorUpdate):
    """A partial update of the screen: pieces of rows, each at its position (x, y)."""

    def __init__(self, pieces: list[RowPiece]) -> None:
        self.pieces = pieces

    def render_segments(self, console: Console) -> str:
        return render_row_pieces(self.pieces, console)


def _row_pieces_of_update(update: ChopsUpdate) -> Iterator[RowPiece]:
    """Yield the pieces that `ChopsUpdate.render_segments` sends, each as (column, row, cells)."""
    for y, first, last in update.spans:
        for end, (x, strip) in zip(update.chop_ends[y], update.chops[y].items(), strict=False):
            if strip is None or x > last or end <= first:
                continue
            whole = first <= x < last and end <= last
            yield x, y, strip if whole else strip.crop(0, min(end, last) - x)


def drawing_state_key(widget: Widget) -> object:
    """Return the widget's size, the offset of its content, its background colours and its theme as
    one value. If this value has changed, the inside of the widget must be drawn again. Return None
    before the widget is mounted."""
    if not widget._is_mounted:
        return None
    return widget.outer_size, widget.content_offset, widget.background_colors, widget.app.theme


def send_cells_unless_covered(
    widget: Widget, regions: list[Region], cells_of_region: Callable[[Region], list[Segment]]
) -> bool:
    """Send the cells of `widget` in `regions` to the terminal now. `cells_of_region` returns those
    of a region, which is one row high. If the widget is covered, hidden or about to change its
    position, send nothing and return False, because Textual must draw the widget. Cells outside of
    the screen are not sent: the terminal would write them into its last row or column.

    Textual would send each changed row from the widget's left edge, which takes five times the
    bytes for 24 values, and twice the CPU time.
    """
    screen, app = widget.screen, cast(TerminalApp, widget.app)
    covered = (
        app.screen is not screen
        or screen._layout_required
        or screen._dirty_widgets
        or app._batch_count
    )
    if covered or not widget.is_attached or not widget.display:
        return False
    place = screen._compositor.full_map.get(widget)
    if place is None:
        return False
    left, top = widget.content_region.offset
    visible = place.visible_region.translate((-left, -top))
    filters = widget.get_line_filters()
    background = widget.background_colors[1]
    pieces: list[RowPiece] = []
    for region in (one.intersection(visible) for one in regions):
        if not region:
            continue
        cells = cells_of_region(region)
        for line_filter in filters:
            cells = line_filter.apply(cells, background)
        pieces.append((left + region.x, top + region.y, Cells(cells, region.width)))
    widget._styles_cache.set_dirty(*regions)  # the compositor's cache of these rows is out of date
    app.send_row_pieces(pieces)
    return True

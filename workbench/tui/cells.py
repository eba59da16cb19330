"""Rows of text, and the base class of the widgets that draw rows.

A row is a tuple of runs, and a run is a pair (text, role). A role, such as "warn", selects a style
of the theme. Textual would send the whole widget to the terminal after each change. `Painted`, the
base class, sends only the columns that differ from the last drawing, so that a new reading costs a
few bytes for each changed value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from textual import events
from textual.content import Content
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from workbench.model.untrusted_text import clean_text
from workbench.tui.glyphs import ASCII, G, ascii_if_needed
from workbench.tui.shown_frame import ONE_CELL, cut_strip
from workbench.tui.textual_private import send_cells_unless_covered
from workbench.tui.theme import style

Run = tuple[str, str]
Row = tuple[Run, ...]
RowMaker = Callable[[int], list[Row]]  # width -> rows
WHEEL_ROWS = 3
# two changed spans this close cost less as one (a cursor move and a colour are about 20 bytes)
NEAR_CELLS = 6


def width_of(text: str) -> int:
    if text.isascii():
        return len(text)
    return cell_len(text)


def cut_text(text: str, width: int) -> str:
    """Return `text` in at most `width` cells, with "…" at its end if a part is missing."""
    if width_of(text) <= width:
        return text
    if width <= 0:
        return ""
    if text.isascii():
        return text[: width - 1] + G.more
    return set_cell_size(text, width - 1).rstrip() + G.more


def cut_text_middle(text: str, width: int) -> str:
    """Return `text` in at most `width` cells, with "…" in its middle if a part is missing. The end
    is kept, because similar names often differ there. A text with wide characters, and any text
    in less than 8 cells, is cut at its end."""
    cells = width_of(text)
    if cells <= width or width < 8 or cells != len(text):
        return cut_text(text, width)
    head = (width - 1) // 2
    return text[:head] + G.more + text[len(text) - (width - 1 - head) :]


def pad_text(text: str, width: int, align_right: bool = False) -> str:
    """Return `text` in exactly `width` cells, cut or filled with blanks. With `align_right` the
    blanks are at the left."""
    text = cut_text(text, width)
    gap = " " * (width - width_of(text))
    if align_right:
        return gap + text
    return text + gap


def remove_control_sequences(row: Row) -> Row:
    """Return the row with all control sequences removed from its texts, which may come from outside
    Workbench."""
    if all(text.isprintable() for text, _ in row):
        return row
    return tuple((clean_text(text), role) for text, role in row)


def border_content(text: str) -> Content:
    """Return `text` as Textual content for the border of a widget. Textual would parse a str as
    markup, and raise an exception if a bracket in the text looks like an incomplete tag."""
    return Content(ascii_if_needed(clean_text(text)))


def pad_text_with_gap(text: str, width: int) -> str:
    """Return `text`, cut or filled with blanks to `width` cells, of which the last one is blank."""
    return pad_text(cut_text(text, width - 1), width)


def row_text(row: Iterable[Run]) -> str:
    return "".join(text for text, _ in row)


def row_width(row: Iterable[Run]) -> int:
    return sum(width_of(text) for text, _ in row)


def fit_row(row: Row, width: int) -> Row:
    """Return the row in exactly `width` cells. A longer row is cut and ends with "…", and a shorter
    row is filled with blanks."""
    used = 0
    out: list[Run] = []
    for index, (text, role) in enumerate(row):
        room, size = width - used, width_of(text)
        if size >= room:
            following = row_text(row[index + 1 :]).strip()
            if size == room and not following:
                return (*out, (text, role))
            cut = text[: max(0, room)]
            if following or text[room:].strip():  # a mark for the missing part
                cut = cut_text(text + "  ", room)
            if room > 0:
                out.append((pad_text(cut, room), role))
            return tuple(out)
        out.append((text, role))
        used += size
    if used < width:
        out.append((" " * (width - used), "text"))
    return tuple(out)


def justify_row(left: Row, right: Row, width: int) -> Row:
    """Return a row of `width` cells that begins with `left` and ends with `right`. If both do not
    fit, `left` is cut."""
    room = width - row_width(right)
    if room <= 0:
        return fit_row(right, width)
    return (*fit_row(left, room), *right)


def wrap_text(text: str, width: int, indent: str = "") -> list[str]:
    """Return `text` as lines of at most `width` cells (at least 8), broken at blanks if possible.
    Line breaks are kept. `indent`, which must be narrower than `width`, begins each continuation
    line."""
    import textwrap

    lines: list[str] = []
    for part in text.splitlines() or [""]:
        if width_of(part) != len(part):  # textwrap counts characters
            lines += _wrap_wide_text(part, max(8, width), indent)
            continue
        lines += textwrap.wrap(
            part, max(8, width), subsequent_indent=indent, break_on_hyphens=False
        ) or [""]
    return lines


def _wrap_wide_text(text: str, width: int, indent: str) -> list[str]:
    """Return a text with characters of two or no cells as lines of at most `width` cells."""
    lines: list[str] = []
    line = ""
    for word in text.split():
        lead = ""
        if line:
            lead = f"{line} "
            if width_of(lead + word) > width:
                lines.append(line)
                lead = indent
        rest = word
        while width_of(lead + rest) > width:
            head = set_cell_size(rest, width - width_of(lead)).rstrip() or rest[:1]
            lines.append(lead + head)
            rest, lead = rest[len(head) :], indent
        line = lead + rest
    return [*lines, line]


def paragraph_rows(text: str, width: int, role: str = "text", indent: str = "") -> list[Row]:
    """Return `text` as rows in the style of `role`, wrapped as `wrap_text` does. `indent` begins
    each continuation row."""
    return [((line, role),) for line in wrap_text(text, width, indent)]


def stack_paragraphs(
    texts: Iterable[str], width: int, role: str = "text", indent: str = ""
) -> list[Row]:
    """Return each of the texts as `paragraph_rows` does, one below the other."""
    return [row for text in texts for row in paragraph_rows(text, width, role, indent)]


def cut_paragraph_rows(
    text: str, width: int, max_rows: int, role: str = "text", indent: str = ""
) -> list[Row]:
    """Return `text` wrapped into at most `max_rows` rows. If there is more, the last row ends with
    "…"."""
    lines = wrap_text(text, width, indent)
    if len(lines) > max_rows:
        last = f"{lines[max_rows - 1]} {lines[max_rows].strip()}"
        lines[max_rows - 1 :] = [cut_text(last, width)]
    return [((line, role),) for line in lines]


def rows_beside_label(label: str, role: str, rows: Iterable[Row]) -> list[Row]:
    """Return the rows with `label`, in the style of `role`, in front of the first row. The other
    rows are indented by the width of `label`."""
    found: list[Row] = []
    lead = label
    for row in rows:
        found.append(((lead, role), *row))
        lead = " " * width_of(label)
    return found


def labelled_paragraph(
    label: str, text: str, width: int, role: str = "text", label_role: str = "dim"
) -> list[Row]:
    """Return `text` as rows beside `label`. Both have `width` cells, but the text at least 20."""
    room = max(20, width - width_of(label))
    return rows_beside_label(label, label_role, paragraph_rows(text, room, role))


def join_rows(parts: Iterable[Row], gap: Run) -> Row:
    """Return one row that joins the parts, with `gap`, a pair (text, role), between them."""
    runs: list[Run] = []
    for part in parts:
        runs += [gap, *part] if runs else part
    return tuple(runs)


def join_runs(runs: Iterable[Run], gap: Run) -> Row:
    """Return one row that has the runs, pairs (text, role), with `gap` between them."""
    return join_rows(((run,) for run in runs), gap)


def merge_runs(runs: Iterable[Run]) -> Row:
    """Return the runs, which are pairs (text, role), as a row in which adjacent texts of the same
    role are joined."""
    joined_runs: list[Run] = []
    texts: list[str] = []
    current = ""
    for text, role in runs:
        if role != current and texts:
            joined_runs.append(("".join(texts), current))
            texts = []
        texts.append(text)
        current = role
    if texts:
        joined_runs.append(("".join(texts), current))
    return tuple(joined_runs)


def changed_column_spans(old: Row, new: Row) -> list[tuple[int, int]]:
    """Return the ranges of columns in which two rows of the same width differ, as pairs (first
    column, column after the last); [] for equal rows. Ranges that are close together are joined."""
    if old == new:
        return []
    if not _have_equal_widths(old, new):
        return [_span_around_changes(old, new)]
    spans: list[tuple[int, int]] = []
    column = 0
    for (before, role_before), (after, role_after) in zip(old, new, strict=True):
        size = width_of(after)
        if size and (before != after or role_before != role_after):
            start, end = column, column + size
            if role_before == role_after and len(before) == len(after) == size:
                lead = next(i for i in range(size) if before[i] != after[i])
                tail = next(i for i in range(size) if before[size - 1 - i] != after[size - 1 - i])
                start, end = start + lead, end - tail
            if spans and start - spans[-1][1] <= NEAR_CELLS:
                spans[-1] = (spans[-1][0], end)
            else:
                spans.append((start, end))
        column += size
    return spans


def _have_equal_widths(old: Row, new: Row) -> bool:
    """Return whether two rows have equally many runs, each as wide as the one in the other row."""
    if len(old) != len(new):
        return False
    for (before, _), (after, _) in zip(old, new, strict=True):
        if before != after and width_of(before) != width_of(after):
            return False
    return True


def _span_around_changes(old: Row, new: Row) -> tuple[int, int]:
    width, start = row_width(new), 0
    for a, b in zip(old, new, strict=False):
        if a != b:
            break
        start += width_of(a[0])
    end = width
    for a, b in zip(reversed(old), reversed(new), strict=False):
        if a != b or end <= start:
            break
        end -= width_of(a[0])
    if end <= start:
        return 0, width
    return start, end


def _clean_and_fit_row(row: Row, width: int) -> Row:
    """Return the row in exactly `width` cells, without control sequences, in the characters of the
    terminal."""
    row = fit_row(remove_control_sequences(row), width)
    if G is ASCII:
        row = tuple((ascii_if_needed(text), role) for text, role in row)
    return row


def make_textual_strip(row: Row, background: str) -> Strip:
    """Return the row as a Textual strip on the theme's background `background`. Adjacent texts of
    the same role become one segment, because the terminal gets a colour change for each segment."""
    return Strip([Segment(text, style(role, background)) for text, role in merge_runs(row) if text])


class Painted(Widget):
    """Base class of the widgets that draw rows of styled text. A subclass returns its rows from
    `rows`. `repaint` draws the rows, and sends only the cells that have changed to the terminal."""

    GROUND = "ground"
    DEFAULT_CSS = "Painted { width: 1fr; height: 1fr; }"

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._made: list[Row] = []  # the rows that `rows` returned, and as they were drawn
        self._painted: list[Row] = []
        self._painted_size = (0, 0)
        self._strips: dict[int, Strip] = {}

    def rows(self, width: int, height: int) -> Sequence[Row]:
        return ()

    def make_rows_or_error_rows(
        self, make: Callable[..., Sequence[Row]], width: int, *other_sizes: int
    ) -> list[Row]:
        """Return the rows of `make(width, *other_sizes)`. If `make` raises an exception, return
        rows with its text and the file that has its traceback."""
        try:
            return list(make(width, *other_sizes))
        except Exception as error:
            from workbench.store.crash_files import internal_error_message_and_details

            text, details = internal_error_message_and_details(error)
            return [
                *paragraph_rows(f"x {text}", width, "bad", "  "),
                *paragraph_rows(f"  next: {details}", width),
            ]

    @property
    def drawn_text(self) -> str:
        """Return the text that is drawn now, with a line for each row."""
        return "\n".join(map(row_text, self._painted))

    def repaint(self) -> None:
        """Draw the rows, and send the cells that differ from the last drawing."""
        width, height = self.content_size
        if width <= 0 or height <= 0:
            return
        made = self.make_rows_or_error_rows(self.rows, width, height)[:height]
        made += [()] * (height - len(made))
        old, drawn_before = self._painted, self._made
        self._made, size = made, (width, height)
        if len(old) != height or self._painted_size != size:
            self._painted = [_clean_and_fit_row(row, width) for row in made]
            self._painted_size = size
            self._strips.clear()
            Widget.refresh(self)
            return
        rows = self._painted = [
            painted if row == before else _clean_and_fit_row(row, width)
            for row, before, painted in zip(made, drawn_before, old, strict=True)
        ]
        regions = []
        for y, (before, after) in enumerate(zip(old, rows, strict=True)):
            spans = changed_column_spans(before, after)
            if spans:
                self._strips.pop(y, None)
                regions += [Region(start, y, end - start, 1) for start, end in spans]
        if not regions:
            return
        is_sent = self._is_mounted and send_cells_unless_covered(
            self, regions, self._segments_in_region
        )
        if not is_sent:
            self.refresh(*regions)

    def redraw_all_rows(self) -> None:
        """Draw every row again and send all of them to the terminal, because the colours have
        changed."""
        self._painted = []
        self._strips.clear()
        self.refresh()

    def render_line(self, y: int) -> Strip:
        if len(self._painted) != self.content_size.height:
            self.repaint()
        return self._drawn_strip(y)

    def _segments_in_region(self, region: Region) -> list[Segment]:
        """Return the cells of a region that is one row high."""
        start, end, at = region.x, region.right, 0
        found: list[Segment] = []
        for text, role in self._painted[region.y]:
            if not text.isascii() and not ONE_CELL.fullmatch(text) and cell_len(text) != len(text):
                return list(cut_strip(self._drawn_strip(region.y), start, end))
            piece = text[max(0, start - at) : max(0, end - at)]
            if piece:
                found.append(Segment(piece, style(role, self.GROUND)))
            at += len(text)
        return found

    def _drawn_strip(self, y: int) -> Strip:
        width = self.content_size.width
        strip = self._strips.get(y)
        if strip is None:
            if y < len(self._painted):
                strip = make_textual_strip(self._painted[y], self.GROUND)
            else:
                strip = Strip.blank(width, style("text", self.GROUND))
            self._strips[y] = strip
        return strip

    def on_resize(self, event: events.Resize) -> None:
        self._painted = []
        self.repaint()

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        self._scroll_by_wheel(WHEEL_ROWS, event)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self._scroll_by_wheel(-WHEEL_ROWS, event)

    def _scroll_by_wheel(self, rows: int, event: events.MouseEvent) -> None:
        event.stop()
        self.action_move(rows)

    def action_move(self, by: int) -> None:
        """Move the cursor, or scroll, by `by` rows. The arrow keys and the mouse wheel call this
        method. By default nothing happens."""

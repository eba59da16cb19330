"""What the terminal shows. A new frame then sends only the cells that differ from it.

Textual sends the whole screen when a box opens or closes: 45 to 70 KB at 120x40. The box itself
has a tenth of that.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip


class Cells:
    """Cells of a row as segments. A Strip would make seven caches beside them."""

    __slots__ = ("cell_length", "segments")

    def __init__(self, segments: list[Segment], cell_length: int) -> None:
        self.segments, self.cell_length = segments, cell_length

    def __iter__(self) -> Iterator[Segment]:
        return iter(self.segments)


RowPiece = tuple[int, int, Strip | Cells]  # column, row, cells
Cell = tuple[str, Style]  # text, look; the second cell of a wide character has the text ""

# A move of the cursor and a new style take about as many bytes as this number of equal cells.
_GAP_CELLS = 8
# Pieces of one row that are kept apart. A reading replaces the pieces of the reading before, so
# that few different ones exist.
_MOST_PIECES = 60
# Lines, bars, graphs and the signs of the screen, of one cell each. rich would look up each
# character of a graph that it has not seen before.
ONE_CELL = re.compile(r"[ -~\xa0-\xac\xae-\xff\u2500-\u259f\u2800-\u28ff]*")


def cut_strip(strip: Strip | Cells, start: int, end: int) -> Strip:
    """Return a strip with the cells from `start` to `end` of `strip`. Unlike Textual's `Strip.crop`
    it does not cache the result, which saves 4 MB for the lines of a log."""
    pieces: list[Segment] = []
    at = 0
    for text, style, _ in strip:
        if not (text.isascii() or ONE_CELL.fullmatch(text)) and cell_len(text) != len(text):
            return Strip(strip).crop(start, end)
        piece = text[max(0, start - at) : max(0, end - at)]
        if piece:
            pieces.append(Segment(piece, style))
        at += len(text)
    # with its length, which Textual would count again
    return Strip(pieces, max(0, min(end, at) - max(0, start)))


class ShownFrame:
    """The rows that the terminal shows, None while they are unknown. `record_sent_pieces` records
    pieces that were sent. `replace_rows` and `replace_row_pieces` take new content, and return the
    part of it that differs."""

    def __init__(self) -> None:
        self._rows: list[Strip] | None = None
        # For each row, the pieces that were sent after it, by (column, cells); the newest are last.
        self._pieces: dict[int, dict[tuple[int, int], Strip | Cells]] = {}

    def invalidate(self) -> None:
        """Treat what the terminal shows as unknown, because it may have changed by itself."""
        self._rows = None
        self._pieces.clear()

    def record_sent_pieces(self, pieces: Iterable[RowPiece]) -> None:
        """Record that the terminal shows these pieces. Do nothing while its rows are unknown."""
        rows = self._rows
        if rows is None:
            return
        for column, y, strip in pieces:
            if y >= len(rows):
                continue
            of_row = self._pieces.setdefault(y, {})
            place = column, strip.cell_length
            of_row.pop(place, None)
            of_row[place] = strip
            if len(of_row) > _MOST_PIECES:
                self._merge_pieces_into_row(rows, y)

    def replace_rows(self, new_rows: Sequence[Strip]) -> list[RowPiece] | None:
        """Record `new_rows` as all rows that the terminal shows from now on. Return the pieces that
        differ from what it showed; None if that is unknown or has another size."""
        old = self._rows
        if old is not None:
            for y in list(self._pieces):
                self._merge_pieces_into_row(old, y)
        self._rows = list(new_rows)
        if old is None or len(old) != len(new_rows):
            return None
        pieces: list[RowPiece] = []
        for y, (before, after) in enumerate(zip(old, new_rows, strict=True)):
            if before.cell_length != after.cell_length:
                return None
            pieces += [
                (start, y, cut_strip(after, start, end))
                for start, end in _changed_cell_spans(before, after)
            ]
        return pieces

    def replace_row_pieces(self, pieces: Iterable[RowPiece]) -> list[RowPiece]:
        """Record `pieces` as what the terminal shows from now on in their places. Return the parts
        of them that differ from what it showed before, or `pieces` unchanged if that is unknown."""
        rows = self._rows
        changed: list[RowPiece] = []
        for column, y, strip in pieces:
            if rows is None or y >= len(rows):
                changed.append((column, y, strip))
                continue
            self._merge_pieces_into_row(rows, y)
            before = cut_strip(rows[y], column, column + strip.cell_length)
            if before.cell_length != strip.cell_length:
                self.invalidate()
                rows = None
                changed.append((column, y, strip))
                continue
            for start, end in _changed_cell_spans(before, strip):
                changed.append((column + start, y, cut_strip(strip, start, end)))
            rows[y] = _replace_cells(rows[y], column, strip)
        return changed

    def _merge_pieces_into_row(self, rows: list[Strip], y: int) -> None:
        for (column, _), strip in self._pieces.pop(y, {}).items():
            rows[y] = _replace_cells(rows[y], column, strip)


def _replace_cells(row: Strip, column: int, strip: Strip | Cells) -> Strip:
    """Return the row with `strip` in place of the cells from `column` on."""
    left = cut_strip(row, 0, column)
    right = cut_strip(row, column + strip.cell_length, row.cell_length)
    return Strip([*left, *strip, *right], left.cell_length + strip.cell_length + right.cell_length)


def _changed_cell_spans(old: Strip, new: Strip | Cells) -> list[tuple[int, int]]:
    """Return the spans of cells in which two rows of the same length differ, as pairs (first cell,
    cell after the last); [] for equal rows. Spans with a small gap between them are joined."""
    if old is new:
        return []
    was, now = _cells_of_strip(old), _cells_of_strip(new)
    if was == now:
        return []
    spans: list[tuple[int, int]] = []
    for at, (one, other) in enumerate(zip(was, now, strict=True)):
        if one == other:
            continue
        start, end = at, at + 1
        # the second cell of a wide character goes with its first one
        while start > 0 and "" in (now[start][0], was[start][0]):
            start -= 1
        while end < len(now) and "" in (now[end][0], was[end][0]):
            end += 1
        if spans and start - spans[-1][1] <= _GAP_CELLS:
            spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
        else:
            spans.append((start, end))
    return spans


def _cells_of_strip(strip: Strip | Cells) -> list[Cell]:
    """Return the cells of a row."""
    cells: list[Cell] = []
    for text, style, control in strip:
        if control:
            continue
        look = _style_without_links_and_meta(style)
        if text.isascii():
            cells += [(character, look) for character in text]
            continue
        for character in text:
            width = cell_len(character)
            if width == 0 and cells:
                # A combining character belongs to the cell before it.
                before, its_look = cells[-1]
                cells[-1] = (before + character, its_look)
                continue
            cells += [(character, look)] + [("", look)] * (width - 1)
    return cells


def _style_without_links_and_meta(style: Style | None) -> Style:
    """Return the style without links and meta data, which the terminal does not show; the empty
    style for None."""
    if style is None:
        return Style.null()
    return style.clear_meta_and_links() if style.meta or style.link else style

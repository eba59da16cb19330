"""The escape sequences with which pieces of the screen are sent to the terminal.

Rich sends all colours and attributes with each segment, and a reset after it. Here a segment sends
only what differs from the one before it, which takes half of the bytes.
"""

from __future__ import annotations

from collections.abc import Iterable

from rich.color import Color, ColorSystem
from rich.console import Console
from rich.style import Style

from workbench.tui.shown_frame import RowPiece

_ATTRIBUTES = (
    ("bold", "1"),
    ("dim", "2"),
    ("italic", "3"),
    ("underline", "4"),
    ("blink", "5"),
    ("reverse", "7"),
    ("strike", "9"),
)
_MOST_CHANGES = 4096
_NO_STYLE = Style.null()
_RESET = "\x1b[0m"

_changes: dict[tuple[Style, Style, ColorSystem | None], str] = {}


def render_row_pieces(pieces: Iterable[RowPiece], console: Console) -> str:
    """Return the escape sequences and texts that show `pieces` on the terminal. They end with the
    style of the terminal itself."""
    system = _colour_system_of(console)
    out: list[str] = []
    style = _NO_STYLE
    row_at = column_at = -1
    for column, row, strip in pieces:
        if (column, row) != (column_at, row_at):
            out.append(f"\x1b[{row + 1};{column + 1}H")
        for text, wanted, control in strip:
            if control or not text:
                continue
            wanted = wanted or _NO_STYLE
            if wanted is not style:
                out.append(_style_change_sequence(style, wanted, system))
                style = wanted
            out.append(text)
        column_at, row_at = column + strip.cell_length, row
    if style is not _NO_STYLE:
        out.append(_style_change_sequence(style, _NO_STYLE, system))
    return "".join(out)


def _colour_system_of(console: Console) -> ColorSystem | None:
    name = console.color_system
    if name is None:
        return None
    return {
        "standard": ColorSystem.STANDARD,
        "256": ColorSystem.EIGHT_BIT,
        "truecolor": ColorSystem.TRUECOLOR,
        "windows": ColorSystem.WINDOWS,
    }[name]


def _style_change_sequence(before: Style, after: Style, system: ColorSystem | None) -> str:
    """Return the escape sequence that changes from one style to another; "" if they look alike."""
    key = before, after, system
    known = _changes.get(key)
    if known is not None:
        return known
    if len(_changes) >= _MOST_CHANGES:
        _changes.clear()
    text = _changes[key] = _build_style_change_sequence(before, after, system)
    return text


def _build_style_change_sequence(before: Style, after: Style, system: ColorSystem | None) -> str:
    was, now = _attribute_codes(before), _attribute_codes(after)
    if was - now:
        # Terminals disagree about how to end one attribute, so that all are ended.
        codes = [*sorted(now), *_colour_change_codes(_NO_STYLE, after, system)]
        return f"\x1b[{';'.join(['0', *codes])}m"
    codes = [*sorted(now - was), *_colour_change_codes(before, after, system)]
    return f"\x1b[{';'.join(codes)}m" if codes else ""


def _attribute_codes(style: Style) -> frozenset[str]:
    return frozenset(code for name, code in _ATTRIBUTES if getattr(style, name))


def _colour_change_codes(before: Style, after: Style, system: ColorSystem | None) -> list[str]:
    if system is None:
        return []
    codes: list[str] = []
    for was, now, foreground in (
        (before.color, after.color, True),
        (before.bgcolor, after.bgcolor, False),
    ):
        if was != now:
            codes += _ansi_codes_of_colour(now, foreground, system)
    return codes


def _ansi_codes_of_colour(
    colour: Color | None, is_foreground: bool, system: ColorSystem
) -> Iterable[str]:
    if colour is None:
        return ("39" if is_foreground else "49",)
    return colour.downgrade(system).get_ansi_codes(is_foreground)

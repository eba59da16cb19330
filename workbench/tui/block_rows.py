"""Blocks of a report as rows of the screen. The screen shows a result in the blocks that the
commands and the reports show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from workbench.model.findings import Level
from workbench.model.lazy_dataclass import dataclass
from workbench.report.blocks import (
    Alert,
    CodeBlock,
    Facts,
    FindingBlock,
    Fold,
    Heading,
    Items,
    KeyMetrics,
    PlotBlock,
    ShownBlock,
    Table,
    TextBlock,
    Wording,
)
from workbench.report.format_values import NA
from workbench.tui.cells import (
    Row,
    cut_text,
    labelled_paragraph,
    pad_text,
    paragraph_rows,
    rows_beside_label,
    stack_paragraphs,
    width_of,
    wrap_text,
)
from workbench.tui.glyphs import LEVELS

LABEL = 12
_GAP = 2
_LEAST_TEXT = 20  # cells beside a label
MARK_ROLES = {"": "text", "good": "goodb", "bad": "bad", "warning": "warn", "dim": "dim"}
_LEVEL_ROLES = {Level.ERROR: "bad", Level.WARN: "warn", Level.HINT: "strong", Level.INFO: "text"}
_FACT_ROLES = {"change": "goodb", "verdict": "good", "source": "dim"}  # of a finding
_FACT_LABEL = 10
_LABELS = {"rejected": " REJECTED ", "simulated": " SIMULATED "}
_ALERT_MARKS = {"rejected": ("x", "bad"), "failed": ("x", "bad")}  # and the role


def block_rows(blocks: Iterable[ShownBlock], width: int, *, show_all: bool = False) -> list[Row]:
    """Return the blocks as rows of at most `width` cells. Plots are left out. With `show_all`, as
    on a page of their own, folded details are shown, and a table that is wider than `width` becomes
    labels with texts, of which nothing is cut."""
    return [row for block in blocks for row in _rows_of_block(block, width, show_all)]


def _stacked_table_rows(table: Table, width: int) -> list[Row]:
    """Return each row of a table as a label, its first cell, with a text: the other cells behind
    their column heads. Cells without a value are left out."""

    facts = []
    for label, *cells in table.rows:
        pairs = zip(table.head[1:], cells, strict=True)
        facts.append((label, ", ".join(f"{head} {cell}" for head, cell in pairs if cell != NA)))
    return fact_rows(facts, width)


def _rows_of_block(block: ShownBlock, width: int, show_all: bool) -> list[Row]:
    match block:
        case Heading():
            return [(), ((cut_text(block.text, width), "title"),)]
        case TextBlock():
            return paragraph_rows(block.text, width, _style_role_of_text(block))
        case Alert():
            return _alert_rows(block, width)
        case KeyMetrics():
            texts = [(title, f"{value}  ({detail})") for title, value, detail in block.items]
            return fact_rows(texts, width)
        case Table():
            return _table_rows(block, width, show_all)
        case Facts():
            return fact_rows(block.rows, width)
        case CodeBlock():
            return [(), *paragraph_rows(f"$ {block.text}", width, "dim", "  ")]
        case Items():
            return stack_paragraphs((f"- {line}" for line in block.lines), width, "text", "  ")
        case FindingBlock():
            return _finding_rows(block, width)
        case Fold() if show_all:
            inner = (Heading(block.title, 3), *block.blocks)
            return block_rows(inner, width, show_all=True)
        case Fold() | PlotBlock():
            return []


def _style_role_of_text(block: TextBlock) -> str:
    if block.mark:
        return MARK_ROLES[block.mark]
    if block.lead:
        return "strong"
    return "dim"


def _finding_rows(finding: FindingBlock, width: int) -> list[Row]:
    """Return rows with a finding and, below it, its facts. A finding with a number has the colour
    of its level, and a blank row at the end; any other finding has the sign of its level."""
    sign, role = LEVELS[finding.level]
    begin, text_role = f"{sign} ", "strong"
    below: list[Row] = []
    if finding.number is not None:
        begin, role, text_role = f"{finding.number:>2}  ", "dim", _LEVEL_ROLES[finding.level]
        below = [()]
    indent = width_of(begin)
    room = max(8, width - indent)
    rows = rows_beside_label(begin, role, paragraph_rows(finding.text, room, text_role))
    for label, text in finding.facts:
        said = paragraph_rows(text, max(8, room - _FACT_LABEL), _FACT_ROLES.get(label, "text"))
        rows += rows_beside_label(" " * indent + pad_text(label, _FACT_LABEL), "dim", said)
    return [*rows, *below]


def fact_rows(facts: Sequence[tuple[str, str]], width: int) -> list[Row]:
    """Return rows of label and text. The labels of all facts have one width."""
    longest = max((width_of(label) for label, _ in facts), default=0)
    label_width = LABEL
    if longest >= LABEL:
        label_width = min(longest + _GAP, max(LABEL, width - _LEAST_TEXT))
    rows: list[Row] = []
    for label, text in facts:
        rows += labelled_paragraph(pad_text(label, label_width), text, width)
    return rows


def _alert_rows(alert: Alert, width: int) -> list[Row]:
    if alert.kind == "simulated":
        text = " ".join(alert.lines)
        return [
            ((_LABELS[alert.kind], "reverse"), (cut_text(f" {text}", width - LABEL), "warn")),
            (),
        ]
    mark, role = _ALERT_MARKS.get(alert.kind, ("!", "warn"))
    title: Row = ((cut_text(f"{alert.title}:", width), role),)
    if alert.kind == "rejected":
        title = ((_LABELS[alert.kind], "reverse"), (f" {alert.title}:", role))
    reasons = (f"{mark} {line}" for line in alert.lines)
    return [title, *stack_paragraphs(reasons, width, role, "  "), ()]


def _table_rows(table: Table, width: int, show_all: bool) -> list[Row]:
    """Return a table whose columns are as wide as their cells. If it is wider than `width`, shorten
    the wordings, then leave out columns of little importance, and then cut texts. With `show_all`,
    return one text per row instead. A long text in the last column is wrapped. A row with text in
    its first cell only has the whole width."""
    lines, columns = [table.head, *table.rows], range(len(table.head))
    if show_all and _min_table_width(table, lines, columns, unwrapped=True, gap=_GAP) > width:
        return _stacked_table_rows(table, width)
    layout = _lay_out_table(table, width)
    marks = table.marks or ("",) * len(table.rows)
    rows = _table_row(layout, layout.head, width, "head", "head")
    for mark, cells in zip(marks, layout.rows, strict=True):
        role = MARK_ROLES[mark]
        if not any(cells[1:]):
            rows += paragraph_rows(cells[0], width, "dim", "  ")
        elif mark:
            rows += _table_row(layout, cells, width, role, role)
        else:
            rows += _table_row(layout, cells, width, "dim", role)
    return rows


@dataclass(frozen=True, slots=True)
class _Layout:
    """A table for a given width, without the columns that have no room. `numeric` says which
    columns are aligned right. `widths` has the width of each column but the last, with the blank
    cells behind it. `last` is the least width of the last column."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: tuple[bool, ...]
    widths: tuple[int, ...]
    last: int

    @property
    def blanks_before_cells(self) -> list[str]:
        """The text in front of the cell of each column: a blank if the column has texts and follows
        a column of numbers, otherwise ""."""
        before = (False, *self.numeric)
        return [" " * (a > b) for a, b in zip(before, self.numeric, strict=False)]


def _lay_out_table(table: Table, width: int) -> _Layout:
    lines = [table.head, *table.rows]
    columns = list(range(len(table.head)))
    if _min_table_width(table, lines, columns, unwrapped=True) > width:
        lines = [tuple(map(_short_cell_text, line)) for line in lines]
        columns = [column for column in columns if any(line[column] for line in lines)]
    can_go: list[int] = []
    if table.importance:
        can_go = [column for column in columns if table.importance[column]]
        can_go.sort(key=table.importance.__getitem__)
    while can_go and _min_table_width(table, lines, columns) > width:
        columns.remove(can_go.pop())
    gap = _GAP
    if _min_table_width(table, lines, columns, gap=_GAP) > width:
        gap = 1
    widths = [_column_width(lines, column) + gap for column in columns]
    for place, column in enumerate(columns[1:], start=1):
        if columns[place - 1] in table.numeric and column not in table.numeric:
            widths[place] += gap  # a text beside a number that ends its column
    numeric = tuple(column in table.numeric for column in columns)
    last = widths.pop()
    if not numeric[-1]:
        last = min(last, _LEAST_TEXT)
    _shrink_text_columns(widths, width - last, numeric)
    shown = [tuple(map(line.__getitem__, columns)) for line in lines]
    return _Layout(
        head=shown[0], rows=tuple(shown[1:]), numeric=numeric, widths=tuple(widths), last=last
    )


def _short_cell_text(cell: str) -> str:
    if isinstance(cell, Wording):
        return cell.short
    return cell


def _column_width(lines: Sequence[Sequence[str]], column: int) -> int:
    """Return the width in cells of the longest text in a column. Rows with text in their first cell
    only do not count."""
    full = (line[column] for line in lines if any(line[1:]))
    return max(map(width_of, full))


def _min_table_width(
    table: Table,
    lines: Sequence[Sequence[str]],
    columns: Sequence[int],
    *,
    unwrapped: bool = False,
    gap: int = 1,
) -> int:
    """Return how many cells the columns with the indexes `columns` need, with `gap` cells behind
    each of them. If `unwrapped` is false, a text in the last column may be wrapped."""
    widths = [_column_width(lines, column) + gap for column in columns]
    if not unwrapped and columns[-1] not in table.numeric:
        widths[-1] = min(widths[-1], _LEAST_TEXT)
    return sum(widths)


def _shrink_text_columns(
    widths: list[int], available_cells: int, are_numeric: Sequence[bool]
) -> None:
    """Take cells from the widest columns of text until all columns fit into `available_cells`
    cells, or until none is wider than a label."""
    while sum(widths) > available_cells:
        texts = [place for place, _ in enumerate(widths) if not are_numeric[place]]
        widest = max(texts, key=widths.__getitem__, default=0)
        if widths[widest] <= LABEL:
            return
        widths[widest] -= 1


def _table_row(
    layout: _Layout, cells: Sequence[str], width: int, label_role: str, role: str
) -> list[Row]:
    """Return a row of the table, with further rows if the text of its last cell is wrapped."""
    padded = []
    blanks_before_cells = layout.blanks_before_cells
    for text, lead, size, is_number in zip(
        cells, blanks_before_cells, layout.widths, layout.numeric, strict=False
    ):
        padded.append(pad_text(cut_text(lead + text, size - 1), size, is_number))
    label, middle = "".join(padded[:1]), "".join(padded[1:])
    room = max(1, width - width_of(label) - width_of(middle))
    if layout.numeric[-1]:
        wrapped = [pad_text(cells[-1], layout.last, True)]
    else:
        lead = blanks_before_cells[-1]
        wrapped = [lead + line for line in wrap_text(cells[-1], room - len(lead))]
    first: Row = (
        (label, label_role),
        (cut_text(middle + wrapped[0], width - width_of(label)), role),
    )
    indent = " " * (width_of(label) + width_of(middle))
    return [first, *(((cut_text(indent + line, width), role),) for line in wrapped[1:])]

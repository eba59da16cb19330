"""The arrangement of the telemetry strip: which GPUs share a row, and the positions and heights of
the graphs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from workbench.model.lazy_dataclass import dataclass
from workbench.tui.widgets.graph import Columns

Group = tuple[int, ...]  # indexes of equal GPUs that are drawn together

MOST_ROWS = (8, 5)  # of a graph in the first and second line of a GPU
TWO_LINES = 4  # rows of a GPU from which it has a second line of graphs
# a metric a line over the whole width: "power ", " 98/170W", and the most rows of utilization,
# power and clock by the rows that the GPUs may take. The limit of the power needs two rows; further
# ones come when the panes have 14 rows each
STACKED_LABEL, STACKED_VALUE, STACKED_LEAST, METRICS = 6, 11, 57, 3
STACKED_ROWS = ((0, (1, 1, 1)), (12, (1, 2, 1)), (16, (2, 2, 2)), (19, (3, 3, 3)), (22, (4, 4, 4)))
BLOCK_LEAD, WIDE_FROM_CELLS, GRAPH_LEAST = 10, 100, 5
MOST_NAME = 15  # cells for the name of a node
ROW_LEAD, WIDE_ROW_LEAD = 2, 20  # in front of the graphs of a GPU with one row
FIGURE_CELLS = 11  # of the memory behind a name, such as " 97.4/122G "
# "util ", "power ", "sm "; " 100%", "1000/1000W", " 2310MHz"
ROW_LABELS, ROW_VALUES = (5, 6, 3), (5, 10, 8)
LABEL, NARROW_LABEL, NOTE_LABEL, FOLDED_LABEL = 10, 9, 12, 13  # cells in front of a tall graph


@dataclass(frozen=True, slots=True)
class StripLayout:
    """The arrangement of the telemetry strip. `groups` has one entry per block of rows, which is
    the tuple of the numbers of the GPUs in the block. A block has one or more lines of graphs, and
    `heights` has the number of rows of each line. If the layout is `stacked`, a line has one graph
    over the whole width, and all graphs share one time axis. With `labels`, a row above the axis
    says what happened."""

    groups: tuple[Group, ...]
    columns: Columns
    heights: tuple[int, ...]
    header: bool
    axis: bool
    stacked: bool = False
    labels: bool = False

    @property
    def row_count(self) -> int:
        graphs = len(self.groups) * sum(self.heights)
        return self.header + graphs + self.labels + self.axis

    @property
    def shows_values_left_of_graphs(self) -> bool:
        """Return whether temperature and memory are shown as numbers at the left of a GPU's graphs.
        Otherwise they have graphs."""
        return (self.stacked or len(self.heights) == 1) and self.columns.lead >= BLOCK_LEAD


def max_strip_rows(height: int) -> int:
    """Return how many rows the GPUs may take on a terminal of `height` rows: 5 on 24 rows, 12 on
    40, and 24 on 60."""
    if height < 24:
        return max(1, height // 5)
    if height <= 40:
        return 5 + round((height - 24) * 0.44)
    return 5 + round((height - 24) * 0.527)


def arrange_strip(
    groups: Sequence[Group],
    width: int,
    max_rows: int,
    *,
    block_per_gpu: bool | None,
    needs_header: bool,
    name_cells: int = 0,
    has_labels: bool = False,
) -> StripLayout:
    """Return the layout of the GPUs in at most `max_rows` rows. `block_per_gpu` True gives each GPU
    a block of rows, even if that takes more rows, False gives each group of GPUs one block, and
    None gives each GPU a block if all blocks fit and no two GPUs are equal. `needs_header` requires
    a row for warnings, and `name_cells` is the length of the longest name in front of the graphs, 0
    if the GPUs are shown by number. `has_labels` asks for a row of labels, for which the strip is
    one row higher."""
    together = tuple(groups)
    single: tuple[Group, ...] = tuple((index,) for index in sorted(chain(*groups)))
    wanted = together
    is_apart = block_per_gpu
    if block_per_gpu is None:
        is_apart = name_cells > 0
    if is_apart:
        wanted = single
    stacked = _stacked_layout(wanted, width, max_rows, name_cells, has_labels)
    if stacked is not None:
        return stacked
    if block_per_gpu:
        max_rows = max(max_rows, len(single) + 1)
    folded = block_per_gpu is False or len(single) > max(max_rows - 1, 1)
    blocks = single
    if folded:
        blocks, name_cells = together, 0
    count, axis = len(blocks), max_rows > 1
    each, beside = max(1, (max_rows - axis) // count), (max_rows - axis - 1) // count
    has_header = False
    if max_rows > 2:
        if beside < 1:
            has_header = needs_header
        elif beside >= 2 or beside == each:
            has_header, each = True, beside
    heights = _rows_per_graph_line(each)
    fits = max(1, max_rows - axis - (has_header and beside >= 1))
    columns = _strip_columns(width, blocks, heights[0], name_cells)
    return StripLayout(blocks[:fits], columns, heights, has_header, axis)


def _rows_per_graph_line(block_rows: int) -> tuple[int, ...]:
    """Return the rows of each line of graphs of a GPU that has `block_rows` rows."""
    if block_rows < TWO_LINES:
        return (min(block_rows, MOST_ROWS[0]),)
    first = min(-(-block_rows * 3 // 5), MOST_ROWS[0])
    return first, min(block_rows - first, MOST_ROWS[1])


def _stacked_layout(
    blocks: Sequence[Group], width: int, max_rows: int, name_cells: int, has_labels: bool
) -> StripLayout | None:
    """Return the layout with one graph a line; None if there is no room for all of them."""
    each = (max_rows - 2) // (METRICS * max(1, len(blocks)))  # beside the header and the axis
    if not blocks or each < 1 or width < STACKED_LEAST:
        return None
    highest = next(rows for least, rows in reversed(STACKED_ROWS) if max_rows >= least)
    lead = _cells_before_graphs(blocks, name_cells)
    return StripLayout(
        groups=tuple(blocks),
        columns=_columns_filling_width(width, lead, (STACKED_LABEL,), (STACKED_VALUE,)),
        heights=tuple(min(each, rows) for rows in highest),
        header=True,
        axis=True,
        stacked=True,
        labels=has_labels,
    )


def _cells_before_graphs(blocks: Sequence[Group], name_cells: int) -> int:
    """Return the cells in front of the graphs of several blocks; 0 for a single block."""
    if len(blocks) <= 1:
        return 0
    return max(BLOCK_LEAD, name_cells + 1)


def _strip_columns(width: int, blocks: Sequence[Group], height: int, name_cells: int) -> Columns:
    if height == 1:
        return single_row_columns(width, name_cells)
    across = _count_graphs_across(width)
    lead = _cells_before_graphs(blocks, name_cells)
    label = LABEL
    if any(len(block) > 1 for block in blocks):
        label = FOLDED_LABEL
    elif width < WIDE_FROM_CELLS and lead:
        label = NARROW_LABEL
    elif height > 2:
        label = NOTE_LABEL
    return _columns_filling_width(width, lead, (label,) * across, (0,) * across)


def single_row_columns(width: int, name_cells: int = 0) -> Columns:
    """Return the positions of graphs that are one row high, each with its value behind it.
    `name_cells` is the length of the longest name in front of the graphs, 0 if the GPUs are shown
    by number."""
    across = _count_graphs_across(width)
    lead = max(ROW_LEAD, name_cells + 1)
    if width >= WIDE_FROM_CELLS:
        lead = max(WIDE_ROW_LEAD, name_cells + FIGURE_CELLS)
    return _columns_filling_width(width, lead, ROW_LABELS[:across], ROW_VALUES[:across])


def _count_graphs_across(width: int) -> int:
    return min(max(1, width // 19), 3)


def _columns_filling_width(
    width: int, lead_cells: int, label_cells: tuple[int, ...], value_cells: tuple[int, ...]
) -> Columns:
    across = len(label_cells)
    room = width - lead_cells - sum(label_cells) - sum(value_cells) - (across - 1)
    return Columns(lead_cells, label_cells, value_cells, max(room // across, GRAPH_LEAST))

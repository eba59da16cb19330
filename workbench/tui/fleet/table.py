"""The table of the fleet: for each host a block of one to four rows, as many as the screen has room
for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from workbench.model.counts import gpus_text
from workbench.tui.cells import (
    Painted,
    Row,
    Run,
    cut_text,
    cut_text_middle,
    join_runs,
    pad_text,
    pad_text_with_gap,
    row_width,
    width_of,
)
from workbench.tui.fleet.columns import (
    FEWEST_GPU_CELLS,
    LEAST_NAME,
    MARK_CELLS,
    MOST_NAME,
    STATE_CELLS,
    altered_and_alert_signs,
    columns_for_width,
    gpu_utilization_texts,
    host_server_texts,
    host_state_texts,
    number_column_texts,
    role_or_dim_if_old,
)
from workbench.tui.formats import GIB, NA, altered_setting_texts, whole_number_text
from workbench.tui.glyphs import G
from workbench.tui.widgets.gpu_metrics import POWER, gpu_model_title
from workbench.tui.widgets.graph import Graph, draw_graph, highest_value_or_zero

if TYPE_CHECKING:
    from workbench.model.gpu import GpuSample
    from workbench.session.fleet.state import FleetHost

MOST_LINES = 4
INDENT = "  "
GPU_FIGURES = (8, 14, 19, 24)  # cells for a GPU from which its figures have one more value
# cells from which a GPU is called "GPU0" instead of "0:", and the most for one
NAMED_GPU, MOST_GPU = 26, 30
LEAST_TOK_S = 100.0  # top of the scale of token rates, if all are lower


class FleetTable(Painted):
    """The table of the fleet: a block of rows for each host, with a cursor. The hosts are sorted by
    the column named `order`, in the opposite direction if `reverse` is true. The title of that
    column has a mark."""

    def __init__(self) -> None:
        super().__init__(id="fleet")
        self.hosts: Sequence[FleetHost] = ()
        self.cursor, self.top = 0, 0
        self.order, self.reverse = "host", False
        # cells of the names and of the GPUs, over all hosts
        self.widest = (LEAST_NAME, FEWEST_GPU_CELLS)

    def show(self, hosts: Sequence[FleetHost], cursor: int) -> None:
        """Draw these hosts, with the cursor on the one at index `cursor`."""
        self.hosts, self.cursor = hosts, cursor
        self.repaint()

    def set_column_widths(self, hosts: Sequence[FleetHost]) -> None:
        """Set the widths of the columns from all hosts, so that the columns do not move when a
        filter hides hosts."""
        self.widest = (
            max((width_of(host.name) for host in hosts), default=LEAST_NAME),
            max((len(host.gpus) for host in hosts), default=FEWEST_GPU_CELLS),
        )

    def count_rows_per_host(self, height: int) -> int:
        """Return the number of rows that each host gets in a table of `height` rows."""
        return max(1, min(MOST_LINES, (height - 1) // max(1, len(self.hosts))))

    def count_fitting_hosts(self, height: int) -> int:
        """Return the number of hosts that fit into a table of `height` rows, below the row of
        column titles."""
        return max(1, (height - 1) // self.count_rows_per_host(height))

    def rows(self, width: int, height: int) -> Sequence[Row]:
        if not self.hosts:
            return [((f"{INDENT}no host matches the filter: esc removes it", "dim"),)]
        name_cells = max(LEAST_NAME, min(MOST_NAME, self.widest[0] + 1, width // 6 + width // 40))
        gpu_cells = max(FEWEST_GPU_CELLS, min(16, self.widest[1]))
        fit, lines = self.count_fitting_hosts(height), self.count_rows_per_host(height)
        self.top = max(0, min(self.top, self.cursor, len(self.hosts) - fit))
        self.top = max(self.top, self.cursor - fit + 1)
        rows = [self._head_row(name_cells, gpu_cells, width)]
        for index in range(self.top, min(len(self.hosts), self.top + fit)):
            rows += _host_rows(
                self.hosts[index], index == self.cursor, name_cells, gpu_cells, width, lines
            )
        return rows

    def _head_row(self, name_cells: int, gpu_cells: int, width: int) -> Row:
        titles = [
            ("host", name_cells + len(INDENT), False),
            ("state", STATE_CELLS, False),
            ("", MARK_CELLS, False),
            ("GPUs", gpu_cells, False),
        ]
        titles += [(column.title, column.cells, True) for column in columns_for_width(width)]
        runs: list[Run] = []
        for title, cells, right in titles:
            text, role = title, "head"
            if title == self.order:
                text, role = f"{title}^", "strong"
                if self.reverse == (title == "host"):
                    text = f"{title}v"
            if title == "host":
                text = INDENT + text
            runs.append((pad_text(text, cells, align_right=right), role))
        servers = "  servers"
        if row_width(runs) + len(servers) > width:
            servers = "  srv"
        return (*runs, (servers, "head"))


def _host_rows(
    host: FleetHost, is_selected: bool, name_cells: int, gpu_cells: int, width: int, max_lines: int
) -> list[Row]:
    sign, role = INDENT, "strong"
    if is_selected:
        sign, role = f"{G.arrow} ", "select"
    name = _host_name(host, name_cells - 1)
    gap = " " * (name_cells - width_of(name))
    first: list[Run] = [(sign, "key"), (name, role), (gap, "text")]
    first += [*host_state_texts(host), *altered_and_alert_signs(host)]
    if host.telemetry is None:
        first.append((host.problem or "", "text"))
    else:
        first += [
            *gpu_utilization_texts(host, gpu_cells),
            *number_column_texts(host, width),
            (INDENT, "text"),
        ]
        first += host_server_texts(host, width - row_width(first))
    left = len(INDENT) + name_cells + STATE_CELLS + MARK_CELLS
    more = [_graphs_row(host, left, width), _gpu_values_row(host, width), host_notes_row(host)]
    return [tuple(first), *more[: max_lines - 1]]


def _host_name(host: FleetHost, max_cells: int) -> str:
    """Return the name of the host in at most `max_cells` cells. If the name is longer, its end is
    kept, because long names differ at the end."""
    if host.name.isascii():
        return cut_text_middle(host.name, max_cells)
    return cut_text(host.name, max_cells)


def _graphs_row(host: FleetHost, left_cells: int, width: int) -> Row:
    """Return the row with the names of the GPUs in the first `left_cells` cells, and the graphs of
    utilization, power and token rate in the rest of `width`. Without telemetry the row is empty."""
    if host.telemetry is None:
        return ()
    title = INDENT * 2 + label_and_gpus_title(host)
    runs: list[Run] = [(pad_text(cut_text(title, left_cells - 1), left_cells), "dim")]
    graphs = (
        ("util", "util", host.util_trail, 100.0),
        ("power", "power", host.power_trail, _total_power_scale_top_w(host)),
        ("tok/s", "sm", host.tok_trail, highest_value_or_zero(host.tok_trail)),
    )
    each = (width - left_cells) // len(graphs)
    for label, role, trail, top in graphs:
        cells = each - width_of(label) - 2
        if cells <= 0:  # a narrow terminal
            continue
        unread = (None,) * (cells - len(trail))
        values = (*unread, *trail[-cells:])
        role = role_or_dim_if_old(host, role)
        body = draw_graph(Graph(label, "", values, max(top, LEAST_TOK_S), role=role), 1)[0]
        runs += [(f"{label} ", "dim"), *body, (" ", "text")]
    return tuple(runs)


def _total_power_scale_top_w(host: FleetHost) -> float:
    """Return the upper end of the scale for the power of all GPUs of the host, in watts; 0.0
    without telemetry."""
    telemetry = host.telemetry
    if telemetry is None:
        return 0.0
    return sum(POWER.top(telemetry.info(gpu.index)) for gpu in telemetry.gpus)


def label_and_gpus_title(host: FleetHost) -> str:
    """Return the label that the user gave to the host, followed by its GPUs, such as "8x RTX PRO
    6000 96G". Return only the label if the GPUs have not been read."""
    telemetry = host.telemetry
    if telemetry is None:
        return host.label
    counts = Counter(gpu_model_title(telemetry.info(gpu.index), gpu) or "GPU" for gpu in host.gpus)
    gpus = []
    for title, count in counts.items():
        if count > 1:
            title = f"{count}x {title}"
        gpus.append(title)
    return "  ".join(filter(None, (host.label, ", ".join(gpus))))


def _gpu_values_row(host: FleetHost, width: int) -> Row:
    """Return the row with the present values of each GPU. If the row would be longer than `width`,
    it has fewer values for each GPU."""
    if not host.gpus:
        return ()
    each = min(MOST_GPU, (width - 2 * len(INDENT)) // len(host.gpus))
    count = sum(each >= cells for cells in GPU_FIGURES)
    if not count:
        return ()
    role = role_or_dim_if_old(host, "text")
    runs: list[Run] = [(INDENT * 2, "text")]
    altered = {one.gpu_index for one in host.altered}
    for gpu in host.gpus:
        name, name_role = f"{gpu.index}: ", "dim"
        if each >= NAMED_GPU:
            name = f"GPU{gpu.index} "
        if gpu.index in altered:
            name_role = "warn"
        figures, own_role = f"x {gpu.state}", "bad"
        if gpu.has_readings:
            figures, own_role = " ".join(_gpu_value_texts(gpu)[:count]), role
        runs.append((name, name_role))
        runs.append((pad_text_with_gap(figures, each - len(name)), own_role))
    return tuple(runs)


def _gpu_value_texts(gpu: GpuSample) -> list[str]:
    used = NA
    if gpu.memory_used_bytes is not None:
        used = f"{gpu.memory_used_bytes / GIB:.0f}G"
    return [
        pad_text(whole_number_text(gpu.gpu_util_pct, "%"), 4, align_right=True),
        pad_text(whole_number_text(gpu.power_w, "W"), 5, align_right=True),
        pad_text(whole_number_text(gpu.temperature_c, "C"), 4, align_right=True),
        pad_text(used, 4, align_right=True),
    ]


def host_notes_row(host: FleetHost) -> Row:
    """Return a row with the notes about the host: its problem, active alerts, throttled GPUs,
    altered settings, and problems of servers. The row is empty without a note."""
    notes: list[Run] = []
    if host.problem and host.telemetry is not None:
        notes.append((f"! {host.problem}", "warnb"))
    notes += [(f"A {text}", "bad") for text in host.current_alerts]
    if host.is_live:
        for reason, gpus in host.throttle_reasons.items():
            notes.append((f"! {gpus_text(gpus)} {reason}", "warnb"))
    for text in altered_setting_texts(host.altered, len(host.gpus)):
        notes.append((f"{G.alert} {text}", "warn"))
    for server in host.servers:
        if problem := server.text or server.problem:
            notes.append((f"{server.engine} :{server.port}: {problem}", "text"))
    if not notes:
        return ()
    return ((INDENT * 2, "text"), *join_runs(notes, (INDENT, "text")))

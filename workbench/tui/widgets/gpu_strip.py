"""The telemetry strip: rows with graphs of each GPU's utilization, power, clocks and more on one
time axis."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING

from textual import events
from textual.message import Message

from workbench.model.counts import count_of, gpus_text
from workbench.model.known_values import known_values
from workbench.model.timeline import QUIET_REASONS, History
from workbench.model.unconfirmed_changes import split_altered_and_begun_changes
from workbench.session.state import SessionState
from workbench.tui.cells import (
    Painted,
    Row,
    Run,
    cut_paragraph_rows,
    cut_text,
    fit_row,
    join_runs,
    justify_row,
    pad_text,
    paragraph_rows,
    row_width,
    rows_beside_label,
)
from workbench.tui.formats import duration_text, gauge_text, setting_label, time_of_day_text
from workbench.tui.glyphs import G
from workbench.tui.widgets.axis_labels import LABELLED, axis_labels
from workbench.tui.widgets.engine_rows import EngineRows
from workbench.tui.widgets.gpu_metrics import (
    FIRST,
    SECOND,
    TEMPERATURE,
    UTIL,
    VRAM,
    Metric,
    gpu_model_title,
    gpu_name,
    gpu_title,
    group_label_value_and_note,
    is_scale_top_reported,
    memory_size_bytes,
    other_node_warning,
    power_limit_or_max_w,
    replace_means_at_limit_changes,
    sample_at_cursor,
    shorten_node_name,
    value_range_and_note,
)
from workbench.tui.widgets.graph import Columns, Graph, mean_value
from workbench.tui.widgets.graph_cache import GraphCache
from workbench.tui.widgets.guard_state import guard_deadline_passed_text
from workbench.tui.widgets.status_bar import stale_age_s
from workbench.tui.widgets.strip_layout import (
    FIGURE_CELLS,
    MOST_NAME,
    STACKED_VALUE,
    WIDE_FROM_CELLS,
    WIDE_ROW_LEAD,
    Group,
    StripLayout,
    arrange_strip,
    max_strip_rows,
    single_row_columns,
)
from workbench.tui.widgets.time_axis import (
    DAY_S,
    AxisCache,
    TimeView,
    Window,
    events_in_window,
    label_row,
    mark_meanings_row,
)
from workbench.tui.widgets.unlike_gpus import UnlikeGpus

if TYPE_CHECKING:
    from workbench.model.gpu import GpuInfo, GpuSample, Telemetry

TIME_KEYS: Row = (("[", "key"), (" earlier   ", "dim"), ("+ -", "key"), (" zoom", "dim"))
HEADED = (VRAM, TEMPERATURE)  # the values that come first in the header
METER_CELLS = 8
_arrange = lru_cache(maxsize=8)(arrange_strip)  # asked with each reading
FRESH_S = 2.5  # a newer reading than this is "now"; without one the time goes on without values


class GpuStrip(Painted):
    """The telemetry strip: the graphs of the GPUs with their time axis. The user can move a time
    cursor, which shows the values and events of an earlier second."""

    FIELDS = frozenset(
        {
            "telemetry",
            "telemetry_monotonic_s",
            "engine",
            "host",
            "alterations",
            "drift",
            "others",
            "gpu_findings",
            "guard",
            "servers",
            "run_id",
            "results",
            "mark_a",
            "mark_b",
        }
    )

    class ViewChanged(Message):
        """The message that the strip sends to the screen when the user has moved the time cursor,
        changed the seconds per cell, or switched between one row for all GPUs of a type and one row
        per GPU."""

    def __init__(self, history: History, state: SessionState) -> None:
        super().__init__(id="gpus")
        self.history, self.state = history, state
        self.graph_cache = GraphCache(history)
        self.engine = EngineRows(history)
        self.unlike = UnlikeGpus(history)
        self.axis = AxisCache(history)
        self.view = TimeView()
        # the user's choice of a row per GPU; None: as there is room
        self.unfolded: bool | None = None
        self._telemetry: Telemetry | None = None
        self.stale: float | None = None
        self.arranged: StripLayout | None = None
        self._differing = ""  # GPUs that have no room for graphs of their own, although they differ
        self._engine_rows = 0
        self._read_s = 0.0  # Unix time of the newest reading
        self._read_t_s = -1.0
        # metrics of the second line that some GPU of this host reports
        self._given: tuple[Metric, ...] = ()
        # the groups of the GPUs, and the properties and numbers from which they were made
        self._groups_made: list[Group] = []
        self._grouped_from: tuple[tuple[GpuInfo, ...], list[int]] = ((), [])

    def show(self, state: SessionState) -> None:
        self.state = state
        self.stale = stale_age_s(state)
        telemetry = self._telemetry = state.telemetry
        if telemetry is None:  # another host
            self._given, self._read_t_s = (), -1.0
            self.view.move_to_now()
        elif telemetry.t_s != self._read_t_s:
            self._read_s, self._read_t_s = self.history.clock(), telemetry.t_s
            if len(self._given) < len(SECOND):
                self._given = tuple(
                    m for m in SECOND if m in self._given or m.is_reported_by_any(telemetry.gpus)
                )
        self.repaint()

    @property
    def _telemetry_if_any_gpu(self) -> Telemetry | None:
        """The newest reading; None without one, and if the driver sees no GPU."""
        if self._telemetry is None or not self._telemetry.gpus:
            return None
        return self._telemetry

    @property
    def _is_stacked(self) -> bool:
        return self.arranged is not None and self.arranged.stacked

    @property
    def now_s(self) -> float:
        """Return the Unix time of the newest cell of the graphs. This is the time of the newest
        reading, or the present time if that reading is older than FRESH_S seconds."""
        now = self.history.clock()
        if now - self._read_s < FRESH_S:
            return self._read_s
        return now

    @property
    def shows_past(self) -> bool:
        """Return whether the time cursor is shown, so that the strip shows the values of an earlier
        second."""
        return not self.view.is_live

    def arrange_and_count_rows(self, width: int, height: int) -> int:
        """Arrange the strip for a terminal of `width` by `height` cells, and return the number of
        rows that it needs."""
        telemetry = self._telemetry_if_any_gpu
        if telemetry is None:
            self.arranged = None
            self.view.per_cell = 1
            self._engine_rows = self._count_engine_rows(single_row_columns(width), height)
            rows = [*self._other_node_rows(width), *self._no_gpu_rows(width)]
            return len(rows) + self._engine_rows
        before = self.arranged
        self.arranged = self._arrange_groups(telemetry, width, height)
        self.view.per_cell = 2 if self.arranged.stacked and G.braille else 1
        if before not in (None, self.arranged):
            self.call_later(self.repaint)  # also if the height stays the same
        self._engine_rows = self._count_engine_rows(self.arranged.columns, height)
        above = len(self._other_node_rows(width))
        return above + self.arranged.row_count + self._engine_rows + self.shows_past

    def _arrange_groups(self, telemetry: Telemetry, width: int, height: int) -> StripLayout:
        """Return the layout of the GPUs. Equal GPUs that work differently are apart, if all of
        them then still have graphs over the whole width. If not, the header names them."""
        groups, named = self._equal_gpu_groups(), self._longest_name_cells(telemetry)
        unfolded = self.unfolded
        if unfolded is None and _has_lost_or_incomplete_gpu(telemetry):
            unfolded = True

        def arrange_blocks(blocks: Sequence[Group]) -> StripLayout:
            return _arrange(
                tuple(blocks),
                width,
                max_strip_rows(height),
                block_per_gpu=unfolded,
                needs_header=bool(self._gpu_indexes_and_lasting_conditions()),
                name_cells=named,
                has_labels=self._has_labelled_event(width),
            )

        self._differing = ""
        if unfolded is None and not named:
            parts: list[Group] = []
            for group in groups:
                parts += self.unlike.split_group_if_unlike(
                    group, telemetry.info(group[0]), self.now_s
                )
            if len(parts) > len(groups):
                apart = arrange_blocks(parts)
                if apart.stacked:
                    return apart
                first = {group[0] for group in groups}
                others = [part for part in parts if part[0] not in first]
                self._differing = _differing_gpus_text(sorted(chain(*others)))
        return arrange_blocks(groups)

    def _has_labelled_event(self, width: int) -> bool:
        """Return whether something happened in the time that the graphs may show that has a label
        above the time axis."""
        since = bisect_left(
            self.history.events, self.now_s - width * self.view.cell_s, key=lambda e: e.unix_s
        )
        return any(event.kind in LABELLED for event in self.history.events[since:])

    def _count_engine_rows(self, columns: Columns, height: int) -> int:
        if self._is_stacked:
            return self.engine.count_full_width_rows(self.state, height)
        return self.engine.count_rows(self.state, columns, height)

    def _engine_graph_rows(self, window: Window, columns: Columns, width: int) -> Sequence[Row]:
        if not self._engine_rows:
            return ()
        return self.engine.rows(self.state, window, columns, width)

    @staticmethod
    def _longest_name_cells(telemetry: Telemetry) -> int:
        """Return the length in cells of the longest name in front of the graphs. A name is that of
        a cluster's node, with the GPU's number if the node has several GPUs. Return 0 without a
        cluster, because GPUs are then shown by number."""
        nodes = [info.node for info in telemetry.infos if info.node]
        longest = 0
        for number, node in enumerate(nodes):
            name = shorten_node_name(node, MOST_NAME)
            if nodes.count(node) > 1:
                name += f" GPU{number}"
            longest = max(longest, len(name))
        return min(longest, MOST_NAME)

    def _equal_gpu_groups(self) -> list[Group]:
        """Return the GPUs as groups, each a tuple of GPU numbers. The GPUs of a group have the same
        short name and memory size."""
        telemetry = self._telemetry
        if telemetry is None:
            return []
        made_from = telemetry.infos, [sample.index for sample in telemetry.gpus]
        if made_from != self._grouped_from:
            self._grouped_from = made_from
            self._groups_made = _groups_of_equal_gpus(telemetry)
        return self._groups_made

    def rows(self, width: int, height: int) -> Sequence[Row]:
        telemetry, layout = self._telemetry_if_any_gpu, self.arranged
        if telemetry is None or layout is None:
            columns = single_row_columns(width)
            window = self.view.window(self.now_s, columns.cells)
            return [
                *self._other_node_rows(width),
                *self._no_gpu_rows(width),
                *self._engine_graph_rows(window, columns, width),
            ]
        window = self.view.window(self.now_s, layout.columns.cells)
        rows = self._other_node_rows(width)
        if layout.header:
            rows.append(self._header_row(telemetry, layout, width))
        for group in layout.groups:
            rows += self._block_rows(telemetry, group, layout, window, width)
        if layout.stacked:
            rows += self._rows_below_graphs(layout, window, width)
        elif layout.axis:
            rows.append(
                layout.columns.repeat_below_graphs(self.axis.row(window, self._is_measuring))
            )
        if not layout.stacked:
            rows += self._engine_graph_rows(window, layout.columns, width)
        if self.shows_past:
            rows.append(self._cursor_row(window, width))
        return rows

    def _rows_below_graphs(self, layout: StripLayout, window: Window, width: int) -> list[Row]:
        """Return the rows below the graphs of the GPUs if each graph has the whole width: the
        engine's tokens, what happened, the time axis, and the other figures of the engine."""
        state, columns = self.state, layout.columns
        graph: list[Row] = []
        figures: list[Row] = []
        if self._engine_rows:
            graph, figures = self.engine.graph_rows_and_value_rows(state, window, columns, width)
        labels: list[Row] = []
        if layout.labels:
            found = axis_labels(window, self.history.events, state)
            labels = [
                columns.repeat_below_graphs(label_row(found, width - columns.graph_starts[0]))
            ]
        times = columns.repeat_below_graphs(self.axis.row(window, self._is_measuring))
        words = mark_meanings_row(self.axis.unexplained, STACKED_VALUE)
        return [*graph, *labels, (*times, *words), *figures]

    @property
    def _is_measuring(self) -> bool:
        """Whether a benchmark or a comparison of answers runs, which the axis shows up to now."""
        return self.state.bench.running or self.state.running_quality is not None

    def _other_node_rows(self, width: int) -> list[Row]:
        """Return the row that says that the selected server runs on another node than these GPUs;
        [] if it does not."""
        text = other_node_warning(self.state)
        if not text:
            return []
        return [((cut_text(f"{G.alert} {text}", width), "warn"),)]

    # without readings
    def _no_gpu_rows(self, width: int) -> list[Row]:
        """Return the rows that say why there are no GPUs to show."""
        telemetry, host = self.state.telemetry, self.state.host
        if telemetry is not None and not telemetry.driver.is_ok:
            driver = telemetry.driver
            head = (f"x GPUs: {driver.status}", "bad")
            return [(head,), *cut_paragraph_rows(driver.message or "", width, 3)]
        if host.telemetry_problem:
            first, *more = paragraph_rows(f"x GPUs: {host.telemetry_problem}", width, "text", "  ")
            return [(("x GPUs:", "bad"), (first[0][0][7:], "text")), *more[:2]]
        if telemetry is not None:
            return [
                (("GPUs: none seen by the driver", "warn"),),
                (("press h to work on another host", "dim"),),
            ]
        if host.link == "failed":
            reason = host.message or "no reason was given"
            why = cut_text(f" {host.name} is not connected: {reason}", width - 7)
            return [
                (("x GPUs:", "bad"), (why, "text")),
                (("press R to connect again, or h to work on another host", "dim"),),
            ]
        return [((f"GPUs: waiting for the first reading on {host.name}", "dim"),), ()]

    # the header: names at the left, signs at the right
    def _header_row(self, telemetry: Telemetry, layout: StripLayout, width: int) -> Row:
        if layout.stacked:
            return self._stacked_header_row(telemetry, layout, width)
        left = self._gpu_name_texts(telemetry)
        if _has_group_of_several(layout.groups):
            legend = [
                (f"highest, mean, lowest{_power_limits_text(telemetry)}  ", "dim"),
                (" F", "key"),
                (" unfolds", "dim"),
            ]
            signs = self._warnings_row(telemetry, width)
            if row_width((*left, *legend, *signs)) < width:  # else the labels of the values say it
                left += legend
        signs = self._warnings_row(telemetry, max(20, width - row_width(left) - 2))
        sample = telemetry.gpus[0]
        if len(telemetry.gpus) == 1 and len(layout.heights) == 1 and sample.has_readings:
            info = telemetry.info(sample.index)
            figures = f" {TEMPERATURE.text(sample, info)}  {VRAM.text(sample, info)}  "
            if row_width((*left, *signs)) + len(figures) <= width:
                left.append((figures, self._text_role))
        if not signs and width >= WIDE_FROM_CELLS:
            signs = TIME_KEYS
        return justify_row(tuple(left), signs, width)

    def _stacked_header_row(self, telemetry: Telemetry, layout: StripLayout, width: int) -> Row:
        """Return the header of the strip in which each graph has the whole width. At the left it
        has the names of the GPUs with those values that have no graph, at the right the signs."""
        left = self._gpu_name_texts(telemetry)
        signs = self._warnings_row(telemetry, max(20, width - row_width(left) - 2))
        warning_runs: Row = ()
        if self._differing:
            warning_runs = ((f"{self._differing} ", "warn"), ("F", "key"), (" unfolds  ", "dim"))
        hints = TIME_KEYS
        if _has_group_of_several(layout.groups):
            hints = (*hints, ("   F", "key"), (" unfolds", "dim"))
        folded = len(self._equal_gpu_groups()) == 1 and _has_group_of_several(layout.groups)
        if folded or len(layout.groups) == 1:
            samples = [s for s in telemetry.gpus if s.has_readings]
            info = telemetry.info(layout.groups[0][0])
            for number, figures in enumerate(self._texts_of_ungraphed_values(samples, info)):
                kept = (*warning_runs, *signs) if number else signs  # the memory comes before them
                if row_width((*left, *figures, *kept)) + 2 > width:
                    break
                left += [*figures, ("  ", "text")]
        load = _cpu_overload_row(telemetry)
        if load and row_width((*left, *load, *warning_runs, *(signs or hints))) + 2 <= width:
            left += [*load, ("  ", "text")]
        all_signs = (*warning_runs, *signs) or hints
        if row_width((*left, *all_signs)) <= width:
            signs = all_signs
        return justify_row(tuple(left), signs, width)

    def _gpu_name_texts(self, telemetry: Telemetry) -> list[Run]:
        """Return the names of the GPUs, one for each group of equal GPUs."""
        names: list[Run] = []
        for group in self._equal_gpu_groups():
            info = telemetry.info(group[0])
            name = f"GPU{group[0]} {gpu_model_title(info)}"
            if len(telemetry.gpus) == 1:
                name = gpu_title(telemetry.gpus[0], info)
            elif len(group) > 1:
                name = f"{len(group)} x {gpu_model_title(info)}"
            names.append((f"{name}  ", self._role_or_dim_if_old("title")))
        return names

    def _texts_of_ungraphed_values(
        self, samples: Sequence[GpuSample], info: GpuInfo | None
    ) -> Iterator[Row]:
        """Yield the values of equal GPUs that have no graph: the memory with a meter, then the
        others that this host reports."""
        if not samples:
            return
        for metric in (VRAM, TEMPERATURE, *(m for m in self._given if m not in HEADED)):
            text, _ = value_range_and_note(metric, samples, info)
            role = self._value_role(metric, samples)
            figures: list[Run] = [(f"{metric.label} ", "dim"), (text, role)]
            used = max((s.memory_used_bytes or 0 for s in samples), default=0)
            total = memory_size_bytes(samples[0], info)
            if metric is VRAM and total:
                figures.append((f" {gauge_text(used / total, METER_CELLS)}", VRAM.label))
            yield tuple(figures)

    def _role_or_dim_if_old(self, role: str) -> str:
        """Return `role`, or "dim" if the readings are old."""
        return role if self.stale is None else "dim"

    @property
    def _text_role(self) -> str:
        return self._role_or_dim_if_old("text")

    def _warnings_row(self, telemetry: Telemetry, max_cells: int) -> Row:
        """Return one row with all warnings about the GPUs: old readings, lost GPUs, settings that
        someone else changed, clock locks with or without effect, and reasons for throttling. GPUs
        with the same warning share a text. The status bar names the altered settings."""
        found: dict[Run, list[int]] = {}
        if self.stale is not None:
            found[f"STALE {self.stale:.0f} s", "warnb"] = []
        for index, sign in self._gpu_indexes_and_lasting_conditions():
            found.setdefault(sign, []).append(index)
        for sample in telemetry.gpus:
            reasons = [r for r in sample.event_reasons if r not in QUIET_REASONS]
            if reasons and sample.has_readings:
                found.setdefault((f"{G.alert} {reasons[0]}", "warn"), []).append(sample.index)
        signs: list[Run] = []
        for (text, role), indexes in found.items():
            if indexes and len(telemetry.gpus) > 1:
                text = f"{gpus_text(indexes)} {text}"
            signs.append((text, role))
        row = join_runs(signs, ("   ", "text"))
        if row_width(row) > max_cells:
            return fit_row(row, max_cells)
        return row

    def _gpu_indexes_and_lasting_conditions(self) -> list[tuple[int, Run]]:
        """Return (GPU index, text with role) for each condition that lasts: a lost GPU, a
        setting that someone else changed, a clock lock with or without effect."""
        state, telemetry = self.state, self.state.telemetry
        if telemetry is None:
            return []
        signs: list[tuple[int, Run]] = []
        for sample in telemetry.gpus:
            if not sample.has_readings:
                signs.append((sample.index, _lost_gpu_text_and_role(sample)))
            info = telemetry.info(sample.index)
            if info is not None and info.mig:
                signs.append((sample.index, (info.mig_text, "dim")))
            signs += [(sample.index, sign) for sign in self._setting_state_texts(state, sample)]
        return signs

    @staticmethod
    def _setting_state_texts(state: SessionState, sample: GpuSample) -> list[Run]:
        index = sample.index
        drift = [d for d in state.drift if d.gpu_index == index]
        if drift:
            first = drift[0]
            _, begun = split_altered_and_begun_changes(state.alterations, state.telemetry)
            key = "r asks"
            if any(one.change.key == (first.gpu_uuid, first.setting) for one in begun):
                key = "r clears it"
            return [(f"{G.alert} {setting_label(first.setting)} {first.text}  {key}", "warn")]
        found = [text for at, text in state.gpu_findings if at == index]
        signs: list[Run] = []
        # every setting without effect, else one that is in force
        if alerts := [text for text in found if G.alert in text]:
            signs.append(("   ".join(alerts), "warn"))
        elif found:
            signs.append((found[0], "dim"))
        altered = [a for a in state.alterations if a.gpu_index == index]
        reverted = guard_deadline_passed_text(state)
        if altered and reverted:
            signs.append((reverted, "warn"))
        return signs

    # the graphs
    def _block_rows(
        self, telemetry: Telemetry, group: Group, layout: StripLayout, window: Window, width: int
    ) -> list[Row]:
        """Return the rows of one GPU, or of a group of GPUs of the same type that share one block
        of rows."""
        samples = [s for s in telemetry.gpus if s.index in group]
        info = telemetry.info(group[0])
        if self.shows_past:
            samples = [sample_at_cursor(self.history, window, s) for s in samples]
        elif len(samples) == 1 and not samples[0].has_readings:
            return self._lost_gpu_rows(samples[0], info, layout, width)
        lines: Sequence[Sequence[Metric]] = (FIRST, self._given)[: len(layout.heights)]
        if layout.stacked:
            lines = [(metric,) for metric in FIRST]
        rows: list[Row] = []
        whole_lead = self._texts_left_of_graphs(samples, info, layout)
        for line, height in zip(lines, layout.heights, strict=True):
            lead = whole_lead[len(rows) : len(rows) + height]
            graphs = [
                self._cached_graph(m, samples, info, window, height)
                for m in line[: layout.columns.graph_count]
            ]
            rows += layout.columns.draw_graphs_side_by_side(
                graphs, height, lead, window.cursor_column
            )
        return rows

    def _texts_left_of_graphs(
        self, samples: Sequence[GpuSample], info: GpuInfo | None, layout: StripLayout
    ) -> Sequence[Run]:
        """Return the texts at the left of the graphs of one GPU or of a group, from top to bottom.
        They are its name and those values that have no graph."""
        width, role = layout.columns.lead, self._role_or_dim_if_old("title")
        sample, in_one_row = samples[0], sum(layout.heights) == 1
        if len(samples) > 1:
            return _group_texts_left_of_graphs(samples, info, width, role)
        if width < 6:
            return ((str(sample.index), role),)
        temperature, memory = TEMPERATURE.text(sample, info), VRAM.text(sample, info)
        if info is None or not info.node:
            name = f"GPU{sample.index}"
            if in_one_row:
                return ((f"{name} {temperature:>4} {memory:>9}", role),)
            if layout.shows_values_left_of_graphs:
                return ((f"{name} {temperature:>4}", role), (memory, self._text_role))
            return ((name, role),)
        if in_one_row and width >= WIDE_ROW_LEAD:
            room = width - FIGURE_CELLS
            return ((f"{gpu_name(sample, info, room):<{room}} {memory:>9}", role),)
        name = gpu_name(sample, info, width - 1)
        if in_one_row:
            return ((name, role),)
        figures = f"{temperature} {memory}"
        if len(figures) > width:
            figures = memory
        return ((name, role), (figures, self._text_role))

    def _cached_graph(
        self,
        metric: Metric,
        samples: Sequence[GpuSample],
        info: GpuInfo | None,
        window: Window,
        height: int,
    ) -> Graph:
        """Return the graph of one GPU or of several, of which only the newest cells are new."""

        def make_graph(window_part: Window, earlier_rows: Sequence[Row]) -> Graph:
            if len(samples) == 1:
                return self._gpu_graph(metric, samples[0], info, window_part, earlier_rows)
            return self._group_graph(metric, samples, info, window_part, height, earlier_rows)

        name = (metric.label, tuple(s.index for s in samples), self.stale is None)
        keys = [(s.index, metric.field) for s in samples]
        return self.graph_cache.make_graph(name, make_graph, window, height, keys)

    def _gpu_graph(
        self,
        metric: Metric,
        sample: GpuSample,
        info: GpuInfo | None,
        window: Window,
        earlier_rows: Sequence[Row],
    ) -> Graph:
        cells = self._history_values(sample.index, metric.field, window)
        top = metric.top(info)
        limits = (self._limit_values_in_window(sample, line, window) for line in metric.lines)
        note = ""
        if metric.lines and is_scale_top_reported(metric, info):
            note = f"max {metric.format_value(top)}"
        return Graph(
            metric.label,
            metric.text(sample, info),
            cells,
            top,
            metric.floor,
            lines=tuple(line for line in limits if any(line)),
            note=note,
            role=self._graph_role(metric),
            value_role=self._value_role(metric, [sample]),
            per_cell=window.per_cell,
            earlier_rows=earlier_rows,
        )

    def _group_graph(
        self,
        metric: Metric,
        samples: Sequence[GpuSample],
        info: GpuInfo | None,
        window: Window,
        height: int,
        earlier_rows: Sequence[Row],
    ) -> Graph:
        each = (self._history_values(s.index, metric.field, window) for s in samples)
        known = [known_values(cell) for cell in zip(*each, strict=True)]
        low = [min(cell, default=None) for cell in known]
        values = [max(cell, default=None) for cell in known]
        if height == 1:
            values = [mean_value(cell) for cell in known]
        lines: tuple[list[float | None], ...] = ()
        if self._is_stacked:
            label, (value, note) = metric.label, value_range_and_note(metric, samples, info)
            lines = self._lowest_limits_over_time(metric, samples, window)
        else:
            label, value, note = group_label_value_and_note(
                metric, [metric.value(s) for s in samples], height
            )
        return Graph(
            label,
            value,
            values,
            metric.top(info),
            metric.floor,
            lines=lines,
            low=low,
            note=note,
            role=self._graph_role(metric),
            value_role=self._value_role(metric, samples),
            per_cell=window.per_cell,
            earlier_rows=earlier_rows,
        )

    def _lowest_limits_over_time(
        self, metric: Metric, samples: Sequence[GpuSample], window: Window
    ) -> tuple[list[float | None], ...]:
        """Return, for each limit of a metric, the lowest one of several GPUs over time."""
        lines = []
        for field in metric.lines:
            each = [
                self._limit_values_in_window(s, field, window)
                for s in samples
                if (s.index, field) in self.history
            ]
            lowest = [min(known_values(cell), default=None) for cell in zip(*each, strict=True)]
            if any(lowest):
                lines.append(lowest)
        return tuple(lines)

    def _history_values(self, gpu_index: int, field: str, window: Window) -> list[float | None]:
        return window.metric_values(self.history, (gpu_index, field))

    def _limit_values_in_window(
        self, sample: GpuSample, field: str, window: Window
    ) -> list[float | None]:
        """Return the values of the limit `field` in the window, each one that was in force. To know
        the first one, read the value before the window too."""
        values = window.metric_values(self.history, (sample.index, field), earlier_values=1)
        return replace_means_at_limit_changes(values, getattr(sample, field, None))[1:]

    def _graph_role(self, metric: Metric) -> str:
        return metric.label if self.shows_past else self._role_or_dim_if_old(metric.label)

    def _value_role(self, metric: Metric, samples: Iterable[GpuSample]) -> str:
        if self.shows_past:
            return "strong"
        if not metric.setting:
            return self._text_role
        indexes = {sample.index for sample in samples}
        altered, _ = split_altered_and_begun_changes(self.state.alterations, self.state.telemetry)
        if any(a.setting.startswith(metric.setting) and a.gpu_index in indexes for a in altered):
            return "warn"
        return self._text_role

    def _lost_gpu_rows(
        self, sample: GpuSample, info: GpuInfo | None, layout: StripLayout, width: int
    ) -> list[Row]:
        height, lead = sum(layout.heights), layout.columns.lead
        name = str(sample.index)
        if lead >= 6:
            name = gpu_name(sample, info, lead - 1)
        lost = _lost_gpu_text_and_role(sample)[0]
        first, *more = paragraph_rows(f"{lost}  {sample.message or ''}", width - lead)
        texts = [((first[0][0], "bad"),), *more][:height]
        rows = rows_beside_label(pad_text(name, lead), "dim", texts)
        return rows + [()] * (height - len(rows))

    # the cursor
    def _cursor_row(self, window: Window, width: int) -> Row:
        """Return the row that shows, while there is a time cursor, the time under the cursor and
        the events at that time."""
        cell = window.cursor
        assert cell is not None  # the row is there only with a cursor
        at_s = cell * window.cell_s
        when = time_of_day_text(at_s)
        if window.cell_s > 1:
            when += f" + {duration_text(window.cell_s)}"
        events = events_in_window(self.history.events, window, cell)
        what = ("no readings", "dim")
        if events:
            what = ("; ".join(dict.fromkeys(event.text for event in events)), "text")
        elif self._has_reading_in_cell(window, cell):
            what = ("nothing happened", "dim")
        left: Row = (
            (f" {when} ", "lit"),
            (f" -{duration_text(self.now_s - at_s)}  ", "dim"),
            what,
        )
        return justify_row(left, (("  esc", "key"), (" now", "dim")), width)

    def _has_reading_in_cell(self, window: Window, cell: int) -> bool:
        """Return whether the history has a reading of any GPU for the cell with the number
        `cell`."""
        first = (cell - window.first_cell) * window.per_cell
        for group in self._equal_gpu_groups():
            cells = self._history_values(group[0], UTIL.field, window)
            if known_values(cells[first : first + window.per_cell]):
                return True
        return False

    def move_cursor(self, cells: int) -> None:
        """Move the time cursor by `cells` cells. A negative number moves it back in time. Without a
        cursor, start at the newest cell."""
        self.view.move_cursor(cells, self.now_s)
        self.post_message(self.ViewChanged())

    def action_move(self, by: int) -> None:
        """Move the time cursor by `by` cells, because the user has turned the mouse wheel. Up moves
        it back in time."""
        self.move_cursor(by)

    def move_to_event(self, direction: int) -> bool:
        """Move the time cursor to the last event before its position (`direction` -1) or to the
        next event after it (`direction` 1). Return False if there is no such event."""
        at: float = self.now_s
        if self.view.cursor_s is not None:
            at = self.view.cursor_s
        times = [e.unix_s for e in self.history.events if self.now_s - e.unix_s < DAY_S]
        found = bisect_left(times, at + self.view.cell_s)
        if direction < 0:
            found = bisect_left(times, at) - 1
        if not 0 <= found < len(times):
            return False
        self.view.place_cursor(times[found], self.now_s)
        self.post_message(self.ViewChanged())
        return True

    def move_to_now(self) -> None:
        self.view.move_to_now()
        self.post_message(self.ViewChanged())

    def change_zoom(self, step: int) -> None:
        """Change the seconds per cell to the next larger (`step` 1) or next smaller (`step` -1) of
        the possible values."""
        self.view.change_zoom(step)
        self.post_message(self.ViewChanged())

    def toggle_row_per_gpu(self) -> bool:
        """Switch between one row for all GPUs of the same type, and a row for each GPU. Return
        False if no two GPUs are of the same type."""
        layout = self.arranged
        if layout is None or not _has_group_of_several(self._equal_gpu_groups()):
            return False
        self.unfolded = _has_group_of_several(layout.groups)
        self.post_message(self.ViewChanged())
        return True

    def on_click(self, event: events.Click) -> None:
        """Put the time cursor on the clicked cell of a graph."""
        at = event.get_content_offset(self)
        if at is None or self.arranged is None:
            return
        columns = self.arranged.columns
        window = self.view.window(self.now_s, columns.cells)
        for start in columns.graph_starts:
            if start <= at.x < start + columns.cells:
                self.view.place_cursor(
                    (window.first_cell + at.x - start) * window.cell_s, self.now_s
                )
                self.post_message(self.ViewChanged())
                return


def _differing_gpus_text(gpu_indexes: Sequence[int]) -> str:
    if len(gpu_indexes) == 1:
        return f"{gpus_text(gpu_indexes)} differs"
    return f"{gpus_text(gpu_indexes)} differ"


def _cpu_overload_row(telemetry: Telemetry) -> Row:
    """Return the load of the host's CPUs if more programs want to run than there are CPUs: such a
    host delays the engine and the load client. () if it is lower or not known."""
    load, count = telemetry.host.load_1m, telemetry.host.cpu_count
    if load is None or count is None or not 0 < count < load:
        return ()
    return (("load ", "dim"), (f"{load:.0f} on {count_of(count, 'CPU')}", "warn"))


def _has_group_of_several(groups: Iterable[Group]) -> bool:
    """Return whether some group has several GPUs."""
    return any(len(group) > 1 for group in groups)


def _group_texts_left_of_graphs(
    samples: Sequence[GpuSample], info: GpuInfo | None, width: int, role: str
) -> Sequence[Run]:
    name, listed = f"{len(samples)} GPUs", gpus_text(s.index for s in samples)
    if width < 6:
        return ((name, role),)
    if len(listed) < width:
        name = listed
    return ((name, role), (cut_text(gpu_model_title(info).split(" ")[0], width - 1), "dim"))


def _power_limits_text(telemetry: Telemetry) -> str:
    """Return the power limits of the GPUs, such as "   limit 250-300W"; "" if none is known."""
    each = (power_limit_or_max_w(sample, telemetry.info(sample.index)) for sample in telemetry.gpus)
    limits = list(filter(None, each))
    if not limits:
        return ""
    ends = dict.fromkeys((min(limits), max(limits)))
    return f"   limit {'-'.join(f'{watts:.0f}' for watts in ends)}W"


def _groups_of_equal_gpus(telemetry: Telemetry) -> list[Group]:
    """Return the numbers of the GPUs of each short name and memory size."""
    groups: dict[str, list[int]] = {}
    for sample in telemetry.gpus:
        name = gpu_model_title(telemetry.info(sample.index)) or str(sample.index)
        groups.setdefault(name, []).append(sample.index)
    return [tuple(group) for group in groups.values()]


def _has_lost_or_incomplete_gpu(telemetry: Telemetry) -> bool:
    """Return whether some GPU is lost, or lacks a value that another GPU has. One graph for all of
    them would hide that."""
    for metric in FIRST:
        if len({metric.value(sample) is None for sample in telemetry.gpus}) > 1:
            return True
    return not all(sample.has_readings for sample in telemetry.gpus)


def _lost_gpu_text_and_role(sample: GpuSample) -> Run:
    text = str(sample.state).upper()
    if sample.state == "not read":
        return f"? {text}", "warnb"
    return f"x {text}", "bad"

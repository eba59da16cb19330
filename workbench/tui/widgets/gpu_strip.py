"""The live metrics of every GPU, in one widget without borders whose layout depends on the GPUs and the width."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from workbench.session.state import SessionState
from workbench.tui.cells import Painted, Row, cut, fit, joined, pad, row_width, spread, wrap
from workbench.tui.formats import GIB, NA, setting_name, setting_text
from workbench.tui.glyphs import G
from workbench.tui.widgets.gpu_metrics import LAYOUTS, SPARE, UTIL, Metric, gpu_title, limit_w, total_bytes
from workbench.tui.widgets.sparks import Spark
from workbench.tui.widgets.status_bar import stale_age_s

if TYPE_CHECKING:
    from workbench.model.gpu import GpuInfo, GpuSample, Telemetry

QUIET_REASONS = frozenset({"GPU idle", "idle", "applications clocks setting", "none"})
METRICS: dict[str, Metric] = {m.label: m for m in LAYOUTS[4]}


class GpuStrip(Painted):
    """The rows with the live metrics. One GPU has a title and two rows of four metrics, up to four GPUs have columns,
    and more GPUs have one row each."""

    FIELDS = frozenset(
        {
            "telemetry",
            "telemetry_monotonic_s",
            "host",
            "alterations",
            "drift",
            "others",
            "gpu_findings",
            "guard",
        }
    )

    def __init__(self) -> None:
        super().__init__(id="gpus")
        self.state: SessionState | None = None
        self.stale: float | None = None
        self.compact = False
        self._sparks: dict[tuple[int, str], Spark] = {}
        self._last_t_s = -1.0
        self._given: set[str] = set()  # labels of the metrics that some GPU of this host has

    def show(self, state: SessionState) -> None:
        self.state = state
        self.stale = stale_age_s(state)
        if state.telemetry is not None and state.telemetry.t_s != self._last_t_s:
            self._last_t_s = state.telemetry.t_s
            for sample in state.telemetry.gpus:
                self._take(sample, state.telemetry.t_s)
        elif state.telemetry is None and self._sparks:  # another host
            self._sparks.clear()
            self._given.clear()
        self.repaint()

    def _take(self, sample: GpuSample, t_s: float) -> None:
        for metric in METRICS.values():
            spark = self._sparks.get((sample.index, metric.label))
            if spark is None:
                spark = self._sparks[sample.index, metric.label] = Spark()
            value = metric.value(sample) if sample.live else None
            spark.add(t_s, value)
            if value is not None:
                self._given.add(metric.label)

    def _layout(self, columns: int) -> list[tuple[Metric, ...]]:
        """Return the metrics in rows of `columns`, without metrics that no GPU of this host reports."""
        shown = [m for m in LAYOUTS[columns] if m.label in self._given] or list(LAYOUTS[columns])
        spare = [m for m in SPARE if m not in shown and m.label in self._given]
        shown += spare[: -len(shown) % columns]
        return [tuple(shown[i : i + columns]) for i in range(0, len(shown), columns)]

    def wanted_height(self, width: int, compact: bool) -> int:
        """Return the number of rows that the GPUs need. With `compact`, each GPU has one row."""
        self.compact = compact
        telemetry = self.state.telemetry if self.state else None
        if telemetry is None or not telemetry.gpus:
            return len(self._nothing(telemetry, width))
        count = len(telemetry.gpus)
        if compact or count > 4:
            return count
        return 1 + len(self._layout(self._columns(width, count))) + (1 if self._settings_shown() else 0)

    def _settings_shown(self) -> bool:
        return bool(self.state and self.state.alterations)

    @staticmethod
    def _columns(width: int, count: int) -> int:
        each = width // count
        return 4 if each >= 108 else 2 if each >= 56 else 1

    def rows(self, width: int, height: int) -> Sequence[Row]:
        telemetry = self.state.telemetry if self.state else None
        if telemetry is None or not telemetry.gpus:
            return self._nothing(telemetry, width)
        if self.compact or len(telemetry.gpus) > 4:
            return [self._one_row(telemetry, sample, width) for sample in telemetry.gpus]
        return self._columns_of(telemetry, width)

    def _nothing(self, telemetry: Telemetry | None, width: int) -> list[Row]:
        state = self.state
        if telemetry is not None and not telemetry.driver.ok:
            driver = telemetry.driver
            head = (f"x GPUs: {driver.status}", "bad")
            return [(head,), *(((line, "text"),) for line in wrap(driver.message or "", width)[:3])]
        if state is not None and state.host.telemetry_problem:
            lines = wrap(f"x GPUs: {state.host.telemetry_problem}", width, "  ")[:3]
            return [(("x GPUs:", "bad"), (lines[0][7:], "text")), *(((line, "text"),) for line in lines[1:])]
        if telemetry is not None:
            return [(("GPUs: none seen by the driver", "warn"),), (("press h to work on another host", "dim"),)]
        if state is not None and state.host.link == "failed":
            why = cut(f" {state.host.name} is not connected: {state.host.message or 'no reason was given'}", width - 7)
            return [
                (("x GPUs:", "bad"), (why, "text")),
                (("press R to connect again, or h to work on another host", "dim"),),
            ]
        where = f" on {state.host.name}" if state else ""
        return [((f"GPUs: waiting for the first reading{where}", "dim"),), ()]

    def _columns_of(self, telemetry: Telemetry, width: int) -> list[Row]:
        count = len(telemetry.gpus)
        columns, gap = self._columns(width, count), 2
        each = (width - gap * (count - 1)) // count
        blocks = [self._block(telemetry, sample, each, columns) for sample in telemetry.gpus]
        return [joined(parts, (" " * gap, "text")) for parts in zip(*blocks, strict=True)]

    def _block(self, telemetry: Telemetry, sample: GpuSample, width: int, columns: int) -> list[Row]:
        info = telemetry.info(sample.index)
        live = sample.live and self.stale is None
        name = (gpu_title(sample, info), "title" if live else "dim")
        rows = [spread((name,), self._sign(sample), width)]
        gap = 3
        each = (width - gap * (columns - 1)) // columns
        lost = [cut(line, width) for line in wrap(sample.message or str(sample.state), width)]
        for number, metrics in enumerate(self._layout(columns)):
            if not sample.live:
                rows.append(((pad(lost[number] if number < len(lost) else "", width), "text"),))
                continue
            sizes = [each] * (columns - 1) + [width - (each + gap) * (columns - 1)]
            cells = [self._cell(metric, sample, info, size) for metric, size in zip(metrics, sizes, strict=False)]
            rows.append(fit(joined(cells, (" " * gap, "text")), width))
        if self._settings_shown():
            rows.append(((pad(self._settings(sample), width), "warn"),))
        return rows

    def _cell(self, metric: Metric, sample: GpuSample, info: GpuInfo | None, width: int) -> Row:
        """Return a metric in exactly `width` cells, such as "util ▆▆▇▇   97%"."""
        value = metric.text(sample, info)
        room = 10
        label = 6 if width >= 27 else 5
        cells = max(0, width - label - room)
        spark = self._sparks[sample.index, metric.label].text(cells, metric.floor, metric.top(sample, info))
        dead = value == NA or self.stale is not None
        return (
            (pad(metric.label, label), "dim"),
            (spark, "dim" if dead else "spark"),
            (pad(value, room, right=True), "dim" if dead else "text"),
        )

    def _sign(self, sample: GpuSample) -> Row:
        """Return the sign at the right of a GPU's title: a lost GPU, old readings, a setting changed by someone else,
        the effect of a lock, throttling."""
        if not sample.live:
            sign, role = ("?", "warnb") if sample.state == "not read" else ("x", "bad")
            return ((f" {sign} {str(sample.state).upper()}", role),)
        if self.stale is not None:
            return ((f" STALE {self.stale:.0f} s", "warnb"),)
        if self.state and any(d.gpu_index == sample.index for d in self.state.drift):
            return ((f" {G.alert} changed by someone else", "warn"),)
        found = [text for index, text in (self.state.gpu_findings if self.state else ()) if index == sample.index]
        if found:  # every setting without effect, else one that is in force
            alerts = "   ".join(text for text in found if G.alert in text)
            return ((f" {alerts or found[0]}", "warn" if alerts else "dim"),)
        reasons = [r for r in sample.event_reasons if r not in QUIET_REASONS]
        return ((f" {G.alert} {reasons[0]}", "warn"),) if reasons else ((" ", "text"),)

    def _settings(self, sample: GpuSample) -> str:
        drift = [d for d in (self.state.drift if self.state else ()) if d.gpu_index == sample.index]
        if drift:
            return f"{setting_name(drift[0].setting)} {drift[0].text}  r asks"
        altered = [a for a in (self.state.alterations if self.state else ()) if a.gpu_index == sample.index]
        return f"set {', '.join(setting_text(a.setting, a.now) for a in altered)}  r reverts" if altered else ""

    def _one_row(self, telemetry: Telemetry, sample: GpuSample, width: int) -> Row:
        """Return the row of a GPU, such as "0 ▆▆▇▇  97%  71.8/80G  603/700W  66C 1755MHz lock"."""
        info = telemetry.info(sample.index)
        index = (f"{sample.index:<2}", "title")
        if not sample.live:
            sign = self._sign(sample)
            return (index, *sign, (f"  {sample.message or ''}", "text"))
        total, limit = total_bytes(sample, info), limit_w(sample, info)
        used = NA if sample.memory_used_bytes is None else f"{sample.memory_used_bytes / GIB:.1f}"
        watts = NA if sample.power_w is None else f"{sample.power_w:.0f}"
        values = (
            pad(UTIL.text(sample, info), 6, right=True)
            + pad(used + (f"/{total / GIB:.0f}G" if total else ""), 11, right=True)
            + pad(watts + (f"/{limit:.0f}W" if limit else "W" if watts != NA else ""), 10, right=True)
            + pad(NA if sample.temperature_c is None else f"{sample.temperature_c:.0f}C", 5, right=True)
            + pad(NA if sample.sm_mhz is None else f"{sample.sm_mhz}MHz", 8, right=True)
        )
        sign = self._sign(sample)
        right = 14 if width < 110 else 30
        name = pad(gpu_title(sample, info).split(" ", 1)[-1], 22) if width >= 110 else ""
        cells = max(4, width - 2 - len(name) - len(values) - right)
        role = "dim" if self.stale is not None else "text"
        spark = self._sparks[sample.index, UTIL.label].text(cells, 0.0, 100.0)
        text = sign[0][0]
        if len(text) > right and G.alert in text:  # the verdict matters more than its values
            text = " " + text[text.index(G.alert) :]
        fitted = (cut(text, right), sign[0][1])
        row: Row = (index, (name, "dim"), (spark, "dim" if role == "dim" else "spark"), (values, role), fitted)
        return row if row_width(row) <= width else spread(row[:-1], (fitted,), width)

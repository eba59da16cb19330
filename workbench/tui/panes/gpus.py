"""Pane 6, the GPUs: every metric of every GPU with its limits, and the reason for each metric that
is absent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.model.unconfirmed_changes import split_altered_and_begun_changes
from workbench.session.state import SessionState
from workbench.tui.bindings import (
    Key,
    change_gpu_settings,
    copy_keys_for_view,
    make_textual_bindings,
)
from workbench.tui.cells import Row, pad_text, paragraph_rows
from workbench.tui.countdown import Countdown
from workbench.tui.formats import (
    NA,
    alteration_gpus_now_and_before,
    gib_text,
    setting_text,
    time_of_day_text,
    whole_number_text,
)
from workbench.tui.glyphs import G
from workbench.tui.panes.base import Pane
from workbench.tui.widgets.gpu_metrics import gpu_title, other_node_warning
from workbench.tui.widgets.gpu_strip import GpuStrip
from workbench.tui.widgets.guard_state import guard_deadline_passed_text, guard_rows
from workbench.tui.widgets.scrolled import Scrolled
from workbench.tui.widgets.status_bar import stale_age_s

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workbench.model.gpu import GpuInfo, GpuSample, Telemetry
    from workbench.model.setting_records import Alteration
    from workbench.session.session import Session


class GpuPane(Pane, Scrolled):
    NAME, TITLE, AREA = "gpu", "GPUs", ""
    HELP = "every metric of every GPU, with reasons for those that are absent"
    FIELDS = GpuStrip.FIELDS
    DRAWN_WHEN_HIDDEN = False
    KEYS = copy_keys_for_view(
        "gpu",
        Key("enter", "settings", "change GPU settings", change_gpu_settings),
        Key(
            "L",
            "leave on",
            "leave the GPU settings on when Workbench ends",
            lambda c: c.gpu.ask_to_retain_settings(),
        ),
    )
    HINTS = ("enter", "r", "V", "L")
    BINDINGS = make_textual_bindings(KEYS)

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.trial = Countdown()

    def all_rows(self, width: int, height: int) -> list[Row]:
        state, telemetry = self.state, self.state.telemetry
        if telemetry is None:
            text = state.host.telemetry_problem or "The GPUs have not been read yet."
            return paragraph_rows(text, width, "dim")
        rows = self._host_and_driver_rows(state, telemetry, width)
        for sample in telemetry.gpus:
            rows += [(), *self._gpu_rows(state, telemetry, sample, width)]
        return [*rows, *_absent_engine_metric_rows(state, width)]

    def _host_and_driver_rows(
        self, state: SessionState, telemetry: Telemetry, width: int
    ) -> list[Row]:
        from workbench.hosts.container_kinds import KINDS  # not for the first frame

        driver, host = telemetry.driver, telemetry.host
        age = stale_age_s(state)
        rows: list[Row] = []
        if other := other_node_warning(state):
            rows += paragraph_rows(f"! {other}.", width, "warn")
            server, program = state.server, "workbench"
            if state.host.kind != "local":
                program += f" --host {state.host.name}"
            if server and server.handle and server.run_as in KINDS:
                line = f"{program} --container {server.run_as}:{server.handle}"
                rows += paragraph_rows(f"  `{line}` shows the GPUs of the job.", width, "text")
        if age is not None:
            why = state.host.telemetry_problem or f"last reading {age:.0f} s ago"
            rows += paragraph_rows(f"STALE: {why}", width, "warnb")
        versions = (
            f"driver {driver.driver_version or NA}  CUDA {driver.cuda_version or NA}  "
            f"source {driver.source}"
        )
        rows.append(((versions, "text"),))
        if driver.message:
            rows += paragraph_rows(f"! {driver.message}", width, "warn")
        if slow := telemetry.slow_reading_text:
            rows += paragraph_rows(f"! {slow}", width, "warn")
        load = _text_or_na("{:.1f}", host.load_1m)
        rows += paragraph_rows(
            f"host memory {gib_text(host.memory_available_bytes)} of {gib_text(host.memory_total_bytes)} GiB "
            f"free  load {load} "
            f"on {host.cpu_count or NA} CPUs  governor {host.cpu_governor or NA}  C-states "
            f"{host.cpu_c_states or NA}",
            width,
            "dim",
        )
        right = state.host.can_change_gpus
        if right:
            rows += paragraph_rows(f"! settings are read-only: {right}", width, "warn")
        rows += self._guard_rows(state, width)
        rows += _altered_setting_rows(state, -1, width)  # the host's own
        if state.host.others_problem and (state.alterations or right is None):
            rows += paragraph_rows(f"! {state.host.others_problem}", width, "warn")
        if state.host.journal_recovery:
            rows += paragraph_rows(f"! {state.host.journal_recovery}", width, "warn")
        return rows

    def _guard_rows(self, state: SessionState, width: int) -> list[Row]:
        """Return the rows about the guard; [] if it has nothing to revert and did nothing."""
        guard = state.guard
        if guard is None or not any((state.alterations, guard.did, guard.problem)):
            return []
        rows: list[Row] = []
        if reverted := guard_deadline_passed_text(state):
            rows += paragraph_rows(f"{G.alert} the link is lost: {reverted}", width, "warnb", "  ")
        return [
            *rows,
            *guard_rows(guard, self.trial.remaining_s_now(guard, guard.trial_left_s), width),
        ]

    def _gpu_rows(
        self, state: SessionState, telemetry: Telemetry, sample: GpuSample, width: int
    ) -> list[Row]:
        info = telemetry.info(sample.index)
        rows: list[Row] = [((gpu_title(sample, info), "title"), (f"  {sample.uuid}", "dim"))]
        if not sample.has_readings:
            return [
                *rows,
                *paragraph_rows(f"x {sample.state}: {sample.message or ''}", width, "bad"),
            ]
        rows += _altered_setting_rows(state, sample.index, width)
        for index, text in state.gpu_findings:
            if index == sample.index:
                role = "warn" if G.alert in text else "text"
                rows += paragraph_rows(f"  {text}", width, role)
        pairs = self._labels_and_values(sample, info)
        columns = max(1, width // 38)
        each = width // columns
        for start in range(0, len(pairs), columns):
            row: list[tuple[str, str]] = []
            for label, text in pairs[start : start + columns]:
                role = "dim" if text.startswith(NA) else "text"
                row += [(pad_text(f"  {label}", 16), "dim"), (pad_text(text, each - 16), role)]
            rows.append(tuple(row))
        rows += _mig_instance_rows(sample, info, width)
        rows += _lockable_clock_rows(info, width)
        if sample.event_reasons:
            rows += paragraph_rows(
                f"  clocks held by: {', '.join(sample.event_reasons)}", width, "text"
            )
        absent = {**sample.absent}
        if info is not None:
            absent = {**info.absent, **absent}
        return [*rows, *self._process_rows(sample, width), *_absent_value_rows(absent, width)]

    def _labels_and_values(self, sample: GpuSample, info: GpuInfo | None) -> list[tuple[str, str]]:
        """Return pairs (label, text) with the values of a GPU."""
        from workbench.model.gpu_readings import READINGS  # not for the first frame
        from workbench.model.settings import SWITCHES

        pairs = []
        for name, one in READINGS.items():
            text = whole_number_text(getattr(sample, name), one.unit)
            pairs.append((one.label, text + self._text_after_value(name, sample, info)))
        memory = reserved = rates = energy = virtual = NA
        if sample.memory_used_bytes is not None:
            memory = (
                f"{gib_text(sample.memory_used_bytes)} of {gib_text(sample.memory_total_bytes)} GiB"
            )
        if info is not None:
            virtual = info.virtualization or NA
            if info.unified_memory:
                memory += " unified"
            if info.memory_reserved_bytes is not None:
                reserved = f"{gib_text(info.memory_reserved_bytes)} GiB"
        if (sample.pcie_rx_mb_s, sample.pcie_tx_mb_s) != (None, None):
            received, sent = map(whole_number_text, (sample.pcie_rx_mb_s, sample.pcie_tx_mb_s))
            rates = f"{received}/{sent} MB/s"
        if sample.energy_j is not None:
            energy = f"{sample.energy_j / 1000:,.0f} kJ"
        return [
            *pairs,
            ("memory", memory),
            ("reserved", reserved),
            ("P-state", _text_or_na("P{}", sample.pstate)),
            *((one.name, _on_off_text(one.value_in_force(sample))) for one in SWITCHES),
            ("PCIe", _text_or_na("gen {} x{}", sample.pcie_gen, sample.pcie_width)),
            ("PCIe rx/tx", rates),
            ("energy", energy),
            ("virtual", virtual),
        ]

    def _text_after_value(self, field: str, sample: GpuSample, info: GpuInfo | None) -> str:
        """Return the text that follows a value of a GPU, such as " of 3090" with the highest clock
        or " (slows at 90)" with a temperature limit; "" for none. `field` is a field of GpuSample.
        """
        if field == "power_w" and sample.power_average_w:
            return f" (1 s: {sample.power_average_w:.0f})"
        if info is None:
            return {"limit_w": f" ({NA})"}.get(field, "")
        if field == "limit_w":
            lowest = whole_number_text(info.power_min_w)
            return f" ({lowest}-{whole_number_text(info.power_max_w, ' W')})"
        if field == "temperature_c" and info.temperature_slowdown_c:
            return f" (slows at {info.temperature_slowdown_c:.0f})"
        top = {"sm_mhz": info.sm_max_mhz, "memory_mhz": info.memory_max_mhz}.get(field)
        if top and getattr(sample, field) is not None:
            return f" of {top:.0f}"
        return ""

    def _process_rows(self, sample: GpuSample, width: int) -> list[Row]:
        if not sample.processes:
            return []
        listed = ", ".join(
            f"{p.pid} {p.title} {gib_text(p.memory_bytes)} GiB" for p in sample.processes[:6]
        )
        return paragraph_rows(f"  processes: {listed}", width, "text", "    ")


def _text_or_na(format_string: str, value: object, *more_values: object) -> str:
    """Return `format_string` filled with `value` and `more_values`; "n/a" if `value` is None."""
    if value is None:
        return NA
    return format_string.format(value, *more_values)


def _on_off_text(value: object) -> str:
    if value is None:
        return NA
    return "on" if value else "off"


def _absent_value_rows(reasons_by_name: Mapping[str, str], width: int) -> list[Row]:
    """Return rows that list the absent values, grouped by the reason of their absence.
    `reasons_by_name` maps the name of a value to this reason."""
    from workbench.model.gpu import reasons_with_missing_values  # not for the first frame

    rows: list[Row] = []
    for reason, titles in reasons_with_missing_values(reasons_by_name):
        rows += paragraph_rows(f"  n/a ({reason}): {titles}", width, "dim", "    ")
    return rows


def _absent_engine_metric_rows(state: SessionState, width: int) -> list[Row]:
    """Return rows with the live metrics that the selected server's engine does not report; [] if it
    reports all of them."""
    from workbench.model.engine_live import LIVE_METRICS  # not for the first frame

    if state.engine is None or not state.engine.absent:
        return []
    titles = {metric.field: metric.title for metric in LIVE_METRICS}
    absent = {titles[field]: reason for field, reason in state.engine.absent.items()}
    return [(), ((state.engine.title, "title"),), *_absent_value_rows(absent, width)]


def _mig_instance_rows(sample: GpuSample, info: GpuInfo | None, width: int) -> list[Row]:
    """Return a row about MIG and one for each instance; [] for a GPU that is not divided."""
    if info is None or not info.mig:
        return []
    rows = paragraph_rows(
        f"  {info.mig_text}: for CUDA, each instance is a GPU", width, "text", "    "
    )
    for one in info.instances:
        used = gib_text(sample.instance_used_bytes.get(one.uuid))
        memory = f"{used} of {gib_text(one.memory_total_bytes)} GiB"
        text = f"    {one.index} {one.profile}  {memory}  {one.uuid}"
        rows += paragraph_rows(text, width, "dim", "      ")
    return rows


def _lockable_clock_rows(info: GpuInfo | None, width: int) -> list[Row]:
    """Return rows with the clock frequencies to which the driver can lock a GPU; [] if `info` is
    None, because the GPU's properties are not known yet."""
    from workbench.model.gpu import format_supported_clocks  # not for the first frame

    if info is None:
        return []
    found = (("SM", info.supported_sm_mhz), ("memory", info.supported_memory_mhz))
    texts = [f"{kind} {format_supported_clocks(clocks)}" for kind, clocks in found if clocks]
    return paragraph_rows(
        f"  clocks to lock: {'; '.join(texts) or f'{NA} (not listed)'}", width, "dim", "    "
    )


def _altered_setting_rows(state: SessionState, gpu_index: int, width: int) -> list[Row]:
    """Return rows about the altered settings of GPU `gpu_index`, or of the host if `gpu_index` is
    -1. First come the settings that this Workbench changed, each with a note if another program has
    changed it since. The settings that other users changed follow."""
    rows: list[Row] = []
    altered, begun = split_altered_and_begun_changes(state.alterations, state.telemetry)
    begun_keys = {one.change.key for one in begun}
    for alteration in altered:
        if alteration.gpu_index == gpu_index:
            rows += _alteration_rows(alteration, width)
            for drift in state.drift:
                if (drift.gpu_uuid, drift.setting) == alteration.key not in begun_keys:
                    rows += paragraph_rows(f"    {drift.text}", width, "warnb", "    ")
    for change, outcome in begun:
        if change.gpu_index == gpu_index:
            rows += _begun_change_rows(change, outcome, width)
    if not state.others:
        return rows
    from workbench.model.settings import current_value_text_if_changed  # not for the first frame

    _, of_others = split_altered_and_begun_changes(state.others, state.telemetry)
    outcomes = {(change.by, change.key): outcome for change, outcome in of_others}
    for other in state.others:
        if other.gpu_index == gpu_index:
            for _, now, before in alteration_gpus_now_and_before([other]):
                by, since = other.by, time_of_day_text(other.since_unix_s)
                now_and_outcome = " ".join(filter(None, (now, outcomes.get((by, other.key)))))
                text = f"  {now_and_outcome} by {by} since {since} (was {before})"
                live = current_value_text_if_changed(
                    other.setting, other.gpu_uuid, other.now, state.telemetry
                )
                if live and (by, other.key) not in outcomes:
                    text += f"; it is {live} now"
                rows += paragraph_rows(text, width, "text", "    ")
    return rows


def _begun_change_rows(change: Alteration, outcome: str, width: int) -> list[Row]:
    text = setting_text(change.setting, change.now)
    at = time_of_day_text(change.changed_unix_s)
    line = f"  {G.alert} {text} {outcome}, at {at} (r clears it)"
    return paragraph_rows(line, width, "warn", "    ")


def _alteration_rows(alteration: Alteration, width: int) -> list[Row]:
    rows: list[Row] = []
    for _, now, before in alteration_gpus_now_and_before([alteration]):
        source = alteration.before_known
        if source and source not in before:
            before += f", {source}"
        since = time_of_day_text(alteration.since_unix_s)
        text = f"  {G.alert} {now} since {since} (was {before}; r reverts)"
        rows += paragraph_rows(text, width, "warn", "    ")
    return rows

"""GPU settings: what is, what is allowed, what is asked for; then the commands, and only then the change."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import NamedTuple

from workbench.model.gpu import GpuInfo, GpuSample
from workbench.model.settings import ClockRange, GpuSettings, SettingCommand, SettingsReport
from workbench.session.state import SessionState
from workbench.tui.formats import NA, alteration_texts, setting_text, value_text, whole
from workbench.tui.glyphs import G
from workbench.tui.modals.base import Field, Form
from workbench.tui.paint import Row, pad, paragraph


class Wanted(NamedTuple):
    settings: GpuSettings
    gpu: int | None


def parse(values: dict[str, str], count: int) -> Wanted | str:
    """What was typed, or what is wrong with it. Empty fields leave a setting alone."""
    which = values.get("gpu", "all").lower()
    gpu: int | None = None
    if which not in ("", "all"):
        if not which.isdigit() or int(which) >= count:
            return f"GPU: expected all or 0..{count - 1}, got {values['gpu']}"
        gpu = int(which)
    persistence = {"": None, "on": True, "off": False}.get(values["persistence"].lower(), "?")
    if persistence == "?":
        return f"persistence: expected on or off, got {values['persistence']}"
    try:
        watts = float(values["power"].rstrip("wW ")) if values["power"] else None
    except ValueError:
        return f"power limit: expected watts, got {values['power']}"
    sm, memory = _clocks(values["sm"]), _clocks(values["memory"])
    for name, clocks in (("SM clocks", sm), ("memory clocks", memory)):
        if isinstance(clocks, str) and clocks != "reset":
            return f"{name}: {clocks}"
    settings = GpuSettings(
        persistence=persistence if isinstance(persistence, bool) else None,
        power_limit_w=watts,
        gpu_clocks=sm if isinstance(sm, ClockRange) else None,
        memory_clocks=memory if isinstance(memory, ClockRange) else None,
        reset_gpu_clocks=sm == "reset",
        reset_memory_clocks=memory == "reset",
    )
    return "nothing is asked for: fill in at least one field" if settings.empty else Wanted(settings, gpu)


def _clocks(text: str) -> ClockRange | str | None:
    """ "1755" or "210,1755" in MHz; "reset"; "" for nothing. A str other than "reset" is a complaint."""
    text = text.lower().replace("mhz", "").strip()
    if not text:
        return None
    if text == "reset":
        return "reset"
    parts = [p.strip() for p in text.replace("-", ",").split(",")]
    if len(parts) > 2 or not all(p.isdigit() for p in parts):
        return f"expected MHz, MIN,MAX or reset, got {text}"
    low, high = int(parts[0]), int(parts[-1])
    return ClockRange(low, high) if low <= high else f"the minimum {low} is above the maximum {high}"


def settings_form(state: SessionState) -> Form:
    telemetry = state.telemetry
    gpus = telemetry.gpus if telemetry else ()
    infos = telemetry.infos if telemetry else ()
    sample = gpus[0] if gpus else None
    info = infos[0] if infos else None
    fields = _fields(sample, info, len(gpus))

    def check(values: dict[str, str]) -> str | None:
        outcome = parse(values, len(gpus))
        return outcome if isinstance(outcome, str) else None

    def intro(width: int) -> list[Row]:
        rows: list[Row] = []
        for s in gpus[:8]:
            limit = s.power_limit_enforced_w or s.power_limit_w
            keep = NA if s.persistence is None else "on" if s.persistence else "off"
            clocks = f"SM {whole(s.sm_mhz, ' MHz')}, memory {whole(s.memory_mhz, ' MHz')}"
            text = f"now: power limit {whole(limit, ' W')}, {clocks}"
            rows += [((pad(f"GPU{s.index}", 6), "title"), (f"{text}, persistence {keep}", "text"))]
        for which, now, before in alteration_texts(state.alterations):
            rows += paragraph(f"{G.alert} {which}: {now}, was {before}", width, "warn")
        if state.host.can_change_gpus:
            rows += paragraph(f"! read-only here: {state.host.can_change_gpus}", width, "warn")
            rows += paragraph("  enter shows the commands and the rights that they need", width, "dim")
        return [*rows, ()]

    return Form("GPU settings", fields, intro=intro, check=check, accept="show commands")


def _fields(sample: GpuSample | None, info: GpuInfo | None, count: int) -> Sequence[Field]:
    watts = f"{whole(info.power_min_w)}..{whole(info.power_max_w)} W" if info else ""
    sm = f"MHz, MIN,MAX or reset; at most {whole(info.sm_max_mhz)}" if info else ""
    memory = f"MHz, MIN,MAX or reset; at most {whole(info.memory_max_mhz)}" if info else ""
    return (
        *([Field("gpu", "GPU", "all", f"all or 0..{count - 1}")] if count > 1 else []),
        Field("power", "power limit", "", watts),
        Field("sm", "lock SM clocks", "", sm),
        Field("memory", "lock memory clocks", "", memory),
        Field("persistence", "persistence mode", "", "on or off"),
    )


def command_rows(commands: Sequence[SettingCommand], width: int) -> list[Row]:
    rows: list[Row] = paragraph("The values of now are written to disk first; r puts them back.", width, "dim")
    for c in commands:
        lines = paragraph(f"$ {shlex.join(c.argv)}", width - 6, "text", "    ")
        rows += [((pad("" if n else f"GPU{c.gpu_index}", 6), "title"), *line) for n, line in enumerate(lines)]
        if c.right:
            rows += paragraph(f"  ! needs {c.right}", width, "warn", "    ")
    return rows


def report_rows(report: SettingsReport, width: int) -> list[Row]:
    rows: list[Row] = []
    for o in report.outcomes:
        sign, role = ("ok", "good") if o.ok else ("x", "bad")
        now = setting_text(o.command.setting, o.requested if o.requested is not None else o.read_back)
        read = f", reads back {value_text(o.read_back)}" if o.read_back is not None else ""
        rows += paragraph(f"{sign} GPU{o.command.gpu_index} {now}{read}, in force: {o.in_force}", width, role, "   ")
        if o.message:
            rows += paragraph(f"   {o.message}", width, "dim", "   ")
    if not report.outcomes:
        rows += paragraph("Nothing to do: no setting was altered.", width, "dim")
    if report.journal:
        rows += [(), *paragraph(f"previous values are kept in {report.journal}", width, "dim")]
    return rows

"""GPU settings: what is, what is allowed and what was before beside what is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from textual.binding import Binding, BindingType

from workbench.model.gpu import GpuInfo, GpuSample
from workbench.model.settings import HOST_INDEX, ClockRange, GpuSettings
from workbench.session.state import SessionState
from workbench.tui.cells import Row, pad, paragraph
from workbench.tui.formats import NA, setting_text
from workbench.tui.modals.form import Field, Form, Submit, Values

LABEL, ENTRY, NOW, ALLOWED = 17, 12, 14, 19
SETTING_OF = {
    "power": "power_limit_w",
    "sm": "gpu_clocks",
    "memory": "memory_clocks",
    "persistence": "persistence",
    "governor": "governor",
}


class Wanted(NamedTuple):
    settings: GpuSettings
    gpu: int | None
    trial_s: float | None = None


def parse(values: Values, count: int) -> Wanted | str:
    """What was typed, or what is wrong with it. Empty fields leave a setting alone."""
    which = values.get("gpu", "all").lower()
    gpu: int | None = None
    if which not in ("", "all"):
        if not which.isdecimal() or int(which) >= count:
            return f"GPU: expected all or 0..{count - 1}, got {values['gpu']}"
        gpu = int(which)
    persistence = {"": None, "on": True, "off": False}.get(values["persistence"].lower(), "?")
    if persistence == "?":
        return f"persistence: expected on or off, got {values['persistence']}"
    watts = _number(values["power"], "wW ")
    trial = _number(values.get("trial", ""), "s ")
    for name, number, expected in (("power limit", watts, "watts"), ("trial", trial, "seconds")):
        if isinstance(number, str) or (number is not None and number <= 0):
            return f"{name}: expected {expected}, got {number}"
    sm, memory = clocks_of(values["sm"]), clocks_of(values["memory"])
    for name, clocks in (("SM clocks", sm), ("memory clocks", memory)):
        if isinstance(clocks, str) and clocks != "reset":
            return f"{name}: {clocks}"
    settings = GpuSettings(
        persistence=persistence if isinstance(persistence, bool) else None,
        power_limit_w=watts if isinstance(watts, float) else None,
        gpu_clocks=sm if isinstance(sm, ClockRange) else None,
        memory_clocks=memory if isinstance(memory, ClockRange) else None,
        reset_gpu_clocks=sm == "reset",
        reset_memory_clocks=memory == "reset",
        governor=values.get("governor") or None,
    )
    if settings.empty:
        return "nothing is asked for: fill in at least one field"
    return Wanted(settings, gpu, trial if isinstance(trial, float) else None)


def _number(text: str, unit: str) -> float | str | None:
    """A number with or without its unit; None for nothing, the text where it is no number."""
    try:
        return float(text.rstrip(unit)) if text else None
    except ValueError:
        return text


def clocks_of(text: str) -> ClockRange | str | None:
    """ "1755" or "210,1755" in MHz; "reset"; "" for nothing. A str other than "reset" is a complaint."""
    text = text.lower().replace("mhz", "").strip()
    if not text:
        return None
    if text == "reset":
        return "reset"
    parts = [p.strip() for p in text.replace("-", ",").split(",")]
    if len(parts) > 2 or not all(p.isdecimal() for p in parts):
        return f"expected MHz, MIN,MAX or reset, got {text}"
    low, high = int(parts[0]), int(parts[-1])
    return ClockRange(low, high) if low <= high else f"the minimum {low} is above the maximum {high}"


class Suggestion(NamedTuple):
    """What the loaded preset mentions: text for the form's fields, and why."""

    values: dict[str, str]
    reason: str
    preset_id: str


def suggestion_of(entries: Sequence[tuple[str, GpuSettings, str]], preset_id: str) -> Suggestion | None:
    """Of (GPU, settings, reason): what is for all GPUs, else the first, as it would be typed."""
    entry = next((e for e in entries if e[0] == "all"), next(iter(entries), None))
    if entry is None:
        return None
    which, settings, reason = entry

    def clocks(value: ClockRange | None, reset: bool) -> str:
        if value is None:
            return "reset" if reset else ""
        return str(value.min_mhz) if value.min_mhz == value.max_mhz else str(value)

    values = {
        "gpu": which,
        "power": "" if settings.power_limit_w is None else f"{settings.power_limit_w:g}",
        "sm": clocks(settings.gpu_clocks, settings.reset_gpu_clocks),
        "memory": clocks(settings.memory_clocks, settings.reset_memory_clocks),
        "persistence": {None: "", True: "on", False: "off"}[settings.persistence],
        "governor": settings.governor or "",
    }
    return Suggestion(values, reason, preset_id)


class SettingsForm(Form):
    """ctrl+l empties every field, for who wants none of what the preset suggests."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+l", "empty", show=False, priority=True)]

    def action_empty(self) -> None:
        for field in self.fields:
            if field.name != "gpu":
                self.put(field.name, "")

    def hint_role(self, field: Field) -> str:
        return "text"


def each_alone(settings: GpuSettings) -> list[tuple[str, GpuSettings]]:
    """(the field's words, that setting alone) of all that is asked for."""
    s = settings
    alone = (
        ("power limit", GpuSettings(power_limit_w=s.power_limit_w)),
        ("SM clocks", GpuSettings(gpu_clocks=s.gpu_clocks, reset_gpu_clocks=s.reset_gpu_clocks)),
        ("memory clocks", GpuSettings(memory_clocks=s.memory_clocks, reset_memory_clocks=s.reset_memory_clocks)),
        ("persistence", GpuSettings(persistence=s.persistence)),
        ("CPU governor", GpuSettings(governor=s.governor)),
    )
    return [(name, one) for name, one in alone if not one.empty]


def settings_form(
    state: SessionState, suggested: Suggestion | None = None, look_up: Submit | None = None
) -> SettingsForm:
    """`look_up` finds the commands for what was typed, or says what is wrong with it."""
    telemetry = state.telemetry
    gpus = telemetry.gpus if telemetry else ()
    given = dict(suggested.values if suggested else {})
    if given.get("gpu", "all") != "all" and not (given["gpu"].isdecimal() and int(given["gpu"]) < len(gpus)):
        given["gpu"] = "all"

    def check(values: Values) -> str | None:
        outcome = parse(values, len(gpus))
        return outcome if isinstance(outcome, str) else None

    def intro(width: int) -> list[Row]:
        rows: list[Row] = []
        if suggested is not None:
            why = f": {suggested.reason}" if suggested.reason else ""
            rows += paragraph(f"Filled in from {suggested.preset_id}{why}", width, "text", "  ")
        if state.host.can_change_gpus:
            rows += paragraph(f"! read-only here: {state.host.can_change_gpus}", width, "warn", "  ")
            rows += paragraph("  enter shows the commands and the rights that they need", width, "dim")
        return [*rows, ()] if rows else []

    before = "before" if state.alterations else ""
    heading = f"{'':<{LABEL}}{'asked for':<{ENTRY}}  {'now':<{NOW}}{'allowed':<{ALLOWED}}{before}"
    return SettingsForm(
        "GPU settings",
        _fields(len(gpus), given),
        intro=intro if suggested or state.host.can_change_gpus else None,
        check=check,
        hints=_hints(state),
        heading=heading,
        accept="show commands",
        label_cells=LABEL,
        entry_cells=ENTRY,
        wide=True,
        keys="ctrl+l empty" if suggested else "",
        submit=look_up,
        doing="looking up the commands: nothing is changed yet",
    )


def _fields(count: int, given: Mapping[str, str]) -> tuple[Field, ...]:
    names = (
        ("power", "power limit W"),
        ("sm", "SM MIN,MAX"),
        ("memory", "memory MIN,MAX"),
        ("persistence", "persistence"),
        ("governor", "CPU governor"),
        ("trial", "trial seconds"),
    )
    gpu = [Field("gpu", "GPU", given.get("gpu", "all"))] if count > 1 else []
    return (*gpu, *(Field(name, label, given.get(name, "")) for name, label in names))


def _hints(state: SessionState) -> Callable[[Values], Mapping[str, str]]:
    """now, allowed and before of each field, for the GPUs that are chosen there."""
    telemetry = state.telemetry
    gpus = telemetry.gpus if telemetry else ()
    infos = telemetry.infos if telemetry else ()

    def hints(values: Values) -> Mapping[str, str]:
        which = values.get("gpu", "all")
        chosen = [s for s in gpus if which in ("", "all", str(s.index))]
        known = [i for i in infos if which in ("", "all", str(i.index))]
        if not chosen:
            return {"gpu": f"no such GPU: all or 0..{len(gpus) - 1}"}
        made = {
            name: _columns(now, allowed, _before(state, SETTING_OF.get(name, ""), chosen))
            for name, (now, allowed) in _known(state, chosen, known).items()
        }
        named = sorted({i.name.removeprefix("NVIDIA ") for i in known})
        made["gpu"] = f"all or 0..{len(gpus) - 1}   {', '.join(named)}"
        made["trial"] = "given back then, unless you keep it (T)"
        return made

    return hints


def _columns(now: str, allowed: str, before: str) -> str:
    return f"{pad(now, NOW - 1)} {pad(allowed, ALLOWED - 1)} {before}"


def _known(state: SessionState, chosen: Sequence[GpuSample], known: Sequence[GpuInfo]) -> dict[str, tuple[str, str]]:
    """Of each field: what is now, and what may be asked for."""

    def low_high(values: list[tuple[Any, Any]], unit: str) -> str:
        lows, highs = [v[0] for v in values if v[0] is not None], [v[1] for v in values if v[1] is not None]
        return f"{max(lows):.0f}..{min(highs):.0f} {unit}" if lows and highs else f"{NA}: not supported"

    host = state.telemetry.host if state.telemetry else None
    tops = [i.sm_max_mhz for i in known if i.sm_max_mhz is not None]
    memory_tops = [i.memory_max_mhz for i in known if i.memory_max_mhz is not None]
    on_off = [None if s.persistence is None else "on" if s.persistence else "off" for s in chosen]
    return {
        "power": (
            _same([s.power_limit_w or s.power_limit_enforced_w for s in chosen], " W"),
            low_high([(i.power_min_w, i.power_max_w) for i in known], "W"),
        ),
        "sm": (_same([s.sm_mhz for s in chosen], " MHz"), f"to {min(tops)}, reset" if tops else f"{NA}: not supported"),
        "memory": (
            _same([s.memory_mhz for s in chosen], " MHz"),
            f"to {min(memory_tops)}, reset" if memory_tops else f"{NA}: not supported",
        ),
        "persistence": (_same(on_off, ""), "on or off"),
        "governor": ((host.cpu_governor if host else None) or NA, "performance, …"),
    }


def _same(values: Sequence[float | str | None], unit: str) -> str:
    """ "600 W", "300-600 W" where the GPUs differ, n/a."""
    given = sorted({v if isinstance(v, str) else round(v) for v in values if v is not None}, key=str)
    if not given:
        return NA
    if all(isinstance(v, int) for v in given):
        numbers = sorted(int(v) for v in given)
        return (f"{numbers[0]}" if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}") + unit
    return "/".join(map(str, given))


def _before(state: SessionState, setting: str, chosen: Sequence[GpuSample]) -> str:
    """What was there before Workbench changed it; "" where it has not."""
    indexes = {s.index for s in chosen} | {HOST_INDEX}
    values = [a.before for a in state.alterations if a.setting == setting and a.gpu_index in indexes]
    texts = dict.fromkeys(setting_text(setting, v).split(" ", 1)[-1] for v in values)
    return ", ".join(texts)

"""The form of GPU settings: the present, the allowed and the previous value beside each field."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from textual.binding import Binding, BindingType

from workbench.model.errors import InputError
from workbench.model.gpu import GpuSample
from workbench.model.known_values import known_values
from workbench.model.settings import (
    HOST_INDEX,
    SETTINGS,
    ClockSetting,
    GpuSettings,
    NumberSetting,
    Setting,
    SwitchSetting,
)
from workbench.session.state import SessionState
from workbench.tui.cells import Row, RowMaker, pad_text, paragraph_rows
from workbench.tui.formats import NA, setting_value_text
from workbench.tui.modals.form import (
    Field,
    Form,
    Submit,
    Values,
    parse_gpu_index,
    parse_positive_number,
)

LABEL, ENTRY, NOW, ALLOWED = 18, 12, 14, 18


class RequestedSettings(NamedTuple):
    settings: GpuSettings
    gpu: int | None
    trial_s: float | None = None


def parse_settings_form(values: Values, gpu_count: int) -> RequestedSettings:
    """Return the settings, the GPU and the trial time from the texts in the form, without the
    settings whose fields are empty. `gpu_count` is the number of GPUs on the host. Raise InputError
    for an invalid field, or if the fields of all settings are empty."""
    gpu = parse_gpu_index(values, gpu_count)
    trial_s = parse_positive_number(values, "trial", "trial", "s")
    settings = GpuSettings()
    for setting in SETTINGS:
        text = values.get(setting.name, "").strip()
        if text:
            settings[setting.key] = setting.parse(text)
    if not settings:
        raise InputError("no setting is given: enter a value in at least one field")
    return RequestedSettings(settings, gpu, trial_s)


SettingsEntry = tuple[str, GpuSettings, str]  # GPU number or "all", settings, reason


class Suggestion(NamedTuple):
    """The GPU settings of the loaded preset as texts for the fields of the form, and the preset's
    reason for them."""

    values: dict[str, str]
    reason: str
    preset_id: str


def settings_suggestion_from_entries(
    entries: Sequence[SettingsEntry], preset_id: str
) -> Suggestion | None:
    """Return a preset's GPU settings as texts for the form; None if `entries` is empty. The form
    shows one entry: the first one, or the entry for all GPUs if there is one."""
    if not entries:
        return None
    which, settings, reason = next((e for e in entries if e[0] == "all"), entries[0])
    texts = dict.fromkeys((setting.name for setting in SETTINGS), "")
    for setting in _settings_with_value(settings):
        texts[setting.name] = setting.input_text(settings[setting.key])
    return Suggestion({"gpu": which, **texts}, reason, preset_id)


class SettingsForm(Form):
    """The form of GPU settings. The key ctrl+l empties every field except that of the GPU, so that
    no value of the preset is used."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+l", "empty", show=False, priority=True)]

    HINT_ROLE = "text"

    def action_empty(self) -> None:
        for field in self.fields:
            if field.name != "gpu":
                self.set_field(field.name, "")


def split_into_labelled_settings(settings: GpuSettings) -> list[tuple[str, GpuSettings]]:
    """Return one pair for each setting in `settings`: its label, and a GpuSettings with only this
    setting."""
    return [
        (s.label, GpuSettings({s.key: settings[s.key]})) for s in _settings_with_value(settings)
    ]


def _settings_with_value(settings: GpuSettings) -> list[Setting]:
    """Return the settings that have a value in `settings`, in the order of the form."""
    return [setting for setting in SETTINGS if setting.key in settings]


def settings_form(
    state: SessionState,
    suggestion: Suggestion | None = None,
    look_up_commands: Submit | None = None,
) -> SettingsForm:
    """Return the form of GPU settings. `suggestion` has the first texts of its fields.
    `look_up_commands` looks up the commands for the accepted values, or raises the error that the
    form shows."""
    gpus = state.gpus
    given, keys = {"gpu": "all"}, ""
    shown_intro: RowMaker | None = None
    if suggestion is not None:
        given, keys = dict(suggestion.values), "ctrl+l empty"
    if given["gpu"] not in map(str, range(len(gpus))):
        given["gpu"] = "all"

    def make_intro_rows(width: int) -> list[Row]:
        rows: list[Row] = []
        if suggestion is not None:
            source = ": ".join(filter(None, (suggestion.preset_id, suggestion.reason)))
            rows += paragraph_rows(f"Filled in from {source}", width, "text", "  ")
        if state.host.can_change_gpus:
            rows += paragraph_rows(
                f"! read-only here: {state.host.can_change_gpus}", width, "warn", "  "
            )
            rows += paragraph_rows(
                "  enter shows the commands and the rights that they need", width, "dim"
            )
        if rows:
            rows.append(())
        return rows

    if suggestion or state.host.can_change_gpus:
        shown_intro = make_intro_rows
    heading = f"{'':<{LABEL}}{'new':<{ENTRY}}  {'now':<{NOW}}{'allowed':<{ALLOWED}}"
    if state.alterations:
        heading += "before"
    return SettingsForm(
        "GPU settings",
        _form_fields(len(gpus), given),
        intro=shown_intro,
        check=lambda values: parse_settings_form(values, len(gpus)),
        hints=_field_hint_maker(state),
        heading=heading,
        accept="show commands",
        label_cells=LABEL,
        entry_cells=ENTRY,
        wide=True,
        keys=keys,
        submit=look_up_commands,
        doing="looking up the commands: nothing is changed yet",
    )


def _form_fields(gpu_count: int, first_values: Mapping[str, str]) -> tuple[Field, ...]:
    fields = [Field(s.name, _label_with_unit(s), first_values.get(s.name, "")) for s in SETTINGS]
    fields.append(Field("trial", "trial seconds", first_values.get("trial", "")))
    if gpu_count > 1:
        fields.insert(0, Field("gpu", "GPU", first_values["gpu"]))
    return tuple(fields)


def _label_with_unit(setting: Setting) -> str:
    if isinstance(setting, NumberSetting):
        return f"{setting.label} {setting.unit}"
    return setting.label


def _field_hint_maker(state: SessionState) -> Callable[[Values], Mapping[str, str]]:
    """Return a function that maps the texts in the form to the hints beside the fields, by field
    name. A hint has the present, the allowed and the previous value on the chosen GPUs."""
    gpus, infos = state.gpus, state.gpu_infos
    numbers = f"all or 0..{len(gpus) - 1}"

    def make_hints(values: Values) -> Mapping[str, str]:
        which = values.get("gpu") or "all"
        chosen = [s for s in gpus if which in ("all", str(s.index))]
        if not chosen:
            return {"gpu": f"no such GPU: {numbers}"}
        known = [i for i in infos if which in ("all", str(i.index))]
        named = sorted({i.name.removeprefix("NVIDIA ") for i in known})
        made = {
            "gpu": f"{numbers}   {', '.join(named)}",
            "trial": "then reverted, unless you press T",
        }
        for setting in SETTINGS:
            now = _current_value_text(setting, state, chosen)
            allowed = setting.allowed_values_text(known) or f"{NA}: not supported"
            before = _previous_value_text(state, setting, chosen)
            made[setting.name] = _aligned_hint_text(now, allowed, before)
        return made

    return make_hints


def _aligned_hint_text(now: str, allowed: str, before: str) -> str:
    return f"{pad_text(now, NOW - 1)} {pad_text(allowed, ALLOWED - 1)} {before}"


def _current_value_text(setting: Setting, state: SessionState, chosen: Sequence[GpuSample]) -> str:
    """Return the present value of a setting on the chosen GPUs as text; "n/a" if none reports it.
    For a clock lock, return the present clock, because drivers do not report locks."""
    if setting.of_host:
        if state.telemetry is None:
            return NA
        return str(setting.current_value(state.telemetry, "") or NA)
    fields = _reading_fields_of_setting(setting)
    known = known_values(_first_reported_value(sample, fields) for sample in chosen)
    if isinstance(setting, SwitchSetting):
        return "/".join(sorted(set(map(setting.format, known)))) or NA
    return _range_text(known, f" {setting.unit}")


def _reading_fields_of_setting(setting: Setting) -> Sequence[str]:
    """Return the fields of GpuSample that have the value of a setting, the best one first."""
    if isinstance(setting, ClockSetting):
        return (setting.clock,)
    reading = setting.reading
    assert reading is not None  # only a clock lock has none
    if isinstance(setting, NumberSetting) and setting.enforced:
        return (reading, setting.enforced)
    return (reading,)


def _first_reported_value(sample: GpuSample, fields: Sequence[str]) -> Any:
    for name in fields:
        value = getattr(sample, name)
        if value is not None:
            return value
    return None


def _range_text(values: Sequence[float], unit: str) -> str:
    """Return the values of several GPUs as "600 W", or "300-600 W" if they differ; "n/a" if there
    are none."""
    if not values:
        return NA
    low, high = round(min(values)), round(max(values))
    if low == high:
        return f"{low}{unit}"
    return f"{low}-{high}{unit}"


def _previous_value_text(state: SessionState, setting: Setting, chosen: Sequence[GpuSample]) -> str:
    """Return the value of a setting before Workbench altered it on the chosen GPUs, as text; "" if
    it is not altered there."""
    indexes = {s.index for s in chosen} | {HOST_INDEX}
    texts = []
    for alteration in state.alterations:
        if alteration.setting == setting.key and alteration.gpu_index in indexes:
            texts.append(setting_value_text(setting.key, alteration.before))
    return ", ".join(dict.fromkeys(texts))

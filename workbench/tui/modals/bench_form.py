"""The form of a benchmark: its profile, its size, and fields for details, which are hidden at
first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workbench.model.bench import BenchSpec
from workbench.model.counts import count_of
from workbench.model.declared_options import DeclaredOption
from workbench.model.errors import InputError
from workbench.model.load_spec import OF_A_TRACE, ONLY_OF_A_TRACE, OPTIONS
from workbench.tui.cells import Row, paragraph_rows
from workbench.tui.modals.declared_fields import (
    field_from_option,
    option_value_text,
    parse_option_field,
)
from workbench.tui.modals.form import Field, Form, Values

Profiles = Mapping[str, tuple[str, Mapping[str, Any]]]
SOURCE_DESCRIPTIONS = {  # source of the first values -> its description
    "as before": "as in the last benchmark",
    "preset's own": "as the preset suggests",
    "standard": "Workbench's standard",
}
IN_FORM = tuple(option for option in OPTIONS if option.label)
_BY_PROFILE = tuple(
    option.field for option in IN_FORM if not option.argument and option not in ONLY_OF_A_TRACE
)
_ALWAYS_SHOWN = ("concurrency", "requests")  # the other fields are details


def bench_fields_from_values(values: Values) -> dict[str, Any]:
    """Return the values of the form as BenchSpec fields, by field name. Raise InputError for an
    invalid value."""
    made: dict[str, Any] = {}
    if values.get("profile", "as before") not in SOURCE_DESCRIPTIONS:
        made["profile"] = values["profile"]
    for option in IN_FORM:
        made[option.dest] = parse_option_field(option, values)
        if not option.argument:
            option.require_valid(made[option.dest])
    if made["trace_file"]:
        return _bench_fields_for_trace(made)
    del made["trace_file"]
    for option in ONLY_OF_A_TRACE:
        del made[option.dest]
    if made["rate"] is None:
        del made["arrival"]
    if made["prompts_file"]:
        del made["content"]
    else:
        del made["prompts_file"]
    return made


def _bench_fields_for_trace(form_fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the form's fields that have an effect on the replay of a trace. The number of
    streams has none, because the trace has its own. Raise InputError if the form also names a
    prompts file."""
    if form_fields["prompts_file"]:
        raise InputError("a trace and a prompts file exclude each other: leave one of them empty")
    of_the_trace = (option.dest for option in OF_A_TRACE)
    without = (*of_the_trace, "profile", "concurrency")
    return {name: value for name, value in form_fields.items() if name not in without}


class BenchForm(Form):
    """The form of a benchmark. A chosen profile fills the other fields, and the user may then
    change each of them."""

    def __init__(
        self, spec: BenchSpec, profiles: Profiles, intro_text: str, source_text: str
    ) -> None:
        """`spec` has the first values of the fields, and `intro_text` is the text above the fields.
        `source_text` says in a few words where `spec` comes from: the last benchmark, the preset,
        or Workbench's standard."""
        self.profiles, self.first = (
            profiles,
            {name: option_value_text(getattr(spec, name)) for name in _BY_PROFILE},
        )
        super().__init__(
            "Benchmark",
            _form_fields(spec, profiles, source_text),
            intro=lambda w: [*paragraph_rows(intro_text, w, "dim"), ()],
            check=_check_values,
            make_summary=self._profile_and_load_rows,
            accept="run",
            label_cells=22,
            entry_cells=17,
        )

    def _profile_and_load_rows(self, values: Values, width: int) -> list[Row]:
        """Return rows with the purpose of the chosen profile and the values of the hidden
        fields."""
        chosen = values.get("profile", "")
        title = SOURCE_DESCRIPTIONS.get(chosen) or self.profiles.get(chosen, ("",))[0]
        return [*paragraph_rows(title, width), *load_description_rows(values, width)]

    def update_after_field_change(self, field_name: str) -> None:
        if field_name == "profile":
            _, of_profile = self.profiles.get(self.values["profile"], ("", {}))
            for field in _BY_PROFILE:
                text = self.first[field]
                if field in of_profile:
                    text = option_value_text(of_profile[field])
                self.set_field(field, text)
        super().update_after_field_change(field_name)


def _option_field(option: DeclaredOption, spec: BenchSpec) -> Field:
    value = ""
    if option.field in _BY_PROFILE:  # the others are named each time
        value = getattr(spec, option.field)
    return field_from_option(option, value, is_detail=option.dest not in _ALWAYS_SHOWN)


def _form_fields(spec: BenchSpec, profiles: Profiles, source_text: str) -> tuple[Field, ...]:
    fields = [_option_field(option, spec) for option in IN_FORM]
    if profiles:
        choices = (source_text, *profiles)
        fields.insert(
            0, Field("profile", "profile", source_text, "left and right change it", choices)
        )
    return tuple(fields)


def _check_values(values: Values) -> None:
    """Raise InputError for an invalid value, or if there are fewer requests than streams."""
    made = bench_fields_from_values(values)
    if "trace_file" in made:
        return
    streams, requests = made["concurrency"], made["requests"]
    if made["rate"] is None and streams > requests:
        raise InputError(
            f"{count_of(requests, 'request')} cannot keep {streams} streams busy: set {streams} "
            "requests or more, or "
            "fewer streams"
        )


def load_description_rows(values: Values, width: int) -> list[Row]:
    """Return rows that say what the load of the form consists of; [] while a value is invalid."""
    try:
        made = bench_fields_from_values(values)
    except InputError:  # enter shows the error
        return []
    if "trace_file" in made:
        return paragraph_rows(_trace_replay_text(made), width, "dim", "  ")
    what = count_of(made["input_tokens"], "prompt token")
    if made.get("prompts_file"):
        what = made["prompts_file"]
    elif made.get("content") == "text":
        what += " of real text"
    loop = "closed loop"
    if made["rate"] is not None:
        loop = f"{made['rate']:g} requests a second, {made['arrival']}"
    warm = count_of(made["warmup"], "request")
    if made["until_steady"]:
        warm = f"{made['warmup']} until steady"
    text = f"{what}, {count_of(made['max_tokens'], 'output token')}; {loop}"
    if made["seconds"] is not None:
        text += f", at most {made['seconds']:g} s"
    text += f"; warm-up {warm}"
    if made["shared_prefix"]:
        text += ", prefix cache in play"
    return paragraph_rows(text, width, "dim", "  ")


def _trace_replay_text(fields: Mapping[str, Any]) -> str:
    """Return a description of the load that replays a trace. `fields` are fields of BenchSpec, as
    `bench_fields_from_values` returns them."""
    text = f"replays {fields['trace_file']}: "
    if fields["first"] is not None:
        text += f"its first {fields['first']} requests, "
    text += "each at its time and with its lengths"
    if fields["speed"] is not None:
        text += f", at {fields['speed']:g} times the speed"
    if fields["seconds"] is not None:
        text += f", at most {fields['seconds']:g} s"
    return f"{text}; warm-up {count_of(fields['warmup'], 'request')}"

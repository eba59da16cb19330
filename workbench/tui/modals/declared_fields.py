"""Fields of forms made from the declarations of options (model/declared_options.py)."""

from __future__ import annotations

from typing import Any

from workbench.model.declared_options import (
    Choice,
    DeclaredOption,
    Factor,
    Number,
    OptionalWhole,
    Switch,
    Whole,
    number_text,
)
from workbench.tui.glyphs import G
from workbench.tui.modals.form import Field, Values, parse_positive_number, parse_whole_number

_UNITS = {"percent": "%", "minutes": "min", "°C": "°C"}  # that may follow a number in a field


def option_value_text(value: object) -> str:
    """Return the value of an option as the text of its field."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if value is None:
        return ""
    return number_text(value) if isinstance(value, float) else str(value)


def field_from_option(option: DeclaredOption, value: object, *, is_detail: bool) -> Field:
    """Return the field of an option with the first value `value`. A detail is hidden at first."""
    choices: tuple[str, ...] = ()
    match option.kind:
        case Switch():
            choices = ("off", "on")
        case Choice():
            choices = option.kind.choices
    label = option.label.replace("±", G.plus_minus)
    return Field(
        option.dest, label, option_value_text(value), option.hint, choices, detail=is_detail
    )


def parse_option_field(option: DeclaredOption, values: Values) -> Any:
    """Return the value of the option's field in the form; None if the field is empty and the option
    may be without a value. Raise InputError if the text of the field is invalid."""
    name, label = option.dest, option.label
    match option.kind:
        case OptionalWhole() | Factor() if not values[name].strip():
            return None
        case Factor() as kind:
            return kind.parse(values[name])
        case Whole(least=least):
            return parse_whole_number(values, name, label, max(0, least))
        case Number(unit=unit):
            return parse_positive_number(values, name, label, _UNITS.get(unit, ""))
        case Switch():
            return values[name] == "on"
        case kind:
            return kind.parse(values[name])

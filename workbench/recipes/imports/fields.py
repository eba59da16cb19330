"""Functions that read values of a recipe document and check their types. A value of the wrong type
is left out, and a note about it is added."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from workbench.engines.base import Engine
from workbench.engines.catalog import look_up_flag
from workbench.model.errors import InputError
from workbench.model.findings import Level
from workbench.model.flags import FlagKind, FlagSpec
from workbench.model.untrusted_numbers import integer_or_none
from workbench.model.untrusted_text import as_list, as_table
from workbench.recipes.recipe import Notes

_MOST = 2**31  # GPUs, GiB, tokens
_PASSES = 5  # substitutions of a value within a value
_MOST_CHARS = 128 * 1024  # of a text with its values filled in


def text_field(document: Mapping[str, Any], name: str, notes: Notes) -> str:
    """Return the text or number in the field `name` as text; "" if it is absent. Any other value is
    left out and added to `notes`."""
    value = document.get(name)
    if isinstance(value, str):
        return value.strip()
    if _is_text_or_number(value):
        return str(value)
    if value is not None:
        notes.add_not_understood_warning(name, value)
    return ""


def first_text_field(notes: Notes, *tables_and_names: tuple[Mapping[str, Any], str]) -> str:
    """Return the text of the first of these fields, each given as (table, name), that is neither
    absent nor empty; "" if there is none."""
    for table, name in tables_and_names:
        if text := text_field(table, name, notes):
            return text
    return ""


def scalar_text(value: object) -> str:
    """Return a single value of a document as text. Booleans become "true" and "false"."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def table_field(document: Mapping[str, Any], name: str, notes: Notes) -> Mapping[str, Any]:
    """Return the mapping in the field `name`; {} if it is absent. Any other value is left out and
    added to `notes`."""
    value = document.get(name)
    if not isinstance(value, Mapping | None):
        notes.add_not_understood_warning(name, value)
    return as_table(value)


def text_list_field(document: Mapping[str, Any], name: str, notes: Notes) -> list[str]:
    """Return the texts and numbers in the list `document[name]`, as texts. Other values are left
    out and added to `notes`."""
    value = document.get(name)
    if not isinstance(value, list | None):
        notes.add_not_understood_warning(name, value)
    found = [one for one in as_list(value) if _is_text_or_number(one)]
    if len(found) < len(as_list(value)):
        strange = next(one for one in as_list(value) if one not in found)
        notes.add_not_understood_warning(f"a part of {name}", strange)
    return list(map(str, found))


def _is_text_or_number(value: Any) -> bool:
    return type(value) in (str, int, float)


def count_field(document: Mapping[str, Any], name: str) -> int | None:
    """Return the field `name` if it is a whole number from 1 to _MOST; None for any other value,
    and if it is absent."""
    return integer_or_none(document.get(name), 1, _MOST)


def add_unknown_field_notes(
    document: Mapping[str, Any], known_names: str, notes: Notes, where: str = ""
) -> None:
    """Add a note about each field of `document` that is not understood: whose name is not in
    `known_names`, a text of names separated by spaces. The notes begin with the text `where`."""
    for name, value in document.items():
        if name not in known_names.split():
            notes.add_not_understood_warning(f"{where}{name}", value)


def flag_arguments(
    engine: Engine, values: Mapping[str, Any], notes: Notes, where: str
) -> Iterator[str]:
    """Yield the command-line arguments for `values`, settings by name such as sparkrun's
    `max_model_len: 8192`. A name is a flag of the engine, with dashes or underscores, or a name
    that recipes use for all engines (a key of `shared_names`). Unknown names are added to `notes`,
    with the text `where` in front."""
    catalog = engine.catalog()
    for name, value in values.items():
        dashed = name.replace("_", "-")
        match = look_up_flag(catalog, engine.shared_names.get(dashed, dashed))
        spec = match.spec or FlagSpec(
            match.name, FlagKind.STR
        )  # of a model's flag, nothing is known
        if match.spec is None and match.name not in engine.model_flags:
            notes.add_not_understood_warning(f"{where}{name}", value)
        elif isinstance(value, Mapping):
            import json

            yield from (f"--{match.name}", json.dumps(value))
        elif isinstance(value, bool):
            on = value is not match.negated
            if spec.value_takes_bool_word:
                yield from (f"--{match.name}", str(on))
            elif on:
                yield f"--{match.name}"
            elif spec.negation:
                yield spec.negation
        elif isinstance(value, list) and all(isinstance(one, str | int | float) for one in value):
            in_one_place = spec.nargs not in (None, ",")
            if in_one_place and value:  # of several places, the engine takes the last
                yield from (f"--{match.name}", *map(str, value))
                continue
            for one in value:
                yield from _format_flag_arguments(match.name, one, joined=engine.argparse_values)
        elif isinstance(value, str | int | float):
            dash = str(value).startswith("-")  # argparse would take such a value for a flag
            yield from _format_flag_arguments(
                match.name, value, joined=engine.argparse_values and dash
            )
        elif value is not None:
            notes.add(
                Level.WARN,
                "not-understood",
                f"{where}{name} is not understood and left out: {value!r}",
            )


def _format_flag_arguments(name: str, value: object, *, joined: bool) -> tuple[str, ...]:
    return (f"--{name}={value}",) if joined else (f"--{name}", str(value))


def fill_in_placeholders(
    text: str, placeholder_pattern: re.Pattern[str], values: Mapping[str, str]
) -> str:
    """Return `text` with its placeholders replaced by `values`, also placeholders inside those
    values. `placeholder_pattern` matches a placeholder, and its first group is the key in `values`;
    placeholders without a value stay. Raises InputError if the text grows beyond _MOST_CHARS
    characters."""
    for _ in range(_PASSES):
        if (
            len(text) + sum(len(values.get(name, "")) for name in placeholder_pattern.findall(text))
            > _MOST_CHARS
        ):
            raise InputError(
                "the recipe's command, with its values filled in, exceeds the limit of "
                f"{_MOST_CHARS // 1024} KiB"
            )
        filled = placeholder_pattern.sub(lambda found: values.get(found[1], found[0]), text)
        if filled == text:
            break
        text = filled
    return text

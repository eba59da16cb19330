"""Functions that check the values in a TOML document. Each returns a usable value, or adds a
problem to a list and returns UNUSABLE.

There is no schema library, because its import would take longer than all other imports before the
first frame of the screen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class Problem(NamedTuple):
    """A value that cannot be used: its path in the document, and a sentence about the problem. For
    an unknown setting, the text is None."""

    path: tuple[str, ...]
    text: str | None


Kind = Callable[[Any, tuple[str, ...], list[Problem]], Any]
UNUSABLE = object()
_LARGEST = 1e300  # a whole number of TOML may be too large for a float


def add_problem(path: tuple[str, ...], text: str, problems: list[Problem]) -> Any:
    """Add a problem at `path` with the sentence `text` to `problems`, and return UNUSABLE."""
    problems.append(Problem(path, text))
    return UNUSABLE


def check_text(value: Any, path: tuple[str, ...], problems: list[Problem]) -> Any:
    """Return `value` if it is a text. Otherwise add a problem, and return UNUSABLE."""
    if not isinstance(value, str):
        return add_problem(path, "text is expected", problems)
    return value


def check_boolean(value: Any, path: tuple[str, ...], problems: list[Problem]) -> Any:
    """Return `value` if it is true or false. Otherwise add a problem, and return UNUSABLE."""
    if not isinstance(value, bool):
        return add_problem(path, "true or false is expected", problems)
    return value


def choice_checker(*choices: str) -> Kind:
    """Return a function that checks that a value is one of `choices`."""

    def check(value: Any, path: tuple[str, ...], problems: list[Problem]) -> Any:
        if value not in choices:
            return add_problem(path, f"one of {', '.join(choices)} is expected", problems)
        return value

    return check


def number_checker(lowest: float, highest: float) -> Kind:
    """Return a function that checks a number from `lowest` to `highest`, and returns it as a
    float."""

    def check(value: Any, path: tuple[str, ...], problems: list[Problem]) -> Any:
        is_number = type(value) in (int, float)  # a bool is none
        if is_number and abs(value) < _LARGEST and lowest <= value <= highest:
            return float(value)
        return add_problem(path, f"a number from {lowest:g} to {highest:g} is expected", problems)

    return check


def list_checker(kind: Kind) -> Kind:
    """Return a function that checks a list whose items `kind` checks, and returns it as a tuple. If
    an item is invalid, the function returns UNUSABLE."""

    def check(value: Any, path: tuple[str, ...], problems: list[Problem]) -> Any:
        if not isinstance(value, list):
            return add_problem(path, "a list is expected", problems)
        found = [kind(each, path, problems) for each in value]
        if any(each is UNUSABLE for each in found):
            return UNUSABLE
        return tuple(found)

    return check


def map_checker(kind: Kind) -> Kind:
    """Return a function that checks a table with any keys, whose values `kind` checks. The function
    leaves out invalid values."""

    def check(value: Any, path: tuple[str, ...], problems: list[Problem]) -> Any:
        if not isinstance(value, dict):
            return add_problem(path, "a table is expected", problems)
        return _check_table_values(dict.fromkeys(value, kind), value, path, problems)

    return check


def table_checker(
    make_value: Callable[..., Any], kinds: Mapping[str, Kind], *, required: bool = False
) -> Kind:
    """Return a function that checks a table and returns `make_value(**values)`. `kinds` has the
    check of each key. An invalid value is left out. If `required` is True, however, an invalid or
    missing value makes the function return UNUSABLE."""

    def check(value: Any, path: tuple[str, ...], problems: list[Problem]) -> Any:
        if not isinstance(value, dict):
            return add_problem(path, "a table is expected", problems)
        problems += [Problem((*path, name), None) for name in value if name not in kinds]
        usable = _check_table_values(kinds, value, path, problems)
        if required:
            missing = [name for name in kinds if name not in value]
            if missing:
                return add_problem(path, f"{' and '.join(missing)} is missing", problems)
            if len(usable) < len(kinds):
                return UNUSABLE
        return make_value(**usable)

    return check


def _check_table_values(
    kinds: Mapping[str, Kind],
    table: Mapping[str, Any],
    path: tuple[str, ...],
    problems: list[Problem],
) -> dict[str, Any]:
    """Return the values of a table that the checks in `kinds` accept."""
    usable = {}
    for name, kind in kinds.items():
        if name in table:
            checked = kind(table[name], (*path, name), problems)
            if checked is not UNUSABLE:
                usable[name] = checked
    return usable

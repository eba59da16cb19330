"""Values of flags: parse text that users type, format values as text, check their type, range and
choices."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from workbench.model.errors import InputError
from workbench.model.flags import FlagKind, FlagSpec, FlagValue

_ON, _OFF = ("true", "on", "yes", "1"), ("false", "off", "no", "0")
# vLLM's own rule for sizes: small letters are powers of 1000 and may have decimals, capitals powers
# of 1024.
_DECIMAL = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}

_EXPECTED = {
    FlagKind.BOOL: "on or off",
    FlagKind.INT: "a whole number",
    FlagKind.FLOAT: "a number",
    FlagKind.JSON: "a JSON object or list",
    FlagKind.STR: "text",
}
_NUMBER_TYPES = {FlagKind.INT: (int,), FlagKind.FLOAT: (int, float)}


def parse_flag_value(spec: FlagSpec | None, text: str) -> FlagValue:
    """Return the value that the text of a user stands for, in the flag's type. Without a `spec`, as
    for an unknown flag, the type is guessed from the text. A list is written as words ("1 2 4") or
    as a JSON array. Raises InputError, which names the expected type.
    """
    if spec is None:
        return _guess_value_from_text(text)
    if not spec.repeatable:
        return _parse_scalar(spec, text)
    stripped = text.strip()
    if stripped.startswith("["):
        try:
            items = json.loads(stripped)
        except ValueError as error:
            raise InputError(f"--{spec.name}: {_format_json_problem(stripped, error)}") from None
        return [_parse_scalar(spec, i) if isinstance(i, str) else i for i in items]
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InputError(
            f"--{spec.name}: {str(error).lower()} in {text!r}", next_step="close the quote"
        ) from None
    if spec.kind in (FlagKind.INT, FlagKind.FLOAT):
        words = [*filter(None, ",".join(words).split(","))]
    return [_parse_scalar(spec, w) for w in words]


def parse_value_from_word(spec: FlagSpec | None, word: str) -> FlagValue:
    """Return the value that one word of a command line stands for, in the type of the flag or of
    one element of its list. Raises InputError, which names the expected type.
    """
    return _guess_value_from_text(word) if spec is None else _parse_scalar(spec, word)


def elements_of_value(value: FlagValue | None) -> list[FlagValue]:
    """Return the elements of a list. Any other value is the only element of the result."""
    return list(value) if isinstance(value, list | tuple) else [value]


def format_flag_value(value: FlagValue | None) -> str:
    """Return the value as text that users can type, "" for None. `parse_flag_value` turns the text
    of a valid value into the same value again."""
    if value is None:
        return ""
    if isinstance(value, list | tuple):
        return shlex.join(format_argument(v) for v in value)
    return format_argument(value)


def format_argument(value: FlagValue) -> str:
    """Return the value as one command-line argument. Objects and lists are written as compact
    JSON."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None or isinstance(value, dict | list | tuple):
        return json.dumps(
            value, separators=(",", ":"), ensure_ascii=False, default=str
        )  # TOML has dates, JSON does not
    return str(value)


def parse_human_int(text: str) -> int:
    """Parse a whole number with an optional unit: "4k" -> 4000, "4K" -> 4096, "1.5m" -> 1500000.
    Raises ValueError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmMgGtT])", text.strip())
    if not match:
        return int(text)
    number, unit = match.groups()
    if unit in _BINARY:
        if "." in number:
            raise ValueError(
                f"the unit {unit} (1024) needs a whole number; write "
                f"{number}{unit.lower()} for thousands"
            )
        return int(number) * _BINARY[unit]
    return int(float(number) * _DECIMAL[unit])


def find_type_problem(spec: FlagSpec, value: FlagValue) -> str | None:
    """Return why a value has the wrong type for the flag, such as "is 'x', expected a number". None
    if its type is right. A flag that takes a list also takes a single value."""
    if isinstance(value, list | tuple) and spec.kind != FlagKind.JSON:
        if not spec.repeatable:
            return f"accepts one value, not a list of {len(value)}"
        problems = (_find_scalar_type_problem(spec, one) for one in value)
        return next(filter(None, problems), None)
    return _find_scalar_type_problem(spec, value)


def find_range_problem(spec: FlagSpec, value: FlagValue) -> str | None:
    """Return why a number in `value` is outside the flag's range, such as "is 2, expected 0 to 1".
    None if all numbers are inside, and for values that are no numbers. The value must have the
    flag's type (`find_type_problem`)."""
    for number in elements_of_value(value):
        if isinstance(number, str) and spec.human_readable_int and number not in spec.words:
            number = parse_human_int(number)
        if type(number) not in (int, float):
            continue
        if isinstance(number, float) and not math.isfinite(number):
            return f"is {number}, expected a finite number"
        low, high = spec.minimum, spec.maximum
        if (low is not None and number < low) or (high is not None and number > high):
            return f"is {number}, expected {_range_text(low, high)}"
        if spec.multiple_of and number % spec.multiple_of:
            return f"is {number}, expected a multiple of {spec.multiple_of}"
    return None


def _range_text(low: float | None, high: float | None) -> str:
    if low is None:
        return f"at most {high:g}"
    if high is None:
        return f"at least {low:g}"
    return f"{low:g} to {high:g}"


def find_invalid_choice(spec: FlagSpec, value: FlagValue) -> str | None:
    """Return the first element of a value that is not among the flag's choices, as text. None if
    all are, if the flag has no choices, and for a JSON object."""
    if not spec.choices or isinstance(value, dict):
        return None
    items = elements_of_value(value)
    if isinstance(value, str) and spec.nargs == ",":
        items = [*value.split(",")]
    return next(
        (
            format_argument(i)
            for i in items
            if format_argument(switch_to_on_off_word(spec, i)) not in spec.choices
        ),
        None,
    )


def find_unlisted_value(spec: FlagSpec, value: FlagValue) -> str | None:
    """Return `value` if it is none of the flag's known words, and Workbench knows no other word for
    this flag (`words_are_all`). Otherwise None, also for every other flag. A newer engine or a
    plugin may accept the value all the same."""
    listed = spec.words_are_all and not spec.choices and not spec.repeatable
    if not listed or not isinstance(value, str) or value in spec.words:
        return None
    return value


def switch_to_on_off_word(spec: FlagSpec, value: FlagValue) -> FlagValue:
    """Return "on" or "off" for True or False if these two words are the flag's choices, as for
    --flash-attn of llama.cpp. Return any other value unchanged.
    """
    if isinstance(value, bool) and spec.is_on_off:
        return "on" if value else "off"
    return value


def parse_json_value(text: str) -> Any:
    """Parse a JSON object or list. Raises InputError with the position of a syntax error."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InputError(_format_json_problem(text, error)) from None
    if not isinstance(value, dict | list):
        raise InputError(f"{text!r} is not a JSON object or list")
    return value


def _format_json_problem(text: str, error: ValueError) -> str:
    if not isinstance(error, json.JSONDecodeError):
        return f"not JSON: {error}"
    near = text[max(0, error.pos - 12) : error.pos + 12].replace("\n", " ")
    return (
        f"not JSON: {error.msg.lower()} at line {error.lineno} column {error.colno}, near {near!r}"
    )


def _parse_scalar(spec: FlagSpec, text: str) -> FlagValue:
    stripped = text.strip()
    if stripped in spec.words_beside_type:
        return stripped
    try:
        match spec.kind:
            case FlagKind.BOOL:
                return _parse_boolean(stripped)
            case FlagKind.INT:
                return _require_64_bit_integer(int(_choose_number_parser(spec)(stripped)))
            case FlagKind.FLOAT:
                return float(stripped)
            case FlagKind.JSON:
                return parse_json_value(stripped)
            case FlagKind.STR:
                return text
    except InputError as error:
        why = error.message
    except ValueError:
        why = f"{text!r} is not {_format_expected_type(spec)}"
    raise InputError(f"--{spec.name}: {why}", next_step=f"give {_format_expected_type(spec)}")


def _require_64_bit_integer(value: int) -> int:
    if not -(2**63) <= value < 2**63:
        raise InputError(f"{value} does not fit in 64 bits")
    return value


def _format_expected_type(spec: FlagSpec) -> str:
    expected = [_EXPECTED[spec.kind]]
    if spec.kind == FlagKind.INT and spec.human_readable_int:
        expected = ["a whole number, or one like 4k (4000) or 4K (4096)"]
    return " or ".join((*expected, *spec.words_beside_type))


def _parse_boolean(text: str) -> bool:
    if text.lower() in _ON:
        return True
    if text.lower() in _OFF:
        return False
    raise ValueError(text)


def _guess_value_from_text(text: str) -> FlagValue:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for parse in (int, float):
        try:
            number = parse(text)
        except ValueError:
            continue
        return number if math.isfinite(number) and format_argument(number) == text.strip() else text
    if text.strip()[:1] in ("{", "["):
        with suppress(ValueError):
            return json.loads(text)
    return text


def _find_scalar_type_problem(spec: FlagSpec, value: FlagValue) -> str | None:
    if value in spec.words_beside_type:
        return None
    if spec.kind == FlagKind.JSON and isinstance(value, str):
        try:
            parse_json_value(value)
        except InputError as error:
            return f"is not valid: {error.message}"
        return None
    if _has_type_of_flag(spec, value):
        return None
    return f"is {format_argument(value)!r}, expected {_format_expected_type(spec)}"


def _has_type_of_flag(spec: FlagSpec, value: FlagValue) -> bool:
    match spec.kind:
        case FlagKind.BOOL:
            return isinstance(value, bool)
        case FlagKind.INT | FlagKind.FLOAT:
            return _is_number(spec, value)
        case FlagKind.JSON:
            return isinstance(value, dict | list | tuple)
        case FlagKind.STR:
            return spec.may_lack_value or not isinstance(value, bool)


def _is_number(spec: FlagSpec, value: FlagValue) -> bool:
    if isinstance(value, str):
        try:
            _choose_number_parser(spec)(value)
        except ValueError:
            return False
        return True
    return type(value) in _NUMBER_TYPES[spec.kind]


def _choose_number_parser(spec: FlagSpec) -> Callable[[str], float]:
    if spec.kind == FlagKind.FLOAT:
        return float
    if spec.human_readable_int:
        return parse_human_int
    return int

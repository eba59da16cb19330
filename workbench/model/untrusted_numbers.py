"""The gate for numbers from other programs: drivers, hosts, engines, and files of other users.

A foreign number can be NaN, infinite, negative, 1e308, true, a text, or an integer of 400 digits.
Foreign numbers enter Workbench through this module, as foreign texts enter through `clean_text` in
untrusted_text.py. An impossible number becomes absent with a reason. It is never replaced by
another number.

The unit at the end of a field's name decides which numbers are possible: `power_w` is in watts.

Workbench sends this module to hosts, so it uses only the standard library and Python 3.8.
"""

from __future__ import annotations

import json
from functools import lru_cache

TYPE_CHECKING = False  # typing is not imported on a host: it takes half a MiB
if TYPE_CHECKING:
    from typing import Any, TypeGuard

EXACT = 2**53  # larger integers are not exact as float
LAST_UNIX_S = 253_402_300_799  # the end of the year 9999, the last that a date can show
MOST_GPUS = 1024
MOST_COUNTED = 10_000_000  # requests or streams of one run, or tokens of one request
MOST_DIGITS = 18  # of a whole number in a text: all of them fit into 64 bits
MOST_CHARS = 64  # of a number in a text
_SHOWN_BITS = 64

# Unit at the end of a field's name, or the whole name -> (lowest, highest) possible number.
RANGES: dict[str, tuple[float, float]] = {
    "w": (0, 10_000),  # of one GPU
    "mhz": (0, 50_000),
    "pct": (0, 100),
    "fan_pct": (0, 1000),  # NVML: "may exceed 100% in certain cases"
    "c": (-55, 150),
    "j": (0, 1e13),  # 10 kW for 30 years
    "bytes": (0, 2**50),
    "kib": (0, 2**40),
    "mb_s": (0, 1e6),
    "gb_s": (0, 1e6),
    "mbit_s": (0, 1e9),
    "tok_s": (0, 1e9),
    "unix_s": (0, LAST_UNIX_S),
    "s": (0, 1e10),
    "ms": (0, 1e13),
    "us": (0, 1e16),
    "ns": (0, 2**63),
    "bits": (0, 2**20),
    "index": (0, MOST_GPUS - 1),
    "pid": (0, 2**31 - 1),
    "uid": (0, 2**32 - 1),
    "port": (0, 65_535),
    "exit_code": (-255, 2**31 - 1),
    "count": (0, EXACT),
    "load_1m": (0, 1e6),
    "pstate": (0, 15),
    "pcie_gen": (0, 15),
    "pcie_gen_max": (0, 15),
    "pcie_width": (0, 64),
    "pcie_width_max": (0, 64),
}
ANY: tuple[float, float] = (-EXACT, EXACT)  # for a number without a unit
_ANY_WHOLE: tuple[float, float] = (-(2**63), 2**63 - 1)


@lru_cache(maxsize=1024)
def range_of_field(field: str) -> tuple[float, float]:
    """Return the (lowest, highest) possible number for a field, from the unit in its name. ANY if
    the name has no unit."""
    while field:
        if field in RANGES:
            return RANGES[field]
        field = field.partition("_")[2]
    return ANY


def is_number(value: Any) -> TypeGuard[float]:
    """Return whether `value` is an integer or a float, also NaN. True and False are no numbers."""
    return type(value) in (int, float)


def why_number_is_impossible(value: Any, lowest: float, highest: float) -> str:
    """Return why `value` is no number from `lowest` to `highest`, as text for the user. "" if it is
    one."""
    if not is_number(value):
        return "not a number"
    if value != value:
        return "not a number (NaN)"
    if lowest <= value <= highest:
        return ""
    return f"an impossible number ({_value_text(value)})"


def _value_text(value: float) -> str:
    if isinstance(value, int) and value.bit_length() > _SHOWN_BITS:
        return f"an integer of {value.bit_length()} bits"
    return f"{value:.6g}"


def number_or_none(value: Any, lowest: float, highest: float) -> float | None:
    """Return `value` if it is a number from `lowest` to `highest`, otherwise None."""
    return None if why_number_is_impossible(value, lowest, highest) else value


def integer_or_none(value: Any, lowest: int, highest: int) -> int | None:
    """Return `value` if it is an integer from `lowest` to `highest`, otherwise None."""
    if type(value) is not int:
        return None
    return value if lowest <= value <= highest else None


def number_for_field(field: str, value: Any) -> float | None:
    """Return `value` if it is a possible number for the field, otherwise None. The unit in the
    field's name decides (RANGES)."""
    return number_or_none(value, *range_of_field(field))


def path_and_reason_of_impossible_number(data: Any, path: str = "") -> str:
    """Return the path of the first impossible number in JSON data, and why it is impossible, as one
    text: "summary.power_w: an impossible number (1e+308)". "" if there is none. `path` is the path
    of `data` itself. Only times have a range of their own, because the other numbers can be sums.
    """
    if isinstance(data, dict):
        prefix = f"{path}." if path else ""
        inner = (
            path_and_reason_of_impossible_number(data[name], f"{prefix}{name}") for name in data
        )
        return next(filter(None, inner), "")
    if isinstance(data, (list, tuple)):
        inner = (path_and_reason_of_impossible_number(value, path) for value in data)
        return next(filter(None, inner), "")
    if not is_number(data):
        return ""
    low, high = _ANY_WHOLE
    if path.endswith("unix_s"):
        low, high = range_of_field("unix_s")
    if isinstance(data, float):
        low, high = max(low, -EXACT), min(high, EXACT)
    why = why_number_is_impossible(data, low, high)
    if not why:
        return ""
    return f"{path}: {why}"


def replace_non_finite(data: Any) -> Any:
    """Return JSON data with None in place of NaN and infinite numbers, which JSON does not have."""
    if isinstance(data, float):
        return data if abs(data) < float("inf") else None
    if isinstance(data, dict):
        return {name: replace_non_finite(value) for name, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [replace_non_finite(value) for value in data]
    return data


def parse_strict_json(text: str | bytes) -> Any:
    """Parse a JSON document. Raises ValueError if it is not valid JSON, or if it contains NaN, an
    infinite number or an integer of more than MOST_DIGITS + 2 digits. A reader of many files of
    other users uses it: one such number would make the joined answer of all files unreadable."""
    return json.loads(
        text,
        parse_constant=_refuse_json_constant,
        parse_int=_parse_json_int,
        parse_float=_parse_json_float,
    )


def parser_error_message(error: ValueError) -> str:
    """Return the message of a parser's error for people: that of the error, except for a whole
    number of thousands of digits, about which Python's own message names a function of Python."""
    text = str(error)
    if "integer string conversion" in text:
        return "a number has thousands of digits"
    return text


def _refuse_json_constant(text: str) -> Any:
    """Raise ValueError that `text` is an impossible number."""
    raise ValueError(f"an impossible number ({text[:_SHOWN_BITS]})")


def _parse_json_int(text: str) -> Any:
    if len(text) > MOST_DIGITS + 2:
        _refuse_json_constant(text)
    return int(text)


def _parse_json_float(text: str) -> Any:
    value = float(text)
    if abs(value) == float("inf"):
        _refuse_json_constant(text)
    return value


def parse_decimal(text: str | None, lowest: float, highest: float) -> float | None:
    """Return the number that `text` has in decimal digits, which may have an exponent, if it is
    from `lowest` to `highest`, otherwise None."""
    if text is None or len(text) > MOST_CHARS or "_" in text or not text.isascii():
        return None
    try:
        value = float(text)
    except ValueError:
        return None
    if not lowest <= value <= highest:  # as for NaN
        return None
    return value


def parse_hexadecimal(text: str, digits: int = 16) -> int | None:
    """Return the number in `text` if that has only hexadecimal digits, at most `digits` of them;
    None for any other text."""
    if text.strip("0123456789abcdefABCDEF") or not 0 < len(text) <= digits:
        return None
    return int(text, 16)


def parse_whole_number(text: str | None, digits: int = MOST_DIGITS) -> int | None:
    """Return the number in `text` if that has only ASCII digits; None for any other text. A text
    with more than `digits` digits gives None, because Python raises an error for thousands of
    them."""
    if text is None or len(text) > digits:
        return None
    if not (text.isascii() and text.isdecimal()):
        return None
    return int(text)

"""One option of a launcher, and functions that check the value of an option."""

from __future__ import annotations

import re
from collections.abc import Callable

from workbench.model import untrusted_numbers
from workbench.model.errors import InputError
from workbench.model.lazy_dataclass import dataclass

_BREAK = re.compile(r"[\0\n\r]")


def stripped_single_line(text: str) -> str:
    """Return `text` without spaces at its ends. Raises InputError if it is empty or has several
    lines."""
    text = text.strip()
    if not text or _BREAK.search(text):
        raise InputError("expected one line of text, not empty")
    return text


def make_pattern_checker(pattern: str, expected: str) -> Callable[[str], str]:
    """Return a function that checks the value of an option. It returns the value without spaces at
    its ends if that matches all of `pattern`, and raises InputError otherwise. `expected` describes
    valid values in the error."""

    def check(text: str) -> str:
        if not re.fullmatch(pattern, text.strip()):
            raise InputError(f"expected {expected}, got {text[:60]!r}")
        return text.strip()

    return check


def make_whole_number_checker(least: int, most: int) -> Callable[[str], str]:
    """Return a function that checks the value of an option. It returns the value as a plain number
    if that is a whole number from `least` to `most`, and raises InputError otherwise."""

    def check(text: str) -> str:
        number = untrusted_numbers.parse_whole_number(text.strip())
        if number is None or not least <= number <= most:
            raise InputError(f"expected a whole number from {least} to {most}, got {text[:60]!r}")
        return str(number)

    return check


@dataclass(frozen=True, slots=True)
class RunOption:
    """An option of a launcher, as `--run-option NAME=VALUE` sets it. A repeatable option stores its
    values one per line.

    `foreign` warns the user what a preset from someone else could do with this option; "" if the
    option is harmless. `power` is a function: for a value of the option, it returns how this value
    lets the server control its host, as text, or "". Such a value always needs the user's --trust.
    """

    name: str
    help: str
    check: Callable[[str], str] = (
        stripped_single_line  # returns the value as it is kept; raises InputError
    )
    choices: tuple[str, ...] = ()
    default: str = ""
    repeatable: bool = False
    foreign: str = ""
    power: Callable[[str], str] = lambda value: ""

    def parse(self, text: str) -> str:
        """Return the checked value in the form in which a plan stores it. Raises InputError, which
        names the option, for an invalid value."""
        if self.choices:
            text = text.strip().lower()
            if text not in self.choices:
                raise InputError(
                    f"{self.name}: expected one of {', '.join(self.choices)}, got {text!r}"
                )
            return text
        try:
            return self.check(text)
        except InputError as error:
            raise InputError(f"{self.name}: {error.message}", next_step=error.next_step) from None

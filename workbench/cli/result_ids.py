"""Ids of results on the command line."""

from __future__ import annotations

import re

from workbench.model.errors import InputError

_MOST = 1000  # results in a group


def ids_of(text: str) -> tuple[int, ...]:
    """Return the ids of "7", "1-3" or "1,2,5-7", each once. Raises InputError."""
    found: list[int] = []
    for part in text.split(","):
        if not re.fullmatch(r"\s*[0-9]{1,18}(-[0-9]{1,18})?\s*", part):
            raise InputError(f"{text!r} is not a list of result ids", next_step="for example 7, 1-3 or 1,2,5-7")
        first, _, last = part.strip().partition("-")
        if not 0 <= int(last or first) - int(first) < _MOST:
            raise InputError(
                f"{part.strip()!r} is not a range of result ids",
                next_step=f"give the lower id first, and at most {_MOST} results",
            )
        found += range(int(first), int(last or first) + 1)
    return tuple(dict.fromkeys(found))

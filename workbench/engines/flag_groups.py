"""The groups of an engine's launch flags, such as "memory", and the few flags that most people set.

The data is in catalogs/groups.json. A flag belongs to the first group with a pattern that matches
its name. If no pattern matches, the section of the engine's own help that lists the flag decides
the group.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from workbench.engines.catalog_files import DIRECTORY
from workbench.model.flags import MOST_USED, FlagSpec


class _Table(NamedTuple):
    most_used: Mapping[str, int]  # flag -> place in the list, from 1
    patterns: tuple[tuple[str, re.Pattern[str]], ...]
    own: Mapping[str, str]  # the engine's own section -> group


@cache
def _load_flag_groups() -> dict[str, Any]:
    data: dict[str, Any] = json.loads((DIRECTORY / "groups.json").read_text("utf-8"))
    return data


@cache
def _load_engine_flag_table(engine: str) -> _Table:
    raw = _load_flag_groups()[engine]
    patterns = tuple((group, re.compile(pattern)) for group, pattern in raw["patterns"])
    return _Table(
        {name: place for place, name in enumerate(raw[MOST_USED], 1)}, patterns, raw["own"]
    )


def flag_group_names() -> tuple[str, ...]:
    """Return the names of all groups, in the order in which they are shown."""
    return tuple(_load_flag_groups()["groups"])


def group_name_of_flag(engine: str, name: str, help_section: str) -> str:
    """Return the group of the flag `name`: the first group with a pattern that matches the name. If
    no pattern matches, `help_section` decides, which is the section of the engine's own help that
    lists the flag."""
    table = _load_engine_flag_table(engine)
    of_section = table.own.get(help_section, flag_group_names()[-1])
    return next((group for group, pattern in table.patterns if pattern.search(name)), of_section)


def sort_key_of_flag(spec: FlagSpec | None) -> tuple[int, int]:
    """Return the sorting key of a flag in the list of all flags: the most used ones first, then
    group by group. None is a flag that the catalog does not know; such flags come last."""
    names = flag_group_names()
    if spec is None:
        return len(names) + 1, 0
    return (0, spec.most_used) if spec.most_used else (1 + names.index(spec.area), 0)


def rank_among_most_used_flags(engine: str, name: str) -> int:
    """Return the place of a flag in the list of the most used flags, from 1; 0 if it is not in that
    list."""
    return _load_engine_flag_table(engine).most_used.get(name, 0)

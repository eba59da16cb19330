"""The glossary: what the words of the screen mean. docs/GLOSSARY.md has the same terms."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import chain
from pathlib import Path

from workbench.model.distribution import PERCENTILES
from workbench.model.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Term:
    """One entry of the glossary. `term` contains its names, separated by commas, and `means` their
    meaning. `seen` contains further spellings that appear on the screen."""

    term: str
    means: str
    seen: tuple[str, ...] = ()

    @property
    def spellings(self) -> tuple[str, ...]:
        """Every spelling of the term, without an addition in parentheses such as "(of a
        preset)"."""
        return (*(name.partition(" (")[0].strip() for name in self.term.split(",")), *self.seen)


@cache
def read_all_terms() -> tuple[Term, ...]:
    """Return all terms in alphabetical order."""
    raw = json.loads(Path(__file__).with_name("glossary.json").read_text("utf-8"))
    return tuple(
        Term(
            _fill_in_percentiles(one["term"]),
            _fill_in_percentiles(one["means"]),
            tuple(one.get("seen", ())),
        )
        for one in raw
    )


def _fill_in_percentiles(text: str) -> str:
    """Return a text of the glossary's file with {percentiles} replaced by the names of the
    percentiles, and {needs} by the numbers of values that they need."""
    if "{" not in text:
        return text
    percentiles = PERCENTILES.values()
    titles = ", ".join(each.title for each in percentiles)
    needs = ", ".join(each.least_values_sentence for each in percentiles if each.least_values)
    return text.replace("{percentiles}", titles).replace("{needs}", needs)


def find_terms(word: str) -> tuple[Term, ...]:
    """Return the terms that `word` may mean; () if the glossary has none. Upper and lower case are
    ignored unless they distinguish two terms."""
    wanted = word.strip()
    for same in (lambda s: s == wanted, lambda s: s.lower() == wanted.lower()):
        found = tuple(term for term in read_all_terms() if any(map(same, term.spellings)))
        if found:
            return _replace_references(found)
    return ()


def terms_in_text(text: str) -> tuple[Term, ...]:
    """Return the terms whose spellings occur in `text`, in the order of their first occurrence."""
    first: dict[str, int] = {}
    for match in _spellings_pattern().finditer(text):
        first.setdefault(match[0], match.start())
    found: list[Term] = []
    for spelling in sorted(first, key=first.__getitem__):
        found += [term for term in read_all_terms() if spelling in term.spellings]
    return _replace_references(found)


def _replace_references(found: Iterable[Term]) -> tuple[Term, ...]:
    """Return the terms without duplicates. A term whose meaning is only a reference, such as "see
    *experiment*", is replaced by the term to which it refers."""
    return tuple(dict.fromkeys(chain.from_iterable(map(_targets_of_reference, found))))


def _targets_of_reference(term: Term) -> Iterator[Term]:
    name = re.fullmatch(r"see \*(.+)\*", term.means)
    if name is None:
        yield term
    else:
        yield from (one for one in read_all_terms() if name[1] in one.spellings)


@cache
def _spellings_pattern() -> re.Pattern[str]:
    every = set(chain.from_iterable(term.spellings for term in read_all_terms()))
    spellings = sorted(every, key=len, reverse=True)
    return re.compile(rf"(?<![\w/.-])(?:{'|'.join(map(re.escape, spellings))})(?![\w/-])")

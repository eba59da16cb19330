"""The blocks that a document consists of, such as headings and tables. All texts in them are plain;
each output format escapes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import TypeAlias

from workbench.model.findings import Level
from workbench.model.lazy_dataclass import dataclass

MARKS = ("", "good", "bad", "warning", "dim")  # formats with colours show them


class Wording(str):
    """A text of a table that has a shorter form for narrow screens. The shorter form may be empty
    if that of another column says the same."""

    short: str

    def __new__(cls, text: str, short: str) -> Wording:
        wording = super().__new__(cls, text)
        wording.short = short
        return wording


@dataclass(frozen=True, slots=True)
class Heading:
    text: str
    level: int = 2


@dataclass(frozen=True, slots=True)
class TextBlock:
    """A paragraph. `lead` is True for the sentence that states the report's outcome, which is shown
    larger. `mark` is one of MARKS."""

    text: str
    lead: bool = False
    mark: str = ""


@dataclass(frozen=True, slots=True)
class Alert:
    """A box with a warning. `kind` is "simulated", "rejected", "failed" or "warning"."""

    kind: str
    title: str
    lines: tuple[str, ...] = ()


SIMULATED = Alert("simulated", "SIMULATED", ("Values of a model, not of hardware.",))


def simulated_alert(simulated: bool) -> list[Block]:
    """Return the alert that values are simulated; [] if `simulated` is false."""
    return [SIMULATED] if simulated else []


@dataclass(frozen=True, slots=True)
class KeyMetrics:
    """The most important metrics, shown in large type. Each has a title, a value with its unit, and
    a detail."""

    items: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, slots=True)
class Table:
    """A table with a head row. `numeric` has the indices of the columns to align right. `marks` has
    one of MARKS for each row. `importance` has a number for each column: a narrow screen leaves out
    the columns with the highest numbers first, and none with 0.
    """

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: frozenset[int] = frozenset()
    marks: tuple[str, ...] = ()
    importance: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Facts:
    """A table of two columns, names and values, without a head row."""

    rows: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class CodeBlock:
    """A command or other text, shown in a fixed-width font."""

    text: str


@dataclass(frozen=True, slots=True)
class PlotBlock:
    """A plot as an SVG element. Formats that cannot show SVG leave it out."""

    svg: str
    caption: str


@dataclass(frozen=True, slots=True)
class Items:
    """A bulleted list."""

    lines: tuple[str, ...]


def bulleted_list(lines: Sequence[str]) -> list[Block]:
    """Return the bulleted list of `lines`; [] without any."""
    return [Items(tuple(lines))] if lines else []


@dataclass(frozen=True, slots=True)
class Fold:
    """A title with blocks below it that stay hidden until the reader opens them."""

    title: str
    blocks: Sequence[Block] = field(default=())


Block: TypeAlias = (
    Heading | TextBlock | Alert | KeyMetrics | Table | Facts | CodeBlock | PlotBlock | Items | Fold
)


@dataclass(frozen=True, slots=True)
class FindingBlock:
    """One finding with what belongs to it, such as evidence and the next step, as pairs (label,
    text). `number` is its place in a list, if the list has numbers."""

    level: Level
    text: str
    facts: tuple[tuple[str, str], ...] = ()
    number: int | None = None


ShownBlock: TypeAlias = Block | FindingBlock  # of commands and pages; documents have no findings


@dataclass(frozen=True, slots=True)
class Document:
    """A report for human readers: title, subtitle and blocks. `simulated` is True if any result is
    from a simulated host.
    """

    title: str
    subtitle: str
    blocks: tuple[Block, ...]
    simulated: bool

"""The blocks of a document, before a format renders them. All texts are plain: each format escapes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Heading:
    text: str
    level: int = 2


@dataclass(frozen=True, slots=True)
class TextBlock:
    """A paragraph. `lead` marks the one sentence that states the outcome."""

    text: str
    lead: bool = False


@dataclass(frozen=True, slots=True)
class Alert:
    """A warning in a box. `kind` is "simulated", "rejected" or "warning"."""

    kind: str
    title: str
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class KeyMetrics:
    """The most important metrics, in large type: (title, value with unit, detail)."""

    items: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, slots=True)
class Table:
    """A table with a head. The columns whose indices are in `numeric` are aligned to the right."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Facts:
    """A table of names and values, without a head."""

    rows: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class CodeBlock:
    """A command or another text in a fixed-width font."""

    text: str


@dataclass(frozen=True, slots=True)
class PlotBlock:
    """A plot as a complete SVG element. Formats that cannot show it leave the block out."""

    svg: str
    caption: str


@dataclass(frozen=True, slots=True)
class Items:
    """A bulleted list."""

    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Fold:
    """Details that are folded away until the reader opens them."""

    title: str
    blocks: Sequence[Block] = field(default=())


Block: TypeAlias = Heading | TextBlock | Alert | KeyMetrics | Table | Facts | CodeBlock | PlotBlock | Items | Fold


@dataclass(frozen=True, slots=True)
class Document:
    """A report for people: title, subtitle and blocks. `simulated` is for formats that mark it in their own place."""

    title: str
    subtitle: str
    blocks: tuple[Block, ...]
    simulated: bool

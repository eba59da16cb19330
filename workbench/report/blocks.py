"""What a report is made of, before it becomes Markdown or HTML. All texts are plain: the renderers escape them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Heading:
    text: str
    level: int = 2


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph; `lead` for the one sentence that a reader should take away."""

    text: str
    lead: bool = False


@dataclass(frozen=True, slots=True)
class Alert:
    """What a reader must not overlook. `kind`: "simulated", "refused" or "warning"."""

    kind: str
    title: str
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Figures:
    """The few that matter, large: (title, value with unit, detail)."""

    items: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, slots=True)
class Table:
    """`numeric`: columns that are aligned to the right."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Facts:
    """Names and values."""

    rows: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class CodeBlock:
    text: str


@dataclass(frozen=True, slots=True)
class PlotBlock:
    """`svg` is complete and stands for itself; Markdown shows the `caption` only."""

    svg: str
    caption: str


@dataclass(frozen=True, slots=True)
class Items:
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Fold:
    """What most readers need not open."""

    title: str
    blocks: Sequence[Block] = field(default=())


Block: TypeAlias = Heading | Text | Alert | Figures | Table | Facts | CodeBlock | PlotBlock | Items | Fold


@dataclass(frozen=True, slots=True)
class Document:
    title: str
    subtitle: str
    blocks: tuple[Block, ...]
    simulated: bool

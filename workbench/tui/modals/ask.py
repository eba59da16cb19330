"""Questions before something that cannot be taken back, and the one on leaving."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.widget import Widget

from workbench.session.state import SessionState
from workbench.tui.cells import Row, pad, paragraph
from workbench.tui.formats import alteration_texts
from workbench.tui.glyphs import G
from workbench.tui.modals.base import Choices, Modal, TextBody
from workbench.tui.widgets.pick_list import PickList

if TYPE_CHECKING:
    from workbench.model.settings import SettingOutcome


class Confirm(Modal[bool]):
    """Yes or no. Where something is lost, `default` is no."""

    def __init__(
        self,
        title: str,
        make: Callable[[int], list[Row]],
        *,
        yes: str,
        no: str = "cancel",
        default: bool = False,
        wide: bool = False,
    ) -> None:
        super().__init__(title, "enter choose   y yes   n no   esc cancel")
        self.make, self.yes, self.no, self.default = make, yes, no, default
        self.set_class(wide, "-wide")

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", show=False),
        Binding("n", "answer(False)", show=False),
    ]
    AUTO_FOCUS = "Choices"

    def content(self) -> Sequence[Widget]:
        items = [("yes", self.yes, "text"), ("no", self.no, "text")]
        chosen = "yes" if self.default else "no"
        return (
            TextBody(lambda w: [*self.make(w), ()], reserve=3),
            Choices(items, lambda c: self.action_answer(c == "yes"), chosen),
        )

    def action_answer(self, answer: bool) -> None:
        self.dismiss(answer)


class Foreign(Modal[str]):
    """What is to become of settings that someone else has changed since Workbench made them. Outcome: "keep", "ours",
    "original"; None: nothing is done."""

    def __init__(self, outcomes: Sequence[SettingOutcome]) -> None:
        super().__init__("Someone else has changed this", "enter choose   esc leave all as it is")
        self.outcomes = outcomes

    AUTO_FOCUS = "Choices"

    def content(self) -> Sequence[Widget]:
        items = [
            ("keep", "keep what they set, and forget ours", "text"),
            ("ours", "set ours again", "text"),
            ("original", "give back what was there before Workbench", "text"),
        ]
        return (TextBody(lambda w: [*self._text(w), ()], reserve=4), Choices(items, self.action_choose))

    def action_choose(self, choice: str) -> None:
        self.dismiss(choice)

    def _text(self, width: int) -> list[Row]:
        said = [f"{o.command.where} {o.command.setting}: {o.message}" for o in self.outcomes]
        return [row for text in said for row in paragraph(text, width)]


class _Toggles(PickList):
    """Rows of label and two options; space or left/right changes the option under the cursor."""

    GROUND = "box"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("left,right,space", "change", show=False)]

    def __init__(self, items: list[tuple[str, str, tuple[str, str]]]) -> None:
        super().__init__()
        self.items = items
        self.second = dict.fromkeys((i[0] for i in items), False)

    def key_of(self, item: Any) -> Hashable:
        return str(item[0])

    def item_row(self, item: Any, width: int) -> Row:
        options = [f"[{o}]" if (n == 1) is self.second[item[0]] else f" {o} " for n, o in enumerate(item[2])]
        return ((f" {pad(item[1], 24)}{options[0]}  {options[1]}", "text"),)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(self.items)

    def action_change(self) -> None:
        if self.current is not None:
            self.second[self.current[0]] = not self.second[self.current[0]]
            self.repaint()


class Quit(Modal[dict[str, bool]]):
    """What to leave behind: altered GPUs are put back and servers keep running, unless told otherwise.

    Outcome: {"keep": GPU settings are left on, "stop": the server is stopped}; None: stay.
    """

    def __init__(self, state: SessionState, alive: str | None) -> None:
        super().__init__("Leave Workbench", "enter leave   left/right change   esc stay")
        self.state = state
        items: list[tuple[str, str, tuple[str, str]]] = []
        if state.alterations:
            items.append(("keep", "GPU settings", ("revert", "leave on")))
        if alive:
            items.append(("stop", f"server {alive}", ("leave running", "stop")))
        self.toggles = _Toggles(items)

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter,q", "accept", show=False)]

    def content(self) -> Sequence[Widget]:
        return (TextBody(self._text, focusable=False), self.toggles)

    def _text(self, width: int) -> list[Row]:
        rows: list[Row] = []
        for gpus, now, before in alteration_texts(self.state.alterations):
            rows += paragraph(f"{G.alert} {gpus}: {now}, was {before}", width, "warn")
        if self.state.bench.running:
            rows += paragraph("! a benchmark is running: it ends with the screen, its result is lost", width, "warn")
        for name, one in (("experiment", self.state.experiment), ("sweep", self.state.sweep)):
            if one is not None and one.state == "running":
                rows += paragraph(f"! {name} {one.id} is running: what it has is kept", width, "warn")
        return [*rows, ()] if rows else []

    def action_accept(self) -> None:
        self.dismiss({"keep": self.toggles.second.get("keep", False), "stop": self.toggles.second.get("stop", False)})

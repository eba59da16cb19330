"""Questions before actions that cannot be undone, and the question on leaving: which servers keep
running, and which GPU settings stay altered."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, ClassVar, TypeVar

from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.widget import Widget

from workbench.model.unconfirmed_changes import split_altered_and_begun_changes
from workbench.session.state import SessionState
from workbench.tui.cells import Row, RowMaker, pad_text, paragraph_rows
from workbench.tui.formats import alteration_gpus_now_and_before, setting_label
from workbench.tui.glyphs import G
from workbench.tui.modals.base import Choice, Modal, Text, TextThenChoices
from workbench.tui.widgets.pick_list import PickList

if TYPE_CHECKING:
    from workbench.model.setting_records import SettingOutcome

T = TypeVar("T")
Switch = tuple[str, str, tuple[str, str]]  # name, label, its two options


class Question(TextThenChoices[T]):
    """A box with a text and a list of choices. `outcome` is a function that gets the name of the
    chosen item and returns the value with which the box closes."""

    def __init__(
        self,
        title: str,
        make_text_rows: RowMaker,
        items: Sequence[Choice],
        outcome: Callable[[str], T],
        *,
        keys: str,
        chosen: str = "",
        wide: bool = False,
    ) -> None:
        super().__init__(title, keys, wide=wide)
        self.make_text_rows, self.items, self.outcome, self.chosen = (
            make_text_rows,
            items,
            outcome,
            chosen,
        )

    def make_widgets(self) -> Sequence[Widget]:
        body = self.make_text(lambda w: [*self.make_text_rows(w), ()], len(self.items) + 1)
        return (body, self.make_choices(self.items, self._close, self.chosen))

    def action_choose(self, choice: str) -> None:
        self._choose_or_scroll(choice)

    def _close(self, choice_name: str) -> None:
        self.dismiss(self.outcome(choice_name))


class Confirm(Question[bool]):
    """A question that closes with True for yes, False for no, and None for escape. Before the end
    of the text was visible, yes only scrolls on. With `default`, the cursor begins on yes,
    otherwise on no."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "choose('yes')", show=False),
        Binding("n", "choose('no')", show=False),
    ]
    agreement = "yes"

    def __init__(
        self,
        title: str,
        make: RowMaker,
        *,
        yes: str,
        no: str = "cancel",
        default: bool = False,
        wide: bool = False,
    ) -> None:
        super().__init__(
            title,
            make,
            [("yes", yes, "text"), ("no", no, "text")],
            lambda choice: choice == "yes",
            keys="enter choose   y yes   n no   esc cancel",
            chosen="yes" if default else "no",
            wide=wide,
        )


def externally_changed_settings_question(outcomes: Sequence[SettingOutcome]) -> Question[str]:
    """Return the question what to do about settings that another user or program has changed since
    Workbench applied them.

    The outcome is "keep" (keep the other values), "ours" (set Workbench's values again)
    or "original" (restore the values from before Workbench).
    """

    def make_text_rows(width: int) -> list[Row]:
        rows: list[Row] = []
        for o in outcomes:
            setting = f"{o.command.gpu_or_host_name} {setting_label(o.command.setting)}"
            rows += paragraph_rows(f"{setting}: {o.message}", width)
        return rows

    items = [
        ("keep", "keep their value, and forget Workbench's", "text"),
        ("ours", "set Workbench's value again", "text"),
        ("original", "restore the value from before Workbench", "text"),
    ]
    title = "Someone else has changed these settings"
    keys = "enter choose   esc leave everything as it is"
    return Question(title, make_text_rows, items, str, keys=keys)


def concurrent_measurement_question(occupied_error: Exception) -> Confirm:
    """Return the question whether to measure although somebody else measures on this host.
    `occupied_error` is the error that says who that is."""
    message = getattr(occupied_error, "message", str(occupied_error))

    def make_text_rows(width: int) -> list[Row]:
        rows = paragraph_rows(f"{G.alert} {message}", width, "warnb", "  ")
        said = "Both measurements disturb each other. Your result says that it was disturbed."
        return [*rows, *paragraph_rows(said, width)]

    return Confirm(
        "This host is being measured", make_text_rows, yes="measure anyway", no="do not measure"
    )


def running_series_warning_rows(state: SessionState, width: int) -> list[Row]:
    """Return a warning for the running experiment, sweep or benchmark, which would end when the
    server restarts or Workbench leaves the host. Return [] if none is running."""
    rows: list[Row] = []
    for series in state.running_series:
        name = series.kind_noun
        text = (
            f"! {name} {series.id} is running: this ends the {name}, and its complete runs are kept"
        )
        rows += paragraph_rows(text, width, "warn")
    return rows or running_bench_warning_rows(state, width)


def leaving_warning_rows(state: SessionState, width: int) -> list[Row]:
    """Return warnings about everything that would end when Workbench leaves the host: the running
    measurement, and work on model files. Return [] if nothing is running."""
    rows, work = running_series_warning_rows(state, width), state.host.model_work
    if work is not None:
        text = f"! {work.what} is not finished: leaving ends it, and begun again it goes on"
        rows += paragraph_rows(text, width, "warn", "  ")
    return rows


def running_bench_warning_rows(state: SessionState, width: int) -> list[Row]:
    """Return a warning about the running benchmark; [] if none is running."""
    if not state.bench.running:
        return []
    text = (
        "! a benchmark is running: this ends the benchmark, and what it has measured is kept as a "
        "partial result"
    )
    return paragraph_rows(text, width, "warn", "  ")


class _Switches(PickList):
    """A list of switches. Each row has a label and two options, of which one is chosen. The space,
    left and right keys choose the other option in the row under the cursor."""

    GROUND = "box"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("left,right,space", "change", show=False)]

    def __init__(self, items: list[Switch]) -> None:
        super().__init__()
        self.items = items
        # whether the second option is chosen
        self.second = dict.fromkeys((i[0] for i in items), False)

    def item_key(self, item: Switch) -> Hashable:
        return str(item[0])

    def item_row(self, item: Switch, width: int) -> Row:
        name, label, (first, second) = item
        shown = f"[{first}]   {second} "
        if self.second[name]:
            shown = f" {first}   [{second}]"
        return ((f" {pad_text(label, 24)}{shown}", "text"),)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(self.items)

    def action_change(self) -> None:
        if self.current_item is not None:
            self.second[self.current_item[0]] = not self.second[self.current_item[0]]
            self.repaint()


class Quit(Modal[dict[str, bool]]):
    """The question whether to keep the altered GPU settings and to stop the server when the user
    leaves Workbench.

    The box closes with a dict of two booleans: "keep" leaves the GPU settings altered, and "stop"
    stops the server. It closes with None if the user stays.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter,q", "accept", show=False)]

    def __init__(self, state: SessionState, server: str | None) -> None:
        """`server` is the name of the running server; None if no server runs."""
        super().__init__("Leave Workbench", "enter leave   left/right change   esc stay")
        self.state = state
        items: list[Switch] = []
        if state.alterations:
            items.append(("keep", "GPU settings", ("revert", "leave on")))
        if server:
            items.append(("stop", f"server {server}", ("leave running", "stop")))
        self.toggles = _Switches(items)

    def make_widgets(self) -> Sequence[Widget]:
        return (Text(self._warning_rows), self.toggles)

    def _warning_rows(self, width: int) -> list[Row]:
        rows: list[Row] = []
        altered, begun = split_altered_and_begun_changes(
            self.state.alterations, self.state.telemetry
        )
        for gpus, now, before in alteration_gpus_now_and_before(altered):
            rows += paragraph_rows(f"{G.alert} {gpus}: {now}, was {before}", width, "warn")
        for change, outcome in begun:
            ((gpus, now, _),) = alteration_gpus_now_and_before([change])
            rows += paragraph_rows(f"{G.alert} {gpus}: {now} {outcome}", width, "warn")
        rows += leaving_warning_rows(self.state, width)
        if rows:
            rows.append(())
        return rows

    def action_accept(self) -> None:
        self.dismiss({name: self.toggles.second.get(name, False) for name in ("keep", "stop")})

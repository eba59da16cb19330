"""The rows of the page about alerts: each rule with its state, what it does, and the last
alerts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from workbench.model.alerts import END
from workbench.tui.cells import Row, cut_text, labelled_paragraph, pad_text_with_gap, paragraph_rows
from workbench.tui.formats import NA, duration_text, enclose_nonempty_text, time_of_day_or_date_text
from workbench.tui.glyphs import G

if TYPE_CHECKING:
    from workbench.model.alerts import Alert, RuleView

_NAME_CELLS, _LEAST_STATE, _EFFECT_CELLS = 19, 40, 34
# sign and role of a state
_SIGNS = {
    "active": (G.alert, "warnb"),
    "pending": ("~", "warn"),
    "ended": (G.off, "text"),
    "happened": (G.dot, "text"),
    "quiet": (" ", "text"),
}
_OR = {True: "or more", False: "or less"}  # by whether a high value begins the alert
_HINT = "a turns the bell, the mark and the title on; [alerts] of config.toml sets each rule"


def alerts_page_rows(
    rules: Sequence[RuleView], alerts: Sequence[Alert], notes: Iterable[str], width: int
) -> list[Row]:
    """Return the rows of the page about alerts. `notes` say why alerts do not arrive as they are
    configured."""
    rows: list[Row] = []
    for note in notes:
        rows += paragraph_rows(note, width, "warn", "  ")
    on, off = [], []
    for view in rules:
        if view.effects:
            on.append(view)
        else:
            off.append(view.rule.name)
    if all(view.rule.limits is None for view in on):
        rows += paragraph_rows(_HINT, width, "dim")
    if on:
        rows += [_rule_table_row(" ", "head", "rule", "state", "effects", width)]
    rows += [_rule_row(view, width) for view in sorted(on, key=_rule_sort_key)]
    if off:
        rows += labelled_paragraph("  off: ", ", ".join(off), width, "dim")
    rows += [(), (("Last alerts, newest first", "title"),)]
    if not alerts:
        rows += paragraph_rows("none since this screen opened", width, "dim", "  ")
    times = [time_of_day_or_date_text(alert.unix_s) for alert in alerts]
    cells = max(map(len, times), default=0) + 2
    for alert, at in zip(reversed(alerts), reversed(times), strict=True):
        role = "text"
        if alert.phase == END:
            role = "dim"
        rows += labelled_paragraph(pad_text_with_gap(at, cells), alert.text, width, role)
    return [*rows, (), *_rule_meaning_rows(rules, width)]


def _rule_sort_key(view: RuleView) -> int:
    """Return the sort key of a rule in the table: what is wrong now comes first."""
    return {"active": 0, "pending": 1}.get(view.state, 2)


def _rule_row(view: RuleView, width: int) -> Row:
    sign, role = _SIGNS.get(view.state, (" ", "dim"))
    return _rule_table_row(
        sign, role, view.rule.name, rule_state_text(view), " ".join(view.effects), width
    )


def _rule_table_row(
    state_sign: str, state_role: str, name: str, state: str, effects_text: str, width: int
) -> Row:
    """Return a row of the table of rules. A narrow row has no effects; the rows with the meanings
    of the rules name them too."""
    room = width - 2 - _NAME_CELLS - _EFFECT_CELLS
    first: Row = (
        (f"{state_sign} ", state_role),
        (pad_text_with_gap(name, _NAME_CELLS), state_role),
    )
    if room < _LEAST_STATE:
        return (*first, (cut_text(state, max(1, width - 2 - _NAME_CELLS)), state_role))
    return (
        *first,
        (pad_text_with_gap(state, room), state_role),
        (cut_text(effects_text, _EFFECT_CELLS), "dim"),
    )


def rule_state_text(view: RuleView) -> str:
    """Return the state of a rule in words, such as "active for 12s: GPU0-3 91 %"."""
    value = view.rule.value_text(view.value)
    what = " ".join(filter(None, (view.where, value)))
    ago = duration_text(view.since_s or 0.0)
    needed = ""
    if view.limits is not None:
        needed = f" of {duration_text(view.limits.for_s)}"
    states = {
        "pending": f"pending for {ago}{needed}",
        "active": f"active for {ago}",
        "ended": f"ended {ago} ago",
        "quiet": "quiet",
    }
    if view.state in states:
        return states[view.state] + enclose_nonempty_text(": ", what)
    if view.state == "happened":
        return f"last {ago} ago"
    if view.rule.limits is not None:
        return f"{NA}: needs {view.rule.needs}"
    # not "has not happened": the rule may have been off then
    return "not among the last alerts"


def _rule_meaning_rows(rules: Sequence[RuleView], width: int) -> Iterator[Row]:
    """Yield rows that say what each rule is about, with its thresholds."""
    yield (("Rules", "title"),)
    for view in rules:
        text = _rule_meaning_text(view)
        if view.effects:
            text += f" ({', '.join(view.effects)})"
        name = pad_text_with_gap(f"  {view.rule.name}", _NAME_CELLS + 2)
        yield from labelled_paragraph(name, text, width, "dim", "text")


def _rule_meaning_text(view: RuleView) -> str:
    limits, rule = view.limits, view.rule
    if limits is None:
        return rule.title
    begins, ends = rule.title, ""
    if rule.unit:
        begins += f": begins at {limits.begin:g} {rule.unit} {_OR[limits.high_value_starts_alert]}"
        ends = f", ends at {limits.end:g} {rule.unit}"
    if limits.for_s:
        begins += f" for {duration_text(limits.for_s)}"
    return begins + ends

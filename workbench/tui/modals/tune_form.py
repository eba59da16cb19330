"""The form of a tune: its goal, its limits, and how much it may take."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from workbench.model.errors import InputError
from workbench.model.tune import GOALS, parse_tune_limits
from workbench.tui.cells import Row, paragraph_rows
from workbench.tui.modals.form import (
    Field,
    Form,
    Values,
    fill_fields_with_last_values,
    parse_positive_number,
    parse_whole_number,
)

STARTS = 30


class RequestedTune(NamedTuple):
    goal: str
    limits: str
    starts: int
    max_minutes: float | None


def parse_tune_form(values: Values) -> RequestedTune:
    """Return the goal, the limits and the allowed effort from the texts in the form. Raise
    InputError for an invalid field."""
    try:
        parse_tune_limits(values["limits"])
    except InputError as error:
        raise InputError(f"limits: {error.message}") from None
    hours, max_minutes = parse_positive_number(values, "hours", "hours", "h"), None
    if hours is not None:
        max_minutes = 60 * hours
    starts = parse_whole_number(values, "starts", "starts", 1)
    return RequestedTune(values["goal"], values["limits"], starts, max_minutes)


def tune_form(
    load_text: str,
    last_values: Mapping[str, str],
    submit: Callable[[Values], Awaitable[None]],
) -> Form:
    """Return the form of a new tune. `load_text` has the load of each run in words, and
    `last_values` the texts of the fields when the form was last accepted. `submit` checks the tune,
    which may take a second."""
    fields = (
        Field("goal", "goal", "tok_s", "left and right change it", tuple(GOALS)),
        Field("limits", "limits", "", wide=True),
        Field("starts", "starts", str(STARTS), "at most so many servers are started"),
        Field("hours", "hours", "", "empty: no limit of the time"),
    )

    def make_summary_rows(values: Values, width: int) -> list[Row]:
        parse_tune_form(values)
        text = (
            f"Each run is {load_text}. Limits are such as ttft<=500@p95, power<=400, temp<=83, kld<=0.001: "
            "what breaks one is out, whatever its speed. Next you see the candidates, and nothing "
            "starts before you agree."
        )
        return paragraph_rows(text, width, "dim", "  ")

    return Form(
        "Tune",
        fill_fields_with_last_values(fields, last_values),
        check=parse_tune_form,
        make_summary=make_summary_rows,
        accept="plan",
        label_cells=10,
        entry_cells=24,
        wide=True,
        submit=submit,
        doing="looking for candidates   esc cancel",
    )

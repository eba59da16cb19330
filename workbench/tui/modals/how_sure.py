"""The question before a quick A/B experiment: how many pairs of runs, or how narrow a confidence
interval, the user wants."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from workbench.model.experiment import SHOWS_PCT, Arm
from workbench.tui.cells import Row, pad_text, stack_paragraphs
from workbench.tui.formats import duration_text
from workbench.tui.glyphs import G
from workbench.tui.modals.ask import Question
from workbench.tui.modals.base import Choice
from workbench.tui.widgets.experiment import arm_rows

UNTIL_PCT = 2.0
# answer -> its words, options, what it can show
ANSWERS: Mapping[str, tuple[str, Mapping[str, Any], str]] = {
    "one": ("one pair now", {"pairs": 1}, "shows a change, no interval"),
    "three": ("3 pairs", {"pairs": 3}, f"shows a difference of {SHOWS_PCT[3]:g} % or more"),
    "until": (f"until {G.plus_minus} {UNTIL_PCT:g} %", {"until_pct": UNTIL_PCT}, "5 to 16 pairs"),
}
FORM, SHOW = "form", "show"  # answers that start nothing


def experiment_precision_question(
    a: Arm,
    b: Arm,
    run_sentences: Sequence[str],
    estimate_s: Callable[[Mapping[str, Any]], float | None],
    earlier_experiment_id: int | None,
) -> Question[str]:
    """Return the question how precisely to compare A and B. It closes with the name of the answer:
    a key of ANSWERS (start with that precision), FORM (open the form with all options) or SHOW
    (show the experiment `earlier_experiment_id`). `run_sentences` are sentences about the runs, and
    `estimate_s` returns the duration in seconds for options of an experiment, None if unknown."""

    def make_text_rows(width: int) -> list[Row]:
        lines = list(run_sentences)
        if known["one"] is None:
            lines.append("The time is known after a first benchmark of this load.")
        rows = arm_rows(a, b, width, "as it is now")
        return [*rows, (), *stack_paragraphs(lines, width, "dim")]

    known = {name: estimate_s(options) for name, (_, options, _) in ANSWERS.items()}

    def format_answer(name: str) -> str:
        (words, _, shows), seconds = ANSWERS[name], known[name]
        time = "" if seconds is None else pad_text(f"about {duration_text(seconds)}", 15)
        return f"{pad_text(words, 14)}{time}  {shows}"

    items: list[Choice] = [(name, format_answer(name), "text") for name in ANSWERS]
    items.append((FORM, "more choices: A and B, metric, number of pairs", "dim"))
    if earlier_experiment_id is not None:
        items.append((SHOW, f"show experiment {earlier_experiment_id} instead", "dim"))
    return Question(
        "A/B: how sure?",
        make_text_rows,
        items,
        str,
        keys="enter start   up/down choose   esc cancel",
        wide=True,
    )

"""The rows below the panes while a server runs: its command and its flags. Flags that the user
changed come first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from workbench.model.flags import Origin
from workbench.model.server_run import ServerState
from workbench.tui.cells import Row, Run, cut_text, justify_row, row_width, width_of
from workbench.tui.formats import flag_value_text, path_end_text
from workbench.tui.glyphs import G

if TYPE_CHECKING:
    from workbench.model.flags import FlagRow
    from workbench.session.session import Session
    from workbench.session.state import SessionState

_VALUE_CELLS = 24  # of a value; v shows all of it
_MODEL_CELLS = 28
_MORE_CELLS = 9  # " +12 more"
_PARALLEL = "parallel-size"  # ends the names whose short spellings every user knows, such as "tp"


def served_plan_state(session: Session, state: SessionState) -> str:
    """Return "starting" or "running" if the selected server has a known plan and is not stopping;
    "" otherwise."""
    server = state.server
    if server is None or server.state is ServerState.STOPPING:
        return ""
    if session.servers.running_plan() is None:
        return ""
    if server.state is ServerState.STARTING:
        return "starting"
    return "running"


def flag_texts(flags: Sequence[FlagRow], *, short: bool = False) -> list[Run]:
    """Return each flag as one text such as "max-num-seqs=8", with its role. A flag that the plan no
    longer has stands there with the word "default". With `short`, the parallel sizes have the
    engine's own short names, such as "tp=4"."""
    runs = []
    for flag in flags:
        name, role = flag.name, "text"
        if short:
            name = _short_flag_name(flag)
        if flag.origin is Origin.EDITED:
            role = "goodb"
        runs.append((f"{name}={_flag_value_text(flag)}", role))
    return runs


def running_command_rows(
    command: str,
    model: str,
    state_sign: Run,
    flags: Sequence[FlagRow],
    end_variants: Sequence[Row],
    width: int,
) -> list[Row]:
    """Return two rows of `width` cells: the command, `state_sign`, and as many of the flags, at
    least one, as fit, then the number of the others. `end_variants` are the forms of the end of the
    second row, the widest one first. Names and command are shortened before a flag is left out, and
    the name of `model` stays."""
    heads = _short_commands_longest_first(command, model, width // 2)
    beside = f"$ {command}{state_sign[0]} {flag_texts(flags)[0][0]}"
    if width_of(beside) <= width:
        heads.insert(0, command)
    starts = [[(("$ ", "strong"), (head, "text"), state_sign), ()] for head in heads]
    return _first_fitting_or_last_rows(starts, flags, end_variants, width)


def _short_commands_longest_first(command: str, model: str, width: int) -> list[str]:
    """Return short forms of `command`, the longest one first. Each names `model`, of a path the
    last part: in full in the first ones, which have at most `width` cells, and else its end."""
    name = model.rstrip("/").rpartition("/")[2]
    words = command.split(" ")[:2]
    program = " ".join(word for word in words if not word.startswith("-"))
    forms = [_cut_at_word(command, width), f"{program} {G.more} {name}", f"{G.more} {name}"]
    fitting = [form for form in forms if name in form and width_of(form) <= width]
    return [*fitting, f"{G.more} {path_end_text(name, _MODEL_CELLS)}"]


def running_flags_row(
    state_sign: Run, flags: Sequence[FlagRow], end_variants: Sequence[Row], width: int
) -> Row:
    """Return one row of `width` cells: `state_sign`, and as many flags as fit, then the number of
    the others and the end of the row."""
    return _first_fitting_or_last_rows([[(state_sign,)]], flags, end_variants, width)[0]


def _first_fitting_or_last_rows(
    start_variants: Sequence[Sequence[Row]],
    flags: Sequence[FlagRow],
    end_variants: Sequence[Row],
    width: int,
) -> list[Row]:
    """Return the rows in their first form that has room for all flags. If none has, return the last
    form with as many flags as fit. `start_variants` are the beginnings of the rows, the widest ones
    first."""
    rows: list[Row] = []
    for start in start_variants:
        for short in (False, True):
            for end in end_variants:
                rows, left = _fill_rows_and_count_omitted(
                    start, flag_texts(flags, short=short), end, width
                )
                if not left:
                    return rows
    return rows


def _fill_rows_and_count_omitted(
    row_starts: Sequence[Row], flags: Sequence[Run], row_end: Row, width: int
) -> tuple[list[Row], int]:
    """Return the rows with the flags `flags`, of which the last one ends with `row_end`, and how
    many flags have no room."""
    *upper, last = row_starts
    rest = list(flags)
    rows = [_move_fitting_runs_to_row(start, rest, width) for start in upper]
    row = _move_fitting_runs_to_row(last, rest, width - row_width(row_end), _MORE_CELLS)
    if rest:
        row = (*row, (f" +{len(rest)} more", "dim"))
    return [*rows, justify_row(row, row_end, width)], len(rest)


def _move_fitting_runs_to_row(
    start: Row, rest: list[Run], width: int, reserved_cells: int = 0
) -> Row:
    """Return the row `start` with as many runs of `rest` as fit into `width` cells, and take them
    out of `rest`. Behind a run that is not the last one there is room for `reserved_cells`
    cells."""
    row = [*start]
    room = width - row_width(row)
    while rest:
        text, role = rest[0]
        needed = width_of(text) + 1
        if len(rest) > 1:
            needed += reserved_cells
        if needed > room:
            break
        row.append((f" {text}", role))
        room -= width_of(text) + 1
        rest.pop(0)
    return tuple(row)


def _cut_at_word(text: str, width: int) -> str:
    """Return `text` if it fits into `width` cells, otherwise as many whole words of it as fit, and
    "…"."""
    if width_of(text) <= width:
        return text
    kept = cut_text(text, width - 1).removesuffix(G.more)
    whole = kept.rpartition(" ")[0]
    return f"{whole or kept} {G.more}"


def _short_flag_name(flag: FlagRow) -> str:
    if flag.spec is None or not flag.name.endswith(_PARALLEL):
        return flag.name
    return next(iter(flag.spec.aliases), flag.name).lstrip("-")


def _flag_value_text(flag: FlagRow) -> str:
    if flag.value is None:
        return "default"
    return cut_text(flag_value_text(flag.value), _VALUE_CELLS)

"""The command `runs prune`, which removes the directories of runs that have ended."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING, Any

from workbench.cli.open_session import connect_session
from workbench.cli.output import print_json, print_line, print_message
from workbench.cli.questions import require_confirmation
from workbench.cli.registry import command, option
from workbench.cli.shared_options import YES
from workbench.model.counts import count_of
from workbench.model.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workbench.server.old_runs import EndedRun

_AGE_S = {"h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
_SIZE_KIB = {"M": 1024.0, "G": 1024.0**2, "T": 1024.0**3}


def _make_age_or_size_parser(units: dict[str, float], example: str) -> Any:
    """Return a parser of a number with a unit, such as "7d". `units` maps each unit to its factor;
    `example` is a valid text for the error message."""

    def parse(text: str) -> float:
        found = re.fullmatch(f"([0-9]+(?:\\.[0-9]+)?)([{''.join(units)}])", text)
        if found is None:
            names = ", ".join(units)
            raise argparse.ArgumentTypeError(
                f"{text!r} is not a number with a unit ({names}), for example {example}"
            )
        return float(found[1]) * units[found[2]]

    return parse


@command(
    "runs prune",
    "remove the logs and plans of runs that have ended; running servers and unread failures stay",
    option(
        "--older-than AGE",
        "remove runs that ended longer ago, for example 12h, 30d or 8w",
        _make_age_or_size_parser(_AGE_S, "30d"),
    ),
    option("--keep N", "keep the newest N ended runs and remove the others", int),
    option(
        "--size SIZE",
        "remove the oldest until the ended runs take at most SIZE",
        _make_age_or_size_parser(_SIZE_KIB, "2G"),
    ),
    YES,
    examples=(
        "workbench runs prune --older-than 30d",
        "workbench --host gpu-box runs prune --size 2G --yes",
    ),
)
async def prune_runs(arguments: argparse.Namespace) -> int:
    from workbench.server import old_runs

    options = {
        "older_than_s": arguments.older_than,
        "keep": arguments.keep,
        "size_kib": arguments.size,
    }
    limits = {name: limit for name, limit in options.items() if limit is not None}
    if not limits:
        raise InputError(
            "no option says which runs to remove", next_step="give --older-than, --keep or --size"
        )
    if arguments.keep is not None and arguments.keep < 0:
        raise InputError(
            f"--keep {arguments.keep} is not a number of runs", next_step="give --keep 0 or more"
        )
    async with connect_session(arguments) as session:
        supervisor = session.servers.supervisor
        await supervisor.runs()  # marks those that have ended
        root = await supervisor.runs_dir()
        every = await old_runs.read_ended_runs(session.host, root)
        chosen = old_runs.choose_runs_to_remove(every, **limits)
        removed: Sequence[str] = ()
        if chosen:
            where = f"of {count_of(len(every), 'ended run')} on {session.host.name} ({root})"
            question = f"Remove {len(chosen)} {where}, {_format_total_size(chosen)}?"
            problem = (
                f"{count_of(len(chosen), 'run')} would be removed, and nobody can be asked "
                "to confirm"
            )
            next_step = "add --yes to remove these runs"
            await require_confirmation(arguments, question, problem=problem, next_step=next_step)
            removed = await old_runs.remove_runs(session.host, root, chosen)
    return _print_removed_runs(arguments, every, [run for run in chosen if run.run_id in removed])


def _print_removed_runs(
    arguments: argparse.Namespace, every: Sequence[EndedRun], removed: Sequence[EndedRun]
) -> int:
    unread = [run.run_id for run in every if run.must_not_be_removed]
    if arguments.json:
        document = {"removed": [run.run_id for run in removed], "kept": len(every) - len(removed)}
        return print_json({**document, "unread_failures": unread})
    for run in removed:
        print_line(f"removed {run.run_id}")
    print_line(
        f"{count_of(len(removed), 'run')} removed, {_format_total_size(removed)}; {len(every) - len(removed)} "
        "kept"
    )
    if unread:
        print_message(
            f"{count_of(len(unread), 'failed run')} whose log nobody has read: "
            f"{', '.join(unread[:5])}"
            f"{' …' if len(unread) > 5 else ''} (`workbench logs RUN` reads one; it can be removed "
            "afterwards)"
        )
    return 0


def _format_total_size(runs: Sequence[EndedRun]) -> str:
    return f"{sum(run.size_kib for run in runs) / 1024:,.1f} MiB"

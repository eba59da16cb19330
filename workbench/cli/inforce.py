"""The command `inforce`, which compares the requested settings of a running server with the values
that the engine or its process reports."""

from __future__ import annotations

import argparse

from workbench.cli.open_session import connected
from workbench.cli.output import emit, note, say
from workbench.cli.registry import command, option
from workbench.cli.servers import find_run
from workbench.model.counts import count_of
from workbench.model.in_force import NOT_REPORTED


@command(
    "inforce",
    "compare the requested settings of a running server with those in force",
    option("run RUN", "id of a run, or its beginning or end; `workbench servers` lists them"),
    examples=("workbench inforce RUN", "workbench inforce RUN --json"),
)
async def inforce(arguments: argparse.Namespace) -> int:
    async with connected(arguments) as session:
        status = await find_run(session, arguments.run)
        report = await session.servers.supervisor.in_force(status.run_id)
    if arguments.json:
        return emit({**report.as_json(), "simulated": status.simulated})
    cells = [("", "setting", "asked", "in force", "where read")]
    for row in report.rows:
        sign = "!" if row.differs else ""
        cells.append(
            (sign, row.name, _cut(row.asked or "-"), _cut(row.in_force or NOT_REPORTED), row.where)
        )
    widths = [max(len(line[column]) for line in cells) for column in range(4)]
    for line in cells:
        say(
            "  ".join(
                [*(text.ljust(width) for text, width in zip(line, widths, strict=False)), line[4]]
            ).rstrip()
        )
    for text in report.notes:
        note(text)
    note(f"{count_of(report.differing, 'setting differs', 'settings differ')} from what was asked")
    return 0


def _cut(text: str, most: int = 48) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"

"""The command `inforce`, which compares the requested settings of a running server with the values
that the engine or its process reports."""

from __future__ import annotations

import argparse

from workbench.cli.open_session import connect_session
from workbench.cli.output import print_json_or_lines
from workbench.cli.registry import command, option
from workbench.cli.servers import find_run


@command(
    "inforce",
    "compare the requested settings of a running server with those in force",
    option("run RUN", "id of a run, or its beginning or end; `workbench servers` lists them"),
    examples=("workbench inforce RUN", "workbench inforce RUN --json"),
)
async def print_settings_in_force(arguments: argparse.Namespace) -> int:
    from workbench.report.formats.terminal import block_lines
    from workbench.report.in_force_blocks import settings_in_force_blocks

    async with connect_session(arguments) as session:
        status = await find_run(session, arguments.run)
        report = await session.servers.supervisor.read_settings_in_force(status.run_id)
    document = {**report.as_json(), "simulated": status.simulated}
    return print_json_or_lines(
        arguments.json, document, block_lines(settings_in_force_blocks(report))
    )

"""The command `doctor`, which shows the properties of a host and the problems that keep Workbench
from serving and tuning on it.
"""

from __future__ import annotations

import argparse

from workbench.cli.open_session import connected, name_unreached
from workbench.cli.output import emit_or_say
from workbench.cli.registry import command


@command(
    "doctor",
    "show what is on the host, what is missing or does not fit, and what to do about it",
    examples=("workbench --host gpu-box doctor", "workbench doctor --json"),
)
async def doctor(arguments: argparse.Namespace) -> int:
    from workbench.report.finding_blocks import doctor_blocks
    from workbench.report.formats.terminal import block_lines
    from workbench.session.hosts.doctor import examine

    async with connected(arguments) as session:
        name_unreached(session)
        report = await examine(session)
    blocks = doctor_blocks(report.findings, report.lines)
    return emit_or_say(arguments.json, report.as_json(), block_lines(blocks))

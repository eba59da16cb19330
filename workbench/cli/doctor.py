"""The command `doctor`, which shows the properties of a host and the problems that keep Workbench
from serving and tuning on it.
"""

from __future__ import annotations

import argparse

from workbench.cli.open_session import connected, name_unreached
from workbench.cli.output import emit_or_say
from workbench.cli.registry import command, option


@command(
    "doctor",
    "show what is on the host, what is missing or does not fit, and what to do about it",
    option(
        "--list",
        "list the published traps of serving, and what of Workbench sees each; no host is read",
    ),
    examples=(
        "workbench --host gpu-box doctor",
        "workbench doctor --json",
        "workbench doctor --list",
    ),
)
async def doctor(arguments: argparse.Namespace) -> int:
    if arguments.list:
        return _list_traps(arguments)
    from workbench.report.finding_blocks import doctor_blocks
    from workbench.report.formats.terminal import block_lines
    from workbench.session.hosts.doctor import examine

    async with connected(arguments) as session:
        name_unreached(session)
        report = await examine(session)
    blocks = doctor_blocks(report.findings, report.lines)
    return emit_or_say(arguments.json, report.as_json(), block_lines(blocks))


def _list_traps(arguments: argparse.Namespace) -> int:
    from dataclasses import asdict

    from workbench.doctor.known_traps import known_traps, summary
    from workbench.report.finding_blocks import trap_blocks
    from workbench.report.formats.terminal import block_lines

    traps = known_traps()
    document = {
        "traps": [asdict(trap) for trap in traps],
        "seen": sum(bool(trap.seen_by) for trap in traps),
    }
    rows = [(t.id, t.title, t.decision, t.versions or "", t.status) for t in traps]
    return emit_or_say(arguments.json, document, block_lines(trap_blocks(summary(), rows)))

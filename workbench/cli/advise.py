"""The command `advise`: what limits a result or a running server, and which change would help."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from workbench.cli.host_words import add_host_options_to_fixes
from workbench.cli.open_session import connect_session, create_local_session, select_recorded_host
from workbench.cli.output import print_json_or_lines, simulated_suffix
from workbench.cli.registry import command, option
from workbench.cli.servers import find_run
from workbench.model.errors import InputError
from workbench.model.untrusted_numbers import parse_whole_number

if TYPE_CHECKING:
    from workbench.session.results.advice import AdvisedResult


@command(
    "advise",
    "say what limits a result or a running server, and which change would help, with the largest "
    "gain first",
    option(
        "subject RUN|RESULT", "id of a result (a number), or id of a run, or its beginning or end"
    ),
    option(
        "--expect TOK_S",
        "check a promised speed of one stream against the limit by memory bandwidth",
        float,
    ),
    examples=(
        "workbench advise 12",
        "workbench advise 12 --expect 45",
        "workbench advise RUN --json",
    ),
)
async def print_advice(arguments: argparse.Namespace) -> int:
    if arguments.expect is not None and not 0 < arguments.expect < float("inf"):
        raise InputError(
            "--expect needs a speed above 0",
            next_step="give tokens per second, such as --expect 45",
        )
    number = parse_whole_number(arguments.subject.removeprefix("#"))
    if number is not None:
        session = create_local_session()
        advised = await session.advisor.advise_on_result(number, arguments.expect)
        if advised.result is not None:
            select_recorded_host(arguments, advised.result.conditions.host)
    else:
        async with connect_session(arguments) as session:
            status = await find_run(session, arguments.subject)
            advised = await session.advisor.advise_on_run(status.run_id, arguments.expect)
    advised = replace(advised, findings=add_host_options_to_fixes(advised.findings, arguments))
    return print_json_or_lines(arguments.json, _advice_json(advised), _advice_lines(advised))


def _advice_json(advised: AdvisedResult) -> dict[str, Any]:
    result = advised.result
    return {
        "result": result.id if result else None,
        "run_id": advised.run_id,
        "simulated": result.conditions.simulated if result else None,
        "findings": [
            {**f.as_json(), "verdicts": list(advised.verdicts.get(f.code, ()))}
            for f in advised.findings
        ],
    }


def _advice_lines(advised: AdvisedResult) -> Iterator[str]:
    from workbench.report.finding_blocks import advice_blocks
    from workbench.report.formats.terminal import block_lines

    result = advised.result
    if result is not None:
        simulated = simulated_suffix(result.conditions.simulated)
        engine = result.conditions.engine or "unknown engine"
        yield f"result #{result.id}: {engine} {result.conditions.model}{simulated}"
    else:
        yield (
            f"run {advised.run_id}: not measured yet, so only its configuration and its log "
            "give advice"
        )
    yield from block_lines(advice_blocks(advised.findings, advised.verdicts))

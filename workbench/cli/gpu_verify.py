"""The command `gpu verify`, which sends load to the server and checks whether clocks and power
follow the changed GPU settings."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from workbench.cli.open_session import connect_session
from workbench.cli.output import items_as_json, print_json_or_lines, print_message, simulated_suffix
from workbench.cli.questions import can_prompt, prompt_for_sudo_password
from workbench.cli.registry import command, option
from workbench.cli.servers import wait_for_ready_run_id
from workbench.cli.shared_options import IF_MEASURED
from workbench.cli.stop_signals import cancel_on_signals
from workbench.model.errors import InputError
from workbench.model.setting_records import InForce

if TYPE_CHECKING:
    from workbench.session.gpu.proof import Verification

TARGET = (
    option("run RUN", "id of a run (default: the newest READY run of the host)", nargs="?"),
    option("--url URL", "base URL of a server that Workbench did not start"),
    IF_MEASURED,
)


def refuse_run_with_url(arguments: argparse.Namespace) -> None:
    if arguments.run and arguments.url:
        raise InputError("a run and --url are both given", next_step="give either a run or --url")


@command(
    "gpu verify",
    "put load on the running server for some seconds, and show which changed settings are in force",
    *TARGET,
    option("--seconds N", "duration of the load (8)", float, default=8.0),
    option("--concurrency N", "number of requests in flight (32)", int),
    option(
        "--probe", "if a clock proves nothing, lock another clock for 2 s, then set the lock again"
    ),
    examples=("workbench gpu verify RUN --seconds 10",),
)
async def verify_settings(arguments: argparse.Namespace) -> int:
    """Send load to the server, check the GPU settings and print the outcome. Return the exit code:
    0 if clocks and power follow every setting or the hardware limits them further, otherwise 1.
    Raises InputError for --seconds out of range, and for a run together with --url."""
    if not 1.0 <= arguments.seconds <= 600:
        raise InputError(
            f"--seconds {arguments.seconds:g} is not from 1 to 600",
            next_step="give --seconds 8, which is usually enough",
        )
    refuse_run_with_url(arguments)
    async with connect_session(arguments) as session, cancel_on_signals():
        run_id = await wait_for_ready_run_id(session, arguments.run)
        password = None
        if (
            arguments.probe
            and can_prompt(arguments)
            and (await session.gpu.rights.load_rights()).refusal
        ):
            password = await prompt_for_sudo_password(session, arguments)
        found = await session.gpu_verifier.verify_alterations(
            arguments.seconds,
            run_id,
            arguments.url,
            probe=arguments.probe,
            password=password,
            concurrency=arguments.concurrency,
        )
    if not arguments.probe and any(p.in_force is InForce.CONSISTENT for p in found.proofs):
        print_message(
            "next: `workbench gpu verify --probe` locks another clock for 2 s under load, and "
            "sets yours again"
        )
    document = {
        "host": session.host.name,
        "target": found.target,
        "seconds": found.seconds,
        "gpus": list(found.gpus),
        "output_tok_s": found.output_tok_s,
        "altered": bool(found.proofs or found.unloaded),
        "in_force": {f"{p.storage_key_prefix}.{p.setting}": str(p.in_force) for p in found.proofs},
        "proofs": items_as_json(found.proofs),
        "messages": list(found.verdict_lines),
        "simulated": found.simulated,
    }
    print_json_or_lines(arguments.json, document, _verification_lines(found))
    proven = all(p.in_force in (InForce.YES, InForce.CAPPED) for p in found.proofs)
    return 0 if proven and not found.unloaded else 1


def _verification_lines(found: Verification) -> Iterator[str]:
    if found.target:
        yield (f"{found.target}: {found.seconds:g} s under load{simulated_suffix(found.simulated)}")
    for line in found.verdict_lines:
        yield f"  {line}" if found.target else line
    for source in found.trap_source_texts:
        yield f"  source: {source}"

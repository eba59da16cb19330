"""The command `endpoint`, which adds a READY server to the endpoint file of the Python package
verifiers."""

from __future__ import annotations

import argparse

from workbench.cli.open_session import connect_session
from workbench.cli.output import print_json_or_lines, print_message
from workbench.cli.registry import command, option
from workbench.cli.servers import wait_for_ready_run_id


@command(
    "endpoint",
    "write a READY server into the endpoint file of verifiers, for `vf-eval -m NAME` on the host",
    option("run RUN", "id of a run, or its beginning or end; the command waits until it is READY"),
    option(
        "--file PATH",
        "the endpoint file on the host (as the run's preset says, or configs/endpoints.py)",
        default="",
    ),
    option(
        "--name NAME",
        "name of the entry (as the run's preset says, or the name of the model)",
        default="",
    ),
    examples=(
        "workbench endpoint RUN",
        "workbench endpoint RUN --file configs/endpoints.py --name local-vllm",
    ),
)
async def print_endpoint(arguments: argparse.Namespace) -> int:
    from workbench.session.servers import endpoint as endpoints

    async with connect_session(arguments) as session:
        run_id = await wait_for_ready_run_id(session, arguments.run)
        assert run_id is not None
        found = endpoints.make_endpoint_of_run(session, run_id, arguments.name, arguments.file)
        said = await endpoints.write_endpoint_and_describe(session, found)
    if found.api_key_advice:
        print_message(found.api_key_advice)
    return print_json_or_lines(
        arguments.json, {"file": found.file, "name": found.name, **found.entry_fields}, said
    )

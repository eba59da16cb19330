"""The command `endpoint`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from workbench.cli.open_session import connected
from workbench.cli.output import emit_or_say, note
from workbench.cli.registry import command, option
from workbench.cli.servers import ready_run
from workbench.model.errors import InputError

if TYPE_CHECKING:
    from workbench.model.preset import EndpointEntry
    from workbench.session.session import Session


@command(
    "endpoint",
    "write a READY server into the endpoint file of verifiers, for `vf-eval -m NAME` on the host",
    option("run RUN", "id of a run, or its beginning or end; the command waits until it is READY"),
    option("--file PATH", "the endpoint file on the host (as the run's preset says, or configs/endpoints.py)"),
    option("--name NAME", "name of the entry (as the run's preset says, or the name of the model)"),
    examples=("workbench endpoint RUN", "workbench endpoint RUN --file configs/endpoints.py --name local-vllm"),
)
async def endpoint(arguments: argparse.Namespace) -> int:
    from workbench import engines
    from workbench.bench.endpoint_file import NO_KEY, with_endpoint

    async with connected(arguments) as session:
        run_id = await ready_run(session, arguments.run)
        assert run_id is not None
        supervisor = session.servers.supervisor
        status, preset = supervisor.status(run_id), _of_preset(session, run_id)
        model = status.served_model or status.model
        name = arguments.name or (preset.name if preset else model)
        path = arguments.file or (preset.file if preset else "configs/endpoints.py")
        engine = engines.find(status.engine)
        key = (engine.api_key_env if engine else None) or "OPENAI_API_KEY"
        entry = {"model": model, "url": f"{status.url}/v1", "key": key if supervisor.api_key(run_id) else NO_KEY}
        try:
            before = await _text_of(session, path)
            text = with_endpoint(before, name, **entry)
        except InputError as error:
            raise InputError(f"{path}: {error.message}", host=session.host.name, next_step=error.next_step) from None
        await session.host.write_file(path, text.encode(), mode=0o644)
        if entry["key"] != NO_KEY:
            note(f"put the server's API key into the variable {entry['key']} before you run vf-eval")
        said = f"{path} on {session.host.name}: {name} is {entry['url']}"
        return emit_or_say(arguments.json, {"file": path, "name": name, **entry}, said)


async def _text_of(session: Session, path: str) -> str:
    """Return the text of a file on the host; "" if it does not exist."""
    if (await session.host.run(["test", "-e", path])).returncode != 0:
        return ""
    return (await session.host.read_file(path)).decode("utf-8", "replace")


def _of_preset(session: Session, run_id: str) -> EndpointEntry | None:
    preset_id = session.servers.supervisor.status(run_id).preset_id
    try:
        return session.presets.get(preset_id).endpoint if preset_id else None
    except InputError:  # the preset no longer exists
        return None

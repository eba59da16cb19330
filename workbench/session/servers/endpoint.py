"""The entry of a server in an endpoint file on the server's host. The command `vf-eval -m NAME` of
the Python package verifiers finds the server by that entry."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from workbench import engines
from workbench.bench.endpoint_file import (
    PLACEHOLDER_KEY,
    add_or_replace_endpoint_entry,
    endpoint_file_line,
)
from workbench.model.errors import InputError
from workbench.model.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from workbench.model.preset import EndpointEntry
    from workbench.session.session import Session

ENDPOINT_FILE = "configs/endpoints.py"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A run's server as an entry of an endpoint file, the list in which a program such as `vf-eval`
    looks up servers. `file` is the path of that file on the server's host, and `url` the server's
    address there. `key` is the name of the environment variable that contains the server's API key.
    """

    run_id: str
    host: str
    file: str
    name: str
    model: str
    url: str
    key: str

    @property
    def entry_fields(self) -> dict[str, str]:
        return {"model": self.model, "url": self.url, "key": self.key}

    @property
    def entry_line(self) -> str:
        """The entry as a line of the endpoint file."""
        return endpoint_file_line(self.name, **self.entry_fields)

    @property
    def api_key_advice(self) -> str:
        """What the user must do with the API key before running `vf-eval`, as text; "" if the
        server has no key."""
        if self.key == PLACEHOLDER_KEY:
            return ""
        return f"put the server's API key into the variable {self.key} before you run vf-eval"


def make_endpoint_of_run(session: Session, run_id: str, name: str = "", file: str = "") -> Endpoint:
    """Return the entry of a run's server for an endpoint file. If `name` is "", the entry has the
    name in the run's preset, or else the name of the model. If `file` is "", it goes into the file
    that the preset names, or else into ENDPOINT_FILE."""
    supervisor = session.servers.supervisor
    status = supervisor.status(run_id)
    usual_file, usual_name = ENDPOINT_FILE, status.model_name
    preset = _endpoint_of_run_preset(session, run_id)
    if preset is not None:
        usual_file, usual_name = preset.file, preset.name
    key = PLACEHOLDER_KEY
    if supervisor.api_key(run_id):
        engine = engines.find_engine(status.engine)
        key = (engine.api_key_env if engine else None) or "OPENAI_API_KEY"
    return Endpoint(
        run_id,
        session.host.name,
        file or usual_file,
        name or usual_name,
        status.model_name,
        f"{status.url}/v1",
        key,
    )


async def write_endpoint_and_describe(session: Session, endpoint: Endpoint) -> str:
    """Write the entry into its endpoint file on the host. Return a sentence that names the file,
    the entry and its URL. Raises InputError if the existing file is not an endpoint file."""
    try:
        text = add_or_replace_endpoint_entry(
            await _read_text_file(session, endpoint.file), endpoint.name, **endpoint.entry_fields
        )
    except InputError as error:
        raise InputError(
            f"{endpoint.file}: {error.message}", host=endpoint.host, next_step=error.next_step
        ) from None
    await session.host.write_file(endpoint.file, text.encode(), mode=0o644)
    words = ("endpoint", endpoint.run_id, "--file", endpoint.file, "--name", endpoint.name)
    session.core.record_command(shlex.join(("workbench", "--host", endpoint.host, *words)))
    return f"{endpoint.file} on {endpoint.host}: {endpoint.name} is {endpoint.url}"


async def _read_text_file(session: Session, path: str) -> str:
    """Return the text of a file on the host; "" if the file does not exist."""
    if (await session.host.run(["test", "-e", path])).returncode != 0:
        return ""
    return (await session.host.read_file(path)).decode("utf-8", "replace")


def _endpoint_of_run_preset(session: Session, run_id: str) -> EndpointEntry | None:
    preset_id = session.servers.supervisor.status(run_id).preset_id
    try:
        return session.presets.get(preset_id).endpoint if preset_id else None
    except InputError:  # the preset no longer exists
        return None

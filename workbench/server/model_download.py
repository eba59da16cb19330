"""Downloads models with the host's own program for the Hugging Face hub. Workbench itself connects
to no hub."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from workbench.hosts.base import Host
from workbench.hosts.script_files import read_script
from workbench.hosts.shell_scripts import shell_argv
from workbench.model.errors import HostError, InputError
from workbench.model.untrusted_text import LINE_CHARS, clean_text

PROGRAMS = ("hf", "huggingface-cli")  # the second is the older name
FIND_TIMEOUT_S = 20.0
_MODEL_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_TAIL_LINES = 60
_LINE_BREAK = re.compile(rb"[\r\n]+")
_FIND_PROGRAM_SCRIPT = read_script(__file__, "find_program.sh")
_MERGE_OUTPUTS_SCRIPT = 'exec "$@" 2>&1'
_NO_NETWORK_ERROR = re.compile(
    r"Name or service not known|[Nn]ame resolution|Network is unreachable|No route to host|Failed "
    r"to resolve"
    r"|Connection refused|ConnectError|ConnectionError|ConnectTimeout|Max retries exceeded"
    r"|LocalEntryNotFound|Local entry not found|OfflineMode|offline mode"
)
_NO_ACCESS_ERROR = re.compile(
    r"Access denied|GatedRepo|401 Client Error|403 Client Error|Access to model .* is "
    r"restricted|Invalid user token"
)
_NO_SUCH_MODEL_ERROR = re.compile(
    r"RepositoryNotFound|RevisionNotFound|404 Client Error|Repository Not Found|(?:Model|Revision) "
    r".*not found"
)


async def find_download_program(host: Host, directories: Sequence[str] = ()) -> str:
    """Return the path of the host's program for the Hugging Face hub: `hf` if it is on PATH, in
    `directories` or in ~/.local/bin, otherwise huggingface-cli in the same places. Raises HostError
    if there is neither."""
    done = await host.run(
        shell_argv(_FIND_PROGRAM_SCRIPT, *directories), timeout_s=FIND_TIMEOUT_S, check=True
    )
    found = done.out.strip().splitlines()
    if not found:
        raise HostError(
            f"no program of the Hugging Face hub ({', '.join(PROGRAMS)}) is installed on "
            f"{host.name}",
            host=host.name,
            next_step=f"run `pip install huggingface_hub` on {host.name}, or copy the model from "
            "another host: "
            f"workbench models copy MODEL --from HOST --to {host.name}",
        )
    return found[0]


async def download_model(
    host: Host,
    program: str,
    model: str,
    *,
    env: Mapping[str, str],
    revision: str = "",
    directory: str = "",
    on_progress: Callable[[str], None] = lambda text: None,
) -> str:
    """Download a model with `program`, that of the hub, or continue an interrupted download. Return
    the last line that it printed, which names the model's directory; "" if it printed nothing.
    `env` has its variables, such as HF_TOKEN. "" for `revision` or `directory` stands for the
    default. `on_progress` receives the newest line of its output. Raises InputError for an invalid
    model id, and HostError if the program fails."""
    if not _MODEL_NAME.fullmatch(model):
        raise InputError(
            f"{model!r} is not the id of a model on the Hugging Face hub",
            next_step="write the model id as ORGANIZATION/NAME",
        )
    argv = [program, "download", model]
    argv += [f"--revision={revision}"] if revision else []
    argv += [f"--local-dir={directory}"] if directory else []
    stream = await host.stream(shell_argv(_MERGE_OUTPUTS_SCRIPT, *argv), env=env)
    lines: list[str] = []
    try:
        async for chunk in stream.chunks():
            parts = (clean_text(part, LINE_CHARS).strip() for part in _LINE_BREAK.split(chunk))
            said = list(filter(None, parts))
            lines = [*lines, *said][-_TAIL_LINES:]
            if said:
                on_progress(said[-1])
        code = await stream.wait()
    finally:
        await stream.close()
    if code:
        raise _download_error(host, model, code, lines)
    return lines[-1] if lines else ""


def _download_error(host: Host, model: str, code: int, lines: Sequence[str]) -> HostError:
    errors = [line for line in lines if "Error" in line] or [
        line for line in lines if not line.startswith("Hint:")
    ]
    last = errors[-1] if errors else f"exit code {code}"
    elsewhere = (
        f"copy it from a host that has it: workbench models copy {model} --from HOST "
        f"--to {host.name}"
    )
    for pattern, why, step in (
        (
            _NO_ACCESS_ERROR,
            "the hub refuses access to it",
            "accept its terms on the hub, and set HF_TOKEN for that host",
        ),
        (
            _NO_SUCH_MODEL_ERROR,
            "the hub has no such model or revision",
            "check the id and the revision",
        ),
        (_NO_NETWORK_ERROR, "the host does not reach the hub", elsewhere),
    ):
        if line := next((line for line in reversed(lines) if pattern.search(line)), None):
            return HostError(
                f"{model} was not downloaded: {why} ({line})", host=host.name, next_step=step
            )
    return HostError(
        f"{model} was not downloaded: {last}",
        host=host.name,
        next_step=f"run `hf download {model}` again on {host.name} to see the whole error",
    )

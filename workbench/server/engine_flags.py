"""Gets the list of launch flags from an installed engine: the engine's Python builds its argument
parser, or its program prints its help text.

The engine's process has no GPU, may not download from the Hugging Face hub, and runs at the lowest
priority in the root directory. After FLAGS_TIMEOUT_S seconds the process and its children are
killed. Importing vLLM takes 6 s on a quiet machine, so `session/plans/engine_flags.py` stores the
lists.
"""

from __future__ import annotations

import json
import posixpath
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.hosts.base import HostUnreachable
from workbench.hosts.run_processes import signal_name
from workbench.hosts.swept_command import run_and_end_leftovers
from workbench.model.errors import HostError
from workbench.model.untrusted_text import clean_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workbench.engines.base import Engine
    from workbench.hosts.base import Host
    from workbench.server.engine_probe import InstalledEngine

FLAGS_TIMEOUT_S = 90.0
ANSWER_MAX_BYTES = 8 << 20  # vLLM 0.32 prints 180 kB
_LOW_PRIORITY_SCRIPT = 'cd / && exec nice -n 19 "$@"'
_ENV_WITHOUT_GPU_AND_NETWORK: Mapping[str, str] = {
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "OMP_NUM_THREADS": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "NO_COLOR": "1",
    "COLUMNS": "100",
}


def why_flags_cannot_be_listed(host: Host, engine: Engine, found: InstalledEngine) -> str | None:
    """Return why the engine `found` on `host` cannot be asked for its launch flags; None if it
    can."""
    if host.simulated:
        return f"the {engine.title} of a simulated host cannot be asked"
    if found.path is None:
        return found.problem or f"no {engine.title} was found"
    if found.version is None:
        return f"the version of {found.path} is not known: {found.how}"
    if engine.parser is not None:
        if _python_of_engine(found) is None:
            return f"{found.path} does not name the Python that runs it"
    elif not engine.help_arguments:
        return (
            f"{engine.title} has no list of its flags that could be read without starting its "
            "own code"
        )
    return None


async def read_flags_json_or_help(
    host: Host, engine: Engine, found: InstalledEngine, timeout_s: float = FLAGS_TIMEOUT_S
) -> object:
    """Return the launch flags of the engine `found` on `host`: the decoded JSON of flag_program.py
    for an engine with a parser in Python, the text of its help for any other. Raises HostError if
    it does not answer within `timeout_s`, fails, or prints more than ANSWER_MAX_BYTES."""
    if engine.parser is not None:
        parser = {
            "parsers": engine.parser.parsers,
            "builders": engine.parser.builders,
            "variables": engine.parser.variables,
        }
        program = Path(__file__).with_name("flag_program.py").read_text("utf-8")
        command = [str(_python_of_engine(found)), "-c", program, json.dumps(parser)]
    else:
        command = [str(found.path), *engine.help_arguments]
    argv = ["sh", "-c", _LOW_PRIORITY_SCRIPT, "sh", *command]
    elsewhere = f"`workbench flags {engine.name}` lists the flags of a version that Workbench ships"
    try:
        done = await run_and_end_leftovers(
            host, argv, env=_ENV_WITHOUT_GPU_AND_NETWORK, timeout_s=timeout_s
        )
    except HostUnreachable:
        raise
    except HostError as error:
        error.command, error.next_step = command[0], elsewhere
        raise
    if done.returncode != 0:
        signal = signal_name(done.returncode)
        problem = f"{signal} ended it" if signal else done.problem
        raise HostError(f"{found.path} did not list its flags: {problem}", host=host.name)
    if len(done.stdout) > ANSWER_MAX_BYTES:
        raise HostError(
            f"{found.path} did not list its flags: it printed {len(done.stdout) >> 20} MiB, too "
            "much",
            host=host.name,
        )
    if engine.parser is None:
        return done.out
    try:
        return clean_json(done.stdout)
    except ValueError:
        raise HostError(
            f"{found.path} did not list its flags: the answer is not JSON",
            host=host.name,
            next_step=elsewhere,
        ) from None


def _python_of_engine(found: InstalledEngine) -> str | None:
    """Return the absolute path of the Python that runs the engine; None if the path is unknown."""
    path = found.python or found.path or ""
    if path != found.python and not posixpath.basename(path).startswith("python"):
        return None
    return path if path.startswith("/") else None

"""The conditions of a result as text, in the order in which reports and the screen list them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from workbench.model.bench import Conditions
from workbench.model.run_options import PROCESS

NA = "n/a"


class Condition(NamedTuple):
    """A condition of a result, shown on one line. The function `text` returns the value of the
    condition, or "" if the line is left out."""

    label: str  # 11 characters at most: the screen shows it in a column
    text: Callable[[Conditions], str]


def _model_files_text(conditions: Conditions) -> str:
    digest, basis = conditions.model_digest or NA, conditions.model_bytes
    return f"{digest} ({basis})" if basis else digest


def _gpus_text(conditions: Conditions) -> str:
    names = [str(gpu.get("name") or "unknown GPU") for gpu in conditions.gpus]
    return f"{len(names)}: {', '.join(names)}" if names else NA


_CLIENTS = {"host": "the server's host", "tunnel": "this machine, through the ssh tunnel"}

# The GPU settings, their effect and the command have several lines each; they are not in this
# table.
CONDITIONS: tuple[Condition, ...] = (
    Condition("measured by", lambda c: c.imported or ""),
    Condition("host", lambda c: c.host),
    Condition("engine", lambda c: " ".join(filter(None, (c.engine, c.engine_version))) or NA),
    Condition("model", lambda c: c.model),
    Condition("model files", _model_files_text),
    Condition("driver", lambda c: f"{c.driver_version or NA}, CUDA {c.cuda_version or NA}"),
    Condition("GPUs", _gpus_text),
    Condition("nodes", lambda c: ", ".join(c.nodes)),
    Condition("load from", lambda c: _CLIENTS.get(c.client, c.client)),
    Condition("simulated", lambda c: "yes" if c.simulated else "no"),
    Condition("preset", lambda c: c.preset_id or ""),
    Condition("run as", lambda c: "" if c.run_as == PROCESS else c.run_as or ""),
    Condition("image", lambda c: c.image or ""),
    Condition("server text", lambda c: c.server_text),
    Condition("run", lambda c: c.run_id or ""),
)


def condition_texts(conditions: Conditions) -> list[tuple[str, str]]:
    """Return (label, value) of each condition that has a value in `conditions`."""
    texts = ((one.label, one.text(conditions)) for one in CONDITIONS)
    return [(label, text) for label, text in texts if text]

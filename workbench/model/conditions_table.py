"""The conditions of a result as text, in the order in which reports and the screen list them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from workbench.model.bench import Conditions
from workbench.model.run_options import PROCESS

NA = "n/a"


class Condition(NamedTuple):
    """A condition of a result, shown on one line. The function `text` returns the value of the
    condition; the line is left out if it is "" or None."""

    label: str  # 11 characters at most: the screen shows it in a column
    text: Callable[[Conditions], str | None]


def _model_files_text(conditions: Conditions) -> str:
    digest, basis = conditions.model_digest or NA, conditions.model_bytes
    if not basis:
        return digest
    return f"{digest} ({basis})"


def _gpus_text(conditions: Conditions) -> str:
    names = [str(gpu.get("name") or "unknown GPU") for gpu in conditions.gpus]
    if not names:
        return NA
    return f"{len(names)}: {', '.join(names)}"


def _engine_text(conditions: Conditions) -> str:
    return " ".join(filter(None, (conditions.engine, conditions.engine_version))) or NA


def _driver_text(conditions: Conditions) -> str:
    return f"{conditions.driver_version or NA}, CUDA {conditions.cuda_version or NA}"


def _launcher_text(conditions: Conditions) -> str | None:
    return None if conditions.run_as == PROCESS else conditions.run_as


_CLIENTS = {"host": "the server's host", "tunnel": "this machine, through the ssh tunnel"}

# The GPU settings, their effect and the command have several lines each; they are not in this
# table.
CONDITIONS: tuple[Condition, ...] = (
    Condition("measured by", lambda c: c.imported),
    Condition("host", lambda c: c.host),
    Condition("engine", _engine_text),
    Condition("model", lambda c: c.model),
    Condition("model files", _model_files_text),
    Condition("driver", _driver_text),
    Condition("GPUs", _gpus_text),
    Condition("nodes", lambda c: ", ".join(c.nodes)),
    Condition("load from", lambda c: _CLIENTS.get(c.client, c.client)),
    Condition("simulated", lambda c: "yes" if c.simulated else "no"),
    Condition("preset", lambda c: c.preset_id),
    Condition("run as", _launcher_text),
    Condition("image", lambda c: c.image),
    Condition("server text", lambda c: c.server_text),
    Condition("run", lambda c: c.run_id),
)


def condition_labels_and_texts(conditions: Conditions) -> list[tuple[str, str]]:
    """Return (label, value) of each condition that has a value in `conditions`."""
    texts = ((one.label, one.text(conditions)) for one in CONDITIONS)
    return [(label, text) for label, text in texts if text]

"""The start of a simulated engine: its log lines, spread over a few seconds."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any

from workbench.model.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from workbench.sim.engine_log import EngineLog
    from workbench.sim.launch_options import LaunchOptions
    from workbench.sim.memory_fit import Fit

START_S = 2.0  # for a small model; large ones take up to three times as long
LARGEST_START_S = 6.0


@dataclass(frozen=True)
class StartupPhase:
    """A log line of the start. `share` is the part of the start's duration that passes before the
    line is written. `fields` are arguments of EngineLog.write_line. If `raw` is True, the line has
    no prefix."""

    share: float
    text: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    raw: bool = False


def start_duration_s(launch: LaunchOptions) -> float:
    """Return how many seconds the start takes, from the first log line until the server is ready:
    those in the environment variable WORKBENCH_SIM_START_S, otherwise by the size of the model.
    """
    given = os.environ.get("WORKBENCH_SIM_START_S")
    if given:
        return float(given)
    seconds = min(LARGEST_START_S, START_S + launch.model.weight_bytes / 30e9)
    return seconds * (0.6 if launch.eager else 1.0)


def write_banner(log: EngineLog, launch: LaunchOptions, profile: str) -> None:
    """Write the log lines which say that the engine is simulated, and whether the size of its model
    is guessed."""
    log.write_line(
        f"SIMULATED engine ({launch.engine.name} {launch.version} on simulated host {profile}): no "
        "model is loaded, no "
        "GPU is used, the text is filler; speed follows a roofline model",
        level="WARNING",
    )
    if launch.model.guessed:
        size = launch.model.parameters / 1e9
        log.write_line(
            f"SIMULATED engine: {launch.model.id} is not a known model; taken as {size:g}B",
            level="WARNING",
        )


def reason_against_custom_all_reduce(launch: LaunchOptions, fit: Fit) -> str | None:
    """Return the reason why the engine uses NCCL instead of its own all-reduce kernel. None if it
    uses its own kernel, if a flag turns that kernel off, or if the model is not split over GPUs."""
    if launch.tp == 1 or not launch.custom_all_reduce:
        return None
    if launch.tp > 2:
        return "it's not supported on more than two PCIe-only GPUs"
    return None if fit.peer_access else "your platform lacks GPU P2P capability or P2P test failed"


def shard_shares_and_progress(
    weight_bytes: float, total_share: float
) -> Iterator[tuple[float, str]]:
    """Yield (share, progress text) for each file of the checkpoint, of which there are 1 to 8.
    `share` is the part of the start's duration, 0 to 1, that passes before the text is written. All
    shares together are `total_share`."""
    shards = max(1, min(8, round(weight_bytes / 5e9)))
    for done in range(1, shards + 1):
        yield total_share / shards, f"{100 * done // shards:3d}% Completed | {done}/{shards}"

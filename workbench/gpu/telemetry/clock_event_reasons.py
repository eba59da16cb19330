"""NVML's clock event reasons by name, for the agent and for nvidia-smi's masks. Sent to the host: see agent.py."""

from __future__ import annotations

REASONS = (
    "GPU idle",
    "applications clocks setting",
    "SW power cap",
    "HW slowdown",
    "sync boost",
    "SW thermal slowdown",
    "HW thermal slowdown",
    "HW power brake slowdown",
    "display clock setting",
)


def names(mask: int) -> list[str]:
    """Return the names of the set bits; all bits without a name give one."""
    known = [name for bit, name in enumerate(REASONS) if mask >> bit & 1]
    rest = mask >> len(REASONS) << len(REASONS)
    return [*known, f"unknown (0x{rest:x})"] if rest else known

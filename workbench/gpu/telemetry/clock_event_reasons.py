"""The names of NVML's clock event reasons. The agent and nvidia-smi report these reasons as bits of
a mask. Workbench sends this module to the host, so it uses only the standard library and Python
3.8."""

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


def reasons_in_mask(mask: int) -> list[str]:
    """Return the names of the bits that are set in `mask`. All bits without a name give one entry,
    "unknown (0x…)"."""
    known = [name for bit, name in enumerate(REASONS) if mask >> bit & 1]
    rest = mask >> len(REASONS) << len(REASONS)
    return [*known, f"unknown (0x{rest:x})"] if rest else known

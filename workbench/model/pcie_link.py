"""The nominal bandwidth of a PCIe link. Workbench sends this module to the host, so it uses only
the standard library and Python 3.8."""

from __future__ import annotations

# of one lane in one direction, after line coding (PCI-SIG)
_LANE_MB_S = {1: 250.0, 2: 500.0, 3: 985.0, 4: 1969.0, 5: 3938.0, 6: 7563.0, 7: 15125.0}


def pcie_link_mb_s(generation: int | None, width: int | None) -> float | None:
    """Return the nominal bandwidth in MB/s, in one direction, of a PCIe link with `width` lanes.
    None if either argument is None or 0, or if the generation is not known to this module."""
    if not width or generation not in _LANE_MB_S:
        return None
    return _LANE_MB_S[generation] * width

"""The simulated host that a shipped preset is for."""

from __future__ import annotations

from workbench.store.presets import ListedPreset


def natural_host(entry: ListedPreset) -> str:
    """Return the profile of the simulated host whose GPUs the preset names."""
    hosts = {
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 1): "rtx-pro-6000",
        ("NVIDIA GeForce RTX 5060 Ti", 1): "rtx-5060ti-x2",
        ("NVIDIA GeForce RTX 5060 Ti", 2): "rtx-5060ti-x2",
        ("NVIDIA GB10", 1): "gb10",
        ("NVIDIA GB10", 2): "gb10-x2",
        (None, 4): "four-pcie",
        (None, 1): "rtx-pro-6000",
    }
    passed_through = "passthrough" in entry.hardware
    return hosts[next(iter(entry.gpu_names), None), entry.gpu_count] + (
        "-passthrough" if passed_through else ""
    )

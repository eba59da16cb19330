"""Workbench: one terminal screen to tune LLM inference servers on NVIDIA GPUs."""

__version__ = "0.1.0"

"""Launchers: what runs a server on its host in place of Workbench itself, such as systemd, podman or Slurm.

launcher      the Launcher protocol, what a launcher is given, and the file in which its keeper reports

A launcher makes a *keeper*: a command that Workbench runs as a detached process, exactly like a server of its own. The
keeper starts the server through the launcher's program, copies the server's log to its output, writes what it learns
into the file `launched`, and ends with the server's exit code. So the run directory, the log, the exit code and the
adoption by another Workbench are the same for all launchers.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from workbench.model.errors import InputError

if TYPE_CHECKING:
    from workbench.server.launchers.launcher import Launcher

PROCESS = "process"  # a server that Workbench starts itself, without a launcher
# Word of `--as`: the module in this package that has `launcher(word)`.
MODULES: dict[str, str] = {}


def names() -> tuple[str, ...]:
    """Return the words of `--as`."""
    return (PROCESS, *MODULES)


def launcher_of(name: str) -> Launcher | None:
    """Return the launcher called `name`; None for a server that Workbench starts itself. Raises InputError for an
    unknown name."""
    if name == PROCESS:
        return None
    if name not in MODULES:
        raise InputError(f"{name!r} is not a way to start a server", next_step=f"use one of {', '.join(names())}")
    module = importlib.import_module(f"workbench.server.launchers.{MODULES[name]}")
    found: Launcher = module.launcher(name)
    return found

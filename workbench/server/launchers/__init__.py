"""Launchers: what runs a server on its host in place of Workbench itself, such as systemd, podman or Slurm.

launcher      the Launcher protocol, what a launcher is given, and the file in which its keeper reports
systemd       servers as units of systemd; systemd_scripts has their shell scripts
containers    servers as containers of docker and podman; container_scripts has their keeper
jobs          what schedulers share: findings, keeper, stop     job_scripts   the shell code of a job and its keeper
slurm, pbs    a server as a job of Slurm, or of PBS Pro, OpenPBS or Torque

A launcher makes a *keeper*: a command that Workbench runs as a detached process, exactly like a server of its own. The
keeper starts the server through the launcher's program, copies the server's log to its output, writes what it learns
into the file `launched`, and ends with the server's exit code. So the run directory, the log, the exit code and the
adoption by another Workbench are the same for all launchers.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from workbench.model.run_options import PROCESS, check_word

if TYPE_CHECKING:
    from workbench.server.launchers.launcher import Launcher

# Word of `--as`: the module in this package that has `launcher(word)`. Its options: model/run_options.
MODULES: dict[str, str] = {
    "systemd": "systemd",
    "docker": "containers",
    "podman": "containers",
    "slurm": "slurm",
    "pbs": "pbs",
}


def launcher_of(name: str) -> Launcher | None:
    """Return the launcher called `name`; None for a server that Workbench starts itself. Raises InputError for an
    unknown name."""
    if name == PROCESS:
        return None
    module = importlib.import_module(f"workbench.server.launchers.{MODULES[check_word(name)]}")
    found: Launcher = module.launcher(name)
    return found

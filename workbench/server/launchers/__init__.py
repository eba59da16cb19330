"""Launchers run a server on its host in place of Workbench itself. Examples are systemd, podman and
Slurm.

launcher      the Launcher protocol, its inputs and results, and the file in which a keeper reports
systemd       servers as units of systemd; systemd_scripts has their shell scripts
containers    servers as containers of docker and podman; container_scripts has their keeper, container_images the part
              that finds and pulls the image
endings       the reasons for which a launcher ends a server
jobs          the common part of all schedulers; job_scripts has the shell code of a job and of its keeper
slurm, pbs    a server as a job of Slurm, or of PBS Pro, OpenPBS or Torque

A launcher provides the command of a *keeper*, which Workbench runs as a detached process in place
of the server. The keeper starts the server through the launcher's program, copies the server's log
to its own output, reports in the file `launched` of the run directory, and ends with the server's
exit code. The run directory, the log, the exit code and the adoption by another Workbench process
are therefore the same for all launchers.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from workbench.model.run_options import PROCESS, require_launcher_name

if TYPE_CHECKING:
    from workbench.server.launchers.launcher import Launcher

# Word of `--as`: the module in this package that has `launcher(word)`. Its options:
# model/run_options.
MODULE_OF_LAUNCHER: dict[str, str] = {
    "systemd": "systemd",
    "docker": "containers",
    "podman": "containers",
    "slurm": "slurm",
    "pbs": "pbs",
}


def launcher_of(name: str) -> Launcher | None:
    """Return the launcher called `name`, such as "slurm". None for "process", by which Workbench
    starts the server itself. Raises InputError for an unknown name."""
    if name == PROCESS:
        return None
    module = importlib.import_module(
        f"workbench.server.launchers.{MODULE_OF_LAUNCHER[require_launcher_name(name)]}"
    )
    found: Launcher = module.launcher(name)
    return found

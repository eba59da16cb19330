"""The POSIX shell code of the keeper, which starts a server in a container of docker or podman and
follows it. The code works with dash, bash and busybox.

Inputs are arguments or environment variables. The code's own variables begin with wb_, to differ
from the environment variables of the server.
"""

from __future__ import annotations

from workbench.hosts.script_files import read_script
from workbench.server.launchers.container_images import (
    FIND_IMAGE_SCRIPT,
    NO_IMAGE_PATTERN,
    PULL_DIRECTORY_SCRIPT,
    PULL_SCRIPT,
)

_OWN_CONTAINER_SCRIPT = read_script(__file__, "own_container.sh")

_END_MONITOR_SCRIPT = read_script(__file__, "end_monitor.sh")

_COPY_LOG_SCRIPT = read_script(__file__, "copy_log.sh")

# $1 run id, $2 container, $3 program, $4 mode (start; keep: a container of this run, whose keeper
# was lost; follow: one that others started), $5 run directory, $6 GPUs. For a start also: image as
# named, image to pull, when to pull, its platform or "", hub cache in the container or "", number
# of paths, paths that the server reads, number of words, words of `run`, words of the server.
KEEPER_SCRIPT = (
    PULL_DIRECTORY_SCRIPT
    + _OWN_CONTAINER_SCRIPT
    + _END_MONITOR_SCRIPT
    + _COPY_LOG_SCRIPT
    + read_script(__file__, "keep_container_functions.sh")
    + PULL_SCRIPT
    + FIND_IMAGE_SCRIPT
    + read_script(__file__, "keep_container.sh")
)

ASK_SCRIPT = _OWN_CONTAINER_SCRIPT + _END_MONITOR_SCRIPT + read_script(__file__, "ask_container.sh")

STOP_SCRIPT = (
    PULL_DIRECTORY_SCRIPT
    + _OWN_CONTAINER_SCRIPT
    + _END_MONITOR_SCRIPT
    + read_script(__file__, "stop_container.sh")
)

FETCH_IMAGE_SCRIPT = read_script(__file__, "fetch_image.sh")

CHECK_SCRIPT = f"no_image='{NO_IMAGE_PATTERN}'\n" + read_script(__file__, "check_container.sh")

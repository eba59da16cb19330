"""The POSIX shell code that finds the image of a container on its host, and pulls it with progress.
It is a part of the scripts in container_scripts.py."""

from __future__ import annotations

from workbench.hosts.script_files import read_script

# An answer of docker or podman which says that an image is not here, as an extended regular
# expression.
NO_IMAGE_PATTERN = "no such (image|object)|image not known|unable to find|failed to find image"

# Where podman keeps what it pulls until the layers are unpacked; $1 of a script is the run id.
PULL_DIRECTORY_SCRIPT = r"""
wb_tmp=${TMPDIR:-/var/tmp}/workbench-pull-$1
"""

PROGRESS_SCRIPT = read_script(__file__, "pull_progress.awk")

PULL_SCRIPT = read_script(__file__, "pull_image.sh", PROGRESS_SCRIPT=PROGRESS_SCRIPT)

FIND_IMAGE_SCRIPT = f"wb_no_image='{NO_IMAGE_PATTERN}'\n" + read_script(__file__, "find_image.sh")

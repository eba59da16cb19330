"""The shell scripts of the launcher `systemd`. Each script is a constant string; inputs are passed
as arguments."""

from __future__ import annotations

from workbench.hosts.script_files import read_script

WRITTEN_BY_LINE = "# Written by Workbench"  # the first line of an installed unit

_FIND_MANAGER_SCRIPT = read_script(__file__, "find_systemd_manager.sh")

_UNIT_DIRECTORY_SCRIPT = read_script(__file__, "unit_directory.sh")

UNINSTALL_SCRIPT = (
    f"scope=$1 unit=$2 home=$3 written='{WRITTEN_BY_LINE}'\n"
    + _FIND_MANAGER_SCRIPT
    + _UNIT_DIRECTORY_SCRIPT
    + read_script(__file__, "uninstall_unit.sh")
)

# $1 scope, then the words of a systemctl command.
SYSTEMCTL_SCRIPT = (
    "scope=$1\nshift\n"
    + _FIND_MANAGER_SCRIPT
    + r"""
exec $run systemctl "$mine" --no-pager "$@"
"""
)

CHECK_SCRIPT = (
    "scope=$1 unit=$2\n" + _FIND_MANAGER_SCRIPT + read_script(__file__, "check_systemd.sh")
)

SERVER_SCRIPT = read_script(__file__, "run_unit_server.sh")

KEEPER_SCRIPT = (
    f"what=$1 dir=$2 unit=$3 scope=$4 written='{WRITTEN_BY_LINE}'\nshift 4\n"
    + _FIND_MANAGER_SCRIPT
    + _UNIT_DIRECTORY_SCRIPT
    + read_script(__file__, "keep_unit.sh")
)

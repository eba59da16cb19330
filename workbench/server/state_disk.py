"""Whether Workbench can write on a host what it keeps there: the directories and logs of its
runs."""

from __future__ import annotations

from workbench.hosts.base import Host, HostUnreachable
from workbench.hosts.script_files import read_script
from workbench.hosts.shell_scripts import parse_key_value_pairs, shell_argv
from workbench.model.errors import HostError, WorkbenchError
from workbench.model.findings import Finding, Level
from workbench.model.untrusted_numbers import parse_whole_number

DISK_LOOK_SCRIPT = read_script(__file__, "check_state_disk.sh")
_MIN_FREE_KIB = 1 << 20  # run directories and logs
_TIMEOUT_S = 5.0


async def check_state_directory(host: Host) -> list[Finding]:
    """Return a finding if the disk with the state directory of `host` is nearly full, or if nothing
    can be written there, so that no server can be started. [] if all is well, or if the host does
    not answer in time. Raises HostUnreachable if there is no connection."""
    try:
        state_dir = await host.state_dir()
    except HostUnreachable:
        raise
    except WorkbenchError as error:
        return state_directory_findings("", error.message, None)
    try:
        done = await host.run(shell_argv(DISK_LOOK_SCRIPT, state_dir), timeout_s=_TIMEOUT_S)
    except HostUnreachable:
        raise
    except HostError:
        return []
    facts = dict(parse_key_value_pairs(done.out))
    return state_directory_findings(
        state_dir, facts.get("written", ""), parse_whole_number(facts.get("free_kib"))
    )


def state_directory_findings(
    state_dir: str, write_result: str, free_kib: int | None
) -> list[Finding]:
    """Return a finding about a state directory in which nothing can be written, or whose disk is
    nearly full; [] if all is well. `write_result` is "yes", why nothing can be written, or "" if
    unknown. `state_dir` is "" if it could not be made. `free_kib` is None if unknown."""
    found = []
    if write_result not in ("", "yes"):
        where = f"nothing can be written to the state directory {state_dir}: " if state_dir else ""
        fix = (
            "free some space on that disk, or set XDG_STATE_HOME on that host to the absolute path "
            "of a directory that you can write"
        )
        found.append(Finding(Level.ERROR, "host.state-dir", f"{where}{write_result}", fix=fix))
    elif free_kib is not None and free_kib < _MIN_FREE_KIB:
        text = f"{state_dir} has {free_kib / 2**10:.0f} MiB free: logs of servers may fill it"
        fix = "free some space there, or `workbench runs prune`"
        found.append(Finding(Level.WARN, "host.disk", text, fix=fix))
    return found

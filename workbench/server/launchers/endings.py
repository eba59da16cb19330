"""Reasons for which a launcher ends a server, such as a time limit, with what the user can do about
each."""

from __future__ import annotations

import re

from workbench.model.findings import Finding, Level

# A pattern of what the keeper says, the code of the finding, and the next step: words of Slurm
# (squeue(1), "JOB STATE CODES"), of PBS (launchers/pbs.py) and of systemd (systemd.exec(5),
# SERVICE_RESULT).
_ENDING_FINDINGS = (
    (
        re.compile(r"ended: OUT_OF_ME|PBS killed it: .*mem|failed: oom-kill"),
        "launcher.memory",
        "ask for more memory (--run-option memory=64G for a job), or lower the memory of the plan",
    ),
    (
        re.compile(r"ended: (?:TIMEOUT|DEADLINE)|its walltime was over"),
        "launcher.walltime",
        "start the server again with a longer --run-option walltime=HH:MM:SS",
    ),
    (
        re.compile(r"ended: (?:NODE_FAIL|BOOT_FAIL)"),
        "launcher.node",
        "start the server again: the scheduler uses another node; `sinfo -R` says why the node "
        "failed",
    ),
    (
        re.compile(r"ended: (?:PREEMPTED|REVOKED)"),
        "launcher.preempted",
        "start the server again: it waits in the queue; a job with another --run-option "
        "partition=NAME or qos=NAME may "
        "not be preempted",
    ),
    (
        re.compile(r"ended: CANCELLED"),
        "launcher.cancelled",
        "you or an administrator cancelled the job outside of Workbench: find out why before you "
        "start again",
    ),
)


def finding_of_end_reason(reason: str | None) -> Finding | None:
    """Return the finding about `reason`, the launcher's words about the end of a server. None if
    they do not say that the launcher ended it, and for None."""
    if reason is None:
        return None
    for pattern, code, fix in _ENDING_FINDINGS:
        if pattern.search(reason):
            return Finding(Level.ERROR, code, reason, fix=fix)
    return None

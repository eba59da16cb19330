"""The jobs of the user on a cluster's login host, including jobs that Workbench did not submit.

They are listed by `squeue --format` rather than `squeue --json`, which exists since Slurm 21.08. In
Slurm 22.05.8, --json ignores -u, -j and -t and prints the jobs of all users, and its output lacks
the remaining time. Its numbers are plain in that version (`"time_limit": 30`), and objects with
`set` and `number` from 23.02 on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from workbench.hosts.base import Host
from workbench.hosts.script_files import read_script
from workbench.hosts.shell_scripts import parse_last_values, shell_argv
from workbench.model.errors import HostError, InputError
from workbench.model.job import SCHEDULERS, Job
from workbench.model.server_run import ServerStatus
from workbench.model.untrusted_text import clean_text

_TIMEOUT_S = 40.0
_DURATION_NUMBER = re.compile(r"\d{1,7}")
_STATE_WORDS = {
    "Q": "queued",
    "R": "running",
    "H": "held",
    "W": "waiting",
    "E": "exiting",
    "S": "suspended",
    "T": "moving",
}

_LIST_JOBS_SCRIPT = read_script(__file__, "list_jobs.sh")


async def read_jobs(host: Host, runs: Iterable[ServerStatus]) -> tuple[Job, ...]:
    """Return the user's jobs that have not ended. A job of one of `runs`, Workbench's runs on this
    host, gets its run id. Raises InputError for a host without a scheduler, and HostError if the
    scheduler does not answer."""
    done = await host.run(shell_argv(_LIST_JOBS_SCRIPT), timeout_s=_TIMEOUT_S, check=True)
    scheduler, _, answer = clean_text(done.stdout, len(done.stdout), lines=True).partition("\n")
    if scheduler == "none":
        names = " nor ".join(SCHEDULERS.values())
        raise InputError(
            f"neither {names} is installed on {host.name}: squeue and qstat were not found",
            host=host.name,
            next_step="use --host to name the cluster's login host, which has squeue or qstat",
        )
    if answer.startswith("refused "):
        why = answer.removeprefix("refused ").strip().splitlines()
        raise HostError(
            f"the scheduler does not answer: {why[-1] if why else 'no reason given'}",
            host=host.name,
        )
    found = _parse_slurm_jobs(answer) if scheduler == "slurm" else _parse_pbs_jobs(answer)
    ours = {(run.run_as, run.handle): run.run_id for run in runs if run.handle}
    return tuple(replace(job, run_id=ours.get((job.scheduler, job.id))) for job in found)


def _parse_slurm_jobs(answer: str) -> Iterator[Job]:
    for line in answer.splitlines():
        words = line.split("|", 7)
        if len(words) < 8:
            continue
        job_id, state, queue, node, gpus, left, reason, name = map(_parse_scheduler_value, words)
        yield Job(
            "slurm",
            job_id or "",
            name or "",
            state or "",
            queue,
            reason if state == "PENDING" else None,
            node,
            gpus.removeprefix("gres:").removeprefix("gres/") if gpus else None,
            parse_scheduler_duration_s(left),
        )


def _parse_pbs_jobs(answer: str) -> Iterator[Job]:
    for block in answer.replace("\n\t", "").split("Job Id: ")[1:]:
        job_id, _, text = block.partition("\n")
        values = parse_last_values(map(str.strip, text.splitlines()), " = ")
        state = values.get("job_state", "")
        limit_s = parse_scheduler_duration_s(values.get("Resource_List.walltime"))
        used_s = parse_scheduler_duration_s(values.get("resources_used.walltime")) or 0
        yield Job(
            "pbs",
            job_id.strip(),
            values.get("Job_Name", ""),
            _STATE_WORDS.get(state, state),
            values.get("queue"),
            values.get("comment") if state != "R" else None,
            values["exec_host"].partition("/")[0] if "exec_host" in values else None,
            _parse_pbs_gpus(values),
            None if limit_s is None else max(0, limit_s - used_s),
        )


def _parse_pbs_gpus(values: Mapping[str, str]) -> str | None:
    if "Resource_List.ngpus" in values:
        return f"gpu:{values['Resource_List.ngpus']}"
    asked = values.get("Resource_List.select") or values.get("Resource_List.nodes") or ""
    for part in asked.split(":"):
        name, _, count = part.partition("=")
        if name in ("ngpus", "gpus"):
            return f"gpu:{count}"
    return None


def _parse_scheduler_value(word: str) -> str | None:
    """Return a cell of a scheduler's table as clean text; None if it says that it has no value."""
    word = clean_text(word).strip()  # a tab would tear the row of a table
    return None if word in ("", "n/a", "N/A", "(null)", "None") else word


def parse_scheduler_duration_s(text: str | None) -> int | None:
    """Return the seconds of a duration that a scheduler prints, such as "1-02:03:04"
    (days-hours:minutes:seconds) or "02:03". None for any other text, such as "UNLIMITED"."""
    days, dash, clock = (text or "").strip().rpartition("-")
    words = [days, *clock.split(":")] if dash else clock.split(":")
    if len(words) > 4 or not all(map(_DURATION_NUMBER.fullmatch, words)):
        return None
    total_s = 0
    for word in clock.split(":"):
        total_s = total_s * 60 + int(word)
    return total_s + 86400 * int(days or 0)
